"""The open connections of a broker and their links, for operators."""

from __future__ import annotations

from collections.abc import Iterator

from qpid_ha_broker.amqp.connections.connection import Connection, Connections, Opening
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.model.administration import Facts
from qpid_ha_broker.model.errors import InUse, NotFound

LINK_NAME_LENGTH = 200
"""Characters of a link's name that are shown."""
_WHOSE = "belongs to another broker of the cluster, which would connect again at once"


def connection_rows(connections: Connections) -> Iterator[Facts]:
    """A row for each, the oldest first; made when it is asked for. One that ends before is left out.

    `links` is an iterator, too: a broker that relays has those of all its clients on one connection.
    """
    for connection, opening in list(connections.open.items()):
        if not connection.has_ended:
            yield _row(connection, opening)


def _row(connection: Connection, opening: Opening) -> Facts:
    identity, session = connection.identity, connection.session
    return {
        "id": opening.number,
        "kind": _kind(connection),
        "user": identity.user or None,
        "address": identity.address,
        "container": connection.engine.connection.remote_container or "",
        "since_ms": opening.since_ms,
        "sessions": connection.sessions_open,
        "session": None if session is None else session.request.name,
        "unsettled": connection.window.unsettled,
        "links": _links(connection),
    }


def _links(connection: Connection) -> Iterator[Facts]:
    for endpoint in connection.links:
        if endpoint in connection.links:  # it may have ended since this began
            yield _link_facts(endpoint)


def _kind(connection: Connection) -> str:
    if connection.relay.is_proxy:
        return "proxy"
    if connection.peer_channel is not None or connection.is_shared:
        return "broker"
    return "administrator" if connection.is_admin else "client"


def _link_facts(endpoint: LinkEndpoint) -> Facts:
    state, link = endpoint.state(), endpoint.link
    return {
        "name": (link.name or "")[:LINK_NAME_LENGTH],
        "direction": "to client" if link.is_sender else "from client",
        "node": state.node,
        "credit": state.credit,
        "unsettled": state.unsettled,
        "waits_for": state.waits_for.value,
        "relayed_for": state.relayed_for,
        "relayed_to": state.relayed_to,
    }


def close_connection(connections: Connections, number: int, reason: str) -> Facts:
    """Close one with `amqp:connection:forced`; what its client held goes back. Raises NotFound, InUse."""
    for connection, opening in connections.open.items():
        if opening.number != number:
            continue
        if _kind(connection) in ("broker", "proxy"):
            raise InUse(f"connection {number} {_WHOSE}: stop that broker, or take it out of ha.brokers-url")
        closed: Facts = {"id": number, "address": connection.peer, "user": connection.identity.user or None}
        connection.end(AmqpError(CONNECTION_FORCED, reason))
        return closed
    raise NotFound(f"there is no connection {number}: `qpid-ha connections list` shows them")
