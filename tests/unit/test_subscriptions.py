"""Durable subscriptions: each subscriber finds its own again, and no other queue is ever taken for one."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from model_support import TextReader, picture
from paired_engines import PairedBroker, PairedClient, client_of, queued_bodies
from paired_links import condition, status, subscribe
from paired_proxy import PairedProxy, paired_broker
from qpid_ha_broker.amqp.nodes.subscriptions import Subscriber
from qpid_ha_broker.amqp.nodes.terminus import AFTER, SELECTOR
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.model.sets.resources import Resources
from session_clients import open_session
from session_support import SECOND

OWN_NAME = "subscription:shop:orders"


@pytest.fixture
def broker() -> PairedBroker:
    return PairedBroker()


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
    broker.container.default.resources.replicated.write(declared)
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
    assert condition(stranger.sender(OWN_NAME)) == "amqp:invalid-field"
    assert condition(subscribe(stranger, OWN_NAME, capabilities=("topic",))) is None  # a topic has no name of an object
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
    broker.container.default.resources.replicated.write(ev.QueueDeclared(OWN_NAME, {}))
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
    "parts",
    [
        ("a:b", "c", "d"),
        ("a", "b:c", ""),
        ("a%3Ab", "c", ""),
        ("a%", "3Ab:c", "x:"),
        ("é\n", "\x00", "ü"),
        (" ", "", ""),
    ],
)
def test_an_identity_says_which_part_is_which(parts: tuple[str, str, str]) -> None:
    from urllib.parse import unquote

    identity = Subscriber(*parts).identity
    assert tuple(map(unquote, identity.split(":"))) == parts
    assert identity.isprintable()


def test_a_container_without_a_name_has_no_durable_subscription(broker: PairedBroker) -> None:
    client = client_of(broker, "")
    assert condition(subscribe(client, "amq.topic", "orders", durable=True)) == "amqp:precondition-failed"
    assert queues(broker) == []


@pytest.mark.parametrize("address", ["amq.topic/bills.*", "amq.fanout"])
def test_a_subscriber_that_asks_for_another_topic_begins_anew(broker: PairedBroker, address: str) -> None:
    """JMS 3.1 section 8.3.3: as if it had unsubscribed first."""
    client = client_of(broker, "shop")
    subscribe(client, "amq.topic/orders.*", "orders", durable=True).detach()
    publish(broker, "amq.topic/orders.new", "order")
    again = subscribe(client, address, "orders", durable=True)
    publish(broker, "amq.topic/orders.new", "order")
    publish(broker, address.replace("*", "new"), "another")
    assert read(client, again) == ["another"]


def test_a_subscriber_whose_new_topic_cannot_be_bound_keeps_what_it_has(broker: PairedBroker) -> None:
    client = client_of(broker, "shop")
    subscribe(client, "amq.topic/orders.*", "orders", durable=True).detach()
    publish(broker, "amq.topic/orders.new", "order")
    refused = subscribe(client, f"amq.topic/{'x' * 256}", "orders", durable=True)
    assert condition(refused) == "amqp:resource-limit-exceeded"
    close(client, refused)
    assert read(client, subscribe(client, "amq.topic/orders.*", "orders", durable=True)) == ["order"]


def test_the_dead_letters_of_a_subscription_that_begins_anew_are_moved_first(broker: PairedBroker) -> None:
    configuration = broker.container.default.configuration
    configuration.declare_queue("dead", {})
    configuration.bind("amq.fanout", "dead", "", {})
    client, count = client_of(broker, "shop"), 500
    asked = {"qpid.alternate_exchange": "amq.fanout"}
    subscribe(client, "amq.topic/orders", "orders", durable=True, properties=asked).detach()
    publish(broker, "amq.topic/orders", *["order"] * count)
    link = subscribe(client, "amq.topic/bills", "orders", durable=True, properties=asked)
    assert condition(link) is None
    publish(broker, "amq.topic/bills", "bill")
    assert (read(client, link), broker.queue("dead").messages.count) == (["bill"], count)


# --- subscriptions of the release before


def test_a_subscription_of_the_release_before_is_found_and_marked(broker: PairedBroker) -> None:
    leave_as_release_0_1_0_did(broker, "shop.orders")
    client = client_of(broker, "shop")

    link = subscribe(client, "amq.topic", "orders", durable=True)
    assert read(client, link) == ["missed"]
    assert broker.queue("shop.orders").arguments.subscription == "shop:orders:"
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
    log = broker.container.default.resources.replicated.log
    log.add_witness("store")
    leave_as_release_0_1_0_did(broker, "a.old")
    subscribe(client_of(broker, "a"), "amq.topic", "old", durable=True)
    subscribe(client_of(broker, "a"), "amq.topic", "new", durable=True)
    log.acknowledge("store", log.last_lsn)
    backup = Resources(TextReader())
    for name in ("amq.direct", "amq.topic", "amq.fanout", "amq.match"):
        there = broker.container.default.resources.catalog.exchanges[name]
        backup.catalog.exchanges[name] = backup.catalog.exchanges_by_id[there.id] = type(there)(there.id, name, {})
    backup.replicated.log.last_lsn = log.last_lsn
    for batch in broker.batches:
        for record in decode(batch.data).records:
            backup.replicated.state.replay(record)
    marks = {name: queue.arguments.subscription for name, queue in backup.catalog.queues.items()}
    assert marks == {"a.old": "a:old:", "subscription:a:new": "a:new:"}
    assert picture(backup.sets)["queues"] == picture(broker.container.default.resources.sets)["queues"]


# --- whose they are


@pytest.fixture(params=["direct", "proxied"])
def any_broker(request: pytest.FixtureRequest) -> PairedBroker:
    return paired_broker(request.param)


def queues_at(broker: PairedBroker) -> list[str]:
    return [name for name in queues(broker) if name.startswith("subscription:")]


def test_a_user_with_the_names_of_another_one_has_a_subscription_of_its_own(any_broker: PairedBroker) -> None:
    alice, mallory = client_of(any_broker, "shop", "alice"), client_of(any_broker, "shop", "mallory")
    subscribe(alice, "amq.topic", "orders", durable=True).detach()
    any_broker.settle_down()
    publish(any_broker, "amq.topic", "order")

    link = subscribe(mallory, "amq.topic", "orders", durable=True)
    assert read(mallory, link) == []
    close(mallory, link)

    assert queues_at(any_broker) == ["subscription:shop:orders:alice"]
    again = subscribe(alice, "amq.topic", "orders", durable=True)
    assert read(alice, again) == ["order"]


@pytest.mark.parametrize("other", ["", "mallory"])
def test_who_has_not_logged_in_and_who_has_do_not_share_a_subscription(any_broker: PairedBroker, other: str) -> None:
    mine = {"": "alice", "mallory": ""}[other]
    first, second = client_of(any_broker, "shop", mine), client_of(any_broker, "shop", other)
    subscribe(first, "amq.topic", "orders", durable=True).detach()
    any_broker.settle_down()
    publish(any_broker, "amq.topic", "order")
    assert read(second, subscribe(second, "amq.topic", "orders", durable=True)) == []
    assert condition(subscribe(client_of(any_broker, "shop", "third"), None, "orders")) == "amqp:not-found"
    assert len(queues_at(any_broker)) == 2


def leave_as_a_release_without_users_did(broker: PairedBroker, **arguments: Any) -> None:
    configuration = broker.container.default.configuration
    configuration.declare_queue(OWN_NAME, {"qpid.exclusive": True, "qpid.subscription": "shop:orders", **arguments})
    configuration.bind("amq.topic", OWN_NAME, "#", {})
    publish(broker, "amq.topic", "missed")


@pytest.mark.parametrize("user", ["", "alice"])
def test_a_subscription_that_is_nobodys_is_the_first_users_who_comes_back(any_broker: PairedBroker, user: str) -> None:
    leave_as_a_release_without_users_did(any_broker)
    first, second = client_of(any_broker, "shop", user), client_of(any_broker, "shop", "zoë")
    link = subscribe(first, "amq.topic", "orders", durable=True)
    assert read(first, link) == ["missed"]
    link.detach()
    any_broker.settle_down()
    assert read(second, subscribe(second, "amq.topic", "orders", durable=True)) == []
    assert read(first, subscribe(first, "amq.topic", "orders", durable=True)) == ["missed"]


def test_a_subscription_that_is_nobodys_but_counts_for_a_user_is_that_ones(broker: PairedBroker) -> None:
    leave_as_a_release_without_users_did(broker, **{"qpid.created_by": "alice"})
    mallory, alice = client_of(broker, "shop", "mallory"), client_of(broker, "shop", "alice")
    assert read(mallory, subscribe(mallory, "amq.topic", "orders", durable=True)) == []
    assert read(alice, subscribe(alice, "amq.topic", "orders", durable=True)) == ["missed"]


def test_who_has_not_logged_in_does_not_get_what_a_user_has_taken_over(broker: PairedBroker) -> None:
    leave_as_a_release_without_users_did(broker)
    subscribe(client_of(broker, "shop", "alice"), "amq.topic", "orders", durable=True)
    refused = subscribe(client_of(broker, "shop"), "amq.topic", "orders", durable=True)
    assert condition(refused) == "amqp:precondition-failed"
    assert "alice" not in refused.remote_condition.description


# --- a client that comes back while nobody has noticed that it was gone


def taken(client: PairedClient, link: Any) -> list[tuple[str, int]]:
    """Bodies, and how often delivery has failed."""
    link.flow(100)
    client.broker.settle_down()
    return [(str(message.body), message.delivery_count) for _, message in client.received(link)]


def test_the_newer_link_of_a_subscriber_ends_the_older_one_and_gets_what_that_had(any_broker: PairedBroker) -> None:
    dead, again = client_of(any_broker, "shop", "alice"), client_of(any_broker, "shop", "alice")
    older = subscribe(dead, "amq.topic", "orders", durable=True)
    publish(any_broker, "amq.topic", "one", "two")
    assert taken(dead, older) == [("one", 0), ("two", 0)]

    newer = subscribe(again, "amq.topic", "orders", durable=True)

    assert condition(newer) is None
    assert condition(older) == "amqp:link:stolen"
    assert dead.connection.remote_condition is None, "its other links go on"
    assert taken(again, newer) == [("one", 1), ("two", 1)]
    publish(any_broker, "amq.topic", "three")
    assert taken(again, newer) == [("three", 0)]
    close(dead, older)
    assert len(queues_at(any_broker)) == 1, "the older link ends nothing any more"


def test_a_subscriber_comes_back_through_another_broker() -> None:
    proxied = PairedProxy()
    dead, again = proxied.client(container="shop", user="alice"), client_of(proxied.primary, "shop", "alice")
    older = subscribe(dead, "amq.topic", "orders", durable=True)
    publish(proxied.primary, "amq.topic", "one")
    assert taken(dead, older) == [("one", 0)]
    newer = subscribe(again, "amq.topic", "orders", durable=True)
    proxied.settle_down()
    assert (condition(older), condition(newer)) == ("amqp:link:stolen", None)
    assert taken(again, newer) == [("one", 1)]


@pytest.mark.parametrize("notices", [False, True])
@pytest.mark.parametrize("name", [SECOND, None])
def test_a_new_process_gets_what_the_session_of_the_dead_one_holds(
    any_broker: PairedBroker, notices: bool, name: str | None
) -> None:
    dead = open_session(any_broker, container="shop", user="alice")
    older = subscribe(dead, "amq.topic", "orders", durable=True)
    publish(any_broker, "amq.topic", "one")
    assert taken(dead, older) == [("one", 0)]
    if notices:
        dead.vanish()
        any_broker.settle_down()
    again = (
        open_session(any_broker, name, container="shop", user="alice")
        if name
        else client_of(any_broker, "shop", "alice")
    )
    newer = subscribe(again, "amq.topic", "orders", durable=True)
    assert condition(newer) is None
    assert taken(again, newer) == [("one", 1)]
    assert condition(older) == (None if notices else "amqp:link:stolen")


def test_a_session_that_is_resumed_has_its_subscription_with_what_it_holds(any_broker: PairedBroker) -> None:
    dead = open_session(any_broker, container="shop", user="alice")
    older = subscribe(dead, "amq.topic", "orders", durable=True)
    publish(any_broker, "amq.topic", "one")
    assert taken(dead, older) == [("one", 0)]
    again = open_session(any_broker, container="shop", user="alice")
    assert taken(again, subscribe(again, "amq.topic", "orders", durable=True)) == [("one", 0)]


@pytest.mark.parametrize(("name", "stays"), [("orders", False), ("reader", True)])
def test_who_reads_the_queue_itself_stays_unless_its_link_has_the_same_name(
    broker: PairedBroker, name: str, stays: bool
) -> None:
    alice = client_of(broker, "shop", "alice")
    subscribe(alice, "amq.topic", "orders", durable=True).detach()
    broker.settle_down()
    reader = client_of(broker, "shop", "alice").receiver("subscription:shop:orders:alice", 1, name)
    link = subscribe(alice, "amq.topic", "orders", durable=True)
    refused, stolen = condition(link), condition(reader)
    assert (refused, stolen) == (("amqp:resource-locked", None) if stays else (None, "amqp:link:stolen"))


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


def test_a_position_means_nothing_in_a_queue_of_its_own_and_is_not_said_to_be_applied(broker: PairedBroker) -> None:
    client = broker.connect()
    link = subscribe(client, "amq.topic", browse=True, filters={"after": (AFTER, proton.ulong(1 << 40))})
    client.publish("amq.topic", "a")
    assert read(client, link) == ["a"]
    assert not link.remote_source.filter.next()


@pytest.mark.parametrize("durable", [False, True])
def test_a_browser_of_an_exchange_keeps_nothing_that_it_has_read(broker: PairedBroker, durable: bool) -> None:
    """Nobody else reads its queue: what stayed there would be kept for nobody, until there is no more room."""
    client = broker.connect()
    link = subscribe(client, "amq.topic", durable=durable, browse=True)
    link.flow(10)
    client.publish("amq.topic", "a", "b")
    arrived = client.received(link)
    assert [message.body for _, message in arrived] == ["a", "b"]
    (queue,) = (each for each in broker.container.default.resources.catalog.queues.values())
    assert queue.messages.count == 2
    for delivery, _ in arrived:
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
    broker.settle_down()
    assert queue.messages.count == 0


RED, BLUE = (SELECTOR, "colour = 'red'"), (SELECTOR, "colour = 'blue'")


def publish_colours(broker: PairedBroker, *colours: str) -> None:
    client = broker.connect()
    client.publish("amq.topic", *[proton.Message(colour, properties={"colour": colour}) for colour in colours])
    client.vanish()


def held(broker: PairedBroker) -> list[Any]:
    """What the one subscription there is holds."""
    (queue,) = broker.container.default.resources.catalog.queues.values()
    return queued_bodies(queue)


@pytest.mark.parametrize("durable", [False, True])
def test_what_its_selector_does_not_match_is_not_kept_for_a_subscriber(broker: PairedBroker, durable: bool) -> None:
    client = client_of(broker, "shop")
    link = subscribe(client, "amq.topic", "orders", durable=durable, filters={"s": RED})
    publish_colours(broker, "blue", "red", "blue")
    assert held(broker) == ["red"]
    assert read(client, link) == ["red"]


def test_a_durable_subscription_with_another_selector_begins_anew(broker: PairedBroker) -> None:
    """JMS 3.1 section 8.3.3. The same one, or none again, changes nothing."""
    client = client_of(broker, "shop")
    for selector, kept in ((RED, ["red"]), (BLUE, ["blue"]), (None, ["red", "blue"]), (RED, ["red"])):
        for expected in (kept, kept * 2):
            filters = {"s": selector} if selector else None
            link = subscribe(client, "amq.topic", "orders", durable=True, filters=filters)
            publish_colours(broker, "red", "blue")
            assert held(broker) == expected
            link.detach()
            broker.settle_down()


def test_a_durable_subscription_of_a_release_that_kept_no_selectors_in_bindings_gets_its_own(
    broker: PairedBroker,
) -> None:
    client = client_of(broker, "shop")
    link = subscribe(client, "amq.topic", "orders", durable=True)
    broker.container.default.configuration.bind("amq.topic", OWN_NAME, "#", {})
    publish_colours(broker, "blue", "red")
    link.detach()
    broker.settle_down()
    link = subscribe(client, "amq.topic", "orders", durable=True, filters={"s": RED})
    assert read(client, link) == ["red"]
    publish_colours(broker, "blue", "red")
    assert held(broker) == ["blue", "red", "red"]
    assert read(client, link) == ["red"]


@pytest.mark.parametrize(("terms", "answer"), [(150, None), (1000, "amqp:invalid-field")])
def test_a_selector_of_a_thousand_terms_is_refused_before_anything_is_routed(
    broker: PairedBroker, terms: int, answer: str | None
) -> None:
    selector = SELECTOR, " OR ".join(f"a = {number}" for number in range(terms))
    link = subscribe(client_of(broker, "shop"), "amq.topic", "orders", durable=True, filters={"s": selector})
    assert condition(link) == answer
    assert len(queues(broker)) == (answer is None)


def test_a_selector_that_is_none_makes_no_subscription(broker: PairedBroker) -> None:
    client = client_of(broker, "shop")
    link = subscribe(client, "amq.topic", "orders", durable=True, filters={"s": (RED[0], "colour =")})
    assert condition(link) == "amqp:invalid-field"
    assert queues(broker) == []
