"""Channels between brokers, both ends joined in memory; and what a broker that is not primary lets in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import proton
import pytest

from paired_engines import START_MS, PairedBroker, PairedClient
from qpid_ha_broker.amqp.conditions import CONNECTION_FORCED, CONNECTION_REDIRECT, AmqpError
from qpid_ha_broker.amqp.connection import Connection
from qpid_ha_broker.amqp.container import ContainerSettings
from qpid_ha_broker.amqp.engine import Engine
from qpid_ha_broker.amqp.peer_client import PeerClient
from qpid_ha_broker.amqp.peer_frames import ADDRESS, ADMIN_PROPERTY, CREDIT, MAX_FRAME_BYTES, unwrap, wrap
from qpid_ha_broker.amqp.peer_link import PeerChannel
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.model.errors import NotEnoughReplicas
from qpid_ha_broker.server.engines import EngineFactory, SaslConfiguration, client_engine
from qpid_ha_broker.server.listen_address import ListenAddress
from qpid_ha_broker.server.settings import BrokerSettings

MIB = 1024 * 1024
SETTINGS = ContainerSettings("primary", "0")


class Peers:
    """The other side of `container.peers`: writes down what it is told. `answers`: sends each frame back."""

    def __init__(self) -> None:
        self.channels: list[PeerChannel] = []
        self.frames: list[bytes] = []
        self.reasons: list[str] = []
        self.answers = False

    def opened(self, channel: PeerChannel) -> None:
        self.channels.append(channel)

    def received(self, channel: PeerChannel, data: bytes) -> None:
        self.frames.append(data)
        if self.answers:
            channel.send(data)

    def closed(self, channel: PeerChannel, reason: str) -> None:
        self.reasons.append(reason)


class Backup:
    """A `PeerClient`, and what it was told."""

    def __init__(self, broker: PairedBroker, peer: Connection, engine: Engine | None = None) -> None:
        self._broker = broker
        self.peer = peer
        self.openings = 0
        self.frames: list[bytes] = []
        self.reasons: list[str] = []
        engine = engine or Engine(proton.Transport(), proton.Connection())
        self.client = PeerClient(engine, "backup", "host", self._opened, self.frames.append, self.reasons.append)

    def _opened(self) -> None:
        self.openings += 1

    def exchange(self) -> bool:
        outgoing = self.client.take_output()
        self.peer.receive(outgoing)
        self._broker.turn()
        incoming = self.peer.take_output()
        self.client.receive(incoming)
        return bool(outgoing or incoming)

    def settle_down(self) -> None:
        while self.exchange():
            pass

    def vanish(self) -> None:
        """The socket breaks; both ends notice."""
        self.peer.lost()
        self.client.lost("reset by peer")


class Cluster(PairedBroker):
    """A broker that takes peers."""

    def __init__(self, settings: ContainerSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.peers = Peers()
        self.container.peers = self.peers

    def backup(self) -> Backup:
        backup = Backup(self, self.accept())
        backup.settle_down()
        return backup

    def admin(self) -> PairedClient:
        """A client whose connection is marked."""
        client = PairedClient(self, {ADMIN_PROPERTY: True})
        self.settle_down()
        return client

    def warnings(self) -> list[str]:
        return [notice.text for notice in self.container.take_notices() if notice.level == "warning"]


def condition_of(client: PairedClient) -> Any:
    """Why the broker has ended the connection."""
    return client.connection.remote_condition


@pytest.fixture
def broker() -> Cluster:
    return Cluster()


# --- frames


def test_frames_go_both_ways_and_keep_their_order(broker: Cluster) -> None:
    backup = broker.backup()
    assert backup.openings == 1
    (channel,) = broker.peers.channels
    for number in range(300):
        backup.client.send(b"up %d" % number)
        channel.send(b"down %d" % number)
    backup.settle_down()
    assert broker.peers.frames == [b"up %d" % number for number in range(300)]
    assert backup.frames == [b"down %d" % number for number in range(300)]
    assert channel.peer == "backup (127.0.0.1:1)"
    assert backup.client.peer == "primary (host)"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 64 * 1024, 3 * MIB])
def test_a_frame_of_any_size_arrives_as_it_was(broker: Cluster, size: int) -> None:
    broker.peers.answers = True
    frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
    backup = broker.backup()
    backup.client.send(frame)
    backup.settle_down()
    assert broker.peers.frames == [frame]
    assert backup.frames == [frame]


def test_what_is_said_before_the_channel_is_open_waits_for_it(broker: Cluster) -> None:
    backup = Backup(broker, broker.accept())
    backup.client.send(b"hello")
    backup.settle_down()
    assert broker.peers.frames == [b"hello"]


def test_credit_never_runs_out(broker: Cluster) -> None:
    backup = broker.backup()
    (channel,) = broker.peers.channels
    count = 2 * CREDIT + 1
    for _ in range(count):
        channel.send(b"x")
        backup.client.send(b"y")
    assert channel.unsent_bytes > 0
    backup.settle_down()
    assert len(backup.frames) == len(broker.peers.frames) == count
    assert channel.unsent_bytes == backup.client.unsent_bytes == 0


def test_any_amqp_tool_can_send_a_frame(broker: Cluster) -> None:
    client = broker.admin()
    sender = client.sender(ADDRESS)
    client.receiver(ADDRESS, credit=1)
    message = proton.Message(body=b"frame", inferred=True, subject="from a tool", properties={"n": 1})
    delivery = client.send(sender, message)
    broker.settle_down()
    assert broker.peers.frames == [b"frame"]
    assert delivery.remote_state == proton.Delivery.ACCEPTED


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x00Su\xa0", id="no length"),
        pytest.param(b"\x00Su\xa0\x05frame\x00Su\xa0\x05frame", id="two sections"),
        pytest.param(b"\x00Su\xb0\x00\x00\x00\x09frame", id="a length too large"),
        pytest.param(b"\x00Sw\xa1\x05frame", id="a value"),
        pytest.param(b"frame", id="no section"),
        pytest.param(b"\x00SpE", id="a header alone"),
    ],
)
def test_a_message_that_carries_no_frame_ends_the_channel(broker: Cluster, message: bytes) -> None:
    client = broker.admin()
    sender = client.sender(ADDRESS)
    client.receiver(ADDRESS, credit=1)
    client.send(sender, message)
    broker.settle_down()
    assert broker.peers.frames == []
    assert broker.peers.reasons[0].startswith("amqp:decode-error")
    assert condition_of(client).name == "amqp:decode-error"


def test_a_wrapped_frame_is_unwrapped() -> None:
    for size in (0, 255, 256, 70_000):
        assert unwrap(wrap(b"x" * size)) == b"x" * size


def test_a_frame_without_end_is_cut_off(broker: Cluster) -> None:
    backup = broker.backup()
    backup.client.send(bytes(MAX_FRAME_BYTES + 1))
    backup.settle_down()
    assert broker.peers.frames == []
    assert broker.peers.reasons[0].startswith("amqp:link:message-size-exceeded")
    assert backup.reasons[0].startswith("amqp:link:message-size-exceeded")


# --- the end


def test_the_broker_closes_after_all_it_has_sent_and_says_why(broker: Cluster) -> None:
    backup = broker.backup()
    (channel,) = broker.peers.channels
    channel.send(b"x" * MIB)
    channel.close("another generation began")
    backup.settle_down()
    assert backup.frames == [b"x" * MIB]
    assert backup.reasons == [f"{CONNECTION_FORCED}: another generation began"]
    assert broker.peers.reasons == []
    channel.send(b"late")
    assert channel.unsent_bytes == 0
    assert backup.client.finished


def test_the_client_closes_after_all_it_has_sent_and_says_why(broker: Cluster) -> None:
    backup = broker.backup()
    backup.client.send(b"x" * MIB)
    backup.client.close("wrong cluster")
    backup.client.close("twice")
    backup.settle_down()
    assert broker.peers.frames == [b"x" * MIB]
    assert broker.peers.reasons == [f"{CONNECTION_FORCED}: wrong cluster"]
    assert backup.reasons == []
    backup.client.send(b"late")
    backup.client.lost("reset")
    assert backup.reasons == []


def test_a_broken_socket_ends_the_channel_for_both_once(broker: Cluster) -> None:
    backup = broker.backup()
    backup.vanish()
    backup.client.lost("again")
    assert broker.peers.reasons == ["the connection was lost"]
    assert backup.reasons == ["reset by peer"]


def test_nothing_is_fed_after_the_listener_closed_within_a_frame(broker: Cluster) -> None:
    class Strict(Peers):
        def received(self, channel: PeerChannel, data: bytes) -> None:
            super().received(channel, data)
            channel.close("no")

    broker.peers = broker.container.peers = Strict()
    backup = broker.backup()
    backup.client.send(b"first")
    backup.client.send(b"second")
    backup.settle_down()
    assert broker.peers.frames == [b"first"]
    assert backup.reasons == [f"{CONNECTION_FORCED}: no"]


def test_a_peer_that_detaches_has_left(broker: Cluster) -> None:
    client = broker.admin()
    sender = client.sender(ADDRESS)
    client.receiver(ADDRESS, credit=1)
    sender.close()
    broker.settle_down()
    assert len(broker.peers.reasons) == 1
    again = client.sender(ADDRESS)
    assert again.remote_condition.name == "amqp:not-allowed"


def test_one_link_is_no_channel(broker: Cluster) -> None:
    client = broker.admin()
    sender = client.sender(ADDRESS)
    client.send(sender, wrap(b"hello"))
    broker.settle_down()
    client.vanish()
    assert (broker.peers.channels, broker.peers.frames, broker.peers.reasons) == ([], [], [])


def test_a_client_hears_that_the_peer_went_silent(broker: Cluster) -> None:
    transport = proton.Transport()
    transport.idle_timeout = 2
    backup = Backup(broker, broker.accept(), Engine(transport, proton.Connection()))
    backup.settle_down()
    for now_ms in range(1000, 6000, 250):
        backup.client.heartbeat(now_ms)
    assert "local-idle-timeout expired" in backup.reasons[0]


def test_what_comes_on_a_connection_that_speaks_another_protocol_is_a_reason(broker: Cluster) -> None:
    backup = Backup(broker, broker.accept())
    backup.client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert len(backup.reasons) == 1
    assert "amqp:connection:framing-error" in backup.reasons[0]


# --- who is let in


def test_a_broker_alone_has_no_peers(broker: Cluster) -> None:
    broker.container.peers = None
    backup = broker.backup()
    assert backup.openings == 0
    assert backup.reasons[0].startswith("amqp:not-found: this broker is in no cluster")


def test_a_connection_that_is_not_marked_gets_no_channel(broker: Cluster) -> None:
    client = broker.connect()
    sender, receiver = client.sender(ADDRESS), client.receiver(ADDRESS)
    for link in (sender, receiver):
        assert link.remote_condition.name == "amqp:unauthorized-access"
    assert broker.peers.channels == []
    assert ADMIN_PROPERTY in broker.warnings()[0]


@pytest.mark.parametrize("mark", ["true", 1, False, None])
def test_only_true_is_a_mark(broker: Cluster, mark: Any) -> None:
    client = PairedClient(broker, {ADMIN_PROPERTY: mark})
    broker.settle_down()
    assert not client.peer.is_admin


def test_where_brokers_have_a_user_nobody_else_is_one() -> None:
    broker = Cluster(replace(SETTINGS, peer_user="replicator"))
    backup = broker.backup()
    assert backup.openings == 0
    assert backup.reasons[0].startswith("amqp:unauthorized-access: ")
    assert "ha.username" in backup.reasons[0]
    assert broker.peers.channels == []
    assert "replicator" not in backup.reasons[0]
    assert any("ha.username" in text for text in broker.warnings())


SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin")
USERS = ("replicator", "alice")
PASSWORD = "only for this test"
needs_cyrus = pytest.mark.skipif(
    not proton.SASL.extended() or SASLPASSWD is None, reason="needs Cyrus SASL in Proton, and sasl2-bin"
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineFactory]:
    """For a listener on loopback where users may log in, and guests too."""
    path = tmp_path_factory.mktemp("sasl") / "users.sasldb"
    for user in USERS:
        command = [str(SASLPASSWD), "-p", "-c", "-f", str(path), user]
        subprocess.run(command, input=PASSWORD.encode(), check=True, timeout=30)
    address = ListenAddress.parse("amqp://127.0.0.1:0")
    values = {"name": "primary", "listen": [str(address)], "sasl.users-db": str(path), "sasl.allow-anonymous": True}
    settings = BrokerSettings.from_values(values)
    sasl = SaslConfiguration(Path(path))
    yield EngineFactory(lambda: settings, address, sasl)
    sasl.close()


@needs_cyrus
@pytest.mark.parametrize(
    ("user", "password", "mechanism", "is_let_in"),
    [
        ("replicator", PASSWORD, "", True),
        ("replicator", PASSWORD, "PLAIN", True),
        ("alice", PASSWORD, "", False),
        ("", "", "", False),
        ("replicator", "wrong", "", False),
        ("replicator", "", "ANONYMOUS", False),
    ],
)
def test_the_user_is_the_one_who_has_logged_in(
    engines: EngineFactory, user: str, password: str, mechanism: str, is_let_in: bool
) -> None:
    broker = Cluster(replace(SETTINGS, peer_user="replicator"))
    peer = Connection(broker.container, engines.make(), "127.0.0.1:1")
    ours = client_engine(user=user, password=password, mechanism=mechanism, insecure_plain=True)
    backup = Backup(broker, peer, ours)
    backup.settle_down()
    assert backup.openings == len(broker.peers.channels) == int(is_let_in)
    assert is_let_in or "amqp:unauthorized-access" in backup.reasons[0]


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
