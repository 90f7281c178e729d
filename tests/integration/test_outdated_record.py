"""The stores are put back from a copy, and the coordinator's record is newer: nobody goes on with a part in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from proton import Delivery, Message

from blocking_client import BlockingClient
from qpid_ha_agent.control import RequestRefused
from running_cluster import RunningCluster


def start_all(cluster: RunningCluster) -> None:
    for broker in cluster.brokers:
        broker.start()
    cluster.wait_started()


def publish(cluster: RunningCluster, count: int) -> None:
    """Each is confirmed when this returns."""
    client = BlockingClient(cluster.urls[cluster.brokers.index(cluster.the_primary())])
    sender = client.sender("orders")
    for number in range(count):
        assert client.offer(sender, Message(f"message {number}", durable=True)).state == Delivery.ACCEPTED
    client.connection.close()


def held(cluster: RunningCluster, which: int) -> int:
    (queue,) = cluster.broker(which).ask("queues")["answer"]
    return int(queue["messages"])


def test_stores_that_were_put_back_from_a_copy_are_not_led_from_when_the_record_is_newer(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    (tmp_path / "shared").mkdir()
    settings = {"ha": {"coordinator": f"file:{tmp_path / 'shared'}", "backup-timeout": "2s"}}
    with RunningCluster(tmp_path, settings=settings, stores=stores) as cluster:
        cluster.form(0)
        cluster.broker(0).ask("queues", action="create", name="orders")
        publish(cluster, 20)
        cluster.crash()
        shutil.copytree(stores, tmp_path / "copy")
        start_all(cluster)
        cluster.promote(0)
        cluster.wait_whole()
        publish(cluster, 50)
        cluster.crash()
        shutil.rmtree(stores)
        shutil.copytree(tmp_path / "copy", stores)
        start_all(cluster)

        for broker in cluster.brokers:
            with pytest.raises(RequestRefused, match=r"record says generation 2, .* no store here goes further"):
                cluster.promote(broker)

        cluster.promote(1, force=True)
        cluster.wait_whole()
        assert held(cluster, 1) == 20
