"""What real brokers leave of a cluster with five sets, one of which was deleted: rows, the state, and reports."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from journal_rows import Row, read_rows
from live_query import publish
from qpid_ha_pipeline.jobs.activity import activities
from qpid_ha_pipeline.jobs.activity_report import report
from qpid_ha_pipeline.jobs.failovers import timelines
from qpid_ha_pipeline.jobs.overview import ALL, overview
from qpid_ha_pipeline.main import main
from running_cluster import RunningCluster
from sets_cluster import change, create_queue, create_set, sets_of, wait_whole

SETS = {"audit": 3, "mail": 5, "orders": 7, "scrap": 2, "web": 4}
"""How many messages came. `scrap` is deleted, and `orders` is led by two brokers, one after the other."""
MAP_EVENTS = {
    "broker_registered": 3, "set_deleted": 1, "queue_placed": len(SETS) + 1, "queue_removed": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores of three brokers that were stopped."""
    stores = tmp_path_factory.mktemp("stores")
    with RunningCluster(tmp_path_factory.mktemp("cluster"), stores=stores) as cluster:
        cluster.form()
        for number, name in enumerate(SETS):
            create_set(cluster, name, preferred=cluster.broker(number % 3).name)
        wait_whole(cluster, 0, *SETS)
        for name, count in SETS.items():
            create_queue(cluster, 0, f"q-{name}", name)
            publish(",".join(cluster.urls), f"q-{name}", *(f"{name} {number}" for number in range(count)))
        publish(",".join(cluster.urls), "plain", "of default")
        (other,) = {cluster.broker(1).name, cluster.broker(2).name} - {sets_of(cluster.broker(0))["orders"]["primary"]}
        change(cluster, 0, "sets", "transfer", name="orders", to=other)
        wait_whole(cluster, 0, "orders")
        publish(",".join(cluster.urls), "q-orders", "after")
        change(cluster, 0, "queues", "delete", name="q-scrap")
        cluster.wait_until(lambda: sets_of(cluster.broker(0))["scrap"]["queues"] == 0, "scrap has no queue")
        change(cluster, 0, "sets", "delete", name="scrap")
        cluster.wait_until(lambda: "scrap" not in sets_of(cluster.broker(0)), "scrap is gone")
        wait_whole(cluster, 0, *(name for name in SETS if name != "scrap"))
    return stores


KEPT = {"default": 1, "audit": 3, "mail": 5, "orders": 8, "web": 4}
CHOSEN = ",".join(KEPT)
"""A replica that has not heard yet that the queue of `scrap` is deleted keeps its store for an operator."""


def enqueued(rows: list[Row]) -> Counter[str]:
    return Counter(row["set"] for row in rows if row["event"] == "enqueued")


def test_each_message_of_each_set_is_one_row_and_the_deleted_set_is_gone(left: Path) -> None:
    rows = read_rows(left / "*", set=CHOSEN)
    assert enqueued(rows) == KEPT
    assert {row["body_text"] for row in rows if row["event"] == "enqueued" and row["set"] == "mail"} == {
        f"mail {number}" for number in range(5)
    }
    in_map = Counter(row["event"] for row in rows if row["set"] == "default")
    assert {event: in_map[event] for event in MAP_EVENTS} == MAP_EVENTS
    (removed,) = (row for row in rows if row["event"] == "queue_removed")
    assert removed["queue"] == "q-scrap"
    (deleted,) = (row for row in rows if row["event"] == "set_deleted")
    assert json.loads(deleted["details"])["name"] == "scrap"


def test_the_state_is_what_is_there_of_each_set_with_the_map(left: Path) -> None:
    rows = read_rows(left / "*", view="state", set=CHOSEN)
    assert enqueued(rows) == KEPT
    placed = {json.loads(row["details"])["name"] for row in rows if row["event"] == "queue_placed"}
    sets = {json.loads(row["details"])["name"] for row in rows if row["event"] == "set_placed"}
    assert (placed, sets) == ({f"q-{name}" for name in SETS if name != "scrap"}, {*SETS} - {"scrap"})


def test_reports_have_a_line_for_each_set_and_their_sum(spark: SparkSession, left: Path, tmp_path: Path) -> None:
    journal = spark.read.format("qpid-journal").option("set", CHOSEN)
    led = timelines(journal.option("replicas", "all").load(f"{left}/*"))
    through = activities(journal.option("replicas", "one").load(f"{left}/*"))
    *sets, whole = overview(led, through)
    assert {line.set: line.messages_in for line in sets} == KEPT
    generations = {line.set: line.generations for line in sets}
    assert generations == {timeline.set: len(timeline.generations) for timeline in led}
    assert generations["orders"] >= 2
    assert (whole.set, whole.messages_in, whole.waiting) == (ALL, sum(KEPT.values()), sum(KEPT.values()))
    assert whole.generations == sum(generations.values())
    assert whole.span_s == pytest.approx(sum(timeline.span_s for timeline in led))
    for line, timeline in zip(sets, led, strict=True):
        assert (line.availability_at_least, line.availability_at_most) == pytest.approx(timeline.availability)
    least = min(line.availability_at_least for line in sets)
    assert least <= whole.availability_at_least <= whole.availability_at_most <= 1.0
    assert "<h2>All sets</h2>" in report(through, led)

    done = CliRunner().invoke(
        main, ["failovers", f"{left}/*", "--format", "json", *(word for name in KEPT for word in ("--set", name))]
    )
    assert done.exit_code == 0, done.output
    assert [line["set"] for line in json.loads(done.stdout)["sets"]] == [*(line.set for line in sets), ALL]
