"""The queues that time will change, and when that is next due for something that waits."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.model.queues.queue import Queue

NEVER_MS: Final = 1 << 64
"""Later than any time."""


class TimedQueues(dict[Queue, None]):
    """The promise: a queue in which a message waits or expires is among them, once something of that was noted here."""

    def __init__(self) -> None:
        super().__init__()
        self.next_due_ms = NEVER_MS
        """Something that waits may be due then, and nothing before."""

    def note_scheduled(self, queue: Queue) -> None:
        """Something in `queue` may have to wait: have it looked at when that is due."""
        next_ms = queue.messages.schedule.next_ms
        if next_ms is not None:
            self[queue] = None
            self.next_due_ms = min(self.next_due_ms, next_ms)


def has_times(queue: Queue) -> bool:
    """Whether time will change something of its messages."""
    return queue.messages.expiries.next_ms is not None or queue.messages.schedule.next_ms is not None
