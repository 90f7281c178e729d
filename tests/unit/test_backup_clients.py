"""What clients meet on a broker that is not primary, and what a cluster's settings change for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import proton
import pytest

from paired_engines import START_MS, PairedClient
from paired_links import subscribe
from paired_peers import SETTINGS, Cluster, condition_of
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.model.errors import NotEnoughReplicas


@pytest.fixture
def broker() -> Cluster:
    return Cluster()


# --- ordinary clients of a backup


def refusal() -> AmqpError:
    return AmqpError(CONNECTION_FORCED, "the primary is b", {"network-host": "b.example", "port": 5673})


QPID_JMS = ("sole-connection-for-container", "DELAYED_DELIVERY", "ANONYMOUS-RELAY", "SHARED-SUBS")
"""What the open of Qpid JMS desires."""


def test_a_client_is_refused_before_the_open_that_would_send_it_back_to_its_first_address(broker: Cluster) -> None:
    broker.container.greeting.refusal = refusal()
    client = broker.connect()
    assert client.connection.state & proton.Endpoint.REMOTE_UNINIT
    assert client.peer.is_hung_up
    assert [notice.text for notice in broker.container.take_notices()] == ["127.0.0.1:1 sent away: the primary is b"]


def test_a_client_that_reads_refusals_is_told_that_no_connection_comes_of_the_open_and_why(broker: Cluster) -> None:
    broker.container.greeting.refusal = refusal()
    broker.container.greeting.failover_servers = [{"network-host": "a.example", "port": 5672, "scheme": "amqp"}]
    client = broker.connect(QPID_JMS)
    properties: Any = client.connection.remote_properties
    assert properties["amqp:connection-establishment-failed"] is True
    assert "failover-server-list" not in properties
    condition = condition_of(client)
    assert (condition.name, condition.description) == (CONNECTION_FORCED, "the primary is b")
    assert condition.info == {"network-host": "b.example", "port": 5673}
    assert type(condition.info["port"]) is proton.ushort
    assert broker.warnings() == []


def test_a_client_that_is_served_is_not_told_that_no_connection_comes_of_the_open(broker: Cluster) -> None:
    properties: Any = broker.connect(QPID_JMS).connection.remote_properties
    assert "amqp:connection-establishment-failed" not in properties


def test_marked_connections_are_let_in_everywhere(broker: Cluster) -> None:
    broker.container.greeting.refusal = refusal()
    admin = broker.admin()
    assert admin.peer.is_admin
    assert admin.connection.remote_condition is None
    assert broker.backup().openings == 1


def test_clients_that_are_there_are_ended_and_channels_are_not(broker: Cluster) -> None:
    client, jms, admin, backup = broker.connect(), broker.connect(QPID_JMS), broker.admin(), broker.backup()
    consumer, browser = admin.receiver("q", credit=1), _browser(admin, "q")
    broker.connections.end_clients(refusal())
    broker.settle_down()
    assert client.peer.is_hung_up
    assert condition_of(client) is None  # Proton's Python client would wait after a close
    assert condition_of(jms).name == CONNECTION_FORCED
    assert admin.connection.remote_condition is None
    assert consumer.remote_condition.name == CONNECTION_FORCED
    assert browser.remote_condition is None
    backup.settle_down()
    assert backup.reasons == []
    assert list(broker.connections.open) == [admin.peer, backup.peer]


def test_what_was_confirmed_before_a_client_is_sent_away_still_reaches_it(broker: Cluster) -> None:
    client = broker.connect()
    delivery = client.send(client.sender("q"), proton.Message(body="x"))
    client.exchange()
    broker.turn()
    broker.connections.end_clients(refusal())
    broker.settle_down()
    assert delivery.settled
    assert delivery.remote_state == proton.Delivery.ACCEPTED


def test_what_a_client_still_sends_when_it_was_sent_away_is_not_taken(broker: Cluster) -> None:
    client = broker.connect()
    sender = client.sender("q")
    broker.connections.end_clients(refusal())
    delivery = client.send(sender, proton.Message(body="x"))
    broker.settle_down()
    assert broker.queue("q").messages.count == 0
    assert not delivery.settled


def test_clients_learn_of_all_brokers(broker: Cluster) -> None:
    servers: list[dict[str, object]] = [
        {"network-host": "b.example", "port": 5673, "scheme": "amqp"},
        {"network-host": "c.example", "port": 5674, "scheme": "amqps"},
    ]
    broker.container.greeting.failover_servers = servers
    properties: Any = broker.connect().connection.remote_properties
    found = properties["failover-server-list"]
    assert found == servers
    assert all(type(name) is proton.symbol for server in found for name in server)


# --- what may be done on a backup


def _browser(client: PairedClient, address: str) -> Any:
    link = client.session.receiver(f"browse-{address}-{client.broker.container.now_ms}")
    link.source.address = address
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.open()
    link.flow(10)
    client.broker.settle_down()
    return link


@pytest.fixture
def replica(broker: Cluster) -> Cluster:
    """Became a backup with one message on `q`, which has expired since."""
    client = broker.connect()
    client.send(client.sender("q"), proton.Message(body="kept", ttl=1))
    broker.settle_down()
    broker.container.default.resources.replicated.log.add_witness("replication")
    broker.container.default.read_only = True
    broker.connections.end_clients(refusal())
    broker.container.greeting.refusal = refusal()
    broker.container.now_ms = START_MS + 60_000
    broker.batches.clear()
    return broker


def test_an_administrator_browses_a_replica_and_changes_nothing(replica: Cluster) -> None:
    admin = replica.admin()
    link = _browser(admin, "q")
    assert [message.body for _, message in admin.received(link)] == ["kept"]
    replica.container.tick()
    link.close()
    replica.settle_down()
    admin.vanish()
    replica.settle_down()
    assert replica.batches == []
    assert len(list(replica.queue("q").messages)) == 1


@pytest.mark.parametrize("address", ["q", "amq.topic", "new", None])
def test_nobody_publishes_on_a_replica(replica: Cluster, address: str | None) -> None:
    link = replica.admin().sender(address)
    assert link.remote_condition.name == "amqp:not-allowed"
    assert "primary" in link.remote_condition.description
    assert replica.batches == []


@pytest.mark.parametrize("address", ["q", "amq.topic", "new"])
def test_nobody_consumes_on_a_replica(replica: Cluster, address: str) -> None:
    link = replica.admin().receiver(address, credit=1)
    assert link.remote_condition.name == "amqp:not-allowed"
    assert replica.batches == []


@pytest.mark.parametrize("address", ["amq.topic", "new"])
def test_browsing_makes_no_queue_on_a_replica(replica: Cluster, address: str) -> None:
    assert _browser(replica.admin(), address).remote_condition.name == "amqp:not-allowed"
    assert replica.batches == []


def test_no_transaction_and_no_temporary_queue_on_a_replica(replica: Cluster) -> None:
    admin = replica.admin()
    for settle_type, dynamic in ((proton.Terminus.COORDINATOR, False), (proton.Terminus.TARGET, True)):
        link: Any = admin.session.sender(f"link-{dynamic}")
        link.target.type = settle_type
        link.target.dynamic = dynamic
        link.open()
        replica.settle_down()
        assert link.remote_condition.name == "amqp:not-allowed"


def test_management_answers_on_a_replica(replica: Cluster) -> None:
    admin = replica.admin()
    replies = admin.receiver("$management", credit=5)
    request = proton.Message(reply_to="$management", properties={"operation": "QUERY", "type": "org.amqp.management"})
    admin.send(admin.sender("$management"), request)
    replica.settle_down()
    assert len(admin.received(replies)) == 1


def test_a_replica_answers_management_as_the_manual_asks_it(replica: Cluster) -> None:
    """To a dynamic address, which on a primary is a temporary queue."""
    replica.container.default.resources.replication.read_only = "b is the primary"
    admin = replica.admin()
    replies = subscribe(admin, None, "replies", dynamic=True)
    other = subscribe(admin, None, "other", dynamic=True)
    address = replies.remote_source.address
    assert address != other.remote_source.address
    replies.flow(5)
    requests = admin.sender("$management")
    operations = [
        {"operation": "READ", "type": "queue", "name": "q"},
        {"operation": "DELETE", "type": "queue", "name": "q"},
    ]
    for properties in operations:
        admin.send(requests, proton.Message(reply_to=address, properties=properties))
    replica.settle_down()
    found = [message.properties["statusCode"] for _, message in admin.received(replies)]
    assert found == [200, 409]
    assert replica.batches == []
    assert admin.sender(address).remote_condition.name == "amqp:not-found"


def test_an_address_for_replies_is_no_queue_after_a_promotion(replica: Cluster) -> None:
    admin = replica.admin()
    replies = subscribe(admin, None, "replies", dynamic=True)
    replies.flow(5)
    replica.container.default.read_only = False
    address = replies.remote_source.address
    assert admin.sender(address).remote_condition.name == "amqp:not-found"
    request = proton.Message(reply_to=address, properties={"operation": "READ", "type": "queue", "name": "q"})
    admin.send(admin.sender("$management"), request)
    replica.settle_down()
    assert [message.properties["statusCode"] for _, message in admin.received(replies)] == [200]


# --- confirmations


@pytest.mark.parametrize("confirm_dequeue", [True, False])
def test_an_answer_waits_for_the_replicas_if_that_is_wanted(confirm_dequeue: bool) -> None:
    broker = Cluster(replace(SETTINGS, confirm_dequeue=confirm_dequeue))
    client = broker.connect()
    client.send(client.sender("q"), proton.Message(body="x"))
    receiver = client.receiver("q", credit=1, answers_first=True)
    broker.container.default.resources.replicated.log.add_witness("replication")
    ((delivery, _),) = client.received(receiver)
    delivery.update(proton.Delivery.ACCEPTED)
    broker.settle_down()
    assert delivery.settled is not confirm_dequeue
    assert [type(record.event) for batch in broker.batches for record in decode(batch.data).records] != [Enqueued]
    log = broker.container.default.resources.replicated.log
    log.acknowledge("replication", log.last_lsn)
    broker.settle_down()
    assert delivery.settled


def test_too_few_replicas_is_a_condition_of_its_own(broker: Cluster) -> None:
    client = broker.connect()
    sender = client.sender("q")
    broker.container.default.resources.replication.refusal = NotEnoughReplicas("1 of 2 brokers")
    delivery = client.send(sender, proton.Message(body="x"))
    broker.settle_down()
    assert delivery.remote_state == proton.Delivery.REJECTED
    assert delivery.remote.condition.name == "qpid-ha:not-enough-replicas"
