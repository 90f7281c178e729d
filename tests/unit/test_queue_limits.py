"""Stories about what a queue refuses, drops, lets expire and gives up on."""

from __future__ import annotations

import pytest

from model_support import NOW_MS, Core, bodies, message, transaction_of
from qpid_ha_broker.events.types import Dequeued, DequeueReason, Enqueued
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.errors import InvalidArgument, QueueFull
from qpid_ha_broker.model.queues.dispatcher import PASSED_LENGTH
from qpid_ha_broker.model.queues.limits import DISPLACED_LENGTH
from qpid_ha_broker.model.transactions.transaction import Transaction

SECOND = 1000


def reasons(core: Core) -> list[DequeueReason]:
    return [event.reason for event in core.read() if isinstance(event, Dequeued) for _ in event.ids]


# --- limits


def test_a_full_queue_rejects_and_nothing_has_changed() -> None:
    core = Core()
    queue = core.queue("q", max_count=2)
    core.publish(queue, *"ab")
    last = core.log.last_lsn
    with pytest.raises(QueueFull, match="max_count=2"):
        core.publish(queue, "c")
    assert (queue.messages.count, core.log.last_lsn) == (2, last)
    core.consume(queue, 1)
    core.publish(queue, "d")
    assert core.consume(queue) == ["b", "d"]
    core.check()


def test_messages_that_consumers_hold_still_take_room() -> None:
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, "a")
    core.take(queue, core.consumer(queue))
    with pytest.raises(QueueFull):
        core.publish(queue, "b")


def test_a_size_limit_counts_bytes_of_payload() -> None:
    core = Core()
    size = len(message("12345").payload)
    queue = core.queue("q", max_size=2 * size)
    core.publish(queue, "12345", "12345")
    with pytest.raises(QueueFull):
        core.publish(queue, "")
    assert queue.messages.size == 2 * size


def test_a_ring_drops_the_oldest_as_many_as_it_takes() -> None:
    core = Core()
    size = len(message("1").payload)
    queue = core.queue("q", max_size=4 * size, policy_type="ring")
    core.publish(queue, *"1234")
    core.publish(queue, message("5" * (size + 1)))
    assert core.consume(queue) == ["3", "4", "5" * (size + 1)]
    assert reasons(core)[:2] == [DequeueReason.DISPLACED] * 2
    core.check()


def test_a_ring_refuses_what_could_never_fit_and_drops_nothing_for_it() -> None:
    core = Core()
    queue = core.queue("q", max_size=100, policy_type="ring")
    core.publish(queue, "a")
    with pytest.raises(QueueFull):
        core.publish(queue, "x" * 200)
    assert core.consume(queue) == ["a"]


def test_a_ring_takes_nothing_from_a_consumers_hands_and_refuses_nothing_for_its_sake() -> None:
    core = Core()
    queue = core.queue("q", max_count=2, policy_type="ring")
    core.publish(queue, *"ab")
    consumer = core.consumer(queue)
    held = core.take(queue, consumer, 1)
    core.publish(queue, "c")
    assert bodies(queue.messages) == ["a", "c"]
    held += core.take(queue, consumer, 1)
    core.publish(queue, *"def")
    assert bodies(queue.messages) == ["a", "c", "f"]
    core.resources.accept(queue, held)
    core.publish(queue, *"gh")
    assert bodies(queue.messages) == ["g", "h"]
    core.check()


def test_a_ring_by_bytes_goes_over_by_what_is_held_and_drops_all_that_is_not() -> None:
    core = Core()
    size = len(message("a").payload)
    queue = core.queue("q", max_size=3 * size, policy_type="ring")
    core.publish(queue, *"abc")
    held = core.take(queue, core.consumer(queue), 2)
    core.publish(queue, "d" * (2 + size))
    assert bodies(queue.messages) == ["a", "b", "d" * (2 + size)]
    assert queue.messages.acquired == len(held)
    core.check()


def test_a_ring_that_a_transaction_holds_takes_what_comes() -> None:
    core = Core()
    queue = core.queue("q", max_count=2, policy_type="ring")
    core.publish(queue, *"ab")
    consumer, transaction = core.consumer(queue), Transaction()
    for entry in core.take(queue, consumer):
        transaction.accept(queue, entry, consumer)
    core.publish(queue, *"cd")
    assert bodies(queue.messages) == ["a", "b", "d"]
    core.resources.commit(transaction, core.now_ms)
    assert bodies(queue.messages) == ["d"]
    core.check()


def test_what_was_held_and_comes_back_makes_room_in_a_ring_that_went_over() -> None:
    core = Core()
    queue = core.queue("q", max_count=2, policy_type="ring")
    core.publish(queue, *"ab")
    held = core.take(queue, core.consumer(queue))
    core.publish(queue, "c")
    core.resources.release(queue, held, failed=False)
    core.resources.work.run()
    assert bodies(queue.messages) == ["b", "c"]
    core.check()


def test_a_ring_keeps_the_last_of_more_than_it_holds_that_come_in_one_transaction() -> None:
    core = Core()
    queue = core.queue("q", max_count=2, policy_type="ring")
    core.publish(queue, "a")
    core.resources.commit(transaction_of(*[(queue, text) for text in "bcdef"]), core.now_ms)
    core.resources.work.run()
    assert bodies(queue.messages) == ["e", "f"]
    core.check()


def test_one_whose_priority_is_lower_than_all_that_is_held_of_a_ring_is_taken() -> None:
    core = Core()
    queue = core.queue("q", max_count=2, policy_type="ring", priorities=10)
    core.publish(queue, message("high", priority=9), message("higher", priority=9))
    core.take(queue, core.consumer(queue))
    core.publish(queue, message("low", priority=1))
    core.publish(queue, message("lower", priority=0))
    assert (bodies(queue.messages), core.resources.outranked_total) == (["high", "higher", "low"], 1)
    core.check()


@pytest.mark.parametrize("limits", [{"max_count": 2}, {"max_size": 2 * len(message("1").payload)}])
def test_who_holds_all_of_a_ring_gets_one_more_and_the_next_for_an_answer(limits: dict[str, int]) -> None:
    """Else one that never answers would hold whatever comes, and the ring would have no limit."""
    core = Core()
    queue = core.queue("q", policy_type="ring", **limits)
    hung, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *"12")
    held = core.take(queue, hung)
    core.give_credit(queue, hung)
    for text in "3456":
        core.publish(queue, text)
        core.hand_out()
    beyond = core.inbox(hung)
    assert (bodies(held), bodies(beyond), bodies(queue.messages)) == (["1", "2"], ["3"], ["1", "2", "3", "6"])
    assert bodies(core.take(queue, other)) == ["6"]
    core.publish(queue, "7")
    core.resources.accept(queue, beyond)
    core.hand_out()
    assert bodies(core.inbox(hung)) == ["7"]
    core.resources.accept(queue, held)
    core.publish(queue, "8")
    core.hand_out()
    core.check()


def test_a_hanging_reader_of_an_exchange_with_a_ring_keeps_nothing_from_others() -> None:
    core = Core()
    ring, free = core.queue("ring", max_count=1, policy_type="ring"), core.queue("free")
    exchange = core.exchange("all", "fanout", ring, free)
    core.publish(exchange, "a")
    core.take(ring, core.consumer(ring))
    core.publish(exchange, *"bc")
    assert [bodies(queue.messages) for queue in (ring, free)] == [["a", "c"], ["a", "b", "c"]]
    core.check()


def test_a_ring_with_priorities_drops_the_lowest_first() -> None:
    core = Core()
    queue = core.queue("q", max_count=3, policy_type="ring", priorities=10)
    core.publish(queue, *(message(f"p{p}", priority=p) for p in (9, 1, 5)), message("new", priority=4))
    assert core.consume(queue) == ["p9", "p5", "new"]


def test_a_low_message_does_not_push_a_high_one_out_of_a_ring() -> None:
    core = Core()
    queue = core.queue("q", max_count=2, policy_type="ring", priorities=10)
    core.publish(queue, message("high", priority=9), message("middle", priority=5))
    last = core.log.last_lsn
    core.publish(queue, message("low", priority=1))
    assert (bodies(queue.messages), core.log.last_lsn) == (["high", "middle"], last)
    core.publish(queue, message("newer", priority=5))
    assert core.consume(queue) == ["high", "newer"]
    assert core.resources.outranked_total == 1
    core.check()


def test_a_low_message_that_two_others_would_have_to_make_room_for_leaves_both_where_they_were() -> None:
    core = Core()
    low, high = message("11", priority=1), message("99", priority=9)
    queue = core.queue("q", max_size=2 * len(low.payload), policy_type="ring", priorities=10)
    core.publish(queue, low, high)
    core.publish(queue, message("222222", priority=1))
    assert queue.messages.acquired == 0
    assert core.consume(queue) == ["99", "11"]
    core.check()


def test_other_queues_get_what_a_ring_has_no_place_for() -> None:
    core = Core()
    ring, free = core.queue("ring", max_count=1, policy_type="ring", priorities=2), core.queue("free")
    exchange = core.exchange("all", "fanout", ring, free)
    core.publish(ring, message("high", priority=9))
    core.publish(exchange, message("low", priority=0))
    assert [bodies(queue.messages) for queue in (ring, free)] == [["high"], ["low"]]
    core.check()


def test_a_ring_of_one_order_takes_whatever_priority_a_message_has() -> None:
    core = Core()
    queue = core.queue("q", max_count=1, policy_type="ring")
    core.publish(queue, message("high", priority=9), message("low", priority=0))
    assert core.consume(queue) == ["low"]


def test_a_ring_that_was_made_a_rejecting_queue_rejects() -> None:
    core = Core()
    queue = core.queue("q", max_count=1, policy_type="ring")
    core.publish(queue, *"ab")
    core.configuration.update_queue("q", {"qpid.policy_type": "reject"})
    with pytest.raises(QueueFull):
        core.publish(queue, "c")
    core.configuration.update_queue("q", {"qpid.policy_type": "ring"})
    core.publish(queue, "d")
    assert core.consume(queue) == ["d"]
    core.check()


def test_one_full_queue_of_three_rejects_for_all_of_them() -> None:
    core = Core()
    ring = core.queue("ring", max_count=2, policy_type="ring")
    full, free = core.queue("full", max_count=1), core.queue("free")
    consumer = core.consumer(ring)
    core.publish(ring, *"ab")
    core.publish(full, "x")
    exchange = core.exchange("all", "fanout", ring, full, free)
    last = core.log.last_lsn
    with pytest.raises(QueueFull, match="queue full"):
        core.publish(exchange, "new")
    assert (bodies(ring.messages), full.messages.count, free.messages.count, core.log.last_lsn) == (
        ["a", "b"],
        1,
        0,
        last,
    )
    assert ring.messages.acquired == 0
    core.check()
    assert bodies(core.take(ring, consumer)) == ["a", "b"]
    core.consume(full)
    core.resources.release(ring, [next(iter(ring.messages))], failed=False)
    core.publish(exchange, "new")
    assert [bodies(queue.messages) for queue in (ring, full, free)] == [["b", "new"], ["new"], ["new"]]
    core.check()


def test_a_message_that_is_refused_for_its_key_leaves_rings_as_they_were() -> None:
    core = Core()
    ring = core.queue("ring", max_count=1, policy_type="ring")
    values = core.queue("values", last_value_queue_key="symbol")
    exchange = core.exchange("all", "fanout", ring, values)
    core.publish(ring, "a")
    with pytest.raises(InvalidArgument, match="4096 characters"):
        core.publish(exchange, message("new", symbol="x" * 5000))
    assert ring.messages.acquired == 0
    assert core.consume(ring) == ["a"]


# --- time


def test_a_message_expires_when_a_consumer_asks_for_it() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, message("short", ttl_ms=SECOND), "long")
    core.now_ms += SECOND
    assert core.consume(queue) == ["long"]
    assert reasons(core) == [DequeueReason.EXPIRED, DequeueReason.CONSUMED]
    core.check()


def test_a_message_expires_at_a_tick_and_not_before() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, message("a", ttl_ms=SECOND), message("b", ttl_ms=3 * SECOND), "c")
    due_ms = [queue.messages.expiries.next_ms]
    core.tick(after_ms=SECOND - 1)
    assert queue.messages.count == 3
    assert due_ms == [core.now_ms + 1]
    core.tick(after_ms=1)
    assert bodies(queue.messages) == ["b", "c"]
    core.tick(after_ms=5 * SECOND)
    assert bodies(queue.messages) == ["c"]
    assert queue.messages.expiries.next_ms is None
    core.check()


@pytest.mark.parametrize(("own_ms", "lives_ms"), [(0, 2000), (1000, 1000), (5000, 2000)])
def test_a_queue_bounds_the_life_of_its_messages(own_ms: int, lives_ms: int) -> None:
    core = Core()
    queue = core.queue("q", message_ttl_ms=2000)
    core.publish(queue, message("a", ttl_ms=own_ms))
    core.tick(after_ms=lives_ms - 1)
    assert queue.messages.count == 1
    core.tick(after_ms=1)
    assert queue.messages.count == 0


def test_queues_with_different_ttls_get_the_same_message_for_different_times() -> None:
    core = Core()
    queues = [core.queue(str(ttl), message_ttl_ms=ttl) for ttl in (1000, 2000)]
    core.publish(core.exchange("all", "fanout", *queues), "a")
    core.tick(after_ms=1000)
    assert [queue.messages.count for queue in queues] == [0, 1]
    core.check()


def test_what_a_consumer_has_does_not_expire_but_it_does_once_it_comes_back() -> None:
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, message("a", ttl_ms=SECOND))
    consumer = core.consumer(queue)
    held = core.take(queue, consumer)
    core.tick(after_ms=2 * SECOND)
    assert queue.messages.count == 1
    core.resources.release(queue, held, failed=False)
    core.tick(after_ms=1)
    assert queue.messages.count == 0
    core.publish(queue, "there is room again")
    core.check()


def test_a_browser_is_not_shown_what_has_expired() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, message("a", ttl_ms=SECOND), "b")
    core.now_ms += SECOND
    assert bodies(core.take(queue, core.browser(queue))) == ["b"]
    assert queue.messages.count == 1
    core.check()


def test_consumed_messages_with_a_long_life_are_not_remembered_for_it() -> None:
    core = Core(witness=False)
    queue = core.queue("q", message_ttl_ms=24 * 3600 * SECOND)
    for _ in range(50):
        core.publish(queue, *(str(n) for n in range(100)))
        core.consume(queue)
    assert len(queue.messages.expiries) < 500
    core.publish(queue, "last")
    core.tick(after_ms=24 * 3600 * SECOND)
    assert queue.messages.count == 0


def test_many_expired_messages_go_in_portions() -> None:
    core = Core()
    queue = core.queue("q", message_ttl_ms=SECOND)
    core.publish(queue, *("x" for _ in range(2 * PASSED_LENGTH + 10)))
    core.now_ms += SECOND
    core.publish(queue, "fresh")
    assert core.consume(queue) == ["fresh"]
    core.check()


# --- dead letters


def test_a_rejected_message_goes_to_the_alternate_exchange() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, message("a", durable=True, priority=7), "b")
    core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    assert (queue.messages.count, bodies(dead.messages)) == (0, ["a", "b"])
    moved = next(iter(dead.messages)).header
    assert (moved.durable, moved.priority) == (True, 7)
    assert reasons(core) == [DequeueReason.MOVED] * 2
    core.check()


def test_without_an_alternate_exchange_a_rejected_message_is_gone() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    assert (queue.messages.count, reasons(core)) == (0, [DequeueReason.REJECTED])
    core.check()


def test_a_message_moves_in_one_unit_so_it_is_never_in_both_queues_nor_in_none() -> None:
    core = Core()
    core.dead_letter_queue()
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, "a")
    held = core.take(queue, core.consumer(queue))
    core.read()
    core.resources.reject(queue, held)
    core.read()
    *parts, end = core.records[-3:]
    assert [(type(record.event), record.part) for record in parts] == [(Enqueued, True), (Dequeued, True)]
    assert not end.part


def test_after_so_many_failed_deliveries_a_message_is_a_dead_letter() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = core.queue("q", alternate_exchange="dlx", delivery_limit=3)
    core.publish(queue, "poison", "good")
    consumer = core.consumer(queue)
    for failures in (1, 2, 3):
        assert queue.messages.count == 2
        held = core.take(queue, consumer, 1)
        assert held[0].delivery_count == failures - 1
        core.resources.release(queue, held, failed=True)
        core.check()
    assert (bodies(queue.messages), bodies(dead.messages)) == (["good"], ["poison"])


def test_releases_that_were_not_failures_never_make_a_dead_letter() -> None:
    core = Core()
    queue = core.queue("q", delivery_limit=1)
    core.publish(queue, "a")
    consumer = core.consumer(queue)
    for _ in range(5):
        core.resources.release(queue, core.take(queue, consumer), failed=False)
    assert queue.messages.count == 1
    core.resources.release(queue, core.take(queue, consumer), failed=True)
    assert queue.messages.count == 0


def test_some_of_those_released_together_may_be_spent() -> None:
    core = Core()
    queue = core.queue("q", delivery_limit=2)
    core.publish(queue, *"ab")
    consumer = core.consumer(queue)
    core.resources.release(queue, core.take(queue, consumer, 1), failed=True)
    core.publish(queue, "c")
    core.resources.release(queue, core.take(queue, consumer), failed=True)
    assert bodies(queue.messages) == ["b", "c"]
    core.check()


def test_a_full_dead_letter_queue_is_counted_and_loses_the_letter_not_the_broker() -> None:
    core = Core()
    dead = core.dead_letter_queue(max_count=1)
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, *"ab")
    core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    assert (bodies(dead.messages), queue.messages.count, core.resources.dead_letters_dropped_total) == (["a"], 0, 1)
    core.check()


def test_a_dead_letter_lives_as_long_as_its_new_queue_says_from_now_on() -> None:
    core = Core()
    dead = core.dead_letter_queue(message_ttl_ms=10 * SECOND)
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, "a")
    core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    core.tick(after_ms=10 * SECOND - 1)
    assert dead.messages.count == 1
    core.tick(after_ms=1)
    assert dead.messages.count == 0


def test_a_queue_that_is_its_own_dead_letter_queue_does_not_go_round_in_circles() -> None:
    core = Core()
    core.exchange("dlx")
    queue = core.queue("q", alternate_exchange="dlx")
    core.configuration.bind("dlx", "q", "", {})
    core.publish(queue, "a")
    core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    assert (queue.messages.count, core.resources.dead_letters_dropped_total) == (0, 1)
    core.check()


def test_a_dead_letter_whose_alternate_exchange_leads_nowhere_is_counted() -> None:
    core = Core()
    core.exchange("dlx")
    queue = core.queue("q", alternate_exchange="dlx", delivery_limit=1)
    core.publish(queue, "a")
    core.resources.release(queue, core.take(queue, core.consumer(queue)), failed=True)
    assert (queue.messages.count, core.resources.dead_letters_dropped_total) == (0, 1)


def test_a_dead_letter_goes_to_a_queue_that_is_not_replicated() -> None:
    core = Core()
    dead = core.dead_letter_queue(replicate="none")
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, "a")
    core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    assert (queue.messages.count, bodies(dead.messages)) == (0, ["a"])
    core.check()


def test_a_ring_whose_limit_was_lowered_drops_the_rest_in_portions() -> None:
    core = Core()
    queue = core.queue("q", max_count=4 * DISPLACED_LENGTH, policy_type="ring")
    core.publish(queue, *(str(number) for number in range(3 * DISPLACED_LENGTH)))
    core.configuration.update_queue("q", {"qpid.max_count": 2})
    core.publish(queue, "new")
    counts = [queue.messages.count]
    while core.resources.work:
        core.resources.work.run(Budget(lambda: 0.0, 0.0))
        counts.append(queue.messages.count)
    assert counts[:3] == [2 * DISPLACED_LENGTH + 1, DISPLACED_LENGTH + 1, 2]
    assert bodies(queue.messages) == [str(3 * DISPLACED_LENGTH - 1), "new"]
    core.check()


def test_what_consumers_hold_is_not_dropped_by_a_ring_that_shrinks() -> None:
    core = Core()
    queue = core.queue("q", max_count=4 * DISPLACED_LENGTH, policy_type="ring")
    core.publish(queue, *(str(number) for number in range(2 * DISPLACED_LENGTH)))
    held = core.take(queue, core.consumer(queue), 10)
    core.configuration.update_queue("q", {"qpid.max_count": 2})
    core.publish(queue, "new")
    core.resources.work.run()
    assert (list(queue.messages)[:-1], bodies(queue.messages)[-1]) == (held, "new")
    core.check()


@pytest.mark.parametrize("end", ["deleted", "another one's", "no ring any more"])
def test_a_ring_that_may_not_shrink_any_more_is_left_alone(end: str) -> None:
    core = Core()
    queue = core.queue("q", max_count=4 * DISPLACED_LENGTH, policy_type="ring")
    core.publish(queue, *(str(number) for number in range(3 * DISPLACED_LENGTH)))
    core.configuration.update_queue("q", {"qpid.max_count": 2})
    core.publish(queue, "new")
    if end == "deleted":
        core.configuration.delete_queue("q")
    elif end == "no ring any more":
        core.configuration.update_queue("q", {"qpid.policy_type": "reject"})
    else:
        core.resources.replication.read_only = "this broker is joining, not primary"
    lsn = core.log.last_lsn
    core.resources.work.run()
    assert (core.log.last_lsn, bool(core.resources.work)) == (lsn, False)
    core.check()


def test_messages_of_one_transaction_drop_hardly_more_at_once_than_one_does() -> None:
    core = Core()
    queue = core.queue("q", max_count=4 * DISPLACED_LENGTH, policy_type="ring")
    core.publish(queue, *(str(number) for number in range(3 * DISPLACED_LENGTH)))
    core.configuration.update_queue("q", {"qpid.max_count": 2})
    core.resources.commit(transaction_of(*[(queue, "new")] * 3), NOW_MS)
    assert queue.messages.count == 2 * DISPLACED_LENGTH + 1
    core.resources.work.run()
    assert bodies(queue.messages) == ["new", "new"]
    core.check()
