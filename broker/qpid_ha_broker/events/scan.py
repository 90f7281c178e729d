"""Going through whole records by their headers, without making events of them.

Only for records that are known to be as they were written, because they were encoded here or the checksum of their
block was right: `decode` is for all others. The functions beside `scan` do what a loop over it would, only faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

from .fields import read_ids
from .layout import ENQUEUED, ENQUEUED_KINDS, HEADER, HEADER_BYTES, HEADER_WORDS, ID, LENGTHS, PLAIN, SEAL, WORDS

_ENQUEUED_KINDS: Final = frozenset(map(int, ENQUEUED_KINDS))
_MESSAGE: Final = PLAIN.between("size", "queues")


class RecordError(Exception):
    """At `offset` of the data there is no record that can be what was written."""

    def __init__(self, offset: int, text: str) -> None:
        super().__init__(text)
        self.offset = offset


def scan(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """LSN, kind and flags of each record, and the offsets of its body and of its end.

    Raises RecordError for a size that cannot be.
    """
    unpack, at, end = HEADER.unpack_from, 0, len(data)
    while at < end:
        if end - at < HEADER_BYTES:
            raise RecordError(at, f"expected a record, found {end - at} bytes")
        size, _, lsn, kind, flags, _ = unpack(data, at)
        if not HEADER_BYTES <= size <= end - at:
            raise RecordError(at, f"expected a record of {HEADER_BYTES} to {end - at} bytes, found {size}")
        body_at = at + HEADER_BYTES
        at += size
        yield lsn, kind, flags, body_at, at


def scan_plain(data: bytes) -> Iterator[tuple[int, ...]]:
    """The fields of `WORDS` of each record, which its first one, the size, leads to the next.

    Those behind `word` mean something where that is an Enqueued's, and are 0 where the data end before them.
    """
    unpack, at, end = WORDS.unpack_from, 0, len(data)
    last = end - WORDS.size
    while at <= last:
        fields = unpack(data, at)
        yield fields
        at += fields[0]
    while at < end:
        header = HEADER_WORDS.unpack_from(data, at)
        yield (*header, 0, 0, 0, 0, 0)
        at += header[0]


def queues_at(data: bytes, at: int) -> tuple[int, ...]:
    """The queues of the Enqueued that begins there."""
    *_, queues, _ = ENQUEUED.unpack_from(data, at + ENQUEUED.start)
    return read_ids(data, at + ENQUEUED.end, queues)


def unshared_checksum(data: bytes, at: int) -> int | None:
    """What the checksum of the Enqueued that begins there would be if it were of no queue; None: its own is wrong."""
    size, checksum = SEAL.unpack_from(data, at)
    record = memoryview(data)[at : at + size]
    if crc32(record[SEAL.end :]) != checksum:
        return None
    queues, key_bytes = LENGTHS.unpack_from(data, at + LENGTHS.start)
    head = crc32(LENGTHS.pack(0, key_bytes), crc32(record[SEAL.end : LENGTHS.start]))
    return crc32(record[ENQUEUED.end + ID.size * queues :], head)


def offset_after(data: bytes, lsn: int) -> int:
    """Where in records that are in the order of their LSNs the first one after `lsn` begins."""
    return next((body_at - HEADER_BYTES for record_lsn, _, _, body_at, _ in scan(data) if record_lsn > lsn), len(data))


def durable_only(data: bytes) -> tuple[bytes, int]:
    """`data` without the messages that are neither durable nor part of a unit, and how many copies of them queues have.

    What is kept is the bytes that others get, too.
    """
    kept: list[bytes] = []
    unpack, end = _MESSAGE.unpack_from, len(data) - _MESSAGE.size
    offset = start = left_out = 0
    while offset <= end:
        size, _, _, kind, flags, _, durable, _, _, queues = unpack(data, offset)
        if not durable and not flags and kind in _ENQUEUED_KINDS:
            if start < offset:
                kept.append(data[start:offset])
            start = offset + size
            left_out += queues
        offset += size
    if start < len(data):
        kept.append(data[start:] if start else data)
    return b"".join(kept) if len(kept) != 1 else kept[0], left_out
