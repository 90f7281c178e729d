"""Clients of a simulated group: publishers that go to another member when theirs serves nobody, and consumers."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, cast

from model_support import PLENTY, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.member import TAKING
from qpid_ha_broker.model.errors import InUse, ModelError, NotFound, NotPrimary
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.dispatcher import Consumer, Handout
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resources import Resources
from simulation.group_guarantees import Check
from simulation.group_ledger import GroupLedger
from simulation.group_node import GroupNode
from simulation.node import Violation
from simulation.virtual_time import Schedule

UNCONFIRMED_MOST = 3
RESERVED_S = 0.5
KEYS = 3
"""Of last-value queues."""


class Waiting(NamedTuple):
    """What a client waits for."""

    token: CommitToken
    committed: Callable[[], None]
    refused: Callable[[ModelError], None]


def nothing(_: object = None) -> None:
    """For what needs no answer."""


class GroupClient(Protocol):
    """Whoever is connected to nodes."""

    def node_lost(self, node: GroupNode) -> None:
        """That one serves nobody any more."""


class SessionTaking(Protocol):
    """A link of a session."""

    def deliver(self, entries: list[Entry]) -> None: ...

    def end(self, _: object = None) -> None: ...


class Connections:
    """Who waits for what, by node; all of a node is forgotten when it serves nobody."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Waiting]] = {}
        self.clients: list[GroupClient] = []

    def wait(
        self, node: GroupNode, token: CommitToken, committed: Callable[[], None], refused: Callable[[ModelError], None]
    ) -> None:
        self._waiting.setdefault(node.name, []).append(Waiting(token, committed, refused))
        if token.is_committed:
            node.turn_soon()  # a duplicate of what all have: nothing more may ever be committed here

    def write(self, node: GroupNode, event: ev.Event) -> None:
        """Nobody waits for what becomes of it."""
        resources = node.resources
        if resources is not None and not resources.replication.read_only:
            resources.replicated.submit((event,))

    def withhold(self, node: GroupNode, handout: Handout) -> None:
        consumer, entries, written = handout
        taking = cast("SessionTaking", consumer)
        self.wait(node, written, partial(taking.deliver, entries), taking.end)

    def member_changed(self, node: GroupNode, role: GroupRole) -> None:
        if role in TAKING:
            return
        self._waiting.pop(node.name, None)
        for client in self.clients:
            client.node_lost(node)
        node.ledger.node_lost(node.name)  # also what consumers that had gone by then were waiting to have accepted

    def tell(self, node: GroupNode) -> None:
        waiting = self._waiting.pop(node.name, [])
        over = [each for each in waiting if each.token.failure is not None or each.token.is_committed]
        self._waiting[node.name] = [each for each in waiting if each not in over]
        for each in over:
            failure = each.token.failure
            if failure is not None:
                each.refused(failure)
            else:
                each.committed()


def queue_named(node: GroupNode, name: str) -> Queue | None:
    resources = node.resources
    return resources.catalog.queues.get(name) if resources is not None else None


class Publisher:
    """Sends numbers, a few at a time, and sends again what was not confirmed when its node serves nobody any more."""

    def __init__(
        self, name: str, queue: str, nodes: list[GroupNode], connections: Connections, schedule: Schedule, seed: int,
    ) -> None:  # fmt: skip
        self.name, self._queue, self._nodes = name, queue, nodes
        self._connections, self._schedule = connections, schedule
        self._draw = random.Random(f"{seed}/{name}")
        self._is_numbered = self._draw.random() < 0.4
        self._node: GroupNode | None = None
        self._number = 0
        self._attempts: dict[int, int] = {}
        """Of what is not confirmed, by number."""
        self._queue_ids: dict[int, set[int]] = {}
        """Where it went each time: a number that is sent again is queued once, in one of them."""
        self._life = 0
        self.stops = False
        connections.clients.append(self)

    @property
    def is_done(self) -> bool:
        return not self._attempts

    def step(self) -> None:
        self._schedule.after(self._draw.uniform(0.02, 0.12), self.step)
        if self._node is not None and self._node.is_paused:
            return
        if self._node is None:
            serving = [node for node in self._nodes if node.role is GroupRole.SERVING]
            if not serving:
                return
            self._node = self._draw.choice(serving)
            self._life += 1
            for number, attempt in sorted(self._attempts.items()):
                self._attempts[number] = attempt + 1
                self._send(number)
        elif not self.stops and len(self._attempts) < UNCONFIRMED_MOST:
            member = self._node.member
            if queue_named(self._node, self._queue) is not None and member is not None and not member.is_full:
                self.publish()

    def publish(self) -> None:
        self._number += 1
        self._attempts[self._number] = 0
        self._send(self._number)

    def _send(self, number: int) -> None:
        node = self._node
        queue = queue_named(node, self._queue) if node is not None else None
        if node is None or queue is None:
            self._attempts.pop(number)
            return
        attempt = 0 if self._is_numbered else self._attempts[number]
        text = f"{self.name}/{number}/{attempt}"
        has_key = queue.arguments.last_value_queue_key
        payload = message(text, durable=True, key=f"{number % KEYS}") if has_key else message(text, durable=True)
        if self._is_numbered:
            payload = payload._replace(producer=self.name.encode(), sequence=number)
        queues = self._queue_ids.setdefault(number, set())
        queues.add(queue.id)
        resources = node.resources
        assert resources is not None
        try:
            token = resources.publish(queue, payload, node.now_ms)
        except ModelError as error:
            self._refused(number, error)
            return
        confirmed = partial(self._confirmed, self._life, number, payload.payload, queues, node)
        self._connections.wait(node, token, confirmed, partial(self._refused, number))

    def _confirmed(self, life: int, number: int, payload: bytes, queues: set[int], node: GroupNode) -> None:
        if life == self._life:
            self._attempts.pop(number, None)
            node.ledger.confirmed[payload] = queues

    def _refused(self, number: int, failure: ModelError) -> None:
        if not isinstance(failure, NotFound | NotPrimary):
            raise Violation(f"number {number} of {self.name} was refused: {failure}")
        if isinstance(failure, NotFound):
            self._attempts.pop(number, None)

    def node_lost(self, node: GroupNode) -> None:
        if node is self._node:
            self._node = None


class GroupConsumer(Consumer):
    """Has some messages at a time; its use answers each after a while."""

    __slots__ = ("name", "out", "prefetch", "use")

    def __init__(self, name: str, prefetch: int) -> None:
        super().__init__()
        self.name = name
        self.prefetch = prefetch
        self.use: QueueUse
        self.out: dict[int, Entry] = {}
        """What it has and has not answered."""

    def deliver(self, entries: list[Entry]) -> None:
        self.use.delivered(self, entries)


class QueueUse:
    """The consumers of one queue at one node: attached while the node serves, they answer what they are given. All have
    one connection: where the queue is exclusive, those of another node are refused it meanwhile."""

    def __init__(
        self, node: GroupNode, queue: str, consumers: list[GroupConsumer], connections: Connections,
        schedule: Schedule, seed: int,
    ) -> None:  # fmt: skip
        self._node, self._name, self._consumers = node, queue, consumers
        self._connections, self._schedule = connections, schedule
        self._ledger: GroupLedger = node.ledger
        self._draw = random.Random(f"{seed}/{node.name}/{queue}")
        self._attached: tuple[Resources, Queue] | None = None
        self._rests_until_s = 0.0
        self.accepts_all = False
        self.begins_s = 0.0
        connections.clients.append(self)

    def step(self) -> None:
        self._schedule.after(self._draw.uniform(0.005, 0.03), self.step)
        if self._node.is_paused or self._schedule.now_s < max(self.begins_s, self._rests_until_s):
            return
        if self._attached is not None and self._attached[1].deleted:
            self._forget()
        if self._attached is None:
            self._attach()
        elif self._draw.random() < 0.003:
            self._detach()

    def _attach(self) -> None:
        resources, queue = self._node.resources, queue_named(self._node, self._name)
        if resources is None or queue is None or self._node.role is not GroupRole.SERVING:
            return
        self._attached = attached = resources, queue
        for consumer in self._consumers:
            consumer.use = self
            try:
                resources.subscribe(queue, consumer, self, f"{self._node.name}/{self._name}")
            except InUse:  # it is kept for consumers of a member that has left
                self._attached = None
                self._rests_until_s = self._schedule.now_s + RESERVED_S
                return
            consumer.credit, consumer.window_bytes = consumer.prefetch, PLENTY
        use = resources.replication.exclusive_use.awaited(queue)
        if use is not None:
            self._connections.wait(self._node, use, nothing, partial(self._refused_queue, attached))
        resources.catalog.wake(queue)
        self._node.turn_soon()

    def _refused_queue(self, attached: tuple[Resources, Queue], failure: ModelError) -> None:
        """Consumers of another node have it."""
        if not isinstance(failure, InUse | NotFound | NotPrimary):
            raise Violation(f"{self._node.name} was refused {self._name}: {failure}")
        if self._attached is attached:
            self._detach()

    def _detach(self) -> None:
        """All consumers go for a while, in order: what they have comes back."""
        if self._attached is None:
            return
        resources, queue = self._attached
        for consumer in self._consumers:
            for entry in consumer.out.values():
                self._ledger.returned(self._node.name, entry.resident_body(), Check.BROKEN_LOST)
            resources.release(queue, list(consumer.out.values()), failed=False)
            resources.unsubscribe(queue, consumer, self._node.now_ms)
        self._forget()
        self._rests_until_s = self._schedule.now_s + 0.0 if self.accepts_all else self._draw.uniform(0.0, 0.3)
        self._node.turn_soon()

    def _forget(self) -> None:
        if self._attached is not None:
            self._ledger.leaves_alone(self._node.name, self._attached[1].id)
        self._attached = None
        for consumer in self._consumers:
            consumer.out.clear()

    def delivered(self, consumer: GroupConsumer, entries: list[Entry]) -> None:
        if self._attached is None:
            raise Violation(f"{consumer.name} of {self._node.name} is given {len(entries)} messages, and has gone")
        if self._attached[1].arguments.exclusive:
            self._ledger.has_alone(self._node.name, self._attached[1].id)
        name = f"{consumer.name}-{self._node.lives}"
        for entry in entries:
            consumer.out[entry.id] = entry
            payload, marked = entry.resident_body(), self._attached[1].is_redelivered(entry)
            self._ledger.given(self._node.name, name, payload, marked)
            answer = partial(self._answer, consumer, self._attached, entry)
            self._schedule.after(self._draw.choice((0.002, 0.02, 0.1)) * self._draw.uniform(0.5, 1.5), answer)

    def _answer(self, consumer: GroupConsumer, attached: tuple[Resources, Queue], entry: Entry) -> None:
        if self._attached is not attached or consumer.out.get(entry.id) is not entry:
            return
        if self._node.is_paused:
            self._schedule.after(0.1, partial(self._answer, consumer, attached, entry))
            return
        (resources, queue), payload = attached, entry.resident_body()
        del consumer.out[entry.id]
        fate = 1.0 if self.accepts_all else self._draw.random()
        if fate < 0.12:
            self._ledger.returned(self._node.name, payload, Check.RELEASED_LOST)
            resources.release(queue, [entry], failed=self._draw.random() < 0.5)
        else:
            self._ledger.accepting.add(payload)
            take, again = resources.accept, Check.ACCEPTED_AGAIN
            if fate < 0.15:
                take, again = resources.reject, Check.REJECTED_AGAIN
            token = take(queue, [entry])
            self._connections.wait(
                self._node,
                token,
                partial(self._ledger.is_accepted, self._node.name, payload, again),
                partial(self._refused, queue.id, payload),
            )
        consumer.credit += 1
        resources.catalog.wake(queue)
        self._node.turn_soon()

    def _refused(self, queue: int, payload: bytes, failure: ModelError) -> None:
        self._ledger.returned(self._node.name, payload)
        if queue not in self._ledger.deleted and not isinstance(failure, NotPrimary):
            raise Check.NOT_ITS_OWN.broken(who=self._node.name, payload=payload, failure=failure)

    def node_lost(self, node: GroupNode) -> None:
        if node is not self._node:
            return
        self._ledger.node_lost(node.name)  # also what was to be accepted by consumers that have gone since
        if self._attached is None:
            return
        resources, queue = self._attached
        if not queue.deleted:
            for consumer in self._consumers:
                resources.unsubscribe(queue, consumer, node.now_ms)
        self._forget()
