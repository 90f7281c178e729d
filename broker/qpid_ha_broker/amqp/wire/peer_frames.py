"""How frames go between brokers: as AMQP messages, or by a `FrameStream` where both ends can.

What both ends of a peer channel have in common. As a message, each frame is its one `data` section, and is sent
settled. What is in a frame is nobody's business here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import proton

from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import DECODE_ERROR, MESSAGE_SIZE, TRANSFER_LIMIT, AmqpError, DecodeError
from qpid_ha_broker.amqp.wire.engine import Engine, Sender
from qpid_ha_broker.amqp.wire.frame_stream import MAX_FRAME_BYTES, IdleTimes
from qpid_ha_broker.amqp.wire.sections import APPLICATION_PROPERTIES, section_at

ADDRESS: Final = "$ha"
ADMIN_PROPERTY: Final = "qpid.ha-admin"
PROOF_PROPERTY: Final = "qpid.ha-proof"
"""Of the open: a text by which a broker without a login shows that it is one of the cluster."""
OUR_PRODUCT: Final = "qpid-ha"
"""As brokers call themselves in their open."""
SHARED_CAPABILITY: Final = "qpid.ha-sets"
"""Desired by who opens a connection that carries sub-channels, and offered by a broker that knows what they are."""

CREDIT: Final = 10_000

_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"


def broker_properties(proof: str) -> dict[Any, Any]:
    """Of the open of a broker to another one. `proof` empty: it is known by its login."""
    properties: dict[str, object] = {ADMIN_PROPERTY: True, "product": OUR_PRODUCT}
    if proof:
        properties[PROOF_PROPERTY] = proof
    return {proton.symbol(name): value for name, value in properties.items()}


class Channel(Protocol):
    """One end of a peer channel, whoever opened it: frames go both ways, in order, until it is lost."""

    @property
    def peer(self) -> str:
        """Where the other end is, for log lines."""

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and waits in this process."""

    def send(self, data: bytes) -> None:
        """Send a frame after all others; written at the latest with the end of the turn."""

    def close(self, reason: str) -> None:
        """Say goodbye once all was sent; the listener is not told."""


class FrameCarrier(Protocol):
    """How frames leave one end of a channel. The promise: they are given to the other end's in order, and each once."""

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and waits in this process, but for what the socket has."""

    def send(self, frame: bytes) -> None:
        """Send a frame after all others."""


class MessageCarrier:
    """A `FrameCarrier` by AMQP, on a link: how older releases do it."""

    __slots__ = ("_sender",)

    def __init__(self, link: proton.Link) -> None:
        self._sender = Sender(link)

    @property
    def unsent_bytes(self) -> int:
        """What waits in Proton."""
        return self._sender.unsent_bytes

    def send(self, frame: bytes) -> None:
        """Send a frame after all others."""
        self._sender.send_settled(wrap(frame))


class WaitingFrames:
    """A `FrameCarrier` of a channel that is not open: nobody knows yet how they will go."""

    __slots__ = ("_frames", "unsent_bytes")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self.unsent_bytes = 0

    def send(self, frame: bytes) -> None:
        """Keep it for `pass_on`."""
        self._frames.append(frame)
        self.unsent_bytes += len(frame)

    def pass_on(self, carrier: FrameCarrier) -> None:
        """The channel is open: they go out before all that `carrier` is given."""
        for frame in self._frames:
            carrier.send(frame)


def begin_stream(engine: Engine, receive: Callable[[bytes], None]) -> FrameCarrier | None:
    """Leave AMQP at this end, which has opened its channel: `receive` gets the frames that come by the stream, and what
    comes as messages up to there is for the links. None: one of both ends cannot."""
    stream = engine.input.stream
    if stream is not None:
        own_s, others_s = engine.transport.idle_timeout or 0, engine.transport.remote_idle_timeout or 0
        stream.begin(engine.take_output(), receive, IdleTimes(int(own_s * 1000), int(others_s * 500)))
    return stream


class PeerListener(Protocol):
    """Who is told what happens to a peer channel, whichever end of it."""

    def opened(self, channel: Channel) -> None:
        """Frames can be sent."""

    def received(self, channel: Channel, data: bytes) -> None:
        """A frame came."""

    def closed(self, channel: Channel, reason: str) -> None:
        """The channel is gone, or could not be opened: the last call. Not made for a channel that we closed."""


def wrap(frame: bytes) -> bytes:
    """The message that carries `frame`."""
    if len(frame) < 256:
        return b"".join((_DATA8, len(frame).to_bytes(1, "big"), frame))
    return b"".join((_DATA32, len(frame).to_bytes(4, "big"), frame))


def unwrap(message: bytes) -> bytes:
    """The frame that `message` carries. Raises AmqpError for a message of another form."""
    start = 0 if message[:3] == _DATA8[:3] else _skip_to_body(message)
    form = message[start : start + 4]
    if form == _DATA8:
        at = start + 5
        length = message[at - 1] if len(message) >= at else 0
    elif form == _DATA32:
        at = start + 8
        length = int.from_bytes(message[at - 4 : at], "big")
    else:
        raise AmqpError(DECODE_ERROR, f"{ADDRESS} takes frames: a message with one data section and no other body")
    if len(message) != at + length:
        raise AmqpError(
            DECODE_ERROR, f"expected a data section of {length} bytes to the end, found {len(message) - at}"
        )
    return message[at:]


def _skip_to_body(message: bytes) -> int:
    at = 0
    while at < len(message) and message[at : at + 3] != _DATA8[:3]:
        section, end = section_at(message, at)
        if section > APPLICATION_PROPERTIES:
            break
        at = end
    return at


class FrameIntake:
    """Puts frames together from what comes on a link, and gives the credit back."""

    def __init__(self, link: proton.Link) -> None:
        self._link = link
        self._parts = bytearray()
        self._credit_due = 0
        engine.give_credit(link, CREDIT)

    def partial(self, data: bytes) -> None:
        """A part came. Raises AmqpError when it is too much."""
        if len(self._parts) + len(data) > MAX_FRAME_BYTES:
            self._parts = bytearray()
            raise AmqpError(MESSAGE_SIZE, f"a frame of more than {MAX_FRAME_BYTES} bytes")
        self._parts += data

    def aborted(self) -> bool:
        """The sender took back what it had begun; whether credit was given, which has to be written."""
        self._parts = bytearray()
        return self._replenish()

    def whole(self, payload: bytes) -> tuple[bytes, bool]:
        """The frame whose last part is `payload`, and whether credit was given. Raises AmqpError."""
        if self._parts:
            self.partial(payload)
            payload, self._parts = bytes(self._parts), bytearray()
        elif len(payload) > MAX_FRAME_BYTES:
            raise AmqpError(MESSAGE_SIZE, f"a frame of more than {MAX_FRAME_BYTES} bytes")
        try:
            return unwrap(payload), self._replenish()
        except DecodeError as error:
            raise AmqpError(DECODE_ERROR, f"{ADDRESS} takes frames: {error.description}") from error

    def _replenish(self) -> bool:
        if engine.credit(self._link) < 0:
            raise AmqpError(TRANSFER_LIMIT, f"more frames than the {CREDIT} that there was credit for")
        self._credit_due += 1
        if self._credit_due * 2 < CREDIT:
            return False
        engine.give_credit(self._link, self._credit_due)
        self._credit_due = 0
        return True
