"""`ha.placement: ring` with real brokers: the backups of a set are those after its primary, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from running_cluster import ClusterFailed, RunningCluster
from sets_cluster import SetTraffic, change, create_queue, create_set, sets_of, wait_whole

SETS = ("one", "two", "three", "four")
"""By the broker that should lead each."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Four brokers, the first of which leads `default`; each set has its primary and the broker after that."""
    ha = {"placement": "ring", "min-replicas": 2, "failure-timeout": "1s", "replica-check-interval": "500ms"}
    with RunningCluster(tmp_path, 4, settings={"ha": ha}) as cluster:
        cluster.form()
        yield cluster


def brokers_of(cluster: RunningCluster) -> dict[str, bool]:
    """Of each broker in the map whether it is up."""
    return {row["name"]: row["up"] for row in cluster.broker(0).ask("brokers")["answer"]}


def ring_of(cluster: RunningCluster) -> dict[str, set[int]]:
    """Of each set the brokers that have a replica, by number from 1."""
    names = [broker.name for broker in cluster.brokers]
    return {
        name: {names.index(broker) + 1 for broker in found["replicas"]}
        for name, found in sets_of(cluster.broker(0)).items()
    }


def wait_ring(cluster: RunningCluster, **wanted: set[int]) -> None:
    """Until these replicas are there, and no others."""
    try:
        cluster.wait_until(lambda: ring_of(cluster) == wanted, f"replicas are {wanted}")
    except ClusterFailed as failed:
        failed.add_note(f"they are {ring_of(cluster)}")
        raise
    wait_whole(cluster, 0, *wanted)


def test_a_broker_that_is_put_in_between_takes_over_what_it_should_and_its_neighbours_let_go_of_it(
    cluster: RunningCluster,
) -> None:
    names = [broker.name for broker in cluster.brokers]
    create_set(cluster, "one", preferred=names[0])
    cluster.kill(2)
    cluster.wait_until(lambda: not brokers_of(cluster)[names[2]], f"{names[2]} is down")
    change(cluster, 0, "brokers", "forget", name=names[2])
    for number in (1, 3):
        create_set(cluster, SETS[number], preferred=names[number])
    wait_ring(cluster, one={1, 2}, two={2, 4}, four={4, 1})
    create_queue(cluster, 0, "q", "two")

    with SetTraffic(cluster, "q") as traffic:
        traffic.wait_confirmed(50)
        cluster.restart(2)
        wait_ring(cluster, one={1, 2}, two={2, 3}, four={4, 1})
        create_set(cluster, "three", preferred=names[2])
        wait_ring(cluster, one={1, 2}, two={2, 3}, three={3, 4}, four={4, 1})
        traffic.wait_confirmed(50)
        traffic.settle()
