"""A peer that says whatever a test wants, right or wrong: frames put together by hand on a plain socket.

Proton's clients cannot be made to break the protocol; this one can. Values are encoded and decoded by Proton, only the
eight bytes of a frame's header are our own (AMQP 1.0 section 2.3.1).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import proton

from limits import LIMIT_S
from qpid_ha_config.closing import Closing

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

READS_REFUSALS = ("sole-connection-for-container",)
"""What a client desires that is told why it is sent away; of any other, the broker ends the stream."""

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR, SOURCE, TARGET, ACCEPTED = 0x1D, 0x28, 0x29, 0x24
SENDER, RECEIVER = False, True

_FRAME_HEADER = struct.Struct(">IBBH")


class Frame(NamedTuple):
    """One AMQP frame: `code` is the performative's descriptor."""

    channel: int
    code: int
    fields: list[Any]
    payload: bytes

    @property
    def error(self) -> tuple[str, str]:
        """Condition and description of a detach, an end or a close; empty where there is none."""
        place = {DETACH: 2, END: 0, CLOSE: 0}[self.code]
        error = self.fields[place] if len(self.fields) > place else None
        return (str(error.value[0]), str(error.value[1])) if error is not None else ("", "")


def described(code: int, fields: list[Any]) -> proton.Described:
    """A composite value."""
    return proton.Described(proton.ulong(code), fields)


def encoded(value: Any) -> bytes:
    """The AMQP encoding of a value."""
    data = proton.Data()
    data.put_object(value)
    return bytes(data.encode())


def frame(code: int, fields: list[Any], payload: bytes = b"", channel: int = 0) -> bytes:
    """An AMQP frame with a performative."""
    body = encoded(described(code, fields)) + payload
    return _FRAME_HEADER.pack(len(body) + 8, 2, 0, channel) + body


def begin(channel: int = 0, window: int = 2**31 - 1) -> bytes:
    """A session with a wide window."""
    size = proton.uint(window)
    return frame(BEGIN, [None, proton.uint(0), size, size], channel=channel)


def attach(name: str, handle: int, role: bool, address: str, channel: int = 0) -> bytes:
    """A link from or to `address`; `role` is ours."""
    fields = [name, proton.uint(handle), role, proton.ubyte(2), proton.ubyte(0)]
    fields += [described(SOURCE, [address]), described(TARGET, [address]), None, None]
    return frame(ATTACH, [*fields, proton.uint(0) if role is SENDER else None], channel=channel)


def transfer(
    handle: int, number: int, payload: bytes, *, more: bool = False, settled: bool = False, channel: int = 0
) -> bytes:
    """One frame of the message `number`."""
    fields = [proton.uint(handle), proton.uint(number), number.to_bytes(4, "big"), proton.uint(0), settled, more]
    return frame(TRANSFER, fields, payload, channel)


def credit(handle: int, count: int, channel: int = 0) -> bytes:
    """Let the broker send `count` messages on the link."""
    wide = proton.uint(2**31 - 1)
    fields = [proton.uint(0), wide, proton.uint(0), wide, proton.uint(handle), proton.uint(0), proton.uint(count)]
    return frame(FLOW, fields, channel=channel)


def message(body: bytes) -> bytes:
    """A message that is one data section."""
    return encoded(described(0x75, [])).replace(b"\x45", b"") + encoded(body)


def frames_in(data: bytes) -> list[Frame]:
    """All frames of bytes that hold nothing else, but for heartbeats."""
    found = []
    while data:
        size, offset, _, channel = _FRAME_HEADER.unpack(data[:8])
        if size > offset * 4:
            found.append(_decoded(channel, data[offset * 4 : size]))
        data = data[size:]
    return found


def _decoded(channel: int, rest: bytes) -> Frame:
    data = proton.Data()
    length = data.decode(rest)
    data.rewind()
    data.next()
    performative: Any = data.get_object()
    return Frame(channel, int(performative.descriptor), performative.value, rest[length:])


class RawPeer(Closing):
    """A socket to the broker. Every wait ends after `timeout_s` with TimeoutError."""

    def __init__(self, port: int, *, timeout_s: float = LIMIT_S, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        self.socket.connect(("127.0.0.1", port))
        self._timeout_s = timeout_s
        self._unread = b""

    def send(self, data: bytes) -> None:
        """Bytes, as they are."""
        self.socket.sendall(data)

    def open(
        self,
        *,
        max_frame: int = 65536,
        channel_max: int = 65535,
        idle_timeout_ms: int = 0,
        desired: Sequence[str] = (),
    ) -> Frame:
        """Exchange headers and opens, without SASL; returns the broker's open."""
        idle = proton.uint(idle_timeout_ms) if idle_timeout_ms else None
        fields = ["raw-peer", "localhost", proton.uint(max_frame), proton.ushort(channel_max), idle]
        if desired:
            undescribed: Any = proton.UNDESCRIBED
            symbols = proton.Array(undescribed, proton.Data.SYMBOL, *map(proton.symbol, desired))
            fields += [None, None, None, symbols]
        self.send(AMQP_HEADER + frame(OPEN, fields))
        header = self._take(8)
        if header != AMQP_HEADER:
            raise ConnectionError(f"the broker answered {header!r}")
        return self.expect(OPEN)

    def open_session(self) -> None:
        """`open`, and a session on channel 0."""
        self.open()
        self.send(begin())
        self.expect(BEGIN)

    def next_frame(self) -> Frame:
        """The next frame that is no heartbeat. Raises EOFError when the broker has closed the socket."""
        while True:
            size, offset, _, channel = _FRAME_HEADER.unpack(self._take(8))
            rest = self._take(size - 8)[offset * 4 - 8 :]
            if rest:
                return _decoded(channel, rest)

    def expect(self, code: int) -> Frame:
        """The next frame with that performative; others before it are passed over."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            found = self.next_frame()
            if found.code == code:
                return found
        raise TimeoutError(f"no frame with performative {code:#x} came")

    def read_to_end(self) -> bytes:
        """All that comes until the broker closes the socket."""
        while (data := self._receive()) != b"":
            self._unread += data
        everything, self._unread = self._unread, b""
        return everything

    def close(self) -> None:
        """Leave without a word."""
        self.socket.close()

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""

    def _take(self, size: int) -> bytes:
        while len(self._unread) < size:
            data = self._receive()
            if not data:
                raise EOFError(f"the broker closed the socket after {self._unread!r}")
            self._unread += data
        taken, self._unread = self._unread[:size], self._unread[size:]
        return taken
