"""What a message says of its group: found as any reader of its properties would find it, whatever way it is written."""

from __future__ import annotations

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paired_engines import PairedBroker
from qpid_ha_broker.amqp.selectors.message_reader import AmqpMessageReader
from qpid_ha_broker.amqp.wire.group_ids import ID_BYTES, WITHOUT_GROUP, group_of, has_group
from qpid_ha_broker.amqp.wire.message_facts import describe_message
from qpid_ha_broker.model.message_reader import GroupProperty

LAST = 0xFFFFFFFF


def encoded(**fields: object) -> bytes:
    message = proton.Message(body=b"x")
    for name, value in fields.items():
        setattr(message, name, value)
    return bytes(message.encode())


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)
"""Proton ends them at a zero."""


@given(
    group=TEXTS,
    sequence=st.sampled_from([0, 1, 255, LAST]),
    subject=st.none() | TEXTS,
    id=st.none() | TEXTS | st.integers(0, 1 << 63),
    annotations=st.none() | st.dictionaries(st.text("ab", min_size=1).map(proton.symbol), TEXTS, max_size=3),
    durable=st.booleans(),
)
def test_a_group_is_found_wherever_it_stands(
    group: str, sequence: int, subject: str | None, id: object, annotations: object, durable: bool
) -> None:
    message = encoded(
        group_id=group, group_sequence=sequence, subject=subject, id=id, annotations=annotations, durable=durable
    )
    name = group.encode()
    found = group_of(message)
    assert has_group(message) is bool(group)
    if not group:
        assert found is None
        return
    assert found is not None
    assert found.is_last is (sequence == LAST)
    assert found.id[:ID_BYTES] == name[:ID_BYTES]
    assert (len(found.id) > ID_BYTES) is (len(name) > ID_BYTES)


@given(st.binary(max_size=80))
def test_any_bytes_have_a_group_or_none(rest: bytes) -> None:
    for payload in (rest, b"\x00Ss" + rest, b"\x00Sp\xc0" + rest, b"\x00Ss\xc0\x40\x0c" + rest):
        found = group_of(payload)
        assert found is None or len(found.id) <= ID_BYTES + 16


@given(st.integers(0, 100))
def test_a_message_that_is_cut_off_has_none_or_its_own(length: int) -> None:
    whole = encoded(group_id="g" * 20, id="i", subject="s")
    found = group_of(whole[:length])
    assert found is None or found.id == b"g" * 20


def test_long_ids_are_told_apart_though_they_begin_alike() -> None:
    ids = [group_of(encoded(group_id="x" * 1_000_000 + end)) for end in "ab"]
    assert ids[0] != ids[1]
    assert [len(found.id) for found in ids if found] == [ID_BYTES + 16] * 2


def test_a_message_with_a_format_or_an_unusual_descriptor_has_its_group_too() -> None:
    plain = encoded(group_id="g")
    assert group_of(b"\x52\x01" + plain) == GroupProperty(b"g", False)
    at = plain.index(b"\x00Ss")
    unusual = plain[:at] + b"\x00\xa3\x14amqp:properties:list" + plain[at + 3 :]
    assert group_of(unusual) == GroupProperty(b"g", False)


@pytest.mark.parametrize("kind", [0xA0, 0xA3])
def test_an_id_that_is_no_text_is_none(kind: int) -> None:
    plain = encoded(group_id="g")
    assert group_of(plain.replace(b"\xa1\x01g", bytes((kind, 1)) + b"g")) is None


def test_only_messages_without_annotations_and_properties_are_surely_without_a_group() -> None:
    assert not {start for start in WITHOUT_GROUP if start[:1] in (b"p", b"q", b"r")}
    assert [start for start in WITHOUT_GROUP if start[:1] == b"s"] == [b"sE"]


@pytest.mark.parametrize("annotations", [None, {proton.symbol("x-opt-jms-msg-type"): 5}])
@pytest.mark.parametrize("long", [False, True])
def test_a_publishers_first_message_of_a_group_is_noticed(annotations: object, long: bool) -> None:
    broker = PairedBroker()
    queue = broker.container.default.configuration.declare_queue("q", {})
    client = broker.connect()
    sender = client.sender("q")
    client.send(sender, proton.Message(body="x", subject="s", creation_time=1.0))
    broker.settle_down()
    before = queue.arguments
    subject = "s" * (300 if long else 1)
    client.send(sender, proton.Message(body="x", subject=subject, group_id="g", annotations=annotations))
    broker.settle_down()
    assert (before.keeps_groups, queue.arguments.keeps_groups) == (False, True)
    assert queue.messages.count == 2


def test_a_tombstone_says_so_in_an_annotation() -> None:
    reader = AmqpMessageReader()
    assert reader.is_tombstone(encoded(annotations={proton.symbol("x-opt-qpid-tombstone"): True}))
    assert not reader.is_tombstone(encoded(annotations={proton.symbol("x-opt-qpid-tombstone"): 1}))
    assert not reader.is_tombstone(encoded())


def test_operators_see_the_same_group() -> None:
    facts = describe_message(encoded(group_id="g", group_sequence=7), 10)
    assert isinstance(facts["properties"], dict)
    assert facts["properties"]["group_id"] == "g"
