"""Reading messages: what is in them comes out, and whatever else comes in is a named error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.sections import Header, MessageSections, _from, encode_header, without_number

HEADER, PROPERTIES, APPLICATION_PROPERTIES, DATA = 0x70, 0x73, 0x74, 0x75
DEEP = 100_000

Reader = Callable[[MessageSections, bytes], object]
READERS: list[Reader] = [
    lambda sections, payload: sections.header(payload),
    lambda sections, payload: sections.fresh(payload),
    lambda sections, payload: sections.redelivered(payload, 3),
    lambda sections, payload: sections.routing_key(payload),
    lambda sections, payload: sections.to(payload),
    lambda sections, payload: sections.properties(payload),
    lambda sections, payload: sections.selector_value(payload, "JMSPriority"),
    lambda sections, payload: sections.selector_value(payload, "JMSMessageID"),
    lambda sections, payload: sections.selector_value(payload, "colour"),
]


def encoded(value: object) -> bytes:
    data = proton.Data()
    data.put_object(value)
    return bytes(data.encode())


def section(code: int, value: Any) -> bytes:
    return encoded(proton.Described(proton.ulong(code), value))


def nested_lists(depth: int) -> bytes:
    """A list in a list in a list; legal, and deeper than any program needs."""
    inside, levels = 1, []
    for _ in range(depth):
        levels.append(b"\xd0" + (inside + 4).to_bytes(4, "big") + (1).to_bytes(4, "big"))
        inside += 9
    return b"".join(reversed(levels)) + b"\x45"


def read_everything(payload: bytes) -> list[AmqpError]:
    """Read in every way; returns the refusals. Any other exception is a failure."""
    refusals = []
    for read in READERS:
        try:
            read(MessageSections(), payload)
        except AmqpError as error:
            refusals.append(error)
    return refusals


def a_message() -> bytes:
    properties: Any = {"colour": "red", "size": 3}
    message: Any = proton.Message(body="news", subject="weather", address="q", durable=True, priority=7, ttl=1.5)
    message.delivery_count = 2
    message.properties = properties
    return bytes(message.encode())


def test_what_a_client_wrote_is_what_we_read() -> None:
    sections, payload = MessageSections(), a_message()

    header = sections.header(payload)

    assert (header.durable, header.priority, header.ttl_ms, header.delivery_count) == (True, 7, 1500, 2)
    assert sections.routing_key(payload) == "weather"
    assert sections.to(payload) == "q"
    assert sections.properties(payload) == {"colour": "red", "size": 3}
    assert sections.selector_value(payload, "size") == 3


def test_a_message_without_a_header_has_the_standards_defaults() -> None:
    payload = section(DATA, b"x")

    header = MessageSections().header(payload)

    assert header == Header(False, 4, 0, 0, 0, header.fresh)


def test_a_second_delivery_is_marked_and_counted_and_nothing_else_changes() -> None:
    sections, payload = MessageSections(), a_message()
    again = proton.Message()

    again.decode(sections.redelivered(payload, 3))

    assert (again.first_acquirer, again.delivery_count) == (False, 5)
    assert (again.durable, again.priority, again.subject, again.body) == (True, 7, "weather", "news")


@pytest.mark.parametrize(("given", "sent"), [(False, False), (True, True), (None, True)])
def test_a_message_that_its_publisher_marks_as_seen_before_goes_out_marked(given: bool | None, sent: bool) -> None:
    """Only who says it marks a message: to say nothing is what nearly every client does."""
    header = proton.Data()
    header.put_object(proton.Described(proton.ulong(0x70), [None, None, None, given, None]))
    payload = bytes(header.encode()) + b"\x00\x53\x77\x40"  # and a body of null
    again: Any = proton.Message()
    again.decode(MessageSections().fresh(payload))
    assert again.first_acquirer is sent


def test_a_delivery_count_at_its_end_stays_there() -> None:
    payload = encode_header(False, 4, 0, True, 0xFFFFFFFF) + section(DATA, b"x")
    again = proton.Message()

    again.decode(MessageSections().redelivered(payload, 1))

    assert again.delivery_count == 0xFFFFFFFF


def test_a_property_behind_a_large_body_is_not_looked_for() -> None:
    """Sections come in order: once the body has begun there are no properties any more."""
    unreadable_body = b"\x00\x53\x75\xb0\xff\xff\xff\xff"

    assert MessageSections().properties(section(PROPERTIES, ["id"]) + unreadable_body) == {}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        b"\x00S",
        b"\x00Sp",
        b"\x00Sp\xc0",
        b"\x00Sp\xc0\xff\x05",
        b"\x00Sp\xd0\xff\xff\xff\xff\x00\x00\x00\x05",
        section(HEADER, {"durable": True}),
        section(HEADER, [True, "high"]),
        section(HEADER, [True, float("inf")]),
        section(HEADER, [True, -1]),
        section(HEADER, [True, 4, 2**40]),
        section(HEADER, [True, 4, None, True, [1]]),
        b"\x00Ss" + nested_lists(DEEP),
        b"\x00Ss" + nested_lists(2000),
        section(HEADER, [True]) + b"\x00Ss" + nested_lists(2000),
        b"\x00" * DEEP + b"\x40",
        b"\x00St" + encoded({proton.symbol("x"): 1}).replace(b"x", b"\xff"),
        b"\x00St\xc1\x05\x02\x45\x45\x45\x45",
        b"\x00\xa3\x03abc\x45",
        b"\x00\xa3\x03\xff\xff\xff\x45",
        b"\x00\x45\x45",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=lambda payload: payload[:16].hex() or "empty",
)
def test_what_is_no_message_is_refused_by_name_or_read_as_far_as_it_goes(payload: bytes) -> None:
    for error in read_everything(payload):
        assert error.name == "amqp:decode-error"


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(payload: bytes) -> None:
    read_everything(payload)


@given(st.lists(st.tuples(st.integers(0x6F, 0x79), st.binary(max_size=40)), max_size=4))
def test_random_bytes_dressed_as_sections_raise_nothing_else(parts: list[tuple[int, bytes]]) -> None:
    read_everything(b"".join(b"\x00S" + bytes((code,)) + value for code, value in parts))


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@given(st.lists(st.tuples(st.integers(0x70, 0x78), VALUES), max_size=4))
def test_any_values_in_any_section_raise_nothing_else(parts: list[tuple[int, object]]) -> None:
    read_everything(b"".join(section(code, value) for code, value in parts))


@given(st.data())
def test_a_good_message_with_a_few_wrong_bytes_raises_nothing_else(data: st.DataObject) -> None:
    payload = bytearray(a_message())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    read_everything(bytes(payload[: data.draw(st.integers(0, len(payload)))]))


def test_the_cache_of_headers_stays_small() -> None:
    sections = MessageSections()
    for ttl_ms in range(1, 3000):
        sections.header(encode_header(False, 4, ttl_ms, True, 0) + section(DATA, b"x"))

    assert len(sections._headers) <= 1024


# --- what a publisher can make us do


class Counted(bytes):
    """Bytes that tell how often something was read of them."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        Counted.reads += 1
        return super().__getitem__(key)


def long_list(code: int, beginning: bytes, count: int, rest: int) -> bytes:
    """A section that is a list of `count` encoded values and `rest` nulls."""
    values = beginning + b"\x40" * rest
    size = (len(values) + 4).to_bytes(4, "big") + (count + rest).to_bytes(4, "big")
    return b"\x00\x53" + bytes((code,)) + b"\xd0" + size + values


def reads_of(read: Reader, payload: bytes) -> int:
    Counted.reads = 0
    read(MessageSections(), Counted(payload))
    return Counted.reads


@pytest.mark.parametrize(
    ("read", "code", "beginning"),
    [
        (READERS[0], HEADER, b"\x41\x50\x04"),
        (READERS[3], PROPERTIES, b"\x40\x40\x40\xa1\x01k"),
        (READERS[7], PROPERTIES, b"\xa1\x01k"),
    ],
    ids=["header", "subject", "message id"],
)
def test_of_a_long_list_only_the_fields_are_read_that_mean_something(read: Reader, code: int, beginning: bytes) -> None:
    """A megabyte of nulls would keep everybody waiting for half a second."""
    few, many = (long_list(code, beginning, 4, rest) + section(DATA, b"x") for rest in (10, 1_000_000))
    assert reads_of(read, many) <= reads_of(read, few) + 5


@pytest.mark.parametrize("read", [READERS[5], READERS[8]], ids=["properties", "selector"])
def test_a_map_with_too_many_entries_is_refused_before_it_is_read(read: Reader) -> None:
    payload = section(APPLICATION_PROPERTIES, {str(number): number for number in range(1001)}) + section(DATA, b"x")
    with pytest.raises(AmqpError, match="1001 entries; 1000 are allowed"):
        read(MessageSections(), payload)
    assert MessageSections().header(payload).length == 0


def test_long_headers_are_not_remembered() -> None:
    sections = MessageSections()
    for number in range(10):
        sections.header(long_list(HEADER, b"\x41\x50\x04", 2, 100_000 + number) + section(DATA, b"x"))
    assert sections._headers == {}


def test_simple_values_of_every_type_are_read_as_proton_reads_them() -> None:
    values: dict[Any, Any] = {
        "null": None, "yes": True, "no": False, "ubyte": proton.ubyte(200), "byte": proton.byte(-3),
        "ushort": proton.ushort(60_000), "short": proton.short(-300), "uint0": proton.uint(0),
        "smalluint": proton.uint(7), "uint": proton.uint(2**31), "int": proton.int32(-(2**31)),
        "smallint": proton.int32(-1),
        "ulong0": proton.ulong(0), "smallulong": proton.ulong(9), "ulong": proton.ulong(2**63), "long": -(2**62),
        "smalllong": 5, "float": proton.float32(1.5), "double": 2.25, "char": proton.char("x"),
        "timestamp": proton.timestamp(1_700_000_000_000), "binary": b"\x00\xff", "text": "żółw", "long text": "x" * 300,
        "symbol": proton.symbol("s"), "decimal": proton.decimal64(5),
    }  # fmt: skip
    found = MessageSections().properties(section(APPLICATION_PROPERTIES, values))
    assert {name: (type(value), value) for name, value in found.items() if not isinstance(value, int | float)} == {
        name: (type(value), value) for name, value in values.items() if not isinstance(value, int | float)
    }
    assert found == values


def test_the_number_of_a_message_is_taken_off_however_it_is_written_and_nothing_else_is() -> None:
    producer, sequence = b"\xa3\x13x-opt-qpid-producer", b"\xa3\x13x-opt-qpid-sequence"
    body, other = b"\x00Sw\xa1\x01x", b"\xa3\x01y\x41"
    number = [producer + b"\xa1\x01p", sequence + b"\x53\x07"]
    in_a_text = b"\xa3\x01z\xa1\x13x-opt-qpid-producer"
    for entries, kept in (
        (number, []),
        (number[::-1], []),
        ([producer + b"\xb1\0\0\0\x01p", sequence + b"\x80" + bytes(8)], []),
        ([b"\xb3\0\0\0\x13x-opt-qpid-producer\xa1\x01p", number[1]], []),
        ([b"\xa1" + producer[1:] + b"\xa1\x01p", number[1]], []),
        ([*number, other], [other]),
        ([other, number[0], in_a_text, number[1]], [other, in_a_text]),
        ([in_a_text], [in_a_text]),
    ):
        for is_long in (False, True):
            width = 4 if is_long else 1

            def annotations(found: list[bytes], width: int = width) -> bytes:
                content = b"".join(found)
                sizes = (len(content) + width).to_bytes(width, "big") + (2 * len(found)).to_bytes(width, "big")
                return b"\x00Sr" + (b"\xd1" if width == 4 else b"\xc1") + sizes + content

            for header in (b"", b"\x00SpE", b"\x00Sp\xc0\x02\x01\x41"):
                message: Any = proton.Message()
                message.decode(MessageSections().fresh(header + annotations(entries) + body))
                expected = proton.Message()
                expected.decode((annotations(kept) if kept else b"") + body)
                assert (message.body, message.annotations) == (expected.body, expected.annotations)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_what_is_no_annotations_is_sent_on_as_it_is(rest: bytes, behind: bytes) -> None:
    for start in (b"\x00Sr\xd1", b"\x00Sr\xc1", b"\x00Sr", b"\x00Sp\xc0\x0f\x01\xa1\x0bx-opt-qpid-\x00Sr\xc1"):
        payload = start + rest + b"x-opt-qpid-producer" + behind
        assert without_number(payload).endswith(behind)
        assert _from(payload, 0).endswith(behind)
