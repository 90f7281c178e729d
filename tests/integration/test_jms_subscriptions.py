"""Subscriptions as Qpid JMS attaches them, with Proton's client: at a broker, through a proxy, and after a failover.

What each kind is, and who comes into which, the unit tests of subscriptions show in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import proton
import pytest
from proton import ConnectionException, Described, Link, Message, Terminus, symbol
from proton.reactor import Container, LinkOption
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, bodies
from running_cluster import RunningCluster

Connect = Callable[..., BlockingClient]
SOLE = "sole-connection-for-container"


class JmsSource(LinkOption):
    """What Qpid JMS says of a topic's consumer."""

    def __init__(
        self, *, durable: bool = False, shared: bool = False, without_id: bool = False, no_local: bool = False,
        selector: str = "",
    ) -> None:  # fmt: skip
        self.durable = durable
        names = ["topic", *(["shared"] if shared else []), *(["global"] if shared and without_id else [])]
        self.capabilities = list(map(symbol, names))
        self.filters: dict[Any, Any] = {}
        if no_local:
            kind = "apache.org:no-local-filter:list"
            self.filters[symbol("no-local")] = Described(symbol(kind), [])
        if selector:
            kind = "apache.org:selector-filter:string"
            self.filters[symbol("jms-selector")] = Described(symbol(kind), selector)

    def apply(self, link: Link) -> None:
        source = link.source
        source.distribution_mode = Terminus.DIST_MODE_COPY
        source.capabilities.put_array(False, proton.Data.SYMBOL)
        source.capabilities.enter()
        for name in self.capabilities:
            source.capabilities.put_symbol(name)
        source.capabilities.exit()
        if self.filters:
            source.filter.put_dict(self.filters)
        if self.durable:
            source.durability, source.expiry_policy = Terminus.DELIVERIES, Terminus.EXPIRE_NEVER


def with_id(name: str) -> Container:
    container = Container()
    container.container_id = name
    return container


def consumer(client: BlockingClient, topic: str, name: str = "", **asked: Any) -> Any:
    return client.receiver(topic, 0, JmsSource(**asked), **({"name": name} if name else {}))


def take(client: BlockingClient, receiver: Any) -> list[Any]:
    """What is there for it, accepted."""
    arrived = bodies(client.drain(receiver))
    while receiver.fetcher.unsettled:
        receiver.accept()
    client.round_trip()
    return arrived


def test_a_shared_subscription_shares_and_stays(connect: Connect, management: Management, address: str) -> None:
    management.create_exchange(address, "topic")
    client, publisher = connect(container=with_id("shop")), connect()
    receivers = [consumer(client, address, name, durable=True, shared=True) for name in ("orders", "orders|2")]
    for receiver in receivers:
        receiver.link.flow(10)
    client.round_trip()
    publisher.send(address, *map(str, range(10)))
    client.wait(lambda: sum(len(receiver.fetcher.incoming) for receiver in receivers) == 10)
    for receiver in receivers:
        assert receiver.fetcher.incoming
        client.fetch(receiver, len(receiver.fetcher.incoming))
        receiver.link.detach()
    client.round_trip()
    client.close()
    publisher.send(address, "missed")
    client = connect(container=with_id("shop"))
    again = consumer(client, address, "orders", durable=True, shared=True)
    assert take(client, again) == ["missed"]
    with pytest.raises(LinkDetached) as refused:
        consumer(client, address, "orders|2", durable=True, shared=True, selector="a = 1")
    assert refused.value.condition == "amqp:resource-locked"
    again.close()
    assert management.queue("subscription:shop:orders") is None


def test_a_shared_subscription_without_a_client_id_that_is_not_durable_goes_with_its_last_consumer(
    connect: Connect, management: Management, address: str
) -> None:
    management.create_exchange(address, "topic")
    clients = [connect(), connect()]
    asked: dict[str, Any] = {"name": "news|global-volatile1", "shared": True, "without_id": True}
    receivers = [consumer(client, address, **asked) for client in clients]
    name = "subscription::news::volatile"
    assert management.queue(name) is not None
    clients[0].send(address, "a")
    receivers[0].close()
    assert take(clients[1], receivers[1]) == ["a"]
    receivers[1].close()
    clients[0].send(address, "b")
    again = consumer(clients[0], address, **asked)
    assert take(clients[0], again) == []


@pytest.mark.parametrize("durable", [False, True])
def test_a_subscriber_does_not_hear_itself(
    connect: Connect, management: Management, address: str, durable: bool
) -> None:
    management.create_exchange(address, "topic")
    client, other = connect(container=with_id(address)), connect()
    receiver = consumer(client, address, "own", durable=durable, no_local=True)
    client.send(address, "mine")
    client.offer(client.sender(None), Message("mine, by the anonymous relay", address=address))
    other.send(address, "theirs")
    assert take(client, receiver) == ["theirs"]
    receiver.close()


def test_a_durable_subscription_with_another_selector_begins_anew(
    connect: Connect, management: Management, address: str
) -> None:
    management.create_exchange(address, "topic")
    client = connect(container=with_id(address))
    for selector, expected in (("", ["red", "blue"]), ("colour = 'red'", ["red"]), ("colour = 'red'", ["red", "red"])):
        receiver = consumer(client, address, "own", durable=True, selector=selector)
        client.send(address, *[Message(colour, properties={"colour": colour}) for colour in ("red", "blue")])
        assert bodies(client.drain(receiver)) == expected
        receiver.link.detach()
        client.round_trip()


class WaitsFor(LinkOption):
    """A source with a timeout."""

    def __init__(self, timeout_s: int) -> None:
        self.timeout_s = timeout_s

    def apply(self, link: Link) -> None:
        link.source.timeout = self.timeout_s


def test_a_subscription_waits_for_its_link_as_long_as_its_source_says(
    connect: Connect, management: Management, address: str
) -> None:
    management.create_exchange(address, "topic")
    client, publisher = connect(container=with_id(address)), connect()
    for name, timeout_s in (("kept", 600), ("gone", 0)):
        receiver = client.receiver(address, 0, WaitsFor(timeout_s), name=name)
        assert receiver.link.remote_source.timeout == timeout_s
    client.break_connection()
    publisher.send(address, "missed")
    client = connect(container=with_id(address))
    found = {
        name: bodies(client.drain(client.receiver(address, 0, WaitsFor(600), name=name))) for name in ("kept", "gone")
    }
    assert found == {"kept": ["missed"], "gone": []}


def test_a_subscriber_that_comes_back_before_its_loss_was_noticed_ends_its_older_link(
    connect: Connect, management: Management, address: str
) -> None:
    management.create_exchange(address, "topic")
    lost, again = connect(container=with_id(address)), connect(container=with_id(address))
    older = consumer(lost, address, "own", durable=True)
    older.link.flow(1)
    connect().send(address, "a")
    lost.wait(lambda: older.fetcher.has_message)
    newer = consumer(again, address, "own", durable=True)
    (message,) = again.drain(newer)
    assert (message.body, message.first_acquirer) == ("a", False), "the older one had it"
    with pytest.raises(LinkDetached) as ended:
        lost.wait(lambda: older.link.state & Link.REMOTE_CLOSED)
    assert ended.value.condition == "amqp:link:stolen"


def test_a_client_id_that_is_in_use_is_refused(connect: Connect, address: str) -> None:
    first = connect(container=with_id(address), desired_capabilities=[symbol(SOLE)])
    with pytest.raises(ConnectionException, match="invalid-field"):
        connect(container=with_id(address), desired_capabilities=[symbol(SOLE)])
    first.round_trip()
    first.close()
    connect(container=with_id(address), desired_capabilities=[symbol(SOLE)])


def assert_in_use(url: str, container: str) -> None:
    with pytest.raises(ConnectionException, match="invalid-field"):
        BlockingClient(url, container=with_id(container), desired_capabilities=[symbol(SOLE)])


def test_a_client_id_is_refused_at_all_brokers_of_a_cluster_whoever_leads(tmp_path: Path) -> None:
    settings = {"ha": {"failure-timeout": "1s", "clients": "proxy", "sole-connections": "cluster"}}
    with RunningCluster(tmp_path, agents=True, settings=settings) as cluster:
        cluster.wait_whole()
        dead = cluster.brokers.index(cluster.the_primary())
        here, there = [url for at, url in enumerate(cluster.urls) if at != dead]
        with BlockingClient(here, container=with_id("shop"), desired_capabilities=[symbol(SOLE)]) as first:
            assert SOLE in list(first.connection.conn.remote_offered_capabilities)
            for url in (there, cluster.urls[dead]):
                assert_in_use(url, "shop")
            cluster.kill(dead)
            cluster.wait_until(lambda: cluster.primary() is not None, "somebody leads")
            assert_in_use(there, "shop")
            first.round_trip()
        BlockingClient(there, container=with_id("shop"), desired_capabilities=[symbol(SOLE)]).connection.close()


def test_the_client_id_of_a_connection_to_a_dead_primary_is_free_after_the_failover(tmp_path: Path) -> None:
    settings = {"ha": {"failure-timeout": "1s", "clients": "proxy", "sole-connections": "cluster"}}
    with RunningCluster(tmp_path, agents=True, settings=settings) as cluster:
        cluster.wait_whole()
        dead = cluster.brokers.index(cluster.the_primary())
        alive = cluster.urls[dead - 1]
        BlockingClient(cluster.urls[dead], container=with_id("shop"), desired_capabilities=[symbol(SOLE)])
        assert_in_use(alive, "shop")
        cluster.kill(dead)
        with BlockingClient(alive, container=with_id("shop"), desired_capabilities=[symbol(SOLE)]) as again:
            assert SOLE in list(again.connection.conn.remote_offered_capabilities)


def test_no_local_holds_for_clients_that_stay_while_another_broker_begins_to_lead(tmp_path: Path) -> None:
    """Also for those of the broker itself that leads then, whose links go on to it as before."""
    settings = {"ha": {"failure-timeout": "1s", "clients": "proxy", "sole-connections": "cluster"}}
    with RunningCluster(tmp_path, agents=True, settings=settings) as cluster, ExitStack() as stack:
        cluster.wait_whole()
        dead = cluster.brokers.index(cluster.the_primary())
        clients = {
            f"client {at}": stack.enter_context(BlockingClient(url))
            for at, url in enumerate(cluster.urls)
            if at != dead
        }
        receivers = {name: consumer(client, "amq.topic/news", no_local=True) for name, client in clients.items()}
        senders = {name: client.sender("amq.topic/news") for name, client in clients.items()}
        cluster.kill(dead)
        cluster.wait_until(lambda: cluster.primary() is not None, "somebody leads")
        for name, client in clients.items():
            client.offer(senders[name], name)
        names = list(clients)
        got = {name: bodies(client.drain(receivers[name])) for name, client in clients.items()}
        assert got == {names[0]: [names[1]], names[1]: [names[0]]}


def publish_as_two(url: str, body: str) -> None:
    """As the subscriber itself, and as another client."""
    with BlockingClient(url, container=with_id("shop")) as own, BlockingClient(url) as other:
        for client, who, colour in ((own, "mine", "blue"), (other, "theirs", "red")):
            message = Message(f"{who} {body}", properties={"colour": colour}, durable=True)
            client.send("amq.topic/news", message)


@pytest.mark.parametrize("clients", ["redirect", "proxy"])
def test_subscriptions_are_the_same_after_a_failover(tmp_path: Path, clients: str) -> None:
    """Shared ones, `no-local` and selectors are in the log, whoever leads."""
    asked: dict[str, dict[str, Any]] = {
        "shared": {"shared": True},
        "own": {"no_local": True},
        "red": {"selector": "colour = 'red'"},
    }
    got: dict[str, list[Any]] = {}
    settings = {"ha": {"failure-timeout": "1s", "clients": clients}}
    with RunningCluster(tmp_path, agents=True, settings=settings) as cluster:

        def url() -> str:
            """Of the primary, or of a broker that relays to it."""
            leads = cluster.brokers.index(cluster.the_primary())
            others = [at for at in range(len(cluster.brokers)) if at not in (leads, *dead)]
            return str(cluster.urls[leads if clients == "redirect" else others[0]])

        dead: list[int] = []
        cluster.wait_whole()
        with BlockingClient(url(), container=with_id("shop")) as client:
            for name, each in asked.items():
                consumer(client, "amq.topic/news", name, durable=True, **each).link.detach()
            client.round_trip()
        publish_as_two(url(), "before")
        dead.append(cluster.brokers.index(cluster.the_primary()))
        cluster.kill(dead[0])
        cluster.wait_until(lambda: cluster.primary() is not None, "somebody leads")
        publish_as_two(url(), "after")
        with BlockingClient(url(), container=with_id("shop")) as client:
            for name, each in asked.items():
                receiver = consumer(client, "amq.topic/news", name, durable=True, **each)
                got[name] = bodies(client.drain(receiver))
                receiver.link.detach()
            client.round_trip()
    theirs = ["theirs before", "theirs after"]
    assert got == {
        "shared": ["mine before", "theirs before", "mine after", "theirs after"],
        "own": theirs,
        "red": theirs,
    }
