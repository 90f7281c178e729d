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
ASK: Final = "qpid.relay-session-ask"
"""Properties by themselves: a broker of an older release reads the list with its six fields alone."""
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
    ask: int = 0
    """As the proxy numbers how often it has asked for this connection of the client; 0: it is of an older release."""

    def properties(self) -> dict[Any, Any]:
        """Of the attach."""
        name, timeout_ms, must_resume, session, epoch, peer, attempt, ask = self
        timeout = None if timeout_ms is None else proton.ulong(timeout_ms)
        fields = [name, timeout, must_resume, proton.ulong(session), proton.ulong(epoch), peer]
        numbers = {ATTEMPT: attempt, ASK: ask}
        numbered = {proton.symbol(key): proton.ulong(number) for key, number in numbers.items() if number}
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
            attempt = _number(properties, ATTEMPT, "the number of a client's attempt")
            ask = _number(properties, ASK, "how often a broker has asked")
            return SessionAsked(str(name), timeout, must_resume, int(session), int(epoch), str(peer), attempt, ask)
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


def _number(properties: object, name: str, meaning: str) -> int:
    match _found(properties, name):
        case None:
            return 0
        case int(number) if 0 <= number < _MAX:
            return int(number)
    raise AmqpError(INVALID_FIELD, f"link property {name}: expected {meaning}")


def _found(properties: object, name: str) -> object:
    return properties.get(name) if isinstance(properties, Mapping) else None
