"""From a file to its blocks, and why they end where they end: a crash, or damage?

Groups of blocks are written and synced one after the other. So bytes that any later block, segment or STATUS knows to
have been on disk cannot have been torn by a crash: if they are bad now, the disk or somebody changed them. And a
segment has its full length before it gets its name, and gives back what it did not need only once the next one is
there: the last one is never short after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from enum import StrEnum
from typing import Any, Final, NamedTuple

from .blocks import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    Block,
    BlockFault,
    BlockKind,
    BlockProblem,
    FileHeader,
    block_mark,
    decode_header,
    read_block,
)
from .errors import BlockError
from .files import Disk, File
from .status import Status

_WINDOW_BYTES: Final = 4 * 1024 * 1024
_HEADERS_WINDOW_BYTES: Final = 16 * 1024
"""Small, because of a large block nothing but its header is wanted; not smaller, because most are small."""


def read_header(file: File) -> FileHeader:
    """Raises BlockError or NewerFormat."""
    return decode_header(file.read(0, FILE_HEADER_BYTES))


def header_of(disk: Disk, path: str) -> FileHeader:
    """`read_header` of the file at `path`. Raises OSError, too."""
    with closing(disk.open(path)) as file:
        return read_header(file)


def end_data(facts: Mapping[str, Any]) -> bytes:
    """The data of an END block."""
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def end_facts(block: Block) -> dict[str, Any]:
    """The inverse. Raises BlockError."""
    try:
        facts = json.loads(block.data)
    except ValueError as error:
        raise BlockError(f"expected JSON in the last block: {error}") from None
    if not isinstance(facts, dict):
        raise BlockError("expected a JSON object in the last block")
    return facts


class Ending(StrEnum):
    """What the end of a segment's blocks means."""

    CLEAN = "clean"
    """Nothing is missing."""
    TORN = "torn"
    """A crash cut the last group short: nobody was ever told that it is kept."""
    DAMAGED = "damaged"
    """What had been on disk for certain is not there any more."""


class Verdict(NamedTuple):
    """`offset`: where the good blocks end; `text`: how that is known."""

    ending: Ending
    offset: int
    text: str


class Witnesses(NamedTuple):
    """What else tells how far a segment was written, in bytes from its start; 0: that does not tell."""

    previous_bytes: int = 0
    """The header of the next segment."""
    clean_bytes: int = 0
    """`journal_end` of a clean STATUS."""
    synced_bytes: int = 0
    """`journal_synced` of STATUS."""
    is_last: bool = False
    """No segment follows: nothing of the room that was taken for it may be missing."""


def witnesses_of(number: int, status: Status | None, following: FileHeader | None, *, is_last: bool) -> Witnesses:
    """Of segment `number`, which is the last, or is followed by the one with that header; None: it is not there."""
    clean = status.journal_end if status is not None and status.clean else None
    synced = status.journal_synced if status is not None else None
    return Witnesses(
        following.previous_bytes if following is not None else 0,
        clean[1] if clean is not None and clean[0] == number else 0,
        synced[1] if synced is not None and synced[0] == number else 0,
        is_last,
    )


NO_WITNESSES: Final = Witnesses()


class BlockReader(Iterator[Block]):
    """The blocks of a file, in order, up to the first that is not right. Reads large pieces, front to back.

    Once it has ended: `end` is where the last good block ends, `problem` what was found there instead of a block
    (None: nothing, the blocks end), `closed` whether the last one was END. `verdict` says what that means.
    With `headers_only` the data are not read, and not checked; with `limit` it ends there.
    """

    def __init__(self, file: File, header: FileHeader, *, headers_only: bool = False, limit: int | None = None) -> None:
        self.end = FILE_HEADER_BYTES
        self.problem: BlockProblem | None = None
        self.closed = False
        self._file = file
        self._header = header
        self._headers_only = headers_only
        self._limit = limit
        self._base = self.end
        self._window = b""
        self._is_over = False

    @property
    def instead(self) -> str:
        """What was found where a block should be, for people."""
        return self.problem.text if self.problem is not None else "expected a block, found none"

    @property
    def file_bytes(self) -> int:
        """How long the file is."""
        return self._file.size

    def __iter__(self) -> BlockReader:
        return self

    def __next__(self) -> Block:
        if self._is_over or (self._limit is not None and self.end >= self._limit):
            raise StopIteration
        block_or_problem = self._read()
        if isinstance(block_or_problem, Block):
            self.end = block_or_problem.end
            self.closed = self._is_over = block_or_problem.kind is BlockKind.END
            return block_or_problem
        self._is_over = True
        self.problem = block_or_problem
        raise StopIteration

    def _read(self) -> Block | BlockProblem | None:
        if self._headers_only:
            return self._read_header_only()
        if self.end + BLOCK_HEADER_BYTES > self._base + len(self._window):
            self._fill(_WINDOW_BYTES)
        block = self._look()
        if isinstance(block, BlockProblem) and block.fault is BlockFault.SHORT:
            header = self._look(headers_only=True)
            if isinstance(header, Block) and header.end <= self._file.size:
                self._fill(max(_WINDOW_BYTES, header.end - header.offset))
                return self._look()
        return block

    def _read_header_only(self) -> Block | BlockProblem | None:
        if self.end + BLOCK_HEADER_BYTES > self._base + len(self._window):
            self._fill(_HEADERS_WINDOW_BYTES)
        block = self._look(headers_only=True)
        if isinstance(block, Block) and block.end > self._file.size:
            return BlockProblem(BlockFault.SHORT, block.offset, f"expected {block.length} bytes of data, found fewer")
        return block

    def _look(self, *, headers_only: bool = False) -> Block | BlockProblem | None:
        at, number = self.end - self._base, self._header.number
        return read_block(self._window, at, number, base=self._base, headers_only=headers_only)

    def _fill(self, length: int) -> None:
        self._base = self.end
        self._window = self._file.read(self.end, length)

    def verdict(self, witnesses: Witnesses = NO_WITNESSES) -> Verdict:
        """What the end at which it has arrived means."""
        file, header, at, fault = self._file, self._header, self.end, self.instead
        if witnesses.previous_bytes > at:
            text = f"{fault}; the next segment says that {witnesses.previous_bytes} bytes were written"
            return Verdict(Ending.DAMAGED, at, text)
        if max(witnesses.clean_bytes, witnesses.synced_bytes) > at:
            text = f"{fault}; STATUS says that {max(witnesses.clean_bytes, witnesses.synced_bytes)} bytes were written"
            return Verdict(Ending.DAMAGED, at, text)
        # Format 1 does not say how long it was, but behind its last block were always the zeros of one more header.
        room_bytes, size = header.room_bytes or at + BLOCK_HEADER_BYTES, file.size
        is_short = self.problem is not None and self.problem.fault is BlockFault.SHORT
        if witnesses.is_last and (size < room_bytes or is_short):
            text = f"{fault}; the file was cut off: it has {size} bytes, and was made with more"
            return Verdict(Ending.DAMAGED, at, text)
        if self.closed:
            return Verdict(Ending.CLEAN, at, "closed in order")
        witness = _later_witness(file, header, at)
        if witness is not None:
            if _is_whole_by_now(file, header, at):
                return Verdict(Ending.CLEAN, at, "the blocks ended when they were read; more have come since")
            text = f"{fault}; the block at offset {witness.offset} says that {witness.synced} bytes were on disk"
            return Verdict(Ending.DAMAGED, at, text)
        if self.problem is not None:
            return Verdict(Ending.TORN, at, fault)
        return Verdict(Ending.CLEAN, at, "the blocks end")


@contextmanager
def open_blocks(
    disk: Disk, path: str, header: FileHeader | None = None, *, headers_only: bool = False, limit: int | None = None
) -> Iterator[BlockReader]:
    """The blocks of the file at `path`, whose header is read first unless it is known. Raises as `header_of`."""
    with closing(disk.open(path)) as file:
        yield BlockReader(file, header or read_header(file), headers_only=headers_only, limit=limit)


def _is_whole_by_now(file: File, header: FileHeader, at: int) -> bool:
    """A reader beside a running broker may have read the end just before it was written."""
    again = BlockReader(file, header)
    again.end = at
    return next(again, None) is not None


def _later_witness(file: File, header: FileHeader, after: int) -> Block | None:
    """A whole block header behind `after` that was written when more than that was on disk. Blocks begin anywhere."""
    mark = block_mark(header.number)
    # All at once: reading makes the system take what lies behind for written, because it has read that ahead.
    for base, end in file.written_ranges(after):
        while base < end:
            window = file.read(base, min(_WINDOW_BYTES, end - base + BLOCK_HEADER_BYTES))
            mark_at = window.find(mark)
            while mark_at >= 0 and mark_at + BLOCK_HEADER_BYTES <= len(window):
                block = read_block(window, mark_at, header.number, base=base, headers_only=True)
                if isinstance(block, Block) and after < block.synced <= block.offset:
                    return block
                mark_at = window.find(mark, mark_at + 1)
            if not window or base + len(window) >= end:
                break
            base += len(window) - BLOCK_HEADER_BYTES + 1
    return None
