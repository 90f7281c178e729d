"""Stories about queues that JMS has made: each priority of a message has a level of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_links import condition, subscribe, symbols
from paired_proxy import PairedProxy
from qpid_ha_broker.access.address_rules import AddressRule, NodeKind, rules_in_force
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.connections.nodes import NodeSettings
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.events.types import Arguments, Scalar
from qpid_ha_broker.model.commands.naming import NamingRules
from qpid_ha_broker.model.queues.queue_arguments import with_levels
from several_sets import ClusterDirectory, SeveralSets

ACCEPTED = proton.Delivery.ACCEPTED
TEN = {"qpid.priorities": 10}
RING = {"qpid.policy_type": "ring", "qpid.max_count": 5}


def broker_with(settings: NodeSettings) -> PairedBroker:
    return PairedBroker(ContainerSettings("test", "0", nodes=settings))


def sender(client: PairedClient, address: str | None, *capabilities: str, properties: Arguments | None = None) -> Any:
    """A publisher's link, whose attach has been answered."""
    link = client.session.sender(f"to {address} {capabilities}")
    link.target.address = address
    if capabilities:
        link.target.capabilities.put_object(symbols(*capabilities))
    if properties:
        link.target.properties.put_dict({proton.symbol(name): value for name, value in properties.items()})
    return client.attach(link)


def of_priorities(priorities: Iterable[int]) -> list[proton.Message]:
    return [proton.Message(f"{number}: {priority}", priority=priority) for number, priority in enumerate(priorities)]


def read(client: PairedClient, address: str) -> list[str]:
    link = subscribe(client, address, capabilities=("queue",))
    link.flow(100)
    client.broker.settle_down()
    return [message.body for _, message in client.received(link)]


def arguments_of(broker: PairedBroker, name: str) -> Mapping[str, Scalar]:
    return broker.container.default.resources.catalog.queues[name].arguments.given


@pytest.mark.parametrize("is_made_by", ["publisher", "consumer"])
def test_a_queue_that_jms_makes_gives_the_highest_priority_first_and_each_in_order(is_made_by: str) -> None:
    broker = PairedBroker()
    client = broker.connect()
    if is_made_by == "publisher":
        sender(client, "q", "queue")
    else:
        subscribe(client, "q", capabilities=("queue",))
    assert arguments_of(broker, "q") == TEN
    client.publish("q", *of_priorities([4, 0, 9, 4, 5, 9, 3]), proton.Message("of the default"))
    expected = ["2: 9", "5: 9", "4: 5", "0: 4", "3: 4", "of the default", "6: 3", "1: 0"]
    assert read(broker.connect(), "q") == expected


def test_an_anonymous_producer_of_jms_makes_such_a_queue() -> None:
    broker = PairedBroker()
    client = broker.connect()
    relay = sender(client, None)
    for kind, name in ((0, "q"), (None, "plain")):
        message = proton.Message("x", address=name)
        if kind is not None:
            message.annotations = {proton.symbol("x-opt-jms-dest"): proton.byte(kind)}
        delivery = client.send(relay, message)
        broker.settle_down()
        assert delivery.remote_state == ACCEPTED
    assert (arguments_of(broker, "q"), arguments_of(broker, "plain")) == (TEN, {})


def test_a_temporary_queue_of_jms_has_levels_beside_its_limits() -> None:
    limits: dict[str, Scalar] = {"qpid.max_count": 10, "qpid.policy_type": "self-destruct"}
    broker = broker_with(NodeSettings(temporary_limits=limits))
    client = broker.connect()
    for name, capabilities in (("jms", ("temporary-queue",)), ("other", ())):
        link = subscribe(client, None, name, dynamic=True, capabilities=capabilities)
        given = {**limits, "qpid.auto_delete": True, **(TEN if capabilities else {})}
        assert arguments_of(broker, link.remote_source.address) == given


def test_others_make_queues_as_before_and_jms_leaves_those_that_are_there() -> None:
    broker = PairedBroker()
    client = broker.connect()
    sender(client, "q")
    sender(client, "queue://prefixed")
    assert arguments_of(broker, "q") == arguments_of(broker, "prefixed") == {}
    assert condition(sender(client, "q", "queue")) is None
    client.publish("q", *of_priorities([1, 9]))
    assert read(client, "q") == ["0: 1", "1: 9"]
    assert arguments_of(broker, "q") == {}


def test_what_is_said_of_priorities_by_the_client_a_rule_or_for_all_counts() -> None:
    rule = AddressRule("plain.{x}", NodeKind.QUEUE, "plain.{x}", arguments={"qpid.priorities": 1})
    for_all: dict[str, Scalar] = {"qpid.priorities": 2}
    broker = broker_with(NodeSettings(auto_create_arguments=for_all, address_rules=rules_in_force([rule])))
    client = broker.connect()
    sender(client, "q", "queue")
    sender(client, "plain.q", "queue")
    sender(client, "own", "queue", properties={"qpid.priorities": 5})
    priorities = [arguments_of(broker, name)["qpid.priorities"] for name in ("q", "plain.q", "own")]
    assert priorities == [2, 1, 5]


@pytest.mark.parametrize("arguments", [{"qpid.last_value_queue_key": "key"}, RING], ids=["last value", "ring"])
def test_what_goes_with_no_levels_is_made_as_before(arguments: dict[str, Scalar]) -> None:
    broker = broker_with(NodeSettings(auto_create_arguments=arguments))
    assert condition(sender(broker.connect(), "q", "queue")) is None
    assert arguments_of(broker, "q") == arguments


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"qpid.message_groups": True},
        {"qpid.single_active_consumer": True},
        {"qpid.max_count": 5, "qpid.policy_type": "self-destruct"},
        {"qpid.exclusive": True, "qpid.auto_delete": True},
        {"qpid.message_ttl_ms": 5},
        {"qpid.delivery_limit": 3, "qpid.alternate_exchange": "amq.fanout"},
        {"qpid.replicate": "none"},
        {"an application's own": "x"},
    ],
)
def test_whatever_else_a_queue_has_goes_with_levels(arguments: dict[str, Scalar]) -> None:
    broker = broker_with(NodeSettings(auto_create_arguments=arguments))
    assert condition(sender(broker.connect(), "q", "queue")) is None
    assert arguments_of(broker, "q") == {**arguments, **TEN}


def test_what_is_wrong_is_refused_as_before() -> None:
    for wrong in ({"qpid.fairshare": 3}, {"qpid.max_count": "many"}):
        assert with_levels(wrong) == wrong
    link = sender(PairedBroker().connect(), "q", "queue", properties={"qpid.fairshare": 3})
    assert condition(link) == "amqp:invalid-field"


def test_switched_off_queues_of_jms_are_as_all_others() -> None:
    broker = PairedBroker()
    client = broker.connect()
    sender(client, "before", "queue")
    settings = broker.container.settings
    broker.container.change_settings(settings.__class__("test", "0", nodes=NodeSettings(jms_priorities=False)))
    sender(client, "after", "queue")
    own = subscribe(client, None, "own", dynamic=True, capabilities=("temporary-queue",))
    assert (arguments_of(broker, "before"), arguments_of(broker, "after")) == (TEN, {})
    assert arguments_of(broker, own.remote_source.address) == {"qpid.auto_delete": True}


def test_groups_are_kept_together_and_given_level_by_level() -> None:
    broker = PairedBroker()
    client = broker.connect()
    sender(client, "q", "queue")
    messages = of_priorities([1, 1, 9])
    for message in messages:
        message.group_id = "g"
    client.publish("q", *messages)
    assert read(broker.connect(), "q") == ["2: 9", "0: 1", "1: 1"]


# --- other brokers


def test_the_primary_makes_levels_for_a_client_of_a_proxy() -> None:
    proxied = PairedProxy()
    client = proxied.client()
    for name, address, capability in (("q", "q", "queue"), ("own", None, "temporary-queue"), ("other", "plain", "")):
        link = subscribe(
            client, address, name, dynamic=address is None, capabilities=(capability,) if capability else ()
        )
        proxied.settle_down()
        given = dict(arguments_of(proxied.primary, link.remote_source.address))
        assert given.get("qpid.priorities", 0) == (10 if capability else 0)


class PlacingDirectory(ClusterDirectory):
    """Has queues put into a set, and remembers which."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: list[tuple[str, Arguments]] = []

    def place(self, queue_name: str, arguments: Arguments) -> NodeWait:
        """The controller does not answer."""
        self.placed.append((queue_name, arguments))
        return NodeWait("the controller has not answered")


def test_a_queue_that_belongs_to_another_set_is_placed_with_its_levels() -> None:
    broker = SeveralSets()
    directory = broker.directory = broker.container.directory = PlacingDirectory()
    broker.container.default.configuration.naming = NamingRules(spread=2)
    client = broker.connect()
    sender(client, "q", "queue")
    sender(client, "other")
    assert dict(directory.placed) == {"q": TEN, "other": {}}
