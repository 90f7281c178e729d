"""A stream that reads a live queue while a publisher fills it: whether it keeps up, and how far behind it commits."""

from __future__ import annotations

import json
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from bench.figures import Measurement
from bench.load_client import BenchError, LoadConnection, Publisher
from bench.pipeline_growth import bench_session
from bench.scenario import Measure, Scenario, fresh_broker
from bench.throughput import QUEUE, fill, message
from bench.usage import Usage
from qpid_ha_pipeline.amqp.brokers import Cluster, read_brokers
from qpid_ha_pipeline.amqp.browsing import LiveQueue, QueuePlace
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from running_broker import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SIZE, PIECES_PER_S, PATIENCE_S = 100, 100, 60.0
MOST_ROWS = 100_000
"""In a batch: it is not to be one batch that warms everything up."""


class SteadyLoad(threading.Thread):
    """Publishes so many messages a second, in small pieces; `confirmed` says when how many were confirmed."""

    def __init__(self, port: int, rate: int, duration_s: float) -> None:
        super().__init__(daemon=True)
        self._port, self._rate, self._duration_s = port, rate, duration_s
        self.confirmed: list[tuple[int, float]] = []
        """Messages, and the time of day in seconds."""
        self.problem: BenchError | None = None

    def run(self) -> None:
        """The thread's."""
        try:
            with LoadConnection(self._port) as connection:
                self._publish(connection, Publisher(connection, QUEUE))
        except BenchError as error:
            self.problem = error

    def _publish(self, connection: LoadConnection, publisher: Publisher) -> None:
        payload, began = message(SIZE), time.monotonic()
        total = int(self._rate * self._duration_s)
        sent = done = 0
        while done < total:
            due = min(int((time.monotonic() - began) * self._rate), total)
            if due > sent and publisher.credit:
                count = min(due - sent, publisher.credit)
                publisher.send(payload, count)
                sent += count
                connection.flush()
            if sent > done:
                connection.read()
                done += publisher.confirmed()
                connection.flush()
                self.confirmed.append((done, time.time()))
            else:
                time.sleep(1 / PIECES_PER_S)

    def time_of(self, number: int) -> float:
        """When the message with that number, from 1, was confirmed."""
        at = bisect_left(self.confirmed, (number, 0.0))
        return self.confirmed[min(at, len(self.confirmed) - 1)][1]


def measure_stream(scenario: Scenario) -> Iterator[Measurement]:
    """The publisher at its pace, and a stream with the trigger that Spark has by default."""
    with bench_session() as spark, fresh_broker() as broker:
        fill(broker.port, scenario.messages // 4, SIZE)
        query = start_query(spark, broker)
        try:
            query.processAllAvailable()  # Spark compiles, and starts its workers
            yield from _measure_query(query, broker, scenario)
        finally:
            query.stop()


def start_query(spark: SparkSession, broker: RunningBroker) -> StreamingQuery:
    """It reads everything, and writes nothing anywhere."""
    live = spark.readStream.format("qpid-amqp").options(
        brokers=broker.url, queue=QUEUE, columns="message_id,body", maxOffsetsPerTrigger=MOST_ROWS
    )
    return live.load().writeStream.format("noop").start()


def _measure_query(query: StreamingQuery, broker: RunningBroker, scenario: Scenario) -> Iterator[Measurement]:
    before = _end(query.recentProgress[-1])
    load = SteadyLoad(broker.port, scenario.stream_rate, scenario.stream_s)
    batches: dict[int, Mapping[str, Any]] = {}
    with Usage(broker.pid) as usage:
        load.start()
        load.join()
        if load.problem is not None:
            raise load.problem
        published_s = load.confirmed[-1][1] - load.confirmed[0][1]
        total = load.confirmed[-1][0]
        deadline = time.monotonic() + PATIENCE_S
        while _rows(batches, before) < total:
            batches |= {progress["batchId"]: progress for progress in query.recentProgress}
            if time.monotonic() > deadline:
                raise BenchError(f"the stream has read {_rows(batches, before)} of {total} messages")
            time.sleep(0.05)
    found = sorted((each for each in batches.values() if _end(each) > before), key=_end)
    ages = [_committed_at(batch) - load.time_of(_start(batch) - before + 1) for batch in found]
    if len(found) > 1:  # between the first commit and the last: what comes before and after is the lag, told below
        rate = (_end(found[-1]) - _end(found[0])) / (_committed_at(found[-1]) - _committed_at(found[0]))
    else:
        rate = total / (_committed_at(found[0]) - load.confirmed[0][1])
    published = f"published {total / max(published_s, 0.001):,.0f}/s"
    note = f"{len(found)} batches; {published}; {usage.note_for(total)}"
    yield Measurement("amqp_stream_rate", "live queue into a stream", rate, "/s", note)
    note = f"median; {min(ages):.2f} to {max(ages):.2f} s: age of the oldest row of a batch when that is committed"
    yield Measurement("amqp_stream_lag", "a stream's commits are behind", statistics.median(ages), "s", note)


def _rows(batches: Mapping[int, Mapping[str, Any]], before: int) -> int:
    return sum(batch["numInputRows"] for batch in batches.values() if _end(batch) > before)


def _start(progress: Mapping[str, Any]) -> int:
    return _message_id(progress, "startOffset")


def _end(progress: Mapping[str, Any]) -> int:
    return _message_id(progress, "endOffset")


def _message_id(progress: Mapping[str, Any], which: str) -> int:
    """On a broker that does nothing else, one message's id is one more than that of the message before."""
    offset = progress["sources"][0][which]
    found = json.loads(offset) if isinstance(offset, str) else offset
    return int(found[QUEUE]["message_id"]) if found else 0


def _committed_at(progress: Mapping[str, Any]) -> float:
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
    return began + float(progress["durationMs"]["triggerExecution"]) / 1000


def measure_client(scenario: Scenario) -> Iterator[Measurement]:
    """What the stream's client alone can read, without Spark."""
    with fresh_broker() as broker:
        fill(broker.port, scenario.messages, SIZE)
        with PrimaryConnection(Cluster(read_brokers(broker.url)[0])) as primary, Usage(broker.pid) as usage:
            queue = LiveQueue(primary, QUEUE)
            facts = queue.facts()
            count = sum(len(chunk.ids) for chunk in queue.between(QueuePlace.at(facts, 0), facts.newest_message))
        if count != scenario.messages:
            raise BenchError(f"{count} messages were read, of {scenario.messages}")
    rate = count / usage.elapsed_s
    yield Measurement("amqp_stream_client", "its client alone, 100 B", rate, "/s", usage.note_for(count))


LIVE_MEASURES: Mapping[str, Measure] = {"amqp-stream": measure_stream, "amqp-stream-client": measure_client}
