"""How much of what a peer has sent is worked on at once: few bytes, or few frames, which may be large ones."""

from __future__ import annotations

import struct
from typing import Final

PIECE_BYTES: Final = 4096
"""So few bytes can ask for some milliseconds of work, 64 KiB of the smallest frames for half a second."""
PIECE_FRAMES: Final = 64
"""Frames cost work, more than their bytes do: this many ask for no more than PIECE_BYTES of small ones."""
LARGE_PIECE_BYTES: Final = 32 * 1024
"""Of frames that are large enough; more would not stay in a processor's cache on the way through."""

_SIZE: Final = struct.Struct(">I").unpack_from
_PROTOCOL: Final = int.from_bytes(b"AMQP")
"""Where a frame has its size, a protocol header has its name (AMQP 1.0, section 2.2)."""
_SIZE_BYTES: Final = 4
_HEADER_BYTES: Final = 8
"""Of a protocol header, and of a frame's own at least (section 2.3)."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Nobody is offered so much: what looks like it is no frame, but TLS, or a login's security layer, or garbage."""


class Pieces:
    """One peer's bytes, in order. What is no AMQP in clear is cut by bytes alone."""

    __slots__ = ("_is_amqp", "_size_began", "_unread")

    def __init__(self) -> None:
        self._unread = 0
        """Bytes of the last frame that have not come yet."""
        self._size_began = b""
        """Of the next frame's size, which has come in part."""
        self._is_amqp = True

    def next_size(self, data: memoryview) -> int:
        """How many of the bytes that come next are given to the engine now. To be called once for each piece."""
        length = len(data)
        if not self._is_amqp:
            return min(length, PIECE_BYTES)
        began, self._size_began = self._size_began, b""
        if began:
            data = memoryview(began + data[: LARGE_PIECE_BYTES + _SIZE_BYTES])
        limit = min(len(data), LARGE_PIECE_BYTES)
        at, frames = self._unread, 0
        while at < limit and (frames < PIECE_FRAMES or at < PIECE_BYTES):
            try:
                (size,) = _SIZE(data, at)
            except struct.error:
                self._unread, self._size_began = 0, bytes(data[at:])
                return length
            if not _HEADER_BYTES <= size <= FRAME_BYTES_MAX:
                if size != _PROTOCOL:
                    self._is_amqp = False
                    return min(length, PIECE_BYTES)
                size = _HEADER_BYTES
            at += size
            frames += 1
        end = min(at, limit)
        self._unread = at - end
        return end - len(began)
