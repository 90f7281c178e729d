"""Stories about tables that become messages: each row arrives, also when the primary dies while it is sent."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from proton import Message
from pyspark.sql import SparkSession

from blocking_client import BlockingClient, Management
from live_query import cluster_of, numbers
from qpid_ha_pipeline.amqp.encoding import Encoder, MonotonicPositions, check_written_schema
from qpid_ha_pipeline.amqp.numbering import PRODUCER, SEQUENCE
from qpid_ha_pipeline.amqp.options import WriteOptions
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.amqp.publishing import Publisher
from qpid_ha_pipeline.amqp_sink import AmqpWriter
from qpid_ha_pipeline.errors import PipelineError
from running_broker import RunningBroker


def messages(table: dict[str, Any], encoder: Encoder | None = None) -> list[bytes]:
    """Of a batch with these columns."""
    return list((encoder or Encoder()).messages(pa.RecordBatch.from_pydict(table)))


def decoded(payload: bytes) -> Any:
    """As a receiver sees it."""
    message = Message()
    message.decode(payload)
    return message


def test_columns_become_the_parts_of_a_message() -> None:
    table = {
        "body": [b"\x00\x01", b""], "to": ["orders", None], "subject": ["new", None], "priority": [9, None],
        "ttl_ms": [1500, None], "durable": [False, None], "amqp_message_id": ["m1", None],
        "application_properties": pa.array([[("n", "1")], None], pa.map_(pa.string(), pa.string())),
    }  # fmt: skip
    first, second = map(decoded, messages(table))
    assert (bytes(first.body), first.address, first.subject, first.priority) == (b"\x00\x01", "orders", "new", 9)
    assert (first.ttl, first.durable, first.id, first.properties) == (1.5, False, "m1", {"n": "1"})
    assert (second.address, second.subject, second.priority, second.durable) == (None, None, 4, True)
    assert [decoded(text).body for text in messages({"value": ["text"]})] == ["text"]


def test_rows_are_numbered_by_what_they_are() -> None:
    table = {"value": ["a", "b"], "source": ["q/0.1", "q/0.1"], "position": [7, 1 << 40]}
    found = [decoded(each).annotations for each in messages(table, Encoder("me/3"))]
    assert [(each[PRODUCER], int(each[SEQUENCE])) for each in found] == [("me/3/q/0.1", 7), ("me/3/q/0.1", 1 << 40)]
    assert type(found[0][SEQUENCE]).__name__ == "ulong"
    assert decoded(messages(table)[0]).annotations is None


@pytest.mark.parametrize(
    ("sources", "positions", "text"),
    [
        (["a", "a"], [2, 1], "position 1 comes after 2: what is sent must be in the order"),
        (["a", "b", "a"], [1, 1, 1], "position 1 comes after 1"),
        (["a"], [None], "the position None: each needs both"),
        ([None], [1], "the source None and the position 1"),
        (["a"], [-1], "the position -1"),
        (["a" * 126], [1], "longer than 128 bytes"),
    ],
)
def test_rows_whose_order_would_drop_one_of_them_are_refused(
    sources: list[str | None], positions: list[int | None], text: str
) -> None:
    table = pa.RecordBatch.from_arrays(
        [pa.array(sources, pa.string()), pa.array(positions, pa.int64())], ["source", "position"]
    )
    with pytest.raises(PipelineError, match=text):
        MonotonicPositions("me").check(table)


@pytest.mark.parametrize(
    ("schema", "target", "text"),
    [
        ("id long", "q", "no column 'id'"),
        ("subject string", "q", "needs one column `body`"),
        ("body string, value string", "q", "needs one column `body`"),
        ("value long", "q", "column value: expected binary or string, found bigint"),
        ("value string, priority string", "q", "column priority"),
        ("value string, application_properties map<string,int>", "q", "expected map<string,string>"),
        ("value string, key string, subject string", "q", "give one of them"),
        ("value string", "", "target: missing"),
        ("value string, source string", "q", "give both, or none"),
        ("payload binary, subject string", "q", "column payload is the whole message: subject beside it"),
        ("payload binary, body binary", "q", "column payload is the whole message: body beside it"),
        ("payload binary, to string", "q", "column to: beside payload it says where a message goes"),
        ("payload binary", "", "target: missing"),
        ("payload string", "q", "column payload: expected binary, found string"),
        ("body_sections binary, value string", "q", "needs one column `body`"),
        ("value string, amqp_message_id string, amqp_message_id_typed string", "q", "both are the same part"),
        ("value string, message_annotations map<string,string>", "q", "did you mean message_annotations_typed"),
    ],
)
def test_a_table_that_cannot_be_sent_is_refused_with_the_reason(
    spark: SparkSession, schema: str, target: str, text: str
) -> None:
    columns = spark.createDataFrame([], schema).schema
    with pytest.raises(PipelineError, match=text):
        check_written_schema(columns, has_target=bool(target))


def test_a_row_without_a_body_is_told() -> None:
    with pytest.raises(PipelineError, match="a row has no value"):
        messages({"value": [None]})
    with pytest.raises(PipelineError, match="priority is 300: expected 0 to 255"):
        messages({"value": ["a"], "priority": [300]})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"exactlyOnce": "true"}, "the option producer"),
        ({"exactlyOnce": "true", "producer": "me"}, "the columns source and position"),
        ({"brokers": "amqp://127.0.0.1:1", "failoverTimeout": "100ms"}, "no broker of .* serves us"),
        ({"brokers": "amqp://me:secret@127.0.0.1"}, "no place for a password"),
        ({"password": "secret"}, "passwordFile"),
        ({"targt": "q"}, "did you mean target"),
    ],
)
def test_what_is_wrong_with_a_write_is_told_before_anything_is_sent(
    spark: SparkSession, broker: RunningBroker, given: dict[str, str], text: str
) -> None:
    schema = spark.createDataFrame([], "value string").schema
    with pytest.raises(PipelineError, match=text) as caught:
        AmqpWriter(WriteOptions.parse({"brokers": broker.url, "target": "q", **given}), schema, overwrite=False)
    assert "secret" not in str(caught.value)


def test_exactly_once_takes_a_broker_that_remembers_producers(spark: SparkSession) -> None:
    schema = spark.createDataFrame([], "value string, source string, position long").schema
    with RunningBroker({"deduplication.producers": 0}) as forgetful:
        given = {"brokers": forgetful.url, "target": "q", "exactlyOnce": "true", "producer": "me"}
        with pytest.raises(PipelineError, match="does not drop what a producer sends again"):
            AmqpWriter(WriteOptions.parse(given), schema, overwrite=False)


def test_rows_go_where_their_column_says(broker: RunningBroker, client: BlockingClient) -> None:
    with PrimaryConnection(cluster_of(broker.url)) as primary:
        Publisher(primary, None, together=False).deliver(messages({"value": ["a", "b"], "to": ["here", "there"]}))
    assert [message.body for message in client.consume("here")] == ["a"]
    assert [message.body for message in client.consume("there")] == ["b"]


def test_a_routing_key_leads_through_an_exchange(broker: RunningBroker, client: BlockingClient) -> None:
    management = Management(client)
    management.create_queue("red", {})
    management.bind("amq.direct", "red", "red")
    with PrimaryConnection(cluster_of(broker.url)) as primary:
        Publisher(primary, "amq.direct", together=False).deliver(
            messages({"value": ["a", "b"], "key": ["red", "blue"]})
        )
    assert [message.body for message in client.consume("red")] == ["a"]


def test_a_full_queue_is_waited_for_and_in_the_end_told(broker: RunningBroker, client: BlockingClient) -> None:
    Management(client).create_queue("small", {"qpid.max_count": 5})
    with PrimaryConnection(cluster_of(broker.url, 0.5)) as primary:
        publisher = Publisher(primary, "small", together=False)
        with pytest.raises(PipelineError, match=r"were refused for 0\.5 s: .*queue small is full"):
            publisher.deliver(messages({"value": numbers(8)}))
        client.consume("small")
        publisher.deliver(messages({"value": numbers(5)}))


@pytest.mark.parametrize("ends", ["in doubt", "refused"])
def test_what_a_producer_sends_again_is_queued_once(broker: RunningBroker, client: BlockingClient, ends: str) -> None:
    queue = f"once-{uuid.uuid4().hex}"
    management, producer = Management(client), uuid.uuid4().hex
    management.create_queue(queue, {"qpid.max_count": 20} if ends == "refused" else {})
    table = {"value": numbers(30), "source": ["all"] * 30, "position": list(range(30))}
    rows = messages(table, Encoder(producer))
    with PrimaryConnection(cluster_of(broker.url, 0.3)) as primary:
        publisher = Publisher(primary, queue, together=True)
        publisher.deliver(rows[:10])
        if ends == "refused":  # a part of a list is never taken: what was refused can be sent again under its number
            with pytest.raises(PipelineError, match="full"):
                publisher.deliver(rows[10:])
            assert management.messages(queue) == 10
            assert len(client.consume(queue)) == 10
        publisher.deliver(rows if ends == "in doubt" else rows[10:])
        publisher.deliver(rows)
    expected = numbers(30) if ends == "in doubt" else numbers(20, 10)
    assert [message.body for message in client.consume(queue)] == expected
