"""What clients saw of outages: times in which messages were sent, and none was confirmed to anybody.

Only messages that were confirmed in the end count: of one that was given up nobody knows for how long somebody waited.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

_BUCKETS: Final = 1000
_LONGEST: Final = 10


class ClientGap(NamedTuple):
    """Seconds by the clients' clock."""

    begin_s: float
    """The confirmation before, or when the first of those that waited was sent, whichever is later."""
    end_s: float
    """The next confirmation."""

    @property
    def seconds(self) -> float:
        """How long nobody heard anything."""
        return self.end_s - self.begin_s


def client_gaps(history: DataFrame, most: int = _LONGEST) -> list[ClientGap]:
    """The longest, longest first. `history`: see `history.SCHEMA`.

    Cost: a shuffle of the history by message id, and one of the messages by time. To the driver come a line for each of
    a thousand buckets of time, and the result.
    """
    messages = _messages(history).persist()
    try:
        ends = messages.agg(sql.min("confirmed_ms").alias("first"), sql.max("confirmed_ms").alias("last")).collect()[0]
        if ends["first"] is None:
            return []
        width_ms = max((ends["last"] - ends["first"]) / _BUCKETS, 1e-3)
        placed = messages.withColumn("bucket", sql.floor((sql.col("confirmed_ms") - ends["first"]) / width_ms))
        begin, end = sql.col("begin_ms"), sql.col("confirmed_ms")
        longest = _gaps(placed).where(end > begin).orderBy((end - begin).desc(), begin).limit(most)
        return [ClientGap(row.begin_ms / 1000, row.confirmed_ms / 1000) for row in longest.collect()]
    finally:
        messages.unpersist()


def _messages(history: DataFrame) -> DataFrame:
    """When each was sent for the first time, and when it was confirmed for the first time."""

    def first(op: str) -> Column:
        return sql.min(sql.when(sql.col("op") == op, sql.col("at_ms")))

    times = history.groupBy("id").agg(first("sent").alias("sent_ms"), first("accepted").alias("confirmed_ms"))
    return times.where("sent_ms <= confirmed_ms").select("sent_ms", "confirmed_ms")


def _gaps(placed: DataFrame) -> DataFrame:
    """For each confirmation since when somebody waited: since the one before, or since the oldest message was sent that
    was not confirmed before."""
    within = Window.partitionBy("bucket").orderBy("confirmed_ms")
    onward = within.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    previous = sql.coalesce(sql.lag("confirmed_ms").over(within), sql.col("previous_ms"))
    oldest = sql.least(sql.min("sent_ms").over(onward), sql.col("oldest_later_ms"))
    joined = placed.join(sql.broadcast(_around(placed)), "bucket")
    return joined.select(sql.greatest(previous, oldest).alias("begin_ms"), "confirmed_ms")


def _around(placed: DataFrame) -> DataFrame:
    """By bucket: the last confirmation in those before, and the oldest message in those behind."""
    buckets = placed.groupBy("bucket").agg(sql.max("confirmed_ms").alias("last"), sql.min("sent_ms").alias("oldest"))
    rows = sorted(buckets.collect())
    around, previous, oldest = [], None, None
    later: dict[int, float | None] = {}
    for bucket, _, oldest_here in reversed(rows):
        later[bucket] = oldest
        oldest = oldest_here if oldest is None else min(oldest, oldest_here)
    for bucket, last, _ in rows:
        around.append((bucket, previous, later[bucket]))
        previous = last
    schema = "bucket LONG, previous_ms DOUBLE, oldest_later_ms DOUBLE"
    return placed.sparkSession.createDataFrame(around, schema)
