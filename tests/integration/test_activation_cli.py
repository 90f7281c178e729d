"""`qpid-ha activation` as an operator types it, with brokers up and down. What it says of stores alone: tests/unit."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Delivery, Message

from blocking_client import BlockingClient
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.coordination.file import FileCoordinator
from running_cluster import RunningCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers with stores, the third one primary; a queue."""
    (tmp_path / "shared").mkdir()
    settings = {"ha": {"coordinator": f"file:{tmp_path / 'shared'}", "backup-timeout": "2s"}}
    with RunningCluster(tmp_path, settings=settings, stores=tmp_path / "stores") as cluster:
        cluster.form(2)
        cluster.broker(2).ask("queues", action="create", name="orders")
        yield cluster


def publish(cluster: RunningCluster, text: str) -> None:
    client = BlockingClient(cluster.urls[cluster.brokers.index(cluster.the_primary())])
    assert client.offer(client.sender("orders"), Message(text, durable=True)).state == Delivery.ACCEPTED
    client.connection.close()


def activation(cluster: RunningCluster, *words: object) -> subprocess.CompletedProcess[str]:
    """Typed on the first broker's machine."""
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "activation", *map(str, words)]
    environment = {**os.environ, "QPID_HA_CONFIG": str(cluster.broker(0).config)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_the_newest_one_stays_away_and_nobody_starts_until_somebody_decides(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    stores = [tmp_path / "stores" / broker.name for broker in cluster.brokers]
    record = FileCoordinator(tmp_path / "shared").read
    publish(cluster, "held by all")
    running = activation(cluster, "list", "--format", "json")
    assert running.returncode == 0
    assert set(json.loads(running.stdout)["may_lead"]) == {"broker1", "broker2", "broker3"}
    older = ["--generation", 1, "--epoch", 1, "--primary", "broker3", "--members", "broker1"]
    refused = activation(cluster, "set", *older, *stores)
    assert refused.returncode == 1
    assert "broker3 leads generation 1: it keeps the record itself" in " ".join(refused.stdout.split())

    cluster.crash(0, 1)
    for number in range(3):
        publish(cluster, f"{number}, held by the third one alone")
    cluster.wait_until(lambda: record().members == ("broker3",), "the others' departure is recorded")
    cluster.crash(2)
    for which in (0, 1):
        cluster.restart(which)
    for which in (0, 1):
        with pytest.raises(RequestRefused, match="qpid-ha activation list"):
            cluster.promote(which)
    cluster.wait_until(lambda: bool(cluster.status(0).get("problem")), "the first one says why")
    assert "knows a newer in-sync set without this broker" in str(cluster.status(0)["problem"])

    listed = activation(cluster, "list", *stores[:2])

    assert listed.returncode == 1
    shown = " ".join(listed.stdout.split())
    assert "Nobody may lead. broker3 may hold what nobody here does." in shown
    assert "systemctl start qpid-ha # on broker3" in shown
    assert "broker1 may not lead: the coordinator knows a newer in-sync set without this broker" in shown
    assert activation(cluster, "list", *stores).returncode == 0, "the third store is what is missing"
    # As it says: of the two that are left, one may have heard of the other's departure.
    step = json.loads(activation(cluster, "list", *stores[:2], "--format", "json").stdout)["next"]
    set_it, promote_it = (shlex.split(command) for command in step["instead"])
    chosen, other = (0, 1) if promote_it[-1] == "broker1" else (1, 0)
    assert set_it[:4] == ["qpid-ha", "activation", "set", "--from-store"]
    unforced = [word for word in set_it[2:] if word != "--force"]
    assert activation(cluster, *unforced).returncode == 1
    assert record().members == ("broker3",)

    forced = activation(cluster, *set_it[2:], "--reason", "its disk burnt")

    assert forced.returncode == 0, forced.stderr
    assert record().members == (cluster.broker(chosen).name,)
    assert f"with that may lead: {cluster.broker(chosen).name}" in forced.stdout
    cluster.promote(chosen)
    cluster.wait_state(other, "ready")
    publish(cluster, "after that")
    assert "its disk burnt" in activation(cluster, "list").stdout
    history = cluster.broker(chosen).ask("history")["answer"]
    assert not history[-1]["forced"], "the record was set, and the promotion is one like any other"
    cluster.restart(2)  # found again: what it alone has is kept where it can be found
    cluster.wait_whole()
    assert cluster.broker(2).ask("query")["discarded"] in (2, 3), (
        "of the last its own store may not know that it counts"
    )
    assert list((stores[2] / "discarded").iterdir())
