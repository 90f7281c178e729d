"""docs/pipeline.md: its examples run, and its tables say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from doc_blocks import DOCS, titled_blocks
from live_query import publish
from qpid_ha_pipeline.amqp.options import READ_NAMES, WRITE_NAMES
from qpid_ha_pipeline.amqp.rows import COLUMNS as LIVE_COLUMNS
from qpid_ha_pipeline.jobs.audit import HISTORY_COLUMNS
from qpid_ha_pipeline.options import _NAMES
from qpid_ha_pipeline.schema import COLUMNS, DAMAGE, ON_REQUEST
from running_broker import RunningBroker
from written_journal import WrittenJournal, amqp

PAGE = (DOCS / "pipeline.md").read_text(encoding="utf-8")


@pytest.fixture
def filled(journal: WrittenJournal) -> WrittenJournal:
    """Two queues, with three messages left in the one, and one in the other."""
    journal.start(1)
    orders, billing = journal.declare("orders"), journal.declare("billing")
    ids = journal.enqueue(orders, *[amqp("an order")] * 5)
    journal.enqueue(billing, amqp("a bill"))
    journal.dequeue(orders, ids[:2])
    return journal


def test_the_examples_run(
    spark: SparkSession,
    filled: WrittenJournal,
    broker: RunningBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = titled_blocks("pipeline.md", "python")
    publish(broker.url, "orders", "one", "two")
    publish(broker.url, "inbox", "one")
    given = {
        "brokers": broker.url, "live_checkpoint": str(tmp_path / "live"),
        "once_checkpoint": str(tmp_path / "once"), "consume_checkpoint": str(tmp_path / "taken"),
        "consume_output": str(tmp_path / "inbox"),
        "data_dir": str(filled.data_dir), "checkpoint": str(tmp_path / "checkpoint"), "output": str(tmp_path / "out"),
        "spark": spark,
    }  # fmt: skip
    del blocks["avro-bodies"]  # for bodies that are Avro: see test_bodies
    for title, text in blocks.items():
        exec(compile(text, title, "exec"), given)
    assert "orders|    5" in capsys.readouterr().out
    assert given["few"].count() == 6  # type: ignore[attr-defined]
    assert (given["good"].count(), given["damaged"].count()) == (11, 0)  # type: ignore[attr-defined]
    assert spark.read.parquet(str(tmp_path / "out")).count() == 11
    assert "<svg" in given["html"]  # type: ignore[operator]
    assert given["busiest"] == "orders"
    given["journal"].createOrReplaceTempView("journal")  # type: ignore[attr-defined]
    once = spark.read.format("qpid-amqp").options(brokers=broker.url, queue="orders-once").load()
    assert sorted(row.body_text for row in once.collect()) == ["one", "two"]
    copied = spark.read.format("qpid-amqp").options(brokers=broker.url, queue="orders-copy").load()
    assert sorted(row.body_text for row in copied.collect()) == ["one", "two"]
    for queue in ("orders-restored", "orders-parts"):
        copied = spark.read.format("qpid-amqp").options(brokers=broker.url, queue=queue).load()
        assert [row.body_text for row in copied.collect()] == ["an order"] * 5
    assert given["lost"].count() == 0  # type: ignore[attr-defined]
    left = spark.sql(titled_blocks("pipeline.md", "sql")["what-is-left"]).collect()
    assert {row.queue: row.messages for row in left} == {"orders": 3, "billing": 1}


def test_the_table_of_columns_is_the_schema() -> None:
    for column in (*COLUMNS, *ON_REQUEST, DAMAGE):
        assert f"| `{column.name}` | {column.type.simpleString()} | {column.meaning} |" in PAGE
    table = PAGE.split("### Columns")[1].split("### Types")[0]
    assert len(re.findall(r"^\| `\w+` \| ", table, re.MULTILINE)) == len(COLUMNS) + len(ON_REQUEST) + 1


def test_every_option_is_told() -> None:
    table = PAGE.split("| option | default | |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines()[2:]))) == set(_NAMES)


def test_every_option_of_live_queues_is_told() -> None:
    section = PAGE.split("## Live queues")[1].split("## Jobs")[0]
    reading, writing = section.split("### Writing")
    for part, names in ((reading, READ_NAMES), (writing, WRITE_NAMES)):
        rows = part.split("| option | default | |")[1].split("\n\n")[0].splitlines()[2:]
        told = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in rows)))
        assert told | {"path", "maxRowsPerTrigger", "numPartitions"} >= set(names)
        assert told <= set(names)
    assert all(f"`{name}`" in reading for name in LIVE_COLUMNS)


def test_the_history_in_the_example_is_one() -> None:
    for line in titled_blocks("pipeline.md", "json")["history"].splitlines():
        assert tuple(sorted(json.loads(line))) == tuple(sorted(HISTORY_COLUMNS))
