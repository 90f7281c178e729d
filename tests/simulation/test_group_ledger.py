"""A finding of the books of a simulated group says which guarantee is broken."""

from __future__ import annotations

import pytest

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode_all
from simulation.group_guarantees import Check, Guarantee
from simulation.group_ledger import GroupLedger, SessionCopy
from simulation.node import Violation

MESSAGE, LATER = b"p0/1/0", b"p0/2/0"
QUEUE = 7


class Books(GroupLedger):
    """Of members a and b; a message was confirmed."""

    def __init__(self) -> None:
        super().__init__(lambda: ("a", "b"))
        self.confirmed[MESSAGE] = {QUEUE}

    def gives(self, member: str = "a", payload: bytes = MESSAGE, *, marked: bool = False) -> None:
        self.given(member, "c", payload, marked)

    def end(self, *left: bytes) -> None:
        self.check_nothing_lost({QUEUE: set(left)})


def lost(books: Books) -> None:
    books.end()


def of_another_log(books: Books) -> None:
    for payload in (MESSAGE, LATER):
        (record,) = [encode_all([LogRecord(1, ev.Enqueued((QUEUE,), payload, True, 4, 0, ""), False)])]
        books.committed("a", 1, record)


def out_twice(books: Books) -> None:
    books.gives("a")
    books.gives("b", marked=True)


def unmarked(books: Books) -> None:
    books.gives()
    books.returned("a", MESSAGE)
    books.gives()


def of_a_session(books: Books) -> None:
    books.given_to_session("a", MESSAGE, SessionCopy(1, QUEUE))
    books.gives("b", marked=True)


def forgotten_by_a_session(books: Books) -> None:
    books.given_to_session("a", MESSAGE, SessionCopy(1, QUEUE))
    books.session_resumed("b", 1, QUEUE, {})


def exclusive(books: Books) -> None:
    books.has_alone("a", QUEUE)
    books.has_alone("b", QUEUE)


def accepted_again(books: Books) -> None:
    books.gives()
    books.is_accepted("a", MESSAGE, Check.ACCEPTED_AGAIN)
    books.gives("b", marked=True)


def rejected_and_left(books: Books) -> None:
    books.gives()
    books.is_accepted("a", MESSAGE, Check.REJECTED_AGAIN)
    books.end(MESSAGE)


def released_and_lost(books: Books) -> None:
    books.gives()
    books.returned("a", MESSAGE, Check.RELEASED_LOST)
    books.end()


def released_by_a_session_and_lost(books: Books) -> None:
    books.given_to_session("a", MESSAGE, SessionCopy(1, QUEUE))
    books.session_gives_back(MESSAGE)
    books.end()


def lost_with_a_member(books: Books) -> None:
    books.gives()
    books.node_lost("a")
    books.end()


def out_of_order(books: Books) -> None:
    books.gives(payload=LATER)
    books.gives()


@pytest.mark.parametrize(
    ("story", "guarantee"),
    [
        (lost, Guarantee.TRANSFER),
        (of_another_log, Guarantee.TRANSFER),
        (out_twice, Guarantee.ACQUIRE),
        (unmarked, Guarantee.ACQUIRE),
        (of_a_session, Guarantee.ACQUIRE),
        (forgotten_by_a_session, Guarantee.ACQUIRE),
        (exclusive, Guarantee.ACQUIRE),
        (accepted_again, Guarantee.ACCEPT),
        (rejected_and_left, Guarantee.REJECT),
        (released_and_lost, Guarantee.RELEASE),
        (released_by_a_session_and_lost, Guarantee.RELEASE),
        (lost_with_a_member, Guarantee.DISCONNECT),
        (out_of_order, Guarantee.ORDER),
    ],
)
def test_each_finding_names_its_guarantee(story: object, guarantee: Guarantee) -> None:
    assert callable(story)
    with pytest.raises(Violation, match=f"^{guarantee}: "):
        story(Books())


def test_each_guarantee_is_looked_for() -> None:
    assert {check.guarantee for check in Check} == set(Guarantee)
