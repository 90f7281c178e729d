"""The data source `qpid-journal`: what brokers have written, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from .errors import PipelineError, rows_told_plainly, told_plainly
from .journal.batches import read_group
from .journal.filters import RowFilters
from .journal.part import JournalPart, grouped
from .journal.replicas import event_parts, logs_of, state_parts
from .journal.stores import find
from .journal.survey import SurveyedStore, look
from .journal_stream import JournalStreamReader
from .options import JournalOptions, View
from .py_files import ShippedDataSource
from .schema import check_schema, full_schema, schema_of

NAME = "qpid-journal"


class JournalDataSource(ShippedDataSource):
    """`spark.read.format("qpid-journal").load(DATA_DIR)`. docs/pipeline.md has the columns and the options."""

    @classmethod
    def name(cls) -> str:
        """As `format` takes it."""
        return NAME

    @told_plainly
    def schema(self) -> StructType:
        """All columns, or those of the option `columns`. Whatever is wrong with the options shows here, at `load`."""
        options = JournalOptions.parse(self.options)
        RowFilters(options)
        find(options.paths, options.sets)
        return schema_of(options.columns) if options.columns else full_schema(is_permissive=options.is_permissive)

    @told_plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch. `schema`: ours, or a part of it that the user asked for with `spark.read.schema`."""
        return JournalTableReader(JournalOptions.parse(self.options), schema)

    @told_plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a stream."""
        return JournalStreamReader(JournalOptions.parse(self.options), schema)


class JournalTableReader(DataSourceReader):
    """Plans on the driver, from headers alone; reads on the executors."""

    def __init__(self, options: JournalOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._filters = RowFilters(options)

    @told_plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Of about `partitionBytes` each: segments, or pieces of one. The state of a store is one task."""
        options, logs = self._options, logs_of(look_at_all(self._options))
        if options.view is View.STATE:
            states = [part for log in logs for part in state_parts(log, options)]
            return grouped(states, options.partition_bytes)
        events = [part for log in logs for part in event_parts(log, options) if self._may_have_rows(part)]
        return grouped(events, options.partition_bytes)

    def _may_have_rows(self, part: JournalPart) -> bool:
        if part.damages:
            return "damage" in self._schema.names
        return self._filters.may_be_in(part.piece)

    @rows_told_plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        return read_group(partition, arrow, self._filters, self._options)


def look_at_all(options: JournalOptions) -> list[SurveyedStore]:
    """All stores that the options name, with what is wrong with each, which another one may make good.

    Raises PipelineError, also for stores that do not belong together.
    """
    stores = [
        look(directory, is_permissive=True, piece_bytes=options.partition_bytes)
        for directory in find(options.paths, options.sets)
    ]
    if not options.several_clusters:
        check_one_cluster(stores)
    return stores


def check_one_cluster(stores: Sequence[SurveyedStore]) -> None:
    """Rows of two clusters in one table are rarely meant: their LSNs and queues have nothing to do with each other.

    Each resource set has an identifier of its own there, so stores of different sets are not compared.
    """
    firsts: dict[str, SurveyedStore] = {}
    for store in stores:
        first = firsts.setdefault(store.set, store) if store.cluster else store
        if store.cluster != first.cluster:
            raise PipelineError(
                f"{store.directory.path} belongs to the cluster {store.cluster}, {first.directory.path} to"
                f" {first.cluster}: read them apart, or say that it is meant with the option severalClusters=true"
            )
