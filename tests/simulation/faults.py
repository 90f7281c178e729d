"""Carrying a plan's faults out on a cluster, and undoing what lasts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from qpid_ha_broker.ha.effects import DemoteAsked, PromoteAsked, SwitchoverAsked
from simulation.network import Network
from simulation.node import Node
from simulation.plan import FAULTS_END_S, PRIMARY, Fault, Kind, shown_fault
from simulation.register import Register
from simulation.trace import Trace
from simulation.virtual_time import Schedule

SILENT_DEATHS = 0.3


def _nobody_listens(done: bool, text: str) -> None:
    """The operator has gone for coffee."""


class Faults:
    """Strikes as planned; everything that lasts is over by the end of the faults."""

    def __init__(
        self,
        schedule: Schedule,
        draw: random.Random,
        network: Network,
        register: Register,
        trace: Trace,
        nodes: Sequence[Node],
        is_fenced: bool,
    ) -> None:
        self._schedule = schedule
        self._draw = draw
        self._network = network
        self._register = register
        self._trace = trace
        self._nodes = nodes
        self._is_fenced = is_fenced
        self._isolated: dict[int, int] = {}
        self._kinds: dict[Kind, Callable[[Fault, Node, Node], None]] = {
            Kind.LOSS: self._loss,
            Kind.PARTITION: self._partition,
            Kind.ONE_WAY: self._one_way,
            Kind.PAUSE: self._pause,
            Kind.CRASH: self._crash,
            Kind.CUT: self._cut,
            Kind.SLOW: self._slow,
            Kind.PROMOTE: self._promote,
            Kind.DEMOTE: self._demote,
            Kind.SWITCHOVER: self._switchover,
            Kind.WALL_CLOCK: self._wall_clock,
            Kind.DAMAGE: self._damage,
            Kind.COORDINATOR: self._coordinator,
        }

    def plan(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._schedule.at(fault.at_s, partial(self._strike, fault))

    def is_isolated(self, node: Node) -> bool:
        """Whether a partition keeps it from all others."""
        return self._isolated.get(node.index, 0) > 0

    def _strike(self, fault: Fault) -> None:
        index = self._primary() if fault.node == PRIMARY else fault.node
        other = fault.other if fault.other != index else (index + 1) % len(self._nodes)
        if self._trace.wanted:
            self._trace.add("FAULT", shown_fault(fault._replace(node=index, other=other)))
        self._kinds[fault.kind](fault, self._nodes[index], self._nodes[other])

    def _primary(self) -> int:
        primaries = [node for node in self._nodes if node.is_primary]
        return max(primaries, key=lambda node: node.member.generation).index if primaries else 0

    def _later(self, fault: Fault, undo: Callable[[], None]) -> None:
        self._schedule.at(min(self._schedule.now_s + fault.for_s, FAULTS_END_S), undo)

    def _loss(self, fault: Fault, node: Node, other: Node) -> None:
        self._network.break_between(node.index, other.index, not fault.detail & 2, not fault.detail & 1)

    def _cut(self, fault: Fault, node: Node, other: Node) -> None:
        self._network.break_all(node.index)

    def _partition(self, fault: Fault, node: Node, other: Node) -> None:
        pairs = [pair for each in self._nodes if each is not node for pair in _both(node.index, each.index)]
        self._isolated[node.index] = self._isolated.get(node.index, 0) + 1
        for pair in pairs:
            self._network.block(*pair)

        def undo() -> None:
            self._isolated[node.index] -= 1
            for pair in pairs:
                self._network.unblock(*pair)

        self._later(fault, undo)

    def _one_way(self, fault: Fault, node: Node, other: Node) -> None:
        self._network.block(node.index, other.index)
        self._later(fault, partial(self._network.unblock, node.index, other.index))

    def _pause(self, fault: Fault, node: Node, other: Node) -> None:
        if node.is_up and not node.is_paused:
            node.pause()
            process = node.process

            def undo() -> None:
                if node.process == process and node.is_paused:
                    node.resume()

            self._later(fault, undo)

    def _crash(self, fault: Fault, node: Node, other: Node) -> None:
        if node.is_up:
            self.crash(node, fault.for_s)

    def crash(self, node: Node, for_s: float) -> None:
        """The process dies, and another one starts after a while."""
        node.kill(is_silent=self._draw.random() < SILENT_DEATHS)

        def start() -> None:
            if not node.is_up:
                node.start()

        self._schedule.at(min(self._schedule.now_s + for_s, FAULTS_END_S), start)

    def _slow(self, fault: Fault, node: Node, other: Node) -> None:
        node.slow_s = fault.detail / 1000

        def undo() -> None:
            node.slow_s = 0.0

        self._later(fault, undo)

    def _promote(self, fault: Fault, node: Node, other: Node) -> None:
        if self._is_fenced:
            return
        for each in (node, other)[: 1 + fault.detail]:
            if each.is_up:
                each.ask_for(lambda request: PromoteAsked(request), _nobody_listens)

    def _demote(self, fault: Fault, node: Node, other: Node) -> None:
        if node.is_up:
            node.ask_for(DemoteAsked, _nobody_listens)

    def _switchover(self, fault: Fault, node: Node, other: Node) -> None:
        if node.is_up:
            to = other.name if self._draw.random() < 0.7 else ""
            node.ask_for(lambda request: SwitchoverAsked(request, to), _nobody_listens)

    def _wall_clock(self, fault: Fault, node: Node, other: Node) -> None:
        node.clock.wall_offset_ms += fault.detail * 1000

    def _damage(self, fault: Fault, node: Node, other: Node) -> None:
        self._network.damage(node.index, other.index)

    def _coordinator(self, fault: Fault, node: Node, other: Node) -> None:
        self._register.is_down = True

        def undo() -> None:
            self._register.is_down = False

        self._later(fault, undo)


def _both(one: int, other: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (one, other), (other, one)
