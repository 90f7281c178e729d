"""`qpid_ha_client` with sessions of real brokers: exactly-once over kill -9, also for what nobody has confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message

from bench.session_kills import BROKERS, SessionKills, session_settings
from blocking_client import BlockingClient, bodies
from exact_load import ExactLoad
from limits import LIMIT_S
from qpid_ha_client import Guarantee, SessionClient
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

SETTINGS = {"ha": {"failure-timeout": "1s", "clients": "proxy"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers that relay, the first of which leads."""
    with RunningCluster(tmp_path, settings=SETTINGS) as cluster:
        cluster.form()
        yield cluster


def test_killed_brokers_cost_no_message_and_make_none_twice(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True, settings=SETTINGS) as cluster:
        cluster.wait_whole()
        with ExactLoad(cluster.urls, "q", require_session=True) as load:
            load.wait_more(1000)
            cluster.kill(cluster.the_primary())
            cluster.wait_whole()
            load.wait_more(500)
            cluster.kill(cluster.urls.index(load.consumers_broker()))
            cluster.wait_until(lambda: load.consumer.reconnects > 0, "the consumer notices")
            load.wait_more(500)
            load.finish()
        assert load.consumer.reconnects >= 1
        assert load.consumer.guarantee is Guarantee.EXACTLY_ONCE


def test_a_message_that_the_program_still_has_stays_its_own_while_brokers_die(cluster: RunningCluster) -> None:
    with SessionClient(cluster.urls, require_session=True) as client:
        client.sender("q").send(Message("mine"))
        received = client.receiver("q").receive(10.0)
        cluster.kill(0)
        cluster.promote(1)
        with BlockingClient(cluster.urls[1]) as other:
            assert bodies(other.consume("q")) == []
        received.accept(wait=True, timeout_s=LIMIT_S)
        with BlockingClient(cluster.urls[1]) as other:
            assert bodies(other.consume("q")) == []


def test_a_session_at_a_broker_that_leads_nothing_has_links_to_queues_of_several_sets(cluster: RunningCluster) -> None:
    create_set(cluster, "orders", preferred=cluster.broker(1).name)
    wait_whole(cluster, 0, "orders")
    create_queue(cluster, 0, "of-orders", "orders")
    queues = ("of-orders", "of-default")
    with SessionClient(cluster.urls[2], require_session=True) as first:
        for queue in queues:
            first.sender(queue).send(Message(queue), timeout_s=LIMIT_S)
        keys = {queue: first.receiver(queue).receive(20.0).key for queue in queues}
        (row,) = cluster.broker(0).ask("sessions", action="list")["answer"]
        assert (row["session"], row["broker"], row["state"]) == (first.session_id, "broker3", "attached")
        first.close(keep_session=True)
    with SessionClient(cluster.urls[1], session=first.session_id) as second:
        for queue in queues:
            received = second.receiver(queue).receive(20.0)
            assert (received.body, received.key) == (queue, keys[queue])
            received.accept(wait=True, timeout_s=LIMIT_S)


def test_primaries_and_proxies_are_killed_and_no_client_with_a_session_notices(tmp_path: Path) -> None:
    """The short form of `./dev soak --sessions`."""
    with RunningCluster(tmp_path, BROKERS, agents=True, settings=session_settings()) as cluster:
        soak = SessionKills(cluster, seed=1)
        try:
            soak.start()
            soak.run(5)
            soak.settle()
        finally:
            soak.stop()
        assert soak.problems() == []
        assert soak.total().is_flawless
