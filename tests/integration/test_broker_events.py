"""Who watches a cluster hears from each broker what happens there, and from the next primary that it is one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from admin_tool import qpid_ha
from blocking_client import BlockingClient
from limits import LIMIT_S
from running_cluster import RunningCluster

EVENTS = "qpid.events"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Two brokers; clients may connect to either, and the first leads."""
    with RunningCluster(tmp_path, 2, settings={"ha": {"clients": "proxy"}}) as cluster:
        cluster.form()
        yield cluster


def await_event(client: BlockingClient, reader: Any, subject: str, **facts: object) -> dict[str, Any]:
    """The next one that is so; those before it tell of other things."""
    while True:
        (message,) = client.fetch(reader, 1)
        if message.subject == subject and facts.items() <= message.properties.items():
            return dict(message.properties)


def test_the_next_primary_is_told_of_by_itself_and_who_read_at_the_lost_one_goes_on_there(
    cluster: RunningCluster,
) -> None:
    first, second = cluster.broker(0), cluster.broker(1)
    with BlockingClient(cluster.urls[0]) as before, BlockingClient(cluster.urls[1]) as watching:
        at_first = before.receiver(f"{EVENTS}/queue.*", 100)
        at_second = watching.receiver(EVENTS, 1000)
        watching.sender("orders")  # relayed: the first makes it, and says so
        created = await_event(before, at_first, "queue.created", name="orders")
        assert created["broker"] == first.name
        cluster.kill(0)
        cluster.promote(1)
        promoted = await_event(watching, at_second, "broker.state", state="primary")
        assert promoted["broker"] == second.name
        alone = await_event(watching, at_second, "in-sync.changed", members=second.name)
        assert alone["left"] == first.name
    with BlockingClient(cluster.urls[1]) as again:
        reader = again.receiver(f"{EVENTS}/queue.*", 100)
        again.sender("invoices")
        assert await_event(again, reader, "queue.created", name="invoices")["broker"] == second.name


def test_the_command_shows_what_has_happened_and_follows_what_happens(cluster: RunningCluster) -> None:
    socket = str(cluster.broker(0).control_socket)
    with BlockingClient(cluster.urls[0]) as client:
        client.sender("orders")
        listed = qpid_ha("events", "-b", socket, "--match", "queue.*", "--format", "json")
        (event,) = map(json.loads, listed.stdout.splitlines())
        assert (event["subject"], event["name"], event["set"]) == ("queue.created", "orders", "default")
        (line,) = qpid_ha("events", "-b", socket, "--match", "connection.opened", "--count", "1").stdout.splitlines()
        assert "connection.opened" in line
        assert "container=" in line
        refused = qpid_ha("events", "-b", socket, "--match", "queues.*")
        assert refused.exit_code == 1
        assert "queue.created" in refused.stderr
        words = ["events", "-b", socket, "--match", "queue.*", "--follow", "--format", "json"]
        command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["name"] == "orders"
            client.sender("invoices")
            assert json.loads(following.stdout.readline())["name"] == "invoices"
            following.terminate()
            following.wait(LIMIT_S)
