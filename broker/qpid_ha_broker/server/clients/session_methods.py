"""The control method `sessions`: clients' sessions for operators, and ending one by hand."""

from __future__ import annotations

from collections import Counter

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.model.commands.administration import Done
from qpid_ha_broker.model.errors import ModelError, reason_of
from qpid_ha_broker.model.sessions import session_label
from qpid_ha_broker.server.control.administration import Params, WaitDone, check_parameters
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError


class SessionMethods:
    """`wait_done`: see `administration`."""

    def __init__(self, container: Container, wait_done: WaitDone) -> None:
        self._container = container
        self._wait_done = wait_done

    async def sessions(self, params: Params) -> object:
        """Without `action`, or with `list`: a row for each. `end` with the label or the UUID as `name`: end it, and its
        connection.

        `held` counts what is held in the sets of which this broker has a replica.
        """
        check_parameters("sessions", params)
        action = params.get("action", "list")
        if action == "list":
            return self._rows()
        if action != "end":
            raise ControlError(INVALID_PARAMS, f"no action {action!r:.80}; there are list and end")
        name = params.get("name")
        if not isinstance(name, str):
            raise ControlError(INVALID_PARAMS, "name is the label or the UUID of a session")
        return await self._end(name)

    async def _end(self, name: str) -> object:
        default = self._container.default.resources
        try:
            session = self._container.sessions.end_by_hand(name.lower())
            if session is None:
                text = f"there is no session {name:.80}; `qpid-ha session list` shows them"
                raise ControlError(REFUSED, text, {"reason": "not-found"})
            return await self._wait_done(Done({"session": session_label(session.name), "ended": True}, default.written))
        except ModelError as error:
            raise ControlError(REFUSED, str(error), {"reason": reason_of(error)}) from None

    def _rows(self) -> list[dict[str, object]]:
        container = self._container
        now_ms, held = container.default.now_ms, Counter[tuple[int, str]]()
        for hosted in container.sets.values():
            for link in hosted.resources.catalog.holdings:
                held[link.session, link.name] += len(link.ids)
        registry = container.default.resources.replicated.state.sessions
        return [
            {
                "session": session_label(session.name),
                "user": session.user or None,
                "state": "attached" if session.is_attached else "waiting",
                "for_s": round(max(now_ms - session.since_ms, 0) / 1000, 1),
                "timeout_s": session.timeout_ms / 1000,
                "connections": session.epoch,
                **_where(container, session.id),
                "held": held[session.id, session.name],
            }
            for session in sorted(registry.by_id.values())
        ]


def _where(container: Container, session: int) -> dict[str, object]:
    """Where its client is connected from, and to which broker; None: to none, or only the broker knows that has it."""
    attachment = container.sessions.attachment_of(session)
    if attachment is None:
        return {"client": None, "broker": None}
    return {"client": attachment.peer, "broker": attachment.broker or container.settings.name}
