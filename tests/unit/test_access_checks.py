"""What a client may do is asked wherever it does something: a table of operations, each tried with each permission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from paired_engines import BROKER, PairedBroker, PairedClient
from paired_links import condition, status, subscribe
from paired_proxy import PairedProxy
from paired_transactions import PairedCoordinator, publish
from qpid_ha_broker.access.rules import Permission
from qpid_ha_broker.amqp.wire.conditions import UNAUTHORIZED_ACCESS
from qpid_ha_broker.amqp.wire.relay import RELAY_CAPABILITY, RelayRequest
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_config.access_rules import parse_entries

UNAUTHORIZED = 401


def put_in_force(broker: PairedBroker, *rules: str) -> None:
    broker.container.access.change(parse_entries(rules).rules, "")
    broker.connections.check_access()
    broker.settle_down()


def is_attached(link: Any) -> bool:
    assert condition(link) in (None, UNAUTHORIZED_ACCESS)
    return condition(link) is None


def publishes(address: str) -> Callable[[PairedClient], bool]:
    return lambda client: is_attached(client.sender(address))


def subscribes(address: str, **asked: Any) -> Callable[[PairedClient], bool]:
    return lambda client: is_attached(subscribe(client, address, **asked))


def browses(client: PairedClient) -> bool:
    link: Any = client.session.receiver("browser")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.open()
    client.broker.settle_down()
    return is_attached(link)


def relays(address: str) -> Callable[[PairedClient], bool]:
    def operation(client: PairedClient) -> bool:
        link = client.sender(None)
        delivery = client.send(link, proton.Message("x", address=address))
        client.broker.settle_down()
        return bool(delivery.remote_state == proton.Delivery.ACCEPTED)

    return operation


def relays_in_a_transaction(client: PairedClient) -> bool:
    before = client.broker.queue("q").messages.count
    coordinator, link = PairedCoordinator(client), client.sender(None)
    transaction = coordinator.declare()
    delivery = client.send(link, proton.Message("x", address="q"))
    delivery.local.data = [transaction]
    delivery.update(0x34)
    client.broker.settle_down()
    coordinator.discharge(transaction)
    return client.broker.queue("q").messages.count > before


def publishes_in_a_transaction(client: PairedClient) -> bool:
    coordinator, link = PairedCoordinator(client), client.sender("q")
    if not is_attached(link):
        return False
    transaction = coordinator.declare()
    publish(client, link, transaction, "x")
    coordinator.discharge(transaction)
    return client.broker.queue("q").messages.count > 0


def asks_for_a_temporary_queue(client: PairedClient) -> bool:
    return is_attached(subscribe(client, None, dynamic=True))


def manages(operation: str, body: Any = None, **properties: Any) -> Callable[[PairedClient], bool]:
    return lambda client: status(client, operation, body, **properties) != UNAUTHORIZED


def opens_marked(client: PairedClient) -> bool:
    marked = PairedClient(client.broker, {"qpid.ha-admin": True})
    client.broker.settle_down()
    return marked.connection.remote_condition is None


def relays_for_others(client: PairedClient) -> bool:
    """As another broker would, for a client that may publish."""
    properties = {**BROKER, "qpid.ha-proof": "guessed"}
    proxy = PairedClient(client.broker, properties, (RELAY_CAPABILITY,))
    client.broker.settle_down()
    if proxy.connection.remote_condition is not None:
        return False
    link: Any = proxy.session.sender("relayed")
    link.target.address = "q"
    link.properties = RelayRequest(("proxy",), "client", user="trusted").properties()
    link.open()
    client.broker.settle_down()
    return is_attached(link)


QUEUE, EXCHANGE, BINDING = "org.qpid_ha.queue", "org.qpid_ha.exchange", "org.qpid_ha.binding"
BOUND = {"exchange": "amq.topic", "queue": "q", "key": "k"}
Operation = Callable[[PairedClient], bool]
TABLE: dict[str, tuple[Operation, set[str]]] = {
    "attach a publisher to a queue": (publishes("q"), {"publish"}),
    "attach a publisher to an exchange": (publishes("amq.topic"), {"publish"}),
    "attach a publisher to an exchange with a key": (publishes("amq.topic/k"), {"publish"}),
    "send to a queue by an anonymous relay": (relays("q"), {"publish"}),
    "send to an exchange by an anonymous relay": (relays("amq.fanout"), {"publish"}),
    "send by an anonymous relay in a transaction": (relays_in_a_transaction, {"publish"}),
    "publish in a transaction": (publishes_in_a_transaction, {"publish"}),
    "attach a consumer": (subscribes("q"), {"consume"}),
    "subscribe to an exchange": (subscribes("amq.topic"), {"consume"}),
    "read what happens at the broker": (subscribes("qpid.events"), {"monitor"}),
    "subscribe to an exchange with a key": (subscribes("amq.topic/k"), {"consume"}),
    "subscribe durably": (subscribes("amq.topic", durable=True), {"consume"}),
    "browse": (browses, {"browse"}),
    "have a temporary queue": (asks_for_a_temporary_queue, {"create"}),
    "CREATE a queue": (manages("CREATE", {}, type=QUEUE, name="new"), {"create"}),
    "CREATE an exchange": (manages("CREATE", {"kind": "fanout"}, type=EXCHANGE, name="new"), {"create"}),
    "DELETE a queue": (manages("DELETE", type=QUEUE, name="q"), {"delete"}),
    "DELETE an exchange": (manages("DELETE", type=EXCHANGE, name="x"), {"delete"}),
    "PURGE": (manages("PURGE", type=QUEUE, name="q"), {"purge"}),
    "ACCEPT": (manages("ACCEPT", type=QUEUE, name="q", id=1), {"consume"}),
    "UPDATE": (manages("UPDATE", {"arguments": {}}, type=QUEUE, name="q"), {"manage"}),
    "READ a queue": (manages("READ", type=QUEUE, name="q"), {"manage"}),
    "READ an exchange": (manages("READ", type=EXCHANGE, name="x"), {"manage"}),
    "READ a binding": (manages("READ", type=BINDING, name="amq.topic/q/k"), {"manage"}),
    "QUERY": (manages("QUERY", {}), {"manage"}),
    "MEASURE": (manages("MEASURE", type=QUEUE, name="q"), {"browse"}),
    "LOCATE": (manages("LOCATE", type=QUEUE, name="q", timestamp=1), {"browse"}),
    "TIMES": (manages("TIMES", type=QUEUE, name="q"), {"browse"}),
    "bind": (manages("CREATE", BOUND, type=BINDING), {"bind"}),
    "unbind": (manages("DELETE", type=BINDING, name="amq.topic/q/k"), {"bind"}),
    "mark the connection": (opens_marked, {"administer", "replicate"}),
    "relay for clients, without being a broker": (relays_for_others, set()),
}


@pytest.mark.parametrize("name", TABLE)
def test_an_operation_is_for_who_has_its_permission_and_nobody_else(name: str) -> None:
    operation, needed = TABLE[name]
    for action in Permission:
        broker = PairedBroker()
        broker.container.default.configuration.declare_queue("q", {})
        put_in_force(broker, "allow trusted publish", f"allow anonymous {action.value}", "deny all all")
        assert operation(broker.connect()) is (action.value in needed), f"{name} with {action.value}"


def test_every_action_is_in_the_table() -> None:
    assert set().union(*(needed for _, needed in TABLE.values())) == {action.value for action in Permission}


def test_every_operation_on_entities_has_an_action() -> None:
    for entity in PairedBroker().container.management._types.values():
        assert set(entity.operations) == set(entity.actions)


def test_what_attaching_makes_has_to_be_allowed_beside_its_use() -> None:
    for rules, is_made in ((("allow all publish",), False), (("allow all publish,create new",), True)):
        broker = PairedBroker()
        put_in_force(broker, *rules)
        assert is_attached(broker.connect().sender("new")) is is_made
        assert ("new" in broker.container.default.resources.catalog.queues) is is_made


SOURCE, PROXY = "amqp://partner/their-orders", "amqp://partner/orders"
MOVING: dict[str, tuple[str, str, set[str]]] = {
    "dead letters": ("qpid.alternate_exchange", "amq.fanout", {"publish"}),
    "a queue that is filled from another broker": ("qpid.cluster.source", SOURCE, {"consume"}),
    "a queue that stands for another broker's node": ("qpid.cluster.proxy", PROXY, {"publish", "consume"}),
}
"""Arguments by which a queue moves messages by itself, and what is needed for the node that they name."""


@pytest.mark.parametrize("name", MOVING)
def test_who_may_make_queues_has_none_move_messages_past_his_permissions(name: str) -> None:
    argument, node, needed = MOVING[name]
    own = "allow all create,manage,publish,consume mine*"
    for allowed in (set(), *({each} for each in sorted(needed)), needed):
        broker = PairedBroker()
        broker.container.default.configuration.declare_queue("mine", {})
        rules = [f"allow all {each} {node}" for each in sorted(allowed)]
        put_in_force(broker, own, "allow all create temporary.", "allow all consume amq.topic", *rules)
        client = broker.connect()
        is_let = allowed == needed
        body = {"arguments": {argument: node}}
        for operation, queue in (("CREATE", "mine.1"), ("UPDATE", "mine")):
            assert (status(client, operation, body, type=QUEUE, name=queue) != UNAUTHORIZED) is is_let
        asked: dict[str, Any] = {"properties": {argument: node}}
        links = [
            subscribe(client, "mine.2", "made", **asked),
            subscribe(client, None, "dynamic", dynamic=True, **asked),
            subscribe(client, "amq.topic", "subscriber", **asked),
            subscribe(client, "amq.topic", "durable", durable=True, **asked),
        ]
        assert [condition(link) != UNAUTHORIZED_ACCESS for link in links] == [is_let] * 4
        plain = subscribe(client, None, "without", dynamic=True)
        assert is_attached(plain)


def test_a_binding_needs_both_of_its_ends() -> None:
    for rules, is_bound in ((("allow all bind q",), False), (("allow all bind q", "allow all bind amq.*"), True)):
        broker = PairedBroker()
        broker.container.default.configuration.declare_queue("q", {})
        put_in_force(broker, *rules)
        assert manages("CREATE", BOUND, type=BINDING)(broker.connect()) is is_bound


def test_a_reply_of_management_is_no_way_into_a_queue() -> None:
    broker = PairedBroker()
    queue = broker.container.default.configuration.declare_queue("q", {})
    client = broker.connect()
    for rules, count in ((("allow all manage",), 0), (("allow all manage,publish",), 1)):
        put_in_force(broker, *rules)
        requests = client.sender("$management")
        client.send(requests, proton.Message(reply_to="q", properties={"operation": "QUERY"}))
        broker.settle_down()
        assert queue.messages.count == count


def test_a_subscription_is_not_resumed_by_who_may_not_consume_any_more() -> None:
    broker = PairedBroker()
    link = subscribe(broker.connect(), "amq.topic", "kept", durable=True)
    link.detach()
    broker.settle_down()
    put_in_force(broker, "deny all consume amq.topic")
    again: Any = PairedClient(broker, container="client-0").session.receiver("kept")
    again.source.type = proton.Terminus.UNSPECIFIED
    again.open()
    broker.settle_down()
    assert condition(again) == UNAUTHORIZED_ACCESS


def test_other_rules_end_what_they_do_not_allow_and_nothing_else() -> None:
    broker = PairedBroker()
    client = broker.connect()
    publisher, consumer, relay = client.sender("q"), client.receiver("q"), client.sender(None)
    marked = PairedClient(broker, {"qpid.ha-admin": True})
    broker.settle_down()
    put_in_force(broker, "allow all publish")
    assert [condition(link) for link in (publisher, consumer, relay)] == [None, UNAUTHORIZED_ACCESS, None]
    refusal: Any = marked.connection.remote_condition
    assert refusal.name == UNAUTHORIZED_ACCESS
    put_in_force(broker, "deny all all")
    delivery = client.send(relay, proton.Message("x", address="q"))
    broker.settle_down()
    assert condition(publisher) == UNAUTHORIZED_ACCESS
    assert delivery.remote_state == proton.Delivery.REJECTED
    assert delivery.remote.condition.name == UNAUTHORIZED_ACCESS


def test_a_backup_is_browsed_by_who_may() -> None:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("q", {})
    broker.container.default.read_only = True
    for rules, may in ((("allow all consume,publish",), False), (("allow all browse q",), True)):
        put_in_force(broker, *rules)
        assert browses(broker.connect()) is may


@pytest.mark.parametrize("at_proxy", [True, False])
def test_a_relayed_link_needs_permission_at_both_brokers(at_proxy: bool) -> None:
    pair = PairedProxy()
    pair.primary.container.default.configuration.declare_queue("q", {})
    strict = pair.proxy if at_proxy else pair.primary
    strict.container.access.change(parse_entries(["allow all replicate", "deny all publish,consume"]).rules, "")
    client = pair.client()
    links = [client.session.sender("to-q"), client.session.receiver("from-q")]
    for link, terminus in zip(links, (links[0].target, links[1].source), strict=True):
        terminus.address = "q"
        link.open()
    anonymous = client.session.sender("to-any")
    anonymous.open()
    pair.settle_down()
    delivery = client.send(anonymous, proton.Message("x", address="q"))
    pair.settle_down()
    assert [condition(link) for link in links] == [UNAUTHORIZED_ACCESS, UNAUTHORIZED_ACCESS]
    assert delivery.remote_state == proton.Delivery.REJECTED
    assert delivery.remote.condition.name == UNAUTHORIZED_ACCESS
    assert pair.primary.queue("q").messages.count == 0
    assert pair.primary.container.access.denied.total() == (0 if at_proxy else 3)
    assert pair.primary.container.default.name == DEFAULT_SET


def test_messages_of_a_relay_are_asked_for_once_for_each_address() -> None:
    broker = PairedBroker()
    put_in_force(broker, "allow all publish,create")
    asked = []
    access = broker.container.access
    decide = access._decide
    access._decide = lambda *question: asked.append(question) or decide(*question)  # type: ignore
    client = broker.connect()
    link = client.sender(None)
    for _ in range(100):
        client.send(link, proton.Message("x", address="q"))
    broker.settle_down()
    assert broker.queue("q").messages.count == 100
    assert [str(access.action.value) for (access,) in asked] == ["publish", "create"]
