"""Checkpoints, made of the living state: a little in each turn, so that no client waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.server.stores.appender import JournalAppender
from qpid_ha_broker.server.stores.recovery import StoreFiles
from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.dump import Dump
from qpid_ha_broker.store.snapshot import SnapshotWriter

AHEAD_BYTES: Final = 4 * 1024 * 1024
"""What may wait for the disk, so that a dump does not fill the memory that it is meant to save."""


class CheckpointWriter:
    """The promise: `done` is called once the snapshot for the segment that was open at the start is on disk.

    `call_soon`: asyncio's.
    """

    slice_bytes = 64 * 1024
    turn_s = 0.002
    """Of each turn; after it the loop serves everybody else."""

    def __init__(
        self,
        files: StoreFiles,
        appender: JournalAppender,
        sets: ResourceSets,
        done: Callable[[], None],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._files = files
        self._appender = appender
        self._writer = appender.writer
        self._call_soon = call_soon
        self._done = done
        self._dump = Dump(sets)
        last_lsn, local_lsn = sets.log_ends
        self._first_lsns = last_lsn + 1, local_lsn + 1
        self._snapshot: SnapshotWriter | None = None
        self.number = 0
        """Of the segment before which it is, once that is known."""
        self._ahead_bytes = 0
        self._is_waiting = False
        self._is_abandoned = False

    def start(self) -> None:
        """Begin; the loop must not be inside a turn that has not given us all that it wrote."""
        self._writer.run(self._open)
        self._call_soon(self._give)

    def abandon(self) -> None:
        """The state has become another one: what was not given yet cannot be told any more."""
        self._is_abandoned = True
        self._writer.run(self._drop)

    def _give(self) -> None:
        if self._is_abandoned:
            return
        until = time.monotonic() + self.turn_s
        while True:
            records = self._dump.next(self.slice_bytes)
            if records is None:
                break
            self._ahead_bytes += len(records)
            self._writer.run(partial(self._add, records), partial(self._added, len(records)))
            if self._ahead_bytes > AHEAD_BYTES:
                self._is_waiting = True
                return
            if time.monotonic() >= until:
                self._call_soon(self._give)
                return
        if self._appender.reach(self._dump.end()):
            self._writer.run(self._finish, self._done)
        else:
            self._call_soon(self._give)  # what it has counted last is handed over at the end of this turn

    def _added(self, size: int) -> None:
        self._ahead_bytes -= size
        if self._is_waiting and self._ahead_bytes <= AHEAD_BYTES // 2:
            self._is_waiting = False
            self._call_soon(self._give)

    # --- on the writer's thread, where all that was given before is on disk

    def _open(self) -> None:
        files, status = self._files, self._files.status.current
        first_lsn, first_local_lsn = self._first_lsns
        self.number = files.journal.number
        self._snapshot = SnapshotWriter(
            files.disk,
            FileHeader(
                "snapshot", status.cluster, status.broker, status.set, self.number, status.generation,
                first_lsn, first_local_lsn, int(time.time() * 1000), 0, False, status.store,
                status_revision=files.status.revision,
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


class Checkpoints:
    """The promise: what is kept since `begin` counts once the state of a later `write` is on disk, or never.

    The newest checkpoint is the one that counts. `drop_before`: lets go of the files before a number.
    """

    def __init__(
        self,
        files: StoreFiles,
        appender: JournalAppender,
        sets: ResourceSets,
        drop_before: Callable[[int], None],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._files = files
        self._appender = appender
        self._sets = sets
        self._drop_before = drop_before
        self._call_soon = call_soon
        self._newest: CheckpointWriter | None = None
        """It may have ended."""

    def begin(self, last_lsn: int) -> None:
        """The replicated log ends at `last_lsn` now, by what no log tells."""
        self._appender.reset(last_lsn)
        if self._newest is not None:
            self._newest.abandon()  # the state is not the one any more of which it was to tell
        self._appender.writer.run(partial(self._files.journal.roll, needs_base=True, last_lsn=last_lsn))

    def write(self, done: Callable[[], None]) -> None:
        """Put the state as it is now into the store, a little in each turn; `done` once it counts.

        To be called when all that was handed to the journal follows from the state, or the other way round.
        """
        self._appender.settle()
        checkpoint = self._make_writer(lambda: self._written(checkpoint.number, done))
        self._newest = checkpoint
        checkpoint.start()

    def _make_writer(self, done: Callable[[], None]) -> CheckpointWriter:
        return CheckpointWriter(self._files, self._appender, self._sets, done, self._call_soon)

    def _written(self, number: int, done: Callable[[], None]) -> None:
        """It is on disk: what follows it counts from now on, and what lies before it tells of another state."""
        self._appender.writer.run(partial(self._files.journal.base_persisted, number), done)
        self._drop_before(number)
