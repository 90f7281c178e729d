"""Who of several consumers of a queue is given messages: one alone, the highest first, all but who has declined one."""

from __future__ import annotations

import pytest

from model_support import PLENTY, Core, bodies, message
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.engine import Outcome
from qpid_ha_broker.model.errors import InUse, InvalidArgument
from qpid_ha_broker.model.queues import dispatcher
from qpid_ha_broker.model.queues.dispatcher import Consumer, ConsumerStanding
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, check_in_group


def ranked(core: Core, queue: Queue, priority: int, credit: int = 1000) -> Consumer:
    consumer = Consumer()
    core._inboxes[consumer] = []
    core.resources.subscribe(queue, consumer, consumer, standing=ConsumerStanding(priority))
    core.give_credit(queue, consumer, credit)
    return consumer


def got(core: Core, *consumers: Consumer) -> list[list[str]]:
    core.hand_out()
    return [bodies(core.inbox(consumer)) for consumer in consumers]


# --- a single active consumer


def test_the_first_consumer_alone_is_given_messages_and_the_next_takes_over() -> None:
    core = Core()
    queue = core.queue("q", single_active_consumer=True)
    first, second, third = (core.consumer(queue) for _ in range(3))
    browser = core.browser(queue)
    for consumer in (first, second, third, browser):
        core.give_credit(queue, consumer)
    core.publish(queue, "a", "b")
    assert got(core, first, second, third, browser) == [["a", "b"], [], [], ["a", "b"]]
    held = list(queue.messages)
    core.resources.release(queue, held, failed=True)
    core.leave(queue, first)
    assert got(core, second, third) == [["a", "b"], []]


def test_an_active_consumer_without_credit_keeps_the_others_waiting() -> None:
    core = Core()
    queue = core.queue("q", single_active_consumer=True)
    active, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, "a")
    core.give_credit(queue, other)
    assert got(core, active, other) == [[], []]
    assert queue.dispatcher.active is active
    core.leave(queue, active)
    assert got(core, other) == [["a"]], "nobody had to wake it but the leave"


def test_what_comes_back_in_portions_is_not_overtaken_by_the_next_active_consumer() -> None:
    core = Core()
    queue = core.queue("q", single_active_consumer=True)
    active, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *(f"{n:03}" for n in range(600)))
    held = core.take(queue, active, 600)
    core.leave(queue, active)
    core.resources.release_in_portions(queue, active, held, failed=True)
    assert core.take(queue, other) == []
    core.resources.work.run()
    assert bodies(core.take(queue, other)) == [f"{n:03}" for n in range(600)]


def test_a_single_active_consumer_can_be_asked_for_later() -> None:
    core = Core()
    queue = core.queue("q")
    consumers = [core.consumer(queue) for _ in range(2)]
    core.configuration.update_queue("q", {"qpid.single_active_consumer": True})
    for consumer in consumers:
        core.give_credit(queue, consumer)
    core.publish(queue, "a", "b")
    assert got(core, *consumers) == [["a", "b"], []]


@pytest.mark.parametrize("name", ["single_active_consumer", "message_groups"])
def test_what_needs_to_know_all_consumers_is_not_for_a_group_of_brokers(name: str) -> None:
    with pytest.raises(InvalidArgument, match="set that has a primary"):
        check_in_group(QueueArguments.parse({f"qpid.{name}": True}))


# --- priorities of consumers


def test_the_highest_with_credit_are_given_messages_first_and_in_turn() -> None:
    core = Core()
    queue = core.queue("q")
    low, high, higher, also_higher = (ranked(core, queue, priority, 3) for priority in (0, 1, 5, 5))
    core.publish(queue, *(str(n) for n in range(10)))
    given = got(core, low, high, higher, also_higher)
    assert [len(each) for each in given] == [1, 3, 3, 3]
    assert given[0] == ["9"]
    assert sorted(given[2] + given[3]) == [str(n) for n in range(6)]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_lower_ones_get_nothing_while_a_higher_one_has_credit(limit: int) -> None:
    core = Core()
    queue = core.queue("q")
    low, high = ranked(core, queue, -3), ranked(core, queue, 7, 50)
    core.publish(queue, *(str(n) for n in range(60)))
    core.hand_out(limit)
    assert [len(core.inbox(consumer)) for consumer in (high, low)] == [50, 10]


def test_lower_ones_get_what_higher_ones_do_not_take() -> None:
    core = Core()
    queue = core.queue("q")
    picky = Consumer(accepts=lambda payload: payload.endswith(b"!"))
    core._inboxes[picky] = []
    core.resources.subscribe(queue, picky, picky, standing=ConsumerStanding(9))
    low = ranked(core, queue, 0)
    core.give_credit(queue, picky)
    core.publish(queue, "a", "b!", "c")
    assert got(core, picky, low) == [["b!"], ["a", "c"]]


def test_who_only_looks_waits_for_no_consumer() -> None:
    core = Core()
    queue = core.queue("q")
    ranked(core, queue, 4)
    browser = core.browser(queue)
    core.give_credit(queue, browser)
    core.publish(queue, "a")
    assert got(core, browser) == [["a"]]


def test_priorities_of_consumers_end_with_them() -> None:
    core = Core()
    queue = core.queue("q")
    high, low = ranked(core, queue, 4), ranked(core, queue, 0)
    core.leave(queue, high)
    core.publish(queue, "a")
    assert got(core, low) == [["a"]]
    assert not queue.dispatcher._standings


# --- exclusive consumers


def test_an_exclusive_consumer_is_alone_with_those_who_look() -> None:
    core = Core()
    queue = core.queue("q")
    core.browser(queue)
    alone = Consumer()
    core.resources.subscribe(queue, alone, alone, standing=ConsumerStanding(is_exclusive=True))
    with pytest.raises(InUse, match="exclusive consumer"):
        core.consumer(queue)
    core.browser(queue)
    core.leave(queue, alone)
    core.consumer(queue)
    with pytest.raises(InUse, match="has to be alone"):
        core.resources.subscribe(queue, alone, alone, standing=ConsumerStanding(is_exclusive=True))


# --- messages that cannot be delivered to a consumer


def test_what_a_consumer_declines_goes_to_others_and_waits_where_there_is_none() -> None:
    core = Core()
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.publish(queue, "a", "b")
    declined, _ = core.take(queue, consumer)
    core.resources.release(queue, [declined], failed=True)
    assert queue.dispatcher.decline(consumer, declined)
    core.publish(queue, "c")
    assert bodies(core.take(queue, consumer)) == ["c"]
    other = core.consumer(queue)
    (again,) = core.take(queue, other)
    assert (bodies([again]), again.delivery_count) == (["a"], 1)
    core.check()


def test_of_a_group_nothing_behind_a_declined_message_comes_before_it() -> None:
    core = Core()
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.publish(queue, message("a0", group="a"), message("a1", group="a"), message("b0", group="b"))
    (declined,) = core.take(queue, consumer, 1)
    core.resources.release(queue, [declined], failed=False)
    assert queue.dispatcher.decline(consumer, declined)
    assert bodies(core.take(queue, consumer)) == ["b0"]
    other = core.consumer(queue)
    assert bodies(core.take(queue, other)) == ["a0", "a1"]
    core.publish(queue, message("b1", group="b"))
    assert core.take(queue, other) == []
    assert bodies(core.take(queue, consumer)) == ["b1"], "it keeps its other groups"


def test_a_consumer_cannot_decline_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "DECLINED_MOST", 2)
    core = Core()
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.publish(queue, *"abcd")
    entries = core.take(queue, consumer)
    core.resources.release(queue, entries, failed=False)
    assert [queue.dispatcher.decline(consumer, entry) for entry in entries] == [True, True, False, False]
    core.resources.accept(queue, entries[:2])
    assert queue.dispatcher.decline(consumer, entries[2]), "what has gone counts no more"


def test_what_was_declined_and_failed_too_often_is_a_dead_letter() -> None:
    core = Core()
    letters = core.dead_letter_queue()
    queue = core.queue("q", delivery_limit=1, alternate_exchange="dlx")
    consumer = core.consumer(queue)
    core.publish(queue, "a")
    entries = core.take(queue, consumer)
    core.resources.release(queue, entries, failed=True)
    assert queue.dispatcher.decline(consumer, entries[0])
    assert (queue.messages.count, letters.messages.count) == (0, 1)


def test_the_window_counts_for_everybody() -> None:
    core = Core()
    queue = core.queue("q")
    high, low = ranked(core, queue, 4), ranked(core, queue, 0)
    high.window_bytes, low.window_bytes = 1, PLENTY
    core.publish(queue, "a", "b")
    assert got(core, high, low) == [["a"], ["b"]]


@pytest.mark.parametrize("undeliverable", [True, False])
def test_a_proxy_claims_nothing_that_its_client_has_declined(undeliverable: bool) -> None:
    """Somebody else may have got it before that was confirmed: see `RelayedConsumer`."""
    assert Outcome(engine.MODIFIED, undeliverable=undeliverable).is_return
    assert Outcome(engine.RELEASED).is_return
    assert not Outcome(engine.REJECTED).is_return
