"""What messages take that wait for their time, and how late those leave that are due while many others wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import proton

from bench.figures import Measurement
from bench.latency import PERCENTILES, percentile
from bench.load_client import LoadConnection, Publisher, Subscriber
from bench.scenario import Scenario, fresh_broker
from bench.throughput import QUEUE, WINDOW, check_depth, publish
from bench.usage import Usage, resident_bytes

MB = 1_000_000
WAITING_MS = 24 * 3600 * 1000
LEAD_MS = 500
"""Before the first of those is due that are waited for."""
STEP_MS = 2
"""Between two of them."""
TIME = proton.symbol("x-opt-delivery-time")
DELAY = proton.symbol("x-opt-delivery-delay")


def _encoded(body: bytes, annotation: proton.symbol, value: int) -> bytes:
    return bytes(proton.Message(body=body, annotations={annotation: value}).encode())


def measure_delayed(scenario: Scenario) -> Iterator[Measurement]:
    """A queue in which many messages wait for a day, and a thousand more, in no order, for a moment."""
    count, probes = scenario.delayed_messages, min(1000, scenario.delayed_messages)
    payload, late_ms = _encoded(b"x" * 100, DELAY, WAITING_MS), list[float]()

    def arrived(taken: bytes) -> None:
        message = proton.Message()
        message.decode(taken)
        annotations: Any = message.annotations
        late_ms.append(time.time() * 1000 - annotations[TIME])

    with fresh_broker() as broker, LoadConnection(broker.port) as connection, LoadConnection(broker.port) as incoming:
        publisher, before = Publisher(connection, QUEUE), resident_bytes(broker.pid)
        publish(publisher, payload, count)
        check_depth(broker, count)
        each = (resident_bytes(broker.pid) - before) / count
        subscriber = Subscriber(incoming, QUEUE, WINDOW)
        subscriber.start()
        began_ms, usage = int(time.time() * 1000) + LEAD_MS, Usage(broker.pid)
        with usage:
            for number in range(probes):
                publisher.send(_encoded(b"p", TIME, began_ms + (number * 7919 % probes) * STEP_MS))
                if number % 100 == 99:
                    connection.flush()
                    connection.read()
            connection.flush()
            while len(late_ms) < probes:
                incoming.read()
                subscriber.take(arrived)
                incoming.flush()
    label = f"memory for each of {count:,} messages that wait, without its bytes"
    note = f"{len(payload)} B as sent; {count * each / MB:.0f} MB in all"
    yield Measurement("delayed_memory", label, each - len(payload), "B", note)
    for name, share in PERCENTILES.items():
        note = usage.note_for(probes) if name == "p50" else ""
        label = f"{1000 // STEP_MS}/s due among {count:,}, due to consumer, {name}"
        yield Measurement(f"delayed_late_{name}", label, percentile(late_ms, share), "ms", note)
