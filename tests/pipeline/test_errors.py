"""Stories about errors: one line that says what is wrong and what to do, wherever it went wrong."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from plain_python import plain_python
from qpid_ha_pipeline import register
from qpid_ha_pipeline.errors import PipelineError, in_words_of_commands, reason_of
from qpid_ha_pipeline.main import FAILED, main
from qpid_ha_pipeline.masters import check_master, check_remote
from qpid_ha_pipeline.requirements import check_requirements
from running_broker import RunningBroker

CLOSED = "127.0.0.1:1"
"""A port on which nobody listens."""


def java_that_prints(directory: Path, version: str) -> Path:
    """A home of Java that knows no more than to say its version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return directory


@pytest.mark.parametrize(("version", "number"), [("11.0.2", 11), ("1.8.0_402", 8)])
def test_a_java_that_is_too_old_is_named(
    version: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_that_prints(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    done = CliRunner().invoke(main, ["stores", str(tmp_path)])
    assert done.exit_code == FAILED
    assert done.stderr.startswith(f"qpid-ha-pipeline: {home}/bin/java is Java {number}, which is too old for Spark: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_is_new_enough_will_do(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_prints(tmp_path, version)))
    check_requirements(is_remote=False)


def test_no_java_at_all_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(PipelineError, match="there is no java on PATH, and JAVA_HOME is not set"):
        check_requirements(is_remote=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match="there is no bin/java that can be run"):
        check_requirements(is_remote=False)
    check_requirements(is_remote=True)  # Spark runs elsewhere


def test_without_pyspark_the_command_says_what_to_install(tmp_path: Path) -> None:
    python = plain_python(tmp_path / "environment", without=("pyspark",))
    done = subprocess.run(
        [python, "-m", "qpid_ha_pipeline.main", "stores", str(tmp_path)],
        env=dict(os.environ), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == FAILED
    assert done.stderr.startswith("qpid-ha-pipeline: the library pyspark cannot be imported (No module named ")
    assert "pip install qpid-ha-pipeline" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_pyspark_that_is_too_old_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    with pytest.raises(PipelineError, match=r"PySpark 4\.1\.4 is too old: .*install 4\.2 or newer"):
        register(spark)


def test_a_master_or_a_server_that_is_none_is_refused_before_spark_starts() -> None:
    for master, reason in (
        ("lokal", "'lokal' is no master of Spark"),
        ("sc://localhost", "goes to --remote"),
        (f"spark://{CLOSED}", "no master of Spark answers there"),
    ):
        with pytest.raises(PipelineError, match=reason):
            check_master(master)
    for master in ("local", "local[4]", "local[*]", "local-cluster[2,1,512]", "yarn", "k8s://https://host:443"):
        check_master(master)
    with pytest.raises(PipelineError, match="is no URL of a Connect server"):
        check_remote("localhost:15002")


def test_what_a_sink_meets_on_an_executor_is_told_in_two_lines(spark: SparkSession, broker: RunningBroker) -> None:
    row = spark.sql("select 'text' as value, 300 as priority")
    with pytest.raises(PySparkException) as caught:
        row.write.format("qpid-amqp").options(brokers=broker.url, target="any").mode("append").save()
    assert reason_of(caught.value) == "priority is 300: expected 0 to 255"
    assert "Traceback" not in str(caught.value)


def test_executors_that_lack_something_are_told_of() -> None:
    for text, reason in (
        ("ModuleNotFoundError: No module named 'pyarrow'", "the executors' Python has no pyarrow: install it there"),
        ("[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed", "the executors' Python has no PyArrow: "),
        ("No module named 'qpid_ha_pipeline'", "the executors have no qpid_ha_pipeline: call"),
        ('java.io.IOException: Cannot run program "python3.14": error=2', "the executors have no program python3.14: "),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker",
            "the executors have another version of Python than this process",
        ),
    ):
        assert str(reason_of(PySparkException(text))).startswith(reason)
    assert reason_of(PySparkException("[TABLE_OR_VIEW_NOT_FOUND] no such table")) is None


def test_advice_names_what_a_command_takes_and_not_the_options_of_a_data_source() -> None:
    offered = {option for each in main.commands["consolidate"].params for option in (*each.opts, *each.secondary_opts)}
    told = in_words_of_commands("it is gone; set failOnDataLoss=false, or use the option mode=permissive")
    assert told == "it is gone; set --no-fail-on-data-loss, or use the option --mode permissive"
    assert {"--no-fail-on-data-loss", "--mode"} <= offered
