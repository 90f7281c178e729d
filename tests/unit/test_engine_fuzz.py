"""Whatever bytes come in, the broker goes on: no exception, and what a dead client held is there for the next one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paired_engines import PairedBroker, PairedClient
from qpid_ha_broker.amqp.connections.container import ContainerSettings

CORPUS = Path(__file__).parent / "corpus" / "engine"
LIMITS = ContainerSettings(
    "test", "0", max_message_bytes=65536, max_partial_bytes=65536, max_links_per_connection=50, publisher_credit=50
)
STOCK = 20
"""Messages that wait in the queue `stock` before the bytes come."""
RANDOM_ROUNDS = int(os.environ.get("QPID_HA_FUZZ_ROUNDS", "300"))


def stocked_broker() -> PairedBroker:
    """A broker with messages that a client could take, a dead-letter exchange and a topic subscription."""
    broker = PairedBroker(LIMITS)
    configuration = broker.container.default.configuration
    configuration.declare_queue("dead", {})
    configuration.bind("amq.fanout", "dead", "", {})
    configuration.declare_queue("stock", {"qpid.alternate_exchange": "amq.fanout"})
    configuration.declare_queue("matching", {})
    configuration.bind("amq.match", "matching", "all", {"x-match": "all", "colour": "red"})
    client = broker.connect()
    sender = client.sender("stock")
    for number in range(STOCK):
        client.send(sender, proton.Message(body=number, subject=f"s{number}", properties={"colour": "red"}))
    broker.settle_down()
    client.vanish()
    broker.clients.clear()
    return broker


def publish_and_consume(client: PairedClient) -> None:
    sender = client.sender("q")
    client.send(sender, proton.Message(body="x" * 300, subject="s", ttl=60, priority=7, durable=True))
    client.send(sender, proton.Message(body=b"y" * 20_000))
    client.broker.settle_down()
    receiver = client.receiver("stock", 10)
    outcomes = (proton.Delivery.ACCEPTED, proton.Delivery.REJECTED, proton.Delivery.RELEASED, proton.Delivery.MODIFIED)
    for number, (delivery, _) in enumerate(client.received(receiver)):
        if number < 8:
            delivery.update(outcomes[number % 4])
        if number < 6:
            delivery.settle()
    client.broker.settle_down()
    sender.close()
    receiver.drain(100)
    client.broker.settle_down()


def browse_and_select(client: PairedClient) -> None:
    link = client.session.receiver("browser")
    link.source.address = "stock"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    selector = proton.Described(proton.symbol("apache.org:selector-filter:string"), "colour = 'red'")
    link.source.filter.put_object({proton.symbol("selector"): selector})
    link.open()
    link.flow(5)
    client.broker.settle_down()
    client.received(link)
    relay = client.sender(None)
    client.send(relay, proton.Message(body="r", address="amq.match/all", properties={"colour": "red"}))
    client.broker.settle_down()
    dynamic = client.session.receiver("dynamic")
    dynamic.source.dynamic = True
    dynamic.open()
    client.broker.settle_down()
    link.detach()
    client.broker.settle_down()


def manage(client: PairedClient) -> None:
    replies = client.receiver("$management", 10)
    requests = client.sender("$management")
    for operation, name in (("CREATE", "made"), ("READ", "made"), ("QUERY", ""), ("DELETE", "made"), ("NONSENSE", "")):
        message: Any = proton.Message(reply_to="$management", correlation_id=operation, body={})
        message.properties = {"operation": operation, "type": "org.apache.qpid.queue", "name": name}
        client.send(requests, message)
    client.broker.settle_down()
    client.received(replies)


def transact(client: PairedClient) -> None:
    coordinator = client.session.sender("coordinator")
    coordinator.target.type = proton.Terminus.COORDINATOR
    coordinator.open()
    client.broker.settle_down()
    body = proton.Described(proton.symbol("amqp:declare:list"), [])
    declared = client.send(coordinator, proton.Message(body=body))
    client.broker.settle_down()
    transaction_id = bytes(declared.remote.data[0]) if declared.remote.data else b"\0" * 8
    sender = client.sender("q")
    delivery = client.send(sender, proton.Message(body="in a transaction"))
    delivery.local.data = [transaction_id]
    delivery.update(0x34)
    receiver = client.receiver("stock", 2)
    for taken, _ in client.received(receiver):
        accepted = proton.Described(proton.ulong(0x24), [])
        taken.local.data = [transaction_id, accepted]
        taken.update(0x34)
    client.broker.settle_down()
    body = proton.Described(proton.symbol("amqp:discharge:list"), [transaction_id, False])
    client.send(coordinator, proton.Message(body=body))
    client.broker.settle_down()


def take_back(client: PairedClient) -> None:
    """Deliveries that are aborted: see `test_aborted_deliveries`."""
    for address in ("q", "$management", None):
        sender = client.sender(address)
        for number in range(3):
            delivery = sender.delivery(f"aborted-{number}")
            sender.stream(proton.Message(body="x" * 300, address="q").encode()[:200])
            client.broker.settle_down()
            delivery.abort()
        client.send(sender, proton.Message(body="whole", address="q"))
        client.broker.settle_down()


CONVERSATIONS = (publish_and_consume, browse_and_select, manage, transact, take_back)


@cache
def recorded() -> tuple[bytes, ...]:
    """What a client says in each conversation, from its header to its close."""
    found = []
    for converse in CONVERSATIONS:
        broker = stocked_broker()
        client = broker.connect()
        converse(client)
        client.connection.close()
        broker.settle_down()
        broker.check_invariants()
        found.append(bytes(client.sent))
    return tuple(found)


def frames_of(said: bytes) -> list[bytes]:
    """The protocol header and each frame."""
    parts, offset = [said[:8]], 8
    while offset < len(said):
        size = int.from_bytes(said[offset : offset + 4], "big")
        parts.append(said[offset : offset + size])
        offset += size
    return parts


def endure(said: bytes, chunk_sizes: Iterator[int]) -> None:
    """Feed `said` to a broker in pieces, let the client vanish, and look whether anything is missing or stuck."""
    broker = stocked_broker()
    peer = broker.accept()
    offset = 0
    while offset < len(said):
        size = next(chunk_sizes)
        peer.receive(said[offset : offset + size])
        broker.turn()
        peer.take_output()
        offset += size
    peer.engine.tick(1)
    peer.lost()
    broker.turn()
    broker.container.tick()
    check_nothing_is_held(broker)


def check_nothing_is_held(broker: PairedBroker) -> None:
    """No message belongs to a client that is gone, nothing waits for one, and the next client is served."""
    container = broker.container
    broker.check_invariants()
    assert not container.starved
    assert not container.default.draining
    assert not container.default.unconfirmed
    for queue in container.default.resources.catalog.queues.values():
        assert (queue.name, queue.messages.acquired, queue.dispatcher.consumers) == (queue.name, 0, [])
    if "stock" in container.default.resources.catalog.queues:
        client = broker.connect()
        receiver = client.receiver("stock", 1000)
        stock = broker.queue("stock")
        assert stock.messages.acquired == stock.messages.count
        client.vanish()
        assert receiver is not None


def sizes(chance: random.Random) -> Iterator[int]:
    while True:
        yield chance.choice((1, 7, 64, 1000, 5000, 65536))


def mutated(chance: random.Random, said: bytes) -> bytes:
    """Some bytes changed, some frames dropped, doubled, exchanged or cut."""
    frames = frames_of(said)
    for _ in range(chance.randint(0, 3)):
        at, other = chance.randrange(len(frames)), chance.randrange(len(frames))
        change = chance.randrange(4)
        if change == 0:
            frames[at], frames[other] = frames[other], frames[at]
        elif change == 1:
            frames.insert(at, frames[other])
        elif change == 2 and len(frames) > 1:
            del frames[at]
        else:
            spliced = chance.choice(frames_of(chance.choice(recorded())))
            frames.insert(at, spliced)
    result = bytearray(b"".join(frames))
    for _ in range(chance.choice((0, 1, 1, 2, 5, 40))):
        at = chance.randrange(8, len(result)) if len(result) > 9 else 0
        if result:
            flipped = result[at] ^ 1 << chance.randrange(8)
            result[at] = chance.choice((0, 0x40, 0x45, 0x7F, 0x80, 0xFF, chance.randrange(256), flipped))
    cut = len(result) if chance.random() < 0.7 else chance.randrange(len(result) + 1)
    return bytes(result[:cut])


@pytest.mark.parametrize("number", range(len(CONVERSATIONS)), ids=[each.__name__ for each in CONVERSATIONS])
def test_a_recorded_conversation_is_understood_in_any_pieces(number: int) -> None:
    for size in (1, 13, 1 << 20):
        endure(recorded()[number], repeat(size))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.hex")), ids=lambda path: path.stem)
def test_what_was_once_trouble_is_trouble_no_more(path: Path) -> None:
    said = bytes.fromhex(path.read_text(encoding="ascii"))

    endure(said, repeat(1 << 20))
    endure(said, sizes(random.Random(1)))


def test_mutated_conversations_do_no_harm() -> None:
    seed = random.randrange(2**32)
    for number in range(RANDOM_ROUNDS):
        chance = random.Random(seed + number)
        said = mutated(chance, chance.choice(recorded()))
        try:
            endure(said, sizes(chance))
        except Exception as error:
            error.add_note(f"seed {seed + number}; for the corpus: {said.hex()}")
            raise


@given(st.binary(max_size=500), st.booleans())
@settings(deadline=None, max_examples=50)
def test_random_bytes_do_no_harm(said: bytes, with_header: bool) -> None:
    endure((b"AMQP\x00\x01\x00\x00" if with_header else b"") + said, repeat(1 << 20))


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_random_bodies_of_real_frames_do_no_harm(data: st.DataObject) -> None:
    frames = frames_of(data.draw(st.sampled_from(recorded())))
    at = data.draw(st.integers(1, len(frames) - 1))
    body = bytearray(frames[at])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    frames[at] = bytes(body)
    endure(b"".join(frames), repeat(1 << 20))
