"""Stories about promises to candidates: what was promised and not withdrawn holds, whatever is promised after it."""

from __future__ import annotations

import pytest

from model_support import TextReader
from qpid_ha_broker.ha.claims import Claims
from qpid_ha_broker.ha.effects import Remember
from qpid_ha_broker.ha.frames import Question, Store, Topic
from qpid_ha_broker.ha.keeping import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.model.resource_set import ResourceSet

SETTINGS = MemberSettings("c", "c-1", ("a:5672", "b:5672", "c:5672"), "c:5672", has_store=True)
LOG = 2
"""The generation of this broker's log."""


class Voter:
    """A broker that candidates ask."""

    def __init__(self, restored: Restored | None = None) -> None:
        self._around = Surroundings(SETTINGS, ResourceSet("default", TextReader()), lambda: 0.5)
        self.claims = Claims(self._around, restored or Restored(Store.MEMORY))

    def promise(self, asker: str, generation: int, log: int = LOG) -> str:
        return self.claims.promise(question(asker, generation, Topic.CLAIM), log)

    def withdraw(self, asker: str, generation: int) -> None:
        self.claims.withdraw(question(asker, generation, Topic.WITHDRAW))

    def restarted(self) -> Voter:
        """It dies, and begins again with what it had on disk."""
        *_, last = [each for each in self._around.effects if isinstance(each, Remember)]
        return Voter(Restored(Store.DIRTY, promised=last.generation, promised_to=last.to))


def question(asker: str, generation: int, topic: Topic) -> Question:
    return Question(1, topic, asker, f"{asker}-1", "uuid", generation, 10, f"{asker}:5672")


def test_a_candidate_that_withdraws_frees_who_promised() -> None:
    voter = Voter()
    assert not voter.promise("a", 3)
    assert voter.claims.binding == 3
    voter.withdraw("a", 3)
    assert voter.claims.binding == 0
    assert voter.restarted().claims.binding == 0


@pytest.mark.parametrize("asker", ["a", "b"])
def test_but_not_of_what_it_or_another_was_promised_before(asker: str) -> None:
    """The generation before may have begun: its primary may have died, or be cut off."""
    voter = Voter()
    assert not voter.promise("a", 3)
    assert not voter.promise(asker, 4)
    assert voter.claims.binding == 4
    voter.withdraw(asker, 4)
    assert voter.claims.binding == 3
    assert voter.restarted().claims.binding >= 3


def test_nor_does_a_promotion_of_its_own_that_came_to_nothing() -> None:
    voter = Voter()
    assert not voter.promise("a", 3)
    voter.claims.claim(4, LOG)
    assert voter.claims.binding == 3
    assert voter.restarted().claims.binding >= 3


def test_once_the_log_has_that_generation_it_says_more_than_the_promise() -> None:
    voter = Voter()
    assert not voter.promise("a", 3)
    assert not voter.promise("b", 4, log=3)
    voter.withdraw("b", 4)
    assert voter.claims.binding == 0
    assert voter.restarted().claims.binding == 0


def test_no_generation_is_promised_to_two() -> None:
    voter = Voter()
    assert not voter.promise("a", 3)
    assert voter.promise("b", 3) == "generation 3 was promised to a"
    assert voter.restarted().promise("b", 3) == "generation 3 was promised to a"
    assert voter.promise("b", 2) == "generation 2 has begun already"
