"""The maintained replica count: the scenarios of its design with five real brokers, under load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qpid_ha_agent.control import RequestRefused
from running_cluster import RunningCluster
from sets_cluster import SetTraffic, change, create_queue, create_set, sets_of, wait_whole

A, B, C, D, E = range(5)
ZONES = ("north", "south", "west", "west", "north")
RECOVERY_S = 6.0
"""More than a broker takes to come back on a busy machine."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """A leads `default`; the set `qq` is on A, B and C, and wants three replicas."""
    ha = {"failure-timeout": "1s", "failure-recovery-interval": f"{RECOVERY_S:g}s", "replica-check-interval": "500ms"}
    own = [{"ha.zone": zone} for zone in ZONES]
    with RunningCluster(tmp_path, 5, settings={"ha": ha}, own_settings=own) as cluster:
        cluster.form()
        replicas = [cluster.broker(number).name for number in (A, B, C)]
        create_set(cluster, "qq", replicas=replicas, min_replicas=3, preferred=replicas[1])
        wait_whole(cluster, A, "qq")
        create_queue(cluster, A, "q", "qq")
        yield cluster


def replicas_of(cluster: RunningCluster) -> set[int]:
    """By index."""
    names = [broker.name for broker in cluster.brokers]
    return {names.index(name) for name in sets_of(cluster.broker(A)).get("qq", {}).get("replicas", {})}


def wait_broker(cluster: RunningCluster, number: int, state: str) -> None:
    """Until the controller says that of a broker."""
    name = cluster.broker(number).name

    def is_so() -> bool:
        rows = cluster.broker(A).ask("brokers")["answer"]
        return any(row["name"] == name and row["state"] == state for row in rows)

    cluster.wait_until(is_so, f"{name} is {state}")


def test_one_a_broker_that_was_removed_is_made_up_for_in_its_zone(cluster: RunningCluster) -> None:
    with SetTraffic(cluster, "q") as traffic:
        traffic.wait_confirmed(50)
        cluster.kill(C)
        wait_broker(cluster, C, "down")
        change(cluster, A, "brokers", "forget", name=cluster.broker(C).name)
        wait_whole(cluster, A, "qq")
        assert replicas_of(cluster) == {A, B, D}  # no other one is in a zone of its own
        traffic.wait_confirmed(100)
        traffic.settle()


def test_two_what_an_operator_adds_beside_it_stays(cluster: RunningCluster) -> None:
    with SetTraffic(cluster, "q") as traffic:
        traffic.wait_confirmed(50)
        cluster.kill(C)
        wait_broker(cluster, C, "down")
        for broker in (D, E):
            change(cluster, A, "sets", "add-replica", name="qq", broker=cluster.broker(broker).name)
        wait_whole(cluster, A, "qq")
        time.sleep(RECOVERY_S + 2.0)  # C is not waited for any more, and the checks find nothing to do
        assert replicas_of(cluster) >= {A, B, D, E}
        wait_whole(cluster, A, "qq")
        traffic.wait_confirmed(100)
        traffic.settle()


def test_three_a_broker_that_comes_back_in_time_is_not_made_up_for(cluster: RunningCluster) -> None:
    with SetTraffic(cluster, "q") as traffic:
        traffic.wait_confirmed(50)
        cluster.kill(C)
        wait_broker(cluster, C, "down")
        cluster.restart(C)
        wait_whole(cluster, A, "qq")
        time.sleep(RECOVERY_S + 1.0)
        assert replicas_of(cluster) == {A, B, C}
        traffic.wait_confirmed(100)
        traffic.settle()


def test_a_broker_is_drained_under_load_and_may_be_stopped_then(cluster: RunningCluster) -> None:
    name = cluster.broker(B).name
    with SetTraffic(cluster, "q") as traffic:
        traffic.wait_confirmed(50)
        change(cluster, D, "brokers", "drain", name=name)

        wait_broker(cluster, B, "drained")
        assert B not in replicas_of(cluster)
        cluster.kill(B)
        traffic.wait_confirmed(100)
        traffic.settle()


def test_a_drain_that_would_leave_too_few_is_refused(cluster: RunningCluster) -> None:
    for number in (D, E):
        change(cluster, A, "brokers", "drain", name=cluster.broker(number).name)
    with pytest.raises(RequestRefused) as raised:
        change(cluster, A, "brokers", "drain", name=cluster.broker(C).name)
    assert "too few for 1 sets (qq wants 3)" in raised.value.message
