"""The only door from the store to a disk, so that a disk that fails on purpose can stand in.

Paths are text relative to the store's directory, with "/" between their parts. Errors are OSError as the system gives
them; what they mean is for the caller to know.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Container
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from .blocks import Buffer

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""No room, no more of it for this user, or no file descriptor: nothing is broken, and there may be some later."""

_PIECES_MAX = 1024
"""IOV_MAX of Linux: a write of more pieces is joined first."""


class File(Protocol):
    """An open file. What was written survives a power cut only once `sync` has returned."""

    @property
    def size(self) -> int:
        """Bytes, as of now."""

    def write(self, offset: int, *pieces: Buffer) -> None:
        """Write all pieces, one after the other, from `offset` on."""

    def sync(self) -> None:
        """Return when the data, and the size if it changed, are on disk. After an error nothing is known."""

    def read(self, offset: int, length: int) -> bytes:
        """So many bytes, fewer only where the file ends."""

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        """From where to where behind `offset` anything may have been written; all else is zeros."""

    def truncate(self, size: int) -> None:
        """Cut the file off, or fill it up with zeros."""

    def close(self) -> None:
        """Let go of it. Twice does no harm."""


class Disk(Protocol):
    """A directory. Names that came, went or changed survive a power cut only after `sync_directory`."""

    def names(self, directory: str) -> list[str]:
        """What lies in it, sorted; nothing when there is no such directory."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open a file that is there."""

    def create(self, path: str, size: int = 0) -> File:
        """Make a file that must not be there, `size` zeros long, with its room taken: a full disk shows here."""

    def replace(self, path: str, data: bytes) -> None:
        """Make this the content: after a power cut it is this or what was before, and once this returns, this."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name. What had the new name before is gone."""

    def remove(self, path: str) -> None:
        """Delete a file."""

    def make_directory(self, path: str) -> None:
        """Make a directory unless it is there."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in it are on disk. "" is the store's own directory."""

    def free_bytes(self) -> int:
        """How much could still be written."""


def bytes_of(disk: Disk, path: str) -> int:
    """How long a file is. Raises OSError."""
    with closing(disk.open(path)) as file:
        return file.size


class LocalFile:
    """A file of the machine."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """For who has the system write to it without waiting. It stays the same until `close`."""
        return self._descriptor

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def write(self, offset: int, *pieces: Buffer) -> None:
        if len(pieces) > _PIECES_MAX:
            pieces = (b"".join(pieces),)
        written = os.pwritev(self._descriptor, pieces, offset)
        total = sum(map(len, pieces))
        if written < total:
            self._write_rest(offset, memoryview(b"".join(pieces)), written)

    def _write_rest(self, offset: int, data: memoryview, written: int) -> None:
        """The system takes 2 GiB at a time, and of what does not fit as much as fits."""
        while written < len(data):
            count = os.pwrite(self._descriptor, data[written:], offset + written)
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count

    def sync(self) -> None:
        os.fdatasync(self._descriptor)
        if not os.fstat(self._descriptor).st_nlink:  # it is on a disk, and nobody will ever find it there
            raise OSError(errno.ENOENT, "its file was deleted by somebody else")

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        pieces, read = [data], len(data)
        while read < length and (more := os.pread(self._descriptor, length - read, offset + read)):
            pieces.append(more)
            read += len(more)
        return b"".join(pieces)

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        try:
            while True:
                begin = os.lseek(self._descriptor, offset, os.SEEK_DATA)
                offset = os.lseek(self._descriptor, begin, os.SEEK_HOLE)
                ranges.append((begin, offset))
        except OSError as error:
            if error.errno != errno.ENXIO:  # a filesystem that does not know
                return [(offset, self.size)]
        return ranges

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalDisk:
    """A directory of the machine. Files are for its owner alone, and no link is followed out of it."""

    def __init__(self, root: Path, kept: Container[str] | None = None) -> None:
        """`kept`: of these directories a descriptor stays open once they were synced; None: of all. Where there are
        very many stores, it is kept of those alone whose sync must not fail for want of one."""
        self.root = root
        self._kept = kept
        self._directories: dict[str, int] = {}
        """Descriptors of those that were synced: a sync that finds none left would be one that failed."""
        weakref.finalize(self, _close_all, self._directories)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(path.name for path in (self.root / directory).iterdir())
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def open(self, path: str, *, writable: bool = False) -> LocalFile:
        return self._open(path, os.O_RDWR if writable else os.O_RDONLY)

    def create(self, path: str, size: int = 0) -> LocalFile:
        file = self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if size:
                os.posix_fallocate(file._descriptor, 0, size)
        except OSError:
            file.close()
            with suppress(OSError):  # the first error is the one to tell
                self.remove(path)
            raise
        return file

    def replace(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        file = self._open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            file.write(0, data)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(path.rpartition("/")[0])

    def rename(self, old: str, new: str) -> None:
        (self.root / old).replace(self.root / new)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def make_directory(self, path: str) -> None:
        (self.root / path).mkdir(mode=0o700, parents=True, exist_ok=True)

    def sync_directory(self, path: str) -> None:
        descriptor = self._directories.get(path)
        if descriptor is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            descriptor = os.open(self.root / path, flags)
            if self._kept is not None and path not in self._kept:
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                return
            self._directories[path] = descriptor
        os.fsync(descriptor)

    def free_bytes(self) -> int:
        facts = os.statvfs(self.root)
        return facts.f_bavail * facts.f_frsize

    def _open(self, path: str, flags: int) -> LocalFile:
        return LocalFile(os.open(self.root / path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _close_all(directories: dict[str, int]) -> None:
    while directories:
        os.close(directories.popitem()[1])
