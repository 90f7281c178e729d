"""Channels to other brokers that this broker opens. To open a lost one again is not their business."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from qpid_ha_broker.amqp.relaying.peer_client import PeerClient
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_broker.server.runtime.opened_socket import GOODBYE_S, OpenedSocket
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import SettingsError

MakeEngine = Callable[[Address], Engine]
"""For a connection to that address. Raises SettingsError when TLS or the login cannot work."""


class OutgoingChannel(OpenedSocket[PeerClient]):
    """A channel that this broker opens.

    The promise: the listener is told `closed`, once and last; unless the owner closed it.
    """

    def __init__(self, address: str, listener: PeerListener) -> None:
        super().__init__(address)
        self._listener: PeerListener | None = listener
        self._opening: asyncio.Task[None] | None = None
        self._client: PeerClient | None = None
        """It is `upstream` once somebody has taken the connection."""
        self._has_connected = False

    @property
    def peer(self) -> str:
        """Where the other end is, for log lines."""
        return self.address if self.upstream is None else self.upstream.peer

    @property
    def was_connected(self) -> bool:
        """Whether somebody took the connection, and still has it."""
        return self.is_taken

    @property
    def is_over(self) -> bool:
        """Nobody hears of it, and it has no socket any more."""
        return self._listener is None and self._transport is None

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self.upstream is not None and self.upstream.is_open

    def open(self, name: str, make_engine: MakeEngine, limit_s: float, capability: str = "") -> None:
        """Connect in the background, as broker `name`; the listener hears of it. `capability`: see `PeerClient`."""
        self._wait(limit_s, self.fail, f"no answer within {limit_s:g} s")
        self._opening = asyncio.get_running_loop().create_task(self._connect(name, make_engine, capability))

    async def _connect(self, name: str, make_engine: MakeEngine, capability: str) -> None:
        try:
            address = Address.parse(self.address)
            told = self._client_opened, self._client_received, self._client_closed
            self._client = PeerClient(make_engine(address), name, address.host, *told, capability)
            await self._connect_to(address, self._client.engine)
        except OSError as error:
            self.fail(str(error.strerror or error))
        except (ValueError, SettingsError) as error:
            self.fail(str(error))
        finally:
            self._opening = None
            if self._client is not None and not self._has_connected:
                self._client.engine.close()

    # --- the owner's calls

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and waits in this process."""
        if self.upstream is None or self._transport is None:
            return 0
        return self.upstream.unsent_bytes + self._transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Send a frame after all others; `flush` writes it."""
        if self.upstream is not None:
            self.upstream.send(data)

    def close(self, reason: str) -> None:
        """Say goodbye once all was sent; the listener is not told."""
        self._listener = None
        if self.upstream is None or self._transport is None:
            self._drop()
            return
        self.upstream.close(reason)
        self.flush()
        self._wait(GOODBYE_S, self._drop)

    def fail(self, reason: str) -> None:
        """Drop the channel now, and tell the listener."""
        listener, self._listener = self._listener, None
        self._drop()
        if listener is not None:
            listener.closed(self, reason)

    def _drop(self) -> None:
        if self._opening is not None and self._opening is not asyncio.current_task():
            self._opening.cancel()
        super()._drop()

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.upstream, self._has_connected = self._client, True
        if self._client is not None and (problem := self._look_at_certificate(transport, self._client.engine)):
            self.fail(problem)
        if self._listener is None:
            self._abort()
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        client, self.upstream, self._transport, self._client = self.upstream, None, None, None
        self.is_taken = False
        if client is not None:
            client.lost(str(error) if error else "the connection was closed")
            client.engine.close()
        self.fail("the connection was closed")

    # --- the client's calls

    def _client_opened(self) -> None:
        self._stop_waiting()
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


class Dialler:
    """Opens channels to addresses, and keeps alive those that it has opened."""

    def __init__(self, name: str, make_engine: MakeEngine) -> None:
        self._name = name
        self._make_engine = make_engine
        self._channels: dict[OutgoingChannel, None] = {}

    def dial(self, address: str, listener: PeerListener, limit_s: float, capability: str = "") -> OutgoingChannel:
        """A channel that is being opened; `listener` hears whether it was, within `limit_s`.

        `capability`: what the other broker has to offer, if anything.
        """
        channel = OutgoingChannel(address, listener)
        channel.open(self._name, self._make_engine, limit_s, capability)
        self._channels[channel] = None
        return channel

    def heartbeat(self, now_s: float) -> None:
        """Several times in a heartbeat: keep the idle time-outs of its channels."""
        for channel in list(self._channels):
            if channel.is_over:
                del self._channels[channel]
            else:
                channel.heartbeat(int(now_s * 1000))
