"""What a proxy says of a container id that it reserves for a client at the broker that leads `default`.

It is a link there, on the connection on which links are relayed: attached while the client is connected. All of it is
in the properties of the attach, beside those of `relay.RelayRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, AmqpError

RESERVATION_NODE: Final = "$relay/reservation"
"""Address of the link."""
RESERVATION: Final = "qpid.relay-reservation"
HOLDER_INFO: Final = "broker"
"""In the info of a refusal: to which the client is connected that has the id."""
_MOST_KEY: Final = 128
_MOST_HOLD_MS: Final = 24 * 3600 * 1000


class ReservationRequest(NamedTuple):
    """See `nodes.reservations.Reservation`."""

    key: str
    hold_ms: int
    is_held: bool
    closes_existing: bool

    def properties(self) -> dict[Any, Any]:
        """Of the attach."""
        fields = [self.key, proton.ulong(self.hold_ms), self.is_held, self.closes_existing]
        return {proton.symbol(RESERVATION): fields}


def read_reservation(properties: object) -> ReservationRequest:
    """Raises AmqpError."""
    match properties.get(RESERVATION) if isinstance(properties, Mapping) else None:
        case [str(key), int(hold_ms), bool(is_held), bool(closes_existing)] if (
            0 < len(key) <= _MOST_KEY and 0 <= hold_ms <= _MOST_HOLD_MS and not isinstance(hold_ms, bool)
        ):
            return ReservationRequest(str(key), int(hold_ms), is_held, closes_existing)
    raise AmqpError(
        INVALID_FIELD,
        f"link property {RESERVATION}: expected a key, for how long it is held without this broker (at most a day),"
        " whether it was granted before, and whether it closes an existing connection",
    )
