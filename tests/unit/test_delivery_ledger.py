"""Books of a queue with several consumers: what was out twice, came again after it was gone, or never came back."""

from __future__ import annotations

import pytest

from qpid_ha_demo.delivery_ledger import DeliveryLedger, Ending, Held, OutTwice
from qpid_ha_demo.ledger import Arrival

ACCEPTED, REJECTED, RETURNED, BROKEN = Ending.ACCEPTED, Ending.REJECTED, Ending.RETURNED, Ending.BROKEN
A, B = "amqp://a", "amqp://b"


def held(at: str, from_s: float, until_s: float, ending: Ending, tag: str = "1") -> Held:
    return Held(tag, 7, at, from_s, until_s, ending)


@pytest.mark.parametrize(
    ("stretches", "out_twice"),
    [
        ([held(A, 1, 2, RETURNED), held(B, 2, 3, ACCEPTED)], ()),
        ([held(A, 1, 2, BROKEN), held(B, 3, 4, ACCEPTED)], ()),
        ([held(A, 1, 2, BROKEN, tag="0"), held(B, 1, 2, ACCEPTED)], ()),
        ([held(A, 1, 4, BROKEN), held(B, 3, 5, ACCEPTED)], (OutTwice(7, A, B, 3),)),
        ([held(A, 1, 2, ACCEPTED), held(B, 3, 4, BROKEN)], (OutTwice(7, B, A, 3),)),
        ([held(B, 3, 4, BROKEN), held(A, 1, 2, REJECTED)], (OutTwice(7, B, A, 3),)),
    ],
)  # fmt: skip
def test_a_sending_is_with_one_consumer_at_a_time_and_stays_gone(
    stretches: list[Held], out_twice: tuple[OutTwice, ...]
) -> None:
    audit = DeliveryLedger(held=stretches, answered={7}).audit()
    assert audit.out_twice == out_twice
    assert audit.is_flawless


def test_what_is_held_still_counts() -> None:
    audit = DeliveryLedger(held=[held(B, 3, 4, ACCEPTED)], answered={7}).audit([Held("1", 7, A, 1)])
    assert audit.out_twice == (OutTwice(7, A, B, 3),)


@pytest.mark.parametrize(("ending", "fact"), [(ACCEPTED, "accepted_again"), (REJECTED, "rejected_again")])
def test_nothing_excuses_a_second_answer_that_was_confirmed(ending: Ending, fact: str) -> None:
    audit = DeliveryLedger(held=[held(A, 1, 2, ending), held(B, 3, 4, ending)], answered={7}).audit()
    assert getattr(audit, fact) == (7,)
    assert not audit.is_flawless


@pytest.mark.parametrize(("ending", "fact"), [(RETURNED, "released_lost"), (BROKEN, "broken_lost")])
def test_what_goes_back_is_answered_by_somebody(ending: Ending, fact: str) -> None:
    ledger = DeliveryLedger(held=[held(A, 1, 2, ending)])
    ledger.confirm(7, 1.0)
    audit = ledger.audit()
    assert (getattr(audit, fact), audit.lost, ledger.missing) == ((7,), (7,), 1)
    ledger.answered.add(7)
    assert (ledger.audit().is_flawless, ledger.missing) == (True, 0)


def test_order_holds_for_each_consumer_but_for_what_comes_marked_or_was_sent_again() -> None:
    ledger = DeliveryLedger()
    for number, by, marked in ((1, "a", False), (4, "b", False), (3, "a", False), (2, "a", True), (2, "b", False)):
        ledger.arrive(Arrival(number, 0.0, marked, False, by))
    ledger.arrive(Arrival(5, 0.0, marked=False, sent_again=False, by="a"))
    ledger.arrive(Arrival(0, 0.0, marked=False, sent_again=True, by="a"))
    assert ledger.audit().out_of_order == ()
    ledger.arrive(Arrival(3, 0.0, marked=False, sent_again=False, by="b"))
    ledger.arrive(Arrival(-1, 0.0, marked=False, sent_again=False, by="b"))
    assert ledger.audit().out_of_order == (-1,)
