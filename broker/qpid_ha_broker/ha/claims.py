"""Promises to candidates, for clusters without a coordinator: from now on I follow nobody older than you.

Without it a backup could go on confirming for the old primary while another one is being promoted on what the backup
said of itself before. A promise lapses: a candidate that died must not keep its cluster waiting.
"""

from __future__ import annotations

from qpid_ha_broker.ha.frames import Question
from qpid_ha_broker.ha.promotion import PROMISE_LIMITS
from qpid_ha_broker.ha.surroundings import Surroundings


class Claims:
    """The promise: while one is live, no older generation is followed and nobody else is promised the same."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._generation = 0
        self._to = ""
        self._made_s = 0.0

    @property
    def is_live(self) -> bool:
        """Whether a promise binds this broker now."""
        limit_s = 2 * PROMISE_LIMITS * self._around.settings.ask_limit_s
        return bool(self._generation) and self._around.now_s - self._made_s < limit_s

    @property
    def promised(self) -> tuple[int, str]:
        """The generation and to whom; (0, "") when nothing binds."""
        return (self._generation, self._to) if self.is_live else (0, "")

    def promise(self, question: Question, newest: int) -> str:
        """Promise the asker's generation; returns why not, if not. `newest`: the generation of this broker's log."""
        generation, to = self.promised
        if question.generation <= newest:
            return f"generation {newest} has begun already"
        if generation and to != question.asker and question.generation <= generation:
            return f"{to} was promised generation {generation}"
        self._generation, self._to, self._made_s = question.generation, question.asker, self._around.now_s
        return ""

    def withdraw(self, question: Question) -> None:
        """The candidate is none any more."""
        if question.asker == self._to:
            self.forget()

    def forget(self) -> None:
        """Whom it was made to has become primary, or nobody needs it."""
        self._generation, self._to = 0, ""
