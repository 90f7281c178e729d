"""What the broker holds, and what that costs: messages, queues, connections; and how fast it is there."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack

from bench.figures import Measurement
from bench.latency import PERCENTILES, Pace, percentile
from bench.load_client import BenchError, LoadConnection, Publisher, Subscriber
from bench.replication import check_everywhere, fresh_cluster, primary_port
from bench.scenario import Scenario, create_queues, fresh_broker
from bench.throughput import QUEUE, WINDOW, check_depth, message, publish
from bench.usage import Work, resident_bytes

MB = 1_000_000
MIB = 2**20
WHOLE_TIMEOUT_S = 60.0
SMALL_BUFFER_BYTES = 4096
DESCRIPTORS_BESIDE = 200
"""Files that a process needs apart from its connections."""
PROBES = 500
"""Messages that show how quick a broker with many connections is."""


def measure_memory(scenario: Scenario) -> Iterator[Measurement]:
    """Fill one queue and look at the resident set."""
    count, payload = scenario.memory_messages, message(100)
    with fresh_broker() as broker, LoadConnection(broker.port) as connection:
        publisher, before = Publisher(connection, QUEUE), resident_bytes(broker.pid)
        publish(publisher, payload, count)
        check_depth(broker, count)
        after = resident_bytes(broker.pid)
    each = (after - before) / count
    note = f"resident {before / MB:.0f} MB before, {after / MB:.0f} MB with {count:,} messages"
    yield Measurement(
        "memory_overhead", "memory for a 100 B message, without its bytes", each - len(payload), "B", note
    )
    note = f"{len(payload)} B as sent"
    yield Measurement("memory_per_message", "memory for a 100 B message, all", each, "B", note)


def measure_replicated_memory(scenario: Scenario) -> Iterator[Measurement]:
    """The same at a primary with two backups, with few and with many messages: the end of the stream is there twice."""
    for name, count in zip(("few", "many"), scenario.replicated_memory_messages, strict=True):
        with fresh_cluster() as cluster, LoadConnection(primary_port(cluster)) as connection:
            publisher, before = Publisher(connection, QUEUE), resident_bytes(cluster.the_primary().pid)
            publish(publisher, message(100), count)
            check_everywhere(cluster, count)
            after = resident_bytes(cluster.the_primary().pid)
        label = f"primary of three, above 100 B of each message, {count:,} queued"
        note = f"resident {before / MB:.0f} MB before, {after / MB:.0f} MB with them"
        yield Measurement(f"replicated_memory_{name}", label, (after - before) / count - 100, "B", note)


def measure_idle(scenario: Scenario) -> Iterator[Measurement]:
    """Three brokers without a queue and their agents, once the cluster is whole."""
    with fresh_cluster(agents=True) as cluster:
        cluster.wait_whole(WHOLE_TIMEOUT_S)
        pids = [broker.processes() for broker in cluster.brokers]
        agents = sum(resident_bytes(agent) for agent, *_ in pids) / MIB
        brokers = sum(resident_bytes(pid) for _, *ours in pids for pid in ours) / MIB
    note = f"brokers {brokers:.0f}, agents {agents:.0f} MiB"
    yield Measurement("idle_memory", "three empty brokers and their agents, resident", brokers + agents, "MiB", note)


def measure_queues(scenario: Scenario) -> Iterator[Measurement]:
    """Create queues that nobody uses, one call after the other."""
    count = scenario.queues
    with fresh_broker() as broker:
        before = resident_bytes(broker.pid)
        with Work() as work:
            create_queues(broker.control_socket, [f"idle-{number}" for number in range(count)])
        after = resident_bytes(broker.pid)
    note = f"{(after - before) / count:,.0f} B each; {before / MB:.0f} MB without them"
    yield Measurement("queues_memory", f"broker with {count:,} idle queues", after / MB, "MB", note)
    note = f"{count / work.elapsed_s:,.0f}/s through the control socket"
    yield Measurement("queues_time", f"create {count:,} queues", work.elapsed_s, "s", note)


def measure_connections(scenario: Scenario) -> Iterator[Measurement]:
    """Open connections with a session each, then see whether a message still goes through quickly."""
    count = scenario.connections
    allow_descriptors(count + DESCRIPTORS_BESIDE)
    with ExitStack() as stack:
        broker = stack.enter_context(fresh_broker({"max-connections": count + 2}))
        outgoing, incoming = (stack.enter_context(LoadConnection(broker.port)) for _ in range(2))
        pace = Pace(Publisher(outgoing, QUEUE), Subscriber(incoming, QUEUE, WINDOW), min(PROBES, count))
        before = resident_bytes(broker.pid)
        with Work() as work:
            for _ in range(count):
                stack.enter_context(LoadConnection(broker.port, SMALL_BUFFER_BYTES))
        after = resident_bytes(broker.pid)
        pace.run()
    note = f"{count / work.elapsed_s:,.0f}/s, one after the other, client included"
    yield Measurement("connections_time", f"open {count:,} connections", work.elapsed_s, "s", note)
    note = f"resident {after / MB:.0f} MB with {count:,}"
    yield Measurement("connections_memory", "memory for a connection", (after - before) / count / 1000, "kB", note)
    for name in ("p50", "max"):
        value = percentile(pace.to_consumer, PERCENTILES[name]) * 1000
        yield Measurement(f"connections_latency_{name}", f"beside them, send to consumer, {name}", value, "ms")


def measure_start(scenario: Scenario) -> Iterator[Measurement]:
    """From the start of the process to the log line that says that it listens."""
    for _ in range(scenario.starts):
        with fresh_broker() as broker:
            pass
        yield Measurement("start", "start to listening", broker.start_s, "s", f"median of {scenario.starts} or more")


def allow_descriptors(count: int) -> None:
    """Raise the soft limit on open files, for us and the brokers that we start. Raises BenchError over the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchError(f"{count} files have to be open at once, and the limit is {hard}: see ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
