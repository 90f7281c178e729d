"""Queues of a group that delete themselves: users are counted over all members."""

from __future__ import annotations

import pytest

from little_group import LittleGroup, LittleMember
from model_support import NOW_MS
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.queues.dispatcher import Consumer

COMEBACK_MS = 10_000
START_MS = NOW_MS + COMEBACK_MS


@pytest.fixture
def group() -> LittleGroup:
    """With a queue that deletes itself, after the time in which users of those may come back who were there before."""
    group = LittleGroup()
    group.a.write(ev.QueueDeclared("mine", {"qpid.auto_delete": True}))
    group.settle()
    for now_ms in (NOW_MS, START_MS):
        assert deleted_by(group, now_ms) == []
    return group


def attach(group: LittleGroup, member: LittleMember, credit: int = 0) -> Consumer:
    made = member.core.consumer(member.queue("mine"))
    if credit:
        member.core.give_credit(member.queue("mine"), made, credit)
    group.settle()
    return made


def detach(group: LittleGroup, member: LittleMember, consumer: Consumer) -> None:
    member.core.leave(member.queue("mine"), consumer)
    group.settle()


def deleted_by(group: LittleGroup, now_ms: int) -> list[str]:
    """Who has it deleted at that time; all members let it pass."""
    names = []
    for member in group.members:
        member.core.now_ms = now_ms
        due = member.resources.timers.tick(now_ms)
        names += [member.name for _ in due]
    group.settle()
    return names


def test_a_queue_that_nobody_has_used_stays(group: LittleGroup) -> None:
    assert deleted_by(group, START_MS + COMEBACK_MS * 2) == []


@pytest.mark.parametrize("credit", [0, 1])
def test_a_queue_is_deleted_once_and_by_the_first_member_when_its_last_user_at_any_member_has_left(
    group: LittleGroup, credit: int
) -> None:
    second, third = attach(group, group.b, credit), attach(group, group.c, credit)
    assert deleted_by(group, START_MS + 1) == []
    detach(group, group.b, second)
    assert deleted_by(group, START_MS + 2) == []
    detach(group, group.c, third)
    assert deleted_by(group, START_MS + 3) == ["a"]


def test_users_of_the_first_member_itself_count_like_those_of_others(group: LittleGroup) -> None:
    own, other = attach(group, group.a), attach(group, group.b)
    detach(group, group.a, own)
    assert deleted_by(group, START_MS + 1) == []
    detach(group, group.b, other)
    own = attach(group, group.a)
    assert deleted_by(group, START_MS + 2) == []
    detach(group, group.a, own)
    assert deleted_by(group, START_MS + 3) == ["a"]


def test_a_queue_that_waits_before_it_deletes_itself_waits_from_the_last_use_at_any_member_on(
    group: LittleGroup,
) -> None:
    group.a.write(ev.QueueUpdated(group.a.queue("mine").id, {"qpid.auto_delete": True, "qpid.auto_delete_delay_s": 5}))
    group.settle()
    first = attach(group, group.a)
    detach(group, group.a, first)
    assert deleted_by(group, START_MS + 4000) == []
    other = attach(group, group.b)
    assert deleted_by(group, START_MS + 6000) == []
    detach(group, group.b, other)
    assert deleted_by(group, START_MS + 10_000) == []
    assert deleted_by(group, START_MS + 11_000) == ["a"]


def test_users_of_a_member_that_ends_have_time_to_come_back(group: LittleGroup) -> None:
    attach(group, group.b)
    group.lose(group.b)
    group.settle()
    assert deleted_by(group, START_MS + COMEBACK_MS - 1) == []
    back = attach(group, group.c)
    assert deleted_by(group, START_MS + COMEBACK_MS + 1) == []
    detach(group, group.c, back)
    assert deleted_by(group, START_MS + COMEBACK_MS + 2) == ["a"]


def test_a_queue_whose_users_do_not_come_back_is_deleted_though_the_first_member_has_ended(group: LittleGroup) -> None:
    attach(group, group.a)
    group.lose(group.a)
    group.settle()
    assert deleted_by(group, START_MS + COMEBACK_MS - 1) == []
    assert deleted_by(group, START_MS + COMEBACK_MS) == ["b"]


def test_who_has_no_credit_keeps_others_from_nothing(group: LittleGroup) -> None:
    attach(group, group.b)
    mine = attach(group, group.c, credit=1)
    group.a.core.publish(group.a.queue("mine"), "one")
    for _ in range(4):
        group.pass_time(group.slice_s + 0.1)
    assert len(group.c.core.inbox(mine)) == 1


def test_a_queue_whose_user_has_gone_before_others_saw_it_goes_a_while_later(group: LittleGroup) -> None:
    brief = group.c.core.consumer(group.c.queue("mine"))
    group.c.core.leave(group.c.queue("mine"), brief)
    group.settle()
    assert deleted_by(group, START_MS + COMEBACK_MS - 1) == []
    assert deleted_by(group, START_MS + COMEBACK_MS) == ["a"]
