"""Lines of the log about resource sets: what happens to hundreds of them at once is said twice, and not each time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

ALIKE_S: Final = 1.0
"""Within this the same text about another set is the same line."""
NAMED_AT_MOST: Final = 5


class SetLines:
    """The promise: a text is logged at once for the first set that it is about, and for all others of the next second
    together. `clock`: seconds, never jumps."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = lambda: time.monotonic()) -> None:
        self._log = log
        self._clock = clock
        self._others: dict[tuple[int, str], tuple[float, dict[str, None]]] = {}
        """By level and text: until when other sets are counted, and which they were."""

    def log(self, level: int, set_name: str, text: str) -> None:
        """One set has something to say. What is no warning is a line of its own."""
        self.flush()
        if level < logging.WARNING:
            self._log.log(level, "set %s: %s", set_name, text)
        elif (level, text) in self._others:
            self._others[level, text][1][set_name] = None
        else:
            self._log.log(level, "set %s: %s", set_name, text)
            self._others[level, text] = self._clock() + ALIKE_S, {}

    def flush(self) -> None:
        """Write what is due; to be called several times in a second."""
        now_s = self._clock()
        for key, (until_s, others) in list(self._others.items()):
            if now_s >= until_s:
                del self._others[key]
                self._write(*key, list(others))

    def _write(self, level: int, text: str, others: list[str]) -> None:
        if len(others) == 1:
            self._log.log(level, "set %s: %s", others[0], text)
        elif others:
            names = ", ".join(others[:NAMED_AT_MOST]) + (", ..." if len(others) > NAMED_AT_MOST else "")
            self._log.log(level, "%d other sets (%s): %s", len(others), names, text)
