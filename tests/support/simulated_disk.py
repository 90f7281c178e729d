"""A disk in memory that can fail and lose its power, for the store's code as it is.

What was written but not synced is on a real disk perhaps, in part, or not at all, and in any order: a drive and a file
system promise nothing else. So each write is kept as it came; at a power cut a given `random.Random` says of each,
independently, whether it is lost, kept or torn into sectors of which some are kept. Names are separate from files: one
that came, went or changed since the last `sync_directory` may be as before, and later changes may be kept where
earlier ones are lost. One weakness is not modelled: a sync that lies.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from qpid_ha_broker.store.blocks import Buffer

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine is off. No `except Exception` of the code under test may think that it goes on."""


@dataclass(slots=True, eq=False)
class _Write:
    """Bytes at an offset, or, with `size`, a new length of the file."""

    offset: int
    data: bytes
    size: int | None = None


@dataclass(slots=True, eq=False)
class _Content:
    """A file whatever its name: as it is seen, as it is on disk, and what lies between the two."""

    seen: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    pending: list[_Write] = field(default_factory=list)
    last_synced_at: int = 0

    def apply(self, write: _Write) -> None:
        _apply(self.seen, write)
        self.pending.append(write)

    def sync(self) -> None:
        for write in self.pending:
            _apply(self.stable, write)
        self.last_synced_at = min([write.offset for write in self.pending], default=self.last_synced_at)
        self.pending = []

    def forget(self) -> None:
        """A sync failed: what was not synced is not written any more, though it can still be read."""
        self.pending = []

    def after_power_cut(self, random: Random) -> _Content:
        image = bytearray(self.stable)
        for write in self.pending:
            for part in _survivors(write, random):
                _apply(image, part)
        return _Content(bytearray(image), image, last_synced_at=self.last_synced_at)


@dataclass(slots=True, eq=False)
class _Rename:
    """Names that changed together: `None` as content is no file of that name."""

    directories: frozenset[str]
    changes: dict[str, _Content | None]


class SimulatedDisk:
    """A `Disk`. Not thread-safe.

    `crash_at(n)`: the n-th write-like operation from now (1 is the next) raises PowerCut, and so does all that comes
    after; the operation itself may have happened, in part, or not. `after_power_cut()`: the disk that the process sees
    which starts then. `after_kill()`: the process died, the machine did not; all that was written is seen.
    `fail(n, code, of=...)`: the n-th operation from now of those kinds raises OSError(code); `code` EIO of a sync
    also loses what was to be synced. `capacity`: bytes in all files, None for no end. `read_only`: EROFS.
    """

    def __init__(self, random: Random, capacity: int | None = None) -> None:
        self.random = random
        self.capacity = capacity
        self.read_only = False
        self.operations = 0
        """Write-like operations so far."""
        self.trace: list[str] = []
        """What they were: kind and path."""
        self.is_off = False
        self.on_sync: Callable[[bytes], None] | None = None
        """Told of each write that a sync has put on disk for certain."""
        self._crash_at: int | None = None
        self._failures: list[_Failure] = []
        self._names: dict[str, _Content] = {}
        self._stable_names: dict[str, _Content] = {}
        self._renames: list[_Rename] = []
        self._directories: set[str] = {""}

    # --- faults ------------------------------------------------------------------------------------------------------

    def crash_at(self, number: int) -> None:
        self._crash_at = self.operations + number

    def fail(self, number: int, code: int, of: tuple[str, ...] = ("write", "sync"), times: int = 1) -> None:
        """From the `number`-th operation on whose kind is in `of` (1 is the next), `times` of them fail."""
        self._failures.append(_Failure(number, code, of, times))

    def fill(self) -> None:
        """There is no more room than what is taken now."""
        self.capacity = self._used()

    def after_power_cut(self, random: Random | None = None) -> SimulatedDisk:
        """What is on disk when the machine comes up again; this one stays off."""
        self.is_off = True
        random = random or self.random
        kept = dict(self._stable_names)
        for rename in self._renames:
            if random.random() < 0.5:
                _change(kept, rename.changes)
        images: dict[int, _Content] = {}
        for content in kept.values():
            if id(content) not in images:
                images[id(content)] = content.after_power_cut(random)
        return self._successor({path: images[id(content)] for path, content in kept.items()})

    def after_kill(self) -> SimulatedDisk:
        """What a process sees that starts on the same machine: nothing is lost, but nothing more is on disk either."""
        self.is_off = True
        after = self._successor(dict(self._names))
        after._stable_names, after._renames = dict(self._stable_names), list(self._renames)
        return after

    def _successor(self, names: dict[str, _Content]) -> SimulatedDisk:
        after = SimulatedDisk(self.random, self.capacity)
        after._names, after._stable_names = names, dict(names)
        after._directories = set(self._directories)
        after.on_sync = self.on_sync
        return after

    # --- for tests that look, or that damage -------------------------------------------------------------------------

    def peek(self, path: str) -> bytes:
        """What a reader sees."""
        return bytes(self._names[path].seen)

    def put(self, path: str, data: bytes) -> None:
        """This is on disk now, whatever was there: damage, or a copy from elsewhere."""
        content = _Content(bytearray(data), bytearray(data))
        self._names[path] = self._stable_names[path] = content
        self._directories.add(_directory_of(path))

    def files(self) -> dict[str, bytes]:
        """All files as a reader sees them: what a snapshot of the file system holds."""
        return {path: bytes(content.seen) for path, content in self._names.items()}

    def last_synced_at(self, path: str) -> int:
        """Where the last write that was synced began; what lies before it was on disk earlier."""
        return self._names[path].last_synced_at

    # --- Disk --------------------------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        self._check_power()
        files = {path.rpartition("/")[2] for path in self._names if _directory_of(path) == directory}
        below = {path.rpartition("/")[2] for path in self._directories if path and _directory_of(path) == directory}
        return sorted(files | below)

    def exists(self, path: str) -> bool:
        self._check_power()
        return path in self._names or path in self._directories

    def open(self, path: str, *, writable: bool = False) -> SimulatedFile:
        self._check_power()
        if writable and self.read_only:
            raise _error(errno.EROFS, path)
        return SimulatedFile(self, path, self._content(path), writable)

    def create(self, path: str, size: int = 0) -> SimulatedFile:
        def make() -> None:
            if path in self._names:
                raise _error(errno.EEXIST, path)
            self._check_directory(path)
            self._take_room(size, path)
            content = _Content()
            if size:
                content.apply(_Write(0, b"", size))
            self._rename({_directory_of(path)}, {path: content})

        self.operate("create", path, make)
        return SimulatedFile(self, path, self._names[path], True)

    def replace(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        if temporary in self._names:
            self.remove(temporary)
        file = self.create(temporary)
        file.write(0, data)
        file.sync()
        self.rename(temporary, path)
        self.sync_directory(_directory_of(path))

    def rename(self, old: str, new: str) -> None:
        def move() -> None:
            self._rename({_directory_of(old), _directory_of(new)}, {old: None, new: self._content(old)})

        self.operate("rename", new, move)

    def remove(self, path: str) -> None:
        def take() -> None:
            self._content(path)
            self._rename({_directory_of(path)}, {path: None})

        self.operate("remove", path, take)

    def make_directory(self, path: str) -> None:
        """Directories are made once and for all: what hangs on them is modelled, they themselves are not."""
        if path not in self._directories:
            self.operate("make_directory", path, lambda: self._directories.add(path))

    def sync_directory(self, path: str) -> None:
        def settle() -> None:
            left = []
            for rename in self._renames:
                if path in rename.directories:
                    _change(self._stable_names, rename.changes)
                else:
                    left.append(rename)
            self._renames = left

        self.operate("sync_directory", path, settle)

    def free_bytes(self) -> int:
        self._check_power()
        return 1 << 40 if self.capacity is None else max(0, self.capacity - self._used())

    # --- how an operation goes ---------------------------------------------------------------------------------------

    def operate(self, kind: str, path: str, act: Callable[[], None], failed: Callable[[], None] | None = None) -> None:
        """One write-like operation: it happens, fails as planned, or the power goes in the middle of it."""
        self._check_power()
        self.operations += 1
        self.trace.append(f"{kind} {path}")
        if self.operations == self._crash_at:
            if "sync" not in kind and not self.read_only:
                with suppress(OSError):
                    act()  # may or may not be on disk afterwards, as with all that is not synced
            self.is_off = True
            raise PowerCut(f"at operation {self.operations}: {kind} {path}")
        for failure in self._failures:
            if failure.strikes(kind):
                if failed is not None:
                    failed()
                raise _error(failure.code, path)
        if self.read_only:
            raise _error(errno.EROFS, path)
        act()

    def take_room(self, content: _Content, end: int, path: str) -> None:
        """Room for a file that is to be so long. Raises OSError when there is none."""
        self._take_room(max(0, end - len(content.seen)), path)

    def _take_room(self, more: int, path: str) -> None:
        if self.capacity is not None and more and self._used() + more > self.capacity:
            raise _error(errno.ENOSPC, path)

    def _used(self) -> int:
        return sum(len(content.seen) for content in {id(each): each for each in self._names.values()}.values())

    def _rename(self, directories: set[str], changes: dict[str, _Content | None]) -> None:
        _change(self._names, changes)
        self._renames.append(_Rename(frozenset(directories), changes))

    def _content(self, path: str) -> _Content:
        if path not in self._names:
            raise _error(errno.ENOENT, path)
        return self._names[path]

    def _check_directory(self, path: str) -> None:
        if _directory_of(path) not in self._directories:
            raise _error(errno.ENOENT, path)

    def _check_power(self) -> None:
        if self.is_off:
            raise PowerCut("the machine is off")


class SimulatedFile:
    """A `File` of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, path: str, content: _Content, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._writable = writable
        self._is_open = True

    @property
    def size(self) -> int:
        self._check()
        return len(self._content.seen)

    def write(self, offset: int, *pieces: Buffer) -> None:
        self._check(writing=True)
        data = b"".join(pieces)

        def put() -> None:
            self._disk.take_room(self._content, offset + len(data), self._path)
            self._content.apply(_Write(offset, data))

        def put_some() -> None:
            """A write that fails may have got as far as it liked."""
            self._content.apply(_Write(offset, data[: self._disk.random.randrange(len(data) + 1)]))

        self._disk.operate("write", self._path, put, put_some)

    def sync(self) -> None:
        self._check()

        def settle() -> None:
            if self._disk.on_sync is not None:
                for write in self._content.pending:
                    self._disk.on_sync(write.data)
            self._content.sync()

        self._disk.operate("sync", self._path, settle, self._content.forget)

    def read(self, offset: int, length: int) -> bytes:
        self._check()
        return bytes(self._content.seen[offset : offset + length])

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        return [(offset, self.size)]

    def truncate(self, size: int) -> None:
        self._check(writing=True)
        self._disk.operate("truncate", self._path, lambda: self._content.apply(_Write(0, b"", size)))

    def close(self) -> None:
        self._is_open = False

    def _check(self, writing: bool = False) -> None:
        self._disk._check_power()
        if not self._is_open or (writing and not self._writable):
            raise _error(errno.EBADF, self._path)


@dataclass(slots=True)
class _Failure:
    number: int
    code: int
    of: tuple[str, ...]
    times: int

    def strikes(self, kind: str) -> bool:
        if kind not in self.of or not self.times:
            return False
        self.number -= 1
        if self.number > 0:
            return False
        self.times -= 1
        return True


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0]


def _change(names: dict[str, _Content], changes: dict[str, _Content | None]) -> None:
    for path, content in changes.items():
        if content is None:
            names.pop(path, None)
        else:
            names[path] = content


def _apply(image: bytearray, write: _Write) -> None:
    if write.size is not None:
        del image[write.size :]
        image.extend(bytes(write.size - len(image)))
        return
    end = write.offset + len(write.data)
    if len(image) < end:
        image.extend(bytes(end - len(image)))
    image[write.offset : end] = write.data


def _survivors(write: _Write, random: Random) -> list[_Write]:
    """What of a write reaches the disk: nothing, all, or some of the sectors that it touches."""
    fate = random.randrange(3)
    if fate == 0 or write.size is not None:
        return [write] if fate else []
    if fate == 1:
        return [write]
    parts, at, end = [], write.offset, write.offset + len(write.data)
    while at < end:
        stop = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if random.random() < 0.5:
            parts.append(_Write(at, write.data[at - write.offset : stop - write.offset]))
        at = stop
    return parts
