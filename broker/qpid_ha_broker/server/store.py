"""A broker's store, as the loop sees it: what is given to it, and up to where it is on disk.

The loop hands over what each turn wrote and goes on; `StoreWriter` does the rest on its thread. Both logs go into one
journal, in the order in which they were written. What nobody asked to keep is left out, and waits only for what came
before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.scan import durable_only
from qpid_ha_broker.model.local_log import LocalPart
from qpid_ha_broker.model.log import DEFAULT_SET, LogBatch
from qpid_ha_broker.model.resource_set import ResourceSets
from qpid_ha_broker.server.pager import Pager
from qpid_ha_broker.server.recovery_progress import RecoveryProgress
from qpid_ha_broker.server.store_checkpoint import CheckpointWriter
from qpid_ha_broker.server.store_folding import Folding
from qpid_ha_broker.server.store_progress import AwaitedWrite, Given
from qpid_ha_broker.server.store_status import StoreStatus
from qpid_ha_broker.server.store_writer import JournalPiece, StoreWriter
from qpid_ha_broker.store.advice import refused_advice
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.bodies import Bodies
from qpid_ha_broker.store.errors import StoreDamaged, StoreError
from qpid_ha_broker.store.files import Disk, LocalDisk
from qpid_ha_broker.store.journal import ClosedSegment, Identity, Journal, tied
from qpid_ha_broker.store.recovery import Progress, Recovered, recover
from qpid_ha_broker.store.snapshot import SnapshotEnd
from qpid_ha_broker.store.status import Status
from qpid_ha_broker.store.survey import SegmentFound
from qpid_ha_broker.store.unloading import Unloading
from qpid_ha_config.settings import BrokerSettings, StoreSettings

log = logging.getLogger("store")

CLOSE_LIMIT_S: Final = 10.0
"""How long the end waits for a disk that is full or slow; what was confirmed is there in any case."""


class StoreListener(Protocol):
    """Who hears of it, on the loop."""

    def persisted(self, local_lsn: int, number: int) -> None:
        """On disk up to there, as far as need be: last LSN of the broker's own log, and last `number` (0: none)."""

    def store_failed(self, text: str) -> None:
        """Nothing can be kept any more: this broker must not confirm anything. `text` says what to do."""


class Store:
    """The promise: `persisted` names only what survives a power cut, or never has to; in order, with all before it."""

    def __init__(self, directory: Path, settings: StoreSettings, name: str, disk: Disk | None = None) -> None:
        self.directory = directory / DEFAULT_SET
        self.settings = settings
        self.health = "ok"
        """`ok`, `full` while the disk has no room or the process no descriptor, `failed` once nothing can be kept."""
        self.is_started = False
        self._name = name
        self._disk = disk
        self._waiting: deque[AwaitedWrite] = deque()
        self._held: deque[LocalPart] = deque()
        """Of the local log, behind what has not been given to us of the other one."""
        self._replicated = Given(0)
        self._local = Given(LOCAL_BASE)
        self._tickets = 0
        self._synced_ticket = 0
        self._committed_lsn = self._marked_lsn = 0
        self._journal_end = (0, 0)
        self._checkpoint: CheckpointWriter | None = None
        """The newest one; it may have ended."""
        self.pager: Pager | None = None
        """Who reads payloads from files, and has to know of each that comes or goes. Before `start`, if at all."""
        self.bodies: Bodies
        """Since `recover`."""
        self._status: StoreStatus
        self._journal: Journal
        self._writer: StoreWriter
        self._listener: StoreListener
        self._folding: Folding
        self._sets: ResourceSets

    # --- start

    def recover(
        self, sets: ResourceSets, *, apply_all: bool, show: Progress = lambda done_bytes, total_bytes: None
    ) -> Recovered:
        """Fill `sets`, which are new. Blocks. Raises StoreError or OSError with a text for an operator.

        `show` hears how far it is; what it raises ends it, and the store is as it was.
        """
        try:
            return self._recover(sets, apply_all, show)
        except StoreDamaged as error:
            advice = refused_advice(str(self.directory), is_alone=apply_all)
            raise StoreError(f"the store in {self.directory} cannot be loaded: {error}; {advice}") from error
        except StoreError as error:
            raise StoreError(f"the store in {self.directory} cannot be loaded: {error}") from error
        except OSError as error:
            raise StoreError(f"the store in {self.directory} cannot be used: {error}") from error

    def _recover(self, sets: ResourceSets, apply_all: bool, show: Progress) -> Recovered:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = self._disk = self._disk or LocalDisk(self.directory)
        self.bodies = Bodies(disk)
        began = time.monotonic()
        with RecoveryProgress() as progress:

            def advance(done_bytes: int, total_bytes: int) -> None:
                progress.show(done_bytes, total_bytes)
                show(done_bytes, total_bytes)

            unloading = Unloading(self.bodies, self.settings.memory_bytes)
            found = recover(disk, sets, apply_all=apply_all, progress=advance, unloading=unloading)
            show(found.bytes_read, found.bytes_read)
        for note in found.notes:
            log.warning("%s", note)
        if not found.is_empty:
            log.info(
                "recovered %d messages from %d MB in %.1f s (%s)",
                found.messages, found.bytes_read >> 20, time.monotonic() - began,
                "it was closed in order" if found.was_clean else "it was not closed in order",
            )  # fmt: skip
        self._sets = sets
        self._begin(disk, found)
        return found

    def _begin(self, disk: Disk, found: Recovered) -> None:
        """From here on the store is in use: it says so before anything else is written."""
        before = found.status or Status("", self._name, DEFAULT_SET)
        status = StoreStatus(disk, before)
        status.change(broker=self._name, clean="", journal_end=None, last_lsn=0, local_lsn=0)
        status.write()
        self._status, self._committed_lsn = status, found.committed_lsn
        self._replicated, self._local = Given(found.journal_lsn), Given(found.local_lsn)
        self._named = self._identity, before.generation
        self._journal = Journal.begin(
            disk,
            self._identity,
            found.next_number,
            generation=before.generation,
            first_lsn=found.journal_lsn + 1,
            first_local_lsn=found.local_lsn + 1,
            previous_bytes=found.previous_bytes,
            clock=_now_ms,
            segment_bytes=self.settings.segment_bytes,
            closed=_closed(found),
            status=status,
        )
        status.journal = self._journal
        if found.segments:
            _cut_off(disk, found.segments[-1])

    def start(self, listener: StoreListener) -> None:
        """Begin to write; the loop runs."""
        self.is_started = True
        loop = asyncio.get_running_loop()
        self._listener = listener
        self._writer = StoreWriter(self._journal, self, loop)
        self._folding = Folding(self._writer, self._journal, self.directory, loop, self.pager)
        self._writer.start()

    # --- what a turn wrote

    def persist_local(self, parts: Sequence[LocalPart]) -> None:
        """Persist what was written to the broker's own log, in its place; `persisted` follows, or comes at once."""
        if parts:
            self._held += parts
            self._release(self._replicated.last_lsn)
            if self._is_persisted(0):
                self._listener.persisted(self._local.last_lsn, 0)

    def persist(self, batch: LogBatch, committed_lsn: int, number: int) -> bool:
        """Persist a part of the replicated log. True: nothing of it is on its way; else `persisted(number)` follows.

        `committed_lsn`: as far as is known, for a recovery that must not apply more than that.
        """
        local_lsn, self._committed_lsn = self._local.last_lsn, committed_lsn
        rest = batch
        while self._held and self._held[0].after_lsn < batch.last_lsn:
            after_lsn = self._held[0].after_lsn
            if after_lsn >= rest.first_lsn:
                piece, rest = rest.cut_after(after_lsn)
                self._give(self._replicated, piece)
            self._release(after_lsn)
        self._give(self._replicated, rest)
        if self.status.cluster and not self._named[0].cluster:
            self._name_journal()
        self._release(batch.last_lsn)
        is_persisted = self._is_persisted(number)
        if is_persisted and self._local.last_lsn != local_lsn:
            self._listener.persisted(self._local.last_lsn, 0)
        return is_persisted

    def take_back(self, lsn: int) -> None:
        """What was given to us of the replicated log after `lsn` is void."""
        self._settle()
        self._append(BlockKind.TAKEN_BACK, lsn, lsn, 0, b"")
        self._replicated = Given(lsn)

    def _give(self, given: Given, batch: LogBatch) -> None:
        _, last, data, transient = batch
        left_out = 0
        if transient:
            data, left_out = durable_only(data)
        given.last_lsn = last
        given.left_out += left_out
        if data:
            self._append(BlockKind.EVENTS, given.next_lsn, last, given.left_out, data)
            given.next_lsn, given.left_out = last + 1, 0

    def _release(self, upto_lsn: int) -> None:
        """Give the journal those parts of the local log whose place has come."""
        while self._held and self._held[0].after_lsn <= upto_lsn:
            self._give(self._local, self._held.popleft().batch)

    def _settle(self) -> None:
        """Have the journal go as far as what was given to us."""
        self._release(LOCAL_BASE)
        for given in (self._replicated, self._local):
            if given.next_lsn <= given.last_lsn:
                self._append(BlockKind.EVENTS, given.next_lsn, given.last_lsn, given.left_out, b"")
                given.next_lsn, given.left_out = given.last_lsn + 1, 0

    def _append(self, kind: BlockKind, first: int, last: int, left_out: int, data: bytes) -> None:
        self._tickets += 1
        self._writer.append(JournalPiece(self._tickets, kind, first, last, self._committed_lsn, left_out, data))
        self._folding.count(len(data))

    def _is_persisted(self, number: int) -> bool:
        """Whether nothing of what was given to us is on its way. If not, tell when all of it has arrived."""
        if self._tickets == self._synced_ticket:
            return True
        self._waiting.append(AwaitedWrite(self._tickets, self._local.last_lsn, number))
        return False

    # --- see store_writer.WriterListener

    def synced(self, ticket: int) -> None:
        """All pieces up to that one are on disk."""
        self._synced_ticket = ticket
        local_lsn = number = 0
        waiting = self._waiting
        while waiting and waiting[0].ticket <= ticket:
            found = waiting.popleft()
            local_lsn, number = found.local_lsn, found.number or number
        if local_lsn:
            self._listener.persisted(local_lsn, number)

    def filled(self, shortage: OSError | None) -> None:
        """There is no room on the disk, or no file descriptor; None: there is again."""
        self.health = "ok" if shortage is None else "full"
        if shortage is None:
            log.warning("there is room again in %s: going on", self.directory)
        else:
            text = "no room for the store in %s (%s): nothing durable is confirmed until there is some"
            log.error(text, self.directory, shortage.strerror)

    def failed(self, text: str) -> None:
        """Nothing is written any more."""
        self.health = "failed"
        advice = (
            "what was confirmed is on disk; look at the disk (and at the kernel's log), then start this broker again"
        )
        self._listener.store_failed(f"the store in {self.directory} cannot be written: {text}; {advice}")

    # --- what else is kept

    @property
    def status(self) -> Status:
        """What STATUS says, or is about to say."""
        return self._status.current

    @property
    def status_revision(self) -> int:
        """Of the STATUS that is on disk."""
        return self._status.revision

    def describe(self, **fields: Any) -> None:
        """Have other facts in STATUS, soon: see `store.status.Status` for what there is."""
        if self._status.change(**fields):
            self._writer.run(self._status.write)
        self._name_journal()

    def _name_journal(self) -> None:
        """Have the headers of files to come say whose the journal is."""
        named = self._identity, self.status.generation
        if named != self._named:
            self._named = named
            self._writer.run(partial(self._name_files, *named))

    @property
    def _identity(self) -> Identity:
        """Whose the journal is. Who has written nothing yet may still become part of another cluster."""
        return Identity(self.status.cluster if self._replicated.last_lsn else "", self._name, DEFAULT_SET)

    def _name_files(self, identity: Identity, generation: int) -> None:
        """On the writer's thread."""
        self._journal.identity, self._journal.generation = identity, generation

    def persist_vote(self, generation: int, to: str) -> None:
        """Have on disk, when this returns, what was promised. Raises StoreError."""
        if self._status.change(promised=generation, promised_to=to):
            try:
                self._status.write()
            except OSError as error:
                raise StoreError(f"cannot write STATUS in {self.directory}: {error}") from error

    def reset(self, last_lsn: int) -> None:
        """The replicated log now ends at `last_lsn`, by what no log tells: `begin_checkpoint` follows."""
        self._settle()
        self._replicated, self._committed_lsn, self._marked_lsn = Given(last_lsn), 0, 0

    def begin_checkpoint(self) -> None:
        """What is kept from now on counts only with the checkpoint that `write_checkpoint` makes of the state."""
        self._settle()
        if self._checkpoint is not None:
            self._checkpoint.abandon()  # the state is not the one any more of which it was to tell
        self._writer.run(partial(self._journal.roll, needs_base=True, last_lsn=self._replicated.last_lsn))

    def write_checkpoint(self, done: Callable[[], None]) -> None:
        """Put the state as it is now into the store, a little in each turn; `done` once it counts.

        To be called when all that was given to us follows from the state, or the other way round.
        """
        self._settle()
        checkpoint = self._make_checkpoint(lambda: self._checkpoint_written(checkpoint.number, done))
        self._checkpoint = checkpoint
        checkpoint.start()

    def _make_checkpoint(self, done: Callable[[], None]) -> CheckpointWriter:
        return CheckpointWriter(self, self._sets, done, asyncio.get_running_loop().call_soon)

    def _checkpoint_written(self, number: int, done: Callable[[], None]) -> None:
        """It is on disk: what follows it counts from now on, and what lies before it tells of another state."""
        self._writer.run(partial(self._journal.base_persisted, number), done)
        self._folding.drop_before(number)

    def reach(self, end: SnapshotEnd) -> bool:
        """Have the journal go as far as was counted for `end`. False: not all of that was given to us yet."""
        if self._replicated.last_lsn < end.counts_lsn or self._local.last_lsn < end.local_counts_lsn:
            return False
        self._settle()
        return True

    @property
    def writer(self) -> StoreWriter:
        """Where work with files is done in order."""
        return self._writer

    @property
    def journal(self) -> Journal:
        """For jobs on the writer's thread."""
        return self._journal

    @property
    def disk(self) -> Disk:
        """The store's directory. Raises StoreError before `recover`."""
        if self._disk is None:
            raise StoreError("the store was not opened")
        return self._disk

    def note_committed(self, lsn: int) -> None:
        """Nobody can take anything back up to there: a recovery that knows it asks fewer brokers."""
        self._committed_lsn = max(self._committed_lsn, lsn)

    def tick(self) -> None:
        """Fold what is old, once there is enough of it; say on disk what is committed, when nothing else does."""
        if self._committed_lsn > self._marked_lsn and self._tickets == self._synced_ticket and self.health == "ok":
            self._marked_lsn = self._committed_lsn
            self._writer.run(partial(self._journal.mark, self._committed_lsn))
        self._folding.limit_bytes = self.settings.consolidate_bytes
        self._folding.tick(self._committed_lsn)

    def facts(self) -> dict[str, object]:
        """What `query` tells of it."""
        return {"store": self.health, **self._folding.facts()}

    # --- the end

    async def close(self, clean: str) -> bool:
        """Write what is left, end the journal, and mark the store clean with that UUID (empty: not). Whether it is."""
        await self._folding.stop()
        if self.health == "failed":
            return False
        self._settle()
        if clean:  # all of it counts: whoever calls it whole has made sure of that
            self.note_committed(self._replicated.last_lsn)
        self._writer.run(partial(self._end, clean))
        ended = await asyncio.to_thread(self._writer.finish, CLOSE_LIMIT_S)
        if not ended or self.health == "failed":
            log.error("the store in %s could not be closed in order; what was confirmed is there", self.directory)
            return False
        log.info("the store is closed%s", f", clean ({clean})" if clean else "")
        return True

    def _end(self, clean: str) -> None:
        """On the writer's thread. May be called again when the disk is full."""
        if not self._journal.is_dead:
            self._journal_end = self._journal.end(self._committed_lsn)
        if clean:
            ends = {"last_lsn": self._replicated.last_lsn, "local_lsn": self._local.last_lsn}
            self._status.change(clean=clean, journal_end=self._journal_end, **ends)
        self._status.write()


def make_store(settings: BrokerSettings) -> Store | None:
    """The store that these settings ask for."""
    if settings.data_dir is None or not settings.has_store:
        return None
    return Store(settings.data_dir, settings.store, settings.name)


def _cut_off(disk: Disk, segment: SegmentFound) -> None:
    """Give the room back that it had taken and did not need; nothing is written to it any more."""
    file = disk.open(segment.path, writable=True)
    try:
        if file.size > segment.end:
            file.truncate(segment.end)
            file.sync()
    finally:
        file.close()


def _closed(found: Recovered) -> list[ClosedSegment]:
    """The segments of earlier lives, as far as each may be folded alone."""
    segments = [ClosedSegment(segment.number, segment.end, segment.last_lsn) for segment in found.segments]
    return tied(segments, [(taken_back.place[0], taken_back.last_lsn) for taken_back in found.taken_back])


def _now_ms() -> int:
    return int(time.time() * 1000)
