"""Did every confirmed message arrive, once and in order? Clients' histories and journals, laid side by side.

The terms are those of Jepsen's total-queue checker. A history is rows of what a client did and saw, in any format that
Spark reads; it knows nothing of brokers, so it cannot be kind to them:

| column | |
| --- | --- |
| `op` | `sent`, `accepted`, `rejected`, `unknown` (of a publisher), `received` (of a consumer) |
| `id` | of the message: its AMQP message-id, which the journal has, too |
| `client`, `queue` | who, and where |
| `number` | of a publisher's messages, ascending; null of a consumer |
| `at_ms` | when, by the client's clock |
| `marked` | of `received`: the broker said that somebody may have had it before |
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

HISTORY_COLUMNS: Final = ("op", "id", "client", "queue", "number", "at_ms", "marked")
JOURNAL_COLUMNS: Final = (
    "cluster", "broker", "set", "lsn", "event", "queue", "queue_id", "message_id", "reason", "amqp_message_id",
    "discarded", "file", "offset",
)  # fmt: skip
BROKEN: Final = ("lost", "duplicated", "unexpected", "disordered")
"""Each of these is a broken promise."""


class Audit(NamedTuple):
    """Counts of messages; `evidence` has a row for each broken promise and each place in a journal that tells of it."""

    attempts: int
    confirmed: int
    rejected: int
    delivered: int
    waiting: int
    """Confirmed, and still in a queue."""
    recovered: int
    """Delivered, although nobody was told that it is safe."""
    redelivered: int
    """Copies that the broker itself said may be copies."""
    lost: int
    discarded: int
    """Those of the lost that a branch of the log holds with which the cluster did not go on."""
    duplicated: int
    """Copies of which nobody warned."""
    unexpected: int
    """Delivered, and never sent."""
    disordered: int
    """Delivered after a later one of the same publisher on the same queue."""
    evidence: DataFrame

    @property
    def is_flawless(self) -> bool:
        """No promise is broken."""
        return not any(getattr(self, name) for name in BROKEN)

    def counts(self) -> dict[str, int]:
        """All but the evidence."""
        return {name: value for name, value in self._asdict().items() if name != "evidence"}


def audit(history: DataFrame, journal: DataFrame, discarded: DataFrame | None = None) -> Audit:
    """`history` has HISTORY_COLUMNS, `journal` JOURNAL_COLUMNS: each event of the log that counts, once. `discarded`:
    the same of branches that do not count (`replicas=discarded`). To the driver come the counts alone.

    Cost: a shuffle of the history and of the messages' rows in the journal, by message id.
    """
    history = history.select(*HISTORY_COLUMNS)
    journal = journal.select(*JOURNAL_COLUMNS)
    branches = journal.limit(0) if discarded is None else discarded.select(*JOURNAL_COLUMNS)
    held = branches.where("event = 'enqueued'").select(sql.col("amqp_message_id").alias("id")).distinct()
    messages = (
        _by_message(history)
        .join(_waiting(journal), "id", "left")
        .join(_disordered(history), "id", "left")
        .join(held.withColumn("is_in_branch", sql.lit(True)), "id", "left")
    )
    judged = messages.select("*", *(condition.alias(name) for name, condition in _verdicts().items())).persist()
    try:
        counts = judged.agg(*(
            sql.coalesce(sql.sum(sql.col(name).cast("long")), sql.lit(0)).alias(name)
            for name in Audit._fields if name != "evidence"
        )).collect()[0].asDict()  # fmt: skip
        bad = _bad(judged, sum(counts[name] for name in BROKEN))
        return Audit(**counts, evidence=_evidence(bad, journal.unionByName(branches)))
    finally:
        judged.unpersist()


def _is(op: str) -> Column:
    return sql.col("op") == op


def _by_message(history: DataFrame) -> DataFrame:
    """One row for each message; of each receipt it is known which one it was."""
    receipts = Window.partitionBy("id", "op").orderBy("at_ms")
    marked = sql.coalesce(sql.col("marked"), sql.lit(False))
    is_copy = _is("received") & (sql.col("place") > 1)
    return (
        history.withColumn("place", sql.row_number().over(receipts))
        .groupBy("id")
        .agg(
            sql.max(sql.when(_is("sent"), sql.col("client"))).alias("publisher"),
            sql.max("queue").alias("queue"),
            sql.count_if(_is("sent")).alias("sendings"),
            sql.count_if(_is("accepted")).alias("acceptances"),
            sql.count_if(_is("rejected")).alias("rejections"),
            sql.count_if(_is("received")).alias("receipts"),
            sql.count_if(is_copy & marked).alias("redelivered"),
            sql.count_if(is_copy & ~marked).alias("copies"),
        )
        .withColumn("duplicated", sql.when(sql.col("sendings") <= 1, sql.col("copies")).otherwise(0))
    )


def _waiting(journal: DataFrame) -> DataFrame:
    """Messages that some queue still has, by their AMQP message-id."""
    queue, message = [*_LOG, "queue_id"], [*_LOG, "queue_id", "message_id"]
    events = journal.withColumn("owner", _owner())
    gone = events.where("event = 'dequeued'").select(*message).distinct().withColumn("is_gone", sql.lit(True))
    deleted = events.where("event = 'queue_deleted'").select(*queue).distinct().withColumn("is_deleted", sql.lit(True))
    emptied = events.where("event = 'replication_changed'").groupBy(*queue).agg(sql.max("lsn").alias("emptied_at"))
    enqueued = events.where("event = 'enqueued' and amqp_message_id is not null")
    left = enqueued.join(gone, message, "left").join(sql.broadcast(deleted), queue, "left")
    copies = left.join(sql.broadcast(emptied), queue, "left")
    was_emptied = sql.col("message_id").between(0, sql.coalesce(sql.col("emptied_at"), sql.lit(-1)))
    is_here = sql.col("is_gone").isNull() & sql.col("is_deleted").isNull() & ~was_emptied
    return copies.groupBy(sql.col("amqp_message_id").alias("id")).agg(sql.bool_or(is_here).alias("is_here"))


_LOG: Final = ("cluster", "set", "owner")


def _owner() -> Column:
    """Whose log it is: of a queue that a broker keeps for itself its own, and else the one that all replicate."""
    return sql.when(sql.col("queue_id") < 0, sql.col("broker")).otherwise("")


def _disordered(history: DataFrame) -> DataFrame:
    """Messages whose first receipt came after that of a later one. One that was refused first may well be late."""
    sent = history.where(_is("sent")).groupBy("id").agg(
        sql.min("number").alias("number"), sql.max("client").alias("publisher")
    )  # fmt: skip
    refused = history.where(_is("rejected")).select("id").distinct()
    received = history.where(_is("received")).groupBy("id", "queue").agg(sql.min("at_ms").alias("at_ms"))
    first = received.join(sent, "id").join(refused, "id", "left_anti").where("number is not null")
    before = Window.partitionBy("publisher", "queue").orderBy("at_ms", "number").rowsBetween(
        Window.unboundedPreceding, -1
    )  # fmt: skip
    late = first.withColumn("highest", sql.max("number").over(before)).where("number < highest")
    return late.select("id").distinct().withColumn("is_late", sql.lit(True))


def _verdicts() -> dict[str, Column]:
    attempted, confirmed = sql.col("sendings") > 0, sql.col("acceptances") > 0
    delivered, here = sql.col("receipts") > 0, sql.coalesce(sql.col("is_here"), sql.lit(False))
    lost = confirmed & ~delivered & ~here
    return {
        "attempts": attempted,
        "confirmed": confirmed,
        "rejected": (sql.col("rejections") > 0) & ~confirmed,
        "delivered": delivered,
        "waiting": confirmed & ~delivered & here,
        "recovered": attempted & ~confirmed & delivered,
        "lost": lost,
        "discarded": lost & sql.coalesce(sql.col("is_in_branch"), sql.lit(False)),
        "unexpected": ~attempted & delivered,
        "disordered": sql.coalesce(sql.col("is_late"), sql.lit(False)),
    }


def _bad(judged: DataFrame, promises: int) -> DataFrame:
    """The messages of which a promise is broken. `promises`: how many that are; without any, nobody is looked for.

    They stay cached as long as the session, and so does the evidence: few of what all was counted from, which is
    forgotten.
    """
    broken = sql.concat_ws(", ", *(
        sql.when(sql.col(name).cast("long") > 0, sql.lit(name)) for name in BROKEN
    ))  # fmt: skip
    bad = judged.withColumn("verdict", broken).where("verdict <> ''").select(
        "verdict", "id", "publisher", sql.col("queue").alias("sent_to"), "sendings", "acceptances", "receipts"
    )  # fmt: skip
    if not promises:
        return bad.where(sql.lit(False))
    bad = bad.persist()
    bad.count()  # while what it is found in is cached, too
    return bad


def _evidence(bad: DataFrame, journal: DataFrame) -> DataFrame:
    """What each journal says about the messages of which a promise is broken."""
    enqueued = journal.where("event = 'enqueued'").select(
        "cluster", "broker", "set", "queue", "queue_id", "message_id", "discarded", "file", "offset",
        sql.col("amqp_message_id").alias("id"), _owner().alias("owner"),
    )  # fmt: skip
    message = [*_LOG, "queue_id", "message_id", "discarded"]
    dequeued = journal.where("event = 'dequeued'").withColumn("owner", _owner())
    gone = dequeued.select(*message, sql.col("lsn").alias("dequeued_lsn"), "reason")
    copies = enqueued.join(bad.select("id").distinct(), "id", "left_semi").join(gone, message, "left").drop("owner")
    return bad.join(copies, "id", "left").orderBy("verdict", "id", "broker").persist()
