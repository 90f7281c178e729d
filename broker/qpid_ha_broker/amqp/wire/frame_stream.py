"""Frames between brokers as they are, one behind the other: the short way, beside that of AMQP's messages.

The two ends of a peer channel meet by AMQP: login, open, attach, and all that can be refused there. Who opens the
connection desires `STREAM_CAPABILITY`, who takes it offers it; then each of them, as soon as the channel is open at its
end, writes `HEADER` where an AMQP frame would begin, and from there on nothing but what is below. An older release
neither desires nor offers it, and goes on with AMQP. What is in a frame is nobody's business here.

| bytes | |
| --- | --- |
| 4 | how many follow, in network order; 0: nothing does, the sender is there (its idle time-out) |
| 1 | kind: 1 a frame, 2 the end |
| the rest | the frame; or why the sender ends the connection, in UTF-8: an AMQP condition, `: `, its description |

Bytes that come make frames, an end, or `AmqpError`, however they are cut. Without a socket and without a clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, FRAMING_ERROR, MESSAGE_SIZE, AmqpError

STREAM_CAPABILITY: Final = "qpid.ha-stream"
"""Of the open: desired by who opens the connection, and offered by who takes it, if both can speak the stream."""
HEADER: Final = b"AMQP\x48\x01\x00\x00"
"""A protocol header as those of AMQP 1.0 section 2.2: a protocol id that it has not given to anybody, and a version."""
MAX_FRAME_BYTES: Final = 132 * 1024 * 1024
"""The largest frame: one of `sealed_frames`, or a bundle around it, with the sections of a message."""

_SIZE: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">IB")
_FRAME, _END = 1, 2
_HEARTBEAT: Final = _SIZE.pack(0)
_KIND_BYTES: Final = _HEAD.size - _SIZE.size
_REASON_MOST: Final = 4096
"""Characters of a reason that the other end has given."""
_SILENT: Final = "nothing came for longer than the idle time-out"


class StreamEnds(Protocol):
    """Who is told that a stream ends: see `engine.Handler`."""

    def closed(self) -> None: ...
    def failed(self, name: str, description: str) -> None: ...
    def malformed(self, name: str, description: str) -> None: ...


class IdleTimes(NamedTuple):
    """Idle time-outs in milliseconds, 0: none (AMQP 1.0 section 2.4.5)."""

    silence_ms: int
    """Ours: when nothing came for so long, the other end is lost."""
    pace_ms: int
    """The other end has to hear of us that often."""


class IdleWatch:
    """The promise: what is told by `tick` is what Proton tells of an AMQP connection with the same times: a heartbeat
    is due when nothing was sent for `pace_ms`, the other end is lost when nothing came for `silence_ms`."""

    def __init__(self, times: IdleTimes) -> None:
        self._times = times
        self._heard = self._said = True
        """Something came, or went, since the last look."""
        self._lost_at_ms = self._due_at_ms = 0

    def heard(self) -> None:
        """Something came."""
        self._heard = True

    def said(self) -> None:
        """Something was sent that was no heartbeat."""
        self._said = True

    def tick(self, now_ms: int) -> tuple[bool, bool, int]:
        """Whether the other end is lost, whether a heartbeat is due, and when to look again; 0: there is no need to."""
        silence_ms, pace_ms = self._times
        is_lost = is_due = False
        if silence_ms:
            is_lost = not self._heard and self._lost_at_ms <= now_ms
            if self._heard or is_lost:
                self._lost_at_ms = now_ms + silence_ms
        if pace_ms:
            is_due = not self._said and self._due_at_ms <= now_ms
            if self._said or is_due:
                self._due_at_ms = now_ms + pace_ms
        self._heard = self._said = False
        return is_lost, is_due, min(filter(None, (self._lost_at_ms, self._due_at_ms)), default=0)


class FrameStream:
    """Both directions of one connection, each of which leaves AMQP by itself.

    The promise: whoever has begun it is given the frames that came, whole and in order, and none after the end. What
    was sent goes out in order, before the end.
    """

    def __init__(self) -> None:
        self.is_reading = False
        """The other end's header has come: what comes is no AMQP any more."""
        self.is_writing = False
        """Ours goes out, or has gone."""
        self.reason = ""
        """Why it has ended, by the other end's word, or because that was silent; empty: neither is so."""
        self._receive: Callable[[bytes], None] | None = None
        """None: it has not begun, or has ended."""
        self._came = bytearray()
        self._at = 0
        """Of `_came`, so many bytes have been worked on."""
        self._out: list[bytes] = []
        self.unsent_bytes = 0
        """What was sent and not yet taken."""
        self._has_said_all = False
        self._is_lost = False
        """The other end was silent for too long."""
        self._idle = IdleWatch(IdleTimes(0, 0))

    # --- out

    def begin(self, before: bytes, receive: Callable[[bytes], None], times: IdleTimes) -> None:
        """The channel is open: AMQP's last bytes are `before`; `receive` gets the frames that come."""
        self.is_writing = True
        self._receive = receive
        self._idle = IdleWatch(times)
        self._put(before)
        self._put(HEADER)

    def send(self, frame: bytes) -> None:
        """Send a frame after all others. Nothing happens after the end."""
        if not self._has_said_all:
            size = len(frame) + _KIND_BYTES
            self._out += (_HEAD.pack(size, _FRAME), frame)
            self.unsent_bytes += _SIZE.size + size

    def take_output(self, last_word: str | None) -> bytes:
        """What is to be written. `last_word`: with what this end has ended the connection; None: it has not."""
        if self._is_lost:
            last_word = last_word or self.reason
        if last_word is not None and not self._has_said_all:
            self._has_said_all = True
            text = last_word.encode()
            self._put(_HEAD.pack(len(text) + _KIND_BYTES, _END) + text)
        out, self._out, self.unsent_bytes = self._out, [], 0
        if out and out != [_HEARTBEAT]:  # of which the watch knows
            self._idle.said()
        return b"".join(out)

    @property
    def finished(self) -> bool:
        """Nothing more will come out."""
        return self._has_said_all and not self._out

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self.unsent_bytes += len(data)

    # --- in

    def begin_reading(self, beyond: bytes | memoryview) -> None:
        """The other end's header has come, and then `beyond`."""
        self.is_reading = True
        self.feed(beyond)

    def feed(self, data: bytes | memoryview) -> None:
        """Bytes came behind the header: `tell` says what is in them."""
        self.heard()
        self._came += data

    def heard(self) -> None:
        """The other end is there: something came, be it AMQP still."""
        self._idle.heard()

    def tell(self, ends: StreamEnds) -> None:
        """Give away the frames that are whole, and say how the stream has ended, if it has."""
        if self._receive is None:
            if self._came and not self.is_writing:
                self._fail(ends, AmqpError(FRAMING_ERROR, "frames came before the channel was open"))
            self.stop()  # what comes behind the end is not kept
            return
        if self._is_lost:
            self.stop()
            ends.failed(CONNECTION_FORCED, _SILENT)
            return
        try:
            self._give_frames(ends)
        except AmqpError as error:
            self._fail(ends, error)
            return
        del self._came[: self._at]
        self._at = 0

    def _give_frames(self, ends: StreamEnds) -> None:
        came = self._came
        while self._receive is not None and len(came) - self._at >= _SIZE.size:
            start = self._at + _SIZE.size
            size = _SIZE.unpack_from(came, self._at)[0]
            if size - _KIND_BYTES > MAX_FRAME_BYTES:
                raise AmqpError(MESSAGE_SIZE, f"a frame of more than {MAX_FRAME_BYTES} bytes")
            stop = start + size
            if not size:
                self._at = stop
                continue
            if len(came) < start + _KIND_BYTES:
                return
            kind = came[start]
            if kind not in (_FRAME, _END):
                raise AmqpError(FRAMING_ERROR, f"kind {kind:#04x} of a frame: is the other broker newer?")
            if len(came) < stop:
                return
            self._at = stop  # before it is told: what is a bug of ours must not come again
            if kind == _FRAME:
                self._receive(bytes(memoryview(came)[start + _KIND_BYTES : stop]))
            else:
                text = came[start + _KIND_BYTES : stop].decode("utf-8", "replace")
                self.stop()
                self.reason = text[:_REASON_MOST]
                ends.closed()

    def _fail(self, ends: StreamEnds, error: AmqpError) -> None:
        self.stop()
        ends.malformed(error.name, error.description)

    def stop(self) -> None:
        """Nobody is given anything any more."""
        self._receive = None
        self._came, self._at = bytearray(), 0

    # --- time

    def tick(self, now_ms: int) -> int:
        """Keep the idle time-outs, by a clock that never jumps; returns when to call again, 0: no need to."""
        is_lost, is_due, next_ms = self._idle.tick(now_ms)
        if is_lost and self._receive is not None:
            self._is_lost = True
            self.reason = f"{CONNECTION_FORCED}: {_SILENT}"
        if is_due and not self._out and not self._has_said_all:
            self._put(_HEARTBEAT)
        return next_ms
