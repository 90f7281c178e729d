"""A node is not set up as it should be, or the cluster is told nonsense: crm_mon says what, and the others serve."""

from __future__ import annotations

import pytest

from lab.cluster import BROKER, Cluster
from lab.load import Load
from lab.on_node import CONFIG, Node

BROKER_DIED = "broker_monitor.* on n[123]: not running|broker_asyncmon.* on n[123]: error"


@pytest.mark.explains(BROKER_DIED)
def test_a_broker_that_cannot_start_says_why_and_starts_after_a_cleanup(cluster: Cluster, load: Load) -> None:
    backup, primary = Node(cluster, cluster.backups()[0]), cluster.primary()
    right = cluster.lab.read(backup.name, CONFIG)
    load.wait_confirmed(100)

    cluster.lab.write(backup.name, CONFIG, right.replace("listen:", "lisen:"))
    cluster.kill_broker(backup.name)

    cluster.wait(lambda: reason(cluster, backup, "start"), "the start fails")
    assert "lisen" in reason(cluster, backup, "start"), "what is wrong is named"
    assert CONFIG in reason(cluster, backup, "start"), "and where"
    load.wait_confirmed(100)
    assert cluster.primary() == primary
    assert backup.broker_pid() == 0

    cluster.lab.write(backup.name, CONFIG, right)
    cluster.cleanup(BROKER)

    cluster.wait_well()
    assert cluster.primary() == primary


@pytest.mark.explains(BROKER_DIED)
def test_an_action_that_has_too_little_time_says_so(cluster: Cluster, load: Load) -> None:
    backup = Node(cluster, cluster.backups()[0])
    allow(cluster, "start", "1s")

    cluster.kill_broker(backup.name)

    cluster.wait(lambda: reason(cluster, backup, "start"), "the start fails")
    assert "too short" in reason(cluster, backup, "start")
    load.wait_confirmed(100)

    allow(cluster, "start", "70s")
    cluster.cleanup(BROKER)
    cluster.wait_well()


def reason(cluster: Cluster, node: Node, operation: str) -> str:
    """Why it failed there, as crm_mon shows it; empty when it did not."""
    for failed in cluster.view().failed_actions:
        if failed.node == node.name and failed.operation.startswith(f"{BROKER}_{operation}_"):
            return failed.reason
    return ""


def allow(cluster: Cluster, operation: str, timeout: str) -> None:
    """Set the time-out of an operation of the broker."""
    change = f"<op id='{BROKER}-{operation}-0' timeout='{timeout}'/>"
    cluster.lab.output(cluster.primary(), "cibadmin", "--modify", "--scope", "resources", "--xml-text", change)
