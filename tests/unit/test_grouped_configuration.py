"""Queues, exchanges and bindings of a group: what was asked for is there, or not, once all have been told."""

from __future__ import annotations

import pytest

from little_group import LittleGroup
from model_support import qpid
from qpid_ha_broker.cluster_map import TOMBSTONE_OF
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.commands.administration import Administration
from qpid_ha_broker.model.errors import AlreadyExists, BeingMade, InUse, InvalidArgument, ModelError, NotFound


@pytest.fixture
def group() -> LittleGroup:
    return LittleGroup()


def declared(group: LittleGroup, name: str, **arguments: object) -> BeingMade:
    with pytest.raises(BeingMade) as asked:
        group.a.core.queue(name, **arguments)  # type: ignore[arg-type]
    return asked.value


# --- what is declared


def test_a_queue_is_being_made_until_all_have_it_and_is_submitted_once(group: LittleGroup) -> None:
    asked, again = declared(group, "new"), declared(group, "new")
    assert again.written == asked.written
    assert (asked.written.is_committed, asked.written.failure) == (False, None)
    before = group.a.core.log.last_lsn
    group.settle()
    assert asked.written.is_committed
    assert group.a.core.log.last_lsn == before + 1, "asked for twice, written once"
    assert group.a.core.queue("new").name == "new"
    assert [member.queue("new").id for member in group.members] == [before + 1] * 3


def test_what_is_asked_for_otherwise_meanwhile_finds_another_queue_there(group: LittleGroup) -> None:
    declared(group, "new", max_count=1)
    declared(group, "new", max_count=2)
    group.settle()
    with pytest.raises(AlreadyExists):
        group.a.core.queue("new", max_count=2)
    with pytest.raises(AlreadyExists):
        group.a.core.exchange("new")


def test_who_was_slower_is_told_so_once(group: LittleGroup) -> None:
    group.b.write(ev.ExchangeDeclared("new", "fanout", {}))
    group.b.turn()
    asked = declared(group, "new")
    group.b.write(ev.ExchangeDeleted(group.b.core.log.last_lsn + 1))
    group.settle()
    assert isinstance(asked.written.failure, AlreadyExists)
    with pytest.raises(AlreadyExists):
        group.a.core.queue("new")
    declared(group, "new")
    group.settle()
    assert group.a.core.queue("new")


def test_two_members_that_ask_for_the_same_queue_both_find_it(group: LittleGroup) -> None:
    administration = [Administration(member.resources, member.core.configuration) for member in group.members]
    outcomes = [each.create_queue("new") for each in administration]
    assert [outcome.done() for outcome in outcomes] == [None] * 3
    group.settle()
    for outcome in outcomes:
        done = outcome.done()
        assert done is not None
        assert (done.result["name"], done.written.is_committed) == ("new", True)


def test_what_is_asked_of_a_member_that_was_left_behind_can_be_asked_again(group: LittleGroup) -> None:
    declared(group, "new")
    group.a.replication.left_behind("the others went on")
    declared(group, "new")


def test_the_operators_log_has_what_counts(group: LittleGroup) -> None:
    configuration = group.a.core.configuration
    declared(group, "new")
    assert configuration.take_changes() == []
    group.settle()
    assert [change.text for change in configuration.take_changes()] == ["queue new created"]
    group.b.write(ev.QueueDeleted(group.b.queue().id))
    group.b.turn()
    configuration.delete_queue("q")
    group.settle()
    assert configuration.take_changes() == []


def test_an_exchange_and_its_bindings_are_there_once_all_have_them(group: LittleGroup) -> None:
    configuration = group.a.core.configuration
    with pytest.raises(BeingMade) as asked:
        configuration.declare_exchange("x", "fanout", {})
    with pytest.raises(BeingMade):
        configuration.declare_exchange("x", "fanout", {})
    group.settle()
    assert asked.value.written.is_committed
    exchange = configuration.declare_exchange("x", "fanout", {})
    configuration.bind("x", "q", "", {})
    bound = configuration.written
    assert (bound.is_committed, len(exchange)) == (False, 0)
    group.settle()
    assert bound.is_committed
    assert [len(member.core.catalog.exchanges["x"]) for member in group.members] == [1] * 3
    configuration.unbind("x", "q", "")
    group.settle()
    configuration.delete_exchange("x")
    gone = configuration.written
    assert (gone.is_committed, gone.failure) == (False, None)
    group.settle()
    assert gone.is_committed
    assert [list(member.core.catalog.exchanges) for member in group.members] == [[]] * 3


@pytest.mark.parametrize("argument", ["cluster.source", "cluster.proxy"])
def test_what_each_member_would_do_anew_is_refused(group: LittleGroup, argument: str) -> None:
    arguments: dict[str, str | int | bool] = {argument: "amqp://elsewhere/q"}
    with pytest.raises(InvalidArgument, match="group"):
        group.a.core.queue("new", **arguments)
    with pytest.raises(InvalidArgument, match="group"):
        group.a.core.configuration.update_queue("q", qpid(arguments))


# --- what is changed and deleted


def failure_of(administration: Administration, group: LittleGroup, ask: str, *arguments: object) -> type[ModelError]:
    """Of a command about a queue that another member deletes before."""
    group.b.write(ev.QueueDeleted(group.b.queue().id))
    group.b.turn()
    outcome = getattr(administration, ask)(*arguments)
    group.settle()
    with pytest.raises(ModelError) as failed:
        outcome.done()
    return failed.type


def test_an_update_is_told_once_all_have_it(group: LittleGroup) -> None:
    administration = Administration(group.a.resources, group.a.core.configuration)
    done = administration.update_queue("q", {"qpid.max_count": 5}).done()
    assert (done.written.is_committed, done.written.failure) == (False, None)
    assert done.result["arguments"] == {"qpid.max_count": 5}
    group.settle()
    assert done.written.is_committed
    assert [member.queue().arguments.max_count for member in group.members] == [5] * 3


def test_an_update_of_what_another_member_deletes_fails(group: LittleGroup) -> None:
    administration = Administration(group.a.resources, group.a.core.configuration)
    assert failure_of(administration, group, "update_queue", "q", {"qpid.max_count": 5}) is NotFound


def test_a_deletion_that_another_member_was_faster_with_fails(group: LittleGroup) -> None:
    administration = Administration(group.a.resources, group.a.core.configuration)
    assert failure_of(administration, group, "delete_queue", "q") is NotFound


def test_a_queue_is_deleted_once_all_know_and_is_not_declared_meanwhile(group: LittleGroup) -> None:
    configuration = group.a.core.configuration
    deletion = configuration.delete_queue("q")
    assert configuration.delete_queue("q") is deletion, "asked for twice, written once"
    assert (deletion.is_committed, deletion.failure) == (False, None)
    with pytest.raises(InUse):
        group.a.core.queue("q")
    group.settle()
    assert deletion.is_committed
    assert [list(member.core.catalog.queues) for member in group.members] == [[]] * 3
    declared(group, "q")


def test_a_queue_that_another_member_hands_out_or_waits_for_is_used(group: LittleGroup) -> None:
    taking = [member.core.consumer(member.queue()) for member in (group.b, group.c)]
    for member, each in zip((group.b, group.c), taking, strict=True):
        member.core.give_credit(member.queue(), each, 1)
    group.settle()
    for member in group.members:
        with pytest.raises(InUse):
            member.core.configuration.delete_queue("q", if_unused=True)
    for member, each in zip((group.b, group.c), taking, strict=True):
        member.core.leave(member.queue(), each)
    group.settle()
    deletion = group.a.core.configuration.delete_queue("q", if_unused=True)
    group.settle()
    assert deletion.is_committed


def test_consumers_at_all_members_are_told_of_a_tombstone(group: LittleGroup) -> None:
    queues = [member.queue() for member in group.members]
    deletion = group.a.core.configuration.delete_queue("q", tombstone_of=7)
    assert not any(queue.deleted for queue in queues)
    group.settle()
    assert deletion.is_committed
    assert [member.core.catalog.deleted_queues for member in group.members] == [[queue] for queue in queues]
    assert [queue.arguments.given[TOMBSTONE_OF] for queue in queues] == [7] * 3
