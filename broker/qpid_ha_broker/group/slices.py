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

What has to leave: messages that have expired; of a ring those over its limits, the oldest first; of a last-value queue
those that newer values took the place of. All but the first is seen when a message is delivered, by all members, so a
queue is over its limits, or has two values of a key, until its owner has said what leaves, and that is delivered. It is
decided again from what is there by who owns the queue next: a member that dies in the middle leaves nothing undone, and
what it has said and nobody was delivered counts nowhere.

With what it yields it tells which messages its consumers still have.

A queue that deletes itself is used as long as somebody has it, or waits for it: so a member with consumers asks whether
they have credit or not, and one without yields. Each member notes since when nobody does. The first member has it
deleted (`QueueTimers`), after a time in which users of a member that has left may come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from qpid_ha_broker.group.effects import WantAsked, YieldAsked
from qpid_ha_broker.group.member import GroupMember
from qpid_ha_broker.group.ownership import ranges_of
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import ELSEWHERE, SUBMITTED
from qpid_ha_broker.model.sets.resources import Resources


@dataclass(slots=True)
class _WantedQueue:
    """A queue that was asked for, and not yielded since. `since_s`: when it was first seen that this member has it."""

    since_s: float = -1.0

    @property
    def is_serving(self) -> bool:
        return self.since_s >= 0.0


class Slices:
    """The promise: whoever waits for a queue waits one slice of each member before it, and the time to tell.

    A queue is looked at when its consumers, its owner or who waits for it have changed, and at each turn only while
    this member is about to have it, or about to yield it: queues at rest cost nothing.
    """

    def __init__(self, resources: Resources, due: dict[Queue, None], slice_s: float, comeback_s: float) -> None:
        """`due`: see `Grouped.due`; `comeback_s`: `GroupSettings.comeback_s`."""
        self._catalog = resources.catalog
        self._due = due
        self._owned_work, self._shrinking = resources.purges.owned, resources.shrinking
        self._slice_s, self._comeback_ms = slice_s, int(comeback_s * 1000)
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
                self._keep_for_return()
            self._members = member.record.members
        changed, self._catalog.used_otherwise = self._catalog.used_otherwise or {}, {}
        watched, self._watched = self._watched, {}
        looked_at = {**watched, **dict.fromkeys(member.queues.take_moved())}
        for queue in (*changed, *self._due):
            looked_at[queue.id] = None
        self._due.clear()
        said: list[WantAsked | YieldAsked] = []
        for queue_id in looked_at:
            there = self._catalog.queues_by_id.get(queue_id)
            if there is None:
                self._asked.pop(queue_id, None)
                self._seen_used.discard(queue_id)
            else:
                said += self.look_at(member, there, now_s)
        return said

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
            return self._ask(queue) if wants or is_nobodys else []
        if member.queues.may_hand_out(queue.id) and not asked.is_serving:
            asked.since_s = now_s
            self._catalog.awake[queue] = None
        has_takers, others_want = has_work or queue.dispatcher.has_takers, member.queues.others_want(queue.id)
        is_over = asked.is_serving and others_want and now_s - asked.since_s >= self._slice_s
        if is_over or not (has_takers or is_due):
            del self._asked[queue.id]
            return [YieldAsked(queue.id, ranges_of(held_here(queue))), *(self._ask(queue) if wants else ())]
        if member.queues.owner(queue.id) == member.name and (
            others_want or not (asked.is_serving and queue.dispatcher.has_takers)
        ):
            self._watched[queue.id] = None
        return []

    def _keep_for_return(self) -> None:
        """Users of queues that delete themselves may have been connected to who has left."""
        for queue in self._catalog.queues.values():
            if queue.arguments.auto_delete:
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

    def _ask(self, queue: Queue) -> list[WantAsked | YieldAsked]:
        self._asked[queue.id] = _WantedQueue()
        return [WantAsked(queue.id)]


def held_here(queue: Queue) -> list[int]:
    """Ids of what consumers of this member have, and have not answered."""
    missing, held = queue.messages.acquired, []
    for entry in queue.messages if missing else ():
        if entry.holder is not None:
            missing -= 1
            if entry.holder is not ELSEWHERE and entry.holder is not SUBMITTED:
                held.append(entry.id)
            if not missing:
                break
    return held
