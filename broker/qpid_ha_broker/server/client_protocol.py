"""One client's socket: bytes between asyncio and the engine, back-pressure, and the time-out of the handshake."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from qpid_ha_broker.amqp.conditions import CONNECTION_FORCED, RESOURCE_LIMIT, AmqpError
from qpid_ha_broker.amqp.connection import Connection
from qpid_ha_broker.server.peer_channels import MUCH_BYTES

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker
    from qpid_ha_broker.server.engines import EngineFactory

log = logging.getLogger("connection")

WRITE_BUFFER_BYTES = 1024 * 1024
"""Written and not yet taken by the socket: beyond it, consumers of this connection wait."""
ANSWERS_LIMIT_BYTES = 4 * 1024 * 1024
"""Beyond the largest message: what may wait for a client that goes on asking and has stopped reading."""


class ClientProtocol(asyncio.Protocol):
    """Drives one `Connection`. Reads are not held up, because what a client may send is bounded by its credit; but when
    much came at once it is everybody else's turn first."""

    def __init__(self, broker: Broker, engines: EngineFactory) -> None:
        self._broker = broker
        self._engines = engines
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        """For the handshake; later, for the goodbye."""
        self._is_leaving = False
        self._has_said_all = False
        self._unread_bytes: int | None = None
        """Written since the socket is full; None: it is not."""
        self.connection: Connection | None = None

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are streams, and no subclass of it
        self._transport = transport
        peer = peer_name(transport)
        if self._broker.is_crowded:
            log.warning("%s turned away: far more connections than max-connections", peer)
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.connection = Connection(self._broker.container, self._engines.make(), peer, self._refusal())
        self._broker.add(self.connection, self)
        timeout_s = self._broker.current().handshake_timeout_s
        self._deadline = asyncio.get_running_loop().call_later(timeout_s, self._check_handshake, timeout_s)
        log.debug("%s connected", peer)

    def data_received(self, data: bytes) -> None:
        if self.connection is not None:
            self._broker.set_time()
            self.connection.receive(data)
            channel = self.connection.peer_channel
            if channel is None or not channel.is_open:  # what a peer's frames call for, the cluster's core says
                self._broker.schedule_turn()
        if self._transport is not None and len(data) >= MUCH_BYTES and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def eof_received(self) -> bool:
        self._leave()
        return False

    def pause_writing(self) -> None:
        self._unread_bytes = 0
        if self.connection is not None:
            self.connection.pause_writing()

    def resume_writing(self) -> None:
        self._unread_bytes = None
        if self.connection is not None:
            self.connection.resume_writing()
            self._broker.schedule_turn()

    def connection_lost(self, error: Exception | None) -> None:
        if self.connection is None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        connection, self.connection = self.connection, None
        self._broker.set_time()
        try:
            connection.lost()
        finally:
            self._broker.remove(connection)
            connection.engine.close()
            log.debug("%s disconnected%s", connection.peer, f": {error}" if error else "")
            self._broker.schedule_turn()

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- the broker's calls

    def flush(self) -> None:
        """Write what the connection has for its peer; end the socket when the protocol has come to its end.

        Our last word is followed by the end of our stream, not of the socket: a socket that is closed with unread bytes
        in it is reset, and the peer would lose the reason that we gave.
        """
        if self.connection is None or self._transport is None or self._transport.is_closing():
            return
        output = self.connection.take_output()
        if output:
            self._write(output)
        if self.connection.has_ended:
            self._leave()
        if self.connection.engine.finished:
            if self.connection.peer_has_closed:
                self._transport.close()
            elif not self._has_said_all:
                self._has_said_all = True
                self._transport.write_eof()
                self._leave()

    @property
    def unwritten_bytes(self) -> int:
        """What the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Drop the socket now."""
        if self._transport is not None:
            self._transport.abort()

    # ---

    def _refusal(self) -> AmqpError | None:
        if self._broker.is_stopping:
            return AmqpError(CONNECTION_FORCED, "the broker is stopping")
        limit = self._broker.current().max_connections
        if self._broker.connection_count >= limit:
            return AmqpError(RESOURCE_LIMIT, f"{limit} clients are connected, and max-connections allows no more")
        return None

    def _write(self, output: bytes) -> None:
        if self._transport is None or self.connection is None:
            return
        is_peer = self.connection.peer_channel is not None  # whose backlog the membership watches
        if self._unread_bytes is not None and not is_peer:
            # No messages then, only answers to a client that asks and does not read.
            self._unread_bytes += len(output)
            if self._unread_bytes > ANSWERS_LIMIT_BYTES + self._broker.current().max_message_bytes:
                text = "%s dropped: %d bytes of answers that it does not read"
                log.warning(text, self.connection.peer, self._unread_bytes)
                self.abort()
                return
        self._transport.write(output)

    def _leave(self) -> None:
        """A peer that neither says goodbye nor reads ours must not keep its place, nor the messages that it holds."""
        if self._is_leaving:
            return
        self._is_leaving = True
        if self._deadline is not None:
            self._deadline.cancel()
        timeout_s = self._broker.current().handshake_timeout_s
        self._deadline = asyncio.get_running_loop().call_later(timeout_s, self.abort)

    def _check_handshake(self, timeout_s: float) -> None:
        if self.connection is not None and not self.connection.is_open:
            log.warning("%s dropped: no AMQP open within %g s", self.connection.peer, timeout_s)
            self.abort()


def peer_name(transport: asyncio.BaseTransport) -> str:
    """`host:port` of the other end, as log lines show it."""
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple) or len(address) < 2:
        return "unknown peer"
    host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
    return f"{host}:{address[1]}"
