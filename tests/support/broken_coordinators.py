"""Coordinators that break one promise each: what the conformance suite is for. Each is `broken-WHAT:DIRECTORY`.

They rest on the `file` coordinator, and differ from it in a mistake that somebody could make. `installed` makes a
distribution of them, which other processes find on their PYTHONPATH.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from qpid_ha_broker.coordination.coordinator import PRIMARY_LEASE, CoordinatorError
from qpid_ha_broker.coordination.file import FileCoordinator, Lock
from qpid_ha_broker.coordination.record import encode_record
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.settings import CoordinatorSettings
from stopped_processes import stop_processes

STALE_S = 0.2
QUIET_S = 1.0


class ComparesGenerations(FileCoordinator):
    """Takes a record for the expected one if the generation is the same."""

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        found = self.read()
        if found.generation != expected.generation:
            return False, found
        return super().compare_and_set(found, wanted)


class ComparesThenSets(FileCoordinator):
    """Looks, and then writes: another one may have written in between."""

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        found = self.read()
        if found != expected:
            return False, found
        time.sleep(0.005)
        temporary = self.path.with_suffix(f".{threading.get_ident()}")
        temporary.write_bytes(encode_record(wanted))
        temporary.replace(self.path)
        return True, wanted


class ReadsItsCache(FileCoordinator):
    """Does not ask again what it asked a moment ago."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._cached = ClusterRecord()
        self._read_at_s = 0.0

    def read(self) -> ClusterRecord:
        if time.monotonic() - self._read_at_s > STALE_S:
            self._cached, self._read_at_s = super().read(), time.monotonic()
        return self._cached

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        done, there = FileCoordinator(self.directory).compare_and_set(expected, wanted)
        self._cached, self._read_at_s = there, time.monotonic()
        return done, there


class SwallowsChanges(FileCoordinator):
    """Spares watchers calls that follow another one soon, and forgets that there was a change."""

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        told_at_s = 0.0

        def tell() -> None:
            nonlocal told_at_s
            if time.monotonic() - told_at_s > QUIET_S:
                told_at_s = time.monotonic()
                changed()

        return super().watch(tell)


class LockOfItsProcess(Lock):
    """A lock of the process and not of the open file: whoever is in the same process gets it, too."""

    def _lock(self, command: int) -> bool:
        self.release()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if command == fcntl.F_OFD_SETLKW else fcntl.LOCK_NB))
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._held.add(self)
        self._sign()
        return True


class GrantsToTwo(FileCoordinator):
    """Has locks of processes."""

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> Lock:
        return LockOfItsProcess(self.directory, f"{name}.lock", holder, self._held)


class LockByExistence(Lock):
    """Whoever makes a file has the lock, and removes it; if he cannot, it stays."""

    def _lock(self, command: int) -> bool:
        mark = self.path.with_suffix(".mark")
        while True:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                if command == fcntl.F_OFD_SETLK:
                    return False
                time.sleep(0.01)
        return super()._lock(fcntl.F_OFD_SETLK)

    def release(self) -> None:
        was_held = self._descriptor >= 0
        super().release()
        if was_held:
            self.path.with_suffix(".mark").unlink(missing_ok=True)


class NeverTakesBack(FileCoordinator):
    """Has locks that outlive their holders."""

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> Lock:
        return LockByExistence(self.directory, f"{name}.lock", holder, self._held)


class LockThatStays(Lock):
    """Goes by what it remembers, whatever became of the directory."""

    def is_held(self) -> bool:
        return self._descriptor >= 0


class BelievesItHolds(FileCoordinator):
    """Has locks that nobody loses."""

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> Lock:
        return LockThatStays(self.directory, f"{name}.lock", holder, self._held)


class GuessesEmpty(FileCoordinator):
    """Takes what it cannot read for what is not there."""

    def read(self) -> ClusterRecord:
        try:
            return super().read()
        except CoordinatorError:
            return ClusterRecord()


BROKEN: dict[str, type[FileCoordinator]] = {
    "generations": ComparesGenerations,
    "not-atomic": ComparesThenSets,
    "stale": ReadsItsCache,
    "swallows": SwallowsChanges,
    "two-holders": GrantsToTwo,
    "outlives": NeverTakesBack,
    "never-lost": BelievesItHolds,
    "guesses": GuessesEmpty,
}
"""By the end of the scheme."""


def open_broken(settings: CoordinatorSettings) -> FileCoordinator:
    """The factory of all of them."""
    return BROKEN[settings.url.scheme.removeprefix("broken-")](Path(settings.url.rest))


def install(directory: Path) -> None:
    """A distribution with an entry point for each, for whoever has `directory` on his PYTHONPATH."""
    place = directory / "broken_coordinators-1.dist-info"
    place.mkdir()
    place.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: broken-coordinators\nVersion: 1\n")
    names = "\n".join(f"broken-{name} = broken_coordinators:open_broken" for name in BROKEN)
    place.joinpath("entry_points.txt").write_text(f"[qpid_ha.coordinators]\n{names}\n")


class DirectoryFaults:
    """The directory is gone, as when nothing is mounted there. Which one, the environment says."""

    VARIABLE = "FAULTS_DIRECTORY"

    def cut(self) -> None:
        directory = self._directory
        directory.rename(directory.with_name(f"{directory.name}-away"))

    def restore(self) -> None:
        away = self._directory.with_name(f"{self._directory.name}-away")
        if away.exists():
            away.rename(self._directory)

    @property
    def _directory(self) -> Path:
        return Path(os.environ[self.VARIABLE])


class ServerFaults:
    """The servers are stopped: connections stay, and nobody answers. Which ones, the environment says."""

    VARIABLE = "FAULTS_PROCESSES"

    def cut(self) -> None:
        stop_processes(self._pids())

    def restore(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        return [int(word) for word in os.environ[self.VARIABLE].split()]


directory_faults = DirectoryFaults()
server_faults = ServerFaults()
