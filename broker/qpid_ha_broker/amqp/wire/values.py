"""AMQP's values as Python objects: the one place that knows how their reading can fail, and what it may cost.

What is well formed on the wire need not fit into Python: text that is not UTF-8, a list as the key of a map, lists in
lists a thousand deep. All of that is the peer's doing, and a peer is told so.

What Proton makes of the bytes of a whole section costs by everything in it: half a microsecond for each null, of which
a megabyte holds a million. So where one value of many is wanted, the others are stepped over: each says in its first
bytes how long it is (AMQP 1.0 section 1.2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import DecodeError


def value_of(data: proton.Data) -> object:
    """The first value in `data`, None when it holds none. Raises DecodeError."""
    try:
        data.rewind()
        return data.get_object() if data.next() is not None else None
    except (proton.ProtonException, ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise DecodeError(f"a value cannot be read: {error}") from error


def _type_of(encoded: bytes) -> type:
    data = proton.Data()
    data.decode(encoded)
    return type(value_of(data))


_UUID: Final = _type_of(b"\x98" + bytes(16))
"""What Proton makes of a uuid: its module is not for pure packages, for it can also make new ones."""


def is_uuid(value: object) -> bool:
    """Whether Proton has read it as a uuid."""
    return isinstance(value, _UUID)


def listed(value: object) -> list[object]:
    """The elements of a field that holds several: AMQP sends none as null, and one without an array around it."""
    if isinstance(value, proton.Array):
        return list(value.elements)
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


_COMPOUND: Final = 0xC0
"""Lists, maps and arrays have this or a higher first byte, but for the empty list."""
_DESCRIBED: Final = 0x00
_SHORT, _LONG, _NO_TYPE = -1, -2, -3


def _step_of(code: int) -> int:
    """How long a value is that begins with `code`, or that its length is in the next byte, or the next four."""
    fixed = {0x4: 1, 0x5: 2, 0x6: 3, 0x7: 5, 0x8: 9, 0x9: 17}
    sized = {0xA: _SHORT, 0xC: _SHORT, 0xE: _SHORT, 0xB: _LONG, 0xD: _LONG, 0xF: _LONG}
    return fixed.get(code >> 4) or sized.get(code >> 4, _NO_TYPE)


_STEPS: Final = tuple(map(_step_of, range(256)))
_LIST0: Final = 0x45
_LISTS_AND_MAPS: Final = (0xC0, 0xC1, 0xD0, 0xD1)
_WORD: Final = struct.Struct(">I")
_DEPTH_MAX: Final = 4
"""Of descriptors before one value: one is usual."""
_CONSTANTS: Final = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_PLAIN: Final = {
    code: struct.Struct(form)
    for code, form in {
        0x50: ">B", 0x51: ">b", 0x52: ">B", 0x53: ">B", 0x54: ">b", 0x55: ">b",
        0x60: ">H", 0x61: ">h", 0x70: ">I", 0x71: ">i", 0x72: ">f", 0x80: ">Q", 0x81: ">q", 0x82: ">d",
    }.items()
}  # fmt: skip


def value_end(data: bytes, at: int) -> int:
    """Where the value that begins at `at` ends, whatever is in it. Raises DecodeError."""
    try:
        for _ in range(_DEPTH_MAX):
            code = data[at]
            if code != _DESCRIBED:
                break
            at = _simple_end(data, at + 1)
        else:
            raise DecodeError("a value has descriptors of descriptors")
        end = _simple_end(data, at)
    except (IndexError, struct.error):
        raise _cut_off() from None
    if end > len(data):
        raise _cut_off()
    return end


def _simple_end(data: bytes, at: int) -> int:
    """Of a value without a descriptor; may lie behind the end. Raises IndexError, struct.error, DecodeError."""
    code = data[at]
    step = _STEPS[code]
    if step > 0:
        return at + step
    if step == _SHORT:
        return at + 2 + data[at + 1]
    if step == _LONG:
        return at + 5 + int(_WORD.unpack_from(data, at + 1)[0])
    raise DecodeError(f"no type of AMQP has the code {code:#04x}")


def behind(data: bytes, at: int, count: int) -> int:
    """Where the value begins that comes behind `count` values, of which the first is at `at`; may be behind the end.

    Raises IndexError, DecodeError.
    """
    # Without a call for each: the fields in front of the one that is sought are stepped over in nearly every message.
    steps = _STEPS
    for _ in range(count):
        step = steps[data[at]]
        if step > 0:
            at += step
        elif step == _SHORT:
            at += 2 + data[at + 1]
        else:
            at = value_end(data, at)
    return at


def is_simple(code: int) -> bool:
    """Whether a value with that first byte is neither described nor a list, a map or an array."""
    return code < _COMPOUND and code not in (_DESCRIBED, _LIST0)


def simple_value(data: bytes, at: int, end: int) -> object:
    """The value between `at` and `end`; None for one that is no simple one. Raises DecodeError."""
    code = data[at]
    if code in (0xA1, 0xB1):
        try:
            return data[at + (2 if code == 0xA1 else 5) : end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"a text is not UTF-8: {error}") from error
    plain = _PLAIN.get(code)
    if plain is not None:
        return plain.unpack_from(data, at + 1)[0]
    if code in _CONSTANTS:
        return _CONSTANTS[code]
    return _decoded(data[at:end]) if is_simple(code) else None


def _decoded(text: bytes) -> object:
    """By Proton, for the types that Python lacks."""
    data = proton.Data()
    try:
        data.decode(text)
    except (proton.ProtonException, ValueError) as error:
        raise DecodeError(f"a value cannot be decoded: {error}") from error
    value = value_of(data)
    return bytes(value) if isinstance(value, memoryview) else value


class Compound(NamedTuple):
    """A list or a map: how many values it holds, and where the first of them begins."""

    is_map: bool
    length: int
    first: int
    end: int


def compound_at(data: bytes, at: int) -> Compound:
    """What lies at `at`. Raises DecodeError where that is neither a list nor a map, or is cut off."""
    code, end = data[at] if at < len(data) else -1, value_end(data, at)
    if code == _LIST0:
        return Compound(False, 0, end, end)
    if code not in _LISTS_AND_MAPS:
        raise DecodeError("neither a list nor a map is where one belongs")
    is_long = code >= 0xD0
    first = at + (9 if is_long else 3)
    if first > end:
        raise _cut_off()
    count = int(_WORD.unpack_from(data, at + 5)[0]) if is_long else data[at + 2]
    return Compound(bool(code & 1), count, first, end)


def places(data: bytes, compound: Compound, most: int) -> Iterator[tuple[int, int]]:
    """Where each of the first `most` values begins and ends. Raises DecodeError."""
    at = compound.first
    for _ in range(min(compound.length, most)):
        end = value_end(data, at)
        if end > compound.end:
            raise _cut_off()
        yield at, end
        at = end


def _cut_off() -> DecodeError:
    return DecodeError("the message ends in the middle of a value")
