"""How long publishers wait: from the turn that wrote an event to the one in which it is committed and can be told.

It is counted by turn, not by message: two numbers are noted when a turn wrote something, and what is committed at the
end of a later one has waited from then on.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from qpid_ha_broker.metrics.histogram import Histogram

NOTES_MAX: Final = 10_000
"""Turns that wait; while nothing is confirmed for long, the newest of them count as one."""


class ConfirmLatency:
    """Of one log. The promise: each event counts once, and one that the log lost does not."""

    __slots__ = ("_last_lsn", "_notes", "histogram")

    def __init__(self, last_lsn: int, histogram: Histogram) -> None:
        """`last_lsn`: where the log ends; what is in it does not count. `histogram`: may be that of other logs, too."""
        self.histogram = histogram
        self._last_lsn = last_lsn
        self._notes: deque[tuple[int, int, float]] = deque()
        """Last LSN of a turn, how many events it wrote, and when."""

    def turn_ended(self, last_lsn: int, committed_lsn: int, now_s: float) -> None:
        """The log ends at `last_lsn` and is committed up to `committed_lsn`; `now_s`: a clock that never goes back."""
        notes = self._notes
        if last_lsn < self._last_lsn:  # it went back: what was behind there is gone
            notes.clear()
        elif last_lsn > self._last_lsn:
            written = last_lsn - self._last_lsn
            if len(notes) >= NOTES_MAX:
                _, others, since_s = notes.pop()
                notes.append((last_lsn, written + others, since_s))
            else:
                notes.append((last_lsn, written, now_s))
        self._last_lsn = last_lsn
        while notes and notes[0][0] <= committed_lsn:
            _, written, since_s = notes.popleft()
            self.histogram.observe(now_s - since_s, written)
