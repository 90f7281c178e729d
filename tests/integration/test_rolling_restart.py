"""`qpid-ha restart` and `upgrade` on real clusters under load: who is restarted when, and what clients see of it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import Result

from admin_tool import qpid_ha
from failover_load import FailoverLoad
from limits import LIMIT_S
from polling import wait_until
from qpid_ha_broker import __version__
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

pytestmark = pytest.mark.direct_only("it is about the processes of brokers themselves")

MESSAGES = 200
MORE_S = 2.0
"""On a machine that does other things, two hand-overs differ by so much."""


def restart(cluster: RunningCluster, *words: str, command: str = "restart") -> Result:
    return qpid_ha(command, *words, QPID_HA_CONFIG=str(cluster.brokers[0].config))


def pids(cluster: RunningCluster) -> list[int]:
    return [broker.pid for broker in cluster.brokers]


def agents(cluster: RunningCluster) -> list[int]:
    return [broker.processes()[0] for broker in cluster.brokers]


def longest_wait_s(load: FailoverLoad, began_s: float) -> float:
    load.wait_confirmed(MESSAGES)
    return load.ledger.longest_gap_s(began_s, time.monotonic())


def test_all_brokers_are_restarted_under_load_and_clients_see_one_hand_over(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True, stores=tmp_path / "stores") as cluster:
        cluster.wait_whole()
        with FailoverLoad(cluster.urls, rate=200, durable=True) as load:
            load.wait_confirmed(MESSAGES)
            began_s = time.monotonic()
            cluster.the_primary().ask("switchover")
            cluster.wait_whole()
            ordinary_s = longest_wait_s(load, began_s)

            before, agents_before = pids(cluster), agents(cluster)
            primary = cluster.the_primary()
            generation = cluster.status(primary)["generation"]
            began_s = time.monotonic()
            done = restart(cluster, "--all", "--format", "json")
            assert done.exit_code == 0, done.output
            document = json.loads(done.stdout)
            restart_s = longest_wait_s(load, began_s)
            audit = load.finish()
        assert cluster.is_whole()
        after, now_primary = pids(cluster), cluster.the_primary()
        assert agents(cluster) == agents_before
        assert cluster.status(now_primary)["generation"] == generation + 1
        causes = [str(row["cause"]) for row in now_primary.ask("history")["answer"]]
    names = [broker.name for broker in cluster.brokers]
    assert audit.is_flawless, audit
    assert not set(before) & set(after)
    assert document == {"restarted": names, "primary": now_primary.name, "version": ""}
    assert now_primary is not primary
    assert causes[-1] == f"switchover from {primary.name}"
    assert restart_s < ordinary_s + MORE_S, done.stderr
    asked = [line.split()[1].rstrip(":") for line in done.stderr.splitlines() if "its agent is asked" in line]
    assert (sorted(asked), asked[-1]) == (names, primary.name)


def test_an_upgrade_leaves_brokers_of_its_version_alone_and_a_dry_run_all_of_them(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        before = pids(cluster)
        done = restart(cluster, "--all", command="upgrade")
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"nothing to do; all run {__version__}")
        primary = cluster.the_primary().name
        plan = restart(cluster, "--all", "--dry-run")
        assert (plan.exit_code, plan.stdout.splitlines()[-1].split()[0]) == (0, primary)
        assert restart(cluster).exit_code == 2
        assert restart(cluster, "--all", "broker1").exit_code == 2
        unknown = restart(cluster, "broker9")
        assert (unknown.exit_code, unknown.stderr.splitlines()[-1]) == (
            1,
            "Error: there is no broker broker9: the cluster has broker1, broker2, broker3",
        )
        config = str(cluster.brokers[0].config)
        assert qpid_ha("pause", "--reason", "new disks", QPID_HA_CONFIG=config).exit_code == 0
        refused = restart(cluster, "--all", "--force")
        assert refused.exit_code == 1
        assert "new disks" in refused.stderr
        assert pids(cluster) == before


def crash_when_taken(cluster: RunningCluster, broker: LocalBroker) -> None:
    """Its power is gone as soon as it is being restarted."""
    wait_until(lambda: "stop this agent" in broker.log(), broker.log, LIMIT_S)
    cluster.crash(broker)


def test_it_stops_at_a_broker_that_does_not_come_back_and_says_how_to_go_on(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True, stores=tmp_path / "stores") as cluster:
        cluster.wait_whole()
        primary = cluster.the_primary()
        first, second = (broker for broker in cluster.brokers if broker is not primary)
        before = {broker.name: broker.pid for broker in (primary, second)}
        with ThreadPoolExecutor() as threads:
            crash = threads.submit(crash_when_taken, cluster, first)
            done = restart(cluster, "--all", "--wait", "3s")
            crash.result()
        assert done.exit_code == 1
        assert f"{first.name} is away after 3 s" in done.stderr
        assert f"To go on: `qpid-ha restart {second.name} {primary.name}`" in done.stderr
        assert {broker.name: broker.pid for broker in (primary, second)} == before

        refused = restart(cluster, second.name)
        assert refused.exit_code == 1
        assert f"{first.name} does not answer" in refused.stderr
        first.start()
        cluster.wait_whole()
        assert restart(cluster, second.name, primary.name).exit_code == 0
        assert not {broker.pid for broker in (primary, second)} & set(before.values())
