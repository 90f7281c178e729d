"""The primary's side of replication: backups that follow, how far each is, and what is committed because of it.

Who may follow is decided here, and who is in sync: a backup joins the in-sync set when it is level, and leaves it when
it is lost or late. What each is sent is the business of `backup_feed`; each answers with one number, the end of what it
holds. Nobody waits for a backup that is not in the in-sync set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from qpid_ha_broker.events.types import InSyncChanged
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup_admission import LONGEST_OF_ONLY_ONE_S, LONGEST_PROBATION_S, BackupAdmission
from qpid_ha_broker.ha.backup_feed import SENT_BATCHES, BackupFeed
from qpid_ha_broker.ha.backup_link import BackupLink, BackupProgress
from qpid_ha_broker.ha.commit_wait import CommitWatch
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.follower import Followers
from qpid_ha_broker.ha.in_sync import InSyncChange, InSyncSet
from qpid_ha_broker.ha.leadership_proof import LeadershipProof
from qpid_ha_broker.ha.link_ends import LinkEnd
from qpid_ha_broker.ha.mark_telling import MarkTelling
from qpid_ha_broker.ha.observers import Admit, LimitedInSync
from qpid_ha_broker.ha.replica import Replica, StreamError
from qpid_ha_broker.ha.states import Phase
from qpid_ha_broker.model.errors import NotEnoughReplicas
from qpid_ha_broker.model.logs.log import LogBatch

WITNESS: Final = "replication"


class Primary:
    """The promise: the log's witness never passes what the in-sync set has committed."""

    def __init__(
        self, ctx: MemberContext, replica: Replica, generation: int, change: InSyncChange, committed_lsn: int
    ) -> None:
        settings = ctx.settings
        self._ctx = ctx
        self._log = ctx.resource_set.log
        self._replica = replica
        self._tail = replica.tail
        self._durable = replica.durable
        self.generation = generation
        self.in_sync = InSyncSet(settings.name, change, committed_lsn, settings.min_in_sync)
        self.links: dict[int, BackupLink] = {}
        self._limited = LimitedInSync(ctx, generation, self.in_sync, self.links)
        self._admission = BackupAdmission(ctx)
        self.proof = LeadershipProof(ctx, self.in_sync, self.links)
        self.commits = CommitWatch()
        """Since when nothing is committed."""
        self._feed = BackupFeed(ctx, replica, generation, self.in_sync)
        self._marks = MarkTelling(ctx)
        self.followers = Followers(ctx, replica.tail, generation)
        """Who keeps a copy of one queue outside of the cluster."""
        self.phase = Phase.RECOVERING
        self._expected = set(change.members) - {settings.name}
        self._known = set(change.members)
        """Who was ever in sync or observed in this generation: one of them could have begun another one."""
        self._began_s = ctx.clock_s
        self.needs_peer_check = False
        """The others have to be asked before a backup may join."""
        self.unrecorded: InSyncChange | None = None
        """The newest change that still has to be recorded; see `epoch_recorder`."""
        self._unrecorded_lsn = 0
        self._map_lsn = 0
        """The end of the last batch that changed the cluster map; 0: backups know that it is committed."""
        self._check_size()

    def began(self, start_lsn: int, in_sync_lsn: int) -> None:
        """The generation's first events are in the log."""
        self._feed.start_lsn, self.in_sync.begun_lsn = start_lsn, in_sync_lsn
        self.in_sync.appended(self.in_sync.epoch, in_sync_lsn)

    def end(self) -> None:
        """Primary no more."""
        for link in list(self.links):
            self._ctx.close(link, "no longer primary")
        self.links.clear()
        self.followers.end()
        batch = self._log.take_batch()  # what nobody was sent: the witness stays, so that none of it is committed
        if batch is not None:  # it is in the state, so it has to be in the journal: what comes next goes on from there
            self._persist(batch)
        self._ctx.replication.refusal = None
        self._marks.backups_are(())

    # --- a backup comes

    def hello(self, link: int, hello: fr.Hello) -> None:
        """A broker wants to follow."""
        refused = self._admission.why_refused(self.links.values(), hello, self._replica.history.cluster)
        if refused is not None:
            self._ctx.send(link, refused)
            self._ctx.close(link, refused.text)
            return
        for other in [backup for backup in self.links.values() if backup.name == hello.name]:
            self._ctx.close(other.link, "connected anew")
            self.lost(other.link, "it connected anew")
        backup = self.links[link] = BackupLink(link, hello, self._ctx.clock_s)
        backup.probation_s = self._admission.probation_s(hello.name)
        self._marks.backup_came(backup)
        self._marks.backups_are(self.links.values())
        by_tail = self._feed.welcome(backup, hello)
        if hello.name in self.in_sync and not (by_tail and backup.vote_history_intact):
            self._leave(hello.name, "it has to catch up from scratch")
        elif hello.name in self.in_sync and hello.store_problem:  # it was the primary before, perhaps
            self._leave(hello.name, f"its store cannot be written: {hello.store_problem}")

    # --- the stream

    def turn_ended(self, batch: LogBatch | None) -> None:
        """Send what the turn wrote, and more to those who catch up."""
        if batch is not None:
            self._tail.append(batch.first_lsn, batch.last_lsn, batch.data)
            self.proof.sent(batch.first_lsn, batch.last_lsn)
            self._feed.send_to(self.links.values(), batch)
            if self._ctx.resource_set.state.map.changed_lsn >= batch.first_lsn:
                self._map_lsn = batch.last_lsn
            self._persist(batch)
            self.persisted()
            most_bytes = self._ctx.settings.unread_most_bytes
            for backup in [each for each in self.links.values() if each.unread_bytes > most_bytes]:
                if backup.name not in self.in_sync:  # for one that is, publishers wait, and time decides
                    self._give_up(backup, f"it does not read, and {backup.unread_bytes} bytes wait for it")
        self.commits.look(self._ctx.clock_s, self._tail.last_lsn, self.in_sync.committed_lsn)
        self._marks.turn_ended(self.links.values(), self.in_sync)
        events = 0 if batch is None else batch.last_lsn - batch.first_lsn + 1
        for backup, reason in self._feed.catch_up(self.links.values(), events):
            self._give_up(backup, reason)
        self.followers.turn_ended(batch, self.in_sync.committed_lsn)

    def _persist(self, batch: LogBatch) -> None:
        committed_lsn = self.in_sync.committed_lsn
        self._durable.persist(batch.first_lsn, batch.last_lsn, committed_lsn, batch.transient, batch.data)

    def persisted(self) -> None:
        """This broker's own store may hold more."""
        self.in_sync.acknowledge(self.in_sync.primary, min(self._tail.last_lsn, self._durable.durable_lsn))
        self.advance()

    def held_told(self, link: int, frame: fr.Holdings | fr.HoldingsDone) -> None:
        """A backup tells what it holds."""
        backup = self.links[link]
        backup.heard_s = self._ctx.clock_s
        if isinstance(frame, fr.Holdings):
            self._feed.holdings(backup, frame)
        else:
            self._feed.holdings_done(backup)

    @property
    def has_somebody_behind(self) -> bool:
        """Whether a backup catches up, or somebody copies a queue."""
        for backup in self.links.values():  # asked in each turn
            if backup.progress is not BackupProgress.FOLLOWING:
                return True
        return bool(self.followers.links)

    @property
    def has_work(self) -> bool:
        """Whether somebody who catches up could take another step at once."""
        return self._feed.could_go_on(self.links.values()) or self.followers.has_work

    def acknowledged(self, link: int, frame: fr.Ack) -> None:
        """A backup says how far it is. Raises StreamError for a number that cannot be."""
        backup = self.links[link]
        backup.heard_s = self._ctx.clock_s
        if frame.generation != self.generation:
            raise StreamError(f"an acknowledgement for generation {frame.generation}; this is {self.generation}")
        if frame.lsn > self._tail.last_lsn:
            raise StreamError(f"an acknowledgement of LSN {frame.lsn}; the log ends at {self._tail.last_lsn}")
        if backup.browsers is not None:
            wrong = backup.browsers.acknowledged(frame.chunks)
            if wrong:
                raise StreamError(wrong)
        if backup.progress not in SENT_BATCHES:
            return
        backup.acknowledge(frame.lsn)
        if backup.name in self.in_sync:
            self.in_sync.acknowledge(backup.name, frame.lsn)
            if backup.name in self._expected and backup.is_level:
                self._expected.discard(backup.name)
                self._ctx.note("info", f"Backup is ready: {backup.name}")
                self._check_phase()
        else:
            backup.note_level(self._ctx.clock_s)
            if not self._limited.is_wanted:
                self._let_in(backup)
            elif backup.is_level and not backup.observes:
                self._review_in_sync()
        self.advance()

    def advance(self) -> None:
        """Let the log know what is committed now."""
        committed_lsn = self.in_sync.committed_lsn
        if committed_lsn > self._log.committed_lsn:
            self._log.acknowledge(WITNESS, committed_lsn)
            self.proof.committed(committed_lsn)
            self.commits.look(self._ctx.clock_s, self._tail.last_lsn, committed_lsn)
            self.followers.release(committed_lsn)
            self._ctx.tell_committed()
            if 0 < self._map_lsn <= committed_lsn:  # every broker sends clients where the map says
                self._map_lsn = 0
                self._feed.tell_committed(self.links.values())

    # --- the in-sync set

    def _review_in_sync(self) -> None:
        """Where not all are to be in sync: let one in, or wait for one no more."""
        is_settled = not (self._expected or self.unrecorded or self.needs_peer_check or self.in_sync.awaits_record)
        change = self._limited.next_change(self._tail.last_lsn, self._expected, is_settled=is_settled)
        if change is not None:
            (backup,) = [each for each in self.links.values() if each.name == change.name]
            if isinstance(change, Admit):
                self._ctx.note("info", f"backup {backup.name} joins the in-sync set: {change.why}")
                self._let_in(backup, is_wanted=True)
            else:
                self._limited.observes(backup, change.why)
                self._write(self.in_sync.leave(backup.name))
        self._limited.tell()
        # An observer votes as others do, and may have forgotten it when it comes back: see `_let_in`.
        self._known.update(backup.name for backup in self.links.values() if backup.observes)

    def _let_in(self, backup: BackupLink, *, is_wanted: bool = False) -> None:
        """Let a level backup join, at once unless it may have forgotten that it follows somebody newer; or unless it
        fell silent not long ago, and others suffice. `is_wanted`: whether they do was looked at."""
        is_waited_for = backup.name in self.in_sync.awaited or not self.in_sync.is_large_enough
        is_needed = backup.is_level and is_waited_for
        most_s = LONGEST_OF_ONLY_ONE_S if len(self.in_sync.members) == 1 else LONGEST_PROBATION_S
        if not (is_wanted or is_needed or backup.is_proven(self._ctx.clock_s, most_s)):
            return
        settings = self._ctx.settings
        has_forgotten = not backup.vote_history_intact and backup.name in self._known
        if has_forgotten and settings.min_in_sync > 1 and not settings.has_coordinator:
            backup.awaits_peer_check = self.needs_peer_check = True
        else:
            self._join(backup)

    def peers_heard(self, answers: Sequence[fr.Answer]) -> None:
        """All peers were asked, and none knows a newer generation: enough of them must be sure of that."""
        here = {answer.name for answer in answers}
        remembering = {answer.name for answer in answers if answer.generation and answer.complete}
        doubtful = [backup for backup in self.links.values() if backup.awaits_peer_check]
        others = self._known - {self.in_sync.primary}
        silent = others - here
        forgetful = (others & here) - remembering.difference(backup.name for backup in doubtful)
        # If nobody is silent, whoever confirmed something newer has lost it: there is nothing to be lost any more.
        self.needs_peer_check = bool(doubtful and silent) and len(silent | forgetful) >= self._ctx.settings.min_in_sync
        if not self.needs_peer_check:
            for backup in doubtful:
                backup.awaits_peer_check = False
                self._join(backup)

    def _join(self, backup: BackupLink) -> None:
        self._known.add(backup.name)
        backup.observes = ""
        self._expected.discard(backup.name)
        self._ctx.note("info", f"Backup is ready: {backup.name}")
        self._write(self.in_sync.join(backup.name, backup.acknowledged, remembers=backup.vote_history_intact))

    def _leave(self, name: str, why: str) -> None:
        self._expected.discard(name)
        change = self.in_sync.leave(name)
        self._ctx.note("warning", f"backup {name} leaves the in-sync set: {why}; left: {', '.join(change.members)}")
        self._write(change)
        self._check_phase()

    def _write(self, change: InSyncChange) -> None:
        lsn = self._ctx.resource_set.write(InSyncChanged(change.epoch, change.members))
        self.in_sync.appended(change.epoch, lsn)
        self.unrecorded, self._unrecorded_lsn = change, lsn
        self._check_size()
        self._ctx.is_status_stale = True
        self._ctx.want_turn()

    @property
    def is_unrecorded_durable(self) -> bool:
        """Whether this broker's store has the change to be recorded, so that no record is ahead of the store."""
        return self._durable.durable_lsn >= self._unrecorded_lsn

    def holds_all_of(self, names: Iterable[str], answers: Sequence[fr.Answer]) -> bool:
        """Whether those, and all in sync, are in sync now and have just answered that they know no newer generation.

        Then none of them leads one; and nobody else can.
        """
        others = (set(names) | set(self.in_sync.members)) - {self.in_sync.primary}
        followers = {answer.name for answer in answers if answer.complete and answer.generation == self.generation}
        is_here = others <= followers & set(self.in_sync.members)
        return is_here and not others & self._expected and not self.in_sync.awaits_record

    def recorded(self, epoch: int) -> None:
        """A coordinator, or every peer that can be reached, knows of `epoch`."""
        self.in_sync.recorded(epoch)
        if self.unrecorded is not None and self.unrecorded.epoch <= epoch:
            self.unrecorded = None
        self.advance()

    def _check_size(self) -> None:
        is_large_enough = self.in_sync.is_large_enough
        text = "" if is_large_enough else f"{self.in_sync.why_too_small()}: start more brokers"
        self._ctx.replication.refusal = None if is_large_enough else NotEnoughReplicas(text)

    def _check_phase(self) -> None:
        if self.phase is Phase.RECOVERING and not self._expected:
            self.phase = Phase.ACTIVE
            self._ctx.is_status_stale = True
            self._ctx.note("info", "All backups recovered.")

    # --- time and loss

    def tick(self) -> None:
        """Heartbeats, and whoever was silent for too long."""
        settings, clock_s = self._ctx.settings, self._ctx.clock_s
        self._check_phase()
        for backup in self.links.values():
            backup.note_level(clock_s)
        if any(backup.is_fetching for backup in self.links.values()):
            self._ctx.want_turn()
        if self._limited.is_wanted:
            self._review_in_sync()
        elif not settings.has_heartbeats:  # where there are some, who is let in has just answered
            for backup in [each for each in self.links.values() if each.probation_s and each.name not in self.in_sync]:
                self._let_in(backup)
        committed = self.in_sync.committed_lsn
        self.followers.tick(committed)
        for backup in list(self.links.values()):
            stuck_since_s = backup.stuck_since_s(backup.name in self.in_sync)
            stuck_s = 0.0 if stuck_since_s is None else clock_s - stuck_since_s
            # Of one that owes nothing a late heartbeat costs nobody anything: it has the time of a channel.
            unheard_s = clock_s - backup.heard_s if settings.has_heartbeats else 0.0
            is_silent = stuck_s > settings.backup_timeout_s or unheard_s > max(
                settings.backup_timeout_s, settings.link_timeout_s
            )
            is_due = settings.has_heartbeats and clock_s - backup.sent_s >= settings.heartbeat_interval_s
            if is_silent:
                silent_s = max(stuck_s, unheard_s)
                self._admission.was_silent(backup.name)
                self._give_up(backup, f"it has not answered, or not read, for {silent_s:.1f} s (ha.backup-timeout)")
            elif committed != backup.told_committed or is_due:
                self._feed.send_heartbeat(backup)
            elif not settings.has_heartbeats:
                self._feed.tell_clock(backup)
        if clock_s - self._began_s > settings.backup_timeout_s:
            for name in sorted(self._expected):
                self._leave(name, f"it did not come back within {settings.backup_timeout_s:g} s")

    def set_writable(self, link: int, writable: bool) -> None:
        """Whether there is room on a channel for more than the live stream."""
        self.followers.set_writable(link, writable)
        if link in self.links:
            self.links[link].set_writable(writable, self._ctx.clock_s)
        if writable:
            self._ctx.want_turn()

    def lost(self, link: int, reason: str, end: LinkEnd = LinkEnd.LOST) -> None:
        """A backup's channel is gone. One of the last in-sync set that was not level yet is waited for all the same,
        as it may be back at once; but not one that has said that it ends."""
        backup = self.links.pop(link)
        self._marks.backups_are(self.links.values())
        self._ctx.note("warning", f"backup {backup.name} is disconnected: {reason}")
        is_awaited = backup.name in self._expected and end is not LinkEnd.STOPPING
        if backup.name in self.in_sync and not is_awaited:
            self._leave(backup.name, reason)

    def drop(self, name: str, reason: str) -> bool:
        """Treat the backup as if its channel was lost; whether there was anything to do. If it lives it comes back."""
        links = [backup for backup in self.links.values() if backup.name == name]
        for backup in links:
            self._give_up(backup, reason)
        if name not in self._expected:
            return bool(links)
        self._leave(name, reason)  # of the last in-sync set, and not back yet
        return True

    def _give_up(self, backup: BackupLink, reason: str) -> None:
        self._ctx.close(backup.link, reason)
        self.lost(backup.link, reason)

    def settings_changed(self) -> None:
        """Times are read from the settings anyway; the size of the set may be too small now."""
        self.in_sync.min_in_sync = self._ctx.settings.min_in_sync
        self._check_size()

    def check_invariants(self) -> None:
        """Raise AssertionError where the promise is broken; called after each step in tests."""
        self.in_sync.check_invariants()
        inherited = max(self._feed.start_lsn - 1, 0)  # nobody here was told of what the log held before
        if self._log.is_witnessed and self._log.committed_lsn > max(self.in_sync.committed_lsn, inherited):
            raise AssertionError(
                f"committed {self._log.committed_lsn}, but not by the set: {self.in_sync.committed_lsn}"
            )
