"""How fast a backup may catch up while clients work: fast enough to be over soon, and not at their cost.

A catch-up that takes what it can get takes most of a primary: its work is always there, and clients wait for answers
before they send more. So it gets all that is left when nobody else wants anything, and a fixed rate otherwise.
"""

from __future__ import annotations

from typing import Final

RATE_PER_S: Final = 160_000
"""Messages, while clients are busy: about a third of a core of the primary."""
BUSY_EVENTS: Final = 10
"""Events that clients caused in one turn: fewer leave enough room."""
BUSY_S: Final = 0.05
LEAST_CHUNK: Final = 50
CHUNK_PER_EVENT: Final = 2
"""In a turn in which clients were served: so many messages for each event of theirs, so that no turn takes long."""


class CatchUpPace:
    """One for a primary: several backups that catch up at once share it."""

    __slots__ = ("_at_s", "_busy_until_s", "_saved", "_turn_limit")

    def __init__(self) -> None:
        self._at_s = 0.0
        self._busy_until_s = 0.0
        self._saved = 0.0
        """Messages that may go; what is not used in time is lost."""
        self._turn_limit: int | None = None

    def turn(self, clock_s: float, events: int) -> None:
        """A turn in which clients wrote so many `events`."""
        if events >= BUSY_EVENTS:
            self._busy_until_s = clock_s + BUSY_S
        self._saved = min(self._saved + (clock_s - self._at_s) * RATE_PER_S, BUSY_S * RATE_PER_S)
        self._at_s = clock_s
        self._turn_limit = LEAST_CHUNK + CHUNK_PER_EVENT * events if events else None

    def allowance(self, most: int) -> int:
        """How many messages may go now, of `most`; 0: later."""
        if self._at_s >= self._busy_until_s:
            return most if self._turn_limit is None else min(most, self._turn_limit)
        return min(most, int(self._saved)) if self._saved >= min(most, LEAST_CHUNK) else 0

    def spend(self, messages: int) -> None:
        """So many went."""
        self._saved = max(self._saved - messages, 0.0)
