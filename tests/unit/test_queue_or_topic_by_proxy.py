"""Queues and topics at a broker that relays: what an address means is the same, whichever broker a client reaches."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedClient, queued_bodies
from paired_links import condition, subscribe, symbols
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.wire.relay import RETURN_MS
from several_sets import SeveralSets

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED


@pytest.fixture
def proxied() -> PairedProxy:
    return PairedProxy()


def consumer(pair: PairedProxy, client: PairedClient, address: str | None, *capabilities: str, **options: Any) -> Any:
    name = options.pop("name", f"from {address}")
    link = subscribe(client, address, name, capabilities=capabilities, **options)
    link.flow(100)
    pair.settle_down()
    return link


def sender(
    pair: PairedProxy,
    client: PairedClient,
    address: str | None,
    *capabilities: str,
    name: str = "",
    dynamic: bool = False,
) -> Any:
    link = client.session.sender(name or f"to {address}")
    link.target.address = address
    link.target.dynamic = dynamic
    if capabilities:
        link.target.capabilities.put_object(symbols(*capabilities))
    link.open()
    pair.settle_down()
    return link


def send(pair: PairedProxy, client: PairedClient, link: Any, body: str, kind: int | None = None, **fields: Any) -> Any:
    """`kind`: as Qpid JMS says what `to` is."""
    message = proton.Message(body, **fields)
    if kind is not None:
        message.annotations = {proton.symbol("x-opt-jms-dest"): proton.byte(kind)}
    delivery = client.send(link, message)
    pair.settle_down()
    return delivery


def bodies(client: PairedClient, link: Any) -> list[str]:
    return [message.body for _, message in client.received(link)]


def test_a_queue_and_a_topic_of_one_name_are_those_of_the_primary(proxied: PairedProxy) -> None:
    client, direct = proxied.client(), proxied.primary.connect()
    reader = consumer(proxied, client, "a.b", "queue", name="q")
    subscribers = [consumer(proxied, each, "a.b", "topic", name="t") for each in (client, direct)]
    send(proxied, client, sender(proxied, client, "a.b", "topic", name="t"), "topic", subject="type")
    send(proxied, client, sender(proxied, client, "queue://a.b"), "queue")
    assert bodies(client, reader) == ["queue"]
    assert [bodies(each, link) for each, link in zip((client, direct), subscribers, strict=True)] == [["topic"]] * 2


def test_a_pattern_of_topics_is_a_subscription_though_the_proxy_has_not_heard_of_it(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = consumer(proxied, client, "topic://a.#", browse=True)
    send(proxied, client, sender(proxied, client, "topic://a.b.c"), "x")
    assert bodies(client, link) == ["x"]
    proxied.cut()
    send(proxied, proxied.primary.connect(), sender(proxied, proxied.primary.connect(), "topic://a"), "lost?")
    proxied.connect_upstream()
    send(proxied, client, sender(proxied, client, "topic://a", name="again"), "y")
    assert bodies(client, link)[-1] == "y"


def test_a_temporary_topic_outlives_the_connection_between_proxy_and_primary(proxied: PairedProxy) -> None:
    client, direct = proxied.client(), proxied.primary.connect()
    creator = sender(proxied, client, None, "temporary-topic", name="creator", dynamic=True)
    topic = creator.remote_target.address
    link = consumer(proxied, client, topic, "temporary-topic")
    publisher = sender(proxied, direct, topic, "temporary-topic")
    proxied.cut()
    send(proxied, direct, publisher, "meanwhile")
    proxied.connect_upstream()
    send(proxied, direct, publisher, "afterwards")
    send(proxied, client, creator, "own")
    assert bodies(client, link) == ["meanwhile", "afterwards", "own"]
    assert condition(publisher) is None
    creator.close()
    proxied.settle_down()
    assert condition(link) == condition(publisher) == "amqp:resource-deleted"
    assert len(proxied.primary.container.nodes.topics) == 0


def test_a_dynamic_source_that_is_a_topic_stays_the_same_one(proxied: PairedProxy) -> None:
    client, direct = proxied.client(), proxied.primary.connect()
    link = consumer(proxied, client, None, "topic", name="own", dynamic=True)
    topic = link.remote_source.address
    assert topic.startswith("amq.topic/temporary.")
    proxied.cut()
    proxied.connect_upstream()
    send(proxied, direct, sender(proxied, direct, topic), "x")
    assert bodies(client, link) == ["x"]
    link.close()
    proxied.settle_down()
    assert not proxied.primary.container.default.resources.catalog.queues


def test_a_temporary_topic_of_a_proxy_that_does_not_come_back_is_one_that_nobody_has(proxied: PairedProxy) -> None:
    client, direct = proxied.client(), proxied.primary.connect()
    topic = sender(proxied, client, None, "temporary-topic", dynamic=True).remote_target.address
    consumer(proxied, client, topic)
    publisher = sender(proxied, direct, topic)
    proxied.cut()
    container = proxied.primary.container
    container.now_ms += RETURN_MS
    container.tick()
    proxied.settle_down()
    assert not container.default.resources.catalog.queues
    delivery = send(proxied, direct, publisher, "to nobody")
    proxied.primary.settle_down()
    assert delivery.remote_state == ACCEPTED


class NamedAlike(PairedProxy):
    """The queue `red` is in the set `red`, which the primary leads as it does `default`; the proxy leads `blue`."""

    def __init__(self) -> None:
        self.here, self.there = SeveralSets(), SeveralSets()
        super().__init__(primary=self.there, proxy=self.here)
        self.here.lead_elsewhere("red")


@pytest.mark.parametrize("relays", [True, False])
def test_a_topic_that_has_the_name_of_a_queue_in_another_set_is_in_default(relays: bool) -> None:
    pair = NamedAlike()
    client = pair.client() if relays else pair.there.connect()
    subscriber = consumer(pair, client, "red", "topic", name="t")
    relay = sender(pair, client, None, name="any")
    for kind, body in ((0, "queue"), (1, "topic")):
        assert send(pair, client, relay, body, kind, address="red").remote_state == ACCEPTED
    assert send(pair, client, relay, "?", 7, address="red").remote_state == REJECTED
    assert bodies(client, subscriber) == ["topic"]
    assert queued_bodies(pair.there.set("red").resources.catalog.queues["red"]) == ["queue"]
    send(pair, client, sender(pair, client, "red", "topic", name="own"), "named")
    assert bodies(client, subscriber) == ["named"]
