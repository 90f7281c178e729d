"""Which queues a member asks for, and when it hands them on: the policy above `ownership`.

| a queue of which | this member | |
| --- | --- | --- |
| a consumer here has credit, or a purge or a move goes on | does not have it, and has not asked | asks |
| a consumer is here, and the queue deletes itself | the same | asks |
| something has to leave | is the first member, and nobody has it | asks |
| the same | has it | drops it, or does so at its next tick |
| nobody here takes anything any more, and nothing has to leave | has it, or has asked | yields |
| somebody here takes something | has it, others wait, and the slice is over | yields, and asks again |
| the same | has it, and nobody waits | goes on |

A slice begins with the first message that there is to give, and one in which a message came, went out, or was answered
ends after `slice_s`. Where nothing happens to messages, it may be that there are none, that only consumers of another
member want them, or that nobody does: each such slice in a row is twice as long as the one before, up to
`IDLE_SLICE_S`. So idle queues do not go round all the time, and who asks whether there is something (a drain, a purge)
comes to know.

What has to leave: messages that have expired; of a ring those over its limits, the oldest first; of a last-value queue
those that newer values took the place of. All but the first is seen when a message is delivered, by all members, so a
queue is over its limits, or has two values of a key, until its owner has said what leaves, and that is delivered. It is
decided again from what is there by who owns the queue next: a member that dies in the middle leaves nothing undone, and
what it has said and nobody was delivered counts nowhere.

With what it yields it tells which messages its consumers still have.

A queue that deletes itself is used as long as somebody has it, or waits for it: so a member with consumers asks whether
they have credit or not, and one without yields. Each member notes since when nobody does. The first member has it
deleted (`QueueTimers`), after a time in which users of a member that has left may come back.

An exclusive queue that a client of a member had which has left is kept for that client as long, by the name that the
log has: each member refuses it to others meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from qpid_ha_broker.group.effects import WantAsked, YieldAsked
from qpid_ha_broker.group.member import GroupMember
from qpid_ha_broker.group.ownership import ranges_of
from qpid_ha_broker.group.recent_moves import RecentMoves
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import ELSEWHERE, SUBMITTED
from qpid_ha_broker.model.sets.resources import Resources

IDLE_SLICE_S: Final = 1.0
"""The longest slice in which nothing happens to the messages of a queue."""
_DOUBLED_MOST: Final = 20


@dataclass(slots=True)
class _WantedQueue:
    """A queue that was asked for, and not yielded since. `since_s`: when it was first seen that this member has it."""

    asked_s: float
    since_s: float = -1.0
    counts: tuple[int, ...] = ()
    """Of its messages, as they were then."""
    is_idle: bool = False
    """There has been nothing to give."""

    @property
    def is_serving(self) -> bool:
        return self.since_s >= 0.0


class Slices:
    """The promise: whoever waits for a queue waits one slice of each member before it, and the time to tell.

    A queue is looked at when its consumers, its owner or who waits for it have changed, and at each turn while this
    member is about to have it, or has it and others wait: queues that one member wants, or none, cost nothing.
    """

    def __init__(self, resources: Resources, due: dict[Queue, None], slice_s: float, comeback_s: float) -> None:
        """`due`: see `Grouped.due`; `comeback_s`: `GroupSettings.comeback_s`."""
        self._catalog = resources.catalog
        self._due = due
        self._owned_work, self._shrinking = resources.purges.owned, resources.shrinking
        self._slice_s, self._comeback_ms = slice_s, int(comeback_s * 1000)
        self.moves_total = 0
        """How often this member came to hand out from a queue."""
        self.recent_moves = RecentMoves()
        """Of all members, as delivered to this one."""
        self.ends_s = inf
        """When the next slice of this member ends, as far as the last turn can tell."""
        self._idle: dict[int, int] = {}
        """By queue, how many of the last slices here went by without anything that happened to its messages."""
        self._members: tuple[str, ...] = ()
        """Whom the record named at the last turn; empty: this member has just begun to take part."""
        self._seen_used: set[int] = set()
        """Queues that delete themselves, and of which users have been seen."""
        self._asked: dict[int, _WantedQueue] = {}
        self._watched: dict[int, None] = {}
        """Queues to look at in the next turn, whatever happens."""
        self._catalog.used_otherwise = {}

    def forget(self) -> None:
        """This member has no part in the group: nobody knows any more what it asked for."""
        self._asked.clear()
        self._idle.clear()

    def begin(self) -> None:
        """This member takes part from now on: all is to be looked at that somebody may want."""
        self._members = ()
        self._watched |= dict.fromkeys(self._asked)
        for queue in self._catalog.queues.values():
            if queue.dispatcher.consumers:
                self._catalog.wake(queue)

    def turn(self, member: GroupMember, now_s: float) -> list[WantAsked | YieldAsked]:
        """What is to be said at the end of a turn. Consumers of a queue that has come are woken."""
        if self._members != member.record.members and self._catalog.now_ms:
            if not set(member.record.members).issuperset(self._members or ("",)):
                self._keep_for_return(member)
            self._members = member.record.members
        changed, self._catalog.used_otherwise = self._catalog.used_otherwise or {}, {}
        watched, self._watched = self._watched, {}
        moved = member.queues.take_moved()
        for queue_id, times in moved.items():
            if times:
                self.recent_moves.note(queue_id, times, now_s)
        looked_at = {**watched, **dict.fromkeys(moved)}
        for queue in (*changed, *self._due):
            looked_at[queue.id] = None
        self._due.clear()
        self.ends_s = inf
        said: list[WantAsked | YieldAsked] = []
        for queue_id in looked_at:
            there = self._catalog.queues_by_id.get(queue_id)
            if there is None:
                self._asked.pop(queue_id, None)
                self._idle.pop(queue_id, None)
                self._seen_used.discard(queue_id)
            else:
                said += self.look_at(member, there, now_s)
        return said

    def wake(self, member: GroupMember) -> None:
        """More is known to all: consumers of queues that have come are given messages with the next turn, and then are
        told what has to be behind these (that a drain is over)."""
        for queue_id in (*self._watched, *member.queues.moved):
            queue = self._catalog.queues_by_id.get(queue_id)
            if queue is not None and member.queues.may_hand_out(queue_id):
                self._catalog.awake[queue] = None

    def look_at(self, member: GroupMember, queue: Queue, now_s: float) -> list[WantAsked | YieldAsked]:
        """What is to be said of one queue."""
        asked, has_work = self._asked.get(queue.id), self._owned_work.wants(queue)
        deletes_itself = queue.arguments.auto_delete
        wants = has_work or queue.dispatcher.has_takers_with_credit or (deletes_itself and queue.dispatcher.has_takers)
        if deletes_itself:
            self._note_use(member, queue)
        if member.queues.may_hand_out(queue.id):
            self._shrinking.drop(queue)
        is_due = queue.messages.expiries.is_due(self._catalog.now_ms) or self._shrinking.is_due(queue)
        if asked is None:
            is_nobodys = is_due and member.is_first and not member.queues.owner(queue.id)
            return self._ask(queue, now_s) if wants or is_nobodys else []
        if member.queues.may_hand_out(queue.id) and not asked.is_serving:
            asked.since_s, asked.counts = now_s, _counts(queue)
            self.moves_total += 1
            self._catalog.awake[queue] = None
        has_takers, others_want = has_work or queue.dispatcher.has_takers, member.queues.others_want(queue.id)
        ends_s = self._slice_ends_s(asked, queue, now_s) if asked.is_serving and others_want else inf
        if ends_s <= now_s or not (has_takers or is_due):
            self._idle[queue.id] = self._idle.get(queue.id, 0) + 1 if asked.counts == _counts(queue) else 0
            del self._asked[queue.id]
            return [YieldAsked(queue.id, ranges_of(held_here(queue))), *(self._ask(queue, now_s) if wants else ())]
        if member.queues.owner(queue.id) == member.name and (
            others_want or not (asked.is_serving and queue.dispatcher.has_takers)
        ):
            self._watched[queue.id] = None
            self.ends_s = min(self.ends_s, ends_s)
        return []

    def _slice_ends_s(self, asked: _WantedQueue, queue: Queue, now_s: float) -> float:
        is_changed, messages = asked.counts != _counts(queue), queue.messages
        if not is_changed and messages.count == messages.acquired + messages.schedule.count:
            asked.is_idle = True
        elif asked.is_idle:
            asked.is_idle, asked.since_s = False, now_s
        if is_changed:
            return asked.since_s + self._slice_s
        doubled = min(self._idle.get(queue.id, 0), _DOUBLED_MOST)
        return asked.since_s + min(self._slice_s * (1 << doubled), IDLE_SLICE_S)

    def _keep_for_return(self, member: GroupMember) -> None:
        """Users of queues that delete themselves, or are exclusive, may have been connected to who has left."""
        for queue in self._catalog.queues.values():
            was_had = queue.arguments.exclusive and bool(queue.owner) and member.queues.is_anybodys(queue.id)
            if queue.arguments.auto_delete or was_had:
                queue.reserve(self._catalog.now_ms + self._comeback_ms)
                self._catalog.note_use(queue)

    def _note_use(self, member: GroupMember, queue: Queue) -> None:
        """Whether it is used, at any member."""
        if queue.dispatcher.has_takers or member.queues.is_wanted_elsewhere(queue.id):
            queue.unused_since_ms = None
            self._seen_used.add(queue.id)
        elif not self._catalog.now_ms:
            self._watched[queue.id] = None  # it does not know the time yet
        elif queue.used and queue.unused_since_ms is None:
            # That it is used is told before its user is: who has not been seen may have gone, or be about to come.
            since_ms = self._catalog.now_ms + (0 if queue.id in self._seen_used else self._comeback_ms)
            queue.unused_since_ms = max(since_ms, queue.reserved_until_ms)
        self._catalog.timed[queue] = None

    def _ask(self, queue: Queue, now_s: float) -> list[WantAsked | YieldAsked]:
        self._asked[queue.id] = _WantedQueue(now_s)
        return [WantAsked(queue.id)]

    def waited_for(self, now_s: float, longer_than_s: float) -> list[tuple[Queue, float]]:
        """Queues that were asked for so long ago and have not come, with for how many seconds they are waited for."""
        queues = self._catalog.queues_by_id
        return [
            (queues[queue_id], now_s - asked.asked_s)
            for queue_id, asked in self._asked.items()
            if not asked.is_serving and now_s - asked.asked_s > longer_than_s and queue_id in queues
        ]


def _counts(queue: Queue) -> tuple[int, ...]:
    messages = queue.messages
    return messages.acquired, messages.enqueued_total, messages.dequeued_total


def held_here(queue: Queue) -> list[int]:
    """Ids of what consumers of this member have, and have not answered. What sessions hold, the log tells."""
    missing, held = queue.messages.acquired, []
    for entry in queue.messages if missing else ():
        if not entry.is_free:
            missing -= 1
            is_here = entry.holder is not ELSEWHERE and entry.holder is not SUBMITTED
            if is_here and entry.id not in queue.held:
                held.append(entry.id)
            if not missing:
                break
    return held
