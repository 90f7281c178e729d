"""Promises to candidates, for clusters without a coordinator: from now on I follow nobody older than you.

Without it a backup could go on confirming for the old primary while another one is being promoted on what the backup
said of itself before. After a while a candidate is not waited for any more: it may have died. But unless it withdrew,
its generation may have begun without our knowing: no older one is followed, and nobody else is promised the same.
"""

from __future__ import annotations

from qpid_ha_broker.ha.frames import Question
from qpid_ha_broker.ha.promotion import PROMISE_LIMITS
from qpid_ha_broker.ha.surroundings import Surroundings


class Claims:
    """The promise: what was promised and not withdrawn is kept, and no generation is promised to two brokers."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._newest = 0
        self._asker = ""
        self._is_binding = False
        self._made_s = 0.0

    @property
    def is_live(self) -> bool:
        """Whether a candidate is being waited for."""
        limit_s = 2 * PROMISE_LIMITS * self._around.settings.ask_limit_s
        return self._is_binding and self._around.now_s - self._made_s < limit_s

    @property
    def promised(self) -> tuple[int, str]:
        """The newest generation that was ever promised, and to whom; to nobody when that is not waited for."""
        return self._newest, self._asker if self.is_live else ""

    @property
    def binding(self) -> int:
        """No older generation than this may be followed, because it may have begun; 0: any may."""
        return self._newest if self._is_binding else 0

    def promise(self, question: Question, newest: int) -> str:
        """Promise the asker's generation; returns why not, if not. `newest`: the generation of this broker's log."""
        if question.generation <= newest:
            return f"generation {newest} has begun already"
        if question.generation < self._newest or (
            question.generation == self._newest and question.asker != self._asker
        ):
            return f"generation {self._newest} was promised to {self._asker}"
        self._newest, self._asker = question.generation, question.asker
        self._is_binding, self._made_s = True, self._around.now_s
        return ""

    def claim(self, generation: int) -> None:
        """This broker wants `generation` for itself: nobody else gets it from here."""
        self._newest, self._asker, self._is_binding = generation, self._around.settings.name, False

    def withdraw(self, question: Question) -> None:
        """The candidate is none any more."""
        if question.asker == self._asker:
            self.release()

    def release(self) -> None:
        """Nobody has to be waited for any more."""
        self._is_binding = False
