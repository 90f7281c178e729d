"""Stories about deleting a queue whose many messages go to its alternate exchange."""

from __future__ import annotations

import itertools
from typing import Any

import proton
import pytest

from model_support import Core, bodies
from paired_engines import PairedBroker
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.commands.deletion import MOVED_LENGTH
from qpid_ha_broker.model.errors import InUse, NotPrimary, QueueLocked
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import RELEASED_LENGTH
from qpid_ha_broker.model.transactions.transaction import Message, Transaction

SPENT = Budget(lambda: 0.0, 0.0)
COUNT = 3 * MOVED_LENGTH + 1


def full(core: Core) -> tuple[Queue, Queue]:
    """A queue, and where its messages go when it is deleted."""
    dead = core.dead_letter_queue()
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, *(str(number) for number in range(COUNT)))
    return queue, dead


def test_the_messages_move_in_portions_and_the_queue_goes_with_the_last() -> None:
    core = Core()
    queue, dead = full(core)
    deletion = core.configuration.delete_queue("q")
    counts = [(queue.messages.count, dead.messages.count)]
    while core.resources.work:
        assert (deletion.written, queue.deleted) == (None, False)
        core.resources.work.run(SPENT)
        counts.append((queue.messages.count, dead.messages.count))
        core.check()
    assert {after - before for (_, before), (_, after) in itertools.pairwise(counts)} <= set(range(MOVED_LENGTH + 1))
    assert (queue.deleted, deletion.written) == (True, core.resources.written)
    assert bodies(dead.messages) == [str(number) for number in range(COUNT)]
    assert "q" not in core.catalog.queues


def test_until_then_nobody_publishes_to_it_takes_from_it_or_makes_it_again() -> None:
    core = Core()
    queue, _ = full(core)
    deletion = core.configuration.delete_queue("q")
    with pytest.raises(QueueLocked, match="q is being deleted"):
        core.publish(queue, "late")
    with pytest.raises(QueueLocked):
        core.resources.subscribe(queue, Consumer(), "somebody")
    with pytest.raises(InUse, match="being deleted"):
        core.queue("q", alternate_exchange="dlx")
    assert core.configuration.delete_queue("q") is deletion
    core.resources.work.run()
    assert core.queue("q").messages.count == 0
    core.check()


def test_what_is_held_moves_last_and_an_answer_to_it_comes_too_late() -> None:
    core = Core()
    queue, dead = full(core)
    held = core.take(queue, core.consumer(queue), 2)
    core.configuration.delete_queue("q")
    for _ in range(2):
        core.resources.work.run(SPENT)
    core.resources.accept(queue, held[:1])
    core.resources.work.run()
    core.resources.accept(queue, held[1:])
    assert (dead.messages.count, bodies(dead.messages)[-1]) == (COUNT - 1, "1")
    core.check()


@pytest.mark.parametrize("discharge", ["commit", "roll back"])
def test_what_open_transactions_have_accepted_moves_in_portions_and_their_discharge_comes_too_late(
    discharge: str,
) -> None:
    core = Core(log_acquisitions=True)
    queue, dead = full(core)
    consumer = core.consumer(queue)
    transaction = Transaction()
    for entry in core.take(queue, consumer):
        transaction.accept(queue, entry, None)
    core.leave(queue, consumer)
    core.configuration.delete_queue("q")
    counts = [dead.messages.count]
    while dead.messages.count < 2 * MOVED_LENGTH:
        core.resources.work.run(SPENT)
        counts.append(dead.messages.count)
    if discharge == "commit":
        core.resources.commit(transaction, core.now_ms)
    else:
        core.resources.roll_back(transaction)
    while core.resources.work:
        core.resources.work.run(SPENT)
        counts.append(dead.messages.count)
    assert {after - before for before, after in itertools.pairwise(counts)} <= set(range(MOVED_LENGTH + 1))
    assert queue.deleted
    assert dead.messages.count == (2 * MOVED_LENGTH if discharge == "commit" else COUNT)
    core.check()


def test_what_gone_consumers_are_still_giving_back_is_waited_for() -> None:
    core = Core()
    queue, dead = full(core)
    consumer = core.consumer(queue)
    held = core.take(queue, consumer, COUNT - 1)
    core.resources.release_in_portions(queue, consumer, held, failed=False)
    core.leave(queue, consumer)
    core.configuration.delete_queue("q")
    while core.resources.work:
        assert not queue.deleted
        core.resources.work.run(SPENT)
        core.check()
    assert (dead.messages.count, queue.deleted) == (COUNT, True)


def test_a_broker_that_may_write_no_more_leaves_the_queue_with_the_rest() -> None:
    core = Core()
    queue, _ = full(core)
    deletion = core.configuration.delete_queue("q")
    core.resources.work.run(SPENT)
    lsn = core.log.last_lsn
    core.resources.replication.read_only = "this broker is joining, not primary"
    core.resources.work.run()
    assert isinstance(deletion.failure, NotPrimary)
    assert (core.log.last_lsn, bool(core.resources.work)) == (lsn, False)
    core.resources.replication.read_only = ""
    core.publish(queue, "again")
    assert queue.messages.count == COUNT - MOVED_LENGTH + 1
    core.check()


def test_its_consumers_lose_it_at_once_and_who_asked_is_answered_at_the_end() -> None:
    broker = PairedBroker()
    configuration, resources = broker.container.default.configuration, broker.container.default.resources
    dead = configuration.declare_queue("dead", {})
    configuration.declare_exchange("dlx", "fanout", {})
    configuration.bind("dlx", "dead", "", {})
    queue = configuration.declare_queue("q", {"qpid.alternate_exchange": "dlx"})
    count = 2 * RELEASED_LENGTH + COUNT
    for number in range(count):
        resources.publish(queue, Message(b"\x00\x53\x77\xa1\x04%04d" % number), 0)
    consumer, client = broker.connect(), broker.connect()
    receiver = consumer.receiver("q", credit=2 * RELEASED_LENGTH)
    assert queue.messages.acquired == 2 * RELEASED_LENGTH
    replies, requests = client.receiver("$management", 10), client.sender("$management")
    clock = itertools.count()
    broker.container.clock = lambda: next(clock)
    request: Any = proton.Message(reply_to="$management")
    request.properties = {"operation": "DELETE", "type": "queue", "name": "q"}
    client.send(requests, request)
    client.exchange()
    for _ in range(2):
        broker.turn()
        client.exchange()
        consumer.exchange()
    assert receiver.remote_condition.name == "amqp:resource-deleted"
    assert client.received(replies) == []
    broker.settle_down()
    ((_, answer),) = client.received(replies)
    assert answer.properties["statusCode"] == 204
    assert (queue.deleted, dead.messages.count) == (True, count)
