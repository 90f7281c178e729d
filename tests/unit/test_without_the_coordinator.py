"""What works while the coordinator is away, and what does not: the rows of the table in docs/coordinators.md."""

from __future__ import annotations

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from small_cluster import SmallCluster


@pytest.fixture
def cluster() -> SmallCluster:
    """Three brokers in sync, led by a, with a queue; the coordinator does not answer any more."""
    made = SmallCluster("a", "b", "c", has_coordinator=True, backup_timeout_s=2.0)
    assert made.promote("a").done
    made.settle()
    made["a"].declare("q")
    made.settle()
    made.record_is_reachable = False
    return made


def primaries(cluster: SmallCluster) -> list[str]:
    return [name for name, node in cluster.nodes.items() if node.is_in(State.PRIMARY)]


def test_messages_and_queues_are_confirmed_while_all_in_sync_are_there(cluster: SmallCluster) -> None:
    a = cluster["a"]
    a.declare("another")
    lsn = a.publish("q", "1")
    cluster.wait(1)
    assert a.committed >= lsn


def test_a_backup_that_dies_stops_confirmations_until_the_coordinator_is_back(cluster: SmallCluster) -> None:
    a = cluster["a"]
    cluster.kill("c")
    lsn = a.publish("q", "1")
    cluster.wait(10)
    assert a.committed < lsn
    cluster.record_is_reachable = True
    cluster.wait(6)
    assert a.committed >= lsn


def test_nobody_is_promoted_by_force_or_otherwise(cluster: SmallCluster) -> None:
    cluster.kill("a")
    cluster.wait(1)
    for force in (False, True):
        refused = cluster.promote("b", force=force)
        assert (refused.done, "cannot be reached" in refused.text) == (False, True)
    cluster.record_is_reachable = True
    assert cluster.promote("b").done


def test_a_switchover_comes_to_nothing_and_the_primary_stays(cluster: SmallCluster) -> None:
    assert not cluster.switch_over("a", "b").done
    assert primaries(cluster) == ["a"]


def test_a_demotion_leaves_nobody_who_leads(cluster: SmallCluster) -> None:
    assert cluster.demote("a").done
    cluster.wait(1)
    assert primaries(cluster) == []


def test_the_whole_cluster_can_be_shut_down(cluster: SmallCluster) -> None:
    cluster["a"].feed(fx.ShutdownAsked(77, "0" * 32))
    cluster.settle()
    assert cluster["a"].answers[77].done
