"""A broker's disks are small, full, or lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lab.cluster import Cluster
from lab.generations import record, wait_agreed
from lab.load import Load
from lab.on_node import CONFIG, Node

LOGS, DATA = "/var/log/qpid-ha", "/var/lib/qpid-ha"
FILL: Final = "fill"
SEGMENTS: Final = "store:\\n  segment-size: 64KiB\\n"
"""The room of a file is taken when it is made: with small ones a full disk shows soon."""
LONG_NAME: Final = "a-queue-with-a-name-as-long-as-may-be".ljust(1000, "-")
TIMES_ENOUGH: Final = 4
"""Two lines each; the file system has given the log its last page, which may have room still."""


def test_who_cannot_write_makes_way_and_a_lost_disk_is_filled_by_the_others(cluster: Cluster, load: Load) -> None:
    """The parts share a node with small disks, because it takes long to get one."""
    before = wait_agreed(cluster)
    node = Node(cluster, cluster.backups()[0])
    with Load(cluster.lab, rate=100, consume=False) as kept:
        kept.wait_confirmed(100)
        with small_disks(cluster, node):
            a_lost_disk_was_filled_by_the_others(cluster, node, kept)
            a_backup_with_a_full_disk_is_dropped_and_comes_back(cluster, node, load)
            lead(cluster, node)
            a_primary_whose_log_cannot_be_written_goes_on_serving_and_says_so_once(cluster, node, load)
            a_primary_with_a_full_disk_makes_way(cluster, node, load)
        assert wait_agreed(cluster).generation <= before.generation + 2, "to the node, and away from it"
        assert kept.finish().complaints() == []


def a_lost_disk_was_filled_by_the_others(cluster: Cluster, node: Node, kept: Load) -> None:
    """The broker has just started in an empty directory."""
    assert "recovered" not in node.broker_log()
    confirmed = kept.confirmed()
    assert confirmed > 0
    # Its log has them all; a queue shows a message when the backup is told that it is confirmed, with the next ones.
    cluster.wait(lambda: cluster.queue_depths(node.name)[kept.queue] >= confirmed, "it holds what was confirmed")
    listed = cluster.lab.output(node.name, "qpid-ha", "store", "list", DATA)
    assert "running" in listed, listed


def a_backup_with_a_full_disk_is_dropped_and_comes_back(cluster: Cluster, node: Node, load: Load) -> None:
    """It cannot acknowledge what it cannot keep; nobody waits for it longer than backup-timeout."""
    primary, broker = cluster.primary(), node.broker_pid()
    fill(cluster, node, DATA)
    cluster.wait(lambda: store(cluster, node) == "full", "it says that its disk is full")
    cluster.wait(lambda: node.name not in record(cluster, primary).members, "it is dropped")
    load.wait_confirmed(100)
    make_room(cluster, node, DATA)
    wait_agreed(cluster)
    assert (store(cluster, node), node.broker_pid(), cluster.primary()) == ("ok", broker, primary)
    assert node.failures() == {}


def lead(cluster: Cluster, node: Node) -> None:
    """Have its broker promoted, and nothing keep it there."""
    cluster.move(node.name)
    cluster.wait_promoted(node.name)
    cluster.unmove()
    cluster.wait_well()


def a_primary_with_a_full_disk_makes_way(cluster: Cluster, node: Node, load: Load) -> None:
    """Its score falls, since others are in sync, and nothing has failed. That there is room again moves nobody."""
    broker, others = node.broker_pid(), cluster.backups()
    fill(cluster, node, DATA)
    cluster.wait(lambda: store(cluster, node) == "full", "it says that its disk is full")
    heir = cluster.wait_promoted(*others)
    load.wait_confirmed(100)
    make_room(cluster, node, DATA)
    wait_agreed(cluster)
    assert (store(cluster, node), node.broker_pid(), cluster.primary()) == ("ok", broker, heir)
    assert node.failures() == {}
    assert node.broker_log().count("no room for the store") == 2, "as a backup and as primary"


def a_primary_whose_log_cannot_be_written_goes_on_serving_and_says_so_once(
    cluster: Cluster, node: Node, load: Load
) -> None:
    """Lines of a log are less important than messages."""
    broker = node.broker_pid()
    fill(cluster, node, LOGS)
    make_log_lines(cluster, node)
    load.wait_confirmed(100)
    make_room(cluster, node, LOGS)
    cluster.lab.shell(node.name, make_and_delete("there-is-room-again"))
    assert "there-is-room-again" in node.broker_log()
    assert node.broker_log().count("the log could not be written") == 1
    assert "Traceback" not in node.broker_log()
    assert (cluster.primary(), node.broker_pid(), node.failures()) == (node.name, broker, {})


@contextmanager
def small_disks(cluster: Cluster, node: Node) -> Iterator[None]:
    """The broker of a backup has new disks of 32 MiB for its store and 64 KiB for its log; in the end its old ones."""
    mount = "mount -t tmpfs -o size={},mode=750,uid=$(id -u qpid-ha),gid=$(id -g qpid-ha) small {}"
    mounts = (mount.format("32m", DATA), mount.format("64k", LOGS))
    restarted(cluster, node, *mounts, f"cp {CONFIG} {CONFIG}.before", f"printf '{SEGMENTS}' >>{CONFIG}")
    try:
        yield
    finally:
        cluster.unmove()
        undo = [f"umount -l {place}" for place in (DATA, LOGS)]
        restarted(cluster, node, *undo, f"cp {CONFIG}.before {CONFIG}")


def restarted(cluster: Cluster, node: Node, *between: str) -> None:
    """Stop its broker, do that, and start it again."""
    cluster.standby(node.name)
    cluster.wait(lambda: node.broker_pid() == 0, "its broker stops")
    cluster.lab.shell(node.name, "; ".join(between))
    cluster.unstandby(node.name)
    cluster.wait_well()


def store(cluster: Cluster, node: Node) -> str:
    """What its broker says of its store."""
    return str(cluster.broker(node.name)["store"])


def fill(cluster: Cluster, node: Node, place: str) -> None:
    """Leave no room there."""
    cluster.lab.shell(node.name, f"cat /dev/zero >{place}/{FILL} 2>/dev/null || true; df {place} | grep -q 100%")


def make_room(cluster: Cluster, node: Node, place: str) -> None:
    """The inverse."""
    cluster.lab.output(node.name, "rm", f"{place}/{FILL}")


def make_log_lines(cluster: Cluster, node: Node) -> None:
    """More than there can be room for."""
    cluster.lab.shell(node.name, f"for _ in {{1..{TIMES_ENOUGH}}}; do {make_and_delete(LONG_NAME)}; done", timeout_s=90)


def make_and_delete(queue: str) -> str:
    """What the broker writes two lines about."""
    return f"qpid-ha queue create {queue}; qpid-ha queue delete {queue}"
