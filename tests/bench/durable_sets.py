"""Durable messages to ten resource sets of three brokers against one set: each is on three disks when it counts.

The client has a connection to the primary of each set, and as many messages unconfirmed with ten sets as with one.
Stores lie below the directory for temporary files.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Final

from bench.figures import Measurement
from bench.load_client import LoadConnection, Publisher
from bench.replication import fresh_cluster, port_of
from bench.scenario import Scenario
from bench.set_failover import place, primaries, queue_of
from bench.store import disk_directory
from bench.throughput import WINDOW, message
from bench.usage import Usage
from running_cluster import RunningCluster

SETS: Final = 10
ROUNDS: Final = 3
BURST: Final = 50
BODY_BYTES: Final = 100


def publish_to(publishers: Sequence[Publisher], payload: bytes, count: int) -> None:
    """Have `count` messages accepted, by all of these in turn."""
    window = WINDOW // len(publishers)
    share = count // len(publishers)
    sent, confirmed = [0] * len(publishers), [0] * len(publishers)
    while sum(confirmed) < share * len(publishers):
        for number, publisher in enumerate(publishers):
            room = min(window - (sent[number] - confirmed[number]), share - sent[number], publisher.credit, BURST)
            if room > 0:
                publisher.send(payload, room)
                publisher.connection.flush()
                sent[number] += room
        readable, _, _ = select.select([each.connection for each in publishers], [], [], 0.001)
        for number, publisher in enumerate(publishers):
            if publisher.connection in readable:
                publisher.connection.read()
                confirmed[number] += publisher.confirmed()


def run(cluster: RunningCluster, names: Sequence[str], count: int) -> tuple[float, float]:
    """Messages a second, and microseconds of processor time of all brokers for each."""
    led = primaries(cluster)
    with ExitStack() as stack:
        publishers = []
        for name in names:
            broker = next(each for each in cluster.brokers if each.name == led[name])
            connection = stack.enter_context(LoadConnection(port_of(cluster, broker)))
            publishers.append(Publisher(connection, queue_of(name)))
        first, *others = [broker.pid for broker in cluster.brokers]
        with Usage(first, others) as usage:
            publish_to(publishers, message(BODY_BYTES, durable=True), count)
    return count / usage.elapsed_s, sum(usage.brokers_s) / count * 1e6


def measure_durable_sets(scenario: Scenario) -> Iterator[Measurement]:
    """One set and ten, again and again, because a machine has its moods."""
    results: dict[int, list[tuple[float, float]]] = {1: [], SETS: []}
    with disk_directory() as stores, fresh_cluster(stores=stores) as cluster:
        names = place(cluster, SETS)
        for _ in range(ROUNDS):
            for used, found in results.items():
                found.append(run(cluster, names[:used], scenario.messages // 2))
    one, ten = (median(rate for rate, _ in found) for found in results.values())
    costs = [median(cost for _, cost in found) for found in results.values()]
    note = f"{ten:,.0f}/s, {costs[1]:.1f} us of a processor for each; one set {one:,.0f}/s, {costs[0]:.1f} us"
    label = f"durable on three brokers, {SETS} sets, of one set's rate"
    yield Measurement("durable_sets_ratio", label, 100 * ten / one, "%", note)
