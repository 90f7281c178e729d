"""The index of a snapshot: which messages a broker need not read when it starts, and what it has to know of them.

The promise: each byte of the snapshot's records is either told of by a stretch, or is among the rest, and is read. An
index that is missing, damaged, or of another snapshot costs time and nothing else: all of the snapshot is read then.

A stretch is up to 512 messages of one queue in one block, by ascending id: durable, for that queue alone, without a
last-value key, all of one priority, that never expire, and no part of a unit. What else there is, is rest: all that
configures, failed deliveries, messages that expire or are in several queues, and what there is too little of. Of a
block that has little of it, the index has the rest, too, so that a start need not read the block.

The index lies beside its snapshot and has its number. It is written first, so a snapshot without one was made by an
older release; and an older release, which knows of no index, reads the snapshot.

The layout, byte for byte, is in docs/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from itertools import accumulate
from typing import Final, NamedTuple
from zlib import crc32

from qpid_ha_broker.events.layout import ONE_QUEUE, PLAIN, Layout, RecordKind, word_of
from qpid_ha_broker.events.scan import scan_plain
from qpid_ha_broker.model.queues.cold import ColdMessages, packed
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import BodySource

from .blocks import BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, Block, BlockKind, FileHeader, encode_header, read_block
from .errors import BlockError
from .files import Disk, File
from .layout import snapshot_index_path, snapshot_path

INDEX_VERSION: Final = 1
STRETCH_LENGTH: Final = 512
"""Messages in a stretch at most: what somebody who wants one of them has to unpack."""
MIN_MESSAGES: Final = 16
MIN_BYTES: Final = 64 * 1024
"""Fewer messages than that, with fewer bytes of records than that, are no stretch."""

COPIED_BYTES: Final = 64 * 1024
"""Up to so much of the rest of a block is copied into the index."""

_MAGIC: Final = b"QhIx"
_SEAL: Final = Layout({"magic": "4s", "checksum": "I"})
"""`checksum`: of all that follows in the file."""
_HEAD: Final = Layout(
    {
        "version": "I", "blocks": "I", "number": "Q", "end_at": "Q", "header_checksum": "I", "end_checksum": "I",
    },
    _SEAL.end,
)  # fmt: skip
"""`end_at`: where in the snapshot its END begins; the checksums: of its header, and of END with its data."""
_BLOCK: Final = Layout({"offset": "Q", "length": "I", "rests": "I", "stretches": "I", "copied_bytes": "I"})
"""`copied_bytes`: of all its rests, which follow their places; 0: they have to be read, or there are none."""
_REST: Final = Layout({"start": "I", "length": "I"})
"""In the data of the block."""
_STRETCH: Final = Layout(
    {
        "queue": "Q", "first_id": "Q", "last_id": "Q", "body_bytes": "Q", "priority": "B", "unused": "x", "count": "H",
        "columns_bytes": "I",
    }
)  # fmt: skip
"""The columns of `model.queues.cold` follow: ids, offsets in the snapshot, sums of the sizes of the bodies."""

_ENQUEUED: Final = word_of(RecordKind.ENQUEUED)
_Gathered = list[tuple[int, int, int]]
"""Of messages of one queue: id, place of the record in the data of its block, and size of the record."""


class ColdStretch(NamedTuple):
    """Messages of one queue."""

    queue: int
    messages: ColdMessages


class IndexedBlock(NamedTuple):
    """What a block of the snapshot has: `rests` are places and lengths in its data; `copied`: all of them, or empty."""

    offset: int
    length: int
    rests: tuple[tuple[int, int], ...]
    copied: bytes
    stretches: tuple[ColdStretch, ...]


class SnapshotIndex(NamedTuple):
    """`end`: the last block of the snapshot, which was read."""

    path: str
    header: FileHeader
    blocks: tuple[IndexedBlock, ...]
    end: Block


class IndexWriter:
    """Goes through what is written to a snapshot. Pure: `encoded` is the index."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._blocks = 0

    def add(self, data: bytes, offset: int, data_at: int) -> None:
        """The records of a block at `offset`, which begin at `data_at` of the file, and are as they were encoded."""
        rests, stretches = _sorted_out(data)
        self._blocks += 1
        copied = b"".join([data[start : start + length] for start, length in rests])
        if len(copied) > COPIED_BYTES:
            copied = b""
        self._pieces.append(_BLOCK.pack(offset, len(data), len(rests), len(stretches), len(copied)))
        self._pieces += [_REST.pack(start, length) for start, length in rests]
        self._pieces.append(copied)
        for (queue, priority), gathered in stretches:
            self._pieces.append(_encoded_stretch(queue, priority, gathered, data_at))

    def encoded(self, header: FileHeader, end_at: int, end: bytes) -> bytes:
        """The whole index. `end`: the last block of the snapshot, which begins at `end_at`."""
        head = _HEAD.pack(
            INDEX_VERSION, self._blocks, header.number, end_at, crc32(encode_header(header)), crc32(end)
        )  # fmt: skip
        body = b"".join((head, *self._pieces))
        return _SEAL.pack(_MAGIC, crc32(body)) + body


def _sorted_out(data: bytes) -> tuple[list[tuple[int, int]], list[tuple[tuple[int, int], _Gathered]]]:
    """The rest, as places and lengths, and the stretches, by queue and priority."""
    open_stretches: dict[tuple[int, int], _Gathered] = {}
    stretches: list[tuple[tuple[int, int], _Gathered]] = []
    rests: list[tuple[int, int]] = []
    at, current, gathered = 0, (-1, -1), list[tuple[int, int, int]]()
    last_id, count = 0, STRETCH_LENGTH
    for size, _, lsn, word, durable, priority, expires, lengths, queue in scan_plain(data):
        if word == _ENQUEUED and lengths == ONE_QUEUE and durable == 1 and not expires:
            key = queue, priority
            if key != current or lsn <= last_id or count == STRETCH_LENGTH:
                here = open_stretches.get(key)
                if here is None or len(here) >= STRETCH_LENGTH or lsn <= here[-1][0]:
                    here = open_stretches[key] = []
                    stretches.append((key, here))
                current, gathered, count = key, here, len(here)
            gathered.append((lsn, at, size))
            last_id = lsn
            count += 1
        else:
            rests.append((at, size))
        at += size
    enough = [stretch for stretch in stretches if _is_enough(stretch[1])]
    rests += [(start, size) for _, few in stretches if not _is_enough(few) for _, start, size in few]
    return _joined(sorted(rests)), enough


def _is_enough(gathered: _Gathered) -> bool:
    return len(gathered) >= MIN_MESSAGES or sum([size for _, _, size in gathered]) >= MIN_BYTES


def _joined(rests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one."""
    joined: list[tuple[int, int]] = []
    for start, length in rests:
        if joined and sum(joined[-1]) == start:
            joined[-1] = joined[-1][0], joined[-1][1] + length
        else:
            joined.append((start, length))
    return joined


def _encoded_stretch(queue: int, priority: int, gathered: _Gathered, data_at: int) -> bytes:
    ids, places, sizes = zip(*gathered, strict=True)
    sums = list(accumulate([size - PLAIN.size for size in sizes]))
    columns = packed(ids, [data_at + place for place in places], sums)
    return _STRETCH.pack(queue, ids[0], ids[-1], sums[-1], priority, len(ids), len(columns)) + columns


def read_index(disk: Disk, header: FileHeader, source: BodySource) -> SnapshotIndex | None:
    """That of the snapshot with this header, whose file is `source`; None: it has none.

    Raises BlockError for one that is not as it was written, or is not of this snapshot as it lies there; OSError.
    """
    path = snapshot_index_path(header.number)
    if not disk.exists(path):
        return None
    with closing(disk.open(path)) as file:
        data = file.read(0, file.size)
    with closing(disk.open(snapshot_path(header.number))) as file:
        return _decoded(data, header, source, file)


def _decoded(data: bytes, header: FileHeader, source: BodySource, file: File) -> SnapshotIndex:
    if len(data) < _HEAD.end:
        raise BlockError(f"expected an index of {_HEAD.end} bytes or more, found {len(data)}")
    magic, checksum = _SEAL.unpack_from(data)
    computed = crc32(memoryview(data)[_SEAL.end :])
    if magic != _MAGIC or checksum != computed:
        raise BlockError(f"expected {_MAGIC!r} and CRC-32 {checksum:#010x}, found {magic!r} and {computed:#010x}")
    version, blocks, number, end_at, header_checksum, end_checksum = _HEAD.unpack_from(data, _HEAD.start)
    if version != INDEX_VERSION:
        raise BlockError(f"expected an index of version {INDEX_VERSION}, found {version}")
    last = file.read(end_at, max(file.size - end_at, 0))
    if (number, header_checksum, end_checksum) != (
        header.number, crc32(file.read(0, FILE_HEADER_BYTES)), crc32(last)
    ):  # fmt: skip
        raise BlockError("it is the index of another snapshot")
    end = read_block(last, 0, header.number, base=end_at)
    if not isinstance(end, Block) or end.kind is not BlockKind.END or end.end != file.size:
        raise BlockError("it is the index of a snapshot that ends elsewhere")
    try:
        indexed = tuple(_blocks(data, blocks, source))
    except (struct.error, IndexError) as error:
        raise BlockError(f"it ends too early: {error}") from None
    expected = FILE_HEADER_BYTES
    for block in indexed:
        rest = covered = sum([length for _, length in block.rests])
        if block.copied and len(block.copied) != rest:
            raise BlockError(f"expected {rest} bytes that are copied, found {len(block.copied)}")
        covered += sum([count * PLAIN.size + size for count, size in map(_count_and_size, block.stretches)])
        if block.offset != expected or covered != block.length:
            raise BlockError(f"expected a block at offset {expected} of which it tells all, found {covered} bytes")
        expected += BLOCK_HEADER_BYTES + block.length
    if expected != end_at:
        raise BlockError(f"expected blocks up to offset {end_at}, found that they end at {expected}")
    return SnapshotIndex(source.name, header, indexed, end)


def _count_and_size(stretch: ColdStretch) -> tuple[int, int]:
    return stretch.messages.count, stretch.messages.body_bytes


def _blocks(data: bytes, count: int, source: BodySource) -> Iterator[IndexedBlock]:
    at = _HEAD.end
    headers: dict[tuple[int, int], MessageHeader] = {}
    for _ in range(count):
        offset, length, rest_count, stretch_count, copied_bytes = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        rests, stretches = [], []
        for _ in range(rest_count):
            rests.append(_REST.unpack_from(data, at))
            at += _REST.size
        copied = data[at : at + copied_bytes]
        at += copied_bytes
        for _ in range(stretch_count):
            queue, first_id, last_id, body_bytes, priority, messages, columns_bytes = _STRETCH.unpack_from(data, at)
            at += _STRETCH.size
            header = headers.get((queue, priority))
            if header is None:
                header = headers[queue, priority] = MessageHeader((queue,), True, priority, 0, "")
            columns = data[at : at + columns_bytes]
            at += columns_bytes
            stretches.append(
                ColdStretch(
                    queue,
                    ColdMessages(
                        header, source, columns,
                        count=messages, first_id=first_id, last_id=last_id, body_bytes=body_bytes,
                    ),
                )
            )  # fmt: skip
        yield IndexedBlock(offset, length, tuple(rests), copied, tuple(stretches))
    if at != len(data):
        raise IndexError(f"{len(data)} bytes, and {at} are told of")
