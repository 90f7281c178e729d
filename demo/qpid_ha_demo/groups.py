"""`./dev demo --group`: one Corosync on loopback, three brokers that all write one resource set, clients at each.

In each round two brokers are killed with kill -9: one that does not lead `default`, then the one that does; another one
has to lead `default` then before the others can record that they go on. Shown is what the clients at the *others*
noticed: for how long nothing was confirmed to a publisher, and nothing came to a consumer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from rich.console import RenderableType
from rich.table import Table

from qpid_ha_demo.cluster import LocalCluster
from qpid_ha_demo.corosync_daemon import CorosyncDaemon
from qpid_ha_demo.load import DemoTraffic
from qpid_ha_demo.stage import Stage
from qpid_ha_demo.story import STEP_S, Story

BROKERS: Final = 3
SET: Final = "orders"
RATE: Final = 200
"""Messages a second of each publisher."""
CALM_S: Final = 1.0


class MemberTraffic(DemoTraffic):
    """A publisher and a consumer of a queue, both at one member as long as that lives."""

    def __init__(self, urls: Sequence[str], at: int) -> None:
        super().__init__(f"invoices-{at + 1}", urls[at : at + 1], urls[at : at + 1], rate=RATE)

    def gaps_s(self, began_s: float, ended_s: float) -> tuple[float, float]:
        """For how long nothing was confirmed, and nothing came."""
        came_s = sorted(each.at_s for each in list(self.ledger.arrivals) if began_s <= each.at_s <= ended_s)
        longest_s = max(later_s - earlier_s for earlier_s, later_s in pairwise([began_s, *came_s, ended_s]))
        return self.ledger.longest_gap_s(began_s, ended_s), longest_s


class MemberLoss(NamedTuple):
    """Of one killed member, what clients of the others saw; in seconds."""

    killed: str
    led_default: bool
    publishers_s: float
    consumers_s: float
    whole_s: float
    """Until the group had it back."""


class GroupDemo(Story[MemberTraffic]):
    """The story, on a stage."""

    def __init__(self, stage: Stage, cluster: LocalCluster) -> None:
        super().__init__(stage, cluster, [MemberTraffic(cluster.urls, at) for at in range(BROKERS)])

    def start(self) -> None:
        """Make the group, and begin to work."""
        self._cluster.wait_whole()
        self._ask("sets", action="create", name=SET, strategy="group")
        self._wait(self._is_whole, "the group is there")
        self._stage.step("three brokers, and a resource set that each of them writes", f"{SET}, strategy group")
        for traffic in self.traffic:
            self._ask("queues", action="create", name=traffic.queue, arguments={"qpid.resource-set": SET})
            traffic.start()
        self._wait_more("each queue has its first messages", self.traffic)
        self._stage.step("a publisher and a consumer at each broker, a queue each")

    def play(self, rounds: int) -> list[MemberLoss]:
        """That many rounds."""
        losses = [self._kill(led_default=leads) for _ in range(rounds) for leads in (False, True)]
        self._stage.console.print(_table(losses))
        return losses

    def _kill(self, *, led_default: bool) -> MemberLoss:
        self._wait(self._cluster.is_whole, "all brokers are ready")
        time.sleep(CALM_S)
        leader = self._leader()
        victim = leader if led_default else next(each for each in self._cluster.brokers if each is not leader)
        others = [
            traffic for traffic, broker in zip(self.traffic, self._cluster.brokers, strict=True) if broker is not victim
        ]
        at_s = victim.kill()
        self._wait_more("the others confirm and deliver", others)
        gaps_s = [traffic.gaps_s(at_s - STEP_S, time.monotonic()) for traffic in others]
        whole_s = self.wait_whole() - at_s
        loss = MemberLoss(
            victim.name, led_default, max(gap[0] for gap in gaps_s), max(gap[1] for gap in gaps_s), whole_s
        )
        self._stage.step(
            f"killed {victim.name}{', which led default' if led_default else ''}",
            f"at the others nothing was confirmed for {loss.publishers_s * 1000:.0f} ms, nothing came for"
            f" {loss.consumers_s * 1000:.0f} ms; it is back after {whole_s:.1f} s",
        )
        return loss

    def wait_whole(self) -> float:
        """Until the group has all its members, which was at the second that this returns, and all clients go on."""
        self._wait(self._is_whole, "the group has all its members")
        whole_s = time.monotonic()
        self._wait_more("all confirm and deliver", self.traffic)
        return whole_s

    def _is_whole(self) -> bool:
        row = self._row()
        return row.get("strategy") == "group" and len(row["in_sync"]) == BROKERS and not row["problem"]

    def _row(self) -> dict[str, Any]:
        try:
            rows = self._leader().ask("sets", action="list")["answer"]
        except Exception:  # noqa: BLE001 - nobody leads `default`, or it does not answer yet
            return {}
        return next((row for row in rows if row["name"] == SET), {})


def show_groups(stage: Stage, directory: Path, rounds: int) -> bool:
    """The whole story; whether all went well."""
    with ExitStack() as stack:
        stack.enter_context(CorosyncDaemon(directory))
        cluster = stack.enter_context(LocalCluster(directory, BROKERS, settings={"ha": {"failure-timeout": "1s"}}))
        demo = GroupDemo(stage, cluster)
        stack.callback(demo.stop)
        demo.start()
        demo.play(rounds)
        return demo.settle()


def _table(losses: Sequence[MemberLoss]) -> RenderableType:
    table = Table(title="what clients at the others saw")
    for name in ("killed", "led default", "nothing confirmed, ms", "nothing came, ms", "back after, s"):
        table.add_column(name, justify="left" if name in ("killed", "led default") else "right")
    for loss in losses:
        table.add_row(
            loss.killed, *_cells(loss.led_default, loss.publishers_s, loss.consumers_s), f"{loss.whole_s:.1f}"
        )
    for led_default in (False, True):
        of_these = [loss for loss in losses if loss.led_default is led_default]
        for word, of in (("median", median), ("worst", max)):
            longest_s = of(loss.publishers_s for loss in of_these), of(loss.consumers_s for loss in of_these)
            table.add_row(word, *_cells(led_default, *longest_s), "", style="bold")
    return table


def _cells(led_default: bool, publishers_s: float, consumers_s: float) -> tuple[str, str, str]:
    return "yes" if led_default else "", f"{publishers_s * 1000:.0f}", f"{consumers_s * 1000:.0f}"
