"""From a queue's id to its name.

An id is the LSN of the event that declared the queue, so it also says where to look: first among the queues that the
newest snapshot knows, and then in the one block of the journal that has this LSN. Nobody has to read all of a journal
for its names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.layout import is_local_lsn
from qpid_ha_broker.store.blocks import BlockKind, FileHeader
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.layout import segment_numbers, segment_path, snapshot_numbers, snapshot_path
from qpid_ha_broker.store.reading import BlockReader, header_of, open_blocks
from qpid_ha_broker.store.survey import TakenBack, limits_of

from .records import signed, unsigned
from .stores import Directory

Naming = ev.QueueDeclared | ev.QueuePlaced
"""After whose LSN a queue is called: the second, in `default`, stands for one of another resource set."""


class QueueNames:
    """Looks names up, and keeps them. A queue of which nothing is left to read has no name."""

    def __init__(self, directory: Directory, taken_back: Sequence[TakenBack], others: Iterable[Directory] = ()) -> None:
        """`others`: stores of other brokers that hold the same queues, in case that this one is damaged."""
        self._others = [QueueNames(other, ()) for other in others]
        self._directory = directory
        self._disk = directory.disk
        self._taken_back = taken_back
        self._limit_of = limits_of(taken_back)
        self._names: dict[int, str | None] = {}
        self._has_snapshot = False
        self._headers: list[FileHeader] | None = None

    def learn(self, lsn: int, event: Naming) -> None:
        """The event with that LSN was just read."""
        self._names[lsn] = event.name

    def name(self, queue_id: int) -> str | None:
        """`queue_id` as in the column: negative in the broker's own log."""
        if queue_id not in self._names and not self._has_snapshot:
            self._has_snapshot = True
            for lsn, event in self._in_snapshot():
                self._names.setdefault(signed(lsn), event.name)
        if queue_id not in self._names:
            self._names[queue_id] = self._in_journal(unsigned(queue_id))
            if self._names[queue_id] is None and queue_id >= 0:
                self._names[queue_id] = next(filter(None, (other.name(queue_id) for other in self._others)), None)
        return self._names[queue_id]

    def _in_snapshot(self) -> Iterator[tuple[int, Naming]]:
        """The queues stand before all messages."""
        numbers = snapshot_numbers(self._disk)
        if not numbers:
            return
        with suppress(StoreError, FileNotFoundError), open_blocks(self._disk, snapshot_path(numbers[-1])) as reader:
            for block in reader:
                if block.kind is not BlockKind.EVENTS:
                    return
                for record in decode(block.data).records:
                    if isinstance(record.event, Naming):
                        yield record.lsn, record.event
                    elif isinstance(record.event, ev.Enqueued):
                        return

    def _in_journal(self, lsn: int) -> str | None:
        for header in reversed(self._segment_headers()):
            if self._first(header, lsn) <= lsn:
                record = self._record(header, lsn)
                if record is not None:
                    return record.event.name if isinstance(record.event, Naming) else None
        return None

    def _learn_block(self, records: Iterable[LogRecord], limit: int) -> None:
        """Who declares many queues does so in one go, and all of them will be asked for."""
        for record in records:
            if isinstance(record.event, Naming) and (is_local_lsn(record.lsn) or record.lsn <= limit):
                self._names.setdefault(signed(record.lsn), record.event.name)

    def _first(self, header: FileHeader, lsn: int) -> int:
        """The first LSN that it can have of the log to which `lsn` belongs: what it takes back, it writes anew."""
        if is_local_lsn(lsn):
            return header.first_local_lsn
        anew = [truncation.last_lsn + 1 for truncation in self._taken_back if truncation.place[0] == header.number]
        return min(header.first_lsn, *anew) if anew else header.first_lsn

    def _segment_headers(self) -> list[FileHeader]:
        if self._headers is None:
            self._headers = []
            for number in segment_numbers(self._disk):
                with suppress(StoreError, FileNotFoundError):
                    self._headers.append(header_of(self._disk, segment_path(number)))
        return self._headers

    def _record(self, header: FileHeader, lsn: int) -> LogRecord | None:
        """The record with that number, if this segment has it and it counts."""
        with suppress(FileNotFoundError), closing(self._disk.open(segment_path(header.number))) as file:
            for block in BlockReader(file, header, headers_only=True):
                if block.kind is BlockKind.EVENTS and block.first_lsn <= lsn <= block.last_lsn:
                    if not is_local_lsn(lsn) and lsn > self._limit_of((header.number, block.offset)):
                        continue
                    records = decode(file.read(block.data_at, block.length)).records
                    self._learn_block(records, self._limit_of((header.number, block.offset)))
                    return next((record for record in records if record.lsn == lsn), None)
        return None
