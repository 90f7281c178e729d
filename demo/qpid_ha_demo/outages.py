"""What the demo with ZooKeeper breaks in each round, one thing after the other, and what its clients see of it.

1. kill -9 of the primary's broker. Its agent lives: it lets go of the lock, and starts the broker again.
2. kill -9 of the server that leads the ensemble. It is started again after longer than a session lasts.
3. The primary is cut off for longer than a session lasts, from the ensemble, the other brokers and the clients. Cutting
   a network takes root, so its agent and its broker are stopped (SIGSTOP), and continued (SIGCONT): their sockets stay,
   nobody answers, and the broker wakes up as one that takes itself for the primary.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster
from qpid_ha_demo.ledger import Ledger, LedgerAudit
from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble

NAMESPACE: Final = "demo"
SESSION_S: Final = 4.0
OUTAGE_S: Final = 6.0
"""How long what is not mended by an agent is left broken: longer than a session, even with the ensemble's rounding."""
_BACK_TIMEOUT_S: Final = 60.0
_GLANCE_S: Final = 0.02


class Outage(NamedTuple):
    """What was broken, and what came of it. Times in seconds."""

    event: str
    led_before: str
    led_after: str
    longest_gap_s: float
    """Between two confirmations, from the event until all was whole again and more was confirmed."""
    back_after_s: float
    """Until one broker was primary, the others ready, and all servers served: from the event on."""
    lost: int
    duplicates: int
    """Copies of which the broker or the publisher warned the consumer."""
    unmarked: int
    """Copies of which nobody warned it."""


class Scene(NamedTuple):
    """What there is to break; `meanwhile` is called all the time."""

    cluster: LocalCluster
    ensemble: ZookeeperEnsemble
    ledger: Ledger
    meanwhile: Callable[[], object]

    def wait_until(self, is_reached: Callable[[], bool], what: str) -> float:
        """Look until it is so; when that was. Raises ClusterFailed."""
        return self.cluster.wait_until(lambda: (self.meanwhile(), is_reached())[1], what, _BACK_TIMEOUT_S)

    def wait_for_another(self, primary: LocalBroker) -> None:
        """Until a broker that is not `primary` leads: that one is not asked, for it may be stopped."""
        others = [broker for broker in self.cluster.brokers if broker is not primary]
        self.wait_until(
            lambda: "primary" in [broker.status()["state"] for broker in others], "another broker is promoted"
        )

    def wait_confirmed(self) -> float:
        """Until one more message is confirmed; when that was. Raises ClusterFailed."""
        before = len(self.ledger.confirmed_at_s)
        return self.wait_until(lambda: len(self.ledger.confirmed_at_s) > before, "messages are confirmed again")

    def watch(self, until_s: float) -> None:
        """Let time pass."""
        while time.monotonic() < until_s:
            self.meanwhile()
            time.sleep(_GLANCE_S)


Fault = Callable[[Scene, LocalBroker], str]
"""Breaks something, and mends what no agent mends; says what it did. It is given the primary."""


def _kill_primary(scene: Scene, primary: LocalBroker) -> str:
    primary.kill()
    scene.wait_for_another(primary)
    return f"{primary.name} killed"


def _kill_server(scene: Scene, primary: LocalBroker) -> str:
    server, began_s = scene.ensemble.leader, time.monotonic()
    server.kill()
    scene.watch(began_s + OUTAGE_S)
    scene.ensemble.wait(len(scene.ensemble.servers) - 1)
    server.start()
    scene.ensemble.wait()
    return f"server {server.number} killed"


def _cut_off(scene: Scene, primary: LocalBroker) -> str:
    began_s = time.monotonic()
    with _stopped(primary):
        scene.wait_for_another(primary)
        scene.wait_confirmed()
        scene.watch(began_s + OUTAGE_S)
    return f"{primary.name} cut off"


FAULTS: Final[tuple[tuple[str, Fault], ...]] = (
    ("kill -9 of the primary's broker", _kill_primary),
    (f"kill -9 of the ZooKeeper server that leads the ensemble, started again after {OUTAGE_S:g} s", _kill_server),
    (f"the primary is cut off: SIGSTOP of its agent and its broker, SIGCONT after {OUTAGE_S:g} s", _cut_off),
)
"""What is told to who watches, and what does it."""


@contextmanager
def _stopped(broker: LocalBroker) -> Iterator[None]:
    """The agent first, or it would do something about its broker."""
    pids = broker.processes()
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def inject(fault: Fault, scene: Scene, before: LedgerAudit, settle: Callable[[], LedgerAudit]) -> Outage:
    """Break something, wait until all is well again, and draw up the account; `before` is the last one.

    Raises ClusterFailed and EnsembleFailed when not all comes back.
    """
    primary = scene.cluster.primary()
    if primary is None:
        raise ClusterFailed(f"nobody is primary: {', '.join(scene.cluster.states())}")
    began_s = time.monotonic()
    event = fault(scene, primary)
    back_s = scene.wait_until(scene.cluster.is_whole, "one primary, and all others ready")
    gap_s = scene.ledger.longest_gap_s(began_s, scene.wait_confirmed())
    leader = scene.cluster.primary()
    after = settle()
    return Outage(
        event=event,
        led_before=primary.name,
        led_after=leader.name if leader is not None else "nobody",
        longest_gap_s=gap_s,
        back_after_s=back_s - began_s,
        lost=len({*after.lost} - {*before.lost}),
        duplicates=after.duplicates_announced - before.duplicates_announced,
        unmarked=len(after.duplicates_unmarked) - len(before.duplicates_unmarked),
    )
