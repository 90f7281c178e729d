"""What records say about a store without building its state: who led, who was in sync, and how much is left in it.

Checksums of blocks were looked at when they were read, so records are only skimmed here: an id is put on a heap or
taken from it, and payloads are not touched.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Final, NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.bodies import Kind
from qpid_ha_broker.events.codec import HEADER_BYTES, decode
from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.model.log import LOCAL_BASE

NO_LIMIT: Final = LOCAL_BASE - 1
_HEADER: Final = struct.Struct("<IIQBBH")
_ENQUEUED_BODY: Final = struct.Struct("<BBQHHQ")
"""Durable, priority, expiry, number of queues, bytes of key, first queue. docs/protocol.md has the layout."""
_DEQUEUED_BODY: Final = struct.Struct("<QBI")
_ENQUEUED: Final = int(Kind.ENQUEUED)
_DEQUEUED: Final = int(Kind.DEQUEUED)


class EvidenceError(Exception):
    """A record that is whole by its block's checksum and yet cannot be read. `offset` is that in the data."""

    def __init__(self, offset: int, text: str) -> None:
        super().__init__(text)
        self.offset = offset


class _Formed(NamedTuple):
    """An in-sync set, where it was formed, and whether a generation began with it."""

    lsn: int
    event: ev.InSyncChanged
    begins_generation: bool


class Evidence:
    """Feed it the data of blocks in order; what was taken back later is kept out by `limit`."""

    def __init__(self) -> None:
        self.cluster = ""
        self.history: list[GenerationEntry] = []
        self._sets: list[_Formed] = []
        self._is_new_generation = False
        self.transient = 0
        self._left: defaultdict[int, set[int]] = defaultdict(set)

    @property
    def in_sync(self) -> ev.InSyncChanged:
        """The newest set."""
        return self._sets[-1].event if self._sets else ev.InSyncChanged(0, ())

    @property
    def epoch_lsn(self) -> int:
        """Of the event that formed it."""
        return self._sets[-1].lsn if self._sets else 0

    def members_before(self, committed_lsn: int) -> tuple[str, ...]:
        """Who is not in the newest set, and was in one that may still have been in force.

        A generation is begun only once its set was agreed on. A later set is agreed on when its event is committed.
        Where the log ends just after a generation began, its primary alone knows the set.
        """
        before = {self.history[-1].primary} if self._is_new_generation else set()
        for lsn, formed, begins_generation in reversed(self._sets):
            before.update(formed.members)
            if begins_generation or lsn <= committed_lsn:
                break
        return tuple(sorted(before - set(self.in_sync.members)))

    @property
    def messages(self) -> int:
        """How many are in queues; one that is in two counts twice."""
        return sum(map(len, self._left.values()))

    def read(self, data: bytes, limit: int = NO_LIMIT) -> None:
        """Take the records of one block in; replicated ones above `limit` are void. Raises EvidenceError."""
        offset, end = 0, len(data)
        while offset < end:
            if end - offset < HEADER_BYTES:
                raise EvidenceError(offset, f"expected a record, found {end - offset} bytes")
            size, _, lsn, kind, _, _ = _HEADER.unpack_from(data, offset)
            if not HEADER_BYTES <= size <= end - offset:
                raise EvidenceError(
                    offset, f"expected a record of {HEADER_BYTES} to {end - offset} bytes, found {size}"
                )
            if not limit < lsn < LOCAL_BASE:
                self._skim(data, offset, size, lsn, kind)
            offset += size

    def _skim(self, data: bytes, offset: int, size: int, lsn: int, kind: int) -> None:
        body = offset + HEADER_BYTES
        if kind == _ENQUEUED and size >= HEADER_BYTES + _ENQUEUED_BODY.size:
            durable, _, _, queues, _, queue = _ENQUEUED_BODY.unpack_from(data, body)
            if not durable:
                self.transient += queues
                return
            if queues == 1:
                self._left[queue].add(lsn)
                return
        elif kind == _DEQUEUED and size >= HEADER_BYTES + _DEQUEUED_BODY.size:
            queue, _, count = _DEQUEUED_BODY.unpack_from(data, body)
            if size == HEADER_BYTES + _DEQUEUED_BODY.size + 8 * count:
                ids = struct.unpack_from(f"<{count}Q", data, body + _DEQUEUED_BODY.size)
                self._left[queue].difference_update(ids)
                return
        found = decode(data, offset, max_records=1)
        if found.problem is not None:
            raise EvidenceError(offset, found.problem.text)
        self._take(lsn, found.records[0].event)

    def _take(self, lsn: int, event: ev.Event) -> None:
        match event:
            case ev.GenerationStarted():
                if not self.history or event.generation > self.history[-1].generation:
                    self.history.append(GenerationEntry(event.generation, event.primary, lsn))
                    self._is_new_generation = True
                self.cluster = event.cluster
            case ev.InSyncChanged():
                if event != self.in_sync:
                    self._sets.append(_Formed(lsn, event, self._is_new_generation))
                self._is_new_generation = False
            case ev.Enqueued():
                for queue in event.queues:
                    self._left[queue].add(lsn)
            case ev.QueueDeleted():
                self._left.pop(event.queue, None)
            case ev.ReplicationChanged(messages=False):
                self._left.pop(event.queue, None)
