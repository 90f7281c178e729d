"""What time does to the queues of a group: it is done once, by who owns the queue, or by the first member."""

from __future__ import annotations

import pytest

from little_group import LittleGroup, LittleMember
from model_support import NOW_MS, bodies, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group.slices import Slices
from qpid_ha_broker.model.queues.dispatcher import Consumer


@pytest.fixture
def group() -> LittleGroup:
    return LittleGroup()


def held(member: LittleMember) -> list[str]:
    return bodies(member.queue().messages)


def consumer(member: LittleMember, name: str = "q") -> Consumer:
    made = member.core.consumer(member.queue(name))
    member.core.give_credit(member.queue(name), made, 10)
    return made


def tick(group: LittleGroup, now_ms: int) -> None:
    """At all members, twice: who has something to do may have to ask for the queue first."""
    for _ in range(2):
        for member in group.members:
            member.core.now_ms = now_ms
            assert member.resources.timers.tick(now_ms) == []
        group.settle()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of queues that members look at."""
    looked: list[str] = []
    look_at = Slices.look_at

    def counting(self: Slices, *given: object) -> object:
        looked.append(given[1].name)  # type: ignore[attr-defined]
        return look_at(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Slices, "look_at", counting)
    return looked


# --- expiry


def test_what_expires_where_nobody_consumes_leaves_once_by_the_first_member_which_yields(group: LittleGroup) -> None:
    group.b.core.publish(group.b.queue(), message("old", ttl_ms=5), message("new"))
    group.settle()
    before = group.a.core.log.last_lsn
    tick(group, NOW_MS + 1)
    assert held(group.c) == ["old", "new"]
    tick(group, NOW_MS + 1000)
    assert [held(member) for member in group.members] == [["new"]] * 3
    assert group.a.core.log.last_lsn == before + 1, "once, by one member"
    assert [member.serving.member.queues.owner(member.queue().id) for member in group.members] == [""] * 3


def test_nobody_asks_for_a_queue_whose_expired_messages_have_gone(group: LittleGroup, looks: list[str]) -> None:
    group.b.core.publish(group.b.queue(), message("old", ttl_ms=5))
    group.settle()
    tick(group, NOW_MS + 1000)
    looks.clear()
    tick(group, NOW_MS + 2000)
    assert (looks, [member.core.catalog.timed for member in group.members][1:]) == ([], [{}, {}])


def test_what_expires_where_another_member_consumes_is_its_owners_to_remove(group: LittleGroup) -> None:
    mine = group.b.core.consumer(group.b.queue(), accepts=lambda body: False)
    group.b.core.give_credit(group.b.queue(), mine, 1)
    group.settle()
    group.a.core.publish(group.a.queue(), message("old", ttl_ms=5))
    group.settle()
    tick(group, NOW_MS + 1000)
    assert [held(member) for member in group.members] == [[], [], []]
    assert group.a.serving.member.queues.owner(group.a.queue().id) == "b"


def test_what_a_consumer_has_does_not_expire_and_does_once_it_comes_back(group: LittleGroup) -> None:
    group.b.core.publish(group.b.queue(), message("old", ttl_ms=5))
    mine = consumer(group.b)
    group.settle()
    entries = group.b.core.inbox(mine)
    tick(group, NOW_MS + 1000)
    assert held(group.a) == ["old"]
    mine.credit = 0
    group.b.resources.release(group.b.queue(), entries, failed=False)
    group.b.core.leave(group.b.queue(), mine)
    group.settle()
    tick(group, NOW_MS + 2000)
    assert [held(member) for member in group.members] == [[]] * 3


# --- what waits for its time


def test_a_message_that_is_due_later_is_given_then_wherever_it_was_published_and_once(group: LittleGroup) -> None:
    mine = consumer(group.c)
    group.settle()
    group.b.core.publish(group.b.queue(), message("later", delay_ms=50), "now")
    group.settle()
    assert bodies(group.c.core.inbox(mine)) == ["now"]
    tick(group, NOW_MS + 49)
    assert group.c.core.inbox(mine) == []
    tick(group, NOW_MS + 50)
    entries = group.c.core.inbox(mine)
    assert bodies(entries) == ["later"]
    group.c.resources.accept(group.c.queue(), entries)
    group.settle()
    assert [held(member) for member in group.members] == [["now"]] * 3
    for member in group.members:
        member.queue().messages.check_invariants()


def test_another_member_may_purge_what_waits(group: LittleGroup) -> None:
    group.b.core.publish(group.b.queue(), message("later", delay_ms=50))
    group.settle()
    purge = group.a.resources.purges.begin(group.a.queue())
    group.settle()
    assert (purge.count, [held(member) for member in group.members]) == (1, [[]] * 3)
    tick(group, NOW_MS + 50)
    for member in group.members:
        member.queue().messages.check_invariants()


def test_what_failed_waits_at_the_member_that_owns_the_queue(group: LittleGroup) -> None:
    for member in group.members:
        member.core.now_ms = member.core.catalog.now_ms = NOW_MS
    group.a.core.configuration.update_queue("q", {"qpid.redelivery_delay_ms": 50})
    group.settle()
    mine = consumer(group.b)
    group.a.core.publish(group.a.queue(), "m")
    group.settle()
    group.b.resources.release(group.b.queue(), group.b.core.inbox(mine), failed=True)
    group.settle()
    tick(group, NOW_MS + 49)
    assert group.b.core.inbox(mine) == []
    tick(group, NOW_MS + 50)
    assert bodies(group.b.core.inbox(mine)) == ["m"]


# --- queues at rest


def test_a_thousand_queues_at_rest_are_not_looked_at(group: LittleGroup, looks: list[str]) -> None:
    group.a.write(*[ev.QueueDeclared(f"q{number}", {}) for number in range(1000)])
    group.settle()
    for number in range(1000):
        consumer(group.members[number % 3], f"q{number}")
    group.settle()
    looks.clear()
    for _ in range(10):
        group.turn()
    assert looks == []
    waiting = consumer(group.b, "q0")
    group.a.core.publish(group.a.queue("q1"), "x")
    for _ in range(3):
        group.pass_time(group.slice_s + 0.1)
    assert set(looks) == {"q0"}, "two members share it"
    assert waiting.credit == 10
