"""What replication costs: a primary and two backups, and nothing is confirmed before all three hold it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Measurement
from bench.latency import latencies_of_cluster, run_pace
from bench.load_client import BenchError, LoadConnection, Publisher
from bench.scenario import LAST_WORDS, Scenario
from bench.throughput import QUEUE, SIZES, fill, message, publish, rate, send_all, take_all
from bench.usage import Usage
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

BURST = 500
"""Messages between two looks at the clock."""
SLOT_S = 0.25
"""A rate is looked at in pieces of so long."""
SILENCES, SILENT_S, BETWEEN_SILENCES_S = 3, 6.0, 1.0
TRICKLE_PER_S = 1000
READY_TIMEOUT_S = 120.0
DEPTH_TIMEOUT_S = 10.0
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


def check_everywhere(cluster: RunningCluster, expected: int) -> None:
    """Raises BenchError when a broker holds another number of messages than was confirmed."""
    for broker in cluster.brokers:
        wait_depth(broker, expected, "query")


def wait_depth(broker: LocalBroker, expected: int, method: str, **params: Any) -> None:
    """Raises BenchError when it goes on answering another number of messages."""
    deadline_s = time.monotonic() + DEPTH_TIMEOUT_S
    while (held := broker.ask(method, **params)["messages"]) != expected:
        if time.monotonic() > deadline_s:
            raise BenchError(f"{broker.name} holds {held} messages, and should hold {expected}")
        time.sleep(_GLANCE_S)


def measure_enqueue(scenario: Scenario) -> Iterator[Measurement]:
    """An empty queue, one publisher, nobody who consumes; confirmed after both backups."""
    for size in SIZES:
        with fresh_cluster() as cluster:
            name = f"replicated-enqueue-{size}"
            usage = send_all(scenario, primary_port(cluster), usage_of(cluster), name, size)
            check_everywhere(cluster, scenario.messages)
        label = f"replicated enqueue, 2 backups, {size} B"
        yield rate(f"replicated_enqueue_{size}", label, scenario.messages, usage)


def measure_dequeue(scenario: Scenario) -> Iterator[Measurement]:
    """A full queue, one consumer, nobody who publishes; an acknowledgement is settled after both backups."""
    for size in SIZES:
        with fresh_cluster() as cluster:
            fill(primary_port(cluster), scenario.messages, size)
            usage = take_all(scenario, primary_port(cluster), usage_of(cluster), f"replicated-dequeue-{size}")
            check_everywhere(cluster, 0)
        label = f"replicated dequeue, 2 backups, {size} B"
        yield rate(f"replicated_dequeue_{size}", label, scenario.messages, usage)


def measure_latency(scenario: Scenario) -> Iterator[Measurement]:
    """One publisher, one consumer, 1,000 a second."""
    with fresh_cluster() as cluster:
        usage = usage_of(cluster)
        pace = run_pace(scenario, primary_port(cluster), usage)
    yield from latencies_of_cluster("replicated_latency", "replicated", pace, usage)


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


class Bursts:
    """Published one after the other at full speed as long as `go_on()`, and how that went."""

    def __init__(self, publisher: Publisher, go_on: Callable[[], bool]) -> None:
        payload, began_s = message(100), time.monotonic()
        ends_s = [began_s]
        while go_on():
            publish(publisher, payload, BURST)
            ends_s.append(time.monotonic())
        self.elapsed_s = ends_s[-1] - began_s
        self.rate = BURST * (len(ends_s) - 1) / max(self.elapsed_s, SLOT_S)
        self.longest_s = max((later_s - earlier_s for earlier_s, later_s in pairwise(ends_s)), default=0.0)
        slots = Counter(int((end_s - began_s) / SLOT_S) for end_s in ends_s[1:])
        whole_slots = range(int(self.elapsed_s / SLOT_S))
        self.least_rate = min((slots[slot] * BURST / SLOT_S for slot in whole_slots), default=self.rate)


def measure_catch_up(scenario: Scenario) -> Iterator[Measurement]:
    """An empty backup joins a primary that has messages queued, has another backup, and goes on serving."""
    count = scenario.catch_up_messages
    with fresh_cluster() as cluster:
        joiner = cluster.brokers[2]
        cluster.kill(joiner)
        fill(primary_port(cluster), count)
        with LoadConnection(primary_port(cluster)) as connection:
            publisher = Publisher(connection, QUEUE)
            calm_until_s = time.monotonic() + scenario.calm_s
            before = Bursts(publisher, lambda: time.monotonic() < calm_until_s).rate
            queued = int(cluster.the_primary().ask("query")["messages"])
            joining = _Joining(cluster, joiner)
            joining.start()
            while joining.is_alive() and not joining.began_s:
                publish(publisher, message(100), 1)
            during = Bursts(publisher, joining.is_alive).rate
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
        fill(primary_port(cluster), count)
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
        fill(primary_port(cluster), scenario.deep_messages)
        backup = cluster.brokers[2]
        with cluster.paused(backup):
            missed = trickle(cluster, scenario.absence_s)
            cluster.wait_until(lambda: not is_in_sync(cluster, backup), f"{backup.name} is dropped")
        began_s = time.monotonic()
        ready_s = cluster.wait_until(lambda: is_in_sync(cluster, backup), f"{backup.name} is back", READY_TIMEOUT_S)
    note = f"{scenario.deep_messages:,} messages queued, {missed:,} missed"
    label = f"rejoin after {scenario.absence_s:g} s (SIGSTOP), until in sync"
    yield Measurement("rejoin", label, ready_s - began_s, "s", note)


def measure_silent_backup(scenario: Scenario) -> Iterator[Measurement]:
    """A backup is stopped for six seconds, three times, and runs for a second in between; with the default settings."""
    waits_s = []
    with fresh_cluster() as cluster:
        fill(primary_port(cluster), 100)
        for _ in range(SILENCES):
            with cluster.paused(cluster.brokers[2]):
                waits_s.append(longest_wait_s(cluster, SILENT_S))
            time.sleep(BETWEEN_SILENCES_S)
    note = ", ".join(f"{wait_s:.2f} s" for wait_s in waits_s)
    label = f"a backup is stopped {SILENCES} times for {SILENT_S:g} s: publishers wait, together"
    yield Measurement("silent_backup", label, sum(waits_s), "s", note)


def longest_wait_s(cluster: RunningCluster, for_s: float) -> float:
    """For a confirmation, of messages that are published one after the other for so long."""
    payload, longest_s, end_s = message(100), 0.0, time.monotonic() + for_s
    with LoadConnection(primary_port(cluster)) as connection:
        publisher = Publisher(connection, QUEUE)
        while (began_s := time.monotonic()) < end_s:
            publish(publisher, payload, 1)
            longest_s = max(longest_s, time.monotonic() - began_s)
            time.sleep(0.02)
    return longest_s


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
