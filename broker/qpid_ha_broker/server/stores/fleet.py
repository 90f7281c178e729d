"""The stores of a broker, one for each resource set of which it has a replica, and what is done with many at once.

What a store waits for is the disk, and a disk serves many at once in little more time than one: so they are loaded,
and change their STATUS, side by side.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.stores.pager import THREADS
from qpid_ha_broker.server.stores.storage import Storage, storage_of_machine
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.status import holds_store_of, read_status
from qpid_ha_config.settings import StoreSettings

log = logging.getLogger("store")

SIDE_BY_SIDE: Final = 16
"""Stores that are loaded, or whose votes are kept, at the same time."""
DELETED: Final = ".DELETED"
"""Ends the name of a store that is on its way out: no set can be called so."""
Result = TypeVar("Result")


class StoreFleet:
    """The promise: what is done with several stores at once is done with each as if it were alone.

    `directory`: the broker's data directory; `name`: the broker's.
    """

    def __init__(self, directory: Path, settings: StoreSettings, name: str, storage: Storage | None = None) -> None:
        """`storage`: that of `default`, where its store is open already."""
        self._directory = directory
        self._settings = settings
        self._name = name
        self._storage = storage_of_machine(settings) if storage is None else storage
        """Of all stores."""
        self.pager_threads = ThreadPoolExecutor(THREADS, "pager")
        """Those of the pagers of all sets but `default`, which has some before there are others."""
        self.side_by_side = asyncio.Semaphore(SIDE_BY_SIDE)
        """Of stores that are read while the loop runs."""

    def close(self) -> None:
        """All stores are closed, and all pagers stopped."""
        self.pager_threads.shutdown(wait=False, cancel_futures=True)

    def names(self) -> list[str]:
        """The sets that have a store on disk: `default`, if it does, then the others by name.

        What is left of a store that was deleted when the process ended is deleted now. One that cannot be looked into
        is named, too: whoever opens it hears why. Raises OSError.
        """
        names = set()
        for path in self._directory.iterdir() if self._directory.is_dir() else ():
            if path.name.endswith(DELETED):
                self._delete_rest(path)
            elif set_name_problem(path.name) is None and self._may_hold_store(path):
                names.add(path.name)
        return sorted(names, key=lambda name: (name != DEFAULT_SET, name))

    def _may_hold_store(self, path: Path) -> bool:
        try:
            return holds_store_of(self._storage.make_disk(path, ()), path.name)
        except OSError:
            return True

    @staticmethod
    def _delete_rest(path: Path) -> None:
        try:
            _delete_tree(path)
        except OSError as error:
            log.error("%s is left of a store that is not needed any more, and cannot be deleted: %s", path, error)

    def store(self, set_name: str) -> Store:
        """The one of that set, which is not open. Raises ValueError for what cannot be the name of a set."""
        return Store(self._directory, set_name, self._settings, self._name, self._storage)

    def cluster_of(self, set_name: str) -> str:
        """The UUID of the log that the store of that set holds, which is not open; empty: there is none, or nobody can
        tell. Blocks."""
        try:
            status = read_status(self._storage.make_disk(self._directory / set_name, ()))
        except (StoreError, OSError):
            return ""  # whoever loads it says so
        return "" if status is None else status.cluster

    def set_aside(self, set_name: str) -> Path:
        """Give the store of that set, which is not open, another name: it stays for an operator. Blocks. Raises
        OSError."""
        path = self._directory / set_name
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        aside = path.with_name(f"{set_name}.set-aside-{stamp}")
        path.rename(aside)
        LocalDisk(self._directory, ()).sync_directory("")
        return aside

    def load(self, loads: Sequence[Callable[[], Result]]) -> list[Result | StoreError]:
        """What each of `loads`, such as `Store.recover`, returned, or the StoreError that it raised. Blocks."""

        def attempt(load: Callable[[], Result]) -> Result | StoreError:
            try:
                return load()
            except StoreError as error:
                return error

        return side_by_side(attempt, loads)

    def write_votes(self, stores: Sequence[Store]) -> list[StoreError | None]:
        """Have on disk, when this returns, what was noted in each (`Store.note_vote`), or why it is not. Blocks."""

        def write(store: Store) -> StoreError | None:
            try:
                store.write_vote()
            except StoreError as error:
                return error
            return None

        return side_by_side(write, stores)

    def delete(self, set_name: str) -> None:
        """Delete the store of a set that has no replica here any more, and is closed. Blocks. Raises OSError."""
        path = self._directory / set_name
        if not path.exists():
            return
        gone = path.with_name(set_name + DELETED)
        if gone.exists():
            _delete_tree(gone)
        path.rename(gone)
        LocalDisk(self._directory, ()).sync_directory("")
        _delete_tree(gone)


def _delete_tree(path: Path) -> None:
    import shutil  # with compressors that it imports, and few brokers delete a store

    shutil.rmtree(path)


VoteWritten = Callable[[StoreError | None], None]
"""Hears once that a vote is on disk, or why it is not."""


class VoteWriter:
    """The promise: each vote is told of once it is on disk, and those that come while others are written go together.

    When a broker with many primaries has failed, hundreds of sets vote within a moment: one after the other on the
    loop they would hold up everything else for as long.
    """

    def __init__(self, fleet: StoreFleet) -> None:
        self._fleet = fleet
        self._waiting: list[tuple[Store, VoteWritten]] = []
        self._is_writing = False
        self._tasks = BackgroundTasks()

    def write(self, store: Store, written: VoteWritten) -> None:
        """Put on disk what was noted in `store`; `written` is called in a later round of the loop."""
        self._waiting.append((store, written))
        if not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write())

    async def _write(self) -> None:
        while self._waiting:
            votes, self._waiting = self._waiting, []
            errors = await asyncio.to_thread(self._fleet.write_votes, [store for store, _ in votes])
            for (_, written), error in zip(votes, errors, strict=True):
                written(error)
        self._is_writing = False

    def stop(self) -> None:
        """Nobody is told any more."""
        self._tasks.cancel()


Item = TypeVar("Item")


def side_by_side(action: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What `action` made of each; in threads when there are several."""
    if len(items) < 2:
        return [action(item) for item in items]
    with ThreadPoolExecutor(min(len(items), SIDE_BY_SIDE), "stores") as threads:
        return list(threads.map(action, items))
