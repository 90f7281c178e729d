"""Stories about messages that an operator moves from one queue to another: each is in one of the two, always."""

from __future__ import annotations

import pytest

from model_support import NOW_MS, Core, bodies, message
from moves import COUNT, SPENT, backups_that_end_behind, moved
from qpid_ha_broker.events.types import Dequeued, DequeueReason, Scalar, TransactionCommitted
from qpid_ha_broker.model.commands.moving import (
    PASSED_MOST,
    PORTION_BYTES,
    PORTION_MESSAGES,
    MoveSelection,
    begin_move,
)
from qpid_ha_broker.model.errors import (
    InUse,
    InvalidArgument,
    NotEnoughReplicas,
    NotFound,
    NotPrimary,
    OtherSet,
    QueueFull,
    QueueLocked,
)
from qpid_ha_broker.model.exchanges.notices import NOTICE_EXCHANGE, TEMPORARY_SUBSCRIPTION
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.transactions.transaction import Message


def two(core: Core, count: int = COUNT, **arguments: Scalar) -> tuple[Queue, Queue]:
    """A queue with so many messages, and an empty one with these arguments."""
    source, target = core.queue("from"), core.queue("to", **arguments)
    core.publish(source, *map(str, range(count)))
    return source, target


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


def test_all_move_in_their_order_some_at_each_step_and_then_it_is_known_what_to_wait_for() -> None:
    core = Core()
    source, target = two(core)
    move = begin_move(core.resources, source, target)
    assert (move.count, move.written) == (0, None)
    core.resources.work.run(SPENT)
    assert (move.count, move.written) == (PORTION_MESSAGES, None)
    core.publish(source, "later")
    moved(core, move)
    assert (move.count, move.held, move.written) == (COUNT, 0, core.resources.written)
    assert bodies(target.messages) == numbers(COUNT)
    assert bodies(source.messages) == ["later"]


def test_wherever_the_log_ends_each_message_is_in_one_of_the_queues_and_in_one_only() -> None:
    """So it is after a kill of the primary at any moment, on whichever broker leads next."""
    core = Core()
    source, target = two(core)
    core.read()
    before = len(core.records)
    begin_move(core.resources, source, target)
    core.resources.work.run()
    core.read()
    seen = set()
    for backup in backups_that_end_behind(core, before):
        left, there = (bodies(backup.catalog.queues[name].messages) for name in ("from", "to"))
        assert there + left == numbers(COUNT)
        seen.add(len(there))
    assert seen == {0, PORTION_MESSAGES, 2 * PORTION_MESSAGES, COUNT}
    assert bodies(target.messages) == numbers(COUNT)


def test_a_message_keeps_its_bytes_and_what_queueing_knows_of_it() -> None:
    core = Core()
    source, target = two(core, 0)
    core.publish(source, message("x", "subject", priority=7, ttl_ms=5000, durable=True, k="v"))
    core.tick(1000)
    moved(core, begin_move(core.resources, source, target))
    (entry,) = target.messages
    header = entry.header
    assert (header.durable, header.priority, header.expires_at_ms) == (True, 7, NOW_MS + 5000)
    assert entry.body == message("x", "subject", k="v").payload


def test_a_shorter_life_in_the_target_counts_from_now_and_a_message_of_a_producer_is_no_copy_of_itself() -> None:
    core = Core()
    source, target = two(core, 0, message_ttl_ms=2000)
    core.publish(source, Message(message("x").payload, producer=b"p", sequence=1))
    core.resources.catalog.now_ms = NOW_MS + 500
    assert moved(core, begin_move(core.resources, source, target)).count == 1
    assert [entry.header.expires_at_ms for entry in target.messages] == [NOW_MS + 2500]
    assert core.resources.deduplication.dropped_total == 0


def test_what_a_consumer_holds_stays_with_it_and_is_counted() -> None:
    core = Core()
    source, target = two(core, 5)
    consumer = core.consumer(source)
    taken = core.take(source, consumer, 2)
    move = moved(core, begin_move(core.resources, source, target))
    assert (move.count, move.held) == (3, 2)
    core.resources.accept(source, taken)
    assert bodies(target.messages) == ["2", "3", "4"]


def test_a_long_run_of_messages_that_consumers_hold_takes_several_steps() -> None:
    core = Core()
    source, target = two(core, PASSED_MOST + 1)
    core.take(source, core.consumer(source), PASSED_MOST)
    move = begin_move(core.resources, source, target)
    core.resources.work.run(SPENT)
    assert (move.count, move.held) == (0, PASSED_MOST)
    assert moved(core, move).count == 1


def test_consumers_of_both_queues_go_on_meanwhile() -> None:
    core = Core()
    source, target = two(core)
    move = begin_move(core.resources, source, target)
    core.resources.work.run(SPENT)
    assert core.consume(target, 10) == numbers(10)
    assert core.consume(source, 1) == [str(PORTION_MESSAGES)]
    assert moved(core, move).count == COUNT - 1


def test_as_many_as_asked_for_or_the_one_that_was_named() -> None:
    core = Core()
    source, target = two(core, 5)
    assert moved(core, begin_move(core.resources, source, target, MoveSelection(most=2))).count == 2
    wanted = next(entry for entry in source.messages if entry.body == message("3").payload)
    assert moved(core, begin_move(core.resources, source, target, MoveSelection(message_id=wanted.id))).count == 1
    assert bodies(target.messages) == ["0", "1", "3"]
    with pytest.raises(NotFound, match="no message"):
        begin_move(core.resources, source, target, MoveSelection(message_id=wanted.id))
    (held,) = core.take(source, core.consumer(source), 1)
    with pytest.raises(InUse, match="acquired"):
        begin_move(core.resources, source, target, MoveSelection(message_id=held.id))


def test_one_named_message_of_a_long_queue_moves_at_once() -> None:
    core = Core()
    source, target = two(core)
    *_, last = source.messages
    assert begin_move(core.resources, source, target, MoveSelection(message_id=last.id)).count == 1
    assert not core.resources.work


@pytest.mark.parametrize("policy", ["reject", "ring", "self-destruct"])
def test_nothing_is_dropped_for_what_comes_whatever_the_policy_of_a_full_queue_is(policy: str) -> None:
    core = Core()
    source, target = two(core, 5, max_count=3, policy_type=policy)
    move = moved(core, begin_move(core.resources, source, target))
    assert move.count == 3
    assert isinstance(move.failure, QueueFull)
    assert "3 messages have moved from from to to, and the rest not: queue to is" in str(move.failure)
    assert (bodies(target.messages), bodies(source.messages)) == (numbers(3), numbers(2, 3))
    assert core.resources.take_overrun() == {}
    reasons = {event.reason for event in core.read() if isinstance(event, Dequeued)}
    assert DequeueReason.DISPLACED not in reasons


def test_a_ring_that_would_rather_keep_what_it_has_loses_nothing_of_the_other_queue() -> None:
    core = Core()
    source, target = two(core, 2, max_count=1, policy_type="ring", priorities=10)
    core.publish(target, message("high", priority=9))
    assert moved(core, begin_move(core.resources, source, target)).count == 0
    assert bodies(source.messages) == numbers(2)


def test_a_portion_is_bounded_in_bytes_but_for_one_message() -> None:
    core = Core()
    source, target = two(core, 0)
    core.publish(source, *("x" * (PORTION_BYTES + 1) for _ in range(3)))
    core.read()
    moved(core, begin_move(core.resources, source, target))
    written = [record.event for record in core.records if isinstance(record.event, TransactionCommitted)]
    assert len(written) == 3


def test_it_is_refused_where_it_cannot_be_done_safely_or_makes_no_sense() -> None:
    core = Core()
    source, target = two(core, 1)
    local, values = core.queue("local", replicate="none"), core.queue("values", last_value_queue_key="k")
    for other, kind in ((source, InvalidArgument), (local, OtherSet), (values, InUse)):
        with pytest.raises(kind):
            begin_move(core.resources, source, other)
    target.locked = "it is a bridge's"
    with pytest.raises(QueueLocked):
        begin_move(core.resources, source, target)
    core.resources.replication.read_only = "another broker is primary"
    with pytest.raises(NotPrimary):
        begin_move(core.resources, source, values)
    assert bodies(source.messages) == ["0"]


def test_it_is_given_up_when_another_broker_becomes_primary() -> None:
    core = Core()
    source, target = two(core)
    move = begin_move(core.resources, source, target)
    core.resources.work.run(SPENT)
    core.resources.replication.read_only = "another broker is primary"
    assert isinstance(move.failure, NotPrimary)
    assert f"{PORTION_MESSAGES} messages have moved" in str(move.failure)
    assert bodies(target.messages) + bodies(source.messages) == numbers(COUNT)


def test_it_is_given_up_when_a_queue_goes_or_changes_or_there_are_too_few_replicas() -> None:
    def deleted(core: Core, target: Queue) -> None:
        core.configuration.delete_queue(target.name)

    def changed(core: Core, target: Queue) -> None:
        core.configuration.update_queue(target.name, {"qpid.replicate": "none"})

    def lonely(core: Core, target: Queue) -> None:
        core.resources.replication.refusal = NotEnoughReplicas("too few")

    for happens, kind in ((deleted, NotFound), (changed, InUse), (lonely, NotEnoughReplicas)):
        core = Core()
        source, target = two(core)
        move = begin_move(core.resources, source, target)
        core.resources.work.run(SPENT)
        happens(core, target)
        core.resources.work.run()
        assert isinstance(move.failure, kind), move.failure
        assert bodies(source.messages) == numbers(COUNT - PORTION_MESSAGES, PORTION_MESSAGES)


# --- some of them, copies, and dead letters that go back


def coloured(core: Core, queue: Queue, count: int = COUNT) -> None:
    core.publish(queue, *(message(str(number), colour="red" if number % 3 else "blue") for number in range(count)))


def test_a_selector_says_which_move_and_the_others_are_counted() -> None:
    core = Core()
    source, target = two(core, 0)
    coloured(core, source)
    move = moved(core, begin_move(core.resources, source, target, MoveSelection(most=30, selector="colour = 'blue'")))
    blue = [str(number) for number in range(0, COUNT, 3)]
    assert bodies(target.messages) == blue[:30]
    assert [number for number in bodies(source.messages) if number in blue] == blue[30:]
    assert move.count == 30
    assert move.passed >= 58
    with pytest.raises(InvalidArgument, match="selector"):
        begin_move(core.resources, source, target, MoveSelection(selector="colour = = 1"))


def test_a_copy_leaves_the_queue_as_it_was_whoever_holds_what() -> None:
    core = Core()
    source, target = two(core)
    held = core.take(source, core.consumer(source))
    move = moved(core, begin_move(core.resources, source, target, copies=True))
    assert (move.count, move.held) == (COUNT, 0)
    assert bodies(source.messages) == bodies(target.messages) == numbers(COUNT)
    assert source.messages.acquired == len(held) > 0
    moved(core, begin_move(core.resources, source, target, MoveSelection(message_id=held[0].id), copies=True))
    assert bodies(target.messages)[-1] == "0"


def test_wherever_the_log_ends_a_copy_has_taken_nothing_away() -> None:
    core = Core()
    source, target = two(core)
    core.read()
    before = len(core.records)
    begin_move(core.resources, source, target, copies=True)
    core.resources.work.run()
    core.read()
    for backup in backups_that_end_behind(core, before):
        left, there = (bodies(backup.catalog.queues[name].messages) for name in ("from", "to"))
        assert (left, there) == (numbers(COUNT), numbers(len(there)))


def test_dead_letters_go_back_to_where_each_of_them_died() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    for name in ("one", "two"):
        queue = core.queue(name, alternate_exchange="dlx")
        core.publish(queue, *(message(f"{name}-{number}") for number in range(60)))
        core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    core.publish(dead, "of nowhere", message("of a queue without dead letters", death="dead/rejected/0"))
    died = len(bodies(dead.messages)) - 2
    first = moved(core, begin_move(core.resources, dead, None, MoveSelection(most=5, died_in="two")))
    assert first.counts == {"two": 5}
    core.resources.reject(
        core.catalog.queues["two"], core.take(core.catalog.queues["two"], core.consumer(core.catalog.queues["two"]))
    )
    move = moved(core, begin_move(core.resources, dead, None))
    assert (move.count, move.passed, sum(move.counts.values())) == (died, 2, died)
    assert bodies(dead.messages) == ["of nowhere", "of a queue without dead letters"]
    for name in ("one", "two"):
        back = bodies(core.catalog.queues[name].messages)
        assert sorted(back, key=lambda text: int(text.split("-")[1])) == [f"{name}-{number}" for number in range(60)]
        assert move.counts[name] > 0


def test_a_dead_letter_stays_where_its_queue_has_gone_or_is_full() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    gone, full = core.queue("gone", alternate_exchange="dlx"), core.queue("full", alternate_exchange="dlx", max_count=1)
    for queue in (gone, full):
        core.publish(queue, queue.name)
        core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    core.configuration.delete_queue("gone")
    core.publish(full, "in its place")
    move = moved(core, begin_move(core.resources, dead, None))
    assert (move.count, move.passed) == (0, 1)
    assert isinstance(move.failure, QueueFull)
    assert bodies(dead.messages) == ["gone", "full"]


def test_a_dead_letter_that_says_that_it_died_where_the_broker_alone_is_heard_stays() -> None:
    """Who may publish to the queue of dead letters can say anything."""
    core = Core()
    dead, listener = core.dead_letter_queue(), core.queue(f"{TEMPORARY_SUBSCRIPTION}1", alternate_exchange="dlx")
    core.resources.replicated.declare_standard_exchanges()
    core.configuration.bind(NOTICE_EXCHANGE, listener.name, "cluster", {})
    core.publish(dead, message("forged", death=f"{listener.name}/rejected/0"))
    move = moved(core, begin_move(core.resources, dead, None))
    assert (move.count, move.passed, bodies(listener.messages)) == (0, 1, [])
