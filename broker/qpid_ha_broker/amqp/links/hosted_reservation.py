"""The end, at the broker that leads `default`, of a container id that another broker has reserved for its client.

That broker detaches it when its client has gone. What it sends is an answer: that the client lives.
"""

from __future__ import annotations

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.nodes.access_checks import client_names
from qpid_ha_broker.amqp.nodes.primary_link import PrimaryLink
from qpid_ha_broker.amqp.nodes.reservations import HolderQuestion, Reservation
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, EachTransfer, Receiving
from qpid_ha_broker.amqp.wire.relay import RelayRequest
from qpid_ha_broker.amqp.wire.reservation_request import ReservationRequest
from qpid_ha_broker.model.errors import fresh


class HostedReservation(PrimaryLink, EachTransfer, Receiving):
    """The promise: it is attached when the id is this client's, and while it is."""

    def __init__(
        self, connection: Connection, link: proton.Link, relay: RelayRequest, request: ReservationRequest
    ) -> None:
        """Raises AmqpError where the id is another connection's."""
        self.connection = connection
        self.link = link
        self.hosted = connection.container.default
        broker, _ = client_names(connection, relay).connection_parts
        self._request = request
        self._reservation = Reservation(
            request.key, broker, request.hold_ms, request.is_held, request.closes_existing
        )  # fmt: skip
        self._whose = relay.client_text
        refusal = connection.container.reservations.ask(self._reservation, self)
        if refusal is not None:
            raise fresh(refusal)
        self.hosted.links[self] = None

    @property
    def client_text(self) -> str:
        return self._whose

    # --- see `reservation_keeper.ReservationLink`

    def grant(self) -> None:
        """The id is this client's."""
        self.link.properties = self._request.properties()
        self.link.open()
        self.connection.touch()

    def ask(self, question: HolderQuestion) -> None:
        """Have its broker answer."""
        engine.give_credit(self.link, question)
        self.connection.touch()

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, error)

    # --- the link

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """Its client lives."""
        engine.forget(delivery)
        self.connection.container.reservations.lives(self._reservation)

    def partial(self, delivery: object, data: bytes) -> None:
        """What it says is not looked at."""

    def aborted(self, delivery: object) -> None:
        """The same."""

    def closed(self, *, lost: bool) -> None:
        self.hosted.forget(self)
        self.connection.container.reservations.left(self._reservation, is_over=self.was_closed)
