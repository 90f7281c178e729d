"""The limitations that seed 000 names for its design, LM1 to LM5 and LC2 to LC6: each does not hold here.

Here are those that nothing else shows. The others, and where they are shown:

- LM1, what a new primary lacks: the golden stories 9, 20 and 25 (tests/golden/ha)
- LM3, transactions on a replica: `test_following`, and in a catch-up `test_catchup`
- LM4, what a consumer accepted: the golden story 3
- LM6, the choice of the best store: `test_store_best`
- LC2, queues made by addresses and commands: the golden stories 3 and 11, `test_following`, and `test_container`
- LC3 and LC6, deletions while a backup is away or catches up: `test_catchup`
- LC5, levels of replication: `test_replication_levels`
"""

from __future__ import annotations

from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.ha.history import common_lsn, problem
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
