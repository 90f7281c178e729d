"""A backlog that is larger than the memory that it may take: what it costs in memory, and how fast it comes back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from bench.capacity import MB
from bench.figures import Measurement
from bench.load_client import LoadConnection, Publisher, Subscriber
from bench.scenario import Scenario, ask, fresh_broker
from bench.throughput import QUEUE, WINDOW, consume, message, publish
from bench.usage import Work, resident_bytes

BODY_BYTES = 1024
MEMORY_SHARE = 8
"""What of the backlog may be in memory: one part in so many."""
LEAST_MEMORY_MB = 2


def measure_paging(scenario: Scenario) -> Iterator[Measurement]:
    """Fill a queue, look at the resident set, and empty the queue."""
    count, payload = scenario.paged_messages, message(BODY_BYTES, durable=True)
    backlog = count * len(payload)
    memory_mb = max(backlog // MB // MEMORY_SHARE, LEAST_MEMORY_MB)
    with tempfile.TemporaryDirectory(prefix="qpid-ha-bench-") as data_dir:
        settings = {
            "data-dir": data_dir,
            "store.memory": f"{memory_mb}MB",
            "store.segment-size": "16MB" if backlog > 256 * MB else "256KB",
        }
        with fresh_broker(settings) as broker, LoadConnection(broker.port) as connection:
            publisher, before = Publisher(connection, QUEUE), resident_bytes(broker.pid)
            with Work() as filling:
                publish(publisher, payload, count)
            after, subscriber = resident_bytes(broker.pid), Subscriber(connection, QUEUE, WINDOW)
            with Work() as emptying:
                consume(subscriber, count)
            facts = ask(broker, "query")
    note = (
        f"{backlog / MB:,.0f} MB of messages, store.memory {memory_mb} MB, resident {before / MB:.0f} MB before;"
        f" peak {facts['peak_resident_bytes'] / MB:,.0f} MB"
    )
    yield Measurement("paging_resident", "broker with a backlog on disk", after / MB, "MB", note)
    each = (after - before - memory_mb * MB) / count
    yield Measurement("paging_overhead", "memory for a 1 KiB message on disk", each, "B", "beyond store.memory")
    note = f"{facts['paged_out_total'] / MB:,.0f} MB left memory"
    yield Measurement("paging_in", "enqueue durable 1024 B into it", count / filling.elapsed_s, "/s", note)
    note = f"{facts['paged_in_total'] / MB:,.0f} MB came back from disk"
    yield Measurement("paging_out", "dequeue it from disk", count / emptying.elapsed_s, "/s", note)
