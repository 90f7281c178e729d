"""The filter `no-local`: what a subscriber publishes itself is not kept for it (JMS 3.1 sections 8.3.1 and 8.3.3).

Qpid JMS attaches so for `createConsumer(topic, selector, true)`, and for
`createDurableConsumer(topic, name, selector, true)`.
"""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient, client_of, queued_bodies
from paired_links import condition, subscribe
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.nodes.terminus import SELECTOR
from qpid_ha_broker.amqp.wire.values import value_of
from qpid_ha_broker.model.exchanges.exchange import NO_LOCAL_ARGUMENT, Binding, make_exchange
from qpid_ha_broker.model.queues.queue import Queue

NO_LOCAL: dict[str, Any] = {"no-local": ("apache.org:no-local-filter:list", [])}


def own_queue(broker: PairedBroker) -> Queue:
    (queue,) = broker.container.default.resources.catalog.queues.values()
    return queue


@pytest.fixture(params=["link", "anonymous relay", "transaction"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def publish(client: PairedClient, way: str, body: str) -> None:
    """By each way that a message can take to an exchange."""
    if way == "link":
        client.publish("amq.topic", body)
    elif way == "anonymous relay":
        client.send_all(client.sender(None), proton.Message(body, address="amq.topic"))
    else:
        coordinator = client.session.sender("coordinator")
        coordinator.target.type = proton.Terminus.COORDINATOR
        client.attach(coordinator)
        (declared,) = client.send_all(coordinator, proton.Message(_described("declare", [None])))
        number = declared.remote.data[0] if isinstance(declared.remote.data, list) else declared.local
        link = client.sender("amq.topic")
        delivery = client.send(link, proton.Message(body))
        delivery.local.data = [number]
        delivery.update(0x34)
        client.broker.settle_down()
        client.send_all(coordinator, proton.Message(_described("discharge", [number, False])))


def _described(name: str, fields: list[Any]) -> proton.Described:
    return proton.Described(proton.symbol(f"amqp:{name}:list"), fields)


# --- whose messages they are


def test_a_subscriber_gets_what_others_publish_and_not_its_own(broker: PairedBroker) -> None:
    client, other = client_of(broker), client_of(broker, "other")
    link = subscribe(client, "amq.topic", filters=NO_LOCAL)
    assert value_of(link.remote_source.filter) == {
        proton.symbol("no-local"): proton.Described(proton.symbol("apache.org:no-local-filter:list"), [])
    }
    for body in ("mine", "mine too"):
        client.publish("amq.topic", body)
    other.publish("amq.topic", "theirs")
    assert queued_bodies(own_queue(broker)) == ["theirs"]


def test_of_what_is_not_durable_its_own_is_what_its_connection_publishes(broker: PairedBroker) -> None:
    client = client_of(broker)
    subscribe(client, "amq.topic", filters=NO_LOCAL)
    client_of(broker).publish("amq.topic", "the same container, another connection")
    client.publish("amq.topic", "mine")
    assert len(queued_bodies(own_queue(broker))) == 1


@pytest.mark.parametrize("asked", [{"durable": True}, {"timeout_s": 60}])
def test_of_what_outlives_its_connection_its_own_is_what_its_client_publishes(
    broker: PairedBroker, asked: dict[str, Any]
) -> None:
    client = client_of(broker, user="alice")
    subscribe(client, "amq.topic", "orders", filters=NO_LOCAL, **asked)
    client.vanish()
    broker.settle_down()
    client_of(broker, user="alice").publish("amq.topic", "mine, on another connection")
    client_of(broker, "other", user="alice").publish("amq.topic", "of another container")
    client_of(broker, user="mallory").publish("amq.topic", "of another user")
    assert queued_bodies(own_queue(broker)) == ["of another container", "of another user"]


def test_a_subscription_that_begins_or_ceases_to_be_no_local_begins_anew(broker: PairedBroker) -> None:
    client = client_of(broker)
    for filters, kept in ((NO_LOCAL, ["theirs"]), (None, ["mine", "theirs"]), (NO_LOCAL, ["theirs"])):
        subscribe(client, "amq.topic", "orders", durable=True, filters=filters).detach()
        client.publish("amq.topic", "mine")
        client_of(broker, "other").publish("amq.topic", "theirs")
        assert queued_bodies(own_queue(broker)) == kept


def test_a_selector_and_no_local_both_have_to_let_a_message_in(broker: PairedBroker) -> None:
    client, other = client_of(broker), client_of(broker, "other")
    subscribe(client, "amq.topic", filters={**NO_LOCAL, "s": (SELECTOR, "colour = 'red'")})
    for publisher in (client, other):
        for colour in ("red", "blue"):
            publisher.publish("amq.topic", proton.Message(colour, properties={"colour": colour}))
    assert queued_bodies(own_queue(broker)) == ["red"]


def test_a_relayed_client_and_a_direct_one_of_the_same_names_are_one_client() -> None:
    proxied = PairedProxy()
    subscriber = proxied.client(container="shop", user="alice")
    subscribe(subscriber, "amq.topic", "orders", durable=True, filters=NO_LOCAL)
    client_of(proxied.primary, "shop", "alice").publish("amq.topic", "mine")
    client_of(proxied.primary, "other", "alice").publish("amq.topic", "theirs")
    assert queued_bodies(own_queue(proxied.primary)) == ["theirs"]


def test_no_local_holds_when_the_connection_to_the_primary_breaks() -> None:
    proxied = PairedProxy()
    client, other = proxied.client(container="shop"), proxied.client(container="other")
    link = subscribe(client, "amq.topic", filters=NO_LOCAL)
    mine, theirs = client.sender("amq.topic"), other.sender("amq.topic")
    proxied.cut()
    proxied.connect_upstream()
    client.send_all(mine, "mine")
    other.send_all(theirs, "theirs")
    link.flow(10)
    proxied.settle_down()
    assert client.bodies(link) == ["theirs"]


# --- by every way


def test_no_local_holds_for_each_way_to_publish(broker: PairedBroker, way: str) -> None:
    client, other = client_of(broker), client_of(broker, "other")
    subscribe(client, "amq.topic", filters=NO_LOCAL)
    publish(client, way, "mine")
    publish(other, way, "theirs")
    assert queued_bodies(own_queue(broker)) == ["theirs"]


# --- in the binding


def test_it_is_in_the_binding_so_that_a_new_primary_routes_alike() -> None:
    broker = PairedBroker()
    client = client_of(broker, user="alice")
    subscribe(client, "amq.topic", "orders", durable=True, filters=NO_LOCAL)
    (binding,) = broker.container.default.resources.catalog.exchanges["amq.topic"].bindings()
    assert binding.arguments[NO_LOCAL_ARGUMENT] == "alice/shop"
    rebuilt = make_exchange("topic", 1, "amq.topic", {})
    rebuilt.bind(binding)
    assert rebuilt.route_message("key", b"", ("elsewhere/1/", "alice/shop")) == ()
    assert rebuilt.route_message("key", b"", ("elsewhere/1/", "alice/other")) == (binding.queue,)


def test_what_is_published_by_nobody_comes_to_all() -> None:
    exchange = make_exchange("fanout", 1, "f", {})
    exchange.bind(Binding(7, "", {NO_LOCAL_ARGUMENT: "alice/shop"}))
    assert exchange.route_message("", b"") == (7,)


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers"])
def test_a_binding_of_any_kind_of_exchange_may_have_it_and_another_of_the_queue_leads_there_too(kind: str) -> None:
    exchange = make_exchange(kind, 1, "x", {})
    exchange.bind(Binding(7, "key", {NO_LOCAL_ARGUMENT: "me"}))
    exchange.bind(Binding(8, "key", {}))
    assert exchange.route_message("key", b"", ("me",)) == (8,)
    assert exchange.route_message("key", b"", ("you",)) == (7, 8)
    exchange.bind(Binding(7, "key" if kind == "direct" else "other", {}) if kind != "topic" else Binding(7, "#", {}))
    assert set(exchange.route_message("key", b"", ("me",))) == ({7, 8})
    for queue in (7, 8):
        exchange.unbind_queue(queue)
    assert exchange._conditions == {}


def test_a_binding_takes_no_value_for_it_that_is_no_name(broker: PairedBroker) -> None:
    configuration = broker.container.default.configuration
    configuration.declare_queue("q", {})
    with pytest.raises(Exception, match=NO_LOCAL_ARGUMENT):
        configuration.bind("amq.topic", "q", "#", {NO_LOCAL_ARGUMENT: True})
    assert condition(subscribe(client_of(broker), "q", filters=NO_LOCAL)) == "amqp:not-implemented"
