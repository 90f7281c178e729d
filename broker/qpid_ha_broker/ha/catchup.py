"""How a backup becomes level with a primary whose stream it cannot simply continue.

It tells what it holds, puts that aside queue by queue (the *stash*), and takes it back, corrected, as the primary's
replicating browsers come down from the newest message; the live stream goes on in between. So a queue has two parts:
above `high` it is level and follows the stream, below it nothing is there yet but a stash.

What the stream says meanwhile of a message in a queue that is not level yet:

1. It is above `high`: as everywhere.
2. It is at or below `high`, and is removed: it becomes a *tombstone*. A chunk that was made before and arrives after
   must not bring it back, nor must the stash.
3. It is at or below `high`, and is acquired, released or annotated: nothing. The chunk that comes later has the
   primary's count, and what was said of it.
4. Its queue is deleted or emptied: that queue is not brought level any more, and chunks for it are ignored.
5. It removes a message in a transaction, and the primary dies before that is whole: the tombstone is void (`abandon`).
6. It is at or below `high`, and is held for a session, or no more: that is noted by its id, for when its chunk comes.

Whoever looks at a queue when this begins may have passed places to which chunks come: its link ends. Nobody looks at
one before it is level (`ResourceSet.is_level`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from operator import attrgetter
from typing import Final

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.ha.effects import Discarded
from qpid_ha_broker.ha.frames import Chunk, Holdings, Objects
from qpid_ha_broker.ha.objects import ObjectsError, make_equal, read_objects
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, load_bodies
from qpid_ha_broker.model.replication import has_replicated_messages
from qpid_ha_broker.model.sets.annotating import annotate
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD
from qpid_ha_broker.model.sets.resource_set import ResourceSet

RANGES_PER_FRAME: Final = 16_384
"""Ranges of ids in one frame at most: a quarter of a megabyte."""
_STEP: Final = 1000

_entry_id = attrgetter("id")


class CatchUpError(Exception):
    """The primary sent what cannot be: in a sentence. What is here stays usable for another attempt."""


class _Level:
    """A queue that is being brought level: from the newest message down to above `high` it is."""

    __slots__ = ("annotations", "has_begun", "high", "queue", "stash", "tombstones")

    def __init__(self, queue: Queue, high: int, stash: list[Entry], annotations: Mapping[int, bytes]) -> None:
        self.annotations = annotations
        """What consumers have said of the stash, as far as was known here."""
        self.queue = queue
        self.high = high
        self.stash = stash
        """Ascending, none above `high`."""
        self.tombstones: set[int] = set()
        self.has_begun = False

    def remaining(self, entries: Iterable[Entry], dropped: Set[int] = frozenset()) -> list[Entry]:
        """The entries that are still somebody's: neither dropped nor consumed meanwhile."""
        here = [entry for entry in entries if entry.id not in dropped] if dropped else list(entries)
        tombstones = self.tombstones
        return [entry for entry in here if entry.id not in tombstones] if tombstones else here


class CatchUp:
    """The promise: after `finish`, all that is replicated equals the primary's at this place of the stream.

    Call `discard_after_common`, send `holdings`, then feed `objects`, `chunk` and `follow` as they come. When it comes
    to nothing, `abandon` puts back what was set aside: the next attempt need not fetch it again.
    """

    def __init__(self, resource_set: ResourceSet, common_lsn: int) -> None:
        self._set = resource_set
        self._state, self._catalog = resource_set.state, resource_set.catalog
        self._common_lsn = common_lsn
        self._levels: dict[int, _Level] = {}
        self._outdated: set[int] = set()
        """Queues that the stream deleted or emptied: a chunk for one of them may still be on its way."""
        self._ended: set[int] = set()
        self._unit_tombstones: list[tuple[_Level, list[int]]] = []
        self._unit_ends: list[int] = []
        """What the open unit does; it counts for chunks at once, and for good when the unit is whole."""
        self._has_objects = False

    # --- before the primary's answer

    def discard_after_common(self) -> list[Discarded]:
        """Forget what the primary never had; returns the messages among it, which somebody may want to look at."""
        state, discarded = self._state, []
        state.producers.forget_after(self._common_lsn)
        state.sessions.forget_after(self._common_lsn)
        state.marks.forget()  # the primary tells what counts
        for queue in state.queues():
            if queue.id > self._common_lsn:
                discarded += _discarded(queue.name, sorted(queue.messages, key=_entry_id))
                self._catalog.forget_queue(queue)
            elif has_replicated_messages(queue):
                entries = self._after_common(queue)
                discarded += _discarded(queue.name, entries)
                self._catalog.removed(queue, entries)
                queue.messages.go_back(self._common_lsn)
        for exchange in state.exchanges():
            if exchange.id > self._common_lsn:
                self._catalog.forget_exchange(exchange)
        return discarded

    def _after_common(self, queue: Queue) -> list[Entry]:
        newer: list[Entry] = []
        bound = queue.log.last_lsn + 1
        while entries := queue.messages.newest_before(bound, _STEP):
            newer += reversed([entry for entry in entries if entry.id > self._common_lsn])
            bound = entries[0].id
            if bound <= self._common_lsn:
                break
        return newer[::-1]

    def holdings(self) -> Iterator[Holdings]:
        """Which messages are here; nothing for an empty queue, several frames for one with many gaps."""
        for queue in self._state.queues():
            if queue.messages.count and has_replicated_messages(queue):
                yield from holdings_of(queue.id, sorted([entry.id for entry in queue.messages]))

    # --- the primary's answer

    def objects(self, frame: Objects) -> list[Discarded]:
        """Make queues, exchanges and bindings equal, and put aside what the queues hold until the browsers come.

        Returns messages that were only here, in queues of which the primary has another idea.
        Raises CatchUpError, and then nothing has changed.
        """
        if self._has_objects:
            raise CatchUpError("the primary sent its objects twice")
        try:
            objects = read_objects(frame)
        except ObjectsError as error:
            raise CatchUpError(f"the primary's objects: {error}") from error
        self._set.log.reset(frame.lsn)  # first: who hears of another map asks how far that may not be committed
        lost = make_equal(self._state, objects)
        self._has_objects = True
        self._set.is_level = False
        self._state.drop_open_unit()
        for queue in self._state.queues():
            if has_replicated_messages(queue):
                said = queue.messages.annotations
                self._levels[queue.id] = _Level(queue, frame.lsn, self._catalog.emptied(queue), said)
        for event in objects.held:
            self._catalog.holdings.acquire(self._catalog.queues_by_id[event.queue], event)
        self._set.log.committed_elsewhere(ev.EVERYTHING)
        self._set.log.count_unsure()  # the primary may still wait for others who are to have the last of it
        return [discarded for name, entries in lost for discarded in _discarded(name, entries)]

    def chunk(self, frame: Chunk) -> None:
        """Bring a queue level a piece further down. Raises CatchUpError, and then nothing has changed."""
        level = self._level_of(frame)
        if level is None:
            return
        new, said = self._read(frame, level)
        at = bisect_left(level.stash, frame.low, key=_entry_id)
        kept = level.remaining(level.stash[at:], frozenset(frame.dropped))
        entries = _merged(kept, new, level.queue)
        failures = dict(frame.failures)
        for entry in kept:
            entry.delivery_count = 0
        if failures:
            for entry in entries:
                entry.delivery_count = failures.get(entry.id, 0)
        self._catalog.holdings.put_back(level.queue, entries)
        self._catalog.prepended(level.queue, entries)
        self._annotate(level.queue, entries, said)
        del level.stash[at:]
        level.has_begun = True
        level.high = frame.low - 1
        if frame.last:
            del self._levels[frame.queue]
            self._ended.add(frame.queue)

    def _level_of(self, frame: Chunk) -> _Level | None:
        """None: the stream has deleted or emptied the queue while the chunk was on its way."""
        if frame.queue in self._outdated:
            return None
        level = self._levels.get(frame.queue)
        if level is None:
            why = "its browser has ended" if frame.queue in self._ended else "there is no such queue"
            raise CatchUpError(f"a chunk for the queue with id {frame.queue}: {why}")
        if frame.high != level.high or not 0 <= frame.low <= frame.high + 1:
            raise CatchUpError(
                f"a chunk for {level.queue.name} goes from LSN {frame.high} down to {frame.low};"
                f" expected one that begins at {level.high}"
            )
        return level

    def _annotate(self, queue: Queue, entries: Sequence[Entry], said: Mapping[int, bytes]) -> None:
        for entry in entries if said else ():
            if entry.id in said:
                annotate(self._catalog, queue, (entry.id,), said[entry.id])

    def _read(self, frame: Chunk, level: _Level) -> tuple[list[Entry], dict[int, bytes]]:
        """The messages that are new here, and what was said of these and of others. Raises CatchUpError."""
        records, _, problem = decode(frame.data)
        if problem is not None:
            raise CatchUpError(f"a chunk for {level.queue.name} is damaged at byte {problem.offset}: {problem.text}")
        previous, high, queue_id = frame.low - 1, frame.high, frame.queue
        entries = []
        said: dict[int, bytes] = {}
        for lsn, event, part in records:
            if isinstance(event, ev.Annotated) and not part and event.queue == queue_id:
                said |= dict.fromkeys(event.ids, event.annotations)
                continue
            if not isinstance(event, ev.Enqueued) or part or queue_id not in event.queues:
                raise CatchUpError(f"a chunk for {level.queue.name} has LSN {lsn}, which is no message of that queue")
            if not previous < lsn <= high:
                raise CatchUpError(
                    f"a chunk for {level.queue.name} has LSN {lsn} after {previous}, and should end at {high}"
                )
            body = event.payload if len(event.queues) == 1 else self._shared(lsn, event, queue_id)
            entries.append(Entry(lsn, self._catalog.headers.of(event), body))
            previous = lsn
        return level.remaining(entries), said

    def _shared(self, lsn: int, event: ev.Enqueued, queue_id: int) -> bytes:
        """The body that another queue has already: its bytes are kept once."""
        for other_id in event.queues:
            other = self._catalog.queues_by_id.get(other_id)
            if other is None or other_id == queue_id:
                continue
            entry = other.messages.find(lsn) or self._in_stash(other_id, lsn)
            if entry is not None and type(entry.body) is bytes and entry.body == event.payload:
                return entry.body
        return event.payload

    def _in_stash(self, queue_id: int, lsn: int) -> Entry | None:
        level = self._levels.get(queue_id)
        if level is None:
            return None
        at = bisect_left(level.stash, lsn, key=_entry_id)
        return level.stash[at] if at < len(level.stash) and level.stash[at].id == lsn else None

    # --- the live stream

    def follow(self, record: LogRecord) -> None:
        """Apply what the primary wrote after its objects. Raises ReplayError when it does not fit."""
        if isinstance(record.event, ev.QueueDeleted | ev.ReplicationChanged):
            self._unit_ends.append(record.event.queue)
        self._set.follow((self._without_unseen(record),))
        if record.part:
            return
        for queue_id in self._unit_ends:
            self._levels.pop(queue_id, None)
            self._outdated.add(queue_id)
        self._unit_ends.clear()
        self._unit_tombstones.clear()

    def _without_unseen(self, record: LogRecord) -> LogRecord:
        """The record without the messages that no chunk has brought yet."""
        event = record.event
        if not isinstance(event, ev.Dequeued | ev.Acquired | ev.Released | ev.SessionAcquired | ev.Annotated):
            return record
        level = self._levels.get(event.queue)
        if level is None:
            return record
        unseen = [message_id for message_id in event.ids if message_id <= level.high]
        if not unseen:
            return record
        if isinstance(event, ev.Dequeued):
            level.tombstones.update(unseen)
            self._unit_tombstones.append((level, unseen))
        if isinstance(event, ev.SessionAcquired):
            self._catalog.holdings.acquire(level.queue, event._replace(ids=tuple(unseen)))
        elif not isinstance(event, ev.Annotated):
            self._catalog.holdings.drop(level.queue, unseen)
        seen = tuple([message_id for message_id in event.ids if message_id > level.high])
        return record._replace(event=event._replace(ids=seen))

    # --- the end

    def finish(self) -> None:
        """Every browser is done. Raises CatchUpError when that is not so.

        A queue for which no chunk came had nothing to tell on either side.
        """
        if not self._has_objects:
            raise CatchUpError("the primary ended the catch-up before it sent its objects")
        open_levels = [level for level in self._levels.values() if level.has_begun or level.stash]
        if open_levels:
            names = ", ".join([level.queue.name for level in open_levels[:5]])
            queues = counted(len(open_levels), "queue was", "queues were")
            raise CatchUpError(f"the primary ended the catch-up before {queues} level: {names}")
        self._levels.clear()
        self._set.is_level = True

    def abandon(self) -> None:
        """Give up in the middle: put back what was set aside, but for what whole units took away."""
        self._state.drop_open_unit()
        for level, ids in self._unit_tombstones:
            level.tombstones.difference_update(ids)
        for level in self._levels.values():
            remaining = level.remaining(level.stash)
            self._catalog.holdings.put_back(level.queue, remaining)
            self._catalog.prepended(level.queue, remaining)
            self._annotate(level.queue, remaining, level.annotations)
        self._levels.clear()
        self._unit_tombstones.clear()
        self._set.is_level = True

    def check_invariants(self) -> None:
        """Raise AssertionError where a queue's two parts overlap or the books do not balance; slow, for tests."""
        for level in self._levels.values():
            ids = [entry.id for entry in level.stash]
            if ids != sorted(set(ids)) or (ids and ids[-1] > level.high):
                raise AssertionError(f"{level.queue.name}: the stash should end at {level.high}, found {ids[-5:]}")
            if level.queue.messages.newest_before(level.high + 1, 1):
                raise AssertionError(f"{level.queue.name}: messages at or below {level.high} before their chunk")
        memory = 0
        for queue in self._catalog.queues.values():
            queue.messages.check_invariants()
            memory += queue.messages.resident + MESSAGE_OVERHEAD * queue.messages.count
        if memory != self._catalog.memory_bytes:
            raise AssertionError(f"memory: counted {memory}, believed {self._catalog.memory_bytes}")


def _discarded(name: str, entries: list[Entry]) -> list[Discarded]:
    if not entries:
        return []
    payloads = tuple(load_bodies(entries))
    return [Discarded(name, tuple([entry.id for entry in entries]), payloads)]


def _merged(kept: list[Entry], new: list[Entry], queue: Queue) -> list[Entry]:
    if not kept or not new:
        return kept or new
    entries = sorted(kept + new, key=_entry_id)
    for before, after in pairwise(entries):
        if before.id == after.id:
            raise CatchUpError(f"a chunk for {queue.name} has LSN {after.id}, which is here and was told to be")
    return entries


def holdings_of(queue_id: int, ids: Sequence[int]) -> Iterator[Holdings]:
    """Frames that say which messages of a queue are held: their `ids`, ascending. No frame where there are none."""
    ranges = _ranges(ids)
    for start in range(0, len(ranges), RANGES_PER_FRAME):
        yield Holdings(queue_id, tuple(ranges[start : start + RANGES_PER_FRAME]))


def _ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending ids as runs (first, last)."""
    if not ids:
        return []
    ends = [at for at in range(1, len(ids)) if ids[at] != ids[at - 1] + 1]
    return [(ids[start], ids[end - 1]) for start, end in zip([0, *ends], [*ends, len(ids)], strict=True)]
