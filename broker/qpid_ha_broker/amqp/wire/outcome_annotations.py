"""What consumers say of messages that they give back: the message annotations of modified (AMQP 1.0 section 3.4.5).

They are kept beside the message, whose bytes stay as they came, and merged into its own when it goes out again: of a
name that comes twice the newer value counts. Here they are always encoded, as one map; empty bytes: none.

A consumer may not say what the broker would take for its own word, or for its publisher's: names that mean something to
a broker are left out. What is kept is bounded, because one disposition may be about very many messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import proton

from qpid_ha_broker.amqp.wire.annotations import DELIVERY_DELAY, DELIVERY_TIME
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, RESOURCE_LIMIT, AmqpError, DecodeError
from qpid_ha_broker.amqp.wire.dead_letters import DEATH_COUNT, FIRST, LAST
from qpid_ha_broker.amqp.wire.engine import Outcome
from qpid_ha_broker.amqp.wire.message_changes import place_of_annotations
from qpid_ha_broker.amqp.wire.sections import (
    DESTINATION_KIND,
    MAX_PAIRS,
    MESSAGE_ANNOTATIONS,
    NUMBERED,
    PRODUCER,
    SEQUENCE,
    find_section,
    replace_annotations,
)
from qpid_ha_broker.amqp.wire.values import compound_at, places, simple_value, value_end

MAX_BYTES: Final = 8 * 1024
MAX_ENTRIES: Final = 100
"""Of all that consumers have said of one message."""

_SHORT_SYMBOL, _LONG_SYMBOL, _NULL = 0xA3, 0xB3, b"\x40"
_ULONGS: Final = (0x80, 0x53, 0x44)
_OURS: Final = (NUMBERED, f"{FIRST}-".encode(), f"{LAST}-".encode())
"""How names begin that brokers of this kind write, or read."""
_OURS_WHOLE: Final = frozenset(
    name.encode() for name in (DEATH_COUNT, DESTINATION_KIND, DELIVERY_TIME, DELIVERY_DELAY)
)  # fmt: skip
_NUMBER: Final = (PRODUCER.encode(), SEQUENCE.encode())
_MAP: Final = b"\xd1"


def encoded(annotations: object) -> bytes:
    """Of a value that was decoded. Raises AmqpError for what cannot be encoded."""
    data = proton.Data()
    try:
        data.put_object(annotations)
        return b"" if annotations is None else bytes(data.encode())
    except (proton.ProtonException, ArithmeticError, TypeError, ValueError) as error:
        raise _refusal(f"these cannot be read: {error}") from error


def checked(annotations: bytes) -> bytes:
    """What a consumer said, as far as it may. Raises AmqpError for too much, and for what is no map of annotations."""
    if annotations in (b"", _NULL):
        return b""
    if len(annotations) > MAX_BYTES:
        raise _too_much(f"{len(annotations)} bytes")
    try:
        return _map({name: entry for name, entry in _entries(annotations, 0, MAX_ENTRIES) if not _is_ours(name)})
    except DecodeError as error:
        raise _refusal(error.description) from error


def merged(before: bytes, added: bytes) -> bytes:
    """What was said before, and what is said now: both are `checked`. Raises AmqpError where that is too much."""
    if not (before and added):
        return before or added
    both = dict(_entries(before, 0, MAX_ENTRIES)) | dict(_entries(added, 0, MAX_ENTRIES))
    together = _map(both)
    if len(both) > MAX_ENTRIES or len(together) > MAX_BYTES:
        raise _too_much(f"{len(both)} annotations of {len(together)} bytes, with those that were said before")
    return together


def annotated(payload: bytes, annotations: bytes) -> bytes:
    """The message with these among its own, in the place of those of the same names, and without its number.

    As it is where it cannot be read, or would have more than `MAX_PAIRS`: whoever reads it has to be able to. The
    number is taken off because that is done of few annotations alone when a message goes out: `MAX_NUMBERED_PAIRS`.
    """
    try:
        said = dict(_entries(annotations, 0, MAX_ENTRIES))
        start, end = find_section(payload, MESSAGE_ANNOTATIONS)
        kept: list[bytes] = []
        if end:
            own = _entries(payload, value_end(payload, start + 1), MAX_PAIRS)
            kept = [entry for name, entry in own if name not in said and name not in _NUMBER]
        else:
            start = end = place_of_annotations(payload)
        entries = [*kept, *said.values()]
        return replace_annotations(payload, start, end, entries) if len(entries) <= MAX_PAIRS else payload
    except DecodeError:
        return payload


def checked_outcome(outcome: Outcome) -> tuple[Outcome, AmqpError | None]:
    """What somebody said of a message, as far as it may be said of one; and what is wrong with the rest of it."""
    if not outcome.annotations:
        return outcome, None
    try:
        return outcome._replace(annotations=checked(outcome.annotations)), None
    except AmqpError as error:
        return outcome._replace(annotations=b""), error


def _entries(data: bytes, at: int, most: int) -> Iterator[tuple[object, bytes]]:
    """Of the map at `at`, each name, and its bytes with those of its value: see `_name`. Raises DecodeError."""
    compound = compound_at(data, at)
    if not compound.is_map or compound.length % 2 or compound.length > 2 * most:
        raise DecodeError(f"expected a map of at most {most} entries")
    bounds = iter(list(places(data, compound, compound.length)))
    for (name_at, value_at), (_, end) in zip(bounds, bounds, strict=True):
        yield _name(data[name_at:value_at]), data[name_at:end]


def _name(name: bytes) -> object:
    """Bytes for a symbol, an integer for a ulong: alike for whatever is the same to AMQP. For anything else what equals
    neither."""
    code = name[0]
    if code == _SHORT_SYMBOL:
        return name[2:]
    if code == _LONG_SYMBOL:
        return name[5:]
    return simple_value(name, 0, len(name)) if code in _ULONGS else (name,)


def _is_ours(name: object) -> bool:
    """Raises DecodeError for what is no name of an annotation."""
    if isinstance(name, int):
        return False
    if not (isinstance(name, bytes) and name.isascii()):
        raise DecodeError("expected symbols or ulongs as the names of annotations")
    return name.startswith(_OURS) or name in _OURS_WHOLE


def _map(entries: Mapping[object, bytes]) -> bytes:
    if not entries:
        return b""
    content = b"".join(entries.values())
    return _MAP + (len(content) + 4).to_bytes(4, "big") + (2 * len(entries)).to_bytes(4, "big") + content


def _refusal(why: str) -> AmqpError:
    return AmqpError(INVALID_FIELD, f"the message-annotations of modified: {why}")


def _too_much(actual: str) -> AmqpError:
    most = f"at most {MAX_ENTRIES} annotations of {MAX_BYTES} bytes are kept for a message"
    return AmqpError(RESOURCE_LIMIT, f"the message-annotations of modified: {most}, found {actual}")
