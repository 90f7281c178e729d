"""Channels to other brokers that this broker opens. To open a lost one again is not their business."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from qpid_ha_broker.amqp.relaying.peer_client import PeerClient
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import SettingsError

MUCH_BYTES = 64 * 1024
"""Read at once: after so much, everybody else gets a turn. libuv would go on reading as long as there is something, up
to 8 MiB, and a backup that catches up would answer nobody for half a second."""
ROOM_S = 0.05
"""Between two looks whether there is room again for what a channel brings."""
GOODBYE_S = 1.0
"""How long a peer may take to answer our goodbye."""


MakeEngine = Callable[[Address], Engine]
"""For a connection to that address. Raises SettingsError when TLS or the login cannot work."""


class OutgoingChannel:
    """A channel that this broker opens: bytes between asyncio and a `PeerClient`.

    The promise: the listener is told `closed`, once and last; unless the owner closed it.
    """

    def __init__(self, address: str, listener: PeerListener) -> None:
        self.address = address
        self._listener: PeerListener | None = listener
        self._client: PeerClient | None = None
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_reading = self._has_connected = False
        self.may_read: Callable[[], bool] = lambda: True
        """Asked after each piece that was read. Until it says yes again, the other end has to wait."""

    @property
    def peer(self) -> str:
        """Where the other end is, for log lines."""
        return self.address if self._client is None else self._client.peer

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._client is not None and self._client.is_open

    def open(self, name: str, make_engine: MakeEngine, limit_s: float, capability: str = "") -> None:
        """Connect in the background, as broker `name`; the listener hears of it. `capability`: see `PeerClient`."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(limit_s, self.fail, f"no answer within {limit_s:g} s")
        self._opening = loop.create_task(self._connect(name, make_engine, capability))

    async def _connect(self, name: str, make_engine: MakeEngine, capability: str) -> None:
        client: PeerClient | None = None
        try:
            address = Address.parse(self.address)
            told = self._client_opened, self._client_received, self._client_closed
            client = PeerClient(make_engine(address), name, address.host, *told, capability)
            connect = asyncio.get_running_loop().create_connection
            await connect(partial(_Socket, self, client), address.host, address.port)
        except OSError as error:
            self.fail(str(error.strerror or error))
        except (ValueError, SettingsError) as error:
            self.fail(str(error))
        finally:
            self._opening = None
            if client is not None and not self._has_connected:
                client.engine.close()

    # --- the owner's calls

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and waits in this process."""
        if self._client is None or self._transport is None:
            return 0
        return self._client.unsent_bytes + self._transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Send a frame after all others; `flush` writes it."""
        if self._client is not None:
            self._client.send(data)

    def flush(self) -> None:
        """Write what there is."""
        if self._client is None or self._transport is None or self._is_reading or self._transport.is_closing():
            return
        output = self._client.take_output()
        if output:
            self._transport.write(output)
        if self._client.finished:
            self._transport.close()

    def heartbeat(self, now_ms: int) -> None:
        """Keep the idle time-outs of both sides."""
        if self._client is not None and self._transport is not None:
            self._client.heartbeat(now_ms)
            self.flush()

    def close(self, reason: str) -> None:
        """Say goodbye once all was sent; the listener is not told."""
        self._listener = None
        if self._client is None or self._transport is None:
            self._drop()
            return
        self._client.close(reason)
        self.flush()
        self._wait(GOODBYE_S, self._drop)

    def fail(self, reason: str) -> None:
        """Drop the channel now, and tell the listener."""
        listener, self._listener = self._listener, None
        self._drop()
        if listener is not None:
            listener.closed(self, reason)

    def _drop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._opening is not None and self._opening is not asyncio.current_task():
            self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _wait(self, limit_s: float, then: Callable[[], None]) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(limit_s, then)

    # --- the socket's calls

    def connected(self, client: PeerClient, transport: asyncio.Transport) -> None:
        """There is a connection."""
        self._client, self._transport, self._has_connected = client, transport, True
        if self._listener is None:
            transport.abort()
        self.flush()

    def read(self, data: bytes) -> None:
        """Bytes came. What is written because of them is written when all of them are read."""
        if self._client is None:
            return
        self._is_reading = True
        try:
            self._client.receive(data)
        finally:
            self._is_reading = False
        self.flush()
        if self._transport is None or self._transport.is_closing():
            return
        if len(data) >= MUCH_BYTES or not self.may_read():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self.may_read():
            self._transport.resume_reading()
        else:
            asyncio.get_running_loop().call_later(ROOM_S, self._read_on)

    def disconnected(self, error: Exception | None) -> None:
        """The connection is gone."""
        client, self._client, self._transport = self._client, None, None
        if client is not None:
            client.lost(str(error) if error else "the connection was closed")
            client.engine.close()
        self.fail("the connection was closed")

    # --- the client's calls

    def _client_opened(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._listener is not None:
            self._listener.opened(self)

    def _client_received(self, data: bytes) -> None:
        if self._listener is not None:
            self._listener.received(self, data)

    def _client_closed(self, reason: str) -> None:
        """The peer said goodbye, or would not have us."""
        listener, self._listener = self._listener, None
        self._wait(GOODBYE_S, self._drop)
        if listener is not None:
            listener.closed(self, reason)


class _Socket(asyncio.Protocol):
    """What asyncio calls, for the channel."""

    def __init__(self, channel: OutgoingChannel, client: PeerClient) -> None:
        self._channel = channel
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are streams, and no subclass of it
        self._channel.connected(self._client, cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._channel.read(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._channel.disconnected(error)


class Dialler:
    """Opens channels to addresses."""

    def __init__(self, name: str, make_engine: MakeEngine) -> None:
        self._name = name
        self._make_engine = make_engine

    def dial(self, address: str, listener: PeerListener, limit_s: float, capability: str = "") -> OutgoingChannel:
        """A channel that is being opened; `listener` hears whether it was, within `limit_s`.

        `capability`: what the other broker has to offer, if anything.
        """
        channel = OutgoingChannel(address, listener)
        channel.open(self._name, self._make_engine, limit_s, capability)
        return channel
