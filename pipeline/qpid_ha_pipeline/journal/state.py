"""What is in a store now: which of its messages are still there, and the queues, exchanges and bindings that there are.

What became of each message says the broker's own code that folds segments (`store.fold`): it notes what was removed. A
message is a row as the file has it that holds it, so that it is known when it came; all else has no place of its own in
a file, and comes from the state as a snapshot would have it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.store.blocks import FILE_HEADER_BYTES, Block
from qpid_ha_broker.store.errors import NewerFormat, StoreDamaged
from qpid_ha_broker.store.files import bytes_of
from qpid_ha_broker.store.fold import Gatherer, gather
from qpid_ha_broker.store.layout import segment_numbers, snapshot_numbers
from qpid_ha_broker.store.reading import NO_WITNESSES
from qpid_ha_broker.store.snapshot import SnapshotEnd, configuration_events
from qpid_ha_broker.store.survey import NO_LIMIT, Survey, survey
from qpid_ha_pipeline.errors import JournalDamaged, PipelineError

from .part import JournalPart, LsnRange, Origin, StatePart
from .records import NONE, Ints, Mask, Records, Rows, find_records, signed, unsigned
from .scan import BlockColumns, Window
from .survey import SurveyedPiece, SurveyedSegment

_ATTEMPTS: Final = 5


class StoreState:
    """The state of one store, as of when this was made. Its messages are in `files`, all else in `configuration`."""

    def __init__(self, part: StatePart) -> None:
        """Raises JournalDamaged; PipelineError for a store that a broker changes too fast, or of a newer release."""
        self._part = part
        self._survey, self._removals, base = _gather(part.origin)
        self._origin = replace(part.origin, taken_back=self._survey.taken_back)
        self._after = base.last_lsn
        last = self._survey.segments[-1] if self._survey.segments else None
        self._ends = (last.last_lsn or base.last_lsn, last.local_lsn) if last is not None else (0, LOCAL_BASE)
        self._removed = {
            signed(queue): np.sort(np.fromiter(ids, np.uint64, len(ids)).view(np.int64))
            for queue, ids in self._removals.removed.items()
        }

    @property
    def files(self) -> list[JournalPart]:
        """What holds the messages: rows of them count only where `is_there` says so."""
        surveyed = self._survey
        files = [
            SurveyedSegment(segment.number, segment.header, segment.end, NO_WITNESSES, (), ())
            for segment in surveyed.segments
        ]
        if surveyed.snapshot is not None:
            base = SurveyedSegment(surveyed.snapshot.number, surveyed.snapshot, 0, NO_WITNESSES, (), ())
            files.insert(0, base._replace(end=bytes_of(self._origin.directory.disk, base.name)))
        return [self._file(file) for file in files]

    def _file(self, segment: SurveyedSegment) -> JournalPart:
        lsns = self._part.lsns
        if not segment.is_snapshot:
            lsns = lsns.within(LsnRange(self._after + 1))
        piece = SurveyedPiece(FILE_HEADER_BYTES, segment.end, 0, NO_LIMIT, True)
        return JournalPart(self._origin, segment, piece, lsns, self._part.with_local)

    @property
    def configuration(self) -> ConfigurationWindow | None:
        """Generations, in-sync set, exchanges, queues and bindings, as a snapshot has them; None: it is empty."""
        if not self._survey.segments:
            return None
        events = configuration_events(self._removals.sets, *self._ends)
        data = encode_all([LogRecord(lsn, event, False) for lsn, event in events])
        header = self._survey.segments[-1].header._replace(kind="snapshot")
        segment = SurveyedSegment(header.number, header, 0, NO_WITNESSES, (), ())
        nothing = SurveyedPiece(0, 0, 1, 0, False)
        part = ConfigurationPart(self._origin, segment, nothing, self._part.lsns, self._part.with_local)
        return ConfigurationWindow(part, 0, BlockColumns.of([], 0), Records(data, find_records(data)))

    def is_there(self, rows: Rows) -> Mask:
        """Which rows are of messages that are in their queues."""
        there = np.zeros(len(rows), np.bool_)
        for queue in np.unique(rows.queue_ids):
            removed = self._removed.get(int(queue))
            if removed is None:  # the queue was deleted
                continue
            chosen = np.flatnonzero(rows.queue_ids == queue)
            messages = rows.message_ids[chosen]
            places = np.minimum(np.searchsorted(removed, messages), max(len(removed) - 1, 0))
            gone = removed[places] == messages if len(removed) else np.zeros(len(messages), np.bool_)
            emptied = self._removals.emptied_at(int(queue))
            if emptied is not None:
                gone |= messages < np.where(messages < 0, *emptied[::-1])
            there[chosen] = ~gone
        return there


@dataclass(frozen=True)
class ConfigurationPart(JournalPart):
    """What lies in no file."""

    @property
    def file(self) -> str:
        """None."""
        return ""


class ConfigurationWindow(Window):
    """Records that were made of the state."""

    def file_offsets(self) -> Ints:
        """None."""
        return np.full(len(self.records), NONE, np.int64)


class _Removals(Gatherer):
    """What was removed, and up to which LSN of each log queues were emptied."""

    def __init__(self) -> None:
        super().__init__(ResourceSets())
        self._local_lsn = LOCAL_BASE
        self._emptied_local: dict[int, tuple[tuple[int, int], int]] = {}

    def block_loaded(self, block: Block) -> None:
        """As `Gatherer.block_loaded`."""
        for queue, place in self.emptied.items():
            if self._emptied_local.get(queue, ((0, 0), 0))[0] != place:
                self._emptied_local[queue] = place, self._local_lsn
        if block.is_local:
            self._local_lsn = max(self._local_lsn, block.last_lsn)

    def emptied_at(self, queue: int) -> tuple[int, int] | None:
        """Messages before these LSNs, of the replicated and of the local log, left the queue. All are signed."""
        emptied = self.emptied.get(unsigned(queue))
        if emptied is None:
            return None
        return signed(emptied[1]), signed(self._emptied_local[unsigned(queue)][1] + 1)


def _gather(origin: Origin) -> tuple[Survey, _Removals, SnapshotEnd]:
    """What there is of a store, what was removed, and how its snapshot ends; again where files came and went."""
    disk = origin.directory.disk
    for _ in range(_ATTEMPTS):
        names = segment_numbers(disk), snapshot_numbers(disk)
        try:
            surveyed = survey(disk)
            removals = _Removals()
            base, _ = gather(disk, surveyed, removals)
        except (StoreDamaged, FileNotFoundError) as error:
            if isinstance(error, StoreDamaged) and names == (segment_numbers(disk), snapshot_numbers(disk)):
                raise JournalDamaged(origin.directory.file(error.file), error.offset, error.text) from error
        except NewerFormat as error:
            raise PipelineError(f"{origin.directory.path}: {error}") from error
        else:
            return surveyed, removals, base
    raise PipelineError(f"{origin.directory.path}: its files change faster than they can be read; try again")
