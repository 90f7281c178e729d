"""What lives in this process while the garbage collector does not run: what is left over is held, or in a cycle."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qpid_ha_broker.model.exchanges.broker_events import BrokerEvent


@contextmanager
def no_collector() -> Iterator[None]:
    """Only reference counts free anything meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def leave_out_what_lives() -> None:
    """Count nothing of what earlier tests have left: gigabytes, in a process that ran thousands, and each look is at
    every object. What lives now is not looked for garbage any more, either."""
    gc.collect()
    gc.freeze()


def live_objects() -> Counter[str]:
    """How many objects of each type there are, of those that the collector knows. Events for who watches, of which 1000
    of each subject are kept (test_broker_events), are not counted."""
    kinds = (kind for kind in map(type, gc.get_objects()) if kind is not BrokerEvent)
    return Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


def growth(each: Callable[[], object], rounds: int) -> dict[str, int]:
    """By type: how many more objects live after twice as many `rounds` than after once as many, where most rounds leave
    one at least: what threads of other tests do meanwhile is less.

    The first rounds fill what is bounded: caches, free lists, tags that serve again.
    """
    with no_collector():
        for _ in range(rounds):
            each()
        before = live_objects()
        for _ in range(rounds):
            each()
        after = live_objects()
        return {kind: more for kind, number in after.items() if (more := number - before[kind]) > rounds // 2}
