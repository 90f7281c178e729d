"""Work that would take too long for one step: done in portions, so that nobody else is kept waiting for it.

Purges, deletions, rings that shrink, what comes back from consumers that have gone, links that end, the memory of what
is no more: each is a task, and all share one budget of time in each turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from qpid_ha_broker.model.budget import UNLIMITED, Budget

Task = Iterator[None]
"""Does one portion, a few milliseconds at most, whenever it is asked for the next. Between two portions anything may
happen to what it works on, so each begins by looking whether it is still to be done."""

Item = TypeVar("Item")

EMPTIED_LENGTH: Final = 500
"""Objects that are let go of together."""


class WorkQueue:
    """The promise: no task gets on by two portions while another one waits."""

    __slots__ = ("tasks",)

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        """What `run` has to do; the one whose turn is next first."""

    def __bool__(self) -> bool:
        """Whether `run` has something to do."""
        return bool(self.tasks)

    def add(self, task: Task) -> None:
        """Begin `task` with one of the next calls of `run`."""
        self.tasks.append(task)

    def run(self, budget: Budget = UNLIMITED) -> None:
        """Do a portion of each task in turn until all have come to their end or `budget` is spent: one at least."""
        while self.tasks:
            task = self.tasks.popleft()
            if next(task, _END) is not _END:
                self.tasks.append(task)
            if budget.is_spent:
                break


_END: Final = object()


def finish(task: Task) -> None:
    """Do all that is left of `task` now; whatever queue it is in finds nothing more to do."""
    deque(task, maxlen=0)


def used_up(objects: list[Item]) -> Iterator[Item]:
    """Each of `objects`, which is held no longer then: at the end there is no memory of all of them to be freed."""
    objects.reverse()
    while objects:
        yield objects.pop()


def emptied(collection: dict[Any, Any] | list[Any]) -> Task:
    """Lets go of all that `collection` holds: to free the memory of a hundred thousand objects takes long."""
    drop: Callable[[], object] = collection.popitem if isinstance(collection, dict) else collection.pop
    while collection:
        for _ in range(min(len(collection), EMPTIED_LENGTH)):
            drop()
        yield
