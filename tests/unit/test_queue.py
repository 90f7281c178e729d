"""Stories about one queue: who gets what and when, what fits, what expires, what comes back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from model_support import PLENTY, Core, bodies, message, transaction_of, wants
from qpid_ha_broker.events.types import Acquired, Dequeued, DequeueReason, Enqueued, Released
from qpid_ha_broker.model.errors import InUse, QueueFull
from qpid_ha_broker.model.queues.dispatcher import PASSED_LENGTH, Consumer, Dispatcher
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry

SECOND = 1000


# --- consumers, credit, turns


def wanted_by_three(core: Core) -> tuple[Queue, list[Consumer]]:
    """An empty queue, and consumers that have credit."""
    queue = core.queue("q")
    consumers = [core.consumer(queue) for _ in range(3)]
    for consumer in consumers:
        core.give_credit(queue, consumer)
    return queue, consumers


def test_consumers_take_turns() -> None:
    core = Core()
    queue = core.queue("q")
    consumers = [core.consumer(queue) for _ in range(3)]
    core.publish(queue, *(str(n) for n in range(9)))
    for consumer in consumers:
        core.give_credit(queue, consumer)
    core.hand_out()
    got = [bodies(core.inbox(consumer)) for consumer in consumers]
    assert sorted(map(len, got)) == [3, 3, 3]
    assert sorted(text for each in got for text in each) == [str(n) for n in range(9)]
    assert all(each == sorted(each) for each in got)


def test_single_messages_do_not_always_go_to_the_same_consumer() -> None:
    core = Core()
    queue, consumers = wanted_by_three(core)
    for n in range(9):
        core.publish(queue, str(n))
        core.hand_out()
    assert [len(core.inbox(consumer)) for consumer in consumers] == [3, 3, 3]


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_a_look_that_finds_nothing_takes_nobodys_turn(looks: int) -> None:
    core = Core()
    queue, consumers = wanted_by_three(core)
    for n in range(9):
        core.publish(queue, str(n))
        for _ in range(looks):
            core.catalog.wake(queue)
            core.hand_out()
    assert [len(core.inbox(consumer)) for consumer in consumers] == [3, 3, 3]


def test_one_message_for_ten_thousand_consumers_is_looked_for_by_two_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    core, asked = Core(), Counter[str]()
    queue = core.queue("q")
    for _ in range(10_000):
        core.give_credit(queue, core.consumer(queue))
    serve = Dispatcher._serve

    def counted(dispatcher: Dispatcher, *arguments: Any) -> list[Entry]:
        asked["consumers"] += 1
        return serve(dispatcher, *arguments)

    monkeypatch.setattr(Dispatcher, "_serve", counted)
    core.publish(queue, "a")
    core.hand_out()
    assert (asked["consumers"], queue.messages.acquired) == (2, 1)


@pytest.mark.parametrize("count", [3, 4])
def test_who_reads_what_others_hold_reads_all_of_it_beside_one_who_waits_for_more(count: int) -> None:
    core = Core()
    queue = core.queue("q")
    taker = core.consumer(queue)
    core.publish(queue, *"abcd"[:count])
    core.give_credit(queue, taker)
    core.hand_out()
    reader = core.consumer(queue, browsing=True, after=0)
    core.give_credit(queue, reader)
    core.commit()
    core.hand_out()
    assert bodies(core.inbox(reader)) == list("abcd"[:count])


def test_credit_is_never_exceeded_and_what_is_left_goes_to_others() -> None:
    core = Core()
    queue = core.queue("q")
    modest, hungry, idle = (core.consumer(queue) for _ in range(3))
    core.publish(queue, *(str(n) for n in range(10)))
    core.give_credit(queue, modest, 2)
    core.give_credit(queue, hungry, 5)
    core.hand_out()
    assert [len(core.inbox(each)) for each in (modest, hungry, idle)] == [2, 5, 0]
    assert (modest.credit, hungry.credit, queue.messages.acquired) == (0, 0, 7)


def test_a_window_stops_a_consumer_that_has_bytes_enough() -> None:
    core = Core()
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.publish(queue, *("x" * 100 for _ in range(5)))
    core.give_credit(queue, consumer, window_bytes=150)
    core.hand_out()
    # The second message begins inside of the window: the window bounds what waits, it refuses no large message.
    assert len(core.inbox(consumer)) == 2
    assert not core.resources.has_work
    core.give_credit(queue, consumer, window_bytes=1)
    core.hand_out()
    assert len(core.inbox(consumer)) == 1


@pytest.mark.parametrize("consumers", [1, 2, 5])
def test_a_limit_only_interrupts(consumers: int) -> None:
    core = Core()
    queue = core.queue("q")
    everybody = [core.consumer(queue) for _ in range(consumers)]
    core.publish(queue, *(str(n) for n in range(50)))
    for consumer in everybody:
        core.give_credit(queue, consumer)
    first = core.resources.hand_out(core.now_ms, 3)
    assert [len(handout.entries) for handout in first] == [3] * consumers
    assert core.resources.has_work
    core.hand_out(3)
    assert queue.messages.acquired == 50
    assert not core.resources.has_work


def test_in_a_crowd_that_filters_and_browses_everybody_gets_what_is_theirs() -> None:
    core = Core()
    queue = core.queue("q")
    crowd = [core.consumer(queue) for _ in range(50)]
    picky, browser = core.consumer(queue, accepts=wants("b")), core.browser(queue)
    for consumer in (*crowd, picky, browser):
        core.give_credit(queue, consumer, 2)
    core.publish(queue, *(f"a{n}" for n in range(70)), "b")
    core.hand_out()
    taken = bodies(entry for consumer in (*crowd, picky) for entry in core.inbox(consumer))
    assert sorted(taken) == sorted([*(f"a{n}" for n in range(70)), "b"])
    assert len(core.inbox(browser)) >= 1


def test_a_consumer_without_credit_does_not_end_the_round_for_others() -> None:
    core = Core()
    queue = core.queue("q")
    consumers = [core.consumer(queue) for _ in range(3)]
    core.publish(queue, *(str(n) for n in range(12)))
    for consumer, credit in zip(consumers, (1, 2, 9), strict=True):
        core.give_credit(queue, consumer, credit)
    core.hand_out()
    assert [len(core.inbox(consumer)) for consumer in consumers] == [1, 2, 9]


def test_messages_wake_those_who_wait_and_wake_nobody_where_nobody_is() -> None:
    core = Core()
    queue, lonely = core.queue("q"), core.queue("lonely")
    consumer = core.consumer(queue)
    core.give_credit(queue, consumer)
    core.hand_out()
    core.publish(lonely, "x")
    assert not core.resources.has_work
    core.publish(queue, "a")
    core.resources.commit(transaction_of((queue, "b")), core.now_ms)
    core.hand_out()
    assert bodies(core.inbox(consumer)) == ["a", "b"]


def test_queues_are_served_in_the_order_in_which_they_woke() -> None:
    core = Core()
    queues = [core.queue(str(n)) for n in range(20)]
    for queue in reversed(queues):
        core.publish(queue, "x")
        core.give_credit(queue, core.consumer(queue))
    served = [handout.entries[0].header.queues for handout in core.resources.hand_out(core.now_ms, 10)]
    assert served == [queue.ids for queue in reversed(queues)]


def test_an_exclusive_queue_has_one_owner_until_its_last_consumer_left() -> None:
    core = Core()
    queue = core.queue("q", exclusive=True)
    mine = core.consumer(queue)
    second = Consumer()
    core.resources.subscribe(queue, second, owner=mine)
    with pytest.raises(InUse, match="exclusive"):
        core.consumer(queue)
    core.browser(queue)
    core.leave(queue, mine)
    with pytest.raises(InUse, match="exclusive"):
        core.consumer(queue)
    core.leave(queue, second)
    core.consumer(queue)


# --- acquire and release


def test_a_released_message_comes_back_before_later_ones() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abcd")
    one, other = core.consumer(queue), core.consumer(queue)
    held = core.take(queue, one, 3)
    core.resources.release(queue, [held[1]], failed=False)
    core.resources.release(queue, [held[0]], failed=False)
    assert bodies(core.take(queue, other)) == ["a", "b", "d"]
    assert held[0].delivery_count == 0
    core.check()


def test_failed_deliveries_are_counted_and_logged_and_others_are_not() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    consumer = core.consumer(queue)
    for failed in (True, False, True):
        core.resources.release(queue, core.take(queue, consumer), failed)
    assert next(iter(queue.messages)).delivery_count == 2
    assert [type(event) for event in core.read()].count(Released) == 2
    core.check()


def test_what_somebody_had_is_marked_and_what_a_ring_only_meant_to_drop_is_not() -> None:
    core = Core()
    ring, full = core.queue("ring", max_count=2, policy_type="ring"), core.queue("full", max_count=1)
    core.publish(ring, *"ab")
    core.publish(full, "x")
    consumer = core.consumer(ring)
    core.resources.release(ring, core.take(ring, consumer, 1), failed=False)
    with pytest.raises(QueueFull):
        core.resources.commit(transaction_of((ring, "c"), (ring, "d"), (full, "y")), core.now_ms)
    assert [entry.acquired_before for entry in ring.messages] == [True, False]


def test_release_wakes_those_who_wait() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    holder, waiting = core.consumer(queue), core.consumer(queue)
    held = core.take(queue, holder)
    core.give_credit(queue, waiting)
    core.hand_out()
    core.resources.release(queue, held, failed=False)
    core.hand_out()
    assert bodies(core.inbox(waiting)) == ["a"]


def test_a_filtered_consumer_takes_its_own_and_leaves_the_rest_in_order() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "r1", "g1", "r2", "g2")
    red = core.consumer(queue, accepts=wants("r"))
    held = core.take(queue, red)
    assert bodies(held) == ["r1", "r2"]
    assert core.consume(queue) == ["g1", "g2"]
    core.publish(queue, "r3")
    core.resources.release(queue, held, failed=True)
    assert bodies(core.take(queue, red)) == ["r1", "r2", "r3"]
    core.check()


def test_what_one_filtered_consumer_releases_the_other_sees_again() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "both", "b")
    first, second = core.consumer(queue, accepts=wants("b")), core.consumer(queue, accepts=wants("o"))
    held = core.take(queue, first)
    assert core.take(queue, second) == []
    core.resources.release(queue, held, failed=False)
    assert bodies(core.take(queue, second)) == ["both"]
    core.leave(queue, second)
    assert bodies(core.take(queue, first)) == ["b"]


def test_a_selector_that_wants_little_does_not_keep_others_waiting() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *("x" for _ in range(3 * PASSED_LENGTH)), "rare")
    looked_at: list[bytes] = []

    def is_rare(encoded: bytes) -> bool:
        looked_at.append(encoded)
        return encoded.endswith(b"rare")

    picky = core.consumer(queue, accepts=is_rare)
    core.give_credit(queue, picky)
    core.resources.hand_out(core.now_ms, 100)
    assert len(looked_at) == PASSED_LENGTH
    assert core.resources.has_work
    core.hand_out()
    assert bodies(core.inbox(picky)) == ["rare"]
    assert not core.resources.has_work


# --- browsing


def test_a_browser_sees_each_available_message_once_and_takes_none() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    browser, consumer = core.browser(queue), core.consumer(queue)
    held = core.take(queue, consumer, 1)
    assert bodies(core.take(queue, browser, 1)) == ["b"]
    core.publish(queue, "d")
    core.resources.release(queue, held, failed=False)
    assert bodies(core.take(queue, browser)) == ["c", "d"]
    assert (queue.messages.count, queue.messages.acquired) == (4, 0)


def test_a_browser_survives_everything_that_happens_around_it() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "first")
    browser = core.browser(queue)
    assert bodies(core.take(queue, browser)) == ["first"]
    for n in range(100):
        core.publish(queue, *(f"{n}.{i}" for i in range(512)))
        core.purge(queue)
    core.publish(queue, "last")
    assert bodies(core.take(queue, browser)) == ["last"]


def test_browsing_is_not_a_delivery_in_the_log() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    core.publish(queue, "a")
    core.read()
    assert bodies(core.take(queue, core.browser(queue))) == ["a"]
    assert core.read() == []


# --- hooks


@pytest.mark.parametrize("log_acquisitions", [False, True])
def test_each_step_of_a_message_is_an_event_and_acquisitions_where_that_is_asked(log_acquisitions: bool) -> None:
    core = Core(log_acquisitions=log_acquisitions)
    queue = core.queue("q")
    core.read()
    lsn = core.publish(queue, "a")
    consumer = core.consumer(queue)
    core.give_credit(queue, consumer, window_bytes=PLENTY)
    (handout,) = core.resources.hand_out(core.now_ms, 10)
    core.resources.release(queue, handout.entries, failed=False)
    (again,) = core.resources.hand_out(core.now_ms, 10)
    done = core.resources.accept(queue, again.entries)
    everything = core.read()
    expected: list[object] = [Enqueued((queue.id,), message("a").payload, False, 4, 0, "")]
    if log_acquisitions:
        taken = Acquired(queue.id, (lsn,))
        expected += [taken, Released(queue.id, (lsn,), False), taken]
    expected.append(Dequeued(queue.id, (lsn,), DequeueReason.CONSUMED))
    assert everything == expected
    assert (handout.written.lsn, again.written.lsn) == ((lsn + 1, lsn + 3) if log_acquisitions else (0, 0))
    assert done == core.log.written
    core.check()


def test_on_a_backup_what_was_acquired_elsewhere_is_not_available() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    core.publish(queue, *"ab")
    consumer = core.consumer(queue)
    held = core.take(queue, consumer)
    assert [entry.holder is None for entry in core.replayed().catalog.queues["q"].messages] == [False, False]
    core.resources.release(queue, held[:1], failed=False)
    assert [entry.holder is None for entry in core.replayed().catalog.queues["q"].messages] == [True, False]
