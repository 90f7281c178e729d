"""What the ledger of proxies allows: a message that died with the primary that handed it out, and no other one.

docs/cluster.md, "What is not there yet", has the rule: who sends such a message again, sends
a new one. (Seeds 358 and 395.)
"""

from __future__ import annotations

import random

import pytest

from simulation.amqp_client import Shop
from simulation.node import Violation
from simulation.proxies_ledger import Handout, Ledger, Reading, Sent
from simulation.proxies_transactions import TransactingClient, Work
from simulation.streams import Streams
from simulation.trace import Trace
from simulation.virtual_time import Schedule

MESSAGE, WORK = Sent("p0-1", 1, "plain"), Sent("t0-1", 1, "plain")


class Generations:
    """A custodian: who has led, and what each had in its queue when it began. Links do not matter here."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._began: list[tuple[float, set[Sent]]] = []

    def begin(self, *found: Sent) -> None:
        """Somebody leads, and has this in its queue."""
        self._began.append((self._schedule.now_s, set(found)))

    @property
    def generation(self) -> int:
        return len(self._began)

    def promotions_without(self, sent: Sent, since: int) -> list[float]:
        return [at_s for at_s, found in self._began[since:] if sent not in found]

    def is_its_own(self, handout: Handout) -> bool:
        return False

    def has_left(self, reading: Reading) -> bool:
        return False

    def may_be_outdated(self) -> bool:
        return False


class Market(Shop):
    """A ledger in the first generation, in which `MESSAGE` was sent; a second passes before each step."""

    brokers = ()

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.streams = Streams(self.schedule, random.Random(1), 0.01, 1000)
        self.trace = Trace(self.schedule, wanted=False)
        self.generations = Generations(self.schedule)
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
        self.ledger.leaves_primary(MESSAGE, client)

    def comes(self, client: str) -> Handout:
        self.pass_time()
        return self.ledger.hands_out(MESSAGE, self.readings[client], is_marked=False)

    def begins(self, *found: Sent) -> None:
        self.pass_time()
        self.generations.begin(*found)

    def accepted(self) -> None:
        self.pass_time()
        self.ledger.is_accepted(MESSAGE)


def test_what_was_on_its_way_when_its_primary_died_with_it_may_come_again_without_a_mark() -> None:
    market = Market()
    market.leaves("c0.1")
    market.begins()
    assert market.comes("c0.1").generation == 1
    market.accepted()
    market.leaves("c1.1")
    assert market.comes("c1.1").generation == 2


def test_one_that_got_it_of_both_primaries_had_the_first_one_first() -> None:
    market = Market()
    market.leaves("c0.1")
    market.begins()
    market.leaves("c0.1")
    assert market.comes("c0.1").generation == 1
    assert market.comes("c0.1").generation == 2
    with pytest.raises(Violation, match="without a mark"):
        market.comes("c1.1")


def test_what_left_on_an_earlier_link_does_not_come_on_this_one() -> None:
    market = Market()
    market.leaves("c0.1")
    market.pass_time()
    market.readings["c0.1"] = Reading("c0.1", "plain", market.now_s())
    market.begins()
    assert market.comes("c0.1").generation == 2


@pytest.mark.parametrize("is_kept", [True, False], ids=["the next one had it", "it left the next one"])
def test_what_the_next_primary_had_or_handed_out_itself_does_not_come_again_without_a_mark(is_kept: bool) -> None:
    market = Market()
    if is_kept:
        market.leaves("c0.1")
    market.begins(*([MESSAGE] if is_kept else []))
    if not is_kept:
        market.leaves("c0.1")
    market.comes("c0.1")
    market.leaves("c1.1")
    with pytest.raises(Violation, match="without a mark"):
        market.comes("c1.1")


def test_what_was_confirmed_before_its_primary_died_does_not_come_again_without_a_mark() -> None:
    market = Market()
    market.leaves("c0.1")
    market.accepted()
    market.begins()
    market.comes("c0.1")
    with pytest.raises(Violation, match="without a mark"):
        market.comes("c1.1")


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


def test_what_was_consumed_in_a_transaction_that_was_lost_may_be_lost_with_the_same_primary() -> None:
    market = Market()
    client = with_unknown_commit(market)
    market.begins()
    client.check_unknown(set())


def test_what_its_publisher_was_told_of_is_not_gone_where_the_transaction_does_not_count() -> None:
    market = Market()
    client = with_unknown_commit(market)
    market.accepted()
    market.begins()
    with pytest.raises(Violation, match=r"has not committed .* is gone"):
        client.check_unknown(set())


def test_what_the_next_primary_had_is_not_gone_where_the_transaction_does_not_count() -> None:
    market = Market()
    client = with_unknown_commit(market)
    market.begins(MESSAGE)
    with pytest.raises(Violation, match=r"has not committed .* is gone"):
        client.check_unknown(set())
    client.check_unknown({MESSAGE})


def test_what_was_consumed_is_not_there_where_the_transaction_counts() -> None:
    market = Market()
    client = with_unknown_commit(market)
    market.begins(MESSAGE)
    client.check_unknown({WORK})
    with pytest.raises(Violation, match="is there still"):
        client.check_unknown({WORK, MESSAGE})
