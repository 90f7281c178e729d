"""The journal: what must not be lost is written down before anybody is told that it happened.

`stage` takes a block, `flush` writes all that have gathered with one write and one `fdatasync`; what comes meanwhile
waits for the next. Source: group commit, as databases have it since DeWitt et al., "Implementation techniques for main
memory database systems" (1984).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.events.layout import is_local_lsn

from .blocks import BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, BlockKind, Buffer, FileHeader
from .errors import JournalDead, StoreError
from .files import FULL, Disk, File
from .layout import (
    SEGMENTS,
    SNAPSHOTS,
    SPARE,
    segment_numbers,
    segment_path,
    snapshot_index_numbers,
    snapshot_index_path,
    snapshot_numbers,
    snapshot_path,
)
from .reading import BlockReader, read_header
from .segment import END_ROOM_BYTES, Segment, SegmentEnd, Staged, StagedGroup

SEGMENT_BYTES: Final = 64 * 1024 * 1024
_COPY_BYTES: Final = 4 * 1024 * 1024


class Identity(NamedTuple):
    """Whose journal it is."""

    cluster: str
    broker: str
    set: str


class ClosedSegment(NamedTuple):
    """A segment that will not change. It may be folded once `last_lsn` is committed."""

    number: int
    bytes: int
    last_lsn: int


class StatusFile(Protocol):
    """STATUS, as far as the journal needs it."""

    @property
    def store(self) -> str:
        """The UUID that all files of the store bear."""

    @property
    def revision(self) -> int:
        """How often it was written: what is on disk."""

    def write(self) -> None:
        """Have on disk what is known, how far the journal is included (`Journal.durable_end`). Raises OSError."""


def tied(closed: Sequence[ClosedSegment], taken_back: Iterable[tuple[int, int]]) -> list[ClosedSegment]:
    """`closed`, such that none is folded without the later one that takes some of its records back.

    `taken_back`: the number of a segment of them that has a TAKEN_BACK, and its LSN. A snapshot made without that
    segment would hold for good what is void. Where the later one goes is where they go: how far they went themselves is
    void, and the log that went on instead may come that far, or not.
    """
    segments = list(closed)
    for number, lsn in taken_back:
        ready_at = max((segment.last_lsn for segment in segments if segment.number == number), default=0)
        segments = [
            segment._replace(last_lsn=ready_at) if segment.number < number and segment.last_lsn > lsn else segment
            for segment in segments
        ]
    return segments


class RecordedSegments:
    """Has STATUS know of each segment before anything in it counts. `status`: None: there is none."""

    def __init__(self, status: StatusFile | None) -> None:
        self.status = status
        self._newest = 0
        """Of which it knows."""

    def lacks(self, number: int) -> bool:
        """Whether it does not know of that one yet."""
        return self.status is not None and self._newest < number

    def write(self, number: int) -> None:
        """It does when this returns. Raises OSError."""
        if self.status is not None and self.lacks(number):
            self.status.write()
            self._newest = number


class JournaledLogs:
    """Where both logs end as of what is on disk, and how far back the open segment takes some of them."""

    def __init__(self, end: SegmentEnd) -> None:
        self.end = end
        self.taken_back: int | None = None
        """None: nowhere."""

    def note(self, block: Staged) -> None:
        """It is on disk."""
        last, local, _ = self.end
        if block.kind is BlockKind.TAKEN_BACK:
            last = block.last_lsn
            self.taken_back = last if self.taken_back is None else min(last, self.taken_back)
        elif block.kind is BlockKind.EVENTS and is_local_lsn(block.first_lsn):
            local = block.last_lsn
        elif block.kind is BlockKind.EVENTS:
            last = block.last_lsn
        self.end = SegmentEnd(last, local, block.committed_lsn)

    def note_committed(self, lsn: int) -> None:
        """The replicated log is committed up to there, at least."""
        self.end = self.end._replace(committed_lsn=max(self.end.committed_lsn, lsn))


class Journal:
    """The promise: once `flush` has returned, all that was staged survives a power cut, in the order of staging.

    Use from one thread at a time. A full disk is no failure: `flush` and `roll` raise OSError with one of
    `files.FULL`, what was staged stays staged, and the same call may be made again. After any other OSError, and after
    a sync that failed for whatever reason, the journal is dead and every call raises JournalDead.
    """

    def __init__(
        self, disk: Disk, identity: Identity, segment_bytes: int, first_segment_bytes: int, clock: Callable[[], int],
        end: SegmentEnd, status: StatusFile | None,
    ) -> None:  # fmt: skip
        """Use `begin`."""
        self.generation = 0
        """What the headers of segments to come say; to be set when a generation starts."""
        self.staged_bytes = 0
        self.identity = identity
        """Whose they are; the cluster may become known later."""
        self.durable_end = (0, 0)
        """A segment, and bytes of it that are on disk: what any recovery from now on has to find. What follows a base
        is counted once the base is kept. May be read from any thread."""
        self._disk = disk
        self._recorded = RecordedSegments(status)
        self._base = 0
        """The newest segment that needs a base, until that is kept; 0: there is none."""
        self._segment_bytes = segment_bytes
        self._next_bytes = first_segment_bytes
        """Of the next segment. 0 < it <= _segment_bytes."""
        self._clock = clock
        self._staged: list[Staged] = []
        self._are_one = False
        """Of what is staged some blocks count together or not at all."""
        self._logs = JournaledLogs(end)
        self._closed: list[ClosedSegment] = []
        self._spare: File | None = None
        self._segment: Segment
        self._dead = ""

    @classmethod
    def begin(
        cls,
        disk: Disk,
        identity: Identity,
        number: int,
        *,
        generation: int,
        first_lsn: int,
        first_local_lsn: int,
        previous_bytes: int,
        clock: Callable[[], int],
        segment_bytes: int = SEGMENT_BYTES,
        first_segment_bytes: int | None = None,
        needs_base: bool = False,
        closed: Sequence[ClosedSegment] = (),
        status: StatusFile | None = None,
    ) -> Journal:
        """Start segment `number`, which must not be there. `clock`: milliseconds since the Unix epoch.

        `previous_bytes`: where the good blocks of segment number - 1 end; 0: there is none. What recovery read of it
        may have been in the system's memory only; it is put on disk first, so that what is built on it stands.
        `closed`: segments of earlier lives, for `closed_segments`; this life may take back some of what they hold.
        `first_segment_bytes`: the first one may be smaller, and each that follows one that was full is twice as large,
        up to `segment_bytes`. No spare is kept for one that is hardly used then.
        `status`: is written before the first group of each segment, so that a segment that is lost is missed.
        """
        for directory in (SEGMENTS, SNAPSHOTS):
            disk.make_directory(directory)
        for directory in ("", SEGMENTS, SNAPSHOTS):
            disk.sync_directory(directory)
        if previous_bytes:
            _settle(disk, number - 1, previous_bytes)
        if disk.exists(SPARE):
            disk.remove(SPARE)  # of an earlier life: what is in it is anybody's guess
        first_bytes = min(first_segment_bytes or segment_bytes, segment_bytes)
        end = SegmentEnd(first_lsn - 1, first_local_lsn - 1, 0)
        journal = cls(disk, identity, segment_bytes, first_bytes, clock, end, status)
        journal.generation = generation
        journal._closed = list(closed)
        try:
            journal._start_segment(number, previous_bytes, needs_base, 0)
        except OSError:
            journal._drop_spare()
            raise
        return journal

    @property
    def number(self) -> int:
        """Of the segment that is being written."""
        return self._segment.number

    @property
    def position(self) -> int:
        """How many bytes of it are on disk."""
        return self._segment.position

    @property
    def room_bytes(self) -> int:
        """How much still fits into that segment, headers included."""
        return self._segment.room_bytes

    @property
    def is_dead(self) -> bool:
        """Whether nothing can be kept any more."""
        return bool(self._dead)

    def stage(
        self, kind: BlockKind, first_lsn: int, last_lsn: int, committed_lsn: int, left_out: int, data: Buffer
    ) -> None:
        """Have a block go with the next `flush`. `data` must not change until then. No I/O."""
        self._check()
        self._staged.append(Staged(kind, first_lsn, last_lsn, committed_lsn, left_out, data, self._clock()))
        self.staged_bytes += BLOCK_HEADER_BYTES + len(data)

    def stage_as_one(self) -> None:
        """What is staged with the next `flush` counts together, whatever becomes of the machine."""
        self._are_one = True

    def flush(self) -> int:
        """Put all that is staged on disk; returns how many bytes that were. One write and one sync, if it has room."""
        with self._writing():
            length = self.staged_bytes
            if not length:
                return 0
            if not self._segment.has_room(length):
                self._next_segment(False, length)
            if not self._base:
                self._recorded.write(self._segment.number)
            self._segment.write_group(self._staged, as_one=self._are_one)
            self._note_flushed()
        return length

    def begin_flush(self) -> StagedGroup | None:
        """What is staged, for somebody who writes and syncs it in place of `flush` and then calls `end_flush`.

        None: that takes more than a write and a sync, so that only `flush` can. Until the end nothing else may be
        called.
        """
        self._check()
        is_unrecorded = not self._base and self._recorded.lacks(self._segment.number)
        if self._are_one or is_unrecorded or not self._segment.has_room(self.staged_bytes):
            return None
        return self._segment.encode_group(self._staged)

    def end_flush(self, group: StagedGroup, error: OSError | None) -> None:
        """What became of it; raises `error`. After one of `files.FULL` all is still staged."""
        with self._writing():
            if error is not None:
                raise error
            self._segment.note_written(group)
            self._note_flushed()

    def mark(self, committed_lsn: int = 0) -> bool:
        """When there is nothing to do: note that all is on disk, so that damage to the last group shows as such.

        `committed_lsn`: as far as is known by now, of the replicated log; it counts for what comes after it too.
        Whether there was need. No sync: it costs nothing but a write to memory.
        """
        self._logs.note_committed(committed_lsn)
        with self._writing():
            return not self._staged and self._segment.write_mark(self._logs.end)

    def roll(self, needs_base: bool = False, generation: int | None = None, last_lsn: int | None = None) -> int:
        """Flush, close the segment in order and begin the next; its number. `needs_base`: it counts only with its
        snapshot, because the state was changed outside of the log; the replicated log then ends at `last_lsn`."""
        self.flush()
        if generation is not None:
            self.generation = generation
        with self._writing():
            self._next_segment(needs_base, 0, last_lsn)
        return self.number

    def base_persisted(self, number: int) -> None:
        """The base of segment `number` is on disk: what follows it counts, and STATUS says so when this returns.

        Nothing of what was written since `roll(needs_base=True)` may be said to be kept before. `number` is that
        segment, or a later one when it was full before the base was begun; the base of an earlier one is void.
        """
        with self._writing():
            if self._base <= number:
                self._base = 0
                self._note_durable()
                self._recorded.write(self._segment.number)

    def end(self, committed_lsn: int = 0) -> tuple[int, int]:
        """Flush and close in order: number of the last segment, and its bytes, for STATUS. Nothing can follow.

        `committed_lsn`: see `mark`.
        """
        self.flush()
        self._logs.note_committed(committed_lsn)
        with self._writing():
            self._segment.write_end(self._logs.end)
            self._note_durable()
        last = (self._segment.number, self._segment.position)
        self.close()
        return last

    def close(self) -> None:
        """Let go of the files as they are; what is staged is dropped. Every later call raises."""
        self._dead = self._dead or "the journal was closed"
        self._segment.close()
        self._drop_spare()

    def prepare_spare(self) -> bool:
        """Have a segment ready for when this one is full; whether there was need. To be called when idle.

        A full disk is no error here: it will show when the segment is needed.
        """
        with self._writing():
            if self._spare is not None:
                return False
            if self._next_bytes < self._segment_bytes and self._segment.room_bytes > self._segment.position:
                return False  # of a small segment the next one costs little, and may never be needed
            try:
                self._spare = self._disk.create(SPARE, min(self._next_bytes * 2, self._segment_bytes))
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return False
            return True

    def closed_segments(self) -> list[ClosedSegment]:
        """What was closed, in this life or as `begin` was told, and is not dropped yet; oldest first.

        A segment of which a later one takes records back goes only together with that one: its `last_lsn` is then that
        of the later one, and while that is still open, it is not listed.
        """
        limit = self._logs.taken_back
        return [closed for closed in self._closed if limit is None or closed.last_lsn <= limit]

    def drop_before(self, number: int, in_use: Container[str] = ()) -> None:
        """Delete segments and snapshots before `number`: snapshot `number` is on disk and has it all.

        One of the segments is kept as the spare: to write over it is quicker than to fill a new file. None of `in_use`,
        from which somebody still reads: those are deleted, and the system keeps them for that one.
        """
        self._check()
        for old in snapshot_numbers(self._disk):
            if old < number:
                self._disk.remove(snapshot_path(old))
        for old in snapshot_index_numbers(self._disk):
            if old < number:
                self._disk.remove(snapshot_index_path(old))
        self._disk.sync_directory(SNAPSHOTS)
        for old in segment_numbers(self._disk):
            if old >= min(number, self.number):
                continue
            if self._spare is None and segment_path(old) not in in_use:
                self._spare = self._reuse(old)
                if self._spare is not None:
                    continue
            self._disk.remove(segment_path(old))
        self._disk.sync_directory(SEGMENTS)
        self._closed = [closed for closed in self._closed if closed.number >= number]

    def _reuse(self, number: int) -> File | None:
        """The segment as the spare, if it is of the usual size. Not to be written to before the names are synced."""
        file = self._disk.open(segment_path(number), writable=True)
        if file.size != self._segment_bytes:
            file.close()
            return None
        self._disk.rename(segment_path(number), SPARE)
        return file

    def _next_segment(self, needs_base: bool, length: int, last_lsn: int | None = None) -> None:
        """The room first: when there is none, the old segment goes on. `length`: for which there was no room in it."""
        size = min(self._next_bytes * 2, self._segment_bytes) if length else self._next_bytes
        self._take_spare(length, size)
        old = self._segment
        old.write_end(self._logs.end)
        closed = ClosedSegment(old.number, old.position, self._logs.end.last_lsn)
        if last_lsn is not None:
            self._logs.end = self._logs.end._replace(last_lsn=last_lsn, committed_lsn=0)
        self._start_segment(old.number + 1, old.position, needs_base, length)
        self._next_bytes = size
        old.close()
        self._note_closed(closed)

    def _start_segment(self, number: int, previous_bytes: int, needs_base: bool, length: int) -> None:
        """Only a file whose header is on disk gets the name of a segment."""
        path = segment_path(number)
        if self._disk.exists(path):
            raise StoreError(f"{path} is there already, but should be the next segment: run qpid-ha store check")
        spare, status, end = self._take_spare(length, self._next_bytes), self._recorded.status, self._logs.end
        header = FileHeader(
            "journal", *self.identity, number, self.generation, end.last_lsn + 1, end.local_lsn + 1,
            self._clock(), previous_bytes, needs_base, status.store if status is not None else "",
            status_revision=status.revision if status is not None else 0,
        )  # fmt: skip
        segment = Segment(spare, header)
        if needs_base:
            self._base = number
        self._disk.rename(SPARE, path)
        self._spare = None
        self._segment = segment
        self._sync_names()
        self._note_durable()

    def _take_spare(self, length: int, size: int) -> File:
        """The spare, with room for a group of `length` bytes; a new one has `size` at least. Raises OSError when the
        disk is full."""
        needed = FILE_HEADER_BYTES + length + END_ROOM_BYTES
        if self._spare is not None and self._spare.size < needed:
            self._drop_spare()
            self._disk.remove(SPARE)
        if self._spare is None:
            self._spare = self._disk.create(SPARE, max(size, needed))
        return self._spare

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _note_durable(self) -> None:
        if not self._base:
            self.durable_end = (self._segment.number, self._segment.position)

    def _note_flushed(self) -> None:
        self._note_durable()
        for block in self._staged:
            self._logs.note(block)
        self._staged = []
        self._are_one = False
        self.staged_bytes = 0

    def _sync_names(self) -> None:
        try:
            self._disk.sync_directory(SEGMENTS)
        except OSError as error:
            self._dead = f"cannot sync {SEGMENTS}: {error}"
            raise

    def _note_closed(self, closed: ClosedSegment) -> None:
        limit, self._logs.taken_back = self._logs.taken_back, None
        self._closed = tied([*self._closed, closed], () if limit is None else ((closed.number, limit),))

    def _check(self) -> None:
        if self._dead:
            raise JournalDead(f"the journal is not written any more: {self._dead}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The one place that tells a full disk from a failed one."""
        self._check()
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                self._dead = self._dead or str(error)
            raise


def _settle(disk: Disk, number: int, length: int) -> None:
    """Put the first `length` bytes of an old segment on disk for certain.

    Its last group may have been written and never synced before the process died. Where a sync had failed, the system
    takes the data for written although they are not: therefore they are written again, not only synced.
    """
    file = disk.open(segment_path(number), writable=True)
    try:
        known = FILE_HEADER_BYTES
        for block in BlockReader(file, read_header(file), headers_only=True, limit=length):
            known = max(known, block.synced)
        while known < length:
            data = file.read(known, min(_COPY_BYTES, length - known))
            if not data:
                raise StoreError(f"{segment_path(number)}: expected {length} bytes, found {known}")
            file.write(known, data)
            known += len(data)
        file.sync()
    finally:
        file.close()
