"""What Spark's UI says of jobs: what they are, instead of a line number in our code."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from pyspark.sql import SparkSession

from qpid_ha_pipeline.descriptions import described
from qpid_ha_pipeline.main import main
from written_journal import WrittenJournal


def descriptions(spark: SparkSession, since: int) -> list[str]:
    """Of Spark's jobs with numbers from `since` up, oldest first; empty where there is none."""
    scala = spark._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    jobs = scala.statusStore().jobsList(None)
    known = [(jobs.apply(at).jobId(), jobs.apply(at).description()) for at in range(jobs.size())]
    return [text.get() if text.isDefined() else "" for number, text in sorted(known, key=lambda job: job[0])
            if number >= since]  # fmt: skip


def next_job(spark: SparkSession) -> int:
    scala = spark._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    jobs = scala.statusStore().jobsList(None)
    return max((jobs.apply(at).jobId() for at in range(jobs.size())), default=-1) + 1


def test_a_job_says_in_sparks_ui_what_it_is(spark: SparkSession, tmp_path: Path) -> None:
    journal = WrittenJournal(tmp_path / "alpha")
    journal.start(1)
    journal.write_status()
    since = next_job(spark)
    done = CliRunner().invoke(main, ["stores", str(journal.data_dir), "--format", "json"])
    assert done.exit_code in (0, 1), done.output
    assert set(descriptions(spark, since)) == {"qpid-ha-pipeline: looking at stores"}


def test_what_was_said_before_is_said_again(spark: SparkSession) -> None:
    since = next_job(spark)
    with described(spark, "outer"):
        with described(spark, "inner"):
            spark.range(1).rdd.count()
        spark.range(1).rdd.count()
    spark.range(1).rdd.count()
    found = descriptions(spark, since)
    assert (found[0], found[1]) == ("inner", "outer")
    assert "outer" not in found[2:]
