"""`qpid_ha_client` with sessions of real brokers: exactly-once over kill -9, also for what nobody has confirmed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message

from blocking_client import BlockingClient, bodies
from exact_load import ExactLoad
from qpid_ha_client import Guarantee, SessionClient, SessionLost, SessionTaken
from running_cluster import RunningCluster

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
        received.accept(wait=True, timeout_s=20.0)
        with BlockingClient(cluster.urls[1]) as other:
            assert bodies(other.consume("q")) == []


def test_another_process_resumes_the_session_and_gets_what_was_held(cluster: RunningCluster) -> None:
    first = SessionClient(cluster.urls, require_session=True)
    first.sender("q").send(Message("held"))
    key = first.receiver("q").receive(10.0).key
    first.close(keep_session=True)
    with SessionClient(cluster.urls, session=first.session_id) as second:
        received = second.receiver("q").receive(10.0)
        assert (received.body, received.key) == ("held", key)
        received.accept(wait=True, timeout_s=10.0)


def test_a_client_whose_session_another_one_takes_is_told_and_does_not_fight(cluster: RunningCluster) -> None:
    first = SessionClient(cluster.urls, require_session=True)
    receiver = first.receiver("q")
    first.wait_connected(10.0)
    with SessionClient(cluster.urls, session=first.session_id) as second:
        second.wait_connected(10.0)
        with pytest.raises(SessionTaken):
            receiver.receive(20.0)
    first.close()


def test_a_session_that_is_gone_is_told_before_anything_goes_on(cluster: RunningCluster) -> None:
    with SessionClient(cluster.urls, session=str(uuid.uuid4())) as client:
        sender = client.sender("q")
        with pytest.raises(SessionLost):
            sender.send(Message("a"), timeout_s=20.0)
        client.begin_anew()
        sender.flush(20.0)
        assert client.guarantee is Guarantee.EXACTLY_ONCE
    with BlockingClient(cluster.urls[0]) as reader:
        assert bodies(reader.consume("q")) == ["a"]
