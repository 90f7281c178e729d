"""Queues and topics of one name, topics that nobody has made, temporary ones, and addresses as of other brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Link, Message, byte, symbol
from proton.reactor import DurableSubscription, LinkOption
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, bodies
from proxied_broker import Serve, Served
from running_cluster import RunningCluster

Connect = Callable[..., BlockingClient]
ACCEPTED, REJECTED = Delivery.ACCEPTED, Delivery.REJECTED
RULES = [
    {"address": "/queues/{queue}", "queue": "{queue}", "percent-encoded": True},
    {"address": "/exchanges/{exchange}/{key}", "exchange": "{exchange}", "key": "{key}", "percent-encoded": True},
    {"address": "/topic/{topic}", "topic": "{topic}"},
    {"address": "jobs.{name}", "queue": "jobs.{name}", "arguments": {"qpid.max_count": 2}},
    {"address": "{name}", "queue": "{name}", "auto-create": False},
]


class Asks(LinkOption):
    """A link with capabilities, as of Qpid JMS; `dynamic`: for a node of its own."""

    def __init__(self, *capabilities: str, dynamic: bool = False) -> None:
        self._capabilities = [symbol(name) for name in capabilities]
        self._dynamic = dynamic

    def apply(self, link: Link) -> None:
        """Called by Proton."""
        terminus = link.target if link.is_sender else link.source
        for name in self._capabilities:
            terminus.capabilities.put_object(name)
        terminus.dynamic = self._dynamic


def send(client: BlockingClient, address: str, capability: str, *texts: str) -> list[Any]:
    sender = client.sender(address, options=Asks(capability))
    outcomes = [client.offer(sender, Message(text, subject="a type")) for text in texts]
    sender.close()
    return [outcome.state for outcome in outcomes]


def test_a_queue_and_a_topic_have_one_name(client: BlockingClient, management: Management, address: str) -> None:
    subscribers = [client.receiver(address, 0, Asks("topic")) for _ in range(2)]
    assert send(client, address, "topic", "to all") == [ACCEPTED]
    assert send(client, address, "queue", "to one") == [ACCEPTED]
    assert [bodies(client.drain(each)) for each in subscribers] == [["to all"]] * 2
    assert bodies(client.consume(address)) == ["to one"]
    assert management.ask("READ", type="exchange", name=address).status == 404


def test_a_queue_that_jms_made_gives_what_is_urgent_first_and_others_in_order(
    client: BlockingClient, address: str
) -> None:
    own = client.receiver(None, 0, Asks("temporary-queue", dynamic=True))
    plain = client.sender(f"{address}.plain")
    for sender in (client.sender(address, options=Asks("queue")), client.sender(own.link.remote_source.address), plain):
        for body, priority in (("a", 4), ("b", 0), ("c", 9), ("d", 4), ("e", 5)):
            assert client.offer(sender, Message(body, priority=priority)).state == ACCEPTED
    assert bodies(client.consume(address)) == bodies(client.drain(own)) == ["c", "e", "a", "d", "b"]
    assert bodies(client.consume(f"{address}.plain")) == ["a", "b", "c", "d", "e"]


def test_an_anonymous_producer_says_which(client: BlockingClient, address: str) -> None:
    subscriber, relay = client.receiver(f"topic://{address}.*", 0), client.sender(None)
    for kind, name in ((0, address), (1, f"{address}.1")):
        message = Message(f"kind {kind}", address=name, annotations={symbol("x-opt-jms-dest"): byte(kind)})
        assert client.offer(relay, message).state == ACCEPTED
    assert client.offer(relay, Message("by prefix", address=f"topic://{address}.2")).state == ACCEPTED
    assert bodies(client.drain(subscriber)) == ["kind 1", "by prefix"]
    assert bodies(client.consume(f"queue://{address}")) == ["kind 0"]
    wrong = client.offer(relay, Message("?", address=address, annotations={symbol("x-opt-jms-dest"): byte(4)}))
    assert (wrong.state, wrong.condition) == (REJECTED, "amqp:invalid-field")


def test_replies_come_to_a_temporary_topic(client: BlockingClient, connect: Connect) -> None:
    """As Qpid JMS has one: a sender makes it, and receivers name it."""
    creator = client.sender(None, options=Asks("temporary-topic", dynamic=True))
    topic = creator.link.remote_target.address
    readers = [client.receiver(topic, 0, Asks("temporary-topic")) for _ in range(2)]
    other = connect()
    assert send(other, topic, "temporary-topic", "named") == [ACCEPTED]
    assert other.offer(other.sender(None), Message("relayed", address=topic)).state == ACCEPTED
    assert [bodies(client.drain(each)) for each in readers] == [["named", "relayed"]] * 2
    left = other.receiver(topic, 0)
    for each in (*readers, creator):
        each.close()
    with pytest.raises(LinkDetached) as ended:
        other.wait(lambda: left.link.state & Link.REMOTE_CLOSED)
    assert ended.value.condition == "amqp:resource-deleted"


def test_a_durable_subscription_to_a_topic_finds_what_came_meanwhile(connect: Connect, address: str) -> None:
    first = connect()
    receiver = first.receiver(address, 0, Asks("topic"), DurableSubscription(), name="kept")
    receiver.link.detach()
    first.round_trip()
    assert send(connect(), address, "topic", "meanwhile") == [ACCEPTED]
    again = first.receiver(address, 0, Asks("topic"), DurableSubscription(), name="kept")
    assert bodies(first.drain(again)) == ["meanwhile"]
    again.close()


@pytest.fixture(scope="module")
def ruled(serve: Serve) -> Iterator[Served]:
    """With addresses as of RabbitMQ."""
    with serve({"address-rules": json.dumps(RULES)}) as running:
        yield running


@pytest.mark.direct_only
def test_addresses_of_other_brokers_are_understood(ruled: Served) -> None:
    """`direct_only`: the proxy of these tests has other settings than its primary."""
    with BlockingClient(ruled.url) as client:
        subscriber = client.receiver("/topic/news.*", 0)
        client.send("/exchanges/amq.topic/news%2E1", "by exchange")
        client.send("/topic/news.2", "by topic")
        assert bodies(client.drain(subscriber)) == ["by exchange", "by topic"]
        client.send("/queues/a%2Fb", "by queue")
        assert bodies(client.consume("queue://a/b")) == ["by queue"]
        states = [outcome.state for outcome in client.send("jobs.1", "1", "2", "3")]
        assert states == [ACCEPTED, ACCEPTED, REJECTED]
        for address, condition in (("/queues/%zz", "amqp:invalid-field"), ("mistyped", "amqp:not-found")):
            with pytest.raises(LinkDetached) as refused:
                client.sender(address)
            assert refused.value.condition == condition
            relayed = client.offer(client.sender(None), Message("x", address=address))
            assert (relayed.state, relayed.condition) == (REJECTED, condition)


@pytest.mark.parametrize("clients", ["redirect", "proxy"])
def test_topics_are_there_after_a_failover(tmp_path: Path, clients: str) -> None:
    with RunningCluster(tmp_path, agents=True, settings={"ha": {"clients": clients}}) as cluster:
        cluster.wait_whole()
        old = cluster.the_primary()
        at = next(url for broker, url in zip(cluster.brokers, cluster.urls, strict=True) if broker is not old)
        before = at if clients == "proxy" else cluster.urls[cluster.brokers.index(old)]
        with BlockingClient(before, container_id="reader") as client:
            receiver = client.receiver("prices.*", 0, Asks("topic"), DurableSubscription(), name="kept")
            receiver.link.detach()
            client.round_trip()
            assert send(client, "prices.tea", "topic", "before") == [ACCEPTED]
            assert send(client, "prices.tea", "queue", "queued") == [ACCEPTED]
            cluster.kill(old)
            cluster.wait_until(lambda: cluster.primary() not in (None, old), "another one leads")
        leader = cluster.urls[cluster.brokers.index(cluster.the_primary())]
        with BlockingClient(at if clients == "proxy" else leader, container_id="reader") as client:
            assert send(client, "prices.tea", "topic", "after") == [ACCEPTED]
            again = client.receiver("prices.*", 0, Asks("topic"), DurableSubscription(), name="kept")
            assert bodies(client.drain(again)) == ["before", "after"]
            assert bodies(client.consume("prices.tea")) == ["queued"]
