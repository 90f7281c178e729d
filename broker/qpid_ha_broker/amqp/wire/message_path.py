"""The way of a message over bridges, in one of its annotations, so that one which comes back is known.

A bridge is a queue here that is filled from a node of another broker, or emptied into one. Each adds itself to what it
carries. The other broker may be of any make: it keeps the annotations of a message, as AMQP demands (section 3.2.3).
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final

from qpid_ha_broker.amqp.wire.annotations import PRODUCER, SEQUENCE
from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.remote_path import MOST_STEPS, Step
from qpid_ha_broker.amqp.wire.sections import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MAX_PAIRS,
    MESSAGE_ANNOTATIONS,
    find_section,
    section_at,
)
from qpid_ha_broker.amqp.wire.values import compound_at, places, simple_value, value_end

MESSAGE_PATH: Final = "x-opt-qpid-remote-path"
NUMBERS: Final = (PRODUCER, SEQUENCE)
"""By these a broker drops the copy of a message that it has; one that goes to two queues there is no copy."""
_MARK: Final = MESSAGE_PATH.encode()
_LONG_TEXT, _SYMBOL = b"\xb1", b"\xa3"
_NULL: Final = b"\x00"


def message_path(payload: bytes) -> tuple[Step, ...]:
    """The bridges that a message came by; empty where no broker of ours has added one. Raises DecodeError."""
    start, end = find_section(payload, MESSAGE_ANNOTATIONS)
    if payload.find(_MARK, start, end) < 0:
        return ()
    for name, at, stop in _entries(payload, start):
        if name == MESSAGE_PATH:
            text = simple_value(payload, at, stop)
            parts = text.split("\n") if isinstance(text, str) else [""]
            if len(parts) % 3 or len(parts) > 3 * MOST_STEPS:
                raise DecodeError(f"message annotation {MESSAGE_PATH}: expected three lines for each bridge")
            return tuple(Step(*parts[first : first + 3]) for first in range(0, len(parts), 3))
    return ()


def with_path(payload: bytes, path: tuple[Step, ...], *, without: Collection[str] = ()) -> bytes:
    """`payload` with that way, and without the annotations of those names; all else stays. Raises DecodeError."""
    start, end = find_section(payload, MESSAGE_ANNOTATIONS)
    if not end:
        start = end = _place_of_annotations(payload)
        kept: list[bytes] = []
    else:
        kept = [
            payload[at : stop + size]
            for name, at, stop, size in _whole_entries(payload, start)
            if name != MESSAGE_PATH and name not in without
        ]
    text = "\n".join(part for step in path for part in step).encode()
    kept.append(_SYMBOL + bytes((len(_MARK),)) + _MARK + _LONG_TEXT + struct.pack("!I", len(text)) + text)
    content = b"".join(kept)
    section = struct.pack("!II", len(content) + 4, 2 * len(kept))
    return payload[:start] + bytes((0, 0x53, MESSAGE_ANNOTATIONS, 0xD1)) + section + content + payload[end:]


def _place_of_annotations(payload: bytes) -> int:
    """Where the section of message annotations belongs in a message without."""
    offset = 0
    while offset < len(payload):
        code, end = section_at(payload, offset)
        if code not in (HEADER, DELIVERY_ANNOTATIONS):
            break
        offset = end
    return offset


def _whole_entries(payload: bytes, start: int) -> list[tuple[object, int, int, int]]:
    """Of each annotation the name, where that begins, where the value begins, and its size."""
    found = compound_at(payload, value_end(payload, start + 1))
    if not found.is_map or found.length % 2 or found.length > 2 * MAX_PAIRS:
        raise DecodeError(f"the message's annotations are no map of at most {MAX_PAIRS} entries")
    bounds = list(places(payload, found, found.length))
    return [
        (simple_value(payload, *name), name[0], value[0], value[1] - value[0])
        for name, value in zip(bounds[::2], bounds[1::2], strict=True)
    ]


def _entries(payload: bytes, start: int) -> list[tuple[object, int, int]]:
    return [(name, at, at + size) for name, _, at, size in _whole_entries(payload, start)]
