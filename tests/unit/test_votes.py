"""Stories about promises to candidates: what was promised and not withdrawn holds, whatever is promised after it."""

from __future__ import annotations

import pytest

from model_support import NOW_MS, TextReader
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.effects import PersistVote
from qpid_ha_broker.ha.frames import Question, StoreOrigin, Topic
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.votes import KEPT_CLAIMS, Votes
from qpid_ha_broker.model.sets.resources import Resources

SETTINGS = MemberSettings("c", "c-1", ("a:5672", "b:5672", "c:5672"), "c:5672", has_store=True)
LOG = 2
"""The generation of this broker's log."""


class Voter:
    """A broker that candidates ask."""

    def __init__(self, restored: Restored | None = None) -> None:
        self._ctx = MemberContext(SETTINGS, Resources(TextReader()).replicated, lambda: 0.5, lambda: NOW_MS)
        self.votes = Votes(self._ctx, restored or Restored(StoreOrigin.MEMORY))

    def promise(self, asker: str, generation: int, log: int = LOG) -> str:
        refusal = self.votes.vote(question(asker, generation, Topic.CLAIM), log)
        return "" if refusal is None else refusal.text

    def withdraw(self, asker: str, generation: int) -> None:
        self.votes.withdraw(question(asker, generation, Topic.WITHDRAW))

    def restarted(self) -> Voter:
        """It dies, and begins again with what it had on disk."""
        *_, last = [each for each in self._ctx.effects if isinstance(each, PersistVote)]
        return Voter(Restored(StoreOrigin.DIRTY, promised=last.generation, promised_to=last.to, claims=last.claims))


def question(asker: str, generation: int, topic: Topic) -> Question:
    return Question(1, topic, asker, f"{asker}-1", "uuid", generation, 10, f"{asker}:5672")


def test_a_candidate_that_withdraws_frees_who_promised() -> None:
    voter = Voter()
    assert not voter.promise("a", 3)
    assert voter.votes.oldest_followable == 3
    voter.withdraw("a", 3)
    assert voter.votes.oldest_followable == 0
    assert voter.restarted().votes.oldest_followable == 0


@pytest.mark.parametrize("asker", ["a", "b"])
def test_but_not_of_what_it_or_another_was_promised_before(asker: str) -> None:
    """The generation before may have begun: its primary may have died, or be cut off."""
    voter = Voter()
    assert not voter.promise("a", 3)
    assert not voter.promise(asker, 4)
    assert voter.votes.oldest_followable == 4
    voter.withdraw(asker, 4)
    assert voter.votes.oldest_followable == 3
    assert voter.restarted().votes.oldest_followable >= 3


def test_nor_does_a_promotion_of_its_own_that_came_to_nothing() -> None:
    voter = Voter()
    assert not voter.promise("a", 3)
    voter.votes.claim(4, LOG, recorded=0)
    assert voter.votes.oldest_followable == 3
    assert voter.restarted().votes.oldest_followable >= 3


def test_once_the_log_has_that_generation_it_says_more_than_the_promise() -> None:
    voter = Voter()
    assert not voter.promise("a", 3)
    assert not voter.promise("b", 4, log=3)
    voter.withdraw("b", 4)
    assert voter.votes.oldest_followable == 0
    assert voter.restarted().votes.oldest_followable == 0


def test_no_generation_is_promised_to_two() -> None:
    voter = Voter()
    assert not voter.promise("a", 3)
    assert voter.promise("b", 3) == "generation 3 was promised to a"
    assert voter.restarted().promise("b", 3) == "generation 3 was promised to a"
    assert voter.promise("b", 2) == "generation 2 has begun already"


def test_what_this_broker_wanted_for_itself_is_known_until_it_cannot_be_recorded_any_more() -> None:
    voter = Voter()
    for generation in (3, 4, 6):
        voter.votes.claim(generation, LOG, recorded=3)
    assert voter.restarted().votes.claims == (3, 4, 6)
    voter.promise("a", 7)
    assert voter.restarted().votes.claims == (3, 4, 6), "a promise is no claim"
    voter.votes.claim(8, LOG, recorded=4)
    assert voter.restarted().votes.claims == (4, 6, 8)
    voter.votes.claim(9, 6, recorded=4)
    assert voter.restarted().votes.claims == (8, 9), "the log has generation 6"


def test_a_coordinator_that_can_only_be_read_does_not_fill_the_disk_with_claims() -> None:
    voter = Voter()
    for generation in range(3, 300):
        voter.votes.claim(generation, LOG, recorded=3)
    claims = voter.restarted().votes.claims
    assert len(claims) == KEPT_CLAIMS + 2
    assert (claims[0], claims[-1]) == (3, 299), "the one that is recorded, and the newest"
