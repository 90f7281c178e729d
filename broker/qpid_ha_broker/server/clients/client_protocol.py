"""One client's socket: bytes between asyncio and the engine, back-pressure, and the time-out of the handshake."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol, cast

from qpid_ha_broker.amqp.connections.connection import Connection, Connections
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, RESOURCE_LIMIT, AmqpError
from qpid_ha_broker.amqp.wire.pieces import Pieces
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.server.clients.admission import Admission, AdmissionRefusal
from qpid_ha_broker.server.runtime.engines import EngineFactory
from qpid_ha_broker.server.runtime.hang_ups import has_hung_up
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.runtime.opened_socket import MUCH_BYTES
from qpid_ha_broker.server.runtime.tls import security_of
from qpid_ha_broker.server.stores.loading import StoreLoading

log = logging.getLogger("connection")

WRITE_BUFFER_BYTES = 1024 * 1024
"""Written and not yet taken by the socket: beyond it, consumers of this connection wait."""
CLOSE_TIMEOUT_S = 2.0
"""How long a client has to answer our close, or to close its side of a stream of which we have closed ours."""
ANSWERS_LIMIT_BYTES = 4 * 1024 * 1024
"""Beyond the largest message: what may wait for a client that goes on asking and has stopped reading."""
SLICE_S = 0.004
"""So long a connection's bytes are worked on; then it is everybody else's turn first."""


class ClientHost(Host, Protocol):
    """What a socket needs of the broker."""

    connections: Connections
    admission: Admission[ClientProtocol]
    is_stopping: bool
    loading: StoreLoading | None

    def set_time(self) -> None:
        """Let the container know what time it is."""

    def add(self, connection: Connection, protocol: ClientProtocol) -> None:
        """A client has connected."""

    def remove(self, connection: Connection) -> None:
        """A client's socket is gone."""


class ClientProtocol(asyncio.Protocol):
    """Drives one `Connection`. Reads are not held up, because what a client may send is bounded by its credit; but when
    much came at once, or what came takes long, it is everybody else's turn first."""

    def __init__(self, broker: ClientHost, engines: EngineFactory) -> None:
        self.peer = "unknown peer"
        """`host:port` of the other end."""
        self.engines = engines
        """What this connection's listener has."""
        self.coming: asyncio.Task[None] | None = None
        """Until it is made: with TLS, until the handshake is over."""
        self._accepted_s = time.monotonic()
        self._broker = broker
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        """For the handshake; later, for the client to go."""
        self._is_leaving = False
        self._has_said_all = False
        self._unread_bytes: int | None = None
        """Written since the socket is full; None: it is not."""
        self._rest = memoryview(b"")
        """Read and not yet worked on; while there is any, nothing is read."""
        self._pieces = Pieces()
        self._is_aborted = False
        self.connection: Connection | None = None
        """From the first byte that came until the socket is gone: who is silent costs a socket, and no engine."""

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are streams, and no subclass of it
        self._transport, self.coming = transport, None
        self.peer = peer_name(transport)
        if self._is_aborted:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        timeout_s = self._broker.current().handshake_timeout_s
        left_s = timeout_s - (time.monotonic() - self._accepted_s)
        self._deadline = asyncio.get_running_loop().call_later(left_s, self._check_handshake, timeout_s)
        log.debug("%s connected", self.peer)

    def data_received(self, data: bytes) -> None:
        if self.connection is None and not self._is_aborted:
            encrypted = None if self._transport is None else self._transport.get_extra_info("ssl_object")
            engine = self.engines.make(None if encrypted is None else security_of(encrypted))
            engine.input.has_hung_up = self._has_hung_up
            self.connection = Connection(self._broker.connections, engine, self.peer, self._admit)
            self._broker.add(self.connection, self)
        self._rest = memoryview(data)
        self._work()
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_behind or len(data) >= MUCH_BYTES:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _work(self) -> None:
        """Give the engine what came, for a slice of time. Other brokers are no strangers: theirs is not cut."""
        connection = self.connection
        if connection is None:
            self._rest = memoryview(b"")
            return
        if not connection.is_open:
            self._broker.admission.spoke(self, time.monotonic())
        self._broker.set_time()
        channel = connection.peer_channel
        if channel is not None and channel.is_open:  # what a peer's frames call for, the cluster's core says
            rest, self._rest = self._rest, memoryview(b"")
            connection.receive(rest)
            return
        budget = Budget(time.perf_counter, SLICE_S)
        while self._is_behind and self.connection is connection:
            size = 0 if connection.is_behind else self._pieces.next_size(self._rest)
            piece, self._rest = self._rest[:size], self._rest[size:]
            connection.receive(piece, budget)
            if budget.is_spent:
                break
        if not connection.is_open:
            self._check_password(connection)
        self._broker.schedule_turn()

    def _check_password(self, connection: Connection) -> None:
        """If the client has said one."""
        came = connection.engine.input
        asked = came.take_asked()
        if asked is None:
            return

        def go_on(is_right: bool) -> None:
            self._broker.set_time()
            came.password_checked(asked, is_right)
            connection.receive(b"")
            self._broker.schedule_turn()

        self.engines.password_checks.start(asked, lambda: self.connection is connection, go_on)

    @property
    def _is_behind(self) -> bool:
        """Not all that was read has been worked on."""
        return bool(self._rest) or (self.connection is not None and self.connection.is_behind)

    def _go_on(self) -> None:
        """Work on what is left, and read on once nothing is."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_behind:
            self._work()
        if self._is_behind:
            asyncio.get_running_loop().call_soon(self._go_on)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def pause_writing(self) -> None:
        self._unread_bytes = 0
        if self.connection is not None:
            self.connection.engine.guard(self.connection.window.pause)

    def resume_writing(self) -> None:
        self._unread_bytes = None
        if self.connection is not None:
            self.connection.engine.guard(self.connection.window.resume)
            self.connection.touch()
            self._broker.schedule_turn()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_aborted = True
        self._broker.admission.gone(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self.connection is None:
            return
        connection, self.connection = self.connection, None
        self._broker.set_time()
        try:
            connection.lost()
        finally:
            self._broker.remove(connection)
            log.debug("%s disconnected%s", connection.peer, f": {error}" if error else "")
            self._broker.schedule_turn()

    # --- the broker's calls

    def flush(self) -> None:
        """Write what the connection has for its peer; end the socket when the protocol has come to its end.

        Our last word is followed by the end of our stream, not of the socket: a socket that is closed with unread bytes
        in it is reset, and the peer would lose the reason that we gave.
        """
        if self.connection is None or self._transport is None or self._transport.is_closing():
            return
        if self.connection.engine.input.is_turned_away:
            log.debug("%s is turned away: who is a user of the cluster is not known yet", self.peer)
            self.abort()
            return
        if not self._has_said_all:
            output = self.connection.take_output()
            if output:
                self._write(output)
        if self.connection.has_ended:
            self._leave()
        elif self.connection.is_open:  # it goes on, and Proton need not be asked
            return
        if self.connection.engine.finished and self.connection.peer_has_closed:
            self._transport.close()
        elif not self._has_said_all and (self.connection.engine.finished or self.connection.is_hung_up):
            self._has_said_all = True
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:  # TLS ends in both directions at once, after all that was written
                self._transport.close()
            self._leave()

    @property
    def unwritten_bytes(self) -> int:
        """What the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Drop the socket now."""
        self._is_aborted = True
        if self.coming is not None:
            self.coming.cancel()
        if self._transport is not None:
            self._transport.abort()

    # ---

    def _admit(self, connection: Connection) -> AmqpError | None:
        """Why its open is not let in, if it is not."""
        if self._broker.is_stopping:
            return AmqpError(CONNECTION_FORCED, "the broker is stopping")
        if self._broker.loading is not None:
            return self._broker.loading.refusal()
        refusal = self._broker.admission.opened(
            self, is_marked=connection.is_admin, is_broker=connection.relay.is_broker
        )
        if refusal is None:
            return None
        limits = self._broker.admission.limits
        text = {
            AdmissionRefusal.CLIENTS: f"{limits.clients} clients are connected, and max-connections allows no more",
            AdmissionRefusal.ADDRESS: f"{limits.clients_per_address} clients are connected from this address, and "
            "max-connections-per-address allows no more",
            AdmissionRefusal.MARKED: f"{limits.marked} connections are marked for administration, and there can be no"
            " more: qpid-ha connections list says whose they are",
            AdmissionRefusal.BROKERS: f"{limits.brokers} connections of other brokers are here, and there can be no"
            " more: qpid-ha connections list says whose they are; raise LimitNOFILE",
        }[refusal]
        return AmqpError(RESOURCE_LIMIT, text)

    def _has_hung_up(self) -> bool:
        return self._transport is None or has_hung_up(self._transport)

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
        """A peer that neither answers our close nor reads it must not keep its place."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self._broker.admission.ended(self, time.monotonic())
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def _check_handshake(self, timeout_s: float) -> None:
        connection = self.connection
        if connection is not None and connection.relay.open_wait(connection) is not None:
            return  # it has opened, and the answer has a limit of its own
        if connection is None or not connection.is_open:
            self._broker.notices.refusals.warning("%s dropped: no AMQP open within %g s", self.peer, timeout_s)
            self.abort()


def peer_name(transport: asyncio.BaseTransport) -> str:
    """`host:port` of the other end, as log lines show it."""
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple) or len(address) < 2:
        return "unknown peer"
    host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
    return f"{host}:{address[1]}"
