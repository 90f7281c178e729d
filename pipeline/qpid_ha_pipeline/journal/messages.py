"""The columns for which messages are looked into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    MessageSections,
)
from qpid_ha_broker.amqp.wire.values import value_end
from qpid_ha_kernel import Kernel
from qpid_ha_pipeline.schema import PROPERTY_COLUMNS
from qpid_ha_pipeline.typed_json import decoded, map_of, text_of

from .kernel_scan import find_bodies
from .records import Ints, Mask
from .sections import DATA, LENGTH_BYTES, NO_CODE, NUMBERS, SEQUENCE, VALUE, Payloads, Values
from .text import as_text, binaries, texts, times

_TEXT: Final = np.array([0xA1, 0xB1, 0xA3, 0xB3], np.uint8)
"""Strings and symbols."""
_BINARY: Final = np.array([0xA0, 0xB0], np.uint8)
_NULL, _UUID = 0x40, 0x98
_UNSIGNED: Final = np.array([0x44, 0x53, 0x80], np.uint8)
_PROPERTY_FIELDS: Final = {name: place for place, name in enumerate(PROPERTY_COLUMNS)}
_TYPED_FIELDS: Final = {"amqp_message_id_typed": 0, "correlation_id_typed": 5}
_TYPED_MAPS: Final = {
    "application_properties_typed": (APPLICATION_PROPERTIES, "string"),
    "message_annotations_typed": (MESSAGE_ANNOTATIONS, "symbol"),
    "delivery_annotations_typed": (DELIVERY_ANNOTATIONS, "symbol"),
    "footer_typed": (FOOTER, "symbol"),
}
"""Each with the type that its keys have."""
_DURABLE, _PRIORITY, _TTL, _FIRST_ACQUIRER, _DELIVERY_COUNT = range(5)
_TRUE, _FALSE, _BOOLEAN = 0x41, 0x42, 0x56
_TIMESTAMP: Final = 0x83
_USUAL_PRIORITY: Final = 4
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which are those that Spark can show."""
_CONTROL: Final = r"[\x00-\x08\x0B\x0C\x0E-\x1F\x7F]"
_MAP: Final = pa.map_(pa.string(), pa.string())


class Messages:
    """Messages that lie in `data`; each column has one value per message."""

    def __init__(self, data: bytes, starts: Ints, ends: Ints, kernel: Kernel | None = None) -> None:
        """`kernel`: to find bodies with, where all messages are as usual."""
        self._data = data
        self._starts, self._ends = starts, ends
        self._kernel = kernel

    def column(self, name: str) -> pa.Array:
        """One of `schema.MESSAGE_COLUMNS`."""
        if name in _TYPED_MAPS:
            return self._typed_map(*_TYPED_MAPS[name])
        if name in _TYPED_FIELDS:
            return self._typed_field(_TYPED_FIELDS[name])
        if name in _PROPERTY_FIELDS:
            return self._of_property(name, self._property(_PROPERTY_FIELDS[name]))
        return _OTHERS[name](self)

    def _of_property(self, name: str, values: Values) -> pa.Array:
        match name:
            case "amqp_message_id" | "correlation_id":
                return self._identifier(values)
            case "user_id":
                return binaries(self._data, values.starts, values.ends, np.isin(values.codes, _BINARY))
            case "created_at" | "absolute_expiry":
                numbers = self._payloads.number(values)
                is_shown = (values.codes == _TIMESTAMP) & (numbers >= _FIRST_MS) & (numbers <= _LAST_MS)
                return times(np.where(is_shown, numbers, 0), ~is_shown)
            case "group_sequence":
                return self._number(values)
        return texts(self._data, values.starts, values.ends, np.isin(values.codes, _TEXT))

    @cached_property
    def _payloads(self) -> Payloads:
        return Payloads(self._data, self._starts, self._ends)

    @cached_property
    def _header(self) -> list[Values]:
        fields = self._payloads.fields(HEADER)
        return [next(fields) for _ in range(_DELIVERY_COUNT + 1)]

    @cached_property
    def _properties(self) -> tuple[Iterator[Values], list[Values]]:
        """The fields that nobody has asked for yet, and the others."""
        return self._payloads.fields(PROPERTIES), []

    def _property(self, place: int) -> Values:
        fields, known = self._properties
        known.extend(next(fields) for _ in range(place + 1 - len(known)))
        return known[place]

    def _number(self, values: Values, default: int | None = None) -> pa.Array:
        numbers = self._payloads.number(values)
        missing = ~np.isin(values.codes, NUMBERS)
        if default is None:
            return pa.array(numbers, mask=missing)
        return pa.array(np.where(missing, default, numbers))

    def _flag(self, values: Values) -> Mask:
        data = np.frombuffer(self._data, np.uint8)
        spelled = data[np.minimum(values.starts, max(len(data) - 1, 0))] == 1
        return (values.codes == _TRUE) | ((values.codes == _BOOLEAN) & spelled)  # type: ignore[no-any-return]

    def _flag_or_null(self, values: Values) -> pa.Array:
        return pa.array(self._flag(values), mask=~np.isin(values.codes, (_TRUE, _FALSE, _BOOLEAN)))

    def _identifier(self, values: Values) -> pa.Array:
        """Text as it is; numbers and UUIDs as they are written; bytes as UTF-8, else in hexadecimal."""
        text = texts(self._data, values.starts, values.ends, np.isin(values.codes, _TEXT))
        others = np.flatnonzero((values.codes != NO_CODE) & (values.codes != _NULL) & ~np.isin(values.codes, _TEXT))
        if not len(others):
            return text
        written = text.to_pylist()
        for row in others:
            written[row] = self._written(int(values.codes[row]), int(values.starts[row]), int(values.ends[row]))
        return pa.array(written, pa.string())

    def _written(self, code: int, start: int, end: int) -> str | None:
        data = self._data[start:end]
        if code in _UNSIGNED:
            return str(int.from_bytes(data, "big"))
        if code == _UUID:
            return str(UUID(bytes=data))
        return _text_or_hex(data) if code in _BINARY else None

    # --- bodies

    @cached_property
    def _body(self) -> pa.Array:
        kernel, starts, ends = self._kernel, self._starts, self._ends
        places = None if kernel is None else find_bodies(kernel, self._data, starts, ends)
        if places is not None:
            return binaries(self._data, *places)
        array = binaries(self._data, *self._body_places)
        several = np.flatnonzero(self._payloads.sections[DATA].counts > 1)
        if not len(several):
            return array
        bodies = array.to_pylist()
        for row in several:
            bodies[row] = self._joined(int(row))
        return pa.array(bodies, pa.binary())

    @cached_property
    def _body_places(self) -> tuple[Ints, Ints, Mask]:
        """What is within a section of data, or within a value that is text or bytes; else the sections as they are."""
        sections = self._payloads.sections
        present = np.zeros(len(self._starts), np.bool_)
        starts, ends = np.zeros(len(present), np.int64), np.zeros(len(present), np.int64)
        for code in (SEQUENCE, VALUE, DATA):
            section = sections[code]
            here = section.present
            inner = self._payloads.values(section.values)
            is_plain = here & np.isin(inner.codes, (*_BINARY, *_TEXT[:2])) & (code != SEQUENCE)
            starts = np.where(here, np.where(is_plain, inner.starts, section.begins), starts)
            ends = np.where(here, np.where(is_plain, inner.ends, section.ends), ends)
            present |= here
        return starts, ends, present

    def _joined(self, row: int) -> bytes:
        """A body of several sections of data, which come one after the other."""
        section = self._payloads.sections[DATA]
        return b"".join(data_sections(self._data[int(section.begins[row]) : int(section.ends[row])]))

    @cached_property
    def _body_sections(self) -> pa.Array:
        """From the first byte to the last of what a message may have as its body."""
        present = np.zeros(len(self._starts), np.bool_)
        starts, ends = np.full(len(present), len(self._data), np.int64), np.zeros(len(present), np.int64)
        for section in (self._payloads.sections[code] for code in (DATA, SEQUENCE, VALUE)):
            starts = np.where(section.present, np.minimum(starts, section.begins), starts)
            ends = np.maximum(ends, section.ends)
            present |= section.present
        return binaries(self._data, np.where(present, starts, 0), ends, present)

    def _body_text(self) -> pa.Array:
        section = self._payloads.sections[VALUE]
        inner = self._payloads.values(section.values)
        is_string = section.present & np.isin(inner.codes, _TEXT[:2])
        may_be = is_string | self._payloads.sections[DATA].present
        body = self._body
        if not may_be.all():
            body = pc.if_else(pa.array(may_be), body, pa.scalar(None, pa.binary()))
        text = as_text(body)
        control = pc.fill_null(pc.match_substring_regex(text, _CONTROL), False)
        if not pc.any(control).as_py():
            return text
        is_text = pc.or_(pc.invert(control), pa.array(is_string))
        return pc.if_else(is_text, text, pa.scalar(None, pa.string()))

    # --- maps

    def _map(self, code: int, read: Callable[[bytes], Mapping[str, object]]) -> pa.Array:
        return pa.array(self._of_sections(code, lambda encoded: _entries(read, encoded)), _MAP)

    def _typed_map(self, code: int, key: str) -> pa.Array:
        return pa.array(self._of_sections(code, lambda encoded: _typed_entries(encoded, key)), pa.string())

    def _of_sections(self, code: int, make: Callable[[bytes], Any]) -> list[Any]:
        """Maps of messages often repeat: each different one is decoded once."""
        section = self._payloads.sections[code]
        made: dict[bytes, Any] = {}
        column = [None] * len(self._starts)
        for row in np.flatnonzero(section.present):
            encoded = self._data[int(section.begins[row]) : int(section.ends[row])]
            if encoded not in made:
                made[encoded] = make(encoded)
            column[row] = made[encoded]
        return column

    def _typed_field(self, place: int) -> pa.Array:
        codes, starts, ends = self._property(place)
        column: list[str | None] = [None] * len(codes)
        for row in np.flatnonzero((codes != NO_CODE) & (codes != _NULL)):
            begin = int(starts[row]) - 1 - int(LENGTH_BYTES[codes[row]])
            try:
                column[row] = text_of(decoded(self._data[begin : int(ends[row])])[0])
            except DecodeError:
                continue
        return pa.array(column, pa.string())


_OTHERS: Final[dict[str, Callable[[Messages], pa.Array]]] = {
    "body": lambda messages: messages._body,
    "body_text": lambda messages: messages._body_text(),
    "body_sections": lambda messages: messages._body_sections,
    "durable": lambda messages: pa.array(messages._flag(messages._header[_DURABLE])),
    "priority": lambda messages: messages._number(messages._header[_PRIORITY], _USUAL_PRIORITY).cast(pa.int32()),
    "ttl_ms": lambda messages: messages._number(messages._header[_TTL]),
    "first_acquirer": lambda messages: messages._flag_or_null(messages._header[_FIRST_ACQUIRER]),
    "delivery_count": lambda messages: messages._number(messages._header[_DELIVERY_COUNT], 0),
    "application_properties": lambda messages: messages._map(APPLICATION_PROPERTIES, MessageSections().properties),
    "message_annotations": lambda messages: messages._map(MESSAGE_ANNOTATIONS, MessageSections().annotations),
}


def data_sections(encoded: bytes) -> Iterator[bytes]:
    """What is in the sections of data that make up `encoded`."""
    at = 0
    while at < len(encoded):
        value, at = value_end(encoded, at + 1), value_end(encoded, at)
        yield encoded[value + (2 if encoded[value] == _BINARY[0] else 5) : at]


def _entries(read: Callable[[bytes], Mapping[str, object]], encoded: bytes) -> list[tuple[str, str | None]] | None:
    try:
        return [(name, _as_text(value)) for name, value in read(encoded).items()]
    except DecodeError:
        return None


def _typed_entries(encoded: bytes, key: str) -> str | None:
    try:
        entries = map_of(encoded, value_end(encoded, 1), key)
    except DecodeError:
        return None
    return None if entries is None else text_of(entries)


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))  # Proton's own types of integers would say their names, too
    return _text_or_hex(bytes(value)) if isinstance(value, bytes | memoryview) else str(value)


def _text_or_hex(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.hex()
