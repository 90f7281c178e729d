"""Which queues a member asks for, and when it hands them on: the policy above `ownership`.

| a queue of which | this member | |
| --- | --- | --- |
| a consumer here has credit | does not have it, and has not asked | asks |
| nobody here takes anything any more | has it, or has asked | yields |
| somebody here takes something | has it, others wait, and the slice is over | yields, and asks again |
| the same | has it, and nobody waits | goes on |

With what it yields it tells which messages its consumers still have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qpid_ha_broker.group.effects import WantAsked, YieldAsked
from qpid_ha_broker.group.member import GroupMember
from qpid_ha_broker.group.ownership import ranges_of
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import ELSEWHERE, SUBMITTED
from qpid_ha_broker.model.sets.catalog import Catalog


@dataclass(slots=True)
class _WantedQueue:
    """A queue that was asked for, and not yielded since. `since_s`: when it was first seen that this member has it."""

    since_s: float = -1.0

    @property
    def is_serving(self) -> bool:
        return self.since_s >= 0.0


class Slices:
    """The promise: whoever waits for a queue waits one slice of each member before it, and the time to tell."""

    def __init__(self, catalog: Catalog, slice_s: float) -> None:
        self._catalog = catalog
        self._slice_s = slice_s
        self._asked: dict[int, _WantedQueue] = {}

    def forget(self) -> None:
        """This member has no part in the group: nobody knows any more what it asked for."""
        self._asked.clear()

    def turn(self, member: GroupMember, now_s: float) -> list[WantAsked | YieldAsked]:
        """What is to be said at the end of a turn. Consumers of a queue that has come are woken."""
        said: list[WantAsked | YieldAsked] = []
        queues = self._catalog.queues_by_id
        for queue_id in [queue_id for queue_id in self._asked if queue_id not in queues]:
            del self._asked[queue_id]
        for queue_id, queue in queues.items():
            if queue.dispatcher.consumers or queue_id in self._asked:
                said += self._of_queue(member, queue, now_s)
        return said

    def _of_queue(self, member: GroupMember, queue: Queue, now_s: float) -> Iterable[WantAsked | YieldAsked]:
        asked, wants = self._asked.get(queue.id), queue.dispatcher.has_takers_with_credit
        if asked is None:
            if wants:
                self._asked[queue.id] = _WantedQueue()
                yield WantAsked(queue.id)
            return
        if member.may_hand_out(queue.id) and not asked.is_serving:
            asked.since_s = now_s
            self._catalog.wake(queue)
        is_over = asked.is_serving and member.others_want(queue.id) and now_s - asked.since_s >= self._slice_s
        if is_over or not queue.dispatcher.has_takers:
            del self._asked[queue.id]
            yield YieldAsked(queue.id, ranges_of(held_here(queue)))
            if wants:
                self._asked[queue.id] = _WantedQueue()
                yield WantAsked(queue.id)


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
