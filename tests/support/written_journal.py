"""Journals for the tests of the pipeline, made with the store's own writer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import proton

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode, encode_all
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.scan import durable_only
from qpid_ha_broker.store.blocks import BlockKind, FileHeader
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.fold import fold
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.reading import BlockReader, read_header
from qpid_ha_broker.store.snapshot import SnapshotEnd, SnapshotWriter
from qpid_ha_broker.store.status import STATUS_FILE, Status

CLUSTER = "6ad5c8a0-2b0e-4b7c-9a3e-8c1c1f6f0d11"
BEGAN_MS = 1_790_000_000_000


def amqp(body: bytes | str, **fields: Any) -> bytes:
    """A message as a client sends it."""
    message = proton.Message(body=body, inferred=isinstance(body, bytes), **fields)
    return bytes(message.encode())


class _Clock:
    """Apart from the journal that reads it: in a circle of references its descriptors would stay open."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class WrittenJournal:
    """A store of one broker, under `data_dir`. Each `write` is one turn of its loop: one block on disk."""

    def __init__(
        self, data_dir: Path, broker: str = "alpha", *, cluster: str = CLUSTER, segment_bytes: int = 1 << 20,
        number: int = 1, generation: int = 1, now_ms: int = BEGAN_MS, resource_set: str = "default",
    ) -> None:  # fmt: skip
        self.data_dir = data_dir
        self.directory = data_dir / resource_set
        self.directory.mkdir(parents=True, exist_ok=True)
        self.identity = Identity(cluster, broker, resource_set)
        self._clock = _Clock(now_ms)
        self.lsn = 0
        self.local_lsn = LOCAL_BASE
        self.committed = 0
        self.history: list[tuple[int, str, int]] = []
        self.disk = LocalDisk(self.directory)
        self.write_status()
        self.journal = Journal.begin(
            self.disk, self.identity, number, generation=generation, first_lsn=1, first_local_lsn=LOCAL_BASE + 1,
            previous_bytes=0, clock=self._clock, segment_bytes=segment_bytes,
        )  # fmt: skip
        weakref.finalize(self, self.journal.close)

    @property
    def now_ms(self) -> int:
        """What its clock shows."""
        return self._clock.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._clock.now_ms = now_ms

    def write(self, *events: ev.Event, committed: bool = True, unit: bool = False) -> list[int]:
        """Events of the replicated log; returns their LSNs. `unit`: as one transaction, which this closes."""
        records = self._records(self.lsn, events, unit)
        first, self.lsn = self.lsn + 1, self.lsn + len(records)
        for record in records:
            if isinstance(record.event, ev.GenerationStarted):
                self.history.append((record.event.generation, record.event.primary, record.lsn))
                self.journal.generation = record.event.generation
        if committed:
            self.committed = self.lsn
        self._stage(first, records)
        return [record.lsn for record in records]

    def write_local(self, *events: ev.Event) -> list[int]:
        """Events of the broker's own log."""
        records = self._records(self.local_lsn, events, False)
        first, self.local_lsn = self.local_lsn + 1, self.local_lsn + len(records)
        self._stage(first, records)
        return [record.lsn for record in records]

    def take_back(self, last_lsn: int) -> None:
        """What came after `last_lsn` is void."""
        self.lsn = last_lsn
        self.journal.stage(BlockKind.TAKEN_BACK, last_lsn, last_lsn, self.committed, 0, b"")
        self.journal.flush()

    def start(self, generation: int, primary: str | None = None, cause: str = "first start") -> int:
        """Begin a generation."""
        name = primary or self.identity.broker
        (lsn,) = self.write(ev.GenerationStarted(generation, name, self.identity.cluster, self.now_ms, False, cause))
        return lsn

    def declare(self, name: str, **arguments: str | int | bool) -> int:
        """A queue; its id."""
        (lsn,) = self.write(ev.QueueDeclared(name, arguments))
        return lsn

    def enqueue(self, queue: int | Sequence[int], *payloads: bytes, durable: bool = True) -> list[int]:
        """Messages in one turn; their ids."""
        queues = (queue,) if isinstance(queue, int) else tuple(queue)
        return self.write(*(ev.Enqueued(queues, payload, durable, 4, 0, "") for payload in payloads))

    def dequeue(self, queue: int, ids: Iterable[int], reason: ev.DequeueReason = ev.DequeueReason.CONSUMED) -> None:
        """Messages have gone."""
        self.write(ev.Dequeued(queue, tuple(ids), reason))

    def roll(self) -> None:
        """Begin the next segment."""
        self.journal.roll()

    def fold_away(self, number: int = 2) -> None:
        """As a broker does: a snapshot of what comes before that segment, which is then deleted."""
        fold(LocalDisk(self.directory), number, self.identity)
        for path in [*self.directory.glob("journal/*.log"), *self.directory.glob("snapshots/*.snap")]:
            if int(path.stem) < number:
                path.unlink()

    def write_status(self, **changes: object) -> None:
        """STATUS as a broker writes it."""
        status = Status(*self.identity, history=tuple(self.history), role="primary", **changes)  # type: ignore[arg-type]
        self.disk.replace(STATUS_FILE, status.encode())

    def segment(self, number: int) -> Path:
        """The path of one."""
        return self.directory / "journal" / f"{number:020d}.log"

    def _records(self, last: int, events: Sequence[ev.Event], unit: bool) -> list[LogRecord]:
        records = [LogRecord(last + place, event, unit) for place, event in enumerate(events, start=1)]
        if unit:
            records.append(LogRecord(last + len(events) + 1, ev.TransactionCommitted(len(events)), False))
        return records

    def _stage(self, first: int, records: list[LogRecord]) -> None:
        data, left_out = durable_only(encode_all(records))
        self.journal.stage(BlockKind.EVENTS, first, records[-1].lsn, self.committed, left_out, data)
        self.journal.flush()


def blocks_of(journal: WrittenJournal, number: int) -> list[tuple[int, int]]:
    """Offset and end of each block."""
    file = LocalDisk(journal.directory).open(f"journal/{number:020d}.log")
    try:
        return [(block.offset, block.end) for block in BlockReader(file, read_header(file))]
    finally:
        file.close()


def spoil(path: Path, offset: int, data: bytes = b"\xde\xad\xbe\xef") -> None:
    """Write over what is there."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def write_snapshot(journal: WrittenJournal, number: int, *queues: tuple[int, str], last_lsn: int | None = None) -> None:
    """Of these queues, in place of the segments before `number`, before which the log was at `last_lsn`; None: now."""
    last = journal.lsn if last_lsn is None else last_lsn
    header = FileHeader("snapshot", *journal.identity, number, 1, 1, LOCAL_BASE + 1, journal.now_ms, 0, False)
    writer = SnapshotWriter(journal.disk, header)
    for queue_id, name in queues:
        writer.add(encode(queue_id, ev.QueueDeclared(name, {})))
    writer.finish(SnapshotEnd(last, LOCAL_BASE, last, LOCAL_BASE, 0, 0))
    for old in range(1, number):
        journal.segment(old).unlink()
