"""What a proxy says of a client's session to the broker that leads `default`, and what that answers.

A session of a client at any broker is a link there, on the connection on which links are relayed: attached while the
client is connected. All of it is in the properties of the attach, beside those of `relay.RelayRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, AmqpError
from qpid_ha_broker.amqp.wire.session_request import SessionRequest

SESSION_NODE: Final = "$relay/session"
"""Address of the link."""
ASKED: Final = "qpid.relay-session-asked"
GRANTED: Final = "qpid.relay-session-granted"
ATTEMPT: Final = "qpid.relay-session-attempt"
"""A property by itself: a broker of an older release reads the list with its six fields alone."""
_MAX: Final = 1 << 64


class SessionAsked(NamedTuple):
    """A client opens with a session, or, where `epoch` is not 0, has it already and goes on."""

    name: str
    """The session's UUID."""
    timeout_ms: int | None
    """What the client would like; None: as long as may be."""
    must_resume: bool
    id: int
    """Of the session that it has; 0: it has none yet."""
    epoch: int
    """The same."""
    peer: str
    """Where the client is connected from."""
    attempt: int = 0
    """As the client numbers its opens; 0: it does not."""

    def properties(self) -> dict[Any, Any]:
        """Of the attach."""
        name, timeout_ms, must_resume, session, epoch, peer, attempt = self
        timeout = None if timeout_ms is None else proton.ulong(timeout_ms)
        fields = [name, timeout, must_resume, proton.ulong(session), proton.ulong(epoch), peer]
        numbered = {proton.symbol(ATTEMPT): proton.ulong(attempt)} if attempt else {}
        return {proton.symbol(ASKED): fields, **numbered}

    @property
    def request(self) -> SessionRequest:
        """What the client has said in its open."""
        return SessionRequest(self.name, self.timeout_ms, self.must_resume, attempt=self.attempt)


class SessionGranted(NamedTuple):
    """The client has the session."""

    id: int
    epoch: int
    timeout_ms: int
    status: str
    """For the client: new, or resumed."""

    def properties(self) -> dict[Any, Any]:
        """Of the attach that answers."""
        fields = [proton.ulong(self.id), proton.ulong(self.epoch), proton.ulong(self.timeout_ms), self.status]
        return {proton.symbol(GRANTED): fields}


def read_asked(properties: object) -> SessionAsked:
    """Raises AmqpError."""
    match _found(properties, ASKED):
        case [str(name), None | int() as timeout_ms, bool(must_resume), int(session), int(epoch), str(peer)] if (
            0 <= (timeout_ms or 0) < _MAX and 0 <= session < _MAX and 0 <= epoch < _MAX
        ):
            timeout = None if timeout_ms is None else int(timeout_ms)
            attempt = _attempt(properties)
            return SessionAsked(str(name), timeout, must_resume, int(session), int(epoch), str(peer), attempt)
    raise AmqpError(
        INVALID_FIELD,
        f"link property {ASKED}: expected a session's UUID, timeout, whether it must be there, id, epoch, and its peer",
    )


def read_granted(properties: object) -> SessionGranted:
    """Raises AmqpError."""
    match _found(properties, GRANTED):
        case [int(session), int(epoch), int(timeout_ms), str(status)] if session > 0 and epoch > 0 and timeout_ms >= 0:
            return SessionGranted(int(session), int(epoch), int(timeout_ms), str(status))
    raise AmqpError(INVALID_FIELD, f"link property {GRANTED}: expected a session's id, epoch, timeout and status")


def _attempt(properties: object) -> int:
    match _found(properties, ATTEMPT):
        case None:
            return 0
        case int(attempt) if 0 <= attempt < _MAX:
            return int(attempt)
    raise AmqpError(INVALID_FIELD, f"link property {ATTEMPT}: expected the number of a client's attempt")


def _found(properties: object, name: str) -> object:
    return properties.get(name) if isinstance(properties, Mapping) else None
