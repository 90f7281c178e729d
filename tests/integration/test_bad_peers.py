"""Peers that break the protocol, or say nothing at all: each is told once, is logged once, and nobody else notices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import proton
import psutil
import pytest

from blocking_client import BlockingClient, bodies
from proxied_broker import Serve, Served
from raw_peer import (
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    OPEN,
    RECEIVER,
    SENDER,
    TRANSFER,
    Frame,
    RawPeer,
    attach,
    begin,
    credit,
    frame,
    message,
    transfer,
)
from running_broker import RunningBroker

MAX_MESSAGE_BYTES = 256 * 1024
MAX_LINKS = 50
MAX_SESSIONS = 8
CREDIT = 100


@pytest.fixture(scope="module")
def broker(serve: Serve) -> Iterator[Served]:
    limits: dict[str, object] = {
        "max-message-size": MAX_MESSAGE_BYTES,
        "max-links-per-connection": MAX_LINKS,
        "max-sessions-per-connection": MAX_SESSIONS,
        "publisher-credit": CREDIT,
    }
    with serve(limits) as running:
        yield running


@pytest.fixture(autouse=True)
def neighbour(broker: Served) -> Iterator[BlockingClient]:
    """A client that behaves. Connected before, it sends and receives after whatever the other did."""
    with BlockingClient(broker.url) as client:
        yield client
        client.send("neighbours", "still here")
        assert bodies(client.consume("neighbours")) == ["still here"]


@pytest.fixture
def new_lines(broker: Served) -> Callable[[], list[str]]:
    """What the broker has logged of connections since the test began, but for queues that it made for them."""
    before = len(broker.log())
    return lambda: [
        line for line in broker.log()[before:].splitlines() if " connection " in line and "(auto-create)" not in line
    ]


@pytest.fixture
def peer(broker: Served) -> Iterator[RawPeer]:
    with RawPeer(broker.port) as raw:
        yield raw


NewLines = Callable[[], list[str]]


def the_line(new_lines: NewLines, condition: str) -> str:
    """The one line that was logged; it names the condition and can be read."""
    deadline = time.monotonic() + 5
    while not new_lines() and time.monotonic() < deadline:
        time.sleep(0.01)
    (line,) = new_lines()
    assert condition in line
    assert line.isprintable()
    assert len(line) < 600
    return line


def start_session(peer: RawPeer) -> None:
    peer.open_session()


def start_sending(peer: RawPeer, address: str) -> None:
    start_session(peer)
    peer.send(attach("publisher", 0, SENDER, address))
    peer.expect(FLOW)


TLS_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(range(150))
NO_AMQP = {
    "random bytes": os.urandom(4096),
    "http": b"GET /index.html HTTP/1.1\r\nHost: broker\r\n\r\n",
    "tls hello": TLS_HELLO,
    "amqp 0-9-1": b"AMQP\x00\x00\x09\x01",
    "an unknown protocol id": b"AMQP\x07\x01\x00\x00",
    "one zero after the other": bytes(4096),
}


@pytest.mark.parametrize("data", NO_AMQP.values(), ids=NO_AMQP.keys())
def test_what_is_no_amqp_costs_the_peer_its_socket(peer: RawPeer, new_lines: NewLines, data: bytes) -> None:
    peer.send(data)

    answer = peer.read_to_end()

    if data is not TLS_HELLO:  # that one gets no answer: it would not understand it
        assert answer.startswith(AMQP_HEADER)
        assert b"amqp:connection:framing-error" in answer
    the_line(new_lines, "amqp:connection:framing-error")


GARBAGE = {
    "noise where a frame should be": b"\xff" * 100,
    "a frame that is shorter than its header": b"\x00\x00\x00\x04\x02\x00\x00\x00",
    "a frame with noise for a performative": b"\x00\x00\x00\x10\x02\x00\x00\x00" + b"\xa5" * 8,
    "a performative that does not exist": frame(0x55, []),
    "an attach without a session": attach("x", 0, SENDER, "q", channel=3),
    "a transfer on a link that does not exist": begin() + transfer(7, 0, message(b"x")),
    "a list a hundred thousand deep": b"\x00\x0f\x42\x49\x02\x00\x00\x00" + b"\x00\x53\x10" + b"\x00" * 1_000_001,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_frames_that_make_no_sense_cost_the_peer_its_connection(
    peer: RawPeer, new_lines: NewLines, data: bytes
) -> None:
    peer.open()

    peer.send(data)

    condition, _ = peer.expect(CLOSE).error
    assert condition.startswith("amqp:")
    the_line(new_lines, condition)


ODD = {
    "a frame whose header is longer than the frame": b"\x00\x00\x00\x08\x02\xff\x00\x00",
    "a begin without fields": frame(BEGIN, []),
    "a second open": frame(OPEN, ["again", "localhost"]),
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD.keys())
def test_odd_frames_that_proton_passes_over_leave_the_connection_in_order(peer: RawPeer, data: bytes) -> None:
    peer.open()

    peer.send(data)
    peer.send(begin(1) + frame(CLOSE, []))

    peer.expect(BEGIN)
    assert peer.expect(CLOSE).error == ("", "")


def test_a_frame_over_the_negotiated_size_costs_the_connection(peer: RawPeer, new_lines: NewLines) -> None:
    start_sending(peer, "frames")

    peer.send(transfer(0, 0, message(b"x" * 100_000)))

    assert peer.expect(CLOSE).error[0] == "amqp:connection:framing-error"
    the_line(new_lines, "amqp:connection:framing-error")


@pytest.mark.parametrize(("name", "address"), [("wrong", "a"), ("n", "wrong")])
def test_text_that_is_not_utf8_is_a_decode_error(peer: RawPeer, new_lines: NewLines, name: str, address: str) -> None:
    start_session(peer)

    peer.send(attach(name, 0, SENDER, address).replace(b"wron", b"\xff\xfe\xfd\xfc"))

    assert peer.expect(CLOSE).error[0] == "amqp:decode-error"
    the_line(new_lines, "amqp:decode-error")


def test_a_message_that_is_no_message_is_rejected_and_the_link_goes_on(peer: RawPeer) -> None:
    start_sending(peer, "no-message")

    peer.send(transfer(0, 0, b"\xff" * 50))
    rejected = peer.expect(DISPOSITION)
    peer.send(transfer(0, 1, message(b"this is one")))
    accepted = peer.expect(DISPOSITION)

    assert rejected.fields[4].descriptor == 0x25
    assert str(rejected.fields[4].value[0].value[0]) == "amqp:decode-error"
    assert accepted.fields[4].descriptor == 0x24


def test_a_settle_of_unknown_deliveries_changes_nothing(peer: RawPeer, neighbour: BlockingClient) -> None:
    neighbour.send("unknown-deliveries", "one")
    start_session(peer)
    peer.send(attach("consumer", 0, RECEIVER, "unknown-deliveries"))
    peer.send(credit(0, 1))
    peer.expect(TRANSFER)

    accepted = proton.Described(proton.ulong(0x24), [])
    peer.send(frame(DISPOSITION, [True, proton.uint(77), proton.uint(4_000), True, accepted]))
    peer.send(frame(DISPOSITION, [False, proton.uint(0), proton.uint(4_000), True, accepted]))
    peer.send(frame(DISPOSITION, [True, proton.uint(0), None, True, accepted]))
    peer.send(frame(DETACH, [proton.uint(0), True]))

    assert peer.expect(DETACH).error == ("", "")
    assert neighbour.consume("unknown-deliveries") == []


def test_a_message_over_the_size_costs_the_link(peer: RawPeer, new_lines: NewLines) -> None:
    start_sending(peer, "too-large")
    part = b"x" * 60_000

    peer.send(transfer(0, 0, message(b"x" * MAX_MESSAGE_BYTES)[:60_000], more=True))
    for _ in range(MAX_MESSAGE_BYTES // len(part)):
        peer.send(transfer(0, 0, part, more=True))
    peer.send(transfer(0, 0, part))

    assert peer.expect(DETACH).error[0] == "amqp:link:message-size-exceeded"
    the_line(new_lines, "amqp:link:message-size-exceeded")
    peer.send(frame(DETACH, [proton.uint(0), True]) + attach("next", 1, SENDER, "too-large"))
    assert peer.expect(ATTACH).fields[0] == "next"


def test_a_message_that_never_ends_costs_the_link_and_no_memory(peer: RawPeer, broker: Served) -> None:
    start_sending(peer, "endless")
    part = b"x" * 60_000
    before_kib = resident_kib(broker.pid)

    for _ in range(1000):
        peer.send(transfer(0, 0, part, more=True))

    assert peer.expect(DETACH).error[0] == "amqp:link:message-size-exceeded"
    assert resident_kib(broker.pid) - before_kib < 8 * 1024


@pytest.mark.direct_only("it has a broker of its own")
def test_many_unfinished_messages_on_one_connection_are_too_much_together() -> None:
    """Each stays below its own limit; together they are over what one connection may leave unfinished."""
    allowed = 16 * 1024 * 1024
    with RunningBroker({"max-message-size": "1MiB"}) as broker, RawPeer(broker.port) as peer:
        start_session(peer)
        for handle in range(20):
            peer.send(attach(f"publisher-{handle}", handle, SENDER, "unfinished"))
            for _ in range(15):
                peer.send(transfer(handle, handle, b"x" * 65_000, more=True))

        assert allowed + 1024 * 1024 < 20 * 15 * 65_000
        assert peer.expect(DETACH).error[0] == "amqp:resource-limit-exceeded"


def test_a_publisher_that_ignores_its_credit_loses_its_link(
    peer: RawPeer, new_lines: NewLines, neighbour: BlockingClient
) -> None:
    start_sending(peer, "no-credit")

    flood = b"".join(transfer(0, number, message(b"x"), settled=True) for number in range(20 * CREDIT))
    peer.send(flood)

    assert peer.expect(DETACH).error[0] == "amqp:link:transfer-limit-exceeded"
    the_line(new_lines, "amqp:link:transfer-limit-exceeded")
    assert len(neighbour.consume("no-credit")) < 20 * CREDIT


def test_more_sessions_than_allowed_cost_the_connection(peer: RawPeer, new_lines: NewLines) -> None:
    """The open says how many channels there are; a begin beyond them breaks what was agreed."""
    channel_max = int(peer.open().fields[3])
    assert channel_max + 1 == MAX_SESSIONS

    for channel in range(MAX_SESSIONS):
        peer.send(begin(channel))
        peer.expect(BEGIN)
    peer.send(begin(MAX_SESSIONS))

    assert peer.expect(CLOSE).error[0] == "amqp:connection:framing-error"
    the_line(new_lines, "amqp:connection:framing-error")


def test_links_over_the_limit_are_refused_one_by_one(peer: RawPeer) -> None:
    start_session(peer)
    for handle in range(MAX_LINKS + 1):
        peer.send(attach(f"link-{handle}", handle, SENDER, "many-links"))

    one_too_many = named(peer, f"link-{MAX_LINKS}")  # a proxy refuses it before its primary has answered the others
    refused = peer.expect(DETACH)

    assert (refused.fields[0], refused.error[0]) == (one_too_many.fields[1], "amqp:resource-limit-exceeded")
    peer.send(frame(DETACH, [proton.uint(0), True]) + frame(DETACH, [proton.uint(MAX_LINKS), True]))
    peer.expect(DETACH)
    peer.send(attach("instead", 0, SENDER, "many-links"))
    assert named(peer, "instead").fields[0] == "instead"


def test_ten_thousand_links_that_are_never_detached_cost_the_connection(peer: RawPeer, new_lines: NewLines) -> None:
    start_session(peer)

    peer.send(b"".join(attach(f"link-{handle}", handle, SENDER, "ten-thousand") for handle in range(10_000)))

    assert peer.expect(CLOSE).error[0] == "amqp:resource-limit-exceeded"
    assert len(new_lines()) <= MAX_LINKS + 2


def named(peer: RawPeer, name: str) -> Frame:
    while (found := peer.expect(ATTACH)).fields[0] != name:
        pass
    return found


def resident_kib(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss // 1024
