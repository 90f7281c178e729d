"""Finding stores: from what a user named to the directories of resource sets."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from qpid_ha_broker.store import status
from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.errors import NewerFormat, StoreError
from qpid_ha_broker.store.files import Disk, LocalDisk
from qpid_ha_broker.store.layout import SEGMENTS, SNAPSHOTS, segment_numbers, segment_path
from qpid_ha_broker.store.reading import header_of
from qpid_ha_broker.store.status import STATUS_FILE, Status
from qpid_ha_pipeline.errors import PipelineError

from .remote import RemoteDisk, as_path, is_remote, joined

StoreId = str
"""Of a store, `CLUSTER/BROKER/SET`, wherever it lies."""
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


def identities(directories: Iterable[Directory]) -> dict[StoreId, Directory]:
    """Whose store each is. A store that nobody has written in yet goes by its path.

    Raises PipelineError for two copies of one store: their rows would come twice.
    """
    found: dict[StoreId, Directory] = {}
    for directory in directories:
        store = _identity(directory)
        if store in found:
            raise PipelineError(
                f"{directory.path} and {found[store].path} are copies of one store, {store}: name one of them"
            )
        found[store] = directory
    return found


def _identity(directory: Directory) -> StoreId:
    disk = directory.disk
    known: list[FileHeader | Status] = []
    if numbers := segment_numbers(disk):
        with suppress(StoreError, FileNotFoundError):  # what is wrong with it is told by whoever reads it
            known.append(header_of(disk, segment_path(numbers[-1])))
    if not any(each.cluster for each in known):
        with suppress(PipelineError):
            known += [status for status in (read_status(directory),) if status is not None]
    return next((f"{each.cluster}/{each.broker}/{each.set}" for each in known if each.cluster), directory.path)


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
