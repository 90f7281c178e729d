"""What happens at a broker comes to who watches it, at `qpid.events`, and from nobody but the broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import proton
import pytest

from access_support import controlled
from paired_engines import BROKER, PairedBroker, PairedClient
from paired_links import condition, status, subscribe
from paired_proxy import PairedProxy
from paired_transactions import PairedCoordinator
from qpid_ha_broker.access.rules import Permission, Subject
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    UNAUTHORIZED_ACCESS,
)
from qpid_ha_broker.amqp.wire.relay import RELAY_CAPABILITY, RelayRequest
from qpid_ha_broker.amqp.wire.values import value_of
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.exchanges.broker_events import EVENTS_ADDRESS, KEPT
from qpid_ha_broker.model.exchanges.broker_events import EventSubject as About
from qpid_ha_config.access_rules import parse_entries

QUEUE = "org.qpid_ha.queue"
KEY_FILTER = "apache.org:legacy-amqp-topic-binding:string"
SELECTOR = "apache.org:selector-filter:string"


def settle(broker: PairedBroker) -> None:
    """With the events of what was done: the driver takes them with the lines of the log."""
    broker.settle_down()
    broker.container.take_notices()
    broker.settle_down()


def told(client: PairedClient, link: Any) -> list[Any]:
    settle(client.broker)
    return [message for _, message in client.received(link)]


def subjects(client: PairedClient, link: Any) -> list[str]:
    return [str(message.subject) for message in told(client, link)]


def declare(broker: PairedBroker, *names: str) -> None:
    for name in names:
        broker.container.default.configuration.declare_queue(name, {})


def changed(rules: tuple[str, ...]) -> PairedBroker:
    """With rules in force."""
    broker = PairedBroker()
    broker.container.access.change(parse_entries(rules).rules, "")
    return broker


def test_an_event_is_a_message_of_its_own_that_is_not_durable_and_names_all_there_is_to_say() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = client.receiver(EVENTS_ADDRESS, 10)
    declare(broker, "orders")
    (message,) = told(client, link)
    assert message.subject == "queue.created"
    assert not message.durable
    assert message.body is None
    assert message.creation_time == pytest.approx(broker.container.steady.wall_ms() / 1000)
    assert message.properties == {
        "broker": "test",
        "number": 2,  # the first was this client's connection
        "name": "orders",
        "set": "default",
        "temporary": False,
    }


def test_queues_exchanges_bindings_and_connections_are_told_of_as_they_come_and_go() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = client.receiver(EVENTS_ADDRESS, 100)
    configuration = broker.container.default.configuration
    declare(broker, "q")
    configuration.update_queue("q", {"qpid.max_count": 3})
    configuration.declare_exchange("x", "topic", {})
    configuration.bind("x", "q", "a.*", {})
    configuration.unbind("x", "q", "a.*")
    configuration.delete_exchange("x")
    configuration.delete_queue("q")
    other = broker.connect()
    other.connection.close()
    assert subjects(client, link) == [
        "connection.opened",
        "connection.closed",
        "queue.created",
        "queue.changed",
        "exchange.created",
        "binding.created",
        "binding.deleted",
        "exchange.deleted",
        "queue.deleted",
    ]


def test_a_connection_is_told_of_with_whose_it_is_and_how_it_ended() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = client.receiver(f"{EVENTS_ADDRESS}/connection.*", 10)
    alice = PairedClient(broker, container="shop", user="alice")
    broker.settle_down()
    alice.vanish()
    opened, closed = told(client, link)
    facts = {"user": "alice", "container": "shop", "peer": "127.0.0.1:1", "administration": False}
    assert opened.properties == {**opened.properties, **facts}
    assert closed.properties == {**closed.properties, **facts, "ending": "lost", "reason": ""}


@pytest.mark.parametrize("address", [f"{EVENTS_ADDRESS}/queue.*", EVENTS_ADDRESS])
def test_a_pattern_of_subjects_stands_in_the_address_or_in_a_filter(address: str) -> None:
    broker = PairedBroker()
    client = broker.connect()
    filters = {"key": (KEY_FILTER, "queue.*")} if address == EVENTS_ADDRESS else None
    link = subscribe(client, address, filters=filters, capabilities=("topic",))
    link.flow(10)
    broker.connect()
    broker.container.default.configuration.declare_exchange("x", "topic", {})
    declare(broker, "orders")
    assert subjects(client, link) == ["queue.created"]
    assert link.remote_source.address == address
    assert (value_of(link.remote_source.filter) is None) == (filters is None)


def test_a_selector_is_applied() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = subscribe(client, EVENTS_ADDRESS, filters={"s": (SELECTOR, "name = 'b' AND JMSType LIKE 'queue.%'")})
    link.flow(10)
    declare(broker, "a", "b", "c")
    assert [message.properties["name"] for message in told(client, link)] == ["b"]


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"address": f"{EVENTS_ADDRESS}/queues.*"}, INVALID_FIELD),
        ({"address": EVENTS_ADDRESS, "capabilities": ("queue",)}, PRECONDITION_FAILED),
        ({"address": EVENTS_ADDRESS, "capabilities": ("shared",)}, NOT_IMPLEMENTED),
    ],
)
def test_what_nobody_could_get_is_refused_and_not_waited_for(asked: dict[str, Any], refusal: str) -> None:
    assert condition(subscribe(PairedBroker().connect(), **asked)) == refusal


def test_nothing_outlives_the_link_and_the_answer_says_so() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = subscribe(client, EVENTS_ADDRESS, durable=True)
    assert link.remote_source.durability == proton.Terminus.NONDURABLE
    assert link.remote_source.expiry_policy == proton.Terminus.EXPIRE_WITH_LINK
    assert link.remote_snd_settle_mode == proton.Link.SND_SETTLED
    assert not broker.container.default.resources.catalog.queues


@pytest.mark.parametrize("ends", [lambda client, link: link.close(), lambda client, link: client.vanish()])
def test_nobody_is_told_any_more_when_the_link_has_ended(ends: Callable[[PairedClient, Any], object]) -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = client.receiver(f"{EVENTS_ADDRESS}/queue.*", 10)
    broker.container.notices.events.tell(About.QUEUE_CREATED, name="unread")
    ends(client, link)
    broker.settle_down()
    broker.container.notices.events.tell(About.QUEUE_CREATED, name="later")
    assert not broker.container.notices.events.has_due
    broker.container.notices.events.check_invariants()


def test_a_backup_tells_of_itself() -> None:
    broker = PairedBroker()
    broker.container.default.read_only = True
    marked = PairedClient(broker, {"qpid.ha-admin": True})
    broker.settle_down()
    link = marked.receiver(EVENTS_ADDRESS, 10)
    broker.container.notices.events.tell(About.BROKER_STATE, state="primary")
    assert subjects(marked, link) == ["broker.state"]


def test_nothing_is_written_to_a_log_for_who_watches() -> None:
    broker = PairedBroker()
    before = broker.container.default.resources.sets.log_ends
    broker.connect().receiver(EVENTS_ADDRESS, 10)
    for _ in range(5):
        broker.connect().connection.close()
    settle(broker)
    assert broker.container.default.resources.sets.log_ends == before


def test_a_drain_is_answered_when_all_that_was_there_is_told() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = client.receiver(EVENTS_ADDRESS)
    declare(broker, "a")
    settle(broker)
    link.drain(10)
    assert subjects(client, link) == ["queue.created"]
    assert link.credit == 0


# --- who may


@pytest.mark.parametrize(
    "rules",
    [
        ("allow all all",),
        ("allow all all qpid.events", "allow all administer"),
        ("allow all monitor qpid.events/queue.*",),
        ("deny all monitor qpid.events/connection.*", "allow all monitor"),
    ],
)
def test_who_has_no_permission_for_it_hears_nothing_of_others(rules: tuple[str, ...]) -> None:
    assert condition(changed(rules).connect().receiver(EVENTS_ADDRESS, 10)) == UNAUTHORIZED_ACCESS


@pytest.mark.parametrize(
    "rules", [("allow all monitor",), ("allow all monitor qpid.events",), ("allow all monitor qpid.events/queue.*",)]
)
def test_who_is_allowed_a_part_gets_that_part(rules: tuple[str, ...]) -> None:
    broker = changed(rules)
    client = broker.connect()
    link = client.receiver(f"{EVENTS_ADDRESS}/queue.*", 10)
    declare(broker, "orders")
    assert subjects(client, link) == ["queue.created"]


def test_a_link_ends_when_the_rules_do_not_allow_it_any_more() -> None:
    broker = changed(("allow all monitor",))
    link = broker.connect().receiver(EVENTS_ADDRESS, 10)
    broker.container.access.change(parse_entries(("allow all all",)).rules, "")
    assert broker.connections.check_access() == 1
    broker.settle_down()
    assert condition(link) == UNAUTHORIZED_ACCESS


def test_acl_check_knows_the_permission_and_the_part() -> None:
    access, subject = controlled("allow ada monitor qpid.events/queue.*"), Subject("ada", is_local=False)
    nodes = PairedBroker().container.nodes
    assert access.decide(subject, Permission.MONITOR, *nodes.access_by_name("qpid.events/queue.created")).is_allowed
    assert not access.decide(subject, Permission.MONITOR, *nodes.access_by_name("qpid.events")).is_allowed


# --- nobody else tells


def forged(**fields: Any) -> proton.Message:
    return proton.Message(subject="broker.state", properties={"state": "primary"}, **fields)


@pytest.mark.parametrize("rules", [(), ("allow all all,monitor,administer",)])
def test_nobody_publishes_there_whichever_way(rules: tuple[str, ...]) -> None:
    broker = changed(rules) if rules else PairedBroker()
    watching, stranger = broker.connect(), broker.connect()
    link = watching.receiver(EVENTS_ADDRESS, 100)
    for address in (EVENTS_ADDRESS, f"{EVENTS_ADDRESS}/broker.state"):
        refused = stranger.sender(address)
        assert condition(refused) == UNAUTHORIZED_ACCESS
        assert "add `allow" not in str(refused.remote_condition.description)
        (relayed,) = stranger.send_all(stranger.sender(None), forged(address=address))
        assert relayed.remote_state == proton.Delivery.REJECTED
    coordinator, any_node = PairedCoordinator(stranger), stranger.sender(None)
    transaction = coordinator.declare()
    delivery = stranger.send(any_node, forged(address=EVENTS_ADDRESS))
    delivery.local.data = [transaction]
    delivery.update(0x34)
    broker.settle_down()
    coordinator.discharge(transaction)
    alternate = {"arguments": {"qpid.alternate_exchange": EVENTS_ADDRESS}}
    assert status(stranger, "CREATE", alternate, type=QUEUE, name="dead") != 201
    assert subjects(watching, link) == []


def test_no_queue_or_exchange_takes_the_address() -> None:
    configuration = PairedBroker().container.default.configuration
    for name in (EVENTS_ADDRESS, f"{EVENTS_ADDRESS}/queue.created"):
        with pytest.raises(InvalidArgument, match="use another name"):
            configuration.declare_queue(name, {})
        with pytest.raises(InvalidArgument, match="use another name"):
            configuration.declare_exchange(name, "topic", {})


# --- slow readers, and storms


def test_who_gives_no_credit_is_told_with_the_next_event_how_many_are_lost() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = client.receiver(f"{EVENTS_ADDRESS}/connection.opened")
    for number in range(KEPT + 7):
        broker.container.notices.events.tell(About.CONNECTION_OPENED, container=f"c{number}")
    broker.settle_down()
    link.flow(2)
    first, second = told(client, link)
    assert (first.properties["container"], first.properties["lost"]) == ("c7", 7)
    assert "lost" not in second.properties


def test_who_does_not_read_its_socket_has_no_more_in_memory_than_others() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = client.receiver(EVENTS_ADDRESS, 100_000)
    client.peer.window.pause()
    for number in range(5 * KEPT):
        broker.container.notices.events.tell(About.QUEUE_CREATED, name=f"q{number}")
        broker.turn()
    assert link.queued == 0
    client.peer.window.resume()
    messages = told(client, link)
    assert len(messages) == KEPT
    assert messages[0].properties["lost"] == 4 * KEPT


def test_a_storm_of_connections_is_told_in_portions_between_which_others_have_their_turns() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = client.receiver(EVENTS_ADDRESS, 100_000)
    for number in range(10_000):
        broker.container.notices.events.tell(About.CONNECTION_OPENED, container=f"c{number}")
    broker.turn()
    client.exchange()
    in_a_turn = len(client.received(link))
    assert 0 < in_a_turn < KEPT / 2
    assert broker.container.has_work
    assert len(told(client, link)) == KEPT - in_a_turn


def test_where_nobody_reads_a_turn_has_nothing_to_do_for_it() -> None:
    broker = PairedBroker()
    broker.connect()
    declare(broker, "q")
    settle(broker)
    assert not broker.container.has_work


def test_memory_that_is_short_is_an_alarm_until_there_is_room_again() -> None:
    broker = PairedBroker(ContainerSettings("test", "0", memory_limit_bytes=10_000))
    watching, publisher = broker.connect(), broker.connect()
    link = watching.receiver(f"{EVENTS_ADDRESS}/alarm.*", 10)
    publisher.publish("q", proton.Message(b"x" * 20_000))
    publisher.sender("q", "one-more")
    (raised,) = told(watching, link)
    assert (raised.subject, raised.properties["alarm"]) == ("alarm.raised", "memory")
    taken = publisher.receiver("q", 1)
    ((delivery, _),) = publisher.received(taken)
    delivery.update(proton.Delivery.ACCEPTED)
    delivery.settle()
    assert subjects(watching, link) == ["alarm.cleared"]


# --- other brokers


def test_a_proxy_answers_itself_and_tells_of_itself() -> None:
    pair = PairedProxy()
    client = pair.client()
    link = client.receiver(EVENTS_ADDRESS, 10)
    pair.primary.container.default.configuration.declare_queue("at-the-primary", {})
    pair.primary.container.take_notices()
    pair.client(container="another")
    pair.settle_down()
    (message,) = [message for _, message in client.received(link)]
    assert (message.properties["broker"], message.properties["container"]) == ("proxy", "another")
    assert not pair.links


def test_an_older_proxy_that_asks_for_its_client_is_told_where_the_events_are_read() -> None:
    broker = PairedBroker()
    proxy = PairedClient(broker, BROKER, (RELAY_CAPABILITY,))
    link = proxy.session.receiver("far")
    link.source.address = EVENTS_ADDRESS
    link.properties = RelayRequest(("older",), "client", address="127.0.0.1:9").properties()
    proxy.attach(link)
    assert condition(link) == NOT_IMPLEMENTED
    assert "connect to this one" in str(link.remote_condition.description)


def test_the_page_for_operators_names_each_subject_and_no_other() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    _, _, part = page.partition("## What happens, as messages")
    assert re.findall(r"^\| `([a-z-]+\.[a-z]+)`", part.partition("\n## ")[0], re.MULTILINE) == list(About)
