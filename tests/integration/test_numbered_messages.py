"""Producers that number their messages: what they send twice is there once, also after a restart from the store.

What another primary knows of them is simulated, and in `tests/unit/test_producers_elsewhere.py`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from proton import Delivery, Message, ProtonException, symbol, ulong

from blocking_client import BlockingClient, bodies
from qpid_ha_agent.control import ControlClient
from running_broker import RunningBroker

QUEUE = "numbered"


def numbered(number: int, producer: str = "orders") -> Message:
    annotations = {symbol("x-opt-qpid-producer"): producer, symbol("x-opt-qpid-sequence"): ulong(number)}
    return Message(str(number), annotations=annotations)


def send_all(client: BlockingClient, numbers: Iterable[int]) -> None:
    outcomes = client.send(QUEUE, *map(numbered, numbers))
    assert {outcome.state for outcome in outcomes} == {Delivery.ACCEPTED}


def send_without_waiting(client: BlockingClient, numbers: Iterable[int]) -> None:
    """They have reached the broker when this returns; whether it answers, or has stored them, is another question."""
    sender = client.sender(QUEUE)
    for number in numbers:
        sender.link.send(numbered(number))
    client.round_trip()


def consumed(client: BlockingClient) -> list[int]:
    return [int(body) for body in bodies(client.consume(QUEUE))]


def notice_its_end(client: BlockingClient) -> None:
    with suppress(ProtonException):
        client.wait(lambda: client.connection.disconnected)


def test_a_broker_that_was_killed_and_started_again_knows_what_it_had_accepted_and_counts_what_comes_again(
    tmp_path: Path,
) -> None:
    settings = {"data-dir": str(tmp_path), "deduplication.producers": 2}
    with RunningBroker(settings) as broker, BlockingClient(broker.url) as client:
        send_all(client, range(50))
        send_without_waiting(client, range(50, 100))
        os.kill(broker.pid, signal.SIGKILL)
        notice_its_end(client)
    with RunningBroker(settings) as broker, BlockingClient(broker.url) as client:
        send_all(client, range(120))
        assert consumed(client) == list(range(120))
        with ControlClient(broker.control_socket) as control:
            facts = control.call("query")
            assert isinstance(facts, dict)
            # All that was confirmed, and of the rest what its store had got before it was killed.
            assert 50 <= facts["duplicates_dropped"] <= 100
            control.call("set", key="deduplication.producers", value=0)
        send_all(client, [1])
        assert consumed(client) == [1]
