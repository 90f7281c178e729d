"""The broker's own addresses: a table of who attaches to which, and how, gone through with and without rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import proton
import pytest

from paired_engines import BROKER, PairedBroker, PairedClient, queued_bodies
from paired_links import condition
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.nodes.own_addresses import ADDRESSES, AskedOf
from qpid_ha_broker.amqp.wire.conditions import NOT_ALLOWED, NOT_FOUND, UNAUTHORIZED_ACCESS
from qpid_ha_broker.amqp.wire.relay import RELAY_CAPABILITY, RelayRequest
from qpid_ha_broker.amqp.wire.relayed_session_request import SessionAsked
from qpid_ha_broker.amqp.wire.reservation_request import ReservationRequest
from qpid_ha_config.access_rules import parse_entries
from session_clients import confirmed, consume, numbered, open_session, publish, refusal, status
from session_support import FIRST

RULES = {
    "without rules": None,
    "with rules about queues": ("allow alice publish,consume,create q", "allow anonymous replicate"),
    "with a rule for all": ("allow all all",),
}


class Listener:
    """Of a cluster's member: takes whatever channel is opened."""

    def opened(self, channel: Any) -> None: ...

    def received(self, channel: Any, frame: bytes) -> None: ...

    def closed(self, channel: Any, reason: str) -> None: ...


def put_in_force(broker: PairedBroker, rules: tuple[str, ...] | None) -> None:
    if rules is not None:
        broker.container.access.change(parse_entries(rules).rules, "")


def link_to(client: PairedClient, address: str, *, publishes: bool, properties: dict[Any, Any] | None = None) -> Any:
    link = client.session.sender("link") if publishes else client.session.receiver("link")
    (link.target if publishes else link.source).address = address
    link.properties = properties
    return client.attach(link)


def expected(address: str, who: AskedOf, *, publishes: bool) -> str | None:
    """The condition with which `who` is refused; None: it is attached. A client is who only EACH_REQUEST is for."""
    row = ADDRESSES.get(address)
    if row is None:
        return NOT_FOUND
    if row.asked_of is AskedOf.BROKER and who is AskedOf.EACH_REQUEST:
        return UNAUTHORIZED_ACCESS
    if row.asked_of is not AskedOf.EACH_REQUEST and row.asked_of is not who:
        return NOT_FOUND
    return None if (row.takes_publishers if publishes else row.takes_consumers) else NOT_ALLOWED


ALL = [*ADDRESSES, "$", "$cbs", "$relay", "$relay/other", "$management2"]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("publishes", [True, False])
@pytest.mark.parametrize("address", ALL)
@pytest.mark.parametrize("way", ["direct", "proxied"])
def test_a_client_attaches_to_what_is_for_clients(way: str, address: str, publishes: bool, rules: str) -> None:
    proxied = PairedProxy()
    for broker in (proxied.primary, proxied.proxy):
        broker.container.peers.single = Listener()
        put_in_force(broker, RULES[rules])
    client = PairedClient(proxied.primary if way == "direct" else proxied.proxy, user="alice")
    proxied.settle_down()
    found = link_to(client, address, publishes=publishes)
    assert condition(found) == expected(address, AskedOf.EACH_REQUEST, publishes=publishes)
    if condition(found) == NOT_FOUND:
        assert address in found.remote_condition.description
    assert client.connection.remote_condition is None


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("publishes", [True, False])
@pytest.mark.parametrize("address", ALL)
@pytest.mark.parametrize("who", [AskedOf.BROKER, AskedOf.RELAYING_BROKER])
def test_another_broker_attaches_to_what_is_for_it(who: AskedOf, address: str, publishes: bool, rules: str) -> None:
    broker = PairedBroker()
    broker.container.peers.single = Listener()
    put_in_force(broker, RULES[rules])
    capabilities = (RELAY_CAPABILITY,) if who is AskedOf.RELAYING_BROKER else ()
    peer = PairedClient(broker, BROKER, capabilities)
    broker.settle_down()
    properties: dict[Any, Any] = {}
    if capabilities:
        properties |= RelayRequest(("proxy",), "1", user="alice", set_name="default").properties()
        properties |= SessionAsked(FIRST, None, False, 0, 0, "").properties()
        properties |= ReservationRequest("key", 6_000, is_held=False, closes_existing=False).properties()
    found = link_to(peer, address, publishes=publishes, properties=properties or None)
    assert condition(found) == expected(address, who, publishes=publishes)


def test_who_is_no_broker_relays_nothing() -> None:
    broker = PairedBroker()
    put_in_force(broker, ("allow alice publish,consume,browse,create,manage",))
    for address in ADDRESSES:
        peer = PairedClient(broker, {proton.symbol("qpid.ha-admin"): True}, (RELAY_CAPABILITY,), user="alice")
        broker.settle_down()
        assert refusal(peer) == UNAUTHORIZED_ACCESS, address


def test_a_message_cannot_be_sent_to_an_address_of_the_brokers_own() -> None:
    broker = PairedBroker()
    put_in_force(broker, ("allow all all",))
    client = broker.connect()
    relay = client.sender(None)
    for address in ALL:
        delivery = client.send(relay, proton.Message("x", address=address))
        broker.settle_down()
        assert delivery.remote.condition.name == NOT_FOUND
        assert address in delivery.remote.condition.description


@pytest.fixture(params=list(RULES))
def proxied(request: pytest.FixtureRequest) -> Iterator[PairedProxy]:
    found = PairedProxy()
    for broker in (found.primary, found.proxy):
        put_in_force(broker, RULES[request.param])
    yield found
    found.check_invariants()


def test_a_session_works_under_rules_with_proxies(proxied: PairedProxy) -> None:
    client = open_session(proxied, user="alice")  # type: ignore[arg-type]
    assert (refusal(client), status(client)) == (None, "new")
    out = publish(client, "q")
    client.send(out, numbered(1))
    link = consume(client, "q", 10)
    ((_, message),) = client.received(link)
    assert message.body == "m1"
    client.vanish()
    proxied.settle_down()
    again = open_session(proxied, user="alice")  # type: ignore[arg-type]
    assert (refusal(again), status(again), confirmed(publish(again, "q"))) == (None, "resumed", 1)
    assert len(queued_bodies(proxied.queue("q"))) == 1


def test_a_session_under_rules_is_only_its_users(proxied: PairedProxy) -> None:
    first = open_session(proxied, user="alice")  # type: ignore[arg-type]
    second = open_session(proxied, user="mallory")  # type: ignore[arg-type]
    assert (refusal(first), refusal(second)) == (None, UNAUTHORIZED_ACCESS)


@pytest.mark.parametrize("publishes", [True, False])
def test_links_to_the_management_that_are_relayed_outlive_a_change_of_the_rules(publishes: bool) -> None:
    proxied = PairedProxy()
    client = proxied.client()
    link = link_to(client, "$management", publishes=publishes)
    proxied.settle_down()
    assert condition(link) is None
    put_in_force(proxied.proxy, RULES["with rules about queues"])
    assert proxied.proxy.connections.check_access() == 0
    proxied.settle_down()
    assert condition(link) is None
