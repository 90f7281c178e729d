"""How a primary brings a backup level that lacks too much of the stream: one replicating browser per queue.

The backup has told which messages it holds, as ranges of ids. Each chunk covers an interval of ids and says what of it
the backup has to drop, and what it lacks. Publishers and consumers go on meanwhile: what they do is in the live stream.

Newest first, because consumers take from the other end: what is copied last is most likely to be gone by then. Source:
seed 000, "Replicating browser". A chunk says what holds at the place in the stream where it is sent, so all that was
written before must have been sent before: ask for one only when the log has nothing pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.layout import HEADER_BYTES
from qpid_ha_broker.events.types import Annotated
from qpid_ha_broker.ha.frames import CaughtUp, Chunk
from qpid_ha_broker.ha.objects import objects_frame
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, load_bodies
from qpid_ha_broker.model.replication import has_replicated_messages
from qpid_ha_broker.model.sets.state import SetState

__all__ = ["Browsers", "ReplicatingBrowser", "objects_frame"]

IDS_PER_CHUNK: Final = 4096
"""Ids that one chunk deals with at most, sent or not: what a backup holds must not decide how long a turn takes."""
LIGHT_CHUNKS: Final = 1000
"""Chunks that carry no message may run ahead so far: ten thousand idle queues need no ten thousand round trips."""

Ranges = Iterable[tuple[int, int]]
"""Ids as (first, last), ascending."""


class ReplicatingBrowser:
    """The promise: its chunks follow each other downwards from `up_to_lsn` without gap or overlap, until the last."""

    __slots__ = ("_annotates", "_held", "_high", "_queue", "done", "queue_id")

    def __init__(self, queue: Queue, up_to_lsn: int, holdings: Ranges, *, with_annotations: bool = False) -> None:
        """`with_annotations`: also what consumers have said of messages, which an older release cannot read."""
        self._annotates = with_annotations
        self._queue = queue
        self.queue_id = queue.id
        self._high = up_to_lsn
        self._held = _tidied(holdings, up_to_lsn)
        """What the backup holds of what was not yet dealt with; the newest at the end."""
        self.done = False

    @property
    def is_pointless(self) -> bool:
        """Neither side has anything to tell."""
        return not self._held and not self._queue.messages.newest_before(self._high + 1, 1)

    def next_chunk(self, generation: int, max_messages: int, max_bytes: int) -> Chunk:
        """The next interval, at least one message of it, however large that is."""
        find = _Find(max_messages, max_bytes, self._queue.messages.annotations if self._annotates else {})
        low, last = self._high + 1, False
        while not find.is_full and not last:
            entries = self._queue.messages.newest_before(low, max_messages)
            low = self._compare(entries, find, low)
            last = self._is_last(low)
        chunk = find.chunk(generation, self.queue_id, 0 if last else low, self._high, last)
        self._high, self.done = low - 1, last
        return chunk

    def _is_last(self, low: int) -> bool:
        return not self._held and not self._queue.messages.newest_before(low, 1)

    def _compare(self, entries: list[Entry], find: _Find, low: int) -> int:
        """Deal with `entries`, from the newest down, and what is held between them; returns how far down it came."""
        held = self._held
        for entry in reversed(entries):
            if held and held[-1][1] > entry.id:
                low = self._drop_above(entry.id, find)
                if find.is_full:
                    return low
            low = entry.id
            if held and held[-1][1] == low:
                self._forget_newest_held()
                find.keep(entry)
            else:
                find.send(entry)
            if find.is_full:
                return low
        return low if entries else self._drop_above(0, find)

    def _drop_above(self, floor: int, find: _Find) -> int:
        """Ids above `floor` which only the backup holds, as many as find room; returns the last one."""
        held, low = self._held, floor + 1
        while held and held[-1][1] > floor and not find.is_full:
            first, last = held.pop()
            low = max(first, floor + 1, last + 1 - find.ids_left)
            find.drop(low, last)
            if low > first:
                held.append((first, low - 1))
        return low

    def _forget_newest_held(self) -> None:
        first, last = self._held.pop()
        if first < last:
            self._held.append((first, last - 1))


class _Find:
    """What goes into one chunk, gathered newest first."""

    __slots__ = (
        "_annotated",
        "_annotations",
        "_bytes_left",
        "_dropped",
        "_failures",
        "_messages_left",
        "_sent",
        "ids_left",
    )

    def __init__(self, max_messages: int, max_bytes: int, annotations: Mapping[int, bytes]) -> None:
        self._annotations = annotations
        self._annotated: list[int] = []
        self._messages_left = max_messages
        self._bytes_left = max_bytes
        self.ids_left = IDS_PER_CHUNK
        self._sent: list[Entry] = []
        self._dropped: list[range] = []
        self._failures: list[tuple[int, int]] = []

    @property
    def is_full(self) -> bool:
        return self._messages_left <= 0 or self._bytes_left <= 0 or self.ids_left <= 0

    def send(self, entry: Entry) -> None:
        self._sent.append(entry)
        self._messages_left -= 1
        self._bytes_left -= entry.size + HEADER_BYTES
        self.keep(entry)

    def keep(self, entry: Entry) -> None:
        self.ids_left -= 1
        if entry.delivery_count:
            self._failures.append((entry.id, entry.delivery_count))
        if self._annotations and entry.id in self._annotations:
            self._annotated.append(entry.id)
            self._bytes_left -= len(self._annotations[entry.id]) + HEADER_BYTES

    def drop(self, first: int, last: int) -> None:
        self.ids_left -= last + 1 - first
        self._dropped.append(range(first, last + 1))

    def chunk(self, generation: int, queue: int, low: int, high: int, last: bool) -> Chunk:
        dropped = tuple(message_id for ids in reversed(self._dropped) for message_id in ids)
        failures = tuple(reversed(self._failures))
        sent = self._sent[::-1]
        events = zip(sent, load_bodies(sent), strict=True)
        records = [LogRecord(entry.id, entry.enqueued(body), False) for entry, body in events]
        records += [
            LogRecord(number, Annotated(queue, (number,), self._annotations[number]), False)
            for number in reversed(self._annotated)
        ]
        return Chunk(generation, queue, low, high, last, dropped, failures, encode_all(records))


def _tidied(holdings: Ranges, up_to_lsn: int) -> list[tuple[int, int]]:
    """Ascending and apart, whatever a backup said: it may be confused, and must not confuse its primary."""
    tidy: list[tuple[int, int]] = []
    for first, last in sorted(holdings):
        start = max(first, tidy[-1][1] + 1 if tidy else 1)
        end = min(last, up_to_lsn)
        if start <= end:
            tidy.append((start, end))
    return tidy


class Browsers:
    """The promise: `next` gives CaughtUp once every queue's last chunk is given, and not more than a window ahead."""

    def __init__(
        self, state: SetState, generation: int, up_to_lsn: int, holdings: Mapping[int, Ranges],
        *, max_messages: int, max_bytes: int, window: int, with_annotations: bool = False,
    ) -> None:  # fmt: skip
        self._annotates = with_annotations
        self._catalog = state.catalog
        self._generation = generation
        self._up_to_lsn = up_to_lsn
        self._holdings = dict(holdings)
        self._limits = max_messages, max_bytes
        self._window = window
        # What is declared from now on comes by the stream alone.
        self._waiting = [queue.id for queue in reversed(state.queues()) if has_replicated_messages(queue)]
        self._current: ReplicatingBrowser | None = None
        self._sent = self._acknowledged = 0
        self._heavy: list[int] = []
        """Numbers of the chunks with messages that the backup has not taken in."""
        self.done = False

    @property
    def has_window(self) -> bool:
        """Whether `next` may give something now."""
        light = self._sent - self._acknowledged < LIGHT_CHUNKS
        return not self.done and light and len(self._heavy) < self._window

    def acknowledged(self, count: int) -> str:
        """The backup has taken in `count` chunks altogether; returns what is wrong with that, if anything is."""
        if count > self._sent:
            return f"an acknowledgement of {count} chunks; {self._sent} were sent"
        self._acknowledged = max(self._acknowledged, count)
        self._heavy = [number for number in self._heavy if number > count]
        return ""

    def next(self, at_most: int) -> Chunk | CaughtUp | None:
        """The next frame for the backup, with `at_most` messages; None: it has to take in some first, or has all."""
        if not self.has_window:
            return None
        browser = self._browser()
        if browser is None:
            self.done = True
            return CaughtUp(self._generation, self._up_to_lsn)
        max_messages, max_bytes = self._limits
        chunk = browser.next_chunk(self._generation, min(at_most, max_messages), max_bytes)
        self._sent += 1
        if chunk.data or not chunk.last:
            self._heavy.append(self._sent)
        return chunk

    def _browser(self) -> ReplicatingBrowser | None:
        """The one that is not done; what was deleted meanwhile is left out, since the stream says so."""
        while self._current is None or self._current.done or not self._is_here(self._current):
            if not self._waiting:
                return None
            queue_id = self._waiting.pop()
            queue = self._catalog.queues_by_id.get(queue_id)
            if queue is not None:
                held = self._holdings.pop(queue_id, ())
                browser = ReplicatingBrowser(queue, self._up_to_lsn, held, with_annotations=self._annotates)
                self._current = None if browser.is_pointless else browser
        return self._current

    def _is_here(self, browser: ReplicatingBrowser) -> bool:
        """A queue that is replicated no more may live on under another id."""
        queue = self._catalog.queues_by_id.get(browser.queue_id)
        return queue is not None and has_replicated_messages(queue)
