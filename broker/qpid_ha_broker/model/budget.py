"""How long a piece of work may go on before others have their turn. The clock is the driver's."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds, from wherever; never goes back."""


class Budget:
    """Time for one piece of work, from its making on."""

    __slots__ = ("_clock", "_until")

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._until = clock() + limit_s

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up: it is time to stop."""
        return self._clock() >= self._until


UNLIMITED = Budget(lambda: 0.0, 1.0)
