"""Five real brokers and a second set: three are in sync with `default`, the others observe, and take over places."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from qpid_ha_agent.control import ControlFailure, RequestRefused
from qpid_ha_demo.cluster import Facts
from running_cluster import RunningCluster
from sets_cluster import SetTraffic, change, create_queue, create_set, wait_whole

ZONES = ("x", "x", "y", "y", "z")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    own = [{"ha.zone": zone} for zone in ZONES]
    with RunningCluster(tmp_path, len(ZONES), settings={"ha": {"failure-timeout": "1s"}}, own_settings=own) as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred=cluster.broker(1).name)
        wait_whole(cluster, 0, "orders")
        wait_in_step(cluster)
        yield cluster


def wait_in_step(cluster: RunningCluster, running: int = len(ZONES)) -> None:
    """Until three are in sync, and the others observe."""
    wanted = sorted(["primary", "ready", "ready", *["observer"] * (running - 3), *["down"] * (len(ZONES) - running)])
    cluster.wait_until(lambda: sorted(cluster.states()) == wanted, f"the states are {wanted}")


def in_sync(cluster: RunningCluster, by: int) -> list[int]:
    """Who is in sync with `default`, as that broker says, by index."""
    names = [broker.name for broker in cluster.brokers]
    return sorted(names.index(name) for name in cluster.status(by)["members"])


def test_one_broker_of_each_zone_is_in_sync_and_observers_lead_sets_and_know_the_map(cluster: RunningCluster) -> None:
    _, second, third = in_sync(cluster, 0)  # of the two of a zone, whoever was ready first
    assert [ZONES[index] for index in (0, second, third)] == ["x", "y", "z"]
    observer = {2: 3, 3: 2}[second]
    assert "3 are enough" in cluster.status(1)["observes"]
    assert "observes" not in cluster.status(0)
    with pytest.raises(RequestRefused, match="in-sync set"):
        cluster.promote(1)
    create_queue(cluster, 0, "q", "orders")
    with SetTraffic(cluster, "q") as traffic:
        traffic.wait_confirmed(50)
        with cluster.paused(observer):  # nobody waits for it
            create_queue(cluster, 0, "q2", "orders")
        cluster.kill(second)
        now = sorted([0, observer, third])
        cluster.wait_until(lambda: in_sync(cluster, 0) == now, "the other one of that zone is in sync")
        cluster.kill(0)
        cluster.promote(observer)
        wait_in_step(cluster, 3)
        assert in_sync(cluster, observer) == sorted([1, observer, third])
        traffic.wait_confirmed(50)
        cluster.restart(0)
        cluster.restart(second)
        wait_in_step(cluster)
        assert in_sync(cluster, observer) == sorted([1, observer, third])
        traffic.wait_confirmed(50)
        traffic.settle()


def brokers_of(cluster: RunningCluster, by: int) -> dict[str, Facts]:
    """The brokers of the map, as that broker tells, by name."""
    try:
        rows = cluster.broker(by).ask("brokers", action="list")["answer"]
    except ControlFailure:
        return {}
    return {row["name"]: row for row in rows}


def test_a_broker_that_joins_without_data_observes_and_is_in_the_map_after_all_were_stopped(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, 4, stores=tmp_path / "stores") as cluster:
        cluster.form()
        cluster.kill(3)
        shutil.rmtree(tmp_path / "stores" / cluster.broker(3).name)
        create_set(cluster, "orders", replicas=[broker.name for broker in cluster.brokers[:3]])
        wait_whole(cluster, 0, "orders")
        cluster.restart(3)
        cluster.wait_state(3, "observer")
        cluster.wait_until(lambda: len(brokers_of(cluster, 0)) == 4, "it is in the map")
        before = {name: row["uuid"] for name, row in brokers_of(cluster, 0).items()}
        for broker in range(4):
            cluster.kill(broker)
        for broker in range(3):
            cluster.restart(broker)
        cluster.wait_until(lambda: cluster.states()[:3] == ["connecting"] * 3, "their stores are loaded")
        cluster.promote(0)  # nobody waits for who observed
        cluster.wait_until(lambda: len(brokers_of(cluster, 0)) == 4, "the map is there")
        assert {name: row["uuid"] for name, row in brokers_of(cluster, 0).items()} == before
        cluster.restart(3)
        cluster.wait_state(3, "observer")
        wait_whole(cluster, 0, "orders")
        cluster.kill(3)
        cluster.wait_until(lambda: not brokers_of(cluster, 0)["broker4"]["up"], "it is known to be away")
        change(cluster, 0, "brokers", "forget", name="broker4")
        assert "broker4" not in brokers_of(cluster, 0)
        assert len(in_sync(cluster, 0)) == 3
