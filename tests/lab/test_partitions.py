"""The network is cut: around the primary, around a backup, in one direction only; with fencing, and without.

Whoever is cut off may be primary for a moment longer, without fencing beside another one. So a second producer sits on
the machine that is cut off, connected to the broker's own address, and what it was told is safe has to be there in the
end, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from lab.cluster import Cluster
from lab.generations import history, record, wait_agreed
from lab.load import Load
from lab.plan import AMQP_PORT, SERVICE_URL
from qpid_ha_broker.ha.cluster_record import ClusterRecord

Cut = Callable[[Cluster, str], None]
REST_LIMIT_S = 120.0


def both_ways(cluster: Cluster, node: str) -> None:
    """It is alone."""
    cluster.lab.cut_off(node)


def outgoing(cluster: Cluster, node: str) -> None:
    """It hears everybody, and nobody of the cluster hears it; the clients do."""
    for other in cluster.lab.plan.members:
        if other != node:
            cluster.lab.cut(node, other)


EACH_CUT = pytest.mark.parametrize("cut", [both_ways, outgoing])


@pytest.fixture
def unfenced_cluster(cluster: Cluster) -> Cluster:
    """Nobody makes sure that a lost node is off. Afterwards the lab puts that right again."""
    cluster.set_property("stonith-enabled", "false")
    return cluster


class BesideIt(Load):
    """A producer on the very machine that is cut off, which sees the network as that machine does.

    It knows the broker's own address, and the virtual one for when it is sent away from there.
    """

    def __init__(self, cluster: Cluster, node: str) -> None:
        url = f"amqp://{cluster.lab.plan.address(node)}:{AMQP_PORT},{SERVICE_URL}"
        super().__init__(cluster.lab, f"beside-{node}", url=url, machine=node, consume=False)


def times_fenced(cluster: Cluster, node: str) -> set[str]:
    """As all others know it: one that was off itself may miss some."""
    return set().union(*(cluster.view(other).times_fenced(node) for other in others(cluster, node)))


@EACH_CUT
def test_the_primary_that_is_cut_off_is_fenced_and_replaced(cluster: Cluster, load: Load, cut: Cut) -> None:
    before = wait_agreed(cluster)
    fenced_before = times_fenced(cluster, before.primary)
    load.wait_confirmed(100)

    cut_s = time.monotonic()
    cut(cluster, before.primary)

    successor = cluster.wait_promoted(*others(cluster, before.primary))
    # Those who fenced tell the others, who may hear of it after the promotion.
    cluster.wait(lambda: times_fenced(cluster, before.primary) - fenced_before, f"{before.primary} was fenced")
    load.recovered_after(cut_s)
    load.wait_confirmed(100)
    cluster.lab.heal()
    cluster.wait_well(REST_LIMIT_S)
    check_one_failover(cluster, before, successor)


@EACH_CUT
def test_without_fencing_the_primary_that_is_cut_off_steps_down_and_what_it_confirmed_is_kept(
    unfenced_cluster: Cluster, load: Load, cut: Cut
) -> None:
    """For a moment there may be two. Only one of them has backups that follow it."""
    cluster = unfenced_cluster
    before = wait_agreed(cluster)
    with BesideIt(cluster, before.primary) as beside:
        beside.wait_confirmed(100)
        load.wait_confirmed(100)

        cut_s = time.monotonic()
        cut(cluster, before.primary)

        successor = cluster.wait_promoted(*others(cluster, before.primary))
        cluster.wait(lambda: cluster.state(before.primary) == "connecting", "the loser steps down")
        cluster.wait(lambda: not cluster.has_address(before.primary), "the loser gives the virtual address away")
        told = beside.confirmed()
        load.recovered_after(cut_s)
        load.wait_confirmed(200)
        assert beside.confirmed() == told, "who is cut off confirms nothing"
        cluster.lab.heal()
        cluster.wait_well(REST_LIMIT_S)
        beside.wait_confirmed(100)
        account = beside.finish()
    assert account.complaints() == [], str(account)
    check_one_failover(cluster, before, successor)


@EACH_CUT
def test_a_backup_that_is_cut_off_costs_no_failover(unfenced_cluster: Cluster, load: Load, cut: Cut) -> None:
    """With fencing, it loses its power: test_nodes.py."""
    cluster = unfenced_cluster
    before = wait_agreed(cluster)
    lost, other = cluster.backups()
    load.wait_confirmed(100)

    cut(cluster, lost)

    cluster.wait(
        lambda: set(record(cluster, before.primary).members) == {before.primary, other}, "the record lets it go"
    )
    load.wait_confirmed(200)
    assert cluster.state(lost) != "primary"
    cluster.lab.heal()
    cluster.wait_well(REST_LIMIT_S)
    after = wait_agreed(cluster)
    assert (after.generation, after.primary) == (before.generation, before.primary)
    load.wait_confirmed(100)


def others(cluster: Cluster, node: str) -> list[str]:
    """All members but one."""
    return [member for member in cluster.lab.plan.members if member != node]


def check_one_failover(cluster: Cluster, before: ClusterRecord, successor: str) -> None:
    """The record and every history tell of it, and of no other."""
    after = wait_agreed(cluster)
    assert (after.cluster, after.primary) == (before.cluster, successor)
    since = [each for each in history(cluster, successor) if each["generation"] > before.generation]
    assert [(each["primary"], each["forced"]) for each in since] == [(successor, False)]
