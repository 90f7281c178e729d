"""Writing to queues and exchanges: each row arrives, and where the broker de-duplicates, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from tempfile import TemporaryFile
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from .amqp.encoding import IDENTITY, Encoder, MonotonicPositions, check_written_schema
from .amqp.options import WriteOptions
from .amqp.primary import PrimaryConnection
from .amqp.publishing import DEDUPLICATION, Publisher, chunks_of
from .errors import PipelineError, told_plainly

_ADDRESSES_MOST: Final = 100
_QUERY_ID: Final = "sql.streaming.queryId"
"""Local property that Spark gives to the tasks of a stream."""


@dataclass
class Written(WriterCommitMessage):
    """What one task has sent, and the broker confirmed."""

    rows: int


class _Writer:
    """What batch and stream have in common."""

    def __init__(self, options: WriteOptions, schema: StructType, *, is_named: bool) -> None:
        """`is_named`: there is a name that stays the same when the rows are sent again."""
        check_written_schema(schema, has_target=bool(options.target))
        self._options = options
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        has_identity = set(IDENTITY) <= set(schema.names)
        if options.exactly_once and not has_identity:
            raise PipelineError(
                "exactlyOnce: a row that is sent again must be known by what it is: give the table the columns source"
                " and position; `qpid-amqp` has them for its rows"
            )
        self._is_numbered = has_identity and is_named and options.exactly_once is not False
        with PrimaryConnection(options.cluster) as primary:
            offered = Publisher(primary, options.target or None, together=False).check().offered
        if options.exactly_once and DEDUPLICATION not in offered:
            raise PipelineError(
                "exactlyOnce: this broker does not drop what a producer sends again (deduplication.producers is 0, or"
                " it is an older release): without exactlyOnce=true each row is sent at least once"
            )

    def _send(self, batches: Iterator[pa.RecordBatch], name: str) -> Written:
        """`name`: of all tasks that send these rows, at whatever attempt."""
        if not self._is_numbered:
            return self._publish(batches, Encoder())
        producer = f"{name}/{_context().partitionId()}"  # tasks run beside each other: no two share a producer
        with _kept_while_checked(batches, self._arrow, MonotonicPositions(producer)) as kept:
            return self._publish(kept, Encoder(producer))

    def _publish(self, batches: Iterable[pa.RecordBatch], encoder: Encoder) -> Written:
        rows = 0
        routed = (message for batch in batches for message in encoder.routed(batch))
        with PrimaryConnection(self._options.cluster) as primary:
            publishers = _Publishers(primary, self._options.target, together=self._is_numbered)
            for address, messages in groupby(routed, key=itemgetter(0)):
                for chunk in chunks_of(message for _, message in messages):
                    publishers.to(address).deliver(chunk)
                    rows += len(chunk)
        return Written(rows)


class _Publishers:
    """One for each address, of which the last `_ADDRESSES_MOST` stay attached."""

    def __init__(self, primary: PrimaryConnection, target: str, *, together: bool) -> None:
        self._primary, self._target, self._together = primary, target, together
        self._publishers: dict[str, Publisher] = {}

    def to(self, address: str) -> Publisher:
        """`address`: empty for the target, or where there is none for the addresses in the messages."""
        publisher = self._publishers.pop(address, None)
        if publisher is None:
            publisher = Publisher(self._primary, address or self._target or None, together=self._together)
        self._publishers[address] = publisher
        if len(self._publishers) > _ADDRESSES_MOST:
            self._publishers.pop(next(iter(self._publishers))).detach()
        return publisher


@contextmanager
def _kept_while_checked(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, positions: MonotonicPositions
) -> Iterator[pa.RecordBatchStreamReader]:
    """All rows of a task are looked at before the first is sent: once a later one was, an earlier one cannot be."""
    with TemporaryFile(prefix="qpid-ha-") as file:
        with pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                positions.check(batch)
                writer.write_batch(batch.cast(schema))
        file.seek(0)
        yield pa.ipc.open_stream(file)


class AmqpWriter(_Writer, DataSourceArrowWriter):
    """Of a batch: at least once; with a `producer`, which names this one write, what was sent before is dropped."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise PipelineError('mode overwrite: messages can only be added: use mode("append")')
        if options.exactly_once and not options.producer:
            raise PipelineError("exactlyOnce: give this write a name of its own, the option producer")
        super().__init__(options, schema, is_named=bool(options.producer))

    @told_plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor. Raises PipelineError."""
        return self._send(iterator, self._options.producer)


class AmqpStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Of a stream: rows that say what they are arrive once, all others at least once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema, is_named=True)

    @told_plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor. Raises PipelineError."""
        return self._send(iterator, self._options.producer or self._query())

    def _query(self) -> str:
        """A name that is in the checkpoint of the query."""
        query = _context().getLocalProperty(_QUERY_ID) if self._is_numbered else ""
        if query is None:
            raise PipelineError("Spark does not say which query this is: set producer, or exactlyOnce=false")
        return f"spark-{query}"


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("this runs in no task of Spark")
    return context
