"""Whether the agent of a broker looks after it: the broker lives on without one, and nobody else would notice.

An agent asks for the status of its broker twice a second (`agent` of the control method). One that was stopped by a
signal, or has died, asks no more. A broker whose agent has never asked has none, as far as it knows: it is started by
hand, by Pacemaker or by rgmanager.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class AgentPolls:
    """When it asked last, in seconds of a clock that never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_s: float | None = None

    def asked(self) -> None:
        """It has."""
        self._asked_s = self._clock()

    def silent_s(self) -> float | None:
        """Since it asked last; None: it never did."""
        return None if self._asked_s is None else max(self._clock() - self._asked_s, 0.0)
