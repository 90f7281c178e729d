"""The control method `connections`: who is connected to this broker, and closing a connection by hand."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from qpid_ha_broker.access.audit import AuditedAct, AuditResult, Caller, RecordAct
from qpid_ha_broker.amqp.connections.connection import Connections
from qpid_ha_broker.amqp.connections.connection_facts import (
    ConnectionPlace,
    close_connection,
    connection_page,
    connection_rows,
)
from qpid_ha_broker.ha.frames import Question
from qpid_ha_broker.model.commands.administration import Facts, checked_number
from qpid_ha_broker.model.errors import InvalidArgument, ModelError, reason_of
from qpid_ha_broker.server.control.administration import Params, check_known
from qpid_ha_broker.server.control.audited_requests import audited_request
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError

log = logging.getLogger("connection")

REASON_LENGTH: Final = 200
DEFAULT_REASON: Final = "an operator closed the connection"


class ConnectionMethods:
    """`schedule_turn`: what is to be written is written soon. `record`: who keeps the audit log of what others ask."""

    def __init__(
        self, connections: Connections, schedule_turn: Callable[[], None], record: Callable[[], RecordAct | None]
    ) -> None:
        self._connections = connections
        self._schedule_turn = schedule_turn
        self._record = record

    def connections(self, params: Params) -> object:
        """Without `action`, or with `list`: a row for each. `close` the one with that `id`, for a `reason`."""
        action = checked_action(params)
        if action == "list":
            check_known(params, ("action",))
            return self.rows()
        check_known(params, ("action", "id", "reason"))
        return self.close(params)

    def rows(self) -> Iterator[Facts]:
        """One for each connection."""
        return connection_rows(self._connections)

    def close(self, params: Mapping[str, object]) -> Facts:
        """Close the connection with this `id`. Raises ControlError."""
        reason = checked_reason(params)
        try:
            closed = close_connection(self._connections, checked_number(params.get("id"), "id"), reason)
        except InvalidArgument as error:
            raise ControlError(INVALID_PARAMS, f"{error}: `qpid-ha connections list` shows it") from None
        except ModelError as error:
            raise ControlError(REFUSED, str(error), {"reason": reason_of(error)}) from None
        log.info("%s is closed by an operator: %s", closed["address"], reason)
        self._schedule_turn()
        return {**closed, "closed": True, "reason": reason}

    def asked(self, question: Question, instance: str) -> tuple[bool, str]:
        """What another broker wants of the connections here: see `peer_links.ConnectionsAsked`, docs/protocol.md.

        `instance`: of this process.
        """
        try:
            wanted = json.loads(question.request)
        except (ValueError, RecursionError):
            wanted = None
        if isinstance(wanted, dict) and isinstance(wanted.get("close"), dict):
            if wanted.get("instance") != instance:
                return False, "this broker was started anew meanwhile: look which connections there are now"
            return self._close_for_another(wanted["close"], Caller.through(question.asker, wanted.get("caller")))
        place = wanted.get("from") if isinstance(wanted, dict) else None
        if not isinstance(place, list) or [type(number) for number in place] != [int, int]:
            return False, "this release does not know what is asked of its connections"
        rows, following = connection_page(self._connections, ConnectionPlace(*place))
        return True, json.dumps({"rows": rows, "next": following})

    def _close_for_another(self, params: dict[str, Any], caller: Caller) -> tuple[bool, str]:
        outcome = AuditResult.DONE, ""
        try:
            return True, json.dumps(self.close(params))
        except ControlError as error:
            data = error.data if isinstance(error.data, dict) else {"reason": "invalid"}
            outcome = AuditResult.REFUSED, str(data["reason"])
            return False, error.message
        finally:
            record, act = self._record(), audited_request("connections", {**params, "action": "close"})
            if record is not None and act is not None:
                record(AuditedAct(caller, *act, *outcome))


def checked_action(params: Params) -> str:
    """Raises ControlError."""
    action = params.get("action", "list")
    if action not in ("list", "close"):
        raise ControlError(INVALID_PARAMS, f"no action {action!r:.80}; there are list and close")
    return str(action)


def checked_reason(params: Mapping[str, object]) -> str:
    """What its client is told. Raises ControlError."""
    reason = params.get("reason", DEFAULT_REASON)
    if not isinstance(reason, str) or not 0 < len(reason) <= REASON_LENGTH or not reason.isprintable():
        raise ControlError(INVALID_PARAMS, f"reason is what its client is told: 1 to {REASON_LENGTH} characters")
    return reason
