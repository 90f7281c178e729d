"""Live messages as Arrow batches: the columns of a journal's messages, made in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, LongType, StringType, StructType, TimestampType

from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_pipeline.amqp.browsing import BrowsedChunk
from qpid_ha_pipeline.amqp.queues import MessageTimes
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.journal.messages import Messages
from qpid_ha_pipeline.journal.text import binaries, times
from qpid_ha_pipeline.schema import (
    BY_NAME,
    MESSAGE_COLUMNS,
    ON_REQUEST,
    PROPERTY_COLUMNS,
    Column,
    near_name,
    struct_of,
)

COLUMNS: Final = (
    "queue", "queue_id", "message_id", "durable", "priority", "size", "ttl_ms", "first_acquirer", "delivery_count",
    *PROPERTY_COLUMNS, "message_annotations", "application_properties", "body", "body_text",
)  # fmt: skip
ENQUEUED_AT: Final = Column("enqueued_at", TimestampType(), "only where it is named: when the broker had it")
ROW_IDENTITY: Final = (
    Column("source", StringType(), "only where it is named: which of the ordered sources in a batch the row is of"),
    Column("position", LongType(), "only where it is named: where it is there; positions of a source rise"),
)
"""What a sink needs to know a row that it has sent before, whatever became of the rows beside it."""
_BY_NAME: Final = {name: BY_NAME[name] for name in COLUMNS} | {
    column.name: column for column in (*ON_REQUEST, ENQUEUED_AT, *ROW_IDENTITY)
}
_LOOKED_INTO: Final = MESSAGE_COLUMNS | {"durable", "priority"}


def live_schema(names: Iterable[str] = ()) -> StructType:
    """Of these columns, else of all. Raises PipelineError for a name that is none."""
    wanted = tuple(names) or COLUMNS
    for name in wanted:
        _type(name)
    return struct_of(_BY_NAME[name] for name in wanted)


def check_live_schema(schema: StructType) -> None:
    """Raises PipelineError unless a user's own schema has only columns of ours, with their types."""
    for field in schema.fields:
        if field.dataType != _type(field.name):
            expected, actual = _type(field.name).simpleString(), field.dataType.simpleString()
            raise PipelineError(f"column {field.name}: expected {expected}, found {actual}")


def _type(name: str) -> DataType:
    if name not in _BY_NAME:
        raise PipelineError(f"a queue has no column {name!r}{near_name(name, _BY_NAME)}")
    return _BY_NAME[name].type


class BrowsedSource(NamedTuple):
    """Of which rows are, in their order: the same name whenever they are read. `times`: where they are wanted."""

    name: str
    queue: str
    queue_id: int
    times: MessageTimes | None


def batch_of(chunk: BrowsedChunk, source: BrowsedSource, schema: pa.Schema) -> pa.RecordBatch:
    """One row for each message."""
    data = b"".join(chunk.payloads)
    ends = np.cumsum(np.fromiter(map(len, chunk.payloads), np.int64, len(chunk.payloads)))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    messages = Messages(data, starts, ends)
    count = len(chunk.ids)
    makers: dict[str, Callable[[], pa.Array]] = {
        "queue": lambda: pa.repeat(pa.scalar(source.queue, pa.string()), count),
        "queue_id": lambda: pa.repeat(pa.scalar(_signed(source.queue_id), pa.int64()), count),
        "message_id": lambda: pa.array(np.array(chunk.ids, np.uint64).view(np.int64)),
        "source": lambda: pa.repeat(pa.scalar(source.name, pa.string()), count),
        "enqueued_at": lambda: _times(chunk.ids, source.times or MessageTimes([], [])),
        "position": lambda: pa.array(np.array([message_id % LOCAL_BASE for message_id in chunk.ids], np.int64)),
        "size": lambda: pa.array(ends - starts),
        "payload": lambda: binaries(data, starts, ends),
    }
    arrays = [messages.column(name) if name in _LOOKED_INTO else makers[name]() for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _times(ids: list[int], dated: MessageTimes) -> pa.Array:
    """Null: the broker does not know."""
    places = np.searchsorted(np.array(dated.positions, np.uint64), np.array(ids, np.uint64))
    return times(np.array([*dated.times_ms, 0], np.int64)[places], places == len(dated.positions))


def _signed(number: int) -> int:
    """Spark has no unsigned numbers: see `schema`."""
    return number - (1 << 64) if number >= 1 << 63 else number
