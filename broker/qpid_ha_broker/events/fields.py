"""How single values lie in bytes: integers, texts, lists, arguments. Little-endian throughout.

A `FieldType` has one writer and one reader, and the reader takes only what the writer would have written: there is
one spelling for each value, so two logs that say the same are the same bytes. A reader first compares a length or count
with what is left and only then makes anything of that size. A writer raises one of `REFUSALS`, a reader one of
`UNREADABLE`, both without the field's name, which `events.forms` puts before it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .layout import ID, Layout
from .types import Arguments, Scalar

MAX_TEXT_BYTES: Final = 0xFFFF
"""Of a name or a key, in UTF-8."""

MAX_ARGUMENTS_BYTES: Final = 0xFFFF
"""Of the arguments as JSON. Parsing makes small objects out of few bytes; this bounds what a bad record can cost."""

MIN_ARGUMENT_INTEGER: Final = -(2**63)
MAX_ARGUMENT_INTEGER: Final = 2**64 - 1
"""AMQP's long and ulong: no client can send, and not every reader could hold, more."""

UNREADABLE: Final = (ValueError, struct.error)
"""What a reader raises for bytes that its writer would not have written."""
REFUSALS: Final = (*UNREADABLE, TypeError, AttributeError)
"""What a writer raises for a value of another type or range."""

_U32: Final = struct.Struct("<I")
_JSON: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)

Check = Callable[[Any], Any]
"""From a value to the same value as its field has it. Raises ValueError."""


class FieldType(NamedTuple):
    """How a value lies among others. `write` gives its bytes."""

    write: Callable[[Any], bytes]
    read: Callable[[memoryview, int], tuple[Any, int]]
    """The value that begins at a place, and where the next one begins."""
    form: str = ""
    """As in `struct`, of a value that always takes as many bytes; neighbours that have one are packed together."""
    convert: Check | None = None
    """To the value from such a number that was read, if that is not the same."""


def fixed(form: str, convert: Check | None = None) -> FieldType:
    """A number of that form."""
    number = Layout({"": form})

    def read(body: memoryview, at: int) -> tuple[Any, int]:
        (value,) = number.unpack_from(body, at)
        return value if convert is None else convert(value), at + number.size

    return FieldType(number.pack, read, form, convert)


def sized(form: str, noun: str, to_bytes: Callable[[Any], bytes], from_bytes: Callable[[memoryview], Any]) -> FieldType:
    """A value as bytes, and before them their number."""
    length = struct.Struct(f"<{form}")
    most = 256**length.size - 1

    def write(value: Any) -> bytes:
        encoded = to_bytes(value)
        if len(encoded) > most:
            raise ValueError(f"expected at most {most} bytes of {noun}, found {len(encoded)}")
        return length.pack(len(encoded)) + encoded

    def read(body: memoryview, at: int) -> tuple[Any, int]:
        (size,) = length.unpack_from(body, at)
        start, stop = at + length.size, at + length.size + size
        if stop > len(body):
            raise ValueError(f"expected {size} bytes of {noun}, found {len(body) - start}")
        return from_bytes(body[start:stop]), stop

    return FieldType(write, read)


def list_of(form: str, element: FieldType, most: int | None = None) -> FieldType:
    """How many there are, `most` at most, and each."""
    length = struct.Struct(f"<{form}")
    largest = 256**length.size - 1 if most is None else most

    def bounded(count: int) -> int:
        if count > largest:
            raise ValueError(f"expected at most {largest}, found {count}")
        return count

    def write(values: Any) -> bytes:
        return length.pack(bounded(len(values))) + b"".join([element.write(value) for value in values])

    def read(body: memoryview, at: int) -> tuple[Any, int]:
        (count,), at = length.unpack_from(body, at), at + length.size
        values = []
        for _ in range(bounded(count)):
            value, at = element.read(body, at)
            values.append(value)
        return tuple(values), at

    return FieldType(write, read)


def tuple_of(*elements: FieldType) -> FieldType:
    """A tuple of as many values, one after the other."""

    def write(values: Any) -> bytes:
        return b"".join([element.write(value) for element, value in zip(elements, values, strict=True)])

    def read(body: memoryview, at: int) -> tuple[Any, int]:
        values = []
        for element in elements:
            value, at = element.read(body, at)
            values.append(value)
        return tuple(values), at

    return FieldType(write, read)


def pairs_to_end(check: Check | None = None) -> FieldType:
    """Pairs of 64-bit numbers, as many as there is room for: the last field. `check` gets them one after the other."""

    def write(pairs: Any) -> bytes:
        if not all(len(pair) == 2 for pair in pairs):
            raise ValueError("expected pairs of numbers")
        numbers = tuple([number for pair in pairs for number in pair])
        return write_ids(numbers if check is None else check(numbers))

    def read(body: memoryview, at: int) -> tuple[Any, int]:
        left = len(body) - at
        if left % 16:
            raise ValueError(f"expected pairs of 16 bytes to the end, found {left} bytes")
        numbers = read_ids(body, at, left // 8)
        if check is not None:
            check(numbers)
        return tuple(zip(numbers[::2], numbers[1::2], strict=True)), len(body)

    return FieldType(write, read)


def bytes_to_end(least: int, most: int) -> FieldType:
    """So many bytes, as many as there are: the last field."""

    def bounded(value: bytes | memoryview) -> bytes:
        if not least <= len(value) <= most:
            raise ValueError(f"expected {least} to {most} bytes, found {len(value)}")
        return bytes(value)

    return FieldType(bounded, lambda body, at: (bounded(body[at:]), len(body)))


def checked(inner: FieldType, check: Check) -> FieldType:
    """A field of the same bytes, but not of all values; `check` is asked in both directions."""

    def read(body: memoryview, at: int) -> tuple[Any, int]:
        value, end = inner.read(body, at)
        return check(value), end

    return FieldType(lambda value: inner.write(check(value)), read)


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


def _write_list_of_ids(values: tuple[int, ...]) -> bytes:
    return _U32.pack(len(values)) + write_ids(values)


def _read_list_of_ids(body: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    (count,) = _U32.unpack_from(body, at)
    at += _U32.size
    return read_ids(body, at, count), at + ID.size * count


def _truth(number: int) -> bool:
    if number > 1:
        raise ValueError(f"expected 0 or 1, found {number}")
    return number == 1


def write_arguments(arguments: Arguments) -> bytes:
    """Canonical JSON. Raises ValueError for what is no scalar, not finite, or too much."""
    wrong = _wrong_arguments(arguments)
    if wrong:
        raise ValueError(wrong)
    encoded = _JSON.encode(dict(arguments)).encode()
    if len(encoded) > MAX_ARGUMENTS_BYTES:
        raise ValueError(f"expected at most {MAX_ARGUMENTS_BYTES} bytes of JSON, found {len(encoded)}")
    return encoded


def _read_arguments(encoded: memoryview) -> dict[str, Scalar]:
    """Canonical is what comes out the same when it is written again; that covers types, ranges and duplicates, too."""
    if len(encoded) > MAX_ARGUMENTS_BYTES:
        raise ValueError(f"expected at most {MAX_ARGUMENTS_BYTES} bytes of arguments, found {len(encoded)}")
    try:
        arguments: dict[str, Scalar] = json.loads(str(encoded, "utf-8"))
    except RecursionError:
        raise ValueError("arguments are nested; expected a flat object") from None
    if write_arguments(arguments) != encoded:
        raise ValueError("arguments are JSON, but not the canonical form: sorted keys, no spaces, shortest numbers")
    return arguments


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


def _as_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"expected bytes, found {type(value).__name__}")
    return value


def _as_text(part: memoryview) -> str:
    """UTF-8 has one spelling for each text, and Python refuses every other: nothing to compare."""
    return str(part, "utf-8")


U8: Final = fixed("B")
U16: Final = fixed("H")
U32: Final = fixed("I")
U64: Final = fixed("Q")
TRUTH: Final = fixed("?", _truth)
"""0 or 1; written from any truth value."""
BYTES: Final = sized("H", "a name", _as_bytes, bytes)
SHORT_TEXT: Final = sized("B", "text", str.encode, _as_text)
TEXT: Final = sized("H", "text", str.encode, _as_text)
TEXTS: Final = list_of("H", TEXT)
COUNTS: Final = list_of("H", U16)
IDS: Final = FieldType(_write_list_of_ids, _read_list_of_ids)
"""As `list_of("I", U64)`, faster."""
ARGUMENTS: Final = sized("I", "arguments", write_arguments, _read_arguments)
"""Canonical JSON."""
FIXED: Final = {field_type.form: field_type for field_type in (U8, U16, U32, U64, TRUTH)}
