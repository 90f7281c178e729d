"""What is around a broker is not as it should be: its virtual address, its administrator. Disks: test_disks.py."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.cluster import BROKER, Cluster
from lab.load import Load
from lab.on_node import Node
from lab.plan import CLIENT, VIRTUAL_ADDRESS

BROKER_DIED = "broker_monitor.* on n[123]: not running|broker_asyncmon.* on n[123]: error"
MADE_WAY = "broker_promote_0 on n[123]: error: n[123] is the better choice"
"""It holds more that was never confirmed, or it was not restarted."""


@pytest.mark.explains(r"broker_monitor.* on n[123]: (promoted \(degraded\)|degraded)")
def test_a_virtual_address_that_was_moved_to_another_node_by_hand_comes_back_without_a_failover(
    cluster: Cluster,
) -> None:
    """The monitor of the backup takes it away, and that of the primary puts it up."""
    primary, backup = Node(cluster, cluster.primary()), cluster.backups()[0]
    broker = primary.broker_pid()
    with Load(cluster.lab) as load:
        load.wait_confirmed(100)

        cluster.lab.output(backup, "ip", "addr", "add", f"{VIRTUAL_ADDRESS}/24", "dev", "eth0")
        cluster.lab.output(primary.name, "ip", "addr", "del", f"{VIRTUAL_ADDRESS}/24", "dev", "eth0")

        cluster.wait(lambda: cluster.holders() == [primary.name], "the monitors put it where it belongs")
        load.wait_confirmed(100)
        account = load.finish()
    assert (account.facts["lost"], account.facts["duplicates_unmarked"]) == ([], [])
    assert (cluster.primary(), primary.broker_pid()) == (primary.name, broker)


@contextmanager
def thief(cluster: Cluster, machine: str) -> Iterator[None]:
    """That machine answers for the virtual address."""
    cluster.lab.output(machine, "ip", "addr", "add", f"{VIRTUAL_ADDRESS}/32", "dev", "eth0")
    try:
        yield
    finally:
        cluster.lab.output(machine, "ip", "addr", "del", f"{VIRTUAL_ADDRESS}/32", "dev", "eth0")


@pytest.mark.explains(BROKER_DIED, "broker_promote_0 on n[123]: error: the virtual IP .* is in use by another machine")
def test_nobody_is_promoted_while_another_machine_has_the_virtual_address(cluster: Cluster) -> None:
    primary, backup = cluster.primary(), cluster.backups()[0]
    with Load(cluster.lab, machine=backup) as load:
        load.wait_confirmed(100)

        with thief(cluster, CLIENT):
            killed_at_s = cluster.kill_broker(primary)
            cluster.wait(lambda: len(refusals(cluster)) == 2, "both others refuse")
            assert cluster.view().promoted() == []
            assert cluster.holders() == []

        load.recovered_after(killed_at_s)
        account = load.finish()
    assert account.complaints() == [], str(account)
    cluster.wait_well()


def refusals(cluster: Cluster) -> list[str]:
    """Why promotions have failed, as crm_mon shows it."""
    return [failed.reason for failed in cluster.view().failed_actions if failed.operation.startswith("broker_promote")]


def test_cleanup_and_reprobe_move_nothing_and_restart_nothing(cluster: Cluster, load: Load) -> None:
    primary = cluster.primary()
    nodes = [Node(cluster, member) for member in cluster.lab.plan.members]
    before = [(node.broker_pid(), node.watcher_pid()) for node in nodes]
    load.wait_confirmed(100)
    connections = len(load.ask("report")["recoveries"])

    cluster.cleanup(BROKER)
    settle(cluster)
    cluster.refresh()
    settle(cluster)

    load.wait_confirmed(100)
    assert cluster.primary() == primary
    assert [(node.broker_pid(), node.watcher_pid()) for node in nodes] == before
    assert len(load.ask("report")["recoveries"]) == connections
    assert cluster.view().failed_actions == ()


@pytest.mark.explains(BROKER_DIED)
def test_in_maintenance_nothing_is_recovered_and_afterwards_everything_is(cluster: Cluster, load: Load) -> None:
    primary = Node(cluster, cluster.primary())
    load.wait_confirmed(100)
    cluster.set_property("maintenance-mode", "true")

    killed_at_s = cluster.kill_broker(primary.name)
    cluster.wait(primary.failures, "the watch tells Pacemaker")
    cluster.wait(cluster.is_idle, "Pacemaker has thought about it")
    assert primary.broker_pid() == 0
    assert [cluster.state(backup) for backup in cluster.backups()] == ["connecting"] * 2

    cluster.delete_property("maintenance-mode")
    load.recovered_after(killed_at_s)
    cluster.wait_well()
    assert cluster.primary() != primary.name


@pytest.mark.explains(BROKER_DIED, MADE_WAY, "broker_monitor.* on n[123]: (ok|error|promoted .failed.)")
def test_a_broker_that_was_restarted_by_hand_in_maintenance_is_noticed(cluster: Cluster, load: Load) -> None:
    primary = Node(cluster, cluster.primary())
    load.wait_confirmed(100)
    cluster.set_property("maintenance-mode", "true")
    words = cluster.lab.read(primary.name, f"/proc/{primary.broker_pid()}/cmdline").rstrip("\0").split("\0")
    command = words[1:]  # without the interpreter: later scenarios look for a process called qpidd, and this one stays
    killed_at_s = cluster.kill_broker(primary.name)
    as_user = "setsid setpriv --reuid=qpid-ha --regid=qpid-ha --init-groups --"  # no process stays around the broker
    by_hand = f"{as_user} {shlex.join(command)} </dev/null >/dev/null 2>&1 &"
    cluster.lab.shell(primary.name, by_hand)
    cluster.wait(lambda: cluster.state(primary.name) == "connecting", "it runs again")

    cluster.delete_property("maintenance-mode")

    load.recovered_after(killed_at_s)
    cluster.wait_well()
    assert cluster.primary() != primary.name, "those that were not restarted come first"


def settle(cluster: Cluster) -> None:
    """Until Pacemaker has nothing more to do."""
    cluster.lab.output(cluster.view().dc, "crm_resource", "--wait", "--timeout", "60", timeout_s=70)
