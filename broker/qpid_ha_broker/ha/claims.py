"""Promises to candidates, for clusters without a coordinator: from now on I follow nobody older than you.

Without it a backup could go on confirming for the old primary while another one is being promoted on what the backup
said of itself before. After a while a candidate is not waited for any more: it may have died. But unless it withdrew,
its generation may have begun without our knowing: no older one is followed, and nobody else is promised the same. That
a later candidate withdraws, the same one or another, changes nothing about the promise before.
"""

from __future__ import annotations

from qpid_ha_broker.ha.effects import Remember
from qpid_ha_broker.ha.frames import Question
from qpid_ha_broker.ha.keeping import Restored
from qpid_ha_broker.ha.promotion import PROMISE_LIMITS
from qpid_ha_broker.ha.surroundings import Surroundings


class Claims:
    """The promise: what was promised and not withdrawn is kept, and no generation is promised to two brokers."""

    def __init__(self, around: Surroundings, restored: Restored) -> None:
        self._around = around
        self._newest = restored.promised
        self._asker = restored.promised_to
        self._is_binding = restored.promised_to not in ("", around.settings.name)
        self._made_s = 0.0
        self._older = 0, ""
        """The promise before, and to whom, if this log has nothing of that generation and it was not withdrawn."""

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
        return self._newest if self._is_binding else self._older[0]

    def promise(self, question: Question, newest: int) -> str:
        """Promise the asker's generation; returns why not, if not. `newest`: the generation of this broker's log."""
        if question.generation <= newest:
            return f"generation {newest} has begun already"
        if question.generation < self._newest or (
            question.generation == self._newest and question.asker != self._asker
        ):
            return f"generation {self._newest} was promised to {self._asker}"
        if question.generation > self._newest:
            self._set_aside(newest)
        self._newest, self._asker = question.generation, question.asker
        self._is_binding, self._made_s = True, self._around.now_s
        self._remember()
        return ""

    def claim(self, generation: int, newest: int) -> None:
        """This broker wants `generation` for itself: nobody else gets it from here. `newest`: that of its log."""
        self._set_aside(newest)
        self._newest, self._asker, self._is_binding = generation, self._around.settings.name, False
        self._remember()

    def _set_aside(self, newest: int) -> None:
        if self._is_binding:
            self._older = self._newest, self._asker
        if self._older[0] <= newest:
            self._older = 0, ""

    def bind(self, generation: int) -> None:
        """This broker may have been named primary of `generation`: it follows nobody older."""
        self._newest, self._asker = generation, self._around.settings.name
        self._is_binding, self._made_s = True, float("-inf")

    @property
    def own_claim(self) -> int:
        """The generation that this broker wanted for itself last, before its restart too; 0: none."""
        return self._newest if self._asker == self._around.settings.name else 0

    def end_wait(self) -> None:
        """Somebody leads. What was promised holds on: the log may not have anything of that generation yet."""
        self._made_s = float("-inf")

    def withdraw(self, question: Question) -> None:
        """The candidate is none any more."""
        if question.asker == self._asker:
            self.release()

    def release(self) -> None:
        """The newest promise counts no more."""
        if self._is_binding:
            self._is_binding = False
            self._remember()

    def lead(self) -> None:
        """This broker leads, and newer than all that was promised."""
        self._older = 0, ""
        self.release()

    def _remember(self) -> None:
        """A process that is started anew must keep the promises of the one before.

        It has one number only: when the promise before the newest is the one that counts, it is remembered as newer
        than it was, and keeps from following more than it has to.
        """
        if self._around.settings.has_store:
            to = self._asker if self._is_binding or self._asker == self._around.settings.name else ""
            if not self._is_binding and self._older[0]:
                to = self._older[1]
            self._around.effects.append(Remember(self._newest, to))
