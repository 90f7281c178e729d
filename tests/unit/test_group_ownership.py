"""Who hands out from a queue of a group, and who holds messages of it."""

from __future__ import annotations

from qpid_ha_broker.group.ownership import Ownership, Returned, ids_of, ranges_of

QUEUE = 7


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

    again = Ownership(ownership.shares())

    assert again.shares() == ownership.shares()
    assert again.held(QUEUE) == {10: "b", 11: "b", 13: "b"}
    again.check_invariants()


def test_ranges_are_ids_in_runs() -> None:
    assert ranges_of([5, 1, 2, 9, 3]) == ((1, 3), (5, 5), (9, 9))
    assert list(ids_of(((1, 3), (5, 5)))) == [1, 2, 3, 5]
