"""What records say about a store without building its state: who led, who was in sync, and how much is left in it.

Checksums of blocks were looked at when they were read, so records are only skimmed here: an id is put on a heap or
taken from it, and payloads are not touched.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.fields import read_ids
from qpid_ha_broker.events.layout import ENQUEUED_KINDS, HEADER_BYTES, IDS, LOCAL_BASE, PLAIN, RecordKind
from qpid_ha_broker.events.scan import RecordError, scan
from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.store.survey import NO_LIMIT

_FIRST_QUEUE: Final = PLAIN.between("durable", "queue")
_ENQUEUED_KINDS: Final = frozenset(map(int, ENQUEUED_KINDS))
_DEQUEUED: Final = int(RecordKind.DEQUEUED)


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
        self.set_records: dict[str, ev.SetRecorded] = {}
        """Of the sets in the cluster map; one that has no record yet has an empty one."""
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
        """Take the records of one block in; replicated ones above `limit` are void. Raises RecordError."""
        for lsn, kind, _, body_at, end in scan(data):
            if not limit < lsn < LOCAL_BASE:
                self._skim(data, lsn, kind, body_at, end)

    def _skim(self, data: bytes, lsn: int, kind: int, at: int, end: int) -> None:
        """Take in the record with that LSN and kind, whose body begins at `at`."""
        if kind in _ENQUEUED_KINDS and end - at >= _FIRST_QUEUE.size:
            durable, _, _, queues, _, queue = _FIRST_QUEUE.unpack_from(data, at)
            if not durable:
                self.transient += queues
                return
            if queues == 1:
                self._left[queue].add(lsn)
                return
        elif kind == _DEQUEUED and end - at >= IDS.size:
            queue, _, count = IDS.unpack_from(data, at)
            if end - at == IDS.size + 8 * count:
                self._left[queue].difference_update(read_ids(data, at + IDS.size, count))
                return
        offset = at - HEADER_BYTES
        decoded = decode(data, offset, max_records=1)
        if decoded.problem is not None:
            raise RecordError(offset, decoded.problem.text)
        self._take(lsn, decoded.records[0].event)

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
            case ev.SetPlaced():
                self.set_records.setdefault(event.name, ev.SetRecorded(event.name, "", 0, "", 0, (), False))
            case ev.SetRecorded():
                self.set_records[event.name] = event
            case ev.SetDeleted():
                self.set_records.pop(event.name, None)
            case ev.Enqueued():
                for queue in event.queues:
                    self._left[queue].add(lsn)
            case ev.QueueDeleted():
                self._left.pop(event.queue, None)
            case ev.ReplicationChanged(messages=False):
                self._left.pop(event.queue, None)
