"""A checkpoint, made of the living state: a little in each turn, so that no client waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from qpid_ha_broker.model.resource_set import ResourceSets
from qpid_ha_broker.server.store_writer import StoreWriter
from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.dump import Dump
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.journal import Journal
from qpid_ha_broker.store.snapshot import SnapshotEnd, SnapshotWriter
from qpid_ha_broker.store.status import Status

AHEAD_BYTES: Final = 4 * 1024 * 1024
"""What may wait for the disk, so that a dump does not fill the memory that it is meant to save."""


class CheckpointedStore(Protocol):
    """What a checkpoint needs of the store that it is for; `Store` says what each is."""

    @property
    def writer(self) -> StoreWriter: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def status(self) -> Status: ...

    @property
    def status_revision(self) -> int: ...

    def reach(self, end: SnapshotEnd) -> bool: ...


class CheckpointWriter:
    """The promise: `done` is called once the snapshot for the segment that was open at the start is on disk.

    `call_soon`: asyncio's.
    """

    slice_bytes = 64 * 1024
    turn_s = 0.002
    """Of each turn; after it the loop serves everybody else."""

    def __init__(
        self,
        store: CheckpointedStore,
        sets: ResourceSets,
        done: Callable[[], None],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store = store
        self._call_soon = call_soon
        self._done = done
        self._dump = Dump(sets)
        self._first_lsns = sets.default.log.last_lsn + 1, sets.local.log.last_lsn + 1
        self._snapshot: SnapshotWriter | None = None
        self.number = 0
        """Of the segment before which it is, once that is known."""
        self._ahead_bytes = 0
        self._is_waiting = False
        self._is_abandoned = False

    def start(self) -> None:
        """Begin; the loop must not be inside a turn that has not given us all that it wrote."""
        self._store.writer.run(self._open)
        self._call_soon(self._give)

    def abandon(self) -> None:
        """The state has become another one: what was not given yet cannot be told any more."""
        self._is_abandoned = True
        self._store.writer.run(self._drop)

    def _give(self) -> None:
        if self._is_abandoned:
            return
        until = time.monotonic() + self.turn_s
        while True:
            records = self._dump.next(self.slice_bytes)
            if records is None:
                break
            self._ahead_bytes += len(records)
            self._store.writer.run(partial(self._add, records), partial(self._added, len(records)))
            if self._ahead_bytes > AHEAD_BYTES:
                self._is_waiting = True
                return
            if time.monotonic() >= until:
                self._call_soon(self._give)
                return
        if self._store.reach(self._dump.end()):
            self._store.writer.run(self._finish, self._done)
        else:
            self._call_soon(self._give)  # what it has counted last is handed over at the end of this turn

    def _added(self, size: int) -> None:
        self._ahead_bytes -= size
        if self._is_waiting and self._ahead_bytes <= AHEAD_BYTES // 2:
            self._is_waiting = False
            self._call_soon(self._give)

    # --- on the writer's thread, where all that was given before is on disk

    def _open(self) -> None:
        store, status = self._store, self._store.status
        first_lsn, first_local_lsn = self._first_lsns
        self.number = store.journal.number
        self._snapshot = SnapshotWriter(
            store.disk,
            FileHeader(
                "snapshot", status.cluster, status.broker, status.set, self.number, status.generation,
                first_lsn, first_local_lsn, int(time.time() * 1000), 0, False, status.store,
                status_revision=store.status_revision,
            ),
        )  # fmt: skip

    def _add(self, records: bytes) -> None:
        if self._snapshot is not None:
            self._snapshot.add(records)

    def _finish(self) -> None:
        if self._snapshot is not None:
            self._snapshot.finish(self._dump.end())
            self._snapshot = None

    def _drop(self) -> None:
        if self._snapshot is not None:
            self._snapshot.abandon()
            self._snapshot = None
