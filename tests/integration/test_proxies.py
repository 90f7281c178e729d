"""Clients of brokers that relay their links (`ha.clients: proxy`): they are told nothing, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Delivery, Message
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, bodies
from running_cluster import RunningCluster
from sets_cluster import change, create_queue, create_set, wait_whole
from steady_clients import SteadyConsumer, SteadyPublisher

SETTINGS = {"ha": {"failure-timeout": "1s", "clients": "proxy"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """One set; the first broker leads."""
    with RunningCluster(tmp_path, settings=SETTINGS) as cluster:
        cluster.form()
        yield cluster


def relayed_links(cluster: RunningCluster, which: int) -> int:
    return int(cluster.status(which)["relayed_links"])


def test_a_backup_serves_publishers_consumers_and_browsers(cluster: RunningCluster) -> None:
    with BlockingClient(cluster.urls[1]) as one, BlockingClient(cluster.urls[2]) as other:
        outcomes = one.send("q", *[f"m{number}" for number in range(10)])
        assert {outcome.state for outcome in outcomes} == {Delivery.ACCEPTED}
        assert bodies(other.browse("q")) == [f"m{number}" for number in range(10)]
        assert bodies(other.consume("q")) == [f"m{number}" for number in range(10)]
        assert one.browse("q") == []


def test_what_is_not_there_is_refused_as_at_the_primary(tmp_path: Path) -> None:
    answers = []
    with RunningCluster(tmp_path, settings={**SETTINGS, "auto-create": False}) as cluster:
        cluster.form()
        for url in cluster.urls[:2]:
            with BlockingClient(url) as client:
                with pytest.raises(LinkDetached) as refused:
                    client.receiver("nothing", 1)
                answers.append((refused.value.condition, str(refused.value).split(": ", 1)[1]))
                with pytest.raises(LinkDetached) as refused:
                    client.sender("nothing")
                answers.append((refused.value.condition, str(refused.value).split(": ", 1)[1]))
    assert answers[:2] == answers[2:]
    assert answers[0][0] == "amqp:not-found"


def test_queues_of_any_set_are_served_by_every_broker(cluster: RunningCluster) -> None:
    create_set(cluster, "orders", preferred=cluster.broker(1).name)
    create_set(cluster, "audit", preferred=cluster.broker(2).name)
    wait_whole(cluster, 0, "orders", "audit")
    create_queue(cluster, 0, "q-orders", "orders")
    create_queue(cluster, 0, "q-audit", "audit")
    for queue in ("q-orders", "q-audit", "q-default"):
        for at, url in enumerate(cluster.urls):
            with BlockingClient(url) as client, BlockingClient(cluster.urls[at - 1]) as other:
                assert client.send(queue, f"from {at}")[0].state == Delivery.ACCEPTED
                assert bodies(other.browse(queue)) == [f"from {at}"]
                assert bodies(other.consume(queue)) == [f"from {at}"]


def test_a_request_at_one_proxy_is_answered_at_another_one(cluster: RunningCluster) -> None:
    with BlockingClient(cluster.urls[1]) as caller, BlockingClient(cluster.urls[2]) as service:
        replies = caller.receiver(None, 1, dynamic=True)
        address = replies.link.remote_source.address
        caller.send("service", Message("question", reply_to=address))
        (request,) = service.fetch(service.receiver("service", 1), 1)
        service.send(request.reply_to, request.body.upper())
        assert bodies(caller.fetch(replies, 1)) == ["QUESTION"]
        replies.close()
        assert Management(service).queue(address) is None


COUNT = 20_000


def test_a_killed_primary_is_a_pause_for_clients_of_the_others(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True, settings=SETTINGS) as cluster:
        cluster.wait_whole()
        dead = cluster.brokers.index(cluster.the_primary())
        one, other = [url for at, url in enumerate(cluster.urls) if at != dead]
        with SteadyPublisher(one, "q", COUNT) as publisher, SteadyConsumer(other, "q") as consumer:
            consumer.wait_received(3000)
            cluster.kill(dead)
            publisher.wait(lambda: len(publisher.accepted) == COUNT, "all accepted")
            consumer.wait_received(COUNT)
        assert consumer.received == list(range(COUNT))
        assert sorted(publisher.accepted) == list(range(COUNT))


def test_a_set_that_moves_is_a_pause_also_when_it_moves_to_the_proxy_and_away(cluster: RunningCluster) -> None:
    names = [broker.name for broker in cluster.brokers]
    create_set(cluster, "orders", preferred=names[1])
    wait_whole(cluster, 0, "orders")
    create_queue(cluster, 0, "q", "orders")
    url = cluster.urls[2]
    with SteadyPublisher(url, "q", COUNT) as publisher, SteadyConsumer(url, "q") as consumer:
        for number, to in enumerate((0, 2, 1), 1):
            consumer.wait_received(4000 * number)
            change(cluster, 0, "sets", "transfer", name="orders", to=names[to])
        publisher.wait(lambda: len(publisher.accepted) == COUNT, "all accepted")
        consumer.wait_received(COUNT)
    assert consumer.received == list(range(COUNT))


def test_a_client_of_a_killed_proxy_goes_on_at_another_broker(cluster: RunningCluster) -> None:
    with BlockingClient(cluster.urls[1]) as client:
        client.send("q", "a", "b")
        receiver = client.receiver("q", 1)
        client.fetch(receiver, 1, None)
        cluster.kill(1)
    with BlockingClient(cluster.urls[2]) as client:
        found = client.consume("q")
        assert [(each.body, each.first_acquirer) for each in found] == [("a", False), ("b", True)]
