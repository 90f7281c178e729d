"""The limitations that seed 000 names for its design, LM1 to LM5 and LC2 to LC6: each does not hold here.

LM6, the choice of the best store, belongs to the store. LM1, what a new primary lacks, is told by the golden stories 9,
20 and 25, and LM4, what a consumer accepted, by story 3 (tests/golden/ha).
"""

from __future__ import annotations

from model_support import message
from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.ha.history import common_lsn, problem
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.transaction import Publish, Transaction
from small_cluster import three

LARGEST = 2**64 - 1


def test_lm2_the_last_lsns_of_64_bits_are_as_good_as_any() -> None:
    history = [GenerationEntry(1, "a", 1), GenerationEntry(2, "b", LARGEST - 10)]
    assert problem(history, LARGEST) == ""
    assert common_lsn(history, LARGEST, history, LARGEST - 5) == LARGEST - 5


def test_lm2_a_million_messages_a_second_do_not_use_up_the_lsns_in_a_hundred_thousand_years() -> None:
    local_ids_begin = 1 << 63
    assert local_ids_begin / 1_000_000 / (365.25 * 24 * 3600) > 100_000


def test_lm2_the_same_lsn_in_two_generations_is_not_the_same_event() -> None:
    mine = [GenerationEntry(1, "a", 1), GenerationEntry(2, "b", 100)]
    theirs = [GenerationEntry(1, "a", 1), GenerationEntry(3, "c", 90)]
    assert common_lsn(mine, 5000, theirs, 6000) == 89
    other_author = [GenerationEntry(1, "a", 1), GenerationEntry(2, "c", 100)]
    assert common_lsn(mine, 5000, other_author, 5000) == 99


def test_lm3_a_transaction_is_on_a_replica_whole_or_not_at_all() -> None:
    cluster = three()
    a = cluster["a"]
    one, two = a.declare("one"), a.declare("two")
    a.publish("one", "to be moved")
    cluster.settle()
    transaction = Transaction()
    (entry,) = a.take("one", 1)
    transaction.accept(one, entry, None)
    transaction.publish(Publish(two, message("moved"), ""))
    a.resources.commit(transaction, 0)
    for name in "bc":  # before the turn's batch is there: nothing of it
        assert (cluster[name].bodies("one"), cluster[name].bodies("two")) == (["to be moved"], [])
    cluster.settle()
    for name in "abc":
        assert (cluster[name].bodies("one"), cluster[name].bodies("two")) == ([], ["moved"])


def test_lm3_half_a_transaction_that_reached_a_backup_never_happened_for_the_next_primary() -> None:
    cluster = three()
    a = cluster["a"]
    one = a.declare("one")
    a.declare("two")
    cluster.settle()
    cluster.cut("a", "b", "c")
    transaction = Transaction()
    for body in ("first", "second"):
        transaction.publish(Publish(one, message(body), ""))
    a.resources.commit(transaction, 0)
    cluster.run()
    cluster.kill("a")
    assert cluster.promote("b").done
    cluster.settle()
    assert cluster["b"].bodies("one") == []


def test_lm5_what_is_published_during_a_failover_is_confirmed_only_when_the_replicas_have_it() -> None:
    cluster = three()
    cluster["a"].declare("q")
    cluster.settle()
    cluster.kill("a")
    cluster.cut("b", "c")
    b = cluster["b"]
    assert cluster.promote("b").done
    lsn = b.publish("q", "too early")
    cluster.wait(2)
    assert str(b.member.status.phase) == "recovering"
    assert b.committed < lsn
    cluster.heal()
    cluster.settle()
    assert str(b.member.status.phase) == "active"
    assert b.committed >= lsn
    assert cluster["c"].bodies("q") == ["too early"]


def test_lm5_a_second_failure_during_the_failover_loses_nothing_that_was_confirmed() -> None:
    cluster = three()
    cluster["a"].declare("q")
    cluster["a"].publish("q", "confirmed by a")
    cluster.settle()
    cluster.kill("a")
    assert cluster.promote("b").done
    lsn = cluster["b"].publish("q", "confirmed by b")
    cluster.settle()
    assert cluster["b"].committed >= lsn
    cluster.kill("b")
    assert cluster.promote("c").done
    assert cluster["c"].bodies("q") == ["confirmed by a", "confirmed by b"]


def test_lc2a_a_queue_that_an_address_created_is_there_after_a_failover_with_its_messages() -> None:
    cluster = three()
    a = cluster["a"]
    a.declare("by-address", auto_delete=False)
    a.publish("by-address", "1")
    cluster.settle()
    cluster.kill("a")
    assert cluster.promote("b").done
    assert cluster["b"].bodies("by-address") == ["1"]
    assert cluster["b"].declare("by-address", auto_delete=False) is cluster["b"].resources.catalog.queues["by-address"]


def test_lc2b_an_administrator_can_ask_a_backup_whether_the_configuration_has_come() -> None:
    cluster = three()
    cluster["a"].declare("made")
    cluster["a"].configuration.declare_exchange("x", "topic", {})
    cluster["a"].configuration.bind("x", "made", "key.#", {})
    cluster.settle()
    for name in "bc":
        there = cluster[name].resources.catalog
        assert "made" in there.queues
        assert [binding.key for binding in there.exchanges["x"].bindings()] == ["key.#"]


def test_lc2c_the_completion_of_a_command_means_that_every_broker_in_sync_has_carried_it_out() -> None:
    cluster = three()
    a = cluster["a"]
    cluster.cut("a", "c")
    a.declare("made")
    lsn = a.resources.default.log.last_lsn
    cluster.run()
    assert a.committed < lsn
    cluster.heal()
    cluster.settle()
    assert a.committed >= lsn
    assert "made" in cluster["c"].resources.catalog.queues


def test_lc3_what_was_deleted_while_a_backup_was_away_is_deleted_there_when_it_is_back() -> None:
    cluster = three(tail_bytes=1)  # nothing is kept: it has to compare
    a = cluster["a"]
    for name in ("stays", "goes"):
        a.declare(name)
    a.configuration.declare_exchange("goes-too", "topic", {})
    a.publish("goes", "1")
    cluster.settle()
    cluster.cut("a", "c")
    cluster.wait(15)
    a.configuration.delete_queue("goes")
    a.configuration.delete_exchange("goes-too")
    a.publish("stays", "2")
    cluster.settle()
    cluster.heal()
    cluster.settle()
    there = cluster["c"].resources.catalog
    assert cluster["c"].is_in(State.READY)
    assert (list(there.queues), "goes-too" in there.exchanges) == (["stays"], False)
    assert cluster["c"].bodies("stays") == ["2"]


def test_lc4_an_object_that_only_a_backup_knew_of_is_gone_when_the_new_primary_lacks_it() -> None:
    cluster = three()
    cluster.cut("a", "b")
    cluster["a"].declare("only-at-c")
    cluster.run()
    cluster.kill("a")
    assert cluster.promote("b").done
    cluster.settle()
    for name in "bc":
        assert "only-at-c" not in cluster[name].resources.catalog.queues


def test_lc5_queues_and_bindings_are_replicated_as_far_as_they_say() -> None:
    cluster = three()
    a = cluster["a"]
    for level in ("none", "configuration", "messages"):
        a.declare(level, replicate=level)
        a.publish(level, "1")
        a.configuration.bind("amq.fanout", level, "", {})
    a.configuration.bind("amq.direct", "messages", "kept", {})
    a.configuration.bind("amq.direct", "messages", "local", {"qpid.replicate": "none"})
    cluster.settle()
    there = cluster["b"].resources.catalog
    assert sorted(there.queues) == ["configuration", "messages"]
    assert (cluster["b"].bodies("configuration"), cluster["b"].bodies("messages")) == ([], ["1"])
    assert len(there.exchanges["amq.fanout"].bindings()) == 2
    assert [binding.key for binding in there.exchanges["amq.direct"].bindings()] == ["kept"]


def test_lc6_a_deletion_in_the_middle_of_a_catch_up_is_not_lost_to_it() -> None:
    cluster = three(tail_bytes=1, chunk_messages=1, chunks_ahead=1)
    a = cluster["a"]
    for name in ("one", "two", "three"):
        a.declare(name)
        a.publish(name, *"12345")
    cluster.settle()
    cluster.kill("c")
    cluster.run()
    cluster.start("c")
    cluster["c"].step()  # it looks for the primary
    for _ in range(25):
        for name in "acb":
            cluster[name].step()
    assert cluster["c"].is_in(State.CATCHUP)
    a.configuration.delete_queue("three")
    a.configuration.delete_queue("two")
    a.declare("two")
    a.consume("one", 2)
    cluster.settle()
    assert cluster["c"].is_in(State.READY)
    assert list(cluster["c"].resources.catalog.queues) == ["one", "two"]
    assert (cluster["c"].bodies("one"), cluster["c"].bodies("two")) == (list("345"), [])
