"""Messages of a group go to one consumer at a time, in their order (AMQP 1.0 section 3.2.4: `group-id`).

A group is what one consumer has: its *owner*. `held` counts the messages of it that somebody has taken and not answered.

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
| somebody takes a message of it who is not its owner: a client of another broker has it still, or a session | the same |
| a session's link comes back, and the session holds all that is held of it | that link owns it |
| a consumer joins | stays where it is: new groups go to those who have credit, in turn |
| IDLE_MOST others were used since something of it was there | is forgotten, and free |

All consumers share one *intake*, a cursor that sees each message once, and reads the group of it there. What is not for who
asks is put aside in its group, up to ASIDE_MOST for all, so nobody walks over messages of others again: a message costs
one reading and the logarithm of what is put aside. What comes back is put aside at its place. A consumer that takes only
some messages has a cursor of its own, as in other queues, and reads all; it owns its groups with what it does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush, nsmallest
from typing import ClassVar, Final, NamedTuple

from qpid_ha_broker.model.message_reader import GroupMember
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.orders import OrderCursor
from qpid_ha_broker.model.queues.paged import BodyDamaged, BodyRef
from qpid_ha_broker.model.queues.queued_messages import QueuedMessages
from qpid_ha_broker.model.queues.sequence import DISPLACED, EXPIRED, Entry, Holder, load_bodies

GroupReader = Callable[[bytes], GroupMember | None]
"""The group of a message, by its body; None: it has none."""
ASIDE_MOST: Final = 100_000
"""Messages that are put aside, of all groups of a queue: beyond that nobody looks further until some have gone."""
IDLE_MOST: Final = 100_000
"""Groups of a queue that are remembered though nothing of them is there."""
LOOKED_LENGTH: Final = 1000
"""Messages of others that one consumer passes at a time, however quick that is."""
AHEAD_LENGTH: Final = 1000
"""Of what is put aside, as much as is named as what comes next."""


class GroupTaker(Holder):
    """A consumer, as far as groups know it."""

    __slots__ = ("declined",)

    def __init__(self) -> None:
        self.declined: dict[Entry, bytes] = {}
        """What cannot be delivered to it, with the group of each; empty: it has none."""

    @property
    def takes_some(self) -> bool:
        """Whether it does not take all that comes."""
        return bool(self.declined)

    def owns_what_has(self, holder: Holder) -> bool:
        """Whether what `holder` has is its own: that is it itself, or its session."""
        return holder is self


class _Group:
    __slots__ = ("held", "id", "owner", "waiting")

    def __init__(self, group_id: bytes) -> None:
        self.id = group_id
        self.owner: _GroupPosition | None = None
        self.held = 0
        self.waiting: list[int] = []
        """A heap: the ranks of what is put aside of it."""


class _Aside(NamedTuple):
    """A message that the intake has passed. `group` None: it is of none, and came back."""

    entry: Entry
    group: _Group | None
    is_last: bool


class MessageGroups:
    """The promise: a message goes to nobody while somebody else has an earlier one of its group, and nobody waits for a
    message that nobody holds while it has credit for it.

    The second half as far as ASIDE_MOST, and selectors, leave it so.
    """

    __slots__ = (
        "_aside",
        "_by_id",
        "_choosy",
        "_free",
        "_idle",
        "_intake",
        "_is_leveled",
        "_messages",
        "_out",
        "_positions",
        "_read",
        "blocked",
        "is_full",
        "is_interrupted",
    )

    def __init__(self, messages: QueuedMessages, read: GroupReader, *, by_priority: bool) -> None:
        self._messages = messages
        self._read = read
        self._is_leveled = by_priority
        self._intake = messages.cursor_of_all()
        self._by_id: dict[bytes, _Group] = {}
        self._positions: dict[Holder, _GroupPosition] = {}
        """Of all consumers."""
        self._choosy: list[_ChoosyPosition] = []
        """Those of them that take only some messages."""
        self._aside: dict[int, _Aside] = {}
        """By rank: what lies behind the intake and nobody has taken."""
        self._free: list[int] = []
        """A heap of ranks: the first of each free group, and what is of no group. Also of what is free no more."""
        self._out: dict[Entry, _Group] = {}
        """What somebody has of the groups."""
        self._idle: dict[_Group, None] = {}
        """Owned, and nothing of it is there, as far as the intake is; the longest first."""
        self.blocked = 0
        """Groups that nobody owns, and of which somebody has something."""
        self.is_interrupted = False
        """Somebody stopped looking after LOOKED_LENGTH messages of others: the caller takes that back."""
        self.is_full = False
        """Somebody stopped looking because ASIDE_MOST messages are put aside: the caller takes that back."""
        messages.watch(self)

    @property
    def has_room(self) -> bool:
        """Whether somebody may look further."""
        return len(self._aside) < ASIDE_MOST

    @property
    def is_unused(self) -> bool:
        """Whether no consumer takes part."""
        return not self._positions

    # --- consumers

    def join(self, taker: GroupTaker) -> OrderCursor:
        """Where `taker` stands from now on. Groups of which its session alone holds something are its own."""
        position = self._open(taker)
        held: dict[_Group, int] = {}
        for entry, group in self._out.items():
            if entry.holder is not None and taker.owns_what_has(entry.holder):
                held[group] = held.get(group, 0) + 1
        for group, count in held.items():
            if group.owner is None and group.held == count:
                self._own(group, position)
        return position

    def _open(self, taker: GroupTaker) -> _GroupPosition:
        if taker.takes_some:
            position: _GroupPosition = _ChoosyPosition(self, taker, self._messages)
            self._choosy.append(position)
        else:
            position = _GroupPosition(self, taker)
        self._positions[taker] = position
        return position

    def leave(self, taker: GroupTaker) -> None:
        """Its groups are for others, each as soon as nobody has anything of it."""
        position = self._positions.pop(taker)
        self._close(position)
        for group in list(position.groups):
            self._disown(group)

    def _close(self, position: _GroupPosition) -> None:
        position.close()
        self._choosy = [other for other in self._choosy if other is not position]

    def change(self, taker: GroupTaker) -> OrderCursor:
        """`taker` may take only some from now on, and keeps what it owns. Returns its position."""
        before = self._positions[taker]
        self._close(before)
        position = self._open(taker)
        position.groups = before.groups
        for group in position.groups:
            group.owner = position
        return position

    def given(self, entry: Entry, taker: GroupTaker) -> None:
        """`entry`, which its position gave last, is `taker`'s."""
        position = self._positions[taker]
        group, is_last = position.looked_at.group, position.looked_at.is_last
        if group is None:
            return
        if position.is_choosy and (rank := self._rank(entry)) in self._aside:
            self._forget_aside(rank)
        self._take(entry, group)
        if group.owner is not position:
            self._own(group, position)
        if is_last:
            self._disown(group)

    def declined(self, entry: Entry, taker: GroupTaker) -> None:
        """`entry`, which is back, cannot be delivered to `taker`: what comes next of its group is for others."""
        member = self.member(entry)
        taker.declined[entry] = b"" if member is None else member.id
        group = None if member is None else self._by_id.get(member.id)
        if group is not None and group.owner is self._positions.get(taker):
            self._disown(group)

    # --- what becomes of messages

    def held(self, entry: Entry) -> None:
        """As `MessageWatch`. Whoever hands out calls `given`: this one was taken by another way, or goes on from who has
        it to a transaction or a session."""
        holder = entry.holder
        if holder is None or holder is EXPIRED or holder is DISPLACED or entry in self._out:
            return
        if self._intake.has_passed(entry):
            self._note_held(entry, holder)

    def gone(self, entry: Entry) -> None:
        """As `MessageWatch`."""
        self._answered(entry)
        rank = self._rank(entry)
        if rank in self._aside:
            self._forget_aside(rank)

    def rewind(self, entry: Entry) -> None:
        """As `SeesReturned`: put it aside, unless it lies ahead."""
        self._answered(entry)
        rank = self._rank(entry)
        if rank not in self._aside and self._intake.has_passed(entry):
            self._put_aside(rank, self.look(entry))

    def restart(self) -> None:
        """As `SeesReturned`: all is looked at again; who owns what, and who has what, stays."""
        self._intake.restart()
        self._aside.clear()
        self._free.clear()
        for group in list(self._by_id.values()):
            group.waiting.clear()
            self._settle(group)
        for position in self._positions.values():
            position.ready.clear()

    # --- for positions

    def next_for(self, position: _GroupPosition) -> Entry | None:
        """The first that is put aside and may be its own, or comes next; what is for others is put aside."""
        position.looked_at = _NOTHING
        aside_rank = self._first_aside(position)
        if aside_rank is not None and not self._is_leveled:
            return self._looked_aside(position, aside_rank)
        passed = 0
        while (entry := self._intake.peek()) is not None:
            rank = self._rank(entry)
            if aside_rank is not None and aside_rank < rank:
                break
            if entry.holder is not None:
                if entry.holder is not EXPIRED and entry.holder is not DISPLACED and entry not in self._out:
                    self._note_held(entry, entry.holder)
            elif type(entry.body) is BodyRef:
                position.looked_at = _Aside(entry, None, False)
                return entry  # it is waited for, or dropped if its time is over: nobody needs its group
            else:
                looked = self.look(entry)
                if looked.group is None or self.may_have(position, looked.group):
                    position.looked_at = looked
                    return entry
                if not self.has_room:
                    self.is_full = True
                    break
                self._put_aside(rank, looked)
            self._intake.skip()
            passed += 1
            if passed >= LOOKED_LENGTH:
                self.is_interrupted = True
                break
        return None if aside_rank is None else self._looked_aside(position, aside_rank)

    def pass_for(self, position: _GroupPosition) -> None:
        """It is done with what it has looked at."""
        rank = self._rank(position.looked_at.entry)
        if rank in self._aside:
            self._forget_aside(rank)
        else:
            self._intake.skip()

    def may_have(self, position: _GroupPosition, group: _Group) -> bool:
        """Whether its next message may go there."""
        return group.owner is position or (group.owner is None and not group.held)

    def look(self, entry: Entry) -> _Aside:
        """`entry` with its group, or one that is nobody's yet."""
        member = self.member(entry)
        if member is None:
            return _Aside(entry, None, False)
        return _Aside(entry, self._by_id.get(member.id) or _Group(member.id), member.is_last)

    def has_passed(self, entry: Entry) -> bool:
        """Whether nobody has to look at it any more, as far as the intake is."""
        return self._rank(entry) not in self._aside and self._intake.has_passed(entry)

    def ahead(self, position: _GroupPosition) -> Iterator[Entry]:
        """What is put aside and may be its own, and all that nobody has looked at."""
        for rank in nsmallest(AHEAD_LENGTH, [*position.ready, *self._free]):
            aside = self._aside.get(rank)
            if aside is not None and aside.entry.holder is None:
                yield aside.entry
        for entry in self._intake.ahead():
            if entry.holder is None:
                yield entry

    # --- what is put aside

    def _first_aside(self, position: _GroupPosition) -> int | None:
        ready = self._clean(position.ready, position)
        free = self._clean(self._free, None)
        if ready is None or free is None:
            return free if ready is None else ready
        return min(ready, free)

    def _clean(self, heap: list[int], owner: _GroupPosition | None) -> int | None:
        """The first of `heap` that counts still; what comes before it is dropped."""
        while heap:
            rank = heap[0]
            aside = self._aside.get(rank)
            if aside is not None:
                group = aside.group
                if aside.entry.holder is not None or aside.entry.block is None:
                    self._forget_aside(rank)
                    continue
                if group is None or (group.waiting[0] == rank and group.owner is owner and (owner or not group.held)):
                    return rank
            heappop(heap)
        return None

    def _looked_aside(self, position: _GroupPosition, rank: int) -> Entry:
        position.looked_at = self._aside[rank]
        return position.looked_at.entry

    def _put_aside(self, rank: int, aside: _Aside) -> None:
        self._aside[rank] = aside
        group = aside.group
        if group is None:
            heappush(self._free, rank)
            return
        self._by_id[group.id] = group
        self._idle.pop(group, None)
        heappush(group.waiting, rank)
        if group.waiting[0] == rank:
            self._offer(group)

    def _forget_aside(self, rank: int) -> None:
        group = self._aside.pop(rank).group
        if group is None:
            if self._free and self._free[0] == rank:
                heappop(self._free)
        elif group.waiting[0] == rank:
            heappop(group.waiting)
            self._offer(group)
            self._settle(group)

    def _offer(self, group: _Group) -> None:
        """Let its owner, or everybody if it is free, find the first of it."""
        waiting = group.waiting
        while waiting and waiting[0] not in self._aside:
            heappop(waiting)
        if waiting:
            if group.owner is not None:
                group.owner.offer(waiting[0])
            elif not group.held:
                heappush(self._free, waiting[0])

    # --- groups

    def _rank(self, entry: Entry) -> int:
        """By which the order of all messages ascends."""
        if not self._is_leveled:
            return entry.id
        return entry.id - (self._messages.level_of(entry.header.priority) << 64)

    def member(self, entry: Entry) -> GroupMember | None:
        """What it says of its group; None: it is of none."""
        body = entry.body
        if body is None or type(body) is BodyRef:  # few: what sessions hold since a failover, and what comes back of it
            try:
                (body,) = load_bodies((entry,))
            except (BodyDamaged, LookupError):
                return None
        return self._read(body)

    def _take(self, entry: Entry, group: _Group) -> None:
        self._by_id[group.id] = group
        self._out[entry] = group
        self._idle.pop(group, None)
        group.held += 1
        if group.held == 1 and group.owner is None:
            self.blocked += 1

    def _note_held(self, entry: Entry, holder: Holder) -> None:
        group = self.look(entry).group
        if group is None:
            return
        self._take(entry, group)
        position = self._positions.get(holder)
        if position is None:
            mine = (each for each in self._positions.values() if each.taker.owns_what_has(holder))
            position = next(mine, None)
        if position is not None and group.owner is None and group.held == 1:
            self._own(group, position)
        elif group.owner is not position and group.owner is not None:
            self._disown(group)

    def _answered(self, entry: Entry) -> None:
        group = self._out.pop(entry, None)
        if group is None:
            return
        group.held -= 1
        if not group.held and group.owner is None:
            self.blocked -= 1
            self._became_free(group)
        self._settle(group)

    def _own(self, group: _Group, position: _GroupPosition) -> None:
        if group.owner is None and group.held:
            self.blocked -= 1
        elif group.owner is not None:
            group.owner.groups.pop(group, None)
        group.owner = position
        position.groups[group] = None
        self._offer(group)

    def _disown(self, group: _Group) -> None:
        if group.owner is None:
            return
        group.owner.groups.pop(group, None)
        group.owner = None
        self._idle.pop(group, None)
        if group.held:
            self.blocked += 1
        else:
            self._became_free(group)
        self._settle(group)

    def _became_free(self, group: _Group) -> None:
        self._offer(group)
        for position in self._choosy:
            position.became_free(group)

    def _settle(self, group: _Group) -> None:
        """Forget it where nothing of it is there: at once if it is free, later if it is owned."""
        if group.waiting or group.held:
            return
        if group.owner is None:
            if self._by_id.get(group.id) is group:
                del self._by_id[group.id]
            return
        self._idle[group] = None
        if len(self._idle) > IDLE_MOST:
            self._disown(next(iter(self._idle)))

    # --- for tests

    def check_invariants(self) -> None:
        """Raise AssertionError where what is counted is not what is there; called after each step in tests."""
        counted: dict[_Group, int] = {}
        for group in self._out.values():
            counted[group] = counted.get(group, 0) + 1
        for group in self._by_id.values():
            if group.held != counted.pop(group, 0):
                raise AssertionError(f"{group.id!r}: {group.held} held, others are counted")
            if group.owner is not None and (group not in group.owner.groups or group.owner.is_closed):
                raise AssertionError(f"{group.id!r} has an owner that does not know it")
        if counted:
            raise AssertionError("somebody has something of a group that is forgotten")
        blocked = [group for group in self._by_id.values() if group.owner is None and group.held]
        if len(blocked) != self.blocked:
            raise AssertionError(f"{len(blocked)} groups are blocked, {self.blocked} are counted")


class _GroupPosition(OrderCursor):
    """Where a consumer stands that takes whatever is for it."""

    __slots__ = ("_groups", "groups", "is_closed", "looked_at", "ready", "taker")

    is_choosy: ClassVar[bool] = False

    def __init__(self, groups: MessageGroups, taker: GroupTaker) -> None:
        self._groups = groups
        self.taker = taker
        self.groups: dict[_Group, None] = {}
        """Those that it owns."""
        self.ready: list[int] = []
        """A heap of ranks: the first that is put aside of each group that it owns, or owned."""
        self.looked_at: _Aside = _NOTHING
        """What `peek` gave last."""
        self.is_closed = False

    def peek(self) -> Entry | None:
        return self._groups.next_for(self)

    def skip(self) -> None:
        self._groups.pass_for(self)

    def rewind(self, entry: Entry) -> None:
        """What comes back is put aside for all together."""

    def restart(self) -> None:
        """All begin anew together."""

    def ahead(self) -> Iterator[Entry]:
        return self._groups.ahead(self)

    def has_passed(self, entry: Entry) -> bool:
        return self._groups.has_passed(entry)

    def offer(self, rank: int) -> None:
        """The first that is put aside of a group that it owns."""
        heappush(self.ready, rank)

    def close(self) -> None:
        """Nobody asks it any more."""
        self.is_closed = True


class _ChoosyPosition(_GroupPosition):
    """Where one stands that takes only some messages: a cursor of its own, which passes the groups of others."""

    __slots__ = ("_cursor", "_messages", "_passed")

    is_choosy = True

    def __init__(self, groups: MessageGroups, taker: GroupTaker, messages: QueuedMessages) -> None:
        super().__init__(groups, taker)
        self._messages = messages
        self._cursor = messages.open_cursor()
        self._passed: dict[bytes, Entry] = {}
        """The first of each group that it passed because that is not its own, by the group."""

    def peek(self) -> Entry | None:
        groups, cursor = self._groups, self._cursor
        not_ours = self._declined_groups() if self.taker.declined else ()
        for _ in range(LOOKED_LENGTH):
            entry = cursor.peek()
            if entry is None:
                return None
            if type(entry.body) is BodyRef:
                self.looked_at = _Aside(entry, None, False)
                return entry
            self.looked_at = groups.look(entry)
            group = self.looked_at.group
            if group is None or (groups.may_have(self, group) and group.id not in not_ours):
                return entry
            self._passed.setdefault(group.id, entry)
            cursor.skip()
        groups.is_interrupted = True
        return None

    def _declined_groups(self) -> set[bytes]:
        """Those of which it cannot take an earlier message, which others are to get first."""
        return {group_id for entry, group_id in self.taker.declined.items() if entry.body is not None}

    def offer(self, rank: int) -> None:
        """It comes to that by itself."""

    def skip(self) -> None:
        self._cursor.skip()

    def ahead(self) -> Iterator[Entry]:
        return self._cursor.ahead()

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


_NOTHING: Final = _Aside(Entry(0, MessageHeader((), False, 0, 0, ""), b""), None, False)
