"""The end, at the broker that leads `default`, of a session whose client is connected to another broker.

It is a link without messages. The other broker detaches it when the client is gone, and closes it when the session is
to end; it is ended here when the session is another connection's.
"""

from __future__ import annotations

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.primary_link import PrimaryLink
from qpid_ha_broker.amqp.nodes.session_attachment import SessionAttachment
from qpid_ha_broker.amqp.wire.conditions import (
    CONNECTION_FORCED,
    CONNECTION_REDIRECT,
    LINK_STOLEN,
    RESOURCE_LOCKED,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.engine import EachTransfer, Receiving
from qpid_ha_broker.amqp.wire.relay import RelayRequest
from qpid_ha_broker.amqp.wire.relayed_session_request import SessionAsked, SessionGranted
from qpid_ha_broker.model.errors import fresh
from qpid_ha_broker.model.logs.log import DEFAULT_SET


class HostedSession(PrimaryLink, EachTransfer, Receiving):
    """The promise: it is attached when it is committed that the session is this client's, and while it is."""

    def __init__(self, connection: Connection, link: proton.Link, relay: RelayRequest, asked: SessionAsked) -> None:
        """Raises AmqpError where the session is not for this client."""
        self.connection = connection
        self.link = link
        self.peer = asked.peer
        self.hosted = connection.container.default
        attachment = self._attachment = SessionAttachment(self, asked.request, relay.user)
        attachment.broker, attachment.client, attachment.ask = relay.path[0], relay.client, asked.ask
        attachment.id, attachment.epoch = asked.id, asked.epoch
        refusal = connection.container.sessions.take(attachment)
        if refusal is not None:
            raise fresh(self._for_broker(refusal))
        self.hosted.links[self] = None

    def _for_broker(self, error: AmqpError) -> AmqpError:
        """What the client's connection would be told, for the broker that has it."""
        if error.name in (CONNECTION_REDIRECT, RESOURCE_LOCKED):
            return ServedElsewhere(self.connection.container.directory, DEFAULT_SET)
        return AmqpError(LINK_STOLEN, error.description) if error.name == CONNECTION_FORCED else error

    # --- see `session_attachment.SessionConnection`

    def touch(self) -> None:
        """There is something to write."""
        self.connection.touch()

    def answer_open(self) -> None:
        """The session is this client's."""
        attachment = self._attachment
        granted = SessionGranted(attachment.id, attachment.epoch, attachment.timeout_ms, attachment.status)
        self.link.properties = granted.properties()
        self.link.open()

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, self._for_broker(error))

    # --- the link

    def partial(self, delivery: object, data: bytes) -> None:
        """Nothing comes: there is no credit."""

    def aborted(self, delivery: object) -> None:
        """Nothing comes."""

    def closed(self, *, lost: bool) -> None:
        self.connection.container.sessions.left(self._attachment, ends=self.was_closed)
        self.hosted.forget(self)
