"""Which producer a message is from, and which number it has: two of its message annotations.

Nearly all messages have neither, and must not pay for it. So one byte is looked at first (does a section of annotations
follow the header at all?), then their bytes are searched for how both names begin, and only then are they decoded.
"""

from __future__ import annotations

from typing import Final

import proton

from qpid_ha_broker.amqp.conditions import INVALID_FIELD, AmqpError
from qpid_ha_broker.amqp.sections import MESSAGE_ANNOTATIONS, MessageSections, find_section
from qpid_ha_broker.amqp.values import value_of
from qpid_ha_broker.model.transaction import Message

PRODUCER: Final = "x-opt-qpid-producer"
SEQUENCE: Final = "x-opt-qpid-sequence"
MAX_PRODUCER_BYTES: Final = 128
MAX_SEQUENCE: Final = (1 << 63) - 1

_BEGINNING: Final = b"x-opt-qpid-"
_SHORT_MAP: Final = bytes((0, 0x53, MESSAGE_ANNOTATIONS, 0xC1))
_LONG_MAP: Final = bytes((0, 0x53, MESSAGE_ANNOTATIONS, 0xD1))
"""How the section begins in nearly every message that has one; its size follows, in one byte or in four."""
_INTEGERS: Final = (
    int, proton.ulong, proton.uint, proton.ushort, proton.ubyte, proton.int32, proton.short, proton.byte,
)  # fmt: skip
"""Exactly these: a boolean, a timestamp and a character are numbers to Python."""


def _type_of(encoded: bytes) -> type:
    data = proton.Data()
    data.decode(encoded)
    return type(value_of(data))


_UUID: Final = _type_of(b"\x98" + bytes(16))
"""What Proton makes of a uuid: its module is not for pure packages, for it can also make new ones."""


def numbered(sections: MessageSections, message: Message, header_bytes: int = 0) -> Message:
    """`message` with its producer and its number, where its annotations name them.

    For messages that seem to have annotations: see `NO_ANNOTATIONS`. `header_bytes`: so long is its header section.
    Raises AmqpError for what makes no sense.
    """
    payload, start = message.payload, header_bytes
    beginning = payload[start : start + 4]
    if beginning == _LONG_MAP:
        end = start + 8 + int.from_bytes(payload[start + 4 : start + 8], "big")
    elif beginning == _SHORT_MAP:
        end = start + 5 + int.from_bytes(payload[start + 4 : start + 5], "big")
    else:
        start, end = find_section(payload, MESSAGE_ANNOTATIONS)
    if payload.find(_BEGINNING, start, end) < 0:
        return message
    annotations = sections.annotations(payload)
    producer, sequence = annotations.get(PRODUCER), annotations.get(SEQUENCE)
    if producer is None and sequence is None:
        return message
    return message._replace(producer=_producer(producer), sequence=_sequence(sequence))


def _producer(value: object) -> bytes:
    if type(value) in (str, proton.symbol):
        name = str(value).encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes | memoryview):
        name = bytes(value)
    elif isinstance(value, _UUID):
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


def _refusal(name: str, expected: str, found: str) -> AmqpError:
    return AmqpError(INVALID_FIELD, f"message annotation {name}: expected {expected}, found {found}")
