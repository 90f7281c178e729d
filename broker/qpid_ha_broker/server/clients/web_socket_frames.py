"""Frames of WebSockets (RFC 6455 section 5) that carry a stream of bytes, without a socket.

AMQP over WebSockets (OASIS, WebSocket Binding 1.0) has its bytes in binary messages, cut anywhere: where a message or a
frame ends means nothing. So nothing is put together here, and what is held back is at most the head of a frame, or a
control frame, of 139 bytes.

| a client's frame | what comes of it |
| --- | --- |
| binary, or what continues it | its bytes |
| ping | a pong with the same bytes |
| pong | nothing |
| close | the same code back, and the end |
| text | the end, 1003 (unsupported data) |
| not masked; a reserved bit or kind; a control frame that is long or in pieces; a message within another one | the end, 1002 (protocol error) |
"""  # noqa: E501 - a row of a table

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from enum import IntEnum
from hashlib import sha1
from typing import Final, NamedTuple

FRAME_BYTES: Final = 64 * 1024
"""Of what we send in one message, at most: some clients take no long ones."""
CONTROL_BYTES: Final = 125
_FIN, _RESERVED, _KIND, _MASKED, _LENGTH = 0x80, 0x70, 0x0F, 0x80, 0x7F
_SHORT, _LONG = 126, 127
_MASK_BYTES: Final = 4
_KEY_BYTES: Final = 16
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketKind(IntEnum):
    """The opcode of a frame."""

    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


class CloseCode(IntEnum):
    """Why it ends (section 7.4.1)."""

    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    UNSUPPORTED = 1003


class WebSocketEnd(NamedTuple):
    """The last word, and what is wrong; empty: the client has closed it."""

    code: int
    problem: str = ""


class WebSocketInput(NamedTuple):
    """What came of some bytes."""

    data: bytes
    ping: bytes | None = None
    """Of the last ping, which alone has to be answered (section 5.5.3); None: there was none."""
    end: WebSocketEnd | None = None
    """Behind it nothing is read."""


class _Head(NamedTuple):
    kind: int
    is_final: bool
    length: int
    mask: bytes
    end: int
    """Where the payload begins."""


class _Refused(Exception):
    def __init__(self, problem: str, code: CloseCode = CloseCode.PROTOCOL_ERROR) -> None:
        super().__init__(problem)
        self.end = WebSocketEnd(code, problem)


def accept_key(key: str) -> str | None:
    """What the answer to a client's `Sec-WebSocket-Key` says (section 4.2.2); None for a key that is none."""
    try:
        if len(b64decode(key, validate=True)) != _KEY_BYTES:
            return None
    except ValueError:
        return None
    return b64encode(sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def frame(kind: WebSocketKind, payload: bytes) -> bytes:
    """A whole message of ours, which is not masked (section 5.1)."""
    length = len(payload)
    if length < _SHORT:
        head = struct.pack(">BB", _FIN | kind, length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", _FIN | kind, _SHORT, length)
    else:
        head = struct.pack(">BBQ", _FIN | kind, _LONG, length)
    return head + payload


def data_frames(data: bytes) -> bytes:
    """Bytes of the stream, in binary messages."""
    if len(data) <= FRAME_BYTES:
        return frame(WebSocketKind.BINARY, data)
    places = range(0, len(data), FRAME_BYTES)
    return b"".join([frame(WebSocketKind.BINARY, data[at : at + FRAME_BYTES]) for at in places])


def close_frame(end: WebSocketEnd) -> bytes:
    """Our last word."""
    reason = end.problem.encode()[: CONTROL_BYTES - 2].decode("utf-8", "ignore").encode()
    return frame(WebSocketKind.CLOSE, struct.pack(">H", end.code) + reason)


class WebSocketReader:
    """The promise: the bytes that a client has put into binary messages come out in order, however they are cut."""

    def __init__(self) -> None:
        self._held = b""
        """The beginning of a frame, until its head has come, or all of a control frame."""
        self._left = 0
        """Bytes of the payload of a frame that are still to come."""
        self._mask = b""
        """Of that, beginning with the byte for the next one."""
        self._in_message = False
        self._end: WebSocketEnd | None = None

    def feed(self, data: bytes) -> WebSocketInput:
        """What comes of these bytes."""
        if self._end is not None:
            return WebSocketInput(b"", end=self._end)
        if self._held:
            data, self._held = self._held + data, b""
        parts: list[bytes] = []
        ping: bytes | None = None
        at = 0
        try:
            while at < len(data):
                if self._left:
                    piece = data[at : at + self._left]
                    parts.append(self._unmasked(piece))
                    at += len(piece)
                    continue
                head = _head_at(data, at)
                is_control = head is not None and head.kind >= WebSocketKind.CLOSE
                if head is None or (is_control and len(data) < head.end + head.length):
                    self._held = data[at:]
                    break
                at = head.end
                self._mask, self._left = head.mask, head.length
                if not is_control:
                    self._begin(head)
                    continue
                payload = self._unmasked(data[at : at + head.length])
                at += head.length
                if head.kind == WebSocketKind.PING:
                    ping = payload
                elif head.kind == WebSocketKind.CLOSE:
                    self._end = _end_of(payload)
                    break
        except _Refused as refused:
            self._end = refused.end
        return WebSocketInput(parts[0] if len(parts) == 1 else b"".join(parts), ping, self._end)

    def _begin(self, head: _Head) -> None:
        """A frame with data. Raises _Refused."""
        if head.kind == WebSocketKind.TEXT:
            raise _Refused("AMQP comes in binary messages, not in text", CloseCode.UNSUPPORTED)
        if (head.kind == WebSocketKind.CONTINUATION) is not self._in_message:
            raise _Refused("a message begins within another one, or what continues one stands alone")
        self._in_message = not head.is_final

    def _unmasked(self, piece: bytes) -> bytes:
        size = len(piece)
        self._left -= size
        mask = self._mask
        key = (mask * (size // _MASK_BYTES + 1))[:size]
        turn = size % _MASK_BYTES
        self._mask = mask[turn:] + mask[:turn]
        return (int.from_bytes(piece, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def _head_at(data: bytes, at: int) -> _Head | None:
    """None: it has not come whole. Raises _Refused."""
    if len(data) < at + 2:
        return None
    first, second = data[at], data[at + 1]
    kind, length = first & _KIND, second & _LENGTH
    if first & _RESERVED:
        raise _Refused("a reserved bit is set: no extension was agreed on")
    if not second & _MASKED:
        raise _Refused("a client's frames are masked")
    if kind not in WebSocketKind.__members__.values():
        raise _Refused(f"there are no frames of the kind {kind}")
    if kind >= WebSocketKind.CLOSE and (length > CONTROL_BYTES or not first & _FIN):
        raise _Refused("a control frame is whole, and of 125 bytes at most")
    width = {_SHORT: 2, _LONG: 8}.get(length, 0)
    end = at + 2 + width + _MASK_BYTES
    if len(data) < end:
        return None
    if width:
        length = int.from_bytes(data[at + 2 : at + 2 + width], "big")
        if length >> 63:
            raise _Refused("a frame has less than 2^63 bytes")
    return _Head(kind, bool(first & _FIN), length, data[end - _MASK_BYTES : end], end)


def _end_of(payload: bytes) -> WebSocketEnd:
    """What is answered to a close."""
    if len(payload) < 2:
        return WebSocketEnd(CloseCode.NORMAL if not payload else CloseCode.PROTOCOL_ERROR)
    code = int.from_bytes(payload[:2], "big")
    return WebSocketEnd(code if 1000 <= code < 5000 and code not in (1004, 1005, 1006) else CloseCode.PROTOCOL_ERROR)
