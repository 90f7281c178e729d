"""What there is of a store, seen from its headers: which files count, up to where, and what in them is void.

Whether a segment is missing or of another cluster, and which blocks a later one truncates, is known before any record
is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from qpid_ha_broker.events.layout import LOCAL_BASE

from .blocks import Block, BlockKind, FileHeader
from .errors import BlockError, StatusError, StoreDamaged
from .files import Disk, bytes_of
from .layout import segment_numbers, segment_path, snapshot_numbers, snapshot_path
from .reading import Ending, header_of, open_blocks, witnesses_of
from .status import STATUS_FILE, Status, read_status

NO_LIMIT: Final = LOCAL_BASE - 1
"""The highest LSN that a replicated log can have: nothing is void."""


class SegmentFound(NamedTuple):
    """A segment that counts. `end`: where its good blocks end; the LSNs: of both logs at its end.

    `last_lsn` is 0 where only the base of which the segment tells knows it.
    """

    number: int
    path: str
    header: FileHeader
    end: int
    last_lsn: int
    local_lsn: int


class TakenBack(NamedTuple):
    """At this place of the journal, (segment, offset), what came before it with a larger LSN became void."""

    place: tuple[int, int]
    last_lsn: int


class Survey(NamedTuple):
    """`segments` begin with the one before which the snapshot was taken, or with the first."""

    status: Status | None
    snapshot: FileHeader | None
    segments: tuple[SegmentFound, ...]
    taken_back: tuple[TakenBack, ...]
    committed_lsn: int
    """The last LSN of the replicated log, without what was taken back, of which a block says that it is committed."""
    left_out: int
    """Messages that were not durable, and that no block holds."""
    dropped: tuple[str, ...]
    """Files that do not count, and are in the way."""
    notes: tuple[str, ...]
    bytes: int
    """In all files that count."""

    @property
    def next_number(self) -> int:
        """Of the segment that a broker begins."""
        return self.segments[-1].number + 1 if self.segments else 1

    @property
    def previous_bytes(self) -> int:
        """The length of the segment before that one; 0: there is none."""
        return self.segments[-1].end if self.segments else 0


def limits_of(taken_back: Sequence[TakenBack]) -> Callable[[tuple[int, int]], int]:
    """For a place of the journal: the highest LSN of the replicated log that was not taken back later."""
    places = [truncation.place for truncation in taken_back]
    lowest = [NO_LIMIT]
    for truncation in reversed(taken_back):
        lowest.append(min(truncation.last_lsn, lowest[-1]))
    lowest.reverse()
    return lambda place: lowest[bisect_right(places, place)]


def survey(disk: Disk, before: int = 0) -> Survey:
    """Raises StoreDamaged or NewerFormat; changes nothing.

    `before`: of the segments before that one only, which is there; it may be written to meanwhile, and so may STATUS.
    """
    return _Surveyor(disk, before).survey()


class _Surveyor:
    """Goes through the files once."""

    def __init__(self, disk: Disk, before: int) -> None:
        self._disk = disk
        self._before = before
        self._notes: list[str] = []
        self._dropped: list[str] = []
        self._taken_back: list[TakenBack] = []
        self._committed = self._left_out = self._bytes = 0
        self._is_begun = False
        self._last: int | None = 0
        """The end of the replicated log; None: it is that of a copy of the primary's state."""
        self._local = 0
        self._identity: tuple[str, str] | None = None
        self._store = ""
        """The UUID that all files bear, once it was read."""
        self._is_marked = False
        """A segment or a snapshot has it."""
        self._first_dropped = 0

    def survey(self) -> Survey:
        status = self._read_status() if not self._before else None
        snapshot = self._find_snapshot()
        headers = self._find_headers(snapshot)
        if not self._before:
            self._check_status(status, snapshot, list(headers.values()))
        segments = []
        numbers = list(headers)
        for number, following in zip(numbers, [*numbers, 0][1:], strict=True):
            if number == self._before:
                break
            segments.append(self._read_segment(headers[number], headers.get(following), status))
        return Survey(
            status, snapshot, tuple(segments), tuple(self._taken_back), self._committed, self._left_out,
            tuple(self._dropped), tuple(self._notes), self._bytes,
        )  # fmt: skip

    def _read_status(self) -> Status | None:
        try:
            status = read_status(self._disk)
        except StatusError as error:
            raise StoreDamaged(STATUS_FILE, 0, str(error)) from error
        if status is None:
            return None
        self._check_identity(STATUS_FILE, status.cluster, status.set)
        self._store = status.store
        return status

    def _check_status(self, status: Status | None, snapshot: FileHeader | None, headers: list[FileHeader]) -> None:
        """STATUS is on disk before anything else is, and goes with the journal: an older one forgets promises."""
        files = [snapshot] if snapshot is not None else []
        files += headers
        if status is None:
            if files or self._dropped:
                raise StoreDamaged(STATUS_FILE, 0, "missing: no journal is begun without it")
            return
        last = headers[-1].number if headers else 0
        for number, length in filter(None, (status.journal_synced, status.journal_end if status.clean else None)):
            if number > last:
                path = snapshot_path(self._first_dropped) if self._dropped else segment_path(last + 1)
                text = f"missing: STATUS says that the journal was written up to offset {length} of segment {number}"
                raise StoreDamaged(path, 0, text)
        if status.clean and status.journal_end is not None and status.journal_end[0] < last:
            text = f"the store was closed in segment {status.journal_end[0]}, and there is {last}"
            raise StoreDamaged(STATUS_FILE, 0, f"older than the journal: {text}")
        for header in files:
            if header.status_revision > status.revision:
                text = (
                    f"older than the journal: it is revision {status.revision}, and"
                    f" {header.kind} {header.number} was begun when {header.status_revision} was there"
                )
                raise StoreDamaged(STATUS_FILE, 0, text)

    def _find_snapshot(self) -> FileHeader | None:
        numbers = [number for number in snapshot_numbers(self._disk) if not self._before or number < self._before]
        if not numbers:
            return None
        path = snapshot_path(numbers[-1])
        header = self._read_header(path, "snapshot", numbers[-1])
        self._bytes += bytes_of(self._disk, path)
        return header

    def _find_headers(self, snapshot: FileHeader | None) -> dict[int, FileHeader]:
        """Of the segments that count, in order."""
        present = [number for number in segment_numbers(self._disk) if not self._before or number <= self._before]
        first = snapshot.number if snapshot is not None else present[0] if present else 1
        numbers = [number for number in present if number >= first]
        if snapshot is not None and first not in numbers:
            raise StoreDamaged(segment_path(first), 0, "missing: it should follow the snapshot of that number")
        headers: dict[int, FileHeader] = {}
        for number, expected in zip(numbers, range(first, first + len(numbers)), strict=True):
            if number != expected:
                raise StoreDamaged(segment_path(expected), 0, f"missing, but there is {segment_path(number)}")
            header = self._read_header(segment_path(number), "journal", number)
            if snapshot is None and number == first and header.previous_bytes:
                path = snapshot_path(first) if header.needs_base else segment_path(first - 1)
                raise StoreDamaged(path, 0, f"missing: it should come before {segment_path(first)}")
            if header.needs_base and (snapshot is None or snapshot.number != number):
                self._drop(numbers[number - first :])
                break
            headers[number] = header
        return headers

    def _read_header(self, path: str, kind: str, number: int) -> FileHeader:
        """It was on disk before the file got its name: no crash leaves another one."""
        try:
            header = header_of(self._disk, path)
        except BlockError as error:
            raise StoreDamaged(path, 0, str(error)) from error
        if (header.kind, header.number) != (kind, number):
            raise StoreDamaged(path, 0, f"expected {kind} {number}, found {header.kind} {header.number}")
        self._check_identity(path, header.cluster, header.set)
        self._check_store(path, header.store)
        return header

    def _drop(self, numbers: list[int]) -> None:
        self._dropped += [segment_path(number) for number in reversed(numbers)]
        self._first_dropped = numbers[0]
        self._notes.append(
            f"{segment_path(numbers[0])} and what follows is ignored: it was to follow a copy of the primary's"
            " state, and that copy did not come to its end"
        )

    def _check_store(self, path: str, store: str) -> None:
        """Files of format 1 bear no UUID; they come before those that do."""
        if (store and self._store and store != self._store) or (self._is_marked and not store):
            text = f"belongs to store {store or '(of format 1)'}, the others to store {self._store}"
            raise StoreDamaged(path, 0, f"{text}: two stores were mixed")
        if store:
            self._store, self._is_marked = store, True

    def _check_identity(self, path: str, cluster: str, name: str) -> None:
        """The cluster is unknown until a broker has first met the others."""
        known = self._identity
        if known is not None and (name != known[1] or (cluster and known[0] and cluster != known[0])):
            raise StoreDamaged(
                path, 0, f"belongs to cluster {cluster} set {name}, the others to cluster {known[0]} set {known[1]}"
            )
        self._identity = (cluster or (known[0] if known is not None else ""), name)

    def _read_segment(self, header: FileHeader, following: FileHeader | None, status: Status | None) -> SegmentFound:
        """The last one is read with its data: what a crash tore shows in them, and nothing behind it counts."""
        path = segment_path(header.number)
        last, local = self._begin(path, header)
        limit = following.previous_bytes if following is not None else None
        with open_blocks(self._disk, path, header, headers_only=following is not None, limit=limit) as reader:
            for block in reader:
                last, local = self._read_block(path, header.number, block, last, local)
            verdict = reader.verdict(witnesses_of(header.number, status, following, is_last=following is None))
        if verdict.ending is Ending.DAMAGED or (limit is not None and reader.end != limit):
            raise StoreDamaged(path, reader.end, verdict.text)
        if verdict.ending is Ending.TORN and following is None:
            self._notes.append(f"{path} ends at offset {reader.end}, where a crash tore the last write: {verdict.text}")
        self._last, self._local, self._is_begun = last, local, True
        self._bytes += reader.end
        return SegmentFound(header.number, path, header, reader.end, last or 0, local)

    def _begin(self, path: str, header: FileHeader) -> tuple[int | None, int]:
        """The ends of both logs, where the segment begins."""
        last, local = header.first_lsn - 1, header.first_local_lsn - 1
        if not self._is_begun:
            return None if header.needs_base else last, local
        for before, now in ((self._last, last), (self._local, local)):
            if before is not None and before != now:
                raise StoreDamaged(path, 0, f"expected to go on after LSN {before}, found that it does after {now}")
        return self._last, local

    def _read_block(self, path: str, number: int, block: Block, last: int | None, local: int) -> tuple[int | None, int]:
        """Both ends after `block`."""
        self._committed = max(self._committed, block.committed_lsn)
        if block.kind is BlockKind.TAKEN_BACK:
            self._taken_back.append(TakenBack((number, block.offset), block.last_lsn))
            self._committed = min(self._committed, block.last_lsn)  # discarded by force, though committed
            return last if last is None else min(last, block.last_lsn), local
        if block.kind is not BlockKind.EVENTS:
            return last, local
        self._left_out += block.left_out
        is_local = block.is_local
        before = local if is_local else last
        if block.last_lsn < block.first_lsn or (before is not None and block.first_lsn != before + 1):
            text = f"expected events after LSN {before}, found LSNs {block.first_lsn} to {block.last_lsn}"
            raise StoreDamaged(path, block.offset, text)
        return (last, block.last_lsn) if is_local else (block.last_lsn, local)
