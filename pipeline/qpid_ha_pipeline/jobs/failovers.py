"""Who led when, how long nobody did, and how far replicas lagged behind: from the journals of all brokers of a cluster,
for each resource set of its own.

A generation begins in the log, and each broker notes when it wrote each block, by its own clock: times across brokers
are as good as those clocks agree. What a journal cannot tell is not guessed: when a primary died (only what it wrote
last), who noticed that when, and when clients were back (only what came of them first). So an outage has bounds; the
state changes that brokers reported (`state_changes`) bring them closer together. `timeline` has the sums.

A group has no primary, so neither backups that lag behind one nor failovers: its changes are told instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from qpid_ha_broker.events.layout import RecordKind
from qpid_ha_broker.events.types import MEMBERS_CHANGED
from qpid_ha_pipeline.journal.stores import default_first

from .state_changes import LINK_TIMEOUT_S, StateChange, narrowed
from .timeline import BoundSource, Generation, InSyncSetChange, Lag, Sign, Timeline

PERCENTILES = (0.5, 0.9, 0.99, 1.0)
COLUMNS = ("cluster", "broker", "set", "generation", "lsn", "local", "event", "written_at", "details")
Log = tuple[str, str]
"""Cluster and resource set."""
_LOG = ("cluster", "set")
_OWN_EVENTS = (
    "generation_started", "in_sync_changed", "transients_lost", "handed_out",
    *(kind.name.lower() for kind in RecordKind if 0x50 <= kind <= 0x5F),
)  # fmt: skip
"""What brokers write for themselves: about the set, and in `default` about the cluster map."""


def timelines(
    journal: DataFrame, changes: Sequence[StateChange] = (), link_timeout_s: float = LINK_TIMEOUT_S
) -> list[Timeline]:
    """For each resource set of each cluster in `journal`, which has COLUMNS. To the driver comes a line for each
    generation, change of the in-sync set and broker.

    `changes`: ascending; a broker's name and the set tell where one belongs.
    """
    log = [sql.coalesce(name, sql.lit("")).alias(name) for name in _LOG]
    table = journal.where("not local").select(*log, *(name for name in COLUMNS if name not in _LOG))
    logs: dict[Log, dict[str, list[Any]]] = {}

    def sort_in(name: str, frame: DataFrame) -> None:
        for row in frame.collect():
            logs.setdefault((row["cluster"], row["set"]), {}).setdefault(name, []).append(row)

    sort_in("starts", _starts(table))
    counting = _counting(table, logs)
    for name, make in {"spans": _spans, "changes": _changes}.items():
        sort_in(name, make(counting))
    memberships = {log: _memberships(parts) for log, parts in logs.items()}
    sort_in("lags", _lags(table, memberships))
    # What a snapshot still has of older generations is when they began, and nothing of what happened in them.
    return [
        _timeline(log, parts, memberships[log], changes, link_timeout_s)
        for log, parts in sorted(logs.items(), key=lambda item: (default_first(item[0][1]), item[0][0]))
    ]


def _seconds(column: str) -> Column:
    return sql.unix_millis(sql.col(column)) / 1000


def _starts(table: DataFrame) -> DataFrame:
    """Each generation by each broker that has its beginning."""
    starts = table.where("event = 'generation_started'")
    return starts.groupBy(*_LOG, "generation", "broker").agg(
        sql.min("lsn").alias("lsn"), sql.first("details").alias("details"), sql.min(_seconds("written_at")).alias("at")
    )


def _counting(table: DataFrame, logs: Mapping[Log, Mapping[str, list[Any]]]) -> DataFrame:
    """Without what a primary wrote that the next generation did not take over: nobody was served with that."""
    first_lsns = {log: sorted({(row.generation, row.lsn) for row in parts["starts"]}) for log, parts in logs.items()}
    ends = [
        (*log, generation, end_lsn)
        for log, starts in first_lsns.items()
        for (generation, _), (_, end_lsn) in pairwise(starts)
    ]
    schema = "of_cluster STRING, of_set STRING, of_generation LONG, end_lsn LONG"
    limits = table.sparkSession.createDataFrame(ends, schema)
    is_its = sql.expr("cluster = of_cluster and set = of_set and generation = of_generation")
    return table.join(sql.broadcast(limits), is_its, "left").where("end_lsn is null or lsn < end_lsn")


def _spans(table: DataFrame) -> DataFrame:
    """By broker and generation: how many events, the first that is of clients, and the last."""
    is_work = ~sql.col("event").isin(*_OWN_EVENTS)
    return (
        table.where("written_at is not null")
        .groupBy(*_LOG, "broker", "generation")
        .agg(
            sql.countDistinct("lsn").alias("events"),
            sql.min(sql.when(is_work, _seconds("written_at"))).alias("first_work"),
            sql.min(sql.when(sql.col("event") == "enqueued", _seconds("written_at"))).alias("first_message"),
            sql.max(_seconds("written_at")).alias("last"),
        )
    )


def _changes(table: DataFrame) -> DataFrame:
    """Each change of the in-sync set once, as the first broker wrote it; of a snapshot it has no time."""
    changes = table.where("event = 'in_sync_changed'")
    return changes.groupBy(*_LOG, "generation", "details").agg(
        sql.min("lsn").alias("lsn"), sql.min(_seconds("written_at")).alias("at")
    )


def _memberships(parts: Mapping[str, list[Any]]) -> tuple[InSyncSetChange, ...]:
    """The same, for people. One of which no time is known counts from the start of its generation on."""
    starts = {row.generation: _started_s(row) for row in parts.get("starts", [])}
    return tuple(
        InSyncSetChange(
            starts.get(row.generation, 0.0) if row["at"] is None else row["at"], facts["epoch"],
            tuple(facts["members"]), row.lsn, row.generation,
        )
        for row in sorted(parts.get("changes", []), key=lambda row: row.lsn)
        for facts in [json.loads(row.details)]
    )  # fmt: skip


def _started_s(row: Any) -> float:
    """By the clock of who began it; else when this broker wrote it."""
    at_ms = json.loads(row.details)["started_at_ms"]
    return float(at_ms / 1000 if at_ms else row["at"] or 0.0)


def _in_sync(table: DataFrame, memberships: Mapping[Log, Sequence[InSyncSetChange]]) -> DataFrame:
    """By broker, from which to which LSN it was in the in-sync set."""
    rows = [
        (*log, broker, change.lsn, following.lsn - 1)
        for log, changes in memberships.items()
        for change, following in pairwise([*changes, _NEVER])
        for broker in change.members
    ]
    schema = "cluster STRING, set STRING, broker STRING, joined LONG, left LONG"
    return table.sparkSession.createDataFrame(rows, schema)


_NEVER = InSyncSetChange(0.0, 0, (), (1 << 63) - 1, 0)


def _lags(table: DataFrame, memberships: Mapping[Log, Sequence[InSyncSetChange]]) -> DataFrame:
    """Primary and backup are told apart by who is named in the generation.

    Its first event is not waited for: the set that it has to do with comes right behind it.
    """
    primaries = table.where("event = 'generation_started'").select(
        *_LOG, "generation", sql.get_json_object("details", "$.primary").alias("primary")
    )
    waited_for = table.where("event <> 'generation_started' and written_at is not null")
    events = waited_for.select(*_LOG, "generation", "lsn", "broker", _seconds("written_at").alias("at")).distinct()
    led = events.join(sql.broadcast(primaries.distinct()), [*_LOG, "generation"])
    by_primary = led.where("broker = primary").select(*_LOG, "generation", "lsn", sql.col("at").alias("led_at"))
    by_backup = led.where("broker <> primary").select(*_LOG, "generation", "lsn", "broker", "at")
    pairs = by_primary.join(by_backup, [*_LOG, "generation", "lsn"]).withColumn("lag", sql.expr("at - led_at"))
    stays = sql.broadcast(_in_sync(table, memberships)).alias("stays")
    is_within = sql.expr(
        "pairs.cluster = stays.cluster and pairs.set = stays.set and pairs.broker = stays.broker"
        " and lsn between joined and left"
    )
    joined = pairs.alias("pairs").join(stays, is_within, "left").withColumn("in_time", sql.col("joined").isNotNull())
    return joined.groupBy("pairs.cluster", "pairs.set", "pairs.broker").agg(
        sql.count_if("in_time").alias("events"),
        sql.percentile_approx(sql.when(sql.col("in_time"), sql.col("lag")), list(PERCENTILES), 10_000).alias(
            "percentiles"
        ),
        sql.count_if(~sql.col("in_time")).alias("late_events"),
    )


def _timeline(
    log: Log, parts: dict[str, list[Any]], memberships: tuple[InSyncSetChange, ...],
    changes: Sequence[StateChange], link_timeout_s: float,
) -> Timeline:  # fmt: skip
    starts: dict[int, list[Any]] = {}
    for row in parts.get("starts", []):
        starts.setdefault(row.generation, []).append(row)
    spans: dict[int, dict[str, Any]] = {}
    for row in parts.get("spans", []):
        spans.setdefault(row.generation, {})[row.broker] = row
    is_group = any(_is_of_group(row) for row in parts.get("starts", []))
    journals = [
        _generation(starts[number], spans[number], memberships) for number in sorted(starts.keys() & spans.keys())
    ]
    names = {name for change in memberships for name in change.members} | {
        generation.primary for generation in journals
    }
    if is_group:
        recorders = tuple((number, json.loads(rows[0].details)["primary"]) for number, rows in sorted(starts.items()))
        return Timeline(*log, tuple(journals), memberships, (), is_group=True, recorders=recorders)
    own = [change for change in changes if change.broker in names and change.set == log[1]]
    generations = narrowed(journals, memberships, own, link_timeout_s)
    lags = [
        Lag(row.broker, row.events, tuple(row.percentiles or ()), row.late_events)
        for row in sorted(parts.get("lags", []), key=lambda row: str(row.broker))
    ]
    return Timeline(*log, generations, memberships, tuple(lags), max((change.at_s for change in own), default=0.0))


def _is_of_group(start: Any) -> bool:
    return bool(json.loads(start.details)["cause"] == MEMBERS_CHANGED)


def _generation(starts: Sequence[Any], spans: Mapping[str, Any], memberships: Sequence[InSyncSetChange]) -> Generation:
    """`starts`: its first event as each broker wrote it; `spans`: its events, by broker."""
    facts = json.loads(starts[0].details)
    primary, number = facts["primary"], starts[0].generation
    written_s = {row.broker: row["at"] for row in starts if row["at"] is not None}
    started_s = min(map(_started_s, starts))
    # Where the primary's own journal is not among these, another broker's word has to do.
    span = spans.get(primary) or spans[min(spans)]
    last_s, first_work_s, first_message_s = span["last"], span["first_work"], span["first_message"]
    if _is_of_group(starts[0]):  # any of its members serves
        last_s = max(row["last"] for row in spans.values())
        first_work_s, first_message_s = (
            min((row[name] for row in spans.values() if row[name] is not None), default=None)
            for name in ("first_work", "first_message")
        )
    sets = [change for change in memberships if change.generation == number]
    return Generation(
        number, primary, facts["cause"], facts["forced"], starts[0].lsn, span.events, started_s,
        _confirming(started_s, written_s, sets, first_work_s),
        Sign(max(last_s, started_s), BoundSource.JOURNAL), None, first_work_s, first_message_s,
    )  # fmt: skip


def _confirming(
    started_s: float, written_s: Mapping[str, float], sets: Sequence[InSyncSetChange], first_work_s: float | None
) -> tuple[float, float]:
    """When all of an in-sync set held the generation's first event, which each of them wrote at `written_s`.

    Of a broker whose journal does not have that event, because it is not among these or was folded, nothing is known.
    A set of which all is known says when at the latest. If there is none: the change by which a broker was dropped
    that may not have answered, and else the first work, because clients were there. Of a generation that began before
    all that is left, it is long past.
    """
    if not written_s:
        return started_s, started_s
    earliest = [_all_held(started_s, written_s, change) for change in sets]
    latest = [_all_held(started_s, written_s, change) for change in sets if written_s.keys() >= set(change.members)]
    if not latest and len(sets) > 1 and set(sets[0].members) - set(sets[1].members):
        latest = [sets[1].at_s]
    low_s = min(earliest, default=started_s)
    return low_s, max(low_s, min(latest, default=first_work_s or started_s))


def _all_held(started_s: float, written_s: Mapping[str, float], change: InSyncSetChange) -> float:
    """As far as is known: by the primary and the others of the set, once that was the set."""
    return max([started_s, change.at_s, *(written_s[name] for name in change.members if name in written_s)])
