"""What the audit log has of an administrative act: who, from where, what, with which parameters, and what came of it.

Parameters are named one by one where the acts are (`AuditedParameters`): whatever has no name there is left out, so
that a request that gets a new parameter tells nothing of it before somebody has thought of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_broker.model.queues.queue_arguments import is_known_argument

MOST_CHARACTERS: Final = 200
"""Of one text in a line."""
MOST_ELEMENTS: Final = 50
"""Of one list or map in a line."""
MOST_DEPTH: Final = 4

_PASSWORD_OF_URL: Final = re.compile(r":(?!//)[^@\s]*@")

AuditedParameters = tuple[str, ...]
"""The names of the parameters of a request that are in the audit log, with their values."""


class AuditChannel(StrEnum):
    """How a request came."""

    CONTROL_SOCKET = "control-socket"
    HTTP = "http"
    """With a token."""
    HTTP_USER = "http-user"
    """By HTTP, of a user who has logged in with a password."""
    AMQP = "amqp"
    """Through a connection that is marked for administration."""
    MANAGEMENT = "management"
    """A client's request to `$management`."""
    CLUSTER = "cluster"
    """From another broker, which somebody has asked."""
    SIGNAL = "signal"


class AuditResult(StrEnum):
    """What came of an act."""

    DONE = "done"
    DENIED = "denied"
    """Who asked may not."""
    REFUSED = "refused"
    """It cannot be, or not now; `reason` has a word."""
    FAILED = "failed"
    """By a bug, which is in the broker's log."""
    UNKNOWN = "unknown"
    """Nobody waited for the end: it may have been done."""


class Caller(NamedTuple):
    """Who has asked, and from where."""

    channel: AuditChannel
    user: str = ""
    """Of the machine, the token or the login; empty: nobody that is known."""
    address: str = ""
    """Of the socket, as `host:port` or `host`; empty: none."""
    pid: int | None = None
    uid: int | None = None
    """Of who connected to the control socket."""
    via: tuple[str, ...] = ()
    """The brokers that have passed it on, in their order; the first one was asked."""

    @classmethod
    def through(cls, broker: str, facts: object) -> Caller:
        """Whom `broker` names as the one who has asked it. `facts`: as `facts` returns them, or what came instead."""
        named = facts if isinstance(facts, dict) else {}
        user, address = named.get("user"), named.get("address")
        return cls(
            AuditChannel.CLUSTER,
            user if isinstance(user, str) else "",
            address if isinstance(address, str) else "",
            via=(broker,),
        )

    @property
    def text(self) -> str:
        """For operators."""
        if self.pid is not None:
            return f"pid={self.pid}"
        return f"{shortened(self.user) or 'somebody'} at {shortened(self.address) or 'an unknown address'}"

    def facts(self) -> dict[str, object]:
        """For a line, without what is empty."""
        facts: dict[str, object] = {"channel": self.channel.value, "user": shortened(self.user)}
        if self.address:
            facts["address"] = shortened(self.address)
        if self.pid is not None:
            facts |= {"pid": self.pid, "uid": self.uid}
        return {**facts, "via": [shortened(name) for name in self.via[:MOST_ELEMENTS]]} if self.via else facts


class AuditedAct(NamedTuple):
    """One act, and what came of it."""

    caller: Caller
    act: str
    """What was asked for, such as `queues purge`."""
    params: Mapping[str, object]
    """See `audited`."""
    result: AuditResult
    reason: str = ""
    """A word for why it was not done; texts of errors are left out, because they quote what was asked."""


Gone = Callable[[], bool]
"""Whether whoever has asked waits for no answer any more. Asked right before what wants one is begun: it is not begun
for somebody who has given up, and may have had it done in another way."""

RecordAct = Callable[[AuditedAct], None]
"""Writes it into the audit log; raises nothing."""


def audited(params: Mapping[str, object], names: AuditedParameters) -> dict[str, object]:
    """The parameters with these names, cut to a bounded size. Of `arguments` those that the broker gives a meaning."""
    kept: dict[str, object] = {}
    for name in names:
        if name in params:
            value = params[name]
            kept[name] = _arguments(value) if name == "arguments" else bounded(value)
    return kept


def _arguments(given: object) -> object:
    if not isinstance(given, Mapping):
        return None
    known = {name: value for name, value in given.items() if isinstance(name, str) and is_known_argument(name)}
    return bounded(known)


def bounded(value: object, depth: int = 0) -> object:
    """A value as JSON can carry it, of a bounded size."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return shortened(value)
    if depth < MOST_DEPTH and isinstance(value, list | tuple):
        return [bounded(element, depth + 1) for element in value[:MOST_ELEMENTS]]
    if depth < MOST_DEPTH and isinstance(value, Mapping):
        some = list(value.items())[:MOST_ELEMENTS]
        return {shortened(str(name)): bounded(field, depth + 1) for name, field in some}
    return f"({type(value).__name__})"


def shortened(text: str) -> str:
    """At most so much of it as a line has of one text. No URL has a place for a password here; if there is one all the
    same, it is left out."""
    if "@" in text:
        text = _PASSWORD_OF_URL.sub(":...@", text)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
