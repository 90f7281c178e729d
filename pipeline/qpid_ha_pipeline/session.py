"""The Spark session that jobs run in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from . import register

_LOG_LEVEL = "spark.log.level"
_QUIET = "FATAL"
"""What goes wrong comes to who asked, as an exception: Spark's log would show it a second time, with its Java stack."""
_LOOPBACK = "127.0.0.1"
_LOCAL = "local[*]"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_PARTITIONS_PER_CORE = 4
_SPARKS_PARTITIONS = 200
"""Spark's own default, whatever the number of cores."""
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_SAYS_MASTER = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "MASTER")
"""Variables by which `spark-submit` and Spark's scripts say how to run."""


def session(master: str | None = None, *, name: str = "qpid-ha-pipeline", **settings: str) -> SparkSession:
    """The session that there is, else a new one, with our data sources.

    A session that exists keeps its master and its settings. A new one has `master`; without it, the one of Spark's
    configuration (spark-submit, `spark-defaults.conf`), and `local[*]` where there is none. `settings` are Spark's own,
    with `_` for `.`; what neither they nor Spark's configuration say is quiet, in UTC, and without a web page.
    """
    given = {key.replace("_", "."): value for key, value in settings.items()}
    found = SparkSession.getActiveSession()
    if found is None and SparkContext._active_spark_context is None:
        found = _new_session(master, name, given)
    else:
        builder = SparkSession.builder
        for key, value in given.items():
            builder = builder.config(key, value)
        found = builder.getOrCreate()
    register(found)
    return found


def _new_session(master: str | None, name: str, given: dict[str, str]) -> SparkSession:
    if master is None and _is_unconfigured():
        master = _LOCAL
    if master is not None:
        given = {"spark.master": master, **given}
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # nobody else is to reach it
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Memory and the like only a JVM that is not there yet can take; only one that is there knows Spark's configuration.
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(given.items())))
    configured = SparkConf()
    is_local = given.get("spark.master", configured.get("spark.master", _LOCAL)).startswith("local")
    if is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**_DEFAULTS, **given}.items():
        if key in given or not configured.contains(key):
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not configured.contains(_LOG_LEVEL) and _LOG_LEVEL not in given:
        spark.sparkContext.setLogLevel(_QUIET)
    if is_local:
        limit_shuffle_partitions(spark)
    return spark


def _is_unconfigured() -> bool:
    """Whether nothing is there by which somebody may have told Spark how to run."""
    directory = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    return (
        not any(os.environ.get(name) for name in _SAYS_MASTER) and not Path(directory, "spark-defaults.conf").exists()
    )


def limit_shuffle_partitions(spark: SparkSession) -> None:
    """As many as the cores of a local master are worth. What somebody has set stays.

    Each partition costs a file to write and a task to schedule: with Spark's 200, most of what a job over a journal of
    some MB takes on two cores.
    """
    if _SHUFFLE_PARTITIONS not in spark.conf.getAll:
        partitions = min(_SPARKS_PARTITIONS, _PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism)
        spark.conf.set(_SHUFFLE_PARTITIONS, str(partitions))
