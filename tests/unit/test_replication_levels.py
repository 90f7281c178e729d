"""Stories about how much of an object backups keep, and what happens when that changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_support import NOW_MS, Core, bodies, message, transaction_of
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.model.errors import InUse, InvalidArgument
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.sets import level_change

LEVELS = list(Replicate)


def on_backup(core: Core, name: str) -> Queue | None:
    return core.followed().catalog.queues.get(name)


def test_a_backup_keeps_nothing_the_queue_or_the_queue_with_its_messages() -> None:
    core = Core()
    for level in LEVELS:
        core.publish(core.queue(level.value, replicate=level.value), "a")
    there = core.followed().catalog
    assert {name: queue.messages.count for name, queue in there.queues.items()} == {"configuration": 0, "messages": 1}
    core.check()


def test_what_is_not_replicated_is_committed_at_once() -> None:
    core = Core()
    queues = [core.queue(level.value, replicate=level.value) for level in LEVELS]
    core.log.add_witness("backup")
    tokens = [core.resources.publish(queue, message("a"), NOW_MS) for queue in queues]
    assert [token.is_committed for token in tokens] == [True, True, False]
    assert tokens[-1] == core.log.written
    queue = core.catalog.queues["none"]
    entries = core.take(queue, core.consumer(queue))
    assert core.resources.accept(queue, entries).is_committed
    assert core.resources.commit(transaction_of((queue, "b")), NOW_MS).is_committed


def test_a_message_for_queues_of_all_levels_is_written_once_in_each_log() -> None:
    core = Core()
    queues = [core.queue(level.value, replicate=level.value) for level in LEVELS]
    exchange = core.exchange("all", "fanout", *queues)
    core.read()
    lsn = core.publish(exchange, "a")
    (event,) = core.read()
    assert isinstance(event, ev.Enqueued)
    assert event.queues == (queues[2].id,)
    assert lsn == core.log.last_lsn
    assert [bodies(queue.messages) for queue in queues] == [["a"]] * 3
    core.check()


def test_a_full_local_queue_keeps_a_message_out_of_the_replicated_one_too() -> None:
    core = Core()
    queues = core.queue("q"), core.queue("full", replicate="none", max_count=1)
    exchange = core.exchange("e", "fanout", *queues)
    core.publish(exchange, "a")
    before = core.log.last_lsn, core.resources.sets.local_log.last_lsn
    with pytest.raises(Exception, match="full is full"):
        core.publish(exchange, "b")
    assert (core.log.last_lsn, core.resources.sets.local_log.last_lsn) == before


def test_an_argument_counts_before_a_rule_a_rule_before_the_default_and_the_first_rule_wins() -> None:
    core = Core()
    core.configuration.rules = [("tmp.*", Replicate.NONE), ("*.log", Replicate.CONFIGURATION)]
    core.configuration.default_replication = Replicate.MESSAGES
    found = [core.queue(name).replication.value for name in ("tmp.log", "a.log", "a")]
    assert found == ["none", "configuration", "messages"]
    assert core.queue("tmp.a", replicate="all").replication is Replicate.MESSAGES
    assert core.configuration.replication_for("tmp.x") is Replicate.NONE


def test_what_goes_with_its_only_user_is_not_replicated_unless_asked() -> None:
    core = Core()
    assert core.queue("reply", exclusive=True, auto_delete=True).replication is Replicate.NONE
    kept = [
        core.queue("delayed", exclusive=True, auto_delete=True, auto_delete_delay_s=5),
        core.queue("asked", exclusive=True, auto_delete=True, replicate="messages"),
        core.queue("shared", auto_delete=True),
    ]
    assert {queue.replication for queue in kept} == {Replicate.MESSAGES}


def test_a_level_that_there_is_not_is_refused_by_name() -> None:
    core = Core()
    core.exchange("e", "fanout", core.queue("q"))
    lsn = core.log.last_lsn
    for command in (
        lambda: core.queue("r", replicate="some"),
        lambda: core.exchange("f", replicate="some"),
        lambda: core.configuration.bind("e", "q", "k", {"qpid.replicate": "some"}),
        lambda: core.queue("r", replicate=None),
    ):
        with pytest.raises(InvalidArgument, match=r"qpid\.replicate"):
            command()
    assert core.log.last_lsn == lsn


def test_a_binding_is_replicated_when_both_its_ends_are_and_it_does_not_ask_otherwise() -> None:
    core = Core()
    q, local = core.queue("q"), core.queue("local", replicate="none")
    core.exchange("e", "direct", q, local)
    core.exchange("here", "direct", q, replicate="none")
    core.configuration.bind("e", "q", "private", {"qpid.replicate": "none"})
    there = core.followed().catalog
    assert set(there.exchanges) == {"e"}
    assert [binding.key for binding in there.exchanges["e"].bindings()] == [""]
    core.check()


def test_a_binding_that_becomes_private_leaves_the_backups_and_comes_back() -> None:
    core = Core()
    core.exchange("e", "fanout", core.queue("q"))
    for level, there in (("none", 0), ("messages", 1), ("none", 0)):
        core.configuration.bind("e", "q", "", {"qpid.replicate": level})
        assert len(core.followed().catalog.exchanges["e"].bindings()) == there
    core.configuration.unbind("e", "q", "")
    core.check()


def test_the_level_of_a_binding_of_a_headers_exchange_is_nothing_that_messages_need() -> None:
    core = Core()
    queue = core.queue("q")
    core.exchange("h", "headers")
    core.configuration.bind("h", "q", "", {"colour": "red", "qpid.replicate": "none"})
    core.publish(core.catalog.exchanges["h"], message("a", colour="red"))
    assert queue.messages.count == 1


def test_messages_name_their_queue_by_the_id_that_it_has_now() -> None:
    core = Core()
    queue = core.queue("q", replicate="none")
    core.publish(queue, "a")
    core.configuration.update_queue("q", {"qpid.replicate": "messages"})
    core.publish(queue, "b")
    assert [entry.header.queues for entry in queue.messages] == [(queue.id,)] * 2
    core.check()


def test_a_replicated_object_takes_its_name_from_a_local_one() -> None:
    core = Core()
    queue, exchange = core.queue("q", replicate="none"), core.exchange("e", replicate="none")
    core.publish(queue, "a")
    core.resources.replicated.follow([LogRecord(1, ev.QueueDeclared("e", {}), False)])
    core.resources.replicated.follow([LogRecord(2, ev.ExchangeDeclared("q", "fanout", {}), False)])
    assert (list(core.catalog.queues), list(core.catalog.exchanges)) == (["e"], ["q"])
    assert queue.deleted
    assert core.resources.catalog.deleted_queues == [queue]
    assert exchange.id not in core.catalog.exchanges_by_id
    assert core.catalog.memory_bytes == 0


# --- changing the level of what exists


@pytest.mark.parametrize("before", LEVELS)
@pytest.mark.parametrize("after", LEVELS)
@pytest.mark.parametrize("arguments", [{}, {"priorities": 10}, {"last_value_queue_key": "k"}])
def test_publishers_and_consumers_go_on_while_a_queue_changes_its_level(
    before: Replicate, after: Replicate, arguments: dict[str, int | str]
) -> None:
    core = Core(log_acquisitions=True)
    core.configuration.default_replication = before
    queue = core.queue("q", **arguments)
    exchange = core.exchange("e", "fanout", queue)
    core.publish(exchange, *(message(each, k=each, priority=4) for each in "abcd"))
    consumer, browser = core.consumer(queue), core.browser(queue)
    assert bodies(core.take(queue, browser, 1)) == ["a"]
    first, second = core.take(queue, consumer, 2)
    core.resources.release(queue, [second], failed=True)
    (second,) = core.take(queue, consumer, 1)

    notes = core.configuration.set_replication([], after)
    core.check()
    assert (before is after) is (not any("queue q" in note for note in notes))
    assert core.catalog.queues["q"] is queue
    assert queue.replication is after
    assert (queue.id >= LOCAL_BASE) is (after is Replicate.NONE)
    backup = on_backup(core, "q")
    assert (backup.messages.count if backup else None) == {"none": None, "configuration": 0, "messages": 4}[after]

    assert (first.holder, second.holder, second.delivery_count) == (consumer, consumer, 1)
    core.publish(exchange, message("e", k="e"))
    core.resources.accept(queue, [first])
    core.resources.release(queue, [second], failed=False)
    assert bodies(core.take(queue, browser)) == ["b", "c", "d", "e"]
    assert bodies(core.take(queue, consumer)) == ["b", "c", "d", "e"]
    core.check()


def test_an_argument_keeps_a_queue_where_it_is() -> None:
    core = Core()
    core.queue("q", replicate="messages")
    notes = core.configuration.set_replication([("*", Replicate.NONE)], Replicate.NONE)
    assert notes == ["no queue or exchange has another level now"]


def test_a_change_of_rules_says_what_it_did() -> None:
    core = Core()
    core.publish(core.exchange("tmp.e", "fanout", core.queue("tmp.q"), core.queue("q")), "a")
    notes = core.configuration.set_replication([("tmp.*", Replicate.NONE)], Replicate.MESSAGES)
    assert notes == [
        "exchange tmp.e is no longer replicated",
        "queue tmp.q went from messages to none; messages in it: 1",
    ]
    assert set(core.followed().catalog.queues) == {"q"}
    core.configuration.set_replication([], Replicate.MESSAGES)
    there = core.followed().catalog
    assert len(there.exchanges["tmp.e"].bindings()) == 2
    assert bodies(there.queues["tmp.q"].messages) == ["a"]
    core.check()


def test_standard_exchanges_stay_replicated() -> None:
    core = Core()
    core.resources.replicated.declare_standard_exchanges()
    core.configuration.set_replication([], Replicate.NONE)
    assert len(core.followed().catalog.exchanges) == 5


def test_a_queue_that_is_too_large_to_be_told_in_one_piece_stays_and_the_note_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(level_change, "COPIED_BYTES_MAX", 1000)
    core = Core()
    core.configuration.default_replication = Replicate.NONE
    queue = core.queue("q")
    core.publish(queue, *"abcd")
    (note,) = core.configuration.set_replication([], Replicate.MESSAGES)
    assert "queue q stays at none: 4 messages" in note
    with pytest.raises(InUse, match="stays at none"):
        core.configuration.update_queue("q", {"qpid.replicate": "messages"})
    core.consume(queue, 2)
    core.configuration.set_replication([], Replicate.MESSAGES)
    assert queue.replication is Replicate.MESSAGES
    core.check()


@pytest.mark.parametrize("what", ["messages", "bindings"])
def test_a_client_changes_the_level_of_what_is_moved_in_a_moment_and_an_operator_of_more(what: str) -> None:
    core = Core()
    queue = core.queue("q")
    core.exchange("e", "direct")
    for number in range(4):
        if what == "messages":
            core.publish(queue, str(number))
        else:
            core.configuration.bind("e", "q", str(number), {})
    lsn = core.log.last_lsn
    with pytest.raises(InUse, match=f"q stays at messages.*4 {what}.*more than 3"):
        core.configuration.update_queue("q", {"qpid.replicate": "none"}, 3)
    assert core.log.last_lsn == lsn
    core.configuration.update_queue("q", {"qpid.replicate": "messages", "qpid.max_count": 10}, 3)
    core.configuration.update_queue("q", {"qpid.replicate": "none"}, 4)
    core.configuration.update_queue("q", {"qpid.replicate": "messages"})
    assert queue.replication is Replicate.MESSAGES
    core.check()


def test_an_argument_can_be_changed_too_and_taken_away() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    for value, level in (("none", "none"), ("configuration", "configuration"), (None, "messages")):
        core.configuration.update_queue("q", {"qpid.replicate": value})
        assert queue.replication == level
        core.check()


def test_what_a_failover_may_have_delivered_stays_marked_when_its_level_changes() -> None:
    core = Core()
    core.configuration.default_replication = Replicate.CONFIGURATION
    queue = core.queue("q")
    core.publish(queue, "a")
    core.resources.replicated.take_over(NOW_MS, 0)
    core.publish(queue, "b")
    core.configuration.set_replication([], Replicate.MESSAGES)
    marked = [entry.acquired_before or entry.id <= queue.redelivered_below for entry in queue.messages]
    assert marked == [True, False]


def test_a_backup_keeps_the_rules_and_moves_nothing() -> None:
    core = Core()
    core.queue("q")
    core.resources.replication.read_only = "this broker is ready; node1 is primary"
    (note,) = core.configuration.set_replication([], Replicate.NONE)
    assert "node1" in note
    assert core.catalog.queues["q"].replication is Replicate.MESSAGES


@given(st.lists(st.sampled_from(LEVELS), max_size=6), st.data())
def test_whatever_the_levels_were_messages_stay_in_order(levels: list[Replicate], data: st.DataObject) -> None:
    core = Core()
    queue = core.queue("q")
    expected: list[str] = []
    for number, level in enumerate(levels):
        core.publish(queue, *(some := [f"{number}-{at}" for at in range(data.draw(st.integers(0, 700)))]))
        expected += some
        gone = data.draw(st.integers(0, 600))
        core.consume(queue, gone)
        del expected[:gone]
        core.configuration.set_replication([], level)
        assert bodies(queue.messages) == expected
    core.check()


def test_a_binding_that_others_get_to_know_only_later_comes_where_it_comes_for_them() -> None:
    core = Core()
    core.queue("a"), core.queue("c")
    exchange = core.exchange("e", "direct")
    core.configuration.bind("e", "c", "k", {"qpid.replicate": "none"})
    core.configuration.bind("e", "a", "k", {})
    core.configuration.bind("e", "c", "k", {})
    assert [core.catalog.queues_by_id[binding.queue].name for binding in exchange.bindings()] == ["a", "c"]
    core.check()
    core.configuration.bind("e", "a", "k", {"x": "y"})
    assert [core.catalog.queues_by_id[binding.queue].name for binding in exchange.bindings()] == ["a", "c"]
    core.check()
