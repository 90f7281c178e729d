"""What a broker that relays links costs: the same messages straight to the primary, and by way of another broker.

The set has one replica, so the second broker has nothing else to do than to relay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import proton

from bench.figures import Measurement
from bench.latency import RATE_PER_S, counted_ms, run_pace
from bench.load_client import LoadConnection
from bench.proxy_failover import measure_failover
from bench.replication import fresh_cluster, port_of, wait_depth
from bench.scenario import Scenario
from bench.throughput import QUEUE, SIZES, send_all, take_all
from bench.usage import Usage, resident_bytes
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

SET = "relayed"
_CREDIT = 100


@contextmanager
def two_brokers() -> Iterator[RunningCluster]:
    """The first leads everything, the second has no replica of the set of the queue."""
    with fresh_cluster(count=2, settings={"ha": {"clients": "proxy", "min-replicas": 1}}) as cluster:
        create_set(cluster, SET, preferred=cluster.broker(0).name, replicas=[cluster.broker(0).name])
        wait_whole(cluster, 0, SET)
        create_queue(cluster, 0, QUEUE, SET)
        yield cluster


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
            direct: dict[str, Usage] = {}
            primary, proxy = cluster.brokers
            for way, broker in (("direct", primary), ("proxied", proxy)):
                for what in ("enqueue", "dequeue"):
                    usage = Usage(primary.pid, [proxy.pid], profiled=broker.pid)
                    port, name = port_of(cluster, broker), f"proxy-{way}-{what}-{size}"
                    if what == "enqueue":
                        send_all(scenario, port, usage, name, size)
                    else:
                        take_all(scenario, port, usage, name)
                    note = usage.note_for(count).replace("backup", "proxy")
                    label = f"{way} {what}, {size} B"
                    yield Measurement(f"{way}_{what}_{size}", label, count / usage.elapsed_s, "/s", note)
                    if broker is proxy:
                        yield from _relayed(what, size, count, usage, direct[what])
                    direct.setdefault(what, usage)
                    expected = count if what == "enqueue" else 0
                    wait_depth(primary, expected, "queues", action="read", name=QUEUE)


def _relayed(what: str, size: int, count: int, usage: Usage, direct: Usage) -> Iterator[Measurement]:
    share, cpu_us = direct.elapsed_s / usage.elapsed_s, usage.brokers_s[1] / count * 1e6
    yield Measurement(f"proxied_{what}_share_{size}", f"proxied {what}, {size} B, of the direct rate", 100 * share, "%")
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
    direct_ms: dict[str, float] = {}
    for way, at in (("direct", 0), ("proxied", 1)):
        with two_brokers() as cluster:
            usage = Usage(cluster.broker(0).pid, [cluster.broker(1).pid])
            pace = run_pace(scenario, port_of(cluster, cluster.broker(at)), usage)
        for what, times_s in (("delivery", pace.to_consumer), ("confirmation", pace.to_confirmation)):
            value_ms = counted_ms(times_s, 0.5)
            yield Measurement(f"{way}_{what}_p50", f"{way}, {RATE_PER_S:,}/s, send to {what}, p50", value_ms, "ms")
            if at:
                label = f"added by the proxy, send to {what}, p50"
                yield Measurement(f"proxy_added_{what}_p50", label, value_ms - direct_ms[what], "ms")
            direct_ms[what] = value_ms
