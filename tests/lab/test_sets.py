"""Many resource sets under Pacemaker, which drives `default`: its standby drains a broker, its fencing fails one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lab.blackout import BOOT_LIMIT_S
from lab.cluster import Cluster
from lab.load import Load
from lab.on_node import Node
from qpid_ha_broker.events.counted import counted


def wait_failed(cluster: Cluster, by: str, failed: str, sets: int) -> None:
    """Until the controller on `by` has said that `failed` is gone, and led so many sets: it may have looked itself, or
    been told by Pacemaker."""
    line = re.compile(rf"broker {failed} has failed: .*; it leads {counted(sets, 'set')}$", re.MULTILINE)
    cluster.wait(lambda: line.search(Node(cluster, by).broker_log()), f"{by} says that {failed} has failed")


def orders(cluster: Cluster, node: str) -> Mapping[str, Any]:
    """The set, as the controller tells that node."""
    (row,) = cluster.ask(node, "sets", action="list")
    return dict(row)


def is_draining(cluster: Cluster, by: str, node: str) -> bool:
    """Whether it may have no replicas."""
    rows = cluster.ask(by, "brokers", action="list")
    return next(bool(row["draining"]) for row in rows if row["name"] == node)


def test_a_node_in_standby_is_drained_and_one_that_was_fenced_has_failed_at_once(cluster: Cluster, load: Load) -> None:
    controller = cluster.primary()
    cluster.ask(controller, "sets", action="create", name="orders", preferred=controller)
    cluster.wait(lambda: orders(cluster, controller)["state"] == "ok", "the set is whole")
    generation = orders(cluster, controller)["generation"]
    load.wait_confirmed(100)

    cluster.standby(controller)
    cluster.wait(lambda: cluster.state(controller) == "down", f"{controller}'s broker is stopped")
    successor = cluster.wait_promoted()
    cluster.wait(lambda: orders(cluster, successor)["primary"], "the set is led")
    assert orders(cluster, successor)["generation"] == generation + 1
    wait_failed(cluster, successor, controller, 0)
    assert is_draining(cluster, successor, controller)

    cluster.unstandby(controller)
    cluster.wait(lambda: not is_draining(cluster, successor, controller), "it is undrained when it is back")
    cluster.wait_well()
    cluster.wait(lambda: orders(cluster, successor)["state"] == "ok", "the set is whole again")

    lab = cluster.lab
    lab.output(successor, "qpid-ha", "set", "transfer", "orders", successor)
    lab.run(successor, "pkill", "-KILL", "corosync", check=False)  # fenced: its connections end without a word
    cluster.wait(lambda: cluster.state(successor) == "down", "it is fenced")
    third = cluster.wait_promoted(*(node for node in lab.plan.members if node != successor))
    cluster.wait(lambda: orders(cluster, third)["primary"] not in ("", successor), "the set is led by another broker")
    wait_failed(cluster, third, successor, 1)
    cluster.wait_well(BOOT_LIMIT_S)
    cluster.ask(third, "sets", action="delete", name="orders")
    load.wait_confirmed(100)
