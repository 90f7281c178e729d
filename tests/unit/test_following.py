"""Stories about a broker that follows another one's log, and takes over from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from model_support import NOW_MS, Core, TextReader, bodies, message, picture, replicated_picture, transaction_of
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.model.errors import InUse, NotEnoughReplicas, NotPrimary
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.following import owner_name
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.state import ReplayError

SECOND = 1000
GRACE_MS = 10 * SECOND


def take_over(core: Core) -> Core:
    """The broker that followed `core` and is now primary."""
    backup = core.followed()
    heir = Core(backup)
    backup.replicated.take_over(core.now_ms, GRACE_MS)
    return heir


def test_who_follows_the_log_holds_the_same_and_stands_where_it_ends() -> None:
    core = Core()
    q, r = core.queue("q"), core.queue("r", priorities=10)
    core.publish(core.exchange("e", "fanout", q, r), *"abc")
    core.publish(q, "d")
    core.consume(q, 2)
    core.resources.commit(transaction_of((q, "e"), (r, "f")), NOW_MS)
    backup = core.followed()
    assert picture(backup.sets) == replicated_picture(core.sets)
    assert backup.replicated.log.last_lsn == backup.replicated.log.last_lsn == core.log.last_lsn


def all_but_the_end_of_a_unit(core: Core) -> tuple[Queue, Resources]:
    """Two messages were committed together, and a backup has all but the last record of that."""
    queue = core.queue("q")
    core.resources.commit(transaction_of((queue, "a"), (queue, "b")), NOW_MS)
    core.read()
    backup = Resources(TextReader())
    for record in core.records[:-1]:
        backup.replicated.follow([record])
    return queue, backup


def test_the_parts_of_a_unit_wait_for_its_end() -> None:
    core = Core()
    queue, backup = all_but_the_end_of_a_unit(core)
    assert (backup.catalog.queues["q"].messages.count, backup.replicated.log.last_lsn) == (0, queue.id)
    backup.replicated.follow([core.records[-1]])
    assert (backup.catalog.queues["q"].messages.count, backup.replicated.log.last_lsn) == (2, core.log.last_lsn)


def test_who_hears_of_a_change_of_the_map_finds_the_log_as_long_as_what_has_to_be_committed_for_that() -> None:
    core = Core()
    core.resources.replicated.write(ev.SetPlaced("red", ("alpha",), (), "", 0, 0))
    placed = core.resources.replicated.write(ev.QueuePlaced("q", "red", {}, False))
    core.resources.replicated.submit((ev.QueueRemoved(placed), ev.QueuePlaced("r", "red", {}, False)))
    core.read()
    backup, heard = Resources(TextReader()), list[int]()
    there = backup.replicated
    there.state.map.listeners.append(lambda changes: heard.append(there.log.last_lsn))
    for record in core.records:
        there.follow([record])
    unit_end = core.log.last_lsn
    assert heard == [placed - 1, placed, unit_end, unit_end]


def test_a_record_that_does_not_fit_makes_the_log_no_longer() -> None:
    backup = Resources(TextReader()).replicated
    backup.follow([LogRecord(1, ev.SetPlaced("red", ("alpha",), (), "", 0, 0), False)])
    with pytest.raises(ReplayError):
        backup.follow([LogRecord(2, ev.QueueRemoved(7), False)])
    assert backup.log.last_lsn == 1


def test_a_unit_that_was_cut_off_is_forgotten_and_what_comes_in_its_place_counts() -> None:
    core = Core()
    queue, backup = all_but_the_end_of_a_unit(core)
    backup.replicated.drop_open_unit()
    event = ev.Enqueued(queue.ids, message("c").payload, False, 4, 0, "")
    backup.replicated.follow([LogRecord(queue.id + 1, event, False)])
    assert bodies(backup.catalog.queues["q"].messages) == ["c"]
    assert backup.replicated.log.last_lsn == queue.id + 1


def test_an_event_that_does_not_fit_is_named_with_its_place() -> None:
    backup = Resources(TextReader())
    with pytest.raises(ReplayError, match="LSN 7: Enqueued"):
        backup.replicated.follow([LogRecord(7, ev.Enqueued((3,), b"", False, 4, 0, ""), False)])


def test_generations_and_the_in_sync_set_are_part_of_the_state() -> None:
    core = Core()
    started = ev.GenerationStarted(1, "node1", "the cluster", NOW_MS, False, "the first start")
    assert core.state.in_sync == ev.InSyncChanged(0, ())
    lsn = core.resources.replicated.write(started)
    core.resources.replicated.write(ev.InSyncChanged(2, ("node1", "node2")))
    backup = core.followed()
    assert backup.replicated.state.generations == core.state.generations == [(lsn, started)]
    assert backup.replicated.state.in_sync == ev.InSyncChanged(2, ("node1", "node2"))


def test_browsers_on_a_backup_see_what_comes_and_expires_nothing() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    backup = core.followed()
    backup.replication.read_only = "this broker is ready; node1 is primary"
    reader = Core(backup, witness=False)
    replica = backup.catalog.queues["q"]
    browser = reader.browser(replica)
    assert bodies(reader.take(replica, browser)) == ["a"]
    core.publish(queue, message("b", ttl_ms=1))
    core.resources.commit(transaction_of((queue, "c"), (queue, "d")), NOW_MS)
    browser.credit = 10
    core.read()
    single, *unit = core.records[-4:]
    for records, seen in (([single], ["b"]), (unit, ["c", "d"])):
        for record in records:
            backup.replicated.follow([record])
        reader.now_ms += SECOND
        assert reader.tick() == []
        reader.hand_out()
        assert bodies(reader.inbox(browser)) == seen
    assert (replica.messages.count, backup.replicated.log.last_lsn) == (4, core.log.last_lsn)


# --- taking over


def test_what_was_queued_at_a_failover_may_have_been_seen_and_what_comes_later_was_not() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    heir = take_over(core)
    heir.publish(heir.catalog.queues["q"], "b")
    replica = heir.catalog.queues["q"]
    old, new = replica.messages
    assert old.id <= replica.redelivered_below < new.id


def test_messages_of_a_local_queue_count_as_seen_too() -> None:
    core = Core()
    queue = core.queue("q", replicate="none")
    core.publish(queue, "a")
    core.resources.replicated.take_over(NOW_MS, GRACE_MS)
    core.publish(queue, "b")
    old, new = queue.messages
    assert old.id <= queue.redelivered_below < new.id


def test_messages_expire_after_a_failover() -> None:
    core = Core()
    core.publish(core.queue("q"), message("a", ttl_ms=SECOND), "b")
    heir = take_over(core)
    heir.tick(after_ms=SECOND)
    assert bodies(heir.catalog.queues["q"].messages) == ["b"]


def test_an_auto_delete_queue_waits_for_its_users_after_a_failover_and_then_goes() -> None:
    core = Core()
    used, unused = core.queue("used", auto_delete=True), core.queue("unused", auto_delete=True)
    core.consumer(used)
    core.consumer(used)
    assert core.read().count(ev.QueueUsed(used.id, "")) == 1
    heir = take_over(core)
    assert heir.tick(GRACE_MS - 1) == []
    assert heir.tick(1) == [heir.catalog.queues["used"]]
    assert not unused.used


def test_a_user_that_came_back_in_time_keeps_its_auto_delete_queue() -> None:
    core = Core()
    core.consumer(core.queue("q", auto_delete=True))
    heir = take_over(core)
    queue = heir.catalog.queues["q"]
    consumer = heir.consumer(queue)
    assert heir.tick(2 * GRACE_MS) == []
    heir.leave(queue, consumer)
    assert heir.tick() == [queue]


def test_an_exclusive_queue_is_kept_for_its_owner_until_the_grace_is_over() -> None:
    core = Core()
    core.consumer(core.queue("q", exclusive=True), owner_name="client-1")
    heir = take_over(core)
    queue = heir.catalog.queues["q"]
    with pytest.raises(InUse, match="kept for the client that had it"):
        heir.consumer(queue, owner_name="client-2")
    heir.leave(queue, heir.consumer(queue, owner_name="client-1"))
    heir.leave(queue, heir.consumer(queue, owner_name="client-2"))  # the owner came and let go


def test_an_exclusive_queue_is_anybodys_once_the_grace_is_over() -> None:
    core = Core()
    core.consumer(core.queue("q", exclusive=True), owner_name="client-1")
    heir = take_over(core)
    queue = heir.catalog.queues["q"]
    heir.tick(GRACE_MS)
    heir.consumer(queue, owner_name="client-2")
    assert heir.read()[-1] == ev.QueueUsed(queue.id, "client-2")


@pytest.mark.parametrize(
    ("user", "container", "comes_back"),
    [("alice", "c", True), ("mallory", "c", False), ("", "c", False), ("", "alice/c", False), ("alice/c", "", False)],
)
def test_an_exclusive_queue_is_not_kept_for_another_user_with_its_owners_container_id(
    user: str, container: str, comes_back: bool
) -> None:
    core = Core()
    core.consumer(core.queue("q", exclusive=True), owner_name=owner_name("alice", "c"))
    heir = take_over(core)
    queue = heir.catalog.queues["q"]
    with nullcontext() if comes_back else pytest.raises(InUse):
        heir.consumer(queue, owner_name=owner_name(user, container))


def test_an_owner_that_an_older_release_knew_by_its_container_id_alone_comes_back() -> None:
    core = Core()
    core.consumer(core.queue("q", exclusive=True), owner_name="100%")
    heir = take_over(core)
    heir.consumer(heir.catalog.queues["q"], owner_name=owner_name("alice", "100%"))


def test_an_owner_that_leaves_is_not_waited_for() -> None:
    core = Core()
    queue = core.queue("q", exclusive=True)
    core.leave(queue, core.consumer(queue, owner_name="client-1"))
    heir = take_over(core)
    heir.consumer(heir.catalog.queues["q"], owner_name="client-2")
    core.check()


def test_a_container_id_of_any_length_is_an_owner() -> None:
    core = Core()
    core.consumer(core.queue("q", exclusive=True), owner_name="é\ud800" * 50_000)
    core.check()


# --- what may not be written


def test_a_backup_writes_nothing_and_says_who_does() -> None:
    core = Core()
    queue, exchange = core.queue("q"), core.exchange("e")
    core.publish(queue, "a")
    (entry,) = core.take(queue, core.consumer(queue))
    lsn = core.log.last_lsn
    core.resources.replication.read_only = "this broker is ready; node1 is primary"
    commands: list[Callable[[], object]] = [
        lambda: core.publish(queue, "b"),
        lambda: core.publish(exchange, "b"),
        lambda: core.resources.commit(transaction_of(), NOW_MS),
        lambda: core.resources.purges.begin(queue),
        lambda: core.resources.subscribe(queue, Consumer(), "somebody"),
        lambda: core.queue("new"),
        lambda: core.configuration.update_queue("q", {}),
        lambda: core.configuration.delete_queue("q"),
        lambda: core.exchange("new"),
        lambda: core.configuration.delete_exchange("e"),
        lambda: core.configuration.bind("e", "q", "", {}),
        lambda: core.configuration.unbind("e", "q", ""),
    ]
    for command in commands:
        with pytest.raises(NotPrimary, match="node1 is primary"):
            command()
    core.resources.release(queue, [entry], failed=True)
    assert (entry.holder, entry.delivery_count) == (None, 0)
    assert (core.log.last_lsn, queue.messages.count) == (lsn, 1)
    core.resources.replication.read_only = ""
    core.publish(queue, "b")
    core.check()


def test_without_enough_replicas_nothing_replicated_is_taken_in() -> None:
    core = Core()
    queue, local = core.queue("q"), core.queue("local", replicate="none")
    both = core.exchange("both", "fanout", queue, local)
    core.publish(queue, "a")
    lsn = core.log.last_lsn
    core.resources.replication.refusal = NotEnoughReplicas("2 brokers must hold it, 1 does")
    for target in (queue, both):
        with pytest.raises(NotEnoughReplicas, match="2 brokers"):
            core.publish(target, "b")
    with pytest.raises(NotEnoughReplicas):
        core.resources.commit(transaction_of((local, "b"), (queue, "b")), NOW_MS)
    assert (core.log.last_lsn, local.messages.count) == (lsn, 0)
    assert core.resources.publish(local, message("c"), core.now_ms).is_committed
    assert core.consume(queue) == ["a"]
    core.resources.replication.refusal = None
    core.publish(queue, "d")
    core.check()


def test_messages_that_are_not_durable_are_given_up_by_everybody_at_the_same_place() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, message("durable", durable=True), message("transient"))
    core.resources.replicated.write(ev.TransientsLost(core.resources.replicated.log.last_lsn + 1))
    core.publish(queue, message("later"))
    backup = core.followed()
    for each in (core.catalog, backup.catalog):
        assert bodies(each.queues["q"].messages) == ["durable", "later"]
        each.queues["q"].messages.check_invariants()
    assert backup.catalog.memory_bytes == core.catalog.memory_bytes
    assert backup.replicated.state.transients_lost_lsn == core.state.transients_lost_lsn > 0
