"""What is around a broker is not as it should be: its virtual address, its disk, its administrator."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from lab.cluster import BROKER, Cluster
from lab.load import Load
from lab.on_node import Node
from lab.plan import CLIENT, VIRTUAL_ADDRESS

BROKER_DIED = "broker_monitor.* on n[123]: not running|broker_asyncmon.* on n[123]: error"


def test_a_virtual_address_that_was_taken_away_is_put_back(cluster: Cluster) -> None:
    primary = Node(cluster, cluster.primary())
    broker = primary.broker_pid()
    with Load(cluster.lab) as load:
        load.wait_confirmed(100)

        cluster.lab.output(primary.name, "ip", "addr", "del", f"{VIRTUAL_ADDRESS}/24", "dev", "eth0")

        cluster.wait(lambda: cluster.holders() == [primary.name], "the next monitor puts it back")
        load.wait_confirmed(100)
        account = load.finish()
    # In no order: for a moment the broker has the old connections, which were stuck, beside the new ones.
    assert (account.facts["lost"], account.facts["duplicates_unmarked"]) == ([], [])
    assert cluster.primary() == primary.name
    assert primary.broker_pid() == broker
    assert primary.failures() == {}


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


def test_a_primary_whose_disk_is_full_goes_on_serving_and_says_so_once(cluster: Cluster, load: Load) -> None:
    node = Node(cluster, cluster.backups()[0])
    with small_disk(cluster, node):
        cluster.move(node.name)
        cluster.wait_promoted(node.name)
        broker = node.broker_pid()

        fill(cluster, node)
        make_log_lines(cluster, node)
        load.wait_confirmed(100)
        cluster.lab.output(node.name, "rm", *(f"{place}/{FILL}" for place in PLACES))
        cluster.lab.shell(node.name, make_and_delete("there-is-room-again"))

        assert "there-is-room-again" in node.broker_log()
        assert node.broker_log().count("No space left on device") == 1
        assert "Traceback" not in node.broker_log()
        assert cluster.primary() == node.name
        assert node.broker_pid() == broker
        assert node.failures() == {}
        load.finish()


PLACES: Final = ("/var/log/qpid-ha", "/var/lib/qpid-ha")
FILL: Final = "fill"
LONG_NAME: Final = "a-queue-with-a-name-as-long-as-it-takes-to-fill-a-page-of-the-log-with-not-so-many-of-them" * 2
TIMES_ENOUGH: Final = 12
"""Two lines each; the file system has given the log its last page, which may have room still."""


@contextmanager
def small_disk(cluster: Cluster, node: Node) -> Iterator[None]:
    """The broker of a backup writes to disks of 64 KiB, until the end."""
    mount = "mount -t tmpfs -o size=64k,mode=750,uid=$(id -u qpid-ha),gid=$(id -g qpid-ha) small"
    restarted(cluster, node, *(f"{mount} {place}" for place in PLACES))
    try:
        yield
    finally:
        cluster.unmove()
        restarted(cluster, node, *(f"umount -l {place}" for place in PLACES))


def restarted(cluster: Cluster, node: Node, *between: str) -> None:
    """Stop its broker, do that, and start it again."""
    cluster.standby(node.name)
    cluster.wait(lambda: node.broker_pid() == 0, "its broker stops")
    cluster.lab.shell(node.name, "; ".join(between))
    cluster.unstandby(node.name)
    cluster.wait_well()


def fill(cluster: Cluster, node: Node) -> None:
    """Leave no room on its disks."""
    for place in PLACES:
        cluster.lab.shell(node.name, f"cat /dev/zero >{place}/{FILL} 2>/dev/null || true; df {place} | grep -q 100%")


def make_log_lines(cluster: Cluster, node: Node) -> None:
    """More than there can be room for."""
    cluster.lab.shell(node.name, f"for _ in {{1..{TIMES_ENOUGH}}}; do {make_and_delete(LONG_NAME)}; done", timeout_s=90)


def make_and_delete(queue: str) -> str:
    """What the broker writes two lines about."""
    return f"qpid-ha queue create {queue}; qpid-ha queue delete {queue}"


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
    cluster.wait(lambda: is_idle(cluster), "Pacemaker has thought about it")
    assert primary.broker_pid() == 0
    assert [cluster.state(backup) for backup in cluster.backups()] == ["connecting"] * 2

    cluster.delete_property("maintenance-mode")
    load.recovered_after(killed_at_s)
    cluster.wait_well()
    assert cluster.primary() != primary.name


@pytest.mark.explains(BROKER_DIED, "broker_monitor.* on n[123]: (ok|error|promoted .failed.)")
def test_a_broker_that_was_restarted_by_hand_in_maintenance_is_noticed(cluster: Cluster, load: Load) -> None:
    primary = Node(cluster, cluster.primary())
    load.wait_confirmed(100)
    cluster.set_property("maintenance-mode", "true")
    command = cluster.lab.read(primary.name, f"/proc/{primary.broker_pid()}/cmdline").rstrip("\0").split("\0")
    killed_at_s = cluster.kill_broker(primary.name)
    by_hand = f"setsid runuser -u qpid-ha -- {shlex.join(command)} </dev/null >/dev/null 2>&1 &"
    cluster.lab.shell(primary.name, by_hand)
    cluster.wait(lambda: cluster.state(primary.name) == "connecting", "it runs again")

    cluster.delete_property("maintenance-mode")

    load.recovered_after(killed_at_s)
    cluster.wait_well()
    assert cluster.primary() != primary.name, "the one that was restarted has forgotten everything"


def is_idle(cluster: Cluster) -> bool:
    """Does Pacemaker see nothing that it may do?"""
    dc = cluster.view().dc
    return "S_IDLE" in cluster.lab.output(dc, "crmadmin", f"--status={dc}", timeout_s=10)


def settle(cluster: Cluster) -> None:
    """Until Pacemaker has nothing more to do."""
    cluster.lab.output(cluster.view().dc, "crm_resource", "--wait", "--timeout", "60", timeout_s=70)
