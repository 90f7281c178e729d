"""What a member has recorded when it begins a group."""

from __future__ import annotations

from little_group import LittleGroup
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.effects import GroupRole


def test_a_group_begins_under_the_uuid_that_its_set_was_made_with() -> None:
    group = LittleGroup(cluster="c0ffee")
    assert (group.record.cluster, group.record.members) == ("c0ffee", ("a", "b", "c"))
    logs = [member.resources.replicated.state.generations for member in group.members]
    assert {started.cluster for log in logs for _, started in log} == {"c0ffee"}


def test_a_group_without_a_uuid_gets_one_from_whoever_begins_it() -> None:
    assert LittleGroup().record.cluster in ("a-1", "b-1", "c-1")


class Deaf:
    """A group whose member `a` has lost its transport; the others do not know that yet."""

    def __init__(self) -> None:
        self.group = LittleGroup()
        self.deaf = self.group.a
        self.group.members.remove(self.deaf)
        self.deaf.feed(fx.ViewChanged((), (), ("b", "c")))

    def pass_time(self, seconds: float) -> None:
        self.group.now_s += seconds
        self.deaf.feed(fx.Ticked())
        self.group.pass_time(0.0)
        self.deaf.turn()
        self.group.settle()


def test_who_has_lost_the_transport_does_not_take_the_record_from_those_who_go_on() -> None:
    deaf = Deaf()
    for _ in range(100):
        deaf.pass_time(0.2)
    assert deaf.deaf.role is GroupRole.WITHHELD
    assert deaf.group.record.members == ("a", "b", "c")


def test_who_has_lost_the_transport_reads_that_the_others_have_gone_on_without_it() -> None:
    deaf = Deaf()
    for member in deaf.group.members:
        member.feed(fx.ViewChanged(("b", "c"), (), ("a",)))
    for _ in range(10):
        deaf.pass_time(0.2)
    assert deaf.group.record.members == ("b", "c")
    assert [member.role for member in deaf.group.members] == [GroupRole.SERVING] * 2
    assert deaf.deaf.role is GroupRole.OUTSIDE


def test_a_member_that_is_the_whole_group_does_not_serve_while_it_has_no_transport() -> None:
    group = LittleGroup()
    group.lose(group.c)
    group.lose(group.b)
    assert group.record.members == ("a",)
    roles = [group.a.role]
    for names in ((), ("a",)):
        group.a.feed(fx.ViewChanged(names, names, ()))
        roles.append(group.a.role)
    assert roles == [GroupRole.SERVING, GroupRole.WITHHELD, GroupRole.SERVING]


def test_who_is_alone_with_its_transport_again_waits_for_the_others_before_it_goes_on_without_them() -> None:
    group = LittleGroup()
    group.lose(group.c)
    group.members.remove(group.b)
    group.a.feed(fx.ViewChanged((), (), ("b",)))
    group.a.feed(fx.ViewChanged(("a",), ("a",), ()))
    group.settle()
    assert (group.record.members, group.a.role) == (("a", "b"), GroupRole.WITHHELD), "b has noticed nothing yet"
    group.pass_time(0.2)
    assert (group.record.members, group.a.role) == (("a",), GroupRole.SERVING)


def owe(group: LittleGroup) -> None:
    """A unit of `a` is delivered, and of what is acknowledged only its own."""
    group.a.write(ev.QueueDeclared("q2", {}))
    for _ in range(2):
        group.stall(0.4)
        group.deliver_those_of("a")


def test_nobody_is_dropped_for_what_did_not_come_while_nothing_was_delivered_at_all() -> None:
    group = LittleGroup()
    owe(group)
    group.stall(30.0)
    assert group.record.members == ("a", "b", "c")
    group.settle()
    group.pass_time(0.2)
    assert (group.record.members, [member.role for member in group.members]) == (
        ("a", "b", "c"),
        [GroupRole.SERVING] * 3,
    )


def test_who_acknowledges_nothing_while_others_are_heard_of_is_dropped() -> None:
    group = LittleGroup()
    group.members.remove(group.c)
    group.a.write(ev.QueueDeclared("q2", {}))
    members = []
    for ticks in (47, 8):
        for _ in range(ticks):
            group.pass_time(0.2)
        members.append(group.record.members)
    assert members == [("a", "b", "c"), ("a", "b")]


def test_a_write_whose_answer_was_lost_is_found_out_although_its_reason_is_gone() -> None:
    """Who wrote it is not the first any more, and nobody else knows that there is something to say (seed 443498)."""
    group = LittleGroup()
    group.loses_answers = True
    writer = group.b.serving.member
    writer._parts.slow.names = frozenset({"a"})
    group.b.feed(fx.MinInSyncChanged(1))
    group.settle()
    assert list(group.record.members) == ["b", "c"]
    group.loses_answers = False
    for _ in range(20):
        group.pass_time(0.2)
    assert list(group.record.members) == ["a", "b", "c"]
    assert [member.serving.member.record for member in group.members] == [group.record] * 3
    assert [member.role for member in group.members] == [GroupRole.SERVING] * 3
