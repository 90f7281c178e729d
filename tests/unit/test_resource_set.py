"""Stories about the resource set: where messages go, and that refused means that nothing was written."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from model_support import Core, TextReader, bodies, message
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.types import (
    Dequeued,
    DequeueReason,
    Enqueued,
    Event,
    QueueDeclared,
    QueueDeleted,
    Released,
    TransactionCommitted,
)
from qpid_ha_broker.model.errors import InvalidArgument, NotFound
from qpid_ha_broker.model.sets import resource_set
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.state import ReplayError


def test_a_message_for_many_queues_is_one_event_and_has_one_id() -> None:
    core = Core()
    queues = [core.queue(name) for name in "abc"]
    exchange = core.exchange("all", "fanout", *queues)
    core.read()
    lsn = core.publish(exchange, "m")
    (event,) = core.read()
    assert isinstance(event, Enqueued)
    assert event.queues == tuple(queue.id for queue in queues)
    assert [next(iter(queue.messages)).id for queue in queues] == [lsn] * 3
    assert core.consume(queues[0]) == ["m"]
    assert [queue.messages.count for queue in queues] == [0, 1, 1]
    core.check()


def test_exchanges_route_by_key_pattern_and_properties() -> None:
    core = Core()
    queues = {name: core.queue(name) for name in ("direct", "topic", "headers")}
    for kind in queues:
        core.exchange(f"by-{kind}", kind)
    core.configuration.bind("by-direct", "direct", "red", {})
    core.configuration.bind("by-topic", "topic", "news.*.#", {})
    core.configuration.bind("by-headers", "headers", "", {"x-match": "all", "colour": "red"})
    core.publish(core.catalog.exchanges["by-direct"], message("yes", "red"), message("no", "reds"))
    core.publish(core.catalog.exchanges["by-topic"], message("yes", "news.uk"), message("no", "news"))
    core.publish(core.catalog.exchanges["by-headers"], message("yes", colour="red"), message("no", colour="blue"))
    assert [bodies(queue.messages) for queue in queues.values()] == [["yes"]] * 3
    assert core.resources.unroutable_total == 3
    core.check()


def test_what_an_exchange_cannot_route_goes_to_its_alternate() -> None:
    core = Core()
    lost = core.queue("lost")
    core.exchange("lost-and-found", "fanout", lost)
    exchange = core.exchange("e", "direct", alternate_exchange="lost-and-found")
    core.publish(exchange, message("a", "nobody"))
    assert (bodies(lost.messages), core.resources.unroutable_total) == (["a"], 0)
    core.check()


def test_what_nobody_wants_is_counted_and_written_nowhere() -> None:
    core = Core()
    exchange = core.exchange("e")
    lsn = core.log.last_lsn
    assert core.publish(exchange, "a") == lsn == core.log.last_lsn
    assert core.resources.unroutable_total == 1


def test_a_publisher_that_still_has_a_deleted_exchange_in_hand_is_told() -> None:
    core = Core()
    exchange = core.exchange("e", "fanout", core.queue("q"))
    core.configuration.delete_exchange("e")
    with pytest.raises(NotFound, match="exchange e was deleted"):
        core.publish(exchange, "a")
    core.check()


def test_memory_is_counted_as_messages_come_and_go_and_queues_with_them() -> None:
    core = Core()
    q, r = core.queue("q"), core.queue("r", max_count=1, policy_type="ring")
    exchange = core.exchange("e", "fanout", q, r)
    core.publish(exchange, *"abc")
    full = core.catalog.memory_bytes
    assert full > 4 * len(message("a").payload)
    core.consume(q, 2)
    assert core.catalog.memory_bytes == full // 2
    core.configuration.delete_queue("r")
    assert core.catalog.memory_bytes == full // 4
    core.purge(q)
    assert core.catalog.memory_bytes == 0
    core.check()


def test_totals_count_what_came_and_went() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    core.consume(queue, 2)
    assert (queue.messages.enqueued_total, queue.messages.dequeued_total, queue.messages.count) == (3, 2, 1)


def test_a_released_crowd_of_messages_is_sorted_out_in_time_that_grows_with_it() -> None:
    core = Core(witness=False)
    queue = core.queue("q", delivery_limit=1)
    core.publish(queue, *(str(n) for n in range(20_000)))
    held = core.take(queue, core.consumer(queue), 20_000)
    # All are spent at once: had each been looked for among the others, this would take a minute.
    core.resources.release(queue, held, failed=True)
    assert queue.messages.count == 0


def test_many_messages_leave_with_several_events_so_that_each_fits_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_set, "DEQUEUED_LENGTH", 2)
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abcde")
    core.read()
    core.resources.accept(queue, core.take(queue, core.consumer(queue)))
    assert [len(event.ids) for event in core.read() if isinstance(event, Dequeued)] == [2, 2, 1]
    core.check()


def test_the_same_commands_write_the_same_log() -> None:
    def written() -> list[LogRecord]:
        core = Core(log_acquisitions=True)
        queues = [core.queue(str(n), message_ttl_ms=1000) for n in range(30)]
        for queue in queues:
            core.give_credit(queue, core.consumer(queue), 1)
            core.publish(queue, "a", "b")
        core.hand_out()
        core.tick(after_ms=2000)
        core.read()
        return core.records

    assert written() == written()


# --- replay


def replay(events: Sequence[tuple[Event, bool]]) -> Catalog:
    sets = ResourceSets()
    for lsn, (event, part) in enumerate(events, start=1):
        sets.replicated.state.replay(LogRecord(lsn, event, part))
    return sets.catalog


DECLARED = QueueDeclared("q", {})
ENQUEUED = Enqueued((1,), b";;a", False, 4, 0, "")


def test_parts_count_when_their_unit_is_closed_and_not_before() -> None:
    open_unit: list[tuple[Event, bool]] = [(DECLARED, False), (ENQUEUED, True), (ENQUEUED, True)]
    assert replay(open_unit).queues["q"].messages.count == 0
    there = replay([*open_unit, (TransactionCommitted(2), False)])
    assert [entry.id for entry in there.queues["q"].messages] == [2, 3]


@pytest.mark.parametrize(
    "events",
    [
        [(ENQUEUED, False)],
        [(DECLARED, False), (DECLARED, False)],
        [(QueueDeclared("q", {"qpid.unheard_of": 1}), False)],
        [(DECLARED, False), (Dequeued(1, (7,), DequeueReason.CONSUMED), False)],
        [(DECLARED, False), (ENQUEUED, False), (Dequeued(1, (2, 2), DequeueReason.CONSUMED), False)],
        [(DECLARED, False), (Released(1, (7,), True), False)],
        [(QueueDeleted(1), False)],
        [(DECLARED, False), (ENQUEUED, True), (TransactionCommitted(2), False)],
        [(DECLARED, False), (ENQUEUED, True), (QueueDeleted(1), False)],
    ],
)
def test_a_log_that_does_not_fit_is_an_error_with_the_lsn(events: list[tuple[Event, bool]]) -> None:
    with pytest.raises(ReplayError, match=r"LSN \d"):
        replay(events)


def test_a_set_knows_its_name_and_has_its_own_log() -> None:
    sets = ResourceSets()
    default, local = sets.all
    lsn, local_lsn = default.write(DECLARED), local.write(QueueDeclared("mine", {}))
    assert (default.name, local.name, set(sets.catalog.queues)) == ("default", "local", {"q", "mine"})
    assert (default.log.last_lsn, local.log.last_lsn) == (lsn, local_lsn) == sets.log_ends
    assert [queue.name for queue in default.state.queues()] == ["q"]
    assert [queue.name for queue in local.state.queues()] == ["mine"]


def test_nothing_is_local_beside_another_set() -> None:
    """Its queues are replicated with their messages, and exchanges are in `default`."""
    core = Core(Resources(TextReader(), "red"))
    core.publish(core.queue("q"), message("a", durable=True))
    sets = core.resources.sets
    assert (sets.all, sets.has_local, sets.take_local_parts()) == ((sets.replicated,), False, [])
    assert sets.log_ends == (core.log.last_lsn, LOCAL_BASE)
    for keep in (lambda: sets.local, lambda: sets.local_log):
        with pytest.raises(KeyError, match="nothing is local beside red"):
            keep()
    with pytest.raises(InvalidArgument, match="replicated with their messages"):
        core.queue("own", replicate="none")
    core.commit()
    assert core.resources.written.is_committed


def test_messages_that_are_alike_share_one_header_here_and_on_a_backup() -> None:
    core = Core()
    core.queue("q")
    core.publish(core.catalog.queues["q"], "a", "b", message("c", priority=9), message("d", durable=True), "e")
    for catalog in (core.catalog, core.followed().catalog):
        headers = [entry.header for entry in catalog.queues["q"].messages]
        assert [(header.durable, header.priority) for header in headers[2:]] == [(False, 9), (True, 4), (False, 4)]
        assert headers[0] is headers[1] is headers[4]
