"""How a store comes into use: what it holds is recovered, and from then on its files say that somebody writes to it."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.server.runtime.set_log import SetLog
from qpid_ha_broker.server.stores.recovery_progress import RecoveryProgress
from qpid_ha_broker.server.stores.status import StoreStatus, journal_identity
from qpid_ha_broker.server.stores.storage import MakeDisk
from qpid_ha_broker.store.advice import refused_advice, refused_set_advice
from qpid_ha_broker.store.bodies import Bodies
from qpid_ha_broker.store.errors import StoreDamaged, StoreError
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.journal import ClosedSegment, Journal, tied
from qpid_ha_broker.store.layout import SEGMENTS
from qpid_ha_broker.store.recovery import Progress, Recovered, recover
from qpid_ha_broker.store.segment import SegmentEnd
from qpid_ha_broker.store.status import Status
from qpid_ha_broker.store.survey import SegmentFound
from qpid_ha_broker.store.unloading import Unloading
from qpid_ha_config.settings import StoreSettings

FIRST_SEGMENT_BYTES: Final = 256 * 1024
"""Of a set other than `default`: it grows with what is written, and a thousand idle ones take 256 MiB."""


class StoreFiles(NamedTuple):
    """A store that is in use."""

    disk: Disk
    """Its directory."""
    bodies: Bodies
    status: StoreStatus
    journal: Journal
    """For the writer's thread alone, once there is one."""
    begins_after: SegmentEnd
    """The ends of both logs as they were recovered, and how far the replicated one is known to be committed."""


class StoreRecovery:
    """The promise: a store that is in use says so before anything else is written; one that is refused stays as it was.

    Blocks. `make_disk`: of its directory.
    """

    def __init__(self, directory: Path, set_name: str, settings: StoreSettings, name: str, make_disk: MakeDisk) -> None:
        self._directory = directory
        self._set_name = set_name
        self._log = SetLog(logging.getLogger("store"), set_name)
        self._settings = settings
        self._name = name
        self._make_disk = make_disk

    @property
    def _is_first(self) -> bool:
        """There is one of these in a broker, and there may be a thousand others, most of them idle."""
        return self._set_name == DEFAULT_SET

    def run(self, sets: ResourceSets, apply_all: bool, show: Progress) -> tuple[Recovered, StoreFiles]:
        """Fill `sets`, which are new, and begin. Raises StoreError or OSError with a text for an operator.

        `show` hears how far it is; what it raises ends it.
        """
        directory = self._directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            disk = self._make_disk(directory, None if self._is_first else (SEGMENTS,))
            bodies = Bodies(disk)
            found = self._read(disk, sets, apply_all, show, bodies)
            return found, self.begin(disk, bodies, found)
        except StoreDamaged as error:
            if self._is_first:
                advice = refused_advice(str(directory), is_alone=apply_all)
            else:
                advice = refused_set_advice(str(directory), self._set_name, self._name)
            raise StoreError(f"the store in {directory} cannot be loaded: {error}; {advice}") from error
        except StoreError as error:
            raise StoreError(f"the store in {directory} cannot be loaded: {error}") from error
        except OSError as error:
            raise StoreError(f"the store in {directory} cannot be used: {error}") from error

    def _read(self, disk: Disk, sets: ResourceSets, apply_all: bool, show: Progress, bodies: Bodies) -> Recovered:
        began = time.monotonic()
        with RecoveryProgress() as progress:

            def advance(done_bytes: int, total_bytes: int) -> None:
                progress.show(done_bytes, total_bytes)
                show(done_bytes, total_bytes)

            unloading = Unloading(bodies, self._settings.memory_bytes)
            found = recover(disk, sets, apply_all=apply_all, progress=advance, unloading=unloading)
            show(found.bytes_read, found.bytes_read)
        for note in found.notes:
            self._log.warning("%s", note)
        if not found.is_empty:
            self._log.info(
                "recovered %s from %d MB in %.1f s (%s)",
                counted(found.messages, "message"), found.bytes_read >> 20, time.monotonic() - began,
                "it was closed in order" if found.was_clean else "it was not closed in order",
            )  # fmt: skip
        return found

    def begin(self, disk: Disk, bodies: Bodies, found: Recovered) -> StoreFiles:
        """From here on the store is in use: STATUS says so, and a new segment takes what comes. Raises OSError."""
        before = found.status or Status("", self._name, self._set_name)
        if before.set != self._set_name:
            raise StoreError(f"it is the store of the resource set {before.set}: give its directory that name again")
        status = StoreStatus(disk, before)
        status.change(broker=self._name, clean="", journal_end=None, last_lsn=0, local_lsn=0)
        status.write()
        status.journal = Journal.begin(
            disk,
            journal_identity(status.current, found.journal_lsn),
            found.next_number,
            generation=before.generation,
            first_lsn=found.journal_lsn + 1,
            first_local_lsn=found.local_lsn + 1,
            previous_bytes=found.previous_bytes,
            clock=_now_ms,
            segment_bytes=self._settings.segment_bytes,
            first_segment_bytes=None if self._is_first else FIRST_SEGMENT_BYTES,
            closed=_closed(found),
            status=status,
        )
        if found.segments:
            _cut_off(disk, found.segments[-1])
        ends = SegmentEnd(found.journal_lsn, found.local_lsn, found.committed_lsn)
        return StoreFiles(disk, bodies, status, status.journal, ends)


def _cut_off(disk: Disk, segment: SegmentFound) -> None:
    """Give the room back that it had taken and did not need; nothing is written to it any more."""
    file = disk.open(segment.path, writable=True)
    try:
        if file.size > segment.end:
            file.truncate(segment.end)
            file.sync()
    finally:
        file.close()


def _closed(found: Recovered) -> list[ClosedSegment]:
    """The segments of earlier lives, as far as each may be folded alone."""
    segments = [ClosedSegment(segment.number, segment.end, segment.last_lsn) for segment in found.segments]
    return tied(segments, [(taken_back.place[0], taken_back.last_lsn) for taken_back in found.taken_back])


def _now_ms() -> int:
    return int(time.time() * 1000)
