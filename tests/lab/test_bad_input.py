"""A node is not set up as it should be, or the cluster is told nonsense: crm_mon says what, and the others serve."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Final

import pytest

from lab.cluster import BROKER, Cluster
from lab.load import Load
from lab.on_node import CONFIG, Node

AGENT: Final = "ocf:qpid-ha:qpid-ha"
OK: Final = 0
ERR_ARGS: Final = 2
ERR_INSTALLED: Final = 5
ERR_CONFIGURED: Final = 6
BAD: Final = {
    "config=/nowhere/qpid-ha.yaml": ERR_ARGS,
    "config=qpid-ha.yaml": ERR_CONFIGURED,
    "user=nobody-of-that-name": ERR_ARGS,
    "binary=/nowhere/qpidd": ERR_INSTALLED,
    "virtual_ip=10.77.0.50/99": ERR_CONFIGURED,
    "virtual_ip_nic=eth0": ERR_CONFIGURED,
    "hang_timeout=soon": ERR_CONFIGURED,
    "max_lag=-1": ERR_CONFIGURED,
    "watch=perhaps": ERR_CONFIGURED,
}
"""Wrong on this node, or on any."""
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


def test_pacemaker_can_check_the_parameters_before_anything_runs(cluster: Cluster) -> None:
    primary = cluster.primary()

    def validate(*options: str, level: int = 10) -> tuple[int, str]:
        kind = ("--class", "ocf", "--provider", "qpid-ha", "--agent", "qpid-ha")
        done = cluster.lab.run(primary, "crm_resource", f"--validate={level}", *kind, *options, check=False)
        return done.returncode, done.stdout + done.stderr

    assert validate("--option", f"config={CONFIG}")[0] == OK
    assert cluster.lab.run(primary, "crm_resource", "--validate", "--resource", BROKER, check=False).returncode == OK
    for option, code in BAD.items():
        found, said = validate("--option", option)
        assert found == code, said
        assert option.partition("=")[0] in said, "the parameter is named"


def test_pacemaker_can_show_the_agents_description(cluster: Cluster) -> None:
    shown = cluster.lab.output(cluster.primary(), "crm_resource", "--show-metadata", AGENT)

    described = ET.fromstring(shown[shown.index("<resource-agent") :])
    assert described.get("name") == "qpid-ha"
    assert {"config", "virtual_ip", "max_lag"} <= {each.get("name") for each in described.iter("parameter")}
    assert {"start", "stop", "promote", "demote", "monitor"} <= {each.get("name") for each in described.iter("action")}


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
