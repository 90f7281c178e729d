"""Stories about journals in Spark itself: SQL, schemas, several paths, and how errors look to who asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from qpid_ha_pipeline.errors import reason_of
from written_journal import WrittenJournal, amqp, blocks_of, spoil


@pytest.fixture
def filled(journal: WrittenJournal) -> WrittenJournal:
    """Ten messages for each of two queues in two segments, of which three of the first queue were consumed."""
    journal.start(1)
    orders, billing = journal.declare("orders"), journal.declare("billing")
    ids = journal.enqueue(orders, *[amqp(f"order {n}", subject="new", properties={"n": n}) for n in range(10)])
    journal.roll()
    journal.enqueue(billing, *[amqp(b"bill") for _ in range(10)])
    journal.dequeue(orders, ids[:3])
    return journal


def test_a_journal_is_a_table(spark: SparkSession, filled: WrittenJournal) -> None:
    spark.read.format("qpid-journal").load(str(filled.data_dir)).createOrReplaceTempView("journal")
    left = spark.sql(
        """
        select e.queue, count(*) as messages, max(e.application_properties['n']) as newest
        from journal e left anti join journal d
          on d.event = 'dequeued' and d.message_id = e.message_id and d.queue_id = e.queue_id
        where e.event = 'enqueued' group by e.queue order by e.queue
        """
    ).collect()
    assert [tuple(row) for row in left] == [("billing", 10, None), ("orders", 7, "9")]


def test_one_table_can_be_used_in_many_ways_at_once(spark: SparkSession, filled: WrittenJournal) -> None:
    """Filters that Spark pushes down would get the rows of one another here: this is why there are only options."""
    table = spark.read.format("qpid-journal").option("columns", "event,lsn").load(str(filled.data_dir))
    one, other = table.where("event = 'enqueued'"), table.where("event = 'dequeued'")
    assert one.union(other).count() == 23
    assert table.count() == 26


def test_only_the_columns_of_a_given_schema_are_made(spark: SparkSession, filled: WrittenJournal) -> None:
    found = spark.read.format("qpid-journal").schema("lsn LONG, body_text STRING").load(str(filled.data_dir))
    assert found.columns == ["lsn", "body_text"]
    assert found.where("body_text = 'order 4'").count() == 1
    few = spark.read.format("qpid-journal").option("columns", "queue").load(str(filled.data_dir))
    assert few.columns == ["queue"]
    assert few.where("queue = 'billing'").count() == 11


def test_what_is_wrong_shows_at_load_with_the_reason_first(
    spark: SparkSession, filled: WrittenJournal, tmp_path: Path
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("qpid-journal").load(str(tmp_path / "absent"))
    assert reason_of(caught.value) == f"{tmp_path}/absent: there is no such directory on this machine"
    assert len(str(caught.value).splitlines()) < 9
    assert "Traceback" not in str(caught.value)
    with pytest.raises(AnalysisException, match="did you mean queue"):
        spark.read.format("qpid-journal").option("columns", "queu").load(str(filled.data_dir))
    with pytest.raises(PySparkException, match="column lsn: expected bigint, found string"):
        spark.read.format("qpid-journal").schema("lsn STRING").load(str(filled.data_dir)).count()


def test_damage_that_only_an_executor_sees_has_a_reason_that_can_be_told(
    spark: SparkSession, filled: WrittenJournal
) -> None:
    begin, _ = blocks_of(filled, 1)[3]
    spoil(filled.segment(1), begin + 100)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("qpid-journal").load(str(filled.data_dir)).count()
    reason = reason_of(caught.value)
    assert reason is not None
    assert reason.startswith(f"{filled.segment(1)}, offset {begin}: expected CRC-32")
    _, told = str(caught.value).splitlines()  # after Spark's own words, and with no stack behind or before it
    assert told.endswith(reason)
    good = spark.read.format("qpid-journal").option("mode", "permissive").load(str(filled.data_dir))
    assert good.where("damage is not null").count() == 1
    assert good.where("damage is null").count() == 26 - 1  # the one record in which it is


def test_a_file_that_may_not_be_read_is_told_by_its_name(spark: SparkSession, filled: WrittenJournal) -> None:
    filled.segment(2).unlink()
    filled.segment(2).symlink_to(filled.segment(1))  # what links lead to nobody has promised
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("qpid-journal").load(str(filled.data_dir)).count()
    assert reason_of(caught.value) == f"{filled.segment(2)}: Too many levels of symbolic links"


def test_errors_of_others_keep_their_stack(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="Traceback"):
        spark.range(1).select(sql.udf(lambda number: 1 / number)("id")).collect()


def test_a_store_without_rows_is_an_empty_table(spark: SparkSession, journal: WrittenJournal) -> None:
    assert spark.read.format("qpid-journal").load(str(journal.data_dir)).count() == 0
