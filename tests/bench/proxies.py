"""What a broker that relays links costs: the same messages straight to the primary, and by way of another broker.

The set has one replica, so the second broker has nothing else to do than to relay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import proton

from bench.figures import Measurement
from bench.latency import RATE_PER_S, WARM_UP, Pace, percentile
from bench.load_client import BenchError, LoadConnection, Publisher, Subscriber
from bench.proxy_failover import measure_failover
from bench.replication import port_of
from bench.scenario import LAST_WORDS, Scenario
from bench.throughput import QUEUE, SIZES, WINDOW, consume, message, publish
from bench.usage import Usage, resident_bytes
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

SET = "relayed"
_GLANCE_S = 0.005
_CREDIT = 100
_EMPTY_TIMEOUT_S = 10.0


@contextmanager
def two_brokers() -> Iterator[RunningCluster]:
    """The first leads everything, the second has no replica of the set of the queue."""
    with (
        TemporaryDirectory(prefix="qpid-ha-bench-") as directory,
        RunningCluster(Path(directory), 2, settings={"ha": {"clients": "proxy", "min-replicas": 1}}) as cluster,
    ):
        try:
            cluster.form()
            create_set(cluster, SET, preferred=cluster.broker(0).name, replicas=[cluster.broker(0).name])
            wait_whole(cluster, 0, SET)
            create_queue(cluster, 0, QUEUE, SET)
            yield cluster
        except Exception as error:
            for broker in cluster.brokers:
                error.add_note(f"the last words of {broker.name}: {broker.log()[-LAST_WORDS:]}")
            raise


def _wait_depth(cluster: RunningCluster, expected: int) -> None:
    """Raises BenchError when the primary goes on holding another number of messages than its answers say."""
    deadline_s = time.monotonic() + _EMPTY_TIMEOUT_S
    while (found := cluster.broker(0).ask("queues", action="read", name=QUEUE)["messages"]) != expected:
        if time.monotonic() > deadline_s:
            raise BenchError(f"the queue holds {found} messages, and should hold {expected}")
        time.sleep(_GLANCE_S)


def measure_proxy(scenario: Scenario) -> Iterator[Measurement]:
    """In and out, straight and relayed; how much later a relayed message arrives; memory; and what a kill costs."""
    yield from _measure_rates(scenario)
    yield from _measure_latency(scenario)
    yield from _measure_memory(scenario)
    yield from measure_failover(scenario)


def _measure_rates(scenario: Scenario) -> Iterator[Measurement]:
    count = scenario.messages
    for size in SIZES:
        with two_brokers() as cluster:
            rates: dict[tuple[str, str], float] = {}
            for way, at in (("direct", 0), ("proxied", 1)):
                port, payload = port_of(cluster, cluster.broker(at)), message(size)
                pids = cluster.broker(0).pid, [cluster.broker(1).pid]
                with LoadConnection(port) as connection:
                    publisher = Publisher(connection, QUEUE)
                    with scenario.profile_of(cluster.broker(at).pid, f"proxy-{way}-in-{size}"), Usage(*pids) as usage:
                        publish(publisher, payload, count)
                rates[way, "in"] = count / usage.elapsed_s
                yield _rate(f"{way}_enqueue_{size}", f"{way} enqueue, {size} B", count, usage)
                if at:
                    yield from _relayed("enqueue", size, count, usage, rates["proxied", "in"] / rates["direct", "in"])
                _wait_depth(cluster, count)
                with LoadConnection(port) as connection:
                    subscriber = Subscriber(connection, QUEUE, WINDOW)
                    with scenario.profile_of(cluster.broker(at).pid, f"proxy-{way}-out-{size}"), Usage(*pids) as usage:
                        consume(subscriber, count)
                rates[way, "out"] = count / usage.elapsed_s
                yield _rate(f"{way}_dequeue_{size}", f"{way} dequeue, {size} B", count, usage)
                if at:
                    yield from _relayed("dequeue", size, count, usage, rates["proxied", "out"] / rates["direct", "out"])
                _wait_depth(cluster, 0)


def _rate(key: str, label: str, count: int, usage: Usage) -> Measurement:
    return Measurement(key, label, count / usage.elapsed_s, "/s", usage.note_for(count).replace("backup", "proxy"))


def _relayed(what: str, size: int, count: int, usage: Usage, share: float) -> Iterator[Measurement]:
    yield Measurement(f"proxied_{what}_share_{size}", f"proxied {what}, {size} B, of the direct rate", 100 * share, "%")
    cpu_us = usage.backups_s[0] / count * 1e6
    yield Measurement(f"proxy_{what}_cpu_{size}", f"processor time of the proxy, {what}, {size} B", cpu_us, "µs")


def _measure_memory(scenario: Scenario) -> Iterator[Measurement]:
    """Links of one client, half of them publishers and half consumers: a connection is measured elsewhere."""
    count = scenario.proxied_links
    with two_brokers() as cluster, LoadConnection(port_of(cluster, cluster.broker(1))) as connection:
        pids = [broker.pid for broker in cluster.brokers]
        first = _attach(connection, 0, 2)  # the connection between the brokers, and what is imported with the first
        before = [resident_bytes(pid) for pid in pids]
        links = _attach(connection, len(first), count - len(first))
        at_primary, at_proxy = (resident_bytes(pid) - was for pid, was in zip(pids, before, strict=True))
    note = f"and {at_primary / len(links) / 1000:.1f} kB at the primary"
    label = f"memory of the proxy for each of {count:,} links"
    yield Measurement("proxied_link_memory", label, at_proxy / len(links) / 1000, "kB", note)


def _attach(connection: LoadConnection, first: int, count: int) -> list[Any]:
    """So many more links, publishers and consumers in turn, all of them answered."""
    links: list[Any] = []
    for number in range(first, first + count):
        session = connection.session
        link = session.receiver(f"link-{number}") if number % 2 else session.sender(f"link-{number}")
        (link.source if number % 2 else link.target).address = QUEUE
        link.open()
        if number % 2:
            link.flow(_CREDIT)
        links.append(link)
    connection.wait_for(lambda: all(link.state & proton.Endpoint.REMOTE_ACTIVE for link in links))
    connection.wait_for(lambda: all(link.credit for link in links))
    return links


def _measure_latency(scenario: Scenario) -> Iterator[Measurement]:
    count = int(scenario.latency_s * RATE_PER_S)
    counted = slice(int(count * WARM_UP), None)
    direct_ms: dict[str, float] = {}
    for way, at in (("direct", 0), ("proxied", 1)):
        with two_brokers() as cluster:
            port = port_of(cluster, cluster.broker(at))
            with LoadConnection(port) as outgoing, LoadConnection(port) as incoming:
                pace = Pace(Publisher(outgoing, QUEUE), Subscriber(incoming, QUEUE, WINDOW), count)
                pace.run()
        for what, values in (("delivery", pace.to_consumer), ("confirmation", pace.to_confirmation)):
            value_ms = percentile(values[counted], 0.5) * 1000
            yield Measurement(f"{way}_{what}_p50", f"{way}, {RATE_PER_S:,}/s, send to {what}, p50", value_ms, "ms")
            if at:
                label = f"added by the proxy, send to {what}, p50"
                yield Measurement(f"proxy_added_{what}_p50", label, value_ms - direct_ms[what], "ms")
            direct_ms[what] = value_ms
