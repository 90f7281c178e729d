"""Connections that ask to be the only one with their container id (AMQP Enforcing Connection Uniqueness 1.0).

JMS has it for its client ids, and Qpid JMS asks for it on each connection, of which most have a random one. A container
id is what a client says of itself, so each user has container ids of its own: nobody keeps another user out.

Where other brokers take clients, too, this broker has the id reserved for the one that it has: `nodes.reservations`.
"""

from __future__ import annotations

from typing import Final

import proton

from qpid_ha_broker.amqp.nodes.identity import ClientNames
from qpid_ha_broker.amqp.nodes.sole_connection import (
    SoleConnection,
    closes_existing,
    may_be_gone,
    newer_takes_its_place,
    second_refused,
)
from qpid_ha_broker.amqp.wire.conditions import AmqpError

DETECTION_POLICY: Final = "sole-connection-detection-policy"
"""Property of our open, where the capability is offered: which other connections are found."""
WEAK: Final = proton.uint(1)
"""Those alone that have asked to be the only one, too."""


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
        if may_be_gone(older, now_ms) or closes_existing(properties):
            older.end(newer_takes_its_place())
            return None
        return second_refused(names.container)

    def opened(self, names: ClientNames, connection: SoleConnection) -> None:
        """`connection` is open, and the only one."""
        self._open[names.client] = connection

    def closed(self, names: ClientNames, connection: SoleConnection) -> None:
        """It is not open any more, if it ever was."""
        if self._open.get(names.client) is connection:
            del self._open[names.client]
