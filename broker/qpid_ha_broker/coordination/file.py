"""A directory that all brokers of a cluster share: a record and notes in files, and a lock.

The locks are those of open file descriptions (fcntl(2), "Open file description locks"): the kernel lets go of them when
the process that holds them ends, however it ends, and a process that waits gets them at that moment. On NFS the server
does the same when a client's lease has run out. The directory must exist: one that we made ourselves where a mount is
missing would give every machine a lock of its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from qpid_ha_broker.coordination.coordinator import PRIMARY_LEASE, CoordinatorError
from qpid_ha_broker.coordination.polling import watch_by_polling
from qpid_ha_broker.coordination.record import decode_record, encode_record
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.settings import CoordinatorSettings

RECORD_FILE = "record.json"
RECORD_LOCK_FILE = "record.lock"
PRIMARY_LOCK_FILE = f"{PRIMARY_LEASE}.lock"
RECORD_LOCK_TIMEOUT_S = 3.0
"""Whoever holds the record's lock needs it for one write; if it is stopped in the middle, others must hear of it."""
WATCH_INTERVAL_S = 0.25
_NOTE_SUFFIX = ".note"
_MODE = 0o660
_FLOCK = struct.Struct("hhqqi0q")
"""struct flock: type, whence, start, length, pid; length 0 is the whole file."""
_LARGEST_RECORD_BYTES = 1024 * 1024


def open_file(settings: CoordinatorSettings) -> FileCoordinator:
    """The factory for `file:DIRECTORY`."""
    directory = settings.url.directory
    if directory is None:
        raise ValueError(f"{settings.url} names no directory")
    return FileCoordinator(directory)


class FileCoordinator:
    """The promise: `record.json` is at any moment a whole record, the last one that was confirmed or a newer one."""

    look_interval_s = 0.5
    """Nothing says when a directory on a network is gone but a look at it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / RECORD_FILE
        self._held: set[Lock] = set()
        """Leases that are ours now."""
        self._ends: list[Callable[[], None]] = []
        """Of watches."""

    def read(self) -> ClusterRecord:
        """The record; an empty one when there is no file yet. Raises CoordinatorError."""
        _require_directory(self.directory)
        try:
            with self.path.open("rb") as opened:
                content = opened.read(_LARGEST_RECORD_BYTES)
        except FileNotFoundError:
            return ClusterRecord()
        except OSError as error:
            raise CoordinatorError(f"cannot read {self.path}: {error.strerror or error}") from None
        try:
            return decode_record(content)
        except (ValueError, RecursionError) as error:
            raise CoordinatorError(
                f"{self.path} is damaged ({error}): move the file away; a primary writes it anew. If there is none, "
                "use `qpid-ha promote --force` on the broker that `qpid-ha status --all` shows furthest"
            ) from None

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """Write `wanted` if `expected` is there, under the record's lock. Raises CoordinatorError."""
        with self._record_lock():
            recorded = self.read()
            if recorded != expected:
                return False, recorded
            self._replace(self.path, encode_record(wanted))
            return True, wanted

    def read_note(self, name: str) -> str:
        """The text of `NAME.note`. Raises CoordinatorError."""
        _require_directory(self.directory)
        path = self._note_path(name)
        try:
            return path.read_bytes().decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise CoordinatorError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        """Write `wanted` if `expected` is there, under the record's lock. Raises CoordinatorError."""
        with self._record_lock():
            if self.read_note(name) != expected:
                return False
            self._replace(self._note_path(name), wanted.encode())
            return True

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Look at the files every `WATCH_INTERVAL_S`."""
        end = watch_by_polling(self._versions, WATCH_INTERVAL_S, changed)
        self._ends.append(end)
        return end

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> Lock:
        """The lock of `NAME.lock`."""
        return Lock(self.directory, f"{name}.lock", holder, self._held)

    def close(self) -> None:
        """Release its locks, end its watches. A lock that a thread still waits for, that thread gives back."""
        for end in self._ends:
            end()
        for lock in self._held.copy():
            lock.release()

    def _versions(self) -> frozenset[tuple[str, int, int]]:
        """Of the record and the notes: each is another file after a change. Empty while the directory is gone."""
        versions = set()
        with contextlib.suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name == RECORD_FILE or entry.name.endswith(_NOTE_SUFFIX):
                    with contextlib.suppress(OSError):
                        status = entry.stat()
                        versions.add((entry.name, status.st_ino, status.st_mtime_ns))
        return frozenset(versions)

    def _note_path(self, name: str) -> Path:
        return self.directory / f"{name}{_NOTE_SUFFIX}"

    def _replace(self, path: Path, content: bytes) -> None:
        """Raises CoordinatorError."""
        try:
            self._write(path, content)
        except OSError as error:
            raise CoordinatorError(f"cannot write {path}: {error.strerror or error}") from None

    def _write(self, path: Path, content: bytes) -> None:
        """On the disk before its name is, and the name before anybody hears of it."""
        temporary = path.with_suffix(".tmp")  # one writer at a time: the lock is ours
        with temporary.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(path)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _record_lock(self) -> Iterator[None]:
        lock = Lock(self.directory, RECORD_LOCK_FILE)
        deadline = time.monotonic() + RECORD_LOCK_TIMEOUT_S
        while not lock.try_lock():
            if time.monotonic() > deadline:
                raise CoordinatorError(
                    f"{lock.path} is held by {holder_of(lock.path)} for more than {RECORD_LOCK_TIMEOUT_S:g} s: "
                    "if that process is stopped, continue or kill it"
                )
            time.sleep(0.005)
        try:
            yield
        finally:
            lock.release()


class Lock:
    """The promise: of all `Lock`s of one directory and file name, on any machine, one at most is held.

    It rests on the file: who removes or replaces it takes the lock away, which `is_held` notices. The file holds who
    has it, for operators.
    """

    def __init__(
        self, directory: Path, file_name: str = PRIMARY_LOCK_FILE, holder: str = "", held: set[Lock] | None = None
    ) -> None:
        self.path = directory / file_name
        self._holder = holder
        self._held = set() if held is None else held
        """Where it is noted while it is ours."""
        self._descriptor = -1
        self._since = ""
        self._renewals = 0

    def try_lock(self) -> bool:
        """Take it if it is free. Raises CoordinatorError."""
        return self.is_held() or self._lock(fcntl.F_OFD_SETLK)

    def acquire(self, cancel: threading.Event) -> bool:
        """Wait in the kernel until it is ours; for a thread of its own. Raises CoordinatorError.

        Nothing can interrupt that wait: `cancel` is looked at when the lock comes, and then it is given back at once.
        """
        while not cancel.is_set():
            if self.is_held():
                return True
            self._lock(fcntl.F_OFD_SETLKW)
        self.release()
        return False

    def is_held(self) -> bool:
        """Whether the lock is ours, and the file is still the one that we locked."""
        return self._descriptor >= 0 and _is_at(self._descriptor, self.path)

    def renew(self) -> None:
        """Write the next number into the file. Raises CoordinatorError."""
        if self._descriptor < 0:
            return
        self._renewals += 1
        try:
            self._write_signature()
        except OSError as error:
            raise CoordinatorError(f"cannot write {self.path}: {error.strerror or error}") from None

    def last_renewal(self) -> str:
        """What is in the file; a half-written line is another one than before, too. Raises CoordinatorError."""
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CoordinatorError(f"cannot read {self.path}: {error.strerror or error}") from None

    def holder(self) -> str:
        """Who signed it, while it is locked. Raises CoordinatorError."""
        _require_directory(self.path.parent)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CoordinatorError(f"cannot open {self.path}: {error.strerror or error}") from None
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            raise CoordinatorError(f"cannot ask who locks {self.path}: {error.strerror or error}") from None
        finally:
            os.close(descriptor)
        return "" if _FLOCK.unpack(answer)[0] == fcntl.F_UNLCK else holder_of(self.path)

    def release(self) -> None:
        """Let the next one have it. The file stays: removing it would race with the next holder."""
        if self._descriptor >= 0:
            if self.is_held():
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1
            self._held.discard(self)

    def _lock(self, command: int) -> bool:
        """One attempt; False too when the file was replaced while we waited for it."""
        self.release()
        _require_directory(self.path.parent)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        except OSError as error:
            raise CoordinatorError(f"cannot open {self.path}: {error.strerror or error}") from None
        try:
            fcntl.fcntl(descriptor, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise CoordinatorError(f"cannot lock {self.path}: {error.strerror or error}") from None
        if not _is_at(descriptor, self.path):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._held.add(self)
        self._sign()
        return True

    def _sign(self) -> None:
        self._since = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._renewals = 0
        with contextlib.suppress(OSError):  # a full disk costs operators a hint, nobody the lock
            os.ftruncate(self._descriptor, 0)
            self._write_signature()

    def _write_signature(self) -> None:
        """Never shorter than before, while it is ours: so it covers what is there."""
        signed = {"name": self._holder, "pid": os.getpid(), "since": self._since, "renewals": self._renewals}
        os.pwrite(self._descriptor, json.dumps(signed).encode() + b"\n", 0)


def holder_of(path: Path) -> str:
    """Who says in the lock file `path` that it is his; for messages only."""
    try:
        signed = json.loads(path.read_text(encoding="utf-8"))
        return f"{signed['name'] or 'a broker'} (pid {signed['pid']}, since {signed['since']})"
    except (OSError, ValueError, TypeError, KeyError):
        return "somebody"


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise CoordinatorError(f"the shared directory {directory} is not there: mount it, or make it")


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
