"""From a part of a segment to windows: the records of some blocks put together, with where they came from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

import numpy as np

from qpid_ha_broker.events.scan import RecordError
from qpid_ha_broker.store.blocks import (
    BLOCK_HEADER_BYTES,
    Block,
    BlockKind,
    block_mark,
    has_whole_data,
    read_block,
)
from qpid_ha_broker.store.files import File
from qpid_ha_broker.store.layout import segment_path
from qpid_ha_broker.store.reading import BlockReader, Ending, header_of, read_header
from qpid_ha_broker.store.survey import NO_LIMIT, limits_of
from qpid_ha_pipeline.errors import JournalDamaged, PipelineError

from .part import JournalPart
from .records import Ints, Mask, Records, find_in_blocks
from .survey import Damage, SurveyedSegment

_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""So much is decoded at once: enough that what a numpy call costs does not count, and little enough for caches."""


class Window:
    """Records, and the blocks that they came in, as they lie in `data`, which begins at byte `base` of the file."""

    def __init__(self, part: JournalPart, data: bytes, base: int, blocks: list[Block]) -> None:
        self.part = part
        self._base = base
        self._blocks = blocks
        self._begins = np.array([block.end - block.length - base for block in blocks], np.int64)
        ends = np.array([block.end - base for block in blocks], np.int64)
        self.records = Records(data, find_in_blocks(data, self._begins, ends))

    def counting(self) -> Mask | None:
        """Which records count; None: all of them."""
        number, limit_of = self.part.segment.number, limits_of(self.part.taken_back)
        most = NO_LIMIT if self.part.max_lsn is None else self.part.max_lsn
        limits = [NO_LIMIT if block.is_local else min(limit_of((number, block.offset)), most) for block in self._blocks]
        if not self.part.min_lsn and all(
            block.last_lsn <= limit or block.is_local for block, limit in zip(self._blocks, limits, strict=True)
        ):
            return None
        lsns = self.records.lsns
        within: Mask = lsns <= np.array(limits, np.int64)[self._block_of]
        return within & ((lsns >= self.part.min_lsn) | (lsns < 0))

    @property
    def _block_of(self) -> Ints:
        """The index of each record's block."""
        return np.searchsorted(self._begins, self.records.offsets, side="right") - 1

    def file_offsets(self) -> Ints:
        """Where in the file each record lies."""
        return self.records.offsets + self._base

    def written_ms(self) -> Ints:
        """When each record was written."""
        ages = np.array([block.age_ms for block in self._blocks], np.int64)
        return (ages + self.part.segment.header.created_ms)[self._block_of]

    def place(self, offset: int) -> int:
        """From a place in the window to one in the file."""
        return self._base + offset


class Scan:
    """Reads one part. In strict mode damage is raised, else it is put into `damages`, and reading goes on behind it."""

    def __init__(self, part: JournalPart, *, is_permissive: bool, checks: bool = True) -> None:
        """`checks`: look at the checksum of each block's data."""
        self.part = part
        self.damages: list[Damage] = list(part.damages)
        self._is_permissive = is_permissive
        self._checks = checks

    def windows(self) -> Iterator[Window]:
        """In order. Raises JournalDamaged, or PipelineError when the file is not there any more."""
        try:
            with closing(self.part.directory.disk.open(self.part.segment.name)) as file:
                yield from self._windows(file)
        except FileNotFoundError:
            raise self._folded() from None

    def damaged_in(self, window: Window, error: RecordError) -> None:
        """A record of it does not add up."""
        self._damaged(window.place(error.offset), str(error))

    def _windows(self, file: File) -> Iterator[Window]:
        at, length = self.part.begin, _WINDOW_BYTES
        while at < self.part.end:
            data = file.read(at, length)
            blocks, end, needed = self._blocks(data, at)
            yield from self._of(
                data, at, [block for block in blocks if block.kind is BlockKind.EVENTS and block.length]
            )
            if end > at:
                at, length = end, _WINDOW_BYTES
            elif needed > len(data) == length:
                length = needed
            else:
                at = self._behind(file, at)

    def _blocks(self, data: bytes, base: int) -> tuple[list[Block], int, int]:
        """The good blocks at the beginning of `data`, where they end, and how much is needed to see the next one."""
        blocks: list[Block] = []
        at, number = base, self.part.segment.number
        while at < self.part.end:
            found = read_block(data, at - base, number, base=base, headers_only=True)
            if not isinstance(found, Block):
                return blocks, at, BLOCK_HEADER_BYTES
            if found.end > base + len(data):
                return blocks, at, found.end - at
            if self._checks and not has_whole_data(data, at - base):
                return blocks, at, 0
            blocks.append(found)
            at = found.end
        return blocks, at, 0

    def _of(self, data: bytes, base: int, blocks: list[Block]) -> Iterator[Window]:
        """One by one, where together they do not add up."""
        if not blocks:
            return
        try:
            window = Window(self.part, data, base, blocks)
            _ = window.records.kinds
        except RecordError as error:
            if len(blocks) == 1:
                self._damaged(base + error.offset, str(error))
                return
        else:
            yield window
            return
        for block in blocks:
            yield from self._of(data, base, [block])

    def _behind(self, file: File, at: int) -> int:
        """There is no good block at `at`: where the next one is. What is bad at the end nobody was promised."""
        segment, end = self.part.segment, self.part.end
        reader = BlockReader(file, segment.header, limit=end)
        reader.end = at
        for block in reader:  # it has become whole by now
            return at if block.offset == at else end
        if reader.closed:
            return end
        if read_header(file) != segment.header:
            raise self._folded()
        verdict = reader.verdict(segment.witnesses)
        if verdict.ending is not Ending.DAMAGED or self._ended_at(segment, at):
            return end
        found = self._next_good(file, at + 1)
        self._damaged(at, f"{verdict.text}; {found - at} bytes cannot be read")
        return found

    def _ended_at(self, segment: SurveyedSegment, at: int) -> bool:
        """Whether the last segment has been followed by another one since it was looked at, and ended there."""
        disk, path = self.part.directory.disk, segment_path(segment.number + 1)
        if not segment.witnesses.is_last or not disk.exists(path):
            return False
        return header_of(disk, path).previous_bytes == at

    def _next_good(self, file: File, at: int) -> int:
        number, end = self.part.segment.number, self.part.end
        data = file.read(at, end - at)
        found = data.find(block_mark(number))
        while found >= 0:
            if isinstance(read_block(data, found, number, base=at), Block):
                return at + found
            found = data.find(block_mark(number), found + 1)
        return end

    def _damaged(self, offset: int, text: str) -> None:
        if not self._is_permissive:
            raise JournalDamaged(self.part.file, offset, text)
        self.damages.append(Damage(self.part.file, offset, text))

    def _folded(self) -> PipelineError:
        return PipelineError(
            f"{self.part.file} is not there any more: the broker has folded it into a snapshot while it was read;"
            " read again"
        )
