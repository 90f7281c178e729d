"""What a message says of its deaths: annotations of the message, and no time to live from before.

The names are those of RabbitMQ (`x-first-death-queue`, ...) with the prefix that AMQP 1.0 wants for annotations which
may be ignored (section 3.2.10). There are seven, however often a message dies: the first death, the last one, and their
count.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, TypeGuard

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.message_changes import (
    text_value,
    timestamp_value,
    ulong_value,
    with_annotations,
    without_field,
)
from qpid_ha_broker.amqp.wire.sections import (
    ABSOLUTE_EXPIRY_FIELD,
    HEADER,
    PRODUCER,
    PROPERTIES,
    SEQUENCE,
    MessageSections,
)
from qpid_ha_broker.model.message_reader import Death

DEATH_COUNT: Final = "x-opt-death-count"
FIRST, LAST = "x-opt-first-death", "x-opt-last-death"
"""With `-queue`, `-reason` and `-time`."""
MAX_COUNT: Final = (1 << 32) - 1

_MAX_TEXT: Final = 1024
_MAX_TIME_MS: Final = (1 << 63) - 1
_TTL_FIELD = 2
"""Place in the header's list (section 3.2.1)."""


def dead_letter(sections: MessageSections, payload: bytes, death: Death) -> bytes:
    """`payload` as it goes on after `death`.

    `ttl` and `absolute-expiry-time` are null, because clients go by them, too, and drop what is over its time: the
    second is the only thing that is changed in what AMQP calls the bare message. What cannot be read is left as it is:
    also such a message is one that dead letters are there for.
    """
    for section, field in ((HEADER, _TTL_FIELD), (PROPERTIES, ABSOLUTE_EXPIRY_FIELD)):
        with suppress(DecodeError):
            payload = without_field(payload, section, field)
    with suppress(DecodeError):
        said = _annotations(sections.annotations(payload), death)
        payload = with_annotations(payload, said, without=(PRODUCER, SEQUENCE))  # with these there may be too many
    return payload


def died_in(sections: MessageSections, payload: bytes) -> str:
    """The queue in which the message says that it died last; empty: it says of none, or cannot be read."""
    try:
        name = sections.annotations(payload).get(f"{LAST}-queue")
    except DecodeError:
        return ""
    return name if _is_text(name) else ""


def _annotations(before: Mapping[str, object], death: Death) -> dict[str, bytes]:
    """Encoded, by name. `before`: those of the message, in which anybody may have written anything."""
    queue, reason, time_ms = text_value(death.queue), text_value(death.reason), timestamp_value(death.time_ms)
    last = {f"{LAST}-queue": queue, f"{LAST}-reason": reason, f"{LAST}-time": time_ms}
    count, first_queue = before.get(DEATH_COUNT), before.get(f"{FIRST}-queue")
    if not (isinstance(count, int) and 0 < count <= MAX_COUNT and _is_text(first_queue)):
        first = {f"{FIRST}-queue": queue, f"{FIRST}-reason": reason, f"{FIRST}-time": time_ms}
        return {**first, **last, DEATH_COUNT: ulong_value(1)}
    first_reason, first_time = before.get(f"{FIRST}-reason"), before.get(f"{FIRST}-time")
    kept = {
        f"{FIRST}-queue": text_value(first_queue),
        f"{FIRST}-reason": text_value(first_reason) if _is_text(first_reason) else reason,
        f"{FIRST}-time": timestamp_value(first_time) if _is_time(first_time) else time_ms,
    }
    return {**kept, **last, DEATH_COUNT: ulong_value(min(count + 1, MAX_COUNT))}


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= _MAX_TEXT


def _is_time(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value <= _MAX_TIME_MS
