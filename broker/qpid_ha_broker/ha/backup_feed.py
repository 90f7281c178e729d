"""What each backup is sent: the live stream, and what a backup that comes lacks of the log or the state.

Every turn's batch goes to all backups that are level, in the order of the log. One that was away goes on where it was
while the end of the stream is still held (`tail`); otherwise replicating browsers bring it level beside the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup_link import BackupLink, BackupProgress
from qpid_ha_broker.ha.browser import Browsers, objects_frame
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.history import began_apart, common_lsn
from qpid_ha_broker.ha.in_sync import InSyncSet
from qpid_ha_broker.ha.pace import CatchUpPace
from qpid_ha_broker.ha.replica import Replica
from qpid_ha_broker.model.logs.log import LogBatch

STREAMING: Final = (BackupProgress.BROWSING, BackupProgress.FOLLOWING)
"""Live batches go to these."""
SENT_BATCHES: Final = (*STREAMING, BackupProgress.REPLAYING)
"""These have something to acknowledge."""


class BackupFeed:
    """The promise: what a backup is sent has no gap. Where it would have one, the backup has to connect anew."""

    def __init__(self, ctx: MemberContext, replica: Replica, generation: int, in_sync: InSyncSet) -> None:
        self._ctx = ctx
        self._replica = replica
        self._tail = replica.tail
        self._generation = generation
        self._in_sync = in_sync
        self._pace = CatchUpPace()
        self.start_lsn = 0
        """Of this generation; a backup is level only with that."""

    # --- a backup comes

    def welcome(self, backup: BackupLink, hello: fr.Hello) -> bool:
        """Tell it how it becomes level; whether the end of the stream is enough for that."""
        settings, history = self._ctx.settings, self._replica.history.entries()
        own, theirs = self._replica.history.started(), hello.started
        common = common_lsn(history, self._tail.last_lsn, hello.history, hello.last_lsn, began_apart(own, theirs))
        lacks = hello.lacks_transient and common >= self._ctx.resource_set.state.transients_lost_lsn
        holds_what_is_common = hello.complete and not lacks and common >= self._forced_lsn
        marks = self._ctx.resource_set.state.marks
        is_readable = hello.reads_marks or marks.last_lsn <= common
        is_readable = is_readable and (hello.reads_annotations or marks.annotated_lsn <= common)
        by_tail = holds_what_is_common and hello.applied_lsn <= common and self._tail.holds_after(common)
        by_tail = by_tail and is_readable
        resync = fr.Resync.TAIL if by_tail else fr.Resync.DIFF
        self._ctx.send(
            backup.link,
            fr.Welcome(
                name=settings.name,
                cluster=self._replica.history.cluster,
                generation=self._generation,
                history=history,
                common_lsn=common,
                resync=resync,
                clients_url=settings.clients_url,
                link_timeout_s=settings.backup_timeout_s,
                details=self._replica.history.details() if hello.reads_details else (),
            ),
        )
        self.tell_clock(backup)
        behind = self._tail.last_lsn - common
        how = f"sends the {counted(behind, 'event')} that it lacks" if by_tail else "compares what both hold"
        self._ctx.note("info", f"backup {hello.name} connected at LSN {hello.last_lsn}; primary {how}")
        if by_tail:
            backup.replay_from(common)
            self._replay(backup)
            self._ctx.want_turn()
        else:
            backup.progress = BackupProgress.HOLDINGS
        return by_tail

    @property
    def _forced_lsn(self) -> int:
        """Where the last forced generation began; 0: none. Its primary may have been in the middle of a catch-up."""
        generations = self._ctx.resource_set.state.generations
        return next((lsn for lsn, event in reversed(generations) if event.forced), 0)

    def _replay(self, backup: BackupLink) -> str | None:
        """The next piece of the stream's tail, because clients wait meanwhile; or why the backup must be given up."""
        settings = self._ctx.settings
        if not self._tail.holds_after(backup.sent_lsn):
            return "it reads more slowly than the stream goes on: it has to compare"
        at_most = self._allowance
        piece = self._tail.piece_after(backup.sent_lsn, at_most, settings.chunk_bytes) if at_most else None
        if piece is not None:
            self._pace.spend(piece.last_lsn - piece.first_lsn + 1)
            self._send_batch(backup, self._frame(*piece))
        if backup.sent_lsn == self._tail.last_lsn:
            self._caught_up(backup)
        return None

    def _caught_up(self, backup: BackupLink) -> None:
        backup.progress = BackupProgress.FOLLOWING
        backup.level_lsn = max(self._tail.last_lsn, self.start_lsn)
        self._ctx.send(backup.link, fr.CaughtUp(self._generation, backup.level_lsn))

    def holdings(self, backup: BackupLink, frame: fr.Holdings) -> None:
        """It tells what it holds of one queue."""
        backup.holdings[frame.queue] = backup.holdings.get(frame.queue, ()) + frame.ranges

    def holdings_done(self, backup: BackupLink) -> None:
        """It told everything; at the end of the turn, when log and state say the same, the answer begins."""
        if backup.progress is BackupProgress.HOLDINGS:
            backup.progress = BackupProgress.DUE
            self._ctx.want_turn()

    # --- the stream

    def send_to(self, backups: Collection[BackupLink], batch: LogBatch) -> None:
        """What a turn wrote."""
        frame = None
        for backup in backups:
            if backup.progress in STREAMING:
                frame = frame or self._frame(batch.first_lsn, batch.last_lsn, batch.data)
                self._send_batch(backup, frame)

    def tell_committed(self, backups: Collection[BackupLink]) -> None:
        """What is committed now: to those who would otherwise hear of it with the next batch or heartbeat."""
        for backup in backups:
            if backup.progress is BackupProgress.FOLLOWING and backup.told_committed < self._in_sync.committed_lsn:
                self.send_heartbeat(backup)

    def send_heartbeat(self, backup: BackupLink) -> None:
        """That this primary is there, and what is committed."""
        backup.told_committed, backup.sent_s = self._in_sync.committed_lsn, self._ctx.clock_s
        heartbeat = fr.Heartbeat(self._generation, backup.told_committed, self._tail.last_lsn)
        self._ctx.send(backup.link, heartbeat)
        self.tell_clock(backup)

    def tell_clock(self, backup: BackupLink) -> None:
        """By what clock messages expire, if the backup is to hear of it now: with what goes to it anyway."""
        if backup.readings.take(self._ctx.clock_s):
            self._ctx.send(backup.link, fr.ClockReading(self._generation, self._ctx.message_time_ms()))

    def catch_up(self, backups: Collection[BackupLink], events: int) -> Iterator[tuple[BackupLink, str]]:
        """A step for each that catches up, in a turn in which clients wrote `events`; who must be given up, and why."""
        self._pace.turn(self._ctx.clock_s, events)
        for backup in [backup for backup in backups if backup.progress is not BackupProgress.FOLLOWING]:
            if backup.progress is BackupProgress.DUE:
                self._begin_browsing(backup)
            elif backup.progress is BackupProgress.BROWSING and backup.writable:
                self._browse(backup)
            elif backup.progress is BackupProgress.REPLAYING and backup.writable:
                reason = self._replay(backup)
                if reason is not None:
                    yield backup, reason

    def could_go_on(self, backups: Collection[BackupLink]) -> bool:
        """Whether one that catches up could take another step at once."""
        for backup in backups:  # asked after each input
            if backup.progress is BackupProgress.FOLLOWING:
                continue
            if backup.progress is BackupProgress.DUE or (backup.could_take_more and self._allowance > 0):
                return True
        return False

    @property
    def _allowance(self) -> int:
        """How many messages the next chunk may have; 0: it comes later."""
        return self._pace.allowance(self._ctx.settings.chunk_messages)

    def _frame(self, first_lsn: int, last_lsn: int, data: bytes) -> fr.Batch:
        return fr.Batch(self._generation, first_lsn, last_lsn, self._in_sync.committed_lsn, data)

    def _send_batch(self, backup: BackupLink, frame: fr.Batch) -> None:
        backup.note_sent(frame, self._ctx.clock_s)
        self._ctx.send(backup.link, frame)
        self.tell_clock(backup)

    def _begin_browsing(self, backup: BackupLink) -> None:
        settings, state = self._ctx.settings, self._ctx.resource_set.state
        lsn = self._tail.last_lsn
        self._ctx.send(backup.link, objects_frame(state, self._generation, lsn, with_marks=backup.hello.reads_marks))
        backup.browsers = Browsers(
            state, self._generation, lsn, backup.holdings,
            max_messages=settings.chunk_messages, max_bytes=settings.chunk_bytes, window=settings.chunks_ahead,
            with_annotations=backup.hello.reads_annotations,
        )  # fmt: skip
        backup.holdings = {}
        backup.compared_lsn = lsn
        backup.progress = BackupProgress.BROWSING

    def _browse(self, backup: BackupLink) -> None:
        at_most = self._allowance
        if backup.browsers is None or not at_most:
            return
        found = backup.browsers.next(at_most)
        if isinstance(found, fr.Chunk):
            self._pace.spend(at_most)
            self._ctx.send(backup.link, found)
            backup.sent_s = self._ctx.clock_s
        elif found is not None:
            backup.browsers = None
            self._caught_up(backup)
