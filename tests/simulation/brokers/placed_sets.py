"""The resource sets of a cluster: who leads each, its queues, and what its clients were told.

`default` is led by whom somebody has promoted who tries who is ready, and its queues are declared at its primary. For
the others an operator asks the controller, through the control methods of some broker; the controller says who leads
them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from simulation.brokers.ledger import Ledger, Sent
from simulation.brokers.watch import Watch, queued
from simulation.machines.node import BrokerNode, BrokerReplica, ReplicaNode
from simulation.replicas import first_difference, replica_picture
from simulation.trace import Trace
from simulation.violations import Violation
from simulation.virtual_time import Schedule

AnyNode = TypeVar("AnyNode", BrokerNode, BrokerReplica, ReplicaNode)
Arguments = dict[str, str | int | float | bool | None]
LOOK_S = 0.1
REPLACE_S = 0.9
"""So long after others heard of it last, brokers replace a primary."""
NOTICED_S = 0.4
"""Nobody knows sooner that a broker is stopped."""


class Records(Protocol):
    """Who knows what is recorded of a set."""

    @property
    def record(self) -> ClusterRecord:
        """As it is now."""


class RecordOfCoordinator:
    """Of `default`, what the coordinator has."""

    def __init__(self, directory: Path) -> None:
        self._coordinator = FileCoordinator(directory)

    @property
    def record(self) -> ClusterRecord:
        return self._coordinator.read()

    def lose(self) -> None:
        """Somebody deletes it."""
        self._coordinator.path.unlink(missing_ok=True)

    def lose_notes(self) -> None:
        """Somebody deletes what operators and agents have noted beside it."""
        for path in self._coordinator.directory.glob("*.note"):
            path.unlink()

    def note(self, name: str) -> str:
        """What operators and agents have noted there."""
        return self._coordinator.read_note(name)


class PlacedSet:
    """One set. Who leads it, and who makes its queues, its kinds say."""

    def __init__(
        self, name: str, schedule: Schedule, trace: Trace, register: Records, nodes: Sequence[ReplicaNode]
    ) -> None:
        self.name = name
        self.register = register
        self.nodes = nodes
        self.queues: dict[str, Arguments] = {}
        """With their arguments."""
        self.bound: dict[str, Arguments] = {}
        """Others, whose messages come by an exchange."""
        self.watch = Watch(nodes, lambda: schedule.now_s)
        self.ledger = Ledger(lambda: schedule.now_s, self.watch)
        self.watch.ledger = self.ledger
        self.generations = 0
        self.gone: set[str] = set()
        """Brokers that are down for good."""
        self.cut_off_s: dict[str, float] = {}
        """By broker: since when no other one hears of it."""
        self._schedule = schedule
        self._trace = trace
        self._declared: set[str] = set()
        """Queues that were there once."""

    def at(self, index: int) -> ReplicaNode | None:
        """Its replica at the broker of that number; None: there is none."""
        return next((node for node in self.nodes if node.index == index), None)

    @property
    def primary(self) -> ReplicaNode | None:
        """Who leads it, and is not stopped, of several the newest; None: nobody."""
        return _newest(self.nodes)

    @property
    def all_queues(self) -> dict[str, Arguments]:
        """Whoever sends to them."""
        return self.queues | self.bound

    def leads(self, node: ReplicaNode) -> None:
        """A node has become primary."""
        self.generations += 1
        self.watch.leads(node)

    def is_heard_of(self, name: str) -> None:
        """A broker that was cut off from all others is so no more."""
        self.cut_off_s.pop(name, None)

    def look(self) -> None:
        """Now and then: somebody sees to it that there is a primary, and its queues."""
        raise NotImplementedError

    # --- what must be so at rest

    def why_not_at_rest(self) -> str:
        """What its members still wait for; empty: nothing."""
        nodes = [node for node in self.nodes if node.name not in self.gone]
        states = [node.member.status.state if node.is_up else None for node in nodes]
        is_led = states.count(State.PRIMARY) == 1 and states.count(State.READY) == len(states) - 1
        has_queues = len(self._declared) == len(self.all_queues)
        return "" if is_led and has_queues else f"members of {self.name} are {states}"

    def why_something_is_held(self) -> str:
        """What a consumer has, when there is none; empty: nothing."""
        for node in self.nodes:
            if not node.is_up:
                continue
            if len(node.resources.catalog.holdings):
                return f"{node.name} has messages of {self.name} that are held for sessions"
            for queue in node.resources.catalog.queues.values():
                if node.is_primary and (queue.dispatcher.consumers or queue.messages.acquired):
                    return f"{queue.name}: {queue.messages.acquired} messages are held, and nobody is there"
        return ""

    def why_replicas_differ(self) -> str:
        """From that of the first broker, of those that are in sync; empty: they hold the same."""
        in_sync = State.PRIMARY, State.READY
        here = [node for node in self.nodes if node.is_up and node.member.status.state in in_sync]
        if not here:
            return f"nobody is in sync with {self.name}"
        first, *others = here
        picture = replica_picture(first.member, first.resources)
        for node in others:
            if difference := first_difference(picture, replica_picture(node.member, node.resources)):
                return f"{node.name} and {first.name} hold other {difference} of {self.name}"
        return ""

    def check_rest(self) -> set[Sent]:
        """All that is left, which can be had at the primary. Raises Violation."""
        primary = self.primary
        if primary is None:
            raise Violation(f"nobody leads {self.name}")
        left = {name: messages for name, messages in queued(primary).items() if name in self.queues}
        self.ledger.check_rest(left)
        return {sent for messages in left.values() for sent in messages}


class DefaultSet(PlacedSet):
    """`default`. Where there are no agents, whoever finds it without a primary has the most advanced of its members
    promoted."""

    def __init__(
        self,
        schedule: Schedule,
        trace: Trace,
        manager: random.Random,
        register: RecordOfCoordinator,
        nodes: Sequence[BrokerNode],
    ) -> None:
        super().__init__(DEFAULT_SET, schedule, trace, register, nodes)
        self.note = register.note
        self.lose_record = register.lose
        self.lose_notes = register.lose_notes
        self.brokers = nodes
        self.also_declares: list[Callable[[BrokerNode], None]] = []
        """What else is told of a primary that is serving, now and then."""
        self._manager = manager
        self._promoting_until_s = 0.0
        self._deleting_until_s = 0.0
        self._refused: dict[str, int] = {}
        """How often each broker has refused to lead, since somebody has."""

    @property
    def primary(self) -> BrokerNode | None:
        return _newest(self.brokers)

    @property
    def _is_led(self) -> bool:
        """Whether somebody leads it, as far as brokers can tell that are heard of no more."""
        now_s = self._schedule.now_s
        return any(
            not (node.is_paused and node.paused_s < now_s - NOTICED_S)
            and self.cut_off_s.get(node.name, now_s) >= now_s - REPLACE_S
            for node in self.brokers
            if node.is_primary
        )

    def look(self) -> None:
        self._schedule.after(LOOK_S, self.look)
        healthy = [node for node in self.brokers if node.is_up and not node.is_paused]
        healthy = [node for node in healthy if node.name not in self.cut_off_s]
        primary = self.primary
        if primary is not None and self._is_led:
            primary.do(partial(self._declare, primary))
        elif primary is not None and primary.name not in self.cut_off_s:
            return  # it has just begun
        elif (
            self.brokers[0].agent is None
            and self._schedule.now_s >= self._promoting_until_s
            and healthy
            and not self._is_led
        ):
            self._promoting_until_s = self._schedule.now_s + 1.5
            self._manager.shuffle(healthy)
            node = min(healthy, key=self._rank)
            node.ask_for(
                lambda request: fx.PromoteAsked(request, False, "the primary is gone"),
                partial(self._promoted, node.name),
            )

    def _rank(self, node: BrokerNode) -> tuple[int, int, int]:
        """Who is to lead: of those that have refused least often the one that has most."""
        return self._refused.get(node.name, 0), -node.member.status.generation, -node.member.position.lsn

    def _promoted(self, name: str, done: bool, text: str) -> None:
        self._promoting_until_s = self._schedule.now_s + 0.2
        if done:
            self._refused.clear()
        else:
            self._refused[name] = self._refused.get(name, 0) + 1
        if self._trace.wanted:
            self._trace.add("manager", f"hears of {self.name}: {done}, {text}")

    def _declare(self, node: BrokerNode) -> None:
        if not node.is_serving or self._schedule.now_s < self._deleting_until_s:
            return
        for name, arguments in self.all_queues.items():
            if name not in node.resources.catalog.queues:
                if name in self._declared:
                    self.ledger.queue_deleted(name)
                node.configuration.declare_queue(name, arguments)
                self._declared.add(name)
        for declare in self.also_declares:
            declare(node)
        node.written()

    def delete_queue(self, node: BrokerNode, queue: str, for_s: float) -> None:
        """An operator deletes a queue at the primary; after a while it is declared again."""
        if node.is_serving and queue in node.resources.catalog.queues:
            self._deleting_until_s = self._schedule.now_s + min(for_s, 1.0)
            node.configuration.delete_queue(queue)
            self.ledger.queue_deleted(queue)
            node.written()


class RecordInMap:
    """What is recorded of a set, as the broker has it that leads `default`."""

    def __init__(self, default: DefaultSet, set_name: str) -> None:
        self._default = default
        self._set_name = set_name

    @property
    def record(self) -> ClusterRecord:
        primary = self._default.primary
        entry = None if primary is None else primary.resources.catalog.map.sets.get(self._set_name)
        return ClusterRecord() if entry is None else ClusterRecord(*entry.record[1:])


class ControlledSet(PlacedSet):
    """One whose primary the controller chooses. It has no deleted queues."""

    def __init__(
        self, name: str, schedule: Schedule, trace: Trace, default: DefaultSet, nodes: Sequence[BrokerReplica]
    ) -> None:
        super().__init__(name, schedule, trace, RecordInMap(default, name), nodes)
        self._default = default
        self._asked: dict[str, None] = {}
        """What an operator has asked for, and not heard of: the set, and queues."""

    def look(self) -> None:
        """Now and then, until all of it is there."""
        if len(self._declared) < len(self.all_queues):
            self._schedule.after(LOOK_S, self.look)
        self._see_to_it()

    def _see_to_it(self) -> None:
        """Ask for what is not there."""
        operator = self._default.primary
        if operator is None or not operator.is_serving:
            return
        if self.name not in operator.resources.catalog.map.sets:
            self._ask(operator, "sets", self.name, self._params_to_create)
            return
        for name, arguments in self.all_queues.items():
            if name in operator.resources.catalog.map.queues and all(
                node.is_up and name in node.resources.catalog.queues for node in self._replicas
            ):
                self._declared.add(name)
            elif self.primary is not None:
                placed = {**arguments, "qpid.resource-set": self.name}
                self._ask(operator, "queues", name, {"action": "create", "name": name, "arguments": placed})

    @property
    def _params_to_create(self) -> dict[str, Any]:
        names = [node.name for node in self.nodes]
        return {"action": "create", "name": self.name, "replicas": names, "min_replicas": len(names)}

    @property
    def _replicas(self) -> Sequence[ReplicaNode]:
        """Those at which its queues are to be."""
        return self.nodes

    def _ask(self, operator: BrokerNode, method: str, wanted: str, params: dict[str, Any]) -> None:
        if wanted not in self._asked:
            self._asked[wanted] = None
            operator.ask(method, params, partial(self._answered, wanted))

    def _answered(self, wanted: str, problem: str) -> None:
        del self._asked[wanted]
        if self._trace.wanted:
            self._trace.add("operator", f"hears of {wanted}: {problem or 'done'}")


def _newest(nodes: Sequence[AnyNode]) -> AnyNode | None:
    """Of those that lead and are not stopped."""
    leading = [node for node in nodes if node.is_primary and not node.is_paused]
    return max(leading, key=lambda node: node.member.status.generation, default=None)
