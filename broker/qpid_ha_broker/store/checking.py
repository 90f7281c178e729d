"""Reading every record of every file of a store: what is not as it was written, and where. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.store.blocks import Block, BlockKind, FileHeader
from qpid_ha_broker.store.errors import NewerFormat, StoreError
from qpid_ha_broker.store.facts import Integrity
from qpid_ha_broker.store.files import Disk, bytes_of
from qpid_ha_broker.store.inspection import Flaw, Progress, nobody_watches, refusal
from qpid_ha_broker.store.layout import segment_numbers, segment_path, snapshot_numbers, snapshot_path
from qpid_ha_broker.store.reading import BlockReader, Ending, header_of, open_blocks, witnesses_of
from qpid_ha_broker.store.snapshot import read_end
from qpid_ha_broker.store.status import Status, read_status


def check(disk: Disk, progress: Progress = nobody_watches) -> list[Flaw]:
    """Every flaw of every file, those first for which a broker refuses the store. Raises OSError."""
    refused = refusal(disk)
    checker = _Checker(disk, progress)
    flaws = [flaw for flaw in checker.flaws() if refused is None or flaw[:3] != refused[:3]]
    return flaws if refused is None else [refused, *flaws]


class _Checker:
    """Goes through all files, also those that no broker would read any more."""

    def __init__(self, disk: Disk, progress: Progress) -> None:
        self._disk = disk
        self._progress = progress
        self._status = self._read_status()
        self._segments = segment_numbers(disk)
        self._snapshots = snapshot_numbers(disk)
        self._done = 0
        self._total = sum(bytes_of(disk, path) for path in self._paths())

    def _read_status(self) -> Status | None:
        try:
            return read_status(self._disk)
        except StoreError:
            return None  # the survey says so

    def _paths(self) -> list[str]:
        return [*map(segment_path, self._segments), *map(snapshot_path, self._snapshots)]

    def flaws(self) -> Iterator[Flaw]:
        """File by file. What is wrong with STATUS and with names, the survey says."""
        for number in self._snapshots:
            yield from self._file(snapshot_path(number), number)
        for number in self._segments:
            yield from self._file(segment_path(number), number)

    def _file(self, path: str, number: int) -> Iterator[Flaw]:
        try:
            header = header_of(self._disk, path)
        except NewerFormat as error:
            yield Flaw(Integrity.NEWER, path, 0, str(error))
            return
        except StoreError as error:
            yield Flaw(Integrity.DAMAGED, path, 0, str(error))
            return
        with open_blocks(self._disk, path, header) as reader:
            yield from self._blocks(path, reader, header)
        self._done += bytes_of(self._disk, path)
        self._progress(self._done, self._total)

    def _blocks(self, path: str, reader: BlockReader, header: FileHeader) -> Iterator[Flaw]:
        for block in reader:
            yield from self._records(path, block, header.kind == "snapshot")
            self._progress(min(self._done + block.end, self._total), self._total)
        if header.kind == "snapshot":
            if not reader.closed:
                yield Flaw(Integrity.DAMAGED, path, reader.end, reader.instead)
            return
        number, is_last = header.number, header.number == self._segments[-1]
        following = self._following(number + 1)
        verdict = reader.verdict(witnesses_of(number, self._status, following, is_last=is_last))
        if verdict.ending is Ending.DAMAGED:
            yield Flaw(Integrity.DAMAGED, path, verdict.offset, verdict.text)
        elif verdict.ending is Ending.TORN and is_last:
            yield Flaw(Integrity.TORN, path, verdict.offset, verdict.text)

    def _following(self, number: int) -> FileHeader | None:
        """The header of segment `number`, if it can be read."""
        if number not in self._segments:
            return None
        try:
            return header_of(self._disk, segment_path(number))
        except StoreError:
            return None  # its own line says so

    def _records(self, path: str, block: Block, is_snapshot: bool) -> Iterator[Flaw]:
        if block.kind is BlockKind.END:
            try:
                if is_snapshot:
                    read_end(block)
            except StoreError as error:
                yield Flaw(Integrity.DAMAGED, path, block.offset, str(error))
        elif block.kind is BlockKind.EVENTS and (problem := decode(block.data).problem) is not None:
            yield Flaw(Integrity.DAMAGED, path, block.data_at + problem.offset, f"{problem.fault}: {problem.text}")
