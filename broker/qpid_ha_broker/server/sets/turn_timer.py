"""A turn at a time that is known before, for who would otherwise have to wait for the next tick."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf


class TurnTimer:
    """The promise: a turn follows within moments of the earliest time that was asked for since the last one."""

    def __init__(self, turn: Callable[[], None]) -> None:
        self._turn = turn
        self._due_s = inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due_s: float) -> None:
        """`due_s`: by `time.monotonic`; infinity: never. An earlier time that is set already stays."""
        if due_s < self._due_s:
            self.stop()
            self._due_s = due_s
            self._handle = asyncio.get_running_loop().call_later(due_s - time.monotonic(), self._is_due)

    def _is_due(self) -> None:
        self.stop()
        self._turn()

    def stop(self) -> None:
        """No turn follows any more, unless one is asked for again."""
        if self._handle is not None:
            self._handle.cancel()
        self._due_s, self._handle = inf, None
