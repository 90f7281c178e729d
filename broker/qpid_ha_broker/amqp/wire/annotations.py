"""What a message asks the broker for by its annotations: to know it by its producer and number, or to deliver it later;
and when it expires.

Whatever a client says of times is by the time of day. What is kept is by the message clock of the set
(`model.sets.message_clock`): so far from its reading as what was said is from the time of day.

Nearly all messages ask for neither, and must not pay for it. So one byte is looked at first (does a section of
annotations follow the header at all?), then their bytes are searched for how the names begin, and only then are they
decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, AmqpError, DecodeError
from qpid_ha_broker.amqp.wire.sections import (
    MAX_NUMBERED_PAIRS,
    MAX_PAIRS,
    MESSAGE_ANNOTATIONS,
    NO_ANNOTATIONS,
    NUMBERED,
    PRODUCER,
    SEQUENCE,
    Header,
    MessageSections,
    annotations_at,
    entries_of,
    find_section,
    replace_annotations,
)
from qpid_ha_broker.amqp.wire.values import is_uuid
from qpid_ha_broker.model.sets.message_clock import LAST_MS, MessageClock, SteadyTime
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


class Clocks(NamedTuple):
    """What time it is when a message comes: by the clock of the set to which it comes, and by the broker's own."""

    of_set: MessageClock
    steady: SteadyTime

    @property
    def now_ms(self) -> int:
        """By the clock of the set."""
        return self.of_set.now_ms(self.steady.now_ms())

    def reading_at(self, time_ms: int) -> int:
        """Of the clock of the set, when the time of day is `time_ms`."""
        return self.of_set.now_ms(self.steady.steady_at(time_ms))


def asks_for_something(payload: bytes, start: int, end: int) -> bool:
    """Whether the message annotations from `start` to `end` may say something that `annotated` would find."""
    return payload.find(_DELAYED, start, end) >= 0 or payload.find(NUMBERED, start, end) >= 0


def annotated(
    sections: MessageSections,
    message: Message,
    header_bytes: int,
    clocks: Clocks | None,
    *,
    with_numbers: bool,
    with_delay: bool = True,
) -> Message:
    """`message` with its producer, its number and when it is due, where its annotations say so.

    For messages that seem to have annotations: see `NO_ANNOTATIONS`. `header_bytes`: so long is its header section.
    `clocks` None: nobody wants to know when it is due. `with_delay`: DELIVERY_DELAY counts. Raises AmqpError for what
    makes no sense.
    """
    payload = message.payload
    start, end = annotations_at(payload, header_bytes)
    is_delayed = clocks is not None and payload.find(_DELAYED, start, end) >= 0
    if not is_delayed and not (with_numbers and payload.find(NUMBERED, start, end) >= 0):
        return message
    annotations = sections.annotations(payload)
    if clocks is not None and is_delayed:
        message = message._replace(due_at_ms=_due_at_ms(annotations, clocks, with_delay=with_delay))
    if not with_numbers:
        return message
    producer, sequence = annotations.get(PRODUCER), annotations.get(SEQUENCE)
    if producer is None and sequence is None:
        return message
    if len(annotations) > MAX_NUMBERED_PAIRS:
        raise _refusal(PRODUCER, f"at most {MAX_NUMBERED_PAIRS} annotations beside it", f"{len(annotations)} in all")
    return message._replace(producer=_producer(producer), sequence=_sequence(sequence))


def with_expiry(sections: MessageSections, payload: bytes, header: Header, clocks: Clocks) -> Message:
    """The message `payload`, whose header is `header`, with the time at which it expires: the earlier one of what its
    ttl and its absolute-expiry-time say."""
    expires_at_ms = clocks.now_ms + header.ttl_ms if header.ttl_ms else 0
    if absolute_ms := sections.absolute_expiry(payload, header.length):
        by_clock = clocks.reading_at(absolute_ms)
        expires_at_ms = min(expires_at_ms or by_clock, by_clock)
    return Message(payload, header.durable, header.priority, expires_at_ms)


def without_delay(payload: bytes) -> bytes:
    """`payload` as it goes on to a broker that would have it wait once more; as it is where nothing says so."""
    if payload.find(_DELAYED) < 0:
        return payload
    try:
        start, end = find_section(payload, MESSAGE_ANNOTATIONS)
        if not end:
            return payload
        entries = entries_of(payload, start, MAX_PAIRS)
    except DecodeError:
        return payload
    kept = [payload[name_at : value_at + size] for name, name_at, value_at, size in entries if name != DELIVERY_DELAY]
    return replace_annotations(payload, start, end, kept) if len(kept) < len(entries) else payload


def number_of(sections: MessageSections, payload: bytes) -> tuple[bytes, int] | None:
    """The producer and the number of a message, as its annotations name them; None: none, or none that make sense."""
    try:
        header_bytes = sections.header(payload).length
        if payload[header_bytes + 2 : header_bytes + 3] in NO_ANNOTATIONS:
            return None
        message = annotated(sections, Message(payload), header_bytes, None, with_numbers=True)
    except AmqpError:
        return None
    return (message.producer, message.sequence) if message.producer else None


def _due_at_ms(annotations: Mapping[str, object], clocks: Clocks, *, with_delay: bool) -> int:
    """By the message clock; 0: at once."""
    time_ms, delay_ms = (_milliseconds(annotations, name) for name in (DELIVERY_TIME, DELIVERY_DELAY))
    if time_ms is not None and delay_ms is not None:
        raise _refusal(DELIVERY_TIME, f"either this or {DELIVERY_DELAY}", "both")
    if time_ms:
        return clocks.reading_at(time_ms)
    if not (delay_ms and with_delay):
        return 0
    due_at_ms = clocks.now_ms + delay_ms
    if due_at_ms > LAST_MS:
        raise _refusal(DELIVERY_DELAY, "a time before the year 10000", f"{delay_ms} ms from now")
    return due_at_ms


def _milliseconds(annotations: Mapping[str, object], name: str) -> int | None:
    value = annotations.get(name)
    if value is None:
        return None
    if type(value) not in (*_INTEGERS, proton.timestamp) or not isinstance(value, int) or not 0 <= value <= LAST_MS:
        raise _refusal(name, f"milliseconds, from 0 to {LAST_MS}", f"{value!r:.80}")
    return int(value)


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
