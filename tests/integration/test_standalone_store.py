"""The store of a broker in no cluster: one of an older release, one that becomes a member's, one that was a member's.

`standalone_stores` holds what release 0.1.0 wrote before a standalone broker was a cluster of one. In it are the topic
exchange `news`; the queue `orders` with 'order 1' to 'order 3', which are durable, one message that is not, and 'last';
and the queue `own`, which is not replicated, with 'news'. LSN 13 is the last one.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from pathlib import Path
from zlib import decompress

import pytest
from proton import Message

from blocking_client import BlockingClient
from cluster_in_process import InProcessBroker, InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.store.checking import check
from qpid_ha_broker.store.facts import StoreFacts
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.inspection import examine
from qpid_ha_broker.store.status import STATUS_FILE, Status
from raw_peer import READS_REFUSALS

STORES = Path(__file__).with_name("standalone_stores")
KEPT = ["order 1", "order 2", "order 3", "last"]
LAST_LSN = 13


def unpack(kind: str, directory: Path) -> Path:
    """The data directory of a broker of release 0.1.0."""
    for path, content in json.loads((STORES / f"{kind}.json").read_text(encoding="utf-8")).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(decompress(b64decode(content)))
    (directory / "default" / "snapshots").mkdir()
    return directory


def found_in(data: Path) -> StoreFacts:
    """What `qpid-ha store` says of it, which has to be sound."""
    disk = LocalDisk(data / "default")
    assert check(disk) == []
    return examine(disk, str(data))


def told_of_cluster(data: Path) -> tuple[object, ...]:
    """What STATUS says of a cluster."""
    status = Status.decode((data / "default" / STATUS_FILE).read_bytes())
    return status.cluster, status.history, status.role, status.epoch, status.members, status.promised


class Standalone(InProcessBroker):
    """A running one."""

    async def browse(self, queue: str) -> list[str]:
        return await asyncio.to_thread(browsed, self.url, queue)

    async def send(self, queue: str, *messages: Message) -> None:
        await asyncio.to_thread(send, self.url, queue, *messages)


def browsed(url: str, queue: str) -> list[str]:
    with BlockingClient(url) as client:
        return [message.body for message in client.browse(queue)]


def send(url: str, queue: str, *messages: Message) -> None:
    with BlockingClient(url) as client:
        client.send(queue, *messages)


def holder(url: str) -> BlockingClient:
    """A client that has a message, and has not said what becomes of it."""
    client = BlockingClient(url)
    receiver = client.receiver("orders")
    client.wait(lambda: receiver.fetcher.has_message)
    return client


def standalone(directory: Path, data: Path | None, **settings: object) -> Standalone:
    return Standalone(directory, settings | ({} if data is None else {"data-dir": str(data)}))


@pytest.mark.parametrize("kind", ["clean", "dirty"])
@in_event_loop
async def test_a_store_of_an_older_release_is_gone_on_with(tmp_path: Path, kind: str) -> None:
    data = unpack(kind, tmp_path / "data")
    async with standalone(tmp_path, data) as node1:
        assert await node1.browse("orders") == KEPT
        assert await node1.browse("own") == ["news"]
        await node1.send("orders", Message("new", durable=True), Message("not durable"))
        # The exchange amq.qpid is new, too, and how far queues are handed out is told, of one of which nobody takes.
        assert (await node1.ask("query"))["committed_lsn"] == LAST_LSN + 5
        client = await asyncio.to_thread(holder, node1.url)
        await node1.broker.stop()
        client.break_connection()

    facts = found_in(data)
    assert (facts.cluster, facts.history, facts.members) == ("", (), ())
    assert facts.clean
    assert facts.last_lsn >= LAST_LSN + 2
    assert facts.committed_lsn == facts.last_lsn
    assert told_of_cluster(data) == ("", (), "", 0, (), 0)
    async with standalone(tmp_path, data) as node1:
        assert await node1.browse("orders") == [*KEPT, "new"]
        assert await node1.browse("own") == ["news"]


@in_event_loop
async def test_what_is_commanded_while_the_broker_stops_is_in_the_store(tmp_path: Path) -> None:
    """It waits a second for a client that does not go."""
    data = tmp_path / "data"
    async with standalone(tmp_path, data) as node1:
        client = await asyncio.to_thread(BlockingClient, node1.url, desired_capabilities=READS_REFUSALS)
        stopping = asyncio.create_task(node1.broker.stop())
        await eventually(lambda: not node1.broker.connections.open)
        assert not stopping.done()
        await node1.ask("queues", action="create", name="late")
        await stopping
        client.break_connection()
    facts = found_in(data)
    assert facts.clean
    assert facts.committed_lsn == facts.last_lsn
    async with standalone(tmp_path, data) as node1:
        assert "late" in node1.broker.container.default.resources.catalog.queues


@in_event_loop
async def test_what_the_settings_say_of_a_cluster_does_not_count_in_none(tmp_path: Path) -> None:
    settings = {
        "ha.brokers-url": "amqp://127.0.0.1:1,127.0.0.1:2",
        "ha.min-in-sync": 2,
        "ha.dirty-store": "refuse",
        "ha.coordinator": f"file:{tmp_path / 'nowhere'}",
        "ha.replicate": "none",
    }
    async with standalone(tmp_path, unpack("dirty", tmp_path / "data"), **settings) as node1:
        await node1.send("orders", Message("new", durable=True))
        assert await node1.browse("orders") == [*KEPT, "new"]
        assert await node1.ask("status") == {"state": "standalone", "name": "node1"}
        assert await node1.ask("set", key="ha.replicate", value="messages") == {
            "key": "ha.replicate", "old": "none", "new": "messages"
        }  # fmt: skip


@pytest.mark.parametrize("coordinator", ["none", "file"])
@in_event_loop
async def test_it_becomes_a_members_with_all_that_is_in_it(tmp_path: Path, coordinator: str) -> None:
    data = unpack("dirty", tmp_path / "data")
    record = tmp_path / "record"
    record.mkdir()
    async with standalone(tmp_path, data) as node1:
        await node1.send("orders", Message("new", durable=True))
    cluster = InProcessCluster(tmp_path, "node1", "node2")
    shared = {"ha__coordinator": f"file:{record}"} if coordinator == "file" else {}
    try:
        await cluster.start("node1", data_dir=str(data), **shared)
        await cluster.start("node2", data_dir=str(tmp_path / "data2"), **shared)
        await cluster.form("node1")
        assert await asyncio.to_thread(browsed, cluster.url("node1"), "orders") == [*KEPT, "new"]
        held = cluster.brokers["node2"].container.default.resources.catalog.queues["orders"]
        assert held.messages.count == len(KEPT) + 1
    finally:
        for name in list(cluster.brokers):
            await cluster.stop(name)


@in_event_loop
async def test_a_members_store_serves_in_no_cluster_and_still_says_of_which_it_was(tmp_path: Path) -> None:
    data = {name: str(tmp_path / name) for name in ("node1", "node2")}
    cluster = InProcessCluster(tmp_path, *data)
    for name, directory in data.items():
        await cluster.start(name, data_dir=directory)
    await cluster.form("node1")
    await cluster.ask("node1", "queues", action="create", name="orders")
    await asyncio.to_thread(send, cluster.url("node1"), "orders", Message("first", durable=True))
    for name in data:
        await cluster.stop(name)
    before, said = found_in(tmp_path / "node1"), told_of_cluster(tmp_path / "node1")

    async with standalone(tmp_path, tmp_path / "node1") as node1:
        assert await node1.browse("orders") == ["first"]
        await node1.send("orders", Message("second", durable=True))
        assert (await node1.ask("query"))["state"] == "standalone"

    after = found_in(tmp_path / "node1")
    assert before.history
    assert (after.cluster, after.history, after.members) == (before.cluster, before.history, before.members)
    assert after.last_lsn > before.last_lsn
    assert told_of_cluster(tmp_path / "node1") == said


@in_event_loop
async def test_all_of_its_cluster_is_itself(tmp_path: Path) -> None:
    async with standalone(tmp_path, None) as node1:
        (row,) = await node1.ask("status", all=True)
        assert (row["name"], row["state"], row["in_sync"]) == ("node1", "standalone", True)
        (facts,) = await node1.ask("query", all=True)
        assert (facts["name"], facts["exchanges"]) == ("node1", 5)
        with pytest.raises(RequestRefused, match="leave --cluster out"):
            await node1.ask("shutdown", cluster=True)
