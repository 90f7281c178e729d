"""The node `$ha`: another broker of the cluster has opened a channel to this one, a link in each direction.

Whoever gets a channel may ask for everything that the cluster holds, and may say that it is the primary. So the two
questions of the door are asked here: does the connection say that it is no client's, and has it proved that.
"""

from __future__ import annotations

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import (
    CONNECTION_FORCED,
    NOT_ALLOWED,
    NOT_FOUND,
    UNAUTHORIZED_ACCESS,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, EachTransfer
from qpid_ha_broker.amqp.wire.peer_frames import (
    ADDRESS,
    ADMIN_PROPERTY,
    FrameCarrier,
    FrameIntake,
    MessageCarrier,
    PeerListener,
    begin_stream,
)

_ONE_CHANNEL = "this connection has had its channel: open another connection"


def peer_receiver(connection: Connection, link: proton.Link) -> PeerReceiver:
    """Our end of the link on which the peer's frames come. Raises AmqpError for who is not let in."""
    return _channel_of(connection).attach_receiver(link)


def peer_sender(connection: Connection, link: proton.Link) -> PeerSender:
    """Our end of the link on which the peer gets frames. Raises AmqpError for who is not let in."""
    return _channel_of(connection).attach_sender(link)


def _channel_of(connection: Connection) -> PeerChannel:
    container = connection.container
    peers = container.peers.shared if connection.is_shared else container.peers.single
    if peers is None:
        raise AmqpError(NOT_FOUND, "this broker is in no cluster: set ha.cluster and ha.brokers-url")
    check_identity(connection, ADDRESS)
    if isinstance(connection.peer_channel, PeerChannel):
        return connection.peer_channel
    connection.peer_channel = channel = PeerChannel(connection, peers)
    return channel


def check_identity(connection: Connection, subject: str) -> None:
    """Refuse who is no broker of this cluster what is called `subject`. Raises AmqpError."""
    identity = connection.identity
    if not identity.is_admin:
        text = f"{subject} is for brokers of the cluster, whose connections have the property {ADMIN_PROPERTY}=true"
        raise AmqpError(UNAUTHORIZED_ACCESS, text)
    if identity.is_broker:
        return
    if connection.container.settings.peer_user:
        text = f"{identity.user or 'who has not logged in'} is not the user of this cluster's brokers"
    else:
        text = "nothing proves that this is a broker: without ha.username they run as one user of one machine"
    raise AmqpError(UNAUTHORIZED_ACCESS, f"{text}: set ha.username and its password alike on all of them")


class PeerChannel:
    """The promise: after `opened`, and after every frame, the listener is told `closed`, once; unless we closed it."""

    def __init__(self, connection: Connection, listener: PeerListener) -> None:
        self.connection = connection
        self.is_open = False
        self._listener = listener
        self._has_receiver = False
        self._carrier: FrameCarrier | None = None
        self._has_ended = False

    @property
    def peer(self) -> str:
        """Who is at the other end, for log lines: its name, and its address."""
        return f"{self.connection.engine.connection.remote_container} ({self.connection.peer})"

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and waits here, but for what the socket has not taken."""
        return 0 if self._carrier is None or self._has_ended else self._carrier.unsent_bytes

    def send(self, frame: bytes) -> None:
        """Send a frame after all others; it is written with the end of the turn. Nothing happens after the end."""
        if self._carrier is not None and not self._has_ended:
            self._carrier.send(frame)
            self.connection.touch()

    def close(self, reason: str) -> None:
        """End the connection once all was sent; the listener is not told."""
        self._has_ended = True
        self.is_open = False
        self.connection.end(AmqpError(CONNECTION_FORCED, reason))

    # --- for its links

    def attach_receiver(self, link: proton.Link) -> PeerReceiver:
        """Open our end of `link`. Raises AmqpError for a second one."""
        if self._has_ended or self._has_receiver:
            raise AmqpError(NOT_ALLOWED, _ONE_CHANNEL)
        link.open()
        self._has_receiver = True
        self._attached()
        return PeerReceiver(self, link)

    def attach_sender(self, link: proton.Link) -> PeerSender:
        """Open our end of `link`. Raises AmqpError for a second one."""
        if self._has_ended or self._carrier is not None:
            raise AmqpError(NOT_ALLOWED, _ONE_CHANNEL)
        link.open()
        self._carrier = MessageCarrier(link)
        self._attached()
        return PeerSender(self, link)

    def _attached(self) -> None:
        self.connection.touch()
        if self._has_receiver and self._carrier is not None:
            self.is_open = True
            self._carrier = begin_stream(self.connection.engine, self.received) or self._carrier
            self._listener.opened(self)

    def received(self, frame: bytes) -> None:
        """A frame came. One that comes before our other link is attached has nobody to answer to."""
        if self.is_open:
            self._listener.received(self, frame)

    def link_ended(self, link: proton.Link) -> None:
        """Without one link there is no channel."""
        was_open, self.is_open = self.is_open, False
        self._has_ended = True
        if was_open:
            self._listener.closed(self, self.connection.engine.reason_of_end(link))


class _PeerLink(LinkEndpoint):
    def __init__(self, channel: PeerChannel, link: proton.Link) -> None:
        self.channel = channel
        self.link = link

    def end(self, error: AmqpError) -> None:
        self.channel.connection.end_link(self, error)

    def closed(self, *, lost: bool) -> None:
        """The link is gone."""
        self.channel.link_ended(self.link)


class PeerReceiver(_PeerLink, EachTransfer):
    """On which the peer's frames come."""

    def __init__(self, channel: PeerChannel, link: proton.Link) -> None:
        super().__init__(channel, link)
        self._intake = FrameIntake(link)

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """A frame came; who sent it unsettled is answered, though no broker does."""
        if settled:
            engine.forget(delivery)
        else:
            engine.accept_all([delivery])
            self.channel.connection.touch()
        try:
            frame, credit_given = self._intake.whole(payload)
        except AmqpError as error:
            self.channel.connection.end(error)
            return
        if credit_given:
            self.channel.connection.touch()
        self.channel.received(frame)

    def partial(self, delivery: Delivery, data: bytes) -> None:
        """A part of a frame came."""
        try:
            self._intake.partial(data)
        except AmqpError as error:
            self.channel.connection.end(error)

    def aborted(self, delivery: Delivery) -> None:
        """The peer took back what it had begun."""
        try:
            self._intake.aborted()
        except AmqpError as error:
            self.channel.connection.end(error)
        self.channel.connection.touch()


class PeerSender(_PeerLink, EachDisposition):
    """On which ours go."""

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """Frames are sent settled: there is nothing to say of them."""

    def flow(self) -> None:
        """Frames that waited for credit go by themselves."""
        self.channel.connection.touch()
