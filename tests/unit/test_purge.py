"""Stories about a purge that takes several turns: a clock that ticks at each look stands for time that passes."""

from __future__ import annotations

import itertools
from typing import Any

import proton
import pytest

from model_support import Core, bodies
from paired_engines import PairedBroker, PairedClient
from qpid_ha_broker.events.types import Dequeued, DequeueReason, Scalar
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.errors import NotFound, NotPrimary
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.purge import PURGED_LENGTH, Purge
from qpid_ha_broker.model.sets.resources import RELEASED_LENGTH
from qpid_ha_broker.model.transactions.transaction import Message

SPENT = Budget(lambda: 0.0, 0.0)


def full(core: Core, name: str = "q", **arguments: Scalar) -> Queue:
    queue = core.queue(name, **arguments)
    core.publish(queue, *(str(number) for number in range(3 * PURGED_LENGTH + 1)))
    core.read()
    return queue


def finish(core: Core, purge: Purge) -> int:
    """In how many turns the rest goes."""
    for turns in itertools.count():
        if not core.resources.work:
            assert purge.written == core.resources.written
            return turns
        core.resources.work.run(SPENT)
    raise AssertionError


def test_a_purge_goes_on_in_portions_and_it_is_known_what_to_wait_for_when_all_is_written() -> None:
    core = Core()
    queue = full(core)
    purge = core.resources.purges.begin(queue)
    assert (purge.count, purge.written, queue.messages.count) == (0, None, 3 * PURGED_LENGTH + 1)
    core.resources.work.run(SPENT)
    assert (purge.count, purge.written, queue.messages.count) == (PURGED_LENGTH, None, 2 * PURGED_LENGTH + 1)
    assert finish(core, purge) == 3
    assert (purge.count, queue.messages.count) == (3 * PURGED_LENGTH + 1, 0)
    written = [event for event in core.read() if isinstance(event, Dequeued)]
    assert [(len(event.ids), event.reason) for event in written] == [
        *[(PURGED_LENGTH, DequeueReason.PURGED)] * 3,
        (1, DequeueReason.PURGED),
    ]
    core.check()


@pytest.mark.parametrize("arguments", [{}, {"priorities": 3}])
def test_what_comes_after_it_was_asked_for_stays_and_what_consumers_take_meanwhile_is_theirs(
    arguments: dict[str, Scalar],
) -> None:
    core = Core()
    queue = full(core, "q", **arguments)
    purge = core.resources.purges.begin(queue)
    core.publish(queue, "new")
    taken = core.take(queue, core.consumer(queue), 2)
    finish(core, purge)
    assert purge.count == 3 * PURGED_LENGTH + 1 - 2
    assert bodies(queue.messages) == [*bodies(taken), "new"]
    core.check()


@pytest.mark.parametrize("arguments", [{}, {"priorities": 3}])
def test_what_a_browser_has_dealt_with_goes_as_consumed_and_what_a_consumer_holds_stays_with_it(
    arguments: dict[str, Scalar],
) -> None:
    core = Core()
    queue = full(core, "q", **arguments)
    held = core.take(queue, core.consumer(queue), 2)
    ids = [entry.id for entry in queue.messages]
    last = ids[PURGED_LENGTH + 9]
    work = core.resources.purges.begin(queue, last, DequeueReason.CONSUMED)
    finish(core, work)
    assert work.count == PURGED_LENGTH + 8
    assert [entry.id for entry in queue.messages] == [*(entry.id for entry in held), *ids[PURGED_LENGTH + 10 :]]
    assert {event.reason for event in core.read() if isinstance(event, Dequeued)} == {DequeueReason.CONSUMED}
    core.check()


def test_accepting_the_head_of_a_long_queue_does_not_look_at_the_rest() -> None:
    core = Core()
    queue = full(core)
    work = core.resources.purges.begin(queue, next(iter(queue.messages)).id, DequeueReason.CONSUMED)
    core.resources.work.run(SPENT)
    assert (work.count, work.has_seen_all) == (1, True)


def test_what_a_gone_consumer_is_still_giving_back_goes_as_well() -> None:
    core = Core(log_acquisitions=True)
    queue = full(core)
    consumer = core.consumer(queue)
    held = core.take(queue, consumer, 5 * RELEASED_LENGTH)
    core.resources.release_in_portions(queue, consumer, held, failed=True)
    core.leave(queue, consumer)
    purge = core.resources.purges.begin(queue)
    finish(core, purge)
    core.resources.work.run()
    assert (purge.count, queue.messages.count, queue.messages.acquired) == (3 * PURGED_LENGTH + 1, 0, 0)
    core.check()


def test_purges_of_several_queues_take_turns() -> None:
    core = Core()
    queues = [full(core, name) for name in "ab"]
    purges = [core.resources.purges.begin(queue) for queue in queues]
    for _ in range(3):
        core.resources.work.run(SPENT)
    assert [purge.count for purge in purges] == [2 * PURGED_LENGTH, PURGED_LENGTH]


def test_a_purge_of_a_queue_that_is_deleted_meanwhile_fails_and_says_how_far_it_came() -> None:
    core = Core()
    purge, other = core.resources.purges.begin(full(core)), core.resources.purges.begin(full(core, "other"))
    core.resources.work.run(SPENT)
    core.configuration.delete_queue("q")
    finish(core, other)
    assert isinstance(purge.failure, NotFound)
    assert f"{PURGED_LENGTH} messages of queue q had gone before" in str(purge.failure)
    core.check()


def test_a_broker_that_may_write_no_more_gives_its_purges_up_and_writes_nothing_of_them() -> None:
    core = Core()
    queue = full(core)
    purge = core.resources.purges.begin(queue)
    core.resources.work.run(SPENT)
    written = core.log.last_lsn
    core.resources.replication.read_only = "this broker is joining, not primary"
    assert not core.resources.work
    core.resources.work.run()
    assert isinstance(purge.failure, NotPrimary)
    assert "joining" in str(purge.failure)
    assert (core.log.last_lsn, queue.messages.count) == (written, 2 * PURGED_LENGTH + 1)
    core.check()


def test_messages_that_get_other_ids_meanwhile_are_those_that_were_meant() -> None:
    core = Core()
    queue, other = full(core), full(core, "other")
    purge, untouched = core.resources.purges.begin(queue), core.resources.purges.begin(other)
    core.publish(queue, "new")
    core.configuration.update_queue("q", {"qpid.replicate": "none"})
    assert (purge.count, bodies(queue.messages)) == (3 * PURGED_LENGTH + 1, ["new"])
    assert (untouched.written, other.messages.count) == (None, 3 * PURGED_LENGTH + 1)
    core.check()


# --- through $management


class Site:
    """A broker that has time for one portion a turn, with a client that has a link to `$management`, and the log's
    witness in the test's hands."""

    def __init__(self) -> None:
        self.broker = PairedBroker()
        self.resources = self.broker.container.default.resources
        self.queue = self.broker.container.default.configuration.declare_queue("q", {})
        for number in range(3 * PURGED_LENGTH + 1):
            self.resources.publish(self.queue, Message(b"%d" % number), 0)
        self.client = self.broker.connect()
        self.requests = self.client.sender("$management")
        self.replies = self.client.receiver("$management", 10)
        clock = itertools.count()
        self.broker.container.clock = lambda: next(clock)
        self.resources.replicated.log.add_witness("store")

    def ask(self, operation: str, **properties: Any) -> None:
        """Send a request, and let the broker have one turn."""
        message: Any = proton.Message(reply_to="$management")
        message.properties = {"operation": operation, "type": "queue", "name": "q", **properties}
        self.client.send(self.requests, message)
        self.client.exchange()
        self.broker.turn()

    def commit(self) -> None:
        self.resources.replicated.log.acknowledge("store", self.resources.replicated.log.last_lsn)

    def answers(self, client: PairedClient | None = None) -> list[tuple[int, Any]]:
        self.broker.settle_down()
        found = (client or self.client).received(self.replies)
        return [(message.properties["statusCode"], message.body) for _, message in found]


def test_the_answer_comes_when_all_is_purged_and_committed() -> None:
    site = Site()
    site.ask("PURGE")
    turns = 0
    while site.resources.work:
        site.commit()
        site.client.exchange()
        assert site.client.received(site.replies) == []
        site.broker.turn()
        turns += 1
    assert turns >= 2
    assert site.answers() == []
    site.commit()
    assert site.answers() == [(200, {"purged": 3 * PURGED_LENGTH + 1})]


def test_purges_that_go_on_keep_the_credit_for_their_requests() -> None:
    site = Site()
    all_credit = site.requests.credit
    for _ in range(all_credit - 1):
        message: Any = proton.Message(properties={"operation": "PURGE", "type": "queue", "name": "q"})
        site.client.send(site.requests, message)
    site.ask("PURGE")
    site.client.exchange()
    assert (bool(site.resources.work), site.requests.credit) == (True, 0)
    while site.broker.container.has_work:
        site.broker.turn()
    site.commit()
    assert site.answers() == [(200, {"purged": 0})]
    assert site.requests.credit == all_credit


def test_a_purge_that_fails_is_answered_with_the_reason() -> None:
    site = Site()
    site.ask("PURGE")
    site.broker.container.default.configuration.delete_queue("q")
    site.commit()
    (answer,) = site.answers()
    assert answer == (404, {})


def test_a_purge_goes_on_when_its_client_has_gone() -> None:
    site = Site()
    site.ask("PURGE")
    site.client.vanish()
    assert site.resources.work
    site.broker.settle_down()
    assert site.queue.messages.count == 0
    assert site.broker.container.default.unconfirmed == {}
