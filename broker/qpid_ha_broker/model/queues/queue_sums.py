"""What many queues hold together, added up in steps. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final, NamedTuple

from qpid_ha_broker.model.queues.queue import Queue

STEP: Final = 50
"""Queues that are looked at between two pauses."""


class QueueSums(NamedTuple):
    """Of some queues together."""

    queues: int = 0
    messages: int = 0
    bytes: int = 0
    """Of payload."""
    enqueued: int = 0
    dequeued: int = 0


def sum_queues(queues: Iterable[Queue]) -> Generator[None, None, QueueSums]:
    """Add them up; pauses in between. What changes meanwhile is in the sums or not."""
    number = messages = size = enqueued = dequeued = 0
    for number, queue in enumerate(queues, 1):
        if number % STEP == 0:
            yield
        held = queue.messages
        messages += held.count
        size += held.size
        enqueued += held.enqueued_total
        dequeued += held.dequeued_total
    return QueueSums(number, messages, size, enqueued, dequeued)
