"""What there is of a store, seen from its headers: which files count, up to where, and what in them is void.

Like reading the spines and the tables of contents before the books: whether a volume is missing, whether one is of
another edition, and which pages a later one takes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple

from qpid_ha_broker.model.log import LOCAL_BASE

from .blocks import FILE_HEADER_BYTES, Block, BlockKind, FileHeader, read_block
from .errors import BlockError, StatusError, StoreDamaged
from .files import Disk
from .layout import segment_numbers, segment_path, snapshot_numbers, snapshot_path
from .reading import Ending, classify, read_blocks, read_header
from .status import STATUS_FILE, Status

ADVICE: Final = "run `qpid-ha store check` on this directory: docs/operations.md says what can be done"


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
    """The last LSN of the replicated log of which a block says that it is committed."""
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

    def limits(self) -> Callable[[tuple[int, int]], int]:
        """For a place of the journal: the highest LSN of the replicated log that was not taken back later."""
        places = [each.place for each in self.taken_back]
        lowest = [LOCAL_BASE - 1]
        for each in reversed(self.taken_back):
            lowest.append(min(each.last_lsn, lowest[-1]))
        lowest.reverse()
        return lambda place: lowest[bisect_right(places, place)]


def survey(disk: Disk, before: int = 0) -> Survey:
    """Raises StoreDamaged or NewerFormat; changes nothing.

    `before`: of the segments before that one only, which is there; it may be written to meanwhile, and so may STATUS.
    """
    return _Surveyor(disk, before).survey()


def damaged(path: str, offset: int, text: str) -> StoreDamaged:
    """With what to do."""
    return StoreDamaged(path, offset, f"{text}; {ADVICE}")


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

    def survey(self) -> Survey:
        status = self._read_status() if not self._before else None
        snapshot = self._find_snapshot()
        headers = self._find_headers(snapshot)
        clean = status.journal_end if status is not None and status.clean else None
        if clean is not None and clean[0] not in headers:
            raise damaged(segment_path(clean[0]), 0, "missing: STATUS says that the journal ends there")
        segments = []
        numbers = list(headers)
        for number, following in zip(numbers, [*numbers, 0][1:], strict=True):
            if number == self._before:
                break
            clean_bytes = clean[1] if clean is not None and clean[0] == number else 0
            segments.append(self._read_segment(headers[number], headers.get(following), clean_bytes))
        return Survey(
            status, snapshot, tuple(segments), tuple(self._taken_back), self._committed, self._left_out,
            tuple(self._dropped), tuple(self._notes), self._bytes,
        )  # fmt: skip

    def _read_status(self) -> Status | None:
        if not self._disk.exists(STATUS_FILE):
            return None
        with closing(self._disk.open(STATUS_FILE)) as file:
            data = file.read(0, file.size)
        try:
            status = Status.decode(data)
        except StatusError as error:
            raise damaged(STATUS_FILE, 0, str(error)) from error
        self._check_identity(STATUS_FILE, status.cluster, status.set)
        return status

    def _find_snapshot(self) -> FileHeader | None:
        numbers = [each for each in snapshot_numbers(self._disk) if not self._before or each < self._before]
        if not numbers:
            return None
        path = snapshot_path(numbers[-1])
        with closing(self._disk.open(path)) as file:
            try:
                header = read_header(file)
            except BlockError as error:
                raise damaged(path, 0, str(error)) from error
            self._bytes += file.size
        self._check_header(path, header, "snapshot", numbers[-1])
        return header

    def _find_headers(self, snapshot: FileHeader | None) -> dict[int, FileHeader]:
        """Of the segments that count, in order."""
        present = [each for each in segment_numbers(self._disk) if not self._before or each <= self._before]
        first = snapshot.number if snapshot is not None else present[0] if present else 1
        numbers = [number for number in present if number >= first]
        if snapshot is not None and first not in numbers:
            raise damaged(segment_path(first), 0, "missing: it should follow the snapshot of that number")
        headers: dict[int, FileHeader] = {}
        for number, expected in zip(numbers, range(first, first + len(numbers)), strict=True):
            if number != expected:
                raise damaged(segment_path(expected), 0, f"missing, but there is {segment_path(number)}")
            header = self._read_header(number, is_last=number == numbers[-1] and (snapshot is None or number != first))
            if header is None or (header.needs_base and (snapshot is None or snapshot.number != number)):
                self._drop(numbers[number - first :], header)
                break
            headers[number] = header
        begin = headers.get(first)
        if snapshot is None and begin is not None and begin.previous_bytes:
            raise damaged(segment_path(first - 1), 0, f"missing: it should come before {segment_path(first)}")
        return headers

    def _read_header(self, number: int, *, is_last: bool) -> FileHeader | None:
        """None: a crash came before anything was written into it."""
        path = segment_path(number)
        with closing(self._disk.open(path)) as file:
            try:
                header = read_header(file)
            except BlockError as error:
                start = file.read(FILE_HEADER_BYTES, FILE_HEADER_BYTES)
                if not is_last or isinstance(read_block(start, 0, number, headers_only=True), Block):
                    raise damaged(path, 0, str(error)) from error
                self._notes.append(f"{path} is ignored, a crash came while it was made: {error}")
                return None
        self._check_header(path, header, "journal", number)
        return header

    def _drop(self, numbers: list[int], header: FileHeader | None) -> None:
        self._dropped += [segment_path(number) for number in reversed(numbers)]
        if header is not None:
            self._notes.append(
                f"{segment_path(numbers[0])} and what follows is ignored: it was to follow a copy of the primary's"
                " state, and that copy did not come to its end"
            )

    def _check_header(self, path: str, header: FileHeader, kind: str, number: int) -> None:
        if (header.kind, header.number) != (kind, number):
            raise damaged(path, 0, f"expected {kind} {number}, found {header.kind} {header.number}")
        self._check_identity(path, header.cluster, header.set)

    def _check_identity(self, path: str, cluster: str, name: str) -> None:
        """The cluster is unknown until a broker has first met the others."""
        known = self._identity
        if known is not None and (name != known[1] or (cluster and known[0] and cluster != known[0])):
            raise damaged(
                path, 0, f"belongs to cluster {cluster} set {name}, the others to cluster {known[0]} set {known[1]}"
            )
        self._identity = (cluster or (known[0] if known is not None else ""), name)

    def _read_segment(self, header: FileHeader, following: FileHeader | None, clean_bytes: int) -> SegmentFound:
        """The last one is read with its data: what a crash tore shows in them, and nothing behind it counts."""
        path = segment_path(header.number)
        last, local = self._begin(path, header)
        limit = following.previous_bytes if following is not None else None
        with closing(self._disk.open(path)) as file:
            reader = read_blocks(file, header, headers_only=following is not None, limit=limit)
            for block in reader:
                last, local = self._read_block(path, header.number, block, last, local)
            previous = limit if limit is not None else 0
            verdict = classify(file, header, reader, previous_bytes=previous, clean_bytes=clean_bytes)
        if verdict.ending is Ending.DAMAGED or (limit is not None and reader.end != limit):
            raise damaged(path, reader.end, verdict.text)
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
                raise damaged(path, 0, f"expected to go on after LSN {before}, found that it does after {now}")
        return self._last, local

    def _read_block(self, path: str, number: int, block: Block, last: int | None, local: int) -> tuple[int | None, int]:
        """Both ends after `block`."""
        self._committed = max(self._committed, block.committed_lsn)
        if block.kind is BlockKind.TAKEN_BACK:
            self._taken_back.append(TakenBack((number, block.offset), block.last_lsn))
            return last if last is None else min(last, block.last_lsn), local
        if block.kind is not BlockKind.EVENTS:
            return last, local
        self._left_out += block.left_out
        is_local = block.first_lsn >= LOCAL_BASE
        before = local if is_local else last
        if block.last_lsn < block.first_lsn or (before is not None and block.first_lsn != before + 1):
            text = f"expected events after LSN {before}, found LSNs {block.first_lsn} to {block.last_lsn}"
            raise damaged(path, block.offset, text)
        return (last, block.last_lsn) if is_local else (block.last_lsn, local)
