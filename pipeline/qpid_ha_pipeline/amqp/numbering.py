"""The number that a producer gives a message: two of its annotations (docs/protocol.md, numbered messages)."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import MESSAGE_ANNOTATIONS, section_at
from qpid_ha_broker.amqp.wire.values import compound_at, is_simple, places, simple_value, value_end
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.typed_json import encoded_as, encoded_bytes, map_of_encoded

PRODUCER: Final = "x-opt-qpid-producer"
SEQUENCE: Final = "x-opt-qpid-sequence"
_COMMON: Final = b"x-opt-qpid-"
_PRODUCER_KEY: Final = encoded_bytes("symbol", PRODUCER.encode())
_SEQUENCE_KEY: Final = encoded_bytes("symbol", SEQUENCE.encode())
_SECTION: Final = bytes((0x00, 0x53, MESSAGE_ANNOTATIONS))

Number = tuple[str, int]
"""A producer's name, and where the message is among those that it sends."""


def renumbered(payload: bytes, number: Number | None = None) -> bytes:
    """The message with this number, in place of one that it had; of all else no byte is another.

    A number of a former producer must not stay: the broker would take the message for a duplicate of itself. Raises
    PipelineError for bytes that are no message, where they have to be looked into.
    """
    if number is None and _COMMON not in payload:
        return payload
    try:
        begin, end, entries = _annotations_in(payload)
    except DecodeError as error:
        raise PipelineError(f"bytes that are no AMQP message: {error}") from None
    others = [entry for name, entry in entries if name not in (PRODUCER, SEQUENCE)]
    if number is None:
        if len(others) == len(entries):
            return payload
    else:
        producer, sequence = number
        others.append(_PRODUCER_KEY + encoded_bytes("string", producer.encode()))
        others.append(_SEQUENCE_KEY + encoded_as("ulong", sequence))
    section = _SECTION + map_of_encoded(others) if others else b""
    return payload[:begin] + section + payload[end:]


def _annotations_in(payload: bytes) -> tuple[int, int, list[tuple[object, bytes]]]:
    """Where the section is, or belongs, and its entries, encoded, with their names. Raises DecodeError."""
    at = 0
    while at < len(payload):
        code, end = section_at(payload, at)
        if code == MESSAGE_ANNOTATIONS:
            return at, end, _entries_at(payload, value_end(payload, at + 1))
        if code > MESSAGE_ANNOTATIONS:
            break
        at = end
    return at, at, []


def _entries_at(payload: bytes, at: int) -> list[tuple[object, bytes]]:
    compound = compound_at(payload, at)
    if not compound.is_map or compound.length % 2:
        raise DecodeError("its annotations are no map")
    bounds = list(places(payload, compound, compound.length))
    return [
        (simple_value(payload, *key) if is_simple(payload[key[0]]) else None, payload[key[0] : value[1]])
        for key, value in zip(bounds[::2], bounds[1::2], strict=True)
    ]
