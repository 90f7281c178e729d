"""Who gets which message of a queue, and when: consumers with credit, in turn."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple

from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.handout_marks import QueueMark
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.limits import QueueLimits
from qpid_ha_broker.model.queues.orders import OrderCursor
from qpid_ha_broker.model.queues.paged import BodyRef
from qpid_ha_broker.model.queues.queued_messages import QueuedMessages
from qpid_ha_broker.model.queues.sequence import EXPIRED, Entry, Holder

PASSED_LENGTH: Final = 1000
"""Messages that a consumer may find expired or unwanted at a time, however quick that is."""

Accepts = Callable[[bytes], bool]
"""Whether a consumer wants a message, by its body."""


class SessionOwner(NamedTuple):
    """A link of a client's session."""

    id: int
    name: str
    """The session's UUID."""
    link: str


class Consumer(Holder):
    """One who takes messages, or only looks at them (`browsing`), as far as its credit and its window go.

    `credit` (messages) and `window_bytes` belong to the driver, which raises them; handing out lowers them. A
    driver's link is a consumer: what is handed out to it, it sends.
    """

    session_owner: SessionOwner | None = None
    """For whom the log holds what is handed out to it; None: it goes back when the consumer does."""

    __slots__ = ("accepts", "after", "beyond", "browsing", "credit", "position", "window_bytes")

    def __init__(self, *, browsing: bool = False, accepts: Accepts | None = None, after: int | None = None) -> None:
        self.browsing = browsing
        self.after = after
        """Of a browser: it reads by ascending ids from this one on, also what others hold."""
        self.accepts = accepts
        self.credit = 0
        self.window_bytes = 0
        self.position: OrderCursor | None = None
        self.beyond: Entry | None = None
        """What it was given last of a ring in which all room is held; as long as that is held it gets no more."""

    @property
    def must_answer(self) -> bool:
        """What it was given beyond the limits of a ring is still held: by it, or by a transaction or a session."""
        entry = self.beyond
        return entry is not None and entry.body is not None and not entry.is_free

    def deliver(self, entries: list[Entry]) -> None:
        """Send messages that were handed out to it: that it has them is committed. Raises TypeError without a link."""
        raise TypeError(f"{self} is no link: nothing can be sent to it")


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


_NO_LIMIT: Final = 1 << 64
_entry_id = attrgetter("id")


class Dispatcher:
    """The promise: no message goes to two consumers, and none to one whose credit or window is used up."""

    __slots__ = (
        "_by_priority",
        "_gate",
        "_head",
        "_limits",
        "_messages",
        "_shown_lsn",
        "_takes_committed",
        "_turn",
        "awaits_answers",
        "awaits_bodies",
        "awaits_commit",
        "awaits_mark",
        "consumers",
        "interrupted",
        "returning",
    )

    def __init__(self, messages: QueuedMessages, limits: QueueLimits, *, by_priority: bool) -> None:
        """`by_priority`: what came later may be given out first."""
        self._messages = messages
        self._limits = limits
        self._by_priority = by_priority
        self._head = messages.open_cursor()
        """Where all consumers stand that take whatever comes."""
        self._turn = 0
        self._takes_committed = False
        """In this `hand_out`, those who take are given what is committed, as those who look are."""
        self._shown_lsn = 0
        """In this `hand_out`, up to where those who look are shown messages."""
        self._gate: QueueMark | None = None
        """In `hand_out`: by that takers get messages; None: they get any."""
        self.consumers: list[Consumer] = []
        """Those who only look, too."""
        self.returning: list[Returning] = []
        """What comes back in portions: consumers get nothing from behind it before."""
        self.interrupted = False
        """The last `hand_out` stopped before a consumer had seen everything."""
        self.awaits_answers = False
        """The last `hand_out` found a ring of which all is held: wake the queue when something of that has gone."""
        self.awaits_bodies = False
        """The last `hand_out` stopped before a message that is paged out: wake the queue when it is back."""
        self.awaits_commit = False
        """The last `hand_out` kept from somebody what is not committed: wake the queue when that has changed."""
        self.awaits_mark = 0
        """The first message that the last `hand_out` kept from a taker because no mark covers it; 0: none."""

    def subscribe(self, consumer: Consumer) -> None:
        """Serve `consumer` from now on, as soon as it has credit."""
        if consumer.browsing:
            consumer.position = self._messages.browsing_cursor(consumer.after)
        else:
            consumer.position = self._head if consumer.accepts is None else self._messages.open_cursor()
        self.consumers.append(consumer)

    def unsubscribe(self, consumer: Consumer) -> None:
        """Serve it no more. What it holds is for the caller to give back."""
        self.consumers.remove(consumer)
        if consumer.position is not None and consumer.position is not self._head:
            self._messages.close_cursor(consumer.position)

    @property
    def has_takers(self) -> bool:
        """Whether somebody does more than look."""
        return any(not consumer.browsing for consumer in self.consumers)

    @property
    def has_takers_with_credit(self) -> bool:
        """Whether somebody would get the next message that comes."""
        return any(consumer.credit > 0 and not consumer.browsing for consumer in self.consumers)

    def newest_of(self, entries: list[Entry]) -> int:
        """The largest id of what one consumer was handed out."""
        return max(map(_entry_id, entries)) if self._by_priority else entries[-1].id

    def positions(self) -> list[OrderCursor]:
        """Where consumers and browsers stand; where consumers would begin, if there are none."""
        positions = {consumer.position: None for consumer in self.consumers if consumer.position is not None}
        return list(positions) or [self._head]

    def hand_out(
        self,
        now_ms: int,
        limit: int,
        shown_lsn: int,
        *,
        only_browsers: bool = False,
        proof: LeadProof = LeadProof.ALONE,
        mark: QueueMark | None = None,
        budget: Budget = UNLIMITED,
    ) -> tuple[list[tuple[Consumer, list[Entry]]], list[Entry]]:
        """Up to `limit` messages per consumer, in turn; with them, what was found to have expired, held by nobody.

        Who only looks sees messages up to `shown_lsn`, which are committed. It stops when `budget` is spent, with at
        least one message looked at for one consumer: see `interrupted`. `only_browsers`: nothing is decided here, so
        nobody takes anything and nothing expires. `proof`: what those who take may be given. `mark`: who
        takes something gets what this covers; None: anything.
        """
        self._gate = mark
        expired: list[Entry] = []
        self.interrupted = self.awaits_answers = self.awaits_bodies = self.awaits_commit = False
        self.awaits_mark = 0
        ready = [consumer for consumer in self.consumers if consumer.credit > 0 and consumer.window_bytes > 0]
        self._shown_lsn = shown_lsn
        if only_browsers:
            now_ms = 0
        if only_browsers or proof is LeadProof.MISSING:
            ready = [consumer for consumer in ready if consumer.browsing]
        self._takes_committed = proof is LeadProof.PROVEN
        if len(ready) == 1:
            given = {ready[0]: self._serve(ready[0], limit, now_ms, expired, budget)}
        else:
            given = self._serve_in_turn(ready, limit, now_ms, expired, budget)
        return [(consumer, entries) for consumer, entries in given.items() if entries], expired

    def _serve_in_turn(
        self, ready: list[Consumer], limit: int, now_ms: int, expired: list[Entry], budget: Budget
    ) -> dict[Consumer, list[Entry]]:
        given: dict[Consumer, list[Entry]] = {}
        if ready:
            self._turn = (self._turn + 1) % len(ready)
            ready = ready[self._turn :] + ready[: self._turn]
        for _ in range(limit):
            still_ready = []
            for consumer in ready:
                entries = self._serve(consumer, 1, now_ms, expired, budget)
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

    def _serve(self, consumer: Consumer, limit: int, now_ms: int, expired: list[Entry], budget: Budget) -> list[Entry]:
        position, accepts, browsing = consumer.position, consumer.accepts, consumer.browsing
        if position is None:
            raise LookupError("a consumer that was never subscribed")
        # What dies uncommitted comes again as a new message. What a session is given waits for a later commit anyway.
        needs_commit = browsing or (self._takes_committed and consumer.session_owner is None)
        last = _NO_LIMIT if browsing else self._last_in_order()
        if needs_commit:
            last = min(last, self._shown_lsn)
        last_without_gate, gate = last, None if browsing else self._gate
        if gate is not None:
            last = min(last, gate.settled)
        wanted = min(limit, consumer.credit)
        is_held_up = not browsing and self._limits.is_bounded and self._limits.is_held_up
        if is_held_up:
            self.awaits_answers = True
            wanted = 0 if consumer.must_answer else min(wanted, 1)
        window = consumer.window_bytes
        entries: list[Entry] = []
        passed = 0
        while len(entries) < wanted and window > 0 and (entry := position.peek()) is not None:
            is_covered = True
            if entry.id > last:
                if gate is None or entry.id > last_without_gate:
                    self.awaits_commit |= needs_commit
                    break
                is_covered = gate.covers(entry.id)
            if 0 < entry.header.expires_at_ms <= now_ms:
                position.skip()
                self._expire(entry, expired)
            else:
                body = entry.body
                if body is None or type(body) is BodyRef:
                    self.awaits_bodies = True
                    break
                is_accepted = accepts is None or accepts(body)
                if is_accepted and not is_covered:
                    self.awaits_mark = entry.id
                    break
                position.skip()
                if is_accepted:
                    if not browsing:
                        entry.holder = consumer
                    entries.append(entry)
                    window -= len(body)
                    if accepts is None or not budget.is_spent:
                        continue
                    self.interrupted = True
                    break
            passed += 1
            if passed >= PASSED_LENGTH or budget.is_spent:
                self.interrupted = True
                break
        if is_held_up and entries:
            consumer.beyond = entries[0]
        if not browsing:
            self._messages.acquired += len(entries)
        consumer.credit -= len(entries)
        consumer.window_bytes = window
        return entries

    def _last_in_order(self) -> int:
        """The id up to which consumers are served without passing what is coming back."""
        if not self.returning:
            return _NO_LIMIT
        if self._by_priority:
            return 0  # the oldest may be of any priority
        return min(returning.entries[-1].id for returning in self.returning)

    def _expire(self, entry: Entry, expired: list[Entry]) -> None:
        """Its time is over. Whoever has it, may still accept it."""
        if entry.is_free:
            self._messages.hold(entry, EXPIRED)
            expired.append(entry)
