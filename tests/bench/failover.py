"""How long nobody is served: a promotion by hand, a primary that is killed, one that is paused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bench.figures import Measurement
from bench.load_client import BenchError, LoadConnection, Publisher
from bench.replication import fresh_cluster, port_of, primary_port
from bench.scenario import Scenario, create_queues
from bench.throughput import QUEUE, fill, message, publish
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

SERVED_TIMEOUT_S = 60.0
_PAUSE_S = 0.002
_WHOLE_TIMEOUT_S = 120.0
_CALM_S = 1.0
"""An agent looks at its broker twice a second."""


def first_confirmed(ports: Sequence[int]) -> float:
    """When one of them confirms a message for the first time; each is tried in turn. Raises BenchError."""
    deadline, problem = time.monotonic() + SERVED_TIMEOUT_S, ""
    while time.monotonic() < deadline:
        for port in ports:
            try:
                with LoadConnection(port) as connection:
                    publish(Publisher(connection, QUEUE), message(100), 1)
                    return time.monotonic()
            except (BenchError, OSError) as error:
                problem = str(error)
            time.sleep(_PAUSE_S)
    raise BenchError(f"nobody confirmed anything for {SERVED_TIMEOUT_S:g} s: {problem}")


def others_than(cluster: RunningCluster, broker: LocalBroker) -> list[LocalBroker]:
    """All the others."""
    return [other for other in cluster.brokers if other is not broker]


def wait_not_primary(cluster: RunningCluster, broker: LocalBroker) -> None:
    """Until it says that it is something else, or nothing."""
    cluster.wait_until(lambda: cluster.state(broker) != "primary", f"{broker.name} is primary no more")


# --- by hand


def promote_after_kill(cluster: RunningCluster) -> float:
    """Kill the primary, have a backup promoted, and wait for a confirmation; from the command, in seconds."""
    old = cluster.the_primary()
    cluster.kill(old)
    heir, *rest = others_than(cluster, old)
    for broker in (heir, *rest):
        cluster.wait_state(broker, "connecting")
    began_s = time.monotonic()
    cluster.promote(heir)
    elapsed_s = first_confirmed([port_of(cluster, heir)]) - began_s
    cluster.restart(old)
    cluster.wait_whole(_WHOLE_TIMEOUT_S)
    return elapsed_s


def measure_promote(scenario: Scenario) -> Iterator[Measurement]:
    """With next to nothing queued, and with very much."""
    for key, depth in (("promote_shallow", 1), ("promote_deep", scenario.deep_messages)):
        with fresh_cluster() as cluster:
            fill(primary_port(cluster), depth)
            for _ in range(scenario.promotes):
                label = f"promote to first confirmed publish, {depth:,} queued"
                yield Measurement(key, label, promote_after_kill(cluster) * 1000, "ms", "the old primary was killed")


def measure_queues(scenario: Scenario) -> Iterator[Measurement]:
    """With many queues."""
    for key, count in zip(("promote_queues", "promote_many_queues"), scenario.cluster_queues, strict=True):
        with fresh_cluster() as cluster:
            create_queues(cluster.the_primary().control_socket, [f"idle-{number}" for number in range(count)])
            label = f"promote to first confirmed publish, {count:,} queues"
            yield Measurement(key, label, promote_after_kill(cluster), "s", "the old primary was killed")


# --- under `qpid-ha-agent run`


def calm_primary(cluster: RunningCluster) -> LocalBroker:
    """The primary of a cluster that is whole, and whose agents have had the time to see that it is."""
    cluster.wait_whole(_WHOLE_TIMEOUT_S)
    time.sleep(_CALM_S)
    return cluster.the_primary()


class Strike(NamedTuple):
    """What is done to a primary, and what has to be done before it can be done to the next one."""

    label: str
    hit: Callable[[RunningCluster, LocalBroker], float]
    """When that was, by the monotonic clock."""
    afterwards: Callable[[RunningCluster, LocalBroker], object] = lambda cluster, broker: None


KILL = Strike("kill -9 of the primary", RunningCluster.kill)
PAUSE = Strike("SIGSTOP of the primary", RunningCluster.pause, wait_not_primary)
"""It keeps its sockets, and says nothing any more."""
CRASH = Strike("kill -9 of broker and agent", RunningCluster.crash, RunningCluster.restart)


def outages(cluster: RunningCluster, times: int, strike: Strike, key: str, of: str = "") -> Iterator[Measurement]:
    """From each time that the primary of that cluster, which is under agents, was struck."""
    for _ in range(times):
        old = calm_primary(cluster)
        ports = [port_of(cluster, broker) for broker in others_than(cluster, old)]
        struck_s = strike.hit(cluster, old)
        elapsed_s = first_confirmed(ports) - struck_s
        yield Measurement(key, f"{of}{strike.label} to first confirmed publish", elapsed_s, "s")
        strike.afterwards(cluster, old)


def measure_kill(scenario: Scenario) -> Iterator[Measurement]:
    """Again and again."""
    with fresh_cluster(agents=True) as cluster:
        yield from outages(cluster, scenario.kills, KILL, "kill")


def measure_pause(scenario: Scenario) -> Iterator[Measurement]:
    """A few times."""
    with fresh_cluster(agents=True) as cluster:
        yield from outages(cluster, scenario.pauses, PAUSE, "pause")
