"""Connections between brokers that carry sub-channels: one to each broker that is needed, and those that others open.

One is opened when the first sub-channel to an address is, and closed when none was needed for a while. What the turn
sends on all of its sub-channels goes out together (`sub_channels`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.peer_link import PeerChannel
from qpid_ha_broker.amqp.wire.peer_frames import SHARED_CAPABILITY, Channel, PeerListener
from qpid_ha_broker.ha.bundles import Purpose
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.server.peers.peer_channels import Dialler, OutgoingChannel
from qpid_ha_broker.server.peers.sub_channels import Accept, Losses, Multiplexer, SharedTimes, SubChannel
from qpid_ha_broker.server.runtime.due_parties import DueItems
from qpid_ha_broker.server.runtime.host import Host

log = logging.getLogger("peers")

CUT_BYTES: Final = 256 * 1024 * 1024
"""Unsent on a connection: beyond it, the other broker is given up. It can come back and compare."""
TIMES: Final = SharedTimes()


def _always(_set_name: str) -> bool:
    return True


class SharedHost(Host, Protocol):
    """What the connections need of the broker."""

    def unwritten_bytes(self, connection: Connection) -> int:
        """What its socket has not taken yet."""


class SharedConnection:
    """A connection with sub-channels, at one of its ends. For the listener's methods see `PeerListener`."""

    def __init__(self, owner: SharedConnections, address: str, accept: Accept | None) -> None:
        self.address = address
        """That this broker has connected to; empty: the other one has."""
        self.channel: Channel | None = None
        self.mux = Multiplexer(owner.times, accept, self._want_flush, self._peer, self._unsent_bytes, owner.losses)
        self._owner = owner

    def _want_flush(self) -> None:
        self._owner.want_flush(self)

    def _peer(self) -> str:
        return self.address if self.channel is None else self.channel.peer

    def _unsent_bytes(self) -> int:
        channel = self.channel
        if channel is None:
            return 0
        unwritten_bytes = self._owner.unwritten_bytes(channel.connection) if isinstance(channel, PeerChannel) else 0
        return channel.unsent_bytes + unwritten_bytes

    # --- what the channel beneath tells

    def opened(self, channel: Channel) -> None:
        """The channel is there."""
        self.channel = channel
        log.debug("a shared connection with %s is open", channel.peer)
        self.mux.announce()
        self._want_flush()

    def received(self, channel: Channel, data: bytes) -> None:
        """A bundle came."""
        try:
            self.mux.received(data)
        except FrameError as error:
            log.error("a damaged bundle came from %s: %s; the connection is given up", channel.peer, error)
            self.give_up(str(error))

    def closed(self, channel: Channel, reason: str) -> None:
        """The channel is gone, or could not be opened."""
        self._owner.forget(self, channel)
        self.mux.lost(reason)

    # --- the owner's calls

    def flush(self) -> None:
        """Send what there is, once the connection is open."""
        channel = self.channel
        if channel is None or not channel.is_open:
            return
        for bundle in self.mux.take_bundles():
            channel.send(bundle)
        if isinstance(channel, OutgoingChannel):
            channel.flush()

    def tick(self, now_s: float) -> None:
        """A heartbeat; an end to a connection that is silent, stuck, or not needed."""
        channel = self.channel
        lost = self.mux.tick(now_s)
        if channel is None:  # the connection has a limit of its own
            return
        unsent_bytes = self.mux.unsent_bytes()
        if lost is not None:
            self.give_up(lost)
        elif unsent_bytes > CUT_BYTES:
            log.warning("%s is given up: %d bytes wait for it", channel.peer, unsent_bytes)
            self.give_up(f"{unsent_bytes} bytes wait for it")
        elif isinstance(channel, OutgoingChannel) and self.mux.is_unused:
            self.give_up("not needed any more")

    def give_up(self, reason: str) -> None:
        """End it; what was sent still goes out."""
        if self.channel is not None:
            self.channel.close(reason)
            self.closed(self.channel, reason)


class SharedConnections:
    """The promise: to each address there is one connection of ours at most, and it is kept while it is needed.

    `accept`: who listens to a sub-channel that another broker has opened. `is_pressing`: see `Losses`. For the
    listener's methods, which are about connections that others open, see `PeerListener`.
    """

    def __init__(
        self,
        broker: SharedHost,
        dialler: Dialler,
        accept: Accept,
        times: SharedTimes = TIMES,
        is_pressing: Callable[[str], bool] = _always,
    ) -> None:
        self.times = times
        self.losses = Losses(is_pressing, self._want_piece, self._want_hurried)
        self._piece: asyncio.TimerHandle | None = None
        """When more listeners are told of lost connections."""
        self._is_hurrying = False
        self._broker = broker
        self._dialler = dialler
        self._accept = accept
        self._ours: dict[str, SharedConnection] = {}
        self._dialled: dict[str, OutgoingChannel] = {}
        self._theirs: dict[Channel, SharedConnection] = {}
        self.unflushed = DueItems[SharedConnection]()
        self._is_announcing = False

    @property
    def count(self) -> int:
        """Connections."""
        return len(self._ours) + len(self._theirs)

    def open(self, address: str, set_name: str, purpose: Purpose, listener: PeerListener) -> SubChannel:
        """A sub-channel to the broker at `address`; `listener` hears whether there is one, but not at once."""
        self.losses.tell_of(set_name)
        connection = self._ours.get(address)
        if connection is None:
            connection = self._ours[address] = SharedConnection(self, address, None)
            dialled = self._dialler.dial(address, connection, self.times.silence_s, SHARED_CAPABILITY)
            self._dialled[address] = dialled
        sub_channel = connection.mux.open(set_name, purpose, listener, address)
        if connection.channel is not None and not self._is_announcing:
            self._is_announcing = True
            asyncio.get_running_loop().call_soon(self._announce)
        return sub_channel

    def _announce(self) -> None:
        self._is_announcing = False
        for connection in list(self._ours.values()):
            if connection.channel is not None:
                connection.mux.announce()

    # --- what connections that others open tell

    def opened(self, channel: Channel) -> None:
        """Another broker has opened one."""
        connection = self._theirs[channel] = SharedConnection(self, "", self._accept)
        connection.opened(channel)

    def received(self, channel: Channel, data: bytes) -> None:
        """A bundle came."""
        connection = self._theirs.get(channel)
        if connection is not None:
            connection.received(channel, data)

    def closed(self, channel: Channel, reason: str) -> None:
        """One is gone."""
        connection = self._theirs.get(channel)
        if connection is not None:
            connection.closed(channel, reason)

    # --- the connections' calls

    def want_flush(self, connection: SharedConnection) -> None:
        """The connection has something to send at the end of the turn."""
        self.unflushed.put(connection)
        if not self._broker.is_in_turn:
            self._broker.schedule_turn()

    def unwritten_bytes(self, connection: Connection) -> int:
        """What its socket has not taken yet."""
        return self._broker.unwritten_bytes(connection)

    def forget(self, connection: SharedConnection, channel: Channel) -> None:
        """The connection is gone: who needs the address again gets another one."""
        self._theirs.pop(channel, None)
        self.unflushed.items.pop(connection, None)
        if self._ours.get(connection.address) is connection:
            del self._ours[connection.address]
            del self._dialled[connection.address]

    def _want_piece(self, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._piece is None or self._piece.when() > loop.time() + after_s:
            if self._piece is not None:
                self._piece.cancel()
            self._piece = loop.call_later(after_s, self._tell_piece)

    def _tell_piece(self) -> None:
        self._piece = None
        self.losses.tell_piece()

    def _want_hurried(self) -> None:
        if not self._is_hurrying:
            self._is_hurrying = True
            asyncio.get_running_loop().call_soon(self._tell_hurried)

    def _tell_hurried(self) -> None:
        self._is_hurrying = False
        self.losses.tell_hurried()

    # --- the broker's calls

    def flush(self) -> None:
        """The end of a turn: send what all of it had for each broker."""
        for connection in self.unflushed.take():
            connection.flush()

    def tick(self) -> None:
        """Several times in a heartbeat."""
        now_s = time.monotonic()
        for connection in [*self._ours.values(), *self._theirs.values()]:
            connection.tick(now_s)
        self._dialler.heartbeat(now_s)

    def close(self, reason: str) -> None:
        """The broker ends; what was sent still goes out."""
        self.flush()
        for connection in [*self._ours.values(), *self._theirs.values()]:
            connection.give_up(reason)
        for channel in list(self._dialled.values()):
            channel.close(reason)
        self._ours.clear()
        self._dialled.clear()
        if self._piece is not None:
            self._piece.cancel()


class SubChannelOpener:
    """Opens sub-channels of one purpose, about one set: a `peer_links.ChannelOpener` whose channels are shared."""

    __slots__ = ("_purpose", "_set", "_shared")

    def __init__(self, shared: SharedConnections, set_name: str, purpose: Purpose) -> None:
        self._shared, self._set, self._purpose = shared, set_name, purpose

    def dial(self, address: str, listener: PeerListener, limit_s: float) -> SubChannel:
        """One that is being opened; the shared connection has a limit of its own."""
        return self._shared.open(address, self._set, self._purpose, listener)
