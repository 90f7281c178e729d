"""How often queues have come to a member lately, for operators: one that goes round all the time costs all members."""

from __future__ import annotations

from typing import Final

SPAN_S: Final = 60.0


class RecentMoves:
    """The promise: no more is remembered than which queues have come to somebody within the last two spans.

    What came in the span before the present one counts for the part of it that lies within the last `SPAN_S` seconds,
    as if it had come evenly: so a queue that has just begun, or has stopped, is not shown a whole span too late.
    """

    def __init__(self) -> None:
        self._began_s = 0.0
        self._now: dict[int, int] = {}
        """By queue, since `_began_s`."""
        self._before: dict[int, int] = {}
        """The same of the span before."""

    def note(self, queue: int, times: int, now_s: float) -> None:
        """A queue has come to some member, or from one to the next, so many times."""
        self._go_on(now_s)
        self._now[queue] = self._now.get(queue, 0) + times

    def count(self, queue: int, now_s: float) -> int:
        """How often it has within the last `SPAN_S` seconds; about, where it did for longer than that."""
        self._go_on(now_s)
        part = 1.0 - (now_s - self._began_s) / SPAN_S
        return self._now.get(queue, 0) + round(self._before.get(queue, 0) * part)

    def _go_on(self, now_s: float) -> None:
        passed_s = now_s - self._began_s
        if passed_s >= SPAN_S:
            self._before = self._now if passed_s < 2 * SPAN_S else {}
            self._now = {}
            self._began_s += passed_s // SPAN_S * SPAN_S
