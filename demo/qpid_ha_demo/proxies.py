"""`./dev demo --proxy`: three brokers with `ha.clients: proxy`, clients at each of them, and brokers that are killed.

Nobody is told who is primary. In each round the primary is killed, then a broker that relays. Clients of a broker that
lives are to notice a pause and no more; those of a broker that is killed reconnect to the next one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_demo.cluster import LocalBroker, LocalCluster
from qpid_ha_demo.load import DemoTraffic
from qpid_ha_demo.stage import Stage
from qpid_ha_demo.story import STEP_S, Story

BROKERS: Final = 3
RATE: Final = 200
"""Messages a second of each publisher."""
CALM_S: Final = 1.0


class ProxyTraffic(DemoTraffic):
    """A publisher that begins at one broker, and a consumer that begins at the next one."""

    def __init__(self, urls: Sequence[str], at: int) -> None:
        super().__init__(f"orders-{at + 1}", _rotated(urls, at), _rotated(urls, at + 1), rate=RATE)


class ProxyOutage(NamedTuple):
    """Of one killed broker; times in seconds since then."""

    killed: str
    role: str
    gaps_s: tuple[float, ...]
    """For how long each publisher was confirmed nothing."""
    whole_s: float


class ProxyDemo(Story[ProxyTraffic]):
    """The story, on a stage."""

    counts_errors = True

    def __init__(self, stage: Stage, cluster: LocalCluster) -> None:
        super().__init__(stage, cluster, [ProxyTraffic(cluster.urls, at) for at in range(BROKERS)])

    def start(self) -> None:
        """Wait for the cluster, then begin to work."""
        self._cluster.wait_whole()
        self._stage.step(
            "three brokers, each with its agent, all of which serve clients", f"{self._leader().name} leads"
        )
        for traffic in self.traffic:
            traffic.start()
        self._wait_more("each queue has its first messages", self.traffic)
        self._stage.step("a publisher and a consumer at each broker", "none is told who leads")

    def play(self, rounds: int) -> list[ProxyOutage]:
        """That many rounds."""
        outages = []
        for _ in range(rounds):
            outages.append(self._kill(self._leader(), "the primary"))
            outages.append(self._kill(self._a_proxy(), "a proxy"))
        return outages

    def _kill(self, victim: LocalBroker, role: str) -> ProxyOutage:
        time.sleep(CALM_S)
        at_s = victim.kill()
        self._wait_more("all queues confirm and deliver again", self.traffic)
        whole_s = self._cluster.wait_whole() - at_s
        gaps_s = tuple(each.ledger.longest_gap_s(at_s - STEP_S, time.monotonic()) for each in self.traffic)
        outage = ProxyOutage(victim.name, role, gaps_s, whole_s)
        self._stage.step(
            f"killed {victim.name}, {role}: {self._leader().name} leads",
            f"confirmed nothing for {min(gaps_s):.3f} to {max(gaps_s):.3f} s, all ready again after {whole_s:.1f} s",
        )
        return outage

    def _a_proxy(self) -> LocalBroker:
        primary = self._leader()
        return next(broker for broker in self._cluster.brokers if broker is not primary)


def show_proxies(stage: Stage, directory: Path, rounds: int) -> bool:
    """The whole story; whether all went well."""
    settings = {"ha": {"clients": "proxy", "failure-timeout": "1s"}}
    with LocalCluster(directory, BROKERS, settings=settings) as cluster:
        demo = ProxyDemo(stage, cluster)
        try:
            demo.start()
            demo.play(rounds)
            return demo.settle()
        finally:
            demo.stop()


def _rotated(urls: Sequence[str], at: int) -> list[str]:
    first = at % len(urls)
    return [*urls[first:], *urls[:first]]
