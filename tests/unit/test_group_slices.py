"""When a queue of a group goes on to the next member that wants it, and when it stays."""

from __future__ import annotations

from itertools import pairwise

import pytest

from little_group import LittleGroup, LittleMember
from model_support import wants
from qpid_ha_broker.group.recent_moves import RecentMoves
from qpid_ha_broker.group.slices import IDLE_SLICE_S
from qpid_ha_broker.model.queues.dispatcher import Consumer

SLICE_S = 0.02


@pytest.fixture
def group() -> LittleGroup:
    return LittleGroup(SLICE_S)


def consumer(group: LittleGroup, member: LittleMember, credit: int = 100, only: str = "") -> Consumer:
    made = member.core.consumer(member.queue(), accepts=wants(only))
    member.core.give_credit(member.queue(), made, credit)
    group.settle()
    return made


def publish(group: LittleGroup, *texts: str) -> None:
    group.c.core.publish(group.c.queue(), *texts)
    group.settle()


def owners(group: LittleGroup, slices: int) -> str:
    """Who owns the queue at the end of each of the next slices."""
    found = ""
    for _ in range(slices):
        group.pass_time(SLICE_S)
        found += group.c.serving.member.queues.owner(group.c.queue().id)
    return found


def changes(went: str) -> int:
    return sum(before != after for before, after in pairwise(went))


def test_a_queue_that_has_nothing_to_give_goes_round_ever_more_slowly(group: LittleGroup) -> None:
    for member in (group.a, group.b):
        consumer(group, member)
    assert changes(owners(group, int(4 * IDLE_SLICE_S / SLICE_S))) <= 14, "twice six slices that double"
    assert changes(owners(group, int(4 * IDLE_SLICE_S / SLICE_S))) == 4, "one a second"


def test_a_slice_begins_with_a_message_and_who_was_given_it_hands_on(group: LittleGroup) -> None:
    takers = [(member, consumer(group, member)) for member in (group.a, group.b)]
    owners(group, int(4 * IDLE_SLICE_S / SLICE_S))
    (first,) = set(owners(group, 2))
    publish(group, "x")
    inbox = {member.name: len(member.core.inbox(taker)) for member, taker in takers}
    assert inbox == {"a": int(first == "a"), "b": int(first == "b")}, "who has the queue gives it at once"
    assert set(owners(group, 3)) == {"a", "b"} - {first}


def test_a_queue_with_messages_goes_round_in_slices(group: LittleGroup) -> None:
    publish(group, *map(str, range(100)))
    inboxes = [(member, consumer(group, member, credit=10)) for member in (group.a, group.b)]
    owners(group, 2)
    assert [len(member.core.inbox(taker)) for member, taker in inboxes] == [10, 10]


def test_messages_that_nobody_here_wants_come_to_who_does_at_the_end_of_a_slice(group: LittleGroup) -> None:
    consumer(group, group.a, only="red")
    blue = consumer(group, group.b, only="blue")
    publish(group, "blue")
    owners(group, 1)
    assert len(group.b.core.inbox(blue)) == 1


def test_messages_that_nobody_wants_have_a_queue_go_round_ever_more_slowly(group: LittleGroup) -> None:
    for member in (group.a, group.b):
        consumer(group, member, only="red")
    publish(group, "blue")
    went = owners(group, int(4 * IDLE_SLICE_S / SLICE_S))
    assert 8 <= changes(went) <= 14, "twice six slices that double, and then one a second"


# --- how often queues move


def moves(member: LittleMember) -> object:
    return member.replication.facts_of(member.queue())["moves_last_minute"]


def test_all_members_tell_how_often_a_queue_has_moved_in_the_last_minute(group: LittleGroup) -> None:
    consumer(group, group.a)
    assert [moves(member) for member in group.members] == [1] * 3, "it came to the first"
    consumer(group, group.b)
    went = owners(group, 40)
    assert {moves(member) for member in group.members} == {1 + changes("a" + went)}
    group.lose(group.a if went[-1] == "a" else group.b)
    assert moves(group.c) == 2 + changes("a" + went)
    group.pass_time(120.0)
    assert moves(group.c) == 0


def test_a_queue_that_stays_does_not_move(group: LittleGroup) -> None:
    consumer(group, group.a)
    publish(group, *map(str, range(20)))
    owners(group, 20)
    assert moves(group.b) == 1


def test_what_moved_more_than_a_minute_ago_counts_less_and_less() -> None:
    moves = RecentMoves()
    for second in range(60):
        moves.note(7, 2, float(second))
    assert [moves.count(7, now_s) for now_s in (59.0, 60.0, 90.0, 119.0)] == [120, 120, 60, 2]
    moves.note(8, 1, 119.0)
    assert [moves.count(8, now_s) for now_s in (119.0, 150.0, 179.0, 250.0)] == [1, 0, 0, 0]
