"""`./dev demo --proxy`: three brokers with `ha.clients: proxy`, clients at each of them, and brokers that are killed.

Nobody is told who is primary. In each round the primary is killed, then a broker that relays. Clients of a broker that
lives are to notice a pause and no more; those of a broker that is killed reconnect to the next one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import RenderableType
from rich.table import Table

from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster
from qpid_ha_demo.ledger import LedgerAudit
from qpid_ha_demo.load import DemoTraffic
from qpid_ha_demo.stage import Stage

BROKERS: Final = 3
RATE: Final = 200
"""Messages a second of each publisher."""
CALM_S: Final = 1.0
PATIENCE_S: Final = 30.0
STEP_S: Final = 0.02


class ProxyTraffic(DemoTraffic):
    """A publisher that begins at one broker, and a consumer that begins at the next one."""

    def __init__(self, urls: Sequence[str], at: int) -> None:
        super().__init__(f"orders-{at + 1}", _rotated(urls, at), _rotated(urls, at + 1), rate=RATE)

    @property
    def errors(self) -> list[str]:
        """What brokers told the clients beside the end of a socket."""
        return [*self.publisher.problems, *self.consumer.problems]


class ProxyOutage(NamedTuple):
    """Of one killed broker; times in seconds since then."""

    killed: str
    role: str
    gaps_s: tuple[float, ...]
    """For how long each publisher was confirmed nothing."""
    whole_s: float


class ProxyDemo:
    """The story, on a stage."""

    def __init__(self, stage: Stage, cluster: LocalCluster) -> None:
        self._stage = stage
        self._cluster = cluster
        self.traffic = [ProxyTraffic(cluster.urls, at) for at in range(BROKERS)]

    def start(self) -> None:
        """Wait for the cluster, then begin to work."""
        self._cluster.wait_whole()
        self._stage.step(
            "three brokers, each with its agent, all of which serve clients", f"{self._primary().name} leads"
        )
        for traffic in self.traffic:
            traffic.start()
        self._wait_more("each queue has its first messages")
        self._stage.step("a publisher and a consumer at each broker", "none is told who leads")

    def stop(self) -> None:
        """End all clients."""
        for traffic in self.traffic:
            traffic.stop()

    def play(self, rounds: int) -> list[ProxyOutage]:
        """That many rounds."""
        outages = []
        for _ in range(rounds):
            outages.append(self._kill(self._primary(), "the primary"))
            outages.append(self._kill(self._a_proxy(), "a proxy"))
        return outages

    def _kill(self, victim: LocalBroker, role: str) -> ProxyOutage:
        time.sleep(CALM_S)
        at_s = victim.kill()
        self._wait_more("all queues confirm and deliver again")
        whole_s = self._cluster.wait_whole() - at_s
        gaps_s = tuple(each.ledger.longest_gap_s(at_s - STEP_S, time.monotonic()) for each in self.traffic)
        outage = ProxyOutage(victim.name, role, gaps_s, whole_s)
        self._stage.step(
            f"killed {victim.name}, {role}: {self._primary().name} leads",
            f"confirmed nothing for {min(gaps_s):.3f} to {max(gaps_s):.3f} s, all ready again after {whole_s:.1f} s",
        )
        return outage

    def settle(self) -> bool:
        """Publish no more, let all of it arrive, and draw up the account; whether it is flawless."""
        for traffic in self.traffic:
            traffic.publisher.pause()
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(each.is_settled for each in self.traffic) and time.monotonic() < deadline_s:
            time.sleep(STEP_S)
        audits = [each.ledger.audit() for each in self.traffic]
        self._stage.console.print(_account(self.traffic, audits))
        errors = [error for each in self.traffic for error in each.errors]
        for error in errors[:5]:
            self._stage.announce(f"a client was told: {error}")
        is_good = not errors and all(audit.is_flawless and audit.confirmed for audit in audits)
        if is_good:
            self._stage.step("nothing lost, no copy without its mark, all in order, and no client was told of an error")
        else:
            self._stage.announce("A PROMISE WAS BROKEN: see above")
        return is_good

    def _primary(self) -> LocalBroker:
        found = self._cluster.primary()
        if found is None:
            raise ClusterFailed("nobody is primary")
        return found

    def _a_proxy(self) -> LocalBroker:
        primary = self._primary()
        return next(broker for broker in self._cluster.brokers if broker is not primary)

    def _wait_more(self, what: str) -> None:
        """Until each queue has confirmed and delivered something that it had not."""
        marks = [(each, len(each.ledger.confirmed_at_s), len(each.ledger.arrived)) for each in self.traffic]

        def have_more() -> bool:
            return all(
                len(each.ledger.confirmed_at_s) > confirmed + RATE // 10 and len(each.ledger.arrived) > arrived
                for each, confirmed, arrived in marks
            )

        self._cluster.wait_until(have_more, what, PATIENCE_S)


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


def _account(traffic: Sequence[ProxyTraffic], audits: Sequence[LedgerAudit]) -> RenderableType:
    table = Table()
    for name in ("queue", "confirmed", "received", "lost", "copies", "unmarked", "out of order", "errors"):
        table.add_column(name, justify="left" if name == "queue" else "right")
    for each, audit in zip(traffic, audits, strict=True):
        figures = (
            audit.confirmed,
            audit.received,
            len(audit.lost),
            audit.duplicates_announced,
            len(audit.duplicates_unmarked),
            len(audit.out_of_order),
            len(each.errors),
        )
        table.add_row(each.queue, *(f"{figure:,}" for figure in figures))
    return table
