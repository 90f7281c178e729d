"""Queries that consume: each message is once in the output that is kept, and none stays, whoever dies when."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from blocking_client import BlockingClient, Management
from live_query import LiveQuery, numbers, publish
from qpid_ha_pipeline.amqp.options import ReadOptions
from qpid_ha_pipeline.amqp.rows import live_schema
from qpid_ha_pipeline.amqp_stream import AmqpReader, Offsets
from qpid_ha_pipeline.errors import PipelineError
from running_broker import RunningBroker
from running_cluster import RunningCluster

LIMIT_S = 180


class Died(Exception):
    """The driver."""


class ConsumingQuery(LiveQuery):
    """A micro-batch engine that may die between any two steps: an offset log, a commit log, and a sink that keeps one
    output for each batch."""

    def __init__(self, url: str, queue: str, seed: int, **options: str) -> None:
        self.random = Random(seed)
        self.planned: list[Offsets] = []
        self.committed = 0
        """Batches in the commit log."""
        self.kept: dict[int, list[str]] = {}
        super().__init__(url, queue, consume="true", **options)
        self.first = self.offset

    def run(self, most: int = 10, risk: float = 0.0) -> None:
        """Until nothing is left to read, or somebody dies. From the logs alone, as a new process."""
        self.restart()
        self.risk = risk
        while True:
            if len(self.planned) == self.committed and not self._plan(most):
                return
            number, end = self.committed, self.planned[-1]
            rows = []
            for text in self.read(self._start(number), end):
                rows.append(text)
                self._may_die(0.2)
            self.kept[number] = rows
            self._may_die()
            self.committed += 1
            self._may_die()

    def _plan(self, most: int) -> bool:
        start = self._start(self.committed)
        self._may_die()
        end = self.reader.latestOffset(start, ReadMaxRows(most))
        self._may_die()
        if end != start:
            self.planned.append(end)
            self._may_die()
        return end != start

    def _start(self, number: int) -> Offsets:
        return self.planned[number - 1] if number else self.first

    def _may_die(self, share: float = 1.0) -> None:
        if self.random.random() < self.risk * share:
            raise Died

    @property
    def output(self) -> list[str]:
        """Of all batches."""
        return [text for number in sorted(self.kept) for text in self.kept[number]]


@pytest.mark.parametrize("seed", range(20))
def test_wherever_it_dies_each_message_is_kept_once_and_none_stays(broker: RunningBroker, seed: int) -> None:
    random = Random(seed)
    names = [f"consume-{seed}-{letter}" for letter in "ab"[: random.randrange(1, 3)]]
    with BlockingClient(broker.url) as client:
        management = Management(client)
        for name in names:
            management.create_queue(name, {"qpid.priorities": 3} if random.random() < 0.3 else {})
        query = ConsumingQuery(broker.url, ",".join(names), seed, minPartitions=str(random.choice([1, 3])))
        sent = 0
        for _ in range(8):
            count = random.randrange(30)
            publish(broker.url, random.choice(names), *numbers(count, sent))
            sent += count
            try:
                query.run(random.randrange(5, 40), risk=0.2)
            except Died:
                there = sum(management.messages(name) or 0 for name in names)
                assert there >= sent - len(query.output), "what is in no output is in its queue"
        query.run()
        assert [management.messages(name) for name in names] == [0] * len(names)
    assert sorted(query.output, key=int) == numbers(sent)


def test_what_another_consumer_holds_is_its_own_until_it_comes_back(
    broker: RunningBroker, client: BlockingClient, management: Management
) -> None:
    publish(broker.url, "shared", *numbers(10))
    receiver = client.receiver("shared", 4)
    client.fetch(receiver, 3)
    client.fetch(receiver, 1, None)
    client.round_trip()
    query = ConsumingQuery(broker.url, "shared", 0)
    query.run()
    assert query.output == numbers(7, 3)
    assert management.messages("shared") == 1
    receiver.close()
    client.round_trip()
    query.run()
    assert query.output == numbers(7, 3)
    assert management.messages("shared") == 0


def test_a_queue_of_the_same_name_loses_nothing_that_was_not_read(
    broker: RunningBroker, client: BlockingClient, management: Management
) -> None:
    publish(broker.url, "reborn", *numbers(10))
    query = ConsumingQuery(broker.url, "reborn", 0, failOnDataLoss="false")
    query.run()
    management.delete_queue("reborn")
    publish(broker.url, "reborn", *numbers(5))
    query.run()
    assert query.output == [*numbers(10), *numbers(5)]
    assert management.messages("reborn") == 0


def test_a_failover_in_between_takes_nothing_that_was_not_kept(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form(0)
        urls = ",".join(cluster.urls)
        publish(urls, "q", *numbers(30))
        query = ConsumingQuery(urls, "q", 3)
        with pytest.raises(Died):
            query.run(10, risk=0.3)
        cluster.kill(0)
        cluster.promote(1)
        publish(urls, "q", *numbers(5, 30))
        query.run(10)
        with BlockingClient(cluster.urls[1]) as client:
            assert Management(client).messages("q") == 0
    assert query.output == numbers(35)


@pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"startingTimestamp": "1"}])
def test_messages_that_would_be_skipped_are_not_to_be_consumed(options: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="messages that were skipped would be consumed"):
        ConsumingQuery("amqp://127.0.0.1:1", "q", 0, **options)


def test_a_table_does_not_consume() -> None:
    options = ReadOptions.parse({"brokers": "amqp://127.0.0.1:1", "queue": "q", "consume": "true"})
    with pytest.raises(PipelineError, match="only a stream consumes"):
        AmqpReader(options, live_schema())


def test_with_spark_a_query_that_dies_in_each_batch_keeps_each_message_once(
    spark: SparkSession, broker: RunningBroker, management: Management, tmp_path: Path
) -> None:
    publish(broker.url, "spark-consume", *numbers(10))
    kept: dict[int, list[str]] = {}

    def keep(rows: DataFrame, number: int) -> None:
        is_first = number not in kept
        kept[number] = [row.body_text for row in rows.collect()]
        if is_first and number < 2:
            raise Died

    def run() -> Any:
        live = spark.readStream.format("qpid-amqp").options(brokers=broker.url, queue="spark-consume")
        live = live.options(consume="true", maxOffsetsPerTrigger="4", columns="body_text")
        return (
            live.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True).start().awaitTermination(LIMIT_S)
        )  # fmt: skip

    for _ in range(2):
        with pytest.raises(StreamingQueryException):
            run()
        assert management.messages("spark-consume") == 10 - 4 * (len(kept) - 1)
    run()
    assert [text for number in sorted(kept) for text in kept[number]] == numbers(10)
    assert management.messages("spark-consume") == 0, "the last batch, too"
