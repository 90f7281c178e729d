"""The socket of a connection with far links; what comes of them is written with the end of the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from qpid_ha_broker.amqp.relaying.far_connection import MOST_LINKS, AnyFar
from qpid_ha_broker.server.runtime.opened_socket import GOODBYE_S, OpenedSocket
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import SettingsError

CONNECT_S: Final = 5.0
"""So long another broker may take to let us in."""

Made = Callable[[Address, Callable[[], None], Callable[[str], None]], AnyFar]
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


class UpstreamSocket(OpenedSocket[AnyFar]):
    """The promise: the owner is told the end, once, however early; unless it closed the socket itself."""

    def __init__(self, owner: SocketOwner, address: str) -> None:
        super().__init__(address)
        self.used_s = asyncio.get_running_loop().time()
        self._owner = owner
        self._has_ended = False

    async def open(self, make: Made[AnyFar]) -> None:
        """Connect."""
        self._wait(CONNECT_S, self.fail, f"no answer within {CONNECT_S:g} s")
        try:
            address = Address.parse(self.address)
            self.upstream = make(address, self._touched, self._ended)
            self._owner.connecting(self)
            await self._connect_to(address, self.upstream.engine)
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

    @property
    def room(self) -> int:
        """So many links more may be attached over it; before it is made, as many as ever."""
        return MOST_LINKS if self.upstream is None else self.upstream.room

    @property
    def unwritten_bytes(self) -> int:
        """What the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # --- bytes

    def flush(self) -> None:
        super().flush()
        if self.upstream is not None and self.upstream.is_open and not self._has_ended:
            self._stop_waiting()

    def heartbeat(self, now_ms: int) -> None:
        """Until it is open, CONNECT_S is the limit."""
        if self.upstream is not None and self.upstream.is_open:
            super().heartbeat(now_ms)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.upstream is not None and (problem := self._look_at_certificate(transport, self.upstream.engine)):
            self.fail(problem)
        if self._has_ended:
            self._abort()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._owner.set_time()
        super().data_received(data)

    def _was_read(self) -> None:
        self._owner.want_flush(self)

    def connection_lost(self, error: Exception | None) -> None:
        upstream = self.upstream
        self._transport = None
        self._stop_waiting()
        if upstream is not None:
            upstream.lost(str(error) if error else "the connection was closed")
        self._ended("the connection was closed")
        self.upstream = None
        if upstream is not None:
            upstream.engine.close()
        self._stop_waiting()
