"""How what a job takes grows with what it reads: each job over a small fleet, then 10 and 100 times as much."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.figures import Measurement
from bench.load_client import BenchError
from bench.scenario import Scenario
from bench.store import MB, disk_directory
from bench.usage import Work, tree_processor_s
from qpid_ha_broker.events import types as ev
from running_broker import RunningBroker
from written_journal import WrittenJournal, amqp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from qpid_ha_pipeline.journal.survey import SurveyedStore

CORES: Final = 2
QUEUES: Final = 10
TURN: Final = 100
BODY_BYTES: Final = 900
SMALL: Final = 1000
"""Messages in the smallest fleet."""


class Fleet(NamedTuple):
    """What two brokers left, and what their clients wrote down."""

    paths: tuple[str, ...]
    history: str
    messages: int
    bytes: int


def make_fleet(directory: Path, messages: int) -> Fleet:
    """Each message twice, half of them consumed; the second broker led the last quarter."""
    stores = [WrittenJournal(directory / name, name, generation=0, segment_bytes=4 << 20) for name in ("one", "two")]
    for store in stores:
        store.write(ev.GenerationStarted(1, "one", store.identity.cluster, store.now_ms, False, "first start"))
        store.write(ev.InSyncChanged(1, ("one", "two")))
        for number in range(QUEUES):
            store.declare(f"queue-{number}")
    queues = range(3, 3 + QUEUES)
    with (directory / "history.json").open("w", encoding="utf-8") as history:
        for first in range(0, messages, TURN):
            numbers = range(first, min(first + TURN, messages))
            queue = queues[first // TURN % QUEUES]
            payloads = [amqp("x" * BODY_BYTES, id=f"m{number}", durable=True) for number in numbers]
            for store in stores:
                if 4 * first >= 3 * messages > 4 * (first - TURN):
                    _take_over(store)
                store.now_ms += 10
                ids = store.enqueue(queue, *payloads)
                store.dequeue(queue, ids[::2])
                if (first // TURN) % max(1, messages // TURN // 4) == 0:
                    store.roll()
            _note(history.write, numbers, f"queue-{queue - 3}")
    for store in stores:
        store.write_status()
        store.journal.close()
    length = sum(segment.end for store in stores for segment in _looked_at(store).segments)
    paths = tuple(str(store.data_dir) for store in stores)
    return Fleet(paths, str(directory / "history.json"), messages, length)


def _looked_at(store: WrittenJournal) -> SurveyedStore:
    from qpid_ha_pipeline.journal.stores import Directory
    from qpid_ha_pipeline.journal.survey import look

    return look(Directory(str(store.directory)), is_permissive=False, piece_bytes=MB)


def _take_over(store: WrittenJournal) -> None:
    store.now_ms += 500
    store.write(ev.GenerationStarted(2, "two", store.identity.cluster, store.now_ms, False, "one is gone"))
    store.write(ev.InSyncChanged(2, ("two",)))


def _note(write: Callable[[str], object], numbers: range, queue: str) -> None:
    """What a publisher and a consumer saw of them."""
    for number in numbers:
        ops = ("sent", "accepted", *(["received"] if (number - numbers.start) % 2 == 0 else []))
        for op in ops:
            client = "consumer" if op == "received" else "publisher"
            row = {
                "op": op, "id": f"m{number}", "client": client, "queue": queue,
                "number": None if op == "received" else number, "at_ms": number, "marked": False,
            }  # fmt: skip
            write(json.dumps(row) + "\n")


def _journal(spark: SparkSession, fleet: Fleet, *columns: str, **options: str) -> DataFrame:
    source = spark.read.format("qpid-journal").option("paths", json.dumps(fleet.paths)).options(**options)
    return source.option("columns", ",".join(columns)).load()


def _count(spark: SparkSession, fleet: Fleet) -> int:
    rows = _journal(spark, fleet, "event", "queue").groupBy("event", "queue").count().collect()
    return sum(int(row["count"]) for row in rows if row.event == "enqueued")


def _stores(spark: SparkSession, fleet: Fleet) -> int:
    from qpid_ha_pipeline.jobs.stores import facts

    found = facts(spark, fleet.paths)
    return fleet.messages if sum(map(len, found.values())) == 2 else 0


def _snapshots(spark: SparkSession, fleet: Fleet) -> int:
    from qpid_ha_pipeline.jobs.consolidate import snapshots

    found = snapshots(spark, fleet.paths, f"{fleet.history}-snapshots")
    return 0 if any(each.why_not for each in found) else fleet.messages


def _rows(spark: SparkSession, fleet: Fleet) -> int:
    from qpid_ha_pipeline.jobs.consolidate import rows

    with TemporaryDirectory(prefix=f"{Path(fleet.history).name}-", dir=Path(fleet.history).parent) as output:
        written = rows(spark, fleet.paths, f"{output}/rows")  # what is there already is not written again
    return fleet.messages if written > fleet.messages else 0


def _failovers(spark: SparkSession, fleet: Fleet) -> int:
    from qpid_ha_pipeline.jobs.failovers import COLUMNS, timelines

    (found,) = timelines(_journal(spark, fleet, *COLUMNS, replicas="all"))
    return fleet.messages if len(found.generations) == 2 else 0


def _audit(spark: SparkSession, fleet: Fleet) -> int:
    from qpid_ha_pipeline.jobs.audit import JOURNAL_COLUMNS, audit
    from qpid_ha_pipeline.jobs.history import read_history

    found = audit(read_history(spark, [fleet.history]), _journal(spark, fleet, *JOURNAL_COLUMNS))
    return found.confirmed if found.is_flawless else 0


def _replay(spark: SparkSession, fleet: Fleet) -> int:
    from qpid_ha_pipeline.amqp.options import WriteOptions
    from qpid_ha_pipeline.jobs.replay import COLUMNS, replay

    with RunningBroker() as broker:
        return replay(_journal(spark, fleet, *COLUMNS), WriteOptions.parse({"brokers": broker.url}))


JOBS: Final[dict[str, Callable[[SparkSession, Fleet], int]]] = {
    "count": _count,
    "stores": _stores,
    "consolidate": _snapshots,
    "consolidate-rows": _rows,
    "failovers": _failovers,
    "audit": _audit,
    "replay": _replay,
}


@contextmanager
def bench_session(**settings: str) -> Iterator[SparkSession]:
    """Spark on the cores that figures are made for."""
    from qpid_ha_pipeline.session import session

    spark = session(f"local[{CORES}]", name="bench", **settings)
    try:
        yield spark
    finally:
        spark.stop()


def spark_works(run: Callable[[], int], expected: int, times: int) -> list[Work]:
    """What it took each time, of all processes. Raises BenchError when it did not answer with `expected` messages."""
    works = []
    for _ in range(times):
        with Work(tree_processor_s) as work:
            count = run()
        if count != expected:
            raise BenchError(f"expected a job over {expected} messages, found {count}")
        works.append(work)
    return works


def measure_growth(scenario: Scenario) -> Iterator[Measurement]:
    """Each job over each fleet; the smallest one has a run before, which warms up."""
    is_quick = scenario.folded_mb < 100
    factors, small = ((1,), 4 * TURN) if is_quick else ((1, 10, 100), SMALL)
    with bench_session(spark_sql_shuffle_partitions=str(CORES)) as spark:
        for factor in factors:
            with disk_directory() as directory:
                fleet = make_fleet(directory / "fleet", small * factor)
                for name, job in JOBS.items():
                    runs = 1 if is_quick else 2 if factor == 100 else 3
                    works = spark_works(partial(job, spark, fleet), fleet.messages, runs)
                    label = f"{name}, {fleet.messages:,} messages, {fleet.bytes / MB:,.1f} MB"
                    note = ", ".join(f"{work.elapsed_s:.2f} s" for work in works)
                    worked_s = [work.processor_s for work in works if work.processor_s > 0]  # less: a worker has ended
                    note += f"; {min(worked_s):.2f} s of processors" if worked_s else ""
                    best_s = min(work.elapsed_s for work in works)
                    yield Measurement(f"growth_{name}_{factor}", label, best_s, "s", note)
