"""A session of a client on one connection of its own, wherever that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from weakref import ref

from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.session_request import SessionRequest, granted_properties
from qpid_ha_broker.model.sessions import SessionPart


class SessionConnection(Protocol):
    """The connection of a client with a session, or the link that stands for it where its session is another broker's
    to keep."""

    peer: str

    def touch(self) -> None:
        """There is something to write."""

    def answer_open(self) -> None:
        """Answer the client's open, or the broker that asks for it."""

    def end(self, error: AmqpError) -> None:
        """Close it."""


class RelayedAttachment(Protocol):
    """What the broker that leads `default` says of it: see `relayed_sessions`."""

    def left(self, *, ends: bool) -> None:
        """The client's connection has ended, and with `ends` the session, too."""


class SessionAttachment:
    """A session on one connection, which has this, and not the other way round: it may outlive its connection."""

    def __init__(self, connection: SessionConnection, request: SessionRequest, user: str) -> None:
        self._connection = ref(connection)
        self.peer = connection.peer
        self.request = request
        self.user = user
        self.id = 0
        """Of the session, since it is this connection's."""
        self.epoch = 0
        self.timeout_ms = 0
        self.status = ""
        self.is_granted = False
        """The client has been told."""
        self.has_left = False
        """The connection has ended, or another one has the session."""
        self.until_s = 0.0
        """By the container's clock: until then the client waits for an answer to its open."""
        self.wait = NodeWait("the session is being resumed")
        """What attaches wait for that came with the open."""
        self.broker = ""
        """At which the client is connected; empty: at this one."""
        self.client = ""
        """The client's connection, by a name of that broker's."""
        self.ask = 0
        """Which of that broker's asks it is; 0: it does not count them."""
        self.relayed: RelayedAttachment | None = None
        """Where another broker keeps the session; None: this one does."""

    @property
    def name(self) -> str:
        """The session's UUID."""
        return self.request.name

    @property
    def properties(self) -> Mapping[str, Any]:
        """Of our open."""
        return granted_properties(self.name, self.timeout_ms, self.status)

    def outdates(self, other: SessionAttachment) -> bool:
        """Whether the broker of both asked with `other` first, and gave that up."""
        is_same = (self.broker, self.client, self.peer) == (other.broker, other.client, other.peer)
        return is_same and self.request.attempt == other.request.attempt and 0 < other.ask < self.ask

    def part(self, link: str) -> SessionPart:
        """One of its links."""
        return SessionPart(self.id, self.name, self.epoch, link)

    def grant(self) -> None:
        """The session is this connection's: tell the client."""
        self.is_granted = True
        connection = self._connection()
        if connection is not None:
            connection.answer_open()
            connection.touch()
        self.wait.ready()

    def end(self, error: AmqpError) -> None:
        """Close its connection, if that is still there."""
        connection = self._connection()
        if connection is not None:
            connection.end(error)
