"""A broker's store takes long to load: on its account nobody else waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import slow_store
from lab.cluster import Cluster
from lab.generations import wait_agreed
from lab.load import Load
from lab.on_node import Node

BROKER_DIED: Final = "broker_monitor.* on n[123]: not running|broker_asyncmon.* on n[123]: error"
_FIND_PLACE: Final = "import sysconfig; print(sysconfig.get_path('purelib'))"


@contextmanager
def loading(cluster: Cluster, node: str) -> Iterator[None]:
    """A broker that is started on that node is at its store until this ends."""
    lab = cluster.lab
    place = lab.output(node, "/opt/qpid-ha/bin/python", "-c", _FIND_PLACE).strip()
    lab.write(node, f"{place}/slow_store.py", Path(slow_store.__file__).read_text(encoding="utf-8"))
    lab.write(node, f"{place}/slow_store.pth", "import slow_store\n")
    lab.write(node, slow_store.DEFAULT_HOLD, "")
    try:
        yield
    finally:
        lab.output(node, "rm", "-f", slow_store.DEFAULT_HOLD, f"{place}/slow_store.pth", f"{place}/slow_store.py")


def restarted_slowly(cluster: Cluster, node: str) -> None:
    """Its broker is started anew, and loads."""
    cluster.standby(node)
    cluster.wait(lambda: cluster.state(node) == "down", f"{node}'s broker is stopped")
    cluster.unstandby(node)
    cluster.wait(lambda: is_loading(cluster, node), f"{node}'s broker loads its store")


def is_loading(cluster: Cluster, node: str) -> bool:
    return cluster.state(node).startswith("loading")


@pytest.mark.explains(BROKER_DIED)
def test_a_failover_does_not_wait_for_a_broker_that_loads_its_store(cluster: Cluster, load: Load) -> None:
    before = wait_agreed(cluster)
    slow, other = cluster.backups()
    with loading(cluster, slow):
        restarted_slowly(cluster, slow)
        broker = Node(cluster, slow).broker_pid()
        load.wait_confirmed(100)

        killed_at_s = cluster.kill_broker(before.primary)

        cluster.wait_promoted(other)
        load.recovered_after(killed_at_s)
        assert is_loading(cluster, slow)
        cluster.wait(
            lambda: cluster.view().unpromoted() == sorted([before.primary, slow]), "the old primary runs as a backup"
        )
    cluster.wait_well()
    assert Node(cluster, slow).broker_pid() == broker, "it was left alone"
    assert Node(cluster, slow).failures() == {}
