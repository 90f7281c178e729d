"""Messages of a journal, sent again to a cluster: at least once, in the order of the log for each queue.

Several brokers' journals hold the same messages; each is sent once, to the queue of its name or to one address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from qpid_ha_pipeline.amqp.numbering import renumbered
from qpid_ha_pipeline.amqp.options import WriteOptions
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.amqp.publishing import Publisher, chunks_of
from qpid_ha_pipeline.errors import rows_told_plainly

COLUMNS = ("cluster", "broker", "set", "lsn", "event", "queue", "queue_id", "payload")


def replay(journal: DataFrame, options: WriteOptions) -> int:
    """Send the messages of `journal`, which has COLUMNS, to the `target`, else to their queues; returns how many.

    One task sends one queue. Raises PipelineError within what Spark makes of it, see `errors.reason_of`.
    """
    messages = journal.select(*COLUMNS).where("event = 'enqueued' and queue is not null")
    owner = sql.when(sql.col("lsn") < 0, sql.col("broker")).otherwise("")  # the numbers of brokers' own logs are theirs
    once = messages.withColumn("owner", owner).dropDuplicates(["cluster", "set", "owner", "lsn", "queue_id"])
    of_queue = ("cluster", "set", "owner", "queue_id")  # each log has ids of its own
    ordered = once.repartition(*of_queue).sortWithinPartitions(*of_queue, "lsn")

    @rows_told_plainly
    def sent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True))
        for queue, its_rows in groupby(rows, key=itemgetter(0)):
            count = _send((payload for _, payload in its_rows), options.target or queue, options)
            yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], ["count"])

    counts = ordered.select("queue", "payload").mapInArrow(sent, "count long").collect()
    return sum(row["count"] for row in counts)


def _send(payloads: Iterable[bytes], target: str, options: WriteOptions) -> int:
    """A chunk is taken as a whole or not at all: were only its middle refused, the order would be another one."""
    count = 0
    with PrimaryConnection(options.cluster) as primary:
        publisher = Publisher(primary, target, together=True)
        for chunk in chunks_of(map(renumbered, payloads)):
            publisher.deliver(chunk)
            count += len(chunk)
    return count
