"""What the broker changes in a message: annotations that it adds, and fields that do not hold any more.

The bytes of other sections, and of other values in the same one, are copied: nothing is decoded and encoded again.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Final

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import (
    DELIVERY_ANNOTATIONS,
    FORMAT,
    HEADER,
    MAX_PAIRS,
    MESSAGE_ANNOTATIONS,
    entries_of,
    find_section,
    replace_annotations,
    section_at,
)
from qpid_ha_broker.amqp.wire.values import compound_at, places, value_end

_SYMBOL, _LONG_TEXT, _ULONG, _TIMESTAMP, _NULL = b"\xa3", b"\xb1", b"\x80", b"\x83", b"\x40"
_LONG_LIST: Final = 0xD0


def text_value(text: str) -> bytes:
    """A string, encoded."""
    encoded = text.encode("utf-8", "replace")
    return _LONG_TEXT + struct.pack("!I", len(encoded)) + encoded


def ulong_value(number: int) -> bytes:
    """A ulong, encoded."""
    return _ULONG + struct.pack("!Q", number)


def timestamp_value(time_ms: int) -> bytes:
    """A timestamp, encoded: milliseconds since the Unix epoch."""
    return _TIMESTAMP + struct.pack("!q", time_ms)


def with_annotations(payload: bytes, added: Mapping[str, bytes], *, without: Collection[str] = ()) -> bytes:
    """`payload` with these message annotations, by name, in place of those of the same names, and without others.

    `added` has encoded values. Raises DecodeError, also where there would be more than `MAX_PAIRS`.
    """
    start, end = find_section(payload, MESSAGE_ANNOTATIONS)
    if not end:
        start = end = place_of_annotations(payload)
        kept: list[bytes] = []
    else:
        kept = [
            payload[at : stop + size]
            for name, at, stop, size in entries_of(payload, start, MAX_PAIRS)
            if name not in added and name not in without
        ]
    for name, value in added.items():
        symbol = name.encode("ascii")
        kept.append(_SYMBOL + bytes((len(symbol),)) + symbol + value)
    if len(kept) > MAX_PAIRS:
        raise DecodeError(f"a message has {len(kept)} annotations; {MAX_PAIRS} are allowed")
    return replace_annotations(payload, start, end, kept)


def without_field(payload: bytes, section: int, field: int) -> bytes:
    """`payload` with null for a field of a section that is a list, by its place in it. Raises DecodeError."""
    start, end = find_section(payload, section)
    if not end:
        return payload
    list_at = value_end(payload, start + 1)
    compound = compound_at(payload, list_at)
    if compound.is_map or compound.length <= field:
        return payload
    *_, (at, stop) = places(payload, compound, field + 1)
    if payload[at:stop] == _NULL:
        return payload
    is_long = payload[list_at] == _LONG_LIST
    form, size_at = struct.Struct("!I" if is_long else "!B"), list_at + 1
    size = form.pack(form.unpack_from(payload, size_at)[0] - (stop - at - 1))
    return payload[:size_at] + size + payload[size_at + form.size : at] + _NULL + payload[stop:]


def place_of_annotations(payload: bytes) -> int:
    """Where the section of message annotations belongs in a message without."""
    offset = 0
    while offset < len(payload):
        code, end = section_at(payload, offset)
        if code not in (FORMAT, HEADER, DELIVERY_ANNOTATIONS):
            break
        offset = end
    return offset
