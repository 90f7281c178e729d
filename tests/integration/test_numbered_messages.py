"""Producers that number their messages: whatever is killed, what they send twice is there once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from proton import Delivery, Message, ProtonException, symbol, ulong

from blocking_client import BlockingClient, bodies
from running_broker import RunningBroker
from running_cluster import RunningCluster

QUEUE = "numbered"


def numbered(number: int, producer: str = "orders") -> Message:
    annotations = {symbol("x-opt-qpid-producer"): producer, symbol("x-opt-qpid-sequence"): ulong(number)}
    return Message(str(number), annotations=annotations)


def send_all(client: BlockingClient, numbers: Iterable[int]) -> None:
    outcomes = client.send(QUEUE, *map(numbered, numbers))
    assert {outcome.state for outcome in outcomes} == {Delivery.ACCEPTED}


def send_without_waiting(client: BlockingClient, numbers: Iterable[int]) -> None:
    """They have reached the broker when this returns; whether it answers is another question."""
    sender = client.sender(QUEUE)
    for number in numbers:
        sender.link.send(numbered(number))
    client.round_trip()


def consumed(client: BlockingClient) -> list[int]:
    return [int(body) for body in bodies(client.consume(QUEUE))]


def notice_its_end(client: BlockingClient) -> None:
    with suppress(ProtonException):
        client.wait(lambda: client.connection.disconnected)


def test_a_broker_that_was_killed_and_started_again_knows_what_it_had_accepted(tmp_path: Path) -> None:
    settings = {"data-dir": str(tmp_path), "deduplication.producers": 2}
    with RunningBroker(settings) as broker, BlockingClient(broker.url) as client:
        send_all(client, range(50))
        send_without_waiting(client, range(50, 100))
        os.kill(broker.pid, signal.SIGKILL)
        notice_its_end(client)
    with RunningBroker(settings) as broker, BlockingClient(broker.url) as client:
        send_all(client, range(120))
        assert consumed(client) == list(range(120))


def test_when_the_primary_is_killed_what_it_had_not_confirmed_is_sent_again_and_there_once(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form(0)
        with BlockingClient(cluster.urls[0]) as client:
            send_all(client, range(20))
            with cluster.paused(2):  # in sync, so without it nothing more is confirmed
                send_without_waiting(client, range(20, 60))
                cluster.wait_until(lambda: has_all(cluster, 1), "the second broker has all")
                cluster.kill(0)
            notice_its_end(client)
        cluster.promote(1)
        with BlockingClient(cluster.urls[1]) as client:
            send_all(client, range(20, 80))
            assert consumed(client) == list(range(80))
        assert cluster.broker(1).ask("query")["duplicates_dropped"] == 40


def has_all(cluster: RunningCluster, index: int) -> bool:
    name = cluster.broker(index).name
    return any(row["name"] == name and row["lag_messages"] == 0 for row in cluster.broker(0).ask("backups")["answer"])
