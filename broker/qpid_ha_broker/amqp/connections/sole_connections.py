"""Connections that ask to be the only one with their container id (AMQP Enforcing Connection Uniqueness 1.0).

JMS has it for its client ids, and Qpid JMS asks for it on each connection, of which most have a random one. A container
id is what a client says of itself, so each user has container ids of its own: nobody keeps another user out.
"""

from __future__ import annotations

from typing import Final, Protocol

import proton

from qpid_ha_broker.amqp.nodes.identity import ClientNames
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.amqp.wire.engine import Engine

ENFORCEMENT_POLICY: Final = "sole-connection-enforcement-policy"
"""Property of a client's open: which of two is to go."""
DETECTION_POLICY: Final = "sole-connection-detection-policy"
"""Property of our open, where the capability is offered: which other connections are found."""
WEAK: Final = proton.uint(1)
"""Those alone that have asked to be the only one, too."""
_CLOSE_EXISTING: Final = 1
_SILENCES: Final = 3
"""In our idle time-out, of who may be gone."""


class SoleConnection(Protocol):
    """What is needed of a connection."""

    engine: Engine

    def end(self, error: AmqpError) -> None:
        """Close it."""


class SoleConnections:
    """The promise: of those that ask for it, one connection of a user and container id is open at this broker."""

    def __init__(self) -> None:
        self._open: dict[str, SoleConnection] = {}
        """By user and container id."""

    def refusal(self, names: ClientNames, properties: object, now_ms: int) -> AmqpError | None:
        """Why a connection may not be the only one: there is one. That one ends where its client may have come back,
        before its loss was noticed, and with the policy close-existing.

        `properties`: of the open of the new one.
        """
        older = self._open.get(names.client)
        if older is None:
            return None
        given = properties if isinstance(properties, dict) else {}
        if _may_be_gone(older, now_ms) or given.get(ENFORCEMENT_POLICY) == _CLOSE_EXISTING:
            text = "a newer connection with the same container id takes the place of this one"
            older.end(AmqpError(RESOURCE_LOCKED, text, {"sole-connection-enforcement": True}))
            return None
        return AmqpError(
            INVALID_FIELD,
            f"the container id {names.container:.80} is in use by another connection of this user: close that one, or"
            " use another id",
            {"invalid-field": proton.symbol("container-id")},
        )

    def opened(self, names: ClientNames, connection: SoleConnection) -> None:
        """`connection` is open, and the only one."""
        self._open[names.client] = connection

    def closed(self, names: ClientNames, connection: SoleConnection) -> None:
        """It is not open any more, if it ever was."""
        if self._open.get(names.client) is connection:
            del self._open[names.client]


def _may_be_gone(connection: SoleConnection, now_ms: int) -> bool:
    """Whether nothing was heard of its client for so long that it may have gone, and come back. Who sends heartbeats
    does so within a quarter of our idle time-out."""
    engine = connection.engine
    idle_ms = (engine.transport.idle_timeout or 0) * 1000
    return 0 < idle_ms < (now_ms - engine.input.heard_ms) * _SILENCES
