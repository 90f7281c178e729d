"""A snapshot of a state that goes on changing: some of it at a time, so that nobody waits for the whole.

Each piece is right for the moment at which it was made, and the journal from the beginning of the dump on tells the
rest. What was removed while the dump went on may or may not be in it; what came is not; and the journal says both
again.

Failed deliveries can be counted twice, so after each piece of a queue a mark says up to which LSN they are in it: a
Released that did not fail, of the piece's oldest message.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.layout import is_local_lsn
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, load_bodies
from qpid_ha_broker.model.sets.resource_set import ResourceSets

from .snapshot import SnapshotEnd, configuration_events

PIECE_LENGTH: Final = 512
"""Messages, or queues, that are looked at in one call at most: that takes a millisecond or two."""


class Dump:
    """The promise: what `next` gave, and the journal after the ends of the logs as it was made, make both states.

    Make it between two turns of the loop, and call `next` in later ones.
    """

    def __init__(self, sets: ResourceSets) -> None:
        self._sets = sets
        self._last_lsn, self._local_lsn = last_lsn, local_lsn = self._log_ends = sets.log_ends
        self._configuration = deque(configuration_events(sets, last_lsn, local_lsn))
        self._queues = deque(
            (queue_id, queue) for queue_id, queue in sets.catalog.queues_by_id.items() if queue.messages.count
        )
        self._places = {queue_id: place for place, (queue_id, _) in enumerate(self._queues)}
        self._bound = local_lsn + 1
        self._messages = self._transient = 0

    def next(self, max_bytes: int) -> bytes | None:
        """The next records, of hardly more than `max_bytes` unless one message is larger; None: that was all."""
        self._log_ends = self._sets.log_ends
        if self._configuration:
            count = min(PIECE_LENGTH, len(self._configuration))
            return encode_all([LogRecord(*self._configuration.popleft(), False) for _ in range(count)])
        while self._queues:
            queue_id, queue = self._queues[0]
            entries = self._piece(queue_id, queue, max_bytes)
            if entries:
                self._bound = entries[0].id
                return encode_all(self._records(queue_id, queue, entries))
            self._queues.popleft()
            self._bound = self._local_lsn + 1
        return None

    def end(self) -> SnapshotEnd:
        """The last words, once `next` has given all."""
        return SnapshotEnd(self._last_lsn, self._local_lsn, *self._log_ends, self._messages, self._transient)

    def _piece(self, queue_id: int, queue: Queue, max_bytes: int) -> list[Entry]:
        """The newest messages that were not looked at; none when there are no more, or the journal tells their end."""
        if queue.deleted or queue.id != queue_id:
            return []
        while True:
            entries = queue.messages.newest_before(self._bound, PIECE_LENGTH)
            known = [entry for entry in entries if entry.id <= self._last_lsn or is_local_lsn(entry.id)]
            if known or not entries:
                return _newest(known, max_bytes)
            self._bound = min(entries[0].id, self._last_lsn + 1)

    def _records(self, queue_id: int, queue: Queue, entries: list[Entry]) -> list[LogRecord]:
        records: list[LogRecord] = []
        durable = [entry for entry in entries if entry.header.durable]
        self._transient += len(entries) - len(durable)
        for entry, body in zip(durable, load_bodies(durable), strict=True):
            event = entry.enqueued(body)
            if len(event.queues) > 1:
                queues = self._shared(queue_id, entry.id, event)
                if not queues:
                    continue
                event = event._replace(queues=queues)
            elif event.queues[0] != queue_id:
                event = event._replace(queues=(queue_id,))
            records.append(LogRecord(entry.id, event, False))
            self._messages += 1
        failed = [entry for entry in durable if entry.delivery_count]
        now = queue.log.last_lsn
        for count in range(1, max((entry.delivery_count for entry in failed), default=0) + 1):
            ids = tuple([entry.id for entry in failed if entry.delivery_count >= count])
            records.append(LogRecord(now, ev.Released(queue_id, ids, True), False))
        said = queue.messages.annotations
        for entry in durable if said else ():
            if entry.id in said:
                records.append(LogRecord(now, ev.Annotated(queue_id, (entry.id,), said[entry.id]), False))
        records.append(LogRecord(now, ev.Released(queue_id, (entries[0].id,), False), False))
        return records

    def _shared(self, queue_id: int, message_id: int, event: ev.Enqueued) -> tuple[int, ...]:
        """The queues of the event for which this record speaks: none if one that was dumped before spoke for it.

        Only entries whose headers name the same queues speak for each other. A message may have been in a snapshot for
        one queue alone, since it had left the other, and then a primary from whose log it never left there has brought
        it back: those are two records.
        """
        place = self._places[queue_id]
        queues = [queue_id]
        for other_id in event.queues:
            other, other_place = self._sets.catalog.queues_by_id.get(other_id), self._places.get(other_id)
            if other_id == queue_id or other is None or other_place is None:
                continue
            entry = other.messages.find(message_id)
            if entry is None or entry.header.queues != event.queues:
                continue
            if other_place < place:
                return ()
            queues.append(other_id)
        return tuple(queues)


def _newest(entries: list[Entry], max_bytes: int) -> list[Entry]:
    """As many of the newest as fit, at least one."""
    size = 0
    for at in range(len(entries) - 1, -1, -1):
        size += entries[at].size
        if size > max_bytes and at < len(entries) - 1:
            return entries[at + 1 :]
    return entries
