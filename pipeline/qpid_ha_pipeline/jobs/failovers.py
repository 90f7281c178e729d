"""Who led when, how long nobody did, and how far replicas lagged behind: from the journals of all brokers of a cluster.

A generation begins in the log, and each broker notes when it wrote each block, by its own clock: times across brokers
are as good as those clocks agree. What a journal cannot tell is not guessed: when a primary died (only what it wrote
last), who noticed that when, and when clients were back (only what came of them first).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from .timeline import Generation, InSyncSetChange, Lag, Timeline

PERCENTILES = (0.5, 0.9, 0.99, 1.0)
COLUMNS = ("cluster", "broker", "set", "generation", "lsn", "local", "event", "written_at", "details")


def timelines(journal: DataFrame) -> list[Timeline]:
    """For each cluster in `journal`, which has COLUMNS. To the driver comes a line for each generation and change."""
    table = journal.select(*COLUMNS).where("not local")
    clusters: dict[str, dict[str, list[Any]]] = {}

    def sort_in(name: str, frame: DataFrame) -> None:
        for row in frame.collect():
            clusters.setdefault(row["cluster"] or "", {}).setdefault(name, []).append(row)

    for name, make in {"starts": _starts, "spans": _spans, "changes": _changes}.items():
        sort_in(name, make(table))
    memberships = {cluster: _memberships(parts.get("changes", [])) for cluster, parts in clusters.items()}
    sort_in("lags", _lags(table, memberships))
    return [_timeline(cluster, parts, memberships[cluster]) for cluster, parts in sorted(clusters.items())]


def _seconds(column: str) -> Column:
    return sql.unix_millis(sql.col(column)) / 1000


def _starts(table: DataFrame) -> DataFrame:
    """Each generation once, as the first broker wrote it."""
    found = table.where("event = 'generation_started'")
    return found.groupBy("cluster", "generation").agg(
        sql.min("lsn").alias("lsn"), sql.first("details").alias("details"), sql.min(_seconds("written_at")).alias("at")
    )


def _spans(table: DataFrame) -> DataFrame:
    """By broker and generation: how many events, the first that is of clients, and the last."""
    is_work = ~sql.col("event").isin("generation_started", "in_sync_changed", "transients_lost")
    return table.groupBy("cluster", "broker", "generation").agg(
        sql.countDistinct("lsn").alias("events"),
        sql.min(sql.when(is_work, _seconds("written_at"))).alias("first_work"),
        sql.min(sql.when(sql.col("event") == "enqueued", _seconds("written_at"))).alias("first_message"),
        sql.max(_seconds("written_at")).alias("last"),
    )


def _changes(table: DataFrame) -> DataFrame:
    """Each change of the in-sync set once, as the first broker wrote it."""
    found = table.where("event = 'in_sync_changed'")
    return found.groupBy("cluster", "lsn", "details").agg(sql.min(_seconds("written_at")).alias("at"))


def _memberships(changes: list[Any]) -> tuple[InSyncSetChange, ...]:
    """The same, for people."""
    return tuple(
        InSyncSetChange(row["at"], facts["epoch"], tuple(facts["members"]), row.lsn)
        for row in sorted(changes, key=lambda row: row.lsn)
        for facts in [json.loads(row.details)]
    )


def _in_sync(table: DataFrame, memberships: Mapping[str, Sequence[InSyncSetChange]]) -> DataFrame:
    """By broker, from which to which LSN it was in the in-sync set."""
    rows = [
        (cluster, broker, change.lsn, following.lsn - 1)
        for cluster, changes in memberships.items()
        for change, following in pairwise([*changes, _NEVER])
        for broker in change.members
    ]
    return table.sparkSession.createDataFrame(rows, "cluster STRING, broker STRING, joined LONG, left LONG")


_NEVER = InSyncSetChange(0.0, 0, (), (1 << 63) - 1)


def _lags(table: DataFrame, memberships: Mapping[str, Sequence[InSyncSetChange]]) -> DataFrame:
    """Primary and backup are told apart by who is named in the generation.

    Its first event is not waited for: the set that it has to do with comes right behind it.
    """
    primaries = table.where("event = 'generation_started'").select(
        "cluster", "generation", sql.get_json_object("details", "$.primary").alias("primary")
    )
    waited_for = table.where("event <> 'generation_started'")
    events = waited_for.select("cluster", "generation", "lsn", "broker", _seconds("written_at").alias("at")).distinct()
    led = events.join(sql.broadcast(primaries.distinct()), ["cluster", "generation"])
    by_primary = led.where("broker = primary").select("cluster", "generation", "lsn", sql.col("at").alias("led_at"))
    by_backup = led.where("broker <> primary").select("cluster", "generation", "lsn", "broker", "at")
    pairs = by_primary.join(by_backup, ["cluster", "generation", "lsn"]).withColumn("lag", sql.expr("at - led_at"))
    stays = sql.broadcast(_in_sync(table, memberships)).alias("stays")
    is_within = sql.expr(
        "pairs.cluster <=> stays.cluster and pairs.broker = stays.broker and lsn between joined and left"
    )
    told = pairs.alias("pairs").join(stays, is_within, "left").withColumn("in_time", sql.col("joined").isNotNull())
    return told.groupBy("pairs.cluster", "pairs.broker").agg(
        sql.count_if("in_time").alias("events"),
        sql.percentile_approx(sql.when(sql.col("in_time"), sql.col("lag")), list(PERCENTILES), 10_000).alias(
            "percentiles"
        ),
        sql.count_if(~sql.col("in_time")).alias("late_events"),
    )


def _timeline(cluster: str, parts: dict[str, list[Any]], memberships: tuple[InSyncSetChange, ...]) -> Timeline:
    spans = {(row.broker, row.generation): row for row in parts.get("spans", [])}
    generations: list[Generation] = []
    for row in sorted(parts.get("starts", []), key=lambda row: row.generation):
        generations.append(_generation(row, spans, generations[-1] if generations else None))
    lags = [
        Lag(row.broker, row.events, tuple(row.percentiles or ()), row.late_events)
        for row in sorted(parts.get("lags", []), key=lambda row: str(row.broker))
    ]
    return Timeline(cluster, tuple(generations), memberships, tuple(lags))


def _generation(row: Any, spans: dict[tuple[str, int], Any], before: Generation | None) -> Generation:
    facts = json.loads(row.details)
    number, primary = row.generation, facts["primary"]
    # Where the primary's own journal is not among these, another broker's word has to do.
    span = spans.get((primary, number)) or next(span for key, span in sorted(spans.items()) if key[1] == number)
    started = facts["started_at_ms"] / 1000 if facts["started_at_ms"] else row["at"]
    work = max(started, span.first_work or started)
    return Generation(
        number, primary, facts["cause"], facts["forced"], row.lsn, started, max(span["last"], started), span.events,
        max(0.0, started - before.last_s) if before is not None else 0.0,
        work - started if before is not None else 0.0,
        None if before is None or span.first_message is None else max(0.0, span.first_message - work),
    )  # fmt: skip
