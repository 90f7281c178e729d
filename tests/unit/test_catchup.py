"""How a backup that cannot follow the stream becomes level, whatever it held and whatever goes on meanwhile."""

from __future__ import annotations

import pytest

from catchup_support import Pair, accept, held_by, pair_with
from model_support import NOW_MS, Core, body, message, transaction_of
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.frames import CaughtUp, Chunk


def test_an_empty_backup_gets_all() -> None:
    pair = Pair()
    pair.primary.publish(pair.primary.queue("a"), "1", "2", "3", "4", "5")
    pair.primary.publish(pair.primary.queue("b", priorities=3), message("x", priority=1), message("y", priority=9))
    pair.primary.exchange("x", "direct", pair.primary.catalog.queues["a"])
    pair.meet()
    pair.finish()


def test_what_the_primary_never_had_is_given_out_to_be_kept_elsewhere() -> None:
    pair, _ = pair_with(2)
    pair.backup.publish(pair.backup.catalog.queues["a"], "lost 1", "lost 2")
    pair.backup.publish(pair.backup.queue("mine"), "lost 3")
    pair.backup.exchange("mine too")
    pair.meet()
    assert [(each.queue, [body(payload) for payload in each.payloads]) for each in pair.discarded] == [
        ("a", ["lost 1", "lost 2"]),
        ("mine", ["lost 3"]),
    ]
    assert all(message_id > pair.common_lsn for each in pair.discarded for message_id in each.ids)
    pair.finish()


@pytest.mark.parametrize("arguments", [{}, {"priorities": 3}])
def test_ids_that_come_again_after_a_comparison_that_came_to_nothing_are_found(arguments: dict[str, int]) -> None:
    pair = Pair()
    pair.primary.publish(pair.primary.queue("a", **arguments), "1", "2")
    pair.part()
    backup, queue = pair.backup, pair.backup.catalog.queues["a"]
    backup.publish(queue, *[f"lost {number}" for number in range(1000)])  # more than one block of them
    catch_up = CatchUp(backup.resources.replicated, pair.common_lsn)
    catch_up.discard_after_common()
    catch_up.abandon()
    backup.log.reset(pair.common_lsn)

    backup.publish(queue, "3", "4")  # it was promoted by force meanwhile

    newest = queue.messages.newest_before(backup.log.last_lsn + 1, 10)
    assert [body(entry.resident_body()) for entry in newest] == ["1", "2", "3", "4"]
    assert [queue.messages.find(entry.id) for entry in newest] == newest


def test_the_log_is_as_long_as_the_primarys_when_its_map_counts() -> None:
    pair = Pair()
    primary, backup = pair.primary.resources.replicated, pair.backup.resources.replicated
    primary.write(ev.SetPlaced("red", ("alpha",), (), "", 0, 0))
    pair.part()
    placed, heard = primary.write(ev.QueuePlaced("q", "red", {}, False)), list[int]()
    backup.state.map.listeners.append(lambda changes: heard.append(backup.log.last_lsn))
    pair.meet()
    assert heard == [placed]
    pair.finish()


def overtake_a_chunk(pair: Pair) -> None:
    """The second of three messages of `a` is consumed, and the backup hears of that before it gets them."""
    pair.meet(max_messages=10)
    overtaken = pair.next()
    accept(pair.primary, "a", 1)
    pair.stream()
    pair.take(overtaken)


def test_a_chunk_that_was_overtaken_by_a_consumer_brings_nothing_back() -> None:
    pair, queue = pair_with()
    pair.primary.publish(queue, "1", "2", "3")
    overtake_a_chunk(pair)
    assert held_by(pair.backup) == ["1", "3"]
    pair.finish()


def test_a_held_message_that_was_consumed_meanwhile_does_not_come_back_from_the_stash() -> None:
    pair, _ = pair_with(3)
    overtake_a_chunk(pair)
    assert held_by(pair.backup) == ["m0", "m2"]
    pair.finish()


def test_an_object_deleted_and_created_again_under_its_name_is_the_new_one() -> None:
    pair, _ = pair_with(3)
    pair.primary.exchange("x", "direct", pair.primary.catalog.queues["a"])
    pair.part()
    core = pair.primary
    core.configuration.delete_queue("a")
    core.configuration.delete_exchange("x")
    core.publish(core.queue("a", max_count=10), "new")
    core.exchange("x", "topic", core.catalog.queues["a"])
    pair.meet()
    pair.finish()
    assert held_by(pair.backup) == ["new"]
    assert pair.backup.catalog.exchanges["x"].kind == "topic"


def test_an_object_deleted_and_created_again_during_the_catch_up_is_the_new_one() -> None:
    pair, queue = pair_with(3)
    pair.primary.publish(queue, "4", "5", "6")
    pair.meet()
    pair.step()
    late = pair.next()
    pair.primary.configuration.delete_queue("a")
    pair.primary.publish(pair.primary.queue("a"), "new")
    pair.stream()
    pair.take(late)  # of the queue that is no more
    pair.finish()
    assert held_by(pair.backup) == ["new"]


def test_objects_are_made_equal_in_every_way() -> None:
    pair, _ = pair_with(1)
    configuration = pair.primary.configuration
    pair.primary.exchange("x", "headers")
    pair.part()
    pair.backup.queue("only there")
    configuration.update_queue("a", {"qpid.max_count": 5})
    configuration.bind("x", "a", "2", {"k": "1"})
    configuration.bind("x", "a", "1", {"k": "2"})
    pair.backup.configuration.bind("x", "a", "1", {"k": "9"})
    pair.backup.configuration.bind("x", "a", "3", {"k": "9"})
    pair.primary.resources.replicated.write(ev.InSyncChanged(4, ("n1", "n2")))
    pair.primary.resources.replicated.write(ev.QueueUsed(pair.primary.catalog.queues["a"].id, "container"))
    pair.primary.queue("newest")  # its id is the LSN of the frame
    pair.meet()
    pair.finish()
    assert pair.backup.catalog.queues["a"].owner == "container"


def test_failed_deliveries_count_once_wherever_they_happened() -> None:
    pair, queue = pair_with(4)
    pair.primary.publish(queue, "new")

    def fail(core: Core, *places: int) -> None:
        there = core.catalog.queues["a"]
        entries = list(there.messages)
        core.resources.release(there, [entries[place] for place in places], failed=True)

    fail(pair.backup, 0, 1)  # nobody else knows of these
    fail(pair.primary, 1, 4)
    pair.meet()
    fail(pair.primary, 0, 3, 4)
    pair.step()
    fail(pair.primary, 0, 3, 4)
    pair.finish()
    counts = [entry.delivery_count for entry in pair.backup.catalog.queues["a"].messages]
    assert counts == [2, 1, 0, 2, 3]


def test_a_message_in_several_queues_is_kept_in_memory_once() -> None:
    pair = Pair()
    core = pair.primary
    fanout = core.exchange("x", "fanout", core.queue("a"), core.queue("b"))
    core.publish(fanout, "held")
    pair.part()
    core.publish(fanout, "new")
    accept(pair.backup, "b", 0)
    pair.meet()
    pair.finish()
    a, b = pair.backup.catalog.queues["a"].messages, pair.backup.catalog.queues["b"].messages
    assert all(one.body is other.body for one, other in zip(a, b, strict=True))


def test_a_transaction_counts_as_a_whole_during_the_catch_up() -> None:
    pair, queue = pair_with(3)
    b = pair.primary.queue("b")
    pair.meet(max_messages=1)
    pair.step()
    pair.stream()
    transaction = transaction_of((queue, "new a"), (b, "new b"))
    for entry in list(queue.messages)[::2]:
        transaction.accept(queue, entry, None)
    pair.primary.resources.commit(transaction, NOW_MS)
    *parts, closing = pair.written()
    for part in parts:
        pair.catch_up.follow(part)
    assert "new a" not in held_by(pair.backup)
    assert held_by(pair.backup, "b") == []
    pair.catch_up.follow(closing)
    assert held_by(pair.backup, "b") == ["new b"]
    pair.finish()


def test_half_a_transaction_is_forgotten_when_the_primary_is_lost() -> None:
    pair, queue = pair_with(3)
    pair.meet()
    transaction = transaction_of((queue, "new"))
    transaction.accept(queue, next(iter(queue.messages)), None)
    pair.primary.resources.commit(transaction, NOW_MS)
    for part in pair.written()[:-1]:
        pair.catch_up.follow(part)
    pair.catch_up.abandon()
    assert held_by(pair.backup) == ["m0", "m1", "m2"]


def test_a_catch_up_that_came_to_nothing_is_not_for_nothing() -> None:
    pair, queue = pair_with(4)
    pair.primary.publish(queue, "5", "6", "7", "8")
    pair.meet()
    pair.step()
    accept(pair.primary, "a", 1)
    pair.stream()
    pair.catch_up.abandon()
    assert held_by(pair.backup) == ["m0", "m2", "m3", "7", "8"]
    pair.catch_up.check_invariants()
    pair.common_lsn = pair.backup.log.last_lsn
    pair.meet(max_messages=100)
    frame = pair.next()
    assert isinstance(frame, Chunk)
    assert frame.data.count(b";;") == 2  # the fifth and the sixth
    pair.take(frame)
    pair.finish()


def write_locally(core: Core, event: ev.Event) -> int:
    """What a broker keeps for itself."""
    return core.resources.sets.local.write(event)


def local_message(core: Core, queue_id: int, text: str) -> None:
    write_locally(core, ev.Enqueued((queue_id,), message(text).payload, False, 4, 0, ""))


def test_what_is_only_this_brokers_stays() -> None:
    pair, _ = pair_with(1)
    fanout = pair.primary.exchange("x", "fanout")
    pair.part()
    for core, text in ((pair.primary, "primary's"), (pair.backup, "backup's")):
        local = write_locally(core, ev.QueueDeclared("local", {}))
        write_locally(core, ev.Bound(fanout.id, local, text, {}))
        local_message(core, local, text)
    pair.primary.configuration.bind("x", "a", "", {})
    pair.primary.configuration.bind("x", "a", "primary's", {"qpid.replicate": "none"})
    pair.backup.configuration.bind("x", "a", "backup's", {"qpid.replicate": "none"})
    pair.meet()
    while not pair.step():
        pass
    assert held_by(pair.backup, "local") == ["backup's"]
    assert held_by(pair.backup) == held_by(pair.primary)
    assert [binding.key for binding in pair.backup.catalog.exchanges["x"].bindings()] == ["backup's", "backup's", ""]


def test_messages_of_a_queue_of_which_only_the_configuration_is_replicated_stay_where_they_are() -> None:
    pair, queue = pair_with()
    pair.primary.resources.replicated.write(ev.ReplicationChanged(queue.id, False))
    pair.part()
    local_message(pair.primary, queue.id, "primary's")
    local_message(pair.backup, queue.id, "backup's")
    pair.meet()
    assert isinstance(pair.next(), CaughtUp)
    assert held_by(pair.backup) == ["backup's"]
    assert not pair.discarded


@pytest.mark.parametrize("messages", [True, False])
def test_another_level_of_replication_before_the_catch_up_is_taken_over(messages: bool) -> None:
    pair, queue = pair_with(2)
    pair.primary.resources.replicated.write(ev.ReplicationChanged(queue.id, not messages))
    pair.part()
    pair.primary.resources.replicated.write(ev.ReplicationChanged(queue.id, messages))
    if messages:
        pair.primary.publish(queue, "new")
    pair.meet()
    pair.finish()


def test_another_level_of_replication_during_the_catch_up_is_taken_over() -> None:
    pair, queue = pair_with(6)
    pair.primary.publish(queue, "7", "8")
    pair.meet()
    pair.step()
    late = pair.next()
    pair.primary.resources.replicated.write(ev.ReplicationChanged(queue.id, False))
    pair.stream()
    pair.take(late)
    assert held_by(pair.backup) == []
    pair.finish()


def test_a_local_queue_makes_way_for_a_replicated_one_and_its_messages_are_given_out() -> None:
    pair = Pair()
    local_message(pair.backup, write_locally(pair.backup, ev.QueueDeclared("a", {})), "mine")
    pair.primary.publish(pair.primary.queue("a"), "everybody's")
    pair.meet()
    assert [(each.queue, len(each.payloads)) for each in pair.discarded] == [("a", 1)]
    pair.finish()
    assert held_by(pair.backup) == ["everybody's"]


def test_ten_thousand_gaps_are_told_in_several_frames() -> None:
    pair, queue = pair_with(70_000)
    pair.backup.resources.accept(pair.backup.catalog.queues["a"], list(pair.backup.catalog.queues["a"].messages)[::2])
    frames = list(CatchUp(pair.backup.resources.replicated, pair.common_lsn).holdings())
    assert {frame.queue for frame in frames} == {queue.id}
    assert len(frames) > 1
    assert sum(len(frame.ranges) for frame in frames) == 35_000
