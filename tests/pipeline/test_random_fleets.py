"""Random lives of clusters, and what the jobs say of them compared with what is true.

Journals are folded, forked, replicated, torn and moved. Some jobs look at a few of the 15 clusters only, because of the
time that it takes; `pytest tests/pipeline/test_random_fleets.py --clusters 200` has every job look at each of 200.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from doc_blocks import titled_blocks
from journal_rows import read_rows
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.store.best import Winner
from qpid_ha_pipeline.amqp.options import WriteOptions
from qpid_ha_pipeline.jobs.activity import activities
from qpid_ha_pipeline.jobs.audit import audit
from qpid_ha_pipeline.jobs.consolidate import rows
from qpid_ha_pipeline.jobs.failovers import timelines
from qpid_ha_pipeline.jobs.replay import COLUMNS as REPLAYED
from qpid_ha_pipeline.jobs.replay import replay
from qpid_ha_pipeline.jobs.stores import verdicts
from random_history import RandomHistory, lived
from running_broker import RunningBroker

FEW = 15
Sample = Callable[[int], list[RandomHistory]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> list[RandomHistory]:
    """Clusters that are read together."""
    directory = tmp_path_factory.mktemp("fleet")
    seeds = range(1000, 1000 + (pytestconfig.getoption("--clusters") or FEW))
    histories = [lived(directory / str(seed), seed) for seed in seeds]
    for history in histories:
        history.tear_ends()
        if history.seed % 3 == 0:
            history.move()
    return histories


@pytest.fixture(scope="module")
def sample(fleet: list[RandomHistory], pytestconfig: pytest.Config) -> Sample:
    """So many of the fleet; all, where it was said how many there are."""
    is_told = pytestconfig.getoption("--clusters") is not None
    return lambda few: fleet if is_told else fleet[:few]


def table(spark: SparkSession, fleet: list[RandomHistory], **options: str) -> DataFrame:
    paths = json.dumps([path for history in fleet for path in history.paths])
    return spark.read.format("qpid-journal").options(paths=paths, severalClusters="true", **options).load()


def test_an_audit_finds_what_was_lost_and_what_waits(spark: SparkSession, fleet: list[RandomHistory]) -> None:
    rows, expected = list[tuple[object, ...]](), Counter[str]()
    for history in fleet:
        waiting = {name for messages in history.state.messages.values() for name in messages.values()}
        in_log = {history.ids[event.payload] for _, event, _ in history.log if isinstance(event, ev.Enqueued)}
        for number, fate in enumerate(history.fates.values()):
            client = history.cluster
            rows.append(("sent", fate.id, client, "orders", number, number, None))
            if fate.is_confirmed:
                rows.append(("accepted", fate.id, client, "orders", number, number, None))
                expected["confirmed"] += 1
                is_received = fate.is_consumed and fate.id not in waiting
                if is_received:
                    rows.append(("received", fate.id, "consumer", "orders", None, number, False))
                expected["delivered"] += is_received
                expected["waiting"] += not is_received and fate.id in waiting
                expected["lost"] += not is_received and fate.id not in waiting
                expected["lost, and not in the log"] += not is_received and fate.id not in in_log
    schema = "op STRING, id STRING, client STRING, queue STRING, number LONG, at_ms LONG, marked BOOLEAN"
    found = audit(spark.createDataFrame(rows, schema), table(spark, fleet), table(spark, fleet, replicas="discarded"))
    assert {name: getattr(found, name) for name in ("confirmed", "delivered", "waiting", "lost")} == {
        name: expected[name] for name in ("confirmed", "delivered", "waiting", "lost")
    }
    assert expected["lost"] > found.discarded > 0
    lost = {row.id for row in found.evidence.where("verdict like '%lost%'").collect()}
    assert len(lost) == found.lost


def test_the_documents_query_counts_what_is_left(spark: SparkSession, sample: Sample) -> None:
    """Of stores that were folded, replicas, branches and queues that were deleted."""
    query = titled_blocks("pipeline.md", "sql")["what-is-left"]
    for history in sample(4):
        table(spark, [history], view="state").where("event = 'enqueued'").createOrReplaceTempView("messages")
        expected = Counter({
            history.state.names[queue]: len(messages)
            for queue, messages in history.state.messages.items()
            if messages
        })  # fmt: skip
        expected["own"] = sum(is_there for store in history.stores.values() for is_there in store.own.values())
        assert {row.queue: row.messages for row in spark.sql(query).collect()} == dict(+expected)


def test_the_last_generation_of_a_cluster_is_told(spark: SparkSession, fleet: list[RandomHistory]) -> None:
    found = {timeline.cluster: timeline for timeline in timelines(table(spark, fleet, replicas="all"))}
    for history in fleet:
        told = {generation.number for generation in found[history.cluster].generations}
        assert max(told) == history.generation


def test_the_stores_that_may_begin_again_hold_what_was_confirmed(spark: SparkSession, sample: Sample) -> None:
    for history in sample(5):
        found = verdicts(spark, history.paths)["default"]
        if isinstance(found, Winner) and found.is_safe:
            assert found.store.last_lsn >= history.committed


def test_consolidated_rows_are_each_event_once(spark: SparkSession, sample: Sample, tmp_path: Path) -> None:
    for history in [history for history in sample(6) if not history.forced]:
        output = str(tmp_path / history.cluster)
        rows(spark, history.paths, output)
        found = spark.read.parquet(output).where("not local and not from_snapshot").select("lsn").distinct().collect()
        (complete_from,) = {row["complete_from"] for row in read_rows(history.directory / "*", "complete_from")}
        assert {row.lsn for row in found} >= set(range(complete_from, history.committed))


def test_a_report_ends_with_what_is_left(spark: SparkSession, sample: Sample) -> None:
    chosen = {history.cluster: history for history in sample(5)}
    for activity in activities(table(spark, list(chosen.values()))):
        history = chosen[activity.cluster]
        own = sum(is_there for store in history.stores.values() for is_there in store.own.values())
        left = sum(len(messages) for messages in history.state.messages.values())
        assert activity.total.depth[-1] == left + own


def test_what_is_left_of_a_cluster_is_sent_to_another_one_and_read_there(
    spark: SparkSession, sample: Sample, broker: RunningBroker
) -> None:
    for history in sample(3):
        if any(history.state.messages.values()):
            check_replay(spark, history, broker)


def check_replay(spark: SparkSession, history: RandomHistory, broker: RunningBroker) -> None:
    """What is left of it is in the broker's queues then, beside what is left of others."""
    expected = {
        history.state.names[queue]: sorted(messages.values())
        for queue, messages in history.state.messages.items()
        if messages
    }
    names = ",".join(expected)
    state = table(spark, [history], view="state", queue=names, columns=",".join(REPLAYED))
    assert replay(state, WriteOptions.parse({"brokers": broker.url})) == sum(map(len, expected.values()))
    live = spark.read.format("qpid-amqp").options(brokers=broker.url, queue=names).load(columns="queue,amqp_message_id")
    found: dict[str, list[str]] = {}
    for row in live.where(sql.col("amqp_message_id").startswith(history.cluster)).collect():
        found.setdefault(row.queue, []).append(row.amqp_message_id)
    assert {queue: sorted(ids) for queue, ids in found.items()} == expected
