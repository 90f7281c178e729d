"""What a broker and the controller say to each other on their control channel, as bytes.

A frame is JSON: a list of the frame's kind and its fields in their order, nested values as lists, too. What a later
release adds comes last: fields that are missing have their defaults, and what follows those that are known is ignored.
docs/protocol.md, "Control channels", has the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from qpid_ha_broker.cluster.messages import BrokerReport, OrderKind
from qpid_ha_broker.events.fields import MAX_TEXT_BYTES, write_arguments
from qpid_ha_broker.events.types import SetRecorded

MAX_BYTES: Final = 64 * 1024 * 1024
"""More than a report of 100,000 replicas takes."""
MAX_INTEGER: Final = 2**64 - 1


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


ControlFrame = Reported | RecordAsked | OrderDone | Asked | Ordered | ReportAsked | RecordTold | Told | Dismissed

KINDS: Final[Mapping[str, type[ControlFrame]]] = {
    "report": Reported,
    "record": RecordAsked,
    "order-done": OrderDone,
    "ask": Asked,
    "order": Ordered,
    "report-all": ReportAsked,
    "record-told": RecordTold,
    "told": Told,
    "dismissed": Dismissed,
}
"""By the word with which a frame begins; one that was once used is not given to another frame."""
_WORDS: Final = {kind: word for word, kind in KINDS.items()}

Read = Callable[[Any], Any]
"""From what JSON gives to the value of a field. Raises ControlFrameError."""


def encode(frame: ControlFrame) -> bytes:
    """The bytes of one frame."""
    return json.dumps(
        [_WORDS[type(frame)], *frame], ensure_ascii=False, separators=(",", ":"), allow_nan=False
    ).encode()


def decode(data: bytes) -> ControlFrame:
    """Raises ControlFrameError."""
    if len(data) > MAX_BYTES:
        raise ControlFrameError(f"expected at most {MAX_BYTES} bytes, found {len(data)}")
    try:
        found = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ControlFrameError(f"expected JSON, found {error!s:.200}") from None
    if not isinstance(found, list) or not found or not isinstance(found[0], str) or found[0] not in KINDS:
        raise ControlFrameError(f"expected a list that begins with one of {', '.join(KINDS)}; found {data[:80]!r}")
    frame: ControlFrame = _READERS[found[0]](found[1:])
    return frame


def read_request(kind: type[tuple[Any, ...]], params: Mapping[str, Any]) -> Any:
    """A named tuple by its fields' names, as operators give them. Raises ControlFrameError."""
    fields = _fields_of(kind)
    for name in params:
        if name not in fields:
            raise ControlFrameError(f"unknown parameter {name!r:.80}; there are {', '.join(fields) or 'none'}")
    given = {name: _in_field(name, fields[name], value) for name, value in params.items()}
    missing = [name for name in fields if name not in given and name not in kind._field_defaults]  # type: ignore[attr-defined]
    if missing:
        raise ControlFrameError(f"{missing[0]} is missing")
    return kind(**given)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no number")


def _fields_of(kind: type[Any]) -> dict[str, Read]:
    return {name: _reader(hint) for name, hint in get_type_hints(kind).items()}


def _in_field(name: str, read: Read, value: Any) -> Any:
    try:
        return read(value)
    except ControlFrameError as error:
        raise ControlFrameError(f"{name}: {error}") from None


def _tuple_reader(kind: type[Any]) -> Read:
    fields = _fields_of(kind)
    needed = len(fields) - len(kind._field_defaults)

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) < needed:
            raise ControlFrameError(f"expected a list of {', '.join(fields)}; found {value!r:.80}")
        pairs = zip(fields.items(), value, strict=False)
        return kind(*[_in_field(name, read_field, each) for (name, read_field), each in pairs])

    return read


def _reader(hint: Any) -> Read:
    """For a field that is annotated so. Raises TypeError for what no frame can have."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _sequence_reader(_reader(arguments[0]))
    if origin is tuple:
        return _pair_reader([_reader(each) for each in arguments])
    if origin in (Union, UnionType) and NoneType in arguments:
        (rest,) = [_reader(each) for each in arguments if each is not NoneType]
        return lambda value: None if value is None else rest(value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _read_mapping if arguments[1] is Any or arguments[1] is object else _read_arguments
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _choice_reader(hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _tuple_reader(hint)
    return _SCALARS[hint]


def _sequence_reader(read_each: Read) -> Read:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ControlFrameError(f"expected a list, found {value!r:.80}")
        return tuple([read_each(each) for each in value])

    return read


def _pair_reader(readers: list[Read]) -> Read:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise ControlFrameError(f"expected a list of {len(readers)}, found {value!r:.80}")
        return tuple([read_each(each) for read_each, each in zip(readers, value, strict=True)])

    return read


def _choice_reader(kind: type[StrEnum]) -> Read:
    def read(value: Any) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            raise ControlFrameError(f"expected one of {', '.join(kind)}; found {value!r:.80}") from None

    return read


def _read_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ControlFrameError(f"expected names and values, found {value!r:.80}")
    return value


def _read_arguments(value: Any) -> dict[str, Any]:
    """Of a queue, as the log can hold them."""
    found = _read_mapping(value)
    try:
        write_arguments(found)
    except (ValueError, TypeError) as error:
        raise ControlFrameError(f"{error!s:.200}") from None
    return found


def _read_text(value: Any) -> str:
    try:
        if isinstance(value, str) and len(value.encode()) <= MAX_TEXT_BYTES:
            return value
    except UnicodeEncodeError:
        raise ControlFrameError("expected text, found half of a character") from None
    raise ControlFrameError(f"expected text of at most {MAX_TEXT_BYTES} bytes, found {value!r:.80}")


def _read_integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ControlFrameError("expected an integer from 0 to 2^64 - 1")
    return value


def _read_truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ControlFrameError(f"expected true or false, found {value!r:.80}")
    return value


_SCALARS: Final[Mapping[Any, Read]] = {str: _read_text, int: _read_integer, bool: _read_truth}
_READERS: Final[Mapping[str, Read]] = {word: _tuple_reader(kind) for word, kind in KINDS.items()}
