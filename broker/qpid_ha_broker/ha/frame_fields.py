"""The fields of the frames that are JSON: which there are, and what each may hold.

One table serves both directions, so nothing is sent that would not be taken in. A frame has exactly the fields of its
type; every text, list and number is bounded, because what is read here decides who is primary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NoReturn

from qpid_ha_broker.events.fields import write_arguments
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.frames import Frame, FrameError, GenerationEntry
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.log import DEFAULT_SET
from qpid_ha_broker.model.message_clock import LAST_MS

MAX_NAME: Final = 64
"""Characters of a broker's name, a process's, a cluster's."""
MAX_TEXT: Final = 2000
"""Characters of a reason or an address."""
MAX_FACTS: Final = 1024 * 1024
"""Characters of an answer's text, which may be a broker's facts and figures."""
MAX_HISTORY: Final = 100_000
MAX_MEMBERS: Final = 1000
MAX_CLAIMS: Final = 100
MAX_JSON_BYTES: Final = 32 * 1024 * 1024
"""More than the longest history takes."""
MAX_SECONDS: Final = 1_000_000.0

_LEFT_OUT: Final[dict[str, object]] = {
    "set": DEFAULT_SET,
    "committed_generation": 0,
    "committed_lsn": 0,
    "claims": (),
    "started": (),
    "request": "",
    "reads_clock": False,
    "reads_marks": False,
    "clock_ms": 0,
    "record_identity": "",
    "record_place": "",
    "store_problem": "",
}
"""Fields that came with a later release than their frames, and what each is where it is not sent: a broker understands
the frames of an older one, and is understood by it as long as it has nothing else to say."""

Check = Callable[[str, Any], Any]
"""(field, value) to the value as the frame has it. Raises FrameError."""


def write_fields(frame: Frame) -> bytes:
    """A JSON frame's head. Raises FrameError, KeyError for a type that is not JSON."""
    checked = {name: check(name, getattr(frame, name)) for name, check in _FIELDS[type(frame)].items()}
    sent = {name: value for name, value in checked.items() if name not in _LEFT_OUT or value != _LEFT_OUT[name]}
    return json.dumps(sent, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def read_fields(frame_type: type[Frame], head: memoryview) -> Frame:
    """The frame of which `head` is the JSON. Raises FrameError."""
    if len(head) > MAX_JSON_BYTES:
        raise FrameError(f"expected at most {MAX_JSON_BYTES} bytes of JSON, found {len(head)}")
    fields = _FIELDS[frame_type]
    try:
        found = json.loads(str(head, "utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"expected JSON, found {error}") from error
    if isinstance(found, dict):
        found = {name: value for name, value in _LEFT_OUT.items() if name in fields} | found
    if not isinstance(found, dict) or found.keys() != fields.keys():
        has = ", ".join(sorted(found)) if isinstance(found, dict) else type(found).__name__
        raise FrameError(f"expected an object with {', '.join(fields)}; found {has:.200}")
    return frame_type(**{name: check(name, found[name]) for name, check in fields.items()})


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no number")


# --- checks


def check_name(field: str, value: Any) -> str:
    """Of a broker, or of what brokers have. Raises FrameError."""
    return _bounded(field, value, MAX_NAME)


def _text(field: str, value: Any) -> str:
    return _bounded(field, value, MAX_TEXT)


def _facts(field: str, value: Any) -> str:
    return _bounded(field, value, MAX_FACTS)


def _bounded(field: str, value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise FrameError(f"{field}: expected text, found {type(value).__name__}")
    if len(value) > most:
        raise FrameError(f"{field}: expected at most {most} characters, found {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FrameError(f"{field}: expected text, found half of a character") from error
    return value


def _u64(field: str, value: Any) -> int:
    return _integer(field, value, 2**64 - 1)


def _reading(field: str, value: Any) -> int:
    return _integer(field, value, LAST_MS)


def _u32(field: str, value: Any) -> int:
    return _integer(field, value, 2**32 - 1)


def _integer(field: str, value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise FrameError(f"{field}: expected an integer from 0 to {most}, found {_shown(value)}")
    return value


def _truth(field: str, value: Any) -> bool:
    if type(value) is not bool:
        raise FrameError(f"{field}: expected true or false, found {_shown(value)}")
    return value


def _seconds(field: str, value: Any) -> float:
    # Compared as it is: an integer may be too large to be made a double.
    if type(value) not in (int, float) or not 0 <= value <= MAX_SECONDS or not math.isfinite(value):
        raise FrameError(f"{field}: expected seconds from 0 to {MAX_SECONDS:g}, found {_shown(value)}")
    return float(value)


def _one_of(values: type[StrEnum]) -> Check:
    def check(field: str, value: Any) -> StrEnum:
        try:
            return values(value)
        except (ValueError, TypeError) as error:
            raise FrameError(f"{field}: expected {', '.join(values)}; found {_shown(value)}") from error

    return check


def _state(field: str, value: Any) -> str:
    return str(_one_of(State)(field, value))


def _names(field: str, value: Any) -> tuple[str, ...]:
    return tuple(check_name(field, each) for each in _list(field, value, MAX_MEMBERS))


def _generations(field: str, value: Any) -> tuple[int, ...]:
    return tuple(_u64(field, each) for each in _list(field, value, MAX_CLAIMS))


def _times(field: str, value: Any) -> tuple[int, ...]:
    return tuple(_u64(field, each) for each in _list(field, value, MAX_HISTORY))


def _history(field: str, value: Any) -> tuple[GenerationEntry, ...]:
    return tuple(_entry(field, each) for each in _list(field, value, MAX_HISTORY))


def _entry(field: str, value: Any) -> GenerationEntry:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise FrameError(f"{field}: expected [generation, primary, first LSN], found {_shown(value)}")
    return GenerationEntry(_u64(field, value[0]), check_name(field, value[1]), _u64(field, value[2]))


def _arguments(field: str, value: Any) -> Arguments:
    """Of a queue, as the log can hold them."""
    if not isinstance(value, Mapping):
        raise FrameError(f"{field}: expected names and values, found {_shown(value)}")
    try:
        write_arguments(value)
    except (ValueError, TypeError) as error:
        raise FrameError(f"{field}: {error!s:.200}") from error
    return dict(value)


def _list(field: str, value: Any, most: int) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise FrameError(f"{field}: expected a list, found {type(value).__name__}")
    if len(value) > most:
        raise FrameError(f"{field}: expected at most {most} lines, found {len(value)}")
    return value


def _shown(value: object) -> str:
    """Never a whole integer: one of thousands of digits cannot be printed."""
    return f"{type(value).__name__}" if isinstance(value, int | list | dict) else f"{value!r:.80}"


_FIELDS: Final[dict[type[Frame], dict[str, Check]]] = {
    fr.Hello: {
        "version": _u32,
        "name": check_name,
        "instance": check_name,
        "cluster": check_name,
        "history": _history,
        "last_lsn": _u64,
        "applied_lsn": _u64,
        "complete": _truth,
        "lacks_transient": _truth,
        "promised": _u64,
        "remembers": _truth,
        "set": check_name,
        "started": _times,
        "reads_clock": _truth,
        "store_problem": _text,
        "reads_marks": _truth,
    },
    fr.Welcome: {
        "name": check_name,
        "cluster": check_name,
        "generation": _u64,
        "history": _history,
        "common_lsn": _u64,
        "resync": _one_of(fr.Resync),
        "clients_url": _text,
        "link_timeout_s": _seconds,
    },
    fr.Refused: {"code": _one_of(fr.RefusalCode), "text": _text, "primary_address": _text},
    fr.CaughtUp: {"generation": _u64, "lsn": _u64},
    fr.Observe: {"generation": _u64, "why": _text},
    fr.TakeOver: {"generation": _u64},
    fr.Shutdown: {"generation": _u64, "lsn": _u64, "uuid": check_name},
    fr.Question: {
        "number": _u64,
        "topic": _one_of(fr.Topic),
        "asker": check_name,
        "instance": check_name,
        "cluster": check_name,
        "generation": _u64,
        "lsn": _u64,
        "address": _text,
        "set": check_name,
        "request": _text,
    },
    fr.Answer: {
        "number": _u64,
        "name": check_name,
        "instance": check_name,
        "cluster": check_name,
        "state": _state,
        "generation": _u64,
        "epoch": _u64,
        "members": _names,
        "newest_members": _names,
        "lsn": _u64,
        "complete": _truth,
        "promised": _u64,
        "promised_to": check_name,
        "granted": _truth,
        "text": _facts,
        "min_in_sync": _u32,
        "store": _one_of(fr.StoreOrigin),
        "committed_generation": _u64,
        "committed_lsn": _u64,
        "claims": _generations,
        "clock_ms": _reading,
        "record_identity": check_name,
        "record_place": _text,
    },
    fr.Follow: {
        "version": _u32,
        "name": check_name,
        "queue": _text,
        "cluster": check_name,
        "history": _history,
        "last_lsn": _u64,
        "reads_clock": _truth,
    },
    fr.Followed: {
        "name": check_name,
        "cluster": check_name,
        "generation": _u64,
        "history": _history,
        "common_lsn": _u64,
        "queue": _u64,
        "arguments": _arguments,
        "link_timeout_s": _seconds,
    },
}
