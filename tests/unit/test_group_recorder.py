"""What a member has recorded when it begins a group."""

from __future__ import annotations

from little_group import LittleGroup
from model_support import TextReader
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.context import GroupContext, GroupSettings
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import EpochBegun, decode_batch
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.recorder import RecordWriter
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.model.sets.grouped import Grouped
from qpid_ha_broker.model.sets.resources import Resources


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


class Writing:
    """What a member has recorded, on its own: `a` of a group of `a` and `b`, in epoch 1."""

    def __init__(self) -> None:
        resources = Resources(TextReader(), "orders", replication=Grouped())
        self.ctx = GroupContext(GroupSettings("a", "a-1"), resources.replicated)
        self.lineage = Lineage(record(1, "a", "b"), "ab", 0)
        self.writer = RecordWriter(self.ctx)
        self.writer.learn(self.lineage.record)

    def answer(self, written: bool, found: ClusterRecord | None) -> None:
        write = self.ctx.effects.pop()
        assert isinstance(write, fx.WriteRecord)
        change = self.writer.written(fx.RecordWritten(write.number, written, found, ""))
        if change is not None:
            self.writer.learn(change.record)
            self.writer.say(self.lineage, change)

    def said(self) -> list[tuple[int, tuple[str, ...]]]:
        """The epochs that were said to have begun, and who was given up with each."""
        frames = decode_batch(batch)[1] if (batch := self.ctx.outbox.take()) else ()
        return [(frame.record.epoch, frame.given_up) for frame in frames if isinstance(frame, EpochBegun)]


def record(epoch: int, *members: str) -> ClusterRecord:
    return ClusterRecord("uuid", epoch, "a", epoch, members)


def test_who_is_given_up_is_said_with_the_record_that_was_written_for_it() -> None:
    writing = Writing()
    writing.writer.change("a", "d")
    writing.answer(True, record(2, "a"))
    assert writing.said() == [(2, ("d",))]


def test_a_write_that_has_to_wait_gives_nobody_up_with_the_record_of_another() -> None:
    writing = Writing()
    writing.writer.change("a", "d")
    writing.answer(False, None)
    writing.writer.change("a", "e")
    assert not writing.ctx.effects or not isinstance(writing.ctx.effects[-1], fx.WriteRecord), "it has to wait"
    assert writing.writer.learn(record(3, "a"))
    writing.writer.say(writing.lineage)
    assert writing.said() == [(3, ())]


def test_what_was_written_gives_nobody_up_with_a_newer_record() -> None:
    writing = Writing()
    writing.writer.change("a", "d")
    writing.writer.learn(record(3, "a"))
    writing.answer(True, record(2, "a"))
    assert writing.said() == [(3, ())]


def test_what_became_of_a_write_is_not_asked_when_a_newer_record_is_known() -> None:
    writing = Writing()
    writing.writer.change("a", "d")
    writing.writer.learn(record(3, "a"))
    writing.answer(False, None)
    assert not writing.writer.is_unsure
