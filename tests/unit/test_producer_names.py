"""A producer's name belongs to the user, and the session, that numbers by it: others can neither use nor learn it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import proton
import pytest
from proton import Delivery

from paired_engines import PairedBroker, PairedClient, queued_bodies
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.connections.connection_facts import connection_rows
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.queue_messages import QueueMessages
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, RESOURCE_LIMIT, UNAUTHORIZED_ACCESS
from qpid_ha_broker.amqp.wire.sections import without_number
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.session_messages import bodies_of
from session_clients import PRODUCER, SEQUENCE, confirmed, consume, numbered, open_session, publish
from session_support import FIRST, SECOND

MOST = (1 << 63) - 1
FEW = replace(ContainerSettings("test", "0"), producers=4)


def client_of(broker: PairedBroker, user: str, container: str = "c") -> PairedClient:
    client = PairedClient(broker, container=container, user=user)
    broker.settle_down()
    return client


def offer(client: PairedClient, link: Any, number: int, name: str = "orders", body: str = "") -> Any:
    message: Any = proton.Message(body or f"{name}{number}")
    message.annotations = {PRODUCER: name, SEQUENCE: proton.ulong(number)}
    delivery = client.send(link, message)
    client.broker.settle_down()
    return delivery


def is_accepted(delivery: Any) -> bool:
    assert delivery.remote_state in (Delivery.ACCEPTED, Delivery.REJECTED)
    return bool(delivery.remote_state == Delivery.ACCEPTED)


def test_a_name_that_another_user_says_counts_for_that_user_alone(broker: PairedBroker) -> None:
    alice, mallory = client_of(broker, "alice"), client_of(broker, "mallory")
    orders, own = alice.sender("orders"), mallory.sender("own")
    assert is_accepted(offer(mallory, own, MOST))
    assert [is_accepted(offer(alice, orders, number)) for number in (1, 2, 2)] == [True] * 3
    assert queued_bodies(broker.queue("orders")) == ["orders1", "orders2"]


def test_a_user_is_known_again_whether_connected_to_the_primary_or_to_a_proxy() -> None:
    proxied = PairedProxy()
    near, direct = proxied.client(user="alice"), client_of(proxied.primary, "alice")
    assert is_accepted(offer(near, near.sender("q"), 7))
    assert is_accepted(offer(direct, direct.sender("q"), 7))
    assert queued_bodies(proxied.queue("q")) == ["orders7"]


def test_a_client_cannot_say_the_name_by_which_a_proxy_numbers_for_another_client() -> None:
    proxied = PairedProxy()
    alice, mallory = proxied.client(user="alice"), client_of(proxied.primary, "mallory")
    out = alice.sender("q")
    for name in ("proxy/1", "proxy/2"):
        offer(mallory, mallory.sender("own"), MOST, name)
    alice.send(out, proton.Message("a"))
    proxied.settle_down()
    assert queued_bodies(proxied.queue("q")) == ["a"]


def test_a_number_far_ahead_is_refused_and_changes_nothing(broker: PairedBroker) -> None:
    alice = client_of(broker, "alice")
    link = alice.sender("orders")
    offer(alice, link, 1)
    too_high = offer(alice, link, MOST)
    assert too_high.remote_state == Delivery.REJECTED
    assert too_high.remote.condition.name == INVALID_FIELD
    assert "further ahead of the last one of its producer, 1," in too_high.remote.condition.description
    assert [is_accepted(offer(alice, link, number)) for number in (2, 2 + (1 << 48))] == [True, True]
    assert queued_bodies(broker.queue("orders")) == ["orders1", "orders2", f"orders{2 + (1 << 48)}"]


def test_names_that_a_user_invents_push_out_only_names_of_that_user() -> None:
    broker = PairedBroker(FEW)
    alice, mallory = client_of(broker, "alice"), client_of(broker, "mallory")
    orders, other, own = alice.sender("orders"), alice.sender("orders"), mallory.sender("own")
    offer(alice, orders, 1, "orders")
    offer(alice, other, 1, "other")
    for name in range(20):
        assert is_accepted(offer(mallory, own, 1, f"invented{name}"))
    other.close()
    broker.settle_down()
    assert is_accepted(offer(alice, orders, 1, "other"))
    assert queued_bodies(broker.queue("orders")) == ["orders1", "other1"]


def test_a_name_by_which_a_link_numbers_is_not_pushed_out_by_others_of_its_user(broker: PairedBroker) -> None:
    broker.container.default.resources.deduplication.producers = 4
    alice = client_of(broker, "alice")
    orders, other = alice.sender("orders"), alice.sender("own")
    offer(alice, orders, 1)
    for name in range(20):
        assert is_accepted(offer(alice, other, 1, f"invented{name}"))
    offer(alice, orders, 1)
    assert queued_bodies(broker.queue("orders")) == ["orders1"]
    _follows_from_its_events(broker)


def test_a_session_that_waits_for_its_client_keeps_its_names(broker: PairedBroker) -> None:
    broker.container.default.resources.deduplication.producers = 4
    first = open_session(broker, user="alice")
    for number in (1, 2):
        first.send(publish(first, "orders", f"out{number}"), numbered(1, link=f"out{number}"))
        broker.settle_down()
    first.vanish()
    other = client_of(broker, "alice")
    link = other.sender("own")
    for name in range(20):
        offer(other, link, 1, f"invented{name}")
    again = open_session(broker, user="alice")
    assert [confirmed(publish(again, "orders", f"out{number}")) for number in (1, 2)] == [1, 1]


def test_where_most_names_are_at_work_a_new_one_is_refused() -> None:
    broker = PairedBroker(FEW)
    alice = client_of(broker, "alice")
    links = [alice.sender("orders") for _ in range(5)]
    assert [is_accepted(offer(alice, link, 1, f"name{at}")) for at, link in enumerate(links)] == [True] * 4 + [False]
    refused = offer(alice, links[4], 1, "name4")
    assert refused.remote.condition.name == RESOURCE_LIMIT
    for link in links[:3]:
        link.close()
    broker.settle_down()
    assert is_accepted(offer(alice, links[4], 1, "name4"))


def _follows_from_its_events(broker: PairedBroker) -> None:
    """A backup that has read the log knows the same names."""
    source = broker.container.default.resources.replicated
    source.state.producers.check_invariants(source.log.last_lsn)
    backup = Resources(broker.container.sections)
    for lsn, event in source.state.producers.events():
        backup.replicated.state.apply(lsn, event)
    assert backup.replicated.state.producers.items() == source.state.producers.items()


# --- sessions


def test_a_name_of_a_session_that_lives_is_for_links_of_that_session(broker: PairedBroker) -> None:
    first, stranger, second = open_session(broker), broker.connect(), open_session(broker, SECOND)
    out = publish(first, "orders")
    for other in (stranger, second):
        refused = offer(other, other.sender("own"), MOST, f"{FIRST}/out")
        assert refused.remote_state == Delivery.REJECTED
        assert refused.remote.condition.name == UNAUTHORIZED_ACCESS
        assert FIRST not in refused.remote.condition.description
    first.send(out, numbered(1))
    broker.settle_down()
    assert queued_bodies(broker.queue("orders")) == ["m1"]


def test_what_is_in_doubt_of_a_session_that_is_over_may_be_sent_again_in_a_new_one(broker: PairedBroker) -> None:
    first = open_session(broker)
    first.send(publish(first, "orders"), numbered(1))
    broker.settle_down()
    first.connection.close()
    broker.settle_down()
    second = open_session(broker, SECOND)
    second.send(publish(second, "orders"), numbered(1))
    broker.settle_down()
    assert queued_bodies(broker.queue("orders")) == ["m1"]


# --- who is told of names


@pytest.mark.parametrize("browsing", [False, True])
@pytest.mark.parametrize("more", [{}, {"x-opt-jms-dest": "y"}])
def test_consumers_and_browsers_are_not_told_the_number_and_get_the_rest(
    broker: PairedBroker, browsing: bool, more: dict[str, str]
) -> None:
    client = broker.connect()
    message: Any = proton.Message("x", durable=True, subject="s", properties={"p": 1})
    message.annotations = {PRODUCER: "secret", SEQUENCE: proton.ulong(1), **more}
    client.publish("q", message)
    link: Any = client.session.receiver("in")
    link.source.address = "q"
    if browsing:
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    client.attach(link, 10)
    ((_, came),) = client.received(link)
    assert (came.body, came.subject, came.properties, came.annotations or {}) == ("x", "s", {"p": 1}, more)


def test_a_consumer_of_a_session_and_a_redelivery_are_not_told_either(broker: PairedBroker) -> None:
    client = open_session(broker)
    client.send(publish(client, "q"), numbered(1))
    link = consume(client, "q", 10)
    ((delivery, came),) = client.received(link)
    assert not came.annotations
    delivery.update(Delivery.RELEASED)
    delivery.settle()
    broker.settle_down()
    ((_, again),) = client.received(link)
    assert not again.annotations


def test_operators_who_look_at_messages_are_not_told_either() -> None:
    broker = PairedBroker()
    client = open_session(broker)
    client.send(publish(client, "q"), numbered(1))
    broker.settle_down()
    look = QueueMessages(broker.container.administration)
    for asked in (look.peek("q"), look.payload("q")):
        entry = asked.next_entry()
        assert entry is not None
        (body,) = bodies_of([entry])
        assert FIRST not in str(asked.row(entry, body))
        assert FIRST.encode() not in without_number(body)


def test_lists_of_clients_do_not_show_what_resumes_a_session() -> None:
    broker = PairedBroker()
    client = open_session(broker)
    consume(client, "q", 1)
    client.publish("q", "x")
    (row,) = connection_rows(broker.connections)
    assert row["session"]
    assert FIRST not in str(row)
    peek = QueueMessages(broker.container.administration).peek("q")
    entry = peek.next_entry()
    assert entry is not None
    assert FIRST not in str(peek.row(entry, entry.resident_body()))
    ended = broker.container.sessions.end_by_hand(str(row["session"]))
    assert ended is not None
    assert ended.name == FIRST


def test_a_message_with_more_annotations_than_are_looked_at_is_not_taken_under_a_number(broker: PairedBroker) -> None:
    client = broker.connect()
    message: Any = proton.Message("x")
    message.annotations = {PRODUCER: "p", SEQUENCE: 1, **{f"x-opt-{number}": number for number in range(99)}}
    (delivery,) = client.publish("q", message)
    broker.settle_down()
    assert delivery.remote.condition.name == INVALID_FIELD
