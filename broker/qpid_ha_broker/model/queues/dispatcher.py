"""Who gets which message of a queue, and when: consumers with credit, in turn.

| a policy | who is asked in turn | what one of them finds |
| --- | --- | --- |
| none | all that have credit | the next message that nobody has |
| a single active consumer | the one that was attached first of those that are there | the same |
| priorities of consumers | the highest that have credit; lower ones when these are given nothing more | the same |
| groups | all | the next that is of no group of others: see `message_groups` |

What a consumer has declined it never finds again.

How many are asked in turn, each for one message:

| the last time | next |
| --- | --- |
| there was time for all that is there | all that have credit |
| there was not | as many as EACH messages for each took that time, then as many again, as long as there is time |

A message alone costs its consumer a write, as a hundred do. If a hundred consumers had a few each, again and again, the
writes would cost more than the messages.

Where there is no policy, and there was time for all, none of many consumers is looked at before it is its turn: a
message that comes alone costs the same with ten thousand of them as with two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.handout_marks import QueueMark
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.limits import QueueLimits
from qpid_ha_broker.model.queues.message_groups import GroupPosition, GroupReader, MessageGroups
from qpid_ha_broker.model.queues.orders import OrderCursor
from qpid_ha_broker.model.queues.paged import BodyRef
from qpid_ha_broker.model.queues.queued_messages import QueuedMessages
from qpid_ha_broker.model.queues.sequence import EXPIRED, Entry, Holder

PASSED_LENGTH: Final = 1000
"""Messages that a consumer may find expired or unwanted at a time, however quick that is."""
EACH: Final = 32
"""Messages for each consumer that is asked, where there is no time for all."""
MANY: Final = 32
"""From so many consumers on they are not all looked at for a message alone; of fewer it is less work to do so."""
FEWEST: Final = 8
"""So many consumers are asked in turn, however few messages there was time for: of groups each is to have its share."""

DECLINED_MOST: Final = 1000
"""Messages of a queue that cannot be delivered to one consumer."""

Accepts = Callable[[bytes], bool]
"""Whether a consumer wants a message, by its body."""


class ConsumerStanding(NamedTuple):
    """Of a consumer among those of its queue."""

    priority: int = 0
    """Whose is higher is given messages first."""
    is_exclusive: bool = False
    """Nobody else may take messages of the queue while it does."""


HIGHEST: Final = 1 << 31
"""Above all priorities."""
NO_STANDING: Final = ConsumerStanding()


class Consumer(Holder):
    """One who takes messages, or only looks at them (`browsing`), as far as its credit and its window go.

    `credit` (messages) and `window_bytes` belong to the driver, which raises them; handing out lowers them. A
    driver's link is a consumer: what is handed out to it, it sends.
    """

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


class AskingOrder:
    """The promise: where there is no time for all, nobody is asked first again before all others were."""

    __slots__ = ("_at_a_time", "_given", "_passed_over")

    def __init__(self) -> None:
        self._given = 1
        """How many messages were given to one of several who could take them: behind that one the next goes on."""
        self._at_a_time = 0
        """How many are asked in turn; 0: all."""
        self._passed_over: dict[Consumer, None] = {}
        """Who had credit the last time, and there was no time; whoever has waited longest is the first."""

    def parts(self, ready: list[Consumer]) -> list[list[Consumer]]:
        """Those that have credit: who is in one part is asked in turn, and one part after the other."""
        if not ready:
            return []
        first = self._given % len(ready)
        ready = ready[first:] + ready[:first]
        count = self._at_a_time
        if not count or len(ready) <= count:
            return [ready]
        passed_over, present = self._passed_over, set(ready)
        ready = [
            *(consumer for consumer in passed_over if consumer in present),
            *(consumer for consumer in ready if consumer not in passed_over),
        ]
        return [ready[at : at + count] for at in range(0, len(ready), count)]

    @property
    def asks_all(self) -> bool:
        """All that have credit are asked in turn."""
        return not self._at_a_time

    def asked_all(self) -> None:
        """There was time for all."""
        self._at_a_time = 0
        self._passed_over.clear()

    def stopped(self, parts: list[list[Consumer]], at: int, count: int) -> None:
        """Time was over in the part `at`, and `count` messages given."""
        self._at_a_time = max(count // EACH, FEWEST)
        self._passed_over = dict.fromkeys(chain.from_iterable(parts[max(at, 1) :]))

    def gave(self, count: int) -> None:
        """So many messages were given."""
        self._given += count

    def forget(self, consumer: Consumer) -> None:
        """It is asked no more."""
        self._passed_over.pop(consumer, None)


_NO_LIMIT: Final = 1 << 64
_entry_id = attrgetter("id")


class Dispatcher:
    """The promise: no message goes to two consumers, and none to one whose credit or window is used up, nor, where
    groups are kept together, past one of its group that another consumer has."""

    __slots__ = (
        "_apart",
        "_by_priority",
        "_declined",
        "_gate",
        "_head",
        "_limits",
        "_messages",
        "_next",
        "_order",
        "_read_group",
        "_shown_lsn",
        "_standings",
        "_takes_committed",
        "awaits_answers",
        "awaits_bodies",
        "awaits_commit",
        "awaits_mark",
        "consumers",
        "groups",
        "has_single_taker",
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
        self._apart: dict[Consumer, None] = {}
        """Who may find something where a consumer that stands there finds nothing: those who stand elsewhere, or have a
        session."""
        self._next = 0
        """Where in `consumers` the one is who is asked first, if not all are looked at before."""
        self._read_group: GroupReader | None = None
        """Where groups are kept together."""
        self.groups: MessageGroups | None = None
        """There while somebody takes, where groups are kept together."""
        self.has_single_taker = False
        """Only the first of those who take is given anything."""
        self._declined: dict[Consumer, dict[Entry, None]] = {}
        """What cannot be delivered to which consumer."""
        self._standings: dict[Consumer, ConsumerStanding] = {}
        """Of those that have one."""
        self._order = AskingOrder()
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

    def subscribe(self, consumer: Consumer, standing: ConsumerStanding = NO_STANDING) -> None:
        """Serve `consumer` from now on, as soon as it has credit."""
        if consumer.browsing:
            self._place(consumer, self._messages.browsing_cursor(consumer.after))
        else:
            self._place(consumer, self._position_of(consumer))
        self.consumers.append(consumer)
        if standing != NO_STANDING:
            self._standings[consumer] = standing

    def unsubscribe(self, consumer: Consumer) -> None:
        """Serve it no more. What it holds is for the caller to give back."""
        at = self.consumers.index(consumer)
        del self.consumers[at]
        self._next -= at < self._next
        self._apart.pop(consumer, None)
        self._leave_position(consumer)
        self._declined.pop(consumer, None)
        self._standings.pop(consumer, None)
        self._order.forget(consumer)

    def keep_groups(self, read: GroupReader | None) -> None:
        """Keep groups together from now on, as `read` tells them; None: do not."""
        if (read is None) is (self._read_group is None):
            return
        takers = [consumer for consumer in self.consumers if not consumer.browsing]
        for consumer in takers:
            self._leave_position(consumer)
        self._read_group = read
        for consumer in takers:
            self._place(consumer, self._position_of(consumer))

    def decline(self, consumer: Consumer, entry: Entry) -> bool:
        """`entry` is back, and `consumer` never gets it again. False: it has declined too many that are here still."""
        if entry.body is None:
            return True
        declined = self._declined.setdefault(consumer, {})
        if len(declined) >= DECLINED_MOST:
            declined = self._declined[consumer] = {other: None for other in declined if other.body is not None}
            if len(declined) >= DECLINED_MOST:
                return False
        declined[entry] = None
        if self.groups is not None:
            self._place(consumer, self.groups.decline(entry, consumer))
        elif consumer.position is self._head:
            self._place(consumer, self._messages.open_cursor())
        return True

    def decline_all(self, consumer: Consumer, ids: Sequence[int]) -> tuple[int, ...]:
        """The same of what `consumer` has declined before it was subscribed here: those of `ids` that are there."""
        entries = self._messages.find_all(ids) if ids else []
        return tuple([entry.id for entry in entries if self.decline(consumer, entry)])

    def _place(self, consumer: Consumer, position: OrderCursor) -> None:
        """It stands there from now on."""
        consumer.position = position
        if position is not self._head or consumer.session_owner is not None:
            self._apart[consumer] = None
        else:
            self._apart.pop(consumer, None)

    def _position_of(self, consumer: Consumer) -> OrderCursor:
        is_choosy = consumer.accepts is not None or consumer in self._declined
        if self._read_group is not None:
            if self.groups is None:
                self.groups = MessageGroups(self._messages, self._read_group, by_priority=self._by_priority)
            return self.groups.join(consumer, choosy=is_choosy)
        return self._messages.open_cursor() if is_choosy else self._head

    def _leave_position(self, consumer: Consumer) -> None:
        position = consumer.position
        if consumer.browsing or position is None:
            return
        if self.groups is not None:
            if not self.groups.leave(consumer):
                self._messages.watch(None)
                self.groups = None
        elif position is not self._head:
            self._messages.close_cursor(position)

    @property
    def active(self) -> Consumer | None:
        """Who alone is given something, where there is but one that is."""
        if not self.has_single_taker:
            return None
        return next((consumer for consumer in self.consumers if not consumer.browsing), None)

    @property
    def exclusive(self) -> Consumer | None:
        """Who alone may take messages."""
        return next((consumer for consumer, standing in self._standings.items() if standing.is_exclusive), None)

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
        is_ascending = not (self._by_priority or self.groups is not None)
        return entries[-1].id if is_ascending else max(map(_entry_id, entries))

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
        self._shown_lsn = shown_lsn
        self._takes_committed = proof is LeadProof.PROVEN
        looks_only = only_browsers or proof is LeadProof.MISSING
        if only_browsers:
            now_ms = 0
        has_policy = looks_only or self.has_single_taker or self._standings or self.groups is not None
        if len(self.consumers) >= MANY and not has_policy and self._order.asks_all:
            given = self._serve_as_asked(limit, now_ms, expired, budget)
        else:
            given = self._serve_ready(self._ready(looks_only=looks_only), limit, now_ms, expired, budget)
        if self.groups is not None:
            self._note_stopped(self.groups)
        return [(consumer, entries) for consumer, entries in given.items() if entries], expired

    def _ready(self, *, looks_only: bool) -> list[Consumer]:
        """Those that have credit, of whom some may be given something. `looks_only`: nobody takes anything."""
        ready = [consumer for consumer in self.consumers if consumer.credit > 0 and consumer.window_bytes > 0]
        if looks_only:
            ready = [consumer for consumer in ready if consumer.browsing]
        if self.has_single_taker:
            active = self.active
            ready = [consumer for consumer in ready if consumer.browsing or consumer is active]
        return ready

    def _serve_ready(
        self, ready: list[Consumer], limit: int, now_ms: int, expired: list[Entry], budget: Budget
    ) -> dict[Consumer, list[Entry]]:
        if len(ready) == 1:
            return {ready[0]: self._serve(ready[0], limit, now_ms, expired, budget)}
        serve = self._serve_by_rank if self._standings else self._serve_in_turn
        given = serve(ready, limit, now_ms, expired, budget)
        self._order.gave(sum(map(len, given.values())))
        return given

    def _serve_as_asked(
        self, limit: int, now_ms: int, expired: list[Entry], budget: Budget
    ) -> dict[Consumer, list[Entry]]:
        """In turn, all that have credit, of whom none is looked at before it is its turn.

        1. A message for each, from the one on whose turn it is, until there is none for those who take whatever comes.
        2. Then for those who may find some elsewhere; or for all that got one, if there was one for each.
        """
        consumers, given, first = self.consumers, dict[Consumer, list[Entry]](), self._next
        more: Iterable[Consumer] = given
        for at in chain(range(first, len(consumers)), range(first)):
            consumer = consumers[at]
            if consumer.credit <= 0 or consumer.window_bytes <= 0:
                continue
            entries = self._serve(consumer, 1, now_ms, expired, budget)
            if entries:
                given[consumer] = entries
                self._next = at + 1
            elif (others := self._others(consumer)) is not None:
                more = others
                break
            if budget.is_spent:
                break
        ready = [
            consumer
            for consumer in more
            if consumer.credit > 0 and consumer.window_bytes > 0 and len(given.get(consumer, ())) < limit
        ]
        if ready and not budget.is_spent:
            self._serve_part(ready, limit, now_ms, expired, budget, given)
        count = sum(map(len, given.values()))
        self._order.gave(count)
        if budget.is_spent:
            self.interrupted = True
            self._order.stopped([], 0, count)
        return given

    def _others(self, consumer: Consumer) -> Iterable[Consumer] | None:
        """Who may find something, though `consumer` did not; None: anybody.

        Where nothing is there for all, a thousand need not each find that out.
        """
        if consumer.position is not self._head:
            return None
        entry = self._head.peek()
        if entry is None:
            return [other for other in self._apart if other.after is not None]  # who reads also what is held
        is_kept_back = self._takes_committed and entry.id > self._shown_lsn and consumer.session_owner is None
        return self._apart if is_kept_back or type(entry.body) is not bytes else None

    def _serve_by_rank(
        self, ready: list[Consumer], limit: int, now_ms: int, expired: list[Entry], budget: Budget
    ) -> dict[Consumer, list[Entry]]:
        """In turn, those of the highest priority first; others when these have credit for nothing that is there."""
        given: dict[Consumer, list[Entry]] = {}
        by_rank: dict[int, list[Consumer]] = {}
        for consumer in ready:
            rank = HIGHEST if consumer.browsing else self._standings.get(consumer, NO_STANDING).priority
            by_rank.setdefault(rank, []).append(consumer)
        for _, peers in sorted(by_rank.items(), reverse=True):
            served = self._serve_in_turn(peers, limit, now_ms, expired, budget)
            given |= served
            may_want_more = [taker for taker, got in served.items() if len(got) == limit and not taker.browsing]
            if self.interrupted or may_want_more:
                self.interrupted = True
                break
        return given

    def _note_stopped(self, groups: MessageGroups) -> None:
        """Why consumers have stopped that would find more."""
        if groups.is_interrupted:
            groups.is_interrupted, self.interrupted = False, True
        if groups.is_full:
            groups.is_full = False
            self.interrupted |= groups.has_room
            self.awaits_answers |= not groups.has_room
        self.awaits_answers |= bool(groups.blocked)

    def _serve_in_turn(
        self, ready: list[Consumer], limit: int, now_ms: int, expired: list[Entry], budget: Budget
    ) -> dict[Consumer, list[Entry]]:
        given: dict[Consumer, list[Entry]] = {}
        parts = self._order.parts(ready)
        for at, part in enumerate(parts):
            self._serve_part(part, limit, now_ms, expired, budget, given)
            if budget.is_spent:
                self.interrupted = True
                self._order.stopped(parts, at, sum(map(len, given.values())))
                return given
        self._order.asked_all()
        return given

    def _serve_part(
        self,
        ready: list[Consumer],
        limit: int,
        now_ms: int,
        expired: list[Entry],
        budget: Budget,
        given: dict[Consumer, list[Entry]],
    ) -> None:
        groups = self.groups
        finders: set[Consumer] | None = None
        if groups is not None and groups.is_exhausted:
            finders = groups.finders(ready)
        elif groups is not None:
            ready = sorted(ready, key=_groups_owned)  # a new group stays with whom it comes to
        for _ in range(limit):
            still_ready = []
            for consumer in ready:
                if finders is not None and consumer not in finders:
                    continue
                count = 1
                if groups is not None and isinstance(consumer.position, GroupPosition):
                    count = min(consumer.position.in_a_row, limit - len(given.get(consumer, ())))
                entries = self._serve(consumer, count, now_ms, expired, budget)
                if entries:
                    got = given.setdefault(consumer, [])
                    got += entries
                    if len(got) < limit and consumer.credit > 0:
                        still_ready.append(consumer)
                elif finders is None:
                    finders = self._finders(consumer, ready)
                if budget.is_spent:
                    return
            ready = still_ready
            if not ready:
                return

    def _finders(self, consumer: Consumer, ready: list[Consumer]) -> set[Consumer] | None:
        """Those of `ready` that may find something still, though `consumer` did not; None: everybody."""
        others = self._others(consumer)
        if others is not None:
            return set(others)
        if self.groups is not None and self.groups.is_exhausted:
            return self.groups.finders(ready)
        return None

    def _serve(self, consumer: Consumer, limit: int, now_ms: int, expired: list[Entry], budget: Budget) -> list[Entry]:
        position, accepts, browsing = consumer.position, consumer.accepts, consumer.browsing
        if position is None:
            raise LookupError("a consumer that was never subscribed")
        # What dies uncommitted comes again as a new message. What a session is given waits for a later commit anyway.
        needs_commit = browsing or (self._takes_committed and consumer.session_owner is None)
        last = self._last_in_order() if self.returning and not browsing else _NO_LIMIT
        if needs_commit:
            last = min(last, self._shown_lsn)
        last_without_gate, gate = last, None if browsing else self._gate
        if gate is not None:
            last = min(last, gate.settled)
        wanted = min(limit, consumer.credit)
        groups, declined = None if browsing else self.groups, self._declined.get(consumer)
        is_held_up = not browsing and self._limits.is_bounded and self._limits.is_held_up
        if is_held_up:
            self.awaits_answers = True
            wanted = 0 if consumer.must_answer else min(wanted, 1)
        window = consumer.window_bytes
        entries: list[Entry] = []
        passed = 0
        takes_any = (wanted > 1 or groups is not None) and gate is None and accepts is None and declined is None
        if takes_any and not (browsing or len(self._messages.expiries)):
            if groups is None:
                window = _take_runs(consumer, position, wanted, last, entries)
            elif isinstance(position, GroupPosition):
                window = position.take(consumer, wanted, last, window, entries)
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
                is_accepted = (accepts is None or accepts(body)) and (declined is None or entry not in declined)
                if is_accepted and not is_covered:
                    self.awaits_mark = entry.id
                    break
                if groups is None or not is_accepted:
                    position.skip()
                if is_accepted:
                    if not browsing:
                        entry.holder = consumer
                        if groups is not None:
                            groups.given(entry, consumer)
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
        """The id up to which consumers are served without passing what is coming back, where something is."""
        if self._by_priority:
            return 0  # the oldest may be of any priority
        return min(returning.entries[-1].id for returning in self.returning)

    def _expire(self, entry: Entry, expired: list[Entry]) -> None:
        """Its time is over. Whoever has it, may still accept it."""
        if entry.is_free:
            self._messages.hold(entry, EXPIRED)
            expired.append(entry)


def _groups_owned(consumer: Consumer) -> int:
    """0 for who only looks."""
    position = consumer.position
    return len(position.groups) if isinstance(position, GroupPosition) else 0


def _take_runs(consumer: Consumer, position: OrderCursor, wanted: int, last: int, taken: list[Entry]) -> int:
    """`consumer` has now what can be had up to the id `last`, and `taken` has it, too: `wanted` messages, or as many as
    its window in bytes, of which what is left is returned, has room for.

    Where it stops for another reason, a look at the next message tells it.
    """
    window = consumer.window_bytes
    while len(taken) < wanted and window > 0 and position.peek() is not None:
        before = len(taken)
        for entry in position.run(wanted - before):
            body = entry.body
            if entry.holder is not None or entry.id > last or window <= 0 or body is None or type(body) is BodyRef:
                break
            entry.holder = consumer
            taken.append(entry)
            window -= len(body)
        if len(taken) == before:
            break
        position.pass_run(len(taken) - before)
    return window
