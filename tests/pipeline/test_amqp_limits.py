"""Stories about which queues a stream reads, from when on, and how much of them a batch has."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from blocking_client import Management
from live_query import LiveQuery, numbers, publish
from qpid_ha_pipeline.amqp.options import ReadOptions
from qpid_ha_pipeline.amqp.rows import live_schema
from qpid_ha_pipeline.amqp_stream import AmqpReader
from qpid_ha_pipeline.errors import PipelineError
from running_broker import RunningBroker

SENT_MORE = 5
"""Bytes that the broker adds to a message when it sends it: a header of its own."""


def matching(broker: RunningBroker, pattern: str, **options: str) -> LiveQuery:
    """A query of all queues with such names."""
    return LiveQuery(broker.url, "", subscribePattern=pattern, **options)


# --- patterns


def test_queues_that_come_into_being_are_read_from_their_beginning(broker: RunningBroker, queue: str) -> None:
    publish(broker.url, f"other-{queue}", "not meant")
    query = matching(broker, f"{queue}(-.*)?")
    assert query.batch() == numbers(10)
    publish(broker.url, f"{queue}-new", "a", "b")
    publish(broker.url, queue, "c")
    assert sorted(query.batch()) == ["a", "b", "c"]
    query.restart()
    assert query.batch() == []


def test_a_new_queue_is_read_no_faster_than_the_others(broker: RunningBroker, queue: str) -> None:
    query = matching(broker, f"{queue}.*")
    query.batch()
    publish(broker.url, f"{queue}-new", *numbers(10))
    assert [query.batch(ReadMaxRows(6)) for _ in range(3)] == [numbers(6), numbers(4, 6), []]


def test_a_pattern_that_no_queue_matches_waits_for_one(broker: RunningBroker) -> None:
    query = matching(broker, "nowhere-.*")
    assert query.batch() == []
    publish(broker.url, "nowhere-1", "here")
    assert query.batch() == ["here"]


def test_there_may_be_more_queues_than_one_answer_holds(broker: RunningBroker, management: Management) -> None:
    for number in range(600):
        management.create_queue(f"many-{number}-{'x' * 200}")
    publish(broker.url, f"many-599-{'x' * 200}", "last")
    query = matching(broker, "many-.*")
    assert query.batch() == ["last"]
    assert len(query.offset) == 600


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_deleted_queue_of_a_pattern_is_data_loss(
    broker: RunningBroker, management: Management, queue: str, goes_on: bool
) -> None:
    publish(broker.url, f"{queue}-2", "a")
    query = matching(broker, f"{re.escape(queue)}.*", failOnDataLoss=str(not goes_on).lower())
    query.batch()
    management.delete_queue(f"{queue}-2")
    if goes_on:
        assert query.batch() == []
        publish(broker.url, f"{queue}-2", "b")
        assert query.batch() == ["b"]
    else:
        with pytest.raises(PipelineError, match="-2 was deleted"):
            query.batch()


def test_a_run_with_what_is_available_now_leaves_a_new_queue_to_the_next(broker: RunningBroker, queue: str) -> None:
    query = matching(broker, f"{queue}.*")
    query.reader.prepareForTriggerAvailableNow()
    publish(broker.url, f"{queue}-late", "late")
    assert query.batch() == numbers(10)
    assert query.batch() == []
    query.restart()
    assert query.batch() == ["late"]


# --- times


def test_a_stream_begins_with_what_came_at_a_time(broker: RunningBroker, queue: str) -> None:
    time.sleep(0.25)  # what is noted of times is that exact
    now_ms = int(time.time() * 1000)
    publish(broker.url, queue, "later")
    by_queue = {"startingOffsetsByTimestamp": json.dumps({queue: now_ms})}
    assert LiveQuery(broker.url, queue, startingTimestamp=str(now_ms)).batch() == ["later"]
    assert LiveQuery(broker.url, queue, **by_queue).batch() == ["later"]
    assert LiveQuery(broker.url, queue, startingTimestamp="0", startingOffsets="latest").batch() == [
        *numbers(10), "later",
    ]  # fmt: skip
    future = LiveQuery(broker.url, queue, startingTimestamp=str(now_ms + 3_600_000))
    assert future.batch() == []
    publish(broker.url, queue, "latest")
    assert future.batch() == ["latest"]


def table(broker: RunningBroker, **options: str) -> list[Any]:
    """The texts of a table, in the order of its tasks."""
    given = ReadOptions.parse({"brokers": broker.url, "columns": "body_text", **options})
    reader = AmqpReader(given, live_schema(given.columns))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [text for batch in batches for text in batch.column(0).to_pylist()]


def test_two_tables_up_to_a_time_and_from_there_have_each_message_once(broker: RunningBroker, queue: str) -> None:
    for number in range(10, 40):
        publish(broker.url, queue, str(number))
        if number == 25:
            now_ms = str(int(time.time() * 1000))
    before = table(broker, queue=queue, endingTimestamp=now_ms)
    after = table(broker, queue=queue, startingTimestamp=now_ms)
    assert before + after == numbers(40)
    assert table(broker, queue=queue, endingOffsetsByTimestamp=json.dumps({queue: 0})) == []


def test_a_table_of_all_queues_that_match(broker: RunningBroker, queue: str) -> None:
    publish(broker.url, f"{queue}-2", "other")
    assert sorted(table(broker, subscribePattern=f"{queue}(-2)?")) == sorted([*numbers(10), "other"])
    assert table(broker, subscribePattern=f"{queue}-none") == []


# --- how much


def test_a_batch_has_no_more_bytes_than_it_may_but_at_least_a_message(
    broker: RunningBroker, management: Management, queue: str
) -> None:
    publish(broker.url, queue, *numbers(6000, 10), size=100)
    publish(broker.url, queue, "large", size=400_000)
    publish(broker.url, queue, "small")
    query = LiveQuery(broker.url, queue, maxBytesPerTrigger="300000", columns="body_text,size")
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(300_000)
    texts, sizes = [], []
    while True:
        end = query.reader.latestOffset(query.offset, limit)
        found = list(query.read(query.offset, end, "size"))
        if not found:
            break
        texts += [text.rstrip(".") for text in query.read(query.offset, end)]
        sizes.append(sum(size - SENT_MORE for size in found))
        query.offset = end
    assert texts == [*numbers(6010), "large", "small"]
    assert sum(sizes) == (management.queue(queue) or {})["bytes"], "as the broker counts them"
    assert max(sizes[:-2]) <= 300_000
    assert min(sizes[:-3]) > 290_000
    few = LiveQuery(broker.url, queue, maxBytesPerTrigger="1")
    assert few.batch(ReadMaxBytes(1)) == ["0"]
    assert few.batch(ReadAllAvailable())[-1] == "small", "a trigger that is run once has no limits"


def test_a_batch_waits_for_enough_messages_but_not_for_ever(broker: RunningBroker, queue: str) -> None:
    given = {"minOffsetsPerTrigger": "5"}
    query = LiveQuery(broker.url, queue, **given)
    patient = LiveQuery(broker.url, queue, **given, maxTriggerDelay="1ms")
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    publish(broker.url, f"{queue}-beside", *numbers(50))
    assert query.batch(limit) == patient.batch(limit) == numbers(10)
    publish(broker.url, f"{queue}-beside", *numbers(50))
    publish(broker.url, queue, *numbers(4, 10))
    time.sleep(0.002)
    assert (query.batch(limit), patient.batch(limit)) == ([], numbers(4, 10))
    publish(broker.url, queue, "enough")
    assert query.batch(limit) == [*numbers(4, 10), "enough"]
    publish(broker.url, queue, "few")
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch(limit) == ["few"]


def test_partitions_have_the_name_that_kafkas_source_has_for_them(broker: RunningBroker, queue: str) -> None:
    for name in ("minPartitions", "numPartitions"):
        query = LiveQuery(broker.url, queue, **{name: "3"})
        end = query.reader.latestOffset(query.offset, ReadMaxRows(100))
        assert len(query.reader.partitions(query.offset, end)) == 3


# --- what cannot be meant


@pytest.mark.parametrize("options", [{"endingTimestamp": "1"}, {"endingOffsets": "earliest"}])
def test_a_stream_has_no_end(options: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="a stream has no end"):
        LiveQuery("amqp://127.0.0.1:1", "q", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "queue: missing"),
        ({"queue": "q", "subscribePattern": "q.*"}, "queue: one of the two"),
        ({"subscribePattern": "q["}, "subscribePattern: .* is no regular expression"),
        ({"queue": "q", "startingTimestamp": "yesterday"}, "startingTimestamp: expected a number"),
        ({"queue": "q", "startingOffsetsByTimestamp": '{"q": -1}'}, "OffsetsByTimestamp: expected milliseconds"),
        ({"queue": "q", "endingOffsetsByTimestamp": '{"other": 1}'}, "names the queue other, which is not read"),
        ({"queue": "q", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger: 5 is more"),
        ({"queue": "q", "maxTriggerDelay": "5s"}, "maxTriggerDelay: for how many"),
        ({"queue": "q", "subscribePatern": "x"}, "did you mean subscribePattern"),
        ({"queue": "q", "consume": "maybe"}, "consume: expected true or false"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_meant_is_told(options: dict[str, str], text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        ReadOptions.parse({"brokers": "amqp://127.0.0.1", **options})
