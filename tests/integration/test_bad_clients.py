"""Clients that speak the protocol and still misbehave, or go silent: what it costs them, and nobody else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import proton
import pytest
from proton.utils import LinkDetached

from blocking_client import BlockingClient, bodies
from limits import LIMIT_S
from proxied_broker import Serve, Served
from raw_peer import (
    AMQP_HEADER,
    CLOSE,
    OPEN,
    RECEIVER,
    SASL_HEADER,
    SENDER,
    TRANSFER,
    RawPeer,
    attach,
    begin,
    credit,
    frame,
)
from running_broker import RunningBroker

HANDSHAKE_S = 0.5
PATIENCE_S = 10.0
"""For the broker to notice; generous, because the machine may be busy."""
IDLE_S = 1.0
MAX_CONNECTIONS = 10


@pytest.fixture(scope="module")
def strict(serve: Serve) -> Iterator[Served]:
    """A broker that makes nothing on demand and waits for nobody."""
    settings: dict[str, object] = {
        "auto-create": False,
        "handshake-timeout": f"{HANDSHAKE_S}s",
        "idle-timeout": f"{IDLE_S}s",
        "max-connections": MAX_CONNECTIONS,
    }
    with serve(settings) as running:
        yield running


def works(broker: Served, address: str) -> bool:
    """A client that behaves can send and receive."""
    with BlockingClient(broker.url) as client:
        client.send(address, "still here")
        return bodies(client.consume(address)) == ["still here"]


def logged(broker: Served, text: str, timeout_s: float = LIMIT_S) -> list[str]:
    """The lines with `text`; waits for the first."""
    deadline = time.monotonic() + timeout_s
    while text not in broker.log() and time.monotonic() < deadline:
        time.sleep(0.01)
    return [line for line in broker.log().splitlines() if text in line]


# --- addresses


@pytest.mark.parametrize("kind", ["sender", "receiver"])
def test_an_unknown_address_is_not_found_when_nothing_is_made_on_demand(strict: Served, kind: str) -> None:
    with BlockingClient(strict.url, heartbeat=10) as client:
        with pytest.raises(LinkDetached) as refused:
            client.sender(f"nowhere-{kind}") if kind == "sender" else client.receiver(f"nowhere-{kind}")

        assert refused.value.condition == "amqp:not-found"
        assert f"nowhere-{kind}" in str(refused.value)
        assert "auto-create" in str(refused.value)
        client.sender("amq.topic")
    assert len(logged(strict, f"nowhere-{kind}")) == 1


# --- silence


def test_a_peer_that_connects_and_says_nothing_is_dropped(strict: Served) -> None:
    with RawPeer(strict.port) as silent:
        began = time.monotonic()
        assert silent.read_to_end() == b""
        assert time.monotonic() - began < PATIENCE_S
    assert logged(strict, "no AMQP open within 0.5 s")


BEGINNINGS = {"amqp": AMQP_HEADER, "sasl": SASL_HEADER, "half a frame": AMQP_HEADER + b"\x00\x00"}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_a_peer_that_stops_in_the_handshake_is_dropped(strict: Served, beginning: bytes) -> None:
    with RawPeer(strict.port) as silent:
        silent.send(beginning)
        silent.read_to_end()
    with RawPeer(strict.port) as talking:
        assert talking.open().code == OPEN


def test_a_peer_that_sends_its_handshake_byte_by_byte_for_ever_is_dropped(strict: Served) -> None:
    """What counts is the time since it connected, not since its last byte."""
    with RawPeer(strict.port) as slow:
        began = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012
            slow.send(AMQP_HEADER + b"\x00\x00\x02\x00\x02\x00\x00\x00")
            while time.monotonic() - began < PATIENCE_S:
                slow.send(b"\x00")
                time.sleep(0.02)


def test_a_client_that_goes_silent_loses_its_connection_and_what_it_held(strict: Served) -> None:
    with BlockingClient(strict.url, heartbeat=1) as client:
        client.connection.create_sender("amq.direct").close()
    with RawPeer(strict.port) as silent:
        silent.open()
        assert silent.expect(CLOSE).error[0] == "amqp:resource-limit-exceeded"
    (line,) = logged(strict, "amqp:resource-limit-exceeded: local-idle-timeout expired")
    assert "connection failed" in line


def test_messages_of_a_consumer_that_goes_silent_go_to_the_next_one() -> None:
    with RunningBroker({"idle-timeout": "1s", "handshake-timeout": "3s"}) as broker, RawPeer(broker.port) as silent:
        with BlockingClient(broker.url) as client:
            client.send("held", "one", "two")
        silent.open()
        silent.send(begin() + attach("silent", 0, RECEIVER, "held") + credit(0, 10))
        silent.expect(TRANSFER)
        silent.expect(TRANSFER)

        silent.expect(CLOSE)

        with BlockingClient(broker.url) as client:
            again = client.consume("held")
        assert bodies(again) == ["one", "two"]
        assert all(message.delivery_count == 1 and not message.first_acquirer for message in again)


@pytest.mark.parametrize("half_closed", [False, True], ids=["silent", "half closed"])
def test_a_consumer_that_neither_reads_nor_speaks_gives_back_its_messages_and_its_place(half_closed: bool) -> None:
    """Its socket is full, so the goodbye cannot be written either: the broker does not wait for that."""
    count = 100
    with ExitStack() as stack:
        broker = stack.enter_context(
            RunningBroker({"idle-timeout": "1s", "handshake-timeout": "2s", "log-level": "debug"})
        )
        with BlockingClient(broker.url) as client:
            client.send("held", *["x" * 200_000] * count)
        stalled = stack.enter_context(RawPeer(broker.port, receive_buffer=4096))
        stalled.open()
        stalled.send(begin() + attach("stalled", 0, RECEIVER, "held") + credit(0, count))
        stalled.expect(TRANSFER)
        if half_closed:
            stalled.socket.shutdown(socket.SHUT_WR)
        with BlockingClient(broker.url, heartbeat=10) as client:
            receiver = client.receiver("held", count)
            assert len(client.fetch(receiver, count)) == count
        assert logged(broker, f":{stalled.socket.getsockname()[1]} disconnected")


# --- too much of something


def test_more_connections_than_allowed_are_told_so_and_the_others_stay() -> None:
    with RunningBroker({"max-connections": 3}) as broker, ExitStack() as stack:
        clients = [stack.enter_context(BlockingClient(broker.url)) for _ in range(3)]

        with RawPeer(broker.port) as fourth:
            fourth.open()
            condition, text = fourth.expect(CLOSE).error
        assert condition == "amqp:resource-limit-exceeded"
        assert "max-connections" in text
        assert len(logged(broker, "max-connections allows no more")) == 1

        clients[0].send("q", "from one that was there")
        clients.pop().close()
        with RawPeer(broker.port) as instead:
            instead.open_session()
        assert bodies(clients[0].consume("q")) == ["from one that was there"]


def test_a_client_that_reads_late_still_learns_why_it_was_closed() -> None:
    with (
        RunningBroker({"max-links-per-connection": 50}) as broker,
        RawPeer(broker.port, receive_buffer=4096) as late,
    ):
        late.open_session()
        late.send(b"".join(attach(f"link-{handle}", handle, SENDER, "late") for handle in range(3000)))
        assert logged(broker, "none of them has been detached")
        for handle in range(3000, 3010):
            late.send(attach(f"link-{handle}", handle, SENDER, "late"))
        assert late.expect(CLOSE).error[0] == "amqp:resource-limit-exceeded"


# --- ends


def test_a_close_with_an_error_is_an_ordinary_goodbye(broker: Served) -> None:
    with RawPeer(broker.port) as peer:
        peer.open()
        peer.send(frame(CLOSE, [proton.Described(proton.ulong(0x1D), [proton.symbol("my:error"), "I am cross"])]))
        assert peer.expect(CLOSE).error == ("", "")
