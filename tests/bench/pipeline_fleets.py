"""What large fleets and long histories cost: planning a thousand stores, and the audit of ten million messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from bench.figures import Measurement
from bench.load_client import BenchError
from bench.pipeline_growth import bench_session
from bench.scenario import Scenario
from bench.store import MB, disk_directory
from bench.usage import Work, tree_processor_s
from qpid_ha_broker.events import types as ev
from written_journal import WrittenJournal, amqp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from qpid_ha_pipeline.jobs.audit import Audit

_BROKERS: Final = ("one", "two", "three")
_TURN: Final = 1000
_BODY: Final = "x" * 60


def measure_planning(scenario: Scenario) -> Iterator[Measurement]:
    """Which parts of which stores are read: clusters of three brokers, by the planner alone."""
    from qpid_ha_pipeline.journal_source import JournalTableReader
    from qpid_ha_pipeline.options import JournalOptions
    from qpid_ha_pipeline.schema import schema_of

    with disk_directory() as directory:
        for number in range(scenario.planned_stores):
            broker = _BROKERS[number % len(_BROKERS)]
            _fill(directory / str(number), broker, str(UUID(int=number // len(_BROKERS) + 1)), range(200), b"x" * 1024)
        given = {"path": str(directory / "*"), "severalClusters": "true", "columns": "queue,lsn"}
        options = JournalOptions.parse(given)
        with Work() as work:
            parts = JournalTableReader(options, schema_of(options.columns)).partitions()
        note = f"{scenario.planned_stores} stores, {len(parts)} tasks, {work.processor_s:.2f} s of processors"
        yield Measurement("pipeline_plan", "plan a fleet of stores", work.elapsed_s, "s", note)


def measure_auditing(scenario: Scenario) -> Iterator[Measurement]:
    """A cluster's journal and what its clients saw, half of it consumed; then with the evidence written, where there is
    nothing to prove, and where one message is lost."""
    with bench_session(spark_driver_memory="4g") as spark, disk_directory() as directory:
        count = scenario.audited_messages
        length = _fill(directory / "data", "one", str(UUID(int=1)), range(count))
        history = directory / "history"
        _history(spark, count).write.parquet(str(history))
        alone_s = 0.0
        for key, label, lost, output in (
            ("pipeline_audit", "audit", 0, None),
            ("pipeline_audit_flawless", "the same, with its evidence written: none", 0, directory / "none"),
            ("pipeline_audit_lost", "the same, one message is lost", 1, directory / "lost"),
        ):
            with Work(tree_processor_s) as work:
                verdict = _audit(spark, directory, lost, output)
            if (verdict.confirmed, verdict.waiting, verdict.lost) != (count, count - count // 2, lost):
                raise BenchError(f"the audit found {json.dumps(verdict.counts())}")
            alone_s = alone_s or work.elapsed_s
            note = f"{count:,} messages, {length / MB:,.0f} MB, {work.processor_s:.0f} s of processors"
            note += "" if output is None else f", {work.elapsed_s / alone_s:.2f} times as long as without"
            yield Measurement(key, label, work.elapsed_s, "s", note)


def _audit(spark: SparkSession, directory: Path, lost: int, output: Path | None) -> Audit:
    """`lost`: of so many messages that were consumed the history does not tell that they came."""
    from qpid_ha_pipeline.jobs.audit import JOURNAL_COLUMNS, audit

    source = spark.read.format("qpid-journal").option("columns", ",".join(JOURNAL_COLUMNS))
    history = spark.read.parquet(str(directory / "history")).where(
        f"op <> 'received' or cast(id as long) >= {2 * lost}"
    )
    verdict = audit(history, source.load(str(directory / "data")))
    if output is not None:
        verdict.evidence.write.parquet(str(output))
    return verdict


def _fill(data_dir: Path, broker: str, cluster: str, numbers: range, payload: bytes | None = None) -> int:
    """Messages on one queue, of which those of even number were consumed; how many bytes."""
    store = WrittenJournal(data_dir, broker, cluster=cluster, generation=0, segment_bytes=64 * MB)
    store.write(ev.GenerationStarted(1, _BROKERS[0], cluster, store.now_ms, False, "first start"))
    store.write(ev.InSyncChanged(1, _BROKERS))
    queue = store.declare("orders")
    template = amqp(_BODY, id=f"{0:012d}", durable=True)
    place = template.index(f"{0:012d}".encode())
    head, tail = template[:place], template[place + 12 :]
    for first in range(0, len(numbers), _TURN):
        turn = numbers[first : first + _TURN]
        payloads = [head + b"%012d" % number + tail if payload is None else payload for number in turn]
        ids = store.enqueue(queue, *payloads)
        store.dequeue(queue, ids[::2])
    store.write_status(epoch=1, members=_BROKERS)
    store.journal.close()
    return sum(path.stat().st_size for path in data_dir.rglob("*.log"))


def _history(spark: SparkSession, count: int) -> DataFrame:
    """As `jobs.history` reads it: each message sent and confirmed, every other one received."""
    each = spark.range(count).selectExpr("id as number", "lpad(cast(id as string), 12, '0') as id")
    rows = [
        f"named_struct('op', '{op}', 'client', '{client}', 'number', {number}, 'at_ms', 3 * number + {at})"
        for op, client, number, at in (
            ("sent", "publisher", "number", 0), ("accepted", "publisher", "number", 1),
            ("received", "consumer", "null", 2),
        )
    ]  # fmt: skip
    told = each.selectExpr(
        "id", "number", f"explode(if(number % 2 = 0, array({', '.join(rows)}), array({', '.join(rows[:2])}))) as fact"
    )
    return told.selectExpr(
        "fact.op as op", "id", "fact.client as client", "'orders' as queue", "fact.number as number",
        "fact.at_ms as at_ms", "false as marked",
    )  # fmt: skip
