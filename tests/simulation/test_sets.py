"""Clusters of real brokers with many resource sets under seeded faults: whatever happens, each comes to rest as it
should be.

The checkers find what they are there for: bugs are planted in the controller, and seeds must find them soon.
"""

from __future__ import annotations

import math

import pytest

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.leadership import Leadership
from qpid_ha_broker.cluster.liveness import Liveness
from qpid_ha_broker.cluster.records import SetRecords
from qpid_ha_broker.cluster.replicas import _Check
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message
from simulation.planted import found_by
from simulation.sets.plan import SetsKind, draw_sets_plan
from simulation.sets.world import run_sets

PORTIONS = {"sets-0": range(8), "sets-1": range(8, 16)}
"""Seeds of one test each, so that two processes have something to do."""


@pytest.mark.parametrize("seeds", PORTIONS.values(), ids=PORTIONS)
def test_clusters_of_many_sets_keep_their_promises(seeds: range) -> None:
    outcomes = [run_sets(draw_sets_plan(seed)) for seed in seeds]

    assert {each.plan.seed: each.problem for each in outcomes if each.problem} == {}
    # A simulation in which nothing happens would pass as well.
    assert sum(outcome.confirmed for outcome in outcomes) > 300 * len(seeds)
    assert sum(outcome.handed_out for outcome in outcomes) > 100 * len(seeds)
    assert sum(outcome.generations for outcome in outcomes) > 6 * len(seeds)


def test_a_seed_of_many_sets_tells_the_same_story_twice() -> None:
    first, second = (run_sets(draw_sets_plan(6), with_trace=True) for _ in range(2))

    assert first.trace
    assert first == second


def test_every_kind_of_fault_of_sets_is_drawn() -> None:
    assert {fault.kind for seed in range(60) for fault in draw_sets_plan(seed).faults} == set(SetsKind)


def test_a_record_that_is_replaced_without_a_comparison_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = SetRecords.requested

    def believe(self: SetRecords, asked: ms.RecordRequested) -> None:
        entry = self._ctx.draft.sets.get(asked.set)
        if entry is not None and entry.record.name and asked.wanted is not None:
            asked = asked._replace(expected=entry.record)
        requested(self, asked)

    monkeypatch.setattr(SetRecords, "requested", believe)

    assert "was not asked for" in found_by(monkeypatch, map(draw_sets_plan, (2,))).problem


def test_a_replica_that_goes_before_the_rest_is_in_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Check, "in_sync_without", lambda self, name: [each for each in self.replicas if each != name])

    assert "loses" in found_by(monkeypatch, map(draw_sets_plan, (3,))).problem


def test_a_failover_to_somebody_who_is_not_in_sync_is_refused_for_ever_and_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Leadership, "_candidates", lambda self, entry: [entry.replicas[-1]])
    monkeypatch.setattr(Leadership, "_others", lambda self, entry, candidates: [])

    assert "is led by []" in found_by(monkeypatch, map(draw_sets_plan, (0,))).problem


def test_a_lost_broker_that_nobody_misses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Liveness, "losses", lambda self, now_s, gone_after_s, failure_timeout_s: [])

    assert "is led by []" in found_by(monkeypatch, map(draw_sets_plan, (7,))).problem


def test_a_new_controller_that_waits_for_ever_for_who_failed_with_the_old_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = Liveness.began

    def wait(self: Liveness, own: str, names: tuple[str, ...], now_s: float) -> None:
        began(self, own, names, now_s)
        self._since_s = dict.fromkeys(names, math.inf)

    monkeypatch.setattr(Liveness, "began", wait)
    monkeypatch.setattr(Liveness, "refuses", lambda self, name, now_s: None)  # else that is how it is known

    assert "is led by []" in found_by(monkeypatch, map(draw_sets_plan, (7,))).problem


def test_a_controller_that_asks_nobody_before_it_takes_him_for_failed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Liveness, "to_ask", lambda self, now_s, failure_timeout_s: [])

    assert "is taken for failed" in found_by(monkeypatch, map(draw_sets_plan, (25,))).problem


def test_a_broker_that_is_gone_because_its_connection_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it answers on another one."""
    answered = Liveness.answered

    def answer(self: Liveness, name: str, now_s: float) -> None:
        if name not in self._reset_s:
            answered(self, name, now_s)

    monkeypatch.setattr(Liveness, "answered", answer)

    assert "is taken for failed" in found_by(monkeypatch, map(draw_sets_plan, (25,))).problem


def test_a_message_that_is_written_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Resources.publish

    def repeat(self: Resources, queue: Queue, message: Message, now_ms: int) -> CommitToken:
        publish(self, queue, message, now_ms)
        return publish(self, queue, message, now_ms)

    monkeypatch.setattr(Resources, "publish", repeat)

    found_by(monkeypatch, map(draw_sets_plan, (6,)))
