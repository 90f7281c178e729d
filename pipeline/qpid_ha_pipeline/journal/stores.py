"""Finding stores: from what a user named to the directories of resource sets."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from qpid_ha_broker.store import status
from qpid_ha_broker.store.errors import NewerFormat, StoreError
from qpid_ha_broker.store.files import Disk, LocalDisk
from qpid_ha_broker.store.layout import SEGMENTS, SNAPSHOTS
from qpid_ha_broker.store.status import STATUS_FILE, Status
from qpid_ha_pipeline.errors import PipelineError

from .remote import RemoteDisk, as_path, is_remote, joined

_MAGIC = frozenset("*?[")


class Directory(NamedTuple):
    """A resource set's directory: a path of this machine, or a URL."""

    path: str

    @property
    def disk(self) -> Disk:
        """The door to it. Raises PipelineError for a filesystem that cannot be reached."""
        return RemoteDisk(self.path) if is_remote(self.path) else LocalDisk(Path(self.path))

    @property
    def parent(self) -> str:
        """Where the directories of a broker's resource sets lie."""
        return self.path.rstrip("/").rpartition("/")[0]

    def file(self, name: str) -> str:
        """How to speak of a file in it."""
        return joined(self.path, name)


def find(paths: tuple[str, ...], resource_set: str) -> list[Directory]:
    """The stores that these paths name: data directories, directories of a set, or patterns of either.

    Raises PipelineError for what is none: a slip in a path must not look like a journal without events.
    """
    found: dict[str, Directory] = {}
    for path in paths:
        for directory in _expanded(as_path(path)):
            store = _store_in(directory, resource_set)
            found[store.path] = store
    return list(found.values())


def read_status(directory: Directory) -> Status | None:
    """STATUS, None if there is none. Raises PipelineError."""
    try:
        return status.read_status(directory.disk)
    except NewerFormat as error:
        raise PipelineError(f"{directory.file(STATUS_FILE)}: {error}") from error
    except StoreError as error:
        raise PipelineError(f"{directory.file(STATUS_FILE)}: {error}; see `qpid-ha store check`") from error


def _expanded(path: str) -> list[Directory]:
    has_pattern = bool(_MAGIC & set(path))
    if not has_pattern:
        return [Directory(path if is_remote(path) else str(Path(path).absolute()))]
    found = RemoteDisk(path).matching(path) if is_remote(path) else _matching(Path(path).absolute())
    if not found:
        raise PipelineError(f"{path}: no directory matches this pattern")
    return [Directory(each) for each in found]


def _matching(pattern: Path) -> list[str]:
    return sorted(map(str, Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))))


def _store_in(directory: Directory, resource_set: str) -> Directory:
    above = directory.disk  # whatever is wrong with it is told of what the user named
    for candidate in (Directory(directory.file(resource_set)), directory):
        disk = candidate.disk
        if any(disk.exists(name) for name in (SEGMENTS, SNAPSHOTS, STATUS_FILE)):
            return candidate
    where = "there" if is_remote(directory.path) else "on this machine"
    if not above.exists(""):
        raise PipelineError(f"{directory.path}: there is no such directory {where}")
    raise PipelineError(
        f"{directory.path}: holds no store of the resource set {resource_set!r}: no broker has this as its data-dir,"
        " or none has started there yet"
    )
