"""What replication costs: a primary and two backups, and nothing is confirmed before all three hold it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Measurement
from bench.latency import PERCENTILES, RATE_PER_S, WARM_UP, Pace, percentile
from bench.load_client import BenchError, LoadConnection, Publisher, Subscriber
from bench.scenario import LAST_WORDS, Scenario
from bench.throughput import QUEUE, SIZES, WINDOW, consume, message, publish, rate
from bench.usage import Usage
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

BURST = 500
"""Messages between two looks at the clock."""
TRICKLE_PER_S = 1000
READY_TIMEOUT_S = 120.0
_GLANCE_S = 0.005


@contextmanager
def fresh_cluster(
    *,
    agents: bool = False,
    count: int = 3,
    settings: Mapping[str, object] | None = None,
    stores: Path | None = None,
) -> Iterator[RunningCluster]:
    """A whole cluster of one's own: one primary, and all others ready. Its last words go with a failure."""
    with (
        TemporaryDirectory(prefix="qpid-ha-bench-") as directory,
        RunningCluster(Path(directory), count, agents=agents, settings=settings, stores=stores) as cluster,
    ):
        try:
            if agents:
                cluster.wait_whole()
            else:
                cluster.form()
            yield cluster
        except Exception as error:
            for broker in cluster.brokers:
                error.add_note(f"the last words of {broker.name}: {broker.log()[-LAST_WORDS:]}")
            raise


def port_of(cluster: RunningCluster, broker: LocalBroker) -> int:
    """Where it listens."""
    return int(cluster.urls[cluster.brokers.index(broker)].rpartition(":")[2])


def primary_port(cluster: RunningCluster) -> int:
    """Where clients are served."""
    return port_of(cluster, cluster.the_primary())


def usage_of(cluster: RunningCluster) -> Usage:
    """Who works: the client, the primary, each backup."""
    primary = cluster.the_primary()
    return Usage(primary.pid, [broker.pid for broker in cluster.brokers if broker is not primary])


def fill(cluster: RunningCluster, count: int, size: int = 100, *, durable: bool = False) -> None:
    """Have that many messages confirmed."""
    with LoadConnection(primary_port(cluster)) as connection:
        publish(Publisher(connection, QUEUE), message(size, durable=durable), count)


def check_everywhere(cluster: RunningCluster, expected: int) -> None:
    """Raises BenchError when a broker holds another number of messages than was confirmed."""
    for broker in cluster.brokers:
        deadline = time.monotonic() + 10
        while (found := broker.ask("query")["messages"]) != expected:
            if time.monotonic() > deadline:
                raise BenchError(f"{broker.name} holds {found} messages, and should hold {expected}")
            time.sleep(_GLANCE_S)


def measure_enqueue(scenario: Scenario) -> Iterator[Measurement]:
    """An empty queue, one publisher, nobody who consumes; confirmed after both backups."""
    for size in SIZES:
        with fresh_cluster() as cluster, LoadConnection(primary_port(cluster)) as connection:
            publisher = Publisher(connection, QUEUE)
            with usage_of(cluster) as usage:
                publish(publisher, message(size), scenario.messages)
            check_everywhere(cluster, scenario.messages)
        label = f"replicated enqueue, 2 backups, {size} B"
        yield rate(f"replicated_enqueue_{size}", label, scenario.messages, usage)


def measure_dequeue(scenario: Scenario) -> Iterator[Measurement]:
    """A full queue, one consumer, nobody who publishes; an acknowledgement is settled after both backups."""
    for size in SIZES:
        with fresh_cluster() as cluster:
            fill(cluster, scenario.messages, size)
            with LoadConnection(primary_port(cluster)) as connection:
                subscriber = Subscriber(connection, QUEUE, WINDOW)
                with usage_of(cluster) as usage:
                    consume(subscriber, scenario.messages)
            check_everywhere(cluster, 0)
        label = f"replicated dequeue, 2 backups, {size} B"
        yield rate(f"replicated_dequeue_{size}", label, scenario.messages, usage)


def measure_latency(scenario: Scenario) -> Iterator[Measurement]:
    """One publisher, one consumer, 1,000 a second."""
    count = int(scenario.latency_s * RATE_PER_S)
    with fresh_cluster() as cluster:
        port = primary_port(cluster)
        with LoadConnection(port) as outgoing, LoadConnection(port) as incoming:
            pace = Pace(Publisher(outgoing, QUEUE), Subscriber(incoming, QUEUE, WINDOW), count)
            with usage_of(cluster) as usage:
                pace.run()
    counted = slice(int(count * WARM_UP), None)
    late_ms = percentile(pace.late[counted], 0.99) * 1000
    for name in ("p50", "p99"):
        value = percentile(pace.to_confirmation[counted], PERCENTILES[name]) * 1000
        note = usage.note_for(count) if name == "p50" else f"client late: {late_ms:.3g} ms"
        label = f"replicated, {RATE_PER_S:,}/s, send to confirmation, {name}"
        yield Measurement(f"replicated_latency_{name}", label, value, "ms", note)


# --- a backup that comes, or comes back


class _Joining(threading.Thread):
    """Starts a broker, and notes when it began to catch up and when it was ready."""

    def __init__(self, cluster: RunningCluster, broker: LocalBroker) -> None:
        super().__init__(daemon=True)
        self._cluster, self._broker = cluster, broker
        self.began_s = self.ready_s = 0.0

    def run(self) -> None:
        """Until it is ready."""
        self._broker.start()
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.ready_s and time.monotonic() < deadline:
            state = self._broker.status()["state"]
            if not self.began_s and state in ("catchup", "ready"):
                self.began_s = time.monotonic()
            if state == "ready":
                self.ready_s = time.monotonic()
            time.sleep(_GLANCE_S)


def publish_while(publisher: Publisher, go_on: Callable[[], bool]) -> float:
    """Publish at full speed as long as `go_on()`; messages a second."""
    payload, count, began_s = message(100), 0, time.monotonic()
    while go_on():
        publish(publisher, payload, BURST)
        count += BURST
    return count / (time.monotonic() - began_s)


def measure_catch_up(scenario: Scenario) -> Iterator[Measurement]:
    """An empty backup joins a primary that has messages queued, has another backup, and goes on serving."""
    count = scenario.catch_up_messages
    with fresh_cluster() as cluster:
        joiner = cluster.brokers[2]
        cluster.kill(joiner)
        fill(cluster, count)
        with LoadConnection(primary_port(cluster)) as connection:
            publisher = Publisher(connection, QUEUE)
            calm_until_s = time.monotonic() + scenario.calm_s
            before = publish_while(publisher, lambda: time.monotonic() < calm_until_s)
            queued = int(cluster.the_primary().ask("query")["messages"])
            joining = _Joining(cluster, joiner)
            joining.start()
            while joining.is_alive() and not joining.began_s:
                publish(publisher, message(100), 1)
            during = publish_while(publisher, joining.is_alive)
        if not joining.ready_s:
            raise BenchError(f"the backup was not ready within {READY_TIMEOUT_S:g} s: {cluster.states()}")
        elapsed_s = joining.ready_s - joining.began_s
    note = f"{queued:,} messages in {elapsed_s:.2f} s"
    yield Measurement("catch_up", "catch-up of an empty backup", queued / elapsed_s, "/s", note)
    note = f"{before:,.0f}/s before, {during:,.0f}/s during"
    yield Measurement("catch_up_share", "publish rate while it catches up", 100 * during / before, "%", note)


class _Listening(threading.Thread):
    """Asks a broker for its status again and again, and notes the longest time that an answer took."""

    def __init__(self, broker: LocalBroker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._is_over = threading.Event()
        self.longest_s = 0.0

    def run(self) -> None:
        """Until `end`; a broker that does not run yet is not counted."""
        while not self._is_over.wait(_GLANCE_S):
            asked_s = time.monotonic()
            if self._broker.status()["state"] != "down":
                self.longest_s = max(self.longest_s, time.monotonic() - asked_s)

    def end(self) -> float:
        """The longest time."""
        self._is_over.set()
        self.join()
        return self.longest_s


def measure_replay(scenario: Scenario) -> Iterator[Measurement]:
    """An empty backup joins a primary that still has the whole stream; agents kill brokers that are silent."""
    count = scenario.replayed_messages
    with fresh_cluster() as cluster:
        joiner, primary = cluster.brokers[2], cluster.the_primary()
        cluster.kill(joiner)
        fill(cluster, count)
        listening = [_Listening(primary), _Listening(joiner)]
        for each in listening:
            each.start()
        joining = _Joining(cluster, joiner)
        joining.start()
        joining.join()
        longest_s = [each.end() for each in listening]
        if not joining.ready_s:
            raise BenchError(f"the backup was not ready within {READY_TIMEOUT_S:g} s: {cluster.states()}")
    elapsed_s = joining.ready_s - joining.began_s
    yield Measurement("replay", "replay of the stream to a backup", count / elapsed_s, "/s", f"{count:,} events")
    for who, silent_s in zip(("primary", "backup"), longest_s, strict=True):
        label = f"longest wait for an answer of the {who} meanwhile"
        yield Measurement(f"replay_silence_{who}", label, silent_s * 1000, "ms", "")


def measure_rejoin(scenario: Scenario) -> Iterator[Measurement]:
    """A backup is paused for five seconds, dropped after two, and comes back while publishers went on."""
    with fresh_cluster(settings={"ha": {"backup-timeout": "2s"}}) as cluster:
        fill(cluster, scenario.deep_messages)
        backup = cluster.brokers[2]
        with cluster.paused(backup):
            missed = trickle(cluster, scenario.absence_s)
            cluster.wait_until(lambda: not is_in_sync(cluster, backup), f"{backup.name} is dropped")
        began_s = time.monotonic()
        ready_s = cluster.wait_until(lambda: is_in_sync(cluster, backup), f"{backup.name} is back", READY_TIMEOUT_S)
    note = f"{scenario.deep_messages:,} messages queued, {missed:,} missed"
    label = f"rejoin after {scenario.absence_s:g} s (SIGSTOP), until in sync"
    yield Measurement("rejoin", label, ready_s - began_s, "s", note)


def trickle(cluster: RunningCluster, for_s: float) -> int:
    """Publish 1,000 a second for so long; how many were confirmed."""
    payload, count, end_s = message(100), 0, time.monotonic() + for_s
    with LoadConnection(primary_port(cluster)) as connection:
        publisher = Publisher(connection, QUEUE)
        while (now_s := time.monotonic()) < end_s:
            publish(publisher, payload, TRICKLE_PER_S // 20)
            count += TRICKLE_PER_S // 20
            time.sleep(max(0.0, now_s + 0.05 - time.monotonic()))
    return count


def is_in_sync(cluster: RunningCluster, backup: LocalBroker) -> bool:
    """As the primary sees it."""
    rows = cluster.the_primary().ask("backups")["answer"]
    return any(row["name"] == backup.name and row["in_sync"] for row in rows)
