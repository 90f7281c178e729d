"""Durable subscriptions: each subscriber finds its own again, and no other queue is ever taken for one."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from model_support import TextReader, picture
from paired_engines import PairedBroker, PairedClient
from paired_links import condition, status, subscribe
from qpid_ha_broker.amqp.nodes.subscriptions import Subscriber
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.model.resources import Resources

OWN_NAME = "subscription:shop:orders"


@pytest.fixture
def broker() -> PairedBroker:
    return PairedBroker()


def client_of(broker: PairedBroker, container: str) -> PairedClient:
    client = PairedClient(broker, container=container)
    broker.settle_down()
    return client


def publish(broker: PairedBroker, address: str, *bodies: str) -> None:
    client = broker.connect()
    client.publish(address, *bodies)
    client.vanish()


def read(client: PairedClient, link: Any) -> list[str]:
    link.flow(100)
    client.broker.settle_down()
    return client.bodies(link)


def close(client: PairedClient, link: Any) -> None:
    link.close()
    client.broker.settle_down()


def queues(broker: PairedBroker) -> list[str]:
    return list(broker.container.default.resources.catalog.queues)


def leave_as_release_0_1_0_did(broker: PairedBroker, name: str, exchange: str = "amq.topic", key: str = "#") -> None:
    """The queue of a durable subscription whose subscriber has gone, holding one message."""
    configuration = broker.container.default.configuration
    configuration.declare_queue(name, {"qpid.exclusive": True})
    configuration.bind(exchange, name, key, {})
    client = broker.connect()
    close(client, client.receiver(name))
    publish(broker, exchange, "missed")


# --- what is no subscription is left alone


@pytest.mark.parametrize(
    "arguments", [{}, {"qpid.exclusive": True}, {"qpid.exclusive": True, "qpid.auto_delete": True}]
)
def test_a_queue_that_has_the_old_name_of_a_subscription_is_not_taken_for_one(
    broker: PairedBroker, arguments: dict[str, Any]
) -> None:
    broker.container.default.configuration.declare_queue("shop.orders", arguments)
    publish(broker, "shop.orders", "order")
    client = client_of(broker, "shop")

    link = subscribe(client, "amq.topic", "orders", durable=True)
    assert read(client, link) == []
    close(client, link)

    assert (queues(broker), broker.queue("shop.orders").messages.count) == (["shop.orders"], 1)


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_what_has_the_name_of_a_subscription_and_is_none_stops_the_subscriber(broker: PairedBroker, kind: str) -> None:
    """Of a store of an earlier release: now nobody makes one."""
    client = client_of(broker, "shop")
    declared = ev.QueueDeclared(OWN_NAME, {}) if kind == "queue" else ev.ExchangeDeclared(OWN_NAME, "fanout", {})
    broker.container.default.resources.default.write(declared)
    for address in ("amq.topic", None):
        link = subscribe(client, address, "orders", durable=address is not None)
        assert condition(link) == "amqp:precondition-failed"
        assert OWN_NAME in link.remote_condition.description
        close(client, link)
    assert status(client, "READ", {}, type=kind, name=OWN_NAME) == 200


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_nobody_locks_a_subscriber_out_by_making_what_has_the_name_of_the_subscription(
    broker: PairedBroker, kind: str
) -> None:
    stranger, client = client_of(broker, "stranger"), client_of(broker, "shop")
    assert status(stranger, "CREATE", {"kind": "fanout"} if kind == "exchange" else {}, type=kind, name=OWN_NAME) == 400
    made = stranger.sender(OWN_NAME) if kind == "queue" else subscribe(stranger, OWN_NAME, capabilities=("topic",))
    assert condition(made) == "amqp:invalid-field"
    assert condition(subscribe(client, "amq.topic", "orders", durable=True)) is None
    assert broker.queue(OWN_NAME).arguments.subscription


def test_nobody_can_make_a_queue_a_subscription_by_hand(broker: PairedBroker) -> None:
    client = client_of(broker, "shop")
    mark = {"qpid.subscription": "shop:orders"}
    assert status(client, "CREATE", {"arguments": mark}, type="queue", name="q") == 400
    assert status(client, "CREATE", {}, type="queue", name="q") == 201
    assert status(client, "UPDATE", {"arguments": mark}, type="queue", name="q") == 400
    for address, dynamic in ((None, True), ("made", False), ("amq.topic", False)):
        link = subscribe(client, address, str(address), properties=mark, dynamic=dynamic)
        assert condition(link) == "amqp:invalid-field"
    assert queues(broker) == ["q"]


def test_a_queue_that_was_made_anew_under_the_name_of_a_temporary_one_is_not_deleted_with_the_link(
    broker: PairedBroker,
) -> None:
    client = client_of(broker, "shop")
    link = subscribe(client, "amq.topic", "orders", durable=True)
    configuration = broker.container.default.configuration
    configuration.delete_queue(OWN_NAME)
    broker.container.default.resources.default.write(ev.QueueDeclared(OWN_NAME, {}))
    close(client, link)
    assert queues(broker) == [OWN_NAME]


# --- each subscriber has its own


def test_names_with_dots_in_them_are_different_subscriptions(broker: PairedBroker) -> None:
    one, other = client_of(broker, "a"), client_of(broker, "a.b")
    first = subscribe(one, "amq.topic", "b.c", durable=True)
    second = subscribe(other, "amq.topic", "c", durable=True)
    publish(broker, "amq.topic", "news")
    assert read(one, first) == read(other, second) == ["news"]
    close(one, first)
    assert queues(broker) == ["subscription:a.b:c"]


@pytest.mark.parametrize(
    "parts", [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a%", "3Ab:c"), ("é\n", "\x00"), (" ", "")]
)
def test_an_identity_says_which_part_is_which(parts: tuple[str, str]) -> None:
    from urllib.parse import unquote

    identity = Subscriber(*parts).identity
    assert tuple(map(unquote, identity.split(":"))) == parts
    assert identity.isprintable()


def test_a_container_without_a_name_has_no_durable_subscription(broker: PairedBroker) -> None:
    client = client_of(broker, "")
    assert condition(subscribe(client, "amq.topic", "orders", durable=True)) == "amqp:precondition-failed"
    assert queues(broker) == []


def test_a_subscriber_that_asks_for_something_else_is_told_what_it_has(broker: PairedBroker) -> None:
    client = client_of(broker, "shop")
    link = subscribe(client, "amq.topic/orders.*", "orders", durable=True)
    link.detach()
    publish(broker, "amq.topic/orders.new", "order")
    for address in ("amq.topic/bills.*", "amq.fanout"):
        refused = subscribe(client, address, "orders", durable=True)
        assert condition(refused) == "amqp:precondition-failed"
        close(client, refused)
    again = subscribe(client, "amq.topic/orders.*", "orders", durable=True)
    assert read(client, again) == ["order"]


# --- subscriptions of the release before


def test_a_subscription_of_the_release_before_is_found_and_marked(broker: PairedBroker) -> None:
    leave_as_release_0_1_0_did(broker, "shop.orders")
    client = client_of(broker, "shop")

    link = subscribe(client, "amq.topic", "orders", durable=True)
    assert read(client, link) == ["missed"]
    assert broker.queue("shop.orders").arguments.subscription == "shop:orders"
    link.detach()
    broker.settle_down()
    publish(broker, "amq.topic", "more")
    link = subscribe(client, "amq.topic", "orders", durable=True)
    assert read(client, link) == ["missed", "more"]
    close(client, link)

    assert queues(broker) == []


def test_of_two_that_had_one_queue_the_first_gets_it_and_the_other_one_of_its_own(broker: PairedBroker) -> None:
    leave_as_release_0_1_0_did(broker, "a.b.c")
    one, other = client_of(broker, "a.b"), client_of(broker, "a")
    first = subscribe(one, "amq.topic", "c", durable=True)
    second = subscribe(other, "amq.topic", "b.c", durable=True)
    assert (read(one, first), read(other, second)) == (["missed"], [])
    close(other, second)
    assert queues(broker) == ["a.b.c"]


def test_a_queue_that_is_bound_otherwise_is_no_subscription_of_the_release_before(broker: PairedBroker) -> None:
    leave_as_release_0_1_0_did(broker, "shop.orders", "amq.fanout", "")
    client = client_of(broker, "shop")
    close(client, subscribe(client, "amq.topic", "orders", durable=True))
    assert (queues(broker), broker.queue("shop.orders").arguments.subscription) == (["shop.orders"], "")


def test_a_backup_and_a_restart_know_the_mark(broker: PairedBroker) -> None:
    log = broker.container.default.resources.default.log
    log.add_witness("store")
    leave_as_release_0_1_0_did(broker, "a.old")
    subscribe(client_of(broker, "a"), "amq.topic", "old", durable=True)
    subscribe(client_of(broker, "a"), "amq.topic", "new", durable=True)
    log.acknowledge("store", log.last_lsn)
    backup = Resources(TextReader())
    for name in ("amq.direct", "amq.topic", "amq.fanout", "amq.match"):
        there = broker.container.default.resources.catalog.exchanges[name]
        backup.catalog.exchanges[name] = backup.catalog.exchanges_by_id[there.id] = type(there)(there.id, name, {})
    backup.default.log.last_lsn = log.last_lsn
    for batch in broker.batches:
        for record in decode(batch.data).records:
            backup.default.state.replay(record)
    marks = {name: queue.arguments.subscription for name, queue in backup.catalog.queues.items()}
    assert marks == {"a.old": "a:old", "subscription:a:new": "a:new"}
    assert picture(backup.sets)["queues"] == picture(broker.container.default.resources.sets)["queues"]


# --- JMS unsubscribes by a receiver without a source


def test_a_subscriber_unsubscribes_by_closing_a_receiver_without_a_source(broker: PairedBroker) -> None:
    client = client_of(broker, "shop")
    subscribe(client, "amq.topic/orders.*", "orders", durable=True).detach()
    broker.settle_down()
    assert queues(broker) == [OWN_NAME]

    link = subscribe(client, None, "orders")

    remote = link.remote_source
    assert (remote.type, remote.address) == (proton.Terminus.SOURCE, "amq.topic/orders.*")
    assert (remote.durability, remote.expiry_policy) == (proton.Terminus.CONFIGURATION, proton.Terminus.EXPIRE_NEVER)
    close(client, link)
    assert queues(broker) == []
    assert link.remote_condition is None


def test_who_has_nothing_to_unsubscribe_from_is_told_so(broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("shop.orders", {})
    link = subscribe(client_of(broker, "shop"), None, "orders")
    assert link.remote_source.type == proton.Terminus.UNSPECIFIED
    assert condition(link) == "amqp:not-found"
    assert queues(broker) == ["shop.orders"]


def test_a_subscription_of_the_release_before_can_be_unsubscribed_from(broker: PairedBroker) -> None:
    leave_as_release_0_1_0_did(broker, "shop.orders")
    client = client_of(broker, "shop")
    close(client, subscribe(client, None, "orders"))
    assert queues(broker) == []


def test_a_subscription_that_is_being_read_cannot_be_unsubscribed_from(broker: PairedBroker) -> None:
    subscribe(client_of(broker, "shop"), "amq.topic", "orders", durable=True)
    link = subscribe(client_of(broker, "shop"), None, "orders")
    assert condition(link) == "amqp:resource-locked"
    assert queues(broker) == [OWN_NAME]
