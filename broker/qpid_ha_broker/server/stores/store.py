"""The store of one resource set, as the loop sees it: what is given to it, and up to where it is on disk.

The loop hands over what each turn wrote and goes on; `StoreWriter` does the rest on its threads. Both logs go into one
journal (`JournalAppender`), and who waits is told once a sync covers it (`SyncProgress`). What nobody asked to keep is
left out, and waits only for what came before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_broker.model.logs.local_log import LocalPart
from qpid_ha_broker.model.logs.log import DEFAULT_SET, LogBatch
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.server.runtime.set_log import SetLog
from qpid_ha_broker.server.stores.appender import JournalAppender
from qpid_ha_broker.server.stores.checkpoint import Checkpoints
from qpid_ha_broker.server.stores.folding import Folding
from qpid_ha_broker.server.stores.pager import Pager
from qpid_ha_broker.server.stores.progress import STALLED_S, StallWatch, SyncProgress
from qpid_ha_broker.server.stores.recovery import StoreFiles, StoreRecovery
from qpid_ha_broker.server.stores.status import JournalIdentity
from qpid_ha_broker.server.stores.storage import Storage, storage_of_machine
from qpid_ha_broker.server.stores.writer import JournalWriter
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.recovery import Progress, Recovered
from qpid_ha_config.settings import BrokerSettings, StoreSettings

CLOSE_LIMIT_S: Final = 10.0
"""How long the end waits for a disk that is full or slow; what was confirmed is there in any case."""

STATUS_TICKS: Final = 3
"""So many ticks after a change that can wait STATUS tells of it."""


class StoreListener(Protocol):
    """Who hears of it, on the loop."""

    def persisted(self, local_lsn: int, number: int) -> None:
        """On disk up to there, as far as need be: last LSN of the broker's own log, and last `number` (0: none)."""

    def store_writable(self, problem: str) -> None:
        """Why what is given waits in memory, as for room on the disk; empty: it is written again."""

    def store_failed(self, text: str) -> None:
        """Nothing can be kept any more: this broker must not confirm anything. `text` says what to do."""


class Store:
    """The promise: `persisted` names only what survives a power cut, or never has to; in order, with all before it."""

    def __init__(
        self,
        directory: Path,
        set_name: str,
        settings: StoreSettings,
        name: str,
        storage: Storage | None = None,
    ) -> None:
        """`directory`: the broker's data directory; `name`: the broker's. `storage`: of all its sets; None: one of its
        own. Raises ValueError for what cannot be a set's name."""
        problem = set_name_problem(set_name)
        if problem is not None:
            raise ValueError(problem)
        self.directory = directory / set_name
        self._log = SetLog(logging.getLogger("store"), set_name)
        self.settings = settings
        self.health = "ok"
        """`ok`, `full` while the disk has no room or the process no descriptor, `failed` once nothing can be kept."""
        self.is_started = False
        self.storage = storage_of_machine(settings) if storage is None else storage
        """Of the stores of all sets."""
        self._recovery = StoreRecovery(self.directory, set_name, settings, name, self.storage.make_disk)
        self._progress = SyncProgress()
        self._stall = StallWatch()
        self._is_stalled = False
        self._status_ticks = 0
        """After so many more STATUS is written; 0: it says all, or will in a moment."""
        self._ticked_at = (-1, -1, -1)
        """What was given, what was committed and the limit of folding when `tick` had nothing more to do."""
        self._journal_end = (0, 0)
        """Of a journal that has ended: number of the last segment, and its bytes."""
        self.files: StoreFiles
        """Since `recover`."""
        self._sets: ResourceSets
        # Since `start`:
        self.writer: JournalWriter
        self.appender: JournalAppender
        self.checkpoints: Checkpoints
        self._identity: JournalIdentity
        self._folding: Folding
        self._listener: StoreListener

    # --- start

    def recover(
        self, sets: ResourceSets, *, apply_all: bool, show: Progress = lambda done_bytes, total_bytes: None
    ) -> Recovered:
        """Fill `sets`, which are new. Blocks. Raises StoreError with a text for an operator.

        `show` hears how far it is; what it raises ends it, and the store is as it was.
        """
        found, self.files = self._recovery.run(sets, apply_all, show)
        self._sets = sets
        return found

    def start(self, listener: StoreListener, pager: Pager | None = None) -> None:
        """Begin to write; the loop runs. `pager`: has to know of each file that comes or goes."""
        loop, journal, threads = asyncio.get_running_loop(), self.files.journal, self.storage.writer
        writer = threads.open(journal, self, loop)
        appender = JournalAppender(journal, writer, self._progress, self.files.begins_after)
        place = self.directory, self.files.disk
        folding = Folding(writer, journal, place, self.storage.begin_folding, threads.folding, pager)
        threads.folding.sets += 1
        checkpoints = Checkpoints(self.files, appender, self._sets, folding.drop_before, loop.call_soon)
        self._begin(listener, appender, checkpoints, folding)

    def _begin(
        self, listener: StoreListener, appender: JournalAppender, checkpoints: Checkpoints, folding: Folding
    ) -> None:
        self.is_started = True
        self.writer, self.appender, self.checkpoints = appender.writer, appender, checkpoints
        self._identity = JournalIdentity(self.files.status, self.files.journal, appender)
        self._folding, self._listener = folding, listener

    # --- what a turn wrote

    def persist_local(self, parts: Sequence[LocalPart]) -> None:
        """Persist what was written to the broker's own log, in its place; `persisted` follows, or comes at once."""
        if parts:
            self.appender.append_local(parts)
            local_lsn = self.appender.local.last_lsn
            if not self._progress.await_all(local_lsn, 0):
                self._listener.persisted(local_lsn, 0)

    def persist(self, batch: LogBatch, committed_lsn: int, number: int) -> bool:
        """Persist a part of the replicated log. True: nothing of it is on its way; else `persisted(number)` follows.

        `committed_lsn`: as far as is known, for a recovery that must not apply more than that.
        """
        local = self.appender.local
        local_lsn = local.last_lsn
        self.appender.append(batch, committed_lsn)
        if self._identity.lacks_cluster:
            self._identity.update()
        if self._progress.await_all(local.last_lsn, number):
            return False
        if local.last_lsn != local_lsn:
            self._listener.persisted(local.last_lsn, 0)
        return True

    # --- see store_writer.WriterListener

    def synced(self, ticket: int) -> None:
        """All pieces up to that one are on disk."""
        local_lsn, number = self._progress.advance(ticket)
        if local_lsn:
            self._listener.persisted(local_lsn, number)

    def filled(self, shortage: OSError | None) -> None:
        """There is no room on the disk, or no file descriptor; None: there is again."""
        self.health = "ok" if shortage is None else "full"
        if shortage is None:
            self._log.warning("there is room again in %s: going on", self.directory)
        else:
            text = "no room for the store in %s (%s): nothing durable is confirmed until there is some"
            self._log.error(text, self.directory, shortage.strerror)
        self._listener.store_writable("" if shortage is None else shortage.strerror or str(shortage))

    def failed(self, text: str) -> None:
        """Nothing is written any more."""
        self.health = "failed"
        advice = (
            "what was confirmed is on disk; look at the disk (and at the kernel's log), then start this broker again"
        )
        self._listener.store_failed(f"the store in {self.directory} cannot be written: {text}; {advice}")

    # --- what else is kept

    def describe(self, **fields: Any) -> None:
        """Have other facts in STATUS, soon: see `store.status.Status` for what there is.

        What only tells of the broker, and what the journal has as well, waits for `tick`: a set that fails over changes
        several times in a moment, hundreds do together, and a file that is replaced takes two syncs.
        """
        before = self.files.status.current
        if self.files.status.change(**fields):
            after = self.files.status.current
            if (before.cluster, before.chosen) != (after.cluster, after.chosen):
                self._write_status()
            elif not self._status_ticks:
                self._status_ticks = STATUS_TICKS
        self._identity.update()

    def _write_status(self) -> None:
        self._status_ticks = 0
        self.writer.run(self.files.status.write)

    def persist_vote(self, generation: int, to: str, claims: tuple[int, ...]) -> None:
        """Have on disk, when this returns, what was promised. Raises StoreError."""
        if self.note_vote(generation, to, claims):
            self.write_vote()

    def note_vote(self, generation: int, to: str, claims: tuple[int, ...]) -> bool:
        """Let it be known what is promised; `write_vote` puts it on disk. Whether it is not there yet."""
        return self.files.status.change(promised=generation, promised_to=to, claims=claims)

    def write_vote(self) -> None:
        """What was noted is on disk when this returns. From any thread. Raises StoreError."""
        try:
            self.files.status.write()
        except OSError as error:
            raise StoreError(f"cannot write STATUS in {self.directory}: {error}") from error

    def tick(self) -> None:
        """Fold what is old, once there is enough of it; say on disk what is committed, when nothing else does.

        Costs next to nothing where nothing has changed since the last one, and nothing is left to fold.
        """
        self._look_for_stall()
        if self._status_ticks == 1:
            self._write_status()
        elif self._status_ticks:
            self._status_ticks -= 1
        limit_bytes = self.settings.consolidate_bytes
        now = self.writer.given, self.appender.committed_lsn, limit_bytes
        if now == self._ticked_at:
            return
        if self.health == "ok":
            self.appender.mark_committed()
        self._folding.limit_bytes = limit_bytes
        if not self._folding.tick(self.appender.committed_lsn):
            self._ticked_at = now

    def _look_for_stall(self) -> None:
        """A disk that hangs is no better than a full one for whoever waits, and no error says so to the writer."""
        writer = self.writer
        is_stalled = self._stall.is_stalled(writer.written_bytes, writer.waiting_bytes, time.monotonic())
        if self.health != "ok" or is_stalled is self._is_stalled:
            return
        self._is_stalled = is_stalled
        problem = f"its disk has written nothing for {STALLED_S:g} s" if is_stalled else ""
        if is_stalled:
            self._log.error("the store in %s hangs: %s, and nothing durable is confirmed", self.directory, problem)
        else:
            self._log.warning("the disk of %s writes again", self.directory)
        self._listener.store_writable(problem)

    def facts(self) -> dict[str, object]:
        """What `query` tells of it."""
        written = {"journal_written_bytes": self.appender.appended_bytes}
        return {"store": self.health, **written, **self._folding.facts()}

    # --- the end

    def abandon(self) -> None:
        """It was recovered and is not to be written after all: let go of its files."""
        self.files.journal.close()

    async def close(self, clean: str) -> bool:
        """Write what is left, end the journal, and mark the store clean with that UUID (empty: not). Whether it is."""
        await self._folding.stop()
        self.storage.writer.folding.sets -= 1
        if self.health == "failed":
            return False
        self.appender.settle()
        if clean:  # all of it counts: whoever calls it whole has made sure of that
            self.appender.note_committed(self.appender.replicated.last_lsn)
        self.writer.run(partial(self._end, clean))
        ended = await asyncio.to_thread(self.writer.finish, CLOSE_LIMIT_S)
        if not ended or self.health == "failed":
            self._log.error("the store in %s could not be closed in order; what was confirmed is there", self.directory)
            return False
        self._log.info("the store is closed%s", f", clean ({clean})" if clean else "")
        return True

    def _end(self, clean: str) -> None:
        """On the writer's thread. May be called again when the disk is full."""
        status, journal, appender = self.files.status, self.files.journal, self.appender
        if not journal.is_dead:
            self._journal_end = journal.end(appender.committed_lsn)
        if clean:
            ends = {"last_lsn": appender.replicated.last_lsn, "local_lsn": appender.local.last_lsn}
            status.change(clean=clean, journal_end=self._journal_end, **ends)
        status.write()


def make_store(settings: BrokerSettings, storage: Storage | None = None) -> Store | None:
    """The store that these settings ask for. `storage`: None: the machine's."""
    if settings.data_dir is None or not settings.has_store:
        return None
    return Store(settings.data_dir, DEFAULT_SET, settings.store, settings.name, storage)
