"""Histories of clients: a line that is no row is an error that names file and line, never nulls that nobody counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from qpid_ha_pipeline.errors import PipelineError, reason_of
from qpid_ha_pipeline.jobs.audit import HISTORY_COLUMNS
from qpid_ha_pipeline.jobs.history import TYPES, read_history
from qpid_ha_pipeline.main import main
from written_journal import WrittenJournal, amqp

GOOD = {"op": "sent", "id": "m1", "client": "p", "queue": "orders", "number": 1, "at_ms": 17, "marked": None}
RECEIVED = {**GOOD, "op": "received", "number": None, "at_ms": 21.5, "marked": False}


def read(spark: SparkSession, path: Path, form: str = "json") -> list[tuple[object, ...]]:
    """All rows, with every column."""
    return [tuple(row) for row in read_history(spark, [str(path)], form).collect()]


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_rows_keep_their_types(spark: SparkSession, tmp_path: Path) -> None:
    path = write(
        tmp_path / "history.json", json.dumps({**GOOD, "id": 7, "extra": "is nobody's"}), "", json.dumps(RECEIVED)
    )
    assert read(spark, path) == [
        ("sent", "7", "p", "orders", 1, 17.0, None),
        ("received", "m1", "p", "orders", None, 21.5, False),
    ]
    assert tuple(TYPES) == HISTORY_COLUMNS


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (json.dumps(GOOD)[:-9], "is no row of a history"),
        ("[]", "is no row of a history"),
        ("null", "is no row of a history"),
        ("17", "is no row of a history"),
        ("free text", "is no row of a history"),
        (json.dumps(GOOD) + json.dumps(GOOD), "is no row of a history"),
        (json.dumps({**GOOD, "number": "first"}), "is no row of a history"),
        (json.dumps({**GOOD, "marked": "maybe"}), "is no row of a history"),
        ("{}", "has no op"),
        (json.dumps({**GOOD, "op": "send"}), "has an op that is none of sent, accepted"),
        (json.dumps({**GOOD, "id": None}), "has no id"),
        (json.dumps({**RECEIVED, "at_ms": None}), "has no at_ms"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_row_is_an_error_with_file_and_line(
    spark: SparkSession, tmp_path: Path, line: str, problem: str
) -> None:
    path = write(tmp_path / "history.json", *[json.dumps(GOOD)] * 3, line, json.dumps(RECEIVED))
    with pytest.raises(PySparkException) as caught:
        read_history(spark, [str(path)]).groupBy("op").count().collect()
    reason = reason_of(caught.value) or ""
    assert f"{path}: this line {problem}" in reason
    assert line[:100] in reason
    assert len(reason) < len(str(path)) + 400
    assert "SQLSTATE" not in reason


@pytest.mark.parametrize("line", ["sent,m2,p,orders,first,17,", "sent,m2,p", "send,m2,p,orders,1,17,"])
def test_so_it_is_in_csv(spark: SparkSession, tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "history.csv", ",".join(TYPES), "sent,m1,p,orders,1,17,")
    assert read(spark, path, "csv") == [("sent", "m1", "p", "orders", 1, 17.0, None)]
    write(path, ",".join(TYPES), "sent,m1,p,orders,1,17,", line)
    with pytest.raises(PySparkException) as caught:
        read_history(spark, [str(path)], "csv").groupBy("op").count().collect()
    assert f"{path}: this line" in (reason_of(caught.value) or "")


def test_a_table_lacks_no_column(spark: SparkSession, tmp_path: Path) -> None:
    schema = "op STRING, id STRING, client STRING, queue STRING, number INT, at_ms INT, marked BOOLEAN"
    rows = spark.createDataFrame([tuple(GOOD.values())], schema)
    rows.write.parquet(str(tmp_path / "whole"))
    assert read(spark, tmp_path / "whole", "parquet") == [("sent", "m1", "p", "orders", 1, 17.0, None)]
    rows.drop("marked").write.parquet(str(tmp_path / "part"))
    with pytest.raises(PipelineError, match="marked is missing"):
        read(spark, tmp_path / "part", "parquet")


def test_an_audit_over_a_torn_history_is_no_verdict(
    spark: SparkSession, journal: WrittenJournal, tmp_path: Path
) -> None:
    """Of a message that was confirmed and never came, the confirmation is the line that is torn."""
    journal.start(1)
    queue = journal.declare("orders")
    journal.dequeue(queue, journal.enqueue(queue, amqp("body", id="m1")))
    accepted = json.dumps({**GOOD, "op": "accepted"})
    path = write(tmp_path / "history.json", json.dumps(GOOD), accepted)
    assert CliRunner().invoke(main, ["audit", str(journal.data_dir), "--history", str(path)]).exit_code == 1
    write(path, json.dumps(GOOD), accepted[:40])
    result = CliRunner().invoke(main, ["audit", str(journal.data_dir), "--history", str(path)])
    assert result.exit_code == 3, result.output
    assert result.stderr.count("\n") == 1
    assert accepted[:40] in result.stderr
