"""Stories about local transactions: all of it at once, or nothing."""

from __future__ import annotations

import pytest

from model_support import Core, bodies, message, transaction_of
from qpid_ha_broker.events.types import Dequeued, Enqueued, TransactionCommitted
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.errors import NotFound, QueueFull
from qpid_ha_broker.model.sets.resources import RELEASED_LENGTH
from qpid_ha_broker.model.transactions.transaction import Transaction

SPENT = Budget(lambda: 0.0, 0.0)


def test_nothing_happens_before_the_commit_and_everything_then() -> None:
    core = Core()
    source, target = core.queue("source"), core.queue("target")
    core.publish(source, *"ab")
    consumer = core.consumer(source)
    transaction = transaction_of((target, "x"), (target, "y"))
    for entry in core.take(source, consumer):
        transaction.accept(source, entry, consumer)
    lsn = core.log.last_lsn
    assert (source.messages.count, target.messages.count) == (2, 0)
    assert core.resources.commit(transaction, core.now_ms).lsn == core.log.last_lsn > lsn
    assert (source.messages.count, bodies(target.messages)) == (0, ["x", "y"])
    core.check()


def test_a_transaction_is_one_unit_in_the_log() -> None:
    core = Core()
    queue, other = core.queue("q"), core.queue("other")
    core.publish(queue, "a")
    consumer = core.consumer(queue)
    transaction = transaction_of((other, "x"), (other, "y"))
    transaction.accept(queue, core.take(queue, consumer)[0], consumer)
    core.read()
    core.resources.commit(transaction, core.now_ms)
    assert [type(event) for event in core.read()] == [Enqueued, Enqueued, Dequeued, TransactionCommitted]
    assert [record.part for record in core.records[-4:]] == [True, True, True, False]


def test_an_empty_transaction_writes_nothing() -> None:
    core = Core()
    lsn = core.log.last_lsn
    assert core.resources.commit(Transaction(), core.now_ms).lsn == lsn


def test_what_a_transaction_accepted_is_held_while_it_is_open() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"ab")
    consumer = core.consumer(queue)
    transaction = Transaction()
    transaction.accept(queue, core.take(queue, consumer, 1)[0], consumer)
    core.purge(queue)
    assert core.consume(queue) == []
    assert (queue.messages.count, queue.messages.acquired) == (1, 1)
    core.check()


def test_rolled_back_messages_are_their_consumers_again_while_it_is_there() -> None:
    core = Core()
    queue, target = core.queue("q"), core.queue("target")
    core.publish(queue, "a")
    consumer = core.consumer(queue)
    (entry,) = core.take(queue, consumer)
    transaction = transaction_of((target, "x"))
    transaction.accept(queue, entry, consumer)
    core.resources.roll_back(transaction)
    assert target.messages.count == 0
    assert entry.holder is consumer
    core.resources.accept(queue, [entry])
    assert queue.messages.count == 0
    core.check()


def test_rolled_back_messages_of_a_consumer_that_left_return_to_their_places_as_failed() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    consumer = core.consumer(queue)
    transaction = Transaction()
    held = core.take(queue, consumer, 2)
    for entry in held:
        transaction.accept(queue, entry, consumer)
        transaction.abandon(entry)
    core.leave(queue, consumer)
    assert core.consume(queue, 1) == ["c"]
    core.resources.roll_back(transaction)
    assert [entry.delivery_count for entry in held] == [1, 1]
    core.publish(queue, "d")
    core.check()
    assert core.consume(queue) == ["a", "b", "d"]


def test_the_work_of_a_consumer_that_left_can_still_be_committed() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    consumer = core.consumer(queue)
    transaction = Transaction()
    (entry,) = core.take(queue, consumer)
    transaction.accept(queue, entry, consumer)
    transaction.abandon(entry)
    core.leave(queue, consumer)
    core.resources.commit(transaction, core.now_ms)
    assert queue.messages.count == 0
    core.check()


def test_a_long_rollback_returns_messages_in_portions_and_in_their_order() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    everything = [str(number) for number in range(3 * RELEASED_LENGTH)]
    core.publish(queue, *everything)
    consumer, transaction = core.consumer(queue), Transaction()
    for entry in core.take(queue, consumer, len(everything)):
        transaction.accept(queue, entry, None)
    core.leave(queue, consumer)
    core.resources.roll_back(transaction)
    acquired = [queue.messages.acquired]
    while core.resources.work:
        core.resources.work.run(SPENT)
        acquired.append(queue.messages.acquired)
    assert acquired == [number * RELEASED_LENGTH for number in (3, 2, 1, 0)]
    assert {entry.delivery_count for entry in queue.messages} == {1}
    assert core.consume(queue) == everything
    core.check()


def test_a_rollback_counts_against_the_delivery_limit() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = core.queue("q", alternate_exchange="dlx", delivery_limit=1)
    core.publish(queue, "a")
    transaction = Transaction()
    transaction.accept(queue, core.take(queue, core.consumer(queue))[0], None)
    core.resources.roll_back(transaction)
    assert (queue.messages.count, bodies(dead.messages)) == (0, ["a"])
    core.check()


def test_limits_hold_across_all_publishes_of_one_transaction() -> None:
    core = Core()
    ring = core.queue("ring", max_count=2, policy_type="ring")
    small = core.queue("small", max_count=2)
    source = core.queue("source")
    core.publish(ring, *"ab")
    core.publish(small, "a")
    core.publish(source, "s")
    consumer = core.consumer(source)
    transaction = transaction_of((ring, "c"), (small, "b"), (ring, "d"), (small, "one too many"))
    transaction.accept(source, core.take(source, consumer)[0], consumer)
    lsn = core.log.last_lsn
    with pytest.raises(QueueFull, match="queue small is full"):
        core.resources.commit(transaction, core.now_ms)
    assert core.log.last_lsn == lsn
    assert [bodies(each.messages) for each in (ring, small, source)] == [["a", "b"], ["a"], ["s"]]
    assert ring.messages.acquired == 0
    core.resources.roll_back(transaction)
    core.check()
    assert core.consume(ring) == ["a", "b"]


def test_a_ring_makes_room_for_each_publish_of_a_transaction() -> None:
    core = Core()
    ring = core.queue("ring", max_count=3, policy_type="ring")
    core.publish(ring, *"abc")
    core.resources.commit(transaction_of((ring, "d"), (ring, "e")), core.now_ms)
    assert bodies(ring.messages) == ["c", "d", "e"]
    core.check()


def test_a_byte_limit_holds_across_a_transaction() -> None:
    core = Core()
    size = len(message("12345").payload)
    queue = core.queue("q", max_size=2 * size)
    with pytest.raises(QueueFull):
        core.resources.commit(transaction_of(*((queue, "12345") for _ in range(3))), core.now_ms)
    core.resources.commit(transaction_of(*((queue, "12345") for _ in range(2))), core.now_ms)
    assert queue.messages.count == 2


def test_a_transaction_publishes_through_exchanges_by_the_bindings_at_the_commit() -> None:
    core = Core()
    early, late = core.queue("early"), core.queue("late")
    exchange = core.exchange("e", "direct")
    core.configuration.bind("e", "early", "red", {})
    transaction = transaction_of((exchange, message("a", "red")), (exchange, message("b", "nobody")))
    core.configuration.bind("e", "late", "red", {})
    core.resources.commit(transaction, core.now_ms)
    assert (bodies(early.messages), bodies(late.messages)) == (["a"], ["a"])
    core.check()


def test_messages_of_a_queue_that_was_deleted_meanwhile_do_not_stop_the_rest() -> None:
    core = Core()
    doomed, target = core.queue("doomed"), core.queue("target")
    core.publish(doomed, "a", "b")
    consumer = core.consumer(doomed)
    committed, rolled_back = transaction_of((target, "x")), Transaction()
    first, second = core.take(doomed, consumer)
    committed.accept(doomed, first, consumer)
    rolled_back.accept(doomed, second, consumer)
    core.configuration.delete_queue("doomed")
    core.resources.commit(committed, core.now_ms)
    core.resources.roll_back(rolled_back)
    assert bodies(target.messages) == ["x"]
    core.check()


@pytest.mark.parametrize("what", ["queue", "exchange"])
def test_publishing_to_what_was_deleted_meanwhile_refuses_all(what: str) -> None:
    core = Core()
    ring, doomed = core.queue("ring", max_count=1, policy_type="ring"), core.queue("doomed")
    exchange = core.exchange("e", "fanout", doomed)
    core.publish(ring, "a")
    transaction = transaction_of((ring, "b"), (doomed if what == "queue" else exchange, "x"))
    if what == "exchange":
        core.configuration.delete_exchange("e")
    core.configuration.delete_queue("doomed")
    with pytest.raises(NotFound, match="deleted"):
        core.resources.commit(transaction, core.now_ms)
    core.check()
    assert core.consume(ring) == ["a"]


def test_accepting_the_same_message_twice_forgets_it_once() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"ab")
    consumer = core.consumer(queue)
    transaction = Transaction()
    (entry,) = core.take(queue, consumer, 1)
    transaction.accept(queue, entry, consumer)
    transaction.accept(queue, entry, consumer)
    core.resources.commit(transaction, core.now_ms)
    assert queue.messages.count == 1
    core.check()


def test_a_transaction_that_waits_is_measured_and_its_last_publish_can_be_withdrawn() -> None:
    core = Core()
    queue = core.queue("q")
    transaction = transaction_of((queue, "a"), (queue, "b" * 100))
    transaction.withdraw()
    assert transaction.size == len(message("a").payload)
    core.resources.commit(transaction, core.now_ms)
    assert bodies(queue.messages) == ["a"]


def test_a_committed_transaction_wakes_those_who_wait_and_its_messages_expire_as_told() -> None:
    core = Core()
    queue = core.queue("q", message_ttl_ms=1000)
    core.resources.commit(transaction_of((queue, "a")), core.now_ms)
    core.tick(after_ms=1000)
    assert queue.messages.count == 0
    consumer = core.consumer(queue)
    core.give_credit(queue, consumer)
    core.hand_out()
    core.resources.commit(transaction_of((queue, "b")), core.now_ms)
    core.hand_out()
    assert bodies(core.inbox(consumer)) == ["b"]
