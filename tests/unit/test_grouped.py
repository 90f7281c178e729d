"""Commands on a set that a group writes: what they wait for, what is held meanwhile, and what others see of it."""

from __future__ import annotations

import pytest

from little_group import LittleGroup, LittleMember
from model_support import NOW_MS, bodies, message, qpid, transaction_of
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.serving import STUCK_S, StuckQueue
from qpid_ha_broker.model.commands.administration import Administration
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.commands.moving import PORTION_MESSAGES, Redirection, begin_move
from qpid_ha_broker.model.errors import (
    NotEnoughReplicas,
    NotFound,
    NotPrimary,
    QueueFull,
    RefusedBefore,
)
from qpid_ha_broker.model.exchanges.exchange import Binding, FanoutExchange
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.sequence import SUBMITTED
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.model.sets.resources import publish_numbered
from qpid_ha_broker.model.transactions.transaction import Publish, Transaction


@pytest.fixture
def group() -> LittleGroup:
    return LittleGroup()


def held(member: LittleMember, queue: str = "q") -> list[str]:
    return bodies(member.queue(queue).messages)


def consumer(member: LittleMember, credit: int) -> Consumer:
    """Attached, with credit; its queue comes as the group settles."""
    made = member.core.consumer(member.queue())
    member.core.give_credit(member.queue(), made, credit)
    return made


def publish(group: LittleGroup, member: LittleMember, *texts: str) -> None:
    member.core.publish(member.queue(), *texts)
    group.settle()


# --- who wrote it


def test_all_members_have_the_same_history_of_generations_however_late_they_came(group: LittleGroup) -> None:
    histories = [member.resources.replicated.state.generations for member in group.members]
    assert histories[0] == histories[1] == histories[2]
    assert len(histories[0]) == 3, "one begins, and two are let in"


def test_who_comes_back_to_a_group_that_went_on_with_an_older_copy_gives_up_what_that_lacks(
    group: LittleGroup,
) -> None:
    publish(group, group.a, "one")
    group.lose(group.c)
    publish(group, group.a, *"xyz")
    assert group.a.serving.member.committed_lsn > group.c.resources.replicated.log.last_lsn
    group.go_on_with(group.c)
    assert (group.c.role, group.c.replication.read_only) == (GroupRole.SERVING, "")
    publish(group, group.c, "two", "three", "four", "five", "six")
    group.come_back(group.a)
    assert group.record.members == ("a", "c")
    assert held(group.a) == held(group.c) == ["one", "two", "three", "four", "five", "six"]
    assert group.a.resources.replicated.state.generations == group.c.resources.replicated.state.generations


# --- what is submitted


def test_with_fewer_in_sync_than_have_to_be_nothing_is_published_or_confirmed() -> None:
    group = LittleGroup(min_in_sync=3)
    publish(group, group.a, "x", "y")
    mine = consumer(group.a, 1)
    group.settle()
    group.lose(group.c)
    group.settle()
    accepted = group.a.resources.accept(group.a.queue(), group.a.core.inbox(mine))
    group.settle()
    before = accepted.is_committed
    for member in group.members:
        with pytest.raises(NotEnoughReplicas, match="in sync are only a, b, and ha"):
            member.core.publish(member.queue(), "z")

    group.come_anew("c")
    assert (before, accepted.is_committed) == (False, True)
    publish(group, group.b, "z")
    assert [held(member) for member in group.members] == [["y", "z"]] * 3


def test_fewer_are_enough_once_an_operator_says_so() -> None:
    group = LittleGroup(min_in_sync=3)
    group.lose(group.c)
    late = group.a.resources.replicated.submit((ev.QueueDeclared("late", {}),))
    group.settle()
    for member in group.members:
        member.feed(fx.MinInSyncChanged(2))
    group.settle()
    assert late.is_committed
    publish(group, group.a, "x")


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


def test_what_comes_in_other_units_at_another_member_is_queued_once(group: LittleGroup) -> None:
    numbered = [message(str(n), durable=True)._replace(producer=b"p", sequence=n) for n in range(1, 5)]
    tokens = []
    for member, part in ((group.b, numbered[:2]), (group.a, numbered), (group.b, numbered[2:])):
        tokens.append(publish_numbered(member.resources, member.queue(), part, NOW_MS))
        member.turn()
    group.settle()
    assert all(token.is_committed for token in tokens)
    assert [held(member) for member in group.members] == [["1", "2", "3", "4"]] * 3


def test_numbered_messages_fail_together_where_their_queue_is_gone(group: LittleGroup) -> None:
    numbered = [message(str(n), durable=True)._replace(producer=b"p", sequence=n) for n in range(1, 3)]
    group.b.write(ev.QueueDeleted(group.b.queue().id))
    group.b.turn()
    token = publish_numbered(group.a.resources, group.a.queue(), numbered, NOW_MS)
    group.settle()
    assert (type(token.failure), token.is_committed) == (NotFound, False)


def test_what_an_earlier_number_of_a_producer_was_refused_for_is_told_with_the_next_that_is_accepted(
    group: LittleGroup,
) -> None:
    group.a.resources.deduplication.note_refused(b"p", 1)
    numbered = message("x", durable=True)._replace(producer=b"p", sequence=2)
    token = group.a.resources.publish(group.a.queue(), numbered, NOW_MS)
    group.settle()
    assert (token.is_committed, held(group.b)) == (True, ["x"])
    with pytest.raises(RefusedBefore):
        group.b.resources.publish(group.b.queue(), numbered._replace(sequence=1), NOW_MS)


def test_a_new_producer_is_no_duplicate_where_another_one_is_forgotten_for_it(group: LittleGroup) -> None:
    for member in group.members:
        member.resources.deduplication.producers = 2
        member.resources.deduplication.is_live = lambda producer: producer == b"0"
    for name in (b"0", b"1", b"2"):
        numbered = message(name.decode(), durable=True)._replace(producer=name, sequence=1)
        group.a.resources.publish(group.a.queue(), numbered, NOW_MS)
        group.settle()
    assert [held(member) for member in group.members] == [["0", "1", "2"]] * 3


# --- what consumers have


@pytest.mark.parametrize("is_duplicate", [False, True])
def test_what_a_transaction_had_accepted_that_does_not_count_comes_back_marked(
    group: LittleGroup, is_duplicate: bool
) -> None:
    group.a.write(ev.QueueDeclared("other", {}))
    publish(group, group.b, "x")
    mine = consumer(group.a, 1)
    group.settle()
    (entry,) = group.a.core.inbox(mine)
    numbered = message("y", durable=True)._replace(producer=b"p", sequence=1)
    if is_duplicate:
        group.b.resources.publish(group.b.queue("other"), numbered, NOW_MS)
    else:
        group.b.write(ev.QueueDeleted(group.b.queue("other").id))
    group.b.turn()
    transaction = Transaction()
    transaction.publish(Publish(group.a.queue("other"), numbered, ""))
    transaction.accept(group.a.queue(), entry, mine)
    token = group.a.resources.commit(transaction, NOW_MS)
    group.settle()
    assert (token.is_committed, token.failure is None) == (is_duplicate, is_duplicate)
    group.a.core.leave(group.a.queue(), mine)
    second = consumer(group.b, 1)
    group.settle()
    (again,) = group.b.core.inbox(second)
    assert bodies([again]) == ["x"]
    assert group.b.queue().is_redelivered(again)


def test_what_another_member_has_to_decide_about_is_nobodys_again_when_that_was_skipped(group: LittleGroup) -> None:
    publish(group, group.b, "x")
    mine = consumer(group.a, 0)
    queue = group.b.queue()
    token = group.b.resources.accept(queue, list(queue.messages))
    group.settle()
    assert isinstance(token.failure, NotFound)
    assert queue.messages.acquired == 0
    group.a.core.give_credit(group.a.queue(), mine, 1)
    group.settle()
    assert bodies(group.a.core.inbox(mine)) == ["x"]


@pytest.mark.parametrize("is_owned", [False, True])
def test_a_purge_waits_until_its_member_owns_the_queue_and_takes_what_nobody_has(
    group: LittleGroup, is_owned: bool
) -> None:
    if is_owned:
        taking = consumer(group.a, 1)
        group.settle()
    publish(group, group.c, *"xyz")
    purge = group.b.resources.purges.begin(group.b.queue())
    assert (purge.written, purge.failure) == (None, None)
    group.settle()
    group.pass_time(group.slice_s + 0.1)
    assert (purge.count, purge.written is not None and purge.written.is_committed) == (2 if is_owned else 3, True)
    assert [held(member) for member in group.members] == [["x"] if is_owned else []] * 3
    if is_owned:
        assert bodies(group.a.core.inbox(taking)) == ["x"]
    group.settle()
    assert group.b.serving.member.queues.owner(group.b.queue().id) != "b"


def test_a_queue_moves_once_for_each_time_that_it_comes_to_a_member(group: LittleGroup) -> None:
    def moves() -> list[int]:
        return [member.serving.moves_total for member in group.members]

    publish(group, group.c, *"uvwxyz")
    consumer(group.a, 100)
    group.settle()
    assert moves() == [1, 0, 0]
    publish(group, group.c, "more")
    assert moves() == [1, 0, 0]
    consumer(group.b, 100)
    group.settle()
    group.pass_time(group.slice_s + 0.1)
    assert moves() == [1, 1, 0]


def test_a_purge_of_a_queue_that_is_deleted_meanwhile_is_given_up(group: LittleGroup) -> None:
    publish(group, group.c, "x")
    purge = group.b.resources.purges.begin(group.b.queue())
    group.c.write(ev.QueueDeleted(group.c.queue().id))
    group.c.turn()
    group.settle()
    assert isinstance(purge.failure, NotFound)


def test_a_purge_at_a_member_that_is_left_behind_is_given_up(group: LittleGroup) -> None:
    publish(group, group.c, "x")
    purge = group.b.resources.purges.begin(group.b.queue())
    group.b.replication.read_only = "the others went on"
    assert isinstance(purge.failure, NotPrimary)


def two_queues(group: LittleGroup, **arguments: ev.Scalar) -> None:
    """Messages in `q`, and `other`."""
    group.a.write(ev.QueueDeclared("other", qpid(arguments)))
    group.settle()
    publish(group, group.c, *map(str, range(2 * PORTION_MESSAGES + 1)))


def test_messages_are_moved_by_a_member_that_owns_their_queue_and_each_is_in_one_of_two(group: LittleGroup) -> None:
    two_queues(group)
    taking = consumer(group.a, 1)
    group.settle()
    move = begin_move(group.b.resources, group.b.queue(), group.b.queue("other"))
    assert (move.written, move.failure) == (None, None)
    group.settle()
    assert move.count == 0
    group.pass_time(group.slice_s + 0.1)
    assert move.written is not None
    assert (move.count, move.held, move.written.is_committed) == (2 * PORTION_MESSAGES, 1, True)
    assert bodies(group.a.core.inbox(taking)) == ["0"]
    for member in group.members:
        assert (held(member), len(held(member, "other"))) == (["0"], 2 * PORTION_MESSAGES)
    assert group.b.serving.member.queues.owner(group.b.queue().id) != "b"


def test_messages_are_redirected_by_a_member_that_owns_their_queue_and_each_is_in_it_or_in_all_others(
    group: LittleGroup,
) -> None:
    two_queues(group)
    group.a.write(ev.QueueDeclared("third", {}))
    group.settle()
    default, exchange = Catalog(), FanoutExchange(1, "x", {})
    default.add_exchange(exchange)
    default.map.apply(9, ev.SetPlaced(group.b.resources.name, ("a", "b", "c"), (), "", 0, 0))
    for placed, name in enumerate(("other", "third"), start=10):
        default.map.apply(placed, ev.QueuePlaced(name, group.b.resources.name, {}, False))
        exchange.bind(Binding(placed, "", {}))
    move = begin_move(group.b.resources, group.b.queue(), Redirection(exchange, default))
    group.settle()
    assert (move.failure, move.count) == (None, 2 * PORTION_MESSAGES + 1)
    for member in group.members:
        assert [len(held(member, name)) for name in ("q", "other", "third")] == [0, move.count, move.count]


def test_a_ring_is_not_filled_beyond_its_limits_by_what_is_moved_to_it(group: LittleGroup) -> None:
    two_queues(group, policy_type="ring", max_count=PORTION_MESSAGES + 10)
    move = begin_move(group.b.resources, group.b.queue(), group.b.queue("other"))
    group.settle()
    assert (move.count, type(move.failure)) == (PORTION_MESSAGES + 10, QueueFull)
    assert [len(held(member, "other")) for member in group.members] == [PORTION_MESSAGES + 10] * 3
    assert [len(held(member)) for member in group.members] == [PORTION_MESSAGES - 9] * 3


def test_messages_stay_whose_new_queue_is_deleted_before_they_come(group: LittleGroup) -> None:
    two_queues(group)
    mine = group.b.core.consumer(group.b.queue(), accepts=lambda body: False)
    group.b.core.give_credit(group.b.queue(), mine, 1)
    group.settle()
    group.c.write(ev.QueueDeleted(group.c.queue("other").id))
    group.c.turn()
    move = begin_move(group.b.resources, group.b.queue(), group.b.queue("other"))
    group.settle()
    assert (move.count, type(move.failure)) == (0, NotFound)
    assert [len(held(member)) for member in group.members] == [2 * PORTION_MESSAGES + 1] * 3
    assert group.b.queue().messages.acquired == 0


def test_a_full_queue_refuses_at_each_member_what_comes_after_it_was_told(group: LittleGroup) -> None:
    """What is on its way is not counted: two members go over the limit by what each of them takes meanwhile."""
    group.a.write(ev.QueueDeclared("small", {"qpid.max_count": 2}))
    group.settle()
    for member in (group.a, group.b):
        member.core.publish(member.queue("small"), "x", "y")
    group.settle()
    assert [member.queue("small").messages.count for member in group.members] == [4] * 3
    for member in group.members:
        with pytest.raises(QueueFull):
            member.core.publish(member.queue("small"), "z")


def test_acquisitions_are_not_written(group: LittleGroup) -> None:
    group.a.resources.log_acquisitions = True
    publish(group, group.a, "x")
    before = group.a.core.log.last_lsn
    mine = consumer(group.a, 1)
    group.settle()
    assert (bodies(group.a.core.inbox(mine)), group.a.core.log.last_lsn) == (["x"], before)


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


def test_a_queue_that_its_owner_keeps_is_told_to_be_stuck_by_who_waits_for_it() -> None:
    group = LittleGroup(slice_s=10 * STUCK_S)
    publish(group, group.c, *"ab")
    consumer(group.a, 1)
    group.settle()
    consumer(group.b, 1)
    group.settle()
    assert group.b.serving.stuck(group.now_s + STUCK_S / 2) == []
    group.pass_time(STUCK_S + 1)
    assert group.b.serving.stuck(group.now_s) == [StuckQueue("q", "a", STUCK_S + 1)]
    assert group.a.serving.stuck(group.now_s) == group.c.serving.stuck(group.now_s) == []


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


def test_what_a_member_held_that_has_gone_wakes_the_owner(group: LittleGroup) -> None:
    publish(group, group.c, *"ab")
    theirs = consumer(group.b, 2)
    group.settle()
    mine = consumer(group.a, 2)
    group.settle()
    assert bodies(group.b.core.inbox(theirs)) == ["a", "b"]
    group.pass_time(group.slice_s + 0.1)
    assert group.a.serving.member.queues.owner(group.a.queue().id) == "a"
    group.lose(group.b)
    again = group.a.core.inbox(mine)
    assert bodies(again) == ["a", "b"]
    assert all(group.a.queue().is_redelivered(entry) for entry in again)


def test_who_waits_alone_keeps_the_queue(group: LittleGroup) -> None:
    here = consumer(group.a, 100)
    group.settle()
    for _ in range(3):
        group.pass_time(group.slice_s + 0.1)
        publish(group, group.b, "x")
    assert bodies(group.a.core.inbox(here)) == ["x"] * 3
    assert group.b.serving.member.queues.owner(group.b.queue().id) == "a"


def test_browsers_need_no_turn(group: LittleGroup) -> None:
    publish(group, group.c, "x")
    consumer(group.a, 1)
    group.settle()
    looking = group.b.core.consumer(group.b.queue(), browsing=True)
    group.b.core.give_credit(group.b.queue(), looking)
    group.settle()
    assert bodies(group.b.core.inbox(looking)) == ["x"]


# --- what a turn publishes, and what is told of a queue


def test_all_messages_are_kept_on_disk(group: LittleGroup) -> None:
    group.a.resources.publish(group.a.queue(), message("x", durable=False), NOW_MS)
    group.settle()
    assert [entry.header.durable for member in group.members for entry in member.queue().messages] == [True] * 3


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
