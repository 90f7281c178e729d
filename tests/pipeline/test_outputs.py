"""Stories about outputs that cannot be written: jobs say so before their work, in a line, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from qpid_ha_pipeline.main import FAILED, main
from written_journal import WrittenJournal, amqp

REPLAY = ("replay", "--broker", "amqp://127.0.0.1:1")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.fixture
def old(journal: WrittenJournal) -> WrittenJournal:
    """With a closed segment."""
    journal.start(1)
    journal.enqueue(journal.declare("orders"), amqp("one", id="1"))
    journal.roll()
    journal.declare("billing")
    return journal


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Of which a job that reads it says that it is none."""
    path = tmp_path / "seen" / "history.json"
    path.parent.mkdir()
    path.write_text("no history\n")
    return path


@pytest.mark.parametrize("job", [("stores",), ("failovers",), ("report",), REPLAY], ids=lambda job: str(job[0]))
def test_a_file_that_cannot_be_written_is_told_before_anything_is_read(job: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output, reason in (
        (tmp_path / "absent" / "out", "No such file or directory"),
        (tmp_path / "file" / "out", "Not a directory"),
        (Path("/proc/out"), "No such file or directory"),
    ):
        done = run(*job, tmp_path / "no store", "--output", output)
        assert done.exit_code == FAILED
        assert done.stderr == f"qpid-ha-pipeline: --output {output}: cannot be written ({reason}): choose another\n"
    assert names(tmp_path) == {"file"}


def test_a_file_that_is_there_stays_as_it_is_until_the_job_is_done(spark: SparkSession, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    output.write_text("of yesterday")
    assert run("report", tmp_path / "no store", "--output", output).exit_code == FAILED
    assert output.read_text() == "of yesterday"


def test_a_file_that_became_unwritable_meanwhile_is_told_in_one_line(
    spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    done = run("failovers", old.data_dir, "--output", "/dev/full")
    assert (done.exit_code, done.stderr) == (
        FAILED, "qpid-ha-pipeline: --output /dev/full: No space left on device\n",
    )  # fmt: skip


@pytest.mark.parametrize("what", ["both", "snapshots", "rows"])
def test_a_directory_that_cannot_be_made_is_told_before_a_store_is_folded(
    what: str, spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    before = names(tmp_path)
    for output, reason in ((tmp_path / "file" / "out", "Not a directory"), (Path("/proc/out"), "No such file")):
        done = run("consolidate", old.data_dir, "--output", output, "--what", what)
        assert done.exit_code == FAILED
        assert done.stderr.startswith(f"qpid-ha-pipeline: --output {output}: cannot be written ({reason}")
        assert done.stderr.count("\n") == 1
    assert names(tmp_path) == before


@pytest.mark.parametrize("mode", ["strict", "permissive"])
def test_rows_that_cannot_come_where_others_are_keep_a_run_from_folding(
    mode: str, spark: SparkSession, old: WrittenJournal, tmp_path: Path
) -> None:
    rows = tmp_path / "output" / "events"
    spark.range(3).write.parquet(str(rows))
    done = run("consolidate", old.data_dir, "--output", tmp_path / "output", "--mode", mode)
    assert done.exit_code == FAILED
    assert done.stderr.startswith(f"qpid-ha-pipeline: {rows}: ")
    assert ("move it away" in done.stderr) == (mode == "strict")
    assert done.stderr.count("\n") == 1
    assert spark.read.parquet(str(rows)).count() == 3
    assert not (tmp_path / "output" / "stores").exists()


def test_an_audits_directory_is_looked_at_before_the_history_is_read(
    spark: SparkSession, old: WrittenJournal, history: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    output = tmp_path / "file" / "out"
    done = run("audit", old.data_dir, "--history", history, "--output", output)
    assert done.exit_code == FAILED
    assert done.stderr == f"qpid-ha-pipeline: --output {output}: cannot be written (Not a directory): choose another\n"


def test_an_audit_does_not_write_its_evidence_over_what_it_reads(
    spark: SparkSession, old: WrittenJournal, history: Path, tmp_path: Path
) -> None:
    before = names(tmp_path)
    for output in (old.data_dir, tmp_path, old.data_dir / "default" / "evidence", history.parent):
        done = run("audit", old.data_dir, "--history", history, "--output", output)
        assert done.exit_code == FAILED
        assert done.stderr.startswith(f"qpid-ha-pipeline: --output {output}: the ")
        assert done.stderr.count("\n") == 1
    assert names(tmp_path) == before
