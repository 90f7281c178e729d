"""The end of a peer channel that opens it: a connection to another broker of the cluster, without a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton

from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, NOT_IMPLEMENTED, AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, EachTransfer, Engine
from qpid_ha_broker.amqp.wire.frame_stream import STREAM_CAPABILITY
from qpid_ha_broker.amqp.wire.opened_connection import OpenedConnection
from qpid_ha_broker.amqp.wire.peer_frames import (
    ADDRESS,
    FrameCarrier,
    FrameIntake,
    MessageCarrier,
    WaitingFrames,
    begin_stream,
    broker_properties,
)
from qpid_ha_broker.amqp.wire.values import listed


class PeerClient(OpenedConnection, EachTransfer, EachDisposition):
    """The promise: `on_closed` is called once, after everything else; unless we closed the channel ourselves.

    `name` is this broker's, `hostname` the other's as it was asked for. `capability`: what the other broker has to
    offer in its open, or the channel ends; empty: nothing in particular.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        hostname: str,
        on_opened: Callable[[], None],
        on_received: Callable[[bytes], None],
        on_closed: Callable[[str], None],
        capability: str = "",
    ) -> None:
        self.hostname = hostname
        self._on_opened = on_opened
        self._on_received = on_received
        self._capability = capability
        desired = (capability,) if capability else ()
        if engine.input.may_stream:
            desired = (*desired, STREAM_CAPABILITY)
            engine.input.expect_stream()
        super().__init__(engine, name, hostname, on_closed, broker_properties(engine.proof), desired)
        session: Any = engine.connection.session()
        session.open()
        self._outgoing: proton.Link = session.sender(f"{name}-to-{ADDRESS}")
        self._outgoing.target.address = ADDRESS
        self._outgoing.snd_settle_mode = proton.Link.SND_SETTLED
        self._incoming: proton.Link = session.receiver(f"{name}-from-{ADDRESS}")
        self._incoming.source.address = ADDRESS
        self._incoming.snd_settle_mode = proton.Link.SND_SETTLED
        self._outgoing.open()
        self._incoming.open()
        self._carrier: FrameCarrier = WaitingFrames()
        self._intake = FrameIntake(self._incoming)
        engine.attach_receiving(self._incoming, self)
        engine.attach_sending(self._outgoing, self)

    # --- the driver's calls

    @property
    def peer(self) -> str:
        """Who is at the other end, for log lines."""
        return f"{self.engine.connection.remote_container or 'a broker'} ({self.hostname})"

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and waits here."""
        return 0 if self._has_ended else self._carrier.unsent_bytes

    def send(self, frame: bytes) -> None:
        """Send a frame after all others. Nothing happens after the end."""
        if not self._has_ended:
            self._carrier.send(frame)

    def _let_go(self, reason: str) -> None:
        if self.engine.input.stream is not None:
            self.engine.input.stream.stop()

    # --- what the peer did: see engine.Handler, Receiving and Sending

    def opened(self) -> None:
        """The peer has answered our open; that it lets us in, it says by attaching."""

    def closed(self) -> None:
        reason = self.engine.reason_of_end(self._incoming)
        self.engine.connection.close()
        self._end(reason)

    def session_opened(self, session: proton.Session) -> None:
        session.open()

    def session_closed(self, session: proton.Session) -> None:
        self._fail(AmqpError(CONNECTION_FORCED, "without its session the channel ends"))

    def link_attached(self, link: proton.Link) -> None:
        if self.is_open or self._has_ended:
            return
        # A link that is refused is opened too, without a terminus, and then closed with the reason.
        if self._outgoing.remote_target.address == ADDRESS and self._incoming.remote_source.address == ADDRESS:
            try:
                self._check_capability()
            except AmqpError as error:
                self._fail(error)
                return
            self.is_open = True
            carrier = begin_stream(self.engine, self._on_received) or MessageCarrier(self._outgoing)
            if isinstance(self._carrier, WaitingFrames):
                self._carrier.pass_on(carrier)
            self._carrier = carrier
            self._on_opened()

    def _check_capability(self) -> None:
        """Raises AmqpError for what the other broker does not offer."""
        offered = listed(self.engine.remote_offered_capabilities)
        if self._capability and self._capability not in offered:
            text = f"the broker there does not offer {self._capability}: it is of an older version, upgrade it"
            raise AmqpError(NOT_IMPLEMENTED, text)
        if STREAM_CAPABILITY not in offered:
            self.engine.input.expect_amqp()

    def link_detached(self, link: proton.Link, closed: bool) -> None:
        self._fail(AmqpError(CONNECTION_FORCED, "without its links the channel ends"), self.engine.reason_of_end(link))

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        engine.forget(delivery) if settled else engine.accept_all([delivery])
        if not self.is_open:
            return
        try:
            frame, _ = self._intake.whole(payload)
        except AmqpError as error:
            self._fail(error)
        else:
            self._on_received(frame)

    def partial(self, delivery: Delivery, data: bytes) -> None:
        try:
            self._intake.partial(data)
        except AmqpError as error:
            self._fail(error)

    def aborted(self, delivery: Delivery) -> None:
        try:
            self._intake.aborted()
        except AmqpError as error:
            self._fail(error)

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """Frames are sent settled: there is nothing to say of them."""

    def flow(self) -> None:
        """Frames that waited for credit go by themselves."""
