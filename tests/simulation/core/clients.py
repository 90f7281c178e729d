"""The workload: publishers that send again what was not confirmed, consumers, and an administrator."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from map_events import map_event
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.transactions.transaction import Message, Publish, Transaction
from simulation.copies import UNIT_SIZES, Copy
from simulation.core.ledger import Ledger, is_delayed
from simulation.core.node import Node, Session, Taker
from simulation.virtual_time import Schedule

PATIENCE_S = 3.0
"""A client that waits longer for an answer goes elsewhere."""
RECONNECT_S = 0.15
PUBLISH_WITHIN_S = 0.35
WINDOW = 6
CREDIT = 3
DELAY_MS = 900
"""Of what `is_delayed`."""


@dataclass(frozen=True)
class Shop:
    """What clients need: whom to ask, when, and who keeps the books."""

    schedule: Schedule
    draw: random.Random
    ledger: Ledger
    nodes: Sequence[Node]
    transient: float = 0.0
    """How many of the messages are not durable."""
    are_numbered: bool = False
    """Publishers say who they are, and number their messages: what they send twice has to be queued once."""
    delayed_every: int = 0
    """See `Terms`."""

    def message(self, producer: str, number: int, payload: bytes, durable: bool, now_ms: int) -> Message:
        due_at_ms = now_ms + DELAY_MS if is_delayed(number, self.delayed_every) else 0
        if not self.are_numbered:
            return Message(payload, durable, due_at_ms=due_at_ms)
        return Message(payload, durable, producer=producer.encode(), sequence=number, due_at_ms=due_at_ms)

    def somebody_who_serves(self) -> Node | None:
        """A primary; there may be two, and one of them may not know yet that it is none."""
        primaries = [node for node in self.nodes if node.is_primary]
        return self.draw.choice(primaries) if primaries else None

    def tell(self, callback: Callable[[], None]) -> None:
        """A client hears of something a little later."""
        self.schedule.after(0.004 * self.draw.random(), callback)


class Publisher:
    """Publishes numbered messages, alone or a few in a transaction, in order, and each until it is confirmed."""

    def __init__(self, shop: Shop, name: str, queues: Sequence[str]) -> None:
        self._shop = shop
        self.name = name
        self._queues = queues
        self._next = 0
        self._session: Session | None = None
        self._deadline_s = 0.0
        self.unconfirmed: dict[int, Copy] = {}
        """By number; in a transaction, several with the same unit."""
        self.is_stopping = False
        self._later()

    def _later(self) -> None:
        self._shop.schedule.after(PUBLISH_WITHIN_S * self._shop.draw.random(), self._step)

    def _step(self) -> None:
        self._later()
        now_s = self._shop.schedule.now_s
        if self._session is None:
            self._connect()
        elif self.unconfirmed and now_s > self._deadline_s:
            session = self._session
            self._lost(session)
            session.node.do(partial(session.node.end_session, session))
        elif not self.is_stopping and len(self.unconfirmed) < WINDOW:
            self._publish_new(self._session)

    def _connect(self) -> None:
        node = self._shop.somebody_who_serves()
        if node is None or node.is_paused:
            return
        session = node.open_session(self)
        if session is None:
            return
        self._session = session
        self._deadline_s = self._shop.schedule.now_s + PATIENCE_S
        again: dict[int, list[Copy]] = {}
        for copy in self.unconfirmed.values():
            again.setdefault(copy.unit or -copy.number - 1, []).append(copy.again())
        self.unconfirmed = {}
        for copies in again.values():
            self._send(session, copies)

    def _publish_new(self, session: Session) -> None:
        draw = self._shop.draw
        if not self.unconfirmed:
            self._deadline_s = self._shop.schedule.now_s + PATIENCE_S
        count = draw.choice((2, 3)) if draw.random() < 0.15 else 1
        unit = self._next * UNIT_SIZES + count if count > 1 else 0
        durable = not self._shop.transient or draw.random() >= self._shop.transient
        copies = [Copy(self.name, self._next + k, 0, draw.choice(self._queues), unit, durable) for k in range(count)]
        self._next += count
        self._send(session, copies)

    def _send(self, session: Session, copies: list[Copy]) -> None:
        for copy in copies:
            self.unconfirmed[copy.number] = copy
            self._shop.ledger.sent(copy)
        session.node.do(partial(self._arrive, session, copies))

    def _arrive(self, session: Session, copies: list[Copy]) -> None:
        node = session.node
        if not session.is_open:
            return
        try:
            token = self._publish(node, copies)
        except ModelError:
            node.end_session(session)  # below min-in-sync, say; it comes again
            return
        node.wait(token, session, partial(self._confirmed, session, copies))
        node.written()

    def _publish(self, node: Node, copies: list[Copy]) -> CommitToken:
        """One alone, several in a transaction."""
        resources, now_ms = node.resources, node.message_ms()
        queues = [node.configuration.declare_queue(copy.queue, {}) for copy in copies]
        messages = [self._shop.message(self.name, copy.number, copy.payload(), copy.durable, now_ms) for copy in copies]
        if len(copies) == 1:
            return resources.publish(queues[0], messages[0], now_ms)
        transaction = Transaction()
        for queue, message in zip(queues, messages, strict=True):
            transaction.publish(Publish(queue, message, ""))
        return resources.commit(transaction, now_ms)

    def _confirmed(self, session: Session, copies: list[Copy]) -> None:
        for copy in copies:
            self._shop.ledger.confirmed(copy, session.node)
        if self._shop.draw.random() < 0.01:
            session.node.end_session(session)  # the confirmation is lost with the connection
        else:
            self._shop.tell(partial(self._heard, session, copies))

    def _heard(self, session: Session, copies: list[Copy]) -> None:
        if session is self._session:
            self._deadline_s = self._shop.schedule.now_s + PATIENCE_S
            for copy in copies:
                self.unconfirmed.pop(copy.number, None)

    def _lost(self, session: Session) -> None:
        if session is self._session:
            self._session = None

    def ended(self, session: Session) -> None:
        self._shop.tell(partial(self._lost, session))

    def handed_out(self, taker: Taker, entry: Entry) -> None:
        raise AssertionError("a publisher takes nothing")


class ConsumingClient:
    """Takes from one queue; accepts most, gives some back, goes away at times."""

    def __init__(self, shop: Shop, queue: str) -> None:
        self._shop = shop
        self._queue_name = queue
        self._session: Session | None = None
        self._taker: Taker | None = None
        self._queue: Queue | None = None
        self._held: dict[int, Entry] = {}
        self.is_stopping = False
        self._later()

    def _later(self) -> None:
        self._shop.schedule.after(2 * RECONNECT_S * self._shop.draw.random(), self._step)

    def _step(self) -> None:
        self._later()
        session = self._session
        if session is not None:
            if self.is_stopping or self._shop.draw.random() < 0.02:
                session.node.do(partial(session.node.end_session, session))
        elif not self.is_stopping:
            node = self._shop.somebody_who_serves()
            if node is not None and not node.is_paused:
                self._open(node)

    def _open(self, node: Node) -> None:
        queue = node.resources.catalog.queues.get(self._queue_name)
        if queue is None:
            return
        session = self._session = node.open_session(self)
        if session is None:
            return
        self._queue, self._taker, self._held = queue, Taker(session), {}
        node.resources.subscribe(queue, self._taker, self)
        self._give_credit(node)

    def _give_credit(self, node: Node) -> None:
        if self._taker is not None and self._queue is not None:
            self._taker.credit = CREDIT - len(self._held)
            node.resources.catalog.wake(self._queue)
            node.written()

    def handed_out(self, taker: Taker, entry: Entry) -> None:
        queue, session = self._queue, taker.session
        if queue is None or taker is not self._taker:
            return
        self._held[entry.id] = entry
        if entry.header.due_at_ms > session.node.message_ms():
            raise AssertionError(f"{entry.id} is given before its time")
        is_marked = entry.acquired_before or entry.delivery_count > 0 or entry.id <= queue.redelivered_below
        is_told = session.node.resources.replicated.state.marks.is_told
        mark_lsn = queue.mark.lsn if is_told else 0
        self._shop.ledger.delivered(Copy.read(entry.resident_body()), is_marked, session.node, mark_lsn)
        answer = partial(session.node.do, partial(self._answer, session, entry))
        self._shop.schedule.after(0.3 * self._shop.draw.random(), answer)

    def _answer(self, session: Session, entry: Entry) -> None:
        queue, node = self._queue, session.node
        if not session.is_open or queue is None or self._held.pop(entry.id, None) is None or queue.deleted:
            return
        draw = self._shop.draw.random()
        if draw < 0.85:
            self._accept(session, queue, entry)
        else:
            node.resources.release(queue, [entry], failed=draw < 0.95)
        self._give_credit(node)

    def _accept(self, session: Session, queue: Queue, entry: Entry) -> None:
        copy, ledger = Copy.read(entry.resident_body()), self._shop.ledger
        ledger.accepting(copy)
        token = session.node.resources.accept(queue, [entry])
        session.node.wait(token, session, partial(ledger.settled, copy, session.node, token.lsn))

    def ended(self, session: Session) -> None:
        queue, taker, node = self._queue, self._taker, session.node
        if queue is not None and taker is not None and node.is_up and node.process == session.process:
            self._leave(node, queue, taker)
        self._session = self._taker = self._queue = None
        self._held = {}

    def _leave(self, node: Node, queue: Queue, taker: Taker) -> None:
        held = [entry for entry in self._held.values() if entry.body is not None]
        if node.is_primary:
            node.resources.release(queue, held, failed=self._shop.draw.random() < 0.5)
            node.resources.unsubscribe(queue, taker, node.message_ms())
            node.written()
        else:
            for entry in held:  # Nothing may be written any more: the messages are simply free again.
                queue.messages.give_back(entry, failed=False)
            queue.unsubscribe(taker, node.message_ms())


class Administrator:
    """Makes and deletes queues that nobody counts on, and binds them, so that configuration changes all the time."""

    def __init__(self, shop: Shop, names: Sequence[str]) -> None:
        self._shop = shop
        self._names = names
        self._count = 0
        self.is_stopping = False
        self._later()

    def _later(self) -> None:
        self._shop.schedule.after(2.0 * self._shop.draw.random(), self._step)

    def _step(self) -> None:
        self._later()
        node = self._shop.somebody_who_serves()
        if node is None or self.is_stopping:
            return
        session = node.open_session(self)
        if session is not None:
            node.do(partial(self._change, session, self._shop.draw.choice(self._names)))

    def _change(self, session: Session, name: str) -> None:
        node, ledger = session.node, self._shop.ledger
        if not session.is_open:
            return
        exists = name not in node.resources.catalog.queues
        change = ledger.object_changing(name, exists)
        try:
            if exists:
                self._make(node, name)
            else:
                node.configuration.delete_queue(name)
            self._change_map(node)
        except ModelError:
            node.end_session(session)
            return
        written = node.resources.replicated.log.written
        node.wait(written, session, partial(self._changed, session, name, change, written.lsn))
        node.written()

    def _change_map(self, node: Node) -> None:
        """Write an event of the cluster map: whatever becomes of replicas, it must be the same in all of them."""
        default, there = node.resources.replicated, node.resources.catalog
        default.write(map_event(random.Random(default.log.last_lsn), there.map, {*there.queues, *there.exchanges}))

    def _make(self, node: Node, name: str) -> None:
        queue = node.configuration.declare_queue(name, {})
        if "x" not in node.resources.catalog.exchanges:
            node.configuration.declare_exchange("x", "direct", {})
        node.configuration.bind("x", name, "key", {})
        for _ in range(self._shop.draw.randrange(4)):
            self._count += 1
            message = self._shop.message(
                f"administrator {self._count % 30}", self._count, b"?", durable=True, now_ms=node.message_ms()
            )
            node.resources.publish(queue, message, node.message_ms())

    def _changed(self, session: Session, name: str, change: int, lsn: int) -> None:
        self._shop.ledger.object_changed(name, change, session.node, lsn)
        session.node.end_session(session)

    def ended(self, session: Session) -> None:
        pass

    def handed_out(self, taker: Taker, entry: Entry) -> None:
        raise AssertionError("an administrator takes nothing")
