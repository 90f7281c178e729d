"""A purge in portions: dropping three hundred thousand messages takes longer than anybody else may be kept waiting.

So does accepting what a reader has dealt with that only browses: the same for the messages up to one, as consumed; and
what a queue has to drop that newer messages take the place of.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.types import DequeueReason
from qpid_ha_broker.model.errors import ModelError, NotFound, NotPrimary, QueueLocked
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.limits import DISPLACED_LENGTH
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import BLOCK_LENGTH, NO_LIMIT, WAITING, Entry, Holder
from qpid_ha_broker.model.sets.owned_work import OwnedWork
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.strategies import check_unlocked
from qpid_ha_broker.model.work import Task, WorkQueue, finish

PURGED_BLOCKS: Final = 4
"""Blocks of a queue that are looked at together, and dropped with one event: a millisecond or two of work."""
PURGED_LENGTH: Final = PURGED_BLOCKS * BLOCK_LENGTH


class Purge:
    """The promise: it takes only messages that were there when it was asked for and that no consumer holds.

    `up_to`: none with a larger id. `reason`: why they leave, as their events say.

    `written`: None while it goes on; then what to wait for until all of it is committed. `failure`: why it was given
    up; the `count` messages that it had dropped by then are gone.
    """

    __slots__ = ("_newest_id", "_walk", "count", "failure", "has_seen_all", "queue", "reason", "written")

    def __init__(self, queue: Queue, up_to: int = NO_LIMIT, reason: DequeueReason = DequeueReason.PURGED) -> None:
        self.queue = queue
        self.reason = reason
        self.count = 0
        """Messages that it has dropped."""
        self.written: CommitToken | None = None
        self.failure: ModelError | None = None
        self.has_seen_all = False
        """`next_portion` has nothing more to give."""
        self._newest_id = min(queue.log.last_lsn, up_to)
        self._walk = queue.messages.walk(self._newest_id)

    def next_portion(self) -> list[Entry]:
        """What to drop next, which may be nothing."""
        blocks = list(islice(self._walk, PURGED_BLOCKS))
        self.has_seen_all = len(blocks) < PURGED_BLOCKS
        newest_id, free = self._newest_id, free_holders(self.queue)
        if self.reason is DequeueReason.CONSUMED:
            free.discard(WAITING)  # nobody consumes it before its time
        return [entry for block in blocks for entry in block if entry.id <= newest_id and entry.holder in free]

    def give_up(self, kind: type[ModelError], why: str) -> None:
        """The purge comes to no end, because of `why`."""
        done = f"{counted(self.count, 'message')} of queue {self.queue.name} had gone before"
        self.failure = kind(f"it was not finished: {why}; {done}")


class Purges:
    """The promise: each purge that was begun comes to its end, done or given up; `work` has its portions."""

    def __init__(self, sets: ResourceSets, work: WorkQueue) -> None:
        self._sets = sets
        self.owned = OwnedWork(sets, work)
        """Where they wait for their queues, and what else takes messages that nobody else may take meanwhile."""
        self._tasks: dict[Purge, Task] = {}
        """Those that go on."""

    def begin(self, queue: Queue, up_to: int = NO_LIMIT, reason: DequeueReason = DequeueReason.PURGED) -> Purge:
        """Drop what is available; what consumers hold stays theirs. Raises NotPrimary, QueueLocked.

        More than a portion takes its time; consumers that take some of it meanwhile have it.
        """
        self._sets.replication.check_writable()
        check_unlocked(queue)
        purge = Purge(queue, up_to, reason)
        self._tasks[purge] = task = self._run(purge)
        self.owned.begin(queue, task, is_short=queue.messages.count <= PURGED_LENGTH)
        return purge

    def finish(self, queue: Queue) -> None:
        """Bring the purges of `queue` to their end now: its messages are about to get other ids."""
        for purge, task in list(self._tasks.items()):
            if purge.queue is queue:
                finish(task)

    def _run(self, purge: Purge) -> Task:
        queue, sets = purge.queue, self._sets
        while not queue.deleted and sets.may_write(queue):
            entries = purge.next_portion()
            if entries:
                purge.count += len(entries)
                sets.holding(queue).dequeue(queue, entries, purge.reason)
            if purge.has_seen_all:
                purge.written = sets.written
                break
            yield
        else:
            if queue.deleted:
                purge.give_up(NotFound, f"queue {queue.name} was deleted meanwhile")
            elif sets.replication.read_only:
                purge.give_up(NotPrimary, sets.replication.read_only)
            else:
                purge.give_up(QueueLocked, queue.refusal)
        del self._tasks[purge]


class Shrinking:
    """The promise: a ring that is over its limits drops what it may, in portions that `work` has; and in a group a
    last-value queue what newer values took the place of.

    | what newer messages take the place of leaves | decided |
    | --- | --- |
    | in a set with a primary | with the newer message, in one unit but for last values |
    | in a group | by the owner of the queue once the newer one is there; where there is none, the first member asks |

    Once nothing may be written here, the next primary drops the rest with the next message that comes, and the next
    owner in a group when it becomes that.
    """

    def __init__(self, sets: ResourceSets, work: WorkQueue) -> None:
        self._sets = sets
        self._work = work
        self._shrinking: set[Queue] = set()
        """Those that a task is about."""

    def is_due(self, queue: Queue) -> bool:
        """Whether there is something to drop, whoever does it."""
        if not queue.displaces:
            return False
        has_outdated = any(map(_is_free, queue.messages.superseded()))
        return has_outdated or queue.limits.has_excess(self._sets.replication.leaving(queue))

    def begin(self, queue: Queue) -> None:
        """`queue` may be over its limits: for the newest message, or by what has come back."""
        if self.is_due(queue) and queue not in self._shrinking:
            self._shrinking.add(queue)
            self._work.add(self._run(queue))

    def drop(self, queue: Queue) -> None:
        """As `begin`, and the first portion now."""
        if queue.displaces and queue not in self._shrinking and self._drop_portion(queue):
            self.begin(queue)

    def _run(self, queue: Queue) -> Task:
        while self._drop_portion(queue):
            yield
        self._shrinking.discard(queue)

    def _drop_portion(self, queue: Queue) -> bool:
        """Whether there was something, and this broker may drop it."""
        if queue.deleted or not self._sets.hands_out(queue):
            return False
        dropped = list(islice(filter(_is_free, queue.messages.superseded()), DISPLACED_LENGTH))
        queue.limits.displace(dropped)
        dropped = dropped or queue.limits.excess(self._sets.replication.leaving(queue))
        if dropped:
            self._sets.holding(queue).dequeue(queue, dropped, DequeueReason.DISPLACED)
        return bool(dropped)


def _is_free(entry: Entry) -> bool:
    return entry.is_free


def free_holders(queue: Queue) -> set[Holder | None]:
    """Those of what may leave `queue` without anybody's word. What is coming back from who has gone is nobody's."""
    return {None, WAITING, *(returning.holder for returning in queue.dispatcher.returning)}
