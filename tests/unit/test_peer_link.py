"""Channels between brokers, both ends joined in memory: what goes through them, how they end, who gets one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import proton
import pytest

from paired_engines import PROOF, PairedClient
from paired_peers import SETTINGS, Backup, Cluster, Peers, condition_of
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.frame_stream import MAX_FRAME_BYTES
from qpid_ha_broker.amqp.wire.peer_frames import (
    ADDRESS,
    ADMIN_PROPERTY,
    CREDIT,
    SHARED_CAPABILITY,
    Channel,
    unwrap,
    wrap,
)

MIB = 1024 * 1024


RELEASES = {
    "both of this release": (True, True),
    "the one that connects is older": (True, False),
    "the one that is connected to is older": (False, True),
    "both are older": (False, False),
}


@pytest.fixture(params=RELEASES)
def broker(request: pytest.FixtureRequest) -> Cluster:
    here, there = RELEASES[request.param]
    return Cluster(here=here, there=there)


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
        def received(self, channel: Channel, data: bytes) -> None:
            super().received(channel, data)
            channel.close("no")

    broker.peers = broker.container.peers.single = Strict()
    backup = broker.backup()
    backup.client.send(b"first")
    backup.client.send(b"second")
    backup.settle_down()
    assert broker.peers.frames == [b"first"]
    assert backup.reasons == [f"{CONNECTION_FORCED}: no"]


def test_nothing_is_fed_after_the_client_has_closed_within_a_frame(broker: Cluster) -> None:
    backup = broker.backup()
    (channel,) = broker.peers.channels
    received: list[bytes] = []

    def receive_one(frame: bytes) -> None:
        received.append(frame)
        backup.client.close("no")

    backup.listen(receive_one)
    channel.send(b"first")
    channel.send(b"second")
    backup.settle_down()
    assert received == [b"first"]


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
    engine = Engine(transport, proton.Connection())
    engine.proof = PROOF
    backup = Backup(broker, broker.accept(), engine)
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
    broker.container.peers.single = None
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


# --- connections that carry sub-channels


def test_a_shared_connection_has_a_listener_of_its_own(broker: Cluster) -> None:
    shared = broker.container.peers.shared = Peers()
    backup = Backup(broker, broker.accept(), capability=SHARED_CAPABILITY)
    backup.client.send(b"bundle")
    backup.settle_down()
    assert backup.openings == 1
    assert shared.frames == [b"bundle"]
    assert broker.peers.channels == []


def test_a_broker_of_an_older_version_is_told_apart_and_loses_nothing(broker: Cluster) -> None:
    backup = Backup(broker, broker.accept(), capability=SHARED_CAPABILITY)
    backup.settle_down()
    assert backup.openings == 0
    assert backup.reasons == [
        "amqp:not-implemented: the broker there does not offer qpid.ha-sets: it is of an older version, upgrade it"
    ]
    assert broker.peers.frames == []
    usual = broker.backup()
    assert usual.openings == 1


def test_clients_are_not_offered_what_brokers_are(broker: Cluster) -> None:
    broker.container.peers.shared = Peers()
    client = PairedClient(broker)
    broker.settle_down()
    assert SHARED_CAPABILITY not in list(client.connection.remote_offered_capabilities)


def test_who_may_have_no_channel_may_have_no_shared_connection(broker: Cluster) -> None:
    broker.container.peers.shared = shared = Peers()
    broker.container.settings = replace(SETTINGS, peer_user="cluster")
    backup = Backup(broker, broker.accept(), capability=SHARED_CAPABILITY)
    backup.settle_down()
    assert backup.openings == 0
    assert backup.reasons[0].startswith("amqp:unauthorized-access")
    assert shared.channels == []
