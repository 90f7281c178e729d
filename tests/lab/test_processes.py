"""A process dies or hangs: the broker, its watch."""

from __future__ import annotations

import pytest

from lab.cluster import Cluster
from lab.load import Load
from lab.on_node import Node

BROKER_DIED = "broker_monitor.* on n[123]: not running|broker_asyncmon.* on n[123]: error"
BEHIND = 40
"""Messages that a primary owes an answer for: as many as come in 0.2 s."""


@pytest.mark.explains(BROKER_DIED)
def test_a_killed_primary_is_replaced_and_comes_back_as_a_backup(cluster: Cluster, load: Load) -> None:
    primary = Node(cluster, cluster.primary())
    starts = primary.starts()
    load.wait_confirmed(100)

    killed_at_s = cluster.kill_broker(primary.name)

    load.recovered_after(killed_at_s)
    assert cluster.wait_promoted() != primary.name
    cluster.wait_well()
    assert_one_failure(primary, starts)
    reasons = [action.reason for action in cluster.view().failed_actions if action.node == primary.name]
    assert any("process" in reason for reason in reasons), f"crm_mon says why: {reasons}"


@pytest.mark.explains(BROKER_DIED)
def test_a_killed_backup_comes_back_and_no_client_notices(cluster: Cluster, load: Load) -> None:
    primary, backup = cluster.primary(), Node(cluster, cluster.backups()[0])
    starts = backup.starts()
    load.wait_confirmed(100)
    connected = len(load.ask("report")["recoveries"])

    cluster.kill_broker(backup.name)

    cluster.wait(backup.failures, "Pacemaker hears of it")
    cluster.wait(lambda: "its process" in failure(cluster, backup), "crm_mon -A tells why, beside the score")
    cluster.wait_well()
    load.wait_confirmed(100)
    assert cluster.primary() == primary
    assert_one_failure(backup, starts)
    assert len(load.ask("report")["recoveries"]) == connected, "clients stay connected to the primary"


@pytest.mark.explains(BROKER_DIED, "broker_monitor.* on n[123]: promoted .failed.")
def test_a_hanging_primary_is_killed_before_another_one_is_promoted(cluster: Cluster, load: Load) -> None:
    primary = Node(cluster, cluster.primary())
    starts = primary.starts()
    pid = primary.broker_pid()
    load.wait_confirmed(100)

    frozen_at_s = cluster.freeze_broker(primary.name)

    assert cluster.wait_promoted(*cluster.backups()) != primary.name
    assert not primary.signal("CONT", pid), "it might wake up and confirm something"
    load.recovered_after(frozen_at_s)
    cluster.wait_well()
    assert_one_failure(primary, starts)


def test_a_primary_that_pauses_for_a_moment_stays_primary(cluster: Cluster, load: Load) -> None:
    primary = Node(cluster, cluster.primary())
    pid, watcher = primary.broker_pid(), primary.watcher_pid()
    load.wait_confirmed(100)

    cluster.freeze_broker(primary.name)
    cluster.wait(lambda: load.unanswered() > BEHIND, "nothing is confirmed")
    thawed_at_s = cluster.thaw_broker(primary.name)

    load.wait_confirmed(100)
    assert cluster.primary() == primary.name
    assert (primary.broker_pid(), primary.watcher_pid()) == (pid, watcher)
    assert primary.failures() == {}
    assert load.outage(thawed_at_s) < 60


@pytest.mark.explains(BROKER_DIED)
def test_a_killed_watch_is_replaced_by_the_next_monitor_and_does_its_work(cluster: Cluster, load: Load) -> None:
    primary = Node(cluster, cluster.primary())
    starts = primary.starts()
    watcher, broker = primary.watcher_pid(), primary.broker_pid()

    assert primary.signal("KILL", watcher)

    cluster.wait(lambda: primary.watcher_pid() not in (0, watcher), "another one watches")
    assert primary.broker_pid() == broker
    assert cluster.primary() == primary.name
    load.wait_confirmed(10)
    killed_at_s = cluster.kill_broker(primary.name)
    load.recovered_after(killed_at_s)
    cluster.wait_well()
    assert_one_failure(primary, starts)


def failure(cluster: Cluster, node: Node) -> str:
    """What is told of the broker's end there."""
    asked = ("attrd_updater", "--name", "broker-failure", "--query", "--node", node.name)
    return cluster.lab.run(node.name, *asked, check=False).stdout


def assert_one_failure(node: Node, starts: int) -> None:
    """One death is reported once, and recovered once. By chance a monitor may have found it at the same moment."""
    failures = node.failures()
    assert 1 <= len(failures) <= 2
    assert set(failures.values()) == {1}
    assert node.starts() == starts + 1


@pytest.mark.explains(BROKER_DIED)
def test_a_primary_that_dies_unwatched_is_found_by_the_next_monitor(cluster: Cluster, load: Load) -> None:
    primary = Node(cluster, cluster.primary())
    starts = primary.starts()
    load.wait_confirmed(10)

    assert primary.signal("KILL", primary.watcher_pid())
    killed_at_s = cluster.kill_broker(primary.name)

    load.recovered_after(killed_at_s)
    assert cluster.wait_promoted() != primary.name
    cluster.wait_well()
    assert_one_failure(primary, starts)
