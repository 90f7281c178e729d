"""The brokers of a simulated cluster are those that ship: bugs that are planted in their drivers are found.

What drives the cores (`server`) has sockets, disks, timers and threads of its own, where the machine of a simulation
stands in: see `brokers_node`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.clients.client_protocol import ClientProtocol
from qpid_ha_broker.server.peers.peer_links import PeerLinks
from qpid_ha_broker.server.sets.set_host import SetHost
from qpid_ha_broker.server.stores.progress import SyncProgress
from simulation.planted import found_by
from simulation.proxies_plan import draw_proxies_plan
from simulation.proxies_world import run_proxies

PORTIONS = {"brokers-0": (0, 7, 11), "brokers-1": (6, 10, 16)}
"""Seeds of one test each, so that two processes have something to do."""
WITH_POWER_CUTS = (53, 40, 9)
"""Seeds of clusters whose brokers lose their power together."""
WITH_SESSIONS = (7, 10)
"""Of clusters that have clients with sessions: at their end somebody has to notice that those do not come again."""
TICKS_S = 3.0


def test_clusters_that_lose_their_power_keep_what_was_confirmed() -> None:
    plans = [draw_proxies_plan(seed) for seed in WITH_POWER_CUTS]
    outcomes = [run_proxies(plan) for plan in plans]

    assert all(plan.power_cuts for plan in plans)
    assert [outcome.problem for outcome in outcomes] == [""] * len(plans)
    assert all(outcome.confirmed and outcome.handed_out for outcome in outcomes)


def test_a_power_cut_is_a_fault() -> None:
    """Where nothing goes wrong more is promised: that who has unsubscribed gets nothing more, say (seed 216157)."""
    plan = next(plan for plan in map(draw_proxies_plan, range(100)) if plan.power_cuts)
    assert replace(plan, faults=()).has_faults
    assert not replace(plan, faults=(), power_cuts=()).has_faults


def test_a_seed_of_real_brokers_tells_the_same_story_twice() -> None:
    first, second = (run_proxies(draw_proxies_plan(7), with_trace=True) for _ in range(2))

    assert first.trace
    assert first == second


@pytest.mark.parametrize("seeds", PORTIONS.values(), ids=PORTIONS)
def test_clusters_of_real_brokers_keep_their_promises(seeds: tuple[int, ...]) -> None:
    outcomes = [run_proxies(draw_proxies_plan(seed)) for seed in seeds]

    assert {outcome.plan.seed: outcome.problem for outcome in outcomes if outcome.problem} == {}
    # A simulation in which nothing happens would pass as well.
    assert sum(outcome.confirmed for outcome in outcomes) > 500 * len(seeds)
    assert sum(outcome.handed_out for outcome in outcomes) > 300 * len(seeds)
    assert sum(outcome.generations for outcome in outcomes) > 2 * len(seeds)


def test_a_receipt_of_the_disk_that_is_taken_for_that_of_what_came_later_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance = SyncProgress.advance
    monkeypatch.setattr(SyncProgress, "advance", lambda self, ticket: advance(self, self.appended_ticket))

    assert "was accepted" in found_by(monkeypatch, map(draw_proxies_plan, WITH_POWER_CUTS)).problem


def test_a_ticker_that_stops_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_forever = Broker._tick_forever

    async def tick_a_while(self: Broker) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TICKS_S):
                await tick_forever(self)

    monkeypatch.setattr(Broker, "_tick_forever", tick_a_while)

    found_by(monkeypatch, map(draw_proxies_plan, WITH_SESSIONS))


def test_a_connection_that_ends_without_its_links_being_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost_unnoticed(self: ClientProtocol, error: Exception | None) -> None:
        self._is_aborted = True
        self._broker.admission.gone(self)
        if self._deadline is not None:
            self._deadline.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            self._broker.remove(connection)

    monkeypatch.setattr(ClientProtocol, "connection_lost", lost_unnoticed)

    found_by(monkeypatch, map(draw_proxies_plan, range(3)))


def test_a_turn_that_forgets_a_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    turn_ended, turns = SetHost.turn_ended, [0]

    def forget_one(self: SetHost, ended: Sequence[tuple[HostedSet, LogBatch | None]]) -> None:
        turns[0] += 1
        turn_ended(self, ended[1:] if turns[0] % 50 == 0 else ended)

    monkeypatch.setattr(SetHost, "turn_ended", forget_one)

    found_by(monkeypatch, map(draw_proxies_plan, (0, 3)))


def test_a_channel_of_whose_end_its_member_does_not_hear_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: PeerLinks, channel: Channel, reason: str) -> None:
        number = self._numbers.pop(channel, None)
        if number is not None:
            del self._links[number]

    monkeypatch.setattr(PeerLinks, "closed", forget)

    found_by(monkeypatch, map(draw_proxies_plan, range(3)))
