"""A simulated group: its nodes, clients and faults, and whether it recovers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.group.effects import GroupRole
from simulation.group_clients import Connections, GroupConsumer, Publisher, QueueUse, queue_named
from simulation.group_ledger import GroupLedger
from simulation.group_node import GroupNode
from simulation.group_plan import CHECK_ALL_EVERY, FAULTS_END_S, GroupFault, GroupFaultKind, GroupPlan
from simulation.group_record import RecordKeeperModel
from simulation.group_sessions import SessionRegistryModel, SimulatedSession
from simulation.group_transport import SimulatedTransport
from simulation.node import Violation, problem_of
from simulation.trace import Trace
from simulation.virtual_time import Schedule

REST_S = 40.0
STEP_S = 0.25


@dataclass(frozen=True)
class GroupOutcome:
    """What became of a run; `problem` is empty when every promise was kept."""

    plan: GroupPlan
    problem: str
    steps: int
    confirmed: int
    handed_out: int
    epochs: int
    trace: tuple[str, ...]
    fingerprint: str


class GroupWorld:
    def __init__(self, plan: GroupPlan, with_trace: bool = False) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.trace = Trace(self.schedule, with_trace)
        self.keeper = RecordKeeperModel(self.schedule, plan.seed)
        self.transport = SimulatedTransport(self.schedule, plan.seed)
        self.ledger = GroupLedger(lambda: self.keeper.record.members)
        self.connections = Connections()
        self._draw = random.Random(f"{plan.seed}/world")
        self.nodes = [
            GroupNode(
                f"n{number}", self.schedule, self.transport, self.keeper, self._settings, self.ledger, self.trace,
                plan.seed,
            )
            for number in range(plan.members)
        ]  # fmt: skip
        for node in self.nodes:
            node.clients = self.connections
            node.checks_all = plan.seed % CHECK_ALL_EVERY == 0
        self.queues = {
            f"q{number}": {**kind.arguments, "qpid.exclusive": is_exclusive}
            for number, (kind, is_exclusive) in enumerate(zip(plan.kinds, plan.exclusive, strict=True))
        }
        """Their arguments, by name."""
        names = list(self.queues)
        self.publishers = [
            Publisher(f"p{number}", self._draw.choice(names), self.nodes, self.connections, self.schedule, plan.seed)
            for number in range(plan.publishers)
        ]
        self.uses = self._make_uses()
        self.registry = SessionRegistryModel(self.nodes, self.schedule)
        self.sessions = [
            SimulatedSession(
                f"s{number}", names[number % len(names)], self.nodes, self.connections, self.schedule,
                self.registry, plan.seed,
            )
            for number in range(plan.sessions)
        ]  # fmt: skip

    def _settings(self, name: str, instance: str) -> GroupSettings:
        return GroupSettings(
            name, instance, heartbeat_interval_s=0.2, backup_timeout_s=1.0, patience_s=0.3, ask_again_s=0.3,
            window_bytes=self.plan.window_bytes, chunk_messages=self.plan.chunk_messages, chunks_ahead=2,
        )  # fmt: skip

    def _make_uses(self) -> list[QueueUse]:
        consumers: dict[tuple[int, str], list[GroupConsumer]] = {}
        for number in range(self.plan.consumers):
            place = self._draw.randrange(len(self.nodes)), self._draw.choice(list(self.queues))
            consumers.setdefault(place, []).append(GroupConsumer(f"c{number}", self._draw.choice((1, 3, 10))))
        uses = []
        for at, queue in [(at, queue) for at in range(len(self.nodes)) for queue in self.queues]:
            who = consumers.get((at, queue), [])
            use = QueueUse(self.nodes[at], queue, who, self.connections, self.schedule, self.plan.seed)
            use.begins_s = 2.0 if self.plan.prefilled else 0.0
            if not who:  # in the end somebody empties the queue
                who.append(GroupConsumer(f"last-{at}-{queue}", 10))
                use.begins_s = FAULTS_END_S
            uses.append(use)
        return uses

    # --- a run

    def play(self) -> None:
        """Raises Violation."""
        late = self.nodes[len(self.nodes) - self.plan.late :] if self.plan.late else []
        for node in self.nodes:
            at_s = self._draw.uniform(1.5, 5.0) if node in late else self._draw.choice((0.0, 0.0, 0.3))
            self.schedule.after(at_s, node.start)
        if self.plan.first_dies_early:
            self._kill_first()
        for publisher in self.publishers:
            self.schedule.after(0.1, publisher.step)
            if self.plan.prefilled:
                self.schedule.after(1.5, partial(self._prefill, publisher))
        for use in self.uses:
            self.schedule.after(0.1, use.step)
        for session in self.sessions:
            self.schedule.after(0.3, session.step)
        if self.sessions:
            self.schedule.after(0.3, self.registry.step)
        self.schedule.after(0.2, self._declare)
        for fault in self.plan.faults:
            self.schedule.after(fault.at_s, partial(self.strike, fault))
        self.schedule.run_until(FAULTS_END_S + 0.5)
        self.settle()

    def _prefill(self, publisher: Publisher) -> None:
        for _ in range(self.plan.prefilled):
            publisher.publish()

    def _kill_first(self) -> None:
        """Whoever claims the group first loses its power soon after; it may be away until the faults end."""

        def look() -> None:
            record = self.keeper.record
            if not record.generation:
                self.schedule.after(0.0005, look)
                return
            node = next(node for node in self.nodes if node.name == record.primary)

            def cut() -> None:
                node.end(has_power=False, why="its power fails in the middle of its first claim")
                self.schedule.after(self._draw.choice((0.3, FAULTS_END_S)), node.start)

            self.schedule.after(self._draw.uniform(0.0, 0.02), cut)

        look()

    def _declare(self) -> None:
        """Somebody sees to it that the queues are there."""
        self.schedule.after(0.4, self._declare)
        serving = [node for node in self.nodes if node.role is GroupRole.SERVING]
        if serving:
            node = self._draw.choice(serving)
            for name, arguments in self.queues.items():
                if queue_named(node, name) is None:
                    self.connections.write(node, ev.QueueDeclared(name, arguments))

    # --- faults

    def strike(self, fault: GroupFault) -> None:
        draw = random.Random(fault.draw)
        node = draw.choice(self.nodes)
        if self.trace.wanted:
            self.trace.add("FAULT", f"{fault.kind} {node.name} for {fault.for_s}")
        match fault.kind:
            case GroupFaultKind.KILL | GroupFaultKind.POWER_CUT:
                self._end(node, fault.kind is GroupFaultKind.KILL, fault.for_s)
            case GroupFaultKind.ALL_POWER_CUT:
                for victim in draw.sample(self.nodes, draw.randint(2, len(self.nodes))):
                    self._end(victim, False, fault.for_s * draw.uniform(0.1, 2.0))
            case GroupFaultKind.PAUSE:
                node.pause(fault.for_s)
            case GroupFaultKind.PARTITION:
                self._split(draw, fault.for_s)
            case GroupFaultKind.SLOW:
                node.delivery_s = 0.02
                self.schedule.after(fault.for_s, lambda: setattr(node, "delivery_s", 0.0))
            case GroupFaultKind.CONGESTED:
                node.congest(fault.for_s)
            case GroupFaultKind.DAEMON:
                node.lose_transport(fault.for_s)
            case GroupFaultKind.DISK_SLOW:
                node.disk_s = 0.1
                self.schedule.after(fault.for_s, lambda: setattr(node, "disk_s", 0.001))
            case GroupFaultKind.DISK_ERROR | GroupFaultKind.EMPTY_DISK:
                self._spoil_disk(node, fault)
            case GroupFaultKind.RECORD_AWAY:
                some = draw.sample(self.nodes, draw.randint(1, len(self.nodes)))
                names = {other.name for other in some}
                self.keeper.away_for |= names
                self.schedule.after(fault.for_s, lambda: self.keeper.away_for.difference_update(names))
            case GroupFaultKind.RECORD_LATE:
                self.keeper.is_late = True
                self.schedule.after(fault.for_s, lambda: setattr(self.keeper, "is_late", False))
            case GroupFaultKind.OPERATOR:
                self._operate(draw)

    def _end(self, node: GroupNode, has_power: bool, for_s: float) -> None:
        node.end(has_power, "a fault")
        self.schedule.after(for_s, node.start)

    def _split(self, draw: random.Random, for_s: float) -> None:
        parts = {node.name: draw.choice((0, 0, 1, 1, 2)) for node in self.nodes}
        self.transport.split(parts)
        self.schedule.after(for_s, partial(self.transport.split, {}))

    def _spoil_disk(self, node: GroupNode, fault: GroupFault) -> None:
        if fault.kind is GroupFaultKind.DISK_ERROR:
            node.ask(fx.StoreFailed())
            return
        record = self.keeper.record
        if record.claimed or {*self.keeper.empty, node.name}.issuperset(record.members):
            return
        node.end(False, "its disk is lost")
        node.lose_disk()
        self.schedule.after(fault.for_s, node.start)

    def _operate(self, draw: random.Random) -> None:
        """The same at two members at once, now and then: one of them is refused."""
        name = draw.choice(list(self.queues))
        serving = [node for node in self.nodes if node.role is GroupRole.SERVING]
        deletes = draw.random() < 0.5
        for node in draw.sample(serving, min(len(serving), draw.randint(1, 2))):
            queue = queue_named(node, name)
            if queue is not None and deletes:
                self.ledger.deleted.add(queue.id)
                self.connections.write(node, ev.QueueDeleted(queue.id))
            elif queue is None or not deletes:
                extra = name if queue is None else f"extra-{draw.randint(0, 3)}"
                self.connections.write(node, ev.QueueDeclared(extra, self.queues.get(extra, {})))

    # --- the end

    def settle(self) -> None:
        """Faults are over: everybody comes back, all is confirmed and consumed, all copies are the same."""
        self.transport.split({})
        self.keeper.away_for.clear()
        self.keeper.is_late = False
        for node in self.nodes:
            node.disk_s, node.delivery_s = 0.001, 0.0
            node.start()
        for publisher in self.publishers:
            publisher.stops = True
        for use in self.uses:
            use.accepts_all = True
        for session in self.sessions:
            session.accepts_all = True
        until_s = self.schedule.now_s + REST_S
        while self.schedule.now_s < until_s:
            self.schedule.run_until(self.schedule.now_s + STEP_S)
            if not self._what_is_missing():
                break
        self.schedule.run_until(self.schedule.now_s + STEP_S)  # what is on its way
        missing = self._what_is_missing()
        if missing:
            raise Violation(f"the group makes no progress: {missing}")
        self._check_equal()
        self.ledger.check_nothing_lost({})

    def _what_is_missing(self) -> str:
        for node in self.nodes:
            if node.role is not GroupRole.SERVING or node.member is None:
                return f"{node.name} is {node.role}"
            if set(node.member.record.members) != {other.name for other in self.nodes}:
                return f"the record names {node.member.record.members}"
            queues = node.member.resource_set.state.queues()
            waiting = {queue.name: queue.messages.count for queue in queues if queue.messages.count}
            if waiting:
                return f"messages are left in {waiting} of {node.name}"
        for publisher in self.publishers:
            if not publisher.is_done:
                return f"{publisher.name} waits for confirmations"
        return ""

    def _check_equal(self) -> None:
        ends = {node.name: node.member.resource_set.log.last_lsn for node in self.nodes if node.member is not None}
        if len(set(ends.values())) > 1:
            raise Violation(f"logs end at {ends}")
        declared = {
            node.name: [(queue.id, queue.name) for queue in node.member.resource_set.state.queues()]
            for node in self.nodes
            if node.member is not None
        }
        if len({tuple(queues) for queues in declared.values()}) > 1:
            raise Violation(f"queues are {declared}")
        histories = {
            node.name: [(lsn, started.generation) for lsn, started in node.member.resource_set.state.generations]
            for node in self.nodes
            if node.member is not None
        }
        if len({tuple(lines) for lines in histories.values()}) > 1:
            raise Violation(f"by their generations copies would be of different logs: {histories}")


def run_group(plan: GroupPlan, with_trace: bool = False) -> GroupOutcome:
    """The whole run of `plan`. A problem is the outcome, not an exception."""
    world = GroupWorld(plan, with_trace)
    problem = problem_of(world.play, world.trace)
    return GroupOutcome(
        plan, problem, world.schedule.count, len(world.ledger.confirmed), world.ledger.handed_out,
        world.keeper.changes, tuple(world.trace.lines), world.trace.fingerprint(),
    )  # fmt: skip
