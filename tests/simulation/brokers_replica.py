"""What is seen of a broker's replica of a set other than `default`, and how an operator has it moved."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.resources import Resources
from simulation.brokers_node import BrokerNode


class BrokerReplica:
    """A broker's replica of one set, while the broker has one."""

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
        return sets.hosts.members[self.set_name].member

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


SetNode = BrokerNode | BrokerReplica
"""The replica of a set, of whichever one: that of `default` is the broker itself."""
