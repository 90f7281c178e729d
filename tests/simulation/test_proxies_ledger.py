"""What the ledger of proxies allows, and no more than that.

1. A message that was on its way when the primary that handed it out died: it comes again, marked (seeds 358 and 395).
2. A message that two clients have, as one of them lost the connection to a primary that lived, and that the other one
   came for first (docs/cluster.md, "Proxies"; seed 1122).
3. A message that a session held and never got: who looked meanwhile does not go back for it (docs/protocol.md,
   "Browsing"), and who gets it of the queue again gets it late.
"""

from __future__ import annotations

import random

import pytest

from simulation.brokers.amqp_client import Shop
from simulation.brokers.ledger import Handout, Ledger, Reading, Sent
from simulation.brokers.transactions import TransactingClient, Work
from simulation.machines.streams import Streams
from simulation.trace import Trace
from simulation.violations import Violation
from simulation.virtual_time import Schedule

MESSAGE, LATER, WORK = Sent("p0-1", 1, "plain"), Sent("p0-1", 2, "plain"), Sent("t0-1", 1, "plain")


class Generations:
    """A custodian: how many have led. Links do not matter here."""

    def __init__(self) -> None:
        self.generation = 0
        self.have_all_come_in_time = False
        """So that whatever a consumer got is its own."""

    def begin(self) -> None:
        """Somebody leads."""
        self.generation += 1

    def is_its_own(self, handout: Handout) -> bool:
        return self.have_all_come_in_time

    def has_left(self, reading: Reading) -> bool:
        return False

    def may_be_outdated(self) -> bool:
        return False

    def browses_replica(self, client: str) -> bool:
        return False


class Market(Shop):
    """A ledger in the first generation, in which `MESSAGE` was sent; a second passes before each step."""

    brokers = ()
    sizes = busy_sizes = (0,)

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.streams = Streams(self.schedule, random.Random(1), 0.01, 1000)
        self.trace = Trace(self.schedule, wanted=False)
        self.generations = Generations()
        self.ledger = Ledger(self.now_s, self.generations)
        self.generations.begin()
        self.ledger.sends(MESSAGE)
        self.readings = {name: Reading(name, "plain", self.schedule.now_s) for name in ("c0.1", "c1.1")}

    def now_s(self) -> float:
        return self.schedule.now_s

    def now_ms(self) -> int:
        return int(self.schedule.now_s * 1000)

    def pass_time(self) -> None:
        self.schedule.now_s += 1.0

    def leaves(self, client: str) -> None:
        self.pass_time()
        self.ledger.leaves_primary(MESSAGE, client, self.ledger._now_s())

    def comes(self, client: str, *, is_marked: bool = False) -> Handout:
        self.pass_time()
        return self.ledger.hands_out(MESSAGE, self.readings[client], is_marked=is_marked)

    def reclaims(self, client: str) -> None:
        self.pass_time()
        self.ledger.is_reclaimed(MESSAGE, client)

    def begins(self) -> None:
        self.pass_time()
        self.generations.begin()

    def accepted(self) -> None:
        self.pass_time()
        self.ledger.is_accepted(MESSAGE)


def test_who_drains_a_queue_sees_what_nobody_ever_had() -> None:
    market = Market()
    market.accepted()
    with pytest.raises(Violation, match="has not seen"):
        market.ledger.check_drained(market.ledger.untouched("plain"), set(), "plain", "b0.1")


def test_who_drains_a_queue_need_not_see_what_a_session_held_when_he_passed_it() -> None:  # and never got, seed 22
    market = Market()
    market.accepted()
    market.ledger.is_held(MESSAGE)
    market.ledger.check_drained(market.ledger.untouched("plain"), set(), "plain", "b0.1")


def test_what_was_on_its_way_when_its_primary_died_does_not_come_again_without_a_mark() -> None:
    market = Market()
    market.leaves("c0.1")
    market.begins()
    assert market.comes("c0.1").generation == 1
    market.accepted()
    market.leaves("c1.1")
    with pytest.raises(Violation, match="without a mark"):
        market.comes("c1.1")


def test_one_that_got_it_of_both_primaries_had_the_first_one_first() -> None:
    market = Market()
    market.leaves("c0.1")
    market.begins()
    market.leaves("c0.1")
    assert market.comes("c0.1").generation == 1
    assert market.comes("c0.1", is_marked=True).generation == 2


def test_what_left_on_an_earlier_link_does_not_come_on_this_one() -> None:
    market = Market()
    market.leaves("c0.1")
    market.pass_time()
    market.readings["c0.1"] = Reading("c0.1", "plain", market.now_s())
    market.begins()
    assert market.comes("c0.1").generation == 2


def with_one_given_twice_behind_a_later_one(market: Market) -> None:
    """To one consumer, whose proxy gave it back once, unseen."""
    reading = market.readings["c0.1"]
    reading.attached_s = market.now_s()
    market.generations.have_all_come_in_time = True
    market.ledger.sends(LATER)
    market.ledger.hands_out(LATER, reading, is_marked=False)
    for _ in range(2):
        market.leaves("c0.1")


def test_what_was_given_to_one_alone_comes_to_it_in_order() -> None:
    market = Market()
    with_one_given_twice_behind_a_later_one(market)
    with pytest.raises(Violation, match="behind 2"):
        market.comes("c0.1", is_marked=True)


def test_what_a_session_had_held_need_not_come_in_order() -> None:  # seed 70424
    market = Market()
    market.ledger.is_held(MESSAGE)
    with_one_given_twice_behind_a_later_one(market)
    market.comes("c0.1", is_marked=True)


def with_unknown_commit(market: Market) -> TransactingClient:
    """A client that published and consumed in a transaction, and never heard of its commit."""
    client = TransactingClient(market, "t0", random.Random(1), market.ledger, ("plain", "plain"))
    market.leaves("c0.1")
    handout, work = market.comes("c0.1"), Work()
    handout.is_consumed = True
    work.published, work.consumed = [WORK], [(None, handout)]
    market.ledger.sends(WORK)
    client.unknown.append(work)
    return client


@pytest.mark.parametrize("is_accepted", [True, False])
def test_what_was_consumed_is_not_gone_where_the_transaction_does_not_count(is_accepted: bool) -> None:
    market = Market()
    client = with_unknown_commit(market)
    if is_accepted:
        market.accepted()
    market.begins()
    with pytest.raises(Violation, match=r"has not committed .* is gone"):
        client.check_unknown(set())
    client.check_unknown({MESSAGE})


def test_what_was_consumed_is_not_there_where_the_transaction_counts() -> None:
    market = Market()
    client = with_unknown_commit(market)
    market.begins()
    client.check_unknown({WORK})
    with pytest.raises(Violation, match="is there still"):
        client.check_unknown({WORK, MESSAGE})


def with_two_who_have_it(market: Market) -> tuple[Handout, Handout]:
    """The first one's proxy lost the connection to the primary, which then gave the message to the second."""
    market.leaves("c0.1")
    first = market.comes("c0.1")
    market.leaves("c1.1")
    second = market.comes("c1.1", is_marked=True)
    second.is_consumed = True
    market.accepted()
    market.begins()
    market.generations.have_all_come_in_time = True
    return first, second


def test_what_the_one_who_had_it_first_came_for_first_may_come_again_to_the_other_one() -> None:
    market = Market()
    first, second = with_two_who_have_it(market)
    market.reclaims("c0.1")
    second.is_confirmed = True
    first.is_returned = True
    market.leaves("c1.1")
    assert market.comes("c1.1", is_marked=True).generation == 2
    market.ledger.check_rest({"plain": [MESSAGE]})


@pytest.mark.parametrize("has_answered", [False, True], ids=["nobody came for it", "it had been given back"])
def test_what_nobody_else_could_come_for_does_not_come_again(has_answered: bool) -> None:
    market = Market()
    first, _ = with_two_who_have_it(market)
    first.is_returned = True
    if has_answered:
        market.reclaims("c0.1")
    with pytest.raises(Violation, match=r"belongs to c1\.1"):
        market.leaves("c1.1")


def test_what_its_own_proxy_came_for_first_does_not_come_again() -> None:
    market = Market()
    first, _ = with_two_who_have_it(market)
    market.reclaims("c1.1")
    first.is_returned = True
    with pytest.raises(Violation, match=r"belongs to c1\.1"):
        market.leaves("c0.1")


def test_what_somebody_got_after_it_had_been_come_for_stays_its_own() -> None:
    market = Market()
    first, second = with_two_who_have_it(market)
    market.reclaims("c0.1")
    second.is_returned = first.is_returned = True
    market.leaves("c1.1")
    market.comes("c1.1", is_marked=True).is_consumed = True
    market.begins()
    with pytest.raises(Violation, match=r"belongs to c1\.1"):
        market.leaves("c0.1")
