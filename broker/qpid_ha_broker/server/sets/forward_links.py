"""Carries messages between brokers that came to an exchange at one, for queues of sets that others lead.

Both ends: `SetForwarding` has a `ForwardLink` for each set to which something is on its way, and a `ForwardedPublisher`
is the publisher's link at the primary of the set, which may be this broker itself by now. What is kept, numbered and
sent again, the cores in `ha.forwarding` decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, INTERNAL_ERROR, AmqpError
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.ha.bundles import Purpose
from qpid_ha_broker.ha.forward_frames import ForwardBegin, ForwardFrame, decode, encode
from qpid_ha_broker.ha.forwarding import ForwardedMessage, ForwardReceiver, ForwardSender
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.clients.shared_connections import SharedConnections
from qpid_ha_broker.server.peers.loopback_channel import LoopbackChannel
from qpid_ha_broker.server.proxies.far_pool import Way
from qpid_ha_broker.server.runtime.broker_addresses import BrokerAddresses
from qpid_ha_broker.server.runtime.due_parties import nobody_asks
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.sets.set_host import SetHost

log = logging.getLogger("cluster")

RETRY_MOST_S: Final = 1.0
"""Between two attempts to reach a set's primary, at most."""
UNUSED_S: Final = 20.0
"""A sub-channel on which nothing is on its way is kept for so long."""
SENT_MOST: Final = 1000
"""Messages that are handed on in a turn: 10 to 20 ms of work for who takes them, and more than publishers bring."""


class ForwardedPublisher(LinkEndpoint):
    """A publisher of a set that is led here, whose messages come on a sub-channel. It is a `PeerListener`, too.

    The promise: it says nothing more once it has ended, which it has before another broker writes the set.
    """

    def __init__(self, broker: Host, hosted: HostedSet) -> None:
        exchanges = broker.container.default.resources.catalog.clock
        self._receiver = ForwardReceiver(hosted.resources, exchanges, hosted.flush_accepted)
        self._broker = broker
        self._hosted = hosted
        self._channel: Channel | None = None
        self._producer = b""
        hosted.links[self] = None

    @property
    def needs_primary(self) -> bool:
        return True

    @property
    def has_ended(self) -> bool:
        """It is no link of the set any more."""
        return self not in self._hosted.links

    def write(self) -> int:
        """Write what has come. What has the number that is returned or a lower one is in the log, unless it was
        refused; 0: the link has ended."""
        self.flush_accepted()
        return 0 if self.has_ended else self._receiver.written

    def opened(self, channel: Channel) -> None:
        """Frames can be sent."""
        self._channel = channel
        if self.has_ended:
            channel.close(f"this broker does not lead the resource set {self._hosted.name} any more")

    def received(self, channel: Channel, data: bytes) -> None:
        """A message, or what goes before it."""
        hosted = self._hosted
        if hosted.read_only:
            self.end(ServedElsewhere(self._broker.container.directory, hosted.name))
        if self.has_ended:
            return
        try:
            self._take(decode(data))
        except FrameError as error:
            log.error("%s: %s; the sub-channel is given up", channel.peer, error)
            self.end(AmqpError(CONNECTION_FORCED, str(error)))
        hosted.touch()
        self._broker.schedule_turn()

    def _take(self, frame: ForwardFrame) -> None:
        self._tell(self._receiver.received(frame, self._hosted.now_ms))
        if self._receiver.has_unwritten:
            self._hosted.accepting[self] = None
        if isinstance(frame, ForwardBegin):  # what its sender believes to be lost must not go on beside it
            self._producer = frame.producer
            self._broker.container.sessions.producers.began(frame.producer)
            self._hosted.numbered_publishers.began(frame.producer, self)

    def _tell(self, answers: list[ForwardFrame]) -> None:
        if self.has_ended or self._channel is None:
            return
        for answer in answers:
            self._channel.send(encode(answer))
        if not self._receiver.is_idle:
            self._hosted.unconfirmed[self] = None

    def closed(self, channel: Channel | None = None, reason: str = "", *, lost: bool = True) -> None:
        """The sub-channel is gone: what is not written comes again, on another one."""
        self._hosted.forget(self)
        producer, self._producer = self._producer, b""
        if producer:
            self._broker.container.sessions.producers.ended(producer)
            self._hosted.numbered_publishers.ended(producer, self)

    # --- the turn's calls

    def flush_accepted(self) -> None:
        """Write what came in this turn."""
        if self._receiver.has_unwritten and not self.has_ended:
            self._tell(self._receiver.write(self._hosted.now_ms))

    def confirm(self) -> bool:
        self._tell(self._receiver.committed())
        return not self._receiver.is_idle

    def end(self, error: AmqpError) -> None:
        if not self.has_ended:
            self.closed()
            if self._channel is not None:
                self._channel.close(error.description)

    def bug(self, error: Exception, handed_out: Sequence[Entry] = ()) -> None:
        self.end(AmqpError(INTERNAL_ERROR, f"a bug ({type(error).__name__})"))
        with self._broker.notices.bugs_noted():
            raise error


class ForwardLink:
    """The way from one sender to who leads its set, looked for as long as something is on its way: a sub-channel, whose
    listener it is (see `PeerListener`), to another broker or to this one."""

    def __init__(
        self, broker: Host, sender: ForwardSender, addresses: BrokerAddresses, shared: SharedConnections
    ) -> None:
        self.sender = sender
        self._broker = broker
        self._addresses = addresses
        self._shared = shared
        self._address: str | None = None
        """Of the other broker that leads the set; None: this one does, or nobody is known to."""
        self._way: Way[Any] | None = None
        """To that address."""
        self._channel: Channel | None = None
        self._is_open = False
        self._here: ForwardedPublisher | None = None
        """The other end, at this broker."""
        self._used_s = 0.0

    @property
    def has_unwritten(self) -> bool:
        """See `ForwardSender.has_unwritten`."""
        if self._here is not None and self.sender.is_connected:
            self.sender.written(self._here.write())
        return self.sender.has_unwritten

    @property
    def is_at_rest(self) -> bool:
        """Nothing is on its way: whether a channel is needed any more, is seen now and then."""
        return self.sender.is_idle and self._here is None

    def work(self, now_s: float) -> None:
        """Send what there is, to whoever leads the set."""
        sender = self.sender
        if self._broker.container.default.read_only:
            sender.give_up_unsent()
        self._look_who_leads()
        if not sender.is_idle:
            self._used_s = now_s
            if self._here is None:
                self._begin_here()
        if self._channel is None:
            if not sender.is_idle and self._way is not None and (address := self._way.take_address(now_s)) is not None:
                self._channel = self._shared.open(address, sender.set_name, Purpose.FORWARD, self)
        elif not self._is_open:
            pass
        elif not sender.is_connected:
            self.drop("the set is led by another broker")
        elif sender.is_idle and (self._here is not None or now_s - self._used_s > UNUSED_S):
            self.drop("not needed any more")
        else:
            self._send(self._channel)

    def _look_who_leads(self) -> None:
        """Whoever was tried in vain before says nothing about the next one."""
        address = self._addresses.of_primary(self.sender.set_name)
        if address == self._addresses.own():  # which does not serve it yet, or any more, unless it does
            address = None
        if address != self._address:
            self._address = address
            self._way = None if address is None else Way((address,), RETRY_MOST_S)
            self.drop("the set is led by another broker")

    def _begin_here(self) -> None:
        try:
            hosted = self._broker.container.led_set(self.sender.set_name)
        except ServedElsewhere:
            return
        self.drop("the set is led here")
        self._here = ForwardedPublisher(self._broker, hosted)
        self._channel = LoopbackChannel.open(self, self._here)

    def _send(self, channel: Channel) -> None:
        """Unless another broker may have the exchange by now, and what came there later was handed on already."""
        if self._broker.container.default.prove_lead() is LeadProof.MISSING:
            return
        for _ in range(SENT_MOST):
            frame = self.sender.take_frame()
            if frame is None:
                return
            channel.send(encode(frame))
        self._broker.schedule_turn()

    def drop(self, reason: str) -> None:
        """Begin again, with whoever leads then."""
        channel = self._channel
        if channel is not None:
            self.closed(channel, reason)
            channel.close(reason)

    def opened(self, channel: Channel) -> None:
        """It is there."""
        if channel is self._channel:
            self._is_open = True
            if self._way is not None:
                self._way.was_reached()
            self.sender.connected()
            self._broker.schedule_turn()

    def received(self, channel: Channel, data: bytes) -> None:
        """An answer came: whoever waits for it is told in the turn of `default`, where exchanges are."""
        if channel is not self._channel:
            return
        try:
            self.sender.received(decode(data))
        except FrameError as error:
            log.error("%s: %s; the sub-channel is given up", channel.peer, error)
            self.drop(str(error))
        self._broker.container.default.touch()
        self._broker.tell_committed()

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone, or could not be opened."""
        if channel is self._channel:
            self._channel = self._here = None
            self._is_open = False
            self.sender.disconnected()


class SetForwarding:
    """The promise: what was given to `forward` reaches who leads its set, as soon as somebody does.

    It is a `model.publishing.Forwarder`, and has both ends at one broker.
    """

    def __init__(
        self, broker: Host, hosts: SetHost, cluster_map: ClusterMap, addresses: BrokerAddresses, producer: str
    ) -> None:
        """`producer`: a name of this process."""
        self.links: dict[str, ForwardLink] = {}
        """By set."""
        self.due: Callable[[], None] = nobody_asks
        """Called when `work` has something to do."""
        self._broker = broker
        self._shared = hosts.shared
        self._map = cluster_map
        self._addresses = addresses
        self._producer = producer
        hosts.arrivals = self._listener_for
        self.map_changed()

    def map_changed(self) -> None:
        """In a cluster of one set there is nobody to hand anything on to."""
        if self._map.sets:
            self._broker.container.publisher.forwarder = self

    def work(self) -> bool:
        """At the end of a turn, and several times a second; whether something is on its way."""
        if not self.links:
            return False
        now_s = asyncio.get_running_loop().time()
        for link in self.links.values():
            link.work(now_s)
        return any(not link.is_at_rest for link in self.links.values())

    def _listener_for(self, set_name: str) -> PeerListener | str:
        """Who takes what another broker hands on for a set, or why nobody does."""
        try:
            return ForwardedPublisher(self._broker, self._broker.container.led_set(set_name))
        except ServedElsewhere:
            return f"this broker does not lead the resource set {set_name}"

    # --- see `model.publishing.Forwarder`

    @property
    def is_full(self) -> bool:
        """One of the senders is."""
        return any(link.sender.is_full for link in self.links.values())

    def has_unwritten(self, set_name: str) -> bool:
        """See `ForwardSender.has_unwritten`."""
        link = self.links.get(set_name)
        return link is not None and link.has_unwritten

    def forward(self, set_name: str, queues: tuple[str, ...], message: Message) -> ForwardedMessage:
        """Hand `message` on."""
        link = self.links.get(set_name)
        if link is None:
            sender = ForwardSender(set_name, f"{self._producer}/{set_name}".encode(), self._is_gone)
            link = self.links[set_name] = ForwardLink(self._broker, sender, self._addresses, self._shared)
        self.due()
        return link.sender.forward(queues, message)

    def _is_gone(self, queue_name: str) -> bool:
        queue = self._map.queues.get(queue_name)
        return queue is None or queue.deleting
