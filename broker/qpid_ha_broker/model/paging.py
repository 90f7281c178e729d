"""Which payloads leave memory for the disk, and which come back before somebody asks for them.

What leaves: payloads of durable messages whose records have been seen on disk, beyond what the consumers of their queue
take next; those of the oldest file first. What comes back: what lies ahead of a consumer or a browser, as long as
less than half of the usual lead is left. Pure: the driver reads files and gives turns; see `server.stores.pager`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.events.layout import PART, PLAIN_HEAD, SEAL, VERSION, RecordKind
from qpid_ha_broker.model.queues.cold import ColdMessages
from qpid_ha_broker.model.queues.orders import OrderCursor
from qpid_ha_broker.model.queues.paged import BodyDamaged, BodyRef, BodySource
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.catalog import Catalog

AHEAD_BYTES: Final = 4 * 1024 * 1024
"""What a consumer finds in memory ahead of it."""
AHEAD_BYTES_MIN: Final = 128 * 1024
AHEAD_MESSAGES: Final = 8192
"""The same for small messages: looking at them takes time, too."""
ON_THE_WAY_BYTES: Final = 64 * 1024 * 1024
"""Of all queues together, asked for and not here yet."""
POSITIONS_KEPT: Final = 16
"""So many places in one queue are spared when payloads leave; whoever stands elsewhere gets them back."""
STEP: Final = 128
"""Records between two chances to stop."""
ENOUGH: Final = 0.95
"""Down to this share of the memory that may be used."""
PART_SEAL: Final = 1 << 32
"""In a seal: the record is part of a unit, which its checksum covers."""
SHARED_SEAL: Final = 1 << 33
"""In a seal: the record is of several queues, and the checksum is what it would be without their ids.

A snapshot names fewer of them than the message in memory, once some do not have it any more.
"""


class PlacedRecords(NamedTuple):
    """Messages of one queue in a file, in the order of the file: LSN, offset, and checksum with the marks above."""

    lsns: array[int]
    offsets: array[int]
    seals: array[int]


class BodyPiece(NamedTuple):
    """What a file, or a part of it, holds of durable messages, by queue."""

    source: BodySource
    records: Mapping[int, PlacedRecords]


class BodyRequest(NamedTuple):
    """A body that should come back."""

    queue: Queue
    entry: Entry
    ref: BodyRef


class StretchRequest(NamedTuple):
    """Bodies that should come back together."""

    queue: Queue
    cold: ColdMessages


@dataclass
class Tally:
    """What a walk over one file came to, in bytes of payload."""

    freed: int = 0
    moved: int = 0
    left: int = 0
    """Could leave another time: enough had left, it was kept for a consumer, or somebody has it."""


class Paging:
    """The promise: it changes where payloads are, and nothing that anybody could see of a message or a queue.

    A payload leaves memory only for a record that was found whole on disk and has the checksum that the message in
    memory gives. What cannot be read back stays in its place, and is told once.
    """

    def __init__(self, catalog: Catalog, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        """What `catalog.memory_bytes` should stay below."""
        self._catalog = catalog
        self._ahead: dict[Queue, _ReadAhead] = {}
        self._on_the_way: dict[Entry, BodyRef] = {}
        self._on_the_way_bytes = 0
        self._unreadable: dict[Entry, BodyRef] = {}
        self._stretches: set[ColdMessages] = set()
        """On their way, as a whole."""
        self._requested: list[StretchRequest] = []

    # --- how it stands

    @property
    def is_over(self) -> bool:
        """Whether payloads should leave."""
        return self._catalog.memory_bytes > self.memory_bytes

    @property
    def is_enough(self) -> bool:
        """Whether enough has left, once it was too much."""
        return self._catalog.memory_bytes <= self.memory_bytes * ENOUGH

    @property
    def paged_bytes(self) -> int:
        """On disk alone."""
        return sum([queue.messages.paged for queue in self._ahead])

    @property
    def has_paged(self) -> bool:
        """Whether `wanted` may find something."""
        return bool(self._ahead)

    @property
    def unreadable(self) -> int:
        """Messages that wait in their places because their records are damaged."""
        return len(self._unreadable)

    def find_queues(self) -> None:
        """Look which queues hold something that is paged out: now and then, and after a restart."""
        paged = [queue for queue in self._catalog.queues_by_id.values() if queue.messages.paged]
        self._ahead = {queue: self._ahead.get(queue) or _ReadAhead(queue) for queue in paged}
        self._unreadable = {entry: ref for entry, ref in self._unreadable.items() if entry.body is ref}

    # --- back

    def wanted(self) -> list[BodyRequest]:
        """What has to be read now; it counts as on its way from here on. Ask at the end of each turn, and then for the
        `stretches`."""
        requests: list[BodyRequest] = []
        for queue, ahead in self._ahead.items():
            if not queue.dispatcher.consumers or queue.deleted or self._on_the_way_bytes >= ON_THE_WAY_BYTES:
                continue
            for entry, ref in ahead.due(self._is_known):
                if self._is_known(entry):
                    continue
                if entry.block is not None and (cold := entry.block.was_cold) is not None:
                    self._stretches.add(cold)
                    self._on_the_way_bytes += cold.body_bytes
                    self._requested.append(StretchRequest(queue, cold))
                else:
                    self._on_the_way[entry] = ref
                    self._on_the_way_bytes += ref.size
                    requests.append(BodyRequest(queue, entry, ref))
        return requests

    def stretches(self) -> list[StretchRequest]:
        """What else has to be read, as `wanted` found: messages of which none was brought in since the start."""
        requested, self._requested = self._requested, []
        return requested

    def stretch_brought(self, request: StretchRequest, bodies: Sequence[bytes] | None) -> None:
        """Take in what `ColdMessages.read` gave. None: they are read one by one, so that what is damaged is told."""
        queue, cold = request
        self._on_the_way_bytes -= cold.body_bytes
        self._stretches.discard(cold)
        if bodies is None:
            queue.messages.cold.give_up(cold)
        elif not queue.deleted:
            self._catalog.memory_bytes += queue.messages.cold.bring(cold, bodies)

    def _is_known(self, entry: Entry) -> bool:
        """Whether there is nothing to be done for a message that is paged out but wait."""
        if self._stretches and entry.block is not None and entry.block.was_cold in self._stretches:
            return True
        return entry in self._on_the_way or (bool(self._unreadable) and self._unreadable.get(entry) is entry.body)

    def brought(self, requests: Sequence[BodyRequest], results: Sequence[bytes | BodyDamaged]) -> list[BodyDamaged]:
        """Take in what `read_bodies` gave; returns what could not be read. Wake those of `waiting` after it."""
        damaged = []
        for (queue, entry, ref), result in zip(requests, results, strict=True):
            del self._on_the_way[entry]
            self._on_the_way_bytes -= ref.size
            if isinstance(result, BodyDamaged):
                self._unreadable[entry] = ref
                damaged.append(result)
            elif type(entry.body) is BodyRef and entry.body.lsn == ref.lsn and not queue.deleted:
                self._catalog.replace_body(queue, entry, result)
        return damaged

    def waiting(self) -> list[Queue]:
        """Queues that stopped before a message which may be back now."""
        return [queue for queue in self._ahead if queue.dispatcher.awaits_bodies]

    # --- out

    def visit(self, piece: BodyPiece, outdated: Container[str], tally: Tally) -> Iterator[None]:
        """Let payloads leave that `piece` has, as long as it is too much, and point to it from `outdated` files.

        Stops now and then for the caller to decide whether to go on; between two steps anything may change.
        """
        for queue_id, records in piece.records.items():
            queue = self._catalog.queues_by_id.get(queue_id)
            if queue is None or not queue.messages.count:
                continue
            if outdated:
                yield from self._move_cold(queue, piece.source, records, outdated, tally)
            kept: Container[int] | None = None
            for start in range(0, len(records.lsns), STEP):
                ids = records.lsns[start : start + STEP].tolist()
                places = dict(zip(ids, range(start, start + len(ids)), strict=True))
                entries = queue.messages.cold.find_others(ids, outdated)
                if outdated:
                    self._move(queue, entries, piece.source, records, places, outdated, tally)
                here = [entry for entry in entries if type(entry.body) is not BodyRef]
                if here and self.is_enough:
                    tally.left += sum([entry.size for entry in here])
                elif here:
                    kept = self._kept(queue) if kept is None else kept
                    self._let_go(queue, here, piece.source, records, places, kept, tally)
                yield
            if queue.messages.paged and queue not in self._ahead:
                self._ahead[queue] = _ReadAhead(queue)

    def _move_cold(
        self, queue: Queue, source: BodySource, records: PlacedRecords, outdated: Container[str], tally: Tally,
    ) -> Iterator[None]:  # fmt: skip
        """Let what is cold stay so, where `records` have all of it. What they have in part, `_move` opens."""
        messages = queue.messages
        colds = [
            cold
            for cold in messages.cold.within(min(records.lsns), max(records.lsns))
            if cold.source.name in outdated
        ]  # fmt: skip
        if not colds:
            return
        order = sorted(range(len(records.lsns)), key=records.lsns.__getitem__)
        lsns = [records.lsns[place] for place in order]
        for cold in colds:
            ids = cold.ids()
            places = order[bisect_left(lsns, cold.first_id) : bisect_right(lsns, cold.last_id)]
            if len(places) > len(ids):  # messages of other levels lie between them
                own = frozenset(ids)
                places = [place for place in places if records.lsns[place] in own]
            if [records.lsns[place] for place in places] == ids:
                moved = cold.moved(source, [records.offsets[place] for place in places])
                if messages.cold.replace(cold, moved):
                    tally.moved += cold.body_bytes
            yield

    def _move(
        self, queue: Queue, entries: Sequence[Entry], source: BodySource, records: PlacedRecords,
        places: Mapping[int, int], outdated: Container[str], tally: Tally,
    ) -> None:  # fmt: skip
        for entry in entries:
            body = entry.body
            if type(body) is BodyRef and body.source.name in outdated:
                moved = BodyRef(entry.id, source, records.offsets[places[entry.id]], body.size)
                self._catalog.replace_body(queue, entry, moved)
                tally.moved += moved.size

    def _let_go(
        self, queue: Queue, entries: Sequence[Entry], source: BodySource, records: PlacedRecords,
        places: Mapping[int, int], kept: Container[int], tally: Tally,
    ) -> None:  # fmt: skip
        replace = self._catalog.replace_body
        for entry in entries:
            body = entry.body
            if body is None or type(body) is BodyRef:
                continue
            size = len(body)
            if not entry.is_free or entry.id in kept:
                tally.left += size
                continue
            at = places[entry.id]
            if _seal(queue, entry, body, records.seals[at]) != records.seals[at]:
                continue  # the record was taken back, and its LSN is another one's now
            replace(queue, entry, BodyRef(entry.id, source, records.offsets[at], size))
            tally.freed += size

    def _kept(self, queue: Queue) -> set[int]:
        """What the consumers of `queue` take next, in a memory that all queues share."""
        bound = lead_bytes(self.memory_bytes, len(self._catalog.queues_by_id))
        kept: set[int] = set()
        for position in queue.dispatcher.positions()[:POSITIONS_KEPT]:
            kept.update(entry.id for entry in _lead(position, bound, AHEAD_MESSAGES))
        return kept


def _seal(queue: Queue, entry: Entry, body: bytes, placed: int) -> int:
    """What `PlacedRecords` has for this message, if the record there, whose seal is `placed`, is its own."""
    part, shared = bool(placed & PART_SEAL), bool(placed & SHARED_SEAL)
    lsn, (_, durable, priority, expires_at_ms, key, due_at_ms) = entry.id, entry.header
    if not shared and not key and not due_at_ms:
        head = PLAIN_HEAD.pack(
            lsn, RecordKind.ENQUEUED, PART if part else 0, VERSION, durable, priority, expires_at_ms, 1, 0, queue.id
        )
        seal = crc32(body, crc32(head))
    else:
        event = entry.enqueued(body)._replace(queues=() if shared else (queue.id,))
        seal = SEAL.unpack_from(encode(lsn, event, part))[1]
    return seal | placed & (PART_SEAL | SHARED_SEAL)


def lead_bytes(memory_bytes: int, queues: int) -> int:
    """What each of so many queues keeps in memory for its consumers: a quarter of it together."""
    return min(memory_bytes // (4 * max(queues, 1)), AHEAD_BYTES)


def _lead(position: OrderCursor, bytes_max: int, messages_max: int) -> list[Entry]:
    """What is ahead of `position`, up to so much."""
    entries: list[Entry] = []
    size = 0
    for entry in position.ahead():
        entries.append(entry)
        size += entry.size
        if size >= bytes_max or len(entries) >= messages_max:
            break
    return entries


class _ReadAhead:
    """Who takes from a queue, and how far ahead of each one looked: up to the mark nobody need look again."""

    __slots__ = ("_marks", "_queue")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._marks: dict[OrderCursor, Entry] = {}

    def due(self, is_known: Callable[[Entry], bool]) -> list[tuple[Entry, BodyRef]]:
        """What is paged out of the messages ahead of those who have passed half of what they had ahead of them."""
        to_read: list[tuple[Entry, BodyRef]] = []
        positions = self._queue.dispatcher.positions()
        if len(self._marks) > len(positions):
            self._marks = {position: mark for position, mark in self._marks.items() if position in positions}
        bound = max(AHEAD_BYTES_MIN, AHEAD_BYTES // max(1, len(positions) // 4))
        for position in positions:
            mark = self._marks.get(position)
            if mark is not None and not position.has_passed(mark):
                entry = position.peek()
                if entry is None or type(entry.body) is not BodyRef or is_known(entry):
                    continue
            entries = _lead(position, bound, AHEAD_MESSAGES)
            if entries:
                self._marks[position] = _middle(entries, bound)
                to_read += [(entry, entry.body) for entry in entries if type(entry.body) is BodyRef]
        return to_read


def _middle(entries: Sequence[Entry], bytes_max: int) -> Entry:
    size = 0
    for at, entry in enumerate(entries):
        size += entry.size
        if 2 * size >= bytes_max or 2 * at >= AHEAD_MESSAGES:
            return entry
    return entries[-1]


def share_of(memory_bytes: int, own_bytes: int, all_bytes: int) -> int:
    """What one of several sets may have in memory so that all together stay below `memory_bytes`: as much as there is
    room for while there is some, and as soon as there is not, less than it has, of each set the same part.

    `own_bytes`: what it has; `all_bytes`: what all of them have.
    """
    if all_bytes <= memory_bytes:
        return memory_bytes - all_bytes + own_bytes
    return own_bytes * memory_bytes // all_bytes
