"""How single values lie in a record: integers, text, lists of ids, arguments. Little-endian throughout.

Each kind of value has one writer and one reader, and the reader takes only what the writer would have written: there is
one spelling for each value, so two logs that say the same are the same bytes. A reader first compares a length or count
with what is left of the body and only then makes anything of that size. Readers raise ValueError or struct.error.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Final

from .layout import BODIES, ID
from .types import Arguments, DequeueReason, Event, Scalar

MAX_TEXT_BYTES: Final = 0xFFFF
"""Of a name or a key, in UTF-8."""

MAX_ARGUMENTS_BYTES: Final = 0xFFFF
"""Of the arguments as JSON. Parsing makes small objects out of few bytes; this bounds what a bad record can cost."""

MAX_QUEUES: Final = 0xFFFF
"""That one message may join at once."""

MIN_ARGUMENT_INTEGER: Final = -(2**63)
MAX_ARGUMENT_INTEGER: Final = 2**64 - 1
"""AMQP's long and ulong: no client can send, and not every reader could hold, more."""

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_BYTES: Final = {name: struct.calcsize("<" + form) for body in BODIES.values() for name, form in body.fields.items()}
"""Of the fields that are integers; the LSN is not among them and has 8."""
_JSON: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def expect_end(body: memoryview, at: int) -> None:
    """Raise ValueError unless the body ends at `at`: a byte that nobody reads is a byte nobody understood."""
    if len(body) != at:
        raise ValueError(f"expected {at} bytes of body, found {len(body)}")


def write_ids(values: tuple[int, ...]) -> bytes:
    """Without their number, which every kind keeps elsewhere."""
    if len(values) == 1:
        return ID.pack(values[0])
    return struct.pack(f"<{len(values)}Q", *values)


def read_ids(body: bytes | memoryview, at: int, count: int) -> tuple[int, ...]:
    """Without the place after them, which is `at + 8 * count`."""
    if len(body) - at < 8 * count:
        raise ValueError(f"expected {count} ids of 8 bytes, found {len(body) - at} bytes")
    if count == 1:
        return ID.unpack_from(body, at)
    return struct.unpack_from(f"<{count}Q", body, at)


def write_list_of_ids(values: tuple[int, ...]) -> bytes:
    """How many there are, and each."""
    return _U32.pack(len(values)) + write_ids(values)


def read_list_of_ids(body: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    """The values, and where the next field begins."""
    (count,) = _U32.unpack_from(body, at)
    at += _U32.size
    return read_ids(body, at, count), at + ID.size * count


def write_text(value: str) -> bytes:
    """Length and UTF-8."""
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


def read_text(body: memoryview, at: int) -> tuple[str, int]:
    """Like every reader here: the value, and where the next one begins.

    UTF-8 has one spelling for each text, and Python refuses every other: nothing to compare.
    """
    (length,) = _U16.unpack_from(body, at)
    start, stop = at + 2, at + 2 + length
    if stop > len(body):
        raise ValueError(f"expected {length} bytes of text, found {len(body) - start}")
    return str(body[start:stop], "utf-8"), stop


def write_texts(values: tuple[str, ...]) -> bytes:
    """How many there are, and each."""
    return _U16.pack(len(values)) + b"".join([write_text(value) for value in values])


def read_texts(body: memoryview, at: int) -> tuple[tuple[str, ...], int]:
    """The values, and where the next field begins."""
    (count,) = _U16.unpack_from(body, at)
    at, values = at + _U16.size, []
    for _ in range(count):
        value, at = read_text(body, at)
        values.append(value)
    return tuple(values), at


def write_counts(values: tuple[int, ...]) -> bytes:
    """How many numbers of 16 bits there are, and each."""
    return _U16.pack(len(values)) + struct.pack(f"<{len(values)}H", *values)


def read_counts(body: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    """The values, and where the next field begins."""
    (count,) = _U16.unpack_from(body, at)
    at += _U16.size
    return struct.unpack_from(f"<{count}H", body, at), at + 2 * count


def write_arguments(arguments: Arguments) -> bytes:
    """Canonical JSON. Raises ValueError for what is no scalar, not finite, or too much."""
    wrong = _wrong_arguments(arguments)
    if wrong:
        raise ValueError(wrong)
    encoded = _JSON.encode(dict(arguments)).encode()
    if len(encoded) > MAX_ARGUMENTS_BYTES:
        raise ValueError(f"expected at most {MAX_ARGUMENTS_BYTES} bytes of JSON, found {len(encoded)}")
    return _U32.pack(len(encoded)) + encoded


def read_arguments(body: memoryview, at: int) -> tuple[dict[str, Scalar], int]:
    """Canonical is what comes out the same when it is written again; that covers types, ranges and duplicates, too."""
    (length,) = _U32.unpack_from(body, at)
    start, stop = at + 4, at + 4 + length
    if length > MAX_ARGUMENTS_BYTES:
        raise ValueError(f"expected at most {MAX_ARGUMENTS_BYTES} bytes of arguments, found {length}")
    if stop > len(body):
        raise ValueError(f"expected {length} bytes of arguments, found {len(body) - start}")
    arguments = _parse_object(str(body[start:stop], "utf-8"))
    if write_arguments(arguments) != body[at:stop]:
        raise ValueError("arguments are JSON, but not the canonical form: sorted keys, no spaces, shortest numbers")
    return arguments, stop


def explain(lsn: int, event: Event) -> str:
    """Which field of an event that could not be encoded is to blame, and why."""
    for name, value in zip(("lsn", *event._fields), (lsn, *event), strict=True):
        wrong = _wrong(name, value)
        if wrong:
            return f"{type(event).__name__}.{name}: {wrong}"
    return f"{type(event).__name__}: no field is to blame alone"


def _parse_object(text: str) -> dict[str, Scalar]:
    # It may be any JSON: writing it again, which the caller does, refuses what is no object of scalars.
    try:
        parsed: dict[str, Scalar] = json.loads(text)
    except RecursionError:
        raise ValueError("arguments are nested; expected a flat object") from None
    return parsed


def _wrong_arguments(arguments: object) -> str | None:
    if not isinstance(arguments, Mapping):
        return f"expected a mapping, found {type(arguments).__name__}"
    for name, value in arguments.items():
        if type(name) is not str:
            return f"argument names are text, found {type(name).__name__}"
        wrong = _wrong_scalar(value)
        if wrong:
            return f"argument {name[:80]!r}: {wrong}"
    return None


def _wrong_scalar(value: object) -> str | None:
    # Exact types: an enum or a numpy number would come back as something else than it went.
    if value is None or type(value) in (str, bool):
        return None
    if type(value) is float:
        return None if math.isfinite(value) else f"expected a finite number, found {value}"
    if type(value) is int:
        fits = MIN_ARGUMENT_INTEGER <= value <= MAX_ARGUMENT_INTEGER
        return None if fits else "expected an integer of 64 bits, found a larger one"
    return f"expected text, a number, a truth value or nothing, found {type(value).__name__}"


def _wrong(name: str, value: object) -> str | None:
    """What is wrong with the value of the field `name`, over all event types: a name means the same in each."""
    match name:
        case "queues" | "ids":
            return _wrong_ids(value, MAX_QUEUES if name == "queues" else 2**32 - 1)
        case "payload":
            return None if isinstance(value, bytes) else f"expected bytes, found {type(value).__name__}"
        case "producer":
            is_short = isinstance(value, bytes) and len(value) <= MAX_TEXT_BYTES
            return None if is_short else f"expected at most {MAX_TEXT_BYTES} bytes, found {value!r:.80}"
        case "reason":
            return None if type(value) is DequeueReason else f"expected a DequeueReason, found {value!r:.80}"
        case "durable" | "failed" | "forced" | "messages" | "up" | "draining" | "claimed" | "deleting":
            return None if type(value) is bool else f"expected a truth value, found {type(value).__name__}"
        case "name" | "kind" | "key" | "owner" | "primary" | "cluster" | "cause":
            return _wrong_text(value)
        case "user" | "link" | "uuid" | "address" | "clients_url" | "zone" | "version" | "preferred" | "set":
            return _wrong_text(value)
        case "members" | "replicas" | "leaving" | "patterns":
            return next((wrong for each in _as_tuple(value) if (wrong := _wrong_text(each))), None)
        case "counts":
            return next((wrong for each in _as_tuple(value) if (wrong := _wrong_integer(each, 2**16 - 1))), None)
        case "arguments":
            return _refusal(value)
    return _wrong_integer(value, 256 ** _BYTES.get(name, 8) - 1)


def _as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _wrong_integer(value: object, most: int) -> str | None:
    if isinstance(value, int) and 0 <= value <= most:
        return None
    return f"expected an integer from 0 to {most}, found {value!r:.80}"


def _wrong_ids(value: object, most: int) -> str | None:
    if not isinstance(value, tuple):
        return f"expected a tuple of ids, found {type(value).__name__}"
    if len(value) > most:
        return f"expected at most {most} ids, found {len(value)}"
    return next((wrong for each in value if (wrong := _wrong_integer(each, 2**64 - 1))), None)


def _wrong_text(value: object) -> str | None:
    if not isinstance(value, str):
        return f"expected text, found {type(value).__name__}"
    try:
        length = len(value.encode())
    except UnicodeEncodeError as error:
        return f"expected text that UTF-8 can hold: {error.reason} at {error.start}"
    return None if length <= MAX_TEXT_BYTES else f"expected at most {MAX_TEXT_BYTES} bytes of UTF-8, found {length}"


def _refusal(arguments: object) -> str | None:
    try:
        write_arguments(arguments)  # type: ignore[arg-type]  # anything may have been passed; that is the question
    except ValueError as error:
        return str(error)
    return None
