"""What the controller has done, and why: the last of it, for operators who come later. Its log has all of it."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

MOST_KEPT: Final = 1000


class HistoryEntry(NamedTuple):
    """One thing that was done, or happened."""

    at_ms: int
    """The time of day, in ms since 1970."""
    about: str
    """A set or a broker."""
    text: str


class ClusterHistory:
    """The newest MOST_KEPT entries since this controller began, the oldest first."""

    def __init__(self) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=MOST_KEPT)

    def clear(self) -> None:
        """A new controller has done nothing yet."""
        self._entries.clear()

    def add(self, at_ms: int, about: str, text: str) -> None:
        """It happens now."""
        self._entries.append(HistoryEntry(at_ms, about, text))

    def entries(self, about: str = "") -> list[HistoryEntry]:
        """All, or those about one set or broker."""
        return [entry for entry in self._entries if about in ("", entry.about)]
