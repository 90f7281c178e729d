"""AMQP values and messages at random, and what two encodings of one have in common, both by Proton."""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import proton
from proton import Data

Put = Callable[[Data], None]
"""Writes one value."""


def values_in(encoded: bytes) -> list[Any]:
    """All values in these bytes, each with its type: equal where AMQP's values are, whatever their widths."""
    found = []
    while encoded:
        data = Data()
        size = data.decode(encoded)
        data.rewind()
        data.next()
        found.append(_value(data))
        encoded = encoded[size:]
    return found


def _value(data: Data) -> Any:
    kind = data.type()
    if kind == Data.ARRAY:
        count, described, element = data.get_array()
        return "array", element, described, _inner(data, count + bool(described))
    if kind in (Data.LIST, Data.MAP, Data.DESCRIBED):
        return kind, _inner(data)
    found = data.get_object()
    if isinstance(found, float):
        return kind, "nan" if math.isnan(found) else struct.pack(">d", found)
    return kind, bytes(found) if isinstance(found, memoryview) else found


def _inner(data: Data, count: int | None = None) -> list[Any]:
    found = []
    data.enter()
    while data.next() is not None:
        found.append(_value(data))
    data.exit()
    if count is not None and len(found) != count:
        raise ValueError(f"{len(found)} of {count} elements")
    return found


class RandomValues:
    """From a seed: scalars of every type with their edges, and compound ones of them."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def encoded(self, depth: int = 2) -> bytes:
        """One value."""
        data = Data()
        self.put(data, depth)
        return bytes(data.encode())

    def put(self, data: Data, depth: int = 2) -> None:
        """One value into `data`."""
        random = self._random
        compound = (self._put_list, self.put_map, self._put_array, self._put_described)
        if depth and random.random() < 0.3:
            random.choice(compound)(data, depth - 1)
        else:
            self.put_scalar(data, random.choice(list(SCALARS)))

    def put_scalar(self, data: Data, kind: int) -> None:
        """One value of that type."""
        SCALARS[kind](data, self._random)

    def put_map(self, data: Data, depth: int, key: int | None = None, least: int = 0) -> None:
        """With keys of that type, else of any."""
        data.put_map()
        data.enter()
        for _ in range(self._random.choice((least, 1, 3))):
            self.put_scalar(data, key or self._random.choice((Data.STRING, Data.STRING, *SCALARS)))
            self.put(data, depth)
        data.exit()

    def _put_list(self, data: Data, depth: int) -> None:
        data.put_list()
        data.enter()
        for _ in range(self._random.choice((0, 1, 3, 70))):
            self.put(data, depth)
        data.exit()

    def _put_array(self, data: Data, depth: int) -> None:
        random = self._random
        kind = random.choice([kind for kind in SCALARS if kind != Data.NULL])
        is_described = random.random() < 0.2
        data.put_array(is_described, kind)
        data.enter()
        if is_described:
            data.put_symbol(proton.symbol("a:kind"))
        for _ in range(random.choice((1, 3, 100))):
            self.put_scalar(data, kind)
        data.exit()

    def _put_described(self, data: Data, depth: int) -> None:
        data.put_described()
        data.enter()
        self.put_scalar(data, self._random.choice((Data.SYMBOL, Data.ULONG)))
        self.put(data, depth)
        data.exit()


def _whole(put: Callable[..., None], bits: int, *, is_signed: bool) -> Callable[[Data, Random], None]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)

    def write(data: Data, random: Random) -> None:
        edges = (low, high, 0, 1, 127, low // 3, min(200, high), random.randint(low, high))
        put(data, random.choice(edges))

    return write


def _text(random: Random) -> str:
    return random.choice(("", "text", "Grüße \u20ac \U0001f600", 'a "quote" \\ \n\x00', "t" * 300))


SCALARS: dict[int, Callable[[Data, Random], None]] = {
    Data.NULL: lambda data, random: data.put_null(),
    Data.BOOL: lambda data, random: data.put_bool(random.random() < 0.5),
    Data.UBYTE: _whole(Data.put_ubyte, 8, is_signed=False),
    Data.USHORT: _whole(Data.put_ushort, 16, is_signed=False),
    Data.UINT: _whole(Data.put_uint, 32, is_signed=False),
    Data.ULONG: _whole(Data.put_ulong, 64, is_signed=False),
    Data.BYTE: _whole(Data.put_byte, 8, is_signed=True),
    Data.SHORT: _whole(Data.put_short, 16, is_signed=True),
    Data.INT: _whole(Data.put_int, 32, is_signed=True),
    Data.LONG: _whole(Data.put_long, 64, is_signed=True),
    Data.TIMESTAMP: _whole(Data.put_timestamp, 64, is_signed=True),
    Data.CHAR: lambda data, random: data.put_char(random.choice("a\u20ac\U0001f600\x00")),
    Data.FLOAT: lambda data, random: data.put_float(
        random.choice((0.0, -0.0, 0.1, 1.5, 3e38, 1e-45, math.inf, -math.inf, math.nan))
    ),
    Data.DOUBLE: lambda data, random: data.put_double(
        random.choice((0.0, -0.0, 0.1, 1 / 3, 1e308, 5e-324, math.inf, -math.inf, math.nan))
    ),
    Data.DECIMAL32: lambda data, random: data.put_decimal32(proton.decimal32(random.getrandbits(32))),
    Data.DECIMAL64: lambda data, random: data.put_decimal64(proton.decimal64(random.getrandbits(64))),
    Data.DECIMAL128: lambda data, random: data.put_decimal128(proton.decimal128(random.randbytes(16))),
    Data.UUID: lambda data, random: data.put_uuid(uuid.UUID(bytes=random.randbytes(16))),
    Data.BINARY: lambda data, random: data.put_binary(random.randbytes(random.choice((0, 1, 20, 300)))),
    Data.STRING: lambda data, random: data.put_string(_text(random)),
    Data.SYMBOL: lambda data, random: data.put_symbol(proton.symbol(random.choice(("", "x-opt-a", "s" * 300)))),
}

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)
_NULL = (Data.NULL, None)
_HEADER_DEFAULTS = [(Data.BOOL, False), (Data.UBYTE, 4), _NULL, (Data.BOOL, True), (Data.UINT, 0)]
"""The broker writes a header anew: first acquirer where the sender does not say otherwise, no time to live of 0."""


class RandomMessages:
    """With sections of every kind, each of them in some. All are durable: no journal keeps others."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._values = RandomValues(random)

    def encoded(self) -> bytes:
        """One message."""
        bodies = {DATA: self._bytes, SEQUENCE: self._sequence, VALUE: self._values.put}
        code = self._random.choice(list(bodies))
        count = 1 if code == VALUE else self._random.choice((1, 1, 2, 20))
        return b"".join((
            _section(HEADER, self._header),
            *(self._map(code, Data.SYMBOL) for code in (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS)),
            _section(PROPERTIES, self._properties) if self._random.random() < 0.8 else b"",
            self._map(APPLICATION_PROPERTIES, Data.STRING),
            *(_section(code, bodies[code]) for _ in range(count)),
            self._map(FOOTER, Data.SYMBOL),
        ))  # fmt: skip

    def _map(self, code: int, key: int) -> bytes:
        if self._random.random() < 0.4:
            return b""
        return _section(code, lambda data: self._values.put_map(data, 2, key))

    def _header(self, data: Data) -> None:
        random = self._random
        fields: list[Put] = [
            lambda data: data.put_bool(True),
            lambda data: data.put_ubyte(random.choice((0, 4, 9, 255))),
            lambda data: data.put_uint(random.choice((0, 3_600_001, 86_399_999, (1 << 32) - 1))),
            lambda data: data.put_bool(random.random() < 0.5),
            lambda data: data.put_uint(random.choice((0, 3, (1 << 32) - 1))),
        ]
        self._fields(data, fields, always=1)

    def _properties(self, data: Data) -> None:
        identifiers = (Data.STRING, Data.ULONG, Data.UUID, Data.BINARY)
        kinds: tuple[Sequence[int], ...] = (
            identifiers, (Data.BINARY,), (Data.STRING,), (Data.STRING,), (Data.STRING,), identifiers, (Data.SYMBOL,),
            (Data.SYMBOL,), (), (), (Data.STRING,), (Data.UINT,), (Data.STRING,),
        )  # fmt: skip
        fields = [partial(self._put_one_of, kinds) if kinds else self._put_time for kinds in kinds]
        self._fields(data, fields)

    def _put_one_of(self, kinds: Sequence[int], data: Data) -> None:
        self._values.put_scalar(data, self._random.choice(kinds))

    def _put_time(self, data: Data) -> None:
        data.put_timestamp(self._random.choice((0, -1, 4_102_444_800_001, 253_402_300_799_999)))  # none is over soon

    def _fields(self, data: Data, fields: Sequence[Put], always: int = 0) -> None:
        data.put_list()
        data.enter()
        for place, put in enumerate(fields[: self._random.randint(always, len(fields))]):
            if place < always or self._random.random() < 0.7:
                put(data)
            else:
                data.put_null()
        data.exit()

    def _bytes(self, data: Data) -> None:
        self._values.put_scalar(data, Data.BINARY)

    def _sequence(self, data: Data) -> None:
        data.put_list()
        data.enter()
        for _ in range(self._random.choice((0, 1, 5))):
            self._values.put(data, 2)
        data.exit()


def _section(code: int, put: Put) -> bytes:
    data = Data()
    data.put_described()
    data.enter()
    data.put_ulong(code)
    put(data)
    data.exit()
    return bytes(data.encode())


def message_in(payload: bytes) -> list[Any]:
    """All sections of a message, each with all its values and their types; fields that are not there are null."""
    header, sections = _HEADER_DEFAULTS, []
    for _, ((_, code), value) in values_in(payload):
        if code not in (HEADER, PROPERTIES):
            sections.append((int(code), value))
            continue
        _, fields = value
        while fields and fields[-1] == _NULL:
            fields.pop()
        if code == HEADER:
            header = [given if given != _NULL else usual for given, usual in zip(fields, header, strict=False)]
            header += _HEADER_DEFAULTS[len(header) :]
        elif fields:
            sections.append((PROPERTIES, fields))
    if header[2] == (Data.UINT, 0):
        header[2] = _NULL
    return [header, *sections]
