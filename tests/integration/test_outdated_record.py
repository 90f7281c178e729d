"""The coordinator's record is lost, or the stores are put back from a copy: nobody goes on with a part in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from proton import Delivery, Message

from blocking_client import BlockingClient
from qpid_ha_agent.control import RequestRefused
from running_cluster import RunningCluster


def with_shared_directory(tmp_path: Path, *, has_stores: bool) -> RunningCluster:
    (tmp_path / "shared").mkdir()
    settings = {"ha": {"coordinator": f"file:{tmp_path / 'shared'}", "backup-timeout": "2s"}}
    return RunningCluster(tmp_path, settings=settings, stores=tmp_path / "stores" if has_stores else None)


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


def test_one_that_slept_and_was_left_out_does_not_lead_because_the_shared_directory_was_emptied(
    tmp_path: Path,
) -> None:
    with with_shared_directory(tmp_path, has_stores=False) as cluster:
        cluster.form(0)
        cluster.broker(0).ask("queues", action="create", name="orders")
        publish(cluster, 20)
        with cluster.paused(2):
            publish(cluster, 20)
            cluster.kill(0)
            cluster.kill(1)
            for path in (tmp_path / "shared").iterdir():
                path.unlink()
        cluster.wait_state(2, "connecting")

        with pytest.raises(RequestRefused, match="record is empty, but the log of broker3 knows generation 1"):
            cluster.promote(2)

        cluster.promote(2, force=True)  # what an operator does who knows what that costs
        assert held(cluster, 2) in (20, 21)  # the first that it did not confirm may have been on its way
        publish(cluster, 1)


def test_stores_that_were_put_back_from_a_copy_are_not_led_from_when_the_record_is_newer(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    with with_shared_directory(tmp_path, has_stores=True) as cluster:
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
