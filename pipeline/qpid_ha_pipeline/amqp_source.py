"""The data source `qpid-amqp`: live queues as tables and streams, and a sink to queues and exchanges."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from .amqp.options import ReadOptions, WriteOptions
from .amqp.rows import live_schema
from .amqp_sink import AmqpStreamWriter, AmqpWriter
from .amqp_stream import AmqpReader, AmqpStreamReader
from .errors import told_plainly
from .py_files import ShippedDataSource

NAME = "qpid-amqp"


class AmqpDataSource(ShippedDataSource):
    """`spark.read.format("qpid-amqp").option("brokers", URLS).option("queue", NAME)`: see docs/pipeline.md."""

    @classmethod
    def name(cls) -> str:
        """As `format` takes it."""
        return NAME

    @told_plainly
    def schema(self) -> StructType:
        """All columns, or those of the option `columns`. Whatever is wrong with the options shows here, at `load`."""
        return live_schema(ReadOptions.parse(self.options).columns)

    @told_plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch."""
        return AmqpReader(ReadOptions.parse(self.options), schema)

    @told_plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a stream."""
        return AmqpStreamReader(ReadOptions.parse(self.options), schema)

    @told_plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Of a batch."""
        return AmqpWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    @told_plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Of a stream."""
        return AmqpStreamWriter(WriteOptions.parse(self.options), schema)
