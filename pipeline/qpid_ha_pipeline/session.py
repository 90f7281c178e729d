"""The Spark session that jobs run in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession
from pyspark.util import is_remote_only

from . import register
from .errors import PipelineError
from .masters import check_master, check_remote, names_local
from .requirements import GATEWAY

_LOG_LEVEL: Final = "spark.log.level"
_QUIET: Final = "FATAL"
"""What goes wrong comes to who asked, as an exception: Spark's log would show it a second time, with its Java stack."""
_LOOPBACK: Final = "127.0.0.1"
_LOCAL: Final = "local[*]"
_MASTER: Final = "spark.master"
_REMOTE: Final = "SPARK_REMOTE"
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_PER_CORE: Final = 4
_SPARKS_PARTITIONS: Final = 200
"""Spark's own default, whatever the number of cores."""
_OF_APPLICATION: Final = {"spark.ui.enabled": "false"}
_CONSOLE_PROGRESS: Final = "spark.ui.showConsoleProgress"
"""Spark turns it on for every Java that Python starts, so nobody can tell whether a user did; jobs have a bar."""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOGGING: Final = "log4j2.properties"
"""In Spark's configuration, or beside this module: the log level of a session comes too late for how Java starts."""
_SAYS_OPTIONS: Final = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "LOG4J_CONFIGURATION_FILE")
_OF_SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_SAYS_MASTER: Final = (GATEWAY, "PYSPARK_SUBMIT_ARGS", "MASTER")
"""Variables by which `spark-submit` and Spark's scripts say how to run."""


def session(
    master: str | None = None, *, remote: str | None = None, name: str = "qpid-ha-pipeline", **settings: str
) -> SparkSession:
    """The session that there is, else a new one, with our data sources.

    A session that exists keeps its master and its settings. A new one has `master`; or it is a session of the Connect
    server at `remote` (`sc://HOST:PORT`); without either, what SPARK_REMOTE or Spark's configuration says
    (spark-submit, `spark-defaults.conf`), and `local[*]` where they say nothing. `settings` are Spark's own, with `_`
    for `.`; what neither they nor Spark's configuration say is quiet, in UTC, and without a web page.

    Raises PipelineError for a master that is none, and PySparkException where Spark does not start.
    """
    given = {key.replace("_", "."): value for key, value in settings.items()}
    spark = _builder(given).getOrCreate() if _is_running() else _new_session(master, remote, name, given)
    register(spark)
    return spark


def _is_running() -> bool:
    if SparkSession.getActiveSession() is not None:
        return True
    if is_remote_only():
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _new_session(master: str | None, remote: str | None, name: str, given: dict[str, str]) -> SparkSession:
    if master is not None and (remote is not None or _REMOTE in os.environ):
        raise PipelineError("a master and a Connect server are given (--remote, SPARK_REMOTE): leave one of them out")
    remote = remote or os.environ.get(_REMOTE)
    if remote is None:
        return _session_of_application(master, name, given)
    if not remote.startswith("local"):  # Spark starts that server itself
        check_remote(remote)
    spark = _builder(given).appName(name).remote(remote).getOrCreate()
    _set_where_nothing_is_said(spark, _OF_SESSION)
    return spark


def _session_of_application(master: str | None, name: str, given: dict[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext

    if _is_unconfigured():
        master = _LOCAL if master is None else master
        given = {**quiet_start(), **given}
    if master is not None:
        check_master(master)
        given = {_MASTER: master, **given}
        if names_local(master):
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # nobody else is to reach it
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Memory and the like only a JVM that is not there yet can take; only one that is there knows Spark's configuration.
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(given.items())))
    configured = SparkConf()
    is_local = names_local(given.get(_MASTER) or configured.get(_MASTER) or _LOCAL)
    if is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {key: value for key, value in _OF_APPLICATION.items() if not configured.contains(key)}
    if GATEWAY not in os.environ:
        defaults[_CONSOLE_PROGRESS] = "false"
    spark = _builder({**defaults, **given}).appName(name).getOrCreate()
    _set_where_nothing_is_said(spark, _OF_SESSION)
    if not configured.contains(_LOG_LEVEL) and _LOG_LEVEL not in given:
        spark.sparkContext.setLogLevel(_QUIET)
    if is_local:
        limit_shuffle_partitions(spark)
    return spark


def _builder(settings: dict[str, str]) -> SparkSession.Builder:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


def _set_where_nothing_is_said(spark: SparkSession, defaults: dict[str, str]) -> None:
    said = spark.conf.getAll
    for key, value in defaults.items():
        if key not in said:
            spark.conf.set(key, value)


def _is_unconfigured() -> bool:
    """Whether nothing is there by which somebody may have told Spark how to run."""
    is_told = any(os.environ.get(name) for name in _SAYS_MASTER)
    return not is_told and not Path(_configuration(), "spark-defaults.conf").exists()


def quiet_start() -> dict[str, str]:
    """What keeps Java quiet that starts where Spark is not configured, if nobody has said what Spark shall log."""
    logging_file = Path(__file__).with_name(_LOGGING)
    is_said = Path(_configuration(), _LOGGING).exists() or any(
        "log4j" in f"{name}={os.environ.get(name, '')}".lower() for name in _SAYS_OPTIONS if name in os.environ
    )
    if is_said or not logging_file.is_file():  # in an archive it is no file
        return {}
    return {_JAVA_OPTIONS: f"-Dlog4j2.configurationFile={logging_file.as_uri()}"}


def _configuration() -> str:
    """The directory of Spark's own."""
    return os.environ.get("SPARK_CONF_DIR") or str(Path(_find_spark_home(), "conf"))


def limit_shuffle_partitions(spark: SparkSession) -> None:
    """As many as the cores of a local master are worth. What somebody has set stays.

    Each partition costs a file to write and a task to schedule: with Spark's 200, most of what a job over a journal of
    some MB takes on two cores.
    """
    if _SHUFFLE_PARTITIONS not in spark.conf.getAll:
        partitions = min(_SPARKS_PARTITIONS, _PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism)
        spark.conf.set(_SHUFFLE_PARTITIONS, str(partitions))
