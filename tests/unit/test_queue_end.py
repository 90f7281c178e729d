"""Stories about purging a queue, and about its end."""

from __future__ import annotations

import pytest

from model_support import Core, bodies, message
from qpid_ha_broker.events.types import Dequeued, DequeueReason, QueueUsed
from qpid_ha_broker.model.errors import NotFound

SECOND = 1000


def reasons(core: Core) -> list[DequeueReason]:
    return [event.reason for event in core.read() if isinstance(event, Dequeued) for _ in event.ids]


def test_purging_leaves_what_consumers_hold() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    held = core.take(queue, core.consumer(queue), 1)
    assert core.purge(queue) == 2
    assert core.purge(queue) == 0
    assert (queue.messages.count, reasons(core)) == (1, [DequeueReason.PURGED] * 2)
    core.resources.release(queue, held, failed=False)
    assert bodies(queue.messages) == ["a"]
    core.check()


def test_an_unused_auto_delete_queue_is_due_after_its_delay_and_not_while_somebody_uses_it() -> None:
    core = Core()
    queue = core.queue("q", auto_delete=True, auto_delete_delay_s=5)
    assert core.tick(after_ms=60 * SECOND) == []
    consumer = core.consumer(queue)
    core.leave(queue, consumer)
    assert core.tick(after_ms=5 * SECOND - 1) == []
    other = core.consumer(queue)
    assert core.tick(after_ms=60 * SECOND) == []
    core.leave(queue, other)
    assert core.tick(after_ms=5 * SECOND) == [queue]
    core.configuration.delete_queue("q")
    assert core.tick() == []


@pytest.mark.parametrize("after", [None, 0])
def test_who_only_looks_is_no_consumer_for_an_auto_delete_queue(after: int | None) -> None:
    core = Core()
    queue = core.queue("q", auto_delete=True, auto_delete_delay_s=5)
    core.publish(queue, "a")
    browser = core.consumer(queue, browsing=True, after=after)
    core.leave(queue, browser)
    assert core.tick(after_ms=60 * SECOND) == []
    assert not any(isinstance(event, QueueUsed) for event in core.read())
    backup = core.followed()
    backup.replicated.take_over(core.now_ms, 5 * SECOND)
    assert backup.timers.tick(core.now_ms + 60 * SECOND) == []
    core.leave(queue, core.consumer(queue))
    browser = core.consumer(queue, browsing=True, after=after)
    assert core.tick(after_ms=4 * SECOND) == []
    core.leave(queue, browser)
    assert core.tick(after_ms=SECOND) == [queue]


def test_an_unused_queue_is_looked_at_again_until_its_delay_is_over() -> None:
    core = Core()
    queue = core.queue("q", auto_delete=True, auto_delete_delay_s=2.5)
    core.leave(queue, core.consumer(queue))
    assert [core.tick(after_ms=SECOND) for _ in range(3)] == [[], [], [queue]]


def test_without_a_delay_an_auto_delete_queue_is_due_at_once() -> None:
    core = Core()
    queue = core.queue("q", auto_delete=True)
    core.leave(queue, core.consumer(queue))
    assert core.tick() == [queue]


def test_a_queue_that_is_told_to_delete_itself_later_does() -> None:
    core = Core()
    queue = core.queue("q")
    core.leave(queue, core.consumer(queue))
    assert core.tick() == []
    core.configuration.update_queue("q", {"qpid.auto_delete": True})
    assert core.tick() == [queue]


def test_what_is_still_in_a_deleted_queue_is_neither_delivered_nor_written_about() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.publish(queue, "held", "waiting", message("expiring", ttl_ms=SECOND))
    held = core.take(queue, consumer, 1)
    core.give_credit(queue, consumer)
    core.configuration.delete_queue("q")
    core.read()
    core.now_ms += 2 * SECOND
    core.hand_out()
    core.tick()
    assert core.inbox(consumer) == []
    core.resources.accept(queue, held)
    core.resources.release(queue, held, failed=True)
    core.resources.reject(queue, held)
    core.leave(queue, consumer)
    assert core.read() == []
    assert core.catalog.memory_bytes == 0
    core.check()


def test_a_publisher_that_comes_too_late_for_its_queue_is_told() -> None:
    core = Core()
    queue = core.queue("q")
    core.configuration.delete_queue("q")
    with pytest.raises(NotFound, match="deleted"):
        core.publish(queue, "a")
    core.check()


def test_messages_of_a_deleted_queue_go_to_its_alternate_exchange_even_held_ones() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, *"abc")
    held = core.take(queue, core.consumer(queue), 1)
    core.configuration.delete_queue("q")
    assert bodies(dead.messages) == ["a", "b", "c"]
    core.resources.accept(queue, held)
    assert dead.messages.count == 3
    core.check()
