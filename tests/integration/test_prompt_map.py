"""How long it takes until all brokers of a real cluster know where a new queue is: no longer than a client needs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from proton.utils import LinkDetached

from blocking_client import BlockingClient
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

LINK_REDIRECT = "amqp:link:redirect"
MOST_HOPS = 5
HEARTBEAT_S = 1.0
"""So long it would take if a broker had to wait for the next one."""


class Found(NamedTuple):
    """What a client met on its way to a queue."""

    redirects: int
    took_s: float


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path) as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred=cluster.broker(1).name)
        wait_whole(cluster, 0, "orders")
        yield cluster


def find(clients: dict[str, BlockingClient], url: str, queue: str) -> Found:
    """Attach at `url`, and go where a redirect says."""
    began_s = time.monotonic()
    for hops in range(MOST_HOPS):
        try:
            clients[url].receiver(queue, 0).close()
        except LinkDetached as detached:
            condition: Any = detached.link.remote_condition
            assert condition.name == LINK_REDIRECT, condition
            info = {str(key): value for key, value in condition.info.items()}
            url = f"amqp://{info['network-host']}:{int(info['port'])}"
        else:
            return Found(hops, time.monotonic() - began_s)
    raise AssertionError(f"{queue} sends a client in circles")


def test_whoever_makes_a_queue_finds_it_at_once_from_any_broker_with_one_redirect_at_most(
    cluster: RunningCluster,
) -> None:
    clients = {url: BlockingClient(url) for url in cluster.urls}
    took_s = []
    for number in range(10):
        for at, url in enumerate(cluster.urls):
            queue = f"q-{number}-{at}"
            create_queue(cluster, 0, queue, "orders")
            found = find(clients, url, queue)
            assert found.redirects == (0 if at == 1 else 1)
            took_s.append(found.took_s)
    assert sorted(took_s)[len(took_s) // 2] < HEARTBEAT_S / 4
    for client in clients.values():
        client.connection.close()
