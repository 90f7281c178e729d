"""Records as columns: where each lies, and its fixed fields, for all records of a piece of journal at once.

Where a record ends is known from its first four bytes only, so their places have to be found one after the other; all
else is vectorised. Each block's checksum was right, so what its records say of themselves is believed as far as it
adds up; where it does not, `events.codec` is asked what is wrong. docs/protocol.md has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from itertools import repeat
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.layout import (
    ENQUEUED,
    ENQUEUED_KINDS,
    HEADER,
    HEADER_BYTES,
    IDS,
    LENGTHS,
    LOCAL_BASE,
    PART,
    PLAIN,
    SEAL,
    TYPE,
    VERSION,
    WORDS,
    RecordKind,
)
from qpid_ha_broker.events.payloads import FORMAT_LENGTHS
from qpid_ha_broker.events.scan import RecordError

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

_PLAIN: Final = np.dtype(PLAIN.dtype())
_WORDS: Final = np.dtype(WORDS.dtype())
_TYPE: Final = np.dtype(TYPE.dtype())
_LENGTHS: Final = np.dtype(LENGTHS.dtype())
_IDS: Final = np.dtype((HEADER + IDS).dtype())
_ID: Final = np.dtype("<i8")
"""Of a queue or a message."""
_SIZE: Final = HEADER.between("size", "size")

_SCHEDULED: Final = int(RecordKind.SCHEDULED)
IS_MESSAGE: Final = np.zeros(256, np.bool_)
"""By kind: the record brings a message."""
IS_MESSAGE[list(ENQUEUED_KINDS)] = True
_DUE: Final = np.dtype("<i8")
"""When a message is due, between its key and its payload."""
_WITH_IDS: Final = np.zeros(256, np.bool_)
_WITH_IDS[[RecordKind.DEQUEUED, RecordKind.ACQUIRED, RecordKind.RELEASED]] = True
_KNOWN: Final = np.zeros(256, np.bool_)
_KNOWN[[int(kind) for kind in RecordKind]] = True


def event_name(kind: RecordKind) -> str:
    """What it is called in the column `event`. A message that is due later is one like others."""
    return (RecordKind.ENQUEUED if kind in ENQUEUED_KINDS else kind).name.lower()


_RUN: Final = 32
"""Records of one size in a row from which on it pays to look for more of them at once."""
_STRIDE: Final = 256
"""Records between two looks for such a run."""


_WORD: Final = 1 << 64
_ABREAST: Final = 64
"""Pieces from which on it pays to go through them side by side."""


def signed(number: int) -> int:
    """An LSN or an id as Spark has it: negative in the log that a broker keeps for itself."""
    return number - _WORD if number >= LOCAL_BASE else number


def unsigned(number: int) -> int:
    """The inverse."""
    return number + _WORD if number < 0 else number


def find_records(data: bytes, begin: int = 0, end: int | None = None) -> Ints:
    """Where each record between two places begins. Raises RecordError for a size that cannot be."""
    pieces: list[Ints] = []
    at, end = begin, len(data) if end is None else end
    while at < end:
        count = _run_length(data, at, end)
        if count >= _RUN:
            size = _SIZE.unpack_from(data, at)[0]
            pieces.append(at + size * np.arange(count, dtype=np.int64))
            at += size * count
            continue
        walked, at = _walk(data, at, end)
        pieces.append(np.array(walked, np.int64))
        if len(walked) < _STRIDE or at - walked[0] < HEADER_BYTES * len(walked):  # it may not get on at all
            break
    offsets = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    bad = np.flatnonzero(np.diff(offsets, append=at) < HEADER_BYTES)
    if len(bad) or at != end:
        wrong = int(offsets[bad[0]]) if len(bad) else int(offsets[-1])
        raise RecordError(wrong, f"expected records that fill {end - begin} bytes, found one that does not end there")
    return offsets


def find_in_blocks(data: bytes, begins: Ints, ends: Ints) -> Ints:
    """`find_records` for many pieces, which ascend: one step in each of them at a time, as long as there are enough.

    Within a piece each record says only where the next one is, but pieces do not wait for each other. What does not add
    up is left to who goes through a piece alone, and says where it is.
    """
    pieces, at, end = list[Ints](), begins, ends
    room = max(0, len(data) - _SIZE.size + 1)
    view = np.ndarray((room,), _PLAIN["size"], data if room else bytes(_SIZE.size), 0, (1,))
    while len(at) >= _ABREAST and (at + HEADER_BYTES <= end).all():
        sizes = view[at]
        following = at + sizes
        is_over = following >= end
        if int(sizes.min()) < HEADER_BYTES or (following > end).any():
            break
        pieces.append(at)
        at, end = (following[~is_over], end[~is_over]) if is_over.any() else (following, end)
    pieces += [find_records(data, *piece) for piece in zip(at.tolist(), end.tolist(), strict=True)]
    offsets = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    offsets.sort()
    return offsets


def find_whole_records(data: bytes) -> tuple[Ints, list[tuple[int, str]]]:
    """Where in a damaged block records begin whose checksums are right, and where bytes are that belong to none."""
    offsets, bad, at = list[int](), list[tuple[int, str]](), 0
    while at < len(data):
        begin = at
        while at < len(data) and not (size := _whole_size(data, at)):
            at += 1
        if at > begin:
            bad.append((begin, f"{at - begin} bytes are no record with the checksum that it bears"))
        if at < len(data):
            offsets.append(at)
            at += size
    return np.array(offsets, np.int64), bad


def _whole_size(data: bytes, at: int) -> int:
    """Of the record that begins there; 0: none does. What cannot be one is told apart before a checksum is made."""
    if len(data) - at < HEADER_BYTES:
        return 0
    size, checksum, _, kind, flags, version = HEADER.unpack_from(data, at)
    if not HEADER_BYTES <= size <= len(data) - at or not _KNOWN[kind] or flags > PART or version != VERSION:
        return 0
    return size if crc32(memoryview(data)[at + SEAL.end : at + size]) == checksum else 0


def _walk(data: bytes, at: int, end: int) -> tuple[list[int], int]:
    """Record after record, as many as are looked at in one go; and where the next one begins."""
    size_at, offsets = _SIZE.unpack_from, list[int]()
    append = offsets.append
    with suppress(struct.error):
        for _ in repeat(None, _STRIDE):
            if at >= end:
                break
            append(at)
            at += size_at(data, at)[0]
    return offsets, at


def _run_length(data: bytes, at: int, end: int) -> int:
    """How many records of one size follow each other at `at`; fewer than it pays to count are 0."""
    room = end - at
    if room < HEADER_BYTES:
        return 0
    size = _SIZE.unpack_from(data, at)[0]
    count = room // size if size >= HEADER_BYTES else 0
    if count < _RUN or _SIZE.unpack_from(data, at + size * (_RUN - 1))[0] != size:
        return 0
    total, step = 0, 256
    while total < count:
        step = min(step, count - total)
        sizes = np.ndarray((step,), _PLAIN["size"], data, at + total * size, (size,))
        other = np.flatnonzero(sizes != size)
        if len(other):
            return total + int(other[0])
        total += step
        step *= 4
    return total


def _places(record: np.dtype[Any]) -> Mapping[str, tuple[np.dtype[Any], int]]:
    """The type of each field, and where in a record it is."""
    return record.fields or {}  # type: ignore[return-value]  # numpy's own has three values where a field has a title


class Columns(NamedTuple):
    """What whoever found records has read of each on its way. `lsns`: as `Records.lsns`; `kinds` are checked."""

    offsets: Ints
    lsns: Ints
    sizes: Ints
    kinds: Bytes


class Records:
    """Records that lie at `offsets` of `data`, ascending. Arrays have one value per record."""

    def __init__(self, data: bytes, offsets: Ints) -> None:
        self.data = data
        self.offsets = offsets

    @classmethod
    def of_columns(cls, data: bytes, columns: Columns) -> Records:
        """Of which these columns need not be read again."""
        records = cls(data, columns.offsets)
        records.lsns, records.sizes, records.kinds = columns[1:]
        return records

    def __len__(self) -> int:
        return len(self.offsets)

    def field(self, record: np.dtype[Any], name: str, chosen: Ints | None = None) -> NDArray[Any]:
        """A field of each record; zero for one at the very end that is too short."""
        kind, at = _places(record)[name]
        offsets = self.offsets if chosen is None else self.offsets[chosen]
        room = len(self.data) - at - kind.itemsize
        if room < 0:
            return np.zeros(len(offsets), kind)
        view = np.ndarray((room + 1,), kind, self.data, at, (1,))
        if len(offsets) and offsets[-1] > room:
            inside = offsets <= room
            values = np.zeros(len(offsets), kind)
            values[inside] = view[offsets[inside]]
            return values
        return view[offsets]

    @cached_property
    def kinds(self) -> Bytes:
        """The kind of each; checks that all are of a kind and a version that this release knows."""
        types = self.field(_WORDS, "word").view(_TYPE)
        kinds: Bytes = types["kind"].copy()
        good = _KNOWN[kinds] & (types["version"] == VERSION) & (types["flags"] <= PART)
        if not good.all():
            self.fail(int(np.flatnonzero(~good)[0]))
        return kinds

    @cached_property
    def lsns(self) -> Ints:
        """Those of the broker's own log are negative."""
        return self.field(_PLAIN, "lsn").view(np.int64)

    @cached_property
    def sizes(self) -> Ints:
        """In bytes."""
        return self.field(_PLAIN, "size").astype(np.int64)

    def lengths(self, chosen: Ints) -> tuple[Ints, NDArray[np.uint16]]:
        """Of these records, which are Enqueued, the number of queues and the bytes of the key."""
        lengths = self.field(_WORDS, "lengths", chosen).view(_LENGTHS)
        return lengths["queues"].astype(np.int64), lengths["key_bytes"]

    def parts(self, chosen: Ints) -> Mask:
        """Whether they belong to a transaction."""
        flags: Mask = self.field(_PLAIN, "flags", chosen) != 0
        return flags

    def event(self, index: int) -> LogRecord:
        """One of them, as the codec reads it. Raises RecordError."""
        offset = int(self.offsets[index])
        decoded = decode(self.data, offset, max_records=1)
        if decoded.problem is not None:
            raise RecordError(offset, decoded.problem.text)
        return decoded.records[0]

    def format_bytes(self, starts: Ints, ends: Ints) -> Ints:
        """How many bytes of a format are in front of each message whose payload is between `starts` and `ends`."""
        lengths = np.zeros(len(starts), np.int64)
        if len(self.data):
            firsts = np.frombuffer(self.data, np.uint8)[np.minimum(starts, len(self.data) - 1)]
            for first, length in FORMAT_LENGTHS.items():
                lengths[(firsts == first[0]) & (starts + length <= ends)] = length
        return lengths

    def due_bytes(self, chosen: Ints) -> Ints:
        """What is between key and payload of messages."""
        return np.where(self.kinds[chosen] == _SCHEDULED, _DUE.itemsize, 0)

    def numbers(self, places: Ints) -> Ints:
        """Of 8 bytes each, wherever they lie."""
        if not len(places):
            return places
        view = np.ndarray((len(self.data) - _ID.itemsize + 1,), _ID, self.data, 0, (1,))
        return view[places]

    def fail(self, index: int) -> None:
        """Something about this record does not add up: say what. Raises RecordError."""
        self.event(index)
        raise RecordError(int(self.offsets[index]), "expected a record that adds up")


class Rows:
    """Records spread out to one row for each message and queue that they are about; all others have one row.

    `record` is the index of each row's record, ascending; `queue_ids` and `message_ids` are -1 ... where there is none:
    no log begins with that number.
    """

    def __init__(self, records: Records, chosen: Ints | None = None) -> None:
        """`chosen`: only these records, ascending."""
        self.records = records
        chosen = np.arange(len(records), dtype=np.int64) if chosen is None else chosen
        kinds = records.kinds[chosen]
        is_enqueued, has_ids = IS_MESSAGE[kinds], _WITH_IDS[kinds]
        counts = np.ones(len(chosen), np.int64)
        self._check_enqueued(chosen[is_enqueued], counts, is_enqueued)
        self._check_ids(chosen[has_ids], counts, has_ids)
        if is_enqueued.all() and (counts == 1).all():
            self.record = chosen
            self.queue_ids = records.field(_PLAIN, "queue", chosen).view(np.int64)
            self.message_ids = records.lsns[chosen] if len(chosen) != len(records) else records.lsns
            self.kinds = kinds
            return
        spread = np.repeat(np.arange(len(chosen)), counts)
        place = np.arange(len(spread)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.record, self.kinds = chosen[spread], kinds[spread]
        self.queue_ids = np.full(len(spread), NONE, np.int64)
        self.message_ids = np.full(len(spread), NONE, np.int64)
        self._spread_enqueued(np.flatnonzero(is_enqueued[spread]), place)
        self._spread_ids(np.flatnonzero(has_ids[spread]), place)

    def __len__(self) -> int:
        return len(self.record)

    def keep(self, passing: Mask | None) -> None:
        """Only these rows; None: all of them."""
        if passing is None or passing.all():
            return
        self.record, self.kinds = self.record[passing], self.kinds[passing]
        self.queue_ids, self.message_ids = self.queue_ids[passing], self.message_ids[passing]

    def _check_enqueued(self, chosen: Ints, counts: Ints, where: Mask) -> None:
        records = self.records
        queues, key_bytes = records.lengths(chosen)
        fixed = ENQUEUED.end + records.due_bytes(chosen)
        bad = np.flatnonzero(fixed + _ID.itemsize * queues + key_bytes > records.sizes[chosen])
        if len(bad):
            records.fail(int(chosen[bad[0]]))
        counts[where] = queues

    def _check_ids(self, chosen: Ints, counts: Ints, where: Mask) -> None:
        if not len(chosen):
            return
        id_counts = self.records.field(_IDS, "ids", chosen).astype(np.int64)
        bad = np.flatnonzero(IDS.end + _ID.itemsize * id_counts != self.records.sizes[chosen])
        if len(bad):
            self.records.fail(int(chosen[bad[0]]))
        counts[where] = id_counts

    def _spread_enqueued(self, rows: Ints, place: Ints) -> None:
        owners = self.record[rows]
        self.queue_ids[rows] = self.records.numbers(
            self.records.offsets[owners] + ENQUEUED.end + _ID.itemsize * place[rows]
        )
        self.message_ids[rows] = self.records.lsns[owners]

    def _spread_ids(self, rows: Ints, place: Ints) -> None:
        owners = self.record[rows]
        self.queue_ids[rows] = self.records.field(_IDS, "queue", owners).view(np.int64)
        self.message_ids[rows] = self.records.numbers(
            self.records.offsets[owners] + IDS.end + _ID.itemsize * place[rows]
        )


NONE: Final = -1
"""No queue, or no message. (As a number of the broker's own log it would be its last one.)"""


class Enqueueds:
    """The fixed fields of records that are Enqueued."""

    def __init__(self, records: Records, chosen: Ints) -> None:
        self._records = records
        self._chosen = chosen
        queues, key_bytes = records.lengths(chosen)
        self.key_starts = records.offsets[chosen] + ENQUEUED.end + _ID.itemsize * queues
        self.ends = records.offsets[chosen] + records.sizes[chosen]
        """Where the payload ends."""
        self.key_ends = self.key_starts + key_bytes
        payloads = self.key_ends + records.due_bytes(chosen)
        self.starts = payloads + records.format_bytes(payloads, self.ends)
        """Where the message begins, behind the format that may be in front of it."""

    @property
    def due_ms(self) -> Ints:
        """0: at once."""
        due = np.zeros(len(self._chosen), np.int64)
        scheduled = np.flatnonzero(self._records.due_bytes(self._chosen))
        due[scheduled] = self._records.numbers(self.key_ends[scheduled])
        return due

    @property
    def durable(self) -> Mask:
        durable: Mask = self._records.field(_PLAIN, "durable", self._chosen) != 0
        return durable

    @property
    def priority(self) -> NDArray[np.int32]:
        return self._records.field(_PLAIN, "priority", self._chosen).astype(np.int32)

    @property
    def expires_ms(self) -> Ints:
        """0: never."""
        return self._records.field(_PLAIN, "expires_at_ms", self._chosen).view(np.int64)


def details(records: Records, chosen: Ints) -> Bytes:
    """The byte that says more of a Dequeued (its reason) or a Released (whether the delivery failed)."""
    return records.field(_IDS, "detail", chosen)
