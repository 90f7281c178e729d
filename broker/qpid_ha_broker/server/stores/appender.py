"""The way of both logs into one journal: in the order in which they were written, without what nobody asked to keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.scan import durable_only
from qpid_ha_broker.model.logs.local_log import LocalPart
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.server.stores.progress import SyncProgress
from qpid_ha_broker.server.stores.writer import JournalPiece, JournalWriter
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.journal import Journal
from qpid_ha_broker.store.segment import SegmentEnd
from qpid_ha_broker.store.snapshot import SnapshotEnd


class AppendedLog:
    """How far one of the logs was handed to the journal. Invariant: next_lsn <= last_lsn + 1."""

    __slots__ = ("last_lsn", "left_out", "next_lsn")

    def __init__(self, last_lsn: int) -> None:
        self.last_lsn = last_lsn
        """The last one that was handed over."""
        self.next_lsn = last_lsn + 1
        """The first one of which no block tells: what came since was not to be kept."""
        self.left_out = 0
        """Messages among those of which no block tells."""


class JournalAppender:
    """The promise: a record of one log never gets into the journal before what the other log said ahead of it.

    Each block says as well how far the replicated log is committed, for a recovery that must not apply more than that.
    All on the loop's thread. `begins_after`: how far both logs, and what is committed, went when it was opened.
    """

    def __init__(
        self, journal: Journal, writer: JournalWriter, progress: SyncProgress, begins_after: SegmentEnd
    ) -> None:
        self.writer = writer
        """Where work with files is done in order, when all pieces before it are on disk."""
        self.replicated = AppendedLog(begins_after.last_lsn)
        self.local = AppendedLog(begins_after.local_lsn)
        self.committed_lsn = begins_after.committed_lsn
        """Of the replicated log, as far as is known: a later broker can take nothing back up to there."""
        self.appended_bytes = 0
        """Of records, in the life of this process."""
        self._marked_lsn = 0
        """The committed LSN of the last mark; blocks may have said more since."""
        self._journal = journal
        self._progress = progress
        self._held: deque[LocalPart] = deque()
        """Of the local log, behind what was not handed over yet of the replicated one."""
        self._joined: list[JournalPiece] | None = None
        """What was handed over since `append` began, if it counts together."""

    def append_local(self, parts: Sequence[LocalPart]) -> None:
        """The broker's own log goes on; each part waits for what was written ahead of it in the other log.

        One that is joined to that waits for the turn's `append`.
        """
        self._held += parts
        if not (parts and parts[0].is_joined):  # all of a turn, or none
            self._release(self.replicated.last_lsn)

    def append(self, batch: LogBatch, committed_lsn: int) -> None:
        """The replicated log goes on, cut where parts of the local one have their place."""
        self.committed_lsn = committed_lsn
        if self._held and any(part.is_joined for part in self._held):
            self._joined = []
        rest = batch
        while self._held and self._held[0].after_lsn < batch.last_lsn:
            after_lsn = self._held[0].after_lsn
            if after_lsn >= rest.first_lsn:
                piece, rest = rest.cut_after(after_lsn)
                self._append_batch(self.replicated, piece)
            self._release(after_lsn)
        self._append_batch(self.replicated, rest)
        self._release(batch.last_lsn)
        if self._joined is not None:
            joined, self._joined = self._joined, None
            if joined:
                self.writer.append_joined(joined)

    def truncate(self, lsn: int) -> None:
        """What was appended of the replicated log after `lsn` is void, though it was committed, if by force."""
        self.settle()
        self.committed_lsn, self._marked_lsn = min(self.committed_lsn, lsn), min(self._marked_lsn, lsn)
        self._append_block(BlockKind.TAKEN_BACK, lsn, lsn, 0, b"")
        self.replicated = AppendedLog(lsn)

    def reset(self, last_lsn: int) -> None:
        """The replicated log ends at `last_lsn` now, by what no log tells: what follows counts with a checkpoint."""
        self.settle()
        self.replicated = AppendedLog(last_lsn)
        self.committed_lsn = self._marked_lsn = 0

    def settle(self) -> None:
        """Have the journal tell of all that was handed over, also of what is left out, and of what still waits."""
        self._release(LOCAL_BASE)
        for log in (self.replicated, self.local):
            if log.next_lsn <= log.last_lsn:
                self._append_block(BlockKind.EVENTS, log.next_lsn, log.last_lsn, log.left_out, b"")
                log.next_lsn, log.left_out = log.last_lsn + 1, 0

    def reach(self, end: SnapshotEnd) -> bool:
        """Have the journal go as far as was counted for `end`. False: not all of that was handed over yet."""
        if self.replicated.last_lsn < end.counts_lsn or self.local.last_lsn < end.local_counts_lsn:
            return False
        self.settle()
        return True

    def note_committed(self, lsn: int) -> None:
        """Nobody can take anything back up to there: a recovery that knows it asks fewer brokers."""
        self.committed_lsn = max(self.committed_lsn, lsn)

    def mark_committed(self) -> None:
        """The broker may be idle: say on disk what is committed by now, when no block is on its way that does."""
        if self.committed_lsn > self._marked_lsn and self._progress.is_all_synced:
            self._marked_lsn = self.committed_lsn
            self.writer.run(partial(self._journal.mark, self.committed_lsn), is_short=True)

    def _release(self, upto_lsn: int) -> None:
        """Append those parts of the local log whose place has come."""
        while self._held and self._held[0].after_lsn <= upto_lsn:
            self._append_batch(self.local, self._held.popleft().batch)

    def _append_batch(self, log: AppendedLog, batch: LogBatch) -> None:
        _, last, data, transient = batch
        left_out = 0
        if transient:
            data, left_out = durable_only(data)
        log.last_lsn = last
        log.left_out += left_out
        if data:
            self._append_block(BlockKind.EVENTS, log.next_lsn, last, log.left_out, data)
            log.next_lsn, log.left_out = last + 1, 0

    def _append_block(self, kind: BlockKind, first: int, last: int, left_out: int, data: bytes) -> None:
        self._progress.appended_ticket += 1
        ticket = self._progress.appended_ticket
        piece = JournalPiece(ticket, kind, first, last, self.committed_lsn, left_out, data)
        self.appended_bytes += len(data)
        if self._joined is None:
            self.writer.append(piece)
        else:
            self._joined.append(piece)
