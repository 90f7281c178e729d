"""The way of a message over bridges, in one of its annotations, so that one which comes back is known.

A bridge is a queue here that is filled from a node of another broker, or emptied into one. Each adds itself to what it
carries. The other broker may be of any make: it keeps the annotations of a message, as AMQP demands (section 3.2.3).
"""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.message_changes import text_value, with_annotations
from qpid_ha_broker.amqp.wire.remote_path import MOST_STEPS, Step
from qpid_ha_broker.amqp.wire.sections import MAX_PAIRS, MESSAGE_ANNOTATIONS, entries_of, find_section
from qpid_ha_broker.amqp.wire.values import simple_value

MESSAGE_PATH: Final = "x-opt-qpid-remote-path"
_MARK: Final = MESSAGE_PATH.encode()


def message_path(payload: bytes) -> tuple[Step, ...]:
    """The bridges that a message came by; empty where no broker of ours has added one. Raises DecodeError."""
    start, end = find_section(payload, MESSAGE_ANNOTATIONS)
    if payload.find(_MARK, start, end) < 0:
        return ()
    for name, _, at, size in entries_of(payload, start, MAX_PAIRS):
        if name == MESSAGE_PATH:
            text = simple_value(payload, at, at + size)
            parts = text.split("\n") if isinstance(text, str) else [""]
            if len(parts) % 3 or len(parts) > 3 * MOST_STEPS:
                raise DecodeError(f"message annotation {MESSAGE_PATH}: expected three lines for each bridge")
            return tuple(Step(*parts[first : first + 3]) for first in range(0, len(parts), 3))
    return ()


def with_path(payload: bytes, path: tuple[Step, ...]) -> bytes:
    """`payload` with that way; all else stays. Raises DecodeError."""
    text = "\n".join(part for step in path for part in step)
    return with_annotations(payload, {MESSAGE_PATH: text_value(text)})
