"""The brokers of a simulated cluster are those that ship: bugs that are planted in their drivers are found.

What drives the cores (`server`) has sockets, disks, timers and threads of its own, where the machine of a simulation
stands in: see `machines.node`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.clients.client_protocol import ClientProtocol
from qpid_ha_broker.server.clients.cluster_clients import ClientAccess
from qpid_ha_broker.server.clients.set_clients import SetClients
from qpid_ha_broker.server.controller.controller_service import ControllerService
from qpid_ha_broker.server.peers.peer_links import PeerLinks
from qpid_ha_broker.server.peers.sub_channels import Losses
from qpid_ha_broker.server.sets.forward_links import ForwardLink
from qpid_ha_broker.server.sets.set_host import SetHost
from qpid_ha_broker.server.stores.progress import SyncProgress
from simulation.brokers.plan import draw_agents_plan, draw_forwarding_plan, draw_moves_plan, draw_proxies_plan
from simulation.brokers.world import run_proxies
from simulation.planted import found_by

WITH_POWER_CUTS = (53, 40, 9)
"""Seeds of clusters whose brokers lose their power together."""
WITH_SESSIONS = (7, 10)
"""Of clusters that have clients with sessions: at their end somebody has to notice that those do not come again."""
TICKS_S = 3.0
ORDERS = 4
"""That a controller gives before it is heard no more: nobody leads its sets without one."""


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


def test_a_receipt_of_the_disk_that_is_taken_for_that_of_what_came_later_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance = SyncProgress.advance
    monkeypatch.setattr(SyncProgress, "advance", lambda self, ticket: advance(self, self.appended_ticket))

    assert "was accepted" in found_by(monkeypatch, map(draw_proxies_plan, WITH_POWER_CUTS)).problem


def test_such_a_receipt_is_found_where_nothing_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was confirmed is on too few disks at that moment, whether somebody loses his power or not."""
    advance = SyncProgress.advance
    monkeypatch.setattr(SyncProgress, "advance", lambda self, ticket: advance(self, self.appended_ticket))

    plan = replace(draw_agents_plan(0), faults=(), power_cuts=())
    assert "may be promoted, and should have it" in found_by(monkeypatch, [plan]).problem


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

    outcomes = map(run_proxies, map(draw_proxies_plan, (0, 3)))
    problem = next(filter(None, (outcome.problem for outcome in outcomes)))
    assert "the stream goes on at LSN" in problem  # the member's core finds the gap: a bug that ends a run


def test_a_channel_of_whose_end_its_member_does_not_hear_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: PeerLinks, channel: Channel, reason: str) -> None:
        number = self._numbers.pop(channel, None)
        if number is not None:
            del self._links[number]

    monkeypatch.setattr(PeerLinks, "closed", forget)

    found_by(monkeypatch, map(draw_proxies_plan, (7, 13)))


def test_a_primary_that_leaves_clients_on_links_of_a_set_that_it_does_not_lead_any_more_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SetClients, "_end", lambda self: None)

    found_by(monkeypatch, map(draw_moves_plan, range(2)))


def test_a_controller_whose_orders_are_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    give_order, orders = ControllerService._give_order, [0]

    def lose_some(self: ControllerService, effect: Any) -> None:
        orders[0] += 1
        if orders[0] <= ORDERS:
            give_order(self, effect)

    monkeypatch.setattr(ControllerService, "_give_order", lose_some)

    found_by(monkeypatch, map(draw_forwarding_plan, range(4)))


def test_a_set_to_which_nothing_is_handed_on_after_its_channel_was_closed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ForwardLink, "closed", lambda self, channel, reason: None)

    found_by(monkeypatch, map(draw_forwarding_plan, range(4)))


def test_a_primary_of_default_that_steps_down_and_does_not_tell_its_clients_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientAccess, "_end", lambda self: None)

    found_by(monkeypatch, map(draw_moves_plan, range(2)))


def test_members_that_do_not_hear_of_the_loss_of_a_shared_connection_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Losses, "lost", lambda self, sub_channels, reason: None)

    found_by(monkeypatch, map(draw_forwarding_plan, range(4)))
