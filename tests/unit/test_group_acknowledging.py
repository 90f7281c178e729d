"""When a member says how far it has the log: at once where somebody waits for it, else with what it says anyway."""

from __future__ import annotations

import pytest

from little_group import LittleGroup, LittleMember
from model_support import NOW_MS, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.acknowledging import Acknowledging, Progress, is_awaited
from qpid_ha_broker.group.frames import Acknowledged, QueueWanted, QueueYielded
from qpid_ha_broker.group.ownership import Ownership

QUEUE, OTHER = 7, 8
MESSAGE = ev.Enqueued((QUEUE,), b"", True, 4, 0, "")


@pytest.fixture
def group() -> LittleGroup:
    made = LittleGroup()
    made.pass_time(0.1)
    made.delivered.clear()
    return made


def acknowledging(group: LittleGroup) -> list[str]:
    """Who has said how far it is, since the group was made or looked at last, and nothing else with it."""
    alone = [sender for sender, frames in group.delivered if {type(frame) for frame in frames} == {Acknowledged}]
    group.delivered.clear()
    return alone


def publish(group: LittleGroup, member: LittleMember) -> None:
    member.core.publish(member.queue(), "x")
    group.settle()


def consume(group: LittleGroup, member: LittleMember) -> None:
    made = member.core.consumer(member.queue())
    member.core.give_credit(member.queue(), made, 10)
    group.settle()


def test_whose_unit_it_is_waits_for_the_others_and_knows_of_itself(group: LittleGroup) -> None:
    token = group.a.resources.publish(group.a.queue(), message("x"), NOW_MS)
    group.settle()

    assert token.is_committed
    assert sorted(acknowledging(group)) == ["b", "c"]


def test_what_nobody_waits_for_is_said_with_the_next_batch_and_else_at_the_next_tick(group: LittleGroup) -> None:
    publish(group, group.a)
    assert group.b.core.log.committed_lsn < group.b.core.log.last_lsn, "a has not said that it has it"
    acknowledging(group)

    publish(group, group.a)
    first_of_a = next(frames for sender, frames in group.delivered if sender == "a")
    assert any(isinstance(frame, Acknowledged) for frame in first_of_a)
    acknowledging(group)

    group.pass_time(0.1)
    assert acknowledging(group) == ["a"]
    assert group.b.core.log.committed_lsn == group.b.core.log.last_lsn


def test_who_hands_out_what_another_member_has_sent_is_told_at_once(group: LittleGroup) -> None:
    consume(group, group.b)
    acknowledging(group)

    publish(group, group.a)

    assert sorted(acknowledging(group)) == ["a", "b", "c"]
    assert group.b.queue().messages.acquired == 1


def test_who_comes_to_hand_out_is_told_at_once_of_what_is_there(group: LittleGroup) -> None:
    publish(group, group.a)

    consume(group, group.b)

    assert group.b.queue().messages.acquired == 1, "though no tick went by"


@pytest.mark.parametrize(
    ("sender", "owner", "event", "awaited"),
    [
        ("b", "", MESSAGE, True),
        ("a", "", MESSAGE, False),
        ("a", "a", MESSAGE, False),
        ("a", "b", MESSAGE, True),
        ("a", "b", ev.Dequeued(QUEUE, (1,), ev.DequeueReason.CONSUMED), True),
        ("a", "b", ev.Dequeued(OTHER, (1,), ev.DequeueReason.CONSUMED), False),
        ("a", "a", ev.Released(QUEUE, (1,), True), False),
        ("a", "b", ev.ProducerAdvanced(b"p", 1, 100), False),
        ("a", "", ev.QueueDeleted(QUEUE), True),
    ],
)
def test_others_wait_for_what_they_hand_out_and_for_what_is_no_message(
    sender: str, owner: str, event: ev.Event, awaited: bool
) -> None:
    ownership = Ownership()
    if owner:
        ownership.want(QUEUE, owner, 1)
    assert is_awaited("a", sender, [event], ownership) is awaited


def test_what_is_awaited_is_awaited_until_it_was_said() -> None:
    acknowledging = Acknowledging()
    assert acknowledging.say(Progress(3, 1), with_others=False), "whatever this lineage has was never said"
    acknowledging.note_unit(5, is_awaited=True)
    acknowledging.note_unit(6, is_awaited=False)
    assert acknowledging.say(Progress(4, 1), with_others=False)
    assert acknowledging.say(Progress(5, 1), with_others=False)
    assert not acknowledging.say(Progress(6, 1), with_others=False)
    assert acknowledging.say(Progress(6, 1), with_others=True)
    assert not acknowledging.say(Progress(6, 1), with_others=True), "it was said"
    assert not acknowledging.say(Progress(6, 2), with_others=False), "it has got a queue itself"
    acknowledging.note_position(3)
    assert acknowledging.say(Progress(6, 3), with_others=False), "whoever gets a queue waits for this"
    acknowledging.tick()
    assert acknowledging.say(Progress(7, 3), with_others=False)


def test_who_has_yielded_twice_hands_out_nothing_before_the_second_time_has_come_to_its_place(
    group: LittleGroup,
) -> None:
    """It names what its consumers hold, and was said before anything that may be handed out from here on."""
    queue, yields = group.a.queue().id, fx.YieldAsked(group.a.queue().id, ())
    for asked in (fx.WantAsked(queue), yields, fx.WantAsked(queue)):
        group.a.feed(asked)
    group.a.turn()
    group.a.feed(yields)
    group.deliver_next()
    assert group.a.serving.member.queues.owner(queue) == "a"
    for other in (group.b, group.c):
        other.turn()
        group.deliver_next()
    group.a.turn()

    assert not group.a.serving.member.queues.may_hand_out(queue)


def test_a_move_of_a_queue_takes_three_multicasts(group: LittleGroup) -> None:
    """One in which it is yielded, and wanted again; and the acknowledgements of all but who gets it."""
    consume(group, group.a)
    consume(group, group.b)
    publish(group, group.c)
    group.delivered.clear()

    group.now_s += 2 * group.slice_s
    group.settle()

    assert group.b.serving.member.queues.may_hand_out(group.b.queue().id)
    said = [(sender, [type(frame) for frame in frames]) for sender, frames in group.delivered]
    assert said == [("a", [QueueYielded, QueueWanted]), ("a", [Acknowledged]), ("c", [Acknowledged])]
