"""What clients' sessions hold of the queues of a group: it is theirs at whichever member they come back."""

from __future__ import annotations

import pytest

from little_group import LittleGroup, LittleMember
from model_support import NOW_MS, bodies
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import InUse
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from qpid_ha_broker.model.sets.session_messages import give_back_held, held_for
from qpid_ha_broker.model.transactions.transaction import Transaction
from session_support import FIRST, SessionTaker

LINK = SessionOwner(1, FIRST, "link")


@pytest.fixture
def group() -> LittleGroup:
    group = LittleGroup()
    group.b.core.publish(group.b.queue(), "1", "2", "3", "4")
    group.settle()
    return group


def take_link(member: LittleMember, epoch: int = 1) -> CommitToken:
    """What the attach of the session's link at the member waits for."""
    token = member.replication.take_link(member.queue(), LINK, epoch)
    assert token is not None
    return token


def attach(group: LittleGroup, member: LittleMember, credit: int, epoch: int = 1) -> SessionTaker:
    token = take_link(member, epoch)
    group.settle()
    assert token.is_committed
    return serve(group, member, credit)


def serve(group: LittleGroup, member: LittleMember, credit: int) -> SessionTaker:
    """A link that is attached, and has got what there is for its credit."""
    taker = member.core.add_consumer(member.queue(), SessionTaker())
    member.core.give_credit(member.queue(), taker, credit)
    group.settle()
    return taker


def held(member: LittleMember) -> list[Entry]:
    return held_for(member.resources, member.queue(), LINK)


def whose(group: LittleGroup) -> list[list[str]]:
    """What the session holds, by each member's copy."""
    for member in group.members:
        member.core.catalog.holdings.check_invariants(member.core.catalog.queues.values())
    return [bodies(held(member)) for member in group.members]


def test_what_a_session_was_given_is_held_in_the_log_of_all(group: LittleGroup) -> None:
    taker = attach(group, group.a, 2)
    assert bodies(group.a.core.inbox(taker)) == ["1", "2"]
    assert whose(group) == [["1", "2"]] * 3


def test_what_it_accepts_leaves_and_what_it_gives_back_is_for_others(group: LittleGroup) -> None:
    taker = attach(group, group.a, 2)
    first, second = group.a.core.inbox(taker)
    accepted = group.a.resources.accept(group.a.queue(), [first])
    group.a.resources.release(group.a.queue(), [second], failed=False)
    group.settle()
    assert accepted.is_committed
    assert whose(group) == [[]] * 3
    assert [bodies(member.queue().messages) for member in group.members] == [["2", "3", "4"]] * 3


def test_a_session_whose_member_has_died_resumes_at_another_and_nobody_got_what_it_holds(group: LittleGroup) -> None:
    taker = attach(group, group.a, 2)
    (first, _) = group.a.core.inbox(taker)
    group.a.resources.accept(group.a.queue(), [first])
    group.settle()
    group.lose(group.a)
    others = group.c.core.consumer(group.c.queue())
    group.c.core.give_credit(group.c.queue(), others, 10)
    group.settle()
    assert bodies(group.c.core.inbox(others)) == ["3", "4"]
    assert whose(group) == [["2"]] * 2

    taker = attach(group, group.b, 10, epoch=2)
    assert group.b.core.inbox(taker) == [], "the queue is another's, and what it holds is not given again here"
    accepted = group.b.resources.accept(group.b.queue(), held(group.b))
    group.settle()
    assert accepted.is_committed
    assert whose(group) == [[]] * 2


def test_what_was_said_where_the_session_was_before_counts_or_is_skipped_by_its_place(group: LittleGroup) -> None:
    taker = attach(group, group.a, 3)
    first, second, _ = group.a.core.inbox(taker)
    before = group.a.resources.accept(group.a.queue(), [first])
    group.a.turn()
    resumed = take_link(group.b, epoch=2)
    group.b.turn()
    after = group.a.resources.accept(group.a.queue(), [second])
    group.settle()
    assert [token.is_committed for token in (before, resumed, after)] == [True, True, False]
    assert whose(group) == [["2", "3"]] * 3
    assert second.holder is group.a.queue().held[second.id], "it is the session's still, there too"


def test_who_knows_that_a_session_is_elsewhere_says_nothing_of_what_it_holds(group: LittleGroup) -> None:
    taker = attach(group, group.a, 2)
    first, second = group.a.core.inbox(taker)
    transaction = Transaction()
    transaction.accept(group.a.queue(), second, taker)
    take_link(group.b, epoch=2)
    group.settle()
    for token in (
        group.a.resources.accept(group.a.queue(), [first]),
        group.a.resources.commit(transaction, NOW_MS),
    ):
        assert isinstance(token.failure, InUse)
    group.b.resources.accept(group.b.queue(), held(group.b))
    group.settle()
    assert whose(group) == [[]] * 3
    assert [bodies(member.queue().messages) for member in group.members] == [["3", "4"]] * 3


def test_a_link_is_answered_for_once_all_know_where_it_is(group: LittleGroup) -> None:
    """What the member before has said has its place by then: else it would be judged after what is said here."""
    taker = attach(group, group.a, 1)
    (first,) = group.a.core.inbox(taker)
    group.c.write(ev.QueueDeclared("other", {}))
    resumed = take_link(group.b, epoch=2)
    group.b.turn()
    group.a.resources.accept(group.a.queue(), [first])
    group.deliver_next()
    known = [resumed.is_committed]
    group.settle()
    assert [*known, resumed.is_committed] == [False, True]
    assert whose(group) == [["1"]] * 3


def test_a_link_that_was_taken_elsewhere_gets_nothing_more(group: LittleGroup) -> None:
    taker = attach(group, group.a, 1)
    take_link(group.b, epoch=2)
    group.b.turn()
    group.a.core.give_credit(group.a.queue(), taker, 1)
    group.settle()
    assert whose(group) == [["1"]] * 3
    assert [entry.holder for entry in group.a.queue().messages][1:] == [None, None, None], "it came back, unmarked"


def test_what_waits_to_be_committed_is_not_given_to_a_link_that_was_taken_elsewhere_meanwhile(
    group: LittleGroup,
) -> None:
    """Who answers for it by then may have given it back, or dropped it (seed 443361)."""
    taker = attach(group, group.a, 1)
    taker.credit = 1
    group.a.core.catalog.wake(group.a.queue())
    (handout,) = group.a.resources.hand_out(NOW_MS, 10)
    group.a.turn()
    take_link(group.b, epoch=2)
    group.b.turn()
    group.settle()
    assert isinstance(handout.written.failure, InUse)
    assert whose(group) == [["1", "2"]] * 3, "the session has it, and gets it there"


def test_an_older_connection_of_the_session_is_refused(group: LittleGroup) -> None:
    attach(group, group.b, 1, epoch=2)
    late = take_link(group.a, epoch=1)
    group.settle()
    assert isinstance(late.failure, InUse)


def test_what_is_gone_is_accepted_by_nobody_who_still_has_it(group: LittleGroup) -> None:
    """A connection that the session has had may say again what came in on the next one."""
    taker = attach(group, group.a, 1)
    (first,) = group.a.core.inbox(taker)
    group.a.resources.accept(group.a.queue(), held(group.a))
    group.settle()
    again = group.a.resources.accept(group.a.queue(), [first])
    group.settle()
    assert isinstance(again.failure, InUse)


def test_a_queue_that_is_yielded_keeps_what_a_session_holds(group: LittleGroup) -> None:
    taker = attach(group, group.a, 2)
    first, second = group.a.core.inbox(taker)
    transaction = Transaction()
    transaction.accept(group.a.queue(), second, taker)
    others = group.b.core.consumer(group.b.queue())
    group.b.core.give_credit(group.b.queue(), others, 10)
    group.settle()
    group.pass_time(2.0)
    assert bodies(group.b.core.inbox(others)) == ["3", "4"]
    assert group.b.serving.member.queues.held(group.b.queue().id) == {}, "a session holds it, not its member"
    tokens = [group.a.resources.accept(group.a.queue(), [first]), group.a.resources.commit(transaction, NOW_MS)]
    group.settle()
    assert [token.is_committed for token in tokens] == [True, True]
    assert whose(group) == [[]] * 3


def test_what_an_ended_session_held_goes_back_by_the_first_member_wherever_its_link_was(group: LittleGroup) -> None:
    taker = attach(group, group.b, 2)
    first, second = group.b.core.inbox(taker)
    before = group.b.resources.accept(group.b.queue(), [first])
    group.b.turn()
    last = group.a.replication._number
    for member in group.members:
        (link,) = member.core.catalog.holdings
        if member.replication.is_first():
            give_back_held(member.resources, link, ev.EVERYTHING, failed=True)
            give_back_held(member.resources, link, ev.EVERYTHING, failed=True)
    assert group.a.replication._number == last + 1, "it is asked for once"
    group.a.turn()
    after = group.b.resources.accept(group.b.queue(), [second])
    group.settle()
    assert (before.is_committed, after.is_committed) == (True, False)
    assert whose(group) == [[]] * 3
    assert [bodies(member.queue().messages) for member in group.members] == [["2", "3", "4"]] * 3
    back = group.c.core.consumer(group.c.queue())
    group.c.core.give_credit(group.c.queue(), back, 1)
    taker.credit = 0
    group.b.core.leave(group.b.queue(), taker)
    group.settle()
    assert bodies(group.c.core.inbox(back)) == ["2"]


def test_a_member_that_steps_out_leaves_what_sessions_hold_held(group: LittleGroup) -> None:
    attach(group, group.a, 2)
    group.lose(group.b)
    group.lose(group.c)
    log = group.a.serving.member._parts.log
    assert log is not None
    log.release_all()
    assert whose(group) == [["1", "2"]]


def test_who_comes_back_is_shown_what_sessions_hold_and_where_their_links_are(group: LittleGroup) -> None:
    taker = attach(group, group.a, 2)
    (first, _) = group.a.core.inbox(taker)
    group.lose(group.c)
    group.come_anew("c")
    assert whose(group) == [["1", "2"]] * 3
    group.a.resources.accept(group.a.queue(), [first])
    group.settle()
    assert whose(group) == [["2"]] * 3


def test_of_two_who_answer_for_a_message_at_one_member_the_first_counts(group: LittleGroup) -> None:
    """The session has ended, and what it held goes back; its link is still there, and accepts that."""
    taker = attach(group, group.a, 1)
    (entry,) = group.a.core.inbox(taker)
    others = group.a.core.consumer(group.a.queue())
    group.a.resources.release(group.a.queue(), [entry], failed=False)
    late = group.a.resources.accept(group.a.queue(), [entry])
    assert isinstance(late.failure, InUse)
    group.settle()
    group.a.core.give_credit(group.a.queue(), others, 1)
    group.settle()
    assert bodies(group.a.core.inbox(others)) == ["1"]
    assert group.c.queue().messages.count == 4
