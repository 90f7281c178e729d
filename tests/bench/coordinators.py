"""With a real ensemble as coordinator: how long nobody is served, what a change of the record takes, and what clusters
that do nothing ask of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bench import idle_clusters
from bench.failover import CRASH, KILL, PAUSE, Strike, calm_primary, others_than, outages
from bench.figures import Measurement
from bench.full_disks import GIVE_UP_S, SteadyPublisher
from bench.load_client import BenchError
from bench.replication import fresh_cluster, port_of
from bench.scenario import Measure, Scenario
from bench.set_failover import place, primaries, queue_of
from bench.store import disk_directory
from bench.throughput import QUEUE
from bench.usage import Work
from coordinator_ensembles import ENSEMBLES, Ensemble
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import NOT_STARTED, RunningCluster

FLEET_PROCESSES = 4
AWAY_REPLICAS: Final = 3
"""Of `default`, in a cluster of one broker more: that one joins in the place of another."""
AWAY_CONFIRMS: Final = {"default": "default confirms", "set": "its set confirms"}
_CLUSTERS_FOR_ONE: Final = {"zookeeper": 4, "etcd": 1}
"""The seven sessions of a cluster with ZooKeeper take many threads where the clients are, and little of the servers."""


def _cluster_on(ensemble: Ensemble) -> AbstractContextManager[RunningCluster]:
    return fresh_cluster(agents=True, settings={"ha": {"coordinator": ensemble.url("bench")}})


def _outages(
    kind: str, strike: Strike, times: Callable[[Scenario], int]
) -> Callable[[str, Ensemble, Scenario], Iterator[Measurement]]:
    def measure(name: str, ensemble: Ensemble, scenario: Scenario) -> Iterator[Measurement]:
        with _cluster_on(ensemble) as cluster:
            yield from outages(cluster, times(scenario), strike, f"{name}_{kind}", f"{name}: ")

    return measure


def _leader(name: str, ensemble: Ensemble, scenario: Scenario) -> Iterator[Measurement]:
    """The server that leads the ensemble dies in the same moment as the primary's broker."""

    def hit(cluster: RunningCluster, broker: LocalBroker) -> float:
        ensemble.kill_leader()
        return cluster.kill(broker)

    strike = Strike("kill -9 of its leader and the primary", hit, lambda cluster, broker: ensemble.mend())
    with _cluster_on(ensemble) as cluster:
        yield from outages(cluster, scenario.coordinator_pauses, strike, f"{name}_leader", f"{name}: ")


def _away(name: str, ensemble: Ensemble, scenario: Scenario) -> Iterator[Measurement]:
    """Nobody reaches the coordinator, and a broker that is in sync for `default` and leads a set dies. Its agent starts
    it again, and another broker has joined in its place meanwhile."""
    settings = {"ha": {"coordinator": ensemble.url("bench"), "default-replicas": AWAY_REPLICAS}}
    with (
        disk_directory() as stores,
        fresh_cluster(agents=True, count=AWAY_REPLICAS + 1, settings=settings, stores=stores) as cluster,
    ):
        place(cluster, AWAY_REPLICAS + 1)
        for _ in range(scenario.coordinator_pauses):
            controller = calm_primary(cluster)
            controller.ask("rebalance")
            victim = _leads_and_is_in_sync(cluster, controller)
            led = next(name for name, primary in primaries(cluster).items() if primary == victim.name)
            ensemble.freeze()
            try:
                struck_s = cluster.kill(victim)
                started_s, *waits_s = _first_confirmations(cluster, victim, (QUEUE, queue_of(led)), struck_s)
            finally:
                ensemble.mend()
            label = f"{name} away, kill -9 of a broker in sync, which comes back:"
            for (key, whose), wait_s in zip(AWAY_CONFIRMS.items(), waits_s, strict=True):
                note = "" if wait_s < GIVE_UP_S else f"not in {GIVE_UP_S:g} s"
                yield Measurement(f"{name}_away_{key}", f"{label} {whose}", wait_s, "s", note)
            beyond_s = max(0.0, max(waits_s) - started_s)
            yield Measurement(f"{name}_away_beyond", "    both, from when it listens again", beyond_s, "s")


def _leads_and_is_in_sync(cluster: RunningCluster, controller: LocalBroker) -> LocalBroker:
    members, leading = controller.status()["members"], set(primaries(cluster).values())
    for broker in others_than(cluster, controller):
        if broker.name in members and broker.name in leading:
            return broker
    raise BenchError(f"of those in sync, {members}, none leads a set, but {', '.join(sorted(leading))}")


def _first_confirmations(
    cluster: RunningCluster, victim: LocalBroker, queues: Sequence[str], since_s: float
) -> list[float]:
    """How long until `victim` has started again, and until one of the brokers confirms a message for each queue;
    GIVE_UP_S: not in that time."""

    def wait_started() -> float:
        what = f"{victim.name} has started again"
        return cluster.wait_until(lambda: cluster.state(victim) not in NOT_STARTED, what, GIVE_UP_S) - since_s

    def wait(queue: str) -> float:
        publisher = SteadyPublisher([port_of(cluster, broker) for broker in cluster.brokers], queue)
        elapsed_s = publisher.wait_confirmed(since_s)
        publisher.close()
        return GIVE_UP_S if elapsed_s is None else elapsed_s

    with ThreadPoolExecutor(1 + len(queues)) as pool:
        started = pool.submit(wait_started)
        waits_s = list(pool.map(wait, queues))
        return [started.result(), *waits_s]


def _record(name: str, ensemble: Ensemble, scenario: Scenario) -> Iterator[Measurement]:
    """One change after the other, by one client."""
    settings = CoordinatorSettings(url=CoordinatorUrl.parse(ensemble.url("record")))
    coordinator = open_coordinator(settings)
    try:
        record = coordinator.read()
        for epoch in range(1, scenario.coordinator_changes + 1):
            wanted = ClusterRecord("bench", 1, "broker1", epoch, ("broker1", "broker2", "broker3"))
            with Work() as work:
                written, record = coordinator.compare_and_set(record, wanted)
            if not written:
                raise BenchError(f"somebody else wrote {record}")
            yield Measurement(f"{name}_record", f"{name}: a change of the record", work.elapsed_s * 1000, "ms")
    finally:
        coordinator.close()


def _idle(name: str, ensemble: Ensemble, scenario: Scenario) -> Iterator[Measurement]:
    """A cluster of three brokers and agents that nobody uses, seen by the servers."""
    with _cluster_on(ensemble) as cluster:
        calm_primary(cluster)
        time.sleep(scenario.settled_s)
        rate, note = _rate(ensemble, scenario.idle_s)
        yield Measurement(f"{name}_idle", f"{name}: requests of a cluster that is idle", rate, "/s", note)


def _fleet(name: str, ensemble: Ensemble, scenario: Scenario) -> Iterator[Measurement]:
    """The coordinator's clients of many clusters, in a few processes."""
    count = max(1, scenario.idle_clusters // _CLUSTERS_FOR_ONE[name])
    with ExitStack() as stack:
        share = -(-count // FLEET_PROCESSES)
        fleets = []
        for first in range(0, count, share):
            command = [sys.executable, str(Path(idle_clusters.__file__)), ensemble.url("fleet"), str(first)]
            command.append(str(min(share, count - first)))
            fleet = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(fleet.wait)
            stack.callback(fleet.kill)
            fleets.append(fleet)
        for fleet in fleets:
            if fleet.stdout is None or fleet.stdout.readline() != "ready\n":
                raise BenchError("not every cluster has a holder of its lock")
        time.sleep(scenario.settled_s)
        rate, note = _rate(ensemble, scenario.idle_s, count)
        holders = sum(int(fleet.communicate("", timeout=60)[0]) for fleet in fleets)
    note = f"{note}; in the end {holders} have a holder of the lock"
    yield Measurement(f"{name}_fleet", f"{name}: requests of each of {count} idle clusters", rate, "/s", note)


def _rate(ensemble: Ensemble, for_s: float, clusters: int = 1) -> tuple[float, str]:
    """Requests a second of each cluster, and what else there is to say."""
    requests, packets, began_s = ensemble.requests(), ensemble.packets(), time.monotonic()
    time.sleep(for_s)
    elapsed_s = (time.monotonic() - began_s) * clusters
    rate, all_of_it = (ensemble.requests() - requests) / elapsed_s, (ensemble.packets() - packets) / elapsed_s
    return rate, f"with pings {all_of_it:.2f}/s"


def _on(name: str, measure: Callable[[str, Ensemble, Scenario], Iterator[Measurement]]) -> Measure:
    def measured(scenario: Scenario) -> Iterator[Measurement]:
        with ENSEMBLES[name]() as ensemble:
            yield from measure(name, ensemble, scenario)

    return measured


_KINDS: Final = {
    "kill": _outages("kill", KILL, lambda scenario: scenario.coordinator_kills),  # its agent lets the lock go
    "crash": _outages("crash", CRASH, lambda scenario: scenario.coordinator_pauses),  # nobody lets the lock go
    "leader": _leader,
    "away": _away,
    "pause": _outages("pause", PAUSE, lambda scenario: scenario.coordinator_pauses),
    "record": _record,
    "idle": _idle,
    "fleet": _fleet,
}
COORDINATOR_MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {f"coordinator-{kind}-{name}": _on(name, measure) for kind, measure in _KINDS.items() for name in ENSEMBLES}
)
