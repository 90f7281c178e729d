"""What went through queues over time: messages and bytes in and out, depth, and latency, from a journal.

Spark does the sums; to the driver come buckets of time, and of queues those with the most, however many there are and
however long they ran. A message is known by its id in its queue, which the events of its coming and going share.

1. Rows without a time are of a snapshot, or their beginning lies before the journal: they count to the depth at the
   beginning, and to nothing else. So does a message of which the journal has only the end.
2. What came before `since_s` counts to the depth at the beginning, and what came behind `until_s` not at all.
3. A queue that was deleted took its messages with it: they go at that moment, and were not consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import floor, inf
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from qpid_ha_pipeline.journal.stores import default_first

from .drawing import STEPS_S

COLUMNS: Final = (
    "cluster", "set", "broker", "local", "event", "queue", "queue_id", "message_id", "written_at", "reason", "size",
)  # fmt: skip
MOST_BUCKETS: Final = 120
SHOWN_QUEUES: Final = 8
"""Of each kind of series; the rest are the others."""
LISTED_QUEUES: Final = 10
PERCENTILES: Final = (0.5, 0.9, 0.99, 1.0)
_ACCURACY: Final = 10_000
_FLOWS: Final = ("messages_in", "messages_out", "bytes_in", "bytes_out")
_LOG: Final = ("cluster", "set")
_QUEUE: Final = (*_LOG, "queue")
_MESSAGE: Final = (*_LOG, "owner", "queue_id", "message_id")
"""`owner`: the broker whose own queue it is, in which ids are those of its own log; empty: it is the cluster's."""


class Buckets(NamedTuple):
    """Equal pieces of time; seconds since the epoch."""

    begin_s: float
    width_s: float
    number: int

    @property
    def end_s(self) -> float:
        """Where the last one ends."""
        return self.begin_s + self.number * self.width_s


class Flow(NamedTuple):
    """Of a queue, or of several: a value for each bucket."""

    messages_in: tuple[float, ...]
    messages_out: tuple[float, ...]
    bytes_in: tuple[float, ...]
    bytes_out: tuple[float, ...]
    depth: tuple[float, ...]
    """Messages at the end of the bucket."""
    depth_bytes: tuple[float, ...]


class QueueTotals(NamedTuple):
    """Of one queue, over all the time."""

    queue: str
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    first_depth: int
    last_depth: int
    highest_depth: int
    """At the beginning, or at the end of a bucket."""
    consumed: int
    latencies_s: tuple[float, ...]
    """PERCENTILES of the time from enqueue to dequeue, of messages that were consumed; empty: there were none."""


class Activity(NamedTuple):
    """Of one resource set of a cluster."""

    cluster: str
    set: str
    buckets: Buckets
    queue_count: int
    total: Flow
    queues: dict[str, Flow]
    """Of those that are among the SHOWN_QUEUES by messages, by depth or by bytes."""
    latencies_s: tuple[tuple[float, ...], ...]
    """PERCENTILES of what was consumed in each bucket; empty: nothing was."""
    by_messages: tuple[QueueTotals, ...]
    by_depth: tuple[QueueTotals, ...]
    by_bytes: tuple[QueueTotals, ...]


def activities(journal: DataFrame, since_s: float = -inf, until_s: float = inf) -> list[Activity]:
    """Of each resource set of each cluster in `journal`, which has COLUMNS, each event once. All share the
    same buckets.

    Cost: a shuffle of messages by id, then sums. To the driver come MOST_BUCKETS rows for each of some queues.
    """
    messages = _messages(journal.select(*COLUMNS)).persist()
    try:
        buckets = _buckets(messages, since_s, until_s)
        if buckets is None:
            return []
        flows = _flows(messages, buckets).persist()
        try:
            return _activities(messages, flows, buckets)
        finally:
            flows.unpersist()
    finally:
        messages.unpersist()


def _messages(journal: DataFrame) -> DataFrame:
    """A row for each message in a queue: when it came and went (seconds; null: before, or not yet), its size, and
    whether it was consumed."""
    at = (sql.unix_micros("written_at") / 1e6).alias("at")
    log = [sql.coalesce(name, sql.lit("")).alias(name) for name in _LOG]
    owner = sql.when(sql.col("local"), sql.col("broker")).otherwise("").alias("owner")
    rows = journal.select(*log, owner, "event", "queue", "queue_id", "message_id", at, "reason", "size")
    key = list(_MESSAGE)
    is_in, is_out = sql.col("event") == "enqueued", sql.col("event") == "dequeued"
    messages = rows.where(is_in | is_out).groupBy(*key).agg(
        sql.first("queue", ignorenulls=True).alias("queue"),
        sql.min(sql.when(is_in, sql.col("at"))).alias("came"),
        sql.min(sql.when(is_out, sql.col("at"))).alias("went"),
        sql.max(sql.when(is_in, sql.col("size"))).alias("size"),
        sql.bool_or(is_out & (sql.col("reason") == "consumed")).alias("is_consumed"),
    )  # fmt: skip
    deleted = rows.where("event = 'queue_deleted'").groupBy(*key[:4]).agg(sql.min("at").alias("deleted"))
    joined = messages.join(sql.broadcast(deleted), key[:4], "left")
    name = sql.coalesce("queue", sql.concat(sql.lit("queue "), sql.col("queue_id").cast("string"))).alias("queue")
    went, size = sql.coalesce("went", "deleted").alias("went"), sql.coalesce("size", sql.lit(0)).alias("size")
    return joined.select(*_LOG, name, "came", went, size, "is_consumed")


def _buckets(messages: DataFrame, since_s: float, until_s: float) -> Buckets | None:
    """As wide as it takes for at most MOST_BUCKETS, at round times. None: no message came or went."""
    ends = messages.agg(sql.min(sql.least("came", "went")), sql.max(sql.greatest("came", "went"))).collect()[0]
    if ends[0] is None:
        return None
    begin_s, end_s = max(ends[0], since_s), min(ends[1], until_s)
    return buckets_of(begin_s, end_s) if begin_s <= end_s else None


def buckets_of(begin_s: float, end_s: float) -> Buckets:
    """Buckets that hold both times; `_bucket` reckons in the same way."""
    for width_s in (*STEPS_S, max(end_s - begin_s, 1.0) / (MOST_BUCKETS - 2)):
        first_s = min(floor(begin_s / width_s) * width_s, begin_s)  # 0.35 / 0.01 * 0.01 is more than 0.35
        number = floor((end_s - first_s) / width_s) + 1
        if number <= MOST_BUCKETS:
            break
    return Buckets(first_s, width_s, number)


def _bucket(moment: Column, buckets: Buckets) -> Column:
    """Its number; -1: before the first, or at no time that is known; null: behind the last."""
    number = sql.floor((moment - buckets.begin_s) / buckets.width_s)
    in_time = sql.when(number < 0, -1).when(number < buckets.number, number)
    return sql.when(moment.isNull(), -1).otherwise(in_time).cast("int")


def _flows(messages: DataFrame, buckets: Buckets) -> DataFrame:
    """By queue and bucket; that of bucket -1 is what was there at the beginning: what had come less what had gone."""
    went = sql.when(sql.col("went").isNotNull(), _bucket(sql.col("went"), buckets))
    moves = sql.explode(sql.array(
        sql.struct(_bucket(sql.col("came"), buckets).alias("bucket"), sql.lit(True).alias("is_in")),
        sql.struct(went.alias("bucket"), sql.lit(False).alias("is_in")),
    )).alias("move")  # fmt: skip
    rows = messages.select(*_QUEUE, "size", moves).where("move.bucket is not null")
    is_in = sql.col("move.is_in")
    return rows.groupBy(*_QUEUE, sql.col("move.bucket").alias("bucket")).agg(
        sql.count_if(is_in).alias("messages_in"),
        sql.count_if(~is_in).alias("messages_out"),
        sql.sum(sql.when(is_in, sql.col("size")).otherwise(0)).alias("bytes_in"),
        sql.sum(sql.when(~is_in, sql.col("size")).otherwise(0)).alias("bytes_out"),
    )  # fmt: skip


def _activities(messages: DataFrame, flows: DataFrame, buckets: Buckets) -> list[Activity]:
    latencies = _consumed(messages, buckets)
    totals = _totals(flows).join(_percentiles(latencies, *_QUEUE), list(_QUEUE), "left")
    ranked = _ranked(totals)
    names = sorted({_queue_of(row) for row in ranked if _is_shown(row)})
    spark = messages.sparkSession
    shown = sql.broadcast(spark.createDataFrame(names, ", ".join(f"{name} STRING" for name in _QUEUE)))
    parts: dict[tuple[str, str, str | None], list[Any]] = {}
    for row in flows.join(shown, list(_QUEUE), "left_semi").collect():
        parts.setdefault(_queue_of(row), []).append(row)
    sums = [sql.sum(name).alias(name) for name in _FLOWS]
    for row in flows.groupBy(*_LOG, "bucket").agg(*sums).collect():
        parts.setdefault((row.cluster, row["set"], None), []).append(row)
    by_bucket = {
        (row.cluster, row["set"], row.bucket): tuple(row.percentiles)
        for row in _percentiles(latencies, *_LOG, "bucket").collect()
    }
    counts = totals.groupBy(*_LOG).count().collect()
    return [
        Activity(
            *log, buckets, count, _flow(parts[*log, None], buckets),
            {queue: _flow(parts[*log, queue], buckets) for *of_log, queue in names if tuple(of_log) == log},
            tuple(by_bucket.get((*log, place), ()) for place in range(buckets.number)),
            *(_list(ranked, log, place) for place in _PLACES),
        )
        for *words, count in sorted(counts, key=lambda row: (default_first(row[1]), row[0]))
        for log in [(words[0], words[1])]
    ]  # fmt: skip


def _queue_of(row: Any) -> tuple[str, str, str]:
    return row["cluster"], row["set"], row["queue"]


def _consumed(messages: DataFrame, buckets: Buckets) -> DataFrame:
    consumed = messages.where("is_consumed and came is not null and went is not null")
    bucket = _bucket(sql.col("went"), buckets)
    return consumed.select(*_QUEUE, bucket.alias("bucket"), sql.expr("went - came").alias("latency")).where(
        "bucket >= 0"
    )


def _percentiles(latencies: DataFrame, *by: str) -> DataFrame:
    return latencies.groupBy(*by).agg(
        sql.count(sql.lit(1)).alias("consumed"),
        sql.percentile_approx("latency", list(PERCENTILES), _ACCURACY).alias("percentiles"),
    )


def _totals(flows: DataFrame) -> DataFrame:
    """By queue, with the depth after each bucket that changed it."""
    net = sql.col("messages_in") - sql.col("messages_out")
    onward = Window.partitionBy(*_QUEUE).orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    in_time = sql.col("bucket") >= 0
    return flows.withColumn("depth", sql.sum(net).over(onward)).groupBy(*_QUEUE).agg(
        *(sql.coalesce(sql.sum(sql.when(in_time, sql.col(name))), sql.lit(0)).alias(name) for name in _FLOWS),
        sql.coalesce(sql.sum(sql.when(~in_time, net)), sql.lit(0)).alias("first_depth"),
        sql.sum(net).alias("last_depth"),
        sql.max("depth").alias("highest_depth"),
    )  # fmt: skip


_PLACES: Final = {
    "by_messages": ("messages_in", "messages_out"),
    "by_depth": ("highest_depth",),
    "by_bytes": ("bytes_in", "bytes_out"),
}


def _ranked(totals: DataFrame) -> list[Any]:
    """The queues that are among the first LISTED_QUEUES by any measure, with their places."""
    for place, names in _PLACES.items():
        measure = sum((sql.col(name) for name in names[1:]), sql.col(names[0]))
        order = Window.partitionBy(*_LOG).orderBy(measure.desc(), "queue")
        totals = totals.withColumn(place, sql.row_number().over(order))
    return totals.where(sql.least(*_PLACES) <= max(LISTED_QUEUES, SHOWN_QUEUES)).collect()


def _is_shown(row: Any) -> bool:
    return any(row[place] <= SHOWN_QUEUES for place in _PLACES)


def _list(ranked: Iterable[Any], log: tuple[str, str], place: str) -> tuple[QueueTotals, ...]:
    rows = [row for row in ranked if (row["cluster"], row["set"]) == log and row[place] <= LISTED_QUEUES]
    return tuple(
        QueueTotals(
            row.queue, int(row.messages_in), int(row.messages_out), int(row.bytes_in), int(row.bytes_out),
            int(row.first_depth), int(row.last_depth), int(row.highest_depth), row.consumed or 0,
            tuple(row.percentiles or ()),
        )
        for row in sorted(rows, key=lambda row: int(row[place]))
    )  # fmt: skip


def _flow(rows: Sequence[Any], buckets: Buckets) -> Flow:
    """`rows`: those of one queue, or of all."""
    values = {name: [0.0] * buckets.number for name in _FLOWS}
    depth, depth_bytes = 0.0, 0.0
    for row in rows:
        if row.bucket < 0:
            depth, depth_bytes = float(row.messages_in - row.messages_out), float(row.bytes_in - row.bytes_out)
        else:
            for name in _FLOWS:
                values[name][row.bucket] = float(row[name])
    return Flow(
        tuple(values["messages_in"]), tuple(values["messages_out"]), tuple(values["bytes_in"]),
        tuple(values["bytes_out"]), _sums(depth, values["messages_in"], values["messages_out"]),
        _sums(depth_bytes, values["bytes_in"], values["bytes_out"]),
    )  # fmt: skip


def _sums(first: float, added: Sequence[float], taken: Sequence[float]) -> tuple[float, ...]:
    changes = (plus - minus for plus, minus in zip(added, taken, strict=True))
    return tuple(accumulate(changes, initial=first))[1:]
