"""What time does to queues: messages expire, what waits is due, and queues that nobody uses delete themselves."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.events.types import DequeueReason
from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.purge import Shrinking
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.timed_queues import NEVER_MS, has_times

EXPIRED_LENGTH: Final = 500
"""Messages that are looked at together when their time is over, or has come."""
_NEVER: Final = 1 << 64


class QueueTimers:
    """The promise: nothing expires, and no queue is due for deletion, where this broker may not write."""

    def __init__(self, sets: ResourceSets, shrinking: Shrinking) -> None:
        self._sets = sets
        self._shrinking = shrinking
        self._catalog = sets.catalog
        self.is_behind = False
        """The last `tick` came to no end: it is due again."""

    def watch(self, queue: Queue) -> None:
        """Look at `queue` at every tick: it may have to delete itself."""
        self._catalog.timed[queue] = None

    def keep_for_return(self, queue: Queue, until_ms: int) -> None:
        """Until then nobody else gets it, and it does not delete itself: see `Queue.keep_for_return`."""
        if queue.deleted or not self._sets.may_write(queue):
            return
        queue.keep_for_return(until_ms)
        if queue.arguments.auto_delete:
            self.watch(queue)

    def tick(self, now_ms: int, budget: Budget = UNLIMITED) -> list[Queue]:
        """Expire messages, and let what is due be had; returns the auto-delete queues whose time has come: the caller
        deletes them.

        When `budget` is spent there is more to do: see `is_behind`. In a group the owner of a queue does it; that
        somebody has to become the owner is noted.
        """
        self.is_behind = False
        if self._sets.replication.read_only:
            return []
        due, timed = [], self._catalog.timed
        self._catalog.now_ms = now_ms
        self._catalog.timed.next_due_ms = NEVER_MS
        for queue in list(timed):
            if queue.deleted:
                del timed[queue]
                continue
            is_behind = not self._fall_due(queue, now_ms, budget)
            if not self._sets.hands_out(queue):
                self.is_behind |= is_behind
                if self._sets.replication.counts_later:
                    due += self._leave_to_owner(queue, now_ms)
                continue
            if is_behind or not self._expire(queue, now_ms, budget):
                self.is_behind = True
                del timed[queue]
                timed[queue] = None  # behind the others, the next time
                break
            if queue.is_due_for_deletion(now_ms) and self._sets.replication.deletes_unused(queue):
                due.append(queue)
            elif not has_times(queue) and not queue.arguments.auto_delete:
                del timed[queue]
        if self.is_behind:
            self._catalog.timed.next_due_ms = now_ms
        return due

    def fall_due(self, now_ms: int, budget: Budget = UNLIMITED) -> None:
        """Where another broker writes: who only looks sees what is due."""
        self._catalog.timed.next_due_ms = NEVER_MS
        for queue in list(self._catalog.timed):
            if queue.deleted:
                del self._catalog.timed[queue]
            elif not self._fall_due(queue, now_ms, budget):
                self._catalog.timed.next_due_ms = now_ms
                break
            elif queue.messages.schedule.next_ms is None:
                del self._catalog.timed[queue]

    def _fall_due(self, queue: Queue, now_ms: int, budget: Budget) -> bool:
        """Whether all may be had that is due; False when `budget` was spent before."""
        messages = queue.messages
        while (next_ms := messages.schedule.next_ms) is not None and next_ms <= now_ms:
            if messages.schedule.fall_due(now_ms, EXPIRED_LENGTH):
                self._catalog.awake[queue] = None
            if budget.is_spent:
                self._catalog.timed.note_scheduled(queue)
                return False
        self._catalog.timed.note_scheduled(queue)
        return True

    def _leave_to_owner(self, queue: Queue, now_ms: int) -> list[Queue]:
        """Returns the queue itself if this member has it deleted."""
        if queue.is_due_for_deletion(now_ms) and self._sets.replication.deletes_unused(queue):
            return [queue]
        if queue.messages.expiries.is_due(now_ms) or self._shrinking.is_due(queue):
            self._sets.replication.note_due(queue)
        elif not has_times(queue) and not queue.arguments.auto_delete:
            del self._catalog.timed[queue]  # what somebody has is noted when it comes back
        return []

    def _expire(self, queue: Queue, now_ms: int, budget: Budget) -> bool:
        """Whether all is gone whose time is over; False when `budget` was spent before."""
        messages = queue.messages
        while (expired := messages.expired(now_ms, EXPIRED_LENGTH)) or (messages.expiries.next_ms or _NEVER) <= now_ms:
            if expired:
                self._sets.holding(queue).dequeue(queue, expired, DequeueReason.EXPIRED)
            if budget.is_spent:
                return False
        return True
