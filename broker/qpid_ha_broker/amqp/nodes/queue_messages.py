"""What operators ask about the messages of one queue: to look at some, have their bytes, move them, and put one in.

Each value comes from the wire and may be anything, as for `Administration`. Looking costs by the message, so it is done
message by message, and others may have their turns in between: see `QueueLook`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import proton

from qpid_ha_broker.access.operations import ManagedObjects
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.message_facts import describe_message
from qpid_ha_broker.amqp.wire.outcome_annotations import annotated
from qpid_ha_broker.amqp.wire.sections import without_number
from qpid_ha_broker.events.payloads import without_format
from qpid_ha_broker.model.commands.administration import (
    Administration,
    Done,
    Facts,
    Pending,
    checked_arguments,
    checked_flag,
    checked_name,
    checked_number,
    checked_routing_key,
    committed_lsn,
    take_any,
    taking_over,
)
from qpid_ha_broker.model.commands.moving import MoveSelection, QueueMove, Redirection, Stay, begin_move, other_set
from qpid_ha_broker.model.errors import InvalidArgument, NotFound, Unavailable
from qpid_ha_broker.model.queues.paged import BodyDamaged
from qpid_ha_broker.model.queues.queue import Queue, SessionLink
from qpid_ha_broker.model.queues.sequence import DISPLACED, ELSEWHERE, EXPIRED, NO_LIMIT, WAITING, Entry, Holder
from qpid_ha_broker.model.sessions import session_label
from qpid_ha_broker.model.transactions.transaction import Message, Transaction

COUNT_MOST: Final = 100
"""Messages in one answer."""
BODY_BYTES_MOST: Final = 64 * 1024
"""Of one body that is shown, or published."""
SHOWN_BYTES_MOST: Final = 1024 * 1024
"""Of all bodies in one answer, at least one."""
BYTES_MOST: Final = 1024 * 1024
"""Of payload in one answer."""
MAY_BE_MORE: Final = "this broker has not shown, or not received, all yet that was confirmed"


class QueueMessages:
    """Each method raises InvalidArgument, NotFound where there is no such queue, and ServedElsewhere where it is in a
    set of which this broker has no replica. A replica shows what it holds."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    # --- looking

    def peek(
        self,
        name: object,
        after: object = 0,
        count: object = 20,
        bytes: object = 256 * 1024,  # as the request calls it
        body_bytes: object = 1024,
        id: object = None,
    ) -> Peek:
        """Look at committed messages by ascending ids, those that somebody has acquired, too; none is changed.

        Begins behind the message `after`. At most `count`, and `bytes` of bodies, of each `body_bytes`; `id`: that one.
        """
        most, most_bytes = _limit(count, "count", COUNT_MOST), _limit(bytes, "bytes", SHOWN_BYTES_MOST)
        shown = _limit(body_bytes, "body_bytes", BODY_BYTES_MOST)
        last, wanted = _message_id(after, "after"), None if id is None else _message_id(id, "id")
        administration, queue = self._queue(name)
        if wanted is None:
            return Peek(administration, queue, last, most, most_bytes, shown)
        entry = queue.messages.find(wanted)
        is_shown = wanted <= committed_lsn(administration.resources, queue)
        if entry is not None and not is_shown and administration.resources.replicated.may_lack_confirmed:
            raise Unavailable(f"{MAY_BE_MORE}, nor the message {wanted} of queue {queue.name}: ask again")
        if entry is None or not is_shown:
            raise NotFound(f"queue {queue.name} has no message {wanted}")
        return Peek(administration, queue, wanted - 1, 1, most_bytes, shown)

    def payload(
        self,
        name: object,
        after: object = 0,
        offset: object = 0,
        bytes: object = BYTES_MOST,
    ) -> PayloadLook:
        """The bytes of committed messages behind the message `after`, as they came but for the number that a producer
        has given them, `bytes` of them at most.

        Of the first message from `offset` on; of the last one maybe not all: `size` is what it has.
        """
        last, start = _message_id(after, "after"), checked_number(offset, "offset")
        most_bytes = _limit(bytes, "bytes", BYTES_MOST)
        administration, queue = self._queue(name)
        return PayloadLook(administration, queue, last, COUNT_MOST, most_bytes, start)

    def _queue(self, name: object) -> tuple[Administration, Queue]:
        checked = checked_name(name, "name")
        administration = self._administration.of_queue(checked)
        return administration, administration.configuration.queue(checked)

    # --- publishing

    def publish(
        self,
        name: object,
        body: object = "",
        subject: object = None,
        properties: object = None,
        transient: object = False,
    ) -> Done[Facts]:
        """Put one message with a text into the queue, as a client would; `properties`: those of the application.

        For an operator who tries something: it takes no memory limit and no limit of a user into account, so it is
        small. Raises also what `Resources.publish` does.
        """
        checked = checked_name(name, "name")
        message: Any = proton.Message(_text(body), durable=not checked_flag(transient, "transient"))
        if subject is not None:
            message.subject = checked_routing_key(subject)
        message.properties = dict(checked_arguments(properties, take_any)) or None
        administration = self._administration.of_queue(checked, leads=True)
        resources, payload = administration.resources, message.encode()
        published = Message(payload, bool(message.durable))
        written = resources.publish(administration.configuration.queue(checked), published, resources.catalog.now_ms)
        return Done({"name": checked, "bytes": len(payload)}, written)

    # --- moving

    def move(
        self,
        name: object,
        to: object,
        count: object = None,
        id: object = None,
        selector: object = "",
    ) -> Pending[Facts]:
        """Move messages that nobody has acquired to the queue `to`: all that match, `count`, or the one with that `id`.

        Raises OtherSet where the queues are in different sets, and what `begin_move` does.
        """
        return self._begin(name, to, _selection(count, id, selector), "moved")

    def copy(
        self,
        name: object,
        to: object,
        count: object = None,
        id: object = None,
        selector: object = "",
    ) -> Pending[Facts]:
        """As `move`, but the messages stay where they are, too; also those that somebody has acquired are copied."""
        return self._begin(name, to, _selection(count, id, selector), "copied", copies=True)

    def retry(
        self,
        name: object,
        to: object = None,
        count: object = None,
        id: object = None,
        selector: object = "",
    ) -> Pending[Facts]:
        """Move dead letters back to the queues in which they died last, where those are in the same set.

        `to`: only those that died in that queue.
        """
        died_in = "" if to is None else checked_name(to, "to")
        selection, source_name = _selection(count, id, selector)._replace(died_in=died_in), checked_name(name, "name")
        source = self._administration.of_queue(source_name, leads=True)
        move = begin_move(source.resources, source.configuration.queue(source_name), None, selection)
        return _pending(source, move, lambda: {"moved": move.count, "to": dict(move.counts)})

    def redirect(
        self,
        name: object,
        exchange: object,
        key: object = None,
        count: object = None,
        id: object = None,
        selector: object = "",
    ) -> Pending[Facts]:
        """As `move`, but publish them to the exchange, each with its own subject as the routing key, or with `key`.

        What no binding takes stays, and so does what has no room in one of the queues to which it would go. Raises
        OtherSet where the exchange leads to queues of other sets.
        """
        selection, source_name = _selection(count, id, selector), checked_name(name, "name")
        exchange_name = checked_name(exchange, "exchange")
        routing_key = None if key is None else checked_routing_key(key)
        source, default = self._administration.of_queue(source_name, leads=True), self._administration
        if source.resources is not default.resources and default.resources.replicated.may_lack_confirmed:
            raise Unavailable(f"{MAY_BE_MORE}, bindings of exchange {exchange_name} among it: ask again")
        queue, through = source.configuration.queue(source_name), default.configuration.exchange(exchange_name)
        redirection = Redirection(through, default.resources.catalog, routing_key)
        move = begin_move(source.resources, queue, redirection, selection)
        return _pending(
            source,
            move,
            lambda: {
                "exchange": exchange_name,
                "moved": move.count,
                "to": dict(move.counts),
                "unrouted": move.stays[Stay.UNROUTED],
                "full": move.stays[Stay.FULL],
                "no_room": move.no_room or None,
            },
        )

    def _begin(
        self, name: object, to: object, selection: MoveSelection, done: str, *, copies: bool = False
    ) -> Pending[Facts]:
        source_name, target_name = checked_name(name, "name"), checked_name(to, "to")
        source = self._administration.of_queue(source_name, leads=True)
        target = self._administration.of_queue(target_name, leads=True)
        if source is not target and target.has_queue(target_name) and source.has_queue(source_name):
            raise other_set(source_name, source.resources.name, target_name, target.resources.name)
        queues = source.configuration.queue(source_name), target.configuration.queue(target_name)
        move = begin_move(source.resources, *queues, selection, copies=copies)
        return _pending(source, move, lambda: {"to": target_name, done: move.count})


def _pending(source: Administration, move: QueueMove, facts: Callable[[], Facts]) -> Pending[Facts]:
    """What is told of `move` from a queue of `source` once it is over: beside `facts` what is told of all of them."""
    return Pending(
        move,
        source.resources.replicated.log,
        lambda: {"name": move.source.name, **facts(), "held": move.held, "passed": move.passed},
    )


def _text(body: object) -> str:
    """Raises InvalidArgument."""
    if not isinstance(body, str):
        raise InvalidArgument(f"body is of type {type(body).__name__}: give a text")
    try:
        size = len(body.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("body is a text that UTF-8 cannot hold: give another one") from None
    if size > BODY_BYTES_MOST:
        raise InvalidArgument(f"body has {size} bytes: give at most {BODY_BYTES_MOST}, or use qpid-ha send")
    return body


def _selection(count: object, message_id: object, selector: object) -> MoveSelection:
    """Raises InvalidArgument."""
    if message_id is not None and (count is not None or selector):
        raise InvalidArgument("id names one message: leave count and selector out")
    most = NO_LIMIT if count is None else checked_number(count, "count")
    if most == 0:
        raise InvalidArgument("count is 0: give at least 1, or leave it out for all")
    if not isinstance(selector, str):
        raise InvalidArgument(f"selector is of type {type(selector).__name__}: give a text")
    return MoveSelection(most, None if message_id is None else _message_id(message_id, "id"), selector)


def managed_objects(administration: Administration) -> ManagedObjects:
    """What the operations of management are about, with the messages of queues."""
    return ManagedObjects(administration, QueueMessages(administration))


class QueueLook:
    """A look at the messages of a queue, one after the other.

    Their bodies may be on disk alone, and are for the caller to read, who knows how to wait for a disk. Between two
    calls anything may happen to the queue.
    """

    def __init__(self, administration: Administration, queue: Queue, after: int, count: int, most_bytes: int) -> None:
        self.queue = queue
        self.last = after
        """The id of the last message that was looked at: where to go on."""
        self.whole = False
        """There are no more."""
        self.left_bytes = most_bytes
        self._left = count
        self._resources = administration.resources
        self._readable_lsn = committed_lsn(administration.resources, queue)
        self._taking_over = taking_over(administration.resources)
        """When that was all that could be read."""

    def next_entry(self) -> Entry | None:
        """The next message; None: there are no more, or it is enough."""
        if self._left <= 0 or self.left_bytes <= 0:
            return None
        # A cursor for each: between two of them the queue's messages may get other ids.
        entry = self.queue.messages.browsing_cursor(self.last).peek()
        if entry is None or entry.id > self._readable_lsn:
            self.whole = not self._taking_over
            return None
        self.last, self._left = entry.id, self._left - 1
        return entry

    def row(self, entry: Entry, payload: bytes | BodyDamaged) -> Facts:
        """What is shown of a message that `next_entry` gave, and whose body is `payload`, or cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it shows")

    def answer(self, rows: list[Facts]) -> Facts:
        """What is said with the rows."""
        resources = self._resources
        facts: Facts = {"name": self.queue.name, "queue_id": str(self.queue.id), "set": resources.name}
        facts |= {"replica": bool(resources.replication.read_only), "messages": rows}
        return facts | {"last": str(self.last), "whole": self.whole, **self._taking_over}


class Peek(QueueLook):
    """Shows what a message is about, and `body_bytes` of its body."""

    def __init__(
        self, administration: Administration, queue: Queue, after: int, count: int, most_bytes: int, body_bytes: int
    ) -> None:
        super().__init__(administration, queue, after, count, most_bytes)
        self._body_bytes = body_bytes
        self._clock = administration.resources.catalog.clock

    def row(self, entry: Entry, payload: bytes | BodyDamaged) -> Facts:
        header, holder, queue = entry.header, entry.holder, self.queue
        expires_ms = self._clock.steady_ms(header.expires_at_ms) if header.expires_at_ms else None
        facts: Facts = {
            "id": str(entry.id),
            "state": "available" if holder is None else "scheduled" if holder is WAITING else "acquired",
            "acquired_by": None if holder is None or holder is WAITING else _holder_text(holder),
            "enqueued_ms": queue.log.write_times.time_of(entry.id),
            "expires_ms": expires_ms,
            "due_ms": self._clock.steady_ms(header.due_at_ms) if header.due_at_ms else None,
            "durable": header.durable,
            "priority": header.priority,
            "delivery_count": entry.delivery_count,
            "redelivered": queue.is_redelivered(entry),
        }
        if isinstance(payload, BodyDamaged):
            return {**facts, "unreadable": str(payload)}
        payload = without_number(without_format(queue.annotated(entry, payload, annotated)))
        self.left_bytes -= min(len(payload), self._body_bytes)
        return {**facts, "size": len(payload), **describe_message(payload, self._body_bytes)}


class PayloadLook(QueueLook):
    """Shows the bytes of messages, from `offset` of the first one on."""

    def __init__(
        self, administration: Administration, queue: Queue, after: int, count: int, most_bytes: int, offset: int
    ) -> None:
        super().__init__(administration, queue, after, count, most_bytes)
        self._offset = offset

    def row(self, entry: Entry, payload: bytes | BodyDamaged) -> Facts:
        offset, self._offset = self._offset, 0
        facts: Facts = {"id": str(entry.id), "enqueued_ms": self.queue.log.write_times.time_of(entry.id)}
        if isinstance(payload, BodyDamaged):
            return {**facts, "unreadable": str(payload)}
        payload = without_number(without_format(self.queue.annotated(entry, payload, annotated)))
        piece = payload[offset : offset + self.left_bytes]
        self.left_bytes -= len(piece)
        encoded = b64encode(piece).decode("ascii")
        return {**facts, "size": len(payload), "offset": offset, "payload": encoded}


def _holder_text(holder: Holder) -> str:
    match holder:
        case LinkEndpoint():
            return holder.client_text or f"a {type(holder).__name__}"
        case SessionLink():
            return f"session {session_label(holder.name)}, link {holder.link}"
        case Transaction():
            return "a transaction that is open"
    return _MARKS.get(holder, "somebody")


_MARKS: Final = {
    ELSEWHERE: "a client of another broker",
    DISPLACED: "nobody: it goes, to make room",
    EXPIRED: "nobody: it has expired",
}


def _limit(value: object, parameter: str, most: int) -> int:
    number = checked_number(value, parameter)
    if not 0 < number <= most:
        raise InvalidArgument(f"{parameter} is {number}: give 1 to {most}")
    return number


def _message_id(value: object, parameter: str) -> int:
    """Also as text: JSON has no integers of 64 bits everywhere."""
    is_text = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20
    return checked_number(int(str(value)) if is_text else value, parameter)
