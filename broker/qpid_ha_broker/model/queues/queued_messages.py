"""The messages of one queue: their order, how many and how large they are, who has them, and what time does to them.

| of a message that | `holder` is | until |
| --- | --- | --- |
| whoever comes gets | None | somebody holds it |
| is due later, or is to be delivered again later | WAITING | `schedule` has come to its time |
| somebody has, or that is about to leave | whoever that is | it leaves, or is back: available, or WAITING |

It keeps its place by its id in all of them. Where no time passes, as on a replica that nobody asks, what waits goes on
waiting: its `header` says when it is due.

Nothing is decided here, and nothing written: every method does what an event of the log says, or only looks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Protocol, cast

from qpid_ha_broker.model.queues.cold_share import ColdShare
from qpid_ha_broker.model.queues.expiries import Expiries
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.orders import Order, OrderCursor, SeesReturned
from qpid_ha_broker.model.queues.paged import Body, BodyRef
from qpid_ha_broker.model.queues.queue_annotations import QueueAnnotations
from qpid_ha_broker.model.queues.schedule import Schedule
from qpid_ha_broker.model.queues.sequence import DISPLACED, EXPIRED, NO_LIMIT, WAITING, Entry, Holder
from qpid_ha_broker.model.work import Task

_holder, _expiry, _due = attrgetter("holder"), attrgetter("header.expires_at_ms"), attrgetter("header.due_at_ms")


class MessageWatch(SeesReturned, Protocol):
    """Sees again what comes back, as a cursor does, and hears what somebody takes and what has left."""

    def held(self, entry: Entry) -> None:
        """`entry` has another holder now."""

    def gone(self, entry: Entry) -> None:
        """`entry` leaves the queue."""


class QueuedMessages:
    """Invariants: `count` and `size` cover every message that has not left, acquired ones too; nobody is given one that
    is not due."""

    __slots__ = (
        "_cursors",
        "_name",
        "_order",
        "acquired",
        "annotations",
        "count",
        "dequeued_total",
        "enqueued_total",
        "expiries",
        "groups",
        "id_ahead",
        "level_of",
        "paged",
        "schedule",
        "size",
        "superseded",
    )

    def __init__(self, name: str, order: Order) -> None:
        self._name = name
        """Of the queue: for errors."""
        self._order = order
        self.id_ahead = order.id_ahead
        """By id and count: an id above that one with about so many messages in between; 0: there are fewer."""
        self.level_of = order.level_of
        """Of an AMQP priority: a message of a higher level is given out first, and dropped last."""
        self.superseded = order.superseded
        """What is here though something newer took its place: held by somebody, or about to leave."""
        self._cursors: list[SeesReturned] = []
        """Those that must see again what comes back; `schedule` has the same list."""
        self.groups: MessageWatch | None = None
        """Who hears what becomes of messages; None: nobody keeps groups together here."""
        self.expiries = Expiries()
        self.schedule = Schedule(self._cursors)
        """What waits for its time, which is not `acquired`."""
        self.count = self.acquired = 0
        self.size = 0
        """Bytes of payload."""
        self.paged = 0
        """Bytes of `size` that are on disk alone."""
        self.enqueued_total = self.dequeued_total = 0
        self.annotations = QueueAnnotations()
        """What consumers have said of messages when they gave them back."""

    # --- looking

    def __iter__(self) -> Iterator[Entry]:
        """All messages, in the order in which they would be given out."""
        return iter(self._order)

    def walk(self, most: int = NO_LIMIT) -> Iterator[list[Entry]]:
        """All messages, in no certain order, some at a time; between two steps anything may change.

        `most`: many of those with larger ids are left out.
        """
        return self._order.walk(most)

    def find(self, message_id: int) -> Entry | None:
        """The message with that id, if it is here."""
        return self._order.find(message_id)

    def find_all(self, ids: Sequence[int]) -> list[Entry]:
        """Those of `ids` that are here."""
        return self._order.find_all(ids)

    def newest_before(self, bound: int, limit: int) -> list[Entry]:
        """Up to `limit` messages with the largest ids below `bound`, by ascending id."""
        return self._order.newest_before(bound, limit)

    def newest_id(self, most: int) -> int:
        """The largest id of a message that is here and not above `most`; 0: there is none."""
        return self._order.newest_id(most)

    def latest(self, key: str) -> Entry | None:
        """The message whose place a new one with that last-value key would take."""
        return self._order.latest(key)

    def is_superseded(self, entry: Entry) -> bool:
        """Whether a newer value came while `entry` was away."""
        return self._order.is_superseded(entry)

    @property
    def resident(self) -> int:
        """Bytes of payload that are in memory, and of what consumers have said of messages."""
        return self.size - self.paged + self.annotations.size

    @property
    def cold(self) -> ColdShare:
        """What is on disk alone since the broker started."""
        return ColdShare(self, self._order)

    # --- cursors

    def open_cursor(self, *, displacing: bool = False, of_all: bool = False) -> OrderCursor:
        """A place at the start for those who take messages, or for a ring before what has to go first (`displacing`):
        what is given back lies before it again. `of_all`: it sees what somebody holds, too."""
        order = self._order
        cursor = order.displacing_position() if displacing else order.position(sharing=not of_all, of_all=of_all)
        self._cursors.append(cursor)
        return cursor

    def watch(self, groups: MessageWatch | None) -> OrderCursor:
        """Have `groups` hear what becomes of messages, in place of who did before; None: nobody.

        Returns a place at the start that sees what somebody holds, too: what is given back there lies behind it.
        """
        self._cursors[:] = [other for other in self._cursors if other is not self.groups]
        self.groups = groups
        if groups is not None:
            self._cursors.append(groups)
        return self._order.position(of_all=True)

    def close_cursor(self, cursor: OrderCursor) -> None:
        """Nobody asks it any more."""
        self._cursors[:] = [other for other in self._cursors if other is not cursor]

    def browsing_cursor(self, after: int | None) -> OrderCursor:
        """For one who only looks. `after`: by ascending ids above that one, also what somebody holds."""
        return self._order.position() if after is None else self._order.position_after(after)

    # --- in and out

    def add(self, entry: Entry) -> Entry | None:
        """Take in a message; returns the one whose place it takes, if any (last-value queues)."""
        self.count += 1
        body = entry.body
        if type(body) is BodyRef:
            self._count_paged(body.size)
        elif body is not None:
            self.size += len(body)
        self.enqueued_total += 1
        expires_at_ms = entry.header.expires_at_ms
        if expires_at_ms:
            self.expiries.note(expires_at_ms, entry, self.count)
        older = self._order.append(entry)
        if entry.header.due_at_ms:
            self.schedule.wait(entry, entry.header.due_at_ms, self.count)
        return older

    def add_run(self, ids: Sequence[int], header: MessageHeader, bodies: Sequence[bytes]) -> int:
        """`add` for messages due at once, without key, whose `bodies` are in memory; returns their bytes."""
        size = sum(map(len, bodies))
        self.count += len(bodies)
        self.size += size
        self.enqueued_total += len(bodies)
        if header.expires_at_ms:
            for entry in map(Entry, ids, repeat(header), bodies):
                self._order.append(entry)
                self.expiries.note(header.expires_at_ms, entry, self.count)
        else:
            self._order.append_run(ids, header, bodies)
        return size

    def prepend(self, entries: Sequence[Entry]) -> None:
        """Take in messages that are older than all that are here, by ascending id; last values displace nothing."""
        # In passes over lists: a restart brings millions, and a method call for each is most of what it costs.
        bodies = [entry.body for entry in entries if entry.body is not None]
        if len(bodies) != len(entries):
            raise LookupError(f"what comes into queue {self._name} has left another one")
        self.count += len(entries)
        if BodyRef in set(map(type, bodies)):
            self._count_paged(sum([body.size for body in bodies if type(body) is BodyRef]))
            self.size += sum([len(body) for body in bodies if type(body) is not BodyRef])
        else:
            self.size += sum(map(len, cast(list[bytes], bodies)))
        self.acquired += len(entries) - list(map(_holder, entries)).count(None)
        if any(map(_expiry, entries)):
            for entry in entries:
                if expires_at_ms := entry.header.expires_at_ms:
                    self.expiries.note(expires_at_ms, entry, self.count)
        self.enqueued_total += len(entries)
        self._order.prepend(entries)
        if any(map(_due, entries)):
            for entry in entries:
                if entry.header.due_at_ms:
                    self.schedule.wait(entry, entry.header.due_at_ms, self.count)
        self.restart()

    def remove(self, entries: Collection[Entry]) -> None:
        """Let messages go for good. What was said of them is for the caller to forget."""
        groups = self.groups
        size = acquired = 0
        for entry in entries:
            if groups is not None:
                groups.gone(entry)
            body, holder = entry.body, entry.holder
            if type(body) is BodyRef:
                self._count_paged(-body.size)
            elif body is not None:
                size += len(body)
            if holder is WAITING:
                self.schedule.over(entry)
            elif holder is not None:
                acquired += 1
        self._order.remove(entries)
        self.count -= len(entries)
        self.size -= size
        self.acquired -= acquired
        self.dequeued_total += len(entries)

    def take_all(self) -> list[Entry]:
        """Empty the queue as if nothing had come; returns what it held, by ascending id."""
        self.enqueued_total -= self.count
        self.count = self.size = self.paged = self.acquired = 0
        self.annotations = QueueAnnotations()
        self.expiries.clear()
        taken = self._order.take_all()
        self.schedule.forget(taken)
        return taken

    def dismantle(self) -> Task:
        """Let go of the messages of a queue that is deleted, some at each step."""
        yield from self.expiries.dismantle()
        yield from self.schedule.dismantle()
        yield from self._order.dismantle()

    def renumber(self, new_ids: Mapping[int, int]) -> None:
        """Give every message another id, in the same order. Who holds one goes on holding it."""
        self._order.renumber(new_ids)
        self.annotations.renumber(new_ids)
        self.expiries.renumbered()
        self.schedule.renumbered()
        self.restart()

    def go_back(self, most: int) -> None:
        """Ids above `most`, of which none is here any more, come again: the log went back, and goes on from there."""
        self._order.go_back(most)
        self.expiries.renumbered()
        self.schedule.renumbered()
        self.restart()

    def restart(self) -> None:
        """Positions begin anew: what lies before them may be others now."""
        for cursor in self._cursors:
            cursor.restart()

    # --- while they are here

    def hold(self, entry: Entry, holder: Holder) -> None:
        """`holder` has it; nobody else gets it."""
        if entry.holder is WAITING:
            self.schedule.over(entry)
        if entry.holder is None:
            self.acquired += 1
        entry.holder = holder
        if self.groups is not None:
            self.groups.held(entry)

    def give_back(self, entry: Entry, failed: bool) -> None:
        """Make the entry available again, in its old place, if it is due; `failed` counts one failed delivery."""
        if entry.holder is WAITING:
            self.schedule.over(entry)
        if entry.holder is not None:
            self.acquired -= 1
            entry.acquired_before |= entry.holder is not DISPLACED
        entry.holder = None
        entry.delivery_count += failed
        for cursor in self._cursors:
            cursor.rewind(entry)
        expires_at_ms = entry.header.expires_at_ms
        if 0 < expires_at_ms <= self.expiries.popped_ms:
            self.expiries.note(expires_at_ms, entry, self.count)
        if entry.header.due_at_ms and self.schedule.is_before(entry.header.due_at_ms):
            self.schedule.wait(entry, entry.header.due_at_ms, self.count)

    def replace_body(self, entry: Entry, body: Body) -> None:
        """Let the same body be elsewhere: page it out, bring it back, or say in which other file it is."""
        was_paged, is_paged = type(entry.body) is BodyRef, type(body) is BodyRef
        self.paged += (is_paged - was_paged) * entry.size
        entry.replace_body(body)

    def _count_paged(self, size: int) -> None:
        self.size += size
        self.paged += size

    # --- time

    def expired(self, now_ms: int, most: int = 1 << 62) -> list[Entry]:
        """What has expired and is nobody's: the caller dequeues it. What somebody has is noted when it returns.

        Of `most` notes: there may be more, as `expiries.next_ms` tells.
        """
        # Once each: what came when its time was over already, and was held and given back since, is noted twice.
        entries = [entry for entry in dict.fromkeys(self.expiries.pop(now_ms, most)) if entry.is_free]
        for entry in entries:
            self.hold(entry, EXPIRED)
        return entries

    def check_invariants(self) -> None:
        """Raise AssertionError where the counters and the messages disagree; called after each step in tests."""
        entries = list(self._order)
        size = sum(entry.size for entry in entries)
        paged = sum(entry.size for entry in entries if type(entry.body) is BodyRef)
        held, waiting = sum(not entry.is_free for entry in entries), sum(entry.holder is WAITING for entry in entries)
        counted = (len(entries), size, paged, held, waiting)
        believed = (self.count, self.size, self.paged, self.acquired, self.schedule.count)
        if counted != believed or len(self._order) != self.count:
            raise AssertionError(f"{self._name}: counted {counted}, believed {believed}")
        self.annotations.check_invariants([entry.id for entry in entries])
