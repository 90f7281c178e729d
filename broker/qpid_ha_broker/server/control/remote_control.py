"""Who may administer the broker through AMQP, and how a request gets from there to the control methods.

It is answered as what comes through the control socket, but for who has asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Final

from qpid_ha_broker.access.audit import AuditChannel, AuditResult, Caller, Gone
from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.access.rules import AccessControl, Denied, Permission, Subject
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.management_control import Done
from qpid_ha_broker.amqp.nodes.management_messages import BAD_REQUEST, OK, UNAUTHORIZED, UNAVAILABLE, ManagementAnswer
from qpid_ha_broker.server.control.control import ControlServer
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_config.settings import BrokerSettings

logger = logging.getLogger("connection")

REPLY_TIMEOUT_S = 300.0
LARGEST_REPLY_BYTES = 64 * 1024 * 1024
UNDER_WAY_MOST: Final = 64
"""Requests that are carried out at the same time."""


class AdministratorRights:
    """The promise: of those who have logged in, only who may administer does so, whichever way he has come.

    Without an access control list that is `ha.username`; if that is not set, who is on this machine. With one, brokers
    still get what they ask each other.
    """

    def __init__(self, settings: Callable[[], BrokerSettings], access: AccessControl) -> None:
        self._settings = settings
        self._access = access

    def objection(self, identity: PeerIdentity, method: str, params: Mapping[str, object]) -> str:
        """Why that one may not ask for it; empty: nothing."""
        if self._access.rules is not None:
            return self._objection_by_rules(identity, method, params)
        wanted = self._settings().ha.username
        if wanted is None:
            return "" if identity.is_local else "ha.username is not set, so only this machine may; set it"
        user = identity.user or "nobody"
        return "" if user == wanted else f"{user} may not; log in as the user that ha.username names"

    def _objection_by_rules(self, identity: PeerIdentity, method: str, params: Mapping[str, object]) -> str:
        subject = Subject.logged_in(identity.user, is_local=identity.is_local)
        row = OPERATIONS.find(method, params)
        form = None if row is None else row.control
        if form is not None and form.instead is not None and self._access.decide(subject, form.instead, "").is_allowed:
            return ""
        try:
            self._access.check(subject, Permission.ADMINISTER, "")
            for needed in () if form is None else form.nodes:
                self._access.check(
                    subject, needed.permission, str(params.get(needed.node) or ""), needed.topic_of(params)
                )
        except Denied as error:
            return str(error)
        return ""


class RemoteControl:
    """The promise: only an admin-marked connection of somebody who may administer gets through.

    `wake` is called when an answer is ready to be written.
    """

    def __init__(
        self,
        settings: Callable[[], BrokerSettings],
        access: AccessControl,
        wake: Callable[[], None],
        control: Callable[[], ControlServer],
    ) -> None:
        self._rights = AdministratorRights(settings, access)
        self._wake = wake
        self._control = control
        self._under_way = 0
        self._tasks = BackgroundTasks()

    def __call__(self, identity: PeerIdentity, body: object, done: Done, gone: Gone) -> None:
        """Carry out one request; to be called in the broker's event loop."""
        problem = self._objection(identity, body)
        caller = Caller(AuditChannel.AMQP, identity.user, identity.address)
        if problem:
            self._denied(caller, body)
            done(ManagementAnswer(UNAUTHORIZED, problem, ""))
        elif not isinstance(body, str):
            done(ManagementAnswer(BAD_REQUEST, "the body is the text of a JSON-RPC 2.0 request", ""))
        elif self._under_way >= UNDER_WAY_MOST:
            done(ManagementAnswer(UNAVAILABLE, f"{UNDER_WAY_MOST} requests are under way: ask again later", ""))
        else:
            self._under_way += 1
            self._tasks.start(self._carry_out(caller, body, done, gone))

    def _denied(self, caller: Caller, body: object) -> None:
        control, (method, params) = self._control(), _read(body)
        if control.record is not None and method in control.methods:
            control.record(caller, method, params, AuditResult.DENIED, "not-allowed")

    def _objection(self, identity: PeerIdentity, body: object) -> str:
        """Empty, or why not."""
        if not identity.is_admin:
            return "mark the connection with the property qpid.ha-admin, as qpid-ha does"
        return self._rights.objection(identity, *_read(body))

    async def _carry_out(self, caller: Caller, body: str, done: Done, gone: Gone) -> None:
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                # What was begun goes on when nobody waits any more: as through the control socket.
                line = body.encode("utf-8", errors="surrogatepass")
                reply, _, stream = await asyncio.shield(self._control().answer(line, caller, gone=gone))
            if stream is not None:
                stream.close()
            answer = ManagementAnswer(OK, "OK", (reply or b"").decode("ascii").rstrip())
            if len(reply or b"") > LARGEST_REPLY_BYTES:
                answer = ManagementAnswer(UNAVAILABLE, f"the answer is over {LARGEST_REPLY_BYTES} bytes", "")
        except TimeoutError:
            logger.warning("a request through AMQP had no answer within %g s", REPLY_TIMEOUT_S)
            answer = ManagementAnswer(UNAVAILABLE, f"there was no answer within {REPLY_TIMEOUT_S:g} s", "")
        finally:
            self._under_way -= 1
        done(answer)
        self._wake()


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
