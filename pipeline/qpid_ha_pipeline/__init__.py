"""What brokers write, on Spark: data sources and jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `qpid-journal` and `qpid-amqp` known to a session, and give a cluster's executors the code for them.

    Each session has its own, those of `newSession()`, too. None of the session's settings is changed.
    Raises PipelineError for a PySpark that is too old.
    Whoever sets QPID_HA_PASSWORD to something else afterwards calls it again.
    """
    from .requirements import check_pyspark

    check_pyspark()
    from .amqp_source import AmqpDataSource
    from .environment import environment_handed_over
    from .journal_source import JournalDataSource
    from .py_files import ship_code

    ship_code(spark)  # first: a source takes along what there is when it is registered
    with environment_handed_over(spark), _active(spark):
        spark.dataSource.register(JournalDataSource)
        spark.dataSource.register(AmqpDataSource)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make `spark` the active session meanwhile: there Spark looks whether a source of that name exists already."""
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    if jvm is None or session is None:  # of Spark Connect: its server sees to it
        yield
        return
    before = jvm.SparkSession.getActiveSession()
    jvm.SparkSession.setActiveSession(session)
    try:
        yield
    finally:
        if before.isDefined():
            jvm.SparkSession.setActiveSession(before.get())
        else:
            jvm.SparkSession.clearActiveSession()
