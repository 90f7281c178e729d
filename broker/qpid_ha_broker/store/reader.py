"""The journal of a store from its snapshot to its end, block after block, with what of each block counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final, NamedTuple, TypeVar

from qpid_ha_broker.events.codec import LogRecord, decode, encode_all
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.scan import RecordError

from .blocks import BLOCK_HEADER_BYTES, Block, BlockKind, BlockProblem, FileHeader, read_block
from .errors import BlockError, StoreDamaged
from .files import Disk, File
from .layout import snapshot_path
from .reading import open_blocks
from .snapshot import SnapshotEnd, read_end
from .snapshot_index import ColdStretch, IndexedBlock, SnapshotIndex
from .survey import SegmentFound, Survey, limits_of

T = TypeVar("T")
_ALL_LSNS: Final = (1 << 64) - 1
"""The limit of what is in a snapshot."""


class Part(NamedTuple):
    """A block of the file `path`; of its records those count whose LSNs are above `after` and up to `limit`.

    `written_ms`: by when this broker had written them, in milliseconds since the Unix epoch.
    """

    path: str
    block: Block
    after: int
    limit: int
    written_ms: int

    def records(self) -> list[LogRecord]:
        """All of them, whether or not they count. Raises StoreDamaged."""
        records, consumed, problem = decode(self.block.data)
        if problem is not None:
            raise StoreDamaged(self.path, self.block.data_at + consumed, problem.text)
        return records

    def _counting(self) -> bytes:
        """The records that count, without the parts of a unit that is cut in two."""
        block, after, limit = self.block, self.after, self.limit
        if block.first_lsn > after and block.last_lsn <= limit:
            return block.data
        if block.last_lsn <= after or block.first_lsn > limit:
            return b""
        chosen = [record for record in self.records() if after < record.lsn <= limit]
        while chosen and chosen[-1].part:
            chosen.pop()
        return encode_all(chosen)

    def feed(self, read: Callable[[bytes], T]) -> T:
        """What `read` makes of the records that count. Raises StoreDamaged, also where it raises RecordError."""
        try:
            return read(self._counting())
        except RecordError as error:
            raise StoreDamaged(self.path, self.block.data_at + error.offset, str(error)) from error


class JournalReader:
    """The promise: `blocks` gives all blocks with records that a survey has found to count, in order, or raises.

    With the `index` of the snapshot, stretches of messages go to `cold` instead, unread, and a block that has others,
    too, comes in pieces.
    """

    def __init__(
        self, disk: Disk, surveyed: Survey, index: SnapshotIndex | None = None,
        cold: Callable[[ColdStretch], None] = lambda stretch: None,
    ) -> None:  # fmt: skip
        self.base = SnapshotEnd(0, LOCAL_BASE, 0, LOCAL_BASE, 0, 0)
        """What the snapshot ends with, once its END was read."""
        self.bytes_read = 0
        self._disk = disk
        self._survey = surveyed
        self._index = index
        self._cold = cold
        self._limit_of = limits_of(surveyed.taken_back)

    def blocks(self) -> Iterator[Part]:
        """The blocks with records, and the END of the snapshot. Raises StoreDamaged, OSError."""
        if self._index is not None:
            yield from self._indexed(self._index)
        elif self._survey.snapshot is not None:
            yield from self._snapshot(self._survey.snapshot)
        for segment in self._survey.segments:
            yield from self._segment(segment)

    def _snapshot(self, header: FileHeader) -> Iterator[Part]:
        path = snapshot_path(header.number)
        with open_blocks(self._disk, path, header) as reader:
            done = self.bytes_read
            for block in reader:
                self.bytes_read = done + block.end
                if block.kind is BlockKind.END:
                    self.base = _end_of(path, block)
                elif block.kind is not BlockKind.EVENTS:
                    text = f"expected events or the end of a snapshot, found {block.kind.name}"
                    raise StoreDamaged(path, block.offset, text)
                yield Part(path, block, -1, _ALL_LSNS, header.created_ms)
            if not reader.closed:
                raise StoreDamaged(path, reader.end, reader.instead)
            if reader.end != reader.file_bytes:
                text = f"expected the file to end there, found {reader.file_bytes} bytes"
                raise StoreDamaged(path, reader.end, text)

    def _indexed(self, index: SnapshotIndex) -> Iterator[Part]:
        path, header = snapshot_path(index.header.number), index.header
        with closing(self._disk.open(path)) as file:
            for block in index.blocks:
                if block.rests:
                    yield from self._rests(path, file, header, block)
                try:
                    for stretch in block.stretches:
                        self._cold(stretch)
                except RecordError as error:
                    raise StoreDamaged(path, block.offset, str(error)) from error
        self.bytes_read += index.end.end
        self.base = _end_of(path, index.end)
        yield Part(path, index.end, -1, _ALL_LSNS, header.created_ms)

    def _rests(self, path: str, file: File, header: FileHeader, indexed: IndexedBlock) -> Iterator[Part]:
        """What is loaded of a block; where the index has no copy of it, the block is read, and all of it checked."""
        at, data = 0, indexed.copied
        if not data:
            data = self._read_data(path, file, header, indexed)
        for start, length in indexed.rests:
            if not indexed.copied:
                at = start
            rest = Block(
                BlockKind.EVENTS, 0, 0, 0, 0, 0, indexed.offset + start, data[at : at + length], length
            )  # fmt: skip
            yield Part(path, rest, -1, _ALL_LSNS, header.created_ms)
            at += length

    def _read_data(self, path: str, file: File, header: FileHeader, indexed: IndexedBlock) -> bytes:
        size = BLOCK_HEADER_BYTES + indexed.length
        block = read_block(file.read(indexed.offset, size), 0, header.number, base=indexed.offset)
        if not isinstance(block, Block) or block.kind is not BlockKind.EVENTS or block.length != indexed.length:
            text = block.text if isinstance(block, BlockProblem) else "expected a block as the index has it"
            raise StoreDamaged(path, indexed.offset, text)
        return block.data

    def _segment(self, segment: SegmentFound) -> Iterator[Part]:
        with open_blocks(self._disk, segment.path, segment.header, limit=segment.end) as reader:
            done = self.bytes_read
            for block in reader:
                self.bytes_read = done + block.end
                if block.kind is BlockKind.EVENTS:
                    after, limit = self.base.last_lsn, self._limit_of((segment.number, block.offset))
                    if block.is_local:
                        after, limit = self.base.local_lsn, block.last_lsn
                    yield Part(segment.path, block, after, limit, segment.header.created_ms + block.age_ms)
            if reader.end != segment.end:
                raise StoreDamaged(segment.path, reader.end, reader.instead)


def _end_of(path: str, block: Block) -> SnapshotEnd:
    try:
        return read_end(block)
    except BlockError as error:
        raise StoreDamaged(path, block.offset, str(error)) from error
