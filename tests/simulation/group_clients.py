"""Clients of a simulated group: publishers that go to another member when theirs serves nobody, and consumers."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.ownership import ranges_of
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, Holder
from simulation.group_ledger import GroupLedger
from simulation.group_node import GroupNode
from simulation.node import Violation
from simulation.virtual_time import Schedule

SERVES = (GroupRole.SERVING, GroupRole.WITHHELD)
UNCONFIRMED_MOST = 3
SLICE_S = 0.02


class Unit(NamedTuple):
    """What a client waits for."""

    placed: Callable[[], None]
    refused: Callable[[str], None]
    committed: Callable[[], None]


def nothing(_: object = None) -> None:
    """For what needs no answer."""


class Connections:
    """Units that were submitted, by node; all of a node are forgotten when it serves nobody."""

    def __init__(self) -> None:
        self._units: dict[str, dict[int, Unit]] = {}
        self._placed: dict[str, list[tuple[int, Unit]]] = {}
        self._number = 0
        self.clients: list[Publisher | QueueUse] = []

    def submit(self, node: GroupNode, events: tuple[ev.Event, ...], unit: Unit) -> None:
        self._number += 1
        self._units.setdefault(node.name, {})[self._number] = unit
        node.ask(fx.SubmitAsked(self._number, events))

    def member_changed(self, node: GroupNode, role: GroupRole) -> None:
        if role in SERVES:
            return
        self._units.pop(node.name, None)
        self._placed.pop(node.name, None)
        for client in self.clients:
            client.node_lost(node)

    def answered(self, node: GroupNode, answer: fx.Placed | fx.SubmitRefused) -> None:
        unit = self._units.get(node.name, {}).pop(answer.request, None)
        if unit is None:
            return
        if isinstance(answer, fx.SubmitRefused):
            unit.refused(answer.why)
            return
        unit.placed()
        member = node.member
        if member is not None and answer.lsn <= member.committed_lsn:
            unit.committed()
        else:
            self._placed.setdefault(node.name, []).append((answer.lsn, unit))

    def advanced(self, node: GroupNode, lsn: int) -> None:
        placed = self._placed.get(node.name, [])
        self._placed[node.name] = [line for line in placed if line[0] > lsn]
        for line in placed:
            if line[0] <= lsn:
                line[1].committed()


def queue_named(node: GroupNode, name: str) -> Queue | None:
    member = node.member
    return member.resource_set.catalog.queues.get(name) if member is not None else None


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
        payload = f"{self.name}/{number}/{attempt}".encode()
        events: tuple[ev.Event, ...] = (ev.Enqueued((queue.id,), payload, True, 4, 0, ""),)
        if self._is_numbered:
            events += (ev.ProducerAdvanced(self.name.encode(), number, 10_000),)
        queues = self._queue_ids.setdefault(number, set())
        queues.add(queue.id)
        confirmed = partial(self._confirmed, self._life, number, payload, queues, node)
        self._connections.submit(node, events, Unit(nothing, partial(self._refused, number), confirmed))

    def _confirmed(self, life: int, number: int, payload: bytes, queues: set[int], node: GroupNode) -> None:
        if life == self._life:
            self._attempts.pop(number, None)
            node.ledger.confirmed[payload] = queues

    def _refused(self, number: int, why: str) -> None:
        if "no queue" not in why and "ask another" not in why:
            raise Violation(f"number {number} of {self.name} was refused: {why}")
        self._attempts.pop(number, None)

    def node_lost(self, node: GroupNode) -> None:
        if node is self._node:
            self._node = None


class ModelledConsumer(Holder):
    """Has some messages at a time, and answers each after a while."""

    __slots__ = ("credit", "name", "out")

    def __init__(self, name: str, credit: int) -> None:
        self.name = name
        self.credit = credit
        self.out: dict[int, bytes] = {}
        """What it has and has not answered."""


class QueueUse:
    """The consumers of one queue at one node: asks for the queue, hands out, yields."""

    def __init__(
        self, node: GroupNode, queue: str, consumers: list[ModelledConsumer], connections: Connections,
        schedule: Schedule, seed: int,
    ) -> None:  # fmt: skip
        self._node, self._queue, self._consumers = node, queue, consumers
        self._connections, self._schedule = connections, schedule
        self._ledger: GroupLedger = node.ledger
        self._draw = random.Random(f"{seed}/{node.name}/{queue}")
        self._wanted_id = 0
        """The queue that was asked for and not yielded; 0: none."""
        self._owned_since_s = 0.0
        self._was_owner = False
        self.accepts_all = False
        self.begins_s = 0.0
        connections.clients.append(self)

    def step(self) -> None:
        self._schedule.after(self._draw.uniform(0.005, 0.03), self.step)
        member = self._node.member
        queue = queue_named(self._node, self._queue)
        if member is None or queue is None or member.role is not GroupRole.SERVING or self._node.is_paused:
            return
        if self._schedule.now_s < self.begins_s:
            return
        if self._wanted_id != queue.id:
            self._wanted_id = queue.id
            self._node.ask(fx.WantAsked(queue.id))
            return
        if not member.may_hand_out(queue.id):
            self._was_owner = False
            return
        if not self._was_owner:
            self._was_owner, self._owned_since_s = True, self._schedule.now_s
        is_slice_over = self._schedule.now_s - self._owned_since_s > SLICE_S
        if (is_slice_over and member.others_want(queue.id)) or self._draw.random() < 0.005:
            self._give_up(queue)
            return
        self._hand_out(queue, member.committed_lsn)

    def _give_up(self, queue: Queue) -> None:
        self._wanted_id, self._was_owner = 0, False
        held = [number for consumer in self._consumers for number in consumer.out]
        self._node.ask(fx.YieldAsked(queue.id, ranges_of(held)))

    def _hand_out(self, queue: Queue, committed_lsn: int) -> None:
        takers = [consumer for consumer in self._consumers if len(consumer.out) < consumer.credit]
        for entry in list(queue.messages):
            if not takers or entry.id > committed_lsn:
                return
            if entry.holder is None:
                self._give(takers[0], queue, entry)
                takers = [consumer for consumer in takers if len(consumer.out) < consumer.credit]

    def _give(self, consumer: ModelledConsumer, queue: Queue, entry: Entry) -> None:
        payload = entry.resident_body()
        marked = queue.is_redelivered(entry)
        queue.messages.hold(entry, consumer)
        consumer.out[entry.id] = payload
        name = f"{consumer.name}-{self._node.lives}"
        self._ledger.given(self._node.name, name, payload, marked)
        answer = partial(self._answer, consumer, queue.id, entry.id, payload)
        self._schedule.after(self._draw.choice((0.002, 0.02, 0.1)) * self._draw.uniform(0.5, 1.5), answer)

    def _answer(self, consumer: ModelledConsumer, queue: int, number: int, payload: bytes) -> None:
        if consumer.out.get(number) != payload:
            return
        if self._node.is_paused:
            self._schedule.after(0.1, partial(self._answer, consumer, queue, number, payload))
            return
        del consumer.out[number]
        fate = 1.0 if self.accepts_all else self._draw.random()
        if fate < 0.12:
            self._ledger.returned(self._node.name, payload)
            events: tuple[ev.Event, ...] = (ev.Released(queue, (number,), self._draw.random() < 0.5),)
            unit = Unit(nothing, partial(self._refused, queue, payload), nothing)
        else:
            reason = ev.DequeueReason.REJECTED if fate < 0.15 else ev.DequeueReason.CONSUMED
            self._ledger.accepting.add(payload)
            events = (ev.Dequeued(queue, (number,), reason),)
            placed = partial(self._ledger.returned, self._node.name, payload)
            accepted = partial(self._ledger.accepted.add, payload)
            unit = Unit(placed, partial(self._refused, queue, payload), accepted)
        self._connections.submit(self._node, events, unit)

    def _refused(self, queue: int, payload: bytes, why: str) -> None:
        self._ledger.returned(self._node.name, payload)
        if queue not in self._ledger.deleted and "ask another" not in why:
            raise Violation(f"{payload!r} was handed out at {self._node.name}, and is not its own: {why}")

    def node_lost(self, node: GroupNode) -> None:
        if node is not self._node:
            return
        self._wanted_id, self._was_owner = 0, False
        for consumer in self._consumers:
            for payload in consumer.out.values():
                self._ledger.returned(node.name, payload)
            consumer.out.clear()
        self._ledger.node_lost(node.name)
