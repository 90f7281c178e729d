"""The Spark session that jobs run in."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from . import register

_QUIET = "FATAL"
"""What goes wrong comes to who asked, as an exception: Spark's log would show it a second time, with its Java stack."""
_LOOPBACK = "127.0.0.1"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_PARTITIONS_PER_CORE = 4
_SPARKS_PARTITIONS = 200
"""Spark's own default, whatever the number of cores."""


def session(master: str = "local[*]", *, name: str = "qpid-ha-pipeline", **settings: str) -> SparkSession:
    """A session with our data sources. `settings`: Spark's own, with `_` for `.`, over the defaults here.

    On one machine the workers run with the Python that runs this; elsewhere PYSPARK_PYTHON says which.
    """
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # nobody else is to reach it
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_DEFAULTS, **{key.replace("_", "."): value for key, value in settings.items()}}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(_QUIET)
    if master.startswith("local"):
        limit_shuffle_partitions(spark)
    register(spark)
    return spark


def limit_shuffle_partitions(spark: SparkSession) -> None:
    """As many as the cores of a local master are worth. What somebody has set stays.

    Each partition costs a file to write and a task to schedule: with Spark's 200, most of what a job over a journal of
    some MB takes on two cores.
    """
    if _SHUFFLE_PARTITIONS not in spark.conf.getAll:
        partitions = min(_SPARKS_PARTITIONS, _PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism)
        spark.conf.set(_SHUFFLE_PARTITIONS, str(partitions))


_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
