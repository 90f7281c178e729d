"""Stores on any filesystem that fsspec reaches: an object store, HDFS, an archive, the memory of a test.

They are read only, and piece by piece: a part of a file is one request, and nothing is kept of it. Who wants whole
files kept near says so in the path: `simplecache::s3://...`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final, NoReturn

from qpid_ha_broker.store.blocks import Buffer
from qpid_ha_pipeline.errors import PipelineError

_REMOTE: Final = re.compile(r"[A-Za-z][\w+.-]*(://|::)")
_HERE: Final = re.compile(r"^file:/+")


def is_remote(path: str) -> bool:
    """Whether the path is for fsspec: `SCHEME://...`, or several such with `::` between them."""
    return _REMOTE.match(path) is not None


def as_path(path: str) -> str:
    """`file:/x` and `file:///x` are paths of this machine, and read as such: Spark's own filesystems are called so."""
    return _HERE.sub("/", path)


def joined(url: str, name: str) -> str:
    """What lies below it; also of a path. In a chain it is the first member with a path that has it."""
    if not is_remote(url):
        return f"{url.rstrip('/')}/{name}"
    first, chain, rest = url.partition("::")
    if chain and "://" not in first:
        return f"{first}::{joined(rest, name)}"
    return f"{first.rstrip('/')}/{name}{chain}{rest}"


class RemoteDisk:
    """A `store.files.Disk`, as far as reading goes."""

    def __init__(self, url: str) -> None:
        """Raises PipelineError where fsspec, or what it needs for this filesystem, is missing."""
        self._url = url
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise PipelineError(f"{url}: reading it takes fsspec: pip install 'qpid-ha[remote]'") from None
        with self._told("cannot be reached"):
            self._system, self._root = url_to_fs(url)

    def names(self, directory: str) -> list[str]:
        """As they are now: what the filesystem remembers of it is forgotten first."""
        with self._told(f"{directory} cannot be listed"):
            self._system.invalidate_cache()
            try:
                paths = self._system.ls(self._path(directory), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in paths)

    def exists(self, path: str) -> bool:
        """Asks anew each time, too."""
        with self._told(f"{path} cannot be looked up"):
            self._system.invalidate_cache()
            return bool(self._system.exists(self._path(path)))

    def open(self, path: str, *, writable: bool = False) -> RemoteFile:
        """The file as it is now. Raises FileNotFoundError."""
        if writable:
            self._refuse(path)
        return RemoteFile(self, path)

    def matching(self, pattern: str) -> list[str]:
        """URLs of what matches this one."""
        with self._told("cannot be listed"):
            paths = sorted(str(path) for path in self._system.glob(self._root))
        if paths and self._root not in pattern:
            raise PipelineError(f"{pattern}: on this filesystem there are no patterns: name the directories")
        return [pattern.replace(self._root, path) for path in paths]

    def length(self, path: str) -> int:
        """In bytes. Raises FileNotFoundError."""
        with self._told(f"{path} cannot be looked up"):
            self._system.invalidate_cache()
            return int(self._system.size(self._path(path)) or 0)

    def part(self, path: str, begin: int, end: int) -> bytes:
        """The bytes of a file from `begin` to `end`. Raises FileNotFoundError."""
        with self._told(f"{path} cannot be read"):
            return bytes(self._system.cat_file(self._path(path), start=begin, end=end))

    def put(self, path: str, source: str) -> None:
        """A copy of a file of this machine. It is there as a whole, or not at all, where the filesystem can do that."""
        with self._told(f"{path} cannot be written"):
            self._system.makedirs(self._path(path).rpartition("/")[0], exist_ok=True)
            self._system.put_file(source, self._path(path))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else str(self._root)

    @contextmanager
    def _told(self, problem: str) -> Iterator[None]:
        """Each filesystem has errors of its own."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise PipelineError(f"{self._url}: {problem}: {str(error) or type(error).__name__}") from error

    def _refuse(self, path: str) -> NoReturn:
        raise PermissionError(f"{joined(self._url, path)} is only read")

    # --- what is no reading

    def create(self, path: str, size: int = 0) -> NoReturn:
        self._refuse(path)

    def replace(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def rename(self, old: str, new: str) -> None:
        self._refuse(old)

    def remove(self, path: str) -> None:
        self._refuse(path)

    def make_directory(self, path: str) -> None:
        self._refuse(path)

    def sync_directory(self, path: str) -> None:
        self._refuse(path)

    def free_bytes(self) -> int:
        """None that could be used."""
        return 0


class RemoteFile:
    """A `store.files.File`, as far as reading goes: of the length that it had when it was opened."""

    def __init__(self, disk: RemoteDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        _ = self.size

    @cached_property
    def size(self) -> int:
        return self._disk.length(self._path)

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        return self._disk.part(self._path, offset, end) if end > offset else b""

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        """These filesystems do not tell."""
        return [(offset, self.size)]

    def close(self) -> None:
        """There is nothing to let go of."""

    def write(self, offset: int, *pieces: Buffer) -> None:
        self._refuse()

    def sync(self) -> None:
        self._refuse()

    def truncate(self, size: int) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PermissionError(f"{self._path} is only read")
