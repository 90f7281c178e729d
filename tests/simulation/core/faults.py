"""Carrying a plan's faults out on a cluster, and undoing what lasts."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from functools import partial

from qpid_ha_broker.ha.effects import DemoteAsked, PromoteAsked, ShutdownAsked, SwitchoverAsked
from simulation.core.damage import Damage, machine_of
from simulation.core.ledger import Ledger
from simulation.core.network import Network
from simulation.core.node import Node
from simulation.core.plan import FAULTS_END_S, PRIMARY, Fault, Kind, shown_fault
from simulation.core.register import Register
from simulation.custody import Custody
from simulation.trace import Trace
from simulation.virtual_time import Schedule

SILENT_DEATHS = 0.3
STARTED_AGAIN_S = 0.5


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
        custody: Custody,
        ledger: Ledger,
        end_s: float = FAULTS_END_S,
    ) -> None:
        self._schedule = schedule
        self._draw = draw
        self._network = network
        self._register = register
        self._trace = trace
        self._nodes = nodes
        self._is_fenced = is_fenced
        self._end_s = end_s
        self._isolated: dict[int, int] = {}
        damage = self.damage = Damage(schedule, draw, nodes, register, custody, ledger, self.crash)
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
            Kind.BLACKOUT: self._blackout,
            Kind.DISK_FULL: self._disk_full,
            Kind.DISK_SLOW: self._disk_slow,
            Kind.DISK_ERROR: self._disk_error,
            Kind.POWER_CUT: self._power_cut,
            Kind.SHUTDOWN: self._shutdown,
            Kind.DISK_LOST: lambda fault, node, _: damage.disk_lost(fault, node),
            Kind.DISK_TRUNCATED: lambda fault, node, _: damage.disk_truncated(fault, node),
            Kind.DISK_FLIPPED: lambda fault, node, _: damage.disk_flipped(fault, node),
            Kind.DISK_PUT_BACK: lambda fault, node, _: damage.disk_put_back(fault, node),
            Kind.ALL_DISKS_PUT_BACK: lambda fault, *_: damage.all_disks_put_back(fault),
            Kind.RECORD_LOST: lambda *_: damage.record_lost(),
            Kind.RECORD_PUT_BACK: lambda fault, *_: damage.record_put_back(fault),
            Kind.RECORD_LATE: self._record_late,
        }

    def plan(self, faults: Sequence[Fault]) -> None:
        self.damage.prepare(faults)
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
        return max(primaries, key=lambda node: node.member.status.generation).index if primaries else 0

    def _later(self, fault: Fault, undo: Callable[[], None]) -> None:
        self._schedule.at(min(self._schedule.now_s + fault.for_s, self._end_s), undo)

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
            self.crash(node, fault.for_s, not fault.detail)

    def crash(self, node: Node, for_s: float, has_power: bool = True, cause: str = Kind.CRASH) -> None:
        """The process dies, and another one starts after a while."""
        node.kill(self._draw.random() < SILENT_DEATHS or not has_power, has_power, cause)
        self.start_later(node, for_s)

    def start_later(self, node: Node, for_s: float) -> None:
        """When the faults are over, soon."""
        process = node.process

        def start() -> None:
            if not node.is_up and node.process == process:
                node.start()

        now_s = self._schedule.now_s
        self._schedule.at(min(now_s + for_s, max(self._end_s, now_s + STARTED_AGAIN_S)), start)

    # --- disks and power

    def _blackout(self, fault: Fault, node: Node, other: Node) -> None:
        for each in self._nodes:
            if each.is_up:
                self.crash(each, fault.for_s * self._draw.uniform(0.1, 1.5), False, fault.kind)

    def _disk_full(self, fault: Fault, node: Node, other: Node) -> None:
        machine = machine_of(node)
        if node.is_up:
            machine.disk.fill()
        else:
            machine.disk.capacity = 0

        def undo() -> None:
            machine.disk.capacity = None

        self._later(fault, undo)

    def _disk_slow(self, fault: Fault, node: Node, other: Node) -> None:
        machine = machine_of(node)
        machine.slow_s = fault.detail / 1000

        def undo() -> None:
            machine.slow_s = 0.0

        self._later(fault, undo)

    def _disk_error(self, fault: Fault, node: Node, other: Node) -> None:
        of = self._draw.choice((("write",), ("sync",), ("write", "sync")))
        machine_of(node).disk.fail(fault.detail, errno.EIO, of)

    def _power_cut(self, fault: Fault, node: Node, other: Node) -> None:
        machine_of(node).disk.crash_at(fault.detail)

    def _shutdown(self, fault: Fault, node: Node, other: Node) -> None:
        uuid = f"shutdown-{self._schedule.now_s}"
        node = self._nodes[self._primary()]
        if node.is_up:
            node.ask_for(lambda request: ShutdownAsked(request, uuid), _nobody_listens)

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

    def _record_late(self, fault: Fault, node: Node, other: Node) -> None:
        self._register.writes_late = True

        def undo() -> None:
            self._register.writes_late = False

        self._later(fault, undo)


def _both(one: int, other: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (one, other), (other, one)
