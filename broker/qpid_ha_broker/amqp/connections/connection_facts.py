"""The open connections of a broker and their links, for operators."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from qpid_ha_broker.amqp.connections.connection import Connection, Connections, Opening
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.model.commands.administration import Facts
from qpid_ha_broker.model.errors import InUse, NotFound
from qpid_ha_broker.model.sessions import session_label

LINK_NAME_LENGTH = 200
"""Characters of a link's name that are shown."""
PAGE_BYTES: Final = 64 * 1024
"""Of rows as JSON in one page, but for the last link: some milliseconds' work."""
_WHOSE = "belongs to another broker of the cluster, which would connect again at once"


def connection_rows(connections: Connections) -> Iterator[Facts]:
    """A row for each, the oldest first; made when it is asked for. One that ends before is left out.

    `links` is an iterator, too: a broker that relays has those of all its clients on one connection.
    """
    for connection, opening in list(connections.open.items()):
        if not connection.has_ended:
            yield _row(connection, opening)


class ConnectionPlace(NamedTuple):
    """Where a page of rows begins: at link `link` of the connection with this `id`, or with the next one there is."""

    id: int = 0
    link: int = 0


def connection_page(connections: Connections, place: ConnectionPlace) -> tuple[list[Facts], ConnectionPlace | None]:
    """Rows from there on, the oldest first, and where the next page begins; None: that was all.

    A connection with many links may be on several pages, each with a part of them. What comes, goes or ends between
    two pages may be missing.
    """
    rows: list[Facts] = []
    size = 0
    for connection, opening in connections.open.items():
        number = opening.number
        if number < place.id or connection.has_ended:
            continue
        if size >= PAGE_BYTES:
            return rows, ConnectionPlace(number)
        links: list[Facts] = []
        row = {**_row(connection, opening), "links": links}
        rows.append(row)
        size += len(json.dumps(row))
        for at, endpoint in enumerate(connection.links):
            if number == place.id and at < place.link:
                continue
            if size >= PAGE_BYTES and links:
                return rows, ConnectionPlace(number, at)
            links.append(_link_facts(endpoint))
            size += len(json.dumps(links[-1]))
    return rows, None


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
        "session": None if session is None else session_label(session.request.name),
        "unsettled": connection.window.unsettled,
        "links": _links(connection),
    }


def _links(connection: Connection) -> Iterator[Facts]:
    for endpoint in connection.links:
        if endpoint in connection.links:  # it may have ended since this began
            yield _link_facts(endpoint)


def _kind(connection: Connection) -> str:
    if connection.relay.is_proxy and connection.relay.is_broker:
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
