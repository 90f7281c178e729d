"""What the stories with several queues have in common: clients, waiting for them to get on, and the account."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.console import RenderableType
from rich.table import Table

from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster
from qpid_ha_demo.ledger import LedgerAudit
from qpid_ha_demo.load import DemoTraffic
from qpid_ha_demo.stage import Stage

STEP_S: Final = 0.02
SHOWN_ERRORS: Final = 5
GOES_ON: Final = 20
"""Messages more, confirmed and delivered: then a queue is said to go on."""

Clients = TypeVar("Clients", bound=DemoTraffic)


class Story(Generic[Clients]):
    """A cluster, and clients whose books show in the end whether each promise was kept."""

    patience_s: ClassVar[float] = 30.0
    """For whatever has to happen."""
    counts_errors: ClassVar[bool] = False
    """Clients are to be told of no error; False: brokers to which they talk are killed, which they do notice."""

    def __init__(self, stage: Stage, cluster: LocalCluster, traffic: Sequence[Clients]) -> None:
        self._stage = stage
        self._cluster = cluster
        self.traffic = list(traffic)

    def stop(self) -> None:
        """End all clients."""
        for traffic in self.traffic:
            traffic.stop()

    def settle(self) -> bool:
        """Publish no more, let all of it arrive, and draw up the account; whether it is flawless."""
        for traffic in self.traffic:
            traffic.publisher.pause()
        deadline_s = time.monotonic() + self.patience_s
        while not all(traffic.is_settled for traffic in self.traffic) and time.monotonic() < deadline_s:
            time.sleep(STEP_S)
        audits = [traffic.ledger.audit() for traffic in self.traffic]
        self._stage.console.print(self._account(audits))
        errors = [error for traffic in self.traffic for error in traffic.errors] if self.counts_errors else []
        for error in errors[:SHOWN_ERRORS]:
            self._stage.announce(f"a client was told: {error}")
        for traffic, audit in zip(self.traffic, audits, strict=True):
            for number in audit.out_of_order[:SHOWN_ERRORS]:
                self._stage.announce(f"{traffic.queue}: out of order: {traffic.ledger.explain(number)}")
        is_good = not errors and all(audit.is_flawless and audit.confirmed for audit in audits)
        if is_good:
            silence = ", and no client was told of an error" if self.counts_errors else ""
            self._stage.step(f"nothing lost, no copy without its mark, all in order{silence}")
        else:
            self._stage.announce("A PROMISE WAS BROKEN: see above")
        return is_good

    def _account(self, audits: Sequence[LedgerAudit]) -> RenderableType:
        names = ["queue", "confirmed", "received", "lost", "copies", "unmarked", "out of order"]
        table = Table()
        for name in names + ["errors"] * self.counts_errors:
            table.add_column(name, justify="left" if name == "queue" else "right")
        for traffic, audit in zip(self.traffic, audits, strict=True):
            figures = [
                audit.confirmed,
                audit.received,
                len(audit.lost),
                audit.duplicates_announced,
                len(audit.duplicates_unmarked),
                len(audit.out_of_order),
            ]
            if self.counts_errors:
                figures.append(len(traffic.errors))
            table.add_row(traffic.queue, *(f"{figure:,}" for figure in figures))
        return table

    # --- the cluster

    def _leader(self) -> LocalBroker:
        """Who leads `default`. Raises ClusterFailed when nobody does."""
        leader = self._cluster.primary()
        if leader is None:
            raise ClusterFailed("default has no primary")
        return leader

    def _ask(self, method: str, **params: Any) -> None:
        self._leader().ask(method, **params)

    def _wait(self, is_reached: Callable[[], bool], what: str) -> None:
        self._cluster.wait_until(is_reached, what, self.patience_s)

    def _wait_more(self, what: str, traffic: Sequence[Clients]) -> None:
        """Until each of these has confirmed and delivered GOES_ON messages from now on."""
        marks = [(clients, clients.progress) for clients in traffic]

        def have_more() -> bool:
            return all(
                now >= before + GOES_ON
                for clients, earlier in marks
                for now, before in zip(clients.progress, earlier, strict=True)
            )

        self._wait(have_more, what)
