"""From a part of a segment, or of a snapshot, to windows: the records of some blocks put together, with where they came
from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpid_ha_broker.events.layout import RecordKind
from qpid_ha_broker.events.scan import RecordError
from qpid_ha_broker.store.blocks import (
    BLOCK_HEADER_BYTES,
    Block,
    BlockKind,
    has_whole_data,
    read_block,
)
from qpid_ha_broker.store.files import File
from qpid_ha_broker.store.layout import segment_path
from qpid_ha_broker.store.reading import BlockReader, Ending, header_of, read_header
from qpid_ha_broker.store.survey import limits_of
from qpid_ha_kernel import Kernel
from qpid_ha_pipeline.errors import PipelineError

from .kernel_scan import KernelScanner
from .part import JournalPart, LsnRange
from .records import Ints, Mask, Records, find_in_blocks, find_whole_records, signed
from .survey import Damage, SurveyedSegment, next_good_block

_RELEASED: Final = int(RecordKind.RELEASED)
_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""So much is decoded at once: enough that what a numpy call costs does not count, and little enough for caches."""


class BlockColumns(NamedTuple):
    """Blocks as columns: `begins` and `ends` of their data in the window, `offsets` in the file. The LSNs of the
    broker's own log are negative."""

    begins: Ints
    ends: Ints
    offsets: Ints
    first_lsns: Ints
    last_lsns: Ints
    ages_ms: Ints

    @classmethod
    def of(cls, blocks: Sequence[Block], base: int) -> BlockColumns:
        """Of blocks in a window that begins at byte `base` of the file."""
        rows = [
            (block.data_at - base, block.end - base, block.offset, signed(block.first_lsn), signed(block.last_lsn),
             block.age_ms)
            for block in blocks
        ]  # fmt: skip
        return cls(*np.array(rows, np.int64).reshape(-1, len(cls._fields)).T)

    @classmethod
    def of_kernel(cls, blocks: NDArray[Any], base: int) -> BlockColumns:
        """The same of those that the kernel found."""
        begins = blocks["offset"] + BLOCK_HEADER_BYTES
        first_lsns, last_lsns = (blocks[name].view(np.int64) for name in ("first_lsn", "last_lsn"))
        ages_ms = blocks["age_ms"].astype(np.int64)
        return cls(begins, begins + blocks["length"], blocks["offset"] + base, first_lsns, last_lsns, ages_ms)


class Window:
    """Records, and the blocks that they came in, as they lie in `records.data`, which begins at byte `base` of the
    file."""

    def __init__(self, part: JournalPart, base: int, blocks: BlockColumns, records: Records) -> None:
        self.part = part
        self.records = records
        self._base = base
        self._blocks = blocks

    def counting(self) -> Mask | None:
        """Which records count; None: all of them."""
        if self.part.segment.is_snapshot:
            return self._counting_in_snapshot()
        first, with_local = self.part.lsns.first, self.part.with_local
        blocks, limits = self._blocks, self._limits()
        whole = (first <= blocks.first_lsns) & (blocks.last_lsns <= limits)
        if np.where(blocks.first_lsns < 0, with_local, whole).all():
            return None
        lsns = self.records.lsns
        replicated: Mask = (lsns >= max(first, 0)) & (lsns <= limits[self._block_of])
        return replicated | (lsns < 0) if with_local else replicated

    def _limits(self) -> Ints:
        """Of each block: the last LSN of the replicated log in it that counts."""
        most, offsets = self.part.lsns.last, self._blocks.offsets
        if not self.part.origin.taken_back:
            return np.full(len(offsets), most, np.int64)
        number, limit_of = self.part.segment.number, limits_of(self.part.origin.taken_back)
        return np.array([min(limit_of((number, offset)), most) for offset in offsets.tolist()], np.int64)

    def _counting_in_snapshot(self) -> Mask:
        """Failed deliveries are told there by records that are no events."""
        lsns, lsn_range = self.records.lsns, self.part.lsns
        chosen: Mask = (lsns >= lsn_range.first) & (lsns <= lsn_range.last) & (lsns >= 0)
        if self.part.with_local:
            chosen |= lsns < 0
        events: Mask = chosen & (self.records.kinds != _RELEASED)
        return events

    @property
    def _block_of(self) -> Ints:
        """The index of each record's block."""
        return np.searchsorted(self._blocks.begins, self.records.offsets, side="right") - 1

    def file_offsets(self) -> Ints:
        """Where in the file each record lies."""
        return self.records.offsets + self._base

    def written_ms(self) -> Ints:
        """When each record was written."""
        return (self._blocks.ages_ms + self.part.segment.header.created_ms)[self._block_of]

    @property
    def lsns(self) -> LsnRange:
        """Of the replicated log, as the headers of the blocks tell."""
        replicated = self._blocks.first_lsns >= 0
        if not replicated.any():
            return LsnRange(1, 0)
        first, last = self._blocks.first_lsns[replicated].min(), self._blocks.last_lsns[replicated].max()
        return LsnRange(int(first), int(last))

    def place(self, offset: int) -> int:
        """From a place in the window to one in the file."""
        return self._base + offset


class DamagedBlock(NamedTuple):
    """A block that cannot be read, or what lies where one should be.

    `lsns`: of the replicated log, what was in it and counts; None: nobody can say. `header`: of one of which only the
    data are damaged.
    """

    damage: Damage
    lsns: LsnRange | None
    header: Block | None


class Scan:
    """Reads one part."""

    def __init__(self, part: JournalPart, *, checks: bool = True, kernel: Kernel | None = None) -> None:
        """`checks`: look at the checksum of each block's data. `kernel`: to go through it with; None: in Python."""
        self.part = part
        self._end = part.piece.end
        self._checks = checks
        self._kernel: KernelScanner | None = None
        if kernel is not None:
            number, lsns, is_snapshot = part.segment.number, part.lsns, part.segment.is_snapshot
            self._kernel = KernelScanner(kernel, number, lsns.first, lsns.last, is_snapshot=is_snapshot, checks=checks)

    def windows(self) -> Iterator[Window | DamagedBlock]:
        """In order. Raises PipelineError when the file is not there any more."""
        try:
            with closing(self.part.origin.directory.disk.open(self.part.segment.name)) as file:
                yield from self._windows(file)
        except FileNotFoundError:
            raise self._folded() from None

    def damaged_in(self, window: Window, error: RecordError) -> DamagedBlock:
        """A record of it does not add up."""
        return DamagedBlock(Damage(self.part.file, window.place(error.offset), str(error)), window.lsns, None)

    def whole_records(self, block: Block) -> tuple[Window | None, list[Damage]]:
        """What is good of a block of which the data are damaged, and where what is not."""
        with closing(self.part.origin.directory.disk.open(self.part.segment.name)) as file:
            data = file.read(block.data_at, block.length)
        offsets, bad = find_whole_records(data)
        damages = [Damage(self.part.file, block.data_at + offset, text) for offset, text in bad]
        if not len(offsets):
            return None, damages
        blocks = BlockColumns.of([block], block.data_at)
        return Window(self.part, block.data_at, blocks, Records(data, offsets)), damages

    def _windows(self, file: File) -> Iterator[Window | DamagedBlock]:
        at, length = self.part.piece.begin, _WINDOW_BYTES
        while at < self._end:
            windows, end, needed, read = self._look(file, at, min(length, self._end - at))
            yield from windows
            if end > at:
                at, length = end, _WINDOW_BYTES
            elif needed > read == length:
                length = needed
            else:
                damaged, at = self._behind(file, at)
                if damaged is not None:
                    yield damaged

    def _look(self, file: File, at: int, length: int) -> tuple[Iterator[Window | DamagedBlock], int, int, int]:
        """What is in so many bytes; where the next block begins, how much is wanted to see it, how much was read.

        Nothing is kept of what was read: the system gives the same memory for the next window, which is then there.
        """
        data = file.read(at, length)
        scanned = self._kernel.find(data) if self._kernel is not None else None
        if scanned is None:
            blocks, end, needed = self._blocks(data, at)
            return self._of(data, at, [block for block in blocks if block.length]), end, needed, len(data)
        places = BlockColumns.of_kernel(scanned.blocks, at)
        windows = (
            [Window(self.part, at, places, Records.of_columns(data, scanned.columns))] if len(scanned.blocks) else []
        )
        return iter(windows), at + scanned.end, scanned.needed, len(data)

    def _blocks(self, data: bytes, base: int) -> tuple[list[Block], int, int]:
        """The good blocks at the beginning of `data`, where they end, and how much is needed to see the next one."""
        blocks: list[Block] = []
        at, number = base, self.part.segment.number
        while at < self._end:
            block = read_block(data, at - base, number, base=base, headers_only=True)
            if not isinstance(block, Block):
                return blocks, at, BLOCK_HEADER_BYTES
            if block.end > base + len(data):
                return blocks, at, block.end - at
            if self._is_wanted(block):
                if self._checks and not has_whole_data(data, at - base):
                    return blocks, at, 0
                blocks.append(block)
            at = block.end
        return blocks, at, 0

    def _is_wanted(self, block: Block) -> bool:
        """Whether anything in it may count, as far as its header tells."""
        if block.is_local or self.part.segment.is_snapshot:
            return block.kind is BlockKind.EVENTS
        lsns = self.part.lsns.within(LsnRange(block.first_lsn, block.last_lsn))
        return block.kind is BlockKind.EVENTS and not lsns.is_empty

    def _of(self, data: bytes, base: int, blocks: list[Block]) -> Iterator[Window | DamagedBlock]:
        """One by one, where together they do not add up."""
        if not blocks:
            return
        try:
            places = BlockColumns.of(blocks, base)
            window = Window(self.part, base, places, Records(data, find_in_blocks(data, places.begins, places.ends)))
            _ = window.records.kinds
        except RecordError as error:
            if len(blocks) == 1:
                yield self._damaged(base + error.offset, str(error), blocks[0])
                return
        else:
            yield window
            return
        for block in blocks:
            yield from self._of(data, base, [block])

    def _behind(self, file: File, at: int) -> tuple[DamagedBlock | None, int]:
        """There is no good block at `at`: where the next one is. What is bad at the end nobody was promised."""
        segment, end = self.part.segment, self._end
        reader = BlockReader(file, segment.header, limit=end)
        reader.end = at
        for block in reader:  # it has become whole by now
            return None, at if block.offset == at else end
        if reader.closed:
            return None, end
        if read_header(file) != segment.header:
            raise self._folded()
        verdict = reader.verdict(segment.witnesses)
        if not segment.is_snapshot and (verdict.ending is not Ending.DAMAGED or self._ended_at(segment, at)):
            return None, end
        following = next_good_block(file, segment.number, at + 1, end)
        data = file.read(at, BLOCK_HEADER_BYTES)
        header = read_block(data, 0, segment.number, base=at, headers_only=True)
        text = f"{verdict.text}; {following - at} bytes cannot be read"
        if isinstance(header, Block) and header.kind is BlockKind.EVENTS and header.end <= following:
            return self._damaged(at, text, header), following
        return self._damaged(at, text, None), following

    def _damaged(self, offset: int, text: str, header: Block | None) -> DamagedBlock:
        """`header`: of the block, where that is whole. In a snapshot it does not say what is in the block."""
        lsns = None
        if header is not None and not header.is_local and not self.part.segment.is_snapshot:
            limit = limits_of(self.part.origin.taken_back)((self.part.segment.number, header.offset))
            lsns = LsnRange(header.first_lsn, min(header.last_lsn, limit)).within(self.part.lsns)
        return DamagedBlock(Damage(self.part.file, offset, text), lsns, header)

    def _ended_at(self, segment: SurveyedSegment, at: int) -> bool:
        """Whether the last segment has been followed by another one since it was looked at, and ended there."""
        disk, path = self.part.origin.directory.disk, segment_path(segment.number + 1)
        if not segment.witnesses.is_last or not disk.exists(path):
            return False
        return header_of(disk, path).previous_bytes == at

    def _folded(self) -> PipelineError:
        return PipelineError(
            f"{self.part.file} is not there any more: the broker has folded it into a snapshot while it was read;"
            " read again"
        )
