"""Clients learn at every open, and by notices, which brokers serve them: also those that join later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blocking_client import BlockingClient
from running_cluster import RunningCluster
from sets_cluster import change, create_set, wait_whole

NOTICES = "amq.qpid/cluster"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers that relay; the first leads `default`, the second another set."""
    with RunningCluster(tmp_path, settings={"ha": {"failure-timeout": "1s", "clients": "proxy"}}) as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred=cluster.broker(1).name, min_replicas=2)
        wait_whole(cluster, 0, "orders")
        yield cluster


def hosts_at(url: str) -> list[str]:
    """As the broker there tells them at the open."""
    with BlockingClient(url) as client:
        servers = client.connection.conn.remote_properties["failover-server-list"]
    return [f"{server['network-host']}:{int(server['port'])}" for server in servers]


def hosts(*urls: str) -> set[str]:
    return {url.removeprefix("amqp://") for url in urls}


def told(client: BlockingClient, notices: Any) -> list[str]:
    """What the next notice says."""
    (message,) = client.fetch(notices, 1)
    assert message.body is None
    assert not message.durable
    assert message.ttl > 0
    return str(message.properties["qpid.known.hosts"]).split(",")


def wait_told(client: BlockingClient, notices: Any, wanted: set[str]) -> None:
    """Until a notice tells of exactly these; those before it tell of how it came to that."""
    while set(told(client, notices)) != wanted:
        pass


def test_every_open_names_all_brokers_the_others_first_and_not_always_the_same_one(cluster: RunningCluster) -> None:
    for url in cluster.urls:
        found = [hosts_at(url) for _ in range(2)]
        assert [set(each) for each in found] == [hosts(*cluster.urls)] * 2
        assert [each[-1] for each in found] == [url.removeprefix("amqp://")] * 2
        assert found[0][0] != found[1][0]


def test_who_listens_hears_of_brokers_that_join_fail_are_drained_and_forgotten(cluster: RunningCluster) -> None:
    with BlockingClient(cluster.urls[0]) as client, BlockingClient(cluster.urls[1]) as at_a_proxy:
        listeners = [(each, each.receiver(NOTICES, 100)) for each in (client, at_a_proxy)]

        def told_everywhere(*urls: str) -> None:
            assert [set(told(*listener)) for listener in listeners] == [hosts(*urls)] * 2

        joined = cluster.add_broker()
        told_everywhere(*cluster.urls)
        assert set(hosts_at(cluster.urls[1])) == hosts(*cluster.urls)
        assert hosts_at(cluster.urls[3])[-1] in hosts(cluster.urls[3])

        cluster.kill(2)
        told_everywhere(cluster.urls[0], cluster.urls[1], cluster.urls[3])
        change(cluster, 0, "brokers", "drain", name=joined.name)
        told_everywhere(*cluster.urls[:2])
        change(cluster, 0, "brokers", "undrain", name=joined.name)
        told_everywhere(cluster.urls[0], cluster.urls[1], cluster.urls[3])
        assert not any(notices.fetcher.has_message for _, notices in listeners)


def test_nothing_is_published_where_nobody_is_bound_and_whoever_is_hears_at_any_broker(cluster: RunningCluster) -> None:
    assert cluster.broker(0).ask("query")["unroutable"] == 0
    cluster.broker(0).ask("queues", action="create", name="waiting")
    cluster.broker(0).ask("exchanges", action="bind", name="amq.qpid", queue="waiting", key="cluster")
    cluster.kill(2)
    with BlockingClient(cluster.urls[1]) as client:
        wait_told(client, client.receiver("waiting", 1), hosts(*cluster.urls[:2]))


def test_where_only_the_primary_serves_it_comes_first_and_a_promotion_is_told(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form()
        one, two, three = (url.removeprefix("amqp://") for url in cluster.urls)
        assert [hosts_at(cluster.urls[0]) for _ in range(2)] == [[one, two, three]] * 2
        cluster.broker(0).ask("queues", action="create", name="waiting")
        cluster.broker(0).ask("exchanges", action="bind", name="amq.qpid", queue="waiting", key="cluster")
        cluster.promote(1)
        with BlockingClient(cluster.urls[1]) as client:
            assert told(client, client.receiver("waiting", 1)) == [two, one, three]
