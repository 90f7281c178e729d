"""A copy of one queue of another cluster, kept by a broker that is not in it: for the day on which that one is gone.

The primary there sends each event once it is committed. Here it is written into this broker's own log, so its backups
have the copy too, under LSNs of that log; which message there is which here, this process alone knows. Nothing is
decided here: limits, expiry and priorities are decided where the queue is, and the queue's strategy here is `Copied`.
When a message expires there is converted to the clock here, so that it has as long to live once the copy is a normal
queue.

An observer of a set and a copy are not the same. An observer is a backup of its cluster that nobody waits for: it holds
the set's log under the same LSNs, is trusted with all of it, and may lead. A copy writes: what it is sent becomes
events of this cluster's log, which has backups, clients and sets of its own. What both do, they do with the same parts:
`browser`, `catchup.holdings_of`, `Greetings`, the frames.

Both queues have the same order, because what is added here is always newer there than all that is here already. That
is also why chunks, which come newest first, are collected until the oldest is here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.catchup import holdings_of
from qpid_ha_broker.ha.history import newest
from qpid_ha_broker.ha.link_ends import LinkEnd
from qpid_ha_broker.ha.primary_channel import Greetings
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.message_clock import MessageClock
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.strategies import Copied

STEP: Final = 1000
"""Messages that are written in one turn."""

Declare = Callable[[str, ev.Arguments], Queue]


class CopyError(Exception):
    """This channel is of no use, another one may be; the copy stays as it is."""


class CopyState(StrEnum):
    """What an operator is told."""

    CONNECTING = "connecting"
    COMPARING = "comparing"
    """The primary finds out what is missing here, and sends it."""
    FOLLOWING = "following"
    ENDED = "ended"


class _Source(NamedTuple):
    """Whose queue it is that is copied; empty before the first greeting."""

    cluster: str
    queue: int


class _Add(NamedTuple):
    id: int
    event: ev.Enqueued


class _Drop(NamedTuple):
    ids: tuple[int, ...]
    reason: ev.DequeueReason


class _Reach(NamedTuple):
    lsn: int
    history: tuple[fr.GenerationEntry, ...]


class _Comparison:
    """What comes until the primary has compared both queues: chunks, newest first, and the stream in between."""

    __slots__ = ("_chunks", "_dropped", "_low", "is_over", "later")

    def __init__(self) -> None:
        self.is_over = False
        """The last chunk has come."""
        self.later: list[_Add | _Drop] = []
        """What the stream said while chunks were on their way."""
        self._chunks: list[list[_Add]] = []
        self._dropped: list[int] = []
        self._low = 0

    def add(self, frame: fr.Chunk) -> None:
        """Keep a chunk until the oldest is here. Raises CopyError for one that does not follow the last."""
        is_next = not self._chunks or frame.high == self._low - 1
        if self.is_over or not is_next:
            raise CopyError(f"a chunk from {frame.high} down to {frame.low}, after one that ends at {self._low}")
        records = _records(frame.data)
        self._chunks.append([_Add(lsn, event) for lsn, event, _ in records if isinstance(event, ev.Enqueued)])
        self._dropped += frame.dropped
        self._low, self.is_over = frame.low, frame.last

    def outcome(self) -> Iterator[_Add | _Drop]:
        """What is to be written, in order: the oldest message first, and what the stream said last."""
        if self._dropped:
            yield _Drop(tuple(sorted(self._dropped)), _GONE)
        for chunk in reversed(self._chunks):
            yield from chunk
        yield from self.later

    @property
    def waiting(self) -> int:
        """Messages of chunks, and what the stream said of messages."""
        return len(self.later) + sum(map(len, self._chunks))


_GONE = ev.DequeueReason.CONSUMED
_FromPrimary = fr.Batch | fr.Chunk | fr.CaughtUp | fr.Heartbeat | fr.ClockReading


class QueueCopy:
    """The promise: what the queue holds is what the primary's held at `lsn`, which was certain there.

    Greet with `follow` on each new channel; feed what comes to `received` and send what it returns; call `step` while
    `has_work`. Once `ended` says why, nothing more is done, and the queue is like any other.
    """

    def __init__(self, resources: Resources, declare: Declare, own_name: str, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.state = CopyState.CONNECTING
        self.ended = ""
        self.queue: Queue | None = None
        self.primary = ""
        self.link_timeout_s = 0.0
        self.lsn = 0
        """Of the primary's log: up to there the copy is whole."""
        self.remote_lsn = 0
        """The end of that log, as far as it is known."""
        self._resources = resources
        self._declare = declare
        self._own_name = own_name
        stop = f"qpid-ha replicate --stop {name}"
        self._strategy = Copied(f"queue {name} is a copy of the one at {source}: browse it, or end that: {stop}")
        self._source = _Source("", 0)
        self._history: tuple[fr.GenerationEntry, ...] = ()
        """Of the log up to `lsn`."""
        self._followed: fr.Followed | None = None
        self._entries: dict[int, Entry] = {}
        """By the primary's ids, ascending. What has left here by itself stays, until it has left there."""
        self._newest = 0
        self._comparison: _Comparison | None = None
        """While `state` is COMPARING."""
        self._pending: deque[_Add | _Drop | _Reach] = deque()
        self._source_clock: MessageClock | None = None
        """By which messages expire there; None: the primary has not told, as one of an older release does not."""
        self._greetings = Greetings()

    # --- the conversation

    def follow(self, address: str = "") -> fr.Follow:
        """The first word on a new channel to that address."""
        with suppress(CopyError):  # then the copy is made anew
            self._write_all()
        history, lsn = self._history, self.lsn
        reads_clock = self._greetings.at(address).is_full
        return fr.Follow(
            fr.PROTOCOL_VERSION, self._own_name, self.name, self._source.cluster, history, lsn, reads_clock
        )  # fmt: skip

    def lost(self, address: str = "", end: LinkEnd = LinkEnd.LOST) -> None:
        """The channel to that address is gone; what was on its way will come again."""
        self._greetings.ended(address, end)
        self._followed = None
        self._comparison = None
        if not self.ended:
            self.state = CopyState.CONNECTING

    def received(self, frame: fr.Frame, steady_ms: int) -> list[fr.Frame]:
        """A frame came; what to answer. Raises CopyError. `steady_ms`: see `model.message_clock`."""
        if not self._may_go_on():
            return []
        if isinstance(frame, fr.Refused):
            self._refused(frame)
        elif isinstance(frame, fr.Followed):
            return self._begin(frame)
        else:
            self._continue(frame, steady_ms)
        return []

    def _may_go_on(self) -> bool:
        if not self.ended and self._resources.replication.read_only:
            self.end(f"this broker may not write any more: {self._resources.replication.read_only}")
        elif not self.ended and self.queue is not None and not self._is_copied(self.queue):
            self.end("the copy was deleted here")
        return not self.ended

    def _refused(self, frame: fr.Refused) -> None:
        if frame.code is fr.RefusalCode.NO_QUEUE:
            self._write_all()
            self.end(frame.text)
        else:
            raise CopyError(frame.text)

    def _begin(self, frame: fr.Followed) -> list[fr.Frame]:
        if self._followed is not None:
            raise CopyError("the primary greeted twice")
        if frame.generation < newest(self._history):
            raise CopyError(f"{frame.name} is primary of the older generation {frame.generation}")
        cluster, queue_id = self._source
        if cluster not in ("", frame.cluster):
            raise CopyError(f"{frame.name} belongs to the cluster {frame.cluster}; the copy is of {cluster}")
        if queue_id not in (0, frame.queue):
            self.end("the queue was deleted there; what has its name now is another one")
            return []
        if self.queue is None and not self._adopt(frame):
            return []
        self._followed = frame
        self._greetings.welcomed()
        if self._source_clock is not None:
            self._source_clock.follow()
        self._source = _Source(frame.cluster, frame.queue)
        self.primary, self.link_timeout_s = frame.name, frame.link_timeout_s
        self.state = CopyState.COMPARING
        self._take_back(frame)
        self._comparison = _Comparison()
        return [*holdings_of(frame.queue, list(self._entries)), fr.HoldingsDone()]

    def _adopt(self, frame: fr.Followed) -> bool:
        """Make the queue, or take the one that is there, as long as nobody would miss what is in it."""
        there = self._resources.catalog.queues.get(self.name)
        if there is not None and there.messages.count:
            messages = counted(there.messages.count, "message")
            self.end(f"queue {self.name} exists here with {messages}: purge or delete it first")
        elif there is not None and there.dispatcher.has_takers:
            self.end(f"queue {self.name} exists here and has consumers: stop them first")
        else:
            try:
                self.queue = self._declare(self.name, frame.arguments)
            except ModelError as error:
                self.end(str(error))
        if self.queue is not None:
            self.queue.use_strategy(self._strategy)
        return self.queue is not None

    def _is_copied(self, queue: Queue) -> bool:
        """Whether the other cluster writes it still: who deletes it here begins with that."""
        return not queue.deleted and queue.strategy is self._strategy

    def _take_back(self, frame: fr.Followed) -> None:
        """What the primary never had, because it was made primary without some of what was certain before."""
        common = min(frame.common_lsn, self.lsn)
        self._drop(_Drop(tuple(each for each in self._entries if each > common), _GONE))
        self._newest = next(reversed(self._entries), 0)
        self.lsn = common
        self._history = _history_up_to(common, frame.history)

    def _continue(self, frame: fr.Frame, steady_ms: int) -> None:
        followed = self._followed
        if followed is None or not isinstance(frame, _FromPrimary):
            raise CopyError(f"{type(frame).__name__} was not asked for")
        if frame.generation != followed.generation:
            raise CopyError(f"{type(frame).__name__} of generation {frame.generation}, not {followed.generation}")
        if isinstance(frame, fr.Chunk):
            if self._comparison is None:
                raise CopyError("a chunk without a comparison")
            self._comparison.add(frame)
        elif isinstance(frame, fr.Batch):
            self._batch(followed, frame)
        elif isinstance(frame, fr.CaughtUp):
            self._end_comparison(followed, frame.lsn)
        elif isinstance(frame, fr.ClockReading):
            self._source_clock = self._source_clock or MessageClock()
            self._source_clock.told(frame.now_ms, steady_ms)
        else:
            self.remote_lsn = max(self.remote_lsn, frame.last_lsn)
            self._reach(followed, frame.committed_lsn)

    def _reach(self, followed: fr.Followed, lsn: int) -> None:
        self.remote_lsn = max(self.remote_lsn, lsn)
        if self.state is CopyState.FOLLOWING:
            self._pending.append(_Reach(lsn, followed.history))

    def _end_comparison(self, followed: fr.Followed, lsn: int) -> None:
        comparison = self._comparison
        if comparison is None or not comparison.is_over:
            raise CopyError("the primary ended the comparison before it was done")
        self._pending += comparison.outcome()
        self._comparison = None
        self.state = CopyState.FOLLOWING
        self._reach(followed, lsn)

    def _batch(self, followed: fr.Followed, frame: fr.Batch) -> None:
        coming: list[_Add | _Drop] = []
        for lsn, event, _ in _records(frame.data):
            if isinstance(event, ev.Enqueued):
                coming.append(_Add(lsn, event))
            elif isinstance(event, ev.Dequeued):
                coming.append(_Drop(event.ids, event.reason))
        if self._comparison is not None:
            self._comparison.later += coming
        else:
            self._pending += coming
            self._reach(followed, frame.last_lsn)

    # --- the queue

    @property
    def has_work(self) -> bool:
        """Whether `step` would write something."""
        return bool(self._pending) and not self.ended

    @property
    def waiting(self) -> int:
        """What has come and is not written."""
        return len(self._pending) + (0 if self._comparison is None else self._comparison.waiting)

    def step(self, limit: int = STEP) -> None:
        """Write some of what has come. Raises CopyError when it cannot be."""
        if not self._may_go_on() or self.queue is None:
            return
        for _ in range(min(limit, len(self._pending))):
            what = self._pending.popleft()
            if isinstance(what, _Add):
                self._add(self.queue, what)
            elif isinstance(what, _Drop):
                self._drop(what)
            else:
                self._reached(what)
        if self.queue.dispatcher.consumers:
            self._resources.catalog.wake(self.queue)

    def _write_all(self) -> None:
        while self.has_work:
            self.step()

    def _add(self, queue: Queue, add: _Add) -> None:
        if add.id <= self._newest:
            self._forget_source()
            raise CopyError(f"message {add.id} came after {self._newest}; all is fetched again")
        event = add.event._replace(queues=queue.ids)
        if event.expires_at_ms and self._source_clock is not None:
            expires_at_ms = self._resources.catalog.clock.converted(event.expires_at_ms, self._source_clock)
            event = event._replace(expires_at_ms=expires_at_ms)
        self._entries[add.id] = self._resources.sets.holding(queue).enqueue(queue, event)
        self._newest = add.id

    def _forget_source(self) -> None:
        self._pending.clear()
        self._history, self.lsn = (), 0

    def _drop(self, drop: _Drop) -> None:
        queue = self.queue
        found = [self._entries.pop(each) for each in drop.ids if each in self._entries]
        entries = [entry for entry in found if entry.body is not None]
        if queue is None or not entries:
            return
        self._resources.sets.holding(queue).dequeue(queue, entries, drop.reason)

    def _reached(self, place: _Reach) -> None:
        if place.lsn >= self.lsn:
            self.lsn = place.lsn
            self._history = _history_up_to(place.lsn, place.history)

    def end(self, why: str) -> None:
        """Copy nothing more: the queue is as any other from now on."""
        if self.ended:
            return
        self.ended, self.state = why, CopyState.ENDED
        self._pending.clear()
        self._entries.clear()
        self.lost()
        queue = self.queue
        if queue is not None and self._is_copied(queue):
            queue.use_strategy(None)
            self._resources.timers.watch(queue)  # time did not count for what is in it

    @property
    def lag(self) -> int:
        """Events of the primary's log, of whatever queue, that the copy does not cover."""
        return max(self.remote_lsn - self.lsn, 0)


def _records(data: bytes) -> list[LogRecord]:
    records, _, problem = decode(data)
    if problem is not None:
        raise CopyError(f"damaged at byte {problem.offset}: {problem.text}")
    return records


def _history_up_to(lsn: int, history: Iterable[fr.GenerationEntry]) -> tuple[fr.GenerationEntry, ...]:
    return tuple(entry for entry in history if entry.first_lsn <= lsn)
