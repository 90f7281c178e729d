"""A queue: what it holds, who takes from it, and what may still come in.

It holds messages, consumers and limits, and serves consumers that have credit in turn. It never writes to the log; the
resource set does, and calls the methods under "as the log tells" for every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.errors import QueueFull
from qpid_ha_broker.model.expiries import Expiries
from qpid_ha_broker.model.log import CommitToken, Log
from qpid_ha_broker.model.orders import Order, OrderCursor, make_order
from qpid_ha_broker.model.paged import Outline, PagedMessage, size_of
from qpid_ha_broker.model.queue_arguments import FullPolicy, QueueArguments, Replicate
from qpid_ha_broker.model.sequence import Entry, Holder
from qpid_ha_broker.model.work import Task

PASSED_LENGTH = 1000
"""Messages that a consumer may find expired or unwanted at a time, however quick that is."""

DISPLACED_LENGTH = 500
"""Messages that a ring drops at once: its limit may have been lowered, or one message take the place of many."""

Accepts = Callable[[Enqueued], bool]


class Consumer(Holder):
    """One who takes messages, or only looks at them (`browsing`), as far as its credit and its window go.

    `credit` (messages) and `window_bytes` belong to the driver, which raises them; handing out lowers them. A
    driver's link is a consumer: what is handed out to it, it sends.
    """

    __slots__ = ("accepts", "after", "browsing", "credit", "position", "window_bytes")

    def __init__(self, *, browsing: bool = False, accepts: Accepts | None = None, after: int | None = None) -> None:
        self.browsing = browsing
        self.after = after
        """Of a browser: it reads by ascending ids from this one on, also what others hold."""
        self.accepts = accepts
        self.credit = 0
        self.window_bytes = 0
        self.position: OrderCursor | None = None


class Handout(NamedTuple):
    """Messages for one consumer. They may be sent once `written`, that the consumer has them, is committed."""

    consumer: Consumer
    entries: list[Entry]
    written: CommitToken


class Returning(NamedTuple):
    """What is still to come back from a consumer or a transaction that has gone.

    `entries`: by descending ids, the next is the last; one that `holder` holds no longer has gone, or come back, by
    another way.
    """

    holder: Holder
    entries: list[Entry]


_NO_LIMIT = 1 << 64
_payload, _holder, _expiry = attrgetter("payload"), attrgetter("holder"), attrgetter("expires_at_ms")


class Queue:
    """Invariant: `count` and `size` cover every message that has not left, acquired ones too."""

    __slots__ = (
        "_displacing",
        "_expiries",
        "_head",
        "_order",
        "_positions",
        "_turn",
        "acquired",
        "arguments",
        "awaits_bodies",
        "awaits_commit",
        "consumers",
        "count",
        "deleted",
        "dequeued_total",
        "enqueued_total",
        "exclusive_owner",
        "id",
        "ids",
        "interrupted",
        "limited",
        "locked",
        "log",
        "name",
        "needs_care",
        "owner",
        "paged",
        "redelivered_below",
        "replication",
        "reserved_until_ms",
        "returning",
        "size",
        "unused_since_ms",
        "used",
    )

    def __init__(self, queue_id: int, name: str, arguments: QueueArguments, log: Log, replication: Replicate) -> None:
        self.id = queue_id
        self.ids = (queue_id,)
        self.name = name
        self.log = log
        """Where its messages are written; the queue itself may be in another one."""
        self.replication = replication
        self._order: Order = make_order(arguments)
        self._head = self._order.position(sharing=True)
        self._positions = [self._head]
        self._displacing: OrderCursor | None = None
        self._expiries = Expiries()
        self._turn = 0
        self.deleted, self.locked = False, ""
        self.interrupted = False
        """The last `hand_out` stopped before a consumer had seen everything."""
        self.awaits_bodies = False
        """The last `hand_out` stopped before a message that is paged out: wake the queue when it is back."""
        self.awaits_commit = False
        """The last `hand_out` kept from a browser what is not committed: wake the queue when that has changed."""
        self.consumers: list[Consumer] = []
        self.returning: list[Returning] = []
        """What comes back in portions: consumers get nothing from behind it before."""
        self.exclusive_owner: object | None = None
        self.used = False
        """It has had a consumer, here or at a primary before."""
        self.owner = ""
        """The container id of who has it alone, as the log tells."""
        self.reserved_until_ms = 0
        """Until then nobody but `owner` gets it, and it does not delete itself: its users may be on their way here."""
        self.redelivered_below = 0
        """Messages up to this id may have been given to somebody by a primary before."""
        self.unused_since_ms: int | None = None
        self.count = self.size = self.acquired = 0
        self.paged = 0
        """Bytes of `size` that are on disk alone."""
        self.enqueued_total = self.dequeued_total = 0
        self.change_arguments(arguments)

    # --- as the log tells

    def change_arguments(self, arguments: QueueArguments) -> None:
        """Other limits for the same messages, or `locked` has changed. The order is fixed when a queue is made."""
        self.arguments = arguments
        self.limited = bool(arguments.max_count or arguments.max_size)
        care = arguments.message_ttl_ms or arguments.last_value_queue_key or self.locked
        self.needs_care = bool(self.limited or care)
        if arguments.policy_type is FullPolicy.RING and self._displacing is None:
            self._displacing = self._order.displacing_position()
            self._positions.append(self._displacing)

    def mark_deleted(self) -> None:
        """It is no more. `needs_care` leads a late publisher to where that is noticed."""
        self.deleted = self.needs_care = True

    def add(self, entry: Entry, event: Enqueued) -> Entry | None:
        """Take in a message; returns the one whose place it takes, if any (last-value queues)."""
        self.count += 1
        self.size += len(event.payload)
        self.enqueued_total += 1
        if event.expires_at_ms:
            self._expiries.note(event.expires_at_ms, entry, self.count)
        return self._order.append(entry)

    def prepend(self, entries: Sequence[Entry]) -> None:
        """Take in messages that are older than all that are here, by ascending id; last values displace nothing."""
        # In passes over lists: a restart brings millions, and a method call for each is most of what it costs.
        events = [entry.event for entry in entries if entry.event is not None]
        if len(events) != len(entries):
            raise LookupError(f"what comes into queue {self.name} has left another one")
        self.count += len(entries)
        if PagedMessage in set(map(type, events)):
            paged = sum([event.size for event in events if type(event) is PagedMessage])
            self.paged += paged
            self.size += paged + sum([len(event.payload) for event in events if type(event) is Enqueued])
        else:
            self.size += sum(map(len, map(_payload, events)))
        self.acquired += len(entries) - list(map(_holder, entries)).count(None)
        if any(map(_expiry, events)):
            for entry, event in zip(entries, events, strict=True):
                if event.expires_at_ms:
                    self._expiries.note(event.expires_at_ms, entry, self.count)
        self.enqueued_total += len(entries)
        self._order.prepend(entries)
        self._restart()

    def take_all(self) -> list[Entry]:
        """Empty the queue as if nothing had come; returns what it held, by ascending id."""
        self.enqueued_total -= self.count
        self.count = self.size = self.paged = self.acquired = 0
        self._expiries.clear()
        return self._order.take_all()

    def dismantle(self) -> Task:
        """Let go of the messages of a queue that is deleted, some at each step."""
        yield from self._expiries.dismantle()
        yield from self._order.dismantle()

    def renumber(self, new_ids: Mapping[int, int]) -> None:
        """Give every message another id, in the same order. Who holds one goes on holding it."""
        for entry in self._order:
            entry.acquired_before |= entry.id <= self.redelivered_below
        self.redelivered_below = 0
        self._order.renumber(new_ids)
        self._expiries.renumbered()
        self._restart()

    def _restart(self) -> None:
        for position in self._positions:
            position.restart()

    def remove(self, entry: Entry) -> None:
        """Let a message go for good."""
        self.count -= 1
        event = entry.event
        if type(event) is Enqueued:
            self.size -= len(event.payload)
        else:
            self._discount_paged(entry.outline())
        self.dequeued_total += 1
        if entry.holder is not None:
            self.acquired -= 1
        self._order.remove(entry)

    def hold(self, entry: Entry, holder: Holder) -> None:
        """`holder` has it; nobody else gets it."""
        if entry.holder is None:
            self.acquired += 1
        entry.holder = holder

    def give_back(self, entry: Entry, failed: bool) -> None:
        """It is available again, in its old place; `failed` counts one failed delivery."""
        if entry.holder is not None:
            self.acquired -= 1
            entry.acquired_before |= entry.holder is not _DISPLACED
        entry.holder = None
        entry.delivery_count += failed
        for position in self._positions:
            position.rewind(entry)
        expires_at_ms = entry.outline().expires_at_ms
        if 0 < expires_at_ms <= self._expiries.popped_ms:
            self._expiries.note(expires_at_ms, entry, self.count)

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

    def entries(self) -> Iterable[Entry]:
        """All messages, in the order in which they would be given out."""
        return self._order

    def is_superseded(self, entry: Entry) -> bool:
        """Whether a newer value came while `entry` was away."""
        return self._order.is_superseded(entry)

    # --- bodies on disk

    @property
    def resident(self) -> int:
        """Bytes of payload that are in memory."""
        return self.size - self.paged

    def exchange(self, entry: Entry, event: Outline) -> None:
        """Let `entry` have another form of the same message: paged out, or back, or with its record elsewhere."""
        before = entry.outline()
        self.paged += (type(event) is PagedMessage) * size_of(event) - (type(before) is PagedMessage) * size_of(before)
        entry.event = event

    def add_paged(self, entry: Entry, event: PagedMessage) -> Entry | None:
        """`add` for what a restart leaves on disk."""
        self.count += 1
        self.size += event.size
        self.paged += event.size
        self.enqueued_total += 1
        if event.expires_at_ms:
            self._expiries.note(event.expires_at_ms, entry, self.count)
        return self._order.append(entry)

    def _discount_paged(self, event: Outline) -> None:
        self.size -= size_of(event)
        self.paged -= size_of(event)

    def walk(self) -> Iterator[list[Entry]]:
        """All messages, in no certain order, some at a time; between two steps anything may change."""
        return self._order.walk()

    def positions(self) -> list[OrderCursor]:
        """Where consumers and browsers stand; where consumers would begin, if there are none."""
        found = {consumer.position: None for consumer in self.consumers if consumer.position is not None}
        return list(found) or [self._head]

    # --- room

    def displaced_by(self, size: int, priority: int, coming_count: int = 0, coming_size: int = 0) -> list[Entry] | None:
        """What a ring drops so that a message of `size` bytes fits, besides what is already planned to come (net).

        None: the message itself is what has to go, because all that it could take the place of has a higher priority.
        No more than DISPLACED_LENGTH: then the ring is over its limits until the rest has gone, see `excess`. Raises
        QueueFull where it does not fit.
        """
        limits = self.arguments
        if limits.policy_type is FullPolicy.SELF_DESTRUCT and self.count + coming_count == 0:
            return []  # its consumer has read all: one large message is no sign that it does not
        dropped: list[Entry] = []
        over_count = self.count + coming_count + 1 - limits.max_count if limits.max_count else 0
        over_size = self.size + coming_size + size - limits.max_size if limits.max_size else 0
        most = max(DISPLACED_LENGTH + min(coming_count, 0), 1)  # messages of a transaction come together
        while (over_count > 0 or over_size > 0) and len(dropped) < most:
            entry = self._next_displaced(size)
            if entry is None:
                self.undo_displacing(dropped)
                raise QueueFull(self._full_text(size))
            if self._order.level_of(entry.outline().priority) > self._order.level_of(priority):
                self.undo_displacing(dropped)
                return None
            self.hold(entry, _DISPLACED)
            dropped.append(entry)
            over_count -= 1
            over_size -= size_of(entry.outline())
        return dropped

    def excess(self) -> list[Entry]:
        """Up to DISPLACED_LENGTH messages that a ring has to drop to keep its limits; nobody gets them any more."""
        limits = self.arguments
        over_count = self.count - limits.max_count if limits.max_count else 0
        over_size = self.size - limits.max_size if limits.max_size else 0
        dropped: list[Entry] = []
        while (over_count > 0 or over_size > 0) and len(dropped) < DISPLACED_LENGTH:
            entry = self._next_displaced(0)
            if entry is None:
                break
            self.hold(entry, _DISPLACED)
            dropped.append(entry)
            over_count -= 1
            over_size -= size_of(entry.outline())
        return dropped

    def displace_value(self, key: str) -> Entry | None:
        """The available older value of `key`, whose room is free for the newer one."""
        older = self._order.latest(key)
        if older is None or older.holder is not None:
            return None
        self.hold(older, _DISPLACED)
        return older

    def _next_displaced(self, size: int) -> Entry | None:
        limits = self.arguments
        if limits.policy_type is not FullPolicy.RING or self._displacing is None or 0 < limits.max_size < size:
            return None
        return self._displacing.peek()

    def undo_displacing(self, dropped: Iterable[Entry]) -> None:
        """Nothing came after all."""
        for entry in dropped:
            self.give_back(entry, failed=False)

    def _full_text(self, size: int) -> str:
        limits = self.arguments
        return (
            f"queue {self.name} is full: it holds {self.count} messages of {self.size} bytes, a message of {size} bytes"
            f" goes over its limit (qpid.max_count={limits.max_count}, qpid.max_size={limits.max_size})"
        )

    # --- consumers

    def subscribe(self, consumer: Consumer) -> None:
        """Serve `consumer` from now on, as soon as it has credit."""
        if consumer.browsing:
            after = consumer.after
            consumer.position = self._order.position() if after is None else self._order.position_after(after)
        elif consumer.accepts is None:
            consumer.position = self._head
        else:
            consumer.position = self._order.position(sharing=True)
            self._positions.append(consumer.position)
        self.consumers.append(consumer)
        self.unused_since_ms = None

    def unsubscribe(self, consumer: Consumer, now_ms: int) -> None:
        """Serve it no more. What it holds is for the caller to give back."""
        self.consumers.remove(consumer)
        self._positions = [p for p in self._positions if p is not consumer.position or p is self._head]
        if not any(not other.browsing for other in self.consumers):
            self.exclusive_owner = None
        if not self.consumers:
            self.unused_since_ms = max(now_ms, self.reserved_until_ms)

    def reserve(self, until_ms: int) -> None:
        """Its users were connected to another broker: give them until then to come back."""
        self.reserved_until_ms = until_ms
        self.unused_since_ms = until_ms if self.used and not self.consumers else None

    def hand_out(
        self, now_ms: int, limit: int, *, only_browsers: bool = False, budget: Budget = UNLIMITED
    ) -> tuple[list[tuple[Consumer, list[Entry]]], list[Entry]]:
        """Up to `limit` messages per consumer, in turn; with them, what was found to have expired, held by nobody.

        Stops when `budget` is spent, with at least one message looked at for one consumer: see `interrupted`.
        `only_browsers`: nothing may be written, so nobody takes anything and nothing expires.
        """
        expired: list[Entry] = []
        self.interrupted = self.awaits_bodies = self.awaits_commit = False
        # On a replica there is nothing else than what is committed.
        readable_lsn = _NO_LIMIT if only_browsers else 0
        ready = [consumer for consumer in self.consumers if consumer.credit > 0 and consumer.window_bytes > 0]
        if only_browsers:
            now_ms, ready = 0, [consumer for consumer in ready if consumer.browsing]
        if len(ready) == 1:
            given = {ready[0]: self._serve(ready[0], limit, now_ms, expired, readable_lsn, budget)}
        else:
            given = self._serve_in_turn(ready, limit, now_ms, expired, readable_lsn, budget)
        return [(consumer, entries) for consumer, entries in given.items() if entries], expired

    def _serve_in_turn(
        self, ready: list[Consumer], limit: int, now_ms: int, expired: list[Entry], readable_lsn: int, budget: Budget
    ) -> dict[Consumer, list[Entry]]:
        given: dict[Consumer, list[Entry]] = {}
        if ready:
            self._turn = (self._turn + 1) % len(ready)
            ready = ready[self._turn :] + ready[: self._turn]
        for _ in range(limit):
            still_ready = []
            for consumer in ready:
                entries = self._serve(consumer, 1, now_ms, expired, readable_lsn, budget)
                if entries:
                    given.setdefault(consumer, []).extend(entries)
                    still_ready.append(consumer)
                elif consumer.position is self._head and self._head.peek() is None:
                    # Nothing available lies behind the head: a thousand need not each find out that there is no more.
                    return given
                if budget.is_spent:
                    self.interrupted = True
                    return given
            ready = still_ready
            if not ready:
                break
        return given

    def _serve(
        self, consumer: Consumer, limit: int, now_ms: int, expired: list[Entry], readable_lsn: int, budget: Budget
    ) -> list[Entry]:
        position, accepts, browsing = consumer.position, consumer.accepts, consumer.browsing
        if position is None:
            raise LookupError(f"a consumer that was never subscribed to {self.name}")
        # Who takes a message has it until the end, whatever becomes of it; who only looks is told what will stay true.
        last = (readable_lsn or self.log.whole_lsn()) if browsing else self._last_in_order()
        wanted = min(limit, consumer.credit)
        window = consumer.window_bytes
        entries: list[Entry] = []
        passed = 0
        while len(entries) < wanted and window > 0 and (entry := position.peek()) is not None:
            event = entry.event
            if entry.id > last:
                self.awaits_commit |= browsing
                break
            if type(event) is not Enqueued:
                if not 0 < entry.outline().expires_at_ms <= now_ms:
                    self.awaits_bodies = True
                    break
                position.skip()
                self._expire(entry, expired)
                continue
            position.skip()
            if event.expires_at_ms and event.expires_at_ms <= now_ms:
                self._expire(entry, expired)
            elif accepts is None or accepts(event):
                if not browsing:
                    entry.holder = consumer
                    self.acquired += 1
                entries.append(entry)
                window -= len(event.payload)
                if accepts is None or not budget.is_spent:
                    continue
                self.interrupted = True
                break
            passed += 1
            if passed >= PASSED_LENGTH or budget.is_spent:
                self.interrupted = True
                break
        consumer.credit -= len(entries)
        consumer.window_bytes = window
        return entries

    def _last_in_order(self) -> int:
        """The id up to which consumers are served without passing what is coming back."""
        if not self.returning:
            return _NO_LIMIT
        if self.arguments.priorities > 1:
            return 0  # the oldest may be of any priority
        return min(each.entries[-1].id for each in self.returning)

    def _expire(self, entry: Entry, expired: list[Entry]) -> None:
        """Its time is over. Whoever has it, may still accept it."""
        if entry.holder is None:
            self.hold(entry, _EXPIRED)
            expired.append(entry)

    # --- time

    def next_expiry_ms(self) -> int | None:
        """When the next message may expire; None when none will."""
        return self._expiries.next_ms

    def expired(self, now_ms: int, most: int = 1 << 62) -> list[Entry]:
        """What has expired and is nobody's: the caller dequeues it. What somebody has is noted when it returns.

        Of `most` notes: there may be more, as `next_expiry_ms` tells.
        """
        # Once each: what came when its time was over already, and was held and given back since, is noted twice.
        found = [entry for entry in dict.fromkeys(self._expiries.pop(now_ms, most)) if entry.holder is None]
        for entry in found:
            self.hold(entry, _EXPIRED)
        return found

    def is_due_for_deletion(self, now_ms: int) -> bool:
        """Whether it deletes itself, and nobody has used it for as long as it was told to wait."""
        if not self.arguments.auto_delete or self.unused_since_ms is None or self.consumers:
            return False
        return now_ms - self.unused_since_ms >= self.arguments.auto_delete_delay_s * 1000

    def check_invariants(self) -> None:
        """Raise AssertionError where the counters and the messages disagree; called after each step in tests."""
        entries = list(self._order)
        size = sum(size_of(entry.outline()) for entry in entries)
        paged = sum(size_of(entry.outline()) for entry in entries if type(entry.event) is PagedMessage)
        found = (len(entries), size, paged, sum(entry.holder is not None for entry in entries))
        believed = (self.count, self.size, self.paged, self.acquired)
        if found != believed or len(self._order) != self.count:
            raise AssertionError(f"{self.name}: counted {found}, believed {believed}")


_DISPLACED = Holder()
_EXPIRED = Holder()
