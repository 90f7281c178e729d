"""What a proxy's clients have at the primary for themselves, by real ends: temporary queues, subscriptions, replies."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedClient
from paired_links import condition, subscribe
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.wire.relay import RETURN_MS
from qpid_ha_broker.model.queues.queue import Queue

ACCEPTED = proton.Delivery.ACCEPTED
TOPIC_BINDING = "apache.org:legacy-amqp-topic-binding:string"
SELECTOR = "apache.org:selector-filter:string"


@pytest.fixture
def proxied() -> PairedProxy:
    return PairedProxy()


def attach(proxied: PairedProxy, client: PairedClient, address: str | None, credit: int = 10, **options: Any) -> Any:
    """A consumer's link."""
    link = subscribe(client, address, **options)
    link.flow(credit)
    proxied.settle_down()
    return link


def publish(proxied: PairedProxy, address: str, *texts: str, **properties: Any) -> None:
    """From a client of the primary itself."""
    messages = [proton.Message(text, properties=properties or None) for text in texts]
    deliveries = proxied.primary.connect().publish(address, *messages)
    proxied.settle_down()
    assert {delivery.remote_state for delivery in deliveries} == {ACCEPTED}


def accept(proxied: PairedProxy, client: PairedClient, link: Any) -> list[str]:
    """What came, each accepted."""
    found = client.received(link)
    for delivery, _ in found:
        delivery.update(ACCEPTED)
        delivery.settle()
    proxied.settle_down()
    return [message.body for _, message in found]


def queues(proxied: PairedProxy) -> dict[str, Queue]:
    """At the primary."""
    return proxied.primary.container.default.resources.catalog.queues


def pass_time(proxied: PairedProxy, by_ms: int) -> None:
    """At the primary."""
    container = proxied.primary.container
    container.now_ms += by_ms
    container.tick()
    proxied.settle_down()


def publisher(proxied: PairedProxy, client: PairedClient) -> Any:
    """A publisher's link with a node of its own."""
    link = client.session.sender("own")
    link.target.dynamic = True
    link.open()
    proxied.settle_down()
    return link


# --- dynamic nodes


def test_a_temporary_queue_is_made_at_the_primary_and_goes_with_its_link(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = attach(proxied, client, None, dynamic=True)
    name = link.remote_source.address
    assert list(queues(proxied)) == [name]
    publish(proxied, name, "a")
    assert accept(proxied, client, link) == ["a"]
    link.close()
    proxied.settle_down()
    assert not queues(proxied)


def test_a_temporary_queue_goes_with_a_client_that_vanishes(proxied: PairedProxy) -> None:
    client = proxied.client()
    attach(proxied, client, None, dynamic=True)
    client.vanish()
    proxied.settle_down()
    assert not queues(proxied)


def test_a_temporary_queue_outlives_the_connection_between_proxy_and_primary(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = attach(proxied, client, None, dynamic=True)
    name = link.remote_source.address
    proxied.cut()
    pass_time(proxied, RETURN_MS - 1)
    publish(proxied, name, "meanwhile")
    proxied.connect_upstream()
    pass_time(proxied, RETURN_MS)
    publish(proxied, name, "afterwards")
    assert accept(proxied, client, link) == ["meanwhile", "afterwards"]
    link.close()
    proxied.settle_down()
    assert not queues(proxied)


def test_a_proxy_that_closes_its_connection_leaves_its_clients_queues(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = attach(proxied, client, None, dynamic=True)
    assert proxied.upstream is not None
    proxied.upstream.engine.connection.close()
    proxied.settle_down()
    assert list(queues(proxied)) == [link.remote_source.address]


@pytest.mark.parametrize("is_publisher", [False, True])
def test_a_temporary_queue_of_a_proxy_that_does_not_come_back_is_deleted_in_time(
    proxied: PairedProxy, is_publisher: bool
) -> None:
    client = proxied.client()
    link = publisher(proxied, client) if is_publisher else attach(proxied, client, None, dynamic=True)
    proxied.cut()
    pass_time(proxied, RETURN_MS - 1)
    assert len(queues(proxied)) == 1
    pass_time(proxied, 1)
    assert not queues(proxied)
    proxied.connect_upstream()
    assert condition(link) == "amqp:resource-deleted"
    assert not queues(proxied)


def test_a_publishers_own_queue_is_there_as_long_as_the_publisher(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = publisher(proxied, client)
    name = link.remote_target.address
    proxied.cut()
    proxied.connect_upstream()
    pass_time(proxied, 2 * RETURN_MS)
    delivery = client.send(link, proton.Message("a"))
    proxied.settle_down()
    assert delivery.remote_state == ACCEPTED
    assert queues(proxied)[name].messages.count == 1
    link.close()
    proxied.settle_down()
    assert not queues(proxied)


def test_an_auto_delete_queue_does_not_die_under_a_proxys_client(proxied: PairedProxy) -> None:
    proxied.primary.container.default.configuration.declare_queue("q", {"qpid.auto_delete": True})
    client = proxied.client()
    link = attach(proxied, client, "q")
    proxied.cut()
    pass_time(proxied, RETURN_MS - 1)
    proxied.connect_upstream()
    pass_time(proxied, RETURN_MS)
    publish(proxied, "q", "a")
    assert accept(proxied, client, link) == ["a"]
    link.close()
    proxied.settle_down()
    pass_time(proxied, 1)
    assert not queues(proxied)


def test_a_queue_that_a_proxys_client_has_alone_is_kept_for_it(proxied: PairedProxy) -> None:
    proxied.primary.container.default.configuration.declare_queue("q", {"qpid.exclusive": True})
    attach(proxied, proxied.client(container="owner"), "q")
    proxied.cut()
    other = PairedClient(proxied.primary, container="other")
    assert condition(subscribe(other, "q", "early")) == "amqp:resource-locked"
    pass_time(proxied, RETURN_MS)
    assert condition(subscribe(other, "q", "late")) is None


# --- subscriptions


def test_a_subscription_gets_what_its_key_and_its_selector_let_through(proxied: PairedProxy) -> None:
    client = proxied.client()
    filters = {"key": (TOPIC_BINDING, "news.#"), "selector": (SELECTOR, "colour = 'red'")}
    link = attach(proxied, client, "amq.topic", filters=filters)
    publish(proxied, "amq.topic/news.today", "red", colour="red")
    publish(proxied, "amq.topic/news.today", "blue", colour="blue")
    publish(proxied, "amq.topic/weather", "other", colour="red")
    assert [queue.messages.count for queue in queues(proxied).values()] == [1]
    assert accept(proxied, client, link) == ["red"]
    link.close()
    proxied.settle_down()
    assert not queues(proxied)


@pytest.mark.parametrize("dynamic", [False, True])
def test_who_browses_what_is_made_for_its_link_reads_it_and_misses_nothing(proxied: PairedProxy, dynamic: bool) -> None:
    client = proxied.client()
    link = subscribe(client, None if dynamic else "amq.fanout", dynamic=dynamic, browse=True)
    link.flow(100)
    address = link.remote_source.address if dynamic else "amq.fanout"
    publish(proxied, address, "before")
    proxied.cut()
    publish(proxied, address, "meanwhile")
    proxied.connect_upstream()
    assert accept(proxied, client, link) == ["before", "meanwhile"]
    proxied.settle_down()
    assert [queue.messages.count for queue in queues(proxied).values()] == [0]


def test_a_subscription_misses_nothing_while_its_proxy_has_no_connection(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = attach(proxied, client, "amq.fanout")
    publish(proxied, "amq.fanout", "before")
    proxied.cut()
    publish(proxied, "amq.fanout", "meanwhile")
    proxied.connect_upstream()
    publish(proxied, "amq.fanout", "afterwards")
    assert len(queues(proxied)) == 1
    assert accept(proxied, client, link) == ["before", "meanwhile", "afterwards"]
    proxied.settle_down()
    assert [queue.messages.count for queue in queues(proxied).values()] == [0]


def test_a_durable_subscription_is_the_clients_whichever_broker_it_comes_to(proxied: PairedProxy) -> None:
    reader = proxied.client(container="reader")
    link = attach(proxied, reader, "amq.fanout", name="paper", durable=True)
    assert list(queues(proxied)) == ["subscription:reader:paper"]
    link.detach()
    proxied.settle_down()
    publish(proxied, "amq.fanout", "while away")
    reader.vanish()
    proxied.settle_down()
    direct = PairedClient(proxied.primary, container="reader")
    again = subscribe(direct, "amq.fanout", "paper", durable=True)
    again.flow(1)
    proxied.primary.settle_down()
    assert [message.body for _, message in direct.received(again)] == ["while away"]


def test_a_durable_subscription_ends_when_its_link_is_closed_and_not_with_the_client(proxied: PairedProxy) -> None:
    reader = proxied.client(container="reader")
    attach(proxied, reader, "amq.fanout", name="paper", durable=True)
    reader.vanish()
    proxied.settle_down()
    assert list(queues(proxied)) == ["subscription:reader:paper"]
    link = attach(proxied, proxied.client(container="reader"), "amq.fanout", name="paper", durable=True)
    link.close()
    proxied.settle_down()
    assert not queues(proxied)


def test_unsubscribing_as_jms_does_works_through_a_proxy(proxied: PairedProxy) -> None:
    reader = proxied.client(container="reader")
    attach(proxied, reader, "amq.fanout", name="paper", durable=True).detach()
    proxied.settle_down()
    link = attach(proxied, proxied.client(container="reader"), None, 0, name="paper")
    assert link.remote_source.address == "amq.fanout"
    link.close()
    proxied.settle_down()
    assert not queues(proxied)
    refused = attach(proxied, proxied.client(container="reader"), None, 0, name="paper")
    assert condition(refused) == "amqp:not-found"


def test_a_subscription_that_is_gone_is_not_made_anew_behind_the_clients_back(proxied: PairedProxy) -> None:
    link = attach(proxied, proxied.client(container="reader"), "amq.fanout", name="paper", durable=True)
    proxied.cut()
    proxied.primary.container.default.configuration.delete_queue("subscription:reader:paper")
    proxied.connect_upstream()
    assert condition(link) == "amqp:resource-deleted"
    assert not queues(proxied)


# --- a new primary, an old one


def test_what_a_client_has_for_itself_is_its_own_at_a_new_primary(proxied: PairedProxy) -> None:
    client = proxied.client()
    own = attach(proxied, client, None, name="own", dynamic=True)
    news = attach(proxied, client, "amq.fanout", name="news")
    proxied.cut()
    container = proxied.primary.container
    container.default.resources.replicated.take_over(container.now_ms, 10_000)  # as whoever leads next does
    pass_time(proxied, 9_000)
    publish(proxied, own.remote_source.address, "for me")
    publish(proxied, "amq.fanout", "for all")
    proxied.connect_upstream()
    pass_time(proxied, 20_000)
    assert accept(proxied, client, own) == ["for me"]
    assert accept(proxied, client, news) == ["for all"]
    own.close()
    news.close()
    proxied.settle_down()
    assert not queues(proxied)


@pytest.mark.parametrize(("address", "dynamic"), [("amq.topic", False), (None, True), ("$management", False)])
def test_a_primary_of_an_older_version_is_not_asked_for_what_it_would_misunderstand(
    proxied: PairedProxy, monkeypatch: pytest.MonkeyPatch, address: str | None, dynamic: bool
) -> None:
    monkeypatch.setattr(
        "qpid_ha_broker.amqp.connections.connection._RELAY_CAPABILITIES", ("qpid.relay", "qpid.relay-sets")
    )
    proxied.connect_upstream()
    client = proxied.client()
    link = attach(proxied, client, address, 0, dynamic=dynamic)
    assert condition(link) == "amqp:not-implemented"
    assert "upgrade it" in link.remote_condition.description
    assert not queues(proxied)
    assert condition(attach(proxied, client, "q", name="of a queue")) is None


@pytest.mark.parametrize(
    ("address", "dynamic"), [("q", False), ("amq.topic", False), (None, True), ("$management", False)]
)
def test_a_link_that_comes_back_is_refused_with_its_way(address: str | None, dynamic: bool) -> None:
    proxied = PairedProxy(ContainerSettings("proxy", "0"))  # an address of another broker leads to this one
    proxied.primary.container.default.read_only = True
    link = attach(proxied, proxied.client(), address, 0, dynamic=dynamic)
    assert condition(link) == "amqp:not-allowed"
    assert "proxy -> proxy" in link.remote_condition.description


# --- $management


def ask(proxied: PairedProxy, client: PairedClient, replies: Any, operation: str, **properties: Any) -> Any:
    requests = client.sender("$management")
    reply_to = replies.remote_source.address
    request: Any = proton.Message(reply_to=reply_to, correlation_id=operation, body={})
    request.properties = {"operation": operation, **properties}
    client.send(requests, request)
    proxied.settle_down()
    requests.close()
    ((_, answer),) = client.received(replies)
    return answer


@pytest.mark.parametrize("dynamic", [False, True])
def test_management_at_a_proxy_is_that_of_the_primary(proxied: PairedProxy, dynamic: bool) -> None:
    client = proxied.client()
    replies = attach(proxied, client, None if dynamic else "$management", name="replies", dynamic=dynamic)
    made = ask(proxied, client, replies, "CREATE", type="queue", name="made")
    assert made.properties["statusCode"] == 201
    assert "made" in queues(proxied)
    read = ask(proxied, client, replies, "READ", type="queue", name="made")
    assert (read.properties["statusCode"], read.body["name"]) == (200, "made")


def test_a_client_of_a_proxy_gets_no_reply_that_is_for_another_one(proxied: PairedProxy) -> None:
    one, other = proxied.client(container="one"), proxied.client(container="other")
    of_other = attach(proxied, other, "$management", name="replies")
    of_one = attach(proxied, one, "$management", name="replies")
    assert ask(proxied, one, of_one, "GET-TYPES").properties["statusCode"] == 200
    assert other.received(of_other) == []


def test_a_client_of_a_proxy_does_not_have_the_proxys_rights(proxied: PairedProxy) -> None:
    asked = []
    proxied.primary.container.management.control = lambda identity, body, done, gone: asked.append(identity)
    client = proxied.client()
    requests = client.sender("$management")
    request: Any = proton.Message(reply_to="$management", body="{}")
    request.properties = {"operation": "control", "type": "org.qpid-ha.broker"}
    client.send(requests, request)
    proxied.settle_down()
    assert [(identity.user, identity.is_admin) for identity in asked] == [("", False)]


# --- who has gone


def ask_for(
    client: PairedClient, requests: Any, name: str, reply_to: str | None = "$management", *, is_settled: bool = False
) -> None:
    """A queue; who hears of it is the test's to decide."""
    request: Any = proton.Message(reply_to=reply_to, body={})
    request.properties = {"operation": "CREATE", "type": "queue", "name": name}
    delivery = client.send(requests, request)
    if is_settled:
        delivery.settle()


@pytest.mark.parametrize("is_settled", [False, True])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_proxy_sends_no_request_of_a_client_that_has_hung_up(
    proxied: PairedProxy, is_waiting: bool, is_settled: bool
) -> None:
    client = proxied.client()
    requests = client.sender("$management")
    if is_waiting:
        proxied.cut()
        ask_for(client, requests, "orders", is_settled=is_settled)
        proxied.settle_down()
    client.peer.engine.input.has_hung_up = lambda: True
    if is_waiting:
        proxied.connect_upstream()
    else:
        ask_for(client, requests, "orders", is_settled=is_settled)
        proxied.settle_down()
    assert "orders" not in queues(proxied)
    warnings = [notice.text for notice in proxied.proxy.container.take_notices() if notice.level == "warning"]
    assert ["CREATE queue orders was asked for by" in text for text in warnings] == [True]
    ask_for(client, requests, "invoices", None)
    proxied.settle_down()
    assert "invoices" in queues(proxied)


def test_for_a_primary_the_client_has_gone_when_the_proxy_has(proxied: PairedProxy) -> None:
    assert proxied.accepted is not None
    client = proxied.client()
    requests = client.sender("$management")
    proxied.accepted.engine.input.has_hung_up = lambda: True
    ask_for(client, requests, "orders")
    proxied.settle_down()
    assert "orders" not in queues(proxied)


def test_a_primary_that_was_stopped_finds_the_end_of_the_reply_link_behind_the_request(proxied: PairedProxy) -> None:
    """The proxy has closed it, because its client has."""
    client = proxied.client()
    replies = attach(proxied, client, "$management", name="replies")
    requests = client.sender("$management")
    ask_for(client, requests, "orders")
    client.exchange()
    replies.close()
    client.exchange()
    proxied.settle_down()
    assert "orders" not in queues(proxied)
