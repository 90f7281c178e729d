"""A snapshot: the state before a segment of the journal, as events. Written beside, and there as a whole or not at all.

It is written under another name, synced and only then renamed, and its last block says that it is whole: what lies
under `snapshots/` with the right name was finished. Its index gets its name before it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.layout import is_local_lsn
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.replication import is_local
from qpid_ha_broker.model.sets.resource_set import ResourceSets

from .blocks import FILE_HEADER_BYTES, Block, BlockKind, FileHeader, encode_block, encode_header
from .errors import BlockError
from .files import Disk
from .layout import SNAPSHOTS, snapshot_index_path, snapshot_path
from .reading import end_data, end_facts
from .snapshot_index import IndexWriter

BLOCK_BYTES: Final = 1024 * 1024


class SnapshotEnd(NamedTuple):
    """The last words of a snapshot."""

    last_lsn: int
    """Of the replicated log: what comes after it is in the journal."""
    local_lsn: int
    counts_lsn: int
    """Where the replicated log ended when the last message was looked at: the journal must reach that far."""
    local_counts_lsn: int
    messages: int
    """How many records of messages there are; one in several queues may have several."""
    transient: int
    """Copies in queues of messages that were in the state but not durable, and are not in the snapshot."""

    def ends_of(self, lsn: int) -> tuple[int, int]:
        """Last LSN, and that of the failed deliveries, of the log to which `lsn` belongs."""
        if is_local_lsn(lsn):
            return self.local_lsn, self.local_counts_lsn
        return self.last_lsn, self.counts_lsn


def read_end(block: Block) -> SnapshotEnd:
    """Raises BlockError."""
    facts: dict[str, Any] = end_facts(block)
    try:
        end = SnapshotEnd(**facts)
    except TypeError as error:
        raise BlockError(f"expected the facts that end a snapshot: {error}") from None
    if any(type(value) is not int for value in end):
        raise BlockError(f"expected numbers at the end of a snapshot, found {facts!r}")
    return end


def configuration_events(sets: ResourceSets, last_lsn: int, local_lsn: int) -> Iterator[tuple[int, ev.Event]]:
    """All but the messages, in an order in which it can be applied; each with its LSN, or that of now."""
    default, catalog = sets.replicated.state, sets.catalog
    yield from default.generations
    yield last_lsn, default.in_sync
    for exchange_id in sorted(catalog.exchanges_by_id):
        exchange = catalog.exchanges_by_id[exchange_id]
        yield exchange_id, ev.ExchangeDeclared(exchange.name, exchange.kind.value, exchange.arguments)
    for queue_id in sorted(catalog.queues_by_id):
        queue = catalog.queues_by_id[queue_id]
        now = local_lsn if is_local(queue) else last_lsn
        yield queue_id, ev.QueueDeclared(queue.name, queue.arguments.given)
        if queue.replication is Replicate.CONFIGURATION:
            yield now, ev.ReplicationChanged(queue_id, False)
        if queue.used:
            yield now, ev.QueueUsed(queue_id, queue.owner)
    yield from default.map.events(last_lsn)
    for exchange_id in sorted(catalog.exchanges_by_id):
        for binding in catalog.exchanges_by_id[exchange_id].bindings():
            # Of the broker's own log if one end is; a binding may be so without that, which no state tells.
            local = is_local_lsn(max(exchange_id, binding.queue))
            event = ev.Bound(exchange_id, binding.queue, binding.key, binding.arguments)
            yield local_lsn if local else last_lsn, event
    for resource_set in sets.all:
        yield from resource_set.state.producers.events()
    yield from default.marks.events(last_lsn, {queue.id: queue.mark for queue in default.queues()})
    yield from default.sessions.events(last_lsn)
    yield from catalog.holdings.events(is_local=False, lsn=last_lsn)
    yield from catalog.holdings.events(is_local=True, lsn=local_lsn)


class SnapshotWriter:
    """Writes one snapshot, and its index. Ends with `finish`, or with `abandon`, after which there is nothing of it.

    Raises OSError as the disk gives it; then, too, `abandon`.
    """

    def __init__(self, disk: Disk, header: FileHeader) -> None:
        self._disk = disk
        self._header = header
        self._path = snapshot_path(header.number)
        self._temporary = f"{self._path}.tmp"
        self._index_path = snapshot_index_path(header.number)
        self._index = IndexWriter()
        self._pieces: list[bytes] = []
        self._waiting = 0
        disk.make_directory(SNAPSHOTS)
        self._remove_unfinished()
        self._file = disk.create(self._temporary)
        self._file.write(0, encode_header(header))
        self.size = FILE_HEADER_BYTES
        """Bytes written so far."""

    def add(self, records: bytes) -> None:
        """Whole records, as many as there happen to be."""
        if self._waiting and self._waiting + len(records) > BLOCK_BYTES:
            self._write(BlockKind.EVENTS)
        self._pieces.append(records)
        self._waiting += len(records)

    def finish(self, end: SnapshotEnd) -> None:
        """Let it count. Whoever calls this knows that the journal is on disk, and committed, up to `counts_lsn`."""
        if self._waiting:
            self._write(BlockKind.EVENTS)
        self._pieces, end_at = [end_data(end._asdict())], self.size
        last = self._write(BlockKind.END)
        self._file.sync()
        self._file.close()
        self._write_index(self._index.encoded(self._header, end_at, last))
        self._disk.rename(self._temporary, self._path)
        self._disk.sync_directory(SNAPSHOTS)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._remove_unfinished()

    def _write(self, kind: BlockKind) -> bytes:
        """Write a block; returns it."""
        data = b"".join(self._pieces)
        head = encode_block(self._header.number, kind, 0, 0, 0, 0, 0, data)
        self._file.write(self.size, head, data)
        if kind is BlockKind.EVENTS:
            self._index.add(data, self.size, self.size + len(head))
        self.size += len(head) + len(data)
        self._pieces, self._waiting = [], 0
        return head + data

    def _write_index(self, data: bytes) -> None:
        """It gets its name now; that of the snapshot is synced with it."""
        with closing(self._disk.create(f"{self._index_path}.tmp")) as file:
            file.write(0, data)
            file.sync()
        self._disk.rename(f"{self._index_path}.tmp", self._index_path)

    def _remove_unfinished(self) -> None:
        """Also an index with this number: without its snapshot it means nothing, and with another one it would lie."""
        for path in (self._temporary, f"{self._index_path}.tmp", self._index_path):
            if self._disk.exists(path):
                self._disk.remove(path)
