"""Shared subscriptions: several links consume from one, durable or not, and nobody comes into another one's.

`SHARED` and `GLOBAL` are what Qpid JMS attaches for `createSharedConsumer` and `createSharedDurableConsumer`: the links
are called `NAME`, `NAME|2`, of what is not durable `NAME|volatile1`, and without a client id `NAME|global`,
`NAME|global2`, `NAME|global-volatile1`.
"""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient, client_of
from paired_links import condition, subscribe, symbols
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.nodes.subscriptions import MOST_NAME_CHARACTERS
from qpid_ha_broker.amqp.nodes.terminus import SELECTOR
from qpid_ha_broker.amqp.wire.values import value_of
from session_clients import open_session

SHARED = ("topic", "shared")
GLOBAL = (*SHARED, "global")


def publish(broker: PairedBroker, address: str, *bodies: str) -> None:
    client = broker.connect() if isinstance(broker, PairedBroker) else client_of(broker, "publisher")
    client.publish(address, *bodies)
    client.vanish()


def share(client: PairedClient, name: str, *, durable: bool = False, **asked: Any) -> Any:
    """`createSharedConsumer` or `createSharedDurableConsumer`, whose link is called `name`."""
    link = subscribe(
        client, asked.pop("address", "amq.topic"), name, capabilities=asked.pop("capabilities", SHARED),
        durable=durable, **asked,
    )  # fmt: skip
    link.flow(100)
    client.broker.settle_down()
    return link


def accepted(client: PairedClient, link: Any) -> list[str]:
    """What has come, and is done with."""
    arrived = client.received(link)
    for delivery, _ in arrived:
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
    client.broker.settle_down()
    return [str(message.body) for _, message in arrived]


def leave(client: PairedClient, link: Any, *, closes: bool = False) -> None:
    """A durable consumer that is closed is detached by Qpid JMS, others are closed."""
    if closes:
        link.close()
    else:
        link.detach()
    client.broker.settle_down()
    link.free()


def subscriptions(broker: PairedBroker) -> list[str]:
    names = broker.container.default.resources.catalog.queues
    return [name for name in names if name.startswith("subscription")]


def tick(broker: PairedBroker) -> None:
    """Time is looked at."""
    broker.container.tick()
    broker.settle_down()


# --- several links, each message goes to one of them


@pytest.mark.parametrize(
    ("durable", "names"),
    [(True, ("orders", "orders|2", "orders|3")), (False, ("orders|volatile1", "orders|volatile2", "orders|volatile3"))],
)
def test_links_of_one_shared_subscription_have_its_messages_in_turn(
    broker: PairedBroker, durable: bool, names: tuple[str, ...]
) -> None:
    client = client_of(broker)
    links = [share(client, name, durable=durable) for name in names]
    assert [condition(link) for link in links] == [None] * 3
    publish(broker, "amq.topic", *map(str, range(9)))
    got = [accepted(client, link) for link in links]
    assert sorted(body for bodies in got for body in bodies) == list(map(str, range(9)))
    assert [len(bodies) for bodies in got] == [3, 3, 3]
    assert len(subscriptions(broker)) == 1


@pytest.mark.parametrize("durable", [True, False])
def test_the_answer_says_that_it_is_shared(broker: PairedBroker, durable: bool) -> None:
    link = share(client_of(broker), "orders|global", durable=durable, capabilities=GLOBAL)
    remote = link.remote_source
    assert value_of(remote.capabilities) == symbols("global", "shared", "topic")
    assert (remote.expiry_policy == proton.Terminus.EXPIRE_NEVER) is durable
    assert value_of(share(client_of(broker), "other", capabilities=("topic", "global")).remote_source.capabilities) == (
        symbols("topic")
    )


def test_a_broker_says_that_it_has_shared_subscriptions(broker: PairedBroker) -> None:
    offered = client_of(broker).connection.remote_offered_capabilities
    assert "SHARED-SUBS" in list(offered)


@pytest.mark.parametrize("durable", [True, False])
def test_a_global_subscription_is_shared_by_clients_with_any_id(broker: PairedBroker, durable: bool) -> None:
    name = "orders|global" if durable else "orders|global-volatile1"
    first, second = client_of(broker, "ID:1"), client_of(broker, "ID:2")
    links = [(client, share(client, name, durable=durable, capabilities=GLOBAL)) for client in (first, second)]
    publish(broker, "amq.topic", "a", "b")
    assert sorted(body for each in links for body in accepted(*each)) == ["a", "b"]
    assert [condition(link) for _, link in links] == [None, None], "equal names of links of different containers"


@pytest.mark.parametrize("durable", [True, False])
def test_a_shared_subscription_to_what_nobody_has_made_is_one_to_a_topic(broker: PairedBroker, durable: bool) -> None:
    client = client_of(broker)
    link = share(client, "orders", durable=durable, address="news", capabilities=("shared",))
    publish(broker, "topic://news", "a")
    assert accepted(client, link) == ["a"]


# --- how long it stays


def test_a_durable_one_stays_without_consumers_and_one_that_is_not_goes_with_the_last(broker: PairedBroker) -> None:
    client = client_of(broker)
    kept = [share(client, name, durable=True) for name in ("kept", "kept|2")]
    volatile = [share(client, name) for name in ("gone|volatile1", "gone|volatile2")]
    leave(client, kept[0])
    leave(client, volatile[0], closes=True)
    tick(broker)
    publish(broker, "amq.topic", "a")
    assert (accepted(client, kept[1]), accepted(client, volatile[1])) == (["a"], ["a"])
    leave(client, kept[1])
    leave(client, volatile[1], closes=True)
    publish(broker, "amq.topic", "b")
    tick(broker)
    assert subscriptions(broker) == ["subscription:shop:kept"]
    assert accepted(client, again := share(client, "kept", durable=True)) == ["b"]
    assert condition(again) is None


def test_one_that_is_not_durable_begins_anew_though_nobody_has_deleted_it_yet(broker: PairedBroker) -> None:
    client = client_of(broker)
    leave(client, share(client, "orders|volatile1"), closes=True)
    publish(broker, "amq.topic", "for nobody")
    link = share(client, "orders|volatile1")
    publish(broker, "amq.topic", "a")
    assert accepted(client, link) == ["a"]


def test_closing_a_link_of_a_durable_one_ends_it_when_that_was_the_last(broker: PairedBroker) -> None:
    client = client_of(broker)
    links = [share(client, name, durable=True) for name in ("orders", "orders|2")]
    leave(client, links[0], closes=True)
    assert len(subscriptions(broker)) == 1
    leave(client, links[1], closes=True)
    assert subscriptions(broker) == []


def test_what_a_consumer_has_not_answered_goes_to_another_one(broker: PairedBroker) -> None:
    client = client_of(broker)
    first = share(client, "orders", durable=True)
    publish(broker, "amq.topic", "a")
    assert client.bodies(first) == ["a"]
    second = share(client, "orders|2", durable=True)
    leave(client, first)
    assert accepted(client, second) == ["a"]


# --- who may have it


def test_a_name_is_shared_or_not(broker: PairedBroker) -> None:
    """JMS 3.1 sections 8.3.3 and 8.3.4: not both, with one client id."""
    client = client_of(broker)
    leave(client, share(client, "both", durable=True))
    leave(client, subscribe(client, "amq.topic", "own", durable=True))
    refused = subscribe(client, "amq.topic", "both", durable=True)
    assert condition(refused) == "amqp:precondition-failed"
    assert "shared" in refused.remote_condition.description
    refused = share(client, "own", durable=True)
    assert condition(refused) == "amqp:precondition-failed"
    assert "not shared" in refused.remote_condition.description
    assert condition(share(client, "own|volatile1")) is None, "what is not durable has other names"
    assert condition(share(client, "own|global", durable=True, capabilities=GLOBAL)) is None


KINDS = ((True, ()), (True, SHARED), (True, GLOBAL), (False, SHARED), (False, GLOBAL))
NAMES = ("a", "a|b", "a|global", "a%3Ab", "a:b", ":", "%", "é", "a:b:shared", "a:shared", " ")


def test_no_name_leads_to_the_subscription_of_another_name_user_or_container(broker: PairedBroker) -> None:
    """Of a shared one what is in front of `|` counts, so those of a name with it are one."""
    made: dict[tuple[object, ...], str] = {}
    for user in ("", "shared", "a", "b:shared"):
        for container in ("shop", "shop:a", "", ":"):
            client = client_of(broker, container, user)
            for name in NAMES:
                for durable, capabilities in KINDS:
                    before = set(subscriptions(broker))
                    link = subscribe(client, "amq.topic", name, durable=durable, capabilities=capabilities)
                    is_global, is_shared = "global" in capabilities, bool(capabilities)
                    short = name.partition("|")[0] if is_shared else name
                    key = user, None if is_global else container, short, durable
                    new = set(subscriptions(broker)) - before
                    if condition(link) is None:
                        assert len(new) == (0 if (*key, is_shared) in made else 1), (key, new)
                        made.setdefault((*key, is_shared), "".join(new))
                    else:
                        assert not new
                        assert not container or (*key, not is_shared) in made, (key, link.remote_condition)
                    leave(client, link)
    assert len(set(made.values())) == len(made)


@pytest.mark.parametrize("capabilities", [SHARED, GLOBAL, ()])
@pytest.mark.parametrize("longer", ["container", "link"])
def test_names_that_are_too_long_to_be_told_apart_are_refused(
    broker: PairedBroker, capabilities: tuple[str, ...], longer: str
) -> None:
    """A proxy passes on the first 1024 characters of each."""
    client = client_of(broker, "é" * 30_000 if longer == "container" else "shop")
    name = "é" * 1024 if longer == "link" else "orders"
    link = subscribe(client, "amq.topic", name, durable=True, capabilities=capabilities)
    if longer == "container" and capabilities == GLOBAL:
        assert condition(link) is None
    else:
        assert condition(link) == "amqp:invalid-field"
        assert str(MOST_NAME_CHARACTERS) in link.remote_condition.description


def test_a_shared_subscription_needs_a_name_and_a_container_unless_it_is_global(broker: PairedBroker) -> None:
    assert condition(share(client_of(broker, ""), "orders")) == "amqp:precondition-failed"
    assert condition(share(client_of(broker, ""), "|2", capabilities=GLOBAL)) == "amqp:invalid-field"
    assert condition(share(client_of(broker, ""), "orders", capabilities=GLOBAL)) is None


# --- another topic or selector


@pytest.mark.parametrize("durable", [True, False])
def test_another_topic_or_selector_is_refused_while_somebody_consumes(broker: PairedBroker, durable: bool) -> None:
    client = client_of(broker)
    link = share(client, "orders", durable=durable)
    for refused in (
        share(client, "orders|2", durable=durable, address="amq.fanout"),
        share(client, "orders|3", durable=durable, filters={"s": (SELECTOR, "a = 1")}),
    ):
        assert condition(refused) == "amqp:resource-locked"
    publish(broker, "amq.topic", "a")
    assert accepted(client, link) == ["a"]


def test_another_selector_of_a_durable_one_begins_anew_when_nobody_consumes(broker: PairedBroker) -> None:
    client = client_of(broker)
    leave(client, share(client, "orders", durable=True))
    publish(broker, "amq.topic", "a")
    link = share(client, "orders", durable=True, filters={"s": (SELECTOR, "colour = 'red'")})
    publisher = client_of(broker, "publisher")
    for colour in ("red", "blue"):
        publisher.publish("amq.topic", proton.Message(colour, properties={"colour": colour}))
    assert accepted(client, link) == ["red"]
    assert len(subscriptions(broker)) == 1


# --- links that are attached anew, and unsubscribing


@pytest.mark.parametrize("durable", [True, False])
def test_the_newer_link_of_a_name_takes_the_place_of_the_older_and_no_other(
    broker: PairedBroker, durable: bool
) -> None:
    dead, again = client_of(broker), client_of(broker)
    older, other = share(dead, "orders", durable=durable), share(dead, "orders|2", durable=durable)
    publish(broker, "amq.topic", "a", "b")
    assert [len(dead.received(link)) for link in (older, other)] == [1, 1]
    newer = share(again, "orders", durable=durable)
    assert (condition(older), condition(other), condition(newer)) == ("amqp:link:stolen", None, None)
    assert len(accepted(again, newer) + accepted(dead, other)) == 1, "what the older one had not answered"
    strangers = [client_of(broker, "shop", "mallory"), client_of(broker, "other")]
    for stranger in strangers:
        share(stranger, "orders|2", durable=durable)
    assert condition(other) is None


@pytest.mark.parametrize(("name", "capabilities"), [("orders", SHARED), ("orders|global", GLOBAL)])
def test_a_receiver_without_a_source_unsubscribes_from_a_shared_one(
    broker: PairedBroker, name: str, capabilities: tuple[str, ...]
) -> None:
    client = client_of(broker)
    link = share(client, name, durable=True, capabilities=capabilities)
    busy = subscribe(client_of(broker), None, name)
    assert condition(busy) == "amqp:resource-locked"
    leave(client, link)
    assert condition(subscribe(client_of(broker, "shop", "mallory"), None, name)) == "amqp:not-found"
    receiver = subscribe(client, None, name)
    assert receiver.remote_source.address == "amq.topic/#"
    leave(client, receiver, closes=True)
    assert subscriptions(broker) == []


def test_who_unsubscribes_while_another_begins_to_consume_is_told(broker: PairedBroker) -> None:
    client = client_of(broker)
    leave(client, share(client, "orders", durable=True))
    receiver = subscribe(client, None, "orders")
    other = share(client_of(broker), "orders|2", durable=True)
    receiver.close()
    broker.settle_down()
    if isinstance(broker, PairedProxy):
        assert condition(other) is None
    else:
        assert condition(receiver) == "amqp:resource-locked"
    assert len(subscriptions(broker)) == 1


def test_the_session_of_one_consumer_keeps_what_it_holds_when_another_one_comes(broker: PairedBroker) -> None:
    sleeper = open_session(broker, container="shop")
    link = share(sleeper, "orders", durable=True)
    publish(broker, "amq.topic", "a")
    assert sleeper.bodies(link) == ["a"]
    sleeper.vanish()
    broker.settle_down()
    client = client_of(broker)
    assert accepted(client, share(client, "orders|2", durable=True)) == []
    back = open_session(broker, container="shop")
    assert accepted(back, share(back, "orders", durable=True)) == ["a"]


# --- at a proxy whose primary is lost


@pytest.mark.parametrize("durable", [True, False])
def test_a_shared_subscription_goes_on_when_the_connection_to_the_primary_breaks(durable: bool) -> None:
    proxied = PairedProxy()
    client = proxied.client(container="shop")
    links = [share(client, name, durable=durable) for name in ("orders", "orders|2")]
    proxied.cut()
    direct = proxied.primary.connect()
    direct.publish("amq.topic", "meanwhile")
    proxied.container.tick()
    proxied.connect_upstream()
    direct.publish("amq.topic", "a", "b")
    proxied.settle_down()
    got = [body for link in links for body in accepted(client, link)]
    assert sorted(got) == ["a", "b", "meanwhile"]
    assert [condition(link) for link in links] == [None, None]


def test_messages_that_come_one_by_one_go_to_each_link_in_turn(broker: PairedBroker) -> None:
    """However often the broker looks in between whether there is something to give."""
    client, publisher = client_of(broker), client_of(broker, "publisher")
    links = [share(client, name) for name in ("orders|volatile1", "orders|volatile2", "orders|volatile3")]
    sender = publisher.sender("amq.topic")
    for number in range(12):
        publisher.send_all(sender, str(number))
        for link in links[number % 3 :]:  # something happens, as often as it does
            link.flow(1)
            broker.settle_down()
    assert [len(client.received(link)) for link in links] == [4, 4, 4]
