"""Clusters of proxies under seeded faults: what docs/cluster.md promises their clients, they keep.

The checkers find what they are there for: bugs are planted in what relays, and seeds must find them soon.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from qpid_ha_broker.amqp.connections import connection
from qpid_ha_broker.amqp.connections.sessions import ClientSessions
from qpid_ha_broker.amqp.links import attach, relayed_links
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink, abandon
from qpid_ha_broker.amqp.links.paced_consumer import PacedConsumer
from qpid_ha_broker.amqp.links.relayed_links import RelayedConsumer
from qpid_ha_broker.amqp.links.session_consumer import SessionConsumer
from qpid_ha_broker.amqp.relaying import relayed_transactions
from qpid_ha_broker.amqp.relaying.relayed_transactions import RelayedTransaction
from qpid_ha_broker.amqp.relaying.relayer import PlacedLink
from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.endpoint_ending import EndpointEnding
from qpid_ha_broker.amqp.wire.engine import Handler
from qpid_ha_broker.amqp.wire.relay import RelayAnswer, RelayRequest
from qpid_ha_broker.ha.leadership_proof import LeadershipProof
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sessions import Session
from qpid_ha_broker.model.sets.session_messages import release_held
from qpid_ha_broker.model.transactions.producers import Deduplication
from qpid_ha_broker.model.work import Task
from qpid_ha_broker.server.proxies.far_links import TICK_S
from qpid_ha_broker.server.proxies.proxying import Proxying
from simulation.brokers.plan import (
    OF_AGENTS_ALONE,
    BrokersKind,
    draw_moves_plan,
    draw_pauses_plan,
    draw_proxies_plan,
    draw_split_plan,
)
from simulation.brokers.world import run_proxies
from simulation.planted import found_by

PORTIONS = {"proxies-0": (1, 3, 7), "proxies-1": (0, 2, 4, 5, 6, 11)}
"""Seeds of one test each, so that two processes have something to do; each with all that is said of their sums."""
WITH_SESSIONS = (7, 10, 11)
"""Seeds of clusters that have clients with sessions."""
WITH_SHRINKING_CREDIT = (112, 133)
"""Seeds of clusters that have consumers who take credit back."""


@pytest.mark.parametrize("seeds", PORTIONS.values(), ids=PORTIONS)
def test_clusters_of_proxies_keep_their_promises(seeds: tuple[int, ...]) -> None:
    outcomes = [run_proxies(draw_proxies_plan(seed)) for seed in seeds]

    assert {each.plan.seed: each.problem for each in outcomes if each.problem} == {}
    # A simulation in which nothing happens would pass as well.
    assert sum(outcome.confirmed for outcome in outcomes) > 500 * len(seeds)
    assert sum(outcome.handed_out for outcome in outcomes) > 300 * len(seeds)
    assert sum(outcome.generations for outcome in outcomes) > 2 * len(seeds)
    assert sum(outcome.committed for outcome in outcomes) > 5 * len(seeds)
    assert sum(outcome.resumed for outcome in outcomes) > 0
    assert {len(outcome.plan.replicas) for outcome in outcomes} >= {0, 2, 3}


def test_a_seed_of_proxies_tells_the_same_story_twice() -> None:
    first, second = (run_proxies(draw_proxies_plan(7), with_trace=True) for _ in range(2))

    assert first.trace
    assert first == second


def test_every_kind_of_fault_of_proxies_is_drawn() -> None:
    kinds = {fault.kind for seed in range(200, 260) for fault in draw_proxies_plan(seed).faults}
    assert kinds == set(BrokersKind) - OF_AGENTS_ALONE


def test_some_clusters_of_proxies_have_clients_with_sessions() -> None:
    assert 60 < sum(draw_proxies_plan(seed).sessions > 0 for seed in range(200)) < 100
    assert all(draw_proxies_plan(seed).sessions for seed in WITH_SESSIONS)


def test_some_clusters_of_proxies_have_consumers_whose_credit_shrinks() -> None:
    assert 40 < sum(draw_proxies_plan(seed).shrinking > 0 for seed in range(200)) < 80
    assert all(draw_proxies_plan(seed).shrinking for seed in WITH_SHRINKING_CREDIT)


def test_credit_that_is_asked_for_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = RelayedConsumer._ask

    def ask_twice(self: RelayedConsumer) -> None:
        before = 0 if self.far is None else engine.credit(self.far)
        ask(self)
        if self.far is not None and not self._credit.is_draining and engine.credit(self.far) > before:
            engine.give_credit(self.far, engine.credit(self.far) - before)

    monkeypatch.setattr(RelayedConsumer, "_ask", ask_twice)

    assert "has asked for" in found_by(monkeypatch, map(draw_proxies_plan, range(5))).problem


def test_a_message_that_is_released_because_its_client_has_taken_credit_back_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_backlog = RelayedConsumer._send_backlog

    def send_or_release(self: RelayedConsumer) -> None:
        send_backlog(self)
        while self._backlog and self._sender.credit <= 0 and not self._still_to_come:
            delivery, payload, _, _ = self._backlog.popleft()
            self.connection.container.relayed.let_go(len(payload))
            engine.settle(delivery, engine.RELEASED)
            self._touch_far()
        self._note_held()

    monkeypatch.setattr(RelayedConsumer, "_send_backlog", send_or_release)

    plans = map(draw_proxies_plan, WITH_SHRINKING_CREDIT)
    assert "for the first time, behind" in found_by(monkeypatch, plans).problem


def test_credit_that_is_still_missing_and_counts_as_very_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read_credit = engine._read_credit

    def read(pointer: Any, handler: Handler) -> None:
        if engine._beyond.get(pointer, 0) < 0:
            del engine._beyond[pointer]
        read_credit(pointer, handler)

    monkeypatch.setattr(engine, "_read_credit", read)

    found_by(monkeypatch, map(draw_proxies_plan, (15,)))


def test_a_message_that_is_not_given_back_at_a_detach_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proxying, "forget", lambda self, link, closed=True: self.pool.links.pop(link, None))

    found_by(monkeypatch, map(draw_proxies_plan, (2, 9)))  # in some others Proton is given what it has freed


def test_a_primary_that_grants_nobody_what_he_had_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def grant_nothing(self: OutgoingLink, relay: RelayRequest) -> RelayAnswer:
        generations = self.hosted.resources.replicated.state.generations
        return RelayAnswer(generations[-1][1].generation if generations else 0, ())

    monkeypatch.setattr(OutgoingLink, "_reclaim", grant_nothing)

    assert "belongs to" in found_by(monkeypatch, map(draw_proxies_plan, (4, 6, 10))).problem


def test_a_link_that_is_given_up_although_it_is_attached_since_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def try_again(self: Proxying, link: PlacedLink) -> None:
        self.pool.links[link] = None
        asyncio.get_running_loop().call_later(TICK_S, lambda: link.look_again() if link in self.pool.links else None)

    monkeypatch.setattr(Proxying, "try_again", try_again)

    assert "after 40 s" in found_by(monkeypatch, map(draw_moves_plan, (4, 6))).problem  # somebody waits for ever


def test_a_transaction_that_waits_for_what_nobody_brings_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = RelayedTransaction.fail

    def fail_unless_gone(self: RelayedTransaction, error: AmqpError) -> None:
        if error is not relayed_links._GONE:
            fail(self, error)

    monkeypatch.setattr(RelayedTransaction, "fail", fail_unless_gone)

    assert "a transaction that is not over" in found_by(monkeypatch, map(draw_moves_plan, (22, 52))).problem


def test_transactions_of_sets_that_move_all_the_time_keep_their_promises() -> None:
    outcome = run_proxies(draw_moves_plan(2))

    assert outcome.problem == ""
    assert (outcome.committed > 200, outcome.generations > 8) == (True, True)


def test_a_commit_that_is_released_as_its_coordinator_has_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "answer_late", None)
    monkeypatch.setattr(relayed_transactions, "_ANSWERS", (*relayed_transactions._ANSWERS, engine.RELEASED))

    problem = found_by(monkeypatch, map(draw_moves_plan, (0, 6))).problem
    assert f"was answered with {engine.RELEASED} when it discharged" in problem


def test_a_message_of_a_session_that_is_given_back_when_its_connection_is_lost_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SessionConsumer, "_give_back", _gives_all_back)

    found_by(monkeypatch, map(draw_proxies_plan, WITH_SESSIONS))


def test_a_held_message_that_does_not_come_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionConsumer, "_sending_again", _sends_nothing_again)

    found_by(monkeypatch, map(draw_proxies_plan, WITH_SESSIONS))


def test_a_refusal_that_is_forgotten_when_a_later_message_is_accepted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deduplication, "note_refused", lambda self, producer, sequence: None)

    plans = map(draw_pauses_plan, (0, 1))  # with sessions that fill a small queue
    assert "was accepted, held by nobody" in found_by(monkeypatch, plans).problem


def test_a_close_with_an_error_that_is_taken_for_a_farewell_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ending_by_peer", lambda endpoint, closed=True: EndpointEnding.CLOSED)

    plans = map(draw_pauses_plan, (1, 2))
    assert "whose client has not said that it goes for good" in found_by(monkeypatch, plans).problem


def test_an_operator_who_ends_the_session_of_somebody_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    end_by_hand = ClientSessions.end_by_hand

    def end_all(self: ClientSessions, name: str) -> Session | None:
        for other in list(self._default.resources.replicated.state.sessions.by_name):
            if other != name:
                end_by_hand(self, other)
        return end_by_hand(self, name)

    monkeypatch.setattr(ClientSessions, "end_by_hand", end_all)

    plan = draw_proxies_plan(20)  # of two clients with sessions
    problem = found_by(monkeypatch, [plan]).problem
    assert "ends session" in problem
    assert "whose client" in problem  # has not said that it goes, or was there a moment ago


def test_an_attempt_that_was_given_up_and_takes_the_session_from_the_next_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientSessions, "_is_outdated", lambda self, attempt, session: False)

    plans = map(draw_proxies_plan, (43, 32))  # where brokers are cut off from the one that keeps sessions
    assert "is told that its session was taken" in found_by(monkeypatch, plans).problem


def test_a_primary_that_gives_messages_although_it_was_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeadershipProof, "look", lambda self, now_s, woke_s: LeadProof.ALONE)

    plans = map(draw_split_plan, (1, 2))
    assert "gives messages to consumers as primary of generation" in found_by(monkeypatch, plans).problem


def test_a_primary_that_gives_what_is_not_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    look = LeadershipProof.look

    def believes(self: LeadershipProof, now_s: float, woke_s: float) -> LeadProof:
        proof = look(self, now_s, woke_s)
        return LeadProof.ALONE if proof is LeadProof.PROVEN else proof

    monkeypatch.setattr(LeadershipProof, "look", believes)

    plans = map(draw_split_plan, (14, 59))
    assert "without a mark" in found_by(monkeypatch, plans).problem


def test_a_stop_that_a_primary_does_not_notice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessTime, "look", lambda self, now_s: 0.0)

    plans = [
        draw_proxies_plan(135)
    ]  # where it is stopped while it hands out, and nobody has left before that is recorded
    assert "gives messages to consumers as primary of generation" in found_by(monkeypatch, plans).problem


def test_splits_in_which_a_primary_is_replaced_keep_their_promises() -> None:
    seeds = 2, 7, 13  # 13: what one consumer says to be undeliverable, another one has consumed
    outcomes = [run_proxies(draw_split_plan(seed)) for seed in seeds]

    assert [each.problem for each in outcomes] == ["", "", ""]
    assert all(each.generations > 1 and each.handed_out for each in outcomes)


def test_a_broker_that_relays_whatever_comes_of_a_primary_that_it_did_not_hear_of_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Silence.__init__
    monkeypatch.setattr(Silence, "__init__", lambda self, clock, limit_s: begin(self, clock, 1000.0))

    plans = map(draw_split_plan, (5, 8))
    assert "was under way for" in found_by(monkeypatch, plans).problem


def test_a_broker_that_was_stopped_and_relays_what_it_finds_then_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Silence, "heard", lambda self: True)

    plans = map(draw_split_plan, (11, 7))
    assert "was under way for" in found_by(monkeypatch, plans).problem


def test_a_drain_that_does_not_wait_for_what_a_new_primary_took_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PacedConsumer, "_hides_what_was_there", False)

    plans = [replace(draw_split_plan(seed), consumers=1, browsers=6, most_unsettled=30_000) for seed in (0, 1)]
    assert "has drained" in found_by(monkeypatch, plans).problem


def _gives_all_back(self: SessionConsumer, entries: list[Entry], *, lost: bool) -> None:
    abandon(entries)
    held = self.hosted.resources.catalog.holdings.find(*self._owner_of_held, self.queue)
    if held is not None and not self.hosted.resources.replication.read_only:
        release_held(self.hosted.resources, held, failed=False)


def _sends_nothing_again(self: SessionConsumer) -> Task:
    self._again.clear()
    self._is_sending_again = False
    self.credit = self._sender.credit
    yield
