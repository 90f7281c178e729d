"""Disaster recovery: a broker elsewhere keeps a copy of one queue of a cluster, through failovers, until it is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from proton import Message

from blocking_client import BlockingClient, Outcome
from cluster_in_process import InProcessBroker, InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.sets.queue_copies import CopyLink

NAMES = ("a", "b", "c")
NOBODY = "amqp://127.0.0.1:1"


def send(url: str, *bodies: str) -> list[Outcome]:
    with BlockingClient(url) as client:
        return client.send("orders", *[Message(body, durable=True) for body in bodies])


def receive(url: str, count: int) -> list[str]:
    with BlockingClient(url) as client:
        return [message.body for message in client.fetch(client.receiver("orders", count), count)]


def browse(url: str) -> list[str]:
    with BlockingClient(url) as client:
        return [message.body for message in client.browse("orders")]


class Elsewhere(InProcessBroker):
    """A standalone broker in another town."""

    def __init__(self, directory: Path, *known: str, may_copy: bool = True) -> None:
        """`known`: addresses that its configuration has."""
        remote = [{"url": url} for url in known]
        super().__init__(directory, {"name": "far", "ha.queue-replication": may_copy, "remote-brokers": remote})

    @property
    def bodies(self) -> list[str]:
        queue = self.broker.container.default.resources.catalog.queues.get("orders")
        if queue is None:
            return []
        return [body_of(entry.resident_body()) for entry in queue.messages]


def body_of(payload: bytes) -> str:
    message = Message()
    message.decode(payload)
    return str(message.body)


@asynccontextmanager
async def two_towns(directory: Path) -> AsyncIterator[tuple[InProcessCluster, Elsewhere]]:
    """A cluster of three whose primary is `a`, with queue `orders`, and a broker elsewhere."""
    async with InProcessCluster(directory, *NAMES) as cluster:
        await cluster.form("a")
        await cluster.ask("a", "queues", action="create", name="orders", arguments={"qpid.max_count": 5000})
        async with Elsewhere(directory, urls(cluster), NOBODY) as far:
            yield cluster, far


def urls(cluster: InProcessCluster) -> str:
    return ",".join(cluster.url(name) for name in NAMES)


@in_event_loop
async def test_a_copy_has_what_the_queue_has_and_goes_on_after_a_failover(tmp_path: Path) -> None:
    async with two_towns(tmp_path) as (cluster, far):
        await asyncio.to_thread(send, cluster.url("a"), *map(str, range(2500)))
        backups_first = ",".join(cluster.url(name) for name in ("c", "b", "a"))
        answer = await far.ask("replicate", queue="orders", address=backups_first)
        assert "orders is copied from" in answer["text"]
        await eventually(lambda: len(far.bodies) == 2500)
        assert await asyncio.to_thread(receive, cluster.url("a"), 3) == ["0", "1", "2"]
        await asyncio.to_thread(send, cluster.url("a"), "live")
        await eventually(lambda: far.bodies == [*map(str, range(3, 2500)), "live"])
        await cluster.stop("a")
        await cluster.ask("b", "promote")
        await cluster.reach("b", State.PRIMARY)
        await asyncio.to_thread(send, cluster.url("b"), "after the failover")
        await eventually(lambda: far.bodies[-1:] == ["after the failover"])
        assert far.bodies == [*map(str, range(3, 2500)), "live", "after the failover"]
        (row,) = await far.ask("replicate")
        assert (row["state"], row["primary"], row["messages"]) == ("following", "b", 2499)
        assert "orders from amqp://127.0.0.1" in (await far.ask("query"))["copied_queues"]
        await cluster.ask("b", "queues", action="purge", name="orders")
        await eventually(lambda: far.bodies == [])


@in_event_loop
async def test_a_bug_at_one_copy_ends_the_ticks_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_towns(tmp_path) as (cluster, far):
        await cluster.ask("a", "queues", action="create", name="others")
        for name in ("orders", "others"):
            await far.ask("replicate", queue=name, address=urls(cluster))
        ticks = Counter[str]()
        tick = CopyLink.tick

        def counted(link: CopyLink) -> None:
            ticks[link.copy.name] += 1
            if link.copy.name == "orders":
                raise LookupError("a bug")
            tick(link)

        monkeypatch.setattr(CopyLink, "tick", counted)
        await eventually(lambda: min(ticks["orders"], ticks["others"]) >= 3)
        monkeypatch.undo()
        assert far.broker.notices.bugs_total >= 3


@in_event_loop
async def test_what_cannot_be_copied_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with two_towns(tmp_path) as (cluster, far):
        for params, text in (
            ({"queue": "nothing", "address": urls(cluster)}, "no queue nothing"),
            ({"queue": "orders", "address": cluster.url("b")}, "not primary"),
            ({"queue": "orders", "address": NOBODY}, "no primary at"),
            ({"queue": "orders", "address": far.url}, "remote-brokers of this broker's configuration does not have"),
            ({"queue": "orders", "address": f"{NOBODY},stranger"}, "does not have amqp://stranger:5672, and a copy"),
            ({"queue": "orders", "address": "http://x"}, "address is"),
            ({"queue": "orders"}, "address is"),
            ({"queue": ""}, "name of a queue"),
        ):
            with pytest.raises(RequestRefused, match=text):
                await far.ask("replicate", **params)
        with pytest.raises(RequestRefused, match="backup"):
            await cluster.ask("b", "replicate", queue="x", address=far.url)
        assert await far.ask("replicate") == []


@in_event_loop
async def test_the_primary_of_a_cluster_keeps_a_copy_that_its_backups_have_too(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    here = InProcessCluster(tmp_path / "one", "a", "b")
    known = [{"url": here.url("a")}]
    async with here, InProcessCluster(tmp_path / "two", "x", "y", remote_brokers=known) as there:
        await here.form("a")
        await there.form("x")
        await here.ask("a", "queues", action="create", name="orders")
        await there.ask("x", "replicate", queue="orders", address=here.url("a"))
        await asyncio.to_thread(send, here.url("a"), "1", "2", "3")
        await asyncio.to_thread(receive, here.url("a"), 1)

        def copied(name: str) -> int:
            queue = there.brokers[name].container.default.resources.catalog.queues.get("orders")
            return -1 if queue is None else queue.messages.count

        await eventually(lambda: (copied("x"), copied("y")) == (2, 2))
        await there.ask("x", "switchover", to="y")
        await there.reach("y", State.PRIMARY)
        assert await asyncio.to_thread(receive, there.url("y"), 2) == ["2", "3"]


@in_event_loop
async def test_a_standalone_broker_copies_only_where_its_configuration_says_so(tmp_path: Path) -> None:
    async with Elsewhere(tmp_path, NOBODY, may_copy=False) as far:
        with pytest.raises(RequestRefused, match=r"ha\.queue-replication"):
            await far.ask("replicate", queue="orders", address=NOBODY)
