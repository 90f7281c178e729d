"""A message that is due later: it waits in its place, nobody gets it before, and each copy knows when it is due."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_support import NOW_MS, Core, bodies, message, transaction_of
from qpid_ha_broker.events.types import Dequeued, DequeueReason, Enqueued
from qpid_ha_broker.model.commands.moving import MoveSelection, begin_move
from qpid_ha_broker.model.errors import InvalidArgument, NotSupported, QueueFull
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import LONGEST_DELAY_MS, QueueArguments
from qpid_ha_broker.model.queues.sequence import BLOCK_LENGTH, WAITING, Entry

SECOND = 1000


def waiting(queue: Queue) -> list[str]:
    return bodies(entry for entry in queue.messages if entry.holder is WAITING)


# --- it waits


def test_a_message_is_not_given_to_anybody_before_it_is_due_and_then_in_its_place() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a", message("b", delay_ms=SECOND), "c", message("d", delay_ms=2 * SECOND))
    consumer, browser = core.consumer(queue), core.browser(queue)
    assert bodies(core.take(queue, browser)) == ["a", "c"]
    assert bodies(core.take(queue, consumer, credit=1)) == ["a"]
    core.tick(after_ms=SECOND - 1)
    core.give_credit(queue, consumer)
    core.hand_out()
    assert bodies(core.inbox(consumer)) == ["c"]
    core.tick(after_ms=1)
    core.hand_out()
    assert (bodies(core.inbox(consumer)), waiting(queue)) == (["b"], ["d"])
    core.tick(after_ms=SECOND)
    core.hand_out()
    assert bodies(core.inbox(consumer)) == ["d"]
    core.check()


def test_what_is_due_together_comes_in_the_order_of_the_queue() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *(message(each, delay_ms=delay) for each, delay in (("a", 9), ("b", 3), ("c", 6))), "d")
    core.tick(after_ms=10)
    assert core.consume(queue) == ["a", "b", "c", "d"]


def test_a_time_that_has_come_is_none() -> None:
    core = Core()
    queue = core.queue("q")
    core.now_ms += SECOND
    core.publish(queue, message("a", delay_ms=SECOND))
    assert [event.due_at_ms for event in core.read() if isinstance(event, Enqueued)] == [0]
    assert core.consume(queue) == ["a"]


def test_who_reads_by_ids_sees_what_waits_and_need_not_come_back_for_it() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a", message("b", delay_ms=SECOND), "c")
    assert bodies(core.take(queue, core.consumer(queue, browsing=True, after=0))) == ["a", "b", "c"]


sent = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([0, 0, 3, 7, 40]), st.integers(0, 9)), min_size=1, max_size=30
)


@settings(max_examples=150, deadline=None)
@given(sent, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=25), st.integers(1, 3), st.booleans())
def test_no_message_comes_before_its_time_or_twice_and_those_that_are_due_come_in_order(
    sent: list[tuple[int, int, int]], steps: list[tuple[int, int]], priorities: int, fails_over: bool
) -> None:
    """(delay, ttl, priority) of each message; each step lets time pass, and takes some. In the middle another broker
    may go on, that knows no more than the log."""
    core = Core()
    queue = core.queue("q", priorities=priorities)
    for number, (delay_ms, ttl_ms, priority) in enumerate(sent):
        core.publish(queue, message(str(number), delay_ms=delay_ms, ttl_ms=ttl_ms, priority=priority))
    taken = list[str]()
    for number, (after_ms, credit) in enumerate([*steps, (50, 0), (0, 1000)]):
        if fails_over and number == len(steps) // 2:
            queue, core = promoted(core)
        core.tick(after_ms=after_ms)
        entries = core.take(queue, core.consumer(queue), credit)
        assert all(entry.header.due_at_ms <= core.now_ms for entry in entries)
        levels = [(-queue.messages.level_of(entry.header.priority), entry.id) for entry in entries]
        assert levels == sorted(levels)
        taken += bodies(entries)
        if entries:
            core.resources.accept(queue, entries)
        queue.messages.check_invariants()
        if not fails_over:
            core.check()
    assert len(taken) == len(set(taken))
    lasting = {str(number) for number, (_, ttl_ms, _) in enumerate(sent) if not ttl_ms}
    assert lasting <= set(taken)
    assert queue.messages.count == queue.messages.schedule.count == 0


def promoted(before: Core) -> tuple[Queue, Core]:
    """The queue at a broker that has followed all that was written, and leads now."""
    core = Core(before.followed(), witness=False)
    core.now_ms = before.now_ms
    core.resources.replicated.take_over(core.now_ms, 0)
    return core.catalog.queues["q"], core


def test_a_consumer_passes_blocks_in_which_all_wait_without_looking_at_them() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *(message("w", delay_ms=SECOND + at) for at in range(5 * BLOCK_LENGTH)), "a")
    consumer = core.consumer(queue)
    assert bodies(core.take(queue, consumer)) == ["a"]
    looked = list[Entry]()

    class Watched(list[Entry]):
        def __getitem__(self, at: int) -> Entry:  # type: ignore[override]
            looked.append(super().__getitem__(at))
            return looked[-1]

    first = queue.messages.find(core.log.last_lsn - 5 * BLOCK_LENGTH)
    assert first is not None
    block = first.block
    while block is not None:
        block.entries = Watched(block.entries)
        block = block.next
    core.tick(after_ms=SECOND)
    assert core.take(queue, consumer) == [first]
    assert len(looked) < 3 * BLOCK_LENGTH


# --- who may decide about it


def test_what_waits_can_be_purged_and_moved_and_keeps_its_time_where_it_comes() -> None:
    core = Core()
    queue, other = core.queue("q"), core.queue("other")
    core.publish(queue, message("a", delay_ms=SECOND), message("b", delay_ms=SECOND))
    second = core.log.last_lsn
    move = begin_move(core.resources, queue, other, MoveSelection(message_id=second))
    core.resources.work.run()
    assert (move.count, waiting(queue), waiting(other)) == (1, ["a"], ["b"])
    assert core.purge(queue) == 1
    core.tick(after_ms=SECOND)
    assert (core.consume(queue), core.consume(other)) == ([], ["b"])
    core.check()


def test_what_waits_expires_unseen_when_that_is_before_its_time() -> None:
    core = Core()
    queue = core.queue("q", message_ttl_ms=3 * SECOND)
    core.publish(queue, message("a", delay_ms=2 * SECOND, ttl_ms=SECOND), message("b", delay_ms=4 * SECOND))
    core.read()
    core.tick(after_ms=SECOND)
    core.tick(after_ms=2 * SECOND)
    reasons = [event.reason for event in core.read() if isinstance(event, Dequeued)]
    assert (reasons, queue.messages.count) == ([DequeueReason.EXPIRED] * 2, 0)


def test_limits_count_what_waits() -> None:
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, message("a", delay_ms=SECOND))
    with pytest.raises(QueueFull):
        core.publish(queue, "b")


@pytest.mark.parametrize("arguments", [{}, {"priorities": 3}])
def test_a_ring_drops_the_oldest_though_it_waits_and_never_holds_more_than_it_may(arguments: dict[str, int]) -> None:
    core = Core()
    queue = core.queue("q", max_count=2, policy_type="ring", **arguments)
    core.publish(queue, *(message(each, delay_ms=SECOND) for each in "abcd"))
    assert (waiting(queue), queue.messages.count) == (["c", "d"], 2)
    core.publish(queue, "e")
    core.tick(after_ms=SECOND)
    assert core.consume(queue) == ["d", "e"]
    core.check()


def test_what_a_ring_has_set_aside_for_a_message_that_was_refused_waits_again() -> None:
    core = Core()
    ring, full = core.queue("q", max_count=1, policy_type="ring"), core.queue("full", max_count=1)
    exchange = core.exchange("x", "fanout", ring, full)
    core.publish(ring, message("a", delay_ms=SECOND))
    core.publish(full, "b")
    with pytest.raises(QueueFull):
        core.publish(exchange, "c")
    assert (waiting(ring), core.consume(ring)) == (["a"], [])
    core.check()


def test_a_newer_value_takes_the_place_of_the_older_one_when_it_comes_not_when_it_is_due() -> None:
    core = Core()
    queue = core.queue("q", last_value_queue_key="k")
    core.publish(queue, message("old", k="1"), message("new", k="1", delay_ms=SECOND))
    assert core.consume(queue) == []
    core.publish(queue, message("newest", k="1"))
    core.tick(after_ms=SECOND)
    assert core.consume(queue) == ["newest"]
    core.check()


def test_an_exchange_routes_a_message_when_it_comes() -> None:
    core = Core()
    exchange = core.exchange("x", "fanout", core.queue("a"), core.queue("b", message_ttl_ms=9 * SECOND))
    core.publish(exchange, message("m", delay_ms=SECOND))
    core.configuration.bind("x", core.queue("late").name, "", {})
    core.tick(after_ms=SECOND)
    assert [core.consume(core.catalog.queues[name]) for name in ("a", "b", "late")] == [["m"], ["m"], []]
    core.check()


def test_in_a_transaction_the_time_is_that_of_the_message_not_of_the_commit() -> None:
    core = Core()
    queue = core.queue("q")
    transaction = transaction_of((queue, message("a", delay_ms=SECOND)), (queue, message("b", delay_ms=5 * SECOND)))
    core.now_ms += 2 * SECOND
    core.resources.commit(transaction, core.now_ms)
    assert (core.consume(queue), waiting(queue)) == (["a"], ["b"])
    core.check()


def test_a_numbered_message_that_waits_is_known_when_it_comes_again() -> None:
    core = Core()
    queue = core.queue("q")
    numbered = message("a", delay_ms=SECOND)._replace(producer=b"p", sequence=1)
    core.publish(queue, numbered, numbered)
    core.tick(after_ms=SECOND)
    assert core.consume(queue) == ["a"]


def test_a_dead_letter_does_not_wait_once_more() -> None:
    core = Core()
    dead, queue = core.dead_letter_queue(), core.queue("q", alternate_exchange="dlx")
    core.publish(queue, message("a", delay_ms=SECOND), message("b", delay_ms=9 * SECOND))
    core.tick(after_ms=SECOND)
    core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    core.configuration.delete_queue("q")
    core.resources.work.run()
    assert core.consume(dead) == ["a", "b"]


def test_messages_that_are_due_later_are_refused_while_a_backup_cannot_read_them() -> None:
    core = Core()
    queue = core.queue("q")
    core.state.marks.why_no_delay = "beta has an older release"
    with pytest.raises(NotSupported, match="beta"):
        core.publish(queue, message("a", delay_ms=SECOND))
    with pytest.raises(NotSupported, match="beta"):
        core.resources.commit(transaction_of((queue, message("a", delay_ms=SECOND))), core.now_ms)
    with pytest.raises(NotSupported, match="beta"):
        core.queue("other", redelivery_delay_ms=SECOND)
    core.publish(queue, "b")
    assert core.consume(queue) == ["b"]


# --- where another broker writes


def test_a_backup_shows_what_is_due_to_those_who_look_and_lets_nobody_have_it_earlier_when_it_leads() -> None:
    before = Core()
    before.publish(before.queue("q"), message("a", delay_ms=SECOND), message("b", delay_ms=3 * SECOND))
    backup = before.followed()
    queue = backup.catalog.queues["q"]
    assert backup.catalog.timed.next_due_ms == NOW_MS + SECOND
    backup.timers.fall_due(NOW_MS + SECOND)
    assert (waiting(queue), backup.catalog.timed.next_due_ms) == (["b"], NOW_MS + 3 * SECOND)
    core = Core(backup, witness=False)
    core.now_ms += 2 * SECOND
    backup.replicated.take_over(core.now_ms, 0)
    assert (core.consume(queue), waiting(queue)) == (["a"], ["b"])


# --- what failed comes again later


def failed(core: Core, queue: Queue) -> list[str]:
    entries = core.take(queue, core.consumer(queue))
    found = bodies(entries)
    core.resources.release(queue, entries, failed=True)
    return found


def test_a_message_whose_delivery_failed_waits_twice_as_long_each_time_up_to_the_most() -> None:
    core = Core()
    queue = core.queue("q", redelivery_delay_ms=SECOND, redelivery_delay_max_ms=3 * SECOND)
    core.publish(queue, "a")
    for delay_ms in (SECOND, 2 * SECOND, 3 * SECOND, 3 * SECOND):
        assert failed(core, queue) == ["a"]
        core.tick(after_ms=delay_ms - 1)
        assert (core.consume(queue), waiting(queue)) == ([], ["a"])
        core.tick(after_ms=1)
    assert core.consume(queue) == ["a"]
    core.check()


def test_others_are_given_meanwhile_and_the_last_failure_makes_it_a_dead_letter_at_once() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = core.queue("q", redelivery_delay_ms=SECOND, delivery_limit=2, alternate_exchange="dlx")
    core.publish(queue, "a", "b")
    core.resources.release(queue, core.take(queue, core.consumer(queue), credit=1), failed=True)
    assert core.consume(queue) == ["b"]
    core.tick(after_ms=SECOND)
    assert failed(core, queue) == ["a"]
    assert core.consume(dead) == ["a"]


def test_what_is_released_has_not_failed_and_is_there_at_once() -> None:
    core = Core()
    queue = core.queue("q", redelivery_delay_ms=SECOND)
    core.publish(queue, "a")
    core.resources.release(queue, core.take(queue, core.consumer(queue)), failed=False)
    assert core.consume(queue) == ["a"]


def test_the_next_primary_gives_what_failed_at_once() -> None:
    core = Core()
    queue = core.queue("q", redelivery_delay_ms=SECOND)
    core.publish(queue, "a")
    assert failed(core, queue) == ["a"]
    queue, core = promoted(core)
    assert core.consume(queue) == ["a"]


def test_a_message_that_is_given_back_before_its_time_waits_for_it() -> None:
    """As one that a session held at a primary whose clock was ahead of that of the next one."""
    core = Core()
    queue = core.queue("q")
    core.publish(queue, message("a", delay_ms=SECOND))
    (entry,) = queue.messages
    queue.messages.hold(entry, core.consumer(queue))
    queue.messages.give_back(entry, failed=False)
    assert (waiting(queue), queue.messages.acquired) == (["a"], 0)
    queue.messages.check_invariants()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"qpid.redelivery_delay_ms": -1}, "qpid.redelivery_delay_ms"),
        ({"qpid.redelivery_delay_ms": "soon"}, "qpid.redelivery_delay_ms"),
        ({"qpid.redelivery_delay_ms": LONGEST_DELAY_MS + 1}, str(LONGEST_DELAY_MS)),
        ({"qpid.redelivery_delay_max_ms": 5}, "give that too"),
        ({"qpid.redelivery_delay_ms": 5, "qpid.redelivery_delay_max_ms": 4}, "at least as much"),
    ],
)
def test_delays_that_make_no_sense_are_refused(arguments: dict[str, int | str], expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        QueueArguments.parse(arguments)


def test_no_number_of_failures_is_too_large_for_a_delay() -> None:
    delay = QueueArguments.parse({"qpid.redelivery_delay_ms": "1"}).redelivery
    assert [delay.delay_ms(failures) for failures in (0, 1, 2, 11, 1 << 40)] == [1, 1, 2, 1024, LONGEST_DELAY_MS]


# --- copies of the queue


def emptied_and_filled_again(core: Core, queue: Queue) -> None:
    entries = core.catalog.emptied(queue)
    core.catalog.prepended(queue, entries)


def renumbered(core: Core, queue: Queue) -> None:
    queue.renumber({entry.id: entry.id + 1000 for entry in queue.messages})


def replicated_otherwise(core: Core, queue: Queue) -> None:
    for level in ("none", "messages"):
        core.configuration.update_queue(queue.name, {"qpid.replicate": level})


@pytest.mark.parametrize("change", [emptied_and_filled_again, renumbered, replicated_otherwise])
def test_what_waits_goes_on_waiting_when_its_queue_is_rearranged(change: Callable[[Core, Queue], None]) -> None:
    core = Core()
    queue = core.queue("q", replicate="messages")
    core.publish(queue, "a", message("b", delay_ms=SECOND), "c")
    change(core, queue)
    queue.messages.check_invariants()
    assert (core.consume(queue), waiting(queue)) == (["a", "c"], ["b"])
    core.tick(after_ms=SECOND)
    assert core.consume(queue) == ["b"]


def test_a_deleted_queue_lets_go_of_what_waited() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, message("a", delay_ms=SECOND))
    core.configuration.delete_queue("q")
    core.catalog.garbage.run()
    core.tick(after_ms=SECOND)
    assert (len(queue.messages.schedule), core.catalog.timed) == (0, {})
