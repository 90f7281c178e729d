"""Rows as AMQP messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    section_at,
)
from qpid_ha_pipeline.amqp.numbering import Number, renumbered
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.schema import PROPERTY_COLUMNS, near_name
from qpid_ha_pipeline.typed_json import encoded, encoded_as, encoded_bytes, encoded_map, list_of_encoded, parsed

_BODIES: Final = ("body", "value", "body_sections", "payload")
_TEXT: Final = (StringType,)
_NUMBER: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXT_OR_BYTES: Final = (BinaryType, StringType)
_UINT_MOST: Final = (1 << 32) - 1
_MAP: Final = "map<string,string>"

COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "payload": (BinaryType,), "body": _TEXT_OR_BYTES, "value": _TEXT_OR_BYTES, "body_sections": (BinaryType,),
    "to": _TEXT, "subject": _TEXT, "key": _TEXT, "reply_to": _TEXT, "amqp_message_id": _TEXT, "correlation_id": _TEXT,
    "amqp_message_id_typed": _TEXT, "correlation_id_typed": _TEXT, "user_id": (BinaryType,), "content_type": _TEXT,
    "content_encoding": _TEXT, "absolute_expiry": (TimestampType,), "created_at": (TimestampType,), "group_id": _TEXT,
    "group_sequence": _NUMBER, "reply_to_group_id": _TEXT, "durable": (BooleanType,), "priority": _NUMBER,
    "ttl_ms": _NUMBER, "first_acquirer": (BooleanType,), "delivery_count": _NUMBER,
    "application_properties": (MapType,), "application_properties_typed": _TEXT, "message_annotations_typed": _TEXT,
    "delivery_annotations_typed": _TEXT, "footer_typed": _TEXT, "source": _TEXT, "position": _NUMBER,
}  # fmt: skip
"""What a table that is written may have, and of which types."""
IDENTITY: Final = ("source", "position")
"""What a row is: it is known again by that."""
_BESIDE_PAYLOAD: Final = frozenset({"payload", "to", *IDENTITY})
_SAME: Final = (
    ("subject", "key"), ("application_properties", "application_properties_typed"),
    ("amqp_message_id", "amqp_message_id_typed"), ("correlation_id", "correlation_id_typed"),
)  # fmt: skip
"""Pairs of columns that say the same of a message."""
_PRODUCER_BYTES_MOST: Final = 128


def check_written_schema(schema: StructType, *, has_target: bool) -> None:
    """Raises PipelineError for a table that cannot be sent."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise PipelineError(f"a message has no column {field.name!r}{near_name(field.name, COLUMNS)}")
        if not isinstance(field.dataType, COLUMNS[field.name]):
            expected = " or ".join(kind.typeName() for kind in COLUMNS[field.name])
            raise PipelineError(f"column {field.name}: expected {expected}, found {field.dataType.simpleString()}")
        if isinstance(field.dataType, MapType) and field.dataType.simpleString() != _MAP:
            raise PipelineError(f"column {field.name}: expected {_MAP}, found {field.dataType.simpleString()}")
    _check_together(set(schema.names), has_target=has_target)


def _check_together(names: set[str], *, has_target: bool) -> None:
    if "payload" in names and not names <= _BESIDE_PAYLOAD:
        others = ", ".join(sorted(names - _BESIDE_PAYLOAD))
        raise PipelineError(f"column payload is the whole message: {others} beside it would not be sent: leave it out")
    if len(names & set(_BODIES)) != 1:
        raise PipelineError(
            "the table needs one column `body` (or `value`), binary or string, or `body_sections`, or `payload`: it has"
            f" {sorted(names)}"
        )
    if len(names & set(IDENTITY)) == 1:
        raise PipelineError("columns source and position: give both, or none: a row is known again by the two together")
    for one, other in _SAME:
        if {one, other} <= names:
            raise PipelineError(f"columns {one} and {other}: both are the same part of a message, so give one of them")
    if not has_target and "to" not in names:
        raise PipelineError("target: missing: a queue or an exchange, or a column `to` with one for each row")
    if has_target and {"payload", "to"} <= names:
        raise PipelineError("column to: beside payload it says where a message goes, and so does target: give one")


class Encoder:
    """Makes messages of batches. With a `producer` they are numbered: by `position`, one producer for each `source`."""

    def __init__(self, producer: str = "") -> None:
        self._producer = producer

    def messages(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """One for each row, in order. Raises PipelineError for a row that has no body, or a wrong value."""
        is_whole = "payload" in batch.schema.names
        messages = _payloads(batch) if is_whole else _assembled(batch)
        if not self._producer:
            yield from map(renumbered, messages)
            return
        numbers = zip(*(batch.column(name).to_pylist() for name in IDENTITY), strict=True)
        for message, (source, position) in zip(messages, numbers, strict=True):
            number: Number = f"{self._producer}/{source}", position
            yield renumbered(message, number)

    def routed(self, batch: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
        """The messages with the address to which each is sent; empty: to the target, or as the message itself says."""
        names = set(batch.schema.names)
        addresses = batch.column("to").to_pylist() if {"payload", "to"} <= names else [None] * batch.num_rows
        yield from zip((address or "" for address in addresses), self.messages(batch), strict=True)


class MonotonicPositions:
    """The promise: positions of each source that were let through rise, so that a broker takes none for a copy."""

    def __init__(self, producer: str) -> None:
        self._producer = producer
        self._last: dict[str, int] = {}

    def check(self, batch: pa.RecordBatch) -> None:
        """Raises PipelineError for a row that is not behind the one before it."""
        for source, position in zip(*(batch.column(name).to_pylist() for name in IDENTITY), strict=True):
            if source is None or position is None or position < 0:
                raise PipelineError(f"a row has the source {source!r} and the position {position}: each needs both")
            last = self._last.get(source)
            if last is None:
                self._check_length(source)
            elif position <= last:
                raise PipelineError(
                    f"source {source}: position {position} comes after {last}: what is sent must be in the order in"
                    " which it was read, a row for each; behind a shuffle, or where one row becomes several, set"
                    " exactlyOnce=false"
                )
            self._last[source] = position

    def _check_length(self, source: str) -> None:
        name = f"{self._producer}/{source}"
        if len(name.encode()) > _PRODUCER_BYTES_MOST:
            raise PipelineError(f"the producer {name} is longer than {_PRODUCER_BYTES_MOST} bytes: shorten `source`")


def _payloads(batch: pa.RecordBatch) -> Iterator[bytes]:
    for payload in batch.column("payload").to_pylist():
        _check_sections("payload", payload, HEADER, FOOTER)
        yield payload


def _check_sections(column: str, value: bytes | None, first: int, last: int) -> None:
    """What is no message would be queued, and nobody could read it."""
    if value is None:
        raise PipelineError(f"a row has no {column}: leave such rows out")
    at = 0
    try:
        while at < len(value):
            code, at = section_at(value, at)
            if not first <= code <= last:
                raise DecodeError(f"a section with the code {code:#x}")
    except DecodeError as error:
        raise PipelineError(f"column {column}: no encoded sections of an AMQP message: {error}") from None


def _assembled(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The sections in their order (AMQP 1.0 section 3.2)."""
    columns = {name: _plain(name, batch.column(name)) for name in batch.schema.names if name not in IDENTITY}
    body = next(name for name in _BODIES if name in columns)
    properties = [(place, name) for name, place in _PLACES.items() if name in columns]
    for row in range(batch.num_rows):
        values = {name: column[row] for name, column in columns.items()}
        fields = [_NULL] * len(PROPERTY_COLUMNS)
        for place, name in properties:
            if values[name] is not None:
                fields[place] = _FIELDS[name](values[name])
        yield b"".join((
            _header(*(values.get(name) for name in _HEADER)),
            _map_section(DELIVERY_ANNOTATIONS, "delivery_annotations_typed", values),
            _map_section(MESSAGE_ANNOTATIONS, "message_annotations_typed", values),
            _list_section(PROPERTIES, fields),
            _map_section(APPLICATION_PROPERTIES, "application_properties", values),
            _map_section(APPLICATION_PROPERTIES, "application_properties_typed", values),
            _body(body, values[body]),
            _map_section(FOOTER, "footer_typed", values),
        ))  # fmt: skip


def _plain(name: str, column: pa.Array) -> list[Any]:
    if TimestampType in COLUMNS[name]:
        microseconds = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
        return [value if value is None else value // 1000 for value in microseconds]
    values: list[Any] = column.to_pylist()
    return values


@lru_cache(maxsize=1024)
def _header(
    durable: bool | None, priority: int | None, ttl_ms: int | None, first_acquirer: bool | None, failed: int | None
) -> bytes:
    fields = (
        encoded(durable is not False),
        _NULL if priority is None else _uint("ubyte", "priority", 255, priority),
        _NULL if ttl_ms is None else _uint("uint", "ttl_ms", _UINT_MOST, ttl_ms),
        encoded(first_acquirer),
        _NULL if not failed else _uint("uint", "delivery_count", _UINT_MOST, failed),
    )
    return _list_section(HEADER, fields)


def _uint(kind: str, name: str, most: int, value: int) -> bytes:
    if not 0 <= value <= most:
        raise PipelineError(f"{name} is {value}: expected 0 to {most}")
    return encoded_as(kind, value)


def _section(code: int, value: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + value


def _list_section(code: int, fields: Sequence[bytes]) -> bytes:
    """Without the nulls at its end; none where nothing is left."""
    length = next((place for place in range(len(fields), 0, -1) if fields[place - 1] != _NULL), 0)
    return _section(code, list_of_encoded(fields[:length])) if length else b""


def _map_section(code: int, name: str, values: dict[str, Any]) -> bytes:
    value = values.get(name)
    if value is None:
        return b""
    if not isinstance(value, str):
        return _section(code, encoded_map(dict(value), "string"))
    key = "string" if code == APPLICATION_PROPERTIES else "symbol"
    try:
        return _section(code, encoded_map(parsed(value), key))
    except PipelineError as error:
        raise PipelineError(f"column {name}: {error.reason}") from None


def _body(name: str, value: bytes | str | None) -> bytes:
    if value is None:
        raise PipelineError(f"a row has no {name}: leave such rows out, or send an empty one")
    if name == "body_sections" and isinstance(value, bytes):
        _check_sections(name, value, _DATA, _VALUE)
        return value
    if isinstance(value, str):
        return _section(_VALUE, encoded_bytes("string", value.encode()))
    return _section(_DATA, encoded_bytes("binary", value))


def _string(value: str) -> bytes:
    return encoded_bytes("string", value.encode())


def _symbol(value: str) -> bytes:
    return encoded_bytes("symbol", value.encode())


def _typed_id(name: str, value: str) -> bytes:
    typed = parsed(value)
    if not isinstance(typed, dict) or not set(typed) <= _ID_TYPES:
        raise PipelineError(
            f"column {name}: expected one of the types {', '.join(sorted(_ID_TYPES))}, found {value:.80}"
        )
    try:
        return encoded(typed)
    except PipelineError as error:
        raise PipelineError(f"column {name}: {error.reason}") from None


_NULL: Final = b"\x40"
_DATA, _VALUE = 0x75, 0x77
_ID_TYPES: Final = frozenset({"string", "ulong", "uuid", "binary"})
_HEADER: Final = ("durable", "priority", "ttl_ms", "first_acquirer", "delivery_count")
_PLACES: Final = {
    **{name: place for place, name in enumerate(PROPERTY_COLUMNS)},
    "key": PROPERTY_COLUMNS.index("subject"),
    "amqp_message_id_typed": PROPERTY_COLUMNS.index("amqp_message_id"),
    "correlation_id_typed": PROPERTY_COLUMNS.index("correlation_id"),
}
_FIELDS: Final[dict[str, Callable[[Any], bytes]]] = {
    **dict.fromkeys(_PLACES, _string),
    "user_id": partial(encoded_bytes, "binary"),
    "content_type": _symbol,
    "content_encoding": _symbol,
    "absolute_expiry": partial(encoded_as, "timestamp"),
    "created_at": partial(encoded_as, "timestamp"),
    "group_sequence": partial(_uint, "uint", "group_sequence", _UINT_MOST),
    "amqp_message_id_typed": partial(_typed_id, "amqp_message_id_typed"),
    "correlation_id_typed": partial(_typed_id, "correlation_id_typed"),
}
