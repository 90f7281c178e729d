"""A channel from a broker to itself: what is sent at one end is received at the other in a round of its own."""

from __future__ import annotations

import asyncio

from qpid_ha_broker.amqp.wire.peer_frames import PeerListener


class LoopbackChannel:
    """One end; see `peer_frames.Channel`. The promise: the listener hears of frames in order, and of the end once."""

    peer = "this broker"
    unsent_bytes = 0

    def __init__(self, listener: PeerListener) -> None:
        self.is_open = True
        self._listener = listener
        self._other: LoopbackChannel

    @classmethod
    def open(cls, listener: PeerListener, other_listener: PeerListener) -> LoopbackChannel:
        """The end whose listener is `listener`; both hear that it is open, soon."""
        own, other = cls(listener), cls(other_listener)
        own._other, other._other = other, own
        call_soon = asyncio.get_running_loop().call_soon
        call_soon(other._opened)
        call_soon(own._opened)
        return own

    def send(self, data: bytes) -> None:
        """Nothing happens after the end."""
        if self.is_open:
            asyncio.get_running_loop().call_soon(self._other._received, data)

    def close(self, reason: str) -> None:
        """The other end's listener is told."""
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self._other._closed, reason)

    def _opened(self) -> None:
        if self.is_open:
            self._listener.opened(self)

    def _received(self, data: bytes) -> None:
        if self.is_open:
            self._listener.received(self, data)

    def _closed(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self._listener.closed(self, reason)
