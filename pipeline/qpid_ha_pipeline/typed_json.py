"""AMQP values as JSON that keeps their types, and back: docs/pipeline.md has the table.

A value is null, or an object with one name, its type: `{"long": 5}`. So nothing has to be guessed when it is encoded
again, and Spark's `from_json` reads a map of such values as one of structs. What is lost is how wide a value was
written (AMQP 1.0 section 1.6 has up to three encodings of a type), and which NaN a NaN was.

Not by Proton, which makes dicts of maps: they take `true` for 1, and have no binary or list as a key.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_pipeline.errors import PipelineError

Json = Any
"""What `json.loads` gives."""

_DEPTH_MOST: Final = 64
"""Of lists, maps, arrays and descriptors in each other."""
_ZERO_WIDTH_MOST: Final = 256
"""Of elements of an array that take no bytes: a short message must not become a text without end."""
_DESCRIBED: Final = 0x00
_EMPTY_LIST: Final = 0x45
_SHORT_MOST: Final = 0xFF


def decoded(data: bytes, at: int = 0) -> tuple[Json, int]:
    """The value that begins at `at`, and where it ends. Raises DecodeError."""
    try:
        return _decoded(data, at, 0)
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise DecodeError(f"no AMQP value: {error}") from None


def encoded(value: Json) -> bytes:
    """The value in its shortest encoding. Raises PipelineError for what is no typed value.

    Of JSON that has no type a text is a string, `true` and `false` are booleans, a whole number is a long, any other
    number a double.
    """
    match value:
        case None:
            return b"\x40"
        case bool():
            return _BOOLEANS[value]
        case str():
            return _encoded_as("string", value)
        case int():
            return _encoded_as("long", value)
        case float():
            return _encoded_as("double", value)
        case dict() if len(value) == 1:
            ((name, bare),) = value.items()
            return _encoded_as(name, bare)
    raise PipelineError(f"expected a value with its type, such as {_EXAMPLE}, found {_shown(value)}")


def encoded_as(name: str, bare: Json) -> bytes:
    """A value of that type, given as JSON without it. Raises PipelineError."""
    return _encoded_as(name, bare)


def map_of(data: bytes, at: int, key: str) -> Json:
    """The map that begins at `at`, by names of the type `key`; where it has other or equal keys, a list of pairs.

    None where something else begins there. Raises DecodeError.
    """
    value, _ = decoded(data, at)
    if not isinstance(value, dict) or "map" not in value:
        return None
    return _named(list(_pairs(value["map"], "string")), key)


def encoded_map(entries: Json, key: str) -> bytes:
    """What `map_of` gives, as an encoded map. Raises PipelineError."""
    return _sized(_MAP_CODES, *_map_content(entries, key))


def encoded_bytes(name: str, data: bytes) -> bytes:
    """Text or bytes as a `binary`, a `string` or a `symbol`."""
    if len(data) <= _SHORT_MOST:
        return bytes((_CODES[name] - 0x10, len(data))) + data
    return bytes((_CODES[name],)) + len(data).to_bytes(4, "big") + data


def list_of_encoded(values: Sequence[bytes]) -> bytes:
    """A list of values that are encoded."""
    return _sized(_LIST_CODES, b"".join(values), len(values)) if values else bytes((_EMPTY_LIST,))


def map_of_encoded(entries: Sequence[bytes]) -> bytes:
    """A map; of each entry, key and value are encoded."""
    return _sized(_MAP_CODES, b"".join(entries), 2 * len(entries))


def text_of(value: Json) -> str:
    """As JSON, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parsed(text: str) -> Json:
    """JSON. Raises PipelineError."""
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"expected JSON, found {_shown(text)}: {error}") from None


def without_types(value: Json) -> Json:
    """The JSON that one would have written by hand: keys of maps as text, lists of lists where keys are equal."""
    if not isinstance(value, dict):
        return value
    ((name, bare),) = value.items()
    match name:
        case "described":
            return without_types(bare[1])
        case "list":
            return [without_types(element) for element in bare]
        case "map":
            pairs = [(_key_text(key), without_types(inner)) for key, inner in _pairs(bare, "string")]
            return dict(pairs) if len(dict(pairs)) == len(pairs) else [list(pair) for pair in pairs]
        case "array":
            return [without_types({bare["type"]: item}) if bare["type"] != "null" else None for item in bare["items"]]
    return bare


def _key_text(key: Json) -> str:
    plain = without_types(key)
    return plain if isinstance(plain, str) else text_of(plain)


# --- from AMQP


def _decoded(data: bytes, at: int, depth: int) -> tuple[Json, int]:
    if depth > _DEPTH_MOST:
        raise ValueError(f"more than {_DEPTH_MOST} values in each other")
    code = data[at]
    if code == _DESCRIBED:
        descriptor, at = _decoded(data, at + 1, depth + 1)
        value, end = _decoded(data, at, depth + 1)
        return {"described": [descriptor, value]}, end
    name = _NAMES[code]
    bare, end = _bare(data, code, at + 1, depth)
    return (None if name == "null" else {name: bare}), end


def _bare(data: bytes, code: int, at: int, depth: int) -> tuple[Json, int]:
    """The value behind its code, without its type."""
    if code in _CONSTANTS:
        return ([] if code == _EMPTY_LIST else _CONSTANTS[code]), at
    if code in _FIXED:
        form, read = _FIXED[code]
        end = at + form.size
        return read(form.unpack_from(data, at)[0]), end
    width = 1 if code < 0xB0 or 0xC0 <= code < 0xD0 or 0xE0 <= code < 0xF0 else 4
    start = at + width
    end = start + int.from_bytes(data[at:start], "big")
    if start > len(data) or end > len(data):
        raise ValueError("it is cut off")
    name = _NAMES[code]
    if name in _TEXTS:
        return _TEXTS[name][0](data[start:end]), end
    count = int.from_bytes(data[start : start + width], "big")
    bare, at = _COMPOUNDS[name](data, start + width, count, depth + 1)
    if at != end:
        raise ValueError(f"a {name} of {end - start} bytes has elements of {at - start}")
    return bare, end


def _list_at(data: bytes, at: int, count: int, depth: int) -> tuple[Json, int]:
    elements = []
    for _ in range(count):
        element, at = _decoded(data, at, depth)
        elements.append(element)
    return elements, at


def _map_at(data: bytes, at: int, count: int, depth: int) -> tuple[Json, int]:
    elements, at = _list_at(data, at, count, depth)
    if count % 2:
        raise ValueError("a map has a key without a value")
    return _named(list(zip(elements[::2], elements[1::2], strict=True)), "string"), at


def _array_at(data: bytes, at: int, count: int, depth: int) -> tuple[Json, int]:
    array: dict[str, Json] = {}
    if data[at] == _DESCRIBED:
        array["descriptor"], at = _decoded(data, at + 1, depth)
    code = data[at]
    at += 1
    array["type"] = _NAMES[code]
    if code in _CONSTANTS and count > _ZERO_WIDTH_MOST:
        raise ValueError(f"an array has {count} elements without bytes")
    items = array["items"] = []
    for _ in range(count):
        item, at = _bare(data, code, at, depth)
        items.append(item)
    return array, at


def _named(pairs: list[tuple[Json, Json]], key: str) -> Json:
    """An object where all keys are of that type and differ, else a list of pairs."""
    named = {}
    for name, value in pairs:
        if not isinstance(name, dict) or key not in name:
            break
        named[name[key]] = value
    return named if len(named) == len(pairs) else [list(pair) for pair in pairs]


def _pairs(entries: Json, key: str) -> Iterator[tuple[Json, Json]]:
    """The other way. Raises PipelineError."""
    if isinstance(entries, dict):
        yield from (({key: name}, value) for name, value in entries.items())
    elif isinstance(entries, list):
        for pair in entries:
            if not isinstance(pair, list) or len(pair) != 2:
                raise PipelineError(f"a map: expected an object or a list of pairs, found {_shown(entries)}")
            yield pair[0], pair[1]
    else:
        raise PipelineError(f"a map: expected an object or a list of pairs, found {_shown(entries)}")


# --- to AMQP


def _encoded_as(name: str, bare: Json) -> bytes:
    try:
        return _encode_bare(name, bare)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error) as error:
        raise PipelineError(f"no AMQP value: {_shown({name: bare})}: {error}") from None
    except RecursionError:
        raise PipelineError("no AMQP value: too many values in each other") from None


def _encode_bare(name: str, bare: Json) -> bytes:
    match name:
        case "null" if bare is None:
            return b"\x40"
        case "boolean":
            return _BOOLEANS[_truth(bare)]
        case "described":
            descriptor, value = bare
            return b"\x00" + encoded(descriptor) + encoded(value)
        case "list" if bare == []:
            return bytes((_EMPTY_LIST,))
        case "list":
            return _sized(_LIST_CODES, *_list_content(bare))
        case "map":
            return _sized(_MAP_CODES, *_map_content(bare, "string"))
        case "array":
            return _sized(_ARRAY_CODES, *_array_content(bare))
    if name in _TEXTS:
        return encoded_bytes(name, _TEXTS[name][1](bare))
    if name not in _WRITERS:
        raise PipelineError(f"AMQP has no type {name!r}: expected one of {', '.join(sorted(_CODES))}")
    data = _wide(name, bare)
    zero, small, is_signed = _SHORTER.get(name, (None, None, False))
    if zero is not None and not any(data):
        return bytes((zero,))
    if small is not None and -0x80 * is_signed <= int(bare) <= (0x7F if is_signed else _SHORT_MOST):
        return bytes((small, data[-1]))
    return bytes((_CODES[name],)) + data


def _wide(name: str, bare: Json) -> bytes:
    """The bytes behind the widest code of a type, as in an array."""
    match name:
        case "null" if bare is None:
            return b""
        case "boolean":
            return bytes((_truth(bare),))
        case "list":
            content, count = _list_content(bare)
        case "map":
            content, count = _map_content(bare, "string")
        case "array":
            content, count = _array_content(bare)
        case _ if name in _TEXTS:
            data = _TEXTS[name][1](bare)
            return len(data).to_bytes(4, "big") + data
        case _:
            form, write = _WRITERS[name]
            return form.pack(write(bare))
    return (len(content) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content


def _list_content(elements: Json) -> tuple[bytes, int]:
    if not isinstance(elements, list):
        raise TypeError("expected a list")
    return b"".join(map(encoded, elements)), len(elements)


def _map_content(entries: Json, key: str) -> tuple[bytes, int]:
    pairs = list(_pairs(entries, key))
    return b"".join(encoded(name) + encoded(value) for name, value in pairs), 2 * len(pairs)


def _array_content(array: Json) -> tuple[bytes, int]:
    name, items = array["type"], array["items"]
    descriptor = b"\x00" + encoded(array["descriptor"]) if "descriptor" in array else b""
    content = b"".join(_wide(name, item) for item in items)
    return descriptor + bytes((_CODES[name],)) + content, len(items)


def _sized(codes: tuple[int, int], content: bytes, count: int) -> bytes:
    short, long = codes
    if len(content) < _SHORT_MOST and count <= _SHORT_MOST:
        return bytes((short, len(content) + 1, count)) + content
    return bytes((long,)) + (len(content) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content


# --- the types


def _as_is(value: Any) -> Any:
    return value


def _whole(value: Json) -> int:
    if type(value) is not int:
        raise TypeError("expected a whole number")
    return value


def _truth(value: Json) -> bool:
    if type(value) is not bool:
        raise TypeError("expected true or false")
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def _float_json(value: float) -> Json:
    return float(str(np.float32(value))) if math.isfinite(value) else _double_json(value)


def _double_json(value: float) -> Json:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float(value: Json) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if type(value) not in (int, float):
        raise TypeError('expected a number, "NaN", "Infinity" or "-Infinity"')
    return float(value)


def _char_json(code: int) -> Json:
    return code if 0xD800 <= code < 0xE000 or code > 0x10FFFF else chr(code)


def _char(value: Json) -> int:
    return ord(value) if isinstance(value, str) else _whole(value)


def _base64(value: Json) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise ValueError(f"expected base64: {error}") from None


def _bits(size: int, value: Json) -> bytes:
    data = bytes.fromhex(_text(value))
    if len(data) != size:
        raise ValueError(f"expected {2 * size} hexadecimal digits")
    return data


def _form(text: str) -> struct.Struct:
    return struct.Struct(">" + text)


_EXAMPLE: Final = '{"long": 5}'
_BOOLEANS: Final = {True: b"\x41", False: b"\x42"}
_CONSTANTS: Final = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, _EMPTY_LIST: None}
_LIST_CODES, _MAP_CODES, _ARRAY_CODES = (0xC0, 0xD0), (0xC1, 0xD1), (0xE0, 0xF0)

_READERS: Final[dict[int, tuple[str, str, Callable[[Any], Json]]]] = {
    0x56: ("boolean", "?", _as_is),
    0x50: ("ubyte", "B", _as_is), 0x60: ("ushort", "H", _as_is),
    0x52: ("uint", "B", _as_is), 0x70: ("uint", "I", _as_is),
    0x53: ("ulong", "B", _as_is), 0x80: ("ulong", "Q", _as_is),
    0x51: ("byte", "b", _as_is), 0x61: ("short", "h", _as_is),
    0x54: ("int", "b", _as_is), 0x71: ("int", "i", _as_is),
    0x55: ("long", "b", _as_is), 0x81: ("long", "q", _as_is),
    0x72: ("float", "f", _float_json), 0x82: ("double", "d", _double_json),
    0x74: ("decimal32", "4s", bytes.hex), 0x84: ("decimal64", "8s", bytes.hex), 0x94: ("decimal128", "16s", bytes.hex),
    0x73: ("char", "I", _char_json), 0x83: ("timestamp", "q", _as_is),
    0x98: ("uuid", "16s", lambda data: str(uuid.UUID(bytes=data))),
}  # fmt: skip
"""By code: the type, its form, and how it is shown."""
_FIXED: Final = {code: (_form(form), read) for code, (_, form, read) in _READERS.items()}

_TEXTS: Final[dict[str, tuple[Callable[[bytes], str], Callable[[Json], bytes]]]] = {
    "binary": (lambda data: base64.b64encode(data).decode(), _base64),
    "string": (bytes.decode, lambda value: _text(value).encode()),
    "symbol": (bytes.decode, lambda value: _text(value).encode()),
}
_CODES: Final = {
    "null": 0x40, "boolean": 0x56, "ubyte": 0x50, "ushort": 0x60, "uint": 0x70, "ulong": 0x80, "byte": 0x51,
    "short": 0x61, "int": 0x71, "long": 0x81, "float": 0x72, "double": 0x82, "decimal32": 0x74, "decimal64": 0x84,
    "decimal128": 0x94, "char": 0x73, "timestamp": 0x83, "uuid": 0x98, "binary": 0xB0, "string": 0xB1, "symbol": 0xB3,
    "list": 0xD0, "map": 0xD1, "array": 0xF0,
}  # fmt: skip
"""The widest of each type."""
_NAMES: Final = {
    **{code: name for name, code in _CODES.items()},
    **{code: name for code, (name, _, _) in _READERS.items()},
    0x41: "boolean", 0x42: "boolean", 0x43: "uint", 0x44: "ulong", _EMPTY_LIST: "list",
    0xA0: "binary", 0xA1: "string", 0xA3: "symbol", 0xC0: "list", 0xC1: "map", 0xE0: "array",
}  # fmt: skip
TYPES: Final = (*_CODES, "described")
"""All names."""
_SHORTER: Final = {
    "uint": (0x43, 0x52, False), "ulong": (0x44, 0x53, False), "int": (None, 0x54, True), "long": (None, 0x55, True),
}  # fmt: skip
"""Codes of 0 and of what fits into a byte."""
_WRITERS: Final[dict[str, tuple[struct.Struct, Callable[[Json], Any]]]] = {
    **{
        name: (_form(form), _whole)
        for name, form in {
            "ubyte": "B", "ushort": "H", "uint": "I", "ulong": "Q", "byte": "b", "short": "h", "int": "i", "long": "q",
            "timestamp": "q",
        }.items()
    },
    "float": (_form("f"), _float), "double": (_form("d"), _float), "char": (_form("I"), _char),
    "uuid": (_form("16s"), lambda value: uuid.UUID(_text(value)).bytes),
    **{f"decimal{8 * size}": (_form(f"{size}s"), partial(_bits, size)) for size in (4, 8, 16)},
}  # fmt: skip
_COMPOUNDS: Final = {"list": _list_at, "map": _map_at, "array": _array_at}


def _shown(value: object) -> str:
    return f"{value if isinstance(value, str) else json.dumps(value, default=str)!s:.120}"


def _no_json(name: str) -> Json:
    raise ValueError(f'{name} is no number in JSON: {{"double": "{name}"}} is')
