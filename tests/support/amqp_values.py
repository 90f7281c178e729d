"""AMQP values of every type at random, and what two encodings of one value have in common, both by Proton."""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable
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
