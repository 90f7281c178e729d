"""Which generations this broker has voted for, and so whom it may still follow.

Without a coordinator a candidate asks the others to vote for it: from then on they follow nobody older. Otherwise a
backup could go on confirming for the old primary while another one is being promoted on what the backup said of itself
before. After a while a candidate is not waited for any more: it may have died. But unless it withdrew, its generation
may have begun without our knowing: no older one is followed, and nobody else gets a vote for the same. That a later
candidate withdraws, the same one or another, changes nothing about the vote before.

A coordinator that was asked to record this broker as primary, and did not answer, is the other reason not to follow an
older primary (`UnresolvedRecordWrite`).
"""

from __future__ import annotations

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.effects import PersistVote, ReadRecord
from qpid_ha_broker.ha.frames import Question
from qpid_ha_broker.ha.promotion import VOTE_LIMITS
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.verdict import Refusal

_PAUSE_S = 0.5
KEPT_CLAIMS = 16
"""So many requests to a coordinator may be on their way at once; of older ones only what is recorded counts."""


class Votes:
    """The promise: a vote that was not withdrawn is kept, and no generation gets the vote for two brokers."""

    def __init__(self, ctx: MemberContext, restored: Restored) -> None:
        self._ctx = ctx
        self._newest = restored.promised
        self._candidate = restored.promised_to
        """Who has the vote for `_newest`."""
        self._is_binding = restored.promised_to not in ("", ctx.settings.name)
        self._given_s = 0.0
        self._claims = restored.claims
        """What this broker wanted for itself, ascending: each was on disk before the coordinator was asked."""
        self._prior = 0, ""
        """The vote before, and for whom, if this log has nothing of that generation and it was not withdrawn."""

    @property
    def is_awaited(self) -> bool:
        """Whether a candidate is being waited for."""
        limit_s = 2 * VOTE_LIMITS * self._ctx.settings.ask_limit_s
        return self._is_binding and self._ctx.now_s - self._given_s < limit_s

    @property
    def promised(self) -> tuple[int, str]:
        """The newest generation that was ever voted for, and for whom; nobody when that is not waited for."""
        return self._newest, self._candidate if self.is_awaited else ""

    @property
    def oldest_followable(self) -> int:
        """No older generation than this may be followed, because it may have begun; 0: any may."""
        return self._newest if self._is_binding else self._prior[0]

    def vote(self, question: Question, newest: int) -> Refusal | None:
        """Vote for the asker's generation, unless there is a reason not to. `newest`: that of this broker's log."""
        if question.generation <= newest:
            return Refusal(f"generation {newest} has begun already")
        if question.generation < self._newest or (
            question.generation == self._newest and question.asker != self._candidate
        ):
            return Refusal(f"generation {self._newest} was promised to {self._candidate}")
        if question.generation > self._newest:
            self._set_aside(newest)
        self._newest, self._candidate = question.generation, question.asker
        self._is_binding, self._given_s = True, self._ctx.now_s
        self._persist()
        return None

    def claim(self, generation: int, newest: int, recorded: int) -> None:
        """This broker wants `generation` for itself: nobody else gets the vote. `newest`: that of its log.

        The claims before stay known, because `recorded`, the generation of the record, may be one of them, and so may
        be what a request to the coordinator that is still on its way makes of it. This one may come to nothing.
        """
        self._set_aside(newest)
        may_count = [each for each in self._claims if each > newest and each >= recorded]
        oldest = tuple(each for each in may_count[:-KEPT_CLAIMS] if each == recorded)
        self._claims = (*oldest, *may_count[-KEPT_CLAIMS:], generation)
        self._newest, self._candidate, self._is_binding = generation, self._ctx.settings.name, False
        self._persist()

    def _set_aside(self, newest: int) -> None:
        if self._is_binding:
            self._prior = self._newest, self._candidate
        if self._prior[0] <= newest:
            self._prior = 0, ""

    def bind(self, generation: int) -> None:
        """This broker may have been recorded as primary of `generation`: it follows nobody older."""
        self._newest, self._candidate = generation, self._ctx.settings.name
        self._is_binding, self._given_s = True, float("-inf")

    @property
    def own_claim(self) -> int:
        """The generation that this broker wanted for itself last, before its restart too; 0: none."""
        return self._newest if self._candidate == self._ctx.settings.name else 0

    @property
    def claims(self) -> tuple[int, ...]:
        """All that it wanted for itself and has nothing of; ascending."""
        return self._claims

    def end_wait(self) -> None:
        """Somebody leads. The vote holds on: the log may not have anything of that generation yet."""
        self._given_s = float("-inf")

    def withdraw(self, question: Question) -> None:
        """The candidate is none any more."""
        if question.asker == self._candidate:
            self.release()

    def release(self) -> None:
        """The newest vote counts no more. While the store takes nothing it stays there, and binds the next process."""
        if self._is_binding:
            self._is_binding = False
            if not self._ctx.store_problem:
                self._persist()

    def lead(self) -> None:
        """This broker leads, and newer than all that was voted for."""
        self._prior = 0, ""
        self.release()

    def _persist(self) -> None:
        """A process that is started anew must keep the votes of the one before.

        It has one number only: when the vote before the newest is the one that counts, it is remembered as newer than
        it was, and keeps from following more than it has to.
        """
        if self._ctx.settings.has_store:
            to = self._candidate if self._is_binding or self._candidate == self._ctx.settings.name else ""
            if not self._is_binding and self._prior[0]:
                to = self._prior[1]
            self._ctx.effects.append(PersistVote(self._newest, to, self._claims))


class UnresolvedRecordWrite:
    """A coordinator was asked to record this broker as primary, and nobody knows whether it did.

    If it did, nobody else may lead and this broker must not follow an older primary, which would take away what it
    holds. If it did not, all is as before. The promise: once `begin` was called, no new channel to an older primary is
    followed before the record has been read again. One that was open already goes on.
    """

    def __init__(self, ctx: MemberContext, votes: Votes) -> None:
        self._ctx = ctx
        self._votes = votes
        self._generation = 0
        """That was asked for; 0: nothing is unresolved."""
        self._number = 0
        self._not_before_s = 0.0

    def begin(self, generation: int) -> None:
        """The record may say by now that this broker leads `generation`."""
        self._generation, self._number, self._not_before_s = generation, 0, self._ctx.now_s
        self._votes.bind(generation)

    def end(self) -> None:
        """This broker leads, or follows somebody who is newer in any case."""
        self._generation = 0

    def tick(self) -> None:
        """Ask again, unless an answer is on its way."""
        if self._generation and not self._number and self._ctx.now_s >= self._not_before_s:
            self._number = self._ctx.number()
            self._ctx.effects.append(ReadRecord(self._number))

    def record_read(self, number: int, record: ClusterRecord | None) -> None:
        """What it holds; None: it still cannot be reached."""
        if number != self._number or not self._generation:
            return
        self._number, self._not_before_s = 0, self._ctx.now_s + _PAUSE_S
        if record is None:
            return
        if record.generation < self._generation:
            self._votes.release()
        self._generation = 0
