"""The process that has loaded the agent dies, hangs, or is of an older version, when a failover needs it."""

from __future__ import annotations

import pytest

from lab.cluster import Cluster
from lab.load import Load
from lab.on_node import Node
from lab.test_processes import BROKER_DIED, assert_one_failure

LOADED = "/opt/qpid-ha/lib/python3.*/site-packages/qpid_ha_agent/ocf/action_server.py"
HANG_COSTS_S = 10.0
"""More than what each node loses once, on a machine that has much else to do."""


def on_all(cluster: Cluster, load: Load) -> tuple[Node, list[tuple[Node, int]]]:
    """The primary's node; and all of them, each with its action server."""
    load.wait_confirmed(100)
    nodes = [Node(cluster, name) for name in cluster.lab.plan.members]
    cluster.wait(lambda: all(node.action_server_pid() for node in nodes), "each node has an action server")
    return Node(cluster, cluster.primary()), [(node, node.action_server_pid()) for node in nodes]


def assert_another_one_leads(cluster: Cluster, load: Load, old: Node, killed_at_s: float) -> None:
    load.recovered_after(killed_at_s)
    assert load.outage(killed_at_s) < HANG_COSTS_S
    assert cluster.wait_promoted() != old.name
    cluster.wait_well()


def have_new_ones(cluster: Cluster, servers: list[tuple[Node, int]]) -> None:
    cluster.wait(
        lambda: all(node.action_server_pid() not in (0, before) for node, before in servers),
        "each node has a new action server",
    )


@pytest.mark.explains(BROKER_DIED)
def test_without_any_action_server_another_broker_is_promoted_all_the_same(cluster: Cluster, load: Load) -> None:
    primary, servers = on_all(cluster, load)
    starts = primary.starts()
    for node, pid in servers:
        assert node.signal("KILL", pid)

    killed_at_s = cluster.kill_broker(primary.name)

    assert_another_one_leads(cluster, load, primary, killed_at_s)
    assert_one_failure(primary, starts)
    have_new_ones(cluster, servers)


@pytest.mark.explains(BROKER_DIED)
def test_action_servers_that_hang_cost_a_moment_and_are_replaced(cluster: Cluster, load: Load) -> None:
    primary, servers = on_all(cluster, load)
    for node, pid in servers:
        assert node.signal("STOP", pid)

    killed_at_s = cluster.kill_broker(primary.name)

    assert_another_one_leads(cluster, load, primary, killed_at_s)
    have_new_ones(cluster, servers)


def test_after_an_upgrade_a_planned_move_is_made_without_the_old_ones(cluster: Cluster, load: Load) -> None:
    primary, servers = on_all(cluster, load)
    for node, _pid in servers:
        cluster.lab.shell(node.name, f"cp --preserve=mode {LOADED} /tmp/new && mv /tmp/new {LOADED}")
    target = cluster.backups()[0]

    cluster.move(target)

    assert cluster.wait_promoted(target) != primary.name
    cluster.wait_well()
    cluster.unmove()
    have_new_ones(cluster, servers)
    load.wait_confirmed(100)
