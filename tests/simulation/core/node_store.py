"""A node's store: the broker's own, on a simulated disk, with a writer that works on the virtual clock.

What is given to the writer while it is under way goes with its next round, as with the real one. What a process leaves
behind when it dies in the middle of a round is for the disk to say.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.stores.appender import JournalAppender
from qpid_ha_broker.server.stores.checkpoint import Checkpoints, CheckpointWriter
from qpid_ha_broker.server.stores.folding import Folding
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.server.stores.pager import Pager
from qpid_ha_broker.server.stores.recovery import StoreFiles
from qpid_ha_broker.server.stores.restored import restored_from
from qpid_ha_broker.server.stores.store import Store, StoreListener
from qpid_ha_broker.server.stores.store_clock import StoreClock
from qpid_ha_broker.server.stores.writer import Job, JoinedPieces, JournalPiece, JournalWriter, stage
from qpid_ha_broker.store.bodies import Bodies
from qpid_ha_broker.store.clock_mark import MachineTime
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import FULL
from qpid_ha_broker.store.fold import FoldError, fold
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.recovery import Recovered, recover
from qpid_ha_config.settings import StoreSettings
from simulated_disk import PowerCut, SimulatedDisk
from simulation.virtual_time import Schedule

SET = "default"
WITNESS = "store"
TRY_AGAIN_S = 0.5
"""When the disk is full."""
FLUSH_S = 0.0001, 0.02
STALLS = 0.003
STALL_S = 0.5, 4.0
SLICE_BYTES = 400
SLICE_WITHIN_S = 0.004
IDLE_WORK = 0.1
FOLDS = 0.3
"""Of the times when nothing is to do."""


class ProcessEnds(Exception):
    """The store cannot go on, and the broker without it neither."""


@dataclass
class Machine:
    """What outlives a process: the disk, and how fast it is."""

    disk: SimulatedDisk
    draw: random.Random
    segment_bytes: int
    slow_s: float = 0.0
    has_stalls: bool = True
    operations: int = 0
    """Write-like operations on disks of earlier processes."""
    boots: int = 0
    """How often it was without power."""
    cut_at: int = 0
    """The power goes at this operation, counted from the beginning; 0: it does not."""
    is_damaged: bool = False
    """Some of its bytes were changed: whoever starts there may refuse."""
    is_put_back: bool = False
    """Its disk is a copy, perhaps of the time of another cluster."""
    kinds: list[str] = field(default_factory=list)
    """What those operations were."""

    @property
    def operations_total(self) -> int:
        return self.operations + self.disk.operations

    def replace_disk(self, disk: SimulatedDisk) -> None:
        """As the next process finds it."""
        self.operations += self.disk.operations
        self.kinds += self.disk.trace
        self.disk = disk
        if self.cut_at > self.operations:
            disk.crash_at(self.cut_at - self.operations)

    def flush_s(self) -> float:
        """How long a write and its sync take."""
        stall_s = self.draw.uniform(*STALL_S) if self.has_stalls and self.draw.random() < STALLS else 0.0
        return self.draw.uniform(*FLUSH_S) + stall_s + self.slow_s * self.draw.random()


class Process(NamedTuple):
    """What a store needs of the process around it."""

    schedule: Schedule
    resources: Resources
    run: Callable[[Callable[[], None]], None]
    """Between two inputs, if the process still lives."""
    feed: Callable[[fx.Input], None]
    tail_bytes: int
    note: Callable[[str], None]


class SimulatedWriter:
    """The same promise as `JournalWriter`: `synced` names only pieces that are on disk, and with each all before it."""

    def __init__(self, journal: Journal, listener: SimulatedStore, machine: Machine, process: Process) -> None:
        self._journal = journal
        self._listener = listener
        self._machine = machine
        self._process = process
        self._items: deque[JournalPiece | JoinedPieces | Job] = deque()
        self._news: list[Callable[[], None]] = []
        self._ticket = 0
        self._has_failed = self._is_full = False
        self.is_busy = False

    def append(self, piece: JournalPiece) -> None:
        self._items.append(piece)
        self._go_on()

    def append_joined(self, pieces: Sequence[JournalPiece]) -> None:
        self._items.append(JoinedPieces(pieces))
        self._go_on()

    def run(
        self, action: Callable[[], object], done: Callable[[], None] = lambda: None, *, is_short: bool = False
    ) -> None:
        self._items.append(Job(action, done, is_short))
        self._go_on()

    def _go_on(self) -> None:
        if not self.is_busy and self._items:
            self.is_busy = True
            self._later(self._machine.flush_s(), self._round)

    def _later(self, delay_s: float, command: Callable[[], None]) -> None:
        self._process.schedule.after(delay_s, lambda: self._process.run(command))

    def _round(self) -> None:
        with ENDING_PROCESS:
            try:
                self.write()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._process.note(f"FULL: {error}")
                self._tell_full(error)
                self._later(TRY_AGAIN_S, self._round)
                return
            self._tell_full(None)
        self._later(self._machine.flush_s() / 5, self._report)

    def _tell_full(self, shortage: OSError | None) -> None:
        if self._is_full is not (shortage is not None):
            self._is_full = shortage is not None
            self._listener.filled(shortage)

    def _report(self) -> None:
        self.is_busy = False
        news, self._news = self._news, []
        for tell in news:
            tell()
        self._go_on()
        if not self.is_busy and self._machine.draw.random() < IDLE_WORK:
            with ENDING_PROCESS:
                self._listener.idle()

    def write(self) -> None:
        """All that was given; of a full disk's error, what is left can be tried again. After any other, nothing."""
        if self._has_failed:
            return
        try:
            self._write()
        except (OSError, StoreError) as error:
            self._has_failed = not isinstance(error, OSError) or error.errno not in FULL
            raise

    def _write(self) -> None:
        while self._items:
            item = self._items[0]
            if isinstance(item, JournalPiece | JoinedPieces):
                self._ticket = stage(self._journal, item)
            else:
                self._sync()
                item.action()
                self._news.append(item.done)
            self._items.popleft()
        self._sync()

    def _sync(self) -> None:
        ticket = self._ticket
        if not self._journal.is_dead and self._journal.flush():
            self._news.append(lambda: self._listener.synced(ticket))


class NoFolding:
    """Folding is for `SimulatedStore.idle`: no process, no thread."""


class SimulatedStore(Store):
    """The broker's store, but for threads, processes and the loop."""

    def __init__(self, machine: Machine, process: Process, name: str) -> None:
        super().__init__(Path(name), SET, StoreSettings(segment_bytes=machine.segment_bytes), name)
        self._machine = machine
        self._process = process

    def load(self) -> Recovered:
        """Recover, and begin a segment. Raises OSError as it comes, StoreError."""
        disk, resources = self._machine.disk, self._process.resources
        found = recover(disk, resources.sets, apply_all=False)
        self._sets = resources.sets
        self.files = self._recovery.begin(disk, Bodies(disk), found)
        return found

    def start(self, listener: StoreListener, pager: Pager | None = None) -> None:
        journal = self.files.journal
        self.simulated_writer = SimulatedWriter(journal, self, self._machine, self._process)
        writer: JournalWriter = self.simulated_writer  # type: ignore[assignment]
        appender = JournalAppender(journal, writer, self._progress, self.files.begins_after)
        checkpoints = SimulatedCheckpoints(
            self.files, appender, self._sets, self._drop_before, self._soon, self._process.note
        )
        folding: Folding = NoFolding()  # type: ignore[assignment]
        self._begin(listener, appender, checkpoints, folding)

    def filled(self, shortage: OSError | None) -> None:
        """The trace says so, and no log."""
        self.health = "ok" if shortage is None else "full"
        self._listener.store_writable("" if shortage is None else str(shortage.strerror))

    def _soon(self, command: Callable[[], None]) -> None:
        """For checkpoints, which are written in slices."""
        delay_s = SLICE_WITHIN_S * self._machine.draw.random()
        self._process.schedule.after(delay_s, lambda: self._process.run(command))

    # --- what is done beside

    def idle(self) -> None:
        """Mark, prepare, and now and then fold what is closed and committed, as the process beside the broker does."""
        journal, draw = self.files.journal, self._machine.draw
        journal.mark()
        journal.prepare_spare()
        if self._status_ticks:
            self._write_status()
        if draw.random() < FOLDS:
            self._fold()

    def _fold(self) -> None:
        upto = 0
        for segment in self.files.journal.closed_segments():
            if segment.last_lsn > self.appender.committed_lsn:
                break
            upto = segment.number + 1
        if not upto:
            return
        status = self.files.status.current
        try:
            fold(self._machine.disk, upto, Identity(status.cluster, status.broker, SET))
        except FoldError as error:
            self._process.note(f"not folded: {error}")
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
            return
        self._process.note(f"FOLDED up to {upto}")
        self._drop_before(upto)

    def _drop_before(self, number: int) -> None:
        self.writer.run(lambda: self.files.journal.drop_before(number))

    def end_at_once(self, clean: str) -> None:
        """What `close` does, in one go."""
        self.appender.settle()
        self.simulated_writer.write()
        self._end(clean)


class SimulatedCheckpoint(CheckpointWriter):
    """In small slices, so that much happens between them. `note`: for the trace."""

    slice_bytes = SLICE_BYTES
    turn_s = 0.0
    note: Callable[[str], None]

    def _finish(self) -> None:
        super()._finish()
        self.note(f"CHECKPOINT {self._files.journal.number} of {self._dump.end()}")


class SimulatedCheckpoints(Checkpoints):
    """Of such checkpoints."""

    def __init__(
        self,
        files: StoreFiles,
        appender: JournalAppender,
        sets: ResourceSets,
        drop_before: Callable[[int], None],
        soon: Callable[[Callable[[], None]], None],
        note: Callable[[str], None],
    ) -> None:
        super().__init__(files, appender, sets, drop_before, soon)
        self._note = note

    def _make_writer(self, done: Callable[[], None]) -> CheckpointWriter:
        checkpoint = SimulatedCheckpoint(self._files, self._appender, self._sets, done, self._call_soon)
        checkpoint.note = self._note
        return checkpoint


class NodeStore:
    """The promise: nothing is reported as kept before the sync that covers it has returned."""

    def __init__(self, machine: Machine, process: Process, name: str) -> None:
        self._machine = machine
        self._process = process
        self._store = SimulatedStore(machine, process, name)
        self._member_store = MemberStore(self._store, process.resources.catalog, process.feed)
        self._clock: StoreClock | None = None
        self._is_clock_written = True

    def open(self) -> Restored:
        """Recover, and begin a new segment. Raises OSError, StoreError."""
        resources, store = self._process.resources, self._store
        found = store.load()
        restored = restored_from(self._machine.disk, found, self._process.tail_bytes)
        resources.sets.local_log.add_witness(WITNESS)
        store.start(self)
        self._process.note(
            f"RECOVERED lsn={found.last_lsn} journal={found.journal_lsn} committed={found.committed_lsn}"
            f" transient={found.lost_transient} clean={found.was_clean!r}"
            f" promised={restored.promised} {restored.promised_to} {found.notes}"
        )
        return restored

    def keep_clock(self, machine: Callable[[], MachineTime], steady_ms: Callable[[], int]) -> None:
        """Go on from the time by which messages expire, and keep it."""
        clock = self._process.resources.catalog.clock
        self._clock = StoreClock(self._machine.disk, clock, machine, steady_ms)
        self._clock.restore()

    def tick_clock(self) -> None:
        """Several times a second."""
        if self._clock is not None and self._is_clock_written and self._clock.is_due:
            self._is_clock_written = False
            self._store.simulated_writer.run(self._clock.write, self._clock_written)

    def _clock_written(self) -> None:
        self._is_clock_written = True

    # --- see server.store.StoreListener

    def persisted(self, local_lsn: int, number: int) -> None:
        """On disk up to there."""
        if local_lsn:
            self._process.resources.sets.local_log.acknowledge(WITNESS, local_lsn)
        if number:
            self._member_store.persisted(number)

    def store_writable(self, problem: str) -> None:
        """The disk has room, or none."""
        self._process.feed(fx.StoreWritable(problem))

    def store_failed(self, text: str) -> None:
        """Nothing is kept any more."""
        raise ProcessEnds(text)

    # --- what the core wants

    def carry_out(self, effect: fx.Effect) -> None:
        """Raises PowerCut or ProcessEnds."""
        store = self._member_store
        with ENDING_PROCESS:
            match effect:
                case fx.Persist():
                    store.persist(effect)
                case fx.TruncateLog():
                    store.truncate(effect)
                case fx.BeginCheckpoint():
                    store.begin_checkpoint(effect)
                case fx.WriteCheckpoint():
                    store.write_checkpoint(effect)
                case fx.PersistVote():
                    store.persist_vote(effect)

    def describe(self, status: fx.MemberStatus) -> None:
        """STATUS says what the broker is."""
        self._member_store.describe(status)

    def note_committed(self, lsn: int) -> None:
        """The journal says it when nothing else does."""
        self._store.appender.note_committed(lsn)

    def persist_local(self) -> None:
        """The broker's own log, before the turn's batch of the other one is handed over."""
        self._store.persist_local(self._process.resources.sets.take_local_parts())

    def clean_end(self, uuid: str) -> None:
        """Write all that is left, and close in order. Raises PowerCut or ProcessEnds."""
        with ENDING_PROCESS:
            self.persist_local()
            self._store.end_at_once(uuid)

    # --- the end

    def died(self, has_power: bool) -> SimulatedDisk:
        """The process is gone, perhaps in the middle of a write; the disk that the next one finds."""
        draw, disk = self._machine.draw, self._machine.disk
        store = self._store
        if store.is_started and not disk.is_off and store.simulated_writer.is_busy and draw.random() < 0.5:
            disk.crash_at(draw.randrange(1, 4))
            with suppress(PowerCut, OSError, StoreError):
                store.simulated_writer.write()
        return disk.after_kill() if has_power else disk.after_power_cut()


class EndingProcess:
    """An error of the disk ends the broker. A class, because generators cost more than what is done in between."""

    def __enter__(self) -> None:
        """Whatever is done now may meet such an error."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError | StoreError):
            code = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else ""
            raise ProcessEnds(f"{code} {error}") from error


ENDING_PROCESS: Final = EndingProcess()
