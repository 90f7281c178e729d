"""Stories about journals that a real broker writes while they are read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from failover_load import FailoverLoad
from journal_rows import read_rows
from running_broker import RunningBroker

IN_TIME_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """Small segments: it begins a new one every few hundred messages."""
    with RunningBroker({"data-dir": str(tmp_path / "data"), "store.segment-size": "64KiB"}) as running:
        yield running


@pytest.fixture
def load(broker: RunningBroker) -> Iterator[FailoverLoad]:
    with FailoverLoad([broker.url], rate=500, durable=True) as running:
        yield running


def settle(load: FailoverLoad) -> set[str]:
    """Publish no more; the ids of all messages, once each is confirmed."""
    load.publisher.pause()
    deadline = time.monotonic() + IN_TIME_S
    while not load.publisher.is_settled:
        assert time.monotonic() < deadline, "the broker did not answer for all messages"
        time.sleep(0.01)
    return confirmed(load)


def confirmed(load: FailoverLoad) -> set[str]:
    return {str(number) for number in list(load.ledger.confirmed_at_s)}


def test_whoever_reads_sees_all_that_was_confirmed_before_and_each_message_once(
    load: FailoverLoad, tmp_path: Path
) -> None:
    for _ in range(20):
        load.wait_confirmed(60)
        before = confirmed(load)
        read = Counter(
            row["amqp_message_id"] for row in read_rows(tmp_path / "data", "amqp_message_id", event="enqueued")
        )
        assert before <= set(read)
        assert set(read.values()) == {1}
    everything = settle(load)
    assert {row["amqp_message_id"] for row in read_rows(tmp_path / "data", event="enqueued")} == everything
    assert len(list((tmp_path / "data" / "default" / "journal").glob("*.log"))) > 3


@contextmanager
def streaming(spark: SparkSession, data_dir: Path, output: Path) -> Iterator[StreamingQuery]:
    """Ids of messages to Parquet, as they come."""
    table = spark.readStream.format("qpid-journal").option("columns", "amqp_message_id").option("event", "enqueued")
    sink = table.load(str(data_dir)).writeStream.format("parquet").option("checkpointLocation", f"{output}-checkpoint")
    query = sink.trigger(processingTime="100 milliseconds").start(str(output))
    try:
        yield query
    finally:
        query.stop()


def test_a_stream_keeps_up_with_a_broker_and_gives_each_message_once(
    spark: SparkSession, load: FailoverLoad, tmp_path: Path
) -> None:
    load.wait_confirmed(1)
    with streaming(spark, tmp_path / "data", tmp_path / "out") as query:
        early = wait_for_ids(spark, query, tmp_path / "out", 1)
        load.wait_confirmed(200)
        everything = settle(load)
        # The last one follows a moment later, when the journal says that it is committed.
        read = wait_for_ids(spark, query, tmp_path / "out", len(everything))
    assert len(early) < len(everything), "the load had ended before the stream began"
    assert sorted(read) == sorted(everything)


def wait_for_ids(spark: SparkSession, query: StreamingQuery, output: Path, count: int) -> list[str]:
    """Once there are so many."""
    deadline = time.monotonic() + IN_TIME_S
    while len(found := ids_in(spark, output)) < count:
        assert query.exception() is None
        assert time.monotonic() < deadline, f"{len(found)} of {count} came: {query.lastProgress}"
        time.sleep(0.1)
    return found


def ids_in(spark: SparkSession, output: Path) -> list[str]:
    """Of the batches that are complete."""
    if not (output / "_spark_metadata" / "0").exists():
        return []
    return [row.amqp_message_id for row in spark.read.parquet(str(output)).collect()]
