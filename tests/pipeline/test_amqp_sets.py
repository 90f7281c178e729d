"""Live queues of a cluster with many sets: a query and a publisher begin at any broker, and are told where to go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import proton
import pytest

from live_query import LiveQuery, cluster_of, numbers, publish
from qpid_ha_pipeline.amqp.options import ReadOptions
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.amqp.publishing import Publisher
from qpid_ha_pipeline.amqp.rows import live_schema
from qpid_ha_pipeline.amqp_stream import AmqpReader
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, sets_of, wait_whole

QUEUES = {"orders-1": "orders", "audit-1": "audit", "plain-1": "default"}
"""By name their sets. `default` is led by the first broker, `orders` by the second, `audit` by the third."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path_factory.mktemp("sets"), settings={"ha": {"failure-timeout": "1s"}}) as cluster:
        cluster.form()
        for number, name in enumerate(("orders", "audit"), 1):
            create_set(cluster, name, preferred=cluster.broker(number).name)
        wait_whole(cluster, 0, "orders", "audit")
        for queue, name in QUEUES.items():
            create_queue(cluster, 0, queue, name)
        yield cluster


def _message(text: str) -> bytes:
    message: Any = proton.Message(text, durable=True)
    return bytes(message.encode())


@pytest.mark.parametrize("first", [0, 1, 2])
def test_rows_of_all_sets_come_whichever_broker_is_asked_first(cluster: RunningCluster, first: int) -> None:
    query = LiveQuery(cluster.urls[first], ",".join(QUEUES), startingOffsets="latest")
    for queue in QUEUES:
        publish(cluster.urls[first], queue, *(f"{queue} {number}" for number in range(3)))
    assert sorted(query.batch()) == sorted(f"{queue} {number}" for queue in QUEUES for number in range(3))
    query.restart()
    assert query.batch() == []
    publish(cluster.urls[first - 1], "audit-1", "later")
    assert query.batch() == ["later"]


def test_rows_of_queues_with_one_id_in_different_sets_have_sources_of_their_own(cluster: RunningCluster) -> None:
    for queue in ("orders-1", "audit-1"):
        publish(cluster.urls[0], queue, "a row")
    given = {"brokers": cluster.urls[0], "queue": "orders-1,audit-1", "columns": "queue,queue_id,source"}
    options = ReadOptions.parse(given)
    reader = AmqpReader(options, live_schema(options.columns))
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    rows = {tuple(row.values()) for batch in batches for row in batch.to_pylist()}
    assert len(rows) == 2
    assert len({queue_id for _, queue_id, _ in rows}) == 1, "the story has lost its point: ids differ"
    assert len({source for *_, source in rows}) == 2


def test_a_publisher_and_a_query_go_where_a_set_is_led_when_its_primary_dies(cluster: RunningCluster) -> None:
    led_by = sets_of(cluster.broker(0))["orders"]["primary"]
    query = LiveQuery(",".join(cluster.urls), "orders-1,audit-1", startingOffsets="latest")
    with PrimaryConnection(cluster_of(",".join(cluster.urls))) as primary:
        orders, audit = (Publisher(primary, queue, together=True) for queue in ("orders-1", "audit-1"))
        for number, text in enumerate(numbers(20)):
            if number == 10:
                (victim,) = (broker for broker in cluster.brokers if broker.name == led_by)
                cluster.kill(victim)
            orders.deliver([_message(text)])
            audit.deliver([_message(f"audit {text}")])
    assert sorted(query.batch()) == sorted([*numbers(20), *(f"audit {text}" for text in numbers(20))])
    cluster.restart(victim)
    wait_whole(cluster, 0, "orders", "audit")
    query.restart()
    publish(cluster.urls[0], "orders-1", "after")
    assert query.batch() == ["after"]
