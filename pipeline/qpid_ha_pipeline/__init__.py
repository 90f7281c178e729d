"""What brokers write, on Spark: data sources and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make `qpid-journal` and `qpid-amqp` known to a session, and let the first carry out filters itself."""
    from .amqp_source import AmqpDataSource
    from .journal_source import JournalDataSource

    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(JournalDataSource)
    spark.dataSource.register(AmqpDataSource)
