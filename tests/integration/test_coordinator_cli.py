"""`qpid-ha coordinator migrate` of a cluster that works: it moves to etcd, and fails over there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from etcd_ensemble import EtcdEnsemble
from failover_load import FailoverLoad
from qpid_ha_demo.cluster import LocalCluster


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "coordinator", *words]
    environment = {**os.environ, "QPID_HA_CONFIG": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def test_a_running_cluster_moves_and_loses_nothing(etcd: EtcdEnsemble) -> None:
    """file to etcd; then it fails over by what is there."""
    with tempfile.TemporaryDirectory(prefix="move-") as directory, LocalCluster(Path(directory)) as cluster:
        cluster.wait_whole()
        primary = cluster.primary()
        assert primary is not None
        source, target = f"file:{directory}/coordinator", etcd.url("moved")
        with FailoverLoad(cluster.urls) as load:
            load.wait_confirmed(100)
            before = promotions(cluster)
            done = run("migrate", source, target)
            assert done.returncode == 0, done.stderr
            cluster.wait_until(lambda: primary.name in lock(target), "the lock follows")
            load.wait_confirmed(100)
            assert cluster.is_whole()
            assert (cluster.primary(), promotions(cluster)) == (primary, before)

            primary.kill()
            cluster.wait_until(lambda: cluster.primary() not in (None, primary), "another primary")
            cluster.wait_whole()
            load.wait_confirmed(100)
            account = load.finish()
        assert account.is_flawless, account
        leader, facts = cluster.primary(), shown(target)
        assert leader is not None
        assert (facts["primary"], facts["generation"]) == (leader.name, 2)
        for broker in cluster.brokers:
            assert broker.log().count("the coordinator has moved to") >= 1


def promotions(cluster: LocalCluster) -> int:
    """How many were tried."""
    return sum(broker.log().count("promote: ") for broker in cluster.brokers)


def shown(url: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(run("show", "--url", url, "--format", "json").stdout)
    return found


def lock(url: str) -> str:
    return str(shown(url)["lock"])
