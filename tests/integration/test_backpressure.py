"""Back-pressure: whoever is slow waits in its own queue, and the broker's memory does not wait with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import proton
import psutil
import pytest

from blocking_client import BlockingClient, bodies
from limits import LIMIT_S
from raw_peer import (
    ATTACH,
    DETACH,
    DISPOSITION,
    FLOW,
    RECEIVER,
    SENDER,
    RawPeer,
    attach,
    credit,
    frame,
    message,
    transfer,
)
from running_broker import RunningBroker

MIB = 1024 * 1024
BODY = 60_000
STOCK = 3600
"""Messages of BODY bytes: more than 200 MB."""
SMALL_MEMORY = 24 * MIB
PATIENCE_S = 100.0
"""For a broker that has megabytes of small frames to work through, on a machine that does other things as well."""


def resident_bytes(broker: RunningBroker) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def until(condition: Callable[[], bool], timeout_s: float = LIMIT_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def quiet(broker: RunningBroker) -> bool:
    """The broker has nothing left to do: it has used no processor for a while."""

    def used_s() -> float:
        times = psutil.Process(broker.pid).cpu_times()
        return float(times.user + times.system)

    def idle() -> bool:
        before = used_s()
        time.sleep(0.3)
        return used_s() - before < 0.03

    return until(idle)


def publish(peer: RawPeer, count: int, body: bytes) -> None:
    """Send as far as there is credit, `count` messages, pre-settled; the link is handle 0."""
    allowed = int(peer.expect(FLOW).fields[6])
    sent = 0
    while sent < count:
        while sent >= allowed:
            flow = peer.expect(FLOW)
            allowed = int(flow.fields[5]) + int(flow.fields[6])
        peer.send(transfer(0, sent, message(body), settled=True))
        sent += 1


def wait_for_credit(peer: RawPeer) -> None:
    while int(peer.expect(FLOW).fields[6] or 0) == 0:
        pass


def sender(broker: RunningBroker, address: str) -> RawPeer:
    peer = RawPeer(broker.port)
    peer.open_session()
    peer.send(attach("publisher", 0, SENDER, address))
    return peer


@pytest.fixture(scope="module")
def stocked() -> Iterator[RunningBroker]:
    """A broker that holds more than 200 MB in the queue `stock`."""
    with RunningBroker({"memory-limit": "1GiB"}) as broker:
        with sender(broker, "stock") as peer:
            publish(peer, STOCK, b"x" * BODY)
            peer.send(frame(0x18, []))
            peer.read_to_end()
        yield broker
        assert broker.stop() == 0
        assert "Traceback" not in broker.log()


@pytest.fixture
def small() -> Iterator[RunningBroker]:
    """A broker with little memory to give away."""
    with RunningBroker({"memory-limit": SMALL_MEMORY, "max-message-size": "16MiB", "publisher-credit": 50}) as broker:
        yield broker
        assert "Traceback" not in broker.log()


def stalled_consumer(broker: RunningBroker, links: int, first: str = "stock") -> RawPeer:
    """A consumer that asks for everything on each of its links, and never reads its socket again."""
    peer = RawPeer(broker.port, receive_buffer=4096)
    peer.open_session()
    for handle in range(links):
        peer.send(attach(f"consumer-{handle}", handle, RECEIVER, first))
    for _ in range(links):
        peer.expect(ATTACH)
    peer.send(b"".join(credit(handle, 1_000_000) for handle in range(links)))
    return peer


@pytest.mark.parametrize(("links", "bound"), [(1, 12 * MIB), (200, 40 * MIB)])
def test_a_consumer_that_stops_reading_costs_no_memory_and_stops_nobody(
    stocked: RunningBroker, links: int, bound: int
) -> None:
    before = resident_bytes(stocked)
    with stalled_consumer(stocked, links):
        assert quiet(stocked)

        grown = resident_bytes(stocked) - before
        with BlockingClient(stocked.url) as client:
            taken = client.fetch(client.receiver("stock", 50), 50)
            client.send("beside", "goes on")
            assert bodies(client.consume("beside")) == ["goes on"]

        assert grown < bound
        assert len(taken) == 50


@contextmanager
def rude(broker: RunningBroker) -> Iterator[RawPeer]:
    """A client that does not read; what it sends has to be worked through, however long that takes."""
    with RawPeer(broker.port, receive_buffer=4096, timeout_s=PATIENCE_S) as peer:
        peer.open_session()
        yield peer


ASKED_AGAIN = (attach("x" * 200, 0, SENDER, "beside") + frame(DETACH, [proton.uint(0), True])) * 100
"""Each attach and each detach is answered."""


def ask_until_dropped(peer: RawPeer) -> int:
    """How many bytes it sent until then, of 100 MiB at most."""
    for sent in range(0, 100 * MIB, len(ASKED_AGAIN)):
        try:
            peer.send(ASKED_AGAIN)
        except ConnectionError:
            return sent
    raise AssertionError("nobody minds that the answers are not read")


def test_a_client_that_asks_and_never_reads_the_answers_loses_its_connection() -> None:
    settings: dict[str, object] = {"memory-limit": SMALL_MEMORY, "max-message-size": "1MiB"}
    with RunningBroker(settings) as broker, rude(broker) as peer:
        before = resident_bytes(broker)
        ask_until_dropped(peer)
        assert "answers that it does not read" in broker.log()
        assert resident_bytes(broker) - before < 96 * MIB
        with BlockingClient(broker.url) as client:
            client.send("beside", "goes on")
            assert bodies(client.consume("beside")) == ["goes on"]


def test_a_client_that_asks_for_much_lets_others_have_their_turns() -> None:
    """The broker works through megabytes that are there at once a piece at a time."""
    with (
        RunningBroker({"max-message-size": "1MiB"}) as broker,
        rude(broker) as peer,
        BlockingClient(broker.url) as client,
        ThreadPoolExecutor() as pool,
    ):
        sender = client.sender("other")
        flood = pool.submit(ask_until_dropped, peer)
        confirmed = 0
        while not flood.done():
            client.offer(sender, "one at a time")
            confirmed += 1
        assert confirmed > 0.7 * flood.result() / MIB


def test_a_publisher_waits_while_memory_is_full_and_goes_on_when_there_is_room(small: RunningBroker) -> None:
    with sender(small, "full") as peer:
        peer.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            publish(peer, 10 * SMALL_MEMORY // BODY, b"x" * BODY)
        assert "memory-limit is reached" in small.log()

        with sender(small, "full") as newcomer:
            newcomer.socket.settimeout(0.5)
            newcomer.expect(ATTACH)
            with pytest.raises(TimeoutError):
                wait_for_credit(newcomer)
            newcomer.socket.settimeout(LIMIT_S)
            peer.socket.settimeout(LIMIT_S)

            with BlockingClient(small.url) as client:
                receiver = client.receiver("full", 50)
                taken = client.fetch(receiver, 250)
            assert len(taken) == 250

            wait_for_credit(peer)
            wait_for_credit(newcomer)


def test_large_messages_that_are_never_completed_are_bounded_together(small: RunningBroker) -> None:
    """Unfinished messages are memory too: what all connections have begun stays within the limit's reach."""
    before = resident_bytes(small)
    part = b"x" * 65_000
    peers = [sender(small, "unfinished") for _ in range(12)]
    for number, peer in enumerate(peers):
        peer.socket.settimeout(5)
        peer.expect(ATTACH)
        for _ in range(15 * MIB // len(part)):
            try:
                peer.send(transfer(0, 0, part, more=True))
            except OSError:
                break
        assert number < len(peers)
    assert quiet(small)

    grown = resident_bytes(small) - before

    for peer in peers:
        peer.close()
    assert grown < 3 * SMALL_MEMORY
    with BlockingClient(small.url) as client:
        client.send("beside", "goes on")
        assert bodies(client.consume("beside")) == ["goes on"]


def test_a_message_in_many_small_frames_arrives_whole(small: RunningBroker) -> None:
    with sender(small, "slowly") as peer:
        peer.expect(FLOW)
        whole = message(b"y" * 100_000)
        for offset in range(0, len(whole), 1000):
            more = offset + 1000 < len(whole)
            peer.send(transfer(0, 0, whole[offset : offset + 1000], more=more))
        assert peer.expect(DISPOSITION).fields[4].descriptor == 0x24
    with BlockingClient(small.url) as client:
        (received,) = client.consume("slowly")
        assert bytes(received.body) == b"y" * 100_000
