"""Whether a cluster serves its clients while others do all they can to stop it, and its primary is killed at times."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NamedTuple, Self

from attackers import Attack
from bench.figures import Measurement
from bench.latency import percentile
from bench.load_client import BenchError, LoadConnection, Publisher
from bench.replication import fresh_cluster, port_of
from bench.scenario import Scenario
from bench.throughput import message, publish
from failover_load import FailoverLoad, LedgerAudit
from qpid_ha_demo.cluster import ClusterFailed
from running_cluster import RunningCluster

RATE_PER_S = 100
PROBE_QUEUE, PROBE_PAUSE_S = "probe", 0.05
KILL_EVERY_S = 60.0
AFTER_KILL_S = 20.0
"""So long after a kill a gap is counted as one of the failover, and not of the attack."""
FINISH_S = 120.0
GLANCE_S = 0.2


class Verdict(NamedTuple):
    """What came of it. Gaps are between two confirmations of the load, in seconds."""

    audit: LedgerAudit
    kills: int
    promotions: int
    """Generations after the first: one for each kill, and one for each primary that fell for another reason."""
    longest_gap_s: float
    longest_calm_gap_s: float
    """Of those that lie in the neighbourhood of no kill."""
    rounds: dict[str, int]
    """How often each attack was carried out to its end."""
    probes_s: list[float]
    """How long single messages took to be confirmed, in the neighbourhood of no kill; ascending."""


class Probe:
    """An ordinary client that publishes a message now and then, one at a time, to whoever is primary."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.taken: list[tuple[float, float]] = []
        """When it was sent, by `time.monotonic`, and how long it took, in seconds."""

    def _go_on(self) -> None:
        while not self._is_over.is_set():
            for port in self._ports:
                with suppress(BenchError, OSError), LoadConnection(port) as connection:
                    self._probe(Publisher(connection, PROBE_QUEUE))
            self._is_over.wait(PROBE_PAUSE_S)

    def _probe(self, publisher: Publisher) -> None:
        while not self._is_over.is_set():
            began_s = time.monotonic()
            publish(publisher, message(100), 1)
            self.taken.append((began_s, time.monotonic() - began_s))
            self._is_over.wait(PROBE_PAUSE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(10)


def endure(cluster: RunningCluster, duration_s: float, kill_every_s: float = KILL_EVERY_S) -> Verdict:
    """Attack the whole cluster for so long; the account of its clients, when the attack is over."""
    ports = [port_of(cluster, broker) for broker in cluster.brokers]
    first = generation(cluster)
    kills_s: list[float] = []
    with FailoverLoad(cluster.urls, rate=RATE_PER_S, durable=True) as load:
        load.wait_confirmed(RATE_PER_S)
        began_s = time.monotonic()
        with Attack(ports) as attack, Probe(ports) as probe:
            while (now_s := time.monotonic()) < began_s + duration_s:
                if now_s - (kills_s or [began_s])[-1] >= kill_every_s and cluster.primary() is not None:
                    with suppress(ClusterFailed):  # it has fallen since
                        kills_s.append(cluster.kill(cluster.the_primary()))
                time.sleep(GLANCE_S)
            ended, rounds = attack.ended, attack.rounds()
        if ended:
            raise BenchError(f"attacks that came to an end by themselves prove nothing: {', '.join(ended)}")
        ended_s = time.monotonic()
        confirmed_s = sorted(at_s for at_s in list(load.ledger.confirmed_at_s.values()) if at_s >= began_s)
        gaps = list(pairwise([began_s, *(at_s for at_s in confirmed_s if at_s < ended_s), ended_s]))
        audit = load.finish(FINISH_S)
    calm = [end - start for start, end in gaps if not _is_near(kills_s, start, end)]
    probes = [took_s for at_s, took_s in probe.taken if not _is_near(kills_s, at_s, at_s + took_s)]
    longest = max(end - start for start, end in gaps)
    return Verdict(
        audit, len(kills_s), generation(cluster) - first, longest, max(calm, default=0.0), rounds, sorted(probes)
    )


def generation(cluster: RunningCluster) -> int:
    """The newest that a broker knows of."""
    return max(int(cluster.status(broker).get("generation", 0)) for broker in cluster.brokers)


def _is_near(kills_s: Sequence[float], start_s: float, end_s: float) -> bool:
    return any(start_s < kill_s + AFTER_KILL_S and end_s > kill_s for kill_s in kills_s)


def measure_attack(scenario: Scenario) -> Iterator[Measurement]:
    """Silent sockets, topics, selectors, sections and links at once, with load and kills beside them."""
    with (
        TemporaryDirectory(prefix="qpid-ha-bench-") as stores,
        fresh_cluster(agents=True, stores=Path(stores)) as cluster,
    ):
        verdict = endure(cluster, scenario.attack_s, min(KILL_EVERY_S, scenario.attack_s / 2))
        audit, probes = verdict.audit, verdict.probes_s
        if not audit.is_flawless:
            raise BenchError(f"a promise was broken: {audit}")
        if idle := [kind for kind, count in verdict.rounds.items() if not count]:
            raise BenchError(f"attacks that were never carried out prove nothing: {', '.join(idle)}")
        note = f"{scenario.attack_s:g} s, {verdict.kills} kills, {verdict.promotions} promotions, nothing lost"
        yield Measurement(
            "attack_gap", "longest gap of service in an attack with kills", verdict.longest_gap_s, "s", note
        )
        yield Measurement("attack_calm_gap", "the same, but for kills", verdict.longest_calm_gap_s, "s")
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            if probes:
                value = percentile(probes, share) * 1000
                yield Measurement(f"attack_probe_{name}", f"probe confirmed in an attack, {name}", value, "ms")
        for kind, count in verdict.rounds.items():
            yield Measurement(f"attack_{kind}", f"attacks carried out: {kind}", count, "rounds")
        yield Measurement("attack_confirmed", "confirmed meanwhile", audit.confirmed, "messages")
