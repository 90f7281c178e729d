"""A set that is deleted and made again under its name is another one: nothing of the old one ever comes back as its."""

from __future__ import annotations

from pathlib import Path

from proton import Message

from blocking_client import BlockingClient
from running_cluster import RunningCluster
from sets_cluster import change, create_queue, create_set, sets_of, wait_whole


def publish(cluster: RunningCluster, at: int, *texts: str) -> None:
    client = BlockingClient(cluster.urls[at])
    sender = client.sender("q")
    for text in texts:
        client.offer(sender, Message(text, durable=True))
    client.connection.close()


def is_ready(cluster: RunningCluster, name: str) -> bool:
    """Whether that broker could lead the set, as the controller knows."""
    orders = sets_of(cluster.broker(0))["orders"]
    return name in orders["in_sync"] and orders["replicas"].get(name) == "ready" and bool(orders["primary"])


def bodies(cluster: RunningCluster, at: int, count: int) -> list[object]:
    """The first messages of the queue, and the names of all queues must be just this one."""
    rows = cluster.broker(at).ask("queues")["answer"]
    assert [row["name"] for row in rows] == ["q"]
    assert [row["messages"] for row in rows] == [count]
    client = BlockingClient(cluster.urls[at])
    receiver = client.receiver("q", count)
    found = [receiver.receive(timeout=60).body for _ in range(count)]
    client.connection.close()
    return found


def test_what_a_broker_kept_of_a_deleted_set_is_set_aside_also_after_a_total_crash(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    with RunningCluster(tmp_path, settings={"ha": {"failure-timeout": "2s"}}, stores=stores) as cluster:
        cluster.form()
        names = [broker.name for broker in cluster.brokers]
        create_set(cluster, "orders", preferred=names[1])
        wait_whole(cluster, 0, "orders")
        create_queue(cluster, 0, "q", "orders")
        publish(cluster, 1, "old 1", "old 2", "old 3")
        cluster.kill(2)
        cluster.wait_until(lambda: sets_of(cluster.broker(0))["orders"]["in_sync"] == names[:2], "it is left out")

        change(cluster, 0, "queues", "delete", name="q")
        cluster.wait_until(lambda: sets_of(cluster.broker(0))["orders"]["queues"] == 0, "the queue is gone")
        change(cluster, 0, "sets", "delete", name="orders")
        create_set(cluster, "orders", replicas=names[:2], preferred=names[1])
        cluster.wait_until(lambda: bool(sets_of(cluster.broker(0))["orders"]["primary"]), "the new one is led")
        create_queue(cluster, 0, "q", "orders")
        publish(cluster, 1, "new 1")
        cluster.crash(0, 1)
        kept = next(stores.rglob("*3/orders"))
        assert (kept / "STATUS").exists()

        for broker in cluster.brokers:
            broker.start()
        cluster.wait_started()
        cluster.promote(0)
        cluster.wait_whole()
        change(cluster, 0, "sets", "add-replica", name="orders", broker=names[2])
        cluster.wait_until(lambda: is_ready(cluster, names[2]), "the third has it")
        assert [path.name for path in kept.parent.glob("orders.set-aside-*")] != []
        assert "it is set aside as" in cluster.broker(2).log()
        change(cluster, 0, "sets", "transfer", name="orders", to=names[2])
        cluster.wait_until(lambda: sets_of(cluster.broker(0))["orders"]["primary"] == names[2], "the third leads it")
        assert bodies(cluster, 2, 1) == ["new 1"]
