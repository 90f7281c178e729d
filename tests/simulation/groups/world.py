"""Brokers that ship, with a group, whose clients use its queues at all of them: see `brokers.world`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.server.sets import group_set_member
from qpid_ha_broker.server.sets.core_loop import Action
from qpid_ha_broker.server.sets.group_set_member import GroupSetMember
from simulation.brokers.clients import ConsumingClient, LinkClient, PublishingClient
from simulation.brokers.placed_sets import PlacedSet
from simulation.brokers.plan import BrokersFault, BrokersKind
from simulation.brokers.trouble import BrokersTrouble
from simulation.brokers.world import BrokersOutcome, BrokersWorld, run_world
from simulation.groups.plan import GroupKind, GroupPlan, GroupQueueKind
from simulation.groups.set import GroupReplica, GroupSet
from simulation.groups.transport import GroupOrders
from simulation.machines.node import BrokerNode

KEYS = 3
"""Of last-value queues."""
SLOW_S = 0.02
LATE_S = 0.05
SLOW_DISK_S = 0.1
FIRST_AWAY_S = 0.3, 6.0
FRAGILE_S = 5.0
"""So long after a member has come back with nothing, the others must not lose what it had."""


class GroupTrouble(BrokersTrouble):
    """Where no one leads: faults strike any member of the group."""

    orders: GroupOrders
    group: GroupSet
    _fragile_until_s: float
    """Somebody has lost its disk: until then no one else may go."""

    def begin(self, orders: GroupOrders, group: GroupSet) -> None:
        """Before anything strikes."""
        self.orders, self.group, self._fragile_until_s = orders, group, 0.0
        self._strikes |= {
            GroupKind.MEMBER_CRASHES: self._crash_member,
            GroupKind.MEMBERS_CRASH: self._crash_members,
            GroupKind.MEMBER_PAUSED: self._pause_member,
            GroupKind.ORDER_SPLIT: self._split_order,
            GroupKind.ORDER_SLOW: self._slow_order,
            GroupKind.ORDER_LATE: self._delay_order,
            GroupKind.ORDER_CONGESTED: lambda fault, draw: orders.congest(self._member(draw).name, fault.for_s),
            GroupKind.ORDER_LOST: lambda fault, draw: orders.lose(self._member(draw).name, fault.for_s),
            BrokersKind.DISK_SLOW: self._slow_disk,
            BrokersKind.DISK_LOST: self._lose_disk,
            BrokersKind.DELETE_QUEUE: self._delete_queue,
        }

    def _can_spare(self, placed: PlacedSet, name: str) -> bool:
        return placed is self.group or super()._can_spare(placed, name)  # all have on disk what is confirmed

    def _member(self, draw: random.Random) -> BrokerNode:
        return draw.choice(self.group.nodes).node

    def _crash_member(self, fault: BrokersFault, draw: random.Random) -> None:
        self._crash(self._member(draw), fault.for_s, draw)

    def _may_go(self, node: BrokerNode) -> bool:
        return self._schedule.now_s > self._fragile_until_s and super()._may_go(node)

    def _crash_members(self, fault: BrokersFault, draw: random.Random) -> None:
        is_whole = all(node.is_up and not node.is_paused for node in self._nodes)
        if not is_whole or self._schedule.now_s < self._fragile_until_s:
            return
        has_power = draw.random() < 0.5
        for replica in draw.sample(self.group.nodes, draw.randint(2, len(self.group.nodes))):
            replica.node.kill(is_silent=not has_power)
            self._later(fault.for_s * draw.uniform(0.1, 2.0), replica.node.start_machine)

    def _pause_member(self, fault: BrokersFault, draw: random.Random) -> None:
        self._pause(self._member(draw), fault.for_s)

    def _split_order(self, fault: BrokersFault, draw: random.Random) -> None:
        self.orders.split({replica.name: draw.choice((0, 0, 1, 1, 2)) for replica in self.group.nodes})
        self._later(fault.for_s, partial(self.orders.split, {}))

    def _slow_order(self, fault: BrokersFault, draw: random.Random) -> None:
        name = self._member(draw).name
        self.orders.slow_s[name] = SLOW_S
        self._later(fault.for_s, partial(self.orders.slow_s.pop, name, 0.0))

    def _delay_order(self, fault: BrokersFault, draw: random.Random) -> None:
        name = self._member(draw).name
        self.orders.delay(name, LATE_S)
        self._later(fault.for_s, partial(self.orders.delay, name, 0.0))

    def _slow_disk(self, fault: BrokersFault, draw: random.Random) -> None:
        disks = self._member(draw).disks
        disks.slow_s = SLOW_DISK_S
        self._later(fault.for_s, partial(setattr, disks, "slow_s", 0.0))

    def _lose_disk(self, fault: BrokersFault, draw: random.Random) -> None:
        node = self._member(draw)
        if self._may_go(node) and not self.group.why_not_at_rest():
            self._fragile_until_s = self._schedule.now_s + fault.for_s + FRAGILE_S
            node.kill(is_silent=True)
            node.disks.replace()
            self._later(fault.for_s, node.start_machine)

    def _delete_queue(self, fault: BrokersFault, draw: random.Random) -> None:
        up = [node for node in self._nodes if node.is_up and not node.is_paused]
        if up:
            brokers = draw.sample(up, min(len(up), draw.randint(1, 2)))
            self.group.delete_queue(brokers, draw.choice(list(self.group.queues)))


class ExclusiveClient(ConsumingClient):
    """Of a queue that one connection at a time has: it tries until it is the one."""

    def why_not_at_rest(self) -> str:
        return super().why_not_at_rest() if self.is_attached else ""


class GroupWorld(BrokersWorld):
    """See there."""

    plan: GroupPlan

    def __init__(self, plan: GroupPlan, with_trace: bool, directory: Path) -> None:
        super().__init__(plan, with_trace, directory)
        self.orders = GroupOrders(self.schedule, plan.seed, self.surroundings, lambda: self.nodes)
        self.default.queues = {}
        (self.group,) = [placed for placed in self.sets if isinstance(placed, GroupSet)]
        trouble = GroupTrouble(
            self.schedule, self.streams, self.nodes, self.default, self.sets, self.leases, self.operator
        )
        trouble.begin(self.orders, self.group)
        self.trouble = trouble

    def _look_at_confirmations(self) -> None:
        """Not by custody: who has to have a message of a group is said by its order."""

    def _values(self, index: int, directory: Path) -> dict[str, Any]:
        return super()._values(index, directory) | {"ha.backup-timeout": f"{self.plan.backup_timeout_s:g}s"}

    def _other_set(self, number: int, replicas: tuple[int, ...]) -> PlacedSet:
        members = [GroupReplica(self.nodes[index], "group") for index in replicas]
        placed = GroupSet("group", self.schedule, self.trace, self.default, members)
        placed.queues = {
            f"q{number}": {**kind.arguments, "qpid.exclusive": is_exclusive}
            for number, (kind, is_exclusive) in enumerate(zip(self.plan.kinds, self.plan.exclusive, strict=True))
        }
        return placed

    def _pick(self, draw: random.Random) -> tuple[PlacedSet, str]:
        return self.group, draw.choice(list(self.group.queues))

    def _make_client(self, kind: type[LinkClient], name: str, placed: PlacedSet, queue: str) -> LinkClient:
        of_queue, is_exclusive = self._kind_of(queue)
        client = super()._make_client(
            ExclusiveClient if is_exclusive and kind is ConsumingClient else kind, name, placed, queue
        )
        if isinstance(client, PublishingClient):
            client.keys = KEYS if of_queue is GroupQueueKind.LAST_VALUE else 0
        if isinstance(client, ConsumingClient):
            client.begins_s = self.schedule.now_s + self.plan.consumed_after_s
        return client

    def _kind_of(self, queue: str) -> tuple[GroupQueueKind, bool]:
        number = list(self.group.queues).index(queue)
        return self.plan.kinds[number], self.plan.exclusive[number]

    def run(self) -> None:
        make_actions = GroupSetMember._make_actions

        def seen_actions(driver: GroupSetMember) -> dict[type, Action]:
            return self.group.seen.begins(driver, make_actions(driver))

        small = _settings_of(self.plan.chunk_messages)
        if self.plan.first_dies_early:
            self.schedule.after(0.3, self._kill_first)
        with (
            mock.patch.object(GroupSetMember, "make_transport", self.orders.make),
            mock.patch.object(GroupSetMember, "_make_actions", seen_actions),
            mock.patch.object(group_set_member, "GroupSettings", small),
        ):
            super().run()

    def _kill_first(self) -> None:
        """Whoever claims the group first loses its power soon after."""
        record = self.group.newest_record()
        if not record.generation:
            self.schedule.after(0.0005, self._kill_first)
            return
        draw = self._draw("first")
        (node,) = [node for node in self.nodes if node.name == record.primary]
        away_s = draw.choice(FIRST_AWAY_S)

        def cut() -> None:
            node.kill(is_silent=True)
            self.schedule.after(away_s, node.start_machine)

        self.schedule.after(draw.uniform(0.0, 0.02), cut)


def run_group(plan: GroupPlan, with_trace: bool = False) -> BrokersOutcome:
    """The whole run of `plan`. A problem is the outcome, not an exception."""
    return run_world(partial(GroupWorld, plan, with_trace))


def _settings_of(pieces: int) -> type[GroupSettings]:
    """As brokers have them, in a hurry."""

    @dataclass(frozen=True)
    class HurriedSettings(GroupSettings):
        heartbeat_interval_s: float = 0.2
        patience_s: float = 0.3
        ask_again_s: float = 0.3
        chunk_messages: int = pieces
        chunks_ahead: int = 2

    return HurriedSettings
