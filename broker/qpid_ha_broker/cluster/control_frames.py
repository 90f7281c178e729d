"""What a broker and the controller say to each other on their control channel, as bytes.

A frame is JSON: a list of the frame's kind and its fields, `listed` as `events.json_forms` has it: a named tuple's
annotations are its table. docs/protocol.md, "Control channels", has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from qpid_ha_broker.cluster.messages import BrokerReport, OrderDeletion, OrderKind
from qpid_ha_broker.events.json_forms import checks_of, dump, in_field, listed, parse
from qpid_ha_broker.events.types import SetRecorded

MAX_BYTES: Final = 64 * 1024 * 1024
"""More than a report of 100,000 replicas takes."""


class ControlFrameError(Exception):
    """Bytes that are no frame of a control channel: what was expected, and what was found."""


# --- from a broker to the controller


class Reported(NamedTuple):
    """See `BrokerReport`; the first frame of a channel."""

    report: BrokerReport


class RecordAsked(NamedTuple):
    """Read the record of a set (`wanted` None), or replace it if it is `expected`; `RecordTold(number)` answers."""

    number: int
    set: str
    expected: SetRecorded | None = None
    wanted: SetRecorded | None = None


class OrderDone(NamedTuple):
    """What came of `Ordered(number)`, in a sentence."""

    number: int
    done: bool
    text: str


class Asked(NamedTuple):
    """Somebody wants something of the controller (`messages.REQUESTS`); `Told(number)` answers."""

    number: int
    method: str
    params: Mapping[str, Any]
    caller: Mapping[str, Any] = {}
    """Who has asked the broker for it, for the audit log, which it is told with; empty: nobody, or it is no act."""


# --- from the controller to a broker


class Ordered(NamedTuple):
    """See `GiveOrder`; `OrderDone(number)` answers."""

    number: int
    set: str
    kind: OrderKind
    to: str = ""
    cause: str = ""
    force: bool = False
    """A release that does not know this field promotes as without it: it refuses, and loses nothing."""


class ReportAsked(NamedTuple):
    """Report all of it."""


class RecordTold(NamedTuple):
    """See `AnswerRecord`."""

    number: int
    written: bool
    record: SetRecorded | None
    problem: str = ""


class Told(NamedTuple):
    """See `AnswerRequest`."""

    number: int
    done: bool
    text: str
    result: Mapping[str, Any] = {}


class Dismissed(NamedTuple):
    """This broker is not of the cluster; the channel ends."""

    text: str


ControlFrame = (
    Reported | RecordAsked | OrderDone | Asked | Ordered | OrderDeletion | ReportAsked | RecordTold | Told | Dismissed
)

KINDS: Final[Mapping[str, type[ControlFrame]]] = {
    "report": Reported,
    "record": RecordAsked,
    "order-done": OrderDone,
    "ask": Asked,
    "order": Ordered,
    "order-deletion": OrderDeletion,
    "report-all": ReportAsked,
    "record-told": RecordTold,
    "told": Told,
    "dismissed": Dismissed,
}
"""By the word with which a frame begins; one that was once used is not given to another frame."""
_WORDS: Final = {kind: word for word, kind in KINDS.items()}
_CHECKS: Final = {word: listed(kind) for word, kind in KINDS.items()}


def encode(frame: ControlFrame) -> bytes:
    """The bytes of one frame."""
    return dump([_WORDS[type(frame)], *frame])


def decode(data: bytes) -> ControlFrame:
    """Raises ControlFrameError."""
    try:
        given = parse(data, MAX_BYTES)
        if not isinstance(given, list) or not given or not isinstance(given[0], str) or given[0] not in KINDS:
            raise ValueError(f"expected a list that begins with one of {', '.join(KINDS)}; found {data[:80]!r}")
        frame: ControlFrame = _CHECKS[given[0]](given[1:])
    except ValueError as error:
        raise ControlFrameError(str(error)) from None
    return frame


def read_request(kind: type[Any], params: Mapping[str, Any]) -> Any:
    """A named tuple by its fields' names, as operators give them. Raises ControlFrameError."""
    checks = checks_of(kind)
    for name in params:
        if name not in checks:
            raise ControlFrameError(f"unknown parameter {name!r:.80}; there are {', '.join(checks) or 'none'}")
    try:
        given = {name: in_field(name, checks[name], value) for name, value in params.items()}
    except ValueError as error:
        raise ControlFrameError(str(error)) from None
    missing = [name for name in checks if name not in given and name not in kind._field_defaults]
    if missing:
        raise ControlFrameError(f"{missing[0]} is missing")
    return kind(**given)
