"""The addresses that are the broker's own, which begin with `$`: who may attach to which, and what is asked for that.

No rule is about them. Whoever attaches goes through this table; what has no row in it is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from qpid_ha_broker.amqp.nodes.management_messages import MANAGEMENT
from qpid_ha_broker.amqp.wire.conditions import NOT_ALLOWED, NOT_FOUND, AmqpError
from qpid_ha_broker.amqp.wire.peer_frames import ADDRESS as PEERS
from qpid_ha_broker.amqp.wire.relay import COORDINATOR
from qpid_ha_broker.amqp.wire.relayed_session_request import SESSION_NODE
from qpid_ha_broker.amqp.wire.reservation_request import RESERVATION_NODE

OWN: Final = "$"


class AskedOf(Enum):
    """What is asked of who attaches, in place of a rule about the address."""

    BROKER = "broker"
    """`replicate` of the connection: it is another broker's, and the link its own."""
    RELAYING_BROKER = "relaying broker"
    """`replicate` of the connection, when the request for the client was read; what comes on the link is the client's,
    and bound to its user."""
    EACH_REQUEST = "each request"
    """Nothing: each request is for an action on an entity, which is asked when it comes."""


class OwnAddress(NamedTuple):
    """A row."""

    asked_of: AskedOf
    takes_publishers: bool
    takes_consumers: bool
    is_relayed: bool
    """A client's link goes on to the broker that leads the set, where another one does."""


ADDRESSES: Final[Mapping[str, OwnAddress]] = {
    PEERS: OwnAddress(AskedOf.BROKER, True, True, False),
    MANAGEMENT: OwnAddress(AskedOf.EACH_REQUEST, True, True, True),
    COORDINATOR: OwnAddress(AskedOf.RELAYING_BROKER, True, False, False),
    SESSION_NODE: OwnAddress(AskedOf.RELAYING_BROKER, True, False, False),
    RESERVATION_NODE: OwnAddress(AskedOf.RELAYING_BROKER, True, False, False),
}


def is_own(address: str) -> bool:
    """Whether that is an address of the broker's own, be there something or not: no rule is about it."""
    return address.startswith(OWN)


def own_address(address: str, *, publishes: bool, is_for_another: bool) -> OwnAddress | None:
    """The row for a link to `address`; None: it is no address of the broker's own, and rules say who may use it.

    `is_for_another`: another broker, which has shown that it is one, attaches it for its client. Raises AmqpError for
    what is not there, and for who may not have it.
    """
    if not is_own(address):
        return None
    row = ADDRESSES.get(address)
    fits = {AskedOf.BROKER: not is_for_another, AskedOf.RELAYING_BROKER: is_for_another, AskedOf.EACH_REQUEST: True}
    if row is None or not fits[row.asked_of]:
        raise no_such_address(address)
    if not (row.takes_publishers if publishes else row.takes_consumers):
        raise AmqpError(NOT_ALLOWED, f"{address} is an address for {'consumers' if publishes else 'publishers'} only")
    return row


def no_such_address(address: str) -> AmqpError:
    """Of one that begins with `$` and is no node: it cannot be made either."""
    return AmqpError(NOT_FOUND, f"there is no node {address}: names with $ are the broker's own; see {MANAGEMENT}")
