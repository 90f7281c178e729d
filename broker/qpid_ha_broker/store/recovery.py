"""From files to a state: what a broker knows when it starts.

The promise: the state is the one that follows from what was kept, or an error says which file is not as it was written
and where. What there is, and what becomes of it (`survey` decides 1. to 5., before a record is decoded):

1. Nothing: the broker is empty.
2. The newest snapshot, and the segments from its number on, none missing: the snapshot is loaded, then the segments.
   Where either log does not go on where what came before ends, the store is damaged. What the snapshot's index tells of
   stays on disk (`unloading`); damage to that shows when it is read, which `server.stores.pager` does soon after.
3. A segment that needs a snapshot which is not there: a checkpoint did not come to its end. That segment and all
   behind it are dropped; what was before them is the state, and the primary is asked again.
4. A torn end of the last segment: nobody was promised anything about it. It is noted and left out. The same in an
   earlier segment, or before the place up to which STATUS says that the journal was synced, is damage.
5. Events that a later block has truncated: they are left out.
6. Events that are known to be committed, of a whole unit: they are applied. So is the broker's own log.
7. Events after that: they are held, in batches, for the primary to say whether they count, and with them what the
   broker's own log says behind them, which may need them. A broker that is alone (`apply_all`) applies them, too.
8. A journal that ends before what its snapshot was made of, or elsewhere than STATUS says of an end in order: damage.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.model.logs.write_times import WriteTimes
from qpid_ha_broker.model.sets.resource_set import ResourceSets

from .blocks import BlockKind
from .errors import StoreDamaged
from .files import Disk
from .layout import SEGMENTS, snapshot_path
from .loader import Loader
from .reader import JournalReader, Part
from .status import Status
from .survey import SegmentFound, Survey, TakenBack, survey
from .unloading import Unloading

Progress = Callable[[int, int], None]
"""Is told how many bytes are done, and of how many."""


_PROGRESS_BYTES: Final = 4 * 1024 * 1024
_FREEZE_MESSAGES: Final = 50_000


class HeldBatch(NamedTuple):
    """What was kept, but is not known to be committed: the primary, whoever that will be, says whether it counts."""

    first_lsn: int
    last_lsn: int
    records: list[LogRecord]
    behind: tuple[LogRecord, ...] = ()
    """Of the broker's own log, between this one and the next."""


class Recovered(NamedTuple):
    """What was found, besides the state."""

    status: Status | None
    was_clean: str
    """UUID of the shutdown that was the last that happened to the store; empty: it did not end in order."""
    is_empty: bool
    """There is no journal, and no snapshot."""
    last_lsn: int
    """Of the replicated log, as far as it is applied."""
    journal_lsn: int
    """Of the replicated log, with what is held: the next segment begins after it."""
    local_lsn: int
    held: tuple[HeldBatch, ...]
    committed_lsn: int
    messages: int
    """In all queues; one in two queues counts twice."""
    lost_transient: int
    """Messages that were not durable and were still there: at most so many."""
    notes: tuple[str, ...]
    """What an operator may want to know."""
    segments: tuple[SegmentFound, ...]
    snapshot_number: int
    """0: there is none."""
    next_number: int
    previous_bytes: int
    bytes_read: int
    taken_back: tuple[TakenBack, ...] = ()
    """What of the segments is void: see `store.journal.tied`."""


def recover(
    disk: Disk,
    sets: ResourceSets,
    *,
    apply_all: bool,
    progress: Progress = lambda done, total: None,
    read_only: bool = False,
    unloading: Unloading | None = None,
) -> Recovered:
    """Fill `sets`, which are new, from what is on `disk`. Deletes segments that cannot count, unless `read_only`.

    `unloading`: leaves payloads on disk for which there is no room in memory, and what need not be read now.
    `apply_all`: also what is not known to be committed, for who is alone to decide. Otherwise that comes as `held`.
    Raises StoreDamaged, NewerFormat, OSError; `sets` are then of no use.
    """
    surveyed = survey(disk)
    if surveyed.dropped and not read_only:
        for path in surveyed.dropped:
            disk.remove(path)
        disk.sync_directory(SEGMENTS)
    with _without_collections():
        return _Recovery(disk, sets, surveyed, apply_all, progress, unloading).run()


class _Recovery:
    """One run."""

    def __init__(
        self, disk: Disk, sets: ResourceSets, surveyed: Survey, apply_all: bool, progress: Progress,
        unloading: Unloading | None,
    ) -> None:  # fmt: skip
        self._sets = sets
        self._survey = surveyed
        self._apply_all = apply_all
        self._progress = progress
        self._unloading = unloading
        self._local_times = sets.local_log.write_times if sets.has_local else WriteTimes()
        self._loader = Loader(sets)
        index = None
        if unloading is not None and surveyed.snapshot is not None:
            index = unloading.index_of(disk, surveyed.snapshot)
        self._reader = JournalReader(disk, surveyed, index, self._loader.load_cold)
        self._held: list[HeldBatch] = []
        self._told = 0
        self._last_lsn = 0
        self._committed = surveyed.committed_lsn

    def run(self) -> Recovered:
        self._progress(0, self._survey.bytes)
        is_snapshot = self._survey.snapshot is not None
        if is_snapshot:
            self._loader.begin_snapshot()
        for part in self._reader.blocks():
            if part.block.kind is BlockKind.END:
                self._end_snapshot(part)
                is_snapshot = False
            elif is_snapshot:
                self._load(part)
            elif part.block.is_local:
                self._load_local(part)
                self._local_times.note(part.written_ms, part.block.last_lsn)
            else:
                self._load_replicated(part)
            self._advance()
        self._check_ends()
        messages = self._loader.finish()
        _spare_the_collector(messages)
        return self._recovered(messages)

    def _end_snapshot(self, part: Part) -> None:
        end = self._reader.base
        if end.messages != self._loader.enqueued:
            text = f"expected {end.messages} messages, found {self._loader.enqueued}"
            raise StoreDamaged(part.path, part.block.end, text)
        self._loader.end_snapshot(end)
        self._last_lsn = end.last_lsn
        self._committed = max(self._committed, end.last_lsn, end.counts_lsn)
        self._sets.replicated.log.write_times.note(part.written_ms, end.last_lsn)
        self._local_times.note(part.written_ms, end.local_lsn)

    def _load_replicated(self, part: Part) -> None:
        """What comes after the commitment is held, unless all is applied."""
        path, block, after, limit, written_ms = part
        upto = LOCAL_BASE - 1 if self._apply_all else self._committed
        if limit > upto >= block.first_lsn and upto < block.last_lsn:
            upto = _before_unit(part.records(), upto)
        counting = min(limit, upto)
        if after < block.last_lsn and block.first_lsn <= counting:
            if block.first_lsn > self._last_lsn + 1:
                text = f"expected events after LSN {self._last_lsn}, found LSNs {block.first_lsn} to {block.last_lsn}"
                raise StoreDamaged(path, block.offset, text)
            self._load(part._replace(limit=counting))
            self._last_lsn = max(self._last_lsn, min(block.last_lsn, counting))
            self._sets.replicated.log.write_times.note(written_ms, self._last_lsn)
        first, last = max(block.first_lsn, upto + 1, after + 1), min(block.last_lsn, limit)
        if first <= last:
            records = [record for record in part.records() if first <= record.lsn <= last]
            self._held.append(HeldBatch(first, last, records))

    def _load_local(self, part: Part) -> None:
        if self._held:
            last = self._held.pop()
            records = [record for record in part.records() if record.lsn > part.after]
            self._held.append(last._replace(behind=(*last.behind, *records)))
        else:
            self._load(part)

    def _load(self, part: Part) -> None:
        part.feed(self._loader.load)
        if self._unloading is not None:
            self._unloading.loaded(part, self._loader.messages)

    def _check_ends(self) -> None:
        """The journal must reach as far as what was built on it, and begin where that ends."""
        segments, status, base = self._survey.segments, self._survey.status, self._reader.base
        if not segments:
            return
        first, last = segments[0].header, segments[-1]
        begins = (1 if first.needs_base else first.first_lsn, first.first_local_lsn)
        if begins[0] > base.last_lsn + 1 or begins[1] > base.local_lsn + 1:
            text = f"begins at LSNs {begins}, but what came before ends at {base.last_lsn}, {base.local_lsn}"
            raise StoreDamaged(segments[0].path, 0, text)
        ends = (last.last_lsn or base.last_lsn, last.local_lsn)
        if ends[0] < base.counts_lsn or ends[1] < base.local_counts_lsn:
            text = f"ends at LSNs {ends}, but {snapshot_path(segments[0].number)} was made of {base}"
            raise StoreDamaged(last.path, last.end, text)
        is_clean = status is not None and status.clean and status.journal_end == (last.number, last.end)
        if is_clean and status is not None and ends != (status.last_lsn, status.local_lsn):
            text = f"ends at LSNs {ends}, STATUS says {status.last_lsn}, {status.local_lsn}"
            raise StoreDamaged(last.path, last.end, text)

    def _recovered(self, messages: int) -> Recovered:
        surveyed, sets, base = self._survey, self._sets, self._reader.base
        local_lsn = max(base.local_lsn, surveyed.segments[-1].local_lsn) if surveyed.segments else base.local_lsn
        journal_lsn = (surveyed.segments[-1].last_lsn if surveyed.segments else 0) or base.last_lsn
        sets.reset(self._last_lsn, local_lsn)
        for queue in sets.catalog.queues.values():
            queue.redelivered_below = queue.log.last_lsn
        status, notes = surveyed.status, list(surveyed.notes)
        if self._unloading is not None and self._unloading.note:
            notes.append(self._unloading.note)
        was_clean = status.clean if status is not None else ""
        if self._loader.misfits:
            notes.append(
                counted(
                    self._loader.misfits,
                    "event of this broker's own log was about something that is not here",
                    "events of this broker's own log were about things that are not here",
                )
            )
        transient = base.transient + surveyed.left_out + self._loader.transient - self._loader.unknown
        return Recovered(
            status=status,
            was_clean=was_clean,
            is_empty=not surveyed.segments and surveyed.snapshot is None,
            last_lsn=self._last_lsn,
            journal_lsn=journal_lsn,
            local_lsn=local_lsn,
            held=tuple(self._held),
            committed_lsn=min(self._committed, journal_lsn),
            messages=messages,
            lost_transient=max(transient, 0),
            notes=tuple(notes),
            segments=surveyed.segments,
            snapshot_number=surveyed.snapshot.number if surveyed.snapshot is not None else 0,
            next_number=surveyed.next_number,
            previous_bytes=surveyed.previous_bytes,
            bytes_read=self._reader.bytes_read,
            taken_back=surveyed.taken_back,
        )

    def _advance(self) -> None:
        done = self._reader.bytes_read
        if done >= self._told + _PROGRESS_BYTES:
            self._told = done
            self._progress(done, max(self._survey.bytes, done))


def _before_unit(records: list[LogRecord], upto: int) -> int:
    """`upto`, or what comes before the unit that it would cut in two."""
    first_part = 0
    for lsn, _, part in records:
        if lsn > upto:
            break
        first_part = (first_part or lsn) if part else 0
    return first_part - 1 if first_part else upto


@contextmanager
def _without_collections() -> Iterator[None]:
    """The collector would look through millions of new objects again and again, and find no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _spare_the_collector(messages: int) -> None:
    """What was loaded is no garbage: without this, the first rounds of the collector look through all of it."""
    if messages >= _FREEZE_MESSAGES:
        gc.freeze()
