"""What the demo does to a broker: Proton's ordinary Python client, a producer and a consumer at once, keeping count.

Each message carries its number and the time when it was sent, so that the consumer can tell what is missing, what came
twice, what came too early, and how long it was under way.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection, SyncRequestResponse

_NUMBER_AND_TIME = struct.Struct(">Qd")
SMALLEST_BODY = _NUMBER_AND_TIME.size
STALL_S = 10.0
"""So long without any progress, and the run is over: what has not arrived is lost."""
_STEP_S, _GLANCE_S = 0.001, 0.05
_PREFETCH = 500


@dataclass
class Tally:
    """What a run came to. Latencies are from a message's sending to its arrival, in milliseconds."""

    sent: int = 0
    confirmed: int = 0
    refused: int = 0
    received: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    elapsed_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Confirmed by the broker, and never delivered."""
        return max(0, self.confirmed - (self.received - self.duplicated))

    @property
    def is_flawless(self) -> bool:
        """Everything that was sent was confirmed and came, once, in order."""
        return not (self.lost or self.refused or self.duplicated or self.out_of_order) and self.confirmed == self.sent

    @property
    def rate(self) -> float:
        """Messages per second, each of them sent, confirmed, delivered and accepted."""
        return self.received / self.elapsed_s if self.elapsed_s else 0.0

    def latency_ms(self, percent: float) -> float:
        """That many percent of the messages were no slower."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


class ProducerAndConsumer(MessagingHandler):
    """Sends `count` messages over one connection while it receives them over another.

    `rate` messages per second; 0: as fast as the broker lets it. `progress` hears how many have arrived.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        count: int,
        size: int,
        *,
        rate: int = 0,
        progress: Callable[[int], None] = lambda arrived: None,
        stall_s: float = STALL_S,
    ) -> None:
        super().__init__(prefetch=_PREFETCH)
        self._url, self._queue, self._count, self._rate, self._progress = url, queue, count, rate, progress
        self._stall_s = stall_s
        self._step_s = _STEP_S if rate else _GLANCE_S
        self._padding = b"x" * max(0, size - SMALLEST_BODY)
        self._seen = bytearray(count)
        self._next = 0
        self._message = Message()
        self._progress_made, self._moved_at = 0, 0.0
        self.tally = Tally()

    def on_start(self, event: Any) -> None:
        """Connect twice, as two programs would."""
        self._container = event.container
        self._connections = [event.container.connect(self._url, reconnect=False) for _ in range(2)]
        event.container.create_receiver(self._connections[0], self._queue)
        self._sender = event.container.create_sender(self._connections[1], self._queue)
        self._began = self._moved_at = time.perf_counter()
        event.container.schedule(self._step_s, self)

    def on_sendable(self, event: Any) -> None:
        """There is credit."""
        if not self._rate:
            self._send(self._count)

    def on_timer_task(self, event: Any) -> None:
        """Keep the pace, and notice when nothing moves any more."""
        now = time.perf_counter()
        if self._rate:
            self._send(int((now - self._began) * self._rate))
        progress_made = self.tally.confirmed + self.tally.received
        if progress_made != self._progress_made:
            self._progress_made, self._moved_at = progress_made, now
        if now - self._moved_at > self._stall_s:
            self._finish()
        elif self._connections:
            self._progress(self.tally.received)
            self._container.schedule(self._step_s, self)

    def _send(self, up_to: int) -> None:
        tally, sender, message = self.tally, self._sender, self._message
        while tally.sent < min(up_to, self._count) and sender.credit > 0:
            message.body = _NUMBER_AND_TIME.pack(tally.sent, time.perf_counter()) + self._padding
            sender.send(message)
            tally.sent += 1

    def on_accepted(self, event: Any) -> None:
        """The broker has taken a message over."""
        self.tally.confirmed += 1
        self._finish_when_done()

    def on_rejected(self, event: Any) -> None:
        """The broker will not have it."""
        self.tally.refused += 1
        self._finish_when_done()

    def on_message(self, event: Any) -> None:
        """One arrived; the handler accepts it when this returns."""
        number, sent_at = _NUMBER_AND_TIME.unpack_from(event.message.body)
        tally = self.tally
        tally.latencies_ms.append((time.perf_counter() - sent_at) * 1000)
        tally.received += 1
        tally.duplicated += self._seen[number]
        tally.out_of_order += number < self._next
        self._seen[number] = 1
        self._next = number + 1
        self._finish_when_done()

    def _finish_when_done(self) -> None:
        tally = self.tally
        if tally.confirmed + tally.refused == self._count and tally.received - tally.duplicated >= tally.confirmed:
            self._finish()

    def _finish(self) -> None:
        self.tally.elapsed_s = time.perf_counter() - self._began
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def on_transport_error(self, event: Any) -> None:
        """The broker is gone: what is missing is missing."""
        self._finish()


def run(handler: ProducerAndConsumer) -> Tally:
    """Let the two do their work; returns when it is done, or when nothing moves any more."""
    Container(handler).run()
    return handler.tally


class Greeter(MessagingHandler):
    """A service: answers each request to the address that it names, until it is asked to stop."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__()
        self._url, self._queue = url, queue

    def on_start(self, event: Any) -> None:
        """Connect; the sender without an address may send to any."""
        connection = event.container.connect(self._url, reconnect=False)
        event.container.create_receiver(connection, self._queue)
        self._replies = event.container.create_sender(connection, None)

    def on_message(self, event: Any) -> None:
        """Answer."""
        request = event.message
        answer = Message(f"hello {request.body}", address=request.reply_to, correlation_id=request.correlation_id)
        self._replies.send(answer)
        if request.body == "stop":
            event.connection.close()


def call(url: str, queue: str, count: int) -> list[float]:
    """Ask a service `count` times, over a reply queue made for the purpose; how long each took, in milliseconds.

    Raises ValueError for a wrong answer, and Proton's exceptions when there is none.
    """
    connection = BlockingConnection(url, timeout=STALL_S)
    try:
        requests = SyncRequestResponse(connection, queue)
        times_ms = []
        for name in [*(f"caller {n}" for n in range(count)), "stop"]:
            began = time.perf_counter()
            answer = requests.call(Message(name)).body
            times_ms.append((time.perf_counter() - began) * 1000)
            if answer != f"hello {name}":
                raise ValueError(f"{name} was greeted with {answer!r}")
        return times_ms[:-1]
    finally:
        connection.close()


def read_queue(url: str, queue: str) -> dict[str, Any]:
    """Ask `$management` for a queue's attributes. Raises ValueError when it refuses."""
    connection = BlockingConnection(url, timeout=STALL_S)
    try:
        request = Message(properties={"operation": "READ", "type": "org.qpid_ha.queue", "name": queue})
        answer: Any = SyncRequestResponse(connection, "$management").call(request)
        if answer.properties["statusCode"] != 200:
            raise ValueError(answer.properties["statusDescription"])
        return dict(answer.body)
    finally:
        connection.close()
