"""A client that comes over WebSockets: the same `ClientProtocol`, between it and its socket the frames of RFC 6455.

To the client's protocol this is a transport as any other. What is written is in frames, what is read is taken out of
them; who may come in, how long it may take, how much waits for it, and how it ends is as of every client.
"""

from __future__ import annotations

import asyncio
from typing import Any

from qpid_ha_broker.server.clients.client_protocol import WRITE_BUFFER_BYTES, ClientProtocol
from qpid_ha_broker.server.clients.web_socket_frames import (
    CloseCode,
    WebSocketEnd,
    WebSocketKind,
    WebSocketReader,
    close_frame,
    data_frames,
    frame,
)
from qpid_ha_broker.server.runtime.logs import RateLimitedLog


class WebSocketTransport(asyncio.Transport):
    """What a client's protocol writes to: in binary messages, and with a close frame as the last word.

    The socket is closed when the client has said its last word, too (RFC 6455 section 7.1.1), or after the time that
    the client's protocol gives it.
    """

    def __init__(self, below: asyncio.Transport) -> None:
        super().__init__()
        self._below = below
        self._has_ended = False
        """Our close frame has been written."""
        self._is_closing = False
        """Nothing is worked on any more."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nothing may follow a close frame."""
        if data and not self._has_ended:
            self._below.write(data_frames(bytes(data)))

    def pong(self, payload: bytes) -> None:
        """Answer a ping, unless much waits already for a client that does not read."""
        if not self._has_ended and self.get_write_buffer_size() < WRITE_BUFFER_BYTES:
            self._below.write(frame(WebSocketKind.PONG, payload))

    def say_end(self, end: WebSocketEnd) -> None:
        """Once."""
        if not self._has_ended:
            self._has_ended = True
            self._below.write(close_frame(end))

    def heard_end(self, end: WebSocketEnd) -> None:
        """The client has said its last word, or one that makes no sense."""
        self.say_end(end)
        self._is_closing = True
        self._below.close()

    def close(self) -> None:
        self.say_end(WebSocketEnd(CloseCode.NORMAL))
        self._is_closing = True
        self._below.resume_reading()

    def write_eof(self) -> None:
        self.say_end(WebSocketEnd(CloseCode.NORMAL))
        self._below.write_eof()

    def can_write_eof(self) -> bool:
        return self._below.can_write_eof()

    def abort(self) -> None:
        self._below.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._below.is_closing()

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)


class WebSocketProtocol(asyncio.Protocol):
    """What the socket tells: its frames are taken apart, and `client` hears the bytes in them."""

    def __init__(self, client: ClientProtocol, refusals: RateLimitedLog) -> None:
        self._client = client
        self._refusals = refusals
        self._reader = WebSocketReader()
        self._transport: WebSocketTransport | None = None

    def take_over(self, transport: asyncio.Transport) -> None:
        """The socket speaks WebSockets from now on, and nothing was read of them."""
        transport.set_protocol(self)
        self._transport = WebSocketTransport(transport)
        self._client.connection_made(self._transport)
        transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        received, transport = self._reader.feed(data), self._transport
        if transport is None:
            return
        if received.data and not transport.is_closing():
            self._client.data_received(received.data)
        if received.ping is not None:
            transport.pong(received.ping)
        if received.end is not None:
            if received.end.problem:
                self._refusals.warning("%s dropped: %s", self._client.peer, received.end.problem)
            transport.heard_end(received.end)
            self._client.eof_received()

    def eof_received(self) -> bool:
        return self._client.eof_received()

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        client, self._transport = self._client, None
        client.connection_lost(error)
