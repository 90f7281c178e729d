"""The transport of a group's members in brokers that ship: the total order of `order`, for their processes.

What `CpgOrder` makes of Corosync's messages, names and whole batches, this order has already.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from qpid_ha_broker.server.peers.cpg_order import OrderedView
from qpid_ha_broker.server.peers.group_transport import GroupListener, GroupTransport
from simulation.groups.order import Event, Port, SimulatedTransport, View
from simulation.machines.machine import Surroundings
from simulation.machines.node import BrokerNode
from simulation.virtual_time import Schedule


class GroupOrders:
    """The orders of all groups of a cluster, one for each log, and their faults."""

    def __init__(
        self, schedule: Schedule, seed: int, surroundings: Surroundings, nodes: Callable[[], Sequence[BrokerNode]]
    ) -> None:
        self._schedule = schedule
        self._seed = seed
        self._surroundings = surroundings
        self._nodes = nodes
        self._orders: dict[str, SimulatedTransport] = {}
        self._parts: dict[str, int] = {}
        self.ports: dict[str, Port] = {}
        """By broker: of the process that runs, or ran last."""
        self.slow_s: dict[str, float] = {}
        """By broker: how long it takes for what is delivered to it, at most."""

    @property
    def views(self) -> int:
        """How many there were."""
        return sum(order.views for order in self._orders.values())

    def make(self, cluster: str, name: str, listener: GroupListener) -> GroupTransport:
        """See `GroupSetMember.make_transport`: that of the process that runs."""
        if cluster not in self._orders:
            self._orders[cluster] = SimulatedTransport(self._schedule, self._seed)
            self._orders[cluster].split(self._parts)
        node, running = next(node for node in self._nodes() if node.name == name), self._surroundings.running
        assert running is not None
        return ProcessTransport(self, self._orders[cluster], self._schedule, node, listener)

    def split(self, parts: dict[str, int]) -> None:
        """From now on members reach those of their own part alone."""
        self._parts = parts
        for order in self._orders.values():
            order.split(parts)

    def delay(self, name: str, late_s: float) -> None:
        """From now on all that comes to that broker may be so late."""
        for order in self._orders.values():
            order.late_s[name] = late_s

    def congest(self, name: str, for_s: float) -> None:
        """What that broker sends waits."""
        for order in self._orders.values():
            if name in self.ports:
                order.congest(self.ports[name], for_s)

    def lose(self, name: str, for_s: float) -> None:
        """The daemon of that broker's machine ends, and comes back."""
        for order in self._orders.values():
            if name in self.ports:
                order.lose(self.ports[name], for_s)


class ProcessTransport:
    """See `group_transport.GroupTransport` of the broker. What comes while its process is stopped waits for it."""

    problem = ""

    def __init__(
        self,
        orders: GroupOrders,
        order: SimulatedTransport,
        schedule: Schedule,
        node: BrokerNode,
        listener: GroupListener,
    ) -> None:
        self._orders = orders
        self._order = order
        self._schedule = schedule
        self._draw = random.Random(f"{schedule.now_s}/{node.name}/order")
        self._node = node
        self._post = node.post_here()
        self._taken_s = 0.0
        """When what came last is told."""
        self._listener = listener
        self._port: Port | None = None

    def start(self) -> None:
        """Join."""
        self._port = self._orders.ports[self._node.name] = self._order.open(self._node.name, self._take)
        self._node.at_death.append(self._end)

    def close(self) -> None:
        """Leave."""
        self._end(has_power=True)

    def multicast(self, data: bytes) -> None:
        """Send a batch after all before."""
        if self._port is not None:
            self._order.multicast(self._port, data)

    def _end(self, has_power: bool) -> None:
        port, self._port = self._port, None
        if port is not None:
            self._order.close(port, has_power)

    def _take(self, event: Event) -> None:
        slow_s = self._orders.slow_s.get(self._node.name, 0.0)
        self._taken_s = max(self._taken_s, self._schedule.now_s) + slow_s * self._draw.random()
        if self._taken_s > self._schedule.now_s:
            self._schedule.at(self._taken_s, lambda: self._post(lambda: self._tell(event)))
        else:
            self._post(lambda: self._tell(event))

    def _tell(self, event: Event) -> None:
        if self._port is None:
            return
        if isinstance(event, View):
            self._listener.view_changed(OrderedView(*event))
        else:
            self._listener.delivered(event.sender, event.data)
