"""The control method `connections`: who is connected to this broker, and closing a connection by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable

from qpid_ha_broker.amqp.connections.connection import Connections
from qpid_ha_broker.amqp.connections.connection_facts import close_connection, connection_rows
from qpid_ha_broker.model.administration import checked_number
from qpid_ha_broker.model.errors import InvalidArgument, ModelError, reason_of
from qpid_ha_broker.server.control.administration import Params, check_known
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError

log = logging.getLogger("connection")

REASON_LENGTH = 200
DEFAULT_REASON = "an operator closed the connection"


class ConnectionMethods:
    """`schedule_turn`: what is to be written is written soon."""

    def __init__(self, connections: Connections, schedule_turn: Callable[[], None]) -> None:
        self._connections = connections
        self._schedule_turn = schedule_turn

    def connections(self, params: Params) -> object:
        """Without `action`, or with `list`: a row for each. `close` the one with that `id`, for a `reason`."""
        action = params.get("action", "list")
        if action == "list":
            check_known(params, ("action",))
            return connection_rows(self._connections)
        if action != "close":
            raise ControlError(INVALID_PARAMS, f"no action {action!r:.80}; there are list and close")
        check_known(params, ("action", "id", "reason"))
        reason = params.get("reason", DEFAULT_REASON)
        if not isinstance(reason, str) or not 0 < len(reason) <= REASON_LENGTH or not reason.isprintable():
            raise ControlError(INVALID_PARAMS, f"reason is what its client is told: 1 to {REASON_LENGTH} characters")
        try:
            closed = close_connection(self._connections, checked_number(params.get("id"), "id"), reason)
        except InvalidArgument as error:
            raise ControlError(INVALID_PARAMS, f"{error}: `qpid-ha connections list` shows it") from None
        except ModelError as error:
            raise ControlError(REFUSED, str(error), {"reason": reason_of(error)}) from None
        log.info("%s is closed by an operator: %s", closed["address"], reason)
        self._schedule_turn()
        return {**closed, "closed": True, "reason": reason}
