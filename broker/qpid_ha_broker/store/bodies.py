"""Where in the store's files each message lies, and reading it there.

A file that was replaced by a snapshot stays readable for as long as somebody points into it: its descriptor is kept,
and the system frees its room when the last of them has gone or has been pointed elsewhere.
"""

from __future__ import annotations

import time
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

from qpid_ha_broker.events.layout import ENQUEUED_KINDS, ONE_QUEUE, PART, RecordKind, word_of
from qpid_ha_broker.events.scan import queues_at, scan_plain, unshared_checksum
from qpid_ha_broker.model.paging import PART_SEAL, SHARED_SEAL, BodyPiece, PlacedRecords
from qpid_ha_broker.model.queues.paged import BodyDamaged

from .blocks import BlockKind
from .files import Disk, File
from .layout import (
    SNAPSHOTS,
    segment_numbers,
    segment_path,
    snapshot_index_path,
    snapshot_number,
    snapshot_numbers,
    snapshot_path,
)
from .reading import open_blocks

_PARTS: Final = tuple(word_of(kind, PART) for kind in ENQUEUED_KINDS)
_ENQUEUEDS: Final = (word_of(RecordKind.ENQUEUED), *_PARTS, word_of(RecordKind.SCHEDULED))
_BREATH: Final = 256
"""Records between two moments at which other threads may run: a server waits for this one otherwise."""
PIECE_RECORDS: Final = 65_536
"""So many are told of at a time, and a few more: 24 bytes each."""


class BodyFile:
    """A segment or a snapshot from which payloads are read. Opened at the first reading, or by `hold`."""

    __slots__ = ("__weakref__", "_disk", "_file", "_lock", "name")

    def __init__(self, disk: Disk, name: str) -> None:
        self.name = name
        self._disk = disk
        self._file: File | None = None
        self._lock = Lock()

    def hold(self) -> None:
        """Keep it readable after it is deleted. Raises OSError."""
        self._opened()

    def read(self, offset: int, length: int) -> bytes:
        """From any thread. Raises OSError."""
        return self._opened().read(offset, length)

    def _opened(self) -> File:
        with self._lock:
            if self._file is None:
                self._file = self._disk.open(self.name)
                weakref.finalize(self, self._file.close)
            return self._file


class Bodies:
    """The promise: as long as a BodyRef points to a file, that is readable, also after it was deleted.

    For deleted files this takes a word before: `hold`.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: weakref.WeakValueDictionary[str, BodyFile] = weakref.WeakValueDictionary()
        self._lock = Lock()
        self.unchecked: list[str] = []
        """Snapshots that are in use and of which not all was read: for `checked`."""

    @property
    def names(self) -> list[str]:
        """The files that are pointed to."""
        with self._lock:
            return sorted(self._files.keys())

    def file(self, name: str) -> BodyFile:
        """The file with that path: the same one as long as anybody points to it."""
        with self._lock:
            body_file = self._files.get(name)
            if body_file is None:
                body_file = self._files[name] = BodyFile(self._disk, name)
            return body_file

    def files_before(self, number: int) -> list[str]:
        """The newest snapshot, and the segments from it up to before `number`: all that a store needs, oldest first."""
        snapshots = [snapshot for snapshot in snapshot_numbers(self._disk) if snapshot <= number][-1:]
        first = snapshots[0] if snapshots else 0
        segments = [segment for segment in segment_numbers(self._disk) if first <= segment < number]
        return [*map(snapshot_path, snapshots), *map(segment_path, segments)]

    def hold(self, names: Iterable[str]) -> None:
        """Files are about to be deleted: open those that are still pointed to. Raises OSError."""
        with self._lock:
            held = [file for name in names if (file := self._files.get(name)) is not None]
        for file in held:
            file.hold()

    def pieces(self, name: str) -> Iterator[BodyPiece]:
        """What a file that is written no more holds, up to the first damage; every byte of it is checked.

        Takes a while, and is made for another thread. Raises OSError, BlockError or NewerFormat.
        """
        with open_blocks(self._disk, name) as reader:
            source, durable_records = self.file(name), _Found()
            for block in reader:
                if block.kind is BlockKind.EVENTS:
                    for part in durable_records.add(block.data, block.data_at):
                        yield BodyPiece(source, part)
            if durable_records.records:
                yield BodyPiece(source, durable_records.records)

    def checked(self, name: str) -> Iterator[BodyDamaged | None]:
        """Read a snapshot, a block at each step; at last what is not as it was written, if anything is.

        For another thread, as `pieces`. Raises OSError, BlockError or NewerFormat.
        """
        with open_blocks(self._disk, name) as reader:
            for _ in reader:
                yield None
            if not reader.closed:
                yield BodyDamaged(name, reader.end, 0, reader.instead)

    def distrust(self, name: str) -> None:
        """A record in that file is not as it was written: have the next start read all of it, and refuse it. Blocks."""
        if name.startswith(SNAPSHOTS):
            index = snapshot_index_path(snapshot_number(name))
            if self._disk.exists(index):
                self._disk.remove(index)
                self._disk.sync_directory(SNAPSHOTS)


def records_in(data: bytes, base: int) -> Iterator[Mapping[int, PlacedRecords]]:
    """The durable messages among the records of `data`, which begin at `base` of their file, by queue."""
    durable_records = _Found()
    yield from durable_records.add(data, base)
    yield durable_records.records


class _Found:
    """Gathers the durable messages of a file."""

    def __init__(self) -> None:
        self.records: dict[int, PlacedRecords] = {}
        self._count = 0

    def add(self, data: bytes, base: int) -> Iterator[dict[int, PlacedRecords]]:
        """Go through the records of a block whose data begin at `base`; yields what is enough for a piece."""
        at, count, current, records = 0, 0, -1, _none()
        for size, seal, lsn, word, durable, _, _, lengths, queue in scan_plain(data):
            if durable and word in _ENQUEUEDS:
                if word in _PARTS:
                    seal |= PART_SEAL
                if lengths == ONE_QUEUE:
                    if queue != current:
                        current, records = queue, self._of(queue)
                    records.lsns.append(lsn)
                    records.offsets.append(base + at)
                    records.seals.append(seal)
                else:
                    queues = queues_at(data, at)
                    if len(queues) > 1 and (unshared := unshared_checksum(data, at)) is not None:
                        seal = unshared | SHARED_SEAL | seal & PART_SEAL
                    self._add_to_all(set(queues), lsn, base + at, seal)
            at += size
            count += 1
            if not count % _BREATH:
                time.sleep(0)
                if self._count + count >= PIECE_RECORDS:
                    yield self.records
                    self.records, self._count, current = {}, -count, -1
        self._count += count

    def _of(self, queue: int) -> PlacedRecords:
        records = self.records.get(queue)
        if records is None:
            records = self.records[queue] = _none()
        return records

    def _add_to_all(self, queues: Iterable[int], lsn: int, offset: int, seal: int) -> None:
        """A message in several queues is told of for each of them."""
        for queue in queues:
            records = self._of(queue)
            records.lsns.append(lsn)
            records.offsets.append(offset)
            records.seals.append(seal)


def _none() -> PlacedRecords:
    return PlacedRecords(array("Q"), array("Q"), array("Q"))


def is_before(name: str, number: int) -> bool:
    """Whether the file is a segment or snapshot that snapshot `number` replaces: numbers in names have one length."""
    last = snapshot_path(number) if name.startswith(SNAPSHOTS) else segment_path(number)
    return name < last
