"""A finding of the books of a group says which guarantee is broken; and what is no finding: nobody knew better."""

from __future__ import annotations

import pytest

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from simulation.brokers.ledger import ClientSession, Handout, Reading, Sent
from simulation.brokers.watch import Watch
from simulation.groups.guarantees import Check, Guarantee
from simulation.groups.ledger import GroupLedger
from simulation.violations import Violation

QUEUE = "q0"
MESSAGE, LATER = Sent("p0-1", 1, QUEUE), Sent("p0-1", 2, QUEUE)
BY_TEXT = {sent.text().encode(): sent for sent in (MESSAGE, LATER)}


class Books(GroupLedger):
    """Of members a and b; two messages were sent, and the first one was accepted."""

    def __init__(self) -> None:
        super().__init__(lambda: 10.0, Watch((), lambda: 10.0), BY_TEXT.__getitem__)
        self.reading = Reading("c", QUEUE, 0.0)
        for sent in (MESSAGE, LATER):
            self.sends(sent)
        self.is_accepted(MESSAGE)

    def leaves(self, member: str = "a", sent: Sent = MESSAGE, *others: str, is_recorded: bool = True) -> None:
        self.leaves_member(member, sent, object(), "", others if is_recorded else None)

    def gives(self, sent: Sent = MESSAGE, *, marked: bool = False, session: ClientSession | None = None) -> Handout:
        """A member does, and it comes."""
        self.leaves(sent=sent)
        reading = self.reading if session is None else Reading(session.name, QUEUE, 0.0, session=session)
        return self.hands_out(sent, reading, marked)

    def answered(self, *, rejected: bool = False) -> None:
        """It has come, and somebody has done with it."""
        handout = self.gives()
        handout.is_consumed = handout.is_confirmed = True
        handout.is_rejected = rejected

    def writes(self, lsn: int, event: ev.Event, member: str = "a") -> None:
        self.log.committed(member, LogRecord(lsn, event, False))


def enqueued(sent: Sent, key: str = "") -> ev.Enqueued:
    return ev.Enqueued((7,), sent.text().encode(), True, 4, 0, key)


def displaced(number: int) -> ev.Dequeued:
    return ev.Dequeued(7, (number,), ev.DequeueReason.DISPLACED)


def lost(books: Books) -> None:
    books.check_rest({QUEUE: []})


def of_another_log(books: Books) -> None:
    books.writes(1, enqueued(MESSAGE))
    books.writes(1, enqueued(LATER), "b")


def last_value_that_was_dropped(books: Books) -> None:
    books.writes(1, enqueued(MESSAGE, "key"))
    books.writes(2, enqueued(LATER, "other key"))
    books.writes(3, displaced(1))
    books.check_rest({QUEUE: [MESSAGE]})


def handed_out_after_it_was_displaced(books: Books) -> None:
    books.writes(1, enqueued(MESSAGE))
    books.writes(2, displaced(1))
    books.leaves()


def out_twice(books: Books) -> None:
    books.leaves("a", MESSAGE, "b")


def unmarked(books: Books) -> None:
    books.gives()
    books.gives()


def of_a_session(books: Books) -> None:
    books.gives(session=ClientSession("s", 1.0))
    books.leaves("b")


def exclusive(books: Books) -> None:
    books.has_alone("a", QUEUE, "b")


def accepted_again(books: Books) -> None:
    books.answered()
    books.leaves("b")


def rejected_and_left(books: Books) -> None:
    books.answered(rejected=True)
    books.check_rest({QUEUE: [MESSAGE]})


def released_and_lost(books: Books) -> None:
    books.gives().is_returned = True
    books.check_rest({QUEUE: []})


def lost_with_a_consumer(books: Books) -> None:
    books.gives()
    books.check_rest({QUEUE: []})


def out_of_order(books: Books) -> None:
    books.gives(LATER)
    books.gives()


@pytest.mark.parametrize(
    ("story", "guarantee"),
    [
        (lost, Guarantee.TRANSFER),
        (of_another_log, Guarantee.TRANSFER),
        (last_value_that_was_dropped, Guarantee.TRANSFER),
        (handed_out_after_it_was_displaced, Guarantee.TRANSFER),
        (out_twice, Guarantee.ACQUIRE),
        (unmarked, Guarantee.ACQUIRE),
        (of_a_session, Guarantee.ACQUIRE),
        (exclusive, Guarantee.ACQUIRE),
        (accepted_again, Guarantee.ACCEPT),
        (rejected_and_left, Guarantee.REJECT),
        (released_and_lost, Guarantee.RELEASE),
        (lost_with_a_consumer, Guarantee.DISCONNECT),
        (out_of_order, Guarantee.ORDER),
    ],
)
def test_each_finding_names_its_guarantee(story: object, guarantee: Guarantee) -> None:
    assert callable(story)
    with pytest.raises(Violation, match=f"^{guarantee}: "):
        story(Books())


def test_each_guarantee_is_looked_for() -> None:
    assert {check.guarantee for check in Check} == set(Guarantee)


def test_a_member_that_is_not_of_the_record_any_more_may_hand_out_what_others_do() -> None:
    books = Books()
    books.gives()
    books.leaves("b", is_recorded=False)

    books.hands_out(MESSAGE, Reading("d", QUEUE, 0.0), False)


def test_what_a_broker_settles_that_has_lost_the_member_from_which_it_relays_may_come_again() -> None:
    books = Books()
    books.answered()
    books.is_parted("c", QUEUE)

    books.gives(marked=True)


def test_a_message_that_was_displaced_is_not_missed() -> None:
    books = Books()
    books.writes(1, enqueued(MESSAGE))
    books.writes(2, enqueued(LATER))
    books.writes(3, displaced(1))

    books.check_rest({QUEUE: [LATER]})
