"""Stores of any size, written by the store's own code and not through AMQP: as a broker would have left them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from bench.throughput import QUEUE, message
from qpid_ha_broker.amqp.selectors.message_reader import AmqpMessageReader
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store.blocks import BlockKind, FileHeader
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.journal import SEGMENT_BYTES, Identity, Journal
from qpid_ha_broker.store.snapshot import SnapshotEnd, SnapshotWriter, configuration_events
from qpid_ha_broker.store.status import STATUS_FILE, Status

IDENTITY = Identity("", "test", "default")
"""Of a broker that is in no cluster, called as `RunningBroker` calls it."""
TURN = 250
"""Events of a block: about what a turn of a busy broker writes."""
GROUP = 16
"""Blocks that go to disk with one sync."""


def empty_resources() -> Resources:
    """For a store to be loaded into."""
    return Resources(AmqpMessageReader())


def _with_one_queue() -> tuple[Resources, int]:
    """What a new broker has written once it has a queue; and that queue's id."""
    resources = empty_resources()
    resources.replicated.log.add_witness("store")
    configuration = Configuration(resources)
    resources.replicated.declare_standard_exchanges()
    return resources, configuration.declare_queue(QUEUE, {}).id


def _now_ms() -> int:
    return int(time.time() * 1000)


def begin_journal(disk: LocalDisk, last_lsn: int, segment_bytes: int = SEGMENT_BYTES, generation: int = 0) -> Journal:
    """A store whose first event follows `last_lsn`."""
    disk.replace(STATUS_FILE, Status(*IDENTITY, role="standalone").encode())
    return Journal.begin(
        disk, IDENTITY, 1, generation=generation, first_lsn=last_lsn + 1, first_local_lsn=LOCAL_BASE + 1,
        previous_bytes=0, clock=_now_ms, segment_bytes=segment_bytes,
    )  # fmt: skip


def fill_journal(
    directory: Path, events: int, size: int = 100, *, consumed: float = 0.0, segment_bytes: int = SEGMENT_BYTES
) -> int:
    """A journal with so many events: messages of `size` bytes, and the share `consumed` of them gone again.

    Each message that is gone has an event of its own. Returns how many are left in the queue.
    """
    directory.mkdir(parents=True)
    resources, queue = _with_one_queue()
    journal = begin_journal(LocalDisk(directory), 0, segment_bytes)
    batch = resources.replicated.log.take_batch()
    if batch is None:
        raise RuntimeError("a new broker wrote nothing")
    journal.stage(BlockKind.EVENTS, batch.first_lsn, batch.last_lsn, 0, 0, batch.data)
    event = ev.Enqueued((queue,), message(size, durable=True), True, 4, 0, "")
    lsn, queued, taken, owed = batch.last_lsn, list[int](), 0, 0.0
    for turn in range(max(1, events // TURN)):
        records, first = list[LogRecord](), lsn + 1
        while len(records) < TURN:
            lsn += 1
            if owed >= 1.0:
                records.append(LogRecord(lsn, ev.Dequeued(queue, (queued[taken],), ev.DequeueReason.CONSUMED), False))
                taken, owed = taken + 1, owed - 1.0
            else:
                records.append(LogRecord(lsn, event, False))
                queued.append(lsn)
                owed += consumed
        journal.stage(BlockKind.EVENTS, first, lsn, first - 1, 0, encode_all(records))
        if turn % GROUP == 0:
            journal.flush()
    journal.end()
    return len(queued) - taken


def fill_snapshot(directory: Path, messages: int, size: int = 100) -> None:
    """A snapshot with so many messages in one queue, as the consolidator would write it, and an empty journal."""
    directory.mkdir(parents=True)
    resources, queue = _with_one_queue()
    first, disk = resources.replicated.log.last_lsn + 1, LocalDisk(directory)
    last = first + messages - 1
    header = FileHeader("snapshot", *IDENTITY, 1, 0, last + 1, LOCAL_BASE + 1, _now_ms(), 0, False)
    writer = SnapshotWriter(disk, header)
    writer.add(encode_all(LogRecord(*each, False) for each in configuration_events(resources.sets, last, LOCAL_BASE)))
    for records in _messages(queue, first, last, message(size, durable=True)):
        writer.add(records)
    writer.finish(SnapshotEnd(last, LOCAL_BASE, last, LOCAL_BASE, messages, 0))
    begin_journal(disk, last).end()


def _messages(queue: int, first: int, last: int, payload: bytes) -> Iterator[bytes]:
    event = ev.Enqueued((queue,), payload, True, 4, 0, "")
    for at in range(first, last + 1, TURN):
        yield encode_all(LogRecord(lsn, event, False) for lsn in range(at, min(at + TURN, last + 1)))
