"""Stories about numbered messages that reach others: backups, stores, the next primary. All know the same numbers."""

from __future__ import annotations

import pytest

from catchup_support import GENERATION, Pair
from kept_core import KeptCore, recovered
from model_support import NOW_MS, WITNESS, Core, bodies, replicated_picture, transaction_of
from numbered import dropped, known, numbered
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.types import Enqueued, ProducerAdvanced, TransactionCommitted
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.objects import ObjectsError, objects_frame, read_objects
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store.fold import fold
from small_cluster import TICK_S, Node, SmallCluster, three

# --- others who know


def test_who_followed_the_log_knows_the_same_numbers() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, numbered(1), numbered(2, "other"), numbered(3))
    core.resources.commit(transaction_of((queue, numbered(4)), (queue, numbered(7, "third"))), core.now_ms)
    backup = core.followed()
    backup.replicated.take_over(core.now_ms, 0)
    backup.publish(backup.catalog.queues["q"], numbered(4), core.now_ms)
    backup.publish(backup.catalog.queues["q"], numbered(5), core.now_ms)
    assert (backup.catalog.queues["q"].messages.count, dropped(backup)) == (6, 1)


def test_a_catch_up_by_difference_brings_the_numbers_and_takes_those_away_that_the_primary_never_had() -> None:
    pair = Pair()
    queue = pair.primary.queue("a")
    pair.primary.publish(queue, numbered(1), numbered(1, "both"))
    pair.part()
    pair.primary.publish(queue, numbered(2), numbered(5, "new"))
    pair.backup.publish(pair.backup.catalog.queues["a"], numbered(9), numbered(1, "lost"))
    pair.meet()
    pair.primary.publish(queue, numbered(3))
    pair.finish()
    assert known(pair.backup) == {"both": 1, "new": 5, "p": 3}
    pair.backup.publish(pair.backup.catalog.queues["a"], numbered(3))
    assert dropped(pair.backup) == 1


def test_a_primary_that_knows_nobody_since_it_was_promoted_by_force_makes_its_backups_forget_all() -> None:
    pair = Pair()
    pair.primary.publish(pair.primary.queue("a"), numbered(1))
    pair.part()
    pair.primary.state.producers.clear()
    pair.meet()
    pair.finish()
    assert known(pair.backup) == {}


def test_whom_the_primary_has_forgotten_meanwhile_a_catch_up_by_difference_takes_away() -> None:
    pair = Pair()
    queue = pair.primary.queue("a")
    pair.primary.publish(queue, numbered(1, "old"), numbered(1, "older"))
    pair.part()
    pair.primary.resources.deduplication.producers = 1
    pair.primary.publish(queue, numbered(1, "new"))
    pair.meet()
    pair.finish()
    assert known(pair.backup) == {"new": 1}


def test_with_messages_that_the_primary_never_had_their_producers_are_forgotten_until_it_has_told_its_own() -> None:
    pair = Pair()
    queue = pair.primary.queue("a")
    pair.primary.publish(queue, numbered(1), numbered(1, "both"))
    pair.part()
    pair.backup.publish(pair.backup.catalog.queues["a"], numbered(9))
    catch_up = CatchUp(pair.backup.resources.replicated, pair.common_lsn)
    catch_up.discard_after_common()
    assert known(pair.backup) == {"both": 1}
    catch_up.objects(objects_frame(pair.primary.state, GENERATION, pair.primary.log.last_lsn))
    assert known(pair.backup) == {"p": 1, "both": 1}


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([(2, b"a", 10), (1, b"b", 10)], "order"),
        ([(1, b"a", 10), (2, b"a", 10)], "twice"),
        ([(1, b"a", 1), (2, b"b", 1)], "kept"),
        ([(9, b"a", 10)], "nothing after"),
    ],
)
def test_a_table_of_numbers_that_no_primary_has_is_refused(records: list[tuple[int, bytes, int]], wrong: str) -> None:
    frame = objects_frame(Core().state, 1, 5)
    data = b"".join(encode(lsn, ProducerAdvanced(name, 1, kept)) for lsn, name, kept in records)
    with pytest.raises(ObjectsError, match=wrong):
        read_objects(frame._replace(data=frame.data + data))


# --- a broker's own log


def test_what_is_not_replicated_has_its_numbers_in_the_brokers_own_log() -> None:
    core = Core()
    local, queue = core.queue("local", replicate="none"), core.queue("q")
    core.publish(local, numbered(1))
    assert (known(core), core.sets.local.state.producers.sequence_of(b"p")) == ({}, 1)
    core.publish(queue, numbered(1))
    assert (queue.messages.count, dropped(core)) == (0, 1)
    core.publish(queue, numbered(2))
    core.publish(local, numbered(2))
    assert (local.messages.count, queue.messages.count, dropped(core)) == (1, 1, 2)
    core.check()


def test_without_a_witness_a_duplicate_in_the_own_log_is_known_too() -> None:
    core = Core(Resources(Core().resources._reader), witness=False)
    local = core.queue("local", replicate="none")
    core.publish(local, numbered(1), numbered(1))
    assert (local.messages.count, dropped(core)) == (1, 1)


def test_of_a_message_for_both_logs_the_number_is_written_once_and_last() -> None:
    """Between the two the log may end: better twice in a queue of this broker alone than in none."""
    core = Core()
    core.resources.sets.local_log.add_witness(WITNESS)
    local, queue = core.queue("local", replicate="none"), core.queue("q")
    exchange = core.exchange("e", "fanout", local, queue)
    core.read()
    core.resources.sets.local_log.take_parts()
    before = core.log.last_lsn
    core.publish(exchange, numbered(1), numbered(1))
    (part,) = core.resources.sets.local_log.take_parts()
    assert part.after_lsn == before, "the own log comes first"
    assert [type(event) for event in core.read()] == [Enqueued, ProducerAdvanced, TransactionCommitted]
    assert (local.messages.count, queue.messages.count, len(core.sets.local.state.producers)) == (1, 1, 0)


# --- the store


def test_a_restart_from_the_store_knows_numbers_and_messages_alike() -> None:
    core = KeptCore()
    queue, local = core.queue("q"), core.queue("local", replicate="none")
    core.publish(queue, numbered(1), numbered(2), numbered(1, "other"), "not kept")
    core.publish(local, numbered(8, "third"))
    core.keep()
    resources, _ = recovered(core.disk)
    assert bodies(resources.catalog.queues["q"].messages) == ["p1", "p2", "other1"]
    for each, name in ((numbered(2), "q"), (numbered(1, "other"), "q"), (numbered(8, "third"), "local")):
        resources.publish(resources.catalog.queues[name], each, core.now_ms)
    assert dropped(resources) == 3


def test_a_snapshot_has_the_numbers_whoever_made_it_in_the_order_of_their_events() -> None:
    core = KeptCore()
    queue, local = core.queue("q"), core.queue("local", replicate="none")
    core.publish(queue, *[numbered(sequence, name) for sequence in (1, 2) for name in "cab"], numbered(3, "c"))
    core.publish(local, numbered(1, "local"))
    dump, number = core.begin_dump()
    core.write_dump(dump, number, list(iter(lambda: dump.next(1000), None)))
    core.journal.drop_before(number)
    core.publish(queue, numbered(4, "c"), numbered(1, "new"))
    core.keep()
    upto = core.journal.roll()
    check_numbers(core, b"a", b"b", b"c", b"new")
    fold(core.disk, upto, core.journal.identity)
    core.journal.drop_before(upto)
    check_numbers(core, b"a", b"b", b"c", b"new")


def check_numbers(core: KeptCore, *names: bytes) -> None:
    default, local = (each.state.producers for each in recovered(core.disk)[0].sets.all)
    assert [name for name, _ in default.items()] == list(names)
    assert default.items() == core.state.producers.items()
    assert local.items() == core.sets.local.state.producers.items() != []
    assert all(advance.lsn >= LOCAL_BASE for _, advance in local.items())


def test_a_unit_that_the_end_of_the_journal_cut_short_leaves_neither_message_nor_number() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, numbered(1), numbered(2))
    core.read()
    backup = Resources(core.resources._reader)
    for record in core.records[:-1]:
        backup.replicated.follow([record])
    backup.replicated.take_over(core.now_ms, 0)
    assert (backup.catalog.queues["q"].messages.count, backup.replicated.state.producers.sequence_of(b"p")) == (1, 1)
    backup.publish(backup.catalog.queues["q"], numbered(2), core.now_ms)
    assert bodies(backup.catalog.queues["q"].messages) == ["p1", "p2"]


def test_replicas_that_disagree_about_a_number_are_seen_to_differ() -> None:
    core, other = Core(), Core()
    for each, sequence in ((core, 1), (other, 2)):
        each.publish(each.queue("q"), numbered(sequence, text="same"))
    assert replicated_picture(core.sets) != replicated_picture(other.sets)


# --- a cluster


def publish_numbered(node: Node, *sequences: int) -> int:
    lsn = 0
    for sequence in sequences:
        lsn = node.resources.publish(node.resources.catalog.queues["q"], numbered(sequence), NOW_MS).lsn
    return lsn


def test_the_next_primary_knows_what_was_sent_to_the_last_one_and_confirms_it_only_when_all_have_it() -> None:
    cluster = three()
    cluster["a"].declare("q")
    cluster.run()
    cluster.cut("c", "a", "b")
    publish_numbered(cluster["a"], 1, 2, 3)
    cluster.run()
    cluster.kill("a")
    assert cluster.promote("b").done
    lsn = publish_numbered(cluster["b"], 1, 2, 3)
    cluster.run()
    assert dropped(cluster["b"].resources) == 3
    assert cluster["b"].committed < lsn
    cluster.heal()
    cluster.settle()
    assert cluster["b"].committed >= lsn
    assert cluster["c"].bodies("q") == ["p1", "p2", "p3"]


def promoted_by_force_in_the_middle_of_a_catch_up() -> SmallCluster:
    """`c` has some of ten messages, `b` has all of them and cannot be reached; there is no other broker any more."""
    cluster = three(chunk_messages=1, chunks_ahead=1, tail_bytes=200)
    cluster["a"].declare("q")
    publish_numbered(cluster["a"], *range(10))
    cluster.settle()
    cluster.kill("c")
    node = cluster.start("c")
    for _ in range(1000):
        if 0 < len(node.bodies("q")) < 10:
            break
        if not [each for each in cluster.nodes.values() if each.step()]:
            cluster.now_s += TICK_S
            for each in cluster.nodes.values():
                each.feed(fx.Ticked())
    assert node.resources.replicated.state.producers.sequence_of(b"p") == 9
    cluster.kill("a")
    cluster.cut("b", "c")
    assert cluster.promote("c", force=True).done
    return cluster


def test_who_is_promoted_by_force_in_the_middle_of_a_catch_up_knows_no_numbers() -> None:
    """Of the messages some are not there: better twice than never."""
    node = promoted_by_force_in_the_middle_of_a_catch_up()["c"]
    assert len(node.resources.replicated.state.producers) == 0
    before = len(node.bodies("q"))
    publish_numbered(node, *range(10))
    assert len(node.bodies("q")) == before + 10


def test_who_comes_back_to_one_that_was_promoted_by_force_is_compared_with_it() -> None:
    """The logs are the same up to there, but what the primary holds does not follow from its log."""
    cluster = promoted_by_force_in_the_middle_of_a_catch_up()
    left = cluster["c"].bodies("q")
    cluster.heal()
    cluster.settle()
    assert cluster["b"].is_in(State.READY)
    assert cluster["b"].bodies("q") == left
    assert len(cluster["b"].resources.replicated.state.producers) == 0
