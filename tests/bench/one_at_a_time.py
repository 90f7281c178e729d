"""What one message at a time costs: 1 KiB, the next one when the one before it is confirmed, at most 1,000 a second.

On a busy machine a publisher that keeps its pace sends several at once, which is cheaper for each; this one does not.
Its processor time still grows with what else runs, because caches are cold then: compare in turn.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench.figures import Measurement
from bench.latency import RATE_PER_S, SPIN_S, counted_ms
from bench.load_client import BenchError, LoadConnection, Publisher
from bench.replication import check_everywhere, fresh_cluster, primary_port, usage_of
from bench.scenario import Scenario
from bench.store import disk_directory
from bench.throughput import QUEUE, message
from bench.usage import Usage
from running_cluster import RunningCluster

SIZE_B = 1024
TIMEOUT_S = 10.0
TOLD_MESSAGES = 100_000
"""Processor time is told for so many."""


def measure_memory(scenario: Scenario) -> Iterator[Measurement]:
    """Three brokers in memory."""
    with fresh_cluster() as cluster:
        times_s, usage = _publish_slowly(scenario, cluster, "one-at-a-time", durable=False)
    yield from _figures("one_at_a_time", "one at a time, 3 brokers", times_s, usage)


def measure_durable(scenario: Scenario) -> Iterator[Measurement]:
    """Durable messages, and three brokers with stores on one disk."""
    with disk_directory() as stores, fresh_cluster(stores=stores) as cluster:
        times_s, usage = _publish_slowly(scenario, cluster, "one-at-a-time-durable", durable=True)
    yield from _figures("one_at_a_time_durable", "the same, durable", times_s, usage)


def _publish_slowly(
    scenario: Scenario, cluster: RunningCluster, name: str, *, durable: bool
) -> tuple[list[float], Usage]:
    """How long each message took until it was confirmed, and who worked."""
    payload, count = message(SIZE_B, durable=durable), max(int(scenario.latency_s * RATE_PER_S), 1)
    usage = usage_of(cluster)
    times_s: list[float] = []
    with LoadConnection(primary_port(cluster)) as connection, ExitStack() as profiles:
        publisher = Publisher(connection, QUEUE)
        primary = cluster.the_primary()
        for broker in cluster.brokers:
            role = "primary" if broker is primary else f"backup-{broker.name}"
            profiles.enter_context(scenario.profile(broker.pid, f"{name}-{role}"))
        with usage:
            due_s = time.perf_counter()
            for _ in range(count):
                _wait_until(due_s)
                sent_s = time.perf_counter()
                publisher.send(payload)
                connection.flush()
                _wait_confirmed(publisher)
                times_s.append(time.perf_counter() - sent_s)
                due_s = max(due_s, sent_s) + 1 / RATE_PER_S
        check_everywhere(cluster, count)
    return times_s, usage


def _wait_until(due_s: float) -> None:
    """The last moments are spent awake: waking up is late by a tenth of a millisecond."""
    while (left_s := due_s - time.perf_counter()) > 0:
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)


def _wait_confirmed(publisher: Publisher) -> None:
    while not publisher.confirmed():
        if not select.select([publisher.connection], [], [], TIMEOUT_S)[0]:
            raise BenchError(f"a message was not confirmed within {TIMEOUT_S:g} s")
        publisher.connection.read()


def _figures(key: str, label: str, times_s: list[float], usage: Usage) -> Iterator[Measurement]:
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        note = usage.note_for(len(times_s)) if name == "p50" else ""
        yield Measurement(
            f"{key}_{name}", f"{label}, 1 KiB, to the confirmation, {name}", counted_ms(times_s, share), "ms", note
        )
    spent_s = sum(usage.brokers_s) / len(times_s) * TOLD_MESSAGES
    yield Measurement(f"{key}_processor", f"  processor of all three for {TOLD_MESSAGES:,}", spent_s, "s")
