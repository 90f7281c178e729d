"""What is noted of a broker for its charts, and what a chart is asked for. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from qpid_ha_broker.metrics.figure_history import NOTHING, SPANS, ChartSpan, Figure, mean
from qpid_ha_broker.metrics.histogram import Histogram

BROKER_FIGURES: Final = (
    Figure("in", mean),
    Figure("out", mean),
    Figure("depth", max),
    Figure("confirm_s", max),
    Figure("cpu", mean),
    Figure("memory", max),
    Figure("message_memory", max),
    Figure("disk_free", min),
    Figure("descriptors", max),
    Figure("connections", max),
)
"""Of the sets that it leads: messages that came and left in a second, those that are there, and how long a confirmation
took on average; of the process: cores that were busy, bytes in RAM, bytes of messages, bytes that are free where its
data are, open descriptors, and connections."""


class ChartError(ValueError):
    """No chart can be made of what was asked; the text says what would be right."""


@dataclass(frozen=True, slots=True)
class ChartRequest:
    """Which chart is asked for."""

    span: ChartSpan
    queue: str | None = None
    """None: the figures of the broker."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> ChartRequest:
        """The parameters of a request. Raises ChartError."""
        unknown = sorted({*given} - {"span", "queue"})
        if unknown:
            raise ChartError(f"unknown parameter {unknown[0]!r:.80}; there are span, queue")
        if (span := given.get("span", "1h")) not in SPANS:
            raise ChartError(f"span is one of {', '.join(SPANS)}")
        return cls(SPANS[span], given.get("queue"))


class MessageFlow:
    """How fast messages come into the sets that are led here, and leave them. The promise: no rate is negative, and
    what a set had before it was led here does not count."""

    def __init__(self) -> None:
        self._before: dict[Hashable, tuple[int, int]] = {}

    def look(self, totals: Mapping[Hashable, tuple[int, int]], elapsed_s: float) -> tuple[float, float]:
        """In a second, since the last look, `elapsed_s` ago. `totals`: what ever came into each set that is led here,
        and what left it; now and then one has a little less than before, when a queue was deleted meanwhile."""
        came = left = 0
        for key, (enqueued, dequeued) in totals.items():
            before = self._before.get(key)
            if before is not None:
                came += max(enqueued - before[0], 0)
                left += max(dequeued - before[1], 0)
        self._before = {
            key: (max(enqueued, before[0]), max(dequeued, before[1]))
            for key, (enqueued, dequeued) in totals.items()
            for before in (self._before.get(key, (0, 0)),)
        }
        return (came / elapsed_s, left / elapsed_s) if elapsed_s > 0 else (NOTHING, NOTHING)


class MeanSince:
    """The mean of what came into a histogram from look to look."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._before = (histogram.sum, histogram.count)

    def look(self) -> float:
        """NOTHING: nothing came."""
        now = (self._histogram.sum, self._histogram.count)
        before, self._before = self._before, now
        return (now[0] - before[0]) / (now[1] - before[1]) if now[1] > before[1] else NOTHING
