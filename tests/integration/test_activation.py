"""Real brokers and real agents: who shall lead, and when nobody is to do anything about it.

A preferred broker gets its place back, one that does not keep it waits longer; in a pause nobody is promoted; and a
primary without its coordinator goes on, or does not, as it was told.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import yaml

from failover_load import FailoverLoad
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

MESSAGES = 50
DELAY_S = 1.0
NOTHING_HAPPENS_S = 2.0
"""Long enough for a dead broker to be started and for another one to be promoted: it has to go by."""


def change(broker: LocalBroker, settings: Mapping[str, object]) -> None:
    """Settings of its own, before it starts."""
    found = yaml.safe_load(broker.config.read_text(encoding="utf-8"))
    broker.config.write_text(yaml.safe_dump({**found, **settings}), encoding="utf-8")


def qpid_ha(broker: LocalBroker, *words: str) -> subprocess.CompletedProcess[str]:
    """As on the machine of this broker."""
    environment = {**os.environ, "QPID_HA_CONFIG": str(broker.config), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)


def generation(cluster: RunningCluster) -> int:
    return int(cluster.status(cluster.the_primary())["generation"])


def led_again_after_s(broker: LocalBroker, change: str) -> float:
    """From its last change of state that has this in its words, by its log, to the one that made it primary last."""
    changes = re.findall(r"^(\S+)Z .*Status change: (\w+ -> \w+)", broker.log(), re.MULTILINE)
    times_s = [(words, datetime.fromisoformat(at).timestamp()) for at, words in changes]
    began_s = max(at_s for words, at_s in times_s if change in words)
    return max(at_s for words, at_s in times_s if "-> primary" in words) - began_s


def test_a_preferred_broker_gets_its_place_back_and_waits_longer_each_time_that_it_loses_it(tmp_path: Path) -> None:
    cluster = RunningCluster(
        tmp_path, agents=True, settings={"ha": {"failback": "preferred", "failback-delay": DELAY_S}}
    )
    preferred = cluster.brokers[1]
    change(preferred, {"ha.priority": 10})
    with cluster:
        cluster.wait_until(lambda: cluster.primary() is preferred, "the preferred broker leads")
        cluster.wait_whole()
        with FailoverLoad(cluster.urls, rate=200) as load:
            load.wait_confirmed(MESSAGES)
            led = generation(cluster)
            preferred.ask("switchover", to=cluster.brokers[0].name)
            cluster.wait_until(lambda: cluster.primary() is preferred, "it leads again after a switchover")
            assert led_again_after_s(preferred, "primary ->") >= 2 * DELAY_S
            cluster.wait_whole()
            load.wait_confirmed(MESSAGES)

            killed_s = cluster.kill(preferred)
            load.recovered_after(killed_s)
            assert cluster.the_primary() is not preferred
            cluster.wait_state(preferred, "ready")
            cluster.wait_until(lambda: cluster.primary() is preferred, "it leads again after a failover")
            assert led_again_after_s(preferred, "catchup -> ready") >= 4 * DELAY_S - 0.5
            cluster.wait_whole()
            load.wait_confirmed(MESSAGES)
            assert generation(cluster) == led + 4
            audit = load.finish()
    assert audit.is_flawless, audit
    assert "fail back: broker2 is preferred" in "".join(broker.log() for broker in cluster.brokers)


def test_in_a_pause_nobody_is_promoted_or_restarted_and_afterwards_everything_goes_on(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        first = cluster.the_primary()
        with FailoverLoad(cluster.urls, rate=200) as load:
            load.wait_confirmed(MESSAGES)
            said = qpid_ha(first, "pause", "--reason", "new disks")
            assert (
                said.returncode,
                said.stdout.endswith("new disks; meanwhile no agent promotes, restarts or kills a broker\n"),
            ) == (0, True)
            cluster.kill(first)
            time.sleep(NOTHING_HAPPENS_S)
            assert sorted(cluster.states()) == ["connecting", "connecting", "down"]
            other = next(broker for broker in cluster.brokers if broker is not first)
            asked = qpid_ha(other, "status")
            assert (asked.returncode, asked.stdout) == (0, "connecting\n")
            assert "new disks" in asked.stderr
            assert json.loads(qpid_ha(other, "status", "--format", "json").stdout)["paused"]["reason"] == "new disks"
            assert "new disks" in qpid_ha(other, "status", "--all").stderr
            of_dead = qpid_ha(first, "status")
            assert (of_dead.returncode, of_dead.stdout, "new disks" in of_dead.stderr) == (3, "", True)
            assert "new disks" in qpid_ha(other, "watch", "--once").stdout

            resumed_s = time.monotonic()
            assert "agents go on; it was paused by" in qpid_ha(first, "resume").stdout
            load.recovered_after(resumed_s)
            cluster.wait_whole()

            second, paused_s = cluster.the_primary(), time.monotonic()
            assert qpid_ha(second, "pause", "--for", "3s").returncode == 0
            cluster.kill(second)
            load.recovered_after(time.monotonic())
            assert time.monotonic() - paused_s >= 3.0
            cluster.wait_whole()
            assert qpid_ha(second, "status").stderr == ""
            audit = load.finish()
    assert audit.is_flawless, audit


def test_where_the_coordinator_counts_a_primary_without_it_stops_and_all_goes_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    with RunningCluster(tmp_path, agents=True, settings={"ha": {"coordinator-loss": "stop"}}) as cluster:
        cluster.wait_whole()
        primary = cluster.the_primary()
        shared, away = tmp_path / "coordinator", tmp_path / "away"
        with FailoverLoad(cluster.urls, rate=200) as load:
            load.wait_confirmed(MESSAGES)
            shared.rename(away)
            cluster.wait_until(lambda: cluster.primary() is None, "the primary stops")
            assert "demote: the coordinator has been out of reach for 5 s" in primary.log()
            time.sleep(NOTHING_HAPPENS_S)
            assert cluster.primary() is None
            away.rename(shared)
            load.recovered_after(time.monotonic())
            cluster.wait_whole()
            audit = load.finish()
    assert audit.is_flawless, audit
