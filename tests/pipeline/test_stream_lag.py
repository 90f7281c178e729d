"""How far a stream is behind: as Spark tells it, and worked out from what it tells."""

from __future__ import annotations

import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from live_query import numbers, publish
from qpid_ha_pipeline.stream_lag import LagListener, QueryLag, lag_of
from running_broker import RunningBroker

LIMIT_S = 180


def progress(**sources: tuple[object, object]) -> StreamingQueryProgress:
    """With these ends and newest offsets."""
    rates = {"inputRowsPerSecond": 10.0, "processedRowsPerSecond": 40.0}
    told = [
        {"description": name, "startOffset": None, "endOffset": end, "latestOffset": newest, "numInputRows": 5, **rates}
        for name, (end, newest) in sources.items()
    ]
    ids = dict.fromkeys(("id", "runId"), "00000000-0000-0000-0000-000000000001")
    facts: dict[str, Any] = {
        **ids, "name": "q", "timestamp": "", "batchId": 3, "batchDuration": 1, "durationMs": {}, "eventTime": {},
        "stateOperators": [], "sources": told, "sink": {"description": "", "numOutputRows": 5}, "observedMetrics": {},
        "numInputRows": 5, **rates,
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(json.loads(json.dumps(facts)))


def place(message_id: int, queue_id: int = 1, **more: int) -> dict[str, object]:
    return {"queue_id": queue_id, "message_id": message_id, "broker": "", **more}


@pytest.mark.parametrize(
    ("end", "newest", "behind"),
    [
        ({"q": place(10)}, {"q": place(10, messages=4)}, 0),
        ({"q": place(10)}, {"q": place(17, messages=100)}, 7),
        ({"q": place(10)}, {"q": place(1000, messages=4)}, 4),
        ({}, {"q": place(1000, messages=4)}, 4),
        ({"q": place(900, 1)}, {"q": place(1000, 2, messages=80)}, 80),
        ({"q": place(10)}, {"q": place(0, messages=0)}, 0),
        ({"q": {"segment": 1, "offset": 2, "generation": 1, "lsn": 5}}, {"q": {"segment": 1, "lsn": 9}}, 4),
    ],
)
def test_what_is_behind_is_what_lies_between_and_no_more_than_there_is(
    end: object, newest: object, behind: int
) -> None:
    lag = lag_of(progress(ours=(end, newest)))
    assert lag is not None
    assert lag.behind == {"q": behind}


def test_queries_without_sources_of_ours_have_no_lag() -> None:
    assert lag_of(progress(rate=("5", "7"), kafka=({"t": {"0": 5}}, {"t": {"0": 9}}))) is None
    lag = lag_of(progress(rate=("5", "7"), ours=({"q": place(1)}, {"q": place(2, messages=9)})))
    assert str(lag) == "query q, batch 3: 5 rows, 10.0 rows/s of 40.0; behind: q 1"


def test_a_listener_tells_with_each_batch_how_much_is_left(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    publish(broker.url, "lagging", *numbers(10))
    told: SimpleQueue[QueryLag] = SimpleQueue()
    listener = LagListener(told.put)
    spark.streams.addListener(listener)
    try:
        live = spark.readStream.format("qpid-amqp").options(brokers=broker.url, queue="lagging", maxOffsetsPerTrigger=4)
        writer = live.load().writeStream.format("noop").queryName("lags").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        query.awaitTermination(LIMIT_S)
        lags = [told.get(timeout=LIMIT_S) for _ in range(3)]
    finally:
        spark.streams.removeListener(listener)
    assert [(lag.name, lag.batch, lag.rows, lag.behind) for lag in lags] == [
        ("lags", 0, 4, {"lagging": 6}), ("lags", 1, 4, {"lagging": 2}), ("lags", 2, 2, {"lagging": 0}),
    ]  # fmt: skip
