"""A socket that this broker opens to another one: bytes between asyncio and a connection, which has no socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from qpid_ha_broker.amqp.wire.conditions import FRAMING_ERROR
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.opened_connection import OpenedConnection
from qpid_ha_broker.server.runtime.tls import problem_of, security_of, verify_name
from qpid_ha_config.addresses import Address

MUCH_BYTES: Final = 64 * 1024
"""Read at once: after so much, everybody else gets a turn. libuv would go on reading as long as there is something, up
to 8 MiB, and a backup that catches up would answer nobody for half a second."""
ROOM_S: Final = 0.05
"""Between two looks whether there is room again for what comes."""
GOODBYE_S: Final = 1.0
"""So long the other end may take to answer our goodbye."""

HANDSHAKE_S: Final = 5.0
"""So long the other end may take for TLS."""

AnyOpened = TypeVar("AnyOpened", bound=OpenedConnection)


class OpenedSocket(asyncio.Protocol, Generic[AnyOpened]):
    """Who it is for, and what is told of its end, says a subclass."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.upstream: AnyOpened | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_reading = False
        self.is_taken = False
        """Somebody has taken the connection; nothing may have been said on it yet."""
        self.may_read: Callable[[], bool] = _always
        """Asked after each piece that was read. Until it says yes again, the other end has to wait."""

    # --- opening it

    async def _connect_to(self, address: Address, engine: Engine) -> None:
        """Raises OSError. Somebody who takes the connection and then says nothing of TLS is there all the same
        (`is_taken`), and so is one whose TLS does not fit ours: the reason begins as if it had said so by AMQP."""
        loop, context = asyncio.get_running_loop(), cast("ssl.SSLContext | None", engine.encryption)
        if context is None:
            await loop.create_connection(lambda: self, address.host, address.port)
            return
        connection = await _connected(address)
        self.is_taken = True
        try:
            await loop.create_connection(
                lambda: self,
                sock=connection,
                ssl=context,
                server_hostname=address.host,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except ssl.SSLError as error:
            raise ConnectionError(None, f"{FRAMING_ERROR}: {problem_of(error)}") from error
        except OSError as error:
            raise ConnectionError(None, problem_of(error)) from error

    def _look_at_certificate(self, transport: asyncio.BaseTransport, engine: Engine) -> str:
        """Before anything is said: why it is not whom we have called; empty: it is, or nothing is encrypted."""
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None:
            try:
                verify_name(encrypted, Address.parse(self.address).host)
                engine.input.security = security_of(encrypted)
            except (ssl.SSLError, ValueError) as error:
                return f"{FRAMING_ERROR}: {error}"
        return ""

    # --- the owner's calls

    def flush(self) -> None:
        """Write what there is."""
        upstream, transport = self.upstream, self._transport
        if upstream is None or transport is None or self._is_reading or transport.is_closing():
            return
        output = upstream.take_output()
        if output:
            transport.write(output)
        if upstream.finished:
            transport.close()

    def heartbeat(self, now_ms: int) -> None:
        """Keep the idle time-outs of both sides."""
        if self.upstream is not None and self._transport is not None:
            self.upstream.heartbeat(now_ms)
            self.flush()

    # --- deadlines

    def _wait(self, limit_s: float, then: Callable[..., None], *args: object) -> None:
        self._stop_waiting()
        self._deadline = asyncio.get_running_loop().call_later(limit_s, then, *args)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _drop(self) -> None:
        self._stop_waiting()
        self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are streams, and no subclass of it
        self._transport, self.is_taken = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        """What is written because of them is written when all of them are read."""
        upstream, transport = self.upstream, self._transport
        if upstream is None:
            return
        self._is_reading = True
        try:
            upstream.receive(data)
        finally:
            self._is_reading = False
        self._was_read()
        if transport is not None and not transport.is_closing() and (len(data) >= MUCH_BYTES or not self.may_read()):
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _was_read(self) -> None:
        """Something may be there to be written."""
        self.flush()

    def _read_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self.may_read():
            self._transport.resume_reading()
        else:
            asyncio.get_running_loop().call_later(ROOM_S, self._read_on)


async def _connected(address: Address) -> socket.socket:
    """A socket that is connected to the first place of `address` that takes it. Raises OSError."""
    loop, problem = asyncio.get_running_loop(), OSError("the name is of no address")
    for family, kind, protocol, _, place in await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        connecting = socket.socket(family, kind, protocol)
        connecting.setblocking(False)
        try:
            await loop.sock_connect(connecting, place)
        except BaseException as error:
            connecting.close()
            if not isinstance(error, OSError):
                raise
            problem = error
        else:
            return connecting
    raise problem


def _always() -> bool:
    return True
