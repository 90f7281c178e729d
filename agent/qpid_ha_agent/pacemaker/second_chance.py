"""A promotion that was refused is tried again as soon as somebody answers who did not before.

After a loss of all power a broker must not lead before all of the last in-sync set can be asked. Pacemaker tries those
that come first, and each refuses; the score rises again with the next monitor only. That may be ten seconds after the
one that was missing has come. So while nobody is primary the watcher looks who answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

JUST_NOW_S = 2.0
"""Who has come so long before a refusal was most likely asked already, and is no reason to try once more."""


class SecondChance:
    """The promise: one more attempt for each that comes, and none without."""

    def __init__(
        self, who_answers: Callable[[], Collection[str]], is_refused: Callable[[], bool], try_again: Callable[[], None]
    ) -> None:
        self._who_answers = who_answers
        self._is_refused = is_refused
        self._try_again = try_again
        self._answering: frozenset[str] | None = None
        """At the last look; None: nobody has looked since there was a primary."""
        self._came_at_s: float | None = None

    def look(self, has_primary: bool, now_s: float) -> None:
        """Twice a second or so."""
        if has_primary:
            self._answering = self._came_at_s = None
            return
        answering = frozenset(self._who_answers())
        if self._answering is not None and answering - self._answering:
            self._came_at_s = now_s
        self._answering = answering
        if self._came_at_s is None:
            return
        if self._is_refused():
            self._came_at_s = None
            self._try_again()
        elif now_s - self._came_at_s > JUST_NOW_S:
            self._came_at_s = None
