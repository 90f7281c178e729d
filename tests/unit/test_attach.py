"""What a client is told when it attaches: what it gets, no more; and no where less would mean something else."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_links import condition, status, subscribe, symbols
from paired_transactions import PairedCoordinator
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.connections.nodes import NodeSettings
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.amqp.nodes.link_state import WaitsFor
from qpid_ha_broker.amqp.nodes.terminus import SELECTOR
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments

DIRECT_KEY = "apache.org:legacy-amqp-direct-binding:string"
HEADERS = "apache.org:legacy-amqp-headers-binding:map"


@pytest.fixture
def broker() -> PairedBroker:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("q", {"qpid.max_count": 5})
    return broker


def value(data: Any) -> Any:
    data.rewind()
    return data.get_object() if data.next() is not None else None


# --- what is not honoured is left out


def test_of_capabilities_only_those_are_repeated_that_hold(client: PairedClient) -> None:
    link = subscribe(client, "q", capabilities=("queue", "global", "shared", "DELAYED_DELIVERY"))
    assert value(link.remote_source.capabilities) == symbols("queue")
    link = subscribe(client, "amq.topic", "other", capabilities=("topic", "x"))
    assert value(link.remote_source.capabilities) == symbols("topic")
    sender = client.session.sender("out")
    sender.target.address = "q"
    sender.target.capabilities.put_object(symbols("queue", "delayed", "DELAYED_DELIVERY"))
    sender.open()
    client.broker.settle_down()
    assert value(sender.remote_target.capabilities) == symbols("DELAYED_DELIVERY", "queue")


def test_node_properties_are_repeated_where_the_queue_has_them(client: PairedClient) -> None:
    link = subscribe(client, "q", properties={"qpid.max_count": 5, "qpid.priorities": 3, "owner": "me"})
    assert value(link.remote_source.properties) == {"qpid.max_count": 5}


@pytest.mark.parametrize("address", ["q", "on-demand", "amq.fanout", None])
@pytest.mark.parametrize("name", ["x-max-length", "max_count", "qpid.max_cuont"])
def test_a_node_property_that_would_do_nothing_is_refused_with_the_one_that_is_meant(
    client: PairedClient, address: str | None, name: str
) -> None:
    link = subscribe(client, address, properties={name: 5}, dynamic=address is None)
    assert condition(link) == "amqp:invalid-field"
    assert "qpid.max_count" in link.remote_condition.description


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_is_said_to_outlive_the_link_that_does_not(client: PairedClient, dynamic: bool) -> None:
    link = subscribe(client, None if dynamic else "q", durable=True, dynamic=dynamic)
    remote = link.remote_source
    assert (remote.durability, remote.expiry_policy) == (
        proton.Terminus.NONDURABLE,
        proton.Terminus.EXPIRE_WITH_LINK,
    )
    link = subscribe(client, "amq.topic", "kept", durable=True)
    remote = link.remote_source
    assert (remote.durability, remote.expiry_policy) == (proton.Terminus.CONFIGURATION, proton.Terminus.EXPIRE_NEVER)


@pytest.mark.parametrize(
    ("address", "filters", "applied"),
    [
        ("q", {"s": (SELECTOR, "a = 1"), "k": (DIRECT_KEY, "key")}, ["s"]),
        ("amq.direct", {"s": (SELECTOR, "a = 1"), "k": (DIRECT_KEY, "key")}, ["s", "k"]),
        ("amq.fanout", {"k": (DIRECT_KEY, "key")}, []),
        ("amq.match", {"k": (DIRECT_KEY, "key"), "h": (HEADERS, {"a": 1})}, ["h"]),
        ("amq.topic", {"k": (DIRECT_KEY, "key"), "h": (HEADERS, {"a": 1})}, ["k"]),
    ],
)
def test_filters_are_repeated_where_something_looks_at_them(
    client: PairedClient, address: str, filters: dict[str, Any], applied: list[str]
) -> None:
    link = subscribe(client, address, filters=filters)
    assert sorted(value(link.remote_source.filter) or {}) == sorted(applied)


def test_of_outcomes_those_are_repeated_that_the_broker_knows(client: PairedClient) -> None:
    link = client.session.receiver("link")
    link.source.address = "q"
    link.source.outcomes.put_object(symbols("amqp:accepted:list", "x:postponed:list"))
    link.open()
    client.broker.settle_down()
    assert value(link.remote_source.outcomes) == symbols("amqp:accepted:list")


# --- what would mean something else is refused


def test_who_shares_a_queue_and_counts_on_not_hearing_itself_is_refused(
    broker: PairedBroker, client: PairedClient
) -> None:
    no_local: Any = {"no-local": ("apache.org:no-local-filter:list", [])}
    for link in (
        subscribe(client, "q", "a queue", filters=no_local),
        subscribe(client, None, "a queue of its own", filters=no_local, dynamic=True),
        subscribe(client, "amq.topic", "a shared subscription", filters=no_local, capabilities=("topic", "shared")),
    ):
        assert condition(link) == "amqp:not-implemented"
    assert list(broker.container.default.resources.catalog.queues) == ["q"]


def test_two_filters_of_a_kind_are_refused(client: PairedClient) -> None:
    link = subscribe(client, "q", filters={"a": (SELECTOR, "a = 1"), "b": (SELECTOR, "b = 1")})
    assert condition(link) == "amqp:invalid-field"


@pytest.mark.parametrize(
    ("address", "capability"),
    [("amq.topic", "queue"), ("amq.topic/k", "queue"), ("amq.topic", "temporary-queue")],
)
def test_who_asks_for_a_queue_gets_no_exchange(client: PairedClient, address: str, capability: str) -> None:
    assert condition(subscribe(client, address, capabilities=(capability,))) == "amqp:precondition-failed"
    sender = client.session.sender("out")
    sender.target.address = address
    sender.target.capabilities.put_object(symbols(capability))
    sender.open()
    client.broker.settle_down()
    assert condition(sender) == "amqp:precondition-failed"


@pytest.mark.parametrize("address", ["$cbs", "$management2", "$", "$x/key"])
def test_names_that_are_the_brokers_own_are_never_made(
    broker: PairedBroker, client: PairedClient, address: str
) -> None:
    before = broker.container.default.resources.replicated.log.last_lsn
    assert condition(subscribe(client, address)) == "amqp:not-found"
    assert condition(subscribe(client, address, "t", capabilities=("topic",))) == "amqp:not-found"
    assert condition(client.sender(address)) == "amqp:not-found"
    relay = client.sender(None)
    delivery = client.send(relay, proton.Message(address=address))
    broker.settle_down()
    assert delivery.remote_state == proton.Delivery.REJECTED
    for operation in ({"type": "queue"}, {"type": "exchange"}):
        assert (
            status(
                client,
                "CREATE",
                name=address,
                body={"kind": "fanout"} if "exchange" in operation.values() else {},
                **operation,
            )
            == 400
        )
    assert broker.container.default.resources.replicated.log.last_lsn == before


# --- readers that do not read


def limited(count: int) -> PairedBroker:
    limits: dict[str, Scalar] = {"qpid.max_count": count, "qpid.policy_type": "self-destruct"}
    nodes = NodeSettings(temporary_limits=limits)
    return PairedBroker(ContainerSettings("test", "0", nodes=nodes))


def test_a_reader_that_does_not_read_ends_itself_and_neither_publishers_nor_other_readers() -> None:
    broker = limited(3)
    client, lazy = broker.connect(), broker.connect()
    idle = [subscribe(lazy, "amq.fanout", str(each)) for each in range(20)]
    reader = client.receiver("amq.fanout", 100)
    kept = subscribe(client, "amq.fanout", "kept", durable=True)
    sender = client.sender("amq.fanout")

    deliveries, read = [], []
    for number in range(10):
        deliveries.append(client.send(sender, proton.Message(body=number)))
        broker.settle_down()
        for delivery, message in client.received(reader):
            read.append(message.body)
            delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()

    assert {delivery.remote_state for delivery in deliveries} == {proton.Delivery.ACCEPTED}
    assert {condition(link) for link in idle} == {"amqp:resource-limit-exceeded"}
    assert not lazy.connection.state & proton.Endpoint.REMOTE_CLOSED
    kept.flow(100)
    broker.settle_down()
    assert read == [message.body for _, message in client.received(kept)] == [*range(10)]
    assert len(broker.container.default.resources.catalog.queues) == 2
    assert broker.container.default.overrun_queues_total == 20
    broker.check_invariants()


def test_who_publishes_to_a_full_temporary_queue_itself_is_refused() -> None:
    broker = limited(2)
    client, other = broker.connect(), broker.connect()
    replies = subscribe(client, None, dynamic=True)
    sender = other.sender(replies.remote_source.address)
    deliveries = [other.send(sender, proton.Message(body=number)) for number in range(3)]
    broker.settle_down()
    assert [delivery.remote_state == proton.Delivery.ACCEPTED for delivery in deliveries] == [True, True, False]
    replies.flow(10)
    broker.settle_down()
    assert [message.body for _, message in client.received(replies)] == [0, 1]


def test_a_reader_may_choose_its_own_limit() -> None:
    broker = limited(2)
    client = broker.connect()
    link = subscribe(client, "amq.fanout", properties={"qpid.max_count": 3, "qpid.policy_type": "ring"})
    sender = client.sender("amq.fanout")
    for number in range(5):
        client.send(sender, proton.Message(body=number))
    broker.settle_down()
    link.flow(10)
    broker.settle_down()
    assert [message.body for _, message in client.received(link)] == [2, 3, 4]


def test_a_reader_that_holds_all_of_its_ring_stops_nobody_and_is_said_to_owe_an_answer() -> None:
    broker = limited(100)
    client = broker.connect()
    link = subscribe(client, "amq.fanout", properties={"qpid.max_count": 2, "qpid.policy_type": "ring"})
    link.flow(100)
    other = client.receiver("amq.fanout", 100)
    sender = client.sender("amq.fanout")
    for number in range(5):
        client.send(sender, proton.Message(body=number))
        broker.settle_down()
    assert [message.body for _, message in client.received(link)] == [0, 1, 2]
    assert client.bodies(other) == [0, 1, 2, 3, 4]
    states = [end.state() for end in broker.container.default.links if isinstance(end, OutgoingLink)]
    assert [state.waits_for for state in states] == [WaitsFor.ANSWERS, WaitsFor.MESSAGES]


def test_a_binding_that_is_refused_leaves_no_queue_behind(broker: PairedBroker, client: PairedClient) -> None:
    link = subscribe(client, "amq.match", filters={"h": (HEADERS, {"x-match": "perhaps"})})
    assert condition(link) == "amqp:invalid-field"
    assert list(broker.container.default.resources.catalog.queues) == ["q"]


def test_the_limits_that_a_broker_gives_are_good_arguments() -> None:
    from qpid_ha_broker.server.broker import temporary_limits
    from qpid_ha_config.settings import BrokerSettings

    settings = BrokerSettings.from_values({"memory-limit": "1GiB"})
    assert QueueArguments.parse(temporary_limits(settings)).max_size == 8 * 1024**2
    smallest = BrokerSettings.from_values({"memory-limit": "16MiB", "max-message-size": "1MiB"})
    assert QueueArguments.parse(temporary_limits(smallest)).max_size == 1024**2
    assert temporary_limits(BrokerSettings.from_values({"temporary-queue-size": 0})) == {}
    own = temporary_limits(BrokerSettings.from_values({"temporary-queue-size": "1MiB"}))
    assert QueueArguments.parse(own).max_size == 1024**2


@pytest.mark.parametrize("first", ["local", "replicated"])
def test_a_relay_accepts_in_order_what_waits_for_two_logs(
    broker: PairedBroker, client: PairedClient, first: str
) -> None:
    """Each message waits for the log that it was written to, and for those before it on the same link."""
    resources = broker.container.default.resources
    broker.container.default.configuration.declare_queue("local", {"qpid.replicate": "none"})
    broker.container.default.configuration.declare_queue("replicated", {})
    logs = {"local": resources.sets.local_log, "replicated": resources.replicated.log}
    for log in logs.values():
        log.add_witness("store")
    second = "replicated" if first == "local" else "local"
    relay = client.sender(None)
    deliveries = [client.send(relay, proton.Message(address=name)) for name in (first, second)]
    broker.settle_down()
    for name, settled in ((second, [False, False]), (first, [True, True])):
        logs[name].acknowledge("store", logs[name].last_lsn)
        broker.settle_down()
        assert [delivery.settled for delivery in deliveries] == settled


def test_a_coordinator_says_what_it_can_whatever_is_hoped_for(broker: PairedBroker, client: PairedClient) -> None:
    """And can it: a transaction over two sessions, beside another one."""
    link = client.session.sender("hopes")
    link.target.type = proton.Terminus.COORDINATOR
    link.target.capabilities.put_object(symbols("amqp:distributed-transactions", "amqp:promotable-transactions"))
    client.attach(link)
    has = symbols("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
    assert value(link.remote_target.capabilities) == has
    coordinator = PairedCoordinator(client)
    first, second = coordinator.declare(), coordinator.declare()
    sender = client.sender("q")
    coordinator.publish(sender, first)
    other: Any = client.connection.session()
    other.open()
    beside = other.sender("beside")
    beside.target.address = "q"
    client.attach(beside)
    coordinator.publish(beside, first)
    coordinator.publish(beside, second)
    assert coordinator.discharge(second, fails=True).remote_state == proton.Delivery.ACCEPTED
    assert coordinator.discharge(first).remote_state == proton.Delivery.ACCEPTED
    assert broker.queue("q").messages.count == 2
