"""Rows as AMQP messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import proton
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
)

from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.schema import near_name

PRODUCER: Final = "x-opt-qpid-producer"
SEQUENCE: Final = "x-opt-qpid-sequence"
_BODIES: Final = ("body", "value")
_TEXT: Final = (StringType,)
_NUMBER: Final = (ByteType, ShortType, IntegerType, LongType)
_UINT_MOST: Final = (1 << 32) - 1
_MAP: Final = "map<string,string>"

COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType), "value": (BinaryType, StringType), "to": _TEXT, "subject": _TEXT, "key": _TEXT,
    "reply_to": _TEXT, "amqp_message_id": _TEXT, "correlation_id": _TEXT, "content_type": _TEXT, "priority": _NUMBER,
    "ttl_ms": _NUMBER, "durable": (BooleanType,), "application_properties": (MapType,), "source": _TEXT,
    "position": _NUMBER,
}  # fmt: skip
"""What a table that is written may have, and of which types."""
IDENTITY: Final = ("source", "position")
"""What a row is: it is known again by that."""
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
    names = set(schema.names)
    if len(names & set(_BODIES)) != 1:
        raise PipelineError(f"the table needs one column `body` (or `value`), binary or string: it has {sorted(names)}")
    if len(names & set(IDENTITY)) == 1:
        raise PipelineError("columns source and position: give both, or none: a row is known again by the two together")
    if {"subject", "key"} <= names:
        raise PipelineError("columns subject and key: a routing key is sent as the subject, so give one of them")
    if not has_target and "to" not in names:
        raise PipelineError("target: missing: a queue or an exchange, or a column `to` with one for each row")


class Encoder:
    """Makes messages of batches. With a `producer` they are numbered: by `position`, one producer for each `source`."""

    def __init__(self, producer: str = "") -> None:
        self._producer = producer
        self._message: Any = proton.Message()

    def messages(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """One for each row, in order. Raises PipelineError for a row that has no body, or a wrong number."""
        names = [name for name in batch.schema.names if name not in IDENTITY]
        setters = [_SETTERS[name] for name in names]
        rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        numbers = zip(*(batch.column(name).to_pylist() for name in IDENTITY), strict=True) if self._producer else None
        for row in rows:
            message = self._message
            message.clear()
            message.durable = True
            for name, setter, value in zip(names, setters, row, strict=True):
                if value is not None:
                    setter(message, value)
                elif name in _BODIES:
                    raise PipelineError(f"a row has no {name}: leave such rows out, or send an empty one")
            if numbers is not None:
                source, position = next(numbers)
                name = f"{self._producer}/{source}"
                message.annotations = {proton.symbol(PRODUCER): name, proton.symbol(SEQUENCE): proton.ulong(position)}
            yield bytes(message.encode())


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


def _set_body(message: Any, value: bytes | str) -> None:
    message.inferred = isinstance(value, bytes)  # bytes go into a data section, text is a value
    message.body = value


def _set_priority(message: Any, value: int) -> None:
    message.priority = _within("priority", value, 255)


def _set_ttl(message: Any, value: int) -> None:
    message.ttl = _within("ttl_ms", value, _UINT_MOST) / 1000


def _within(name: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise PipelineError(f"{name} is {value}: expected 0 to {most}")
    return value


def _set_properties(message: Any, value: list[tuple[str, str | None]]) -> None:
    message.properties = dict(value)


def _attribute(name: str) -> Callable[[Any, Any], None]:
    return lambda message, value: setattr(message, name, value)


_SETTERS: Final[dict[str, Callable[[Any, Any], None]]] = {
    "body": _set_body,
    "value": _set_body,
    "to": _attribute("address"),
    "subject": _attribute("subject"),
    "key": _attribute("subject"),
    "reply_to": _attribute("reply_to"),
    "amqp_message_id": _attribute("id"),
    "correlation_id": _attribute("correlation_id"),
    "content_type": _attribute("content_type"),
    "priority": _set_priority,
    "ttl_ms": _set_ttl,
    "durable": _attribute("durable"),
    "application_properties": _set_properties,
}
