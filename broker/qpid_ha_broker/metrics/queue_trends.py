"""How the depth of each queue went, and how fast messages come and go: what a page draws. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable
from typing import Final

from qpid_ha_broker.model.queues.queue import Queue

SAMPLES_MAX: Final = 60
"""Kept of each queue."""
QUEUES_MAX: Final = 20_000
"""So many queues have a trend; the others have none. Of one it takes about 400 bytes."""
STEP: Final = 50
"""Queues that are looked at between two pauses."""
_DEPTH_MAX: Final = (1 << 32) - 1


class QueueTrend:
    """Of one queue. The rates are those between the last two looks; 0 until there were two."""

    __slots__ = ("_dequeued", "_enqueued", "depths", "in_rate", "out_rate")

    def __init__(self) -> None:
        self.depths = array("I")
        """Messages at each look, the newest last; at most SAMPLES_MAX."""
        self.in_rate = 0.0
        """Messages that came, in a second."""
        self.out_rate = 0.0
        """Messages that left, in a second."""
        self._enqueued = 0
        self._dequeued = 0

    def look(self, queue: Queue, elapsed_s: float) -> None:
        """Note how it is now; `elapsed_s`: since the last look."""
        messages = queue.messages
        if self.depths and elapsed_s > 0:  # a backup that starts over takes out what it held: no rate is negative
            self.in_rate = max(messages.enqueued_total - self._enqueued, 0) / elapsed_s
            self.out_rate = max(messages.dequeued_total - self._dequeued, 0) / elapsed_s
        self._enqueued, self._dequeued = messages.enqueued_total, messages.dequeued_total
        if len(self.depths) == SAMPLES_MAX:
            del self.depths[0]
        self.depths.append(min(messages.count, _DEPTH_MAX))


class QueueTrends:
    """Of the queues that there were at the last look."""

    def __init__(self) -> None:
        self._trends: dict[Queue, QueueTrend] = {}
        self._looked_at_s: float | None = None

    def of(self, queue: Queue) -> QueueTrend | None:
        """None: there are too many queues, or it was not there yet."""
        return self._trends.get(queue)

    def look(self, queues: Iterable[Queue], now_s: float) -> Generator[None, None, None]:
        """Note how each of `queues` is; pauses in between. What was not looked at is forgotten."""
        elapsed_s = 0.0 if self._looked_at_s is None else now_s - self._looked_at_s
        self._looked_at_s = now_s
        trends: dict[Queue, QueueTrend] = {}
        for number, queue in enumerate(queues):
            if number == QUEUES_MAX:
                break
            if number % STEP == STEP - 1:
                yield
            if not queue.deleted:
                trend = trends[queue] = self._trends.get(queue) or QueueTrend()
                trend.look(queue, elapsed_s)
        self._trends = trends
