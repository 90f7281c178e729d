"""Exchanges, bindings and subscriptions, as clients reach them by address and by filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from proton import Described, Message, symbol
from proton.reactor import DurableSubscription, Filter
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, bodies

Connect = Callable[..., BlockingClient]


def binding_filter(kind: str, value: Any) -> Filter:
    shape = "map" if kind == "headers" else "string"
    return Filter({symbol("binding"): Described(symbol(f"apache.org:legacy-amqp-{kind}-binding:{shape}"), value)})


def subjects(*names: str) -> list[Message]:
    return [Message(name, subject=name) for name in names]


def test_a_direct_exchange_goes_by_the_whole_subject(client: BlockingClient, address: str) -> None:
    by_address = client.receiver("amq.direct/red", 0)
    by_filter = client.receiver("amq.direct", 0, binding_filter("direct", "blue"))
    client.send("amq.direct", *subjects("red", "blue", "redder"))
    assert bodies(client.drain(by_address)) == ["red"]
    assert bodies(client.drain(by_filter)) == ["blue"]


def test_a_topic_filter_is_a_binding(client: BlockingClient) -> None:
    receiver = client.receiver("amq.topic", 0, binding_filter("topic", "news.*"))
    client.send("amq.topic", *subjects("news.today", "news", "weather.today"))
    assert bodies(client.drain(receiver)) == ["news.today"]


def test_a_key_in_the_publishers_address_beats_the_subject(client: BlockingClient) -> None:
    receiver = client.receiver("amq.topic/one", 0)
    client.send("amq.topic/one", *subjects("two"))
    assert bodies(client.drain(receiver)) == ["two"]


@pytest.mark.parametrize(("match", "wanted"), [("all", ["both"]), ("any", ["both", "one"])])
def test_a_headers_exchange_goes_by_properties(client: BlockingClient, match: str, wanted: list[str]) -> None:
    headers = {"x-match": match, "color": "red", "size": 3}
    receiver = client.receiver("amq.match", 0, binding_filter("headers", headers))
    client.send(
        "amq.match",
        Message("both", properties={"color": "red", "size": 3}),
        Message("one", properties={"color": "red", "size": 4}),
        Message("none", properties={"color": "blue"}),
        Message("nothing"),
    )
    assert bodies(client.drain(receiver)) == wanted


# --- subscriptions


def test_a_subscription_begins_with_its_link_and_ends_with_it(
    client: BlockingClient, connect: Connect, management: Management
) -> None:
    client.send("amq.fanout", "before")
    receiver = client.receiver("amq.fanout", 0)
    client.send("amq.fanout", "during")
    assert bodies(client.drain(receiver)) == ["during"]
    (subscription,) = subscriptions(management)
    receiver.close()
    assert management.queue(subscription) is None
    other = connect()
    other.receiver("amq.fanout", 0)
    (subscription,) = subscriptions(management)
    watcher = client.receiver(subscription, 0)
    other.break_connection()
    with pytest.raises(LinkDetached, match="amqp:resource-deleted"):
        client.wait(lambda: watcher.link.state & watcher.link.REMOTE_CLOSED)
    assert subscriptions(management) == []


def subscriptions(management: Management) -> list[str]:
    names = [
        row[0] for row in management.ask("QUERY", {"attributeNames": ["name"]}, entityType="queue").body["results"]
    ]
    return [name for name in names if name.startswith("subscription.")]


def test_a_durable_subscription_outlives_its_link_until_it_is_closed(
    client: BlockingClient, connect: Connect, management: Management
) -> None:
    def subscribe(subscriber: BlockingClient) -> Any:
        return subscriber.receiver("amq.topic/news", 0, DurableSubscription(), name="paper")

    reader = connect(container=named_container("reader"))
    subscribe(reader).link.detach()
    client.send("amq.topic/news", "while away")
    reader.close()
    client.send("amq.topic/news", "while the connection was closed")
    reader = connect(container=named_container("reader"))
    receiver = subscribe(reader)
    assert bodies(reader.drain(receiver)) == ["while away", "while the connection was closed"]
    while receiver.fetcher.unsettled:
        receiver.accept()
    reader.round_trip()
    assert management.messages("subscription:reader:paper") == 0
    receiver.close()
    assert management.queue("subscription:reader:paper") is None


def named_container(name: str) -> Any:
    from proton.reactor import Container

    container = Container()
    container.container_id = name
    return container


def test_a_durable_subscription_is_its_subscribers_own(client: BlockingClient, connect: Connect) -> None:
    owner = connect(container=named_container("owner"))
    receiver = owner.receiver("amq.topic/news", 0, DurableSubscription(), name="mine")
    with pytest.raises(LinkDetached) as refused:
        client.receiver("subscription:owner:mine", 0)
    assert refused.value.condition == "amqp:resource-locked"
    receiver.close()


def test_publishing_to_a_deleted_exchange_costs_the_link(
    client: BlockingClient, management: Management, address: str
) -> None:
    management.create_exchange(address, "fanout")
    sender = client.sender(address)
    assert management.ask("DELETE", type="exchange", name=address).status == 204
    sender.link.send(Message("late"))
    with pytest.raises(LinkDetached) as refused:
        client.wait(lambda: False)
    assert refused.value.condition == "amqp:resource-deleted"
