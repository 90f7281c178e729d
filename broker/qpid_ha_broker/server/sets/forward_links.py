"""Carries messages between brokers that came to an exchange at one, for queues of sets that others lead.

Both ends: `ForwardLinks` has a sub-channel for each set to which something is on its way, `ForwardArrivals` takes what
others hand on. What is kept, numbered and sent again, the cores in `ha.forwarding` decide. What is kept for a set that
this broker has begun to lead is taken here, by a receiver like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.ha.forward_frames import ForwardBegin, decode, encode
from qpid_ha_broker.ha.forwarding import ForwardingHere, ForwardLimits, ForwardReceiver, ForwardSender, SetForwarder
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.server.runtime.host import Host

log = logging.getLogger("cluster")

RETRY_S: Final = 0.05
"""Between two attempts to reach a set's primary; it doubles up to RETRY_MOST_S."""
RETRY_MOST_S: Final = 1.0
UNUSED_S: Final = 20.0
"""A sub-channel on which nothing is on its way is kept for so long."""
DELIVERY_S: Final = 0.02
"""In one round of the loop, for what is taken here: longer than publishers need to bring as much, so that it ends."""

Dial = Callable[[str, PeerListener], Channel | None]
"""Opens a sub-channel to the primary of a set; None: nobody is known to be it."""
FindServed = Callable[[str], HostedSet | None]
"""A set that is led by this broker, and serves; None: it is not."""


class _SetLink:
    """The sub-channel of one sender, made again as long as something is on its way, or what is in its place here."""

    def __init__(self, broker: Host, sender: ForwardSender, dial: Dial, find: FindServed) -> None:
        self._broker = broker
        self._sender = sender
        self._dial = dial
        self._find = find
        self._channel: Channel | None = None
        self._here: ForwardingHere | None = None
        self._delivers_soon = False
        self._retry_at_s = 0.0
        self._pause_s = RETRY_S
        self._used_s = 0.0

    def work(self, now_s: float) -> None:
        """Send what there is, to whoever leads the set."""
        sender = self._sender
        if not sender.is_idle:
            self._used_s = now_s
        if self._here is not None:
            self._work_here(self._here)
        elif not sender.is_idle and (hosted := self._find(sender.set_name)) is not None:
            self._begin_here(hosted)
        elif self._channel is None:
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

    # --- where this broker leads the set

    def _begin_here(self, hosted: HostedSet) -> None:
        self.drop("the set is led here")
        exchanges = self._broker.container.default.resources.catalog.clock
        self._here = ForwardingHere(self._sender, ForwardReceiver(hosted.resources, exchanges))
        self._deliver_soon()

    def _work_here(self, here: ForwardingHere) -> None:
        if here.is_over:
            self.drop("the set is led by another broker")
        elif self._sender.has_unwritten:
            self._deliver_soon()
        elif self._sender.is_idle:
            self.drop("what comes next is written at once")

    def _deliver_soon(self) -> None:
        """Not in the turn that asks for it: its sets have had theirs."""
        if not self._delivers_soon:
            self._delivers_soon = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivers_soon = False
        here, hosted = self._here, self._find(self._sender.set_name)
        if here is None or here.is_over or hosted is None:
            return
        hosted.flush_accepted()
        here.deliver(hosted.now_ms, Budget(self._broker.container.clock, DELIVERY_S))
        hosted.touch()
        self._answered()

    def tell_committed(self) -> None:
        """The sets had their turns."""
        if self._here is not None and self._here.tell_committed():
            self._answered()

    # --- where another one does

    def _send(self, channel: Channel) -> None:
        for frame in self._sender.take_frames():
            channel.send(encode(frame))

    def drop(self, reason: str) -> None:
        """Begin again, with whoever leads then."""
        channel, self._channel = self._channel, None
        self._here = None
        self._sender.disconnected()
        if channel is not None:
            channel.close(reason)

    def primary_changed(self) -> None:
        """Whoever was tried in vain before says nothing about the next one."""
        self.drop("the set is led by another broker")
        self._retry_at_s, self._pause_s = 0.0, RETRY_S

    def opened(self, channel: Channel) -> None:
        """It is there."""
        if channel is self._channel:
            self._pause_s = RETRY_S
            self._sender.connected()
            self._send(channel)

    def received(self, channel: Channel, data: bytes) -> None:
        """An answer came."""
        if channel is not self._channel:
            return
        try:
            self._sender.received(decode(data))
        except FrameError as error:
            log.error("%s: %s; the sub-channel is given up", channel.peer, error)
            self.drop(str(error))
        self._answered()

    def _answered(self) -> None:
        """Whoever waits for it is told in the turn of `default`, where exchanges are."""
        self._broker.container.default.touch()
        self._broker.want_turn()

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone, or could not be opened."""
        if channel is self._channel:
            self._channel = None
            self._sender.disconnected()


class ForwardLinks:
    """The promise: what was given to `forwarder` reaches who leads its set, as soon as somebody does."""

    def __init__(
        self, broker: Host, producer: str, dial: Dial, find: FindServed, is_gone: Callable[[str], bool]
    ) -> None:
        """`producer`: a name of this process; `is_gone`: that queue is no more, or is being deleted."""
        self._broker = broker
        self._producer = producer
        self._dial = dial
        self._find = find
        self._is_gone = is_gone
        self._links: dict[str, _SetLink] = {}
        self.forwarder = SetForwarder(self._make_sender)

    def _make_sender(self, set_name: str) -> ForwardSender:
        sender = ForwardSender(set_name, f"{self._producer}/{set_name}".encode(), self._is_gone, ForwardLimits())
        self._links[set_name] = _SetLink(self._broker, sender, self._dial, self._find)
        return sender

    def primary_changed(self, set_name: str) -> None:
        """The set has, or may have, another primary."""
        link = self._links.get(set_name)
        if link is not None:
            link.primary_changed()

    def work(self) -> None:
        """At the end of a turn, and several times a second."""
        if self._links:
            now_s = asyncio.get_running_loop().time()
            for link in self._links.values():
                link.work(now_s)

    def tell_committed(self) -> None:
        """The sets had their turns: what is taken here may be committed by now."""
        for link in self._links.values():
            link.tell_committed()


class ForwardArrivals:
    """Takes what other brokers hand on for sets that are led here. For the listener's methods see `PeerListener`."""

    def __init__(self, broker: Host, set_name: str, find: FindServed) -> None:
        self._broker = broker
        self._set_name = set_name
        self._find = find
        self._receivers: dict[Channel, ForwardReceiver] = {}
        self._producers: dict[bytes, Channel] = {}

    def opened(self, channel: Channel) -> None:
        """Another broker has opened it."""
        hosted = self._find(self._set_name)
        if hosted is None:
            channel.close(f"this broker does not lead the resource set {self._set_name}")
        else:
            exchanges = self._broker.container.default.resources.catalog.clock
            self._receivers[channel] = ForwardReceiver(hosted.resources, exchanges)

    def received(self, channel: Channel, data: bytes) -> None:
        """A message, or what goes before it."""
        receiver, hosted = self._receivers.get(channel), self._find(self._set_name)
        if receiver is None:
            return
        if hosted is None or receiver.is_outdated:
            self._end(channel, f"this broker does not lead the resource set {self._set_name} any more")
            return
        try:
            frame = decode(data)
            if isinstance(frame, ForwardBegin):
                self._end_older(frame.producer, channel)
            hosted.flush_accepted()
            for answer in receiver.received(frame, hosted.now_ms):
                channel.send(encode(answer))
        except FrameError as error:
            log.error("%s: %s; the sub-channel is given up", channel.peer, error)
            self._end(channel, str(error))
        hosted.touch()
        self._broker.schedule_turn()

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone."""
        self._receivers.pop(channel, None)
        self._producers = {producer: each for producer, each in self._producers.items() if each is not channel}

    def tell_committed(self) -> None:
        """At the end of a turn: what is committed by now."""
        for channel, receiver in list(self._receivers.items()):
            if receiver.is_outdated:
                self._end(channel, f"this broker does not lead the resource set {self._set_name} any more")
                continue
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
