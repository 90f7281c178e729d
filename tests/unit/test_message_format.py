"""`message-format` of transfers: what a publisher says of a message is what its consumer hears, and 0 costs nothing."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paired_engines import PairedBroker, PairedClient
from paired_failover import FailingOver
from paired_links import subscribe
from paired_proxy import PairedProxy
from paired_remote import TARGET, PairedRemote
from qpid_ha_broker.amqp.links.bridges import InboundBridge, OutboundBridge
from qpid_ha_broker.amqp.links.management_link import ManagementLink
from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.dead_letters import dead_letter
from qpid_ha_broker.amqp.wire.message_format import FormatReader, FormatWriter
from qpid_ha_broker.amqp.wire.sections import MessageSections, with_message_id
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.payloads import format_of, with_format, without_format
from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.model.message_reader import Death, DeathReason
from qpid_ha_broker.model.transactions.transaction import Message, Publish, Transaction

BATCH = 0x80013700
BODY = b"\x00\x53\x75\xa0\x03one"
PROTOCOL = b"AMQP\x00\x01\x00\x00"


def uint(number: int) -> bytes:
    return (
        b"\x43" if not number else b"\x52" + bytes((number,)) if number < 256 else b"\x70" + struct.pack(">I", number)
    )


def true_or_false(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def frame(performative: bytes, payload: bytes = b"", channel: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(performative) + len(payload), 2, kind, channel) + performative + payload


def listed(code: int, *fields: bytes, wide: bool = False) -> bytes:
    content = b"".join(fields)
    if wide:
        return b"\x00\x53" + bytes((code,)) + b"\xd0" + struct.pack(">II", len(content) + 4, len(fields)) + content
    return b"\x00\x53" + bytes((code, 0xC0, len(content) + 1, len(fields))) + content


def transfer(
    payload: bytes,
    message_format: int | None = BATCH,
    *,
    number: int = 0,
    handle: int = 0,
    more: bool = False,
    aborted: bool = False,
    wide: bool = False,
    channel: int = 0,
) -> bytes:
    """A frame, by hand: Proton has no way to say the format."""
    said = b"\x40" if message_format is None else uint(message_format)
    flags = [true_or_false(False), true_or_false(more)]
    if aborted:
        flags += [b"\x40", b"\x40", b"\x42", b"\x41"]
    tag = b"\xa0\x01" + bytes((number % 256,))
    return frame(listed(0x14, uint(handle), uint(number), tag, said, *flags, wide=wide), payload, channel)


def formats_in(output: bytes) -> list[tuple[int, bytes]]:
    """Format and payload of each transfer among frames that were written."""
    found, at = [], 0
    while at < len(output):
        if output[at : at + 4] == b"AMQP":
            at += 8
            continue
        size = struct.unpack_from(">I", output, at)[0]
        text = output[at + 8 : at + size]
        if text[:3] == b"\x00\x53\x14":
            data = proton.Data()
            end = data.decode(text)
            data.rewind()
            data.next()
            performative: Any = data.get_object()
            found.append((int(performative.value[3] or 0), text[end:]))
        at += size
    return found


class Wire:
    """A client whose frames can be seen."""

    def __init__(
        self, broker: PairedBroker | PairedProxy, client: PairedClient | None = None, *, is_deaf: bool = False
    ) -> None:
        """`is_deaf`: Proton's client hears nothing from now on."""
        self.client = client or broker.client() if isinstance(broker, PairedProxy) else broker.connect()
        self.broker = broker
        self.heard: list[bytes] = []
        take_output = self.client.peer.take_output

        def recorded() -> bytes:
            output = take_output()
            self.heard.append(output)
            return b"" if is_deaf else output

        self.client.peer.take_output = recorded  # type: ignore[method-assign]

    def send(self, *frames: bytes, settle: Any = None) -> None:
        """Let these arrive, whatever Proton's client thinks of it."""
        for each in frames:
            self.client.peer.receive(each)
        (settle or self.broker.settle_down)()

    @property
    def transfers(self) -> list[tuple[int, bytes]]:
        return formats_in(b"".join(self.heard))


def published(broker: PairedBroker, address: str, *frames: bytes) -> Wire:
    wire = Wire(broker)
    wire.client.sender(address)
    wire.send(*frames)
    return wire


def received(broker: PairedBroker, address: str, **options: Any) -> list[tuple[int, bytes]]:
    """Format of what a new consumer gets, and the body."""
    wire = Wire(broker)
    link = subscribe(wire.client, address, **options)
    link.flow(100)
    broker.settle_down()
    return [(number, payload[-len(BODY) :]) for number, payload in wire.transfers]


@pytest.mark.parametrize("message_format", [1, 255, 256, BATCH, 0xFFFFFFFF])
@pytest.mark.parametrize("wide", [False, True])
def test_a_message_is_delivered_with_the_format_that_it_was_sent_with(message_format: int, wide: bool) -> None:
    broker = PairedBroker()
    published(
        broker,
        "q",
        transfer(BODY, message_format, wide=wide),
        transfer(BODY, 0, number=1, wide=wide),
        transfer(BODY, None, number=2, wide=wide),
        transfer(BODY, message_format, number=3, wide=wide),
    )
    assert received(broker, "q") == [(number, BODY) for number in (message_format, 0, 0, message_format)]


def test_a_browser_and_a_second_consumer_hear_it_too() -> None:
    broker = PairedBroker()
    published(broker, "q", transfer(BODY))
    assert received(broker, "q", browse=True) == [(BATCH, BODY)]
    wire = Wire(broker)
    wire.client.receiver("q", 1)
    wire.client.vanish()
    broker.settle_down()
    assert received(broker, "q") == [(BATCH, BODY)]


def test_every_subscriber_of_an_exchange_hears_it() -> None:
    broker = PairedBroker()
    wires = [Wire(broker) for _ in range(2)]
    for wire in wires:
        wire.client.receiver("amq.fanout", 10)
    published(broker, "amq.fanout", transfer(BODY))
    assert [[number for number, _ in wire.transfers] for wire in wires] == [[BATCH], [BATCH]]


def test_of_a_message_in_several_frames_the_first_says_it_also_where_each_repeats_it() -> None:
    broker = PairedBroker()
    for number, repeated in enumerate((BATCH, None)):
        parts = [BODY[:2], BODY[2:5], BODY[5:]]
        frames = [transfer(parts[0], number=0, more=True), transfer(parts[1], repeated, more=True)]
        published(broker, f"q{number}", *frames, transfer(parts[2], repeated), transfer(BODY, 7, number=1))
        assert received(broker, f"q{number}") == [(BATCH, BODY), (7, BODY)]


def test_an_aborted_message_or_an_ended_link_leaves_nothing_to_the_next() -> None:
    begun, following = transfer(BODY[:2], more=True), transfer(BODY, 7, number=1)
    ends = transfer(b"", None, aborted=True), frame(listed(0x16, uint(0), b"\x41")), frame(listed(0x17))
    for end in ends:
        whole, _ = fed([begun, end, following])
        assert formats_in(whole)[-1] == (0, with_format(BODY, 7))


def test_a_large_message_is_sent_in_frames_of_which_the_first_has_the_format() -> None:
    broker = PairedBroker()
    content = with_format(b"", BATCH) * 60_000
    body = b"\x00\x53\x75\xb0" + struct.pack(">I", len(content)) + content
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    last = len(pieces) - 1
    published(broker, "q", *[transfer(each, more=at < last) for at, each in enumerate(pieces)])
    wire = Wire(broker, is_deaf=True)
    wire.client.receiver("q", 1)
    formats = [number for number, _ in wire.transfers]
    assert formats == [BATCH] + [0] * (len(formats) - 1)
    assert b"".join(payload for _, payload in wire.transfers).endswith(body)
    assert len(formats) > 1


@pytest.mark.parametrize("missing", [0, 1, 4])
def test_a_frame_as_large_as_may_be_is_taken(missing: int) -> None:
    broker = PairedBroker()
    room = 64 * 1024 - len(transfer(b"")) - missing
    body = b"\x00\x53\x75\xb0" + struct.pack(">I", room - 8) + bytes(room - 8)
    published(broker, "q", transfer(body))
    assert len(transfer(body)) == 64 * 1024 - missing
    assert [entry.resident_body() for entry in broker.queue("q").messages] == [with_format(body, BATCH)]


def test_it_is_in_the_log_in_front_of_the_message_and_nothing_is_where_it_is_0() -> None:
    broker = PairedBroker()
    log = broker.container.default.resources.replicated.log
    log.add_witness("test")
    published(broker, "q", transfer(BODY), transfer(BODY, 0, number=1))
    records = [record.event for batch in broker.batches for record in decode(batch.data).records]
    payloads = [event.payload for event in records if isinstance(event, Enqueued)]
    assert payloads == [with_format(BODY, BATCH), BODY]


def test_a_client_of_a_proxy_hears_what_the_publisher_at_another_has_said() -> None:
    proxied = PairedProxy()
    proxied.primary.container.default.configuration.declare_queue("q", {})
    publisher = Wire(proxied, proxied.client(container="p"))
    link = publisher.client.session.sender("link")
    link.target.address = "q"
    link.open()
    proxied.settle_down()
    publisher.send(transfer(BODY), transfer(BODY, 0, number=1), settle=proxied.settle_down)
    consumer = Wire(proxied, proxied.client(container="c"))
    link = subscribe(consumer.client, "q")
    link.flow(10)
    proxied.settle_down()
    assert [number for number, _ in consumer.transfers] == [BATCH, 0]


def test_it_is_what_the_next_primary_says_too() -> None:
    world = FailingOver()
    world.leader.declare("q")
    publisher = Wire(world, world.client(container="p"))
    publisher.client.sender("q")
    publisher.send(transfer(BODY), transfer(BODY, 0, number=1))
    world.fail_over()
    consumer = Wire(world, world.client(container="c"))
    subscribe(consumer.client, "q").flow(10)
    world.settle_down()
    assert [number for number, _ in consumer.transfers] == [BATCH, 0]


@pytest.fixture
def bridged() -> PairedRemote:
    """With a queue `q` here."""
    paired = PairedRemote(product="qpid-ha")
    paired.here.container.default.configuration.declare_queue("q", {})
    return paired


def test_a_bridge_brings_it_from_another_broker(bridged: PairedRemote) -> None:
    default = bridged.here.container.default
    bridged.begin(InboundBridge(default, bridged.here.queue("q"), TARGET, bridged, bridged.here.container))
    bridged.answer()
    bridged.say(transfer(BODY))
    assert received(bridged.here, "q") == [(BATCH, BODY)]


def test_a_bridge_takes_it_to_another_broker(bridged: PairedRemote) -> None:
    published(bridged.here, "q", transfer(BODY))
    assert bridged.upstream is not None
    heard, take_output = list[bytes](), bridged.upstream.take_output

    def recorded() -> bytes:
        heard.append(take_output())
        return heard[-1]

    bridged.upstream.take_output = recorded  # type: ignore[method-assign]
    default = bridged.here.container.default
    bridged.begin(OutboundBridge(default, bridged.here.queue("q"), TARGET, bridged, bridged.here.container))
    bridged.answer(10)
    assert [number for number, _ in formats_in(b"".join(heard))] == [BATCH]


def test_a_message_of_a_transaction_is_delivered_with_its_format() -> None:
    broker = PairedBroker()
    published(broker, "q", transfer(BODY))
    queue = broker.queue("q")
    (entry,) = queue.messages
    transaction = Transaction()
    transaction.publish(Publish(queue, Message(entry.resident_body()), ""))
    broker.container.default.resources.commit(transaction, broker.container.now_ms)
    assert [number for number, _ in received(broker, "q")] == [BATCH, BATCH]


def test_what_a_request_says_of_its_format_is_of_no_concern() -> None:
    broker = PairedBroker()
    wire = Wire(broker)
    replies = wire.client.receiver("$management", 10)
    wire.client.sender("$management")
    request: Any = proton.Message(reply_to="$management", correlation_id=1)
    request.properties = {"operation": "GET-TYPES"}
    endpoint = next(end for end in wire.client.peer.links if isinstance(end, ManagementLink))
    assert endpoint is not None
    wire.send(transfer(bytes(request.encode()), handle=1))
    ((_, reply),) = wire.client.received(replies)
    assert reply.properties["statusCode"] == 200


# --- the sections of such a message


def test_all_that_reads_or_changes_a_message_finds_its_sections_behind_the_format() -> None:
    sent: Any = proton.Message("a", durable=True, ttl=2, subject="s", properties={"p": 1}, annotations={"x": 1})
    sections, payload = MessageSections(), with_format(bytes(sent.encode()), BATCH)
    header = sections.header(payload)
    assert (header.durable, header.ttl_ms) == (True, 2000)
    assert (sections.routing_key(payload), sections.properties(payload)) == ("s", {"p": 1})
    changed = [
        sections.fresh(payload),
        sections.redelivered(payload, 3),
        with_message_id(sections.fresh(payload), 7),
        dead_letter(sections, payload, Death("q", DeathReason.REJECTED, 0)),
    ]
    for each in changed:
        assert format_of(each) == format_of(payload)
        again: Any = proton.Message()
        again.decode(without_format(each))
        assert (again.body, again.subject, again.properties, again.annotations["x"]) == ("a", "s", {"p": 1}, 1)
    bare = with_format(BODY, BATCH)
    assert sections.fresh(bare) == with_format(sections.fresh(BODY), BATCH)
    assert sections.properties(bare) == {}


@pytest.mark.parametrize(
    "payload", [with_format(with_format(BODY, 1), 1), b"\x71\x00\x00\x00\x07" + BODY, with_format(b"", 7)[:1]]
)
def test_what_is_no_format_in_front_of_a_message_is_no_message(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        MessageSections().header(payload)


# --- frames


frames = st.one_of(
    st.builds(
        transfer,
        st.binary(max_size=20),
        st.sampled_from([None, 0, 1, 300, BATCH]),
        number=st.integers(0, 300),
        handle=st.sampled_from([0, 1, 300]),
        more=st.booleans(),
        aborted=st.booleans(),
        wide=st.booleans(),
        channel=st.integers(0, 1),
    ),
    st.just(frame(b"")),
    st.just(frame(listed(0x16, uint(0), b"\x41"))),
    st.just(frame(listed(0x17))),
    st.just(frame(listed(0x13, b"\x40", uint(100), b"\x43", uint(100)))),
    st.just(PROTOCOL),
    st.just(frame(listed(0x40, b"\x40"), kind=1)),
)


def fed(pieces: Sequence[bytes]) -> tuple[bytes, FormatReader]:
    reader = FormatReader(1 << 16)
    return b"".join(bytes(reader.feed(memoryview(piece))) for piece in pieces), reader


@given(st.lists(frames, max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_frames_come_out_whole_however_they_are_cut(all_frames: list[bytes], sizes: list[int]) -> None:
    data, pieces, at, turn = b"".join(all_frames), list[bytes](), 0, 0
    while at < len(data):
        pieces.append(data[at : at + sizes[turn % len(sizes)]])
        at, turn = at + sizes[turn % len(sizes)], turn + 1
    whole, _ = fed([data])
    assert fed(pieces)[0] == whole
    assert fed(all_frames)[0] == whole
    assert len(formats_in(whole)) == len(formats_in(data))
    changed = [
        (before, after) for before, after in zip(formats_in(data), formats_in(whole), strict=True) if before != after
    ]
    for (number, payload), (_, kept) in changed:
        assert kept == with_format(payload, number)


@given(st.lists(frames, max_size=8), st.binary(min_size=8, max_size=50))
def test_what_has_no_format_or_is_no_amqp_is_passed_on_as_it_came(all_frames: list[bytes], noise: bytes) -> None:
    data = b"".join(each for each in all_frames if not any(number for number, _ in formats_in(each)))
    assert fed([data])[0] == data
    hello = b"\x16\x03\x01\x02\x00" + noise
    assert fed([hello[:3], hello[3:], data])[0] == hello + data


@pytest.mark.parametrize("noise", [b"\x15\x03\x03\x00\x02\x02\x28", b"HTTP/1.1 400", b"\x00\x00\x00\x07"])
def test_what_begins_as_no_frame_is_not_waited_for(noise: bytes) -> None:
    """As the alert of TLS with which a server refuses a client."""
    assert fed([noise])[0] == noise


@pytest.mark.parametrize("number", range(0, 60, 7))
def test_nothing_is_held_back_that_is_no_frame(number: int) -> None:
    reader = FormatReader(4096)
    huge = frame(b"\x00\x53\x14\xd0" + struct.pack(">II", 3000, 4), bytes(3000))[: 1100 + number]
    out = b"".join(bytes(reader.feed(huge[at : at + 100])) for at in range(0, len(huge), 100))
    assert len(out) >= 1024


def test_only_a_message_that_has_the_section_is_written_with_a_format() -> None:
    writer = FormatWriter()
    looks_like_it = transfer(with_format(BODY, 5), 0, number=3)
    assert writer.rewrite(looks_like_it) == looks_like_it
    writer.expect(b"\x03", with_format(BODY, 5))
    other = transfer(with_format(BODY, 5), 0, number=4)
    assert writer.rewrite(other) == other
    assert formats_in(writer.rewrite(PROTOCOL + other + looks_like_it)) == [(0, with_format(BODY, 5)), (5, BODY)]
    assert writer.rewrite(looks_like_it) == looks_like_it


def test_a_frame_is_never_larger_with_a_format_than_proton_has_written_it() -> None:
    for wide in (False, True):
        writer = FormatWriter()
        plain = transfer(with_format(BODY, BATCH), 0, wide=wide)
        writer.expect(b"\x00", with_format(BODY, BATCH))
        assert len(writer.rewrite(plain)) < len(plain)


def test_a_client_can_read_what_is_written_for_it() -> None:
    broker = PairedBroker()
    published(broker, "q", transfer(BODY))
    client = broker.connect()
    link = client.receiver("q", 1)
    ((_, message),) = client.received(link)
    assert bytes(message.body) == b"one"
