"""One attempt to become primary, step by step: ask, judge, take over, have it recorded.

Nothing has changed before the last step: an attempt that is refused anywhere, or is too late, leaves this broker what
it was. With a coordinator the last step is its compare-and-set, and of two candidates one loses there; it may lose a
record, too, so an answer that came late, or beside somebody's announcement, does not count by itself. Without one the
peers are asked to promise that they follow nobody older; a promise lapses, so the attempt must end before it does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.effects import PeersAnswered, PromoteAsked, ReadRecord, WriteRecord
from qpid_ha_broker.ha.frames import IF_STALLED, Answer, Topic
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import (
    Accept,
    CommittedSet,
    PromotionEvidence,
    Refusal,
    StepDownFirst,
    ToldCommit,
    ToldGeneration,
    judge,
)

VOTE_LIMITS = 3
"""A promise lapses after so many ask limits; an attempt gives up after one less."""


class AttemptStep(Enum):
    """What the attempt waits for."""

    ASKING = auto()
    HANDING_OVER = auto()
    AWAITING_FINAL_LSN = auto()
    """The old primary has handed over; the end of its stream is still on its way."""
    CLAIMING = auto()
    RECORDING = auto()
    ENDED = auto()


class OwnEvidence(NamedTuple):
    """What a candidate knows of itself."""

    answer: Answer
    primary: str
    """Who wrote the last generation of its log."""
    is_chosen: bool
    committed: CommittedSet | None
    record: ClusterRecord | None
    """The last one that the coordinator has confirmed to it."""
    told: ToldGeneration
    told_committed: ToldCommit
    lacks_transient: bool


class Granted(NamedTuple):
    """Become primary now."""

    accept: Accept
    cluster: str
    record: ClusterRecord | None
    """What the coordinator holds now."""


Outcome = Refusal | Granted | None


class Promotion:
    """The promise: at most one `Granted`, and only after the verdict on what was known last."""

    def __init__(
        self,
        ctx: MemberContext,
        asked: PromoteAsked,
        own: Callable[[], OwnEvidence],
        claim: Callable[[int, int], None],
    ) -> None:
        self.request, self.force, self.cause, self.failover, self.predecessor = asked
        self._joined: list[int] = []
        """Later requests of which what comes of this attempt is the answer."""
        self.step = AttemptStep.ASKING
        self.began_s = ctx.now_s
        self.claimed = 0
        self.handover_lsn = 0
        self._ctx = ctx
        self._own = own
        self._claim = claim
        """Keeps a generation from being promised to anybody else; the second one is that of the record, 0: none."""
        self._asked = 0
        self._answers: PeersAnswered | None = None
        self._record: ClusterRecord | None = None
        self._record_is_in = not ctx.settings.has_coordinator
        self._handed_over_by = ""
        self._coordinator_number = 0
        """Of the request to it whose answer is awaited."""
        self._accept: Accept | None = None
        self._wanted = ClusterRecord()
        """What the coordinator shall hold."""
        self._replaced = ClusterRecord()
        """What it holds until then."""
        self.outcome_is_unknown = False
        """Whether it holds that, nobody knows."""
        self._recording_since_s = 0.0
        self._overtaken_by = ""
        """Who began as new a generation while the coordinator was asked to record ours."""

    @property
    def _keeper(self) -> str:
        """Who has the record."""
        return self._ctx.settings.keeper.name

    def begin(self) -> None:
        """Ask everybody, and the coordinator."""
        self._ask(Topic.STATUS)
        if not self._record_is_in:
            self._coordinator_number = self._ctx.number()
            self._ctx.effects.append(ReadRecord(self._coordinator_number))

    def join(self, asked: PromoteAsked) -> bool:
        """Whether what comes of this attempt answers that request, too; not if it may be refused for less."""
        wants_hand_over = asked.predecessor and asked.predecessor != self.predecessor
        if (asked.force and not self.force) or (self.failover and (not asked.failover or wants_hand_over)):
            return False
        self._joined.append(asked.request)
        return True

    @property
    def requests(self) -> tuple[int, ...]:
        """All that are to be answered with what comes of it."""
        return (self.request, *self._joined)

    def _ask(self, topic: Topic, generation: int = 0, wanted: str = "") -> None:
        self._asked = self._ctx.ask(topic, self._own().answer, generation, patient=self.force, wanted=wanted)

    def ends_late(self) -> bool:
        """Whether so much time went by that what was promised may not hold any more."""
        return self._ctx.now_s - self.began_s > (VOTE_LIMITS + 1) * self._ctx.settings.ask_limit_s

    # --- what comes back

    def answered(self, answers: PeersAnswered) -> Outcome:
        """All peers were asked."""
        if answers.number != self._asked:
            return None
        own = self._ctx.settings.instance
        others = tuple(answer for answer in answers.answers if answer.instance != own)
        self._answers = answers._replace(answers=others)
        match self.step:
            case AttemptStep.ASKING:
                return self._judge()
            case AttemptStep.HANDING_OVER:
                return self._handed_over(others)
            case AttemptStep.CLAIMING:
                return self._claimed(others)
        return None

    def record_read(self, number: int, record: ClusterRecord | None) -> Outcome:
        """The coordinator answered, or cannot be reached."""
        if self.step is AttemptStep.RECORDING and number == self._coordinator_number:
            return self._confirmed(record)
        if self.step is not AttemptStep.ASKING or number != self._coordinator_number:
            return None
        self._record, self._record_is_in = record, True
        return self._judge()

    def _evidence(self) -> PromotionEvidence:
        own, answers, settings = self._own(), self._answers, self._ctx.settings
        return PromotionEvidence(
            own=own.answer,
            own_primary=own.primary,
            answers=answers.answers if answers is not None else (),
            unreachable=answers.unreachable if answers is not None else (),
            silent=answers.silent if answers is not None else (),
            record=self._record,
            has_coordinator=settings.has_coordinator,
            min_in_sync=settings.min_in_sync,
            handed_over_by=self._handed_over_by,
            force=self.force,
            is_chosen=own.is_chosen,
            auto_recover=settings.auto_recover,
            own_committed=own.committed,
            own_record=own.record,
            newest_told=own.told,
            told_committed=own.told_committed,
            lacks_transient=own.lacks_transient,
            keeper=settings.keeper,
            coordinator=self._ctx.coordinator,
        )

    def _judge(self) -> Outcome:
        if self._answers is None or not self._record_is_in:
            return None
        if not self._answers.answers and not self._answers.unreachable and len(self._ctx.settings.addresses) > 1:
            return self._refuse(self._ctx.settings.keeper.alone)
        verdict = judge(self._evidence())
        if isinstance(verdict, Refusal):
            return self._refuse(verdict.text)
        reason = self._why_no_failover() if self.failover else ""
        if reason:
            return self._refuse(reason)
        if isinstance(verdict, StepDownFirst):
            if self._handed_over_by:
                return self._refuse(f"{verdict.primary} is primary, beside {self._handed_over_by}: try again")
            self.step = AttemptStep.HANDING_OVER
            is_newest = any(
                answer.name == verdict.primary and answer.generation >= self._newest_generation
                for answer in self._answers.answers
            )
            self._ask(Topic.STEP_DOWN, wanted=IF_STALLED if self.failover and is_newest else "")
            return None
        if not self.request and not self._handed_over_by:
            return self._refuse("the primary wanted to hand over, and cannot be asked now: it may go on, so try again")
        self._accept = verdict
        if self._ctx.settings.has_coordinator:
            return self._record_generation(verdict)
        self.step = AttemptStep.CLAIMING
        self.claimed = verdict.generation
        self._claim(verdict.generation, 0)
        self._ask(Topic.CLAIM, verdict.generation)
        return None

    @property
    def _newest_generation(self) -> int:
        """That is known: recorded, or in the log of whoever answers."""
        answers = self._answers.answers if self._answers is not None else ()
        recorded = self._record.generation if self._record is not None else 0
        return max(recorded, self._own().answer.generation, *(answer.generation for answer in answers))

    def _why_no_failover(self) -> str:
        """Who is primary, or will be in a moment; empty when nobody is.

        Two primaries do not count, and are to step down: one of an older generation than the newest that is known,
        which slept while another one was promoted; and the one that whoever keeps the record does not hear. That one
        knows best whether it can do without, and hands over if it cannot.
        """
        answers, newest = self._answers.answers if self._answers is not None else (), self._newest_generation
        for answer in answers:
            is_to_hand_over = answer.name == self.predecessor
            if answer.state == State.PRIMARY and answer.generation >= newest and not is_to_hand_over:
                return f"{answer.name} is primary, and answers: there is nothing to take over"
            if not answer.granted:
                return f"{answer.name}: {answer.text}"
        return self._who_hears_predecessor()

    def _who_hears_predecessor(self) -> str:
        """Who else is to lead, as the primary that may live can be asked by him; empty: nobody.

        This broker has no channel to it, so that it did not answer means nothing. Of two that both follow it, neither
        leaves it to the other.
        """
        has_no_channel = self._own().answer.state != State.READY
        if not (self.predecessor and has_no_channel) or self._handed_over_by or self._answers is None:
            return ""
        for answer in self._answers.answers:
            if answer.state == State.READY and answer.generation >= self._newest_generation:
                return f"{answer.name} still follows {self.predecessor}, unlike this broker, and can have it hand over"
        return ""

    def _handed_over(self, answers: tuple[Answer, ...]) -> Outcome:
        live = [answer for answer in answers if answer.state == State.PRIMARY and not answer.granted]
        if live:
            return self._refuse(f"{live[0].name} is primary and did not hand over: {live[0].text}")
        gave = next((answer for answer in answers if answer.granted), None)
        if gave is None:
            return self._refuse("the primary did not answer when it was asked to hand over: try again")
        self._handed_over_by, self.handover_lsn = gave.name, gave.lsn
        self.step = AttemptStep.AWAITING_FINAL_LSN
        return self.held()

    def held(self) -> Outcome:
        """More of the old primary's stream is here, or no more will come."""
        own = self._own().answer
        if self.step is not AttemptStep.AWAITING_FINAL_LSN:
            return None
        if own.lsn < self.handover_lsn and self._ctx.now_s - self.began_s < 2 * self._ctx.settings.ask_limit_s:
            return None
        self._answers = None
        self._record_is_in = not self._ctx.settings.has_coordinator
        self.step = AttemptStep.ASKING
        self.begin()
        return None

    def _claimed(self, answers: tuple[Answer, ...]) -> Outcome:
        denied = next((answer for answer in answers if not answer.granted), None)
        if denied is not None and not self.force:
            return self._refuse(f"{denied.name} does not agree: {denied.text}")
        verdict = judge(self._evidence())  # what a peer promised, it promised together with its final position
        if not isinstance(verdict, Accept):
            return self._refuse(verdict.text if isinstance(verdict, Refusal) else f"{verdict.primary} is primary")
        if self.ends_late():
            return self._refuse("it took too long: what the others promised may not hold any more; try again")
        self.step = AttemptStep.ENDED
        return Granted(verdict._replace(generation=self.claimed), self._own().answer.cluster, None)

    def _record_generation(self, accept: Accept) -> Outcome:
        expected = self._record
        if expected is None:
            return self._refuse(f"{self._keeper} cannot be reached: try again")
        self.step = AttemptStep.RECORDING
        generation = max(accept.generation, expected.generation + 1)
        self._accept = accept._replace(generation=generation)
        settings = self._ctx.settings
        own = self._own().answer
        # Who is empty and is forced to lead gives up all that there was: whoever still holds that must not follow it.
        goes_on = bool(own.generation) or not accept.is_forced
        # The first primary names the cluster.
        cluster = own.cluster or (expected.cluster if goes_on else "") or settings.instance
        self._wanted = ClusterRecord(cluster, generation, settings.name, accept.epoch, accept.members, claimed=True)
        self._replaced, self._recording_since_s = expected, self._ctx.now_s
        # On disk: a broker that dies right after this knows that nobody else was named.
        self._claim(generation, expected.generation)
        self._coordinator_number = self._ctx.number()
        self._ctx.effects.append(WriteRecord(self._coordinator_number, expected, self._wanted))
        return None

    def record_written(self, number: int, written: bool, record: ClusterRecord | None, problem: str) -> Outcome:
        """The coordinator took the new generation, or holds something else."""
        if self.step is not AttemptStep.RECORDING or number != self._coordinator_number or self._accept is None:
            return None
        self.outcome_is_unknown = not written and record is None
        if not written and record != self._wanted:
            who = f"{record.primary} was faster" if record is not None else problem
            return self._refuse(f"{self._keeper} did not take generation {self._accept.generation}: {who}")
        if self._ctx.now_s - self._recording_since_s > self._ctx.settings.ask_limit_s:
            # This process may have slept since, and the coordinator may have lost the record and taken another one.
            self._coordinator_number = self._ctx.number()
            self._ctx.effects.append(ReadRecord(self._coordinator_number))
            return None
        return self._confirmed(self._wanted)

    def _confirmed(self, record: ClusterRecord | None) -> Outcome:
        """What the coordinator holds now."""
        self.outcome_is_unknown = record is None
        if record != self._wanted or self._accept is None:
            who = "cannot be reached" if record is None else f"names {record.primary or 'nobody'}"
            return self._refuse(f"{self._keeper} took generation {self._wanted.generation}, and now {who}")
        if self._overtaken_by:
            return self._take_back_record()
        self.step = AttemptStep.ENDED
        return Granted(self._accept, self._wanted.cluster, self._wanted)

    def overtaken(self, primary: str, generation: int) -> None:
        """`primary` announces `generation`. If it is as new as the one that is being recorded, only one of them can be.

        The coordinator decides which, by the record that each of them replaces. When it takes ours although it took
        theirs before, theirs was lost: their generation has begun, and ours must not.
        """
        if self.step is AttemptStep.RECORDING and generation >= self._wanted.generation:
            self._overtaken_by = primary

    def _take_back_record(self) -> Outcome:
        """What is recorded never begins; the primary records itself again in the place of what was there before."""
        self._ctx.effects.append(WriteRecord(self._ctx.number(), self._wanted, self._replaced))
        return self._refuse(
            f"{self._overtaken_by} has become primary meanwhile, and {self._keeper} has lost the record of that"
        )

    def _refuse(self, text: str) -> Outcome:
        if self.claimed:
            self._ask(Topic.WITHDRAW, self.claimed)
        self.step = AttemptStep.ENDED
        return Refusal(text)

    @property
    def takes_over(self) -> bool:
        """A live primary hands over to this broker, or has: it wanted that itself, or was asked for it."""
        return (
            not self.request
            or bool(self._handed_over_by)
            or self.step in (AttemptStep.HANDING_OVER, AttemptStep.AWAITING_FINAL_LSN)
        )

    @property
    def wanted_generation(self) -> int:
        """Which the coordinator was asked to record."""
        return self._wanted.generation

    def give_up(self, text: str) -> Outcome:
        """Something happened that makes this attempt pointless."""
        return None if self.step in (AttemptStep.ENDED, AttemptStep.RECORDING) else self._refuse(text)
