"""What there is of a store, seen from the headers of its blocks: the snapshot with which it begins, which segments
follow, up to where, and what of them is void.

Made on the driver. It reads 64 bytes of each block, which is little where blocks are large; what is in the blocks, only
the executors read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Final, NamedTuple

from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.store.blocks import FILE_HEADER_BYTES, Block, BlockKind, FileHeader, block_mark, read_block
from qpid_ha_broker.store.errors import BlockError, NewerFormat
from qpid_ha_broker.store.files import Disk, File
from qpid_ha_broker.store.layout import segment_numbers, segment_path, snapshot_numbers, snapshot_path
from qpid_ha_broker.store.reading import (
    NO_WITNESSES,
    BlockReader,
    Ending,
    Witnesses,
    header_of,
    open_blocks,
    witnesses_of,
)
from qpid_ha_broker.store.snapshot import read_end
from qpid_ha_broker.store.status import STATUS_FILE, Status
from qpid_ha_broker.store.survey import NO_LIMIT, TakenBack
from qpid_ha_pipeline.errors import JournalDamaged, PipelineError

from .stores import Directory, read_status


class Damage(NamedTuple):
    """A place that is not as it was written."""

    file: str
    offset: int
    text: str


class SurveyedPiece(NamedTuple):
    """Blocks that lie together, and between which LSNs of the replicated log; `begin` and `end` are offsets.

    Without events of that log `first_lsn` is greater than `last_lsn`. No block truncates others of the same piece.
    """

    begin: int
    end: int
    first_lsn: int
    last_lsn: int
    has_local: bool


class SurveyedSegment(NamedTuple):
    """A segment that counts, or a snapshot, whose blocks are read in the same way. `end`: where its good blocks end, as
    far as headers tell; of a snapshot, where its END begins."""

    number: int
    header: FileHeader
    end: int
    witnesses: Witnesses
    """How far others say that it was written."""
    pieces: tuple[SurveyedPiece, ...]
    taken_back: tuple[TakenBack, ...]
    """Ascending by place."""
    truncated_to: int = NO_LIMIT
    """The lowest LSN after which events were made void here."""
    last_lsn: int | None = None
    """Of the replicated log at its end; None: it has no event of that log."""
    tail_at: int = FILE_HEADER_BYTES
    """Where the first of the blocks begins that lie within the last TAIL_BYTES."""

    @property
    def is_snapshot(self) -> bool:
        """Whether the file is a snapshot."""
        return self.header.kind == "snapshot"

    @property
    def name(self) -> str:
        """Its path within the store."""
        return snapshot_path(self.number) if self.is_snapshot else segment_path(self.number)


class SurveyedSnapshot(NamedTuple):
    """The snapshot before the first segment that counts."""

    file: SurveyedSegment
    last_lsn: int
    """Of the replicated log: what comes after it is in the segments."""
    messages: int


class SurveyedStore(NamedTuple):
    """A store as it was when it was looked at."""

    directory: Directory
    status: Status | None
    segments: tuple[SurveyedSegment, ...]
    committed_lsn: int
    """The highest LSN that a block says is committed."""
    damages: tuple[Damage, ...]
    first_number: int
    """Of the oldest segment that counts, also if it was not looked at; 0: there is none."""
    base: SurveyedSnapshot | None = None
    """None: the segments begin with the log, or the snapshot was not asked for."""

    @property
    def cluster(self) -> str:
        """Its UUID; empty: not known yet."""
        known = [segment.header.cluster for segment in self.segments if segment.header.cluster]
        return known[-1] if known else self.status.cluster if self.status is not None else ""

    @property
    def set(self) -> str:
        """The resource set; empty: not known yet."""
        if self.segments:
            return self.segments[-1].header.set
        return self.status.set if self.status is not None else ""

    @property
    def taken_back(self) -> tuple[TakenBack, ...]:
        """Of all segments, ascending by place."""
        return tuple(truncation for segment in self.segments for truncation in segment.taken_back)

    @property
    def counting_segments(self) -> tuple[SurveyedSegment, ...]:
        """The segments from which state and events follow: older ones than the snapshot are about to be deleted."""
        first = self.base.file.number if self.base is not None else 0
        return tuple(segment for segment in self.segments if segment.number >= first)

    @property
    def complete_from(self) -> int:
        """The first LSN from which on each event is in the segments."""
        if self.base is not None:
            return self.base.last_lsn + 1
        return self.segments[0].header.first_lsn if self.segments else 1

    @property
    def last_lsn(self) -> int:
        """Where the replicated log ends."""
        last = self.base.last_lsn if self.base is not None else 0
        for segment in self.counting_segments:
            last = min(last, segment.truncated_to) if segment.last_lsn is None else segment.last_lsn
        return last


class Closed(NamedTuple):
    """What is known of a segment that will not change any more."""

    segment: SurveyedSegment
    """Without its pieces."""
    committed_lsn: int


TAIL_BYTES: Final = 4 * 1024 * 1024
"""STATUS is written right behind the events of which it tells, so what it does not know yet is within so much."""

Known = dict[int, Closed]
"""By number: who looks at a store again and again does not look again at what it knows."""
Wanted = Callable[[int, int, int], bool]
"""Whether the pieces of a segment are wanted: its number, and of the pieces before it the events and the bytes."""


def _everything(_number: int, _events: int, _bytes: int) -> bool:
    return True


def look(
    directory: Directory, *, is_permissive: bool, piece_bytes: int, begin: tuple[int, int] = (0, FILE_HEADER_BYTES),
    wanted: Wanted = _everything, known: Known | None = None,
) -> SurveyedStore:  # fmt: skip
    """Raises JournalDamaged unless permissive, and PipelineError for what no release of this age can read.

    `begin`: segment and offset before which nothing is looked at; offset 0 is that of the snapshot before the segment.
    From the first segment on that is not `wanted`, none has pieces. Files of a running broker come and go: then it
    looks again.
    """
    disk = directory.disk
    for _ in range(_ATTEMPTS):
        before = segment_numbers(disk)
        with suppress(FileNotFoundError):
            try:
                store = _StoreSurveyor(directory, is_permissive, piece_bytes, known).store(*begin, wanted)
            except JournalDamaged:
                if before == segment_numbers(disk):
                    raise
                continue
            if not store.damages or before == segment_numbers(disk):
                return store
    raise PipelineError(f"{directory.path}: its files change faster than they can be looked at; try again")


_ATTEMPTS: Final = 5


class _StoreSurveyor:
    """One look at one store."""

    def __init__(self, directory: Directory, is_permissive: bool, piece_bytes: int, known: Known | None) -> None:
        self._known: Known = {} if known is None else known
        self._directory = directory
        self._disk = directory.disk
        self._is_permissive = is_permissive
        self._piece_bytes = piece_bytes
        self._damages: list[Damage] = []

    def store(self, first_number: int, first_offset: int, wanted: Wanted) -> SurveyedStore:
        status = read_status(self._directory)
        headers = self._headers(status)
        base = self._base(headers) if first_number == 0 or first_offset == 0 else None
        numbers = [number for number in headers if number >= first_number]
        segments: list[SurveyedSegment] = []
        committed = base.last_lsn if base is not None else 0
        events = length = 0
        is_wanted = True
        for number in numbers:
            following = headers.get(number + 1)
            is_wanted = is_wanted and wanted(number, events, length)
            closed = self._known.get(number) if following is not None and not is_wanted else None
            if closed is None or closed.segment.header != headers[number]:
                begin = max(first_offset, FILE_HEADER_BYTES) if number == first_number else FILE_HEADER_BYTES
                witnesses = witnesses_of(number, status, following, is_last=number == numbers[-1])
                closed = self._segment(headers[number], witnesses, begin)
                if following is not None and begin == FILE_HEADER_BYTES:
                    self._known[number] = Closed(closed.segment._replace(pieces=()), closed.committed_lsn)
            committed = max(min(committed, closed.segment.truncated_to), closed.committed_lsn)
            segments.append(closed.segment if is_wanted else closed.segment._replace(pieces=()))
            events += sum(max(0, piece.last_lsn - piece.first_lsn + 1) for piece in segments[-1].pieces)
            length += sum(piece.end - piece.begin for piece in segments[-1].pieces)
        for number in [known_number for known_number in self._known if known_number not in headers]:
            del self._known[number]
        first = next(iter(headers), 0)
        return SurveyedStore(self._directory, status, tuple(segments), committed, tuple(self._damages), first, base)

    def _base(self, headers: dict[int, FileHeader]) -> SurveyedSnapshot | None:
        """The newest snapshot, where what comes before the first segment is not there any more."""
        first = next(iter(headers.values()), None)
        numbers = [number for number in snapshot_numbers(self._disk) if number in headers]
        if first is None or not numbers or not (first.previous_bytes or first.needs_base):
            return None
        name = snapshot_path(numbers[-1])
        try:
            header = header_of(self._disk, name)
            with open_blocks(self._disk, name, header, headers_only=True) as reader:
                begin = reader.end
                for block in reader:
                    if block.kind is BlockKind.END:
                        data = read_at(self._disk, name, block.data_at, block.length)
                        end = read_end(block._replace(data=data))
                        file = SurveyedSegment(header.number, header, block.offset, NO_WITNESSES, (), ())
                        piece = SurveyedPiece(begin, block.offset, 0, end.last_lsn, end.local_lsn > LOCAL_BASE)
                        file = file._replace(pieces=(piece,) if block.offset > begin else ())
                        return SurveyedSnapshot(file, end.last_lsn, end.messages)
                self._damaged(name, reader.end, reader.instead)
        except NewerFormat as error:
            raise PipelineError(f"{self._directory.file(name)}: {error}") from error
        except BlockError as error:
            self._damaged(name, 0, str(error))
        return None

    def _damaged(self, name: str, offset: int, text: str) -> None:
        if not self._is_permissive:
            raise JournalDamaged(self._directory.file(name), offset, text)
        self._damages.append(Damage(self._directory.file(name), offset, text))

    def _headers(self, status: Status | None) -> dict[int, FileHeader]:
        """Of the segments that count, ascending: the newest ones that follow each other."""
        numbers, snapshots = segment_numbers(self._disk), set(snapshot_numbers(self._disk))
        headers: dict[int, FileHeader] = {}
        for number in numbers:
            header = self._header(number)
            if header is None:
                continue
            if number == numbers[0]:
                self._check_beginning(header, snapshots)
            if header.needs_base and number not in snapshots:
                break  # the state was being changed from outside, and that did not end: what was before counts
            if header.needs_base:
                headers.clear()  # what was before led to another state
            elif headers and number - 1 not in headers:
                self._damaged(segment_path(number - 1), 0, f"missing, but there is {segment_path(number)}")
            headers[number] = header
        self._check_status(status, numbers, headers)
        self._check_identity(status, headers)
        return headers

    def _check_beginning(self, first: FileHeader, snapshots: set[int]) -> None:
        """What comes before the first segment is in a snapshot, or there was nothing."""
        base, number = max(snapshots, default=0), first.number
        if snapshots and base < number:
            self._damaged(segment_path(base), 0, "missing: it should follow the snapshot of that number")
        elif not snapshots and first.previous_bytes:
            path = snapshot_path(number) if first.needs_base else segment_path(number - 1)
            self._damaged(path, 0, f"missing: it should come before {segment_path(number)}")

    def _check_status(self, status: Status | None, numbers: list[int], headers: dict[int, FileHeader]) -> None:
        """The end of the journal of which STATUS tells must be there."""
        if status is None:
            if numbers:
                self._damaged(STATUS_FILE, 0, "missing: no journal is begun without it")
            return
        last = max(headers, default=0)
        for number, length in filter(None, (status.journal_synced, status.journal_end if status.clean else None)):
            if number > last:
                path = snapshot_path(last + 1) if last + 1 in numbers else segment_path(last + 1)
                text = f"missing: STATUS says that the journal was written up to offset {length} of segment {number}"
                self._damaged(path, 0, text)
                return

    def _header(self, number: int) -> FileHeader | None:
        name = segment_path(number)
        try:
            header = header_of(self._disk, name)
        except NewerFormat as error:
            raise PipelineError(f"{self._directory.file(name)}: {error}") from error
        except BlockError as error:
            self._damaged(name, 0, str(error))
            return None
        if (header.kind, header.number) != ("journal", number):
            self._damaged(name, 0, f"expected journal {number}, found {header.kind} {header.number}")
            return None
        return header

    def _check_identity(self, status: Status | None, headers: dict[int, FileHeader]) -> None:
        cluster, store = (status.cluster, status.store) if status is not None else ("", "")
        for number, header in headers.items():
            if header.store and store and header.store != store:
                raise PipelineError(
                    f"{self._directory.file(segment_path(number))} belongs to the store {header.store},"
                    f" the rest of this store to {store}: somebody has mixed two stores"
                )
            store = store or header.store
            if cluster and header.cluster and header.cluster != cluster:
                raise PipelineError(
                    f"{self._directory.file(segment_path(number))} belongs to the cluster {header.cluster},"
                    f" the rest of this store to {cluster}: somebody has mixed two stores"
                )
            cluster = cluster or header.cluster

    def _segment(self, header: FileHeader, witnesses: Witnesses, begin: int) -> Closed:
        name, limit = segment_path(header.number), witnesses.previous_bytes or None
        blocks = _Blocks(header.number, _Pieces(self._piece_bytes, begin), keeps_marks=not witnesses.is_last)
        with closing(self._disk.open(name)) as file:
            at, unsynced = begin, deque[Block]()
            synced = max(witnesses.clean_bytes, witnesses.synced_bytes)
            while True:
                reader = BlockReader(file, header, headers_only=True, limit=limit)
                reader.end = at
                for block in reader:
                    synced = max(synced, block.synced)
                    unsynced.append(block)
                    while unsynced and (unsynced[0].end <= synced or not witnesses.is_last):
                        blocks.add(unsynced.popleft())
                verdict, end = reader.verdict(witnesses), reader.end
                if verdict.ending is not Ending.DAMAGED and (limit is None or end == limit):
                    break
                self._damaged(name, end, verdict.text)
                while unsynced:  # what lies behind says that they were on disk
                    blocks.add(unsynced.popleft())
                last = limit or witnesses.clean_bytes or reader.file_bytes
                at = next_good_block(file, header.number, end + 1, last)
                blocks.pieces.skip_to(at)
                if at >= last:
                    end = last
                    break
            for block in unsynced:
                if not isinstance(
                    read_block(file.read(block.offset, block.end - block.offset), 0, header.number), Block
                ):
                    end = block.offset  # a crash tore it, or it is being written: nobody was promised what it holds
                    break
                blocks.add(block)
        segment = SurveyedSegment(
            header.number, header, end, witnesses, tuple(blocks.pieces.all()), tuple(blocks.taken_back),
            blocks.truncated_to, blocks.last_lsn, blocks.recent[0] if blocks.recent else begin,
        )  # fmt: skip
        return Closed(segment, blocks.committed_lsn)


def read_at(disk: Disk, name: str, offset: int, length: int) -> bytes:
    """So many bytes of a file. Raises FileNotFoundError."""
    with closing(disk.open(name)) as file:
        return file.read(offset, length)


def next_good_block(file: File, number: int, at: int, end: int) -> int:
    """Where from `at` on the next whole block of that file begins; `end`: nowhere before."""
    data, mark = file.read(at, max(0, end - at)), block_mark(number)
    mark_at = data.find(mark)
    while mark_at >= 0:
        if isinstance(read_block(data, mark_at, number, base=at), Block):
            return at + mark_at
        mark_at = data.find(mark, mark_at + 1)
    return end


class _Blocks:
    """What the headers of a segment's blocks tell, taken one after the other."""

    def __init__(self, number: int, pieces: _Pieces, *, keeps_marks: bool) -> None:
        """`keeps_marks`: a mark at the end stays; else the next block is written over it."""
        self.pieces = pieces
        self.taken_back: list[TakenBack] = []
        self.committed_lsn = 0
        self.truncated_to = NO_LIMIT
        self.last_lsn: int | None = None
        self.recent = deque[int]()
        """Offsets of the blocks within the last TAIL_BYTES."""
        self._number = number
        self._keeps_marks = keeps_marks

    def add(self, block: Block) -> None:
        self.committed_lsn = max(self.committed_lsn, block.committed_lsn)
        self.recent.append(block.offset)
        while block.end - self.recent[0] > TAIL_BYTES and len(self.recent) > 1:
            self.recent.popleft()
        if block.kind is BlockKind.TAKEN_BACK:
            self.taken_back.append(TakenBack((self._number, block.offset), block.last_lsn))
            self.truncated_to = min(self.truncated_to, block.last_lsn)
            self.last_lsn = None if self.last_lsn is None else min(self.last_lsn, block.last_lsn)
            self.committed_lsn = min(self.committed_lsn, block.last_lsn)  # discarded by force, though committed
        elif block.kind is BlockKind.EVENTS and not block.is_local:
            self.last_lsn = block.last_lsn
        if block.kind is not BlockKind.MARK or self._keeps_marks:
            self.pieces.add(block)


class _Pieces:
    """Puts blocks together until they are enough."""

    def __init__(self, most: int, begin: int) -> None:
        self._most = most
        self._done: list[SurveyedPiece] = []
        self._begin = self._end = begin
        self._first, self._last, self._has_local = LOCAL_BASE, -1, False

    def add(self, block: Block) -> None:
        is_full = block.end - self._begin > self._most or block.kind is BlockKind.TAKEN_BACK
        if is_full and self._end > self._begin:
            self._cut()
        self._end = block.end
        if block.kind is BlockKind.EVENTS and block.is_local:
            self._has_local = True
        elif block.kind is BlockKind.EVENTS:
            self._first, self._last = min(self._first, block.first_lsn), max(self._last, block.last_lsn)

    def skip_to(self, offset: int) -> None:
        """What lies before cannot be read."""
        if self._end > self._begin:
            self._cut()
        self._begin = self._end = offset

    def all(self) -> Iterator[SurveyedPiece]:
        if self._end > self._begin:
            self._cut()
        return iter(self._done)

    def _cut(self) -> None:
        self._done.append(SurveyedPiece(self._begin, self._end, self._first, self._last, self._has_local))
        self._begin = self._end
        self._first, self._last, self._has_local = LOCAL_BASE, -1, False
