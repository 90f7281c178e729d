"""Stories about the session that jobs run in."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from qpid_ha_pipeline.session import limit_shuffle_partitions

PARTITIONS = "spark.sql.shuffle.partitions"


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
