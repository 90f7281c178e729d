"""How brokers of a cluster with proxies hand messages on: the real senders and receivers, on streams of their own."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.ha.bundles import Purpose
from qpid_ha_broker.server.runtime.broker_addresses import BrokerAddresses
from qpid_ha_broker.server.sets.forward_links import SetForwarding
from qpid_ha_broker.server.sets.set_host import SetHost
from simulation.streams import Post, StreamEnd, Streams

HEARTBEAT_S: Final = 0.4
SILENT_S: Final = 2.0
"""A channel on which nothing comes for so long is given up."""
_LENGTH: Final = struct.Struct("<I")


class _Process(Protocol):
    """Whose loop it is."""

    name: str
    loop: Any


class ForwardChannel:
    """A sub-channel of its own connection: see `peer_frames.Channel`. It has a stream's protocol, too."""

    unsent_bytes = 0

    def __init__(self, node: _Process, peer: str, listener: PeerListener | None) -> None:
        """`listener` None: the first frame says for which set it is, and so who listens."""
        self.peer = peer
        self.listener = listener
        self.find: Callable[[str], PeerListener | str] | None = None
        self._has_ended = False
        self._node = node
        self._transport: StreamEnd | None = None
        self._unread = b""
        self._heard_s = node.loop.time()
        self._tick()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._has_ended

    def _tick(self) -> None:
        if not self._has_ended:
            self._node.loop.call_later(HEARTBEAT_S, self._tick)
            if self._transport is not None:
                self._transport.write(_LENGTH.pack(0))
            if self._node.loop.time() - self._heard_s > SILENT_S:
                self.lose("nothing is heard")

    # --- a channel

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._has_ended:
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def close(self, reason: str) -> None:
        self._has_ended = True
        if self._transport is not None:
            self._transport.close()

    def lose(self, reason: str) -> None:
        if not self._has_ended:
            self.close(reason)
            if self.listener is not None:
                self.listener.closed(cast(Channel, self), reason)

    def opened(self, set_name: str, end: StreamEnd | None, reason: str) -> None:
        """By this broker; `end` None: it is not."""
        if self._has_ended:
            if end is not None:
                end.abort()
        elif end is None:
            self.lose(reason)
        else:
            end.have_read_by(cast(Any, self))
            self.send(set_name.encode())
            if self.listener is not None:
                self.listener.opened(cast(Channel, self))

    # --- a protocol

    def connection_made(self, transport: StreamEnd) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._node.loop.time()
        self._unread += data
        while self.is_open and len(self._unread) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread)
            end = _LENGTH.size + length
            if len(self._unread) < end:
                return
            frame, self._unread = self._unread[_LENGTH.size : end], self._unread[end:]
            if length:
                self._frame(frame)

    def _frame(self, frame: bytes) -> None:
        if self.listener is None:
            listener = "nobody listens" if self.find is None else self.find(frame.decode())
            if isinstance(listener, str):
                self.close(listener)
            else:
                self.listener = listener
                listener.opened(cast(Channel, self))
        else:
            self.listener.received(cast(Channel, self), frame)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """All of it is kept by who sends it."""

    def resume_writing(self) -> None:
        """There is room again."""

    def connection_lost(self, error: Exception | None) -> None:
        self.lose(f"connection lost: {error}")


class ForwardPeers:
    """The connections of one broker to others, as far as `SetForwarding` asks for them."""

    def __init__(self, node: Any, streams: Streams, post: Callable[[], Post]) -> None:
        self._node = node
        self._streams = streams
        self._post = post

    def open(self, address: str, set_name: str, purpose: Purpose, listener: PeerListener) -> Channel:
        to = address.partition("//")[2].partition(":")[0]
        channel = ForwardChannel(self._node, to, listener)
        opened = partial(channel.opened, set_name)
        self._streams.connect(self._node.name, self._post(), to, opened, forwards=True)
        return cast(Channel, channel)


class NodeForwarding(SetForwarding):
    """A broker's, with the connections that it has here."""

    def __init__(
        self,
        node: Any,
        cluster_map: ClusterMap,
        addresses: BrokerAddresses,
        streams: Streams,
        post: Callable[[], Post],
    ) -> None:
        self._node = node
        self._hosts = SimpleNamespace(shared=ForwardPeers(node, streams, post), arrivals=None)
        super().__init__(node, cast(SetHost, self._hosts), cluster_map, addresses, f"{node.name}#{node.process}")

    def accept(self, end: StreamEnd) -> None:
        """Another broker has connected."""
        channel = ForwardChannel(self._node, end.other.place, None)
        channel.find = self._hosts.arrivals
        end.have_read_by(cast(Any, channel))
