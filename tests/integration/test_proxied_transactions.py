"""Transactions and anonymous relays of clients whose broker relays them: real brokers, of which some are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Endpoint, Message

from blocking_client import BlockingClient, LocalTransaction, bodies
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole
from steady_clients import SteadyConsumer, SteadyPublisher

SETTINGS = {"ha": {"failure-timeout": "1s", "clients": "proxy"}}
COUNT = 5_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """One set; the first broker leads."""
    with RunningCluster(tmp_path, settings={**SETTINGS, "max-transaction-messages": 5}) as cluster:
        cluster.form()
        yield cluster


@pytest.fixture
def attended(tmp_path: Path) -> Iterator[RunningCluster]:
    """Somebody sees to it that one leads."""
    with RunningCluster(tmp_path, agents=True, settings=SETTINGS) as cluster:
        cluster.wait_whole()
        yield cluster


def test_a_backup_commits_and_rolls_back(cluster: RunningCluster) -> None:
    with BlockingClient(cluster.urls[1]) as client, BlockingClient(cluster.urls[2]) as other:
        sender = client.sender("q")
        work = LocalTransaction(client)
        assert [work.send(sender, body).state for body in "abc"] == [0x34] * 3
        assert other.browse("q") == []
        assert work.commit() == "committed"
        assert bodies(other.browse("q")) == ["a", "b", "c"]
        for ending, left in (("aborted", ["a", "b", "c"]), ("committed", ["c"])):
            receiver = other.receiver("q", 2)
            other.fetch(receiver, 2, None)
            work = LocalTransaction(other)
            work.send(other.sender("moved"), ending)
            work.accept(receiver)
            assert (work.abort if ending == "aborted" else work.commit)() == ending
            receiver.close()
            assert bodies(client.browse("q")) == left
        assert bodies(client.consume("moved")) == ["committed"]


def test_a_primary_that_is_killed_before_the_discharge_has_rolled_back(attended: RunningCluster) -> None:
    dead = attended.brokers.index(attended.the_primary())
    one, _ = [url for at, url in enumerate(attended.urls) if at != dead]
    with BlockingClient(one) as client:
        client.send("q", "there")
        receiver, sender = client.receiver("q", 1), client.sender("other")
        client.fetch(receiver, 1, None)
        work = LocalTransaction(client)
        work.send(sender, "lost")
        work.accept(receiver)
        client.round_trip()
        attended.kill(dead)
        attended.wait_until(lambda: attended.primary() is not None, "somebody leads")
        assert (work.commit(), work.condition) == ("commit failed", "amqp:transaction:rollback")
        receiver.close()  # Proton's client has released then what it had accepted
        assert bodies(client.consume("q")) == ["there"]
        again = LocalTransaction(client)
        again.send(sender, "kept")
        assert again.commit() == "committed"
        assert (bodies(client.browse("q")), bodies(client.browse("other"))) == ([], ["kept"])


def test_of_a_commit_that_a_killed_primary_has_not_answered_nothing_is_said(attended: RunningCluster) -> None:
    leader = attended.the_primary()
    dead = attended.brokers.index(leader)
    one, other = [url for at, url in enumerate(attended.urls) if at != dead]
    with BlockingClient(one) as client:
        sender = client.sender("q")
        work = LocalTransaction(client)
        work.send(sender, "perhaps")
        attended.pause(dead)
        work.transaction.commit()
        link = work.transaction.txn_ctrl
        client.wait(lambda: link.state & Endpoint.REMOTE_CLOSED)
        assert link.remote_condition.name == "amqp:link:detach-forced"
        assert client.offer(sender, "after").state == Delivery.ACCEPTED
    with BlockingClient(other) as client:  # Proton's has one coordinator for each connection
        again = LocalTransaction(client)
        again.send(client.sender("q"), "again")
        assert again.commit() == "committed"
        assert bodies(client.consume("q"))[-2:] == ["after", "again"]


def test_an_anonymous_relay_publishes_to_queues_of_all_sets_at_every_broker(cluster: RunningCluster) -> None:
    create_set(cluster, "orders", preferred=cluster.broker(1).name)
    create_set(cluster, "audit", preferred=cluster.broker(2).name)
    wait_whole(cluster, 0, "orders", "audit")
    create_queue(cluster, 0, "q-orders", "orders")
    create_queue(cluster, 0, "q-audit", "audit")
    for at, url in enumerate(cluster.urls):
        with BlockingClient(url) as client:
            sender = client.sender(None)
            for queue in ("q-orders", "q-audit", "q-default", f"q-made-{at}"):
                assert client.offer(sender, Message(f"from {at}", address=queue)).state == Delivery.ACCEPTED
                assert bodies(client.consume(queue)) == [f"from {at}"]
            refused = client.offer(sender, Message("x", address="$nothing"))
            assert (refused.state, refused.condition) == (Delivery.REJECTED, "amqp:not-found")


class AnonymousPublisher(SteadyPublisher):
    """Sends each number to one of two queues."""

    def __init__(self, url: str, queues: tuple[str, str], count: int) -> None:
        super().__init__(url, "", count)
        self._queues = queues

    def on_start(self, event: Any) -> None:
        self._connection = event.container.connect(self.url, reconnect=False)
        event.container.schedule(0.05, self)
        event.container.create_sender(self._connection, None, handler=self)

    def on_sendable(self, event: Any) -> None:
        """There is credit."""
        while event.sender.credit and self.sent < self.count:
            delivery = event.sender.send(Message(self.sent, address=self._queues[self.sent % 2]))
            self._numbers[delivery.tag] = self.sent
            self.sent += 1


def test_a_primary_that_is_killed_under_an_anonymous_load_is_a_pause(attended: RunningCluster) -> None:
    leader = attended.the_primary()
    dead = attended.brokers.index(leader)
    one, other = [url for at, url in enumerate(attended.urls) if at != dead]
    create_set(attended, "orders", preferred=leader.name)
    wait_whole(attended, dead, "orders")
    create_queue(attended, dead, "q-orders", "orders")
    with (
        AnonymousPublisher(one, ("q-orders", "q-default"), COUNT) as publisher,
        SteadyConsumer(other, "q-orders") as orders,
        SteadyConsumer(one, "q-default") as default,
    ):
        orders.wait_received(500)
        default.wait_received(500)
        attended.kill(dead)
        publisher.wait(lambda: len(publisher.accepted) == COUNT, "all accepted")
        orders.wait_received(COUNT // 2)
        default.wait_received(COUNT // 2)
    assert orders.received == list(range(0, COUNT, 2))
    assert default.received == list(range(1, COUNT, 2))
