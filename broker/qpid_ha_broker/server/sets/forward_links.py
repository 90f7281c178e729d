"""Carries messages between brokers that came to an exchange at one, for queues of sets that others lead.

Both ends: `ForwardLinks` has a sub-channel for each set to which something is on its way, `ForwardArrivals` takes what
others hand on. What is kept, numbered and sent again, the cores in `ha.forwarding` decide.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.ha.forward_frames import ForwardBegin, decode, encode
from qpid_ha_broker.ha.forwarding import ForwardLimits, ForwardReceiver, ForwardSender, SetForwarder
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.sets.set_member import SetMember

log = logging.getLogger("cluster")

RETRY_S: Final = 0.05
"""Between two attempts to reach a set's primary; it doubles up to RETRY_MOST_S."""
RETRY_MOST_S: Final = 1.0
UNUSED_S: Final = 20.0
"""A sub-channel on which nothing is on its way is kept for so long."""

Dial = Callable[[str, PeerListener], Channel | None]
"""Opens a sub-channel to the primary of a set; None: nobody is known to be it."""
FindMember = Callable[[str], SetMember | None]
"""This broker's member of a set that it serves; None: it does not."""


class _SetLink:
    """The sub-channel of one sender, made again as long as something is on its way."""

    def __init__(self, broker: Host, sender: ForwardSender, dial: Dial) -> None:
        self._broker = broker
        self._sender = sender
        self._dial = dial
        self._channel: Channel | None = None
        self._retry_at_s = 0.0
        self._pause_s = RETRY_S
        self._used_s = 0.0

    def work(self, now_s: float) -> None:
        """Send what there is, to whoever leads the set."""
        sender = self._sender
        if not sender.is_idle:
            self._used_s = now_s
        if self._channel is None:
            if not sender.is_idle and now_s >= self._retry_at_s:
                self._retry_at_s = now_s + self._pause_s
                self._pause_s = min(2 * self._pause_s, RETRY_MOST_S)
                self._channel = self._dial(sender.set_name, self)
        elif sender.is_connected:
            self._send(self._channel)
            if now_s - self._used_s > UNUSED_S:
                self.drop("not needed any more")
        elif self._channel.is_open:  # the other one does not lead
            self.drop("the set is led by another broker")

    def _send(self, channel: Channel) -> None:
        for frame in self._sender.take_frames():
            channel.send(encode(frame))

    def drop(self, reason: str) -> None:
        """Begin again, with whoever leads then."""
        channel, self._channel = self._channel, None
        self._sender.disconnected()
        if channel is not None:
            channel.close(reason)

    def opened(self, channel: Channel) -> None:
        """It is there."""
        if channel is self._channel:
            self._pause_s = RETRY_S
            self._sender.connected()
            self._send(channel)

    def received(self, channel: Channel, data: bytes) -> None:
        """An answer came: whoever waits for it is told in the next turn of `default`, where exchanges are."""
        if channel is not self._channel:
            return
        try:
            self._sender.received(decode(data))
        except FrameError as error:
            log.error("%s: %s; the sub-channel is given up", channel.peer, error)
            self.drop(str(error))
        self._broker.container.default.touch()
        self._broker.schedule_turn()

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone, or could not be opened."""
        if channel is self._channel:
            self._channel = None
            self._sender.disconnected()


class ForwardLinks:
    """The promise: what was given to `forwarder` reaches who leads its set, as soon as somebody does."""

    def __init__(self, broker: Host, producer: str, dial: Dial, is_gone: Callable[[str], bool]) -> None:
        """`producer`: a name of this process; `is_gone`: that queue is no more, or is being deleted."""
        self._broker = broker
        self._producer = producer
        self._dial = dial
        self._is_gone = is_gone
        self._links: dict[str, _SetLink] = {}
        self.forwarder = SetForwarder(self._make_sender)

    def _make_sender(self, set_name: str) -> ForwardSender:
        sender = ForwardSender(set_name, f"{self._producer}/{set_name}".encode(), self._is_gone, ForwardLimits())
        self._links[set_name] = _SetLink(self._broker, sender, self._dial)
        return sender

    def primary_changed(self, set_name: str) -> None:
        """The set has, or may have, another primary."""
        link = self._links.get(set_name)
        if link is not None:
            link.drop("the set is led by another broker")

    def work(self) -> None:
        """At the end of a turn, and several times a second."""
        if self._links:
            now_s = time.monotonic()
            for link in self._links.values():
                link.work(now_s)


class ForwardArrivals:
    """Takes what other brokers hand on for sets that are led here. For the listener's methods see `PeerListener`."""

    def __init__(self, broker: Host, set_name: str, find: FindMember) -> None:
        self._broker = broker
        self._set_name = set_name
        self._find = find
        self._receivers: dict[Channel, ForwardReceiver] = {}
        self._producers: dict[bytes, Channel] = {}

    def opened(self, channel: Channel) -> None:
        """Another broker has opened it."""
        member = self._find(self._set_name)
        if member is None:
            channel.close(f"this broker does not lead the resource set {self._set_name}")
        else:
            self._receivers[channel] = ForwardReceiver(
                member.hosted.resources, self._broker.container.default.resources.catalog.clock
            )

    def received(self, channel: Channel, data: bytes) -> None:
        """A message, or what goes before it."""
        receiver, member = self._receivers.get(channel), self._find(self._set_name)
        if receiver is None:
            return
        if member is None:
            self._end(channel, f"this broker does not lead the resource set {self._set_name} any more")
            return
        try:
            frame = decode(data)
            if isinstance(frame, ForwardBegin):
                self._end_older(frame.producer, channel)
            member.hosted.flush_accepted()
            for answer in receiver.received(frame, member.hosted.now_ms):
                channel.send(encode(answer))
        except FrameError as error:
            log.error("%s: %s; the sub-channel is given up", channel.peer, error)
            self._end(channel, str(error))
        member.hosted.touch()
        self._broker.schedule_turn()

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone."""
        self._receivers.pop(channel, None)
        self._producers = {producer: each for producer, each in self._producers.items() if each is not channel}

    def tell_committed(self) -> None:
        """At the end of a turn: what is committed by now."""
        for channel, receiver in self._receivers.items():
            for answer in receiver.committed():
                channel.send(encode(answer))

    def _end_older(self, producer: bytes, channel: Channel) -> None:
        """A sender has one sub-channel; what it believes to be lost must not go on beside the next."""
        older = self._producers.get(producer)
        self._producers[producer] = channel
        if older is not None and older is not channel:
            self._end(older, "the same sender has another one")
            self._producers[producer] = channel

    def _end(self, channel: Channel, reason: str) -> None:
        channel.close(reason)
        self.closed(channel, reason)
