"""How the depth of each queue went, and how fast messages come and go: what a page draws. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from qpid_ha_broker.metrics.figure_history import Figure, FigureHistory, Ring, mean
from qpid_ha_broker.model.queues.queue import Queue

SAMPLES_MAX: Final = 60
"""Depths that are kept of each queue."""
QUEUES_MAX: Final = 20_000
"""So many queues have a trend; the others have none. Of one it takes about 450 bytes."""
CHARTS_MAX: Final = 200
"""So many queues have a day of figures besides. Of one it takes 26 KiB at most."""
STILL_S: Final = 600.0
"""A queue in which nothing came or left for so long makes way for one that needs its place."""
QUEUE_FIGURES: Final = (Figure("in", mean), Figure("out", mean), Figure("depth", max))
"""What is kept of a day: messages that came and left in a second, and those that were there."""
STEP: Final = 50
"""Queues that are looked at between two pauses."""
_DEPTH_MAX: Final = (1 << 32) - 1


class QueueTrend:
    """Of one queue. The rates are those between the last two looks; 0 until there were two."""

    __slots__ = ("_dequeued", "_enqueued", "depths", "in_rate", "out_rate")

    def __init__(self) -> None:
        self.depths = Ring("I")
        """Messages at each look; at most SAMPLES_MAX."""
        self.in_rate = 0.0
        """Messages that came, in a second."""
        self.out_rate = 0.0
        """Messages that left, in a second."""
        self._enqueued = 0
        self._dequeued = 0

    def look(self, queue: Queue, elapsed_s: float) -> bool:
        """Note how it is now; `elapsed_s`: since the last look. Whether something came or left since."""
        messages = queue.messages
        enqueued, dequeued = messages.enqueued_total, messages.dequeued_total
        has_moved = (enqueued, dequeued) != (self._enqueued, self._dequeued)
        if len(self.depths) and elapsed_s > 0:  # a backup that starts over takes out what it held: no rate is negative
            self.in_rate = max(enqueued - self._enqueued, 0) / elapsed_s
            self.out_rate = max(dequeued - self._dequeued, 0) / elapsed_s
        self._enqueued, self._dequeued = enqueued, dequeued
        self.depths.append(min(messages.count, _DEPTH_MAX), SAMPLES_MAX)
        return has_moved


class QueueTrends:
    """Of the queues that there were at the last look."""

    def __init__(self) -> None:
        self._trends: dict[Queue, QueueTrend] = {}
        self._charts: dict[Queue, FigureHistory] = {}
        """At most CHARTS_MAX."""
        self._moved_s: dict[Queue, float] = {}
        """When something last came into one that has a chart, or left it, or somebody asked for it; the longest ago
        first."""
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
                chart = self._chart(queue, now_s) if trend.look(queue, elapsed_s) else self._charts.get(queue)
                if chart is not None:
                    chart.note(now_s, (trend.in_rate, trend.out_rate, queue.messages.count))
        self._trends = trends
        for queue in [queue for queue in self._charts if queue not in trends]:
            self._forget_chart(queue)

    # --- a day of some of them

    def asked_for(self, queue: Queue, now_s: float) -> FigureHistory | None:
        """The chart of a queue that was there at the last look; from now on, if it had none. None: all places are taken
        by queues that are used."""
        return self._chart(queue, now_s) if queue in self._trends else None

    def _chart(self, queue: Queue, now_s: float) -> FigureHistory | None:
        """That of a queue that is used now."""
        if queue not in self._charts:
            if len(self._charts) >= CHARTS_MAX:
                stillest = next(iter(self._moved_s))
                if now_s - self._moved_s[stillest] < STILL_S:
                    return None
                self._forget_chart(stillest)
            self._charts[queue] = FigureHistory(QUEUE_FIGURES)
        self._moved_s.pop(queue, None)
        self._moved_s[queue] = now_s
        return self._charts[queue]

    def _forget_chart(self, queue: Queue) -> None:
        del self._charts[queue]
        del self._moved_s[queue]
