"""Queues of a group in which newer messages take the place of older ones: what leaves is decided once, by the owner of
the queue, or by the first member where there is none."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from little_group import LittleGroup, LittleMember
from model_support import NOW_MS, bodies, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import QueueFull
from qpid_ha_broker.model.queues.dispatcher import Consumer

RING: Mapping[str, ev.Scalar] = {"qpid.policy_type": "ring", "qpid.max_count": 3}
LAST_VALUES: Mapping[str, ev.Scalar] = {"qpid.last_value_queue_key": "key"}


def group_with(arguments: Mapping[str, ev.Scalar]) -> LittleGroup:
    group = LittleGroup()
    group.a.write(ev.QueueDeclared("ring", dict(arguments)))
    group.settle()
    return group


def publish(member: LittleMember, *texts: str) -> None:
    """`... of x`: a value of the key x."""
    for text in texts:
        _, _, key = text.partition(" of ")
        member.core.publish(member.queue("ring"), message(text, key=key) if key else text)


def held(group: LittleGroup) -> list[str]:
    """The same at all members."""
    first, *others = [bodies(member.queue("ring").messages) for member in group.members]
    assert others == [first] * len(others)
    return first


def owners(group: LittleGroup) -> set[str]:
    return {member.serving.member.queues.owner(member.queue("ring").id) for member in group.members}


def consumer(member: LittleMember, credit: int) -> Consumer:
    made = member.core.consumer(member.queue("ring"))
    member.core.give_credit(member.queue("ring"), made, credit)
    return made


def dropped(group: LittleGroup) -> int:
    return group.a.queue("ring").messages.dequeued_total


# --- rings


def test_a_ring_that_nobody_has_is_kept_to_its_limits_by_the_first_member_which_yields_it() -> None:
    group = group_with(RING)
    publish(group.b, "1", "2")
    publish(group.c, "3", "4", "5")
    group.settle()
    assert (held(group), owners(group)) == (["3", "4", "5"], {""})


def have_b_own_the_ring(group: LittleGroup) -> None:
    """A consumer of B has credit, and takes none of what comes."""
    waits = group.b.core.consumer(group.b.queue("ring"), accepts=lambda body: False)
    group.b.core.give_credit(group.b.queue("ring"), waits, 1)
    group.settle()
    assert owners(group) == {"b"}


def test_a_ring_goes_over_its_limits_until_its_owner_has_said_what_leaves() -> None:
    group = group_with(RING)
    publish(group.b, "1", "2", "3", "4", "5")
    group.turn()
    group.deliver_next()
    assert held(group) == ["1", "2", "3", "4", "5"]
    group.settle()
    assert held(group) == ["3", "4", "5"]


def test_nothing_leaves_a_ring_twice_for_one_that_came() -> None:
    group = group_with(RING)
    have_b_own_the_ring(group)
    for number in range(1, 9):  # each is there while what leaves for the one before is on its way
        publish(group.c, str(number))
        group.turn()
        group.deliver_next()
    group.settle()
    assert (held(group), dropped(group)) == (["6", "7", "8"], 5)


def test_the_owner_of_a_ring_drops_the_oldest_that_no_consumer_of_any_member_has() -> None:
    group = group_with(RING)
    publish(group.a, "1", "2", "3")
    mine = consumer(group.b, 1)
    group.settle()
    assert group.b.core.inbox(mine)[0].resident_body().endswith(b"1")
    publish(group.a, "4", "5")
    group.settle()
    assert held(group) == ["1", "4", "5"]


def test_who_owns_a_ring_next_drops_what_the_last_owner_did_not_come_to() -> None:
    group = group_with(RING)
    have_b_own_the_ring(group)
    publish(group.c, "1", "2", "3", "4", "5")
    group.turn()
    group.deliver_next()
    group.lose(group.b)
    group.settle()
    assert (held(group), owners(group)) == (["3", "4", "5"], {""})


def test_what_nobody_came_to_drop_is_dropped_at_a_tick() -> None:
    group = group_with(RING)
    publish(group.c, "1", "2", "3", "4", "5")
    group.turn()
    group.deliver_next()
    for member in group.members:
        member.replication.due.clear()
    group.settle()
    assert len(held(group)) == 5
    for member in group.members:
        assert member.resources.timers.tick(NOW_MS) == []
    group.settle()
    assert held(group) == ["3", "4", "5"]


def test_whoever_publishes_to_a_full_ring_drops_nothing_of_it() -> None:
    group = group_with({**RING, **LAST_VALUES})
    publish(group.a, "1", "2", "old of x")
    group.settle()
    publish(group.c, "new of x", "4")
    assert (group.c.queue("ring").messages.acquired, held(group)) == (0, ["1", "2", "old of x"])
    group.settle()
    assert held(group) == ["2", "new of x", "4"]


def test_a_message_that_is_larger_than_a_ring_is_refused() -> None:
    group = group_with({"qpid.policy_type": "ring", "qpid.max_size": 16})
    with pytest.raises(QueueFull):
        publish(group.b, "123456789012345")
    publish(group.b, "1234", "5678", "abcd")
    group.settle()
    assert held(group) == ["5678", "abcd"]


# --- last values


def test_of_two_values_of_a_key_that_came_at_two_members_the_one_that_was_delivered_last_stays() -> None:
    group = group_with(LAST_VALUES)
    publish(group.b, "old of x", "other of y")
    publish(group.c, "new of x")
    group.settle()
    assert (held(group), owners(group)) == (["other of y", "new of x"], {""})


def test_an_older_value_stays_as_long_as_somebody_has_it_and_goes_when_it_comes_back() -> None:
    group = group_with(LAST_VALUES)
    publish(group.a, "old of x")
    mine = consumer(group.b, 1)
    group.settle()
    entries = group.b.core.inbox(mine)
    publish(group.c, "new of x")
    group.settle()
    assert held(group) == ["old of x", "new of x"]
    group.b.resources.release(group.b.queue("ring"), entries, failed=False)
    group.settle()
    assert held(group) == ["new of x"]


def test_an_older_value_of_a_member_that_ends_goes() -> None:
    group = group_with(LAST_VALUES)
    publish(group.a, "old of x")
    consumer(group.b, 1)
    group.settle()
    publish(group.c, "new of x")
    group.settle()
    group.lose(group.b)
    group.settle()
    assert held(group) == ["new of x"]


def test_a_newer_value_needs_no_more_room_than_the_older_one() -> None:
    group = group_with({**LAST_VALUES, "qpid.max_count": 1})
    publish(group.a, "old of x")
    group.settle()
    publish(group.b, "new of x")
    with pytest.raises(QueueFull):
        publish(group.b, "other of y")
    group.settle()
    assert held(group) == ["new of x"]
