"""What brokers write, on Spark: data sources and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `qpid-journal` and `qpid-amqp` known to a session, and give a cluster's executors the code for them.

    None of the session's settings is changed. Raises PipelineError for a PySpark that is too old.
    Whoever sets QPID_HA_PASSWORD to something else afterwards calls it again.
    """
    from .requirements import check_pyspark

    check_pyspark()
    from .amqp_source import AmqpDataSource
    from .environment import environment_handed_over
    from .journal_source import JournalDataSource
    from .py_files import ship_code

    ship_code(spark)  # first: a source takes along what there is when it is registered
    with environment_handed_over(spark):
        spark.dataSource.register(JournalDataSource)
        spark.dataSource.register(AmqpDataSource)
