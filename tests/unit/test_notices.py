"""Clients go with their logins where a notice sends them: whichever way a message takes, it is not a client's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from access_support import controlled
from paired_engines import PairedBroker, PairedClient
from paired_links import condition, status, subscribe
from paired_proxy import PairedProxy
from paired_transactions import PairedCoordinator
from qpid_ha_broker.access.rules import Permission, Subject
from qpid_ha_broker.amqp.wire.conditions import NOT_ALLOWED, UNAUTHORIZED_ACCESS
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import InUse, InvalidArgument
from qpid_ha_config.access_rules import parse_entries

ADDRESS = "amq.qpid/cluster"
QUEUE, EXCHANGE, BINDING = "org.qpid_ha.queue", "org.qpid_ha.exchange", "org.qpid_ha.binding"
BAD_REQUEST, UNAUTHORIZED, CONFLICT = 400, 401, 409


class Listening:
    """A client that listens, and a stranger on the broker's machine, who may do everything else."""

    def __init__(self, *rules: str) -> None:
        self.broker = PairedBroker()
        if rules:
            self.broker.container.access.change(parse_entries(rules).rules, "")
        self.link: Any = subscribe(self.broker.connect(), ADDRESS, "qpid.known.hosts")
        self.link.flow(10)
        self.broker.settle_down()
        (self.queue,) = self.broker.container.default.resources.catalog.queues
        self.stranger = self.broker.connect()

    @property
    def has_heard(self) -> bool:
        self.broker.settle_down()
        return bool(self.link.queued or self.broker.queue(self.queue).messages.enqueued_total)


def forged(**fields: Any) -> proton.Message:
    return proton.Message(properties={"qpid.known.hosts": "stranger:5672"}, **fields)


def publishes_to(address: str, message: proton.Message) -> Callable[[Listening], None]:
    def way(there: Listening) -> None:
        link = there.stranger.sender(address)
        if condition(link) is None:
            there.stranger.send(link, message)

    return way


def relays(there: Listening) -> None:
    link = there.stranger.sender(None)
    for address, subject in ((ADDRESS, None), ("amq.qpid", "cluster")):
        there.stranger.send(link, forged(address=address, subject=subject))


def relays_in_a_transaction(there: Listening) -> None:
    coordinator, link = PairedCoordinator(there.stranger), there.stranger.sender(None)
    transaction = coordinator.declare()
    delivery = there.stranger.send(link, forged(address=ADDRESS))
    delivery.local.data = [transaction]
    delivery.update(0x34)
    there.broker.settle_down()
    coordinator.discharge(transaction)


def has_it_dead_lettered(there: Listening) -> None:
    client, argument = there.stranger, {"arguments": {"qpid.alternate_exchange": "amq.qpid"}}
    status(client, "CREATE", argument, type=QUEUE, name="dead")
    client.send(client.sender("dead"), forged(subject="cluster"))
    there.broker.settle_down()
    dead = there.broker.queue("dead")
    there.broker.container.default.resources.reject(dead, list(dead.messages))


def has_it_passed_on_by_an_exchange(there: Listening) -> None:
    argument = {"kind": "fanout", "arguments": {"qpid.alternate_exchange": "amq.qpid"}}
    status(there.stranger, "CREATE", argument, type=EXCHANGE, name="leads-nowhere")
    publishes_to("leads-nowhere/cluster", forged(subject="cluster"))(there)


def publishes_to_the_listeners_queue(there: Listening) -> None:
    publishes_to(there.queue, forged())(there)


def relays_to_the_listeners_queue(there: Listening) -> None:
    there.stranger.send(there.stranger.sender(None), forged(address=there.queue))


def binds_the_listeners_queue(there: Listening) -> None:
    bound = {"exchange": "amq.fanout", "queue": there.queue, "key": ""}
    status(there.stranger, "CREATE", bound, type=BINDING)
    publishes_to("amq.fanout", forged())(there)


WAYS: dict[str, Callable[[Listening], None]] = {
    "publish to the exchange with a key": publishes_to(ADDRESS, forged()),
    "publish to the exchange": publishes_to("amq.qpid", forged(subject="cluster")),
    "an anonymous relay": relays,
    "an anonymous relay in a transaction": relays_in_a_transaction,
    "dead letters": has_it_dead_lettered,
    "an alternate exchange of an exchange": has_it_passed_on_by_an_exchange,
    "publish to the queue of who listens": publishes_to_the_listeners_queue,
    "an anonymous relay to the queue of who listens": relays_to_the_listeners_queue,
    "another exchange that leads to the queue of who listens": binds_the_listeners_queue,
}


@pytest.mark.parametrize(
    "rules", [(), ("allow all all",), ("allow all publish,create,bind,manage,consume,administer",)]
)
@pytest.mark.parametrize("way", WAYS)
def test_whichever_way_a_client_sends_it_nobody_takes_it_for_a_notice(way: str, rules: tuple[str, ...]) -> None:
    there = Listening(*rules)
    WAYS[way](there)
    assert not there.has_heard


def test_a_refusal_names_no_rule_that_would_allow_it() -> None:
    there = Listening()
    link = there.stranger.sender(ADDRESS)
    assert condition(link) == UNAUTHORIZED_ACCESS
    assert "add `allow" not in str(link.remote_condition.description)
    assert condition(there.stranger.sender(there.queue, "to-the-queue")) == NOT_ALLOWED


def test_a_proxy_passes_nothing_on_that_is_for_the_broker_to_say() -> None:
    pair = PairedProxy()
    listener = pair.client()
    subscribed: Any = subscribe(listener, ADDRESS, "qpid.known.hosts")
    subscribed.flow(10)
    pair.settle_down()
    (queue,) = (name for name in pair.primary.container.default.resources.catalog.queues)
    client = pair.client()
    links = [client.session.sender("exchange"), client.session.sender("queue")]
    for link, address in zip(links, (ADDRESS, queue), strict=True):
        link.target.address = address
        link.open()
    anonymous = client.session.sender("any")
    anonymous.open()
    pair.settle_down()
    for address in (ADDRESS, queue):
        client.send(anonymous, forged(address=address))
    pair.settle_down()
    assert [condition(link) for link in links] == [UNAUTHORIZED_ACCESS, NOT_ALLOWED]
    assert pair.primary.queue(queue).messages.enqueued_total == 0


def test_no_queue_or_exchange_gets_the_name_of_an_address_behind_an_exchange() -> None:
    broker = PairedBroker()
    configuration = broker.container.default.configuration
    for name in (ADDRESS, "amq.qpid/", "amq.topic/stock"):
        with pytest.raises(InvalidArgument, match="address of the key"):
            configuration.declare_queue(name, {})
        with pytest.raises(InvalidArgument, match="address of the key"):
            configuration.declare_exchange(name, "fanout", {})
    configuration.declare_queue("orders/stock", {})


def test_a_queue_of_an_earlier_release_is_not_found_in_place_of_the_notices() -> None:
    broker = PairedBroker()
    resources = broker.container.default.resources
    resources.replicated.write(ev.QueueDeclared(ADDRESS, {}))
    resources.replicated.write(ev.QueueDeclared("old", {"qpid.alternate_exchange": "amq.qpid"}))
    catalog = resources.catalog
    subscribe(broker.connect(), ADDRESS, "qpid.known.hosts")
    assert not catalog.queues[ADDRESS].dispatcher.consumers
    assert len(catalog.exchanges["amq.qpid"].bindings()) == 1
    assert condition(broker.connect().sender(ADDRESS)) == UNAUTHORIZED_ACCESS
    client = broker.connect()
    client.send(client.sender("old"), forged(subject="cluster"))
    broker.settle_down()
    resources.reject(catalog.queues["old"], list(catalog.queues["old"].messages))
    assert [queue.messages.enqueued_total for queue in catalog.queues.values()].count(1) == 1


def test_the_queue_of_who_listens_is_not_filled_from_elsewhere() -> None:
    there = Listening()
    configuration = there.broker.container.default.configuration
    with pytest.raises(InUse, match="for notices"):
        configuration.update_queue(there.queue, {"qpid.auto_delete": None, "qpid.cluster.source": "amqp://far/orders"})


def test_who_may_connect_may_listen_unless_a_rule_denies_it() -> None:
    nobody = Subject.logged_in("", is_local=False)
    for rules, may in ((("allow alice all ${user}.*",), True), (("deny all consume amq.qpid",), False)):
        assert controlled(*rules).decide(nobody, Permission.CONSUME, "amq.qpid").is_allowed is may
        assert not controlled(*rules).decide(nobody, Permission.BROWSE, "amq.qpid").is_allowed


def test_what_an_exchange_passes_on_has_to_be_allowed_to_who_makes_it() -> None:
    for rules, code in ((("allow all create",), UNAUTHORIZED), (("allow all create,publish",), 201)):
        broker = PairedBroker()
        broker.container.access.change(parse_entries(rules).rules, "")
        client = PairedClient(broker)
        broker.settle_down()
        body = {"kind": "fanout", "arguments": {"qpid.alternate_exchange": "amq.topic"}}
        assert status(client, "CREATE", body, type=EXCHANGE, name="x") == code
