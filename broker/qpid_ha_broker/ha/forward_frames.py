"""What travels on a sub-channel on which a broker hands messages on to the primary of a set.

The form of a frame is that of `sealed_frames`. docs/protocol.md, "Forwarded messages", has the table.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from qpid_ha_broker.events.fields import BYTES, TEXT, TEXTS, TRUTH, U8, U64, bytes_to_end, checked
from qpid_ha_broker.events.forms import Form
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.ha.sealed_frames import Buffer, FrameTable

MAX_PRODUCER_BYTES: Final = 0xFFFF


class ForwardKind(IntEnum):
    """The first byte. No other frame of brokers has it."""

    BEGIN = 0x90
    MESSAGE = 0x91
    SKIP = 0x92
    DONE = 0x93
    REFUSED = 0x94
    SCHEDULED = 0x95


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
    due_at_ms: int = 0
    """By the clock of `default`; 0: at once. With this it is another kind of frame."""


class _ForwardMessageAtOnce(NamedTuple):
    """A ForwardMessage without `due_at_ms`, as every release reads it."""

    number: int
    queues: tuple[str, ...]
    durable: bool
    priority: int
    expires_at_ms: int
    producer: bytes
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

_NUMBER: Final = {"number": U64}
_MESSAGE: Final = {
    "durable": TRUTH, "priority": U8, "expires_at_ms": U64, "sequence": U64, "producer": BYTES, "queues": TEXTS,
}  # fmt: skip
_FRAMES: Final[FrameTable[ForwardFrame | _ForwardMessageAtOnce]] = FrameTable(
    "a frame about forwarded messages",
    {
        ForwardKind.BEGIN: Form(ForwardBegin, {"producer": bytes_to_end(1, MAX_PRODUCER_BYTES)}),
        ForwardKind.MESSAGE: Form(_ForwardMessageAtOnce, {**_NUMBER, **_MESSAGE}, payload="payload"),
        ForwardKind.SCHEDULED: Form(ForwardMessage, {**_NUMBER, "due_at_ms": U64, **_MESSAGE}, payload="payload"),
        ForwardKind.SKIP: Form(ForwardSkip, _NUMBER),
        ForwardKind.DONE: Form(ForwardDone, _NUMBER),
        ForwardKind.REFUSED: Form(ForwardRefused, {**_NUMBER, "code": checked(TEXT, ForwardCode), "text": TEXT}),
    },
)


def encode(frame: ForwardFrame) -> bytes:
    """See `FrameTable.encode`."""
    is_at_once = isinstance(frame, ForwardMessage) and not frame.due_at_ms
    return _FRAMES.encode(_ForwardMessageAtOnce(*frame[:-1]) if is_at_once else frame)


def decode(data: Buffer) -> ForwardFrame:
    """See `FrameTable.decode`."""
    frame = _FRAMES.decode(data)
    if isinstance(frame, _ForwardMessageAtOnce):
        return ForwardMessage(*frame)
    if isinstance(frame, ForwardMessage) and not frame.due_at_ms:
        raise FrameError("SCHEDULED: due_at_ms: expected a time, found 0")
    return frame
