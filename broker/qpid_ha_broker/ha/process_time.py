"""Whether this process went on running: one that was stopped for a while may have been replaced meanwhile."""

from __future__ import annotations

from typing import Final

PAUSE_S: Final = 0.3
"""A process that was not looked at for longer was stopped: ticks come ten times a second."""


class ProcessTime:
    """Of a broker, for its members of all sets: whoever of them looks first after a stop has noticed it for all.

    Looked at in each tick, and before each decision for which a stop matters, by the clock that members have.
    """

    __slots__ = ("_looked_s", "pause_s", "ran_until_s", "woke_s")

    def __init__(self, pause_s: float = PAUSE_S) -> None:
        self.pause_s = pause_s
        self.ran_until_s = 0.0
        """It was not stopped before that, as far as members at rest need to know."""
        self.woke_s = 0.0
        """When it went on after it was stopped last; 0: it never was."""
        self._looked_s = 0.0

    def look(self, now_s: float) -> float:
        """When it went on last, as it is seen now."""
        if self._looked_s and now_s - self._looked_s > self.pause_s:
            self.woke_s = now_s
        self._looked_s = now_s
        return self.woke_s
