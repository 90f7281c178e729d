"""Stories about answers that a failover would take back: an attach is answered when it is committed what it has made,
and a detach that unsubscribes, and the end of links whose queue was deleted, when that is committed.
"""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_links import condition, subscribe
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.model.logs.log import Log

BACKUPS = "backups"
WAYS = {
    "a durable subscription": lambda client: subscribe(client, "amq.topic", durable=True),
    "a temporary subscription": lambda client: subscribe(client, "amq.topic"),
    "a temporary queue": lambda client: subscribe(client, None, dynamic=True),
    "a temporary queue to publish to": lambda client: dynamic_sender(client),
    "a queue made for a consumer": lambda client: subscribe(client, "made"),
    "a queue made for a publisher": lambda client: client.sender("made"),
    "a subscription to a topic that nobody has made": lambda client: subscribe(client, "a.b", capabilities=("topic",)),
    "a temporary topic": lambda client: subscribe(client, None, dynamic=True, capabilities=("temporary-topic",)),
}


def dynamic_sender(client: PairedClient) -> Any:
    link = client.session.sender("link")
    link.target.dynamic = True
    return client.attach(link)


def log_of(broker: PairedBroker) -> Log:
    return broker.container.default.resources.replicated.log


def hold_commits_up(broker: PairedBroker) -> None:
    log_of(broker).add_witness(BACKUPS)


def commit(broker: PairedBroker) -> None:
    log = log_of(broker)
    while log.committed_lsn < log.last_lsn:
        log.acknowledge(BACKUPS, log.last_lsn)
        broker.container.default.touch()
        broker.settle_down()


def queues(broker: PairedBroker) -> list[str]:
    return list(broker.container.default.resources.catalog.queues)


def is_answered(link: Any) -> bool:
    return bool(link.state & proton.Endpoint.REMOTE_ACTIVE)


def is_ended(link: Any) -> bool:
    return bool(link.state & proton.Endpoint.REMOTE_CLOSED)


def close(client: PairedClient, link: Any) -> None:
    link.close()
    client.broker.settle_down()


# --- attaches


@pytest.mark.parametrize("way", WAYS)
def test_an_attach_is_answered_when_it_is_committed_what_it_has_made(broker: PairedBroker, way: str) -> None:
    client = broker.connect()
    hold_commits_up(broker)
    link = WAYS[way](client)
    assert not is_answered(link)
    commit(broker)
    assert is_answered(link)
    assert condition(link) is None


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_that_has_nobody_to_wait_for_answers_in_the_same_turn(way: str) -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = WAYS[way](client)
    assert is_answered(link)


def test_a_subscriber_that_comes_back_to_what_is_not_committed_yet_waits_too(broker: PairedBroker) -> None:
    hold_commits_up(broker)
    first = broker.connect()
    subscribe(first, "amq.topic", "orders", durable=True)
    first.vanish()
    broker.settle_down()
    again = subscribe(broker.connect(), "amq.topic", "orders", durable=True)
    assert not is_answered(again)
    commit(broker)
    assert is_answered(again)


@pytest.mark.parametrize("publishes", [False, True])
def test_who_attaches_to_a_queue_that_another_has_just_made_waits_for_it(broker: PairedBroker, publishes: bool) -> None:
    hold_commits_up(broker)
    subscribe(broker.connect(), "made")
    other = broker.connect()
    link = other.sender("made") if publishes else subscribe(other, "made")
    assert not is_answered(link)
    commit(broker)
    assert is_answered(link)


def test_who_attaches_to_what_has_long_been_there_waits_for_nothing(broker: PairedBroker) -> None:
    client = broker.connect()
    client.publish("q", "old")
    subscribe(client, "amq.topic", "temporary")
    hold_commits_up(broker)
    assert is_answered(subscribe(client, "q"))
    assert is_answered(client.sender("q"))
    sender = client.sender("q", "another")
    client.send_all(sender, "new")
    assert is_answered(subscribe(client, "q", "browser", browse=True))


def test_credit_that_comes_before_the_answer_counts_after_it(broker: PairedBroker) -> None:
    client = broker.connect()
    hold_commits_up(broker)
    link = subscribe(client, "amq.fanout", "orders", durable=True)
    link.flow(10)
    publisher = broker.connect()
    sender = publisher.sender("amq.fanout")
    publisher.send_all(sender, "first")
    assert client.bodies(link) == []
    commit(broker)
    assert client.bodies(link) == ["first"]


def test_a_temporary_queue_goes_with_a_link_that_was_closed_before_its_answer(broker: PairedBroker) -> None:
    client = broker.connect()
    hold_commits_up(broker)
    link = subscribe(client, None, dynamic=True)
    assert len(queues(broker)) == 1
    close(client, link)
    commit(broker)
    assert queues(broker) == []
    assert not is_answered(link)


def test_a_temporary_queue_goes_with_a_client_that_has_died_before_its_answer(broker: PairedBroker) -> None:
    client = broker.connect()
    hold_commits_up(broker)
    subscribe(client, None, dynamic=True)
    client.vanish()
    broker.settle_down()
    commit(broker)
    assert queues(broker) == []
    assert not broker.container.waiting


def test_an_attach_that_waits_for_too_long_is_refused_and_what_it_made_goes() -> None:
    broker = PairedBroker()
    client = broker.connect()
    hold_commits_up(broker)
    link = subscribe(client, None, dynamic=True)
    clock = broker.container.clock
    broker.container.clock = lambda: clock() + 1000
    broker.container.tick()
    broker.settle_down()
    assert condition(link) == "amqp:resource-locked"
    commit(broker)
    assert queues(broker) == []


def test_an_attach_that_waits_is_refused_when_another_broker_leads() -> None:
    broker = PairedBroker()
    client = broker.connect()
    hold_commits_up(broker)
    link = subscribe(client, "amq.topic", durable=True)
    broker.container.default.end_links(AmqpError("amqp:not-allowed", "another broker leads"), browsers=False)
    broker.settle_down()
    assert condition(link) == "amqp:not-allowed"
    assert not broker.container.waiting


# --- detaches


@pytest.mark.parametrize("broker", ["direct"], indirect=True)
def test_an_unsubscription_is_answered_when_it_is_committed(broker: PairedBroker) -> None:
    client = broker.connect()
    link = subscribe(client, "amq.topic", durable=True)
    hold_commits_up(broker)
    close(client, link)
    assert queues(broker) == []
    assert not is_ended(link)
    commit(broker)
    assert is_ended(link)
    assert condition(link) is None


@pytest.mark.parametrize("broker", ["direct"], indirect=True)
def test_an_unsubscription_without_a_source_is_answered_when_it_is_committed(broker: PairedBroker) -> None:
    client = broker.connect()
    link = subscribe(client, "amq.topic", durable=True)
    link.detach()
    broker.settle_down()
    link.free()
    link = subscribe(client, None)
    hold_commits_up(broker)
    close(client, link)
    assert not is_ended(link)
    commit(broker)
    assert is_ended(link)


def test_an_unsubscription_that_another_broker_may_undo_is_answered_with_an_error() -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = subscribe(client, "amq.topic", durable=True)
    hold_commits_up(broker)
    close(client, link)
    broker.container.default.end_links(AmqpError("amqp:not-allowed", "another broker leads"), browsers=False)
    broker.settle_down()
    assert is_ended(link)
    assert condition(link) == "amqp:not-allowed"


@pytest.mark.parametrize("ends", ["session", "connection", "socket"])
def test_nobody_waits_for_an_unsubscription_whose_client_goes(ends: str) -> None:
    broker = PairedBroker()
    client = broker.connect()
    link = subscribe(client, "amq.topic", durable=True)
    hold_commits_up(broker)
    close(client, link)
    if ends == "session":
        client.session.close()
    elif ends == "connection":
        client.connection.close()
    else:
        client.vanish()
    broker.settle_down()
    commit(broker)
    assert queues(broker) == []


# --- deletions


def test_consumers_are_told_that_their_queue_was_deleted_when_that_is_committed(broker: PairedBroker) -> None:
    client = broker.connect()
    link = subscribe(client, "q")
    hold_commits_up(broker)
    broker.container.administration.delete_queue("q")
    broker.container.default.touch()
    broker.settle_down()
    assert is_answered(link)
    commit(broker)
    assert condition(link) == "amqp:resource-deleted"
