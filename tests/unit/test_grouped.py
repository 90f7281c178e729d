"""Commands on a set that a group writes: what they wait for, what is held meanwhile, and what others see of it."""

from __future__ import annotations

import pytest

from little_group import LittleGroup, LittleMember
from model_support import NOW_MS, bodies, message, transaction_of
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.commands.administration import Administration
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.errors import AlreadyExists, BeingMade, InvalidArgument, NotFound, NotPrimary, QueueLocked
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.sequence import SUBMITTED
from session_support import SessionTaker


@pytest.fixture
def group() -> LittleGroup:
    return LittleGroup()


def held(member: LittleMember) -> list[str]:
    return bodies(member.queue().messages)


def consumer(member: LittleMember, credit: int) -> Consumer:
    """Attached, with credit; its queue comes as the group settles."""
    made = member.core.consumer(member.queue())
    member.core.give_credit(member.queue(), made, credit)
    return made


def publish(group: LittleGroup, member: LittleMember, *texts: str) -> None:
    member.core.publish(member.queue(), *texts)
    group.settle()


# --- what is submitted


def test_a_message_is_nowhere_before_it_has_its_place_and_then_at_all_members(group: LittleGroup) -> None:
    token = group.a.resources.publish(group.a.queue(), message("x"), NOW_MS)
    assert (token.is_committed, token.failure, held(group.a)) == (False, None, [])
    group.settle()
    assert token.is_committed
    assert [held(member) for member in group.members] == [["x"]] * 3
    assert len({member.queue().messages.find(member.core.log.last_lsn) is None for member in group.members}) == 1


def test_delivered_is_not_committed(group: LittleGroup) -> None:
    token = group.a.resources.publish(group.a.queue(), message("x"), NOW_MS)
    group.turn()
    group.deliver_next()
    assert (held(group.a), token.is_committed) == (["x"], False), "nobody has said yet that it has it"
    group.settle()
    assert token.is_committed


def test_what_is_skipped_fails_and_counts_nowhere(group: LittleGroup) -> None:
    group.b.write(ev.QueueDeleted(group.b.queue().id))
    group.b.turn()
    token = group.a.resources.publish(group.a.queue(), message("late"), NOW_MS)
    after = group.a.resources.written
    group.settle()
    assert (type(token.failure), token.is_committed) == (NotFound, False)
    assert (after.is_committed, after.failure) == (True, None), "whoever waits for all before does not care"


def test_what_was_written_waits_for_the_newest_unit(group: LittleGroup) -> None:
    assert group.a.resources.written.is_committed
    group.a.core.publish(group.a.queue(), "x", "y")
    written = group.a.resources.written
    assert (written.is_committed, written.waits_for(group.a.core.log)) == (False, True)
    group.settle()
    assert written.is_committed
    assert group.a.resources.written.also is None


def test_a_member_that_is_left_behind_confirms_nothing_that_comes_to_the_places_of_its_units(
    group: LittleGroup,
) -> None:
    """Its log will be another one: what was placed and not committed, too, may be nothing there."""
    placed = group.a.resources.publish(group.a.queue(), message("placed"), NOW_MS)
    group.turn()
    group.deliver_next()
    unplaced = group.a.resources.publish(group.a.queue(), message("unplaced"), NOW_MS)
    group.a.replication.left_behind("the others went on")
    log = group.a.core.log
    log.acknowledge("group", log.last_lsn)
    assert [token.is_committed for token in (placed, unplaced)] == [False, False]
    assert all(isinstance(token.failure, NotPrimary) for token in (placed, unplaced))
    assert group.a.resources.written.also is None


def test_a_transaction_is_one_unit(group: LittleGroup) -> None:
    queue = group.a.queue()
    token = group.a.resources.commit(transaction_of((queue, "b"), (queue, "c")), NOW_MS)
    group.turn()
    assert held(group.a) == []
    group.settle()
    assert token.is_committed
    assert [held(member) for member in group.members] == [["b", "c"]] * 3


def test_a_number_that_comes_at_two_members_at_once_is_queued_once(group: LittleGroup) -> None:
    numbered = message("x", durable=True)._replace(producer=b"p", sequence=1)
    tokens = [member.resources.publish(member.queue(), numbered, NOW_MS) for member in group.members]
    group.settle()
    assert all(token.is_committed for token in tokens)
    assert held(group.c) == ["x"]


# --- what consumers have


def test_what_is_accepted_is_nobodys_until_that_has_its_place(group: LittleGroup) -> None:
    publish(group, group.b, "x", "y")
    mine = consumer(group.a, 1)
    group.settle()
    (entry,) = group.a.core.inbox(mine)
    token = group.a.resources.accept(group.a.queue(), [entry])
    assert (entry.holder, token.is_committed, held(group.a)) == (SUBMITTED, False, ["x", "y"])
    group.settle()
    assert token.is_committed
    assert [held(member) for member in group.members] == [["y"]] * 3


def test_what_a_client_gave_back_comes_marked_wherever_it_goes_next(group: LittleGroup) -> None:
    publish(group, group.b, "x")
    first = consumer(group.a, 1)
    group.settle()
    (entry,) = group.a.core.inbox(first)
    group.a.resources.release(group.a.queue(), [entry], failed=False)
    group.a.core.leave(group.a.queue(), first)
    second = consumer(group.b, 1)
    group.settle()
    (again,) = group.b.core.inbox(second)
    assert bodies([again]) == ["x"]
    assert group.b.queue().is_redelivered(again)


def test_a_failed_delivery_counts_at_all_members_and_the_last_one_ends_it(group: LittleGroup) -> None:
    group.a.write(ev.QueueDeclared("limited", {"qpid.delivery_limit": 2}))
    group.settle()
    for member in (group.a, group.b):
        queue = member.queue("limited")
        if member is group.a:
            member.core.publish(queue, "poison")
            group.settle()
        made = member.core.consumer(queue)
        member.core.give_credit(queue, made, 1)
        group.settle()
        entries = member.core.inbox(made)
        assert bodies(entries) == ["poison"]
        member.resources.release(queue, entries, failed=True)
        made.credit = 0
        member.core.leave(queue, made)
        group.settle()
    assert [member.queue("limited").messages.count for member in group.members] == [0, 0, 0]


def test_what_has_expired_leaves_once_by_its_owner(group: LittleGroup) -> None:
    mine = consumer(group.a, 10)
    group.settle()
    group.b.core.publish(group.b.queue(), message("old", ttl_ms=5), message("new"))
    for member in group.members:
        member.core.now_ms = NOW_MS + 1000
    group.settle()
    assert bodies(group.a.core.inbox(mine)) == ["new"]
    assert [held(member) for member in group.members] == [["new"]] * 3


# --- whose turn it is


def test_a_queue_goes_to_who_waits_when_the_slice_is_over_and_what_is_out_stays_out(group: LittleGroup) -> None:
    publish(group, group.c, *"abcdef")
    here, there = consumer(group.a, 2), consumer(group.b, 2)
    group.settle()
    had = group.a.core.inbox(here)
    assert (bodies(had), group.b.core.inbox(there)) == (["a", "b"], [])
    group.pass_time(group.slice_s + 0.1)
    assert bodies(group.b.core.inbox(there)) == ["c", "d"]
    token = group.a.resources.accept(group.a.queue(), had)
    group.settle()
    assert token.is_committed, "whoever holds it answers, whoever owns the queue"
    assert held(group.c) == ["c", "d", "e", "f"]


def test_who_takes_nothing_any_more_hands_on_at_once(group: LittleGroup) -> None:
    publish(group, group.c, "x")
    here = consumer(group.a, 1)
    group.settle()
    entries = group.a.core.inbox(here)
    there = consumer(group.b, 1)
    group.settle()
    assert group.b.core.inbox(there) == []
    group.a.resources.release(group.a.queue(), entries, failed=False)
    group.a.core.leave(group.a.queue(), here)
    group.settle()
    assert bodies(group.b.core.inbox(there)) == ["x"]


def test_who_waits_alone_keeps_the_queue(group: LittleGroup) -> None:
    here = consumer(group.a, 100)
    group.settle()
    for _ in range(3):
        group.pass_time(group.slice_s + 0.1)
        publish(group, group.b, "x")
    assert bodies(group.a.core.inbox(here)) == ["x"] * 3
    assert group.b.serving.member.users(group.b.queue().id)[0] == "a"


def test_browsers_need_no_turn(group: LittleGroup) -> None:
    publish(group, group.c, "x")
    consumer(group.a, 1)
    group.settle()
    looking = group.b.core.consumer(group.b.queue(), browsing=True)
    group.b.core.give_credit(group.b.queue(), looking)
    group.settle()
    assert bodies(group.b.core.inbox(looking)) == ["x"]


# --- queues


def test_a_queue_is_about_to_be_there_until_all_have_it_and_is_written_once(group: LittleGroup) -> None:
    configuration = Configuration(group.a.resources)
    for _ in range(2):
        with pytest.raises(BeingMade):
            configuration.declare_queue("new", {})
    group.settle()
    assert configuration.declare_queue("new", {}).name == "new"
    last = group.a.core.log.last_lsn
    assert [member.resources.catalog.queues["new"].id for member in group.members] == [last] * 3, "the last event"


def test_of_two_members_that_make_a_queue_with_other_arguments_one_is_told_that_the_name_is_taken(
    group: LittleGroup,
) -> None:
    asked: tuple[tuple[Configuration, dict[str, Scalar]], ...] = (
        (Configuration(group.a.resources), {}),
        (Configuration(group.b.resources), {"qpid.max_count": 5}),
    )
    for configuration, arguments in asked:
        with pytest.raises(BeingMade):
            configuration.declare_queue("new", arguments)
    group.settle()
    refused = 0
    for configuration, arguments in asked:
        try:
            configuration.declare_queue("new", arguments)
        except AlreadyExists:
            refused += 1
    assert refused == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"qpid.exclusive": True},
        {"qpid.auto_delete": True},
        {"qpid.policy_type": "ring", "qpid.max_count": 5},
        {"qpid.last_value_queue_key": "symbol"},
    ],
    ids=str,
)
def test_what_one_broker_alone_could_decide_is_refused(group: LittleGroup, arguments: dict[str, Scalar]) -> None:
    configuration = Configuration(group.a.resources)
    with pytest.raises(InvalidArgument, match="is not for queues of a group"):
        configuration.declare_queue("new", arguments)
    with pytest.raises(InvalidArgument, match="is not for queues of a group"):
        configuration.update_queue(group.a.queue().name, arguments)


def test_a_purge_is_for_who_hands_out(group: LittleGroup) -> None:
    publish(group, group.a, "x", "y")
    with pytest.raises(QueueLocked, match="does not hand out"):
        group.a.resources.purges.begin(group.a.queue())
    consumer(group.a, 1)
    group.settle()
    purge = group.a.resources.purges.begin(group.a.queue())
    group.settle()
    assert (purge.count, [len(held(member)) for member in group.members]) == (1, [1, 1, 1]), "one is out"


def test_all_messages_are_kept_on_disk(group: LittleGroup) -> None:
    group.a.resources.publish(group.a.queue(), message("x", durable=False), NOW_MS)
    group.settle()
    assert [entry.header.durable for member in group.members for entry in member.queue().messages] == [True] * 3


def test_no_session_of_a_client_holds_what_is_of_a_group(group: LittleGroup) -> None:
    of_session = SessionTaker()
    with pytest.raises(InvalidArgument, match="is a group"):
        group.a.resources.subscribe(group.a.queue(), of_session, of_session)


def test_who_hands_out_and_who_waits_is_told_at_each_member(group: LittleGroup) -> None:
    administration = Administration(group.b.resources, Configuration(group.b.resources))
    name = group.b.queue().name

    def told() -> tuple[object, object]:
        facts = administration.queue(name)
        return facts["owner"], facts["waiting"]

    assert told() == ("", [])
    consumer(group.a, 1)
    group.settle()
    consumer(group.c, 1)
    group.settle()
    assert told() == ("a", ["c"])


# --- what a turn publishes


def test_what_a_turn_publishes_to_a_queue_is_one_unit(group: LittleGroup) -> None:
    before = group.a.core.log.last_lsn
    tokens = [group.a.resources.publish(group.a.queue(), message(text), NOW_MS) for text in "xyz"]
    group.settle()
    assert group.a.core.log.last_lsn == before + 4, "three messages, and what closes the unit"
    assert all(token.is_committed for token in tokens)
    assert [held(member) for member in group.members] == [["x", "y", "z"]] * 3


def test_all_of_it_is_skipped_where_the_queue_has_gone(group: LittleGroup) -> None:
    group.b.write(ev.QueueDeleted(group.b.queue().id))
    group.b.turn()
    tokens = [group.a.resources.publish(group.a.queue(), message(text), NOW_MS) for text in "xyz"]
    group.settle()
    assert [type(token.failure) for token in tokens] == [NotFound] * 3


def test_what_is_written_after_messages_comes_after_them(group: LittleGroup) -> None:
    queue = group.a.queue()
    token = group.a.resources.publish(queue, message("x"), NOW_MS)
    group.a.write(ev.QueueDeleted(queue.id))
    group.settle()
    assert token.is_committed, "it was there before its queue went"


def test_what_was_gathered_fails_where_the_group_goes_on_without_this_member(group: LittleGroup) -> None:
    token = group.a.resources.publish(group.a.queue(), message("x"), NOW_MS)
    group.a.replication.left_behind("the others go on")
    assert isinstance(token.failure, NotPrimary)
    assert group.a.resources.written.is_committed
