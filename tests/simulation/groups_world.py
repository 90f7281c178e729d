"""Brokers that ship, with a group, whose clients use its queues at all of them: see `proxies_world`."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from unittest import mock

from qpid_ha_broker.server.sets.group_set_member import GroupSetMember
from simulation.brokers_node import BrokerNode
from simulation.groups_set import GroupReplica, GroupSet, GroupWatch
from simulation.groups_transport import GroupsOrders
from simulation.proxies_plan import ProxiesFault, ProxiesKind, ProxiesPlan
from simulation.proxies_sets import PlacedSet
from simulation.proxies_trouble import ProxiesTrouble
from simulation.proxies_world import QUEUES, QUEUES_OF_OTHERS, ProxiesWorld

DETECTED_S = 2.0
"""So long after a member is stopped or parted, at most, it hears what others have decided."""


class GroupsTrouble(ProxiesTrouble):
    """Where no one leads: faults of a primary strike any member of the group."""

    orders: GroupsOrders
    group: GroupSet

    def begin(self, orders: GroupsOrders, group: GroupSet) -> None:
        """Before anything strikes."""
        self.orders, self.group = orders, group
        self._strikes |= {
            ProxiesKind.SPLIT: self._split,
            ProxiesKind.ONE_WAY: self._lose_daemon,
            ProxiesKind.PAUSE_PRIMARY: self._pause_member,
            ProxiesKind.CRASH_PRIMARY: self._crash_member,
        }

    def _can_spare(self, placed: PlacedSet, name: str) -> bool:
        if placed is self.group:
            return self.group.is_whole
        return super()._can_spare(placed, name)

    def _member(self, draw: random.Random) -> BrokerNode:
        return draw.choice(self.group.nodes).node

    def _crash_member(self, fault: ProxiesFault, draw: random.Random) -> None:
        self._crash(self._member(draw), fault.for_s, draw)

    def _pause_member(self, fault: ProxiesFault, draw: random.Random) -> None:
        self._pause(self._member(draw), fault.for_s)

    def _stop(self, node: BrokerNode, for_s: float, *, with_agent: bool) -> None:
        self._disturb(for_s)
        super()._stop(node, for_s, with_agent=with_agent)

    def _split(self, fault: ProxiesFault, draw: random.Random) -> None:
        """The group's network alone: a member, or two, do not reach the others."""
        node = self._member(draw)
        if self._may_go(node):
            alone = {node.name} | ({self._member(draw).name} if draw.random() < 0.3 else set())
            self._disturb(fault.for_s)
            self.orders.split(dict.fromkeys(alone, 1))
            self._later(fault.for_s, partial(self.orders.split, {}))

    def _lose_daemon(self, fault: ProxiesFault, draw: random.Random) -> None:
        node = self._member(draw)
        if draw.random() < 0.5:
            self.orders.congest(node.name, fault.for_s / 4)
        elif self._may_go(node):
            self._disturb(fault.for_s)
            self.orders.lose(node.name, fault.for_s)

    def _disturb(self, for_s: float) -> None:
        watch = self.group.watch
        assert isinstance(watch, GroupWatch)
        watch.disturb(for_s + DETECTED_S)


class GroupsWorld(ProxiesWorld):
    """See there."""

    def __init__(self, plan: ProxiesPlan, with_trace: bool, directory: Path) -> None:
        super().__init__(plan, with_trace, directory)
        self.orders = GroupsOrders(self.schedule, plan.seed, self.surroundings, lambda: self.nodes)
        trouble = GroupsTrouble(self.schedule, self.streams, self.nodes, self.default, self.sets, self.leases)
        group = self.sets[1]
        assert isinstance(group, GroupSet)
        trouble.begin(self.orders, group)
        self.trouble = trouble

    def _other_set(self, number: int, replicas: tuple[int, ...]) -> PlacedSet:
        name = f"group-{number}"
        members = [GroupReplica(self.nodes[index], name) for index in replicas]
        placed = GroupSet(name, self.schedule, self.trace, self.default, members)
        placed.queues = {f"{queue}_{number}": QUEUES[queue] for queue in QUEUES_OF_OTHERS[:1]}
        return placed

    def _pick(self, draw: random.Random) -> tuple[PlacedSet, str]:
        group = self.sets[1]
        return group, draw.choice(list(group.queues))

    def run(self) -> None:
        with mock.patch.object(GroupSetMember, "make_transport", self.orders.make):
            super().run()
