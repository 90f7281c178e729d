"""Looking at a store without touching it: which broker's, how far, whose in-sync set, and whether it is whole.

What recovery would say of it is said by the same survey. But where recovery refuses, this reads on as far as it can:
also a damaged store is a witness of what there was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from qpid_ha_broker.events.scan import RecordError
from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.store.blocks import Block, BlockKind, FileHeader
from qpid_ha_broker.store.errors import NewerFormat, StoreDamaged, StoreError
from qpid_ha_broker.store.evidence import Evidence
from qpid_ha_broker.store.facts import Integrity, StoreFacts
from qpid_ha_broker.store.files import Disk, bytes_of
from qpid_ha_broker.store.layout import segment_numbers, segment_path, snapshot_numbers, snapshot_path
from qpid_ha_broker.store.reading import Ending, header_of, open_blocks, witnesses_of
from qpid_ha_broker.store.snapshot import read_end
from qpid_ha_broker.store.status import STATUS_FILE, Status, read_status
from qpid_ha_broker.store.survey import TakenBack, limits_of, survey

Progress = Callable[[int, int], None]
"""Bytes read so far, and bytes in all."""

_ATTEMPTS = 5
_GRAVITY = (Integrity.NEWER, Integrity.DAMAGED, Integrity.TORN)


def nobody_watches(_done: int, _total: int) -> None:
    """A progress that nobody wants to see."""


class Flaw(NamedTuple):
    """What is not as it should be in a file."""

    integrity: Integrity
    file: str
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}, offset {self.offset}: {self.text}"


def examine(disk: Disk, where: str, progress: Progress = nobody_watches, *, is_running: bool = False) -> StoreFacts:
    """The facts of the store on `disk`. Never writes. Raises OSError.

    Beside a running broker files come and go: then it looks again, and takes a half written end for what it is.
    """
    for attempt in range(_ATTEMPTS):
        names = _names(disk)
        try:
            facts = _Examination(disk, progress).facts(where)
        except FileNotFoundError:
            if not is_running or attempt == _ATTEMPTS - 1:
                raise
            continue
        if not is_running or facts.is_readable or names == _names(disk):
            break
    if is_running and facts.integrity is Integrity.TORN:
        facts = replace(facts, integrity=Integrity.OK, detail="")
    return replace(facts, is_running=is_running)


def refusal(disk: Disk) -> Flaw | None:
    """What a broker would say that refuses to load the store, from headers alone; None: nothing.

    Beside a running broker STATUS and the files that follow are of different moments when a file came between: then it
    looks again.
    """
    for _ in range(_ATTEMPTS):
        names = _names(disk)
        flaw = _refusal(disk)
        if flaw is None or names == _names(disk):
            break
    return flaw


def _refusal(disk: Disk) -> Flaw | None:
    try:
        survey(disk)
    except NewerFormat as error:
        return Flaw(Integrity.NEWER, STATUS_FILE, 0, str(error))
    except StoreDamaged as error:
        return Flaw(Integrity.DAMAGED, error.file, error.offset, error.text)
    return None


def _names(disk: Disk) -> tuple[list[int], list[int]]:
    return segment_numbers(disk), snapshot_numbers(disk)


class _Examination:
    """One look at one store. Stops silently where nothing more can be read: `refusal` says why."""

    def __init__(self, disk: Disk, progress: Progress) -> None:
        self._disk = disk
        self._progress = progress
        self._evidence = Evidence()
        self._flaws: list[Flaw] = []
        self._identity: Status | FileHeader | None = None
        self._last_lsn = self._committed_lsn = self._end_bytes = self._done = self._total = 0

    def facts(self, where: str) -> StoreFacts:
        """Read all of it."""
        refused = refusal(self._disk)
        self._flaws += [refused] if refused is not None else []
        try:
            status = read_status(self._disk)
        except StoreError:
            status = None
        segments, snapshots = _names(self._disk)
        self._total = sum(
            bytes_of(self._disk, path) for path in [*map(segment_path, segments), *map(snapshot_path, snapshots)]
        )
        base = snapshots[-1] if snapshots else 0
        if base:
            self._read_snapshot(base)
        headers = dict(self._headers(base, segments))
        self._read_segments(headers, status, max(segments, default=0))
        self._identity = status or self._identity
        facts = self._summary(where)
        return facts if status is None else _with_status(facts, status, (max(headers, default=0), self._end_bytes))

    def _advance(self, block: Block) -> None:
        self._done = min(self._total, self._done + block.length)
        self._progress(self._done, self._total)

    def _damaged(self, path: str, offset: int, text: str) -> None:
        self._flaws.append(Flaw(Integrity.DAMAGED, path, offset, text))

    def _open_header(self, path: str) -> FileHeader | None:
        try:
            self._identity = header_of(self._disk, path)
        except StoreError:
            return None
        return self._identity

    def _read_snapshot(self, number: int) -> None:
        path = snapshot_path(number)
        header = self._open_header(path)
        if header is None:
            return
        is_whole = False
        with open_blocks(self._disk, path, header) as reader:
            for block in reader:
                self._advance(block)
                try:
                    if block.kind is BlockKind.END:
                        end = read_end(block)
                        self._evidence.transient = end.transient
                        self._last_lsn = self._committed_lsn = end.last_lsn
                        is_whole = True
                    else:
                        self._evidence.read(block.data)
                except (StoreError, RecordError) as error:
                    self._damaged(path, block.offset, str(error))
            if not is_whole:
                self._damaged(path, reader.end, reader.instead)

    def _headers(self, base: int, numbers: list[int]) -> Iterator[tuple[int, FileHeader]]:
        """Of the segments that count, in order, up to the first gap."""
        expected = base or (numbers[0] if numbers else 0)
        for number in numbers:
            if number < expected:
                continue
            header = self._open_header(segment_path(number)) if number == expected else None
            if header is None or header.number != number or (header.needs_base and number != base):
                return
            yield number, header
            expected += 1

    def _limit_of(self, headers: dict[int, FileHeader]) -> Callable[[tuple[int, int]], int]:
        """Up to which LSN the block at a place, (segment, offset), counts."""
        taken_back: list[TakenBack] = []
        for number, header in headers.items():
            with open_blocks(self._disk, segment_path(number), header, headers_only=True) as reader:
                taken_back += [
                    TakenBack((number, block.offset), block.last_lsn)
                    for block in reader
                    if block.kind is BlockKind.TAKEN_BACK
                ]
        return limits_of(taken_back)

    def _read_segments(self, headers: dict[int, FileHeader], status: Status | None, last: int) -> None:
        limit_of = self._limit_of(headers)
        for number, header in headers.items():
            path, after = segment_path(number), headers.get(number + 1)
            limit = None if after is None else after.previous_bytes
            with open_blocks(self._disk, path, header, limit=limit) as reader:
                for block in reader:
                    self._advance(block)
                    self._take(path, block, limit_of((number, block.offset)))
                verdict = reader.verdict(witnesses_of(number, status, after, is_last=number == last))
            self._end_bytes = reader.end
            if verdict.ending is Ending.DAMAGED:
                self._damaged(path, verdict.offset, verdict.text)
                return
            if verdict.ending is Ending.TORN and after is None:
                self._flaws.append(Flaw(Integrity.TORN, path, verdict.offset, verdict.text))

    def _take(self, path: str, block: Block, limit: int) -> None:
        self._committed_lsn = max(self._committed_lsn, block.committed_lsn)
        if block.kind is BlockKind.TAKEN_BACK:
            self._last_lsn = min(self._last_lsn, block.last_lsn)
            self._committed_lsn = min(self._committed_lsn, block.last_lsn)  # discarded by force, though committed
        elif block.kind is BlockKind.EVENTS:
            if not block.is_local:
                self._last_lsn = max(self._last_lsn, block.last_lsn)
            self._evidence.transient += block.left_out
            try:
                self._evidence.read(block.data, limit)
            except RecordError as error:
                self._damaged(path, block.data_at + error.offset, str(error))

    def _summary(self, where: str) -> StoreFacts:
        identity, evidence = self._identity, self._evidence
        flaw = min(self._flaws, key=lambda flaw: _GRAVITY.index(flaw.integrity), default=None)
        return StoreFacts(
            where,
            broker=identity.broker if identity else "",
            cluster=(identity.cluster if identity else "") or evidence.cluster,
            set=identity.set if identity else "",
            history=tuple(evidence.history),
            epoch=evidence.in_sync.epoch,
            members=evidence.in_sync.members,
            epoch_lsn=evidence.epoch_lsn,
            members_before=evidence.members_before(self._committed_lsn),
            last_lsn=self._last_lsn,
            committed_lsn=self._committed_lsn,
            integrity=Integrity.OK if flaw is None else flaw.integrity,
            detail="" if flaw is None else str(flaw),
            messages=evidence.messages,
            bytes=self._total,
            transient=evidence.transient,
            set_records=tuple(evidence.set_records.values()),
        )


def _with_status(facts: StoreFacts, status: Status, end: tuple[int, int]) -> StoreFacts:
    """STATUS knows what no log tells: the role, promises, the shutdown. Of a damaged log it may know more."""
    clean = status.clean if status.journal_end in (None, end) else ""
    facts = replace(
        facts,
        role=status.role,
        clean=clean,
        promised=status.promised,
        promised_to=status.promised_to,
        claims=status.known_claims,
    )
    facts = replace(facts, is_chosen=status.chosen is not None and status.chosen[:2] == facts.position)
    if (status.generation, status.epoch) <= (facts.generation, facts.epoch):
        return facts
    history = tuple(GenerationEntry(*entry) for entry in status.history)
    before = tuple(sorted({*facts.members, *facts.members_before} - set(status.members)))
    known = replace(facts, history=history, epoch=status.epoch, members=status.members)
    return replace(known, members_before=before, epoch_lsn=0)
