"""Deciding where messages go before anything is written: all of them fit, or none is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qpid_ha_broker.events.types import DequeueReason, Enqueued, ProducerAdvanced
from qpid_ha_broker.model.errors import InvalidArgument, NotFound, NotSupported, QueueFull, QueueLocked, fresh
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.message_reader import MessageReader
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import FullPolicy
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.transactions.transaction import Message

MAX_KEY_CHARACTERS = 4096
"""Of a last-value key: what a record can hold at most, and more than anybody needs."""


_new_tuple = tuple.__new__
"""Makes a named tuple of a tuple at half of what calling its class costs."""


class Departure(NamedTuple):
    """Messages that leave a queue in the same unit."""

    queue: Queue
    entries: list[Entry]
    reason: DequeueReason


class PlannedUnit:
    """What goes into one log."""

    __slots__ = ("advances", "events")

    def __init__(self) -> None:
        self.events: list[Enqueued] = []
        self.advances: dict[bytes, int] = {}
        """What producers come to with these messages."""


class EnqueuePlan:
    """The promise: after an error from `add`, no queue is touched and the plan is empty."""

    def __init__(
        self,
        reader: MessageReader,
        logs: Iterable[Log],
        producers: int = 0,
        *,
        displaces: bool = True,
        why_no_delay: str = "",
    ) -> None:
        """`logs`: those of the queues; a message that goes into several has its number written to the first of them.

        `producers`: how many are remembered; 0: numbers of messages mean nothing. `displaces`: False, the plan leaves
        it to the owner of a queue to drop what newer messages take the place of, once they are there. `why_no_delay`:
        why messages that are due later are refused; empty: they are not.
        """
        self.units = {log: PlannedUnit() for log in logs}
        self.producers = producers
        self._displaces = displaces
        self._why_no_delay = why_no_delay
        self.displaced: dict[Queue, list[Entry]] = {}
        """What rings drop to make room."""
        self.over_limits: dict[Queue, None] = {}
        """Rings that do not keep their limits all the same: see `QueueLimits`."""
        self.overrun: dict[Queue, QueueFull] = {}
        """Queues that are to be deleted because they cannot hold what comes, and what to say of it."""
        self.grouped: dict[Queue, None] = {}
        """Queues that have to keep groups together with what comes."""
        self.outranked = 0
        """How often a ring kept what it had, all of a higher priority than what would have come."""
        self._reader = reader
        self._coming: dict[Queue, tuple[int, int]] = {}
        self._values: dict[tuple[Queue, str], int] = {}
        """Sizes of the last values that are planned to come."""

    @property
    def queues(self) -> Iterable[Queue]:
        """Where something will arrive."""
        return self._coming

    def add(self, queues: tuple[Queue, ...], message: Message, now_ms: int, *, routed: bool) -> None:
        """Plan for `message` to join each of `queues`. `routed`: an exchange has chosen them, not the publisher.

        One that is due later is no longer so where that time has come.
        """
        joined: dict[tuple[int, str, Log], list[int]] = {}
        due_at_ms = message.due_at_ms if message.due_at_ms > now_ms else 0
        try:
            if due_at_ms and self._why_no_delay:
                raise NotSupported(self._why_no_delay)
            for queue in queues:
                key = self._key(queue, message.payload)
                if not self._make_room(queue, message, key, routed):
                    continue
                if queue.detects_groups and self._reader.has_group(message.payload):
                    self.grouped[queue] = None
                expires_at_ms = _expiry(queue, message, now_ms)
                if key and not message.expires_at_ms and self._reader.is_tombstone(message.payload):
                    expires_at_ms = now_ms  # it takes the place of what the key has, and goes
                joined.setdefault((expires_at_ms, key, queue.log), []).append(queue.id)
        except Exception:
            # Whatever it was, what rings had set aside for it must not stay aside.
            self.abandon()
            raise
        numbered = bool(message.producer and self.producers)
        durable = message.durable or numbered  # its number outlives a crash: without it, it would be taken for there
        for (expires_at_ms, key, log), ids in joined.items():
            event = _new_tuple(
                Enqueued, (tuple(ids), message.payload, durable, message.priority, expires_at_ms, key, due_at_ms)
            )
            self.units[log].events.append(event)
        if numbered and joined:
            logs = {log for _, _, log in joined}
            first = next(unit for log, unit in self.units.items() if log in logs)
            first.advances[message.producer] = message.sequence

    @property
    def logs(self) -> set[Log]:
        """The logs into which something goes."""
        return {log for log, unit in self.units.items() if unit.events}

    def written_to(self, log: Log) -> Sequence[Enqueued | ProducerAdvanced]:
        """The events that go into `log`: messages, and then how far their producers have come with them."""
        unit = self.units[log]
        if not unit.advances:
            return unit.events
        advances = (ProducerAdvanced(name, number, self.producers) for name, number in unit.advances.items())
        return [*unit.events, *advances]

    def _make_room(self, queue: Queue, message: Message, key: str, routed: bool) -> bool:
        """False: `queue` has none for it and goes without, which is not the publisher's concern. Raises ModelError."""
        size = len(message.payload)
        if queue.deleted:
            raise NotFound(f"queue {queue.name} was deleted")
        refusal = queue.refusal
        if refusal:
            raise QueueLocked(refusal)
        if key and queue.limits.is_bounded:
            self._replace(queue, size, key)
        count, total = self._coming.get(queue, (0, 0))
        if queue.limits.is_bounded:
            try:
                is_owners = not self._displaces and queue.limits.is_ring_for(size)
                dropped = [] if is_owners else queue.limits.displaced_by(size, message.priority, count, total)
            except QueueFull as error:
                # Who has named the queue is refused, as by any other; who has not is none of its concern.
                if queue.arguments.policy_type is not FullPolicy.SELF_DESTRUCT or not routed:
                    raise
                self.overrun[queue] = fresh(error)
                return False
            if dropped is None:
                self.outranked += 1
                return False
            if dropped:
                self.displaced.setdefault(queue, []).extend(dropped)
                count -= len(dropped)
                total -= sum(entry.size for entry in dropped)
            if queue.limits.goes_over(count + 1, total + size):
                self.over_limits[queue] = None
        self._coming[queue] = (count + 1, total + size)
        return True

    def _replace(self, queue: Queue, size: int, key: str) -> None:
        """A newer value needs no more room than it has over the older one, be that in the queue or about to come."""
        count, total = self._coming.get(queue, (0, 0))
        planned = self._values.get((queue, key))
        older = queue.limits.available_value(key) if planned is None else None
        if older is not None:
            planned = older.size
            if self._displaces:
                queue.limits.displace((older,))
                self.displaced.setdefault(queue, []).append(older)
        if planned is not None:
            self._coming[queue] = count - 1, total - planned
        self._values[queue, key] = size

    def _key(self, queue: Queue, payload: bytes) -> str:
        name = queue.arguments.last_value_queue_key
        value = self._reader.properties(payload).get(name) if name else None
        key = "" if value is None else str(value)
        if len(key) > MAX_KEY_CHARACTERS:
            raise InvalidArgument(f"a last-value key is at most {MAX_KEY_CHARACTERS} characters, found {len(key)}")
        return key

    def abandon(self) -> None:
        """The plan is not carried out."""
        for queue, entries in self.displaced.items():
            queue.limits.undo_displacing(entries)
        self.displaced.clear()
        self.over_limits.clear()
        self.overrun.clear()
        self.grouped.clear()
        self.outranked = 0
        self._coming.clear()
        self._values.clear()
        for unit in self.units.values():
            unit.events.clear()
            unit.advances.clear()


def _expiry(queue: Queue, message: Message, now_ms: int) -> int:
    limit = queue.arguments.message_ttl_ms
    if not limit:
        return message.expires_at_ms
    return min(message.expires_at_ms or now_ms + limit, now_ms + limit)
