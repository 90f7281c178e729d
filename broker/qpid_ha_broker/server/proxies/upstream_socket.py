"""A socket to another broker that this one is a client of: bytes between asyncio and the connection, which has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from qpid_ha_broker.amqp.relaying.far_connection import MOST_LINKS
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.server.peers.peer_channels import MUCH_BYTES
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import SettingsError

CONNECT_S: Final = 5.0
"""So long another broker may take to let us in."""
GOODBYE_S: Final = 1.0


class Driven(Protocol):
    """A connection without a socket, as `amqp.relaying.upstream.Upstream` is."""

    engine: Engine
    is_open: bool

    def receive(self, data: bytes) -> None: ...
    def take_output(self) -> bytes: ...
    def heartbeat(self, now_ms: int) -> None: ...
    def lost(self, reason: str) -> None: ...
    def close(self, reason: str) -> None: ...
    @property
    def finished(self) -> bool: ...
    @property
    def room(self) -> int: ...


Connected = TypeVar("Connected", bound=Driven)
Made = Callable[[Address, Callable[[], None], Callable[[str], None]], Connected]
"""Makes a connection to an address, with whom to tell that there is something to write, and why it has ended."""


class SocketOwner(Protocol):
    """Who has such sockets."""

    def set_time(self) -> None:
        """Let the container know what time it is."""

    def connecting(self, socket: Any) -> None:
        """It has a connection now, whose links will be attached."""

    def ended(self, socket: Any, reason: str) -> None:
        """It is of no use any more; called once, however early, unless it was closed."""

    def want_flush(self, socket: Any) -> None:
        """It has something to send, or to tell clients, at the end of the turn."""


class UpstreamSocket(Generic[Connected]):
    """One connection to another broker."""

    def __init__(self, owner: SocketOwner, address: str) -> None:
        self.address = address
        self.upstream: Connected | None = None
        self.used_s = asyncio.get_running_loop().time()
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_reading = False
        self._has_ended = False

    async def open(self, make: Made[Connected]) -> None:
        """Connect; the owner hears of an end, however early."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(CONNECT_S, self.fail, f"no answer within {CONNECT_S:g} s")
        try:
            address = Address.parse(self.address)
            self.upstream = make(address, self._touched, self._ended)
            self._owner.connecting(self)
            await loop.create_connection(partial(_UpstreamProtocol, self), address.host, address.port)
        except OSError as error:
            self._failed_to_open(str(error.strerror or error))
        except (ValueError, SettingsError) as error:
            self._failed_to_open(str(error))

    def _failed_to_open(self, reason: str) -> None:
        self.fail(reason)
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.engine.close()

    def _touched(self) -> None:
        self._owner.want_flush(self)

    def _ended(self, reason: str) -> None:
        """The upstream is of no use any more; its goodbye may still go out."""
        if not self._has_ended:
            self._has_ended = True
            self._owner.ended(self, reason)
            self._wait(GOODBYE_S, self._drop)

    def fail(self, reason: str) -> None:
        """Give it up now."""
        if self.upstream is not None:
            self.upstream.lost(reason)
        self._ended(reason)
        self._drop()

    def close(self, reason: str) -> None:
        """Say goodbye."""
        self._has_ended = True
        if self.upstream is not None:
            self.upstream.close(reason)
        self.flush()
        self._wait(GOODBYE_S, self._drop)

    def _wait(self, limit_s: float, then: Callable[[], None]) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(limit_s, then)

    def _drop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._transport.abort()

    @property
    def room(self) -> int:
        """So many links more may be attached over it; before it is made, as many as ever."""
        return MOST_LINKS if self.upstream is None else self.upstream.room

    # --- bytes

    def flush(self) -> None:
        """Write what there is."""
        transport, upstream = self._transport, self.upstream
        if upstream is None or transport is None or transport.is_closing() or self._is_reading:
            return
        output = upstream.take_output()
        if output:
            transport.write(output)
        if upstream.finished:
            transport.close()
        elif upstream.is_open and self._deadline is not None and not self._has_ended:
            self._deadline.cancel()
            self._deadline = None

    def heartbeat(self, now_ms: int) -> None:
        """Keep the idle time-outs of both sides; until it is open, CONNECT_S is the limit."""
        if self.upstream is not None and self.upstream.is_open and self._transport is not None:
            self.upstream.heartbeat(now_ms)
            self.flush()

    @property
    def unwritten_bytes(self) -> int:
        """What the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connected(self, transport: asyncio.Transport) -> None:
        """There is a socket."""
        self._transport = transport
        if self._has_ended:
            transport.abort()
        self.flush()

    def read(self, data: bytes) -> None:
        """Bytes came; what comes of them is written with the end of the turn."""
        upstream = self.upstream
        if upstream is None:
            return
        self._owner.set_time()
        self._is_reading = True
        try:
            upstream.receive(data)
        finally:
            self._is_reading = False
        self._owner.want_flush(self)
        transport = self._transport
        if transport is not None and not transport.is_closing() and len(data) >= MUCH_BYTES:
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def disconnected(self, error: Exception | None) -> None:
        """The socket is gone."""
        upstream = self.upstream
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        if upstream is not None:
            upstream.lost(str(error) if error else "the connection was closed")
        self._ended("the connection was closed")
        self.upstream = None
        if upstream is not None:
            upstream.engine.close()
        if self._deadline is not None:
            self._deadline.cancel()


class _UpstreamProtocol(asyncio.Protocol):
    """What asyncio calls."""

    def __init__(self, owner: UpstreamSocket[Any]) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are streams, and no subclass of it
        self._owner.connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._owner.read(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.disconnected(error)
