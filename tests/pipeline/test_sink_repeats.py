"""Tasks, stages and queries that are repeated at random, from a live queue to another one, without Spark around them.

The promise of rows that say what they are: each that a batch has when it is committed arrives, and arrives once as long
as a batch is repeated with as many tasks; whatever consumers and clocks take out of the queue meanwhile.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadMaxRows

from blocking_client import BlockingClient, bodies
from live_query import LiveQuery, numbers, publish
from qpid_ha_pipeline.amqp.options import ReadOptions, WriteOptions
from qpid_ha_pipeline.amqp.rows import live_schema
from qpid_ha_pipeline.amqp_sink import AmqpStreamWriter
from qpid_ha_pipeline.amqp_stream import Spans
from running_broker import RunningBroker

COLUMNS = "body_text,source,position"


class Died(Exception):
    """The executor, the driver, or both."""


@contextmanager
def task(partition: int, query: str) -> Iterator[None]:
    """What Spark tells a task of itself."""
    context: Any = TaskContext._getOrCreate()
    context._partitionId, context._localProperties = partition, {"sql.streaming.queryId": query}
    try:
        yield
    finally:
        TaskContext._taskContext = None


class CopyingQuery(LiveQuery):
    """Reads one queue and writes another; each step may die, and is repeated."""

    def __init__(self, url: str, seed: int) -> None:
        self.random = Random(seed)
        self.name = f"repeats-{seed}"
        self.target = f"{self.name}-copy"
        super().__init__(url, self.name, columns=COLUMNS, numPartitions=str(self.random.choice([1, 2, 3])))
        schema = live_schema(ReadOptions.parse(self._given).columns)
        schema.fields[0].name, schema.names[0] = "value", "value"
        self.writer = AmqpStreamWriter(WriteOptions.parse({"brokers": url, "target": self.target}), schema)

    def copy_batch(self, most: int, meanwhile: Sequence[Any]) -> set[str]:
        """One batch, as often as it takes; what happens in between is of `meanwhile`. The texts that it had at last."""
        end = self.reader.latestOffset(self.offset, ReadMaxRows(most))
        attempts = iter(meanwhile)
        while True:
            try:
                texts: set[str] = set()
                tasks = list(enumerate(self.reader.partitions(self.offset, end)))
                self.random.shuffle(tasks)
                for number, part in tasks:
                    texts |= self._task(number, part)
            except Died:
                next(attempts, lambda: None)()
                if self.random.random() < 0.5:
                    self.restart()
                continue
            self.offset = end
            return texts

    def _task(self, number: int, part: Any) -> set[str]:
        """One task, which may be begun again before its stage is given up."""
        while True:
            rows = [batch.rename_columns(["value", "source", "position"]) for batch in self._read(part)]
            try:
                with task(number, self.name):
                    self._write(rows)
            except Died:
                if self.random.random() < 0.3:
                    continue
                raise
            return {text for batch in rows for text in batch.column("value").to_pylist()}

    def _read(self, part: Any) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, Spans)
        yield from pickle.loads(pickle.dumps(self.reader)).read(part)

    def _write(self, rows: list[pa.RecordBatch]) -> None:
        """Some of the rows, or all of them and no word of it, or all of them."""
        whole = pa.Table.from_batches(rows) if rows else None
        how = self.random.random()
        if whole is None:
            return
        if how < 0.5:
            cut = self.random.randrange(whole.num_rows + 1)
            self.writer.write(iter(whole.slice(0, cut).to_batches()))
            raise Died
        self.writer.write(iter(whole.to_batches()))
        if how < 0.7:
            raise Died


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_repeated_no_row_is_left_out_and_none_comes_twice(broker: RunningBroker, seed: int) -> None:
    random = Random(seed)
    with BlockingClient(broker.url) as client:
        publish(broker.url, f"repeats-{seed}", *numbers(60))
        query = CopyingQuery(broker.url, seed)

        def consume_some() -> None:
            receiver = client.receiver(query.name, 0)
            receiver.link.drain(random.randrange(1, 60))
            client.wait(lambda: receiver.link.credit == 0)
            while receiver.fetcher.has_message:
                receiver.fetcher.pop()
                receiver.accept()
            receiver.close()

        expected: set[str] = set()
        for start in range(60, 180, 30):
            if random.random() < 0.5:
                client.consume(query.name)
            publish(broker.url, query.name, *numbers(30, start))
            expected |= query.copy_batch(random.randrange(20, 80), [consume_some] * random.randrange(5))
        found = bodies(client.consume(query.target))
    assert expected <= set(found)
    assert len(found) == len(set(found))
