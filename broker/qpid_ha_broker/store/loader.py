"""From records to a state, as fast as Python can: what a snapshot and a journal hold is put into queues at the end.

Messages wait in one dictionary per queue, from which removals take them at next to no cost, and become entries of the
queue when all is read. Configuration goes through `SetState.apply` as ever.

Messages of which a snapshot's index tells are not read, and wait as stretches. The promise: the queues hold what they
would hold if all had been read, with bodies on disk. So a stretch becomes single messages when

1. a message of it was removed, failed, was annotated, or is held for a session;
2. another message of its queue is among its messages: one in several queues, that expires, or of another priority. In
   a queue with levels, each level is as a queue of its own here: what is of another one is not among them;
3. its queue gives its messages in another order than that in which they came, those of a level.

The loops are written out: a call for each message would cost more than all else that is done with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final
from zlib import crc32

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.fields import read_ids
from qpid_ha_broker.events.layout import ID, IDS, ONE_QUEUE, PLAIN, SEAL, WORDS, RecordKind, is_local_lsn, word_of
from qpid_ha_broker.events.scan import RecordError
from qpid_ha_broker.events.types import DequeueReason, Enqueued
from qpid_ha_broker.model.queues.cold import ColdMessages
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import Body
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.annotating import annotate
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.state import ReplayError

from .snapshot import SnapshotEnd
from .snapshot_index import ColdStretch

_ENQUEUED: Final = word_of(RecordKind.ENQUEUED)
"""No part of a unit. The next likewise."""
_DEQUEUED: Final = word_of(RecordKind.DEQUEUED)
_SEALED: Final = SEAL.end
_BODY_AT: Final = IDS.start
_IDS_AT: Final = IDS.end
_unpack_ids: Final = IDS.unpack_from
_unpack_id: Final = ID.unpack_from
_PAYLOAD_AT: Final = PLAIN.end - SEAL.end
"""In what the checksum covers."""
_MAX_REASON: Final = max(DequeueReason)
_DECODED_AT_ONCE: Final = 256
_entry_id, _first_id = attrgetter("id"), attrgetter("first_id")


LoadedMessage = tuple[MessageHeader, Body]
"""What becomes an entry when all is read."""


class Contents:
    """What one queue holds so far."""

    __slots__ = (
        "_as_of_low", "_as_of_lsn", "_cold", "_has_levels", "_level_of", "annotations", "failures", "headers", "ids",
        "messages", "was_emptied",
    )  # fmt: skip

    def __init__(self, queue: Queue) -> None:
        self.ids = queue.ids
        self._has_levels = queue.arguments.priorities > 1
        self._level_of = queue.messages.level_of
        self.headers: dict[int, MessageHeader] = {}
        """Of messages that do not expire, by priority."""
        self.messages: dict[int, LoadedMessage] = {}
        self._cold: dict[int, ColdContents] = {}
        """By level, the highest first once something is asked for."""
        self.failures: dict[int, int] = {}
        """Failed deliveries, of messages that have had some and may be gone."""
        self.annotations: dict[int, bytes] = {}
        """What consumers have said of messages that may be gone."""
        self._as_of_low: list[int] = []
        self._as_of_lsn: list[int] = []
        self.was_emptied = False

    def clear(self) -> None:
        """The queue was emptied."""
        self.was_emptied = True
        self.messages.clear()
        self._cold.clear()
        self.failures.clear()
        self.annotations.clear()
        self._as_of_low.clear()
        self._as_of_lsn.clear()

    def mark(self, low: int, lsn: int) -> None:
        """Messages from `low` up to the mark before are as they were at `lsn`. The newest messages come first."""
        self._as_of_low.append(-low)
        self._as_of_lsn.append(lsn)

    def as_of(self, message_id: int) -> int:
        """The LSN up to which a snapshot counts the failed deliveries of that message; 0: there is no mark."""
        at = bisect_left(self._as_of_low, -message_id)
        return self._as_of_lsn[min(at, len(self._as_of_lsn) - 1)] if self._as_of_lsn else 0

    def add_cold(self, stretch: ColdMessages) -> None:
        """Messages of which an index tells."""
        level = self._level_of(stretch.header.priority)
        self._cold.setdefault(level, ColdContents()).add(stretch)

    def warm(self, message_id: int) -> bool:
        """Whether that message was in a stretch: then it is among `messages` now, as all of that stretch are."""
        for cold in self._cold.values():
            stretch = cold.pop(message_id)
            if stretch is not None:
                self._unpack(stretch)
                return True
        return False

    def _unpack(self, stretch: ColdMessages) -> None:
        header = stretch.header
        for ref in stretch.refs():
            self.messages.setdefault(ref.lsn, (header, ref))

    def separate(self, takes_cold: bool = True) -> None:
        """See to it that no message is among those of a stretch of its level that is not one of them."""
        if not self._cold:
            return
        self._cold = {level: self._cold[level] for level in sorted(self._cold, reverse=True)}
        if not takes_cold:
            for stretch in [stretch for cold in self._cold.values() for stretch in cold.pop_all()]:
                self._unpack(stretch)
            return
        ids = self._ids_by_level()
        for level, cold in self._cold.items():
            for stretch in cold.mixed(sorted(ids.get(level, ()))):
                self._unpack(stretch)

    def _ids_by_level(self) -> Mapping[int, Iterable[int]]:
        """Of `messages`."""
        if not self._has_levels:
            return {0: self.messages}
        ids: dict[int, list[int]] = {}
        level_of = self._level_of
        for message_id, (header, _) in self.messages.items():
            ids.setdefault(level_of(header.priority), []).append(message_id)
        return ids

    def cold_by_level(self, held: Iterable[int], takes_cold: bool) -> dict[int, list[ColdMessages]]:
        """The stretches that stay such, of each level by ascending id."""
        if not self._cold:
            return {}
        for message_id in (*self.failures, *self.annotations, *held):
            self.warm(message_id)
        self.separate(takes_cold)
        return {level: stretches for level, cold in self._cold.items() if (stretches := cold.pop_all())}

    def entries(self) -> list[Entry]:
        """All `messages` by ascending id; the dictionary is empty afterwards."""
        ids = list(self.messages)
        ordered = sorted(ids)
        loaded = list(self.messages.values()) if ids == ordered else [self.messages[lsn] for lsn in ordered]
        self.messages = {}
        entries = [Entry(message_id, header, body) for message_id, (header, body) in zip(ordered, loaded, strict=True)]
        if self.failures:
            for entry in entries:
                entry.delivery_count = self.failures.get(entry.id, 0)
        return entries


class Loader:
    """The promise: after `finish` the state is the one that follows from the records, transient messages left out.

    Feed the data of a snapshot's blocks to `load`, tell `end_snapshot`, and go on with the journal's.
    """

    def __init__(self, sets: ResourceSets) -> None:
        self._sets = sets
        self._catalog = sets.catalog
        self._contents: dict[int, Contents] = {
            queue_id: Contents(queue) for queue_id, queue in sets.catalog.queues_by_id.items()
        }
        self._unit: list[LogRecord] = []
        self._base: SnapshotEnd | None = None
        self._is_snapshot = False
        self._has_held = False
        """Something was held for a session of a client."""
        self.enqueued = 0
        """Messages that were loaded, whether or not they have left again."""
        self.transient = 0
        """Copies in queues of messages that were read but are not durable."""
        self.unknown = 0
        """Removals of what is not here, each of a copy of a transient message."""
        self.misfits = 0
        """Events of the broker's own log about things that are not there, which were passed over."""

    def messages(self) -> dict[int, dict[int, LoadedMessage]]:
        """What was loaded and has not left again, by queue and LSN."""
        return {queue_id: contents.messages for queue_id, contents in self._contents.items()}

    def load_cold(self, stretch: ColdStretch) -> None:
        """As `load` for what the index of a snapshot tells of. Raises RecordError."""
        contents = self._contents.get(stretch.queue)
        if contents is None:
            raise RecordError(0, f"messages for the queue with id {stretch.queue}, which is not declared")
        contents.add_cold(stretch.messages)
        self.enqueued += stretch.messages.count

    def begin_snapshot(self) -> None:
        """What follows is a snapshot's."""
        self._is_snapshot = True

    def end_snapshot(self, end: SnapshotEnd) -> None:
        """What follows is the journal's."""
        self._is_snapshot, self._base = False, end
        for contents in self._contents.values():
            contents.separate()

    def load(self, data: bytes) -> None:
        """Apply the records of one block. Raises RecordError."""
        unpack, new = WORDS.unpack_from, tuple.__new__
        contents = self._contents
        offset, end = 0, len(data)
        least, last, one_queue, sealed_at = PLAIN.size, end - PLAIN.size, ONE_QUEUE, _SEALED
        current, ids = -1, (0,)
        headers: dict[int, MessageHeader] = {}
        messages: dict[int, LoadedMessage] = {}
        loaded = 0
        while offset < end:
            if offset <= last:
                size, checksum, lsn, word, durable, priority, expires, lengths, queue = unpack(data, offset)
                stop = offset + size
                if word == _ENQUEUED:
                    if queue != current and queue in contents:
                        here = contents[queue]
                        current, ids, headers, messages = queue, here.ids, here.headers, here.messages
                    if lengths == one_queue and durable == 1 and queue == current and size >= least and stop <= end:
                        sealed = data[offset + sealed_at : stop]
                        if crc32(sealed) == checksum:
                            header = None if expires else headers.get(priority)
                            if header is None:
                                header = new(MessageHeader, (ids, True, priority, expires, "", 0))
                                if not expires:
                                    headers[priority] = header
                            messages[lsn] = header, sealed[_PAYLOAD_AT:]
                            loaded += 1
                            offset = stop
                            continue
                elif word == _DEQUEUED and stop <= end and self._load_dequeued(lsn, data, offset, size, checksum):
                    offset = stop
                    continue
            offset = self._load_others(data, offset)
            current = -1
        self.enqueued += loaded

    def _load_dequeued(self, lsn: int, data: bytes, offset: int, size: int, checksum: int) -> bool:
        """Whether all is as it should be with the Dequeued there, no part of a unit."""
        queue, reason, count = _unpack_ids(data, offset + _BODY_AT)
        contents = self._contents.get(queue)
        if (
            size != _IDS_AT + 8 * count or reason > _MAX_REASON
            or contents is None or crc32(data[offset + _SEALED : offset + size]) != checksum
        ):  # fmt: skip
            return False
        ids = _unpack_id(data, offset + _IDS_AT) if count == 1 else read_ids(data, offset + _IDS_AT, count)
        self._dequeued(lsn, contents, ids)
        if self._has_held:
            self._drop_held(queue, ids)
        return True

    def _load_others(self, data: bytes, offset: int) -> int:
        """Apply records of any kind, at least up to the end of a unit that begins here; returns where to go on."""
        while True:
            records, consumed, problem = decode(data[offset:], max_records=_DECODED_AT_ONCE)
            for record in records:
                self.apply(record, offset)
            offset += consumed
            if problem is not None:
                raise RecordError(offset, problem.text)
            if offset == len(data):
                self.end_block(offset)
            if not self._unit:
                return offset

    def end_block(self, offset: int) -> None:
        """A unit never straddles blocks. Raises RecordError."""
        if self._unit:
            raise RecordError(offset, f"a unit that began at LSN {self._unit[0].lsn} and does not end")

    def apply(self, record: LogRecord, offset: int = 0) -> None:
        """Apply one record; parts of a unit wait for its end. Raises RecordError."""
        lsn, event, part = record
        if part:
            self._unit.append(record)
            return
        if isinstance(event, ev.TransactionCommitted):
            unit, self._unit = self._unit, []
            if len(unit) != event.parts:
                raise RecordError(offset, f"LSN {lsn}: a unit of {event.parts} events, {len(unit)} of them here")
        else:
            self.end_block(offset)
            unit = [record]
        for record in unit:
            try:
                self._apply(record.lsn, record.event)
            except (ReplayError, KeyError) as error:
                if not is_local_lsn(record.lsn):
                    raise RecordError(offset, f"LSN {record.lsn}: {type(record.event).__name__}: {error}") from error
                self.misfits += 1

    def _apply(self, lsn: int, event: ev.Event) -> None:
        if isinstance(event, Enqueued):
            self._enqueued(lsn, event)
        elif isinstance(event, ev.Dequeued):
            self._dequeued(lsn, self._contents[event.queue], event.ids)
            self._drop_held(event.queue, event.ids)
        elif isinstance(event, ev.Released):
            self._released(lsn, event, self._contents[event.queue])
            if not self._is_snapshot:  # there they count failed deliveries, whoever holds the messages now
                self._drop_held(event.queue, event.ids)
        elif isinstance(event, ev.Annotated):
            self._contents[event.queue].annotations |= dict.fromkeys(event.ids, event.annotations)
            (self._sets.local if is_local_lsn(lsn) else self._sets.replicated).state.marks.annotated_lsn = lsn
        elif isinstance(event, ev.SessionAcquired):
            self._has_held = True
            self._catalog.holdings.acquire(self._catalog.queues_by_id[event.queue], event)
        elif not isinstance(event, ev.Acquired):
            (self._sets.local if is_local_lsn(lsn) else self._sets.replicated).state.apply(lsn, event)
            self._configured(lsn, event)

    def _enqueued(self, lsn: int, event: Enqueued) -> None:
        contents = [self._contents[queue_id] for queue_id in event.queues]
        if not event.durable:
            self.transient += len(contents)
            return
        self.enqueued += 1
        message = self._catalog.headers.of(event), event.payload
        for queue_contents in contents:
            queue_contents.messages[lsn] = message

    def _dequeued(self, lsn: int, contents: Contents, ids: tuple[int, ...]) -> None:
        pop = contents.messages.pop
        for message_id in ids:
            if pop(message_id, None) is not None or (contents.warm(message_id) and pop(message_id, None) is not None):
                continue
            if not self.is_doubtful(lsn, contents, message_id):
                self.unknown += 1

    def _drop_held(self, queue_id: int, ids: tuple[int, ...]) -> None:
        self._catalog.holdings.drop(self._catalog.queues_by_id[queue_id], ids)

    def is_doubtful(self, lsn: int, contents: Contents, message_id: int) -> bool:
        """Whether nobody knows if what `lsn` removed from `contents`, and is not there, was durable.

        A snapshot that was made beside the running broker may not have found it any more, and counted it as neither. A
        queue that was emptied, because its level changed, had both. Such a removal does not count: who takes too many
        transient messages for lost compares once more with the primary; who takes too few for lost could not apply
        what comes after.
        """
        if self._base is None or contents.was_emptied:
            return contents.was_emptied
        last, counted_to = self._base.ends_of(lsn)
        return lsn <= counted_to and message_id <= last

    def _released(self, lsn: int, event: ev.Released, contents: Contents) -> None:
        if self._is_snapshot and not event.failed:
            contents.mark(event.ids[0], lsn)
        if not event.failed:
            return
        base = self._base
        last, counted_to = (0, 0) if base is None else base.ends_of(lsn)
        for message_id in event.ids:
            if lsn > counted_to or message_id > last or lsn > contents.as_of(message_id):
                contents.failures[message_id] = contents.failures.get(message_id, 0) + 1

    def _configured(self, lsn: int, event: ev.Event) -> None:
        """Let the contents follow the queues."""
        if isinstance(event, ev.QueueDeclared):
            self._contents[lsn] = Contents(self._catalog.queues_by_id[lsn])
        elif isinstance(event, ev.ReplicationChanged):
            self._contents[event.queue].clear()
        if len(self._contents) != len(self._catalog.queues_by_id):
            gone = self._contents.keys() - self._catalog.queues_by_id.keys()
            for queue_id in gone:
                del self._contents[queue_id]

    def finish(self) -> int:
        """Put the messages into their queues; returns how many there are."""
        total = 0
        for queue_id, contents in self._contents.items():
            queue = self._catalog.queues_by_id[queue_id]
            cold = contents.cold_by_level(queue.held, queue.messages.cold.can_be)
            entries = contents.entries()
            if queue.held:
                self._catalog.holdings.keep_only(queue, entries)
            total += len(entries) + sum([stretch.count for stretches in cold.values() for stretch in stretches])
            said = contents.annotations
            annotated = [entry.id for entry in entries if entry.id in said] if said else []
            self._prepend_levels(queue, entries, cold)
            for message_id in annotated:
                annotate(self._catalog, queue, (message_id,), said[message_id])
        self._catalog.deleted_queues.clear()
        self._catalog.garbage.run()
        return total

    def _prepend_levels(self, queue: Queue, entries: list[Entry], cold: dict[int, list[ColdMessages]]) -> None:
        """Each level by itself: what is cold in one, and `entries` of another, are among each other."""
        if queue.arguments.priorities < 2:
            self._prepend(queue, entries, next(iter(cold.values()), []))
            return
        level_of = queue.messages.level_of
        of_level: dict[int, list[Entry]] = {level: [] for level in cold}
        for entry in entries:
            of_level.setdefault(level_of(entry.header.priority), []).append(entry)
        for level, own in of_level.items():
            self._prepend(queue, own, cold.get(level, []))

    def _prepend(self, queue: Queue, entries: list[Entry], cold: list[ColdMessages]) -> None:
        """Both, by ascending id, the newest first: what comes after is older than all of its level that is there."""
        while cold or entries:
            at = bisect_left(entries, cold[-1].first_id if cold else 0, key=_entry_id)
            if at < len(entries):
                self._catalog.prepended(queue, entries[at:])
                del entries[at:]
            above = entries[-1].id if entries else -1
            at = bisect_left(cold, above, key=_first_id)
            if at < len(cold):
                self._catalog.memory_bytes += MESSAGE_OVERHEAD * queue.messages.cold.prepend(cold[at:])
                del cold[at:]


class ColdContents:
    """The stretches of one queue, or of a level of it, of which no message was asked for."""

    __slots__ = ("_is_sorted", "_looked_at", "_stretches")

    def __init__(self) -> None:
        self._stretches: list[ColdMessages] = []
        self._is_sorted = True
        self._looked_at: tuple[ColdMessages | None, list[int]] = None, []
        """The last one that was looked through, and its ids: what is removed is asked for in their order, mostly."""

    def add(self, stretch: ColdMessages) -> None:
        """In any order: a snapshot that was made beside the broker has the newest first."""
        self._stretches.append(stretch)
        self._is_sorted = False

    def pop(self, message_id: int) -> ColdMessages | None:
        """The stretch that has that message; it is not here any more. Once none is `mixed` with another."""
        if not self._stretches:
            return None
        self._sort()
        at = bisect_right(self._stretches, message_id, key=_first_id) - 1
        if at < 0 or self._stretches[at].last_id < message_id:
            return None
        stretch, ids = self._looked_at
        if stretch is not self._stretches[at]:
            stretch = self._stretches[at]
            ids = stretch.ids()
            self._looked_at = stretch, ids
        place = bisect_left(ids, message_id)
        return self._stretches.pop(at) if ids[place] == message_id else None

    def pop_all(self) -> list[ColdMessages]:
        """All of them, by ascending id."""
        self._sort()
        stretches, self._stretches = self._stretches, []
        return stretches

    def mixed(self, ids: Sequence[int]) -> list[ColdMessages]:
        """Those among whose messages one of `ids`, which ascend, or another stretch is; they are not here any more."""
        stretches = self.pop_all()
        mixed: list[ColdMessages] = []
        last_id = -1
        for stretch, following in zip(stretches, [*stretches, None][1:], strict=True):
            at = bisect_left(ids, stretch.first_id)
            is_alone = at == len(ids) or ids[at] > stretch.last_id
            is_apart = last_id < stretch.first_id and (following is None or stretch.last_id < following.first_id)
            (self._stretches if is_alone and is_apart else mixed).append(stretch)
            last_id = max(last_id, stretch.last_id)
        return mixed

    def _sort(self) -> None:
        if not self._is_sorted:
            self._stretches.sort(key=_first_id)
            self._is_sorted = True
