"""The resource sets of a cluster with proxies: who leads each, its queues, and what its clients were told."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from simulation.network import Network
from simulation.node import Node, Violation
from simulation.proxies_ledger import Ledger, Sent
from simulation.proxies_node import ProxyNode
from simulation.proxies_replica import SetReplica
from simulation.proxies_watch import Watch, queued
from simulation.register import Register
from simulation.trace import Trace
from simulation.virtual_time import Schedule

Arguments = dict[str, str | int | float | bool | None]
LOOK_S = 0.1
REPLACE_S = 0.9
"""What brokers believe that others need to replace a primary that they do not hear of."""
NOTICED_S = 0.4
"""Nobody knows sooner that a broker is stopped."""
Member = ProxyNode | SetReplica


class PlacedSet:
    """One set. Whoever finds it without a primary has the most advanced of its members promoted."""

    def __init__(self, name: str, schedule: Schedule, trace: Trace, manager: random.Random) -> None:
        self.name = name
        self.queues: dict[str, Arguments] = {}
        """With their arguments."""
        self.elsewhere: dict[str, Arguments] = {}
        """Other queues of it, which the map has, too."""
        self.also_declares: list[Callable[[Member], None]] = []
        """What else is told of a primary that is serving, now and then."""
        self.nodes: list[Member] = []
        self.network: Network
        self.register: Register
        self.watch = Watch(self.nodes, lambda: schedule.now_s)
        self.ledger = Ledger(lambda: schedule.now_s, self.watch)
        self.watch.ledger = self.ledger
        self.generations = 0
        self._schedule = schedule
        self._trace = trace
        self._manager = manager
        self._promoting_until_s = 0.0
        self._deleting_until_s = 0.0
        self._declared: set[str] = set()
        """Queues that were there once."""
        self.cut_off_s: dict[str, float] = {}
        """By broker: since when no other one hears of it."""
        self._refused: dict[str, int] = {}
        """How often each broker has refused to lead, since somebody has."""

    def at(self, index: int) -> Member | None:
        """Its replica at the broker of that number; None: there is none."""
        return next((node for node in self.nodes if node.index == index), None)

    @property
    def primary(self) -> Member | None:
        """Who leads it, and is not stopped, of several the newest; None: nobody."""
        leading = [node for node in self.nodes if node.is_primary and not node.is_paused]
        return max(leading, key=lambda node: node.member.status.generation, default=None)

    @property
    def _is_led(self) -> bool:
        """Whether somebody leads it, as far as brokers can tell that are heard of no more."""
        now_s = self._schedule.now_s
        return any(
            not (node.is_paused and node.paused_s < now_s - NOTICED_S)
            and self.cut_off_s.get(node.name, now_s) >= now_s - REPLACE_S
            for node in self.nodes
            if node.is_primary
        )

    def leads(self, node: Node) -> None:
        """A node has become primary."""
        self.generations += 1
        self.watch.leads(node)

    def is_heard_of(self, name: str) -> None:
        """A broker that was cut off from all others is so no more."""
        self.cut_off_s.pop(name, None)

    # --- who promotes, and who declares queues

    def look(self) -> None:
        """Now and then."""
        self._schedule.after(LOOK_S, self.look)
        healthy = [node for node in self.nodes if node.is_up and not node.is_paused]
        healthy = [node for node in healthy if node.name not in self.cut_off_s]
        primary = self.primary
        if primary is not None and self._is_led:
            primary.do(partial(self._declare, primary))
        elif primary is not None and primary.name not in self.cut_off_s:
            return  # it has just begun
        elif self._schedule.now_s >= self._promoting_until_s and healthy and not self._is_led:
            self._promoting_until_s = self._schedule.now_s + 1.5
            self._manager.shuffle(healthy)
            node = min(healthy, key=self._rank)
            node.ask_for(
                lambda request: fx.PromoteAsked(request, False, "the primary is gone"),
                partial(self._promoted, node.name),
            )

    def _rank(self, node: Member) -> tuple[int, int, int]:
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

    def _declare(self, node: Member) -> None:
        if not node.is_serving or self._schedule.now_s < self._deleting_until_s:
            return
        for name, arguments in self.queues.items():
            if name not in node.resources.catalog.queues:
                if name in self._declared:
                    self.ledger.queue_deleted(name)
                node.configuration.declare_queue(name, arguments)
                self._declared.add(name)
        for declare in self.also_declares:
            declare(node)
        node.written()

    def delete_queue(self, node: Member, queue: str, for_s: float) -> None:
        """An operator deletes a queue at the primary; after a while it is declared again."""
        if node.is_serving and queue in node.resources.catalog.queues:
            self._deleting_until_s = self._schedule.now_s + min(for_s, 1.0)
            node.configuration.delete_queue(queue)
            self.ledger.queue_deleted(queue)
            node.written()

    # --- what must be so at rest

    def why_not_at_rest(self) -> str:
        """What its members still wait for; empty: nothing."""
        states = [node.member.status.state if node.is_up else None for node in self.nodes]
        is_so = states.count(State.PRIMARY) == 1 and states.count(State.READY) == len(states) - 1
        return "" if is_so and len(self._declared) == len(self.queues) else f"members of {self.name} are {states}"

    def why_something_is_held(self) -> str:
        """What a consumer has, when there is none; empty: nothing."""
        for node in self.nodes:
            if len(node.resources.catalog.holdings):
                return f"{node.name} has messages of {self.name} that are held for sessions"
            for queue in node.resources.catalog.queues.values():
                if node.is_primary and (queue.dispatcher.consumers or queue.messages.acquired):
                    return f"{queue.name}: {queue.messages.acquired} messages are held, and nobody is there"
        return ""

    def check_rest(self) -> set[Sent]:
        """All that is left, which can be had at the primary. Raises Violation."""
        primary = self.primary
        if primary is None:
            raise Violation(f"nobody leads {self.name}")
        left = {name: messages for name, messages in queued(primary).items() if name in self.queues}
        self.ledger.check_rest(left)
        return {sent for messages in left.values() for sent in messages}


class ToldRegister(Register):
    """A register whose changes are told to somebody."""

    changed: Callable[[], None]

    def _set(self, record: ClusterRecord) -> None:
        super()._set(record)
        self.changed()


def map_events(brokers: Sequence[str], sets: Sequence[PlacedSet]) -> list[ev.MapEvent]:
    """What a broker knows of brokers, sets and queues; empty where there is one set."""
    others = [each for each in sets if each.name != DEFAULT_SET]
    if not others:
        return []
    events: list[ev.MapEvent] = []
    events += [ev.BrokerRegistered(name, name, f"amqp://{name}:5672", "", "", "0") for name in brokers]
    for each in others:
        events.append(ev.SetPlaced(each.name, tuple(node.name for node in each.nodes), (), "", 0, 0))
        events.append(record_of(each))
        events += [
            ev.QueuePlaced(queue, each.name, arguments, False)
            for queue, arguments in (each.queues | each.elsewhere).items()
        ]
    return events


def record_of(placed: PlacedSet) -> ev.SetRecorded:
    """As it is now."""
    return ev.SetRecorded(placed.name, *placed.register.record)
