"""What went through queues over time: sums as a plain loop makes them, and a page that anybody can read anywhere."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from qpid_ha_broker.events import types as ev
from qpid_ha_pipeline.jobs.activity import (
    MOST_BUCKETS,
    PERCENTILES,
    SHOWN_QUEUES,
    Activity,
    activities,
    buckets_of,
)
from qpid_ha_pipeline.jobs.activity_report import report
from qpid_ha_pipeline.jobs.drawing import time_ticks, value_ticks
from qpid_ha_pipeline.main import main
from written_journal import BEGAN_MS, CLUSTER, WrittenJournal, amqp

BEGAN_S = BEGAN_MS / 1000
SCHEMA = (
    "cluster STRING, set STRING, broker STRING, local BOOLEAN, event STRING, queue STRING, queue_id LONG,"
    " message_id LONG, written_at TIMESTAMP, reason STRING, size LONG"
)
OWNER = (CLUSTER, "default", "alpha", False)


def at(seconds: float | None) -> datetime | None:
    """After the beginning; None: a row of a snapshot."""
    return None if seconds is None else datetime.fromtimestamp(BEGAN_S + seconds, UTC)


class Queues:
    """Rows of a journal, and what they come to."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.next = 0
        self.moves: list[tuple[str, float | None, int, int]] = []
        """Queue, when, messages, bytes."""
        self.latencies: dict[str, list[float]] = defaultdict(list)

    def message(
        self, queue: int, came: float | None, went: float | None = None, *, size: int = 100, is_here: bool = True,
        reason: str = "consumed",
    ) -> None:  # fmt: skip
        """`is_here`: the journal has its beginning."""
        self.next += 1
        name = f"q{queue}"
        if is_here:
            self._row("enqueued", queue, came, None, size)
        size = size if is_here else 0
        self.moves.append((name, came if is_here else None, 1, size))
        if went is not None:
            self._row("dequeued", queue, went, reason, None)
            self.moves.append((name, went, -1, -size))
            if reason == "consumed" and came is not None and is_here:
                self.latencies[name].append(went - came)

    def delete(self, queue: int, when: float, held: list[int]) -> None:
        """With messages of these sizes."""
        self.rows.append((*OWNER, "queue_deleted", f"q{queue}", queue, None, at(when), None, None))
        self.moves += [(f"q{queue}", when, -1, -size) for size in held]

    def _row(self, event: str, queue: int, when: float | None, reason: str | None, size: int | None) -> None:
        self.rows.append((*OWNER, event, f"q{queue}", queue, self.next, at(when), reason, size))

    def read(self, spark: SparkSession, **limits: float) -> list[Activity]:
        """What the job makes of it."""
        rows = list(self.rows)
        random.Random(1).shuffle(rows)
        return activities(spark.createDataFrame(rows, SCHEMA), **limits)


def random_queues(seed: int) -> Queues:
    draw, queues = random.Random(seed), Queues()
    for _ in range(600):
        queue, came = draw.randrange(20) + 1, draw.uniform(0, 5000)
        went = came + draw.expovariate(1 / 200) if draw.random() < 0.8 else None
        kind = draw.random()
        if kind < 0.1:
            queues.message(queue, None, went, size=draw.randrange(1000))
        elif kind < 0.15:
            queues.message(queue, came, came + 1, is_here=False)
        elif kind < 0.2:
            queues.message(queue, came, came + 2, reason="expired")
        else:
            queues.message(queue, came, went, size=draw.randrange(1000))
    queues.message(30, 100.0, size=10)
    queues.message(30, 200.0, size=20)
    queues.delete(30, 300.0, [10, 20])
    return queues


@pytest.mark.parametrize("limits", [{}, {"since_s": BEGAN_S + 1000, "until_s": BEGAN_S + 3000}])
def test_sums_are_those_of_a_plain_loop(spark: SparkSession, limits: dict[str, float]) -> None:
    queues = random_queues(seed := random.randrange(1 << 32))
    (activity,) = queues.read(spark, **limits)
    buckets = activity.buckets
    assert buckets.number <= MOST_BUCKETS
    assert activity.queue_count == len({queue for queue, *_ in queues.moves}), seed

    def place(when: float | None) -> int:
        return -1 if when is None else max(-1, int((BEGAN_S + when - buckets.begin_s) // buckets.width_s))

    def expected(name: str | None, sign: int, measure: int) -> list[float]:
        values = [0.0] * buckets.number
        for queue, when, *change in queues.moves:
            if name in (None, queue) and change[0] == sign and 0 <= place(when) < buckets.number:
                values[place(when)] += abs(change[measure])
        return values

    def depth(name: str | None, measure: int) -> list[float]:
        moves = [(place(when), change[measure]) for queue, when, *change in queues.moves if name in (None, queue)]
        return [float(sum(change for bucket, change in moves if bucket <= end)) for end in range(buckets.number)]

    for name, flow in [(None, activity.total), *activity.queues.items()]:
        assert list(flow.messages_in) == expected(name, 1, 0), (seed, name)
        assert list(flow.messages_out) == expected(name, -1, 0), (seed, name)
        assert list(flow.bytes_in) == expected(name, 1, 1), (seed, name)
        assert list(flow.bytes_out) == expected(name, -1, 1), (seed, name)
        assert list(flow.depth) == depth(name, 0), (seed, name)
        assert list(flow.depth_bytes) == depth(name, 1), (seed, name)
    assert len(activity.queues) >= SHOWN_QUEUES
    sums = {name: sum(expected(name, 1, 0)) + sum(expected(name, -1, 0)) for name in {move[0] for move in queues.moves}}
    assert [row.queue for row in activity.by_messages] == sorted(sums, key=lambda name: (-sums[name], name))[:10], seed
    for row in activity.by_depth:
        assert row.highest_depth == max(row.first_depth, *depth(row.queue, 0)), (seed, row.queue)
        assert row.last_depth == depth(row.queue, 0)[-1]
        if not limits:
            latencies = sorted(queues.latencies[row.queue])
            assert row.consumed == len(latencies)
            assert len(row.latencies_s) == (len(PERCENTILES) if latencies else 0), seed
            for part, value in zip(PERCENTILES, row.latencies_s, strict=False):
                assert value == pytest.approx(latencies[max(0, -int(-part * len(latencies) // 1) - 1)], abs=1e-5), seed


def test_queues_that_brokers_keep_for_themselves_are_not_taken_for_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Their ids are the same."""
    stores = []
    for name, count in (("alpha", 2), ("beta", 3)):
        journal = WrittenJournal(tmp_path / name, name)
        stores.append(str(journal.data_dir))
        journal.start(1, "alpha")
        (queue,) = journal.write_local(ev.QueueDeclared(f"of-{name}", {}))
        journal.write_local(*[ev.Enqueued((queue,), amqp("x"), True, 4, 0, "")] * count)
        journal.write_local(ev.Dequeued(queue, (queue + 1,), ev.DequeueReason.CONSUMED))
    (activity,) = activities(spark.read.format("qpid-journal").option("paths", json.dumps(stores)).load())
    assert {row.queue: (row.messages_in, row.last_depth) for row in activity.by_messages} == {
        "of-alpha": (2, 1), "of-beta": (3, 2),
    }  # fmt: skip


def test_what_a_snapshot_holds_was_there_at_the_beginning(spark: SparkSession, journal: WrittenJournal) -> None:
    """And what was consumed of it went, but nobody knows how long it took."""
    journal.start(1)
    queue = journal.declare("orders")
    held = journal.enqueue(queue, *[amqp("x")] * 5)
    journal.roll()
    journal.now_ms += 1000
    journal.dequeue(queue, held[:2])
    journal.enqueue(queue, amqp("y"))
    journal.write_status()
    journal.fold_away()
    (activity,) = activities(spark.read.format("qpid-journal").load(str(journal.data_dir)))
    (orders,) = activity.by_messages
    assert (orders.first_depth, orders.messages_in, orders.messages_out, orders.last_depth) == (5, 1, 2, 4)
    assert orders.latencies_s == ()


def test_nothing_is_a_page_too(spark: SparkSession) -> None:
    assert Queues().read(spark) == []
    only_snapshot = Queues()
    only_snapshot.message(1, None)
    assert only_snapshot.read(spark) == []
    assert "These journals hold nothing" in report([], [])


def test_the_page_is_well_formed_and_its_size_is_bounded(spark: SparkSession) -> None:
    """Queues with names that somebody chose with care, and three hundred more over two years."""
    draw, queues = random.Random(7), Queues()
    for number in range(900):
        came = draw.uniform(0, 6e7)
        queues.message(number % 300 + 1, came, came + draw.expovariate(1e-4))
    hostile = '<script>alert("x")</script>&amp;'
    queues.rows = [(*row[:5], hostile if row[5] == "q1" else row[5], *row[6:]) for row in queues.rows]
    for _ in range(50):
        queues.message(1, 5.0, 6.0)
    queues.rows = [(*row[:5], hostile if row[5] == "q1" else row[5], *row[6:]) for row in queues.rows]
    (activity,) = queues.read(spark)
    page = report([activity], [])
    assert hostile not in page
    assert page.count("<figure") == 7
    assert "others" in page
    assert len(page) < 400_000
    assert "<script" not in page
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) > 7
    for picture in pictures:
        ElementTree.fromstring(picture)


def test_the_command_makes_a_page_of_queues_failovers_and_clients(spark: SparkSession, tmp_path: Path) -> None:
    stores = []
    for name in ("alpha", "beta"):
        journal = WrittenJournal(tmp_path / name, name, generation=0)
        stores.append(str(journal.data_dir))
        journal.start(1, "alpha")
        journal.write(ev.InSyncChanged(1, ("alpha", "beta")))
        queue = journal.declare("orders")
        for second in range(60):
            journal.now_ms = BEGAN_MS + second * 1000
            ids = journal.enqueue(queue, *[amqp("x" * 100)] * 3)
            journal.now_ms += 250
            journal.dequeue(queue, ids[:2])
        journal.write(ev.GenerationStarted(2, "beta", CLUSTER, BEGAN_MS + 61_000, False, "alpha is gone"))
        journal.write(ev.InSyncChanged(2, ("beta",)))
        journal.now_ms = BEGAN_MS + 62_000
        journal.enqueue(queue, amqp("x"))
    output = tmp_path / "report.html"
    arguments = ["report", *stores, "--output", str(output)]
    result = CliRunner().invoke(main, [*arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    (activity,) = json.loads(result.stdout)["activities"]
    assert sum(activity["total"]["messages_in"]) == 181  # not once for each replica
    assert activity["total"]["depth"][-1] == 61
    assert activity["by_messages"][0]["latencies_s"] == pytest.approx([0.25] * 4)
    page = output.read_text()
    assert all(text in page for text in ("orders", "Who led", "alpha is gone", "Latency", "Depth in messages"))
    since = datetime.fromtimestamp(BEGAN_S + 30, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    result = CliRunner().invoke(main, [*arguments, "--format", "json", "--since", since])
    (later,) = json.loads(result.stdout)["activities"]
    assert sum(later["total"]["messages_in"]) == 91
    assert later["by_messages"][0]["first_depth"] == 30


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_buckets_hold_any_time_and_are_few(one: float, other: float) -> None:
    begin_s, end_s = sorted((one, other))
    buckets = buckets_of(begin_s, end_s)
    assert 1 <= buckets.number <= MOST_BUCKETS
    assert buckets.begin_s <= begin_s <= end_s
    assert (begin_s - buckets.begin_s) // buckets.width_s >= 0
    assert (end_s - buckets.begin_s) // buckets.width_s < buckets.number
    ticks = time_ticks(begin_s, max(end_s, begin_s + 0.01))
    assert len(ticks) <= 10


@given(st.floats(1e-6, 1e15))
def test_axes_have_round_values(highest: float) -> None:
    ticks = value_ticks(highest)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 6
    assert ticks[-1] <= highest * 1.0001
