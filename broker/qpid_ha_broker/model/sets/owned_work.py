"""Work in portions on a queue whose messages only one broker may take: in a group it waits until this member owns it.

| the queue, before each portion | a set with a primary | a group |
| --- | --- | --- |
| is this broker's to hand out | goes on | goes on |
| is another member's, or nobody's | | waits, and the queue is asked for (`group.slices`) |
| is gone, or nothing may be written here | goes on, for the task to give up | the same |

In a group a portion counts later: a task whose next one depends on it (`is_ready`) waits for that, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.work import Task, WorkQueue, finish


class OwnedWork:
    """The promise: each task that was begun comes to its end, and of none a portion is done where another member may
    give away what it takes; `work` has its portions."""

    def __init__(self, sets: ResourceSets, work: WorkQueue) -> None:
        self._sets = sets
        self._work = work
        self._tasks: dict[Task, tuple[Queue, Callable[[], bool]]] = {}
        """Those that go on, with their queues, and whether the next portion may be done."""
        self._waiting: dict[Task, None] = {}
        """Those of them that have to wait."""

    def begin(self, queue: Queue, task: Task, *, is_short: bool, is_ready: Callable[[], bool] = lambda: True) -> None:
        """Do `task`; what `is_short` without waiting for a turn, unless it has to wait for `queue`."""
        self._tasks[task] = queue, is_ready
        if is_short:
            finish(self._run(task))
        else:
            self._work.add(self._run(task))

    def wants(self, queue: Queue) -> bool:
        """Whether this member has to own `queue` for one of them."""
        return any(wanted is queue for wanted, _ in self._tasks.values())

    def resume(self) -> None:
        """Go on with those that have waited, if they need not any more, or come to nothing."""
        for task in [task for task in self._waiting if not self._has_to_wait(task)]:
            del self._waiting[task]
            self._work.add(self._run(task))

    def _has_to_wait(self, task: Task) -> bool:
        queue, is_ready = self._tasks[task]
        is_writable = not queue.deleted and self._sets.may_write(queue)
        in_group = is_writable and self._sets.replication.counts_later
        return in_group and not (self._sets.hands_out(queue) and is_ready())

    def _run(self, task: Task) -> Task:
        while not self._has_to_wait(task):
            if next(task, _END) is _END:
                del self._tasks[task]
                return
            yield
        self._waiting[task] = None
        self._sets.replication.note_due(self._tasks[task][0])


_END: Final = object()
