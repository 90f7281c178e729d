"""Finding stores: from what a user named to the directories of resource sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_broker.model.logs.log import DEFAULT_SET
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


def find(paths: tuple[str, ...], sets: tuple[str, ...] = ()) -> list[Directory]:
    """The stores that these paths name: data directories, directories of a set, or patterns of either. `sets`: only
    those of these resource sets; empty: all.

    Raises PipelineError for a path that has no store, and for a set of which none of them has one: a slip must not look
    like a journal without events. Not every broker has a replica of each set, so a directory may be without one.
    """
    stores: dict[str, Directory] = {}
    for path in paths:
        for directory in _expanded(as_path(path)):
            stores |= {store.path: store for store in _stores_in(directory)}
    if not sets:
        return list(stores.values())
    names = {store: set_of(store, sets) for store in stores.values()}
    for name in sets:
        if name not in names.values():
            raise PipelineError(f"no store of the resource set {name!r} is in {', '.join(paths)}")
    return [store for store, name in names.items() if name in sets]


def identities(directories: Iterable[Directory]) -> dict[StoreId, Directory]:
    """Whose store each is. A store that nobody has written in yet goes by its path.

    Raises PipelineError for two copies of one store: their rows would come twice.
    """
    by_store: dict[StoreId, Directory] = {}
    for directory in directories:
        store = _identity(directory)
        if store in by_store:
            raise PipelineError(
                f"{directory.path} and {by_store[store].path} are copies of one store, {store}: name one of them"
            )
        by_store[store] = directory
    return by_store


def _identity(directory: Directory) -> StoreId:
    disk = directory.disk
    known: list[FileHeader | Status] = []
    if numbers := segment_numbers(disk):
        with suppress(StoreError, FileNotFoundError):  # what is wrong with it is told by whoever reads it
            known.append(header_of(disk, segment_path(numbers[-1])))
    if not any(identity.cluster for identity in known):
        with suppress(PipelineError):
            known += [status for status in (read_status(directory),) if status is not None]
    return next(
        (f"{identity.cluster}/{identity.broker}/{identity.set}" for identity in known if identity.cluster),
        directory.path,
    )


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
    paths = RemoteDisk(path).matching(path) if is_remote(path) else _matching(Path(path).absolute())
    if not paths:
        raise PipelineError(f"{path}: no directory matches this pattern")
    return [Directory(matching) for matching in paths]


def _matching(pattern: Path) -> list[str]:
    return sorted(map(str, Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))))


def _stores_in(directory: Directory) -> list[Directory]:
    """Of a data directory those of all sets, `default` first; else the directory itself."""
    above = directory.disk  # whatever is wrong with it is told of what the user named
    names = above.names("")
    sets = sorted((name for name in names if set_name_problem(name) is None), key=default_first)
    stores = [store for name in sets if _is_store(store := Directory(directory.file(name)))]
    if stores:
        return stores
    if not _STORE.keys().isdisjoint(names):
        return [directory]
    where = "there" if is_remote(directory.path) else "on this machine"
    if not above.exists(""):
        raise PipelineError(f"{directory.path}: there is no such directory {where}")
    raise PipelineError(
        f"{directory.path}: holds no store: no broker has this as its data-dir, or none has started there yet"
    )


def _is_store(directory: Directory) -> bool:
    disk = directory.disk
    return any(disk.exists(name) for name in _STORE)


_STORE: Final = dict.fromkeys((SEGMENTS, SNAPSHOTS, STATUS_FILE))
"""What a store has at least one of."""


def default_first(name: str) -> tuple[bool, str]:
    """By which resource sets are put in order."""
    return name != DEFAULT_SET, name


def set_of(store: Directory, sets: Collection[str] = ()) -> str:
    """The resource set of a store; of one in which nobody has written, the name of its directory. `sets`: a directory
    with one of these names is not looked into."""
    name = store.path.rstrip("/").rpartition("/")[2]
    return name if name in sets else _identity(store).rpartition("/")[2]
