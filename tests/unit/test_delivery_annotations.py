"""Delivery annotations are for whom they were sent to (AMQP 1.0 section 3.2.2): a broker passes none of them on."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paired_engines import PairedClient
from paired_proxy import paired_broker
from paired_remote import TARGET, PairedRemote
from qpid_ha_broker.amqp.links.bridges import InboundBridge, OutboundBridge
from qpid_ha_broker.amqp.wire.sections import MessageSections, without_delivery_annotations
from raw_peer import described, encoded

SECTIONS = MessageSections()


def annotated(body: str = "body") -> Any:
    """A message with annotations of both kinds, and a header."""
    message = proton.Message(body, ttl=60, annotations={"x-opt-kept": "yes"}, subject="s")
    message.instructions = {"x-opt-for-the-broker": "secret"}
    return message


def check(message: Any) -> None:
    """It has kept what was for its reader, and nothing else."""
    assert dict(message.instructions or {}) == {}
    assert dict(message.annotations) == {"x-opt-kept": "yes"} or "x-opt-qpid-remote-path" in message.annotations
    assert (message.body, message.subject, message.ttl) == ("body", "s", 60)


@pytest.mark.parametrize("kind", ["direct", "proxied"])
@pytest.mark.parametrize("way", ["queue", "exchange", "relay"])
def test_a_consumer_gets_none_of_them(kind: str, way: str) -> None:
    broker = paired_broker(kind)
    configuration = broker.container.default.configuration
    configuration.declare_queue("q", {})
    configuration.bind("amq.fanout", "q", "", {})
    client = PairedClient(broker)
    broker.settle_down()
    message = annotated()
    message.address = "q"
    address = {"queue": "q", "exchange": "amq.fanout", "relay": None}[way]
    client.send_all(client.sender(address), message)
    first = client.receiver("q", 1)
    ((delivery, got),) = client.received(first)
    check(got)
    delivery.update(proton.Delivery.RELEASED)
    delivery.settle()
    broker.settle_down()
    ((_, again),) = client.received(client.receiver("q", 1))
    check(again)


def test_another_broker_gets_none_of_them_and_none_of_its_come_here() -> None:
    remote = PairedRemote()
    client = remote.client()
    sender = client.sender("orders")
    far = remote.answer(credit=5)
    client.send_all(sender, annotated())
    check(_taken(far))
    receiver = client.receiver("orders", 1)
    far = remote.answer()
    _send(remote, far)
    ((_, message),) = client.received(receiver)
    check(message)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_bridges_carry_none_of_them(direction: str) -> None:
    remote = PairedRemote()
    container = remote.here.container
    queue = container.default.configuration.declare_queue("filled", {})
    client = remote.client()
    if direction == "in":
        remote.begin(InboundBridge(container.default, queue, TARGET, remote, container))
        _send(remote, remote.answer())
        ((_, message),) = client.received(client.receiver("filled", 1))
        check(message)
    else:
        client.publish("filled", annotated())
        remote.begin(OutboundBridge(container.default, queue, TARGET, remote, container))
        check(_taken(remote.answer(credit=1)))


def _send(remote: PairedRemote, far: Any) -> None:
    far.delivery("1")
    far.stream(annotated().encode())
    far.advance()
    remote.settle_down()


def _taken(far: Any) -> Any:
    message = proton.Message()
    message.decode(far.recv(far.current.pending))
    return message


def test_unusual_descriptors_are_known_and_what_makes_no_sense_is_passed_on() -> None:
    body = encoded(described(0x77, ["body"]))
    header = encoded(described(0x70, [True]))
    long = b"\x00\x80" + (0x71).to_bytes(8, "big") + encoded({proton.symbol("a"): 1})
    symbolic = encoded(proton.Described(proton.symbol("amqp:delivery-annotations:map"), {proton.symbol("a"): 1}))
    for section in (long, symbolic):
        assert SECTIONS.fresh(header + section + body).endswith(body)
        assert section not in SECTIONS.redelivered(header + section + body, 1)
        assert without_delivery_annotations(section + body) == body
    for broken in (b"\x00Sq\xd1\xff\xff\xff\xff", b"\x00Sq", b"\x00"):
        assert SECTIONS.fresh(header + broken).endswith(broken)
        assert without_delivery_annotations(header + broken) == header + broken


@given(st.binary(max_size=200))
def test_what_has_none_is_not_touched(payload: bytes) -> None:
    whole = proton.Message(payload).encode()
    assert without_delivery_annotations(whole) is whole
    assert isinstance(without_delivery_annotations(payload), bytes)
