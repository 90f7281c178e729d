"""In which order a queue gives its messages: first in first out, by priority with a fair share, or the last per key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import ClassVar, Final, Protocol

from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import Body
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments
from qpid_ha_broker.model.queues.sequence import NO_LIMIT, Cursor, Entry, FreeCursor, HistoryCursor, MessageSequence
from qpid_ha_broker.model.work import Task, emptied

_entry_id = attrgetter("id")
_number, _priority = itemgetter(0), attrgetter("header.priority")


class SeesReturned(Protocol):
    """Who has to see again what comes back."""

    def rewind(self, entry: Entry) -> None:
        """See to it that `entry` is not behind."""

    def restart(self) -> None:
        """Go back to the start."""


class OrderCursor(SeesReturned, Protocol):
    """Where a consumer or a browser stands in an order."""

    def peek(self) -> Entry | None:
        """The next available entry, or None."""

    def skip(self) -> None:
        """Pass the entry that `peek` gave."""

    def run(self, most: int) -> Sequence[Entry]:
        """Up to `most` entries, of which the first is what `peek` gave, and each is the next, if it can be had, once
        those before it are passed. Empty, where each has to be looked for."""
        return ()

    def pass_run(self, count: int) -> None:
        """Pass the first so many of `run`."""
        raise LookupError("there was no run")

    def ahead(self) -> Iterator[Entry]:
        """The available entries that come next, in about that order. Nothing may change meanwhile."""

    def has_passed(self, entry: Entry) -> bool:
        """Whether `entry` lies behind, or nowhere any more."""


class Order(ABC):
    """The entries of one queue in the order in which they are given out."""

    __slots__ = ()

    takes_cold: ClassVar[bool] = False
    """Whether messages may be here of which nobody knows more than a snapshot's index tells."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Entry]: ...

    @abstractmethod
    def walk(self, most: int = NO_LIMIT) -> Iterator[list[Entry]]:
        """Every entry, some at a time, in no certain order: see `MessageSequence.walk`."""

    @abstractmethod
    def append(self, entry: Entry) -> Entry | None:
        """Add `entry`; returns the entry that it takes the place of, if any: the caller removes that."""

    @abstractmethod
    def append_run(self, ids: Sequence[int], header: MessageHeader, bodies: Sequence[Body]) -> None:
        """Add messages, one for each of `bodies`, that take nobody's place, and that nobody refers to before somebody
        asks for them."""

    @abstractmethod
    def remove(self, entries: Iterable[Entry]) -> None:
        """Take `entries` out for good."""

    @abstractmethod
    def find(self, message_id: int) -> Entry | None:
        """The entry with that id."""

    @abstractmethod
    def find_all(self, ids: Sequence[int]) -> list[Entry]:
        """Those of `ids` that are here, in any order."""

    @abstractmethod
    def prepend(self, entries: Sequence[Entry]) -> None:
        """Add entries by ascending id, all below what is here; they take nobody's place. Restart positions after it."""

    @abstractmethod
    def sequences(self) -> Sequence[MessageSequence]:
        """Where the messages lie, by ascending id: in one, or in one for each level to which something has come, the
        highest first. What `takes_cold` has its cold messages there."""

    @abstractmethod
    def sequence_of(self, priority: int) -> MessageSequence:
        """Where messages with that AMQP priority lie, or are to."""

    @abstractmethod
    def take_all(self) -> list[Entry]:
        """Empty the order; returns what it held, by ascending id."""

    @abstractmethod
    def dismantle(self) -> Task:
        """Let go of all entries, some at each step: see `MessageSequence.dismantle`."""

    @abstractmethod
    def newest_before(self, bound: int, limit: int) -> list[Entry]:
        """Up to `limit` entries with the largest ids below `bound`, ascending."""

    @abstractmethod
    def renumber(self, new_ids: Mapping[int, int]) -> None:
        """Replace every id; the order by id must stay. Restart positions after it."""

    @abstractmethod
    def go_back(self, most: int) -> None:
        """Ids above `most`, of which none is here any more, come again. Restart positions after it."""

    @abstractmethod
    def position(self, sharing: bool = False, of_all: bool = False) -> OrderCursor:
        """A new place at the start. `sharing`: for consumers, who take turns between priorities. `of_all`: sees what
        somebody holds, too."""

    @abstractmethod
    def position_after(self, message_id: int) -> OrderCursor:
        """Before the first with a larger id, and on by ascending ids, whatever the order is: see `HistoryCursor`."""

    @abstractmethod
    def id_ahead(self, message_id: int, count: int) -> int:
        """An id above `message_id` with about `count` messages in between; 0: there are fewer."""

    @abstractmethod
    def newest_id(self, most: int) -> int:
        """The largest id that is here and not above `most`; 0: there is none."""

    @abstractmethod
    def displacing_position(self) -> OrderCursor:
        """Where a ring finds what has to go first."""

    def level_of(self, priority: int) -> int:
        """The level of a message with that AMQP priority: a higher one is given out first, and dropped last."""
        return 0

    def is_superseded(self, entry: Entry) -> bool:
        """Whether something newer took the place of `entry` while it was away."""
        return False

    def latest(self, key: str) -> Entry | None:
        """The message whose place a new one with that key would take."""
        return None

    def superseded(self) -> Iterable[Entry]:
        """What is here though something newer took its place: held by somebody, or about to leave."""
        return ()


def make_order(arguments: QueueArguments) -> Order:
    """The order that `arguments` ask for."""
    if arguments.last_value_queue_key:
        return LastValue()
    if arguments.priorities > 1:
        return ByPriority(arguments.shares)
    return Fifo()


class Fifo(MessageSequence, Order):
    """In order of arrival."""

    __slots__ = ()

    takes_cold = True

    def sequences(self) -> Sequence[MessageSequence]:
        return (self,)

    def sequence_of(self, priority: int) -> MessageSequence:
        return self

    def position(self, sharing: bool = False, of_all: bool = False) -> OrderCursor:
        return HistoryCursor(self, 0) if of_all else Cursor(self)

    def position_after(self, message_id: int) -> OrderCursor:
        return HistoryCursor(self, message_id)

    def displacing_position(self) -> OrderCursor:
        return FreeCursor(self)


class LastValue(Fifo):
    """At most one message per key: a newer value goes to the end and takes the place of the older one."""

    __slots__ = ("_latest", "_superseded")

    takes_cold = False

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, Entry] = {}
        self._superseded: dict[Entry, None] = {}

    def append(self, entry: Entry) -> Entry | None:
        super().append(entry)
        key = entry.header.key
        if not key:
            return None
        displaced = self._latest.get(key)
        self._latest[key] = entry
        if displaced is not None:
            self._superseded[displaced] = None
        return displaced

    def remove(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            key = entry.header.key
            if self._latest.get(key) is entry:
                del self._latest[key]
            self._superseded.pop(entry, None)
            super().remove((entry,))

    def prepend(self, entries: Sequence[Entry]) -> None:
        super().prepend(entries)
        for entry in reversed(entries):
            key = entry.header.key
            if key and self._latest.setdefault(key, entry) is not entry:
                self._superseded[entry] = None

    def take_all(self) -> list[Entry]:
        self._latest.clear()
        self._superseded.clear()
        return super().take_all()

    def dismantle(self) -> Task:
        yield from super().dismantle()
        yield from emptied(self._latest)
        yield from emptied(self._superseded)

    def is_superseded(self, entry: Entry) -> bool:
        key = entry.header.key
        return bool(key) and self._latest.get(key) is not entry

    def latest(self, key: str) -> Entry | None:
        return self._latest.get(key)

    def superseded(self) -> Iterable[Entry]:
        return self._superseded


class ByPriority(Order):
    """Higher priorities first; one with a share rests after that many messages in a row, while lower ones wait.

    Each level is a sequence of its own, made for its first message: most queues have one priority alone. What is cold
    lies in the level of its header's priority, all of a stretch in one.
    """

    __slots__ = ("_level_of", "_levels", "_shares", "highest_first")

    takes_cold = True

    def __init__(self, shares: Sequence[int]) -> None:
        """`shares`: of each level, the lowest first; 0: it has none, and goes on while it has messages."""
        self._levels = [_NOT_MADE] * len(shares)
        self.highest_first: list[tuple[int, MessageSequence]] = []
        """The number of each level to which something has come, and the level."""
        self._level_of = _levels_by_priority(len(self._levels))
        """By AMQP priority: without a call, for each message asks twice."""
        self._shares = shares

    def sequences(self) -> Sequence[MessageSequence]:
        return [level for _, level in self.highest_first]

    def sequence_of(self, priority: int) -> MessageSequence:
        at = self._level_of[priority]
        if self._levels[at] is _NOT_MADE:
            self._levels[at] = MessageSequence()
            self.highest_first.append((at, self._levels[at]))
            self.highest_first.sort(key=_number, reverse=True)
        return self._levels[at]

    def __len__(self) -> int:
        return sum(map(len, self.sequences()))

    def __iter__(self) -> Iterator[Entry]:
        for level in self.sequences():
            yield from level

    def walk(self, most: int = NO_LIMIT) -> Iterator[list[Entry]]:
        for level in self._levels:  # as they are when their turn comes
            if level is not _NOT_MADE:
                yield from level.walk(most)

    def level_of(self, priority: int) -> int:
        return self._level_of[priority]

    def append(self, entry: Entry) -> Entry | None:
        self.sequence_of(entry.header.priority).append(entry)
        return None

    def append_run(self, ids: Sequence[int], header: MessageHeader, bodies: Sequence[Body]) -> None:
        self.sequence_of(header.priority).append_run(ids, header, bodies)

    def remove(self, entries: Iterable[Entry]) -> None:
        for priority, alike in groupby(entries, key=_priority):
            self._levels[self._level_of[priority]].remove(alike)

    def find(self, message_id: int) -> Entry | None:
        return next((entry for level in self.sequences() if (entry := level.find(message_id))), None)

    def find_all(self, ids: Sequence[int]) -> list[Entry]:
        present: list[Entry] = []
        missing = ids
        # What is asked for by its id has mostly been given out, and to look where it is not may open blocks: so highest
        # first.
        for level in self.sequences():
            if not level.length:
                continue
            here = level.find_all(missing)
            if here:
                present += here
                known = {entry.id for entry in here}
                missing = [message_id for message_id in missing if message_id not in known]
            if not missing:
                break
        return present

    def prepend(self, entries: Sequence[Entry]) -> None:
        parts: list[list[Entry]] = [[] for _ in self._levels]
        for entry in entries:
            parts[self.level_of(entry.header.priority)].append(entry)
        for part in filter(None, parts):
            self.sequence_of(part[0].header.priority).prepend(part)

    def take_all(self) -> list[Entry]:
        return sorted((entry for level in self.sequences() for entry in level.take_all()), key=_entry_id)

    def dismantle(self) -> Task:
        for level in self.sequences():
            yield from level.dismantle()

    def newest_before(self, bound: int, limit: int) -> list[Entry]:
        candidates = [entry for level in self.sequences() for entry in level.newest_before(bound, limit)]
        return sorted(candidates, key=_entry_id)[-limit:] if limit > 0 else []

    def renumber(self, new_ids: Mapping[int, int]) -> None:
        for level in self.sequences():
            level.renumber(new_ids)

    def go_back(self, most: int) -> None:
        for level in self.sequences():
            level.go_back(most)

    def position(self, sharing: bool = False, of_all: bool = False) -> OrderCursor:
        cursor_in = partial(HistoryCursor, after=0) if of_all else Cursor
        return PriorityPosition(self, self._levels, cursor_in, self._shares if sharing else ())

    def position_after(self, message_id: int) -> OrderCursor:
        return ArrivalPosition(self, self._levels, message_id)

    def id_ahead(self, message_id: int, count: int) -> int:
        return max((level.id_ahead(message_id, count) for level in self.sequences()), default=0)

    def newest_id(self, most: int) -> int:
        return max((level.newest_id(most) for level in self.sequences()), default=0)

    def displacing_position(self) -> OrderCursor:
        return PriorityPosition(self, self._levels, FreeCursor, (), lowest_first=True)


@cache
def _levels_by_priority(count: int) -> bytes:
    """AMQP 1.0 section 3.2.1: with n levels, the priorities up to 5 - ceil(n/2) are one, and so are the highest."""
    lowest = 5 - min(5, -(-count // 2))
    return bytes(min(max(priority - lowest, 0), count - 1) for priority in range(1 << 8))


_NOT_MADE: Final = MessageSequence()
"""A level to which nothing has come yet; never changed."""


class _LevelsPosition(OrderCursor):
    """A cursor in each level in which it has looked: in another one it would stand at the start."""

    __slots__ = ("_cursor_in", "_cursors", "_levels", "_next", "_order")

    def __init__(
        self, order: ByPriority, levels: Sequence[MessageSequence], cursor_in: Callable[[MessageSequence], Cursor]
    ) -> None:
        """`levels`: those of `order`, of which more may be made."""
        self._order = order
        self._levels = levels
        self._cursor_in = cursor_in
        self._cursors: list[Cursor | None] = [None] * len(levels)
        self._next: Cursor | None = None
        """Before the entry that `peek` gave."""

    def _cursor(self, level: int) -> Cursor:
        """In a level that has, or had, messages."""
        cursor = self._cursors[level]
        if cursor is None:
            cursor = self._cursors[level] = self._cursor_in(self._levels[level])
        return cursor

    def skip(self) -> None:
        if self._next is not None:
            self._next.skip()

    def rewind(self, entry: Entry) -> None:
        cursor = self._cursors[self._order.level_of(entry.header.priority)]
        if cursor is not None:
            cursor.rewind(entry)

    def restart(self) -> None:
        for cursor in filter(None, self._cursors):
            cursor.restart()

    def has_passed(self, entry: Entry) -> bool:
        if entry.body is None:
            return True
        cursor = self._cursors[self._order.level_of(entry.header.priority)]
        return cursor is not None and cursor.has_passed(entry)


class PriorityPosition(_LevelsPosition):
    """A cursor in each level, highest first unless told otherwise.

    `lowest_first`: for a ring, which drops what waits for its time, too. With `shares`, a level that gave its own in a
    row waits for a round.
    """

    __slots__ = ("_given", "_highest_first", "_level", "_lowest_first", "_shares")

    def __init__(
        self,
        order: ByPriority,
        levels: Sequence[MessageSequence],
        cursor_in: Callable[[MessageSequence], Cursor],
        shares: Sequence[int],
        lowest_first: bool = False,
    ) -> None:
        super().__init__(order, levels, cursor_in)
        self._shares = shares if any(shares) else ()
        self._given = [0] * len(self._shares)
        self._level = 0
        self._highest_first = order.highest_first
        self._lowest_first = lowest_first

    def peek(self) -> Entry | None:
        shares, resting, cursors = self._shares, False, self._cursors
        for at, level in reversed(self._highest_first) if self._lowest_first else self._highest_first:
            # Most levels are empty nearly always, and each message asks all that are above its own.
            if not level.length:
                continue
            cursor = cursors[at] or self._cursor(at)
            entries, index = cursor.block.entries, cursor.index
            entry = entries[index] if index < len(entries) else None
            if entry is None or entry.holder is not None:  # seldom: else it is what `peek` would find
                entry = cursor.peek()
            if entry is None:
                continue
            if shares and 0 < shares[at] <= self._given[at]:
                resting = True
                continue
            self._level, self._next = at, cursor
            return entry
        if resting:
            self._given = [0] * len(shares)
            return self.peek()
        return None

    def run(self, most: int) -> Sequence[Entry]:
        return () if self._shares or self._next is None else self._next.run(most)

    def pass_run(self, count: int) -> None:
        if self._next is not None:
            self._next.index += count

    def skip(self) -> None:
        if self._next is not None:
            self._next.index += 1
        if self._shares:
            self._given[self._level] += 1

    def ahead(self) -> Iterator[Entry]:
        """As many of each level in turn as its share is, all of one without."""
        levels = [at for at, level in self._highest_first if level.length]
        if self._lowest_first:
            levels.reverse()
        rest = [(self._cursor(level).ahead(), self._shares[level] if self._shares else 0) for level in levels]
        while rest:
            still = []
            for entries, share in rest:
                piece = list(islice(entries, share)) if share else entries
                yield from piece
                if share and piece:
                    still.append((entries, share))
            rest = still


class ArrivalPosition(_LevelsPosition):
    """In the order in which messages came, across all priorities."""

    __slots__ = ()

    def __init__(self, order: ByPriority, levels: Sequence[MessageSequence], after: int) -> None:
        super().__init__(order, levels, partial(HistoryCursor, after=after))

    def peek(self) -> Entry | None:
        oldest: Entry | None = None
        for cursor in self._looked_at():
            entry = cursor.peek()
            if entry is not None and (oldest is None or entry.id < oldest.id):
                oldest, self._next = entry, cursor
        return oldest

    def ahead(self) -> Iterator[Entry]:
        return merge(*(cursor.ahead() for cursor in self._looked_at()), key=_entry_id)

    def _looked_at(self) -> list[Cursor]:
        return [self._cursor(at) for at, level in enumerate(self._levels) if level.length]
