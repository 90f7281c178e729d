"""Stories about the session that jobs run in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from qpid_ha_pipeline import register
from qpid_ha_pipeline.session import limit_shuffle_partitions, quiet_start, session
from spark_home import archive_of
from written_journal import WrittenJournal

PARTITIONS = "spark.sql.shuffle.partitions"
SESSIONS = """
import json
import os
from pyspark.sql import SparkSession
from qpid_ha_pipeline import register
from qpid_ha_pipeline.session import session

def look(spark):
    level = spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString()
    return [level, dict(os.environ), dict(spark.conf.getAll)]

users = SparkSession.builder.getOrCreate()
before = look(users)
register(users)
is_untouched = look(users) == before
users.stop()

ours = session(spark_sql_shuffle_partitions="7")
names = ("spark.master", "spark.ui.enabled", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
print(json.dumps([is_untouched, look(ours)[0], *map(ours.conf.get, names)]))
"""


@pytest.fixture
def untouched(spark: SparkSession) -> SparkSession:
    """A session on two local cores in which nobody has set the number of partitions."""
    session = spark.newSession()
    session.conf.unset(PARTITIONS)
    return session


def test_a_shuffle_on_this_machine_has_partitions_for_its_cores(untouched: SparkSession) -> None:
    limit_shuffle_partitions(untouched)

    assert untouched.conf.get(PARTITIONS) == "8"


def test_a_number_of_partitions_that_somebody_set_stays(untouched: SparkSession) -> None:
    untouched.conf.set(PARTITIONS, "200")

    limit_shuffle_partitions(untouched)

    assert untouched.conf.get(PARTITIONS) == "200"


def test_a_number_of_partitions_in_sparks_own_configuration_stays(spark: SparkSession) -> None:
    """As of `spark-defaults.conf` and `--conf`: a session has it from its context."""
    session = spark.newSession()

    limit_shuffle_partitions(session)

    assert session.conf.get(PARTITIONS) == spark.sparkContext.getConf().get(PARTITIONS) == "2"


def test_another_session_of_the_same_application_has_the_sources_once_they_are_registered_there(
    spark: SparkSession, journal: WrittenJournal
) -> None:
    """Also while the first one is the active session, which stays that."""
    journal.start(1)
    journal.declare("orders")
    other = spark.newSession()
    assert spark._jvm is not None
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)

    register(other)

    assert spark._jvm.SparkSession.getActiveSession().get().equals(spark._jsparkSession)
    for each in (other, spark):
        assert each.read.format("qpid-journal").load(str(journal.data_dir)).count() == 2
    register(other)


@pytest.fixture
def loud(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests, with a log level that somebody has chosen."""
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.sparkContext.setLogLevel("FATAL")


def test_the_sessions_of_tests_begin_with_an_archive_of_classes_if_java_has_made_one(spark: SparkSession) -> None:
    """With another class path it would go without, and say nothing."""
    assert spark._jvm is not None
    process = spark._jvm.java.lang.ProcessHandle.current().pid()
    assert (archive_of(os.environ) or "") in Path(f"/proc/{process}/maps").read_text()


def log_level(spark: SparkSession) -> str:
    assert spark._jvm is not None
    return str(spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())


def test_a_session_that_exists_stays_as_it_is(loud: SparkSession) -> None:
    before = (dict(loud.conf.getAll), dict(os.environ))

    assert session("local[1]") is loud

    assert (dict(loud.conf.getAll), dict(os.environ)) == before
    assert log_level(loud) == "ERROR"


def test_sparks_configuration_counts_and_our_defaults_only_in_a_new_session_where_it_says_nothing(
    tmp_path: Path,
) -> None:
    lines = ("spark.master local[3]", "spark.sql.session.timeZone Asia/Tokyo", "spark.log.level ERROR")
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, "ERROR", "local[3]", "false", "Asia/Tokyo", "7"]


def test_java_starts_without_a_word_unless_somebody_has_said_what_spark_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """test_pipeline_demo.py has a job that starts so."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC")
    (option,) = quiet_start().values()
    assert Path(option.removeprefix("-Dlog4j2.configurationFile=file://")).read_text().startswith("#")
    for name, value in (
        ("JDK_JAVA_OPTIONS", "-Dlog4j2.configurationFile=mine.xml"),
        ("LOG4J_CONFIGURATION_FILE", "mine.xml"),
    ):
        with monkeypatch.context() as said:
            said.setenv(name, value)
            assert quiet_start() == {}
    (tmp_path / "log4j2.properties").touch()
    assert quiet_start() == {}
