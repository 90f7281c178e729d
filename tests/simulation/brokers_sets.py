"""The sets beside `default` of a cluster of real brokers: who makes them, with their queues, and what is seen of each.

An operator asks the controller, through the control methods of some broker. The controller says who leads them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.sets.set_member import SetMember
from simulation.brokers_node import BrokerNode
from simulation.proxies_sets import LOOK_S, PlacedSet
from simulation.trace import Trace
from simulation.virtual_time import Schedule


class BrokerReplica:
    """A broker's replica of one set: see `proxies_replica.SetReplica`."""

    def __init__(self, node: BrokerNode, set_name: str) -> None:
        self.node = node
        self.name, self.index = node.name, node.index
        self.set_name = set_name

    @property
    def is_up(self) -> bool:
        """The broker hosts it."""
        sets = self.node.broker.sets if self.node.is_up else None
        return sets is not None and self.set_name in sets.hosts.members

    @property
    def is_paused(self) -> bool:
        return self.node.is_paused

    @property
    def paused_s(self) -> float:
        return self.node.paused_s

    @property
    def member(self) -> Member:
        sets = self.node.broker.sets
        if sets is None:
            raise AttributeError(f"{self.name} hosts nothing")
        member = sets.hosts.members[self.set_name]
        assert isinstance(member, SetMember)
        return member.member

    @property
    def resources(self) -> Resources:
        return self.node.container.sets[self.set_name].resources

    @property
    def is_primary(self) -> bool:
        """Whether clients would be served."""
        return self.is_up and self.member.status.state is State.PRIMARY

    @property
    def is_serving(self) -> bool:
        sets = self.node.broker.sets if self.node.is_up else None
        return sets is not None and sets.leads(self.set_name)

    def ask_for(self, make: Callable[[int], fx.Input], answered: Callable[[bool, str], None]) -> None:
        """An operator wants another broker to lead."""
        wanted = make(0)
        if isinstance(wanted, fx.SwitchoverAsked):
            params: dict[str, object] = {"action": "transfer", "name": self.set_name, "to": wanted.to}
            self.node.ask("sets", params, lambda problem: answered(not problem, problem))


class RecordInMap:
    """What is recorded of a set, as the broker has it that leads `default`."""

    def __init__(self, default: PlacedSet, set_name: str) -> None:
        self._default = default
        self._set_name = set_name

    @property
    def record(self) -> ClusterRecord:
        primary = self._default.primary
        entry = None if primary is None else primary.resources.catalog.map.sets.get(self._set_name)
        return ClusterRecord() if entry is None else ClusterRecord(*entry.record[1:])


class ControlledSet(PlacedSet):
    """One whose primary the controller chooses. It has no deleted queues."""

    def __init__(self, name: str, schedule: Schedule, trace: Trace, default: PlacedSet) -> None:
        super().__init__(name, schedule, trace, random.Random())
        self._default = default
        self._asked: dict[str, None] = {}
        """What an operator has asked for, and not heard of: the set, and queues."""

    def look(self) -> None:
        """Now and then, until all of it is there."""
        if len(self._declared) < len(self.queues):
            self._schedule.after(LOOK_S, self.look)
        operator = cast("BrokerNode | None", self._default.primary)
        if operator is None or not operator.is_serving:
            return
        if self.name not in operator.resources.catalog.map.sets:
            names = [node.name for node in self.nodes]
            create = {"action": "create", "name": self.name, "replicas": names, "min_replicas": len(names)}
            self._ask(operator, "sets", self.name, create)
            return
        for name, arguments in self.queues.items():
            if name in operator.resources.catalog.map.queues and all(
                node.is_up and name in node.resources.catalog.queues for node in self.nodes
            ):
                self._declared.add(name)
            elif self.primary is not None:
                placed = {**arguments, "qpid.resource-set": self.name}
                self._ask(operator, "queues", name, {"action": "create", "name": name, "arguments": placed})

    def _ask(self, operator: BrokerNode, method: str, wanted: str, params: dict[str, Any]) -> None:
        if wanted not in self._asked:
            self._asked[wanted] = None
            operator.ask(method, params, partial(self._answered, wanted))

    def _answered(self, wanted: str, problem: str) -> None:
        del self._asked[wanted]
        if self._trace.wanted:
            self._trace.add("operator", f"hears of {wanted}: {problem or 'done'}")
