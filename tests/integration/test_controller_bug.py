"""A bug in the controller costs the cluster its decisions for a while, and not one primary after the other."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

import controller_bug
from qpid_ha_agent.control import RequestRefused
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster
from sets_cluster import SetTraffic, change, create_queue, create_set, sets_of, wait_whole


def refusal_of(cluster: RunningCluster, by: int) -> str:
    """What that broker says instead of listing the sets; empty: it lists them."""
    try:
        cluster.broker(by).ask("sets", action="list")
    except RequestRefused as refused:
        return refused.message
    return ""


def is_said(cluster: RunningCluster, by: int) -> bool:
    """Whether that broker says that nobody decides."""
    return "has stopped deciding" in refusal_of(cluster, by)


def is_told_of_all(cluster: RunningCluster, by: int) -> bool:
    """Whether the controller knows what each replica is doing, as that broker hears."""
    found = sets_of(cluster.broker(by)).get("orders", {})
    return bool(found.get("primary")) and all(found["replicas"].values())


def test_a_controller_that_raises_is_given_up_and_everything_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = property(lambda broker: [sys.executable, controller_bug.__file__, "--config", str(broker.config)])
    monkeypatch.setattr(LocalBroker, "command", planted)
    with RunningCluster(tmp_path, settings={"ha": {"failure-timeout": "1s"}}) as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred=cluster.broker(1).name)
        wait_whole(cluster, 0, "orders")
        create_queue(cluster, 0, "q", "orders")
        before = cluster.states()
        bug = cluster.broker(0).config.parent / controller_bug.BUG  # that of all

        with SetTraffic(cluster, "q") as orders, SetTraffic(cluster, "in-default") as default:
            orders.wait_confirmed(50)
            bug.touch()
            for by in (0, 2):
                cluster.wait_until(partial(is_said, cluster, by), "it is said")
            with pytest.raises(RequestRefused, match=r"bug \(ZeroDivisionError\).*switchover"):
                change(cluster, 1, "brokers", "drain", name=cluster.broker(2).name)
            assert "ZeroDivisionError" in str(cluster.status(0)["controller_problem"])
            assert "controller_problem" not in cluster.status(1)
            for traffic in (orders, default):
                traffic.wait_confirmed(100)
            assert cluster.states() == before

            bug.unlink()
            cluster.wait_until(lambda: is_told_of_all(cluster, 1), "the controller is back, and has heard of everybody")
            change(cluster, 1, "sets", "transfer", name="orders", to=cluster.broker(2).name)
            for traffic in (orders, default):
                traffic.wait_confirmed(50)
                traffic.settle()
        assert "controller_problem" not in cluster.status(0)
        assert "Traceback" in cluster.broker(0).log()
