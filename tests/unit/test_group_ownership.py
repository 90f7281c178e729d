"""Who hands out from a queue of a group, and who holds messages of it."""

from __future__ import annotations

from model_support import Core
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group.checks import why_skipped
from qpid_ha_broker.group.ownership import Ownership, Returned, ids_of, ranges_of
from qpid_ha_broker.model.queues.sequence import SessionOwner

QUEUE = 7
LINK = SessionOwner(1, "session", "in")


def wanted_by(*members: str) -> Ownership:
    ownership = Ownership()
    for position, member in enumerate(members, 1):
        ownership.want(QUEUE, member, position)
    return ownership


def test_the_first_who_wants_a_queue_owns_it_and_others_wait_in_order() -> None:
    ownership = wanted_by("b", "a", "c", "a")

    assert ownership.owner(QUEUE) == ("b", 1)
    assert ownership.wanting(QUEUE) == ("a", "c")


def test_who_yields_keeps_what_its_consumers_have_and_the_next_one_owns_the_rest() -> None:
    ownership = wanted_by("b", "a")

    assert ownership.give_up(QUEUE, "b", (10, 11), 5)

    assert ownership.owner(QUEUE) == ("a", 5)
    assert ownership.may_take(QUEUE, "b", (10, 11))
    assert not ownership.may_take(QUEUE, "b", (10, 12))
    assert ownership.may_take(QUEUE, "a", (12, 13))
    assert not ownership.may_take(QUEUE, "a", (11, 12))


def test_who_waits_may_give_that_up() -> None:
    ownership = wanted_by("b", "a", "c")

    assert not ownership.give_up(QUEUE, "a", (), 5)

    assert ownership.owner(QUEUE) == ("b", 1)
    assert ownership.wanting(QUEUE) == ("c",)


def test_what_was_answered_is_held_no_more() -> None:
    ownership = wanted_by("b", "a")
    ownership.give_up(QUEUE, "b", (10, 11), 5)

    ownership.answered(QUEUE, (10,))

    assert ownership.held(QUEUE) == {11: "b"}
    assert not ownership.may_take(QUEUE, "b", (10,))


def test_what_a_member_had_goes_back_when_it_leaves() -> None:
    ownership = wanted_by("b", "a", "c")
    ownership.give_up(QUEUE, "b", (10, 11), 5)

    assert ownership.leave({"a", "b"}, 9) == [Returned(QUEUE, (10, 11), was_owned=True)]

    assert ownership.owner(QUEUE) == ("c", 9)
    assert ownership.wanting(QUEUE) == ()
    assert ownership.held(QUEUE) == {}


def test_nobody_may_take_from_a_queue_that_nobody_has_wanted_or_that_is_gone() -> None:
    ownership = wanted_by("b")
    ownership.forget(QUEUE)

    assert not ownership.may_take(QUEUE, "b", (1,))
    assert ownership.owner(QUEUE) == ("", 0)


def test_who_joins_is_shown_all_of_it() -> None:
    ownership = wanted_by("b", "a", "c")
    ownership.give_up(QUEUE, "b", (10, 11, 13), 5)
    ownership.take_link(QUEUE, LINK, 2, "c")
    ownership.use_alone(QUEUE, "a")

    again = Ownership(ownership.shares())

    assert again.shares() == ownership.shares()
    assert again.held(QUEUE) == {10: "b", 11: "b", 13: "b"}
    assert again.user(QUEUE) == "a"
    again.check_invariants()


def test_ranges_are_ids_in_runs() -> None:
    assert ranges_of([5, 1, 2, 9, 3]) == ((1, 3), (5, 5), (9, 9))
    assert list(ids_of(((1, 3), (5, 5)))) == [1, 2, 3, 5]


# --- what sessions of clients hold


class OneQueue:
    """A copy with one queue that `a` owns, of which a session holds the first two messages; its link is at `a`."""

    def __init__(self) -> None:
        core = Core()
        self.queue = core.queue("q")
        first = core.publish(self.queue, "1", "2", "3") - 2
        self.ids = first, first + 1
        self.free = first + 2
        self.state, self.ownership = core.state, Ownership()
        self.ownership.want(self.queue.id, "a", 1)
        self.ownership.take_link(self.queue.id, LINK, 1, "a")
        core.resources.replicated.submit((ev.SessionAcquired(self.queue.id, *LINK, self.ids),))

    def counts(self, member: str, *events: ev.Event) -> bool:
        return why_skipped(self.state, self.ownership, member, events) is None

    def accepted(self, *ids: int) -> ev.Dequeued:
        return ev.Dequeued(self.queue.id, ids, ev.DequeueReason.CONSUMED)

    def answers(self, member: str) -> bool:
        """What the session holds; the same for what comes back."""
        released = ev.Released(self.queue.id, self.ids, False)
        counts = {self.counts(member, event) for event in (released, self.accepted(*self.ids))}
        assert len(counts) == 1
        return counts.pop()


def test_what_a_session_holds_is_answered_by_the_member_at_which_its_link_is_attached() -> None:
    there = OneQueue()
    assert [there.answers(member) for member in "abc"] == [True, False, False]
    assert there.ownership.take_link(there.queue.id, LINK, 2, "b")
    assert [there.answers(member) for member in "abc"] == [False, True, False]
    assert there.counts("a", there.accepted(there.free)), "the queue is its own still"
    assert not there.counts("b", there.accepted(*there.ids, there.free))


def test_an_older_connection_does_not_get_the_link_back() -> None:
    there = OneQueue()
    assert there.ownership.take_link(there.queue.id, LINK, 2, "b")
    assert not there.ownership.take_link(there.queue.id, LINK, 1, "a")
    assert there.ownership.take_link(there.queue.id, LINK, 2, "c"), "the same connection, by way of another member"
    assert [there.answers(member) for member in "abc"] == [False, False, True]


def test_a_session_holds_on_when_its_member_leaves_or_its_link_ends_and_nobody_answers_for_it() -> None:
    there = OneQueue()
    there.ownership.leave_link(there.queue.id, LINK, "b")
    assert there.answers("a"), "b has not had it"
    there.ownership.leave_link(there.queue.id, LINK, "a")
    assert [there.answers(member) for member in "abc"] == [False, False, False]
    there.ownership.take_link(there.queue.id, LINK, 2, "b")
    there.ownership.leave({"b"}, 5)
    assert [there.answers(member) for member in "abc"] == [False, False, False]


def test_who_yields_a_queue_answers_for_its_sessions_as_before() -> None:
    there = OneQueue()
    there.ownership.want(there.queue.id, "b", 2)
    there.ownership.give_up(there.queue.id, "a", (), 3)
    assert [there.answers(member) for member in "ab"] == [True, False]
    assert [there.counts(member, there.accepted(there.free)) for member in "ab"] == [False, True]


def test_a_session_gets_messages_of_who_owns_the_queue_and_has_its_link() -> None:
    there = OneQueue()
    more = ev.SessionAcquired(there.queue.id, *LINK, (there.free,))
    assert there.counts("a", more)
    assert not there.counts("a", more._replace(ids=(there.ids[0],))), "it is held already"
    assert not there.counts("a", more._replace(link="other"))
    there.ownership.take_link(there.queue.id, LINK, 2, "b")
    assert not there.counts("a", more), "the session is elsewhere by now"
    assert not there.counts("b", more), "the queue is another's"
