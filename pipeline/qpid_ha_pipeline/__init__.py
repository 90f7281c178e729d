"""What brokers write, on Spark: data sources and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `qpid-journal` and `qpid-amqp` known to a session. None of its settings is changed."""
    from .amqp_source import AmqpDataSource
    from .journal_source import JournalDataSource

    spark.dataSource.register(JournalDataSource)
    spark.dataSource.register(AmqpDataSource)
