"""The threads that write: the loop never waits for a disk, a disk never waits for the loop, and no set for another.

What was appended while a write and its sync were under way goes with the next ones, however much it is, and after each
sync the loop is told up to where everything is on disk. So the fewer syncs the disk allows, the more each covers.

One thread, the writer's, serves the journals of all sets of a broker. Who does what:

1. One journal is open: that thread does everything itself, as if there were no others.
2. Several have something to write: their groups are shared out among that thread and a few more, so that their syncs
   run at the same time and all together take little longer than one.
3. Work that takes longer than a sync (most jobs, the next segment, a spare one) never runs on the writer's thread while
   other journals are open, and never on all of the others: there is always somebody for a short write. Until it has its
   turn nothing else is written to its journal, so what can wait is not given while a set fails over (`Store.describe`).
4. A journal has one thread at a time. What comes for it meanwhile waits for that one to come back.
5. Where there is no room, that journal waits, and is tried again; the others go on.
6. With a ring of the kernel (`disk_ring`), if settings ask for one, the loop itself has a group written where a write
   and a sync are enough, and no thread has to be woken or to get the interpreter back after each call of the system.
   Threads do all else, and have the journal so long (`RingJournalWriter`).

The loop lets go of the interpreter whenever it looks for input, so these threads get it often enough: with Python's
switch interval of 5 ms confirmations come neither later nor fewer than with a tenth or a fiftieth of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.server.stores.group_ring import GroupRing, OpenRing
from qpid_ha_broker.store.blocks import BLOCK_HEADER_BYTES, BlockKind
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import FULL
from qpid_ha_broker.store.journal import Journal
from qpid_ha_broker.store.segment import StagedGroup

log = logging.getLogger("store")

IDLE_S: Final = 0.05
"""Nothing came for so long: time to say on disk that all is there, and to prepare the next segment."""
RETRY_S: Final = 0.5
"""Between two attempts to write to a full disk."""
GROUP_BYTES: Final = 8 * 1024 * 1024
"""What one sync carries at most, so that confirmations come in portions that clients can follow."""
HELPERS_MAX: Final = 15
"""Threads beside the writer's own, which come when they are first needed."""
FOLDED_AT_ONCE: Final = 2
"""Processes that fold journals: each takes a core while it runs."""
FOLDED_BYTES_MIN: Final = 64 * 1024 * 1024
"""For less no process is started where there are many sets: its start alone takes as long as to fold 50 MB."""
LONG_WORK_MAX: Final = 11
"""So many of them do what takes longer than a sync."""


class JournalPiece(NamedTuple):
    """A block for the journal. `ticket`: how many pieces there were, this one included."""

    ticket: int
    kind: BlockKind
    first_lsn: int
    last_lsn: int
    committed_lsn: int
    left_out: int
    data: bytes


class JoinedPieces(NamedTuple):
    """Pieces that count together: whatever becomes of the machine, all of them are on disk, or none."""

    pieces: Sequence[JournalPiece]


class Job(NamedTuple):
    """Other work with files, done when all pieces before it are on disk. A full disk has it done again."""

    action: Callable[[], object]
    done: Callable[[], None]
    is_short: bool
    """It waits for no disk, so it is done wherever pieces are."""


def stage(journal: Journal, item: JournalPiece | JoinedPieces) -> int:
    """Have it go with the next flush of `journal`; returns the ticket of the last piece."""
    pieces = (item,) if isinstance(item, JournalPiece) else item.pieces
    if len(pieces) > 1:
        journal.stage_as_one()
    for piece in pieces:
        journal.stage(*piece[1:])
    return pieces[-1].ticket


class WriterListener(Protocol):
    """Who hears, on the loop, how far things are."""

    def synced(self, ticket: int) -> None:
        """All pieces up to that one are on disk."""

    def filled(self, shortage: OSError | None) -> None:
        """There is no room on the disk, or no file descriptor: everything waits; None: there is some again."""

    def failed(self, text: str) -> None:
        """Nothing is written any more, and what of the last pieces is on disk nobody knows."""


class WorkOutcome(Enum):
    """What came of a thread's work on a journal."""

    DONE = "done"
    SHORTAGE = "shortage"
    """There is no room, or no descriptor: the same again later."""
    ENDED = "ended"
    """It was the last, in order or not."""


class JournalWriter:
    """The promise: `synced` names only pieces that are on disk, and with each all before it of this journal.

    Made by `StoreWriter.open`.
    """

    def __init__(
        self,
        journal: Journal,
        listener: WriterListener,
        loop: asyncio.AbstractEventLoop,
        schedule: Callable[[JournalWriter], None],
    ) -> None:
        self._journal = journal
        self._listener = listener
        self._loop = loop
        self._schedule = schedule
        self._given: deque[JournalPiece | JoinedPieces | Job | None] = deque()
        self.is_scheduled = False
        """The writer's thread will look at what was given. Set on the loop, cleared before that look."""
        self.is_busy = self.is_due = False
        """For the writer's thread: another one works on it; and more has come since that began."""
        self._staged_ticket = 0
        self._given_bytes = self._written_bytes = 0
        """Each is changed by one thread only, or by who has the journal, as are these."""
        self._jobs_given = self._long_given = self._long_done = 0
        self._is_full = False
        self.observe_sync: Callable[[float], None] | None = None
        """Hears, on whichever thread that was, how many seconds a write and its sync took; of a ring, until the loop
        heard of it."""
        self.is_given_up = False
        """The broker ends, and does not wait any longer."""
        self.ended = threading.Event()

    # --- on the loop

    def append(self, piece: JournalPiece) -> None:
        """Have `piece` written."""
        self._given_bytes += BLOCK_HEADER_BYTES + len(piece.data)
        self._give(piece)

    def append_joined(self, pieces: Sequence[JournalPiece]) -> None:
        """Have them written so that after a power cut all are there, or none."""
        self._given_bytes += sum(BLOCK_HEADER_BYTES + len(piece.data) for piece in pieces)
        self._give(JoinedPieces(pieces))

    @property
    def written_bytes(self) -> int:
        """How much of what was given to `append` is on disk."""
        return self._written_bytes

    @property
    def waiting_bytes(self) -> int:
        """How much of what was given to `append` is not on disk."""
        return self._given_bytes - self._written_bytes

    def run(
        self, action: Callable[[], object], done: Callable[[], None] = lambda: None, *, is_short: bool = False
    ) -> None:
        """Have `action` done on a thread once all before is on disk, and `done` on the loop after it.

        `is_short`: it waits for no disk. Others have their turn when there is a thread for what takes long.
        """
        self._jobs_given += 1
        self._long_given += not is_short
        self._give(Job(action, done, is_short))

    @property
    def given(self) -> int:
        """Grows with all that is given: as long as it is the same, nothing has changed."""
        return self._given_bytes + self._jobs_given

    def _give(self, item: JournalPiece | JoinedPieces | Job | None) -> None:
        self._given.append(item)
        if not self.is_scheduled:
            self.is_scheduled = True
            self._schedule(self)

    def finish(self, timeout_s: float) -> bool:
        """Do all that was asked, and end; blocks. Whether that was possible in time: a full disk may last."""
        self._give_end()
        in_time = self.ended.wait(timeout_s)
        if not in_time:
            self.is_given_up = True
            self._schedule(self)
            self.ended.wait(RETRY_S * 4)
        return in_time

    def _give_end(self) -> None:
        self._jobs_given += 1
        self._long_given += 1
        self._give(None)

    # --- on the thread that has it

    @property
    def is_in_ring(self) -> bool:
        """A group is on its way without a thread: none may touch the journal."""
        return False

    def come_back(self) -> bool:
        """All that was given is done. Whether somebody else sees to what comes next, and to its rest."""
        return False

    @property
    def is_long(self) -> bool:
        """Whether what waits may take longer than a write and a sync."""
        return self._long_given != self._long_done or self.waiting_bytes > self._journal.room_bytes

    def write_given(self) -> WorkOutcome:
        """Do all that was given up to now. What a full disk left undone is done by the next call."""
        return self._outcome_of(lambda: self._write_given(with_long=True))

    def write_pieces(self) -> WorkOutcome:
        """The same up to the first job that is not short."""
        return self._outcome_of(lambda: self._write_given(with_long=False))

    def rest(self) -> WorkOutcome:
        """Nothing came for a while: do what can be done beside."""
        return self._outcome_of(self._rest)

    def fail(self, text: str) -> None:
        """Tell that nothing is written any more."""
        self._tell(self._listener.failed, text)

    def _outcome_of(self, work: Callable[[], WorkOutcome]) -> WorkOutcome:
        try:
            return work()
        except (OSError, StoreError) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                self._show_full(error)
                return WorkOutcome.SHORTAGE
            self.fail(str(error))
        except Exception as error:
            log.exception("a bug: %s", error)
            self.fail(f"a bug in the store ({type(error).__name__}); the log has it")
        return WorkOutcome.ENDED

    def _write_given(self, with_long: bool) -> WorkOutcome:
        given = self._given
        for _ in range(len(given)):
            item = given[0]
            if isinstance(item, JournalPiece | JoinedPieces):
                self._staged_ticket = stage(self._journal, item)
                given.popleft()
                if self._journal.staged_bytes > GROUP_BYTES:
                    self._sync()
                continue
            self._sync()
            if not with_long and not (item is not None and item.is_short):
                break  # it came since somebody looked, and whoever gave it has said so
            if item is None:
                return WorkOutcome.ENDED
            item.action()
            self._show_full(None)
            given.popleft()
            self._long_done += not item.is_short
            self._tell(item.done)
        self._sync()
        return WorkOutcome.DONE

    def _rest(self) -> WorkOutcome:
        if not self._journal.is_dead:
            self._journal.mark()
            self._journal.prepare_spare()
        return WorkOutcome.DONE

    def _sync(self) -> None:
        if self._journal.is_dead or not self._journal.staged_bytes:
            return
        ticket, length = self._staged_ticket, self._journal.staged_bytes
        observe, began_s = self.observe_sync, time.perf_counter()
        self._journal.flush()
        if observe is not None:
            observe(time.perf_counter() - began_s)
        self._show_full(None)
        self._written_bytes += length
        self._tell(self._listener.synced, ticket)

    def _show_full(self, shortage: OSError | None) -> None:
        if self._is_full is not (shortage is not None):
            self._is_full = shortage is not None
            self._tell(self._listener.filled, shortage)

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is gone, and everybody who could be told with it
            self._loop.call_soon_threadsafe(what, *arguments)


class JournalHolder(Enum):
    """Who has the journal of a `RingJournalWriter`."""

    LOOP = "loop"
    """Nothing is to be done."""
    RING = "ring"
    """A group is on its way to the disk."""
    THREADS = "threads"


class RingJournalWriter(JournalWriter):
    """The same promise. What takes one write and one sync, the loop itself puts into a ring; threads do all else.

    Who has the journal, and who has it next:

    | holder  | what comes                          | next                                  |
    | ------- | ----------------------------------- | ------------------------------------- |
    | LOOP    | pieces that take a write and a sync | RING                                  |
    | LOOP    | others, a job, the end              | THREADS                               |
    | LOOP    | nothing for `IDLE_S`                | THREADS, to rest; once                |
    | RING    | pieces, jobs, the end               | RING: they wait                       |
    | RING    | it is on disk                       | LOOP, which looks at what waits       |
    | RING    | there is no room                    | THREADS, which try again until it has |
    | RING    | it failed                           | THREADS, which tell it and end        |
    | THREADS | pieces, jobs, the end               | THREADS: they wait, or go along       |
    | THREADS | all is done                         | LOOP, which looks at what waits       |
    """

    def __init__(
        self,
        journal: Journal,
        listener: WriterListener,
        loop: asyncio.AbstractEventLoop,
        schedule: Callable[[JournalWriter], None],
        ring: GroupRing,
    ) -> None:
        super().__init__(journal, listener, loop, schedule)
        self._ring = ring
        self._holder = JournalHolder.LOOP
        self._has_rested = True
        """Nothing came since the last rest."""
        self._active_s = 0.0
        """When something came back, on the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_in_ring(self) -> bool:
        return self._holder is JournalHolder.RING

    def come_back(self) -> bool:
        self._tell(self._go_on)
        return True

    def _give(self, item: JournalPiece | JoinedPieces | Job | None) -> None:
        self._has_rested = False
        self._given.append(item)
        if self._holder is JournalHolder.LOOP:
            self._go_on()

    def _give_end(self) -> None:
        """Not on the loop."""
        self._tell(super()._give_end)

    def _go_on(self) -> None:
        """The loop has it."""
        self._holder = JournalHolder.LOOP
        try:
            if self._put_group():
                self._holder = JournalHolder.RING
            elif self._given or self._journal.staged_bytes:
                self._lend()
            else:
                self._await_rest()
        except (OSError, StoreError) as error:
            self._lend_failed(error)
        except Exception as error:
            log.exception("a bug: %s", error)
            self._lend_failed(StoreError(f"a bug in the store ({type(error).__name__}); the log has it"))

    def _put_group(self) -> bool:
        """Have what was given put on disk, up to the first that a ring cannot do. Whether it is on its way."""
        journal, given = self._journal, self._given
        while given and isinstance(given[0], JournalPiece) and journal.staged_bytes <= GROUP_BYTES:
            self._staged_ticket = stage(journal, given[0])
            given.popleft()
        if not journal.staged_bytes:
            return False
        group = journal.begin_flush()
        if group is None:
            return False
        done = partial(self._flushed, group, self._staged_ticket, time.perf_counter())
        return self._ring.put(group.file, group.offset, b"".join(group.pieces), done)

    def _flushed(self, group: StagedGroup, ticket: int, began_s: float, error: OSError | None) -> None:
        try:
            self._journal.end_flush(group, error)
        except OSError as failure:
            if failure.errno in FULL:
                self._lend()
            else:
                self._lend_failed(failure)
            return
        if self.observe_sync is not None:
            self.observe_sync(time.perf_counter() - began_s)
        self._written_bytes += group.length
        self._go_on()  # the disk has something to do while they hear of it
        self._listener.synced(ticket)

    def _lend(self) -> None:
        """Until `come_back`."""
        self._holder = JournalHolder.THREADS
        self.is_scheduled = True
        self._schedule(self)

    def _lend_failed(self, error: Exception) -> None:
        """All errors are told by the thread that ends the journal."""

        def tell() -> None:
            raise error

        self._given.appendleft(Job(tell, lambda: None, is_short=True))
        self._lend()

    def _await_rest(self) -> None:
        self._active_s = self._loop.time()
        if self._timer is None and not self._has_rested:
            self._timer = self._loop.call_later(IDLE_S, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        self._timer = None
        if self._holder is not JournalHolder.LOOP or self._has_rested:
            return  # what comes back has another look
        left_s = self._active_s + IDLE_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look_whether_idle)
            return
        self._has_rested = True
        self._long_given += 1
        self._given.append(Job(self._rest, lambda: None, is_short=False))
        self._lend()


class _Work(Enum):
    """What a thread is to do with a journal."""

    PIECES = "pieces"
    """A write and a sync."""
    ALL = "all"
    REST = "rest"


class _Batch(NamedTuple):
    """The same work on some journals, one after the other."""

    writers: Sequence[JournalWriter]
    work: _Work

    @property
    def is_long(self) -> bool:
        """It may take longer than a sync."""
        return self.work is not _Work.PIECES

    def do(self) -> list[WorkOutcome]:
        """What came of each."""
        match self.work:
            case _Work.PIECES:
                return [writer.write_pieces() for writer in self.writers]
            case _Work.ALL:
                return [writer.write_given() for writer in self.writers]
            case _Work.REST:
                return [writer.rest() for writer in self.writers]


class _BatchDone(NamedTuple):
    """A helper has come back."""

    batch: _Batch
    outcomes: list[WorkOutcome]


class FoldingShare:
    """What folding takes from a broker with many sets: so many processes at a time, and so much room, for all of them.

    On the loop.
    """

    def __init__(self) -> None:
        self.sets = 0
        """How many journals are open."""
        self.running = 0
        """How many are being folded. 0 <= running <= FOLDED_AT_ONCE."""

    @property
    def has_room(self) -> bool:
        """Whether another one may be folded."""
        return self.running < FOLDED_AT_ONCE

    def limit_bytes(self, limit_bytes: int) -> int:
        """From how many closed bytes on a journal is folded, when one alone would be from `limit_bytes` on."""
        return max(limit_bytes // max(self.sets, 1), min(limit_bytes, FOLDED_BYTES_MIN))


class StoreWriter:
    """The promise: each journal that is open is written by one thread at a time, and none waits for another's room.

    The threads begin with the first journal that is opened, and end with the last.
    """

    def __init__(self, open_ring: OpenRing = lambda loop: None) -> None:
        """`open_ring`: with what it gives, the loop puts groups on disk without a thread."""
        self._open_ring = open_ring
        self._rings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, GroupRing | None]
        self._rings = weakref.WeakKeyDictionary()
        """Of each loop on which a journal was opened; None: there is none."""
        self._lock = threading.Lock()
        self._open: dict[JournalWriter, None] = {}
        self._thread: threading.Thread | None = None
        """These two change with the lock held."""
        self._news: SimpleQueue[JournalWriter | _BatchDone] = SimpleQueue()
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self.folding = FoldingShare()
        """For the loop."""
        # For the writer's thread alone. A journal that is open is busy, ready, lacks room, or is idle, marked or not:
        self._unmarked: dict[JournalWriter, float] = {}
        """Journals whose last group has no mark behind it, and since when they are idle; the longest first."""
        self._ready: dict[JournalWriter, None] = {}
        """Something was given to them, and no thread has them."""
        self._retry_at: dict[JournalWriter, float] = {}
        """Those that lack room."""
        self._long_waiting: deque[_Batch] = deque()
        self._helpers = self._helpers_busy = self._long_running = 0

    def open(self, journal: Journal, listener: WriterListener, loop: asyncio.AbstractEventLoop) -> JournalWriter:
        """Serve `journal` until its `finish`; `listener` hears of it on `loop`."""
        if loop not in self._rings:
            self._rings[loop] = self._open_ring(loop)
        ring = self._rings[loop]
        if ring is None:
            writer = JournalWriter(journal, listener, loop, self._news.put)
        else:
            writer = RingJournalWriter(journal, listener, loop, self._news.put, ring)
        with self._lock:
            self._open[writer] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)
                self._thread.start()
        return writer

    # --- the writer's thread

    def _run(self) -> None:
        try:
            while not self._has_ended():
                self._turn()
        except Exception as error:
            log.exception("a bug: %s", error)
            with self._lock:
                writers, self._open, self._thread = list(self._open), {}, None
            for writer in writers:
                writer.fail(f"a bug in the store ({type(error).__name__}); the log has it")
                writer.ended.set()

    def _has_ended(self) -> bool:
        """Whether no journal is open any more; the helpers are dismissed then."""
        with self._lock:
            if self._open:
                return False
            self._thread = None
        for _ in range(self._helpers):
            self._batches.put(None)
        self._helpers = 0
        return True

    def _turn(self) -> None:
        """Wait for news, and do or hand out what they ask for."""
        self._receive()
        if self._ready:
            self._hand_out()
        if not self._retry_at and not self._unmarked:
            return
        now = time.monotonic()
        for writer in [writer for writer, at in self._retry_at.items() if at <= now]:
            del self._retry_at[writer]
            self._ready[writer] = None
            self._hand_out()
        while self._unmarked:
            writer, since = next(iter(self._unmarked.items()))
            if since + IDLE_S > now:
                break
            del self._unmarked[writer]
            self._do_long(_Batch((writer,), _Work.REST))

    def _receive(self) -> None:
        """Note which journals have something to do; waits until there may be one, or it is time."""
        try:
            news = self._news.get(timeout=self._patience_s())
            while True:
                if isinstance(news, JournalWriter):
                    news.is_scheduled = False
                    self._look_at(news)
                else:
                    self._come_back(news)
                news = self._news.get_nowait()
        except Empty:
            return

    def _patience_s(self) -> float | None:
        """How long news are waited for; None: for ever."""
        times = list(self._retry_at.values())
        if self._unmarked:
            times.append(next(iter(self._unmarked.values())) + IDLE_S)
        return max(min(times) - time.monotonic(), 0.0) if times else None

    def _look_at(self, writer: JournalWriter) -> None:
        """Something was given to it, or it is given up."""
        if writer.is_in_ring:
            if writer.is_given_up:  # its disk hangs
                self._settle(writer, WorkOutcome.ENDED)
        elif writer.is_busy:
            writer.is_due = True
        elif writer not in self._retry_at:
            self._ready[writer] = None
            self._unmarked.pop(writer, None)
        elif writer.is_given_up:
            self._settle(writer, WorkOutcome.ENDED)

    def _come_back(self, done: _BatchDone) -> None:
        """A helper has: what came for its journals meanwhile has its turn."""
        batch, outcomes = done
        self._helpers_busy -= 1
        self._long_running -= batch.is_long
        self._settle_all(batch, outcomes)
        for writer, outcome in zip(batch.writers, outcomes, strict=True):
            if writer.is_due and outcome is WorkOutcome.DONE:
                self._ready[writer] = None
                self._unmarked.pop(writer, None)
            writer.is_busy = writer.is_due = False
        while self._long_waiting and self._may_send_long:
            self._send(self._long_waiting.popleft())

    def _settle_all(self, batch: _Batch, outcomes: Sequence[WorkOutcome]) -> None:
        for writer, outcome in zip(batch.writers, outcomes, strict=True):
            if outcome is not WorkOutcome.DONE or batch.work is not _Work.REST:
                self._settle(writer, outcome)

    def _settle(self, writer: JournalWriter, outcome: WorkOutcome) -> None:
        """A thread has worked on it."""
        self._unmarked.pop(writer, None)
        if outcome is WorkOutcome.DONE:
            if not writer.come_back():
                self._unmarked[writer] = time.monotonic()
        elif outcome is WorkOutcome.SHORTAGE and not writer.is_given_up:
            self._retry_at[writer] = time.monotonic() + RETRY_S
        else:
            self._retry_at.pop(writer, None)
            with self._lock:
                self._open.pop(writer, None)
            writer.ended.set()

    def _hand_out(self) -> None:
        """Have each of them written that is ready; the short ones when the last group is through."""
        if len(self._open) == 1:
            ready, self._ready = list(self._ready), {}
            self._do(_Batch(ready, _Work.ALL))
            return
        if self._helpers_busy > self._long_running:
            return
        ready, self._ready = list(self._ready), {}
        short: list[JournalWriter] = []
        for writer in ready:
            if writer.is_long:
                self._do_long(_Batch((writer,), _Work.ALL))
            else:
                short.append(writer)
        shares = min(len(short), HELPERS_MAX - self._helpers_busy + 1)
        for share in range(1, shares):
            self._send(_Batch(short[share::shares], _Work.PIECES))
        if shares:
            self._do(_Batch(short[::shares], _Work.PIECES))

    def _do(self, batch: _Batch) -> None:
        """On this thread."""
        self._settle_all(batch, batch.do())

    def _do_long(self, batch: _Batch) -> None:
        """As soon as there is somebody for it."""
        if len(self._open) == 1:
            self._do(batch)
        elif self._may_send_long:
            self._send(batch)
        else:
            self._occupy(batch)
            self._long_waiting.append(batch)

    @property
    def _may_send_long(self) -> bool:
        return self._helpers_busy < HELPERS_MAX and self._long_running < LONG_WORK_MAX

    def _send(self, batch: _Batch) -> None:
        """To a helper."""
        self._occupy(batch)
        self._helpers_busy += 1
        self._long_running += batch.is_long
        if self._helpers < self._helpers_busy:
            self._helpers += 1
            threading.Thread(target=self._help, name=f"store writer {self._helpers}", daemon=True).start()
        self._batches.put(batch)

    def _occupy(self, batch: _Batch) -> None:
        """Nobody else may work on these until it is done."""
        for writer in batch.writers:
            writer.is_busy = True
            self._unmarked.pop(writer, None)

    # --- a helper's thread

    def _help(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._news.put(_BatchDone(batch, batch.do()))
