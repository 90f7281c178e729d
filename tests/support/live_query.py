"""What Spark does with a stream's reader, without Spark; and messages in queues, without a client's comforts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import proton
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from qpid_ha_pipeline.amqp.brokers import Cluster, read_brokers
from qpid_ha_pipeline.amqp.options import ReadOptions
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.amqp.publishing import Publisher
from qpid_ha_pipeline.amqp.rows import live_schema
from qpid_ha_pipeline.amqp_stream import AmqpStreamReader, Offsets

ALL = ReadAllAvailable()
TIMEOUT = "20s"


class LiveQuery:
    """Micro-batches, offsets that go through JSON, readers that go through pickle, restarts from a checkpoint."""

    def __init__(self, url: str, queue: str, **options: str) -> None:
        given = {"brokers": url, "queue": queue, "columns": "message_id,body_text", "failoverTimeout": TIMEOUT}
        self._given = {**given, **options}
        self.restart()
        self.offset: Offsets = _kept(self.reader.initialOffset())

    def restart(self) -> None:
        """As a new process."""
        options = ReadOptions.parse(self._given)
        self.reader = AmqpStreamReader(options, live_schema(options.columns))

    def batch(self, limit: ReadLimit = ALL) -> list[Any]:
        """The texts of one micro-batch."""
        end = _kept(self.reader.latestOffset(self.offset, limit))
        found = list(self.read(self.offset, end))
        self.offset = end
        return found

    def read(self, start: Offsets, end: Offsets, column: str = "body_text") -> Iterator[Any]:
        """Between two offsets, as after a failure."""
        for part in self.reader.partitions(start, end):
            for batch in pickle.loads(pickle.dumps(self.reader)).read(part):
                yield from batch.column(column).to_pylist()


def _kept(offset: Offsets) -> Offsets:
    found: Offsets = json.loads(json.dumps(offset))
    return found


def cluster_of(url: str, timeout_s: float = 20.0) -> Cluster:
    """As the options make it."""
    return Cluster(read_brokers(url)[0], failover_timeout_s=timeout_s)


def publish(url: str, queue: str, *texts: str, size: int = 0) -> None:
    """Come back when all are confirmed. `size`: pad the text to so many characters."""
    with PrimaryConnection(cluster_of(url)) as primary:
        sender = Publisher(primary, queue, together=False)
        for start in range(0, len(texts), 1000):
            sender.deliver([_encoded(text, size) for text in texts[start : start + 1000]])


def _encoded(text: str, size: int) -> bytes:
    message: Any = proton.Message(text.ljust(size, "."), durable=True)
    return bytes(message.encode())


def numbers(count: int, start: int = 0) -> list[str]:
    """Texts that differ."""
    return [str(number) for number in range(start, start + count)]
