"""Live queues through Spark itself: options, plans, errors, a stream from queue to queue."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from proton import Message, symbol, ulong
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from blocking_client import BlockingClient, bodies
from live_query import numbers, publish
from qpid_ha_pipeline import register
from qpid_ha_pipeline.amqp.brokers import PASSWORD_VARIABLE
from qpid_ha_pipeline.amqp.numbering import PRODUCER, SEQUENCE
from qpid_ha_pipeline.amqp.options import ReadOptions, WriteOptions
from qpid_ha_pipeline.errors import PipelineError, reason_of
from qpid_ha_pipeline.options import JournalOptions
from running_broker import RunningBroker

LIMIT_S = 180
"""For what takes seconds: on a busy machine each batch waits for processes of Python to begin."""
SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin")


def read(spark: SparkSession, broker: RunningBroker, queue: str, **options: Any) -> DataFrame:
    """A queue as a table."""
    return spark.read.format("qpid-amqp").options(brokers=broker.url, queue=queue, **options).load()


def test_a_table_becomes_messages_and_messages_a_table(spark: SparkSession, broker: RunningBroker) -> None:
    rows = spark.range(100).selectExpr(
        "concat('text ', id) as value", "cast(id % 10 as int) as priority", "map('n', cast(id as string)) as"
        " application_properties",
    )  # fmt: skip
    rows.write.format("qpid-amqp").options(brokers=broker.url, target="table").mode("append").save()
    found = sorted(read(spark, broker, "table").collect(), key=lambda row: int(row.message_id))
    assert sorted(row.body_text for row in found) == sorted(f"text {number}" for number in range(100))
    assert all(row.body_text == f"text {row.application_properties['n']}" for row in found)
    assert all((row.queue, row.durable, row.delivery_count) == ("table", True, 0) for row in found)
    assert {row.priority for row in found} == set(range(10))
    few = read(spark, broker, "table", numPartitions=2, columns="message_id,size").where(
        f"message_id > {found[49].message_id}"
    )
    assert few.count() == 50


IDENTIFIED = ("body_text as value", "source", "position")


def copied(spark: SparkSession, broker: RunningBroker, checkpoint: Path, *, limit: int = 1000, **to: str) -> str:
    """All that is in the queue `FROM` now, to the queue `target`; the query's id."""
    source = {"brokers": broker.url, "queue": to.pop("queue"), "columns": "body_text,source,position"}
    live = spark.readStream.format("qpid-amqp").options(**source, maxOffsetsPerTrigger=limit).load()
    writer = live.selectExpr(*IDENTIFIED).writeStream.format("qpid-amqp").trigger(availableNow=True)
    query = writer.options(brokers=broker.url, checkpointLocation=str(checkpoint), **to).start()
    assert query.awaitTermination(LIMIT_S)
    return str(query.id)


def test_a_stream_from_queue_to_queue_numbers_rows_that_say_what_they_are(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    publish(broker.url, "in", *numbers(10))
    query = copied(spark, broker, tmp_path, limit=6, queue="in", target="out", exactlyOnce="true")
    rows = read(spark, broker, "in", columns="source,position").collect()
    (source,), last = {row.source for row in rows}, max(row.position for row in rows)
    with BlockingClient(broker.url) as client:
        assert bodies(client.consume("out")) == numbers(10)
        for number, body in ((last, "sent again"), (last + 1, "new")):
            annotations = {symbol(PRODUCER): f"spark-{query}/0/{source}", symbol(SEQUENCE): ulong(number)}
            client.send("out", Message(body, annotations=annotations))
        assert bodies(client.consume("out")) == ["new"]


def test_what_cannot_work_is_one_line(spark: SparkSession, broker: RunningBroker) -> None:
    def wrong(table: DataFrame) -> str | None:
        with pytest.raises(PySparkException) as caught:
            table.count()
        assert isinstance(caught.value, AnalysisException)
        return reason_of(caught.value)

    assert wrong(read(spark, broker, "nowhere")) == (
        "there is no queue nowhere: see `qpid-ha queue list`, or declare it before it is read"
    )
    down = (
        spark.read.format("qpid-amqp").options(brokers="amqp://127.0.0.1:1", queue="q", failoverTimeout="100ms").load()
    )
    assert "Connection refused" in str(wrong(down))
    with pytest.raises(AnalysisException) as caught:
        read(spark, broker, "q", startingOffsets="yesterday")
    assert str(reason_of(caught.value)).startswith("startingOffsets: expected earliest, latest, or JSON")


@pytest.mark.skipif(SASLPASSWD is None, reason="saslpasswd2 is missing: install sasl2-bin")
def test_a_password_is_in_no_plan_and_a_wrong_one_is_told(spark: SparkSession, tmp_path: Path) -> None:
    users, right, wrong = tmp_path / "users.sasldb", tmp_path / "right", tmp_path / "wrong"
    right.write_text("open sesame\n", encoding="utf-8")
    wrong.write_text("shut\n", encoding="utf-8")
    command = [str(SASLPASSWD), "-p", "-c", "-f", str(users), "ali"]
    subprocess.run(command, input=b"open sesame", check=True, timeout=30)
    with RunningBroker({"sasl.users-db": users, "sasl.allow-anonymous": False}) as broker:
        options = {"brokers": broker.url, "user": "ali", "passwordFile": str(right)}
        spark.sql("select 'x' as value").write.format("qpid-amqp").options(**options, target="q").mode("append").save()
        table = spark.read.format("qpid-amqp").options(**options, queue="q").load()
        assert table.count() == 1
        assert "sesame" not in table._jdf.queryExecution().toString()
        refused = spark.read.format("qpid-amqp").options(**{**options, "passwordFile": str(wrong)}, queue="q").load()
        with pytest.raises(AnalysisException) as caught:
            refused.count()
        assert "does not let ali in" in str(reason_of(caught.value))


@pytest.mark.skipif(SASLPASSWD is None, reason="saslpasswd2 is missing: install sasl2-bin")
def test_the_password_in_the_environment_is_that_of_the_process_that_asks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own processes were started before it was set."""
    users = tmp_path / "users.sasldb"
    command = [str(SASLPASSWD), "-p", "-c", "-f", str(users), "ali"]
    subprocess.run(command, input=b"open sesame", check=True, timeout=30)
    before = dict(spark.sparkContext.environment)
    with RunningBroker({"sasl.users-db": users, "sasl.allow-anonymous": False}) as broker:
        options = {"brokers": broker.url, "user": "ali"}
        monkeypatch.setenv(PASSWORD_VARIABLE, "open sesame")
        register(spark)
        rows = spark.sql("select 'x' as value").write.format("qpid-amqp")
        rows.options(**options, target="q").mode("append").save()
        table = spark.read.format("qpid-amqp").options(**options, queue="q").load()
        assert table.count() == 1
        assert spark.sparkContext.environment == before
    monkeypatch.undo()
    register(spark)


def test_what_spark_hands_to_a_sink_of_its_own_accord_is_no_slip(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    publish(broker.url, "all", *numbers(3))
    live = spark.readStream.format("qpid-amqp").option("brokers", broker.url).load("all")
    writer = live.selectExpr("body_text as value").writeStream.format("qpid-amqp").outputMode("append")
    writer = writer.queryName("copy").partitionBy("value").trigger(processingTime="1 second")
    writer = writer.options(brokers=broker.url, checkpointLocation=str(tmp_path), truncate=False, numRows=2)
    query = writer.start("all-copy")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    with BlockingClient(broker.url) as client:
        assert bodies(client.consume("all-copy")) == numbers(3)


def test_a_view_in_sql_has_the_options_of_a_table(spark: SparkSession, broker: RunningBroker) -> None:
    publish(broker.url, "viewed", *numbers(3))
    spark.sql(f"create temporary view viewed using `qpid-amqp` options (brokers '{broker.url}', queue 'viewed')")
    try:
        assert spark.sql("select count(*) as n from viewed").first() == (3,)
    finally:
        spark.catalog.dropTempView("viewed")


@pytest.mark.parametrize("parse", [ReadOptions.parse, WriteOptions.parse, JournalOptions.parse])
def test_only_slips_are_refused(parse: Callable[[dict[str, str]], object]) -> None:
    """Names as Spark hands them on: those of a query in lower case, those of a table in a catalog twice."""
    ours = {"brokers": "amqp://127.0.0.1", "path": "x"} if parse != JournalOptions.parse else {"path": "x"}
    sparks = dict.fromkeys(
        ("checkpointlocation", "queryname", "outputmode", "truncate", "numrows", "provider", "owner", "option.path"),
        "x",
    )
    assert parse({**ours, **sparks}) == parse(ours)
    with pytest.raises(PipelineError, match=r"has no option 'pth'.*did you mean path"):
        parse({**ours, "pth": "x"})
