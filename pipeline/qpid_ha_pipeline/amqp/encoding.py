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
    "ttl_ms": _NUMBER, "durable": (BooleanType,), "application_properties": (MapType,),
}  # fmt: skip
"""What a table that is written may have, and of which types."""


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
    if {"subject", "key"} <= names:
        raise PipelineError("columns subject and key: a routing key is sent as the subject, so give one of them")
    if not has_target and "to" not in names:
        raise PipelineError("target: missing: a queue or an exchange, or a column `to` with one for each row")


class Encoder:
    """Makes messages of batches. With a `producer` they are numbered, from `first_sequence` on."""

    def __init__(self, producer: str = "", first_sequence: int = 1) -> None:
        self._producer = producer
        self._sequence = first_sequence
        self._message: Any = proton.Message()

    def messages(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """One for each row, in order. Raises PipelineError for a row that has no body, or a wrong number."""
        names = batch.schema.names
        setters = [_SETTERS[name] for name in names]
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            message = self._message
            message.clear()
            message.durable = True
            for name, setter, value in zip(names, setters, row, strict=True):
                if value is not None:
                    setter(message, value)
                elif name in _BODIES:
                    raise PipelineError(f"a row has no {name}: leave such rows out, or send an empty one")
            if self._producer:
                message.annotations = {
                    proton.symbol(PRODUCER): self._producer, proton.symbol(SEQUENCE): proton.ulong(self._sequence)
                }  # fmt: skip
                self._sequence += 1
            yield bytes(message.encode())


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
