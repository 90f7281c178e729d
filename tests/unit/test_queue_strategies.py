"""Who may write what happens to a queue, who hands out from it, and that nothing is decided about a copied one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model_support import Core, bodies, message
from qpid_ha_broker.events.types import Enqueued, Scalar
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.errors import NotPrimary, QueueLocked
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.purge import PURGED_LENGTH
from qpid_ha_broker.model.sets.strategies import Copied

SPENT = Budget(lambda: 0.0, 0.0)
TEXT = "queue q is a copy of the one in another town"


def copied(core: Core, **arguments: str | int | bool) -> Queue:
    """A queue that another cluster writes."""
    queue = core.queue("q", **arguments)
    queue.use_strategy(Copied(TEXT))
    return queue


def come(core: Core, queue: Queue, text: str, ttl_ms: int = 0) -> None:
    """A message comes from the other cluster."""
    expires_at_ms = core.now_ms + ttl_ms if ttl_ms else 0
    event = Enqueued(queue.ids, message(text).payload, True, 4, expires_at_ms, "")
    core.sets.holding(queue).enqueue(queue, event)


@pytest.mark.parametrize("level", ["messages", "none"])
@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("read_only", ["", "this broker is a backup"])
def test_the_strategy_of_a_queue_is_its_own_or_that_of_its_set(level: str, is_copied: bool, read_only: str) -> None:
    core = Core()
    queue = core.queue("q", replicate=level)
    if is_copied:
        queue.use_strategy(Copied(TEXT))
    core.resources.replication.read_only = read_only
    is_decided_here = not (is_copied or read_only)
    assert (core.sets.may_write(queue), core.sets.hands_out(queue)) == (is_decided_here, is_decided_here)
    assert core.sets.strategy_of(queue).read_only == (TEXT if is_copied else read_only)


@pytest.mark.parametrize(
    "act",
    [
        lambda core, queue: core.publish(queue, "m"),
        lambda core, queue: core.publish(core.exchange("x", "fanout", queue), "m"),
        lambda core, queue: core.consumer(queue),
        lambda core, queue: core.resources.purges.begin(queue),
    ],
    ids=["publish", "route", "consume", "purge"],
)
@pytest.mark.parametrize("changes", [{}, {"qpid.delivery_limit": 3}], ids=["", "changed"])
def test_clients_may_only_browse_it_also_once_its_arguments_have_changed(
    act: Callable[[Core, Queue], object], changes: dict[str, Scalar]
) -> None:
    core = Core()
    queue = copied(core)
    come(core, queue, "theirs")
    if changes:
        core.configuration.update_queue("q", changes)
    with pytest.raises(QueueLocked, match=TEXT):
        act(core, queue)
    assert bodies(core.take(queue, core.browser(queue))) == ["theirs"]
    queue.use_strategy(None)
    act(core, queue)


def test_time_takes_nothing_out_of_it_and_counts_again_once_it_is_written_here() -> None:
    core = Core()
    queue = copied(core)
    come(core, queue, "short", ttl_ms=10)
    come(core, queue, "long", ttl_ms=10_000)
    core.resources.timers.watch(queue)
    core.tick(100)
    assert bodies(core.take(queue, core.browser(queue))) == ["short", "long"]
    assert bodies(queue.messages) == ["short", "long"]
    queue.use_strategy(None)
    core.tick()
    assert bodies(queue.messages) == ["long"]
    core.check()


def test_it_does_not_delete_itself() -> None:
    core = Core()
    queue = core.queue("q", auto_delete=True)
    core.consume(queue)
    assert core.tick() == [queue]
    core.resources.timers.watch(queue)
    queue.use_strategy(Copied(TEXT))
    assert core.tick(1000) == []
    queue.use_strategy(None)
    assert core.tick() == [queue]


def test_who_browses_it_sees_what_is_committed_here_too() -> None:
    core = Core()
    queue = copied(core)
    come(core, queue, "theirs")
    browser = Consumer(browsing=True)
    core.resources.subscribe(queue, browser, browser)
    core.give_credit(queue, browser)
    assert core.resources.hand_out(core.now_ms, 10) == []
    core.commit()
    (handout,) = core.resources.hand_out(core.now_ms, 10)
    assert bodies(handout.entries) == ["theirs"]


@pytest.mark.parametrize(("read_only", "kind", "text"), [("", QueueLocked, TEXT), ("a backup", NotPrimary, "a backup")])
def test_a_purge_that_was_on_its_way_is_given_up(read_only: str, kind: type[Exception], text: str) -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *map(str, range(2 * PURGED_LENGTH)))
    purge = core.resources.purges.begin(queue)
    core.resources.work.run(SPENT)
    queue.use_strategy(Copied(TEXT))
    core.resources.replication.read_only = read_only
    core.resources.work.run()
    assert isinstance(purge.failure, kind)
    assert text in str(purge.failure)
    assert (purge.count, queue.messages.count) == (PURGED_LENGTH, PURGED_LENGTH)


def test_who_deletes_it_here_decides_about_its_messages_again() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = copied(core, alternate_exchange="dlx")
    come(core, queue, "theirs")
    core.configuration.delete_queue("q")
    assert queue.deleted
    assert bodies(dead.messages) == ["theirs"]
    core.check()
