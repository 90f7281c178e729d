"""What a member answers to other brokers: who it is, whom it would follow, and what it does when one takes over."""

from __future__ import annotations

from abc import abstractmethod

from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup import Stage
from qpid_ha_broker.ha.member_view import MemberView
from qpid_ha_broker.ha.promotion import Outcome, Step


class AnsweringMember(MemberView):
    """A member as others hear it; what follows for its own state is decided where the states are."""

    @abstractmethod
    def _step_down(self, why: str) -> None: ...

    @abstractmethod
    def _give_up(self, why: str) -> None: ...

    @abstractmethod
    def _promoted(self, outcome: Outcome) -> None: ...

    def _question(self, link: int, question: fr.Question) -> None:
        granted, text = True, ""
        cluster = self.cluster
        if question.instance == self._around.settings.instance:
            text = "this is the broker that asks"
        elif cluster and question.cluster and question.cluster != cluster:
            granted, text = False, f"this broker belongs to the cluster {cluster}"
        elif question.topic is fr.Topic.STATUS and self._promotion is not None and self._promotion.takes_over:
            granted, text = False, f"{self._around.settings.name} takes over from the primary"
        elif question.topic is fr.Topic.STEP_DOWN:
            text = self._asked_to_step_down(link, question)
            if not text:
                return  # answered once clients are gone
            granted = False
        elif question.topic is fr.Topic.CLAIM:
            text = self._claimed(question)
            granted = not text
        elif question.topic is fr.Topic.WITHDRAW:
            self._claims.withdraw(question)
        elif question.topic is fr.Topic.ANNOUNCE:
            self._announced(question)
        self._around.send(link, self.status(question.number, granted, text))

    def _asked_to_step_down(self, link: int, question: fr.Question) -> str:
        primary = self._primary
        if primary is None:
            return f"this broker is {self.state}"
        if question.generation > primary.generation:
            self._step_down(f"{question.asker} knows generation {question.generation}")
            return "this broker has just stepped down"
        if question.asker not in primary.in_sync:
            return f"{question.asker} is not in sync: {', '.join(primary.in_sync.members)} are"
        return self._departure.hand_over(link, question)

    def _claimed(self, question: fr.Question) -> str:
        """Why this broker does not follow the candidate; empty: it promises to follow nobody older."""
        if self._primary is not None:
            return f"this broker is primary of generation {self._primary.generation}"
        promotion = self._promotion
        if promotion is not None:
            own = self.position.lsn, self._around.settings.name
            if own > (question.lsn, question.asker) or promotion.step in (Step.FILING, Step.ENDED):
                return "this broker is being promoted itself"
        refused = self._claims.promise(question, self.generation)
        if refused:
            return refused
        if promotion is not None:
            self._promoted(promotion.give_up(f"{question.asker} is being promoted and is further"))
        if self._backup.stage is not Stage.SEARCHING:
            self._give_up(f"{question.asker} becomes primary of generation {question.generation}")
        return ""

    def _announced(self, question: fr.Question) -> None:
        if self._primary is not None:
            mine = self._primary.generation, question.asker
            theirs = question.generation, self._around.settings.name
            if mine < theirs:  # of two in one generation, which a coordinator would have prevented, one remains
                self._step_down(f"{question.asker} is primary of generation {question.generation}")
        if self._primary is None and question.generation >= max(self.generation, self._claims.binding):
            self._claims.end_wait()
            if self._promotion is not None:
                self._promoted(self._promotion.give_up(f"{question.asker} has become primary"))
            if self._backup.stage is Stage.FOLLOWING and self._backup.generation < question.generation:
                self._give_up(f"{question.asker} is primary of generation {question.generation}")
            if self._backup.stage is not Stage.FOLLOWING and self._promotion is None:
                self._go_to(question.address)

    def _go_to(self, address: str) -> None:
        if self._backup.stage is not Stage.SEARCHING:
            if address and address == self._backup.address:
                return
            self._around.close(self._backup.link, "the primary is elsewhere")
        self._backup.search(at_once=True)
        self._backup.try_next(address if address in self._around.settings.addresses else "")
