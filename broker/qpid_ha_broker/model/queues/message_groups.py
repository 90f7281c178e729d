"""Messages of a group go to one consumer at a time, in their order (AMQP 1.0 section 3.2.4: `group-id`).

A group is what one consumer has: its *owner*. `held` counts the messages of it that somebody has and has not answered.

| owner | held | the group is | who gets its next message |
| --- | --- | --- | --- |
| a consumer | any | owned | that consumer alone, as it has credit |
| nobody | 0 | free | the first consumer that comes to it, which is its owner from then on |
| nobody | some | blocked | nobody, until all of those are answered |

| what happens | the group |
| --- | --- |
| a message of a free group is handed out | is owned |
| one that ends the group is handed out (`group-sequence` -1) | has no owner: blocked, then free |
| its owner leaves, or says that a message cannot be delivered to it | the same |
| somebody has one of it who is not its owner: a client of another broker since before, or a session | the same |
| a session's link comes back, and the session holds all that is held of it | that link owns it |
| a consumer joins | stays where it is: a new group goes to who has credit, and the fewest groups |
| IDLE_MOST others were used since something of it was there | is forgotten, and free |

All consumers share one *intake*, a cursor that sees each message once, and reads the group of it there. What is not for
who asks is put aside in its group, up to ASIDE_MOST for all, so nobody walks over messages of others again: a message
costs one reading and the logarithm of what is put aside. What comes back is put aside at its place. A consumer that
takes only some messages has a cursor of its own, as in other queues, and reads all. What it does not take of a group
that it owns waits for it to leave.

A message that is due later holds nobody up: it is looked at when its time has come, and then is the first of its group.
One that is to be delivered again later has had its turn, and its group waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, nsmallest
from itertools import islice
from typing import ClassVar, Final, NamedTuple, TypeVar

from qpid_ha_broker.model.message_reader import GroupProperty
from qpid_ha_broker.model.queues.orders import OrderCursor
from qpid_ha_broker.model.queues.paged import BodyRef
from qpid_ha_broker.model.queues.queued_messages import QueuedMessages
from qpid_ha_broker.model.queues.sequence import DISPLACED, EXPIRED, WAITING, Cursor, Entry, Holder

Taker = TypeVar("Taker", bound=Holder)
GroupReader = Callable[[bytes], GroupProperty | None]
"""The group of a message, by its body; None: it has none."""
ASIDE_MOST: Final = 100_000
"""Messages that are put aside, of all groups of a queue: beyond that nobody looks further until some have gone."""
IDLE_MOST: Final = 100_000
"""Groups of a queue that are remembered though nothing of them is there."""
IDLE_PARTS: Final = 100
"""They are forgotten in so many parts."""
LOOKED_LENGTH: Final = 1000
"""Messages of others that one consumer passes at a time, and the rest of a block, however quick that is."""
_new_tuple = tuple.__new__
"""Makes a named tuple of a tuple at half of what calling its class costs."""
AHEAD_LENGTH: Final = 1000
"""Of what is put aside, as much as is named as what comes next."""
_NO_RANKS: Final[list[int]] = []
"""Of nearly all groups; never changed."""


class _Group:
    __slots__ = ("held", "id", "owner", "waiting")

    def __init__(self, group_id: bytes) -> None:
        self.id = group_id
        self.owner: GroupPosition | None = None
        self.held = 0
        self.waiting = _NO_RANKS
        """A heap: the ranks of what is put aside of it. Another list whenever it gets a first one: most have none."""


class _Looked(NamedTuple):
    """A message, and what is known of its group. `group` None: it is of none."""

    entry: Entry
    group: _Group | None
    is_last: bool


class _PutAside:
    """Messages behind the intake that nobody has taken, by rank: the order of all messages."""

    __slots__ = ("_messages", "by_rank", "free", "is_leveled")

    def __init__(self, messages: QueuedMessages, *, by_priority: bool) -> None:
        self._messages = messages
        self.is_leveled = by_priority
        self.by_rank: dict[int, _Looked] = {}
        self.free: list[int] = []
        """A heap of ranks: the first of each free group, and what is of no group. Also of what is free no more."""

    def rank(self, entry: Entry) -> int:
        """Where it comes."""
        if not self.is_leveled:
            return entry.id
        return entry.id - (self._messages.level_of(entry.header.priority) << 64)

    def put(self, rank: int, looked_at: _Looked) -> None:
        """Whoever may have it finds it."""
        self.by_rank[rank] = looked_at
        group = looked_at.group
        if group is None:
            heappush(self.free, rank)
            return
        waiting, owner = group.waiting, group.owner
        if waiting:
            heappush(waiting, rank)
            if waiting[0] != rank:
                return
        else:
            group.waiting = [rank]
        if owner is None:
            if not group.held:
                heappush(self.free, rank)
        elif not owner.is_choosy:
            heappush(owner.ready, rank)

    def offer_again(self, rank: int) -> None:
        """It is here, and was somebody's meanwhile."""
        group = self.by_rank[rank].group
        if group is None:
            heappush(self.free, rank)
        else:
            self.offer(group)

    def forget(self, rank: int) -> _Group | None:
        """It was taken, or has gone. Returns its group."""
        group = self.by_rank.pop(rank).group
        if group is not None and group.waiting[0] == rank:
            heappop(group.waiting)
            if group.waiting:
                self.offer(group)
        return group

    def offer(self, group: _Group) -> None:
        """Let its owner, or everybody if it is free, find the first of it."""
        waiting = group.waiting
        while waiting and waiting[0] not in self.by_rank:
            heappop(waiting)
        if waiting:
            if group.owner is not None:
                group.owner.offer(waiting[0])
            elif not group.held:
                heappush(self.free, waiting[0])

    def first_of(self, heap: list[int], owner: GroupPosition | None) -> _Looked | None:
        """The first of `heap` that counts still: what comes before it is dropped. None: the heap is empty now."""
        by_rank = self.by_rank
        while heap:
            rank = heap[0]
            looked_at = by_rank.get(rank)
            if looked_at is not None and looked_at.entry.holder is None and looked_at.entry.block is not None:
                group = looked_at.group
                if group is None or (group.owner is owner and group.waiting[0] == rank and (owner or not group.held)):
                    return looked_at
            heappop(heap)
        return None

    def ahead(self, position: GroupPosition) -> Iterator[Entry]:
        """The first of what may go there."""
        for rank in nsmallest(AHEAD_LENGTH, [*position.ready, *self.free]):
            looked_at = self.by_rank.get(rank)
            if looked_at is not None and looked_at.entry.holder is None:
                yield looked_at.entry

    def clear(self) -> None:
        """All is looked at again."""
        self.by_rank.clear()
        self.free.clear()


class MessageGroups:
    """The promise: a message goes to nobody while somebody else has an earlier one of its group, and nobody waits for a
    message that nobody holds while it has credit for it.

    The second half as far as ASIDE_MOST, and selectors, leave it so.
    """

    __slots__ = (
        "_choosy",
        "_messages",
        "_positions",
        "aside",
        "blocked",
        "by_id",
        "idle",
        "intake",
        "is_full",
        "is_interrupted",
        "is_leveled",
        "out",
        "read",
    )

    def __init__(self, messages: QueuedMessages, read: GroupReader, *, by_priority: bool) -> None:
        self._messages = messages
        self.read = read
        self.is_leveled = by_priority
        self.by_id: dict[bytes, _Group] = {}
        """Those that somebody owns, or of which something is here."""
        self._positions: dict[Holder, GroupPosition] = {}
        """Of all consumers."""
        self._choosy: list[_ChoosyPosition] = []
        """Those of them that take only some messages."""
        self.aside = _PutAside(messages, by_priority=by_priority)
        self.out: dict[Entry, _Group] = {}
        """What somebody has of the groups."""
        self.idle: dict[_Group, None] = {}
        """Owned, and nothing of it is there, as far as the intake is; the longest first."""
        self.blocked = 0
        """Groups that nobody owns, and of which somebody has something."""
        self.is_interrupted = False
        """Somebody stopped looking after LOOKED_LENGTH messages of others: the caller takes that back."""
        self.is_full = False
        """Somebody stopped looking because ASIDE_MOST messages are put aside: the caller takes that back."""
        self.intake = messages.watch(self)

    @property
    def has_room(self) -> bool:
        """Whether somebody may look further."""
        return len(self.aside.by_rank) < ASIDE_MOST

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is there for whoever comes: each finds at most what is put aside for it."""
        return not self.aside.free and (self.is_full or self.intake.peek() is None)

    # --- consumers

    def finders(self, takers: Iterable[Taker]) -> set[Taker]:
        """Those of `takers` that may find something where it is exhausted: also who takes nothing, or looks itself."""
        positions = self._positions
        return {
            taker
            for taker in takers
            if (position := positions.get(taker)) is None or position.ready or position.is_choosy
        }

    def join(self, taker: Holder, *, choosy: bool) -> OrderCursor:
        """Where `taker` stands from now on. Groups of which its session alone holds something are its own.

        `choosy`: it does not take all that comes.
        """
        position = self._open(taker, choosy=choosy)
        held: dict[_Group, int] = {}
        for entry, group in self.out.items() if self.blocked else ():
            if entry.holder is not None and _is_owned(entry.holder, taker):
                held[group] = held.get(group, 0) + 1
        for group, count in held.items():
            if group.owner is None and group.held == count:
                self._own(group, position)
        return position

    def _open(self, taker: Holder, *, choosy: bool) -> GroupPosition:
        position = GroupPosition(self)
        if choosy:
            position = choosing = _ChoosyPosition(self, self._messages)
            self._choosy.append(choosing)
        self._positions[taker] = position
        return position

    def leave(self, taker: Holder) -> bool:
        """Its groups are for others, each as soon as nobody has anything of it. Returns whether somebody is left."""
        position = self._positions.pop(taker)
        self._close(position)
        for group in list(position.groups):
            self._disown(group)
        return bool(self._positions)

    def _close(self, position: GroupPosition) -> None:
        position.close()
        self._choosy = [other for other in self._choosy if other is not position]

    def given(self, entry: Entry, taker: Holder) -> None:
        """`entry`, which its position gave last and has not skipped, is `taker`'s: the position is behind it now."""
        position = self._positions[taker]
        if position.is_choosy:
            position.skip()
            if (rank := self.aside.rank(entry)) in self.aside.by_rank:
                self.aside.forget(rank)
        elif position.rank is None:
            self.intake.skip()
        else:
            self.aside.forget(position.rank)
        group = position.group
        if group is None:
            return
        if group.owner is position:
            if not (group.held or group.waiting):
                self.idle.pop(group, None)
            group.held += 1
        elif group.owner is None and not group.held:
            self.by_id[group.id] = group
            group.held, group.owner = 1, position
            position.groups[group] = None
            if group.waiting:
                self.aside.offer(group)
        else:
            raise LookupError(f"message {entry.id} was given to who may not have its group")
        self.out[entry] = group
        if position.is_last:
            self._disown(group)

    def decline(self, entry: Entry, taker: Holder) -> OrderCursor:
        """`entry`, which is back, cannot be delivered to `taker`: its group is for others, as long as it is there.

        Returns where `taker` stands from now on, with what it owns else.
        """
        member = self._member(entry)
        group = None if member is None else self.by_id.get(member.id)
        before = self._positions[taker]
        if group is not None and group.owner is before:
            self._disown(group)
        position = before
        if not isinstance(before, _ChoosyPosition):
            self._close(before)
            position = self._open(taker, choosy=True)
            position.groups = before.groups
            for other in position.groups:
                other.owner = position
        if member is not None:
            position.declined[entry] = member.id
        return position

    # --- what becomes of messages

    def held(self, entry: Entry) -> None:
        """As `MessageWatch`. Whoever hands out calls `given`: this one was taken by another way, or goes on from its
        consumer to a transaction or a session."""
        holder = entry.holder
        if holder is None or holder in _LEAVING or entry in self.out:
            return
        if not self.intake.has_passed(entry):
            return
        if type(entry.body) is BodyRef:
            self.intake.rewind(entry)
        else:
            self.note_held(entry, holder)

    def gone(self, entry: Entry) -> None:
        """As `MessageWatch`."""
        group = self.out.pop(entry, None)
        if group is not None:
            if group.held == 1 and group.owner is not None and not group.waiting and len(self.idle) < IDLE_MOST:
                # As nearly all: without two calls for each message.
                group.held, self.idle[group] = 0, None
            else:
                self._answered(group)
        by_rank = self.aside.by_rank
        if by_rank and (rank := self.aside.rank(entry) if self.is_leveled else entry.id) in by_rank:
            self.forget_aside(rank)

    def rewind(self, entry: Entry) -> None:
        """As `SeesReturned`: put it aside, unless it lies ahead."""
        group = self.out.pop(entry, None)
        if group is not None:
            self._answered(group)
        rank = self.aside.rank(entry)
        if rank in self.aside.by_rank:
            self.aside.offer_again(rank)
        elif not self.intake.has_passed(entry):
            return
        elif type(entry.body) is BodyRef:
            self.intake.rewind(entry)  # which is looked at when its body is here
        else:
            self.put_aside(rank, self.look(entry))

    def restart(self) -> None:
        """As `SeesReturned`: all is looked at again; who owns what, and who has what, stays."""
        self.intake.restart()
        self.aside.clear()
        for group in list(self.by_id.values()):
            group.waiting.clear()
            self._settle(group)
        for position in self._positions.values():
            position.ready.clear()

    # --- for positions

    def is_elsewhere(self, entry: Entry) -> bool:
        """Whether somebody has it, or it is about to go. That somebody has it is noted, if the group is known by now:
        else its body has to come first."""
        holder = entry.holder
        if holder is None:
            return False
        if entry in self.out or holder in _NOBODY_YET:
            return True
        if type(entry.body) is BodyRef:
            return False
        self.note_held(entry, holder)
        return True

    def look(self, entry: Entry) -> _Looked:
        """`entry` with its group, or one that is nobody's yet."""
        member = self._member(entry)
        if member is None:
            return _Looked(entry, None, False)
        return _Looked(entry, self.by_id.get(member.id) or _Group(member.id), member.is_last)

    def has_passed(self, entry: Entry) -> bool:
        """Whether nobody has to look at it any more, as far as the intake is."""
        return self.aside.rank(entry) not in self.aside.by_rank and self.intake.has_passed(entry)

    def ahead(self, position: GroupPosition) -> Iterator[Entry]:
        """What is put aside and may be its own, and all that nobody has looked at."""
        yield from self.aside.ahead(position)
        for entry in self.intake.ahead():
            if entry.holder is None or type(entry.body) is BodyRef:
                yield entry

    def put_aside(self, rank: int, looked_at: _Looked) -> None:
        """Nobody has looked at it who may have it."""
        group = looked_at.group
        if group is not None and not group.waiting:
            self.by_id[group.id] = group
            self.idle.pop(group, None)
        self.aside.put(rank, looked_at)

    def forget_aside(self, rank: int) -> None:
        """It has gone, or goes to nobody."""
        group = self.aside.forget(rank)
        if group is not None and not (group.waiting or group.held):
            self._settle(group)

    # --- groups

    def _member(self, entry: Entry) -> GroupProperty | None:
        body = entry.body
        return None if body is None or type(body) is BodyRef else self.read(body)

    def note_held(self, entry: Entry, holder: Holder) -> None:
        """`holder` has it, which was not given it here."""
        group = self.look(entry).group
        if group is None:
            return
        self.by_id[group.id] = group
        self.out[entry] = group
        self.idle.pop(group, None)
        group.held += 1
        if group.held == 1 and group.owner is None:
            self.blocked += 1
        position = self._positions.get(holder)
        if position is None:
            owners = (place for taker, place in self._positions.items() if _is_owned(holder, taker))
            position = next(owners, None)
        if position is not None and group.owner is None and group.held == 1:
            self._own(group, position)
        elif group.owner is not position and group.owner is not None:
            self._disown(group)

    def _answered(self, group: _Group) -> None:
        """Nobody has a message of it any more that was in `out`."""
        group.held -= 1
        if group.held:
            return
        if group.owner is None:
            self.blocked -= 1
            self._became_free(group)
            self._settle(group)
        elif not group.waiting:
            self._keep_idle(group)

    def _own(self, group: _Group, position: GroupPosition) -> None:
        if group.owner is None and group.held:
            self.blocked -= 1
        elif group.owner is not None:
            group.owner.groups.pop(group, None)
        group.owner = position
        position.groups[group] = None
        self.aside.offer(group)

    def _disown(self, group: _Group) -> None:
        if group.owner is None:
            return
        group.owner.groups.pop(group, None)
        group.owner = None
        self.idle.pop(group, None)
        if group.held:
            self.blocked += 1
        else:
            self._became_free(group)
        self._settle(group)

    def _became_free(self, group: _Group) -> None:
        self.aside.offer(group)
        for position in self._choosy:
            position.became_free(group)

    def _settle(self, group: _Group) -> None:
        """Forget it where nothing of it is there: at once if it is free, later if it is owned."""
        if group.waiting or group.held:
            return
        if group.owner is None:
            if self.by_id.get(group.id) is group:
                del self.by_id[group.id]
        else:
            self._keep_idle(group)

    def _keep_idle(self, group: _Group) -> None:
        """It is owned, and nothing of it is there."""
        self.idle[group] = None
        if len(self.idle) > IDLE_MOST:
            # Some at a time: what is gone of a dictionary is stepped over by whoever looks for its first.
            for oldest in list(islice(self.idle, max(IDLE_MOST // IDLE_PARTS, 1))):
                self._disown(oldest)

    # --- for tests

    def check_invariants(self) -> None:
        """Raise AssertionError where what is counted is not what is there; called after each step in tests."""
        counted: dict[_Group, int] = {}
        for group in self.out.values():
            counted[group] = counted.get(group, 0) + 1
        for group in self.by_id.values():
            if group.held != counted.pop(group, 0):
                raise AssertionError(f"{group.id!r}: {group.held} held, others are counted")
            if group.owner is not None and (group not in group.owner.groups or group.owner.is_closed):
                raise AssertionError(f"{group.id!r} has an owner that does not know it")
        if counted:
            raise AssertionError("somebody has something of a group that is forgotten")
        if any(group.held for group in self.idle):
            raise AssertionError("a group counts as idle, and somebody has something of it")
        blocked = [group for group in self.by_id.values() if group.owner is None and group.held]
        if len(blocked) != self.blocked:
            raise AssertionError(f"{len(blocked)} groups are blocked, {self.blocked} are counted")


class GroupPosition(OrderCursor):
    """Where a consumer stands that takes whatever is for it."""

    __slots__ = ("_groups", "declined", "group", "groups", "is_closed", "is_last", "rank", "ready")

    is_choosy: ClassVar[bool] = False

    def __init__(self, groups: MessageGroups) -> None:
        self._groups = groups
        self.declined: dict[Entry, bytes] = {}
        """What cannot be delivered to its consumer, and the group of each."""
        self.groups: dict[_Group, None] = {}
        """Those that it owns."""
        self.ready: list[int] = []
        """A heap of ranks: the first that is put aside of each group that it owns, or owned."""
        self.group: _Group | None = None
        """Of what `peek` gave last; None: it is of none."""
        self.is_last = False
        """The group ends with what `peek` gave last."""
        self.rank: int | None = None
        """Where what `peek` gave last is put aside; None: it comes from the intake."""
        self.is_closed = False

    def peek(self) -> Entry | None:
        """The first that is put aside and may be its own, or comes next; what is for others is put aside."""
        # For each message of the queue: what is called here counts.
        groups = self._groups
        aside, intake, is_leveled = groups.aside, groups.intake, groups.is_leveled
        by_rank = aside.by_rank
        ready, free = self.ready, aside.free
        first = aside.first_of(ready, self) if ready else None
        first_rank = ready[0] if first is not None else None
        if free and (of_all := aside.first_of(free, None)) is not None and (first_rank is None or free[0] < first_rank):
            first, first_rank = of_all, free[0]
        if first is not None and not is_leveled:
            self.rank = first_rank
            first_entry, self.group, self.is_last = first
            return first_entry
        self.rank, self.group, self.is_last = None, None, False
        passed = 0
        while (entry := intake.peek()) is not None:
            rank = aside.rank(entry) if is_leveled else entry.id
            if first_rank is not None and first_rank < rank:
                break
            body, holder = entry.body, entry.holder
            if rank in by_rank or (holder is not None and (entry in groups.out or holder in _NOBODY_YET)):
                pass
            elif body is None or type(body) is BodyRef:
                return entry  # it is waited for, or dropped if its time is over
            elif holder is not None:
                groups.note_held(entry, holder)
            elif (member := groups.read(body)) is None:
                return entry
            else:
                group_id, is_last = member
                group = groups.by_id.get(group_id) or _Group(group_id)
                if group.owner is self or (group.owner is None and not group.held):
                    self.group, self.is_last = group, is_last
                    return entry
                if len(by_rank) >= ASIDE_MOST:
                    groups.is_full = True
                    break
                groups.put_aside(rank, _new_tuple(_Looked, (entry, group, is_last)))
            intake.skip()
            passed += 1
            if passed >= LOOKED_LENGTH:
                groups.is_interrupted = True
                break
        if first is None:
            return None
        self.rank = first_rank
        first_entry, self.group, self.is_last = first
        return first_entry

    def take(self, taker: Holder, wanted: int, last: int, window: int, taken: list[Entry]) -> int:
        """`taker`, whose position this is, has now what is for it up to the id `last`, and so has `taken`: `wanted`
        messages, or as many as `window` bytes, of which what is left is returned, have room for.

        The same as `peek` and `MessageGroups.given` for each, of which nothing expires; where it stops for another
        reason, they tell it.
        """
        groups, intake = self._groups, self._groups.intake
        if not isinstance(intake, Cursor):
            return window  # levels of priority: what is put aside may come behind what is not looked at
        window = self._take_aside(taker, wanted, last, window, taken)
        if self.ready or groups.aside.free or len(taken) >= wanted or window <= 0 or intake.peek() is None:
            return window
        # All up to the end of a block without a call for each: what is done here counts.
        read, by_id, by_rank, out = groups.read, groups.by_id, groups.aside.by_rank, groups.out
        entries = intake.block.entries
        for at in range(intake.index, len(entries)):
            entry = entries[at]
            body = entry.body
            if body is None:
                continue  # it has gone
            if entry.holder is not None or entry.id > last or type(body) is BodyRef or entry.id in by_rank:
                break
            member = read(body)
            if member is not None:
                group_id, is_last = member
                group = by_id.get(group_id)
                if is_last:
                    break
                if group is None or (group.owner is None and not group.held):
                    if group is None:
                        group = by_id[group_id] = _Group(group_id)
                    group.owner = self
                    self.groups[group] = None
                    if group.waiting:
                        groups.aside.offer(group)
                elif group.owner is not self:
                    if len(by_rank) >= ASIDE_MOST:
                        break
                    groups.put_aside(entry.id, _new_tuple(_Looked, (entry, group, is_last)))
                    continue
                elif not group.held:
                    groups.idle.pop(group, None)
                group.held += 1
                out[entry] = group
            entry.holder = taker
            taken.append(entry)
            window -= len(body)
            if len(taken) >= wanted or window <= 0:
                at += 1
                break
        else:
            at = len(entries)
        intake.index = at
        return window

    def _take_aside(self, taker: Holder, wanted: int, last: int, window: int, taken: list[Entry]) -> int:
        """What is put aside, as far as it belongs to groups that it owns, and goes on."""
        groups, ready = self._groups, self.ready
        aside, out = groups.aside, groups.out
        by_rank = aside.by_rank
        while ready and len(taken) < wanted and window > 0:
            looked_at = aside.first_of(ready, self)
            if looked_at is None or (aside.free and aside.first_of(aside.free, None) is not None):
                break
            entry, group, is_last = looked_at
            body = entry.body
            if group is None or is_last or entry.id > last or body is None or type(body) is BodyRef:
                break
            del by_rank[heappop(ready)]
            heappop(group.waiting)
            if group.waiting:
                aside.offer(group)
            group.held += 1
            out[entry] = group
            entry.holder = taker
            taken.append(entry)
            window -= len(body)
        return window

    def skip(self) -> None:
        if self.rank is None:
            self._groups.intake.skip()
        else:
            self._groups.forget_aside(self.rank)

    def rewind(self, entry: Entry) -> None:
        """What comes back is put aside for all together."""

    def restart(self) -> None:
        """All begin anew together."""

    def ahead(self) -> Iterator[Entry]:
        return self._groups.ahead(self)

    def has_passed(self, entry: Entry) -> bool:
        return self._groups.has_passed(entry)

    @property
    def in_a_row(self) -> int:
        """How many its consumer may be given before others are: of each group that it owns one, that nobody else can
        have, and as many new groups as leave it with an eighth more than others at most."""
        return max(len(self.ready), 1 + len(self.groups) // 8)

    def may_have(self, group: _Group) -> bool:
        """Whether the next message of `group` may go here."""
        return group.owner is self or (group.owner is None and not group.held)

    def offer(self, rank: int) -> None:
        """The first that is put aside of a group that it owns."""
        heappush(self.ready, rank)

    def close(self) -> None:
        """Nobody asks it any more."""
        self.is_closed = True


class _ChoosyPosition(GroupPosition):
    """Where one stands that takes only some messages: a cursor of its own, which passes the groups of others."""

    __slots__ = ("_cursor", "_messages", "_passed")

    is_choosy = True

    def __init__(self, groups: MessageGroups, messages: QueuedMessages) -> None:
        super().__init__(groups)
        self._messages = messages
        self._cursor = messages.open_cursor(of_all=True)
        self._passed: dict[bytes, Entry] = {}
        """The first of each group that it passed because that is not its own, by the group."""

    def peek(self) -> Entry | None:
        groups, cursor = self._groups, self._cursor
        not_ours = self._declined_groups() if self.declined else ()
        for _ in range(LOOKED_LENGTH):
            entry = cursor.peek()
            if entry is None:
                return None
            if groups.is_elsewhere(entry):
                cursor.skip()
                continue
            if type(entry.body) is BodyRef:
                self.group, self.is_last = None, False
                return entry
            _, self.group, self.is_last = groups.look(entry)
            group = self.group
            if group is None or (self.may_have(group) and group.id not in not_ours):
                return entry
            self._passed.setdefault(group.id, entry)
            cursor.skip()
        groups.is_interrupted = True
        return None

    def _declined_groups(self) -> set[bytes]:
        """Those of which it cannot take an earlier message, which others are to get first."""
        self.declined = {entry: group_id for entry, group_id in self.declined.items() if entry.body is not None}
        return set(self.declined.values())

    def take(self, taker: Holder, wanted: int, last: int, window: int, taken: list[Entry]) -> int:
        return window  # its consumer looks at each

    def offer(self, rank: int) -> None:
        """It comes to that by itself."""

    def skip(self) -> None:
        self._cursor.skip()

    def ahead(self) -> Iterator[Entry]:
        for entry in self._cursor.ahead():
            if entry.holder is None or type(entry.body) is BodyRef:
                yield entry

    def has_passed(self, entry: Entry) -> bool:
        return self._cursor.has_passed(entry)

    def became_free(self, group: _Group) -> None:
        """What it passed of that is for it, too."""
        entry = self._passed.pop(group.id, None)
        if entry is not None and entry.block is not None:
            self._cursor.rewind(entry)
        elif entry is not None:
            self._cursor.restart()

    def close(self) -> None:
        super().close()
        self._messages.close_cursor(self._cursor)


def _is_owned(holder: Holder, taker: Holder) -> bool:
    """Whether what `holder` has is `taker`'s: that is it itself, or its session."""
    return holder is taker or (taker.session_owner is not None and holder.session_owner == taker.session_owner)


_LEAVING: Final = (EXPIRED, DISPLACED)
"""Who has what is about to go: it is nobody's."""
_NOBODY_YET: Final = frozenset((*_LEAVING, WAITING))
"""Whom nobody is told of: what waits for its time comes back when that has come."""
