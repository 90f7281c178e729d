"""One file of the journal while it is written."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, NamedTuple

from .blocks import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    BlockKind,
    Buffer,
    FileHeader,
    encode_block,
    encode_header,
)
from .files import FULL, File
from .reading import end_data

END_ROOM_BYTES: Final = 512
"""Kept free at the end of each segment, so that it can be closed in order however full the disk is."""

_STOP: Final = bytes(BLOCK_HEADER_BYTES)
"""Behind the last block: where the blocks end is then plain in a file that was another one before, too."""


class Staged(NamedTuple):
    """A block that waits for its place."""

    kind: BlockKind
    first_lsn: int
    last_lsn: int
    committed_lsn: int
    left_out: int
    data: Buffer
    at_ms: int
    """When it was handed over; milliseconds since the Unix epoch."""


class SegmentEnd(NamedTuple):
    """What END says of a segment: the ends of both logs as of its last block, and what was committed of the first."""

    last_lsn: int
    local_lsn: int
    committed_lsn: int


def sync_error(error: OSError) -> OSError:
    """What a sync failed with: "no room" is as bad as any other, for what the system kept of the data is unknown."""
    return OSError(errno.EIO, f"cannot sync: {error.strerror}") if error.errno in FULL else error


def sync(file: File) -> None:
    """Sync. Raises OSError, never one of `files.FULL`."""
    try:
        file.sync()
    except OSError as error:
        failure = sync_error(error)
        if failure is error:
            raise
        raise failure from error


class StagedGroup(NamedTuple):
    """Blocks as they are written in one piece, and `length`: how much of that counts."""

    file: File
    offset: int
    pieces: Sequence[Buffer]
    length: int


class Segment:
    """The promise: all before `position` is on disk, and nothing there is ever written again.

    What a write left behind that failed, and a MARK, lie behind `position`: the next write goes over them.
    """

    __slots__ = ("_created_ms", "_file", "_marked", "has_ended", "number", "position", "size")

    def __init__(self, file: File, header: FileHeader) -> None:
        """Takes a file over that nobody can find yet; `header` is on disk once this returns."""
        self.number = header.number
        self.position = FILE_HEADER_BYTES
        self.has_ended = False
        self._created_ms = header.created_ms
        self._file = file
        self._marked: SegmentEnd | None = None
        self.size = file.size
        file.write(0, encode_header(header._replace(room_bytes=self.size)), _STOP)
        sync(file)

    def has_room(self, length: int) -> bool:
        """Whether a group of so many bytes fits, headers included."""
        return not self.has_ended and length <= self.room_bytes

    @property
    def room_bytes(self) -> int:
        """What a group may have, headers included."""
        return self.size - self.position - END_ROOM_BYTES

    def write_group(self, blocks: Sequence[Staged], *, as_one: bool = False) -> None:
        """One write, one sync. When the write fails nothing has changed, and the same may be tried again.

        `as_one`: of the blocks either all can be read after a power cut, or none: the header with which they begin
        comes last, and until then the blocks of the file end before it. That takes a second write and sync.
        """
        group = self.encode_group(blocks)
        first, *rest = group.pieces
        if as_one:
            self._file.write(group.offset, _STOP, *rest)
            sync(self._file)
            rest = []
        self._file.write(group.offset, first, *rest)
        sync(self._file)
        self.note_written(group)

    def encode_group(self, blocks: Sequence[Staged]) -> StagedGroup:
        """What `write_group` would write. Somebody else may write and sync it, if `note_written` follows."""
        number, synced, length = self.number, self.position, 0
        pieces: list[Buffer] = []
        created_ms = self._created_ms
        for kind, first, last, committed, left_out, data, at_ms in blocks:
            age_ms = at_ms - created_ms
            pieces.append(encode_block(number, kind, first, last, committed, left_out, synced, data, age_ms))
            pieces.append(data)
            length += BLOCK_HEADER_BYTES + len(data)
        pieces.append(_STOP)
        return StagedGroup(self._file, synced, pieces, length)

    def note_written(self, group: StagedGroup) -> None:
        """It is on disk."""
        self.position = group.offset + group.length
        self._marked = None

    def write_mark(self, end: SegmentEnd) -> bool:
        """Say behind the last block that it is on disk. Not synced: once it is there, it is true.

        And once more at the end of the file: where the end of the blocks was lost, what lay behind it often was, too.
        """
        if self.has_ended or self._marked == end:
            return False
        mark = encode_block(
            self.number, BlockKind.MARK, end.last_lsn, end.last_lsn, end.committed_lsn, 0, self.position
        )
        self._file.write(self.position, mark, _STOP)
        self._file.write(self.size - BLOCK_HEADER_BYTES, mark)
        self._marked = end
        return True

    def write_end(self, end: SegmentEnd) -> None:
        """Close in order. Once is enough."""
        if not self.has_ended:
            data = end_data(end._asdict())
            self.write_group((Staged(BlockKind.END, end.last_lsn, end.last_lsn, end.committed_lsn, 0, data, 0),))
            self.has_ended = True

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
