"""Small stores on disk, as a broker would leave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.status import STATUS_FILE, Status, read_status

CLUSTER = "11111111-2222-3333-4444-555555555555"
SEGMENT_BYTES = 64 * 1024
QUEUE = 3
"""The id of the queue that `opening` declares."""


def opening(primary: str = "node1", members: Sequence[str] = ("node1", "node2")) -> list[ev.Event]:
    """How a log begins: LSNs 1, 2 and 3."""
    return [
        ev.GenerationStarted(1, primary, CLUSTER, 0, False, "first start"),
        ev.InSyncChanged(1, tuple(members)),
        ev.QueueDeclared("orders", {"durable": True}),
    ]


def message(body: bytes = b"body", queue: int = QUEUE, durable: bool = True) -> ev.Enqueued:
    """A message for one queue; its payload is no AMQP, which no store minds."""
    return ev.Enqueued((queue,), body, durable, 4, 0, "")


class StoreWriter:
    """Writes one segment, block by block."""

    def __init__(
        self, disk: Disk, broker: str = "node1", number: int = 1, first_lsn: int = 1, previous: int = 0,
        set_name: str = "default",
    ) -> None:  # fmt: skip
        self.disk = disk
        self.broker = broker
        self.set_name = set_name
        self.last_lsn = first_lsn - 1
        before = read_status(disk) or Status(CLUSTER, broker, set_name)
        disk.replace(STATUS_FILE, replace(before, clean="", journal_end=None, last_lsn=0, local_lsn=0).encode())
        self.journal = Journal.begin(
            disk, Identity(CLUSTER, broker, set_name), number, generation=1, first_lsn=first_lsn,
            first_local_lsn=(1 << 63) + 1, previous_bytes=previous, clock=lambda: 0, segment_bytes=SEGMENT_BYTES,
        )  # fmt: skip

    def write(self, events: Iterable[ev.Event], committed_lsn: int = 0) -> StoreWriter:
        """One block, synced."""
        first = self.last_lsn + 1
        data = []
        for event in events:
            self.last_lsn += 1
            data.append(encode(self.last_lsn, event))
        self.journal.stage(BlockKind.EVENTS, first, self.last_lsn, committed_lsn, 0, b"".join(data))
        self.journal.flush()
        return self

    def take_back(self, last_lsn: int, committed_lsn: int = 0) -> StoreWriter:
        """What came after `last_lsn` is void."""
        self.journal.stage(BlockKind.TAKEN_BACK, last_lsn, last_lsn, committed_lsn, 0, b"")
        self.journal.flush()
        self.last_lsn = last_lsn
        return self

    def status(self, **facts: object) -> StoreWriter:
        """STATUS beside it."""
        status = Status(CLUSTER, self.broker, self.set_name, **facts)  # type: ignore[arg-type]
        self.disk.replace(STATUS_FILE, status.encode())
        return self

    def kill(self) -> None:
        """The process is gone."""
        self.journal.close()
