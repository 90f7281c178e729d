"""Stories about streams of live queues: each message that is there once, whoever is primary."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from blocking_client import BlockingClient, Management
from live_query import ALL, LiveQuery, cluster_of, numbers, publish
from qpid_ha_pipeline.amqp.browsing import LiveQueue
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.amqp_stream import Span
from qpid_ha_pipeline.errors import PipelineError
from running_broker import RunningBroker
from running_cluster import RunningCluster


def test_what_comes_meanwhile_comes_with_the_next_batch(broker: RunningBroker, queue: str) -> None:
    query = LiveQuery(broker.url, queue)
    assert query.batch() == numbers(10)
    assert query.batch() == []
    publish(broker.url, queue, *numbers(5, 10))
    query.restart()
    assert query.batch() == numbers(5, 10)


def test_nothing_is_taken_and_what_somebody_holds_is_read_too(
    broker: RunningBroker, client: BlockingClient, queue: str
) -> None:
    receiver = client.receiver(queue, 4)
    client.fetch(receiver, 4, None)
    query = LiveQuery(broker.url, queue)
    assert query.batch() == numbers(10)
    receiver.close()
    assert len(client.consume(queue)) == 10


def test_a_stream_may_begin_at_the_end_or_behind_a_message(broker: RunningBroker, queue: str) -> None:
    latest = LiveQuery(broker.url, queue, startingOffsets="latest")
    assert latest.batch() == []
    ids = list(latest.read({queue: {**latest.offset[queue], "message_id": 0}}, latest.offset, "message_id"))
    assert ids == sorted(ids)
    behind = LiveQuery(broker.url, queue, startingOffsets=f'{{"{queue}": {ids[6]}}}')
    assert behind.batch() == numbers(3, 7)
    publish(broker.url, queue, "new")
    assert (latest.batch(), behind.batch()) == (["new"], ["new"])


def test_a_batch_has_no_more_rows_than_it_may_and_there_is_always_one(broker: RunningBroker, queue: str) -> None:
    query = LiveQuery(broker.url, queue, maxOffsetsPerTrigger="4")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(4)
    publish(broker.url, f"{queue}-beside", *numbers(500))
    publish(broker.url, queue, *numbers(3, 10))
    batches = []
    while batch := query.batch(ReadMaxRows(4)):
        batches.append(batch)
    assert [text for batch in batches for text in batch] == numbers(13)
    assert max(map(len, batches)) == 4


def test_available_now_ends_at_what_was_there_when_it_began(broker: RunningBroker, queue: str) -> None:
    query = LiveQuery(broker.url, queue)
    query.reader.prepareForTriggerAvailableNow()
    publish(broker.url, queue, "late")
    assert query.batch() == numbers(10)
    assert query.batch() == []
    query.restart()
    assert query.batch() == ["late"]


def test_tasks_share_the_ids_and_every_row_is_read_by_one_of_them(broker: RunningBroker, queue: str) -> None:
    publish(broker.url, queue, *numbers(90, 10))
    query = LiveQuery(broker.url, queue, numPartitions="3")
    end = query.reader.latestOffset(query.offset, ReadMaxRows(10_000))
    parts = query.reader.partitions(query.offset, end)
    spans = [span for part in parts for span in part.spans]  # type: ignore[attr-defined]
    assert [type(span) for span in spans] == [Span] * 3
    rows = [[text for batch in query.reader.read(part) for text in batch.column("body_text").to_pylist()]
            for part in parts]  # fmt: skip
    assert [text for part in rows for text in part] == numbers(100)
    assert min(map(len, rows)) > 20


def test_what_was_consumed_before_it_was_read_is_no_row(
    broker: RunningBroker, client: BlockingClient, queue: str
) -> None:
    query = LiveQuery(broker.url, queue)
    end = query.reader.latestOffset(query.offset, ReadMaxRows(100))
    receiver = client.receiver(queue, 4)
    client.fetch(receiver, 4)
    client.round_trip()
    assert list(query.read(query.offset, end)) == numbers(6, 4)
    client.fetch(receiver, 6)
    client.round_trip()
    assert list(query.read(query.offset, end)) == []


def test_priorities_do_not_change_the_order_of_positions(
    broker: RunningBroker, client: BlockingClient, management: Management
) -> None:
    from proton import Message

    management.create_queue("by-priority", {"qpid.priorities": 10})
    query = LiveQuery(broker.url, "by-priority")
    client.send("by-priority", *[Message(str(number), priority=9 - number) for number in range(5)])
    assert query.batch() == numbers(5)
    client.send("by-priority", Message("urgent", priority=9), Message("not", priority=0))
    assert query.batch() == ["urgent", "not"]


# --- what is gone


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_queue_that_was_declared_again_is_another_one(
    broker: RunningBroker, management: Management, queue: str, goes_on: bool
) -> None:
    query = LiveQuery(broker.url, queue, failOnDataLoss=str(not goes_on).lower())
    query.batch()
    management.delete_queue(queue)
    publish(broker.url, queue, "of the new one")
    if goes_on:
        assert query.batch() == ["of the new one"]
        assert query.batch() == []
    else:
        with pytest.raises(PipelineError, match=r"was deleted and declared again.*failOnDataLoss=false"):
            query.batch()


def test_a_queue_that_is_deleted_while_it_is_read_ends_the_stream(
    broker: RunningBroker, management: Management, queue: str
) -> None:
    query, patient = LiveQuery(broker.url, queue), LiveQuery(broker.url, queue, failOnDataLoss="false")
    end = query.reader.latestOffset(query.offset, ReadMaxRows(100))
    management.delete_queue(queue)
    with pytest.raises(PipelineError, match=f"queue {queue} was deleted"):
        list(query.read(query.offset, end))
    assert list(patient.read(query.offset, end)) == []
    with pytest.raises(PipelineError, match=f"queue {queue} was deleted"):
        query.batch()
    assert patient.batch() == []
    assert management.queue(queue) is None, "nobody made it anew by looking at it"


def test_a_broker_that_has_forgotten_everything_is_noticed() -> None:
    with RunningBroker() as first:
        publish(first.url, "q", *numbers(1000))
        query = LiveQuery(first.url, "q", failoverTimeout="500ms")
        query.batch()
        port = first.port
    with RunningBroker({"listen": f"amqp://127.0.0.1:{port}"}) as second:
        publish(second.url, "q", "one")
        with pytest.raises(PipelineError, match=r"ends at .* before the position"):
            query.batch()


# --- failovers


def test_a_task_goes_on_at_the_next_primary_where_it_was(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form(0)
        urls = ",".join(cluster.urls)
        publish(urls, "q", *numbers(12_000), size=2048)
        query = LiveQuery(urls, "q")
        end = query.reader.latestOffset(query.offset, ReadMaxRows(1 << 40))
        rows = query.read(query.offset, end)
        seen = [next(rows) for _ in range(100)]
        cluster.kill(0)
        cluster.promote(1)
        seen += rows
        assert [text.rstrip(".") for text in seen] == numbers(12_000)
        publish(urls, "q", "after")
        query.offset = end
        assert query.batch() == ["after"]


def test_messages_that_are_not_replicated_have_no_position_at_the_next_primary(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, settings={"ha": {"replicate": "configuration"}}) as cluster:
        cluster.form(0)
        urls = ",".join(cluster.urls)
        publish(urls, "q", "here")
        query = LiveQuery(urls, "q")
        assert query.batch() == ["here"]
        cluster.kill(0)
        cluster.promote(1)
        publish(urls, "q", "there")
        with pytest.raises(PipelineError, match="are not replicated"):
            query.batch()


def test_each_row_says_when_the_broker_had_it(broker: RunningBroker) -> None:
    queue = f"dated-{uuid4()}"
    publish(broker.url, queue, "first")
    query = LiveQuery(broker.url, queue, columns="message_id,enqueued_at")
    publish(broker.url, queue, *numbers(5000))
    end = query.reader.latestOffset(query.offset, ALL)
    rows = [
        row
        for part in query.reader.partitions(query.offset, end)
        for batch in query.reader.read(part)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    assert len(rows) == 5001
    times_ms = [round(time.timestamp() * 1000) for _, time in rows]
    assert times_ms == sorted(times_ms)
    with PrimaryConnection(cluster_of(broker.url)) as primary:
        live = LiveQueue(primary, queue)
        for (message_id, _), time_ms in zip(rows[::500], times_ms[::500], strict=True):
            assert live.position_before(time_ms) < message_id <= live.position_before(time_ms + 1)
