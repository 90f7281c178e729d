"""The columns for which messages are looked into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qpid_ha_broker.amqp.conditions import DecodeError
from qpid_ha_broker.amqp.sections import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    MessageSections,
)

from .records import Ints, Mask
from .sections import DATA, NO_CODE, SEQUENCE, VALUE, Payloads, Section, Values
from .text import as_text, binaries, texts, times

_TEXT: Final = np.array([0xA1, 0xB1, 0xA3, 0xB3], np.uint8)
"""Strings and symbols."""
_BINARY: Final = np.array([0xA0, 0xB0], np.uint8)
_NULL, _UUID = 0x40, 0x98
_UNSIGNED: Final = np.array([0x44, 0x53, 0x80], np.uint8)
_PROPERTY_FIELDS: Final = {
    "amqp_message_id": 0, "to": 2, "subject": 3, "reply_to": 4, "correlation_id": 5, "content_type": 6, "created_at": 9,
}  # fmt: skip
_DURABLE, _PRIORITY, _TTL, _DELIVERY_COUNT = 0, 1, 2, 4
_TRUE, _BOOLEAN = 0x41, 0x56
_USUAL_PRIORITY: Final = 4
_CONTROL: Final = r"[\x00-\x08\x0B\x0C\x0E-\x1F\x7F]"
_MAP: Final = pa.map_(pa.string(), pa.string())


class Messages:
    """Messages that lie in `data`; each column has one value per message."""

    def __init__(self, data: bytes, starts: Ints, ends: Ints) -> None:
        self._data = data
        self._starts, self._ends = starts, ends

    def column(self, name: str) -> pa.Array:
        """One of `schema.MESSAGE_COLUMNS`."""
        match name:
            case "body":
                return self._body
            case "body_text":
                return self._body_text()
            case "ttl_ms":
                return self._number(self._header[_TTL])
            case "delivery_count":
                return self._number(self._header[_DELIVERY_COUNT], default=0)
            case "durable":
                return pa.array(self._flag(self._header[_DURABLE]))
            case "priority":
                return self._number(self._header[_PRIORITY], default=_USUAL_PRIORITY).cast(pa.int32())
            case "created_at":
                values = self._properties[_PROPERTY_FIELDS[name]]
                return times(self._payloads.number(values), (values.codes == NO_CODE) | (values.codes == _NULL))
            case "amqp_message_id" | "correlation_id":
                return self._identifier(self._properties[_PROPERTY_FIELDS[name]])
            case "application_properties":
                return self._map(APPLICATION_PROPERTIES, MessageSections().properties)
            case "message_annotations":
                return self._map(MESSAGE_ANNOTATIONS, MessageSections().annotations)
        values = self._properties[_PROPERTY_FIELDS[name]]
        return texts(self._data, values.starts, values.ends, np.isin(values.codes, _TEXT))

    @cached_property
    def _payloads(self) -> Payloads:
        return Payloads(self._data, self._starts, self._ends)

    @cached_property
    def _header(self) -> list[Values]:
        return self._payloads.fields(HEADER, _DELIVERY_COUNT + 1)

    @cached_property
    def _properties(self) -> list[Values]:
        return self._payloads.fields(PROPERTIES, 10)

    def _number(self, values: Values, default: int | None = None) -> pa.Array:
        found = self._payloads.number(values)
        missing = (values.codes == NO_CODE) | (values.codes == _NULL)
        if default is None:
            return pa.array(found, mask=missing)
        return pa.array(np.where(missing, default, found))

    def _flag(self, values: Values) -> Mask:
        data = np.frombuffer(self._data, np.uint8)
        spelled = data[np.minimum(values.starts, max(len(data) - 1, 0))] == 1
        return (values.codes == _TRUE) | ((values.codes == _BOOLEAN) & spelled)  # type: ignore[no-any-return]

    def _identifier(self, values: Values) -> pa.Array:
        """Text as it is; numbers and UUIDs as they are written; bytes as UTF-8, else in hexadecimal."""
        text = texts(self._data, values.starts, values.ends, np.isin(values.codes, _TEXT))
        others = np.flatnonzero((values.codes != NO_CODE) & (values.codes != _NULL) & ~np.isin(values.codes, _TEXT))
        if not len(others):
            return text
        found = text.to_pylist()
        for row in others:
            found[row] = self._written(int(values.codes[row]), int(values.starts[row]), int(values.ends[row]))
        return pa.array(found, pa.string())

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
        starts, ends, present = self._body_places
        array = binaries(self._data, starts, ends, present)
        several = np.flatnonzero(self._payloads.sections[DATA].counts > 1)
        if not len(several):
            return array
        found = array.to_pylist()
        for row in several:
            found[row] = self._joined(int(row))
        return pa.array(found, pa.binary())

    @cached_property
    def _body_places(self) -> tuple[Ints, Ints, Mask]:
        """What is within a section of data, or within a value that is text or bytes; else the sections as they are."""
        sections = self._payloads.sections
        present = np.zeros(len(self._starts), np.bool_)
        starts, ends = np.zeros(len(present), np.int64), np.zeros(len(present), np.int64)
        for code in (SEQUENCE, VALUE, DATA):
            section = sections[code]
            here = section.present
            inner = self._payloads.values(np.where(here, section.begins + 3, 0))
            is_plain = here & self._is_short(section) & np.isin(inner.codes, (*_BINARY, *_TEXT[:2]))
            is_plain &= code != SEQUENCE
            starts = np.where(here, np.where(is_plain, inner.starts, section.begins), starts)
            ends = np.where(here, np.where(is_plain, inner.ends, section.ends), ends)
            present |= here
        return starts, ends, present

    def _is_short(self, section: Section) -> Mask:
        """Whether the section's descriptor is the usual one of three bytes."""
        data = np.frombuffer(self._data, np.uint8)
        places = np.minimum(section.begins, max(len(data) - 2, 0))
        return (data[places] == 0) & (data[places + 1] == 0x53)  # type: ignore[no-any-return]

    def _joined(self, row: int) -> bytes:
        """A body of several sections of data, which come one after the other."""
        section = self._payloads.sections[DATA]
        at, end = int(section.begins[row]), int(section.ends[row])
        pieces = []
        while at < end:
            value = self._payloads.values(np.array([at + 3], np.int64))
            pieces.append(self._data[int(value.starts[0]) : int(value.ends[0])])
            at = int(value.ends[0])
        return b"".join(pieces)

    def _body_text(self) -> pa.Array:
        section = self._payloads.sections[VALUE]
        inner = self._payloads.values(np.where(section.present, section.begins + 3, 0))
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
        """Maps of messages often repeat: each different one is decoded once."""
        section = self._payloads.sections[code]
        known: dict[bytes, list[tuple[str, str | None]] | None] = {}
        found: list[list[tuple[str, str | None]] | None] = [None] * len(self._starts)
        for row in np.flatnonzero(section.present):
            encoded = self._data[int(section.begins[row]) : int(section.ends[row])]
            if encoded not in known:
                known[encoded] = _entries(read, encoded)
            found[row] = known[encoded]
        return pa.array(found, _MAP)


def _entries(read: Callable[[bytes], Mapping[str, object]], encoded: bytes) -> list[tuple[str, str | None]] | None:
    try:
        return [(name, _as_text(value)) for name, value in read(encoded).items()]
    except DecodeError:
        return None


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
