"""The Spark session that jobs run in."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from . import register

_QUIET = "FATAL"
"""What goes wrong comes to who asked, as an exception: Spark's log would show it a second time, with its Java stack."""
_LOOPBACK = "127.0.0.1"


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
    register(spark)
    return spark


_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
