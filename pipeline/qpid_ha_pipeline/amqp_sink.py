"""Writing to queues and exchanges: each row arrives, and where the broker de-duplicates, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .amqp.encoding import Encoder, check_written_schema
from .amqp.options import WriteOptions
from .amqp.primary import PrimaryConnection
from .amqp.publishing import DEDUPLICATION, Publisher, chunks_of
from .errors import PipelineError

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark gives to the tasks of a stream."""
_SEQUENCE_BITS: Final = 32


@dataclass
class Written(WriterCommitMessage):
    """What one task has sent, and the broker confirmed."""

    rows: int


class _Writer:
    """What batch and stream have in common."""

    def __init__(self, options: WriteOptions, schema: StructType, *, is_numbered: bool) -> None:
        check_written_schema(schema, has_target=bool(options.target))
        self._options = options
        self._is_numbered = is_numbered
        with PrimaryConnection(options.cluster) as primary:
            offered = Publisher(primary, options.target or None, together=False).check().offered
        if options.exactly_once and DEDUPLICATION not in offered:
            raise PipelineError(
                "exactlyOnce: this broker does not drop what a producer sends again (deduplication.producers is 0, or"
                " it is an older release): without exactlyOnce=true each row is sent at least once"
            )

    def _send(self, batches: Iterator[pa.RecordBatch], encoder: Encoder) -> Written:
        rows = 0
        with PrimaryConnection(self._options.cluster) as primary:
            publisher = Publisher(primary, self._options.target or None, together=self._is_numbered)
            for chunk in chunks_of(message for batch in batches for message in encoder.messages(batch)):
                publisher.deliver(chunk)
                rows += len(chunk)
        return Written(rows)


class AmqpWriter(_Writer, DataSourceArrowWriter):
    """Of a batch: at least once; with a `producer`, which names this one write, what was sent before is dropped."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise PipelineError('mode overwrite: messages can only be added: use mode("append")')
        if options.exactly_once and not options.producer:
            raise PipelineError("exactlyOnce: give this write a name of its own, the option producer")
        is_numbered = bool(options.producer) and options.exactly_once is not False
        super().__init__(options, schema, is_numbered=is_numbered)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor. Raises PipelineError."""
        producer = f"{self._options.producer}/{_context().partitionId()}" if self._is_numbered else ""
        return self._send(iterator, Encoder(producer))


class AmqpStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Of a stream: rows are numbered by batch and place, so that a batch that is sent again adds nothing."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema, is_numbered=options.exactly_once is not False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor. Raises PipelineError."""
        if not self._is_numbered:
            return self._send(iterator, Encoder())
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if batch is None or not (query or self._options.producer):
            raise PipelineError("Spark does not say which batch this is: set exactlyOnce=false")
        producer = f"{self._options.producer or f'spark-{query}'}/{context.partitionId()}"
        return self._send(iterator, Encoder(producer, (int(batch) << _SEQUENCE_BITS) + 1))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("this runs in no task of Spark")
    return context
