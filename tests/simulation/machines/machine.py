"""The machine under a real broker in a simulation: its clocks, its disks, and who writes to them.

A broker asks the modules of Python for the time, for chance and for names that are never the same. `Surroundings` has
them answer as the machine does on which the process runs that asks: for each seed the same.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from asyncio import AbstractEventLoop
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast
from unittest import mock

from qpid_ha_agent import coordinator_talk, planned_restart, runner
from qpid_ha_broker.coordination import file
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.server.clients import client_protocol
from qpid_ha_broker.server.controller import controller_service
from qpid_ha_broker.server.runtime import pause_watch
from qpid_ha_broker.server.runtime.cluster_secret import ClusterSecret
from qpid_ha_broker.server.runtime.member_settings import member_settings
from qpid_ha_broker.server.runtime.pause_watch import PauseWatch
from qpid_ha_broker.server.sets import membership, pause_control
from qpid_ha_broker.server.stores.fleet import StoreFleet
from qpid_ha_broker.server.stores.storage import Storage
from qpid_ha_broker.server.stores.writer import IDLE_S, RETRY_S, JournalWriter, StoreWriter, WorkOutcome, WriterListener
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.fold import FoldError, fold
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.layout import segment_path
from qpid_ha_broker.store.reading import header_of
from qpid_ha_config.settings import CoordinatorSettings
from simulated_disk import SimulatedDisk
from simulation.trace import Trace
from simulation.virtual_time import Clock, Schedule

FLUSH_S: Final = 0.0001, 0.008
"""How long a write and its sync take."""
SECRET: Final = b"known to all brokers of a simulation"
TELL_DATES: Final = coordinator_talk, planned_restart, runner, pause_watch, pause_control
Post = Callable[[Callable[[], None]], None]


class RunningProcess(Protocol):
    """The process of a broker."""

    name: str
    is_dead: bool
    clock: Clock
    draw: random.Random

    @property
    def is_stopped(self) -> bool:
        """It does nothing, and will go on."""

    def post(self, command: Callable[[], None]) -> None:
        """Have it done when the process gets to it; never, when it is dead by then."""


class Surroundings:
    """Clocks, chance and names, as the process finds them that runs."""

    def __init__(
        self,
        trace: Trace,
        directory: Path,
        refuses: Callable[[str], bool],
        coordinator: Callable[[Path, RunningProcess], FileCoordinator],
        chunk_messages: int = 0,
    ) -> None:
        """`directory`: has another name in each run. `refuses`: whether nobody takes connections at the machine of that
        address. `coordinator`: the one of a process, in that directory. `chunk_messages`: see `BrokersPlan`; no setting
        says it."""
        self.running: RunningProcess | None = None
        """None: nothing of a broker runs."""
        self._trace = trace
        self._directory = directory
        self._refuses = refuses
        self._coordinator = coordinator
        self._chunk_messages = chunk_messages
        surroundings = self

        class Calendar(datetime):
            """Dates of the machine on which the process runs that asks."""

            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                if surroundings.running is None:
                    return super().now(tz)
                return cls.fromtimestamp(surroundings.running.clock.wall_ms() / 1000, tz)

        self._calendar = Calendar

    @contextmanager
    def process(self, process: RunningProcess) -> Iterator[None]:
        """It runs."""
        before, self.running = self.running, process
        try:
            yield
        finally:
            self.running = before

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Whoever asks is answered as a broker is on its machine."""
        monotonic, wall, chance, make_uuid = time.monotonic, time.time, random.random, uuid.uuid4
        parts_of = time.gmtime
        running = self._monotonic_s

        def steady_s(*_: object) -> float:
            return monotonic() if self.running is None else running()

        def wall_s() -> float:
            return wall() if self.running is None else self.running.clock.wall_ms() / 1000

        def drawn() -> float:
            return chance() if self.running is None else self.running.draw.random()

        def made() -> uuid.UUID:
            if self.running is None:
                return make_uuid()
            return uuid.UUID(int=self.running.draw.getrandbits(128), version=4)

        changes: list[Any] = [
            mock.patch.object(time, "monotonic", steady_s),
            mock.patch.object(time, "perf_counter", steady_s),
            mock.patch.object(time, "clock_gettime", steady_s),
            mock.patch.object(time, "time", wall_s),
            mock.patch.object(time, "gmtime", lambda at_s=None: parts_of(wall_s() if at_s is None else at_s)),
            mock.patch.object(random, "random", drawn),
            mock.patch.object(uuid, "uuid4", made),
            mock.patch.object(controller_service, "_refuses", lambda place: self._refuses(place[0])),
            mock.patch.object(ClusterSecret, "read", return_value=SECRET),
            mock.patch.object(PauseWatch, "start"),  # a thread; nobody asks brokers for what it sees
            mock.patch.object(file, "open_file", self._open_coordinator),
            mock.patch.object(client_protocol, "has_hung_up", lambda transport: transport.has_hung_up),
            mock.patch.object(StoreFleet, "delete", _forget_store),
            mock.patch.object(StoreFleet, "set_aside", _forget_store),
            *[mock.patch.object(module, "datetime", self._calendar) for module in TELL_DATES],
        ]
        if self._chunk_messages:
            changes.append(mock.patch.object(membership, "member_settings", self._member_settings))
        for change in changes:
            change.start()
        lines = TracedLog(self, self._trace, f"{self._directory}/")
        root = logging.getLogger()
        level, handlers = root.level, root.handlers[:]
        root.handlers[:] = [lines]
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
            for change in reversed(changes):
                change.stop()

    def _open_coordinator(self, settings: CoordinatorSettings) -> FileCoordinator:
        """Of the process that asks."""
        directory, running = settings.url.directory, self.running
        assert directory is not None
        return FileCoordinator(directory) if running is None else self._coordinator(directory, running)

    def _member_settings(self, *arguments: Any) -> MemberSettings:
        """Of `default`."""
        return replace(member_settings(*arguments), chunk_messages=self._chunk_messages)

    def _monotonic_s(self) -> float:
        return 0.0 if self.running is None else self.running.clock.monotonic_s()


class TracedLog(logging.Handler):
    """What brokers log is part of the trace, under the name of who logs it. A bug, which a broker notes to go on, ends
    the run: `emit` raises it."""

    def __init__(self, surroundings: Surroundings, trace: Trace, left_out: str) -> None:
        super().__init__()
        self._left_out = left_out
        self._surroundings = surroundings
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        running = self._surroundings.running
        if self._trace.wanted and record.levelno >= logging.INFO:
            who = "-" if running is None else running.name
            text = f"{record.levelname} {record.name}: {record.getMessage()}"
            self._trace.add(who, text.replace(self._left_out, ""))
        if record.levelno >= logging.ERROR and record.exc_info and record.exc_info[1] is not None:
            raise record.exc_info[1]


# --- disks


class MachineDisks:
    """What outlives the processes of a machine: a disk in memory for each directory of a store."""

    def __init__(self, draw: random.Random, synced: Callable[[bytes], None]) -> None:
        """`synced`: told of all that reaches a disk."""
        self._draw = draw
        self._synced = synced
        self._disks: dict[Path, SimulatedDisk] = {}
        self.slow_s = 0.0
        """How much longer a write and its sync may take."""
        self.is_full = False
        self.is_damaged = False
        """Whoever starts there may refuse."""

    def disk(self, directory: Path, _kept: Container[str] | None = None) -> SimulatedDisk:
        """See `server.stores.storage.MakeDisk`."""
        if directory not in self._disks:
            disk = self._disks[directory] = SimulatedDisk(self._draw)
            disk.on_sync = self._synced
            if self.is_full:
                disk.fill()
        return self._disks[directory]

    def fill(self) -> None:
        """There is no more room than what is taken."""
        self.is_full = True
        for disk in self._disks.values():
            disk.fill()

    def make_room(self) -> None:
        """There is as much as anybody wants."""
        self.is_full = False
        for disk in self._disks.values():
            disk.capacity = None

    def copy(self) -> dict[Path, dict[str, bytes]]:
        """All files of all directories, as a reader sees them."""
        return {directory: disk.files() for directory, disk in self._disks.items()}

    def put_back(self, copies: Mapping[Path, Mapping[str, bytes]]) -> None:
        """Other disks, with just these files. Nobody uses the old ones."""
        self._disks.clear()
        self.is_damaged = False
        for directory, files in copies.items():
            disk = self.disk(directory)
            for path, data in files.items():
                disk.put(path, data)

    def cut_short(self, draw: random.Random) -> None:
        """A file of a journal ends before its end."""
        found = [
            (disk, path, used)
            for disk in self._disks.values()
            for path, data in sorted(disk.files().items())
            if path.startswith("journal/") and (used := len(data.rstrip(b"\0")))
        ]
        if found:
            disk, path, used = draw.choice(found)
            disk.put(path, disk.peek(path)[: draw.randrange(used)])
            self.is_damaged = True

    def process_ended(self, *, has_power: bool) -> None:
        """What was not synced may be lost with the power."""
        for directory, disk in self._disks.items():
            self._disks[directory] = disk.after_kill() if has_power else disk.after_power_cut()

    def replace(self) -> None:
        """By empty ones."""
        self._disks.clear()

    def forget(self, directory: Path) -> None:
        """That of a store which was deleted, or set aside for people to look at."""
        self._disks.pop(directory, None)

    def flush_s(self) -> float:
        """How long the next write and its sync take."""
        return self._draw.uniform(*FLUSH_S) + self.slow_s * self._draw.random()

    def storage(self, schedule: Schedule, post: Post) -> Storage:
        """For one process, which does nothing any more once `post` does not."""
        return Storage(ScheduledWriter(self, schedule, post), self.disk, self._begin_folding)

    def _begin_folding(self, directory: Path, upto: int) -> FoldingHere:
        return FoldingHere(self.disk(directory), upto)


def _forget_store(fleet: StoreFleet, set_name: str) -> Path:
    """See `StoreFleet.delete` and `StoreFleet.set_aside`, which rename directories of the machine under the tests."""
    directory = fleet._directory / set_name
    cast(ScheduledWriter, fleet._storage.writer).disks.forget(directory)
    return directory


class FoldingHere:
    """As `store.consolidator` does it, at once and in the process itself."""

    def __init__(self, disk: SimulatedDisk, upto: int) -> None:
        self._disk = disk
        self._upto = upto

    def run(self) -> str:
        """See `server.stores.folding.FoldingRun`."""
        try:
            header = header_of(self._disk, segment_path(self._upto))
            fold(self._disk, self._upto, Identity(header.cluster, header.broker, header.set))
        except (FoldError, StoreError) as error:
            return str(error)
        return ""

    def stop(self) -> None:
        """It has ended."""


class ScheduledWriter(StoreWriter):
    """As the writer's threads, one for each journal: what was given goes to the disk together, and is there some time
    later; what is given meanwhile goes with the next group."""

    def __init__(self, disks: MachineDisks, schedule: Schedule, post: Post) -> None:
        super().__init__()
        self.disks = disks
        self._schedule = schedule
        self._post = post

    def open(self, journal: Journal, listener: WriterListener, loop: AbstractEventLoop) -> JournalWriter:
        return ScheduledJournalWriter(journal, listener, loop, self._given)

    def _given(self, writer: JournalWriter) -> None:
        """Something was."""
        if writer.is_busy:
            writer.is_due = True
        else:
            self._begin(cast(ScheduledJournalWriter, writer))

    def _begin(self, writer: ScheduledJournalWriter) -> None:
        """A group is on its way."""
        writer.is_busy, writer.is_due, writer.is_scheduled = True, False, False
        count = writer.given_count
        self._after(self.disks.flush_s(), lambda: self._write(writer, count))

    def _write(self, writer: ScheduledJournalWriter, count: int) -> None:
        match writer.write_first(count):
            case WorkOutcome.DONE if writer.is_due:
                self._begin(writer)
            case WorkOutcome.DONE:
                writer.is_busy = False
                given = writer.given
                self._after(IDLE_S, lambda: self._rest(writer, given))
            case WorkOutcome.SHORTAGE:
                self._after(RETRY_S, lambda: self._begin(writer))
            case WorkOutcome.ENDED:
                writer.ended.set()

    def _rest(self, writer: ScheduledJournalWriter, given: int) -> None:
        is_idle = writer.given == given and not writer.is_busy and not writer.ended.is_set()
        if is_idle and writer.rest() is WorkOutcome.ENDED:
            writer.ended.set()

    def _after(self, delay_s: float, command: Callable[[], None]) -> None:
        """On a thread of the process."""
        self._schedule.after(delay_s, lambda: self._post(command))


class ScheduledJournalWriter(JournalWriter):
    """Can write a part of what was given. Its end does not wait for a thread."""

    @property
    def given_count(self) -> int:
        """So many pieces and jobs wait."""
        return len(self._given)

    def write_first(self, count: int) -> WorkOutcome:
        """Do the first `count` of what was given, or what a shortage has left of them."""
        later = [self._given.pop() for _ in range(len(self._given) - count)]
        outcome = self.write_given()
        self._given.extend(reversed(later))
        return outcome

    def finish(self, timeout_s: float) -> bool:
        self._give(None)
        if self.write_given() is WorkOutcome.ENDED:
            self.ended.set()
        return self.ended.is_set()
