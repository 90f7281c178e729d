"""The benchmark counts only what a broker has confirmed; the table and the file are in `unit/test_bench.py`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.load_client import BenchError, LoadConnection, Publisher, Subscriber
from bench.scenario import ask, fresh_broker
from bench.throughput import QUEUE, check_depth, consume, fill, message, publish


def test_a_message_that_was_not_accepted_is_never_counted() -> None:
    with fresh_broker() as broker, LoadConnection(broker.port) as connection:
        ask(
            broker, "queues", action="create", name=QUEUE, arguments={"qpid.max_count": 5, "qpid.policy_type": "reject"}
        )
        publisher = Publisher(connection, QUEUE)
        publish(publisher, message(100), 5)
        with pytest.raises(BenchError, match="not accepted"):
            publish(publisher, message(100), 1)
        check_depth(broker, 5)


def test_what_was_consumed_is_gone() -> None:
    with fresh_broker() as broker, LoadConnection(broker.port) as incoming:
        fill(broker.port, 3000)
        check_depth(broker, 3000)
        with pytest.raises(BenchError, match="holds 3000 messages, and should hold 3001"):
            check_depth(broker, 3001)
        consume(Subscriber(incoming, QUEUE, 1000), 3000)
        check_depth(broker, 0)


def test_the_clock_does_not_stop_before_the_broker_has_carried_out_the_consumers_answers() -> None:
    with fresh_broker() as broker, LoadConnection(broker.port) as incoming:
        fill(broker.port, 1)
        subscriber = Subscriber(incoming, QUEUE, 1000)
        subscriber.start()
        incoming.read()
        assert subscriber.take() == 1
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            incoming.socket.settimeout(0.1)
            with pytest.raises(BenchError, match="said nothing"):
                subscriber.finish()
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def test_a_broker_that_goes_away_is_an_error_with_its_last_words() -> None:
    def consume_for_ever() -> None:
        with fresh_broker() as broker, LoadConnection(broker.port) as connection:
            subscriber = Subscriber(connection, QUEUE, 10)
            broker.stop(timeout_s=30.0)
            consume(subscriber, 1)

    with pytest.raises(BenchError) as found:
        consume_for_ever()
    assert "listens on" in "".join(found.value.__notes__)


def test_only_what_was_asked_for_is_measured(tmp_path: Path) -> None:
    from bench.__main__ import MEASURES, main  # with all that is measured: it takes a second

    path = tmp_path / "results.json"
    result = CliRunner().invoke(main, ["--quick", "--only", "start", "--repeat", "2", "--json", str(path)])
    assert result.exit_code == 0, result.output
    (figure,) = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert (figure["key"], len(figure["values"])) == ("start", 2)
    assert "start" in MEASURES
