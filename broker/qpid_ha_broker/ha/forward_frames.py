"""What travels on a sub-channel on which a broker hands messages on to the primary of a set.

The form of a frame is that of `frame_codec`. `decode` is total: any bytes give a frame or FrameError. docs/protocol.md,
"Forwarded messages", has the table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

from qpid_ha_broker.events.fields import read_text, read_texts, write_text, write_texts
from qpid_ha_broker.ha.frame_codec import Buffer, seal, unseal
from qpid_ha_broker.ha.frames import FrameError

MAX_PRODUCER_BYTES: Final = 0xFFFF


class ForwardKind(IntEnum):
    """The first byte. No other frame of brokers has it."""

    BEGIN = 0x90
    MESSAGE = 0x91
    SKIP = 0x92
    DONE = 0x93
    REFUSED = 0x94


class ForwardCode(StrEnum):
    """Why a message is refused."""

    NOT_PRIMARY = "not-primary"
    """The broker does not lead the set: nothing is lost, and all of it goes to who does. Of no message: number 0."""
    NOT_FOUND = "not-found"
    """One of the queues is not there."""
    FULL = "full"
    NOT_ENOUGH_REPLICAS = "not-enough-replicas"
    REFUSED = "refused"
    """Anything else."""


class ForwardBegin(NamedTuple):
    """The first frame. `producer`: who numbers what follows; of this process and this set alone."""

    producer: bytes


class ForwardMessage(NamedTuple):
    """A message for these queues. The numbers ascend; after a Skip, and on a new sub-channel, they begin again."""

    number: int
    queues: tuple[str, ...]
    durable: bool
    priority: int
    expires_at_ms: int
    """By the clock of `default` (`model.message_clock`); 0: never."""
    producer: bytes
    """As its publisher numbers it; empty: it does not, and `number` of the sub-channel's producer counts."""
    sequence: int
    payload: bytes


class ForwardSkip(NamedTuple):
    """It is known that the message with that number was refused; what was sent before this frame is void."""

    number: int


class ForwardDone(NamedTuple):
    """What has that number or a lower one is committed, unless it was refused."""

    number: int


class ForwardRefused(NamedTuple):
    """The message with that number is not taken, nor is any that follows, before a Skip says that this is known."""

    number: int
    code: ForwardCode
    text: str


ForwardFrame = ForwardBegin | ForwardMessage | ForwardSkip | ForwardDone | ForwardRefused

_MESSAGE: Final = struct.Struct("<QBBQQH")
_U64: Final = struct.Struct("<Q")


def encode(frame: ForwardFrame) -> bytes:
    """The bytes of one frame. Raises ValueError for a value that no frame can hold."""
    try:
        kind, write, _ = _FORMS[type(frame)]
        return seal(kind, write(frame), frame.payload if isinstance(frame, ForwardMessage) else b"")
    except (struct.error, ValueError) as error:
        raise ValueError(f"{type(frame).__name__}: {error}") from error


def decode(data: Buffer) -> ForwardFrame:
    """The frame that `data` is, all of it. Raises FrameError."""
    kind, head, payload = unseal(data)
    read = _READERS.get(kind)
    if read is None:
        raise FrameError(f"expected a frame about forwarded messages, found {kind:#04x}: is the other broker newer?")
    if len(payload) and kind != ForwardKind.MESSAGE:
        raise FrameError(f"{ForwardKind(kind).name}: expected no data, found {len(payload)} bytes")
    try:
        return read(head, payload)
    except (struct.error, ValueError) as error:
        raise FrameError(f"{ForwardKind(kind).name}: {error}") from error


def _write_begin(frame: ForwardBegin) -> bytes:
    if not 0 < len(frame.producer) <= MAX_PRODUCER_BYTES:
        raise ValueError(f"a producer has 1 to {MAX_PRODUCER_BYTES} bytes, found {len(frame.producer)}")
    return frame.producer


def _read_begin(head: memoryview, _: memoryview) -> ForwardBegin:
    if not 0 < len(head) <= MAX_PRODUCER_BYTES:
        raise FrameError(f"expected a producer of 1 to {MAX_PRODUCER_BYTES} bytes, found {len(head)}")
    return ForwardBegin(bytes(head))


def _write_message(frame: ForwardMessage) -> bytes:
    number, queues, durable, priority, expires_at_ms, producer, sequence, _ = frame
    fixed = _MESSAGE.pack(number, durable, priority, expires_at_ms, sequence, len(producer))
    return fixed + producer + write_texts(queues)


def _read_message(head: memoryview, payload: memoryview) -> ForwardMessage:
    number, durable, priority, expires_at_ms, sequence, size = _MESSAGE.unpack_from(head)
    at = _MESSAGE.size + size
    queues, end = read_texts(head, at)
    if end != len(head):
        raise FrameError(f"expected a head of {end} bytes, found {len(head)}")
    if durable > 1:
        raise FrameError(f"expected durable to be 0 or 1, found {durable}")
    producer = bytes(head[_MESSAGE.size : at])
    return ForwardMessage(
        number, queues, bool(durable), priority, expires_at_ms, producer, sequence, bytes(payload)
    )  # fmt: skip


def _write_number(frame: ForwardSkip | ForwardDone) -> bytes:
    return _U64.pack(frame.number)


def _read_skip(head: memoryview, _: memoryview) -> ForwardSkip:
    return ForwardSkip(*_U64.unpack(head))


def _read_done(head: memoryview, _: memoryview) -> ForwardDone:
    return ForwardDone(*_U64.unpack(head))


def _write_refused(frame: ForwardRefused) -> bytes:
    return _U64.pack(frame.number) + write_text(frame.code.value) + write_text(frame.text)


def _read_refused(head: memoryview, _: memoryview) -> ForwardRefused:
    (number,) = _U64.unpack_from(head)
    code, at = read_text(head, _U64.size)
    text, end = read_text(head, at)
    if end != len(head):
        raise FrameError(f"expected a head of {end} bytes, found {len(head)}")
    return ForwardRefused(number, ForwardCode(code), text)


_FORMS: Final[dict[type, tuple[ForwardKind, Callable[[Any], bytes], Any]]] = {
    ForwardBegin: (ForwardKind.BEGIN, _write_begin, _read_begin),
    ForwardMessage: (ForwardKind.MESSAGE, _write_message, _read_message),
    ForwardSkip: (ForwardKind.SKIP, _write_number, _read_skip),
    ForwardDone: (ForwardKind.DONE, _write_number, _read_done),
    ForwardRefused: (ForwardKind.REFUSED, _write_refused, _read_refused),
}
_READERS: Final[dict[int, Callable[[memoryview, memoryview], ForwardFrame]]] = {
    kind: read for kind, _, read in _FORMS.values()
}
