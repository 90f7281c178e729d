"""Stories about the annotations with which a producer names itself and numbers its messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest
from proton import Delivery, symbol

from paired_engines import PairedBroker, PairedClient
from qpid_ha_broker.amqp.wire.annotations import annotated as read_annotations
from qpid_ha_broker.amqp.wire.sections import MessageSections
from qpid_ha_broker.model.transactions.transaction import Message

PRODUCER, SEQUENCE = symbol("x-opt-qpid-producer"), symbol("x-opt-qpid-sequence")


@pytest.fixture
def broker() -> PairedBroker:
    return PairedBroker()


def annotated(body: str = "x", **more: Any) -> proton.Message:
    """`producer` and `sequence`, where they are given."""
    message = proton.Message(body=body)
    names = {"producer": PRODUCER, "sequence": SEQUENCE}
    message.annotations = {names[name]: value for name, value in more.items()}
    return message


def offer(client: PairedClient, link: Any, message: proton.Message) -> Any:
    delivery = client.send(link, message)
    client.broker.settle_down()
    return delivery


def read(message: proton.Message) -> Message:
    return read_annotations(MessageSections(), Message(message.encode()), 0, None, with_numbers=True)


@pytest.mark.parametrize(
    ("producer", "name"),
    [
        ("orders", b"orders"),
        (symbol("orders"), b"orders"),
        (b"\x00\xff", b"\x00\xff"),
        ("é", "é".encode()),
        (UUID(int=7), b"00000000-0000-0000-0000-000000000007"),
        ("n" * 128, b"n" * 128),
    ],
)
def test_a_producer_may_be_text_a_symbol_bytes_or_a_uuid(producer: object, name: bytes) -> None:
    found = read(annotated(producer=producer, sequence=proton.ulong(1)))
    assert (found.producer, found.sequence) == (name, 1)


@pytest.mark.parametrize(
    "sequence",
    [
        0, 5, 2**63 - 1, proton.ulong(5), proton.uint(5), proton.ushort(5), proton.ubyte(5), proton.int32(5),
        proton.short(5), proton.byte(5),
    ],
)  # fmt: skip
def test_a_sequence_may_be_any_integer_that_is_not_negative(sequence: int) -> None:
    found = read(annotated(producer="p", sequence=sequence))
    assert found.sequence == sequence
    assert type(found.sequence) is int


def test_the_rest_of_a_message_and_other_annotations_are_left_alone() -> None:
    message: Any = annotated(producer="p", sequence=1)
    message.annotations[symbol("x-opt-other")] = "y"
    message.properties = {"colour": "red"}
    message.durable, message.priority, message.subject = True, 9, "s"
    payload = message.encode()
    found = read_annotations(MessageSections(), Message(payload, True, 9, 77), 0, None, with_numbers=True)
    assert found == Message(payload, True, 9, 77, b"p", 1)


@pytest.mark.parametrize("filler", [0, 300])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("instructions", [None, {symbol("x-opt-hop"): 1}])
def test_annotations_are_found_behind_whatever_comes_before_them_and_of_any_size(
    broker: PairedBroker, client: PairedClient, filler: int, durable: bool, instructions: dict[Any, Any] | None
) -> None:
    message: Any = annotated(producer="p", sequence=1)
    message.annotations[symbol("x-opt-filler")] = "y" * filler
    message.durable, message.instructions = durable, instructions
    link = client.sender("q")
    for _ in range(2):
        assert offer(client, link, message).remote_state == Delivery.ACCEPTED
    assert broker.queue("q").messages.count == 1


def test_annotations_in_a_short_map_are_found_too(broker: PairedBroker, client: PairedClient) -> None:
    """Proton's client writes long ones, others short ones."""
    names = b"\xa3\x13x-opt-qpid-producer\xa1\x01p\xa3\x13x-opt-qpid-sequence\x53\x05"
    link = client.sender("q")
    for _ in range(2):
        client.send(link, b"\x00\x53\x72\xc1" + bytes((len(names) + 1, 4)) + names + b"\x00\x53\x77\xa1\x01x")
        broker.settle_down()
    assert (broker.queue("q").messages.count, broker.container.default.resources.deduplication.dropped_total) == (1, 1)


@pytest.mark.parametrize("annotations", [None, {symbol("x-opt-qpid-other"): 1}, {symbol("x-opt-jms-dest"): "q"}])
def test_a_message_with_neither_has_no_number(annotations: dict[Any, Any] | None) -> None:
    message = proton.Message(body="x-opt-qpid-producer")
    message.annotations = annotations
    assert read(message).producer == b""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"producer": "p"}, "x-opt-qpid-sequence: expected an integer from 0 to 9223372036854775807, found nothing"),
        ({"sequence": 1}, "x-opt-qpid-producer: expected a string, a symbol, a binary or a uuid, found nothing"),
        ({"producer": 7, "sequence": 1}, "found 7"),
        ({"producer": proton.char("p"), "sequence": 1}, "found "),
        ({"producer": "", "sequence": 1}, "expected 1 to 128 bytes, found 0 bytes"),
        ({"producer": "é" * 65, "sequence": 1}, "130 bytes"),
        ({"producer": "p", "sequence": -1}, "found -1"),
        ({"producer": "p", "sequence": proton.ulong(2**63)}, "x-opt-qpid-sequence"),
        ({"producer": "p", "sequence": True}, "found True"),
        ({"producer": "p", "sequence": 1.0}, "found 1.0"),
        ({"producer": "p", "sequence": "1"}, "found '1'"),
        ({"producer": "p", "sequence": proton.timestamp(1)}, "x-opt-qpid-sequence"),
    ],
)
def test_annotations_that_make_no_sense_are_rejected_with_the_reason(
    broker: PairedBroker, client: PairedClient, given: dict[str, Any], text: str
) -> None:
    delivery = offer(client, client.sender("q"), annotated(**given))
    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.name == "amqp:invalid-field"
    assert text in delivery.remote.condition.description
    assert broker.queue("q").messages.count == 0


def test_what_is_sent_twice_is_accepted_twice_and_queued_once(broker: PairedBroker, client: PairedClient) -> None:
    link = client.sender("q")
    first, again, plain = (
        offer(client, link, message)
        for message in (
            annotated("a", producer="p", sequence=1),
            annotated("a", producer="p", sequence=1),
            proton.Message(body="b"),
        )
    )
    assert [each.remote_state for each in (first, again, plain)] == [Delivery.ACCEPTED] * 3
    assert broker.queue("q").messages.count == 2
    assert broker.container.default.resources.deduplication.dropped_total == 1


def test_with_de_duplication_off_even_senseless_annotations_mean_nothing(
    broker: PairedBroker, client: PairedClient
) -> None:
    broker.container.default.resources.deduplication.producers = 0
    link = client.sender("q")
    for message in (annotated(producer="p", sequence=1), annotated(producer="p", sequence=1), annotated(sequence="?")):
        assert offer(client, link, message).remote_state == Delivery.ACCEPTED
    assert broker.queue("q").messages.count == 3


def test_a_settled_duplicate_is_dropped_without_a_word(broker: PairedBroker, client: PairedClient) -> None:
    link = client.sender("q")
    broker.container.take_notices()
    for _ in range(2):
        client.send(link, annotated(producer="p", sequence=1)).settle()
    broker.settle_down()
    assert broker.queue("q").messages.count == 1
    assert broker.container.take_notices() == []
