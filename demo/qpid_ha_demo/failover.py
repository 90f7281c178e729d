"""One failover of the demo: the primary is killed, and how long each part of what follows takes.

Three parts in a row: *detection* ends when another agent has the lock, *promotion* when a broker says that it is
primary, *client recovery* with the first confirmation that a publisher gets from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster
from qpid_ha_demo.load import DemoPublisher

_GLANCE_S = 0.002
_HAS_THE_LOCK = b"we have the lock"
_RECOVERY_TIMEOUT_S = 30.0


class Failover(NamedTuple):
    """Times in seconds; each part begins where the one before ended."""

    killed: str
    promoted: str
    generation: int
    detection_s: float
    promotion_s: float
    client_recovery_s: float
    whole_again_s: float
    """From the kill until every broker was a primary's or ready again."""

    @property
    def total_s(self) -> float:
        """From the kill to the first confirmed publish."""
        return self.detection_s + self.promotion_s + self.client_recovery_s


def fail_over(cluster: LocalCluster, publisher: DemoPublisher, meanwhile: Callable[[], object]) -> Failover:
    """Kill the primary, wait until all is well again; `meanwhile` is called all the time. Raises ClusterFailed."""
    killed = cluster.primary()
    if killed is None:
        raise ClusterFailed(f"nobody is primary: {', '.join(cluster.states())}")
    others = [broker for broker in cluster.brokers if broker is not killed]
    logs = [_LogWatch(broker) for broker in others]
    killed_at_s = killed.kill()
    promoted, promoted_at_s = _wait_promoted(cluster, others, logs)
    generation = int(promoted.status().get("generation", 0))
    confirmed_at_s = _wait_confirmed(publisher, killed_at_s)
    whole_at_s = cluster.wait_until(
        lambda: (meanwhile(), cluster.is_whole())[1], "the killed broker is back, and ready"
    )
    noticed_at_s = min([log.noticed_at_s for log in logs if log.noticed_at_s] or [promoted_at_s])
    noticed_at_s = min(noticed_at_s, promoted_at_s)
    return Failover(
        killed=killed.name,
        promoted=promoted.name,
        generation=generation,
        detection_s=noticed_at_s - killed_at_s,
        promotion_s=promoted_at_s - noticed_at_s,
        client_recovery_s=max(confirmed_at_s, promoted_at_s) - promoted_at_s,
        whole_again_s=whole_at_s - killed_at_s,
    )


class _LogWatch:
    """Notices when a broker's agent begins to act: then it says that it has the lock."""

    def __init__(self, broker: LocalBroker) -> None:
        self._path = broker.log_path
        self._read = self._path.stat().st_size
        self.noticed_at_s = 0.0

    def look(self) -> None:
        """Cheap while nothing was written."""
        if self.noticed_at_s or self._path.stat().st_size <= self._read:
            return
        now_s = time.monotonic()
        with self._path.open("rb") as log:
            log.seek(self._read)
            written = log.read()
        if _HAS_THE_LOCK in written:
            self.noticed_at_s = now_s


def _wait_promoted(
    cluster: LocalCluster, others: list[LocalBroker], logs: list[_LogWatch]
) -> tuple[LocalBroker, float]:
    found: list[LocalBroker] = []

    def somebody_is_primary() -> bool:
        for log in logs:
            log.look()
        found[:] = [broker for broker in others if broker.status().get("state") == "primary"]
        return bool(found)

    at_s = cluster.wait_until(somebody_is_primary, "another broker is promoted")
    return found[0], at_s


def _wait_confirmed(publisher: DemoPublisher, killed_at_s: float) -> float:
    deadline = time.monotonic() + _RECOVERY_TIMEOUT_S
    while time.monotonic() < deadline:
        for attached_at_s, confirmed_at_s in list(publisher.recoveries):
            if attached_at_s > killed_at_s:
                return confirmed_at_s
        time.sleep(_GLANCE_S)
    raise ClusterFailed(f"the publisher was not served again: {publisher.problems[-3:]}")
