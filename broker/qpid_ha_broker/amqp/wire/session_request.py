"""What a client says of its session in its open, and what it is told: properties of the connection (docs/protocol.md).

A session is a client's here, which outlives its connection; AMQP's own sessions, which do not, have other names in this
tree: `proton.Session`, `max_sessions_per_connection`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, AmqpError
from qpid_ha_broker.amqp.wire.values import is_uuid

SESSIONS_CAPABILITY: Final = "qpid.sessions"
SESSION: Final = "qpid.session"
TIMEOUT: Final = "qpid.session-timeout"
RESUME: Final = "qpid.session-resume"
KEEP: Final = "qpid.keep-session"
ATTEMPT: Final = "qpid.session-attempt"
EPOCH: Final = "qpid.session-epoch"
"""In the info of the refusal of an attempt that is older than the one that has the session: the epoch of that."""
STATUS: Final = "qpid.session-status"
CONFIRMED: Final = "qpid.session-confirmed"
"""Of an attach: the highest number accepted of the session's producer of that link."""
REFUSED: Final = "qpid.session-refused"
"""Of an attach: numbers below that which were refused; missing where there are none."""
HELD: Final = "qpid.session-held"
"""Of an attach: how many messages come first, which the session holds."""
_PROPERTIES: Final = (SESSION, TIMEOUT, RESUME, KEEP, ATTEMPT)
MAX_LINK_BYTES: Final = 91
"""Of a link's name: with the session's UUID before it, it is the name of a producer."""

_UUID_TEXT: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_INTEGERS: Final = (
    int, proton.ulong, proton.uint, proton.ushort, proton.ubyte, proton.int32, proton.short, proton.byte,
)  # fmt: skip
"""Exactly these: a boolean, a timestamp and a character are numbers to Python."""
_NUMBERS: Final = (*_INTEGERS, float, proton.float32)
_ATTEMPTS_MAX: Final = 1 << 53


class SessionRequest(NamedTuple):
    """A client opens with a session."""

    name: str
    """Its UUID, in lower case."""
    timeout_ms: int | None = None
    """What it would like; None: as long as may be."""
    must_resume: bool = False
    is_kept: bool = False
    """A clean close keeps it."""
    attempt: int = 0
    """How the client numbers its opens of this session, each higher than all before; 0: it does not."""


def read_session(properties: object) -> SessionRequest | None:
    """The session in the properties of an open; None: there is none. Raises AmqpError."""
    if not isinstance(properties, dict):
        return None
    given = {str(name): value for name, value in properties.items() if str(name) in _PROPERTIES}
    if SESSION not in given:
        if given:
            raise AmqpError(INVALID_FIELD, f"connection property {next(iter(given))} goes with {SESSION}")
        return None
    must_resume, is_kept = _truth(given, RESUME), _truth(given, KEEP)
    return SessionRequest(_uuid(given[SESSION]), _timeout(given), must_resume, is_kept, _attempt(given))


def granted_properties(name: str, timeout_ms: int, status: str) -> dict[str, Any]:
    """Of our open."""
    seconds = timeout_ms // 1000 if timeout_ms % 1000 == 0 else timeout_ms / 1000
    return {SESSION: name, TIMEOUT: seconds, STATUS: status}


def check_link_name(name: str) -> None:
    """Raises AmqpError for one that is too long for a link of a session."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_LINK_BYTES:
        raise AmqpError(INVALID_FIELD, f"the name of a session's link has at most {MAX_LINK_BYTES} bytes, found {size}")


def producer_of(session: str, link: str) -> bytes:
    """Under which name messages are numbered that come on a session's link."""
    return f"{session}/{link}".encode("utf-8", "surrogatepass")


def session_of_producer(name: bytes) -> str:
    """The UUID in the name of a producer; empty: it is none of a session's link."""
    return name[:36].decode("ascii", "replace") if name[36:37] == b"/" else ""


def _uuid(value: object) -> str:
    text = str(value).lower() if is_uuid(value) or isinstance(value, str) else ""
    if not _UUID_TEXT.fullmatch(text):
        raise _wrong(SESSION, "a UUID, or its text of 36 characters", value)
    return text


def _timeout(given: Mapping[str, object]) -> int | None:
    value = given.get(TIMEOUT)
    if value is None:
        return None
    if type(value) not in _NUMBERS or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise _wrong(TIMEOUT, "seconds, a number from 0 on", value)
    return int(value * 1000)


def _attempt(given: Mapping[str, object]) -> int:
    value = given.get(ATTEMPT, 0)
    if type(value) not in _INTEGERS or not isinstance(value, int) or not 0 <= value < _ATTEMPTS_MAX:
        raise _wrong(ATTEMPT, "a number from 1 on", value)
    return int(value)


def _truth(given: Mapping[str, object], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _wrong(name: str, expected: str, actual: object) -> AmqpError:
    return AmqpError(INVALID_FIELD, f"connection property {name}: expected {expected}, found {actual!r:.80}")
