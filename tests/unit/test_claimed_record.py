"""The record of a generation: claimed by the promotion, and begun once its first events are committed."""

from __future__ import annotations

from collections import deque

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.states import State
from small_cluster import Node, SmallCluster, three

PATROL_S = 11.0


def records_of_a_promotion() -> tuple[SmallCluster, deque[tuple[Node, fx.RecordWritten]]]:
    """`a` led and died, `b` is about to be recorded; the coordinator's answers wait in a queue."""
    cluster = three(has_coordinator=True)
    cluster.kill("a")
    cluster.wait(1.0)
    answers = cluster.record_answers = deque[tuple[Node, fx.RecordWritten]]()
    cluster["b"].feed(fx.PromoteAsked(1))
    cluster.run()
    return cluster, answers


def record_of(cluster: SmallCluster) -> ClusterRecord:
    assert cluster.record is not None
    return cluster.record


def test_it_is_only_claimed_as_long_as_not_all_in_sync_hold_its_beginning() -> None:
    cluster, answers = records_of_a_promotion()
    cluster["c"].paused = True
    (node, answer) = answers.popleft()
    node.feed(answer)
    cluster.run()
    cluster.wait(0.5)
    assert cluster["b"].state is State.PRIMARY
    assert record_of(cluster).claimed

    cluster["c"].paused = False
    cluster.run()

    assert not record_of(cluster).claimed


def test_nobody_waits_for_that_record() -> None:
    """A backup is lost while it is on its way: the departure is recorded at once, and confirmed."""
    cluster, answers = records_of_a_promotion()
    (node, answer) = answers.popleft()
    node.feed(answer)
    cluster.run()
    begun = answers.popleft()[1]  # held back
    cluster.kill("c")
    cluster.wait(1.0)
    cluster.let_record_answers_come()
    lsn = cluster["b"].declare("orders").id
    cluster.settle()

    assert record_of(cluster).members == ("b",)
    assert cluster["b"].committed >= lsn
    cluster["b"].feed(begun)  # late
    cluster.settle()
    assert (record_of(cluster).members, record_of(cluster).claimed) == (("b",), False)


def test_one_that_is_lost_is_written_again_and_complains_to_nobody() -> None:
    cluster, answers = records_of_a_promotion()
    (node, answer) = answers.popleft()
    cluster.record_is_reachable, cluster.record_answers = False, None
    node.feed(answer)
    cluster.settle()
    assert cluster["b"].state is State.PRIMARY
    assert record_of(cluster).claimed
    assert not [text for text in cluster["b"].notices if "cannot be recorded" in text]

    cluster.record_is_reachable = True
    cluster.wait(3.0)

    assert not record_of(cluster).claimed


def test_a_record_that_says_claimed_again_is_written_anew() -> None:
    """It was put back from a copy of the moment before: whoever was promoted since would be forgotten."""
    cluster = three(has_coordinator=True)
    begun = record_of(cluster)
    assert not begun.claimed
    cluster.record = begun._replace(claimed=True)

    cluster.wait(PATROL_S)

    assert record_of(cluster) == begun
    assert any("was lost, or an old one" in text for text in cluster["a"].notices)
