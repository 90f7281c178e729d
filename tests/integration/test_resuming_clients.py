"""Clients that resume their sessions: whatever is killed, each message is worked off once, in order."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from proton import Message, ProtonException

from blocking_client import BlockingClient, bodies
from proxied_broker import Served
from qpid_ha_agent.control import ControlClient
from resuming_client import ResumingConsumer, ResumingPublisher, open_session
from running_broker import RunningBroker
from running_cluster import RunningCluster

QUEUE = "work"


def has_done(consumer: ResumingConsumer, count: int) -> bool:
    return len(consumer.done) > count


@contextmanager
def load(urls: list[str], count: int) -> Iterator[tuple[ResumingPublisher, ResumingConsumer]]:
    """A publisher and a consumer, which have to come to their end."""
    publisher, consumer = ResumingPublisher(urls, QUEUE, count), ResumingConsumer(urls, QUEUE, count)
    publisher.start()
    consumer.start()
    yield publisher, consumer
    for each in (publisher, consumer):
        each.join()
        assert each.failure is None
    assert consumer.done == list(range(1, count + 1)), f"{len(consumer.done)} of {count}"
    assert publisher.confirmed == count
    for each in (publisher, consumer):
        assert each.statuses[0] == "new"
        assert set(each.statuses[1:]) == {"resumed"}, "it was there each time"


@pytest.mark.parametrize("has_store", [False, True])
def test_each_message_is_worked_off_once_and_in_order_however_often_the_primary_is_killed(
    tmp_path: Path, has_store: bool
) -> None:
    stores = tmp_path / "stores" if has_store else None
    with RunningCluster(tmp_path, stores=stores) as cluster:
        cluster.form(0)
        with load(cluster.urls, 3000) as (_, consumer):
            for primary in (0, 1):
                so_far = 400 * (primary + 1)
                cluster.wait_until(partial(has_done, consumer, so_far), "some of it is done")
                cluster.kill(primary)
                cluster.promote(primary + 1)
        with BlockingClient(cluster.urls[2]) as client:
            assert bodies(client.consume(QUEUE)) == []


def test_a_standalone_broker_that_was_killed_has_the_sessions_and_what_they_hold(tmp_path: Path) -> None:
    settings = {"data-dir": str(tmp_path)}
    with RunningBroker(settings) as broker:
        publisher = ResumingPublisher([broker.url], QUEUE, 1000)
        consumer = ResumingConsumer([broker.url], QUEUE, 1000)
        for each in (publisher, consumer):
            each.start()
        while len(consumer.done) < 300:
            assert consumer.is_alive()
        os.kill(broker.pid, signal.SIGKILL)
    with RunningBroker(settings) as broker:
        for each in (publisher, consumer):
            each.urls[:] = [broker.url]
        for each in (publisher, consumer):
            each.join()
        assert consumer.done == list(range(1, 1001))
        assert consumer.statuses == ["new", "resumed"]


def test_an_operator_sees_a_session_and_ends_it(
    served_by: str, broker: Served, client: BlockingClient, address: str
) -> None:
    client.send(address, Message("a"))
    name = str(uuid.uuid4())
    first = open_session(broker.url, name)
    receiver = first.receiver(address, 1, name="in")
    first.wait(lambda: receiver.fetcher.has_message)
    with ControlClient(broker.control_socket) as control:
        rows: Any = control.call("sessions")
        (row,) = [row for row in rows if row["session"] == name]
        assert row["client"].startswith("127.0.0.1:")
        assert row["broker"] == ("proxy" if served_by == "proxy" else "test")
        shown = {key: row[key] for key in ("user", "state", "timeout_s", "connections", "held")}
        assert shown == {"user": "anonymous", "state": "attached", "timeout_s": 60.0, "connections": 1, "held": 1}
        facts: Any = control.call("query")
        assert facts["sessions"] == len(rows)
        assert control.call("sessions", action="end", name=name) == {"session": name, "ended": True}
        rows = control.call("sessions")
        assert not [row for row in rows if row["session"] == name]
    assert bodies(client.fetch(client.receiver(address, 1), 1)) == ["a"]
    with suppress(ProtonException):
        first.wait(lambda: first.connection.disconnected)
