"""What an ordinary application sees: Proton's Python client as its documentation shows it, window and all.

Here the client is the bottleneck by far; the figures say what to expect of it, not what the broker can do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection

from bench.figures import Measurement
from bench.load_client import BenchError
from bench.scenario import Scenario, fresh_broker
from bench.throughput import QUEUE, WINDOW, check_depth, rate
from bench.usage import Usage

BODY = b"x" * 100
BLOCKING_SHARE = 10
"""One at a time is slow: so many times fewer messages."""


class _Client(MessagingHandler):
    """Ends its connection when `count` messages are through; the time runs from the first to the last."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(prefetch=WINDOW)
        self._url = url
        self._count = count
        self._done = 0
        self._began = 0.0
        self.elapsed_s = 0.0

    def _begin(self) -> None:
        if not self._began:
            self._began = time.perf_counter()

    def _one_more(self, event: Any) -> None:
        self._done += 1
        if self._done == self._count:
            self.elapsed_s = time.perf_counter() - self._began
            event.connection.close()

    def on_rejected(self, event: Any) -> None:
        raise BenchError("the broker rejected a message")

    def on_transport_error(self, event: Any) -> None:
        raise BenchError(f"the broker ended it: {event.transport.condition}")


class _Sender(_Client):
    """Sends as long as there is credit; counts confirmations."""

    def on_start(self, event: Any) -> None:
        self._sent = 0
        event.container.create_sender(event.container.connect(self._url, reconnect=False), QUEUE)

    def on_sendable(self, event: Any) -> None:
        self._begin()
        while event.sender.credit and self._sent < self._count:
            event.sender.send(Message(body=BODY))
            self._sent += 1

    def on_accepted(self, event: Any) -> None:
        self._one_more(event)


class _Receiver(_Client):
    """Accepts each message."""

    def on_start(self, event: Any) -> None:
        event.container.create_receiver(event.container.connect(self._url, reconnect=False), QUEUE)

    def on_message(self, event: Any) -> None:
        self._begin()
        self._one_more(event)


def measure_proton(scenario: Scenario) -> Iterator[Measurement]:
    """Event-driven with a window, then blocking, one message at a time."""
    count = scenario.proton_messages
    with fresh_broker() as broker:
        for key, label, client in (
            ("proton_enqueue", "Proton client: enqueue, 100 B", _Sender(broker.url, count)),
            ("proton_dequeue", "Proton client: dequeue, 100 B", _Receiver(broker.url, count)),
        ):
            with Usage(broker.pid) as usage:
                Container(client).run()
            if not client.elapsed_s:
                raise BenchError("the Proton client ended before it was through")
            yield Measurement(key, label, count / client.elapsed_s, "/s", usage.note_for(count))
    yield from _measure_blocking(max(count // BLOCKING_SHARE, 1))


def _measure_blocking(count: int) -> Iterator[Measurement]:
    with fresh_broker() as broker:
        connection = BlockingConnection(broker.url)
        sender = connection.create_sender(QUEUE)
        with Usage(broker.pid) as usage:
            for _ in range(count):
                sender.send(Message(body=BODY))
        check_depth(broker, count)
        yield rate("proton_blocking_send", "Proton blocking client: send", count, usage)
        receiver = connection.create_receiver(QUEUE)
        with Usage(broker.pid) as usage:
            for _ in range(count):
                receiver.receive(timeout=10)
                receiver.accept()
        yield rate("proton_blocking_receive", "Proton blocking client: receive", count, usage)
        connection.close()
