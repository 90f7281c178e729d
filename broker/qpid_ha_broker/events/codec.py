"""Events to bytes and back: the one form in which they are journalled, replicated and analysed.

A record begins with its size and the checksum of what follows; then its LSN and kind, and a body by the table of
`events.bodies`. Of records that are cut off anywhere it can be told how many are whole, and of the first that is not,
why.

`decode` is total: any bytes give records, and at most one named problem with the offset of the record that has it.
Both directions are exact: decode(encode(x)) is x, and whatever decodes encodes to the same bytes.
The layout, with an annotated example, is in docs/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple
from zlib import crc32

from .bodies import FORMS, READERS, WRITERS
from .fields import REFUSALS, U64, UNREADABLE
from .layout import HEAD, HEADER, HEADER_BYTES, PART, PLAIN, PLAIN_HEAD, SEAL, VERSION, RecordKind
from .types import Enqueued, Event

MAX_RECORD_BYTES: Final = 128 * 1024 * 1024
"""No record is larger: what claims to be is damaged, and nobody need wait for the rest of it."""

_PLAIN_BYTES: Final = PLAIN.size
_SEALED: Final = SEAL.size
_ENQUEUED: Final = int(RecordKind.ENQUEUED)


class LogRecord(NamedTuple):
    """An event in its place in the log. `part`: it belongs to a transaction."""

    lsn: int
    event: Event
    part: bool


class Fault(StrEnum):
    """Why bytes are not a record, in the order in which it is asked."""

    SIZE = "size"
    """No record has that size: not our data, zeros, or damage to the first four bytes."""
    TRUNCATED = "truncated"
    """The bytes end before the record does: more may come, or a write was torn."""
    CHECKSUM = "checksum"
    """The record was changed after it was written."""
    VERSION = "version"
    """Whole, but in a form that another release writes."""
    KIND = "kind"
    """Whole, but of a kind that this release does not know."""
    FLAGS = "flags"
    BODY = "body"
    """Whole, but its body does not say what its kind should: its writer had a bug."""


class Problem(NamedTuple):
    """What is wrong with the record that begins at `offset` of the buffer; `text`: expected and found."""

    fault: Fault
    offset: int
    text: str


class Decoded(NamedTuple):
    """The records up to the first problem; the buffer was understood up to `consumed`, where the next call goes on."""

    records: list[LogRecord]
    consumed: int
    problem: Problem | None


def encode(lsn: int, event: Event, part: bool = False) -> bytes:
    """One record. Raises ValueError with the field's name for a value that no record can hold."""
    try:
        kind, write = WRITERS[type(event)]
        if kind == _ENQUEUED and event.due_at_ms:  # type: ignore[union-attr]
            kind = RecordKind.SCHEDULED
    except KeyError:
        raise ValueError(f"{type(event).__name__} is not an event type") from None
    try:
        body, payload = write(event)
        head = HEAD.pack(lsn, kind, PART if part else 0, VERSION)
        checksum = crc32(payload, crc32(body, crc32(head)))
    except REFUSALS as error:
        raise ValueError(f"{type(event).__name__}.{_refusal(lsn, event)}") from error
    size = HEADER_BYTES + len(body) + len(payload)
    if size > MAX_RECORD_BYTES:
        raise ValueError(f"{type(event).__name__}: expected at most {MAX_RECORD_BYTES} bytes of record, found {size}")
    if part and kind == RecordKind.TRANSACTION_COMMITTED:
        raise ValueError("part: what closes a transaction is not a part of it")
    return b"".join((SEAL.pack(size, checksum), head, body, payload))


def _refusal(lsn: int, event: Event) -> str:
    try:
        U64.write(lsn)
    except REFUSALS as error:
        return f"lsn: {error}"
    return FORMS[type(event)].refusal(event)


def encode_all(records: Iterable[LogRecord]) -> bytes:
    """Many records, one after the other: what `encode` makes of each. Raises as `encode` does."""
    return encode_counting(records)[0]


def encode_counting(records: Iterable[LogRecord]) -> tuple[bytes, int]:
    """`encode_all`, and how many copies of messages are in it that no journal keeps: not durable, no part of a unit.

    A message for two queues makes two. Counted here because every record passes here once.
    """
    pieces: list[bytes] = []
    transient = 0
    pack_head, pack_seal = PLAIN_HEAD.pack, SEAL.pack
    for lsn, event, part in records:
        if type(event) is Enqueued:
            queues, payload, durable, priority, expires_at_ms, key, due_at_ms = event
            size = _PLAIN_BYTES + len(payload)
            if len(queues) == 1 and not key and not due_at_ms and size <= MAX_RECORD_BYTES and type(payload) is bytes:
                try:
                    flags, is_durable = (PART if part else 0), (1 if durable else 0)
                    head = pack_head(
                        lsn, _ENQUEUED, flags, VERSION, is_durable, priority, expires_at_ms, 1, 0, queues[0]
                    )
                    if not durable and not part:
                        transient += 1
                except struct.error:
                    pass  # `encode` says which field it is
                else:
                    pieces += (pack_seal(size, crc32(payload, crc32(head))), head, payload)
                    continue
            if not durable and not part:
                transient += len(queues)
        pieces.append(encode(lsn, event, part))
    return b"".join(pieces), transient


def decode(
    data: bytes | bytearray | memoryview,
    offset: int = 0,
    *,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_records: int | None = None,
) -> Decoded:
    """Read records from `offset` until the bytes end, one has a problem, or there are `max_records`.

    Never raises for what the bytes are; ValueError only for an offset outside of them. A record that is cut short at
    the end is the problem TRUNCATED: with `consumed` at its start, a reader of a stream waits for more and asks again.
    """
    view = memoryview(data).cast("B")
    end = len(view)
    if not 0 <= offset <= end:
        raise ValueError(f"offset {offset} is outside of the {end} bytes given")
    largest = min(max_record_bytes, MAX_RECORD_BYTES)
    records: list[LogRecord] = []
    while offset < end and (max_records is None or len(records) < max_records):
        if type(data) is bytes:
            offset = _read_plain(data, view, offset, largest, records, max_records)
            if offset == end or len(records) == max_records:
                break
        header = _open(view, offset, end, largest)
        if isinstance(header, Problem):
            return Decoded(records, offset, header)
        stop, lsn, kind, flags = header
        try:
            event = READERS[kind](view[offset + HEADER_BYTES : stop])
        except UNREADABLE as error:
            return Decoded(records, offset, Problem(Fault.BODY, offset, f"{RecordKind(kind).name}: {error}"))
        records.append(LogRecord(lsn, event, flags == PART))
        offset = stop
    return Decoded(records, offset, None)


def _read_plain(
    data: bytes, view: memoryview, offset: int, largest: int, records: list[LogRecord], max_records: int | None
) -> int:
    """Read plain records as long as there are some; returns where the first other one begins, or one with a problem."""
    unpack, new, append = PLAIN.unpack_from, tuple.__new__, records.append
    last = len(data) - _PLAIN_BYTES
    while offset <= last and len(records) != max_records:
        size, checksum, lsn, kind, flags, version, durable, priority, expires, count, key, queue = unpack(data, offset)
        stop = offset + size
        if (
            kind != _ENQUEUED or flags or version != VERSION or count != 1 or key or durable > 1
            or not _PLAIN_BYTES <= size <= largest or stop > len(data)
            or crc32(view[offset + _SEALED : stop]) != checksum
        ):  # fmt: skip
            break
        payload = data[offset + _PLAIN_BYTES : stop]
        append(new(LogRecord, (lsn, new(Enqueued, ((queue,), payload, durable == 1, priority, expires, "", 0)), False)))
        offset = stop
    return offset


def _open(view: memoryview, offset: int, end: int, largest: int) -> tuple[int, int, int, int] | Problem:
    """Where the record ends, LSN, kind and flags, once all is checked that is the same for every kind.

    The checksum comes before anything that it covers is believed.
    """
    left = end - offset
    if left < HEADER_BYTES:
        return _short(view, offset, end, largest)
    size, checksum, lsn, kind, flags, version = HEADER.unpack_from(view, offset)
    if not HEADER_BYTES <= size <= largest:
        return _bad_size(offset, size, largest)
    if size > left:
        return Problem(Fault.TRUNCATED, offset, f"expected a record of {size} bytes, found {left}")
    stop = offset + size
    computed = crc32(view[offset + _SEALED : stop])
    if computed != checksum:
        return Problem(Fault.CHECKSUM, offset, f"expected CRC-32 {checksum:#010x}, found {computed:#010x}")
    if version != VERSION:
        return Problem(Fault.VERSION, offset, f"expected format version {VERSION}, found {version}")
    if kind not in READERS:
        return Problem(Fault.KIND, offset, f"expected a kind that this release knows, found {kind:#04x}")
    if flags and (flags != PART or kind == RecordKind.TRANSACTION_COMMITTED):
        return Problem(Fault.FLAGS, offset, f"expected flags that {RecordKind(kind).name} may have, found {flags:#04x}")
    return stop, lsn, kind, flags


def _short(view: memoryview, offset: int, end: int, largest: int) -> Problem:
    """Not even a header is here. What there is of it may already say that waiting for the rest is in vain."""
    if end - offset >= 4:
        size = int.from_bytes(view[offset : offset + 4], "little")
        if not HEADER_BYTES <= size <= largest:
            return _bad_size(offset, size, largest)
    return Problem(Fault.TRUNCATED, offset, f"expected a header of {HEADER_BYTES} bytes, found {end - offset}")


def _bad_size(offset: int, size: int, largest: int) -> Problem:
    return Problem(Fault.SIZE, offset, f"expected a record of {HEADER_BYTES} to {largest} bytes, found {size}")
