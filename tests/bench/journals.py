"""Journals on Spark, beside Spark's own Parquet and plain Arrow on the same rows, in one run."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.figures import Measurement
from bench.pipeline_fleets import measure_auditing, measure_planning
from bench.pipeline_growth import CORES, bench_session, measure_growth, spark_works
from bench.scenario import Scenario
from bench.store import MB, disk_directory
from bench.store_filling import begin_journal, fill_journal
from bench.usage import Work, tree_processor_s
from qpid_ha_broker.amqp.wire.sections import MessageSections
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.journal import SEGMENT_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES, TURN, GROUP = 10, 250, 16
WANTED = "queue-3"
_COUNTED = f"queue = '{WANTED}'"


class Times(NamedTuple):
    """Of several runs, in seconds. `worked_s`: of processors, by all processes, in the run that took least of them."""

    best_s: float
    median_s: float
    worked_s: float
    runs: int

    def __str__(self) -> str:
        clock = f"best {self.best_s:.2f} s, median {self.median_s:.2f} s of {self.runs}"
        return f"{clock}; {self.worked_s:.2f} s of processors"


def timed(count: Callable[[], int], expected: int, runs: int) -> Times:
    """Run it some times; the first one warms up and does not count. Raises BenchError for a wrong count."""
    _, *works = spark_works(count, expected, runs + 1)
    times = [work.elapsed_s for work in works]
    return Times(min(times), statistics.median(times), min(work.processor_s for work in works), runs)


def _runs(scenario: Scenario) -> int:
    return 5 if scenario.folded_mb >= 100 else 1


def fill(directory: Path, total_bytes: int, size: int) -> tuple[int, int]:
    """A journal of one broker with messages of `size` bytes on ten queues; its bytes, and messages on one queue."""
    directory.mkdir(parents=True)
    payloads = [_message(size - size // 4 + number * size // 1000) for number in range(500)]
    journal = begin_journal(LocalDisk(directory), 0, SEGMENT_BYTES, generation=1)
    records = [LogRecord(number + 1, ev.QueueDeclared(f"queue-{number}", {}), False) for number in range(QUEUES)]
    written = turn = wanted = 0
    lsn = QUEUES
    while written < total_bytes:
        data = encode_all(records)
        journal.stage(BlockKind.EVENTS, records[0].lsn, records[-1].lsn, records[0].lsn - 1, 0, data)
        if not turn % GROUP:
            journal.flush()
        written += len(data)
        turn += 1
        records = []
        for _ in range(TURN):
            lsn += 1
            queue = lsn * 7919 // 13 % QUEUES + 1
            records.append(LogRecord(lsn, ev.Enqueued((queue,), payloads[lsn * 31 % 500], True, 4, 0, ""), False))
        wanted += sum(record.event.queues == (4,) for record in records if isinstance(record.event, ev.Enqueued))
    wanted -= sum(record.event.queues == (4,) for record in records if isinstance(record.event, ev.Enqueued))
    journal.end()
    return written, wanted


def _message(size: int) -> bytes:
    from proton import Message

    payload = bytes(Message(os.urandom(size), inferred=True, durable=True, subject="bench").encode())
    MessageSections().header(payload)
    return payload


def measure_reading(scenario: Scenario) -> Iterator[Measurement]:
    """Counting the messages of one queue: a journal, and the same rows as Parquet."""
    with bench_session(spark_sql_shuffle_partitions=str(CORES)) as spark:
        for size, length_mb in ((1024, scenario.counted_mb), (100, scenario.folded_mb)):
            with disk_directory() as directory:
                yield from _measure_size(spark, directory, length_mb * MB, size, _runs(scenario))


def _measure_size(
    spark: SparkSession, directory: Path, total_bytes: int, size: int, runs: int
) -> Iterator[Measurement]:
    written, wanted = fill(directory / "data" / "default", total_bytes, size)
    source = spark.read.format("qpid-journal")
    rows = source.option("event", "enqueued").load(str(directory / "data"))
    kept = rows.select("lsn", "event", "queue", "message_id", "size", "durable", "priority", "body")
    kept.write.option("compression", "none").parquet(str(directory / "parquet"))

    def journal(**options: str) -> DataFrame:
        table = spark.read.format("qpid-journal").options(event="enqueued", queue=WANTED, **options)
        return table.load(str(directory / "data"))

    def parquet() -> DataFrame:
        return spark.read.parquet(str(directory / "parquet")).where(_COUNTED)

    def count(table: DataFrame) -> int:
        return int(table.count())

    def count_bodies(table: DataFrame) -> int:
        return int(table.selectExpr("count(nullif(length(body), -1)) as bodies").collect()[0].bodies)

    counts = (
        lambda: count(journal(columns="queue")),
        lambda: count(parquet()),
        lambda: count_bodies(journal(columns="body")),
        lambda: count_bodies(parquet()),
        lambda: _alone(directory / "data"),
        lambda: count(journal(columns="queue", checksums="false")),
        lambda: count(journal(columns="queue", kernel="off")),
    )
    ours, theirs, bodies, their_bodies, plain, unchecked, uncompiled = (timed(each, wanted, runs) for each in counts)
    key = f"journal_count_{size}"
    yield Measurement(key, f"journal to count of one queue, {size} B", written / MB / ours.best_s, "MB/s", str(ours))
    yield Measurement(f"{key}_share", "the same beside Parquet, which reads the queue's column alone",
                      100 * theirs.best_s / ours.best_s, "%", f"Parquet: {theirs}")  # fmt: skip
    yield Measurement(f"{key}_work_share", "the same in processor time", 100 * theirs.worked_s / ours.worked_s, "%")
    yield Measurement(f"{key}_unchecked_share", "without checksums, which Parquet does not look at either",
                      100 * theirs.best_s / unchecked.best_s, "%", f"journal: {unchecked}")  # fmt: skip
    yield Measurement(f"{key}_uncompiled_share", "without the compiled kernel",
                      100 * theirs.best_s / uncompiled.best_s, "%", f"journal: {uncompiled}")  # fmt: skip
    yield Measurement(f"{key}_alone", "without Spark, one core", written / MB / plain.best_s, "MB/s", str(plain))
    key = f"journal_bodies_{size}"
    yield Measurement(
        key, f"journal to bodies of one queue, {size} B", written / MB / bodies.best_s, "MB/s", str(bodies)
    )
    yield Measurement(f"{key}_share", "the same beside Parquet",
                      100 * their_bodies.best_s / bodies.best_s, "%", f"Parquet: {their_bodies}")  # fmt: skip


def _alone(path: Path) -> int:
    """The data source's own work, in this process."""
    from qpid_ha_pipeline.journal_source import JournalTableReader
    from qpid_ha_pipeline.options import JournalOptions
    from qpid_ha_pipeline.schema import schema_of

    options = JournalOptions.parse({"path": str(path), "queue": WANTED, "event": "enqueued", "columns": "queue"})
    reader = JournalTableReader(options, schema_of(options.columns))
    return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))


def measure_consolidating(scenario: Scenario) -> Iterator[Measurement]:
    """Several stores into snapshots, one task for each."""
    from qpid_ha_pipeline.jobs.consolidate import snapshots

    with bench_session(spark_driver_memory="1g") as spark, disk_directory() as directory:
        paths: list[str] = []
        for number in range(scenario.consolidated_stores):
            events = 3 * scenario.consolidated_mb * MB // (2 * (1024 + 60) + 40)
            store = directory / f"broker{number}" / "default"
            fill_journal(store, events, 1024, consumed=0.5, segment_bytes=scenario.consolidated_mb * MB // 16)
            paths.append(str(store.parent))
        snapshots(spark, paths[:1], str(directory / "warm"))
        with Work(tree_processor_s) as work:
            made = snapshots(spark, paths, str(directory / "out"))
        read_mb = sum(snapshot.bytes_read for snapshot in made) / MB
        note = f"{work}; {read_mb:,.0f} MB"
        yield Measurement("pipeline_consolidate", "consolidate on Spark", read_mb / work.elapsed_s, "MB/s", note)


PIPELINE_MEASURES = {
    "journal-count": measure_reading,
    "journal-growth": measure_growth,
    "journal-consolidate": measure_consolidating,
    "journal-plan": measure_planning,
    "journal-audit": measure_auditing,
}
