"""Who asks over HTTP, and what he may: by a token and its role, or logged in as a user, by the access rules.

A user gets a token of his own when he logs in, which counts for a while; from then on he asks as with any other. So
nothing is in a cookie, which the browser would send along for a page of another site. What he may is asked of the rules
at each request, as if he had come through AMQP on a connection that is marked for administration.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from qpid_ha_broker.access.audit import AuditChannel, Caller
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.server.control.remote_control import AdministratorRights
from qpid_ha_broker.server.http.http_roles import needed_role
from qpid_ha_broker.server.http.http_tokens import TokenFile
from qpid_ha_broker.server.http.page_sessions import IDLE_S, PREFIX, PageSession, PageSessions
from qpid_ha_broker.server.http.password_guesses import PasswordGuesses
from qpid_ha_broker.server.http.refusals import RETRY, HttpRefusal
from qpid_ha_broker.server.runtime.engines import EngineFactory
from qpid_ha_broker.server.runtime.password_logins import PasswordOutcome, check_password, password_problem
from qpid_ha_config.addresses import Address
from qpid_ha_config.tokens import TokenEntry, TokenRole

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

log = logging.getLogger("http")

CHECKS_MAX: Final = 8
"""Logins that are under way: passwords are computed one at a time."""
_LOOKING: Final = ("queues", {"action": "list"})
"""Who may ask for this may look at the page."""


class HttpPeer(NamedTuple):
    """The other end of a connection: `host:port`, and the host alone; and the listener's address."""

    name: str
    host: str
    listener: Address


class HttpCaller(NamedTuple):
    """Who has shown a token. `session`: of a user; None: it is a token of the file, or of the cluster."""

    name: str
    role: TokenRole
    """Of a user it says nothing: the rules do."""
    entry: TokenEntry | None = None
    session: PageSession | None = None

    @property
    def slots(self) -> str:
        """By which his requests are counted."""
        return self.name if self.session is None else f"user/{self.name}"

    def audited(self, host: str) -> Caller:
        """As the audit log has him."""
        channel = AuditChannel.HTTP if self.session is None else AuditChannel.HTTP_USER
        return Caller(channel, self.name, host)


class HttpCallers:
    """The promise: nobody is anybody here without a token that counts now; a user gets one by his password alone."""

    def __init__(self, broker: Broker, tokens: TokenFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._tokens = tokens
        self._rights = AdministratorRights(broker.current, broker.container.access)
        self._sessions = PageSessions(clock, lambda: secrets.token_urlsafe(32))
        self._guesses = PasswordGuesses(clock)
        self._engines: dict[Address, EngineFactory] = {}
        self._checks = 0

    def find(self, token: str) -> HttpCaller | None:
        """Whose it is."""
        if token.startswith(PREFIX):
            session = self._sessions.find(token, self._is_current)
            return None if session is None else HttpCaller(session.user, TokenRole.ADMIN, session=session)
        entry = self._tokens.find(token)
        return None if entry is None else HttpCaller(entry.name, entry.role, entry=entry)

    def _is_current(self, session: PageSession) -> bool:
        return self._broker.files.engines.kept.users.by_name.get(session.user) == session.login

    # --- what he may

    def objection_to_role(self, caller: HttpCaller, peer: HttpPeer, role: TokenRole) -> str:
        """Why he may not do what tokens of that role may, of what is no request of JSON-RPC; empty: nothing."""
        if caller.session is not None:
            return self._rights.objection(_identity(caller.name, peer), *_LOOKING)
        if not caller.role.includes(role):
            return f"{caller.name} has the role {caller.role}, and this takes {role}"
        return ""

    def objection(self, caller: HttpCaller, peer: HttpPeer, method: str, params: Mapping[str, object]) -> str:
        """Why he may not ask for that; empty: nothing."""
        if caller.session is not None:
            return self._rights.objection(_identity(caller.name, peer), method, params)
        role = needed_role(method, dict(params))
        if caller.role.includes(role):
            return ""
        asked = " ".join(filter(None, (method[:80], str(params.get("action", ""))[:80])))
        return f"{caller.name} has the role {caller.role}, and {asked} takes {role}"

    # --- logging in and out

    async def log_in(self, user: str, password: str, peer: HttpPeer) -> Mapping[str, object]:
        """`token`, and after how many seconds it counts no more where nothing is asked with it. Raises HttpRefusal."""
        if problem := password_problem(self._broker.current(), peer.listener):
            raise HttpRefusal(403, problem)
        if not self._broker.is_loaded or self._broker.is_stopping:
            raise HttpRefusal(503, "nobody can log in yet, or any more: try again", RETRY)
        if self._checks >= CHECKS_MAX:
            raise HttpRefusal(503, f"{CHECKS_MAX} logins are under way: try again", RETRY)
        wait_s = self._guesses.begin(user, peer.host)
        if wait_s > 0:
            problem = f"too many wrong passwords came from {peer.host}: try again in {ceil(wait_s)} s"
            raise HttpRefusal(429, problem, {"Retry-After": str(ceil(wait_s))})
        self._checks += 1
        try:
            checked = await check_password(self._engines_of(peer.listener), peer.listener.is_tls, user, password)
        finally:
            self._checks -= 1
        if checked.outcome is PasswordOutcome.WRONG:
            raise HttpRefusal(401, "no user has this password", {"WWW-Authenticate": 'Bearer realm="qpid-ha"'})
        self._guesses.forgive(user, peer.host)
        if checked.outcome is PasswordOutcome.TURNED_AWAY:
            raise HttpRefusal(503, "this broker does not know yet whom its cluster lets in: try again", RETRY)
        if problem := self._rights.objection(_identity(user, peer), *_LOOKING):
            raise HttpRefusal(403, f"the password is right, but the page is for who may administer: {problem}")
        log.info("%s has logged in from %s", user, peer.host)
        return {"token": self._sessions.begin(user, checked.login), "user": user, "unused_s": IDLE_S}

    def log_out(self, token: str) -> None:
        """The token counts no more, if it was that of a user."""
        self._sessions.end(token)

    def _engines_of(self, address: Address) -> EngineFactory:
        """As a listener's: made when the first user comes."""
        if address not in self._engines:
            self._engines[address] = self._broker.files.engines.for_listener(address)
        return self._engines[address]


def _identity(user: str, peer: HttpPeer) -> PeerIdentity:
    return PeerIdentity(peer.name, user, is_admin=True)
