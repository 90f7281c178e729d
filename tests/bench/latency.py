"""How long a message takes at a steady 1,000 a second: to the consumer, and to the publisher's confirmation."""

from __future__ import annotations

import gc
import math
import select
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.figures import Measurement
from bench.load_client import BenchError, LoadConnection, Publisher, Subscriber
from bench.scenario import Scenario, fresh_broker
from bench.throughput import QUEUE, WINDOW, message
from bench.usage import Usage

RATE_PER_S = 1000
WARM_UP = 0.1
"""This share of the messages goes before, and is not counted."""
SPIN_S = 0.0002
"""The last moments before a message is due are spent awake: waking up is late by a tenth of a millisecond."""
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
NUMBER_BYTES = 8


class Pace:
    """Sends numbered messages at fixed times, and notes how long after that time each was delivered and confirmed.

    The time at which a message was due counts, not the one at which it went: a stall delays the messages after it too,
    and their publishers would have noticed. All times are seconds.
    """

    def __init__(self, publisher: Publisher, subscriber: Subscriber, count: int, *, durable: bool = False) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._count = count
        self._payload = message(100, durable=durable)[:-NUMBER_BYTES]
        self._due: list[float] = []
        self._numbers: dict[Any, int] = {}
        self.to_consumer: list[float] = []
        self.to_confirmation: list[float] = []
        self.late: list[float] = []
        """How late the client itself was."""

    def run(self) -> None:
        """Until every message is delivered and confirmed."""
        self._subscriber.start()
        began = time.perf_counter() + 0.01
        self._due = [began + number / RATE_PER_S for number in range(self._count)]
        gc.collect()
        gc.disable()  # the client's own pauses are not what is measured
        try:
            for number, due in enumerate(self._due):
                self._exchange_until(due)
                self._send(number, due)
            deadline = time.perf_counter() + 10
            while len(self.to_consumer) < self._count or len(self.to_confirmation) < self._count:
                self._exchange(0.1)
                if time.perf_counter() > deadline:
                    raise BenchError(f"{len(self.to_consumer)} of {self._count} messages came")
        finally:
            gc.enable()

    def _send(self, number: int, due: float) -> None:
        delivery = self._publisher.send(self._payload + number.to_bytes(NUMBER_BYTES, "big"))
        self._numbers[delivery] = number
        self._publisher.connection.flush()
        self.late.append(time.perf_counter() - due)

    def _exchange_until(self, due: float) -> None:
        while (left := due - time.perf_counter()) > 0:
            self._exchange(max(0.0, left - SPIN_S))

    def _exchange(self, timeout_s: float) -> None:
        """`select` and not `poll`: its time-out has microseconds."""
        publisher, subscriber = self._publisher, self._subscriber
        readable, _, _ = select.select([publisher.connection, subscriber.connection], [], [], timeout_s)
        for connection in readable:
            connection.read()
            if connection is subscriber.connection:
                subscriber.take(self._delivered)
                connection.flush()
            else:
                publisher.confirmed(self._confirmed)

    def _delivered(self, payload: bytes) -> None:
        number = int.from_bytes(payload[-NUMBER_BYTES:], "big")
        self.to_consumer.append(time.perf_counter() - self._due[number])

    def _confirmed(self, delivery: Any) -> None:
        self.to_confirmation.append(time.perf_counter() - self._due[self._numbers.pop(delivery)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def run_pace(scenario: Scenario, port: int, usage: Usage, *, durable: bool = False) -> Pace:
    """One publisher and one consumer over connections of their own; `usage` is around all of it."""
    with LoadConnection(port) as outgoing, LoadConnection(port) as incoming:
        publisher, subscriber = Publisher(outgoing, QUEUE), Subscriber(incoming, QUEUE, WINDOW)
        pace = Pace(publisher, subscriber, int(scenario.latency_s * RATE_PER_S), durable=durable)
        with usage:
            pace.run()
    return pace


def counted_ms(times_s: Sequence[float], share: float) -> float:
    """A percentile of what a pace noted, without its first tenth."""
    return percentile(times_s[int(len(times_s) * WARM_UP) :], share) * 1000


def measure_latency(scenario: Scenario) -> Iterator[Measurement]:
    """One publisher, one consumer, and nothing else to do."""
    with fresh_broker() as broker, scenario.profile(broker.pid, "latency"):
        usage = Usage(broker.pid)
        pace = run_pace(scenario, broker.port, usage)
    late = f"client late: {counted_ms(pace.late, 0.999):.3g} ms"
    notes = {"p50": usage.note_for(len(pace.late)), "p99.9": late}
    for key, label, times_s in (
        ("delivery", "send to consumer", pace.to_consumer),
        ("confirmation", "send to confirmation", pace.to_confirmation),
    ):
        for name, share in PERCENTILES.items():
            value_ms = counted_ms(times_s, share)
            label_of = f"{RATE_PER_S:,}/s, {label}, {name}"
            yield Measurement(f"latency_{key}_{name}", label_of, value_ms, "ms", notes.get(name, ""))


def latencies_of_cluster(key: str, what: str, pace: Pace, usage: Usage, note: str = "") -> Iterator[Measurement]:
    """Medians and 99th percentiles, to the confirmation and to the consumer; `note` goes with the first 99th."""
    late = f"{note}client late: {counted_ms(pace.late, 0.99):.3g} ms"
    for name, its_note in (("p50", usage.note_for(len(pace.late))), ("p99", late)):
        value_ms = counted_ms(pace.to_confirmation, PERCENTILES[name])
        label = f"{what}, {RATE_PER_S:,}/s, send to confirmation, {name}"
        yield Measurement(f"{key}_{name}", label, value_ms, "ms", its_note)
    for name in ("p50", "p99"):
        value_ms = counted_ms(pace.to_consumer, PERCENTILES[name])
        label = f"{what}, {RATE_PER_S:,}/s, send to consumer, {name}"
        yield Measurement(f"{key}_delivery_{name}", label, value_ms, "ms")
