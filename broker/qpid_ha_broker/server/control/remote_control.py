"""Who may administer the broker through AMQP, and how a request gets from there to the control methods.

It goes through the broker's own control socket: so there is one place that reads requests and bounds what they cost.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.management_control import Done
from qpid_ha_broker.amqp.nodes.management_messages import BAD_REQUEST, OK, UNAUTHORIZED, UNAVAILABLE, ManagementAnswer
from qpid_ha_broker.model.access import AccessControl, Denied, Permission, Subject
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_config.settings import BrokerSettings

logger = logging.getLogger("connection")

REPLY_TIMEOUT_S = 300.0
LARGEST_REPLY_BYTES = 64 * 1024 * 1024
OF_BROKERS: Final = frozenset({"ping", "status", "query"})
"""Methods that change nothing, and that agents ask other brokers for as `ha.username`."""
OF_MESSAGES: Final[Mapping[str, tuple[tuple[Permission, str], ...]]] = {
    "peek": ((Permission.BROWSE, "name"),),
    "payload": ((Permission.BROWSE, "name"),),
    "move": ((Permission.CONSUME, "name"), (Permission.PUBLISH, "to")),
    "purge": ((Permission.PURGE, "name"),),
}
"""Actions of `queues` that are about what is in a queue: who administers the broker needs these permissions besides,
each on the queue that the param names. So there may be administrators who do not see what clients send."""


class RemoteControl:
    """The promise: only an admin-marked connection of somebody who may administer gets through.

    Without an access control list that is `ha.username`; if that is not set, who is on this machine. With one, brokers
    still get what they ask each other.

    `wake` is called when an answer is ready to be written.
    """

    def __init__(self, settings: Callable[[], BrokerSettings], access: AccessControl, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._access = access
        self._wake = wake
        self._tasks = BackgroundTasks()

    def __call__(self, identity: PeerIdentity, body: object, done: Done) -> None:
        """Carry out one request; to be called in the broker's event loop."""
        problem = self._objection(identity, body)
        if problem:
            done(ManagementAnswer(UNAUTHORIZED, problem, ""))
        elif not isinstance(body, str):
            done(ManagementAnswer(BAD_REQUEST, "the body is the text of a JSON-RPC 2.0 request", ""))
        else:
            self._tasks.start(self._carry_out(body, done))

    def _objection(self, identity: PeerIdentity, body: object) -> str:
        """Empty, or why not."""
        wanted = self._settings().ha.username
        if not identity.is_admin:
            return "mark the connection with the property qpid.ha-admin, as qpid-ha does"
        if self._access.rules is not None:
            return self._objection_by_rules(identity, body)
        if wanted is None:
            return "" if identity.is_local else "ha.username is not set, so only this machine may; set it"
        user = identity.user or "nobody"
        return "" if user == wanted else f"{user} may not; log in as the user that ha.username names"

    def _objection_by_rules(self, identity: PeerIdentity, body: object) -> str:
        subject = Subject.logged_in(identity.user, is_local=identity.is_local)
        if _read(body)[0] in OF_BROKERS and self._access.decide(subject, Permission.REPLICATE, "").is_allowed:
            return ""
        try:
            self._access.check(subject, Permission.ADMINISTER, "")
            for permission, node in _of_messages(body):
                self._access.check(subject, permission, node)
        except Denied as error:
            return str(error)
        return ""

    async def _carry_out(self, body: str, done: Done) -> None:
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                answer = ManagementAnswer(OK, "OK", await _ask(self._settings().control_socket, body))
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:  # TimeoutError is an OSError
            logger.warning("a request through AMQP could not be carried out: %s", error or type(error).__name__)
            answer = ManagementAnswer(UNAVAILABLE, f"the control socket gave no answer ({type(error).__name__})", "")
        done(answer)
        self._wake()


async def _ask(path: Path, request: str) -> str:
    """One line there, one line back. A line break in JSON means no more than a space."""
    reader, writer = await asyncio.open_unix_connection(path, limit=LARGEST_REPLY_BYTES)
    try:
        writer.write(request.replace("\n", " ").encode("utf-8") + b"\n")
        await writer.drain()
        return (await reader.readuntil(b"\n")).decode("utf-8").rstrip()
    finally:
        writer.close()


def _read(body: object) -> tuple[str, Mapping[str, object]]:
    """The method that the request asks for, and its params; empty: it is none, and whoever reads it says so."""
    try:
        request = json.loads(body) if isinstance(body, str) else None
    except (ValueError, RecursionError):
        return "", {}
    if not isinstance(request, dict):
        return "", {}
    method, params = request.get("method"), request.get("params")
    return method if isinstance(method, str) else "", params if isinstance(params, dict) else {}


def _of_messages(body: object) -> list[tuple[Permission, str]]:
    """What is needed for a request about the messages of queues, and on which; what names no queue comes to nothing."""
    method, params = _read(body)
    action = params.get("action")
    needed = OF_MESSAGES.get(action, ()) if method == "queues" and isinstance(action, str) else ()
    return [(permission, str(params.get(name) or "")) for permission, name in needed]
