"""Stories about journals that a real broker writes while they are read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from failover_load import FailoverLoad
from journal_query import Query
from journal_rows import read_rows
from running_broker import RunningBroker

IN_TIME_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """Small segments: it begins a new one every few hundred messages."""
    with RunningBroker({"data-dir": str(tmp_path / "data"), "store.segment-size": "64KiB"}) as running:
        yield running


@pytest.fixture
def load(broker: RunningBroker) -> Iterator[FailoverLoad]:
    with FailoverLoad([broker.url], rate=500, durable=True) as running:
        yield running


def settle(load: FailoverLoad) -> set[str]:
    """Publish no more; the ids of all messages, once each is confirmed."""
    load.publisher.pause()
    deadline = time.monotonic() + IN_TIME_S
    while not load.publisher.is_settled:
        assert time.monotonic() < deadline, "the broker did not answer for all messages"
        time.sleep(0.01)
    return confirmed(load)


def confirmed(load: FailoverLoad) -> set[str]:
    return {str(number) for number in list(load.ledger.confirmed_at_s)}


def test_whoever_reads_sees_all_that_was_confirmed_before_and_each_message_once(
    load: FailoverLoad, tmp_path: Path
) -> None:
    stream = Query(tmp_path / "data", event="enqueued")
    streamed = stream.batch()
    for _ in range(20):
        load.wait_confirmed(60)
        streamed += stream.batch()
        before = confirmed(load)
        read = Counter(
            row["amqp_message_id"] for row in read_rows(tmp_path / "data", "amqp_message_id", event="enqueued")
        )
        assert before <= set(read)
        assert set(read.values()) == {1}
    everything = settle(load)
    rows = read_rows(tmp_path / "data", "lsn", "amqp_message_id", event="enqueued")
    assert {row["amqp_message_id"] for row in rows} == everything
    deadline = time.monotonic() + IN_TIME_S
    while len(streamed) < len(rows):  # the last ones follow when the journal says that they are committed
        assert time.monotonic() < deadline, f"{len(streamed)} of {len(rows)} came"
        streamed += stream.batch()
    assert streamed == [row["lsn"] for row in rows]
    assert len(list((tmp_path / "data" / "default" / "journal").glob("*.log"))) > 3
