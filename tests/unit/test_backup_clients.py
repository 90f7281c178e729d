"""What clients meet on a broker that is not primary, and what a cluster's settings change for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import proton
import pytest

from paired_engines import START_MS, PairedClient
from paired_peers import SETTINGS, Cluster, condition_of
from qpid_ha_broker.amqp.conditions import CONNECTION_REDIRECT, AmqpError
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.model.errors import NotEnoughReplicas


@pytest.fixture
def broker() -> Cluster:
    return Cluster()


# --- ordinary clients of a backup


def redirect() -> AmqpError:
    return AmqpError(CONNECTION_REDIRECT, "the primary is b", {"network-host": "b.example", "port": 5673})


def test_a_client_is_sent_to_the_primary(broker: Cluster) -> None:
    broker.container.client_refusal = redirect()
    client = broker.connect()
    condition = condition_of(client)
    assert (condition.name, condition.description) == (CONNECTION_REDIRECT, "the primary is b")
    assert condition.info == {"network-host": "b.example", "port": 5673}
    assert type(condition.info["port"]) is proton.ushort
    assert broker.warnings() == []


def test_marked_connections_are_let_in_everywhere(broker: Cluster) -> None:
    broker.container.client_refusal = redirect()
    admin = broker.admin()
    assert admin.peer.is_admin
    assert admin.connection.remote_condition is None
    assert broker.backup().openings == 1


def test_clients_that_are_there_are_ended_and_channels_are_not(broker: Cluster) -> None:
    client, admin, backup = broker.connect(), broker.admin(), broker.backup()
    consumer, browser = admin.receiver("q", credit=1), _browser(admin, "q")
    broker.container.end_clients(redirect())
    broker.settle_down()
    assert condition_of(client).name == CONNECTION_REDIRECT
    assert admin.connection.remote_condition is None
    assert consumer.remote_condition.name == CONNECTION_REDIRECT
    assert browser.remote_condition is None
    backup.settle_down()
    assert backup.reasons == []
    assert list(broker.container.connections) == [admin.peer, backup.peer]


def test_clients_learn_of_all_brokers(broker: Cluster) -> None:
    servers: list[dict[str, object]] = [
        {"network-host": "b.example", "port": 5673, "scheme": "amqp"},
        {"network-host": "c.example", "port": 5674, "scheme": "amqps"},
    ]
    broker.container.failover_servers = servers
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
    broker.container.resources.log.add_witness("replication")
    broker.container.read_only = True
    broker.container.end_clients(redirect())
    broker.container.client_refusal = redirect()
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
    assert len(list(replica.queue("q").entries())) == 1


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


# --- confirmations


@pytest.mark.parametrize("confirm_dequeue", [True, False])
def test_an_answer_waits_for_the_replicas_if_that_is_wanted(confirm_dequeue: bool) -> None:
    broker = Cluster(replace(SETTINGS, confirm_dequeue=confirm_dequeue))
    client = broker.connect()
    client.send(client.sender("q"), proton.Message(body="x"))
    receiver = client.receiver("q", credit=1, answers_first=True)
    broker.container.resources.log.add_witness("replication")
    ((delivery, _),) = client.received(receiver)
    delivery.update(proton.Delivery.ACCEPTED)
    broker.settle_down()
    assert delivery.settled is not confirm_dequeue
    assert [type(record.event) for batch in broker.batches for record in decode(batch.data).records] != [Enqueued]
    broker.container.resources.log.acknowledge("replication", broker.container.resources.log.last_lsn)
    broker.settle_down()
    assert delivery.settled


def test_too_few_replicas_is_a_condition_of_its_own(broker: Cluster) -> None:
    client = broker.connect()
    sender = client.sender("q")
    broker.container.resources.refusal = NotEnoughReplicas("1 of 2 brokers")
    delivery = client.send(sender, proton.Message(body="x"))
    broker.settle_down()
    assert delivery.remote_state == proton.Delivery.REJECTED
    assert delivery.remote.condition.name == "qpid-ha:not-enough-replicas"
