"""What message annotations ask the broker for: to know a message by its producer and number, or to deliver it later.

Nearly all messages ask for neither, and must not pay for it. So one byte is looked at first (does a section of
annotations follow the header at all?), then their bytes are searched for how the names begin, and only then are they
decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, NOT_IMPLEMENTED, AmqpError
from qpid_ha_broker.amqp.wire.sections import (
    MAX_NUMBERED_PAIRS,
    NO_ANNOTATIONS,
    NUMBERED,
    PRODUCER,
    SEQUENCE,
    MessageSections,
    annotations_at,
)
from qpid_ha_broker.amqp.wire.values import is_uuid
from qpid_ha_broker.model.transactions.transaction import Message

DELIVERY_TIME: Final = "x-opt-delivery-time"
"""When a message is due, in milliseconds since the Unix epoch: what JMS calls delayed delivery."""
DELIVERY_DELAY: Final = "x-opt-delivery-delay"
"""The same in milliseconds from now."""
MAX_PRODUCER_BYTES: Final = 128
MAX_SEQUENCE: Final = (1 << 63) - 1

_DELAYED: Final = b"x-opt-delivery-"
_INTEGERS: Final = (
    int, proton.ulong, proton.uint, proton.ushort, proton.ubyte, proton.int32, proton.short, proton.byte,
)  # fmt: skip
"""Exactly these: a boolean, a timestamp and a character are numbers to Python."""


def annotated(
    sections: MessageSections, message: Message, header_bytes: int, *, now_ms: int, with_numbers: bool
) -> Message:
    """`message` with its producer and its number, where its annotations name them.

    For messages that seem to have annotations: see `NO_ANNOTATIONS`. `header_bytes`: so long is its header section.
    Raises AmqpError for what makes no sense, and for a message that is due only after `now_ms`: it would come too soon.
    """
    payload = message.payload
    start, end = annotations_at(payload, header_bytes)
    is_delayed = payload.find(_DELAYED, start, end) >= 0
    if not is_delayed and not (with_numbers and payload.find(NUMBERED, start, end) >= 0):
        return message
    annotations = sections.annotations(payload)
    if is_delayed:
        _check_due(annotations, now_ms)
    if not with_numbers:
        return message
    producer, sequence = annotations.get(PRODUCER), annotations.get(SEQUENCE)
    if producer is None and sequence is None:
        return message
    if len(annotations) > MAX_NUMBERED_PAIRS:
        raise _refusal(PRODUCER, f"at most {MAX_NUMBERED_PAIRS} annotations beside it", f"{len(annotations)} in all")
    return message._replace(producer=_producer(producer), sequence=_sequence(sequence))


def number_of(sections: MessageSections, payload: bytes, now_ms: int) -> tuple[bytes, int] | None:
    """The producer and the number of a message, as its annotations name them; None: none, or nothing that makes sense.

    `now_ms`: as of `annotated`.
    """
    try:
        header_bytes = sections.header(payload).length
        if payload[header_bytes + 2 : header_bytes + 3] in NO_ANNOTATIONS:
            return None
        message = annotated(sections, Message(payload), header_bytes, now_ms=now_ms, with_numbers=True)
    except AmqpError:
        return None
    return (message.producer, message.sequence) if message.producer else None


def _check_due(annotations: Mapping[str, object], now_ms: int) -> None:
    for name, latest_ms in ((DELIVERY_TIME, now_ms), (DELIVERY_DELAY, 0)):
        value = annotations.get(name)
        if value is None:
            continue
        if type(value) not in (*_INTEGERS, proton.timestamp) or not isinstance(value, int):
            raise _refusal(name, "milliseconds", f"{value!r:.80}")
        if value > latest_ms:
            raise AmqpError(
                NOT_IMPLEMENTED, f"{name} asks for delayed delivery, which is not there: send it when it is due"
            )


def _producer(value: object) -> bytes:
    if type(value) in (str, proton.symbol):
        name = str(value).encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes | memoryview):
        name = bytes(value)
    elif is_uuid(value):
        name = str(value).encode()
    else:
        raise _wrong(PRODUCER, "a string, a symbol, a binary or a uuid", value)
    if not 1 <= len(name) <= MAX_PRODUCER_BYTES:
        raise _refusal(PRODUCER, f"1 to {MAX_PRODUCER_BYTES} bytes", f"{len(name)} bytes")
    return name


def _sequence(value: object) -> int:
    if type(value) not in _INTEGERS or not isinstance(value, int) or not 0 <= value <= MAX_SEQUENCE:
        raise _wrong(SEQUENCE, f"an integer from 0 to {MAX_SEQUENCE}", value)
    return int(value)


def _wrong(name: str, expected: str, value: object) -> AmqpError:
    return _refusal(name, expected, f"{value!r:.80}" if value is not None else "nothing: give both or neither")


def _refusal(name: str, expected: str, actual: str) -> AmqpError:
    return AmqpError(INVALID_FIELD, f"message annotation {name}: expected {expected}, found {actual}")
