"""What brokers have reported to this controller: each one's last word, put together from changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from qpid_ha_broker.cluster.messages import FAILED, BrokerIdentity, BrokerReport, ReplicaReport

DEFAULT = "default"
"""The set that always exists: its primary is the controller, and the map does not have it."""
LEADING = "primary"
"""These are of `ha.states.State`."""
RECOVERING = "recovering"
"""Of `ha.states.Phase`: a primary that waits for all who were in sync before it."""
ACTIVE = "active"
"""The same: it waits for none of them any more."""
FOLLOWING = "ready"
"""Level with a primary to which it has a channel."""
CATCHING_UP = "catchup"
MAY_LEAD = ("connecting", FOLLOWING)
"""The others are loading, catch up, or stop; one that leads an older generation has to find out first."""


class ReportedBroker:
    """One broker as it reported itself last."""

    def __init__(self, identity: BrokerIdentity) -> None:
        self.identity = identity
        self.number = 0
        self.is_complete = False
        """Nothing is missing between what was taken in."""
        self.room_bytes = 0
        self.reads_settings = self.reads_logins = False
        self.replicas: dict[str, ReplicaReport] = {}


class Reports:
    """The promise: `replica` is what that broker's process said last, without a gap; None as long as there is one."""

    def __init__(self) -> None:
        self.brokers: dict[str, ReportedBroker] = {}
        self._replaced: set[str] = set()
        """Processes whose place another one has taken."""

    def clear(self) -> None:
        """A new controller has heard of nobody."""
        self.brokers.clear()

    def is_replaced(self, identity: BrokerIdentity) -> bool:
        """Whether it comes from a process that is no more: it was on its way when another one reported."""
        return identity.instance in self._replaced

    def take(self, report: BrokerReport) -> set[str] | None:
        """The sets of which it says something else than before; None: there is a gap, so a full one is needed."""
        name = report.broker.name
        there = self.brokers.get(name)
        is_other = there is None or there.identity.instance != report.broker.instance
        if there is None or is_other:
            if there is not None:
                self._replaced.add(there.identity.instance)
            before = {} if there is None else there.replicas
            there = self.brokers[name] = ReportedBroker(report.broker)
        else:
            before = dict(there.replicas)
        there.identity = report.broker
        there.reads_settings, there.reads_logins = report.reads_settings, report.reads_logins
        if not report.full and (is_other or not there.is_complete or report.number != there.number + 1):
            there.is_complete = False
            there.replicas = {}
            return None
        there.number, there.is_complete, there.room_bytes = report.number, True, report.room_bytes
        if report.full:
            there.replicas = {}
        for name in report.dropped:
            there.replicas.pop(name, None)
        for replica in report.replicas:
            there.replicas[replica.set] = replica
        if report.full or is_other:
            names = before.keys() | there.replicas.keys()
            return {name for name in names if before.get(name) != there.replicas.get(name)}
        return {replica.set for replica in report.replicas} | set(report.dropped)

    def forget(self, name: str) -> None:
        """That broker is lost, or another process has its name: nothing that it said counts any more."""
        there = self.brokers.pop(name, None)
        if there is not None:
            self._replaced.discard(there.identity.instance)

    def instance(self, name: str) -> str:
        """Of its process; empty: nothing is known of it."""
        there = self.brokers.get(name)
        return "" if there is None else there.identity.instance

    def replica(self, broker: str, set_name: str) -> ReplicaReport | None:
        """What it said of its replica; None: nothing, or it has none."""
        there = self.brokers.get(broker)
        return None if there is None else there.replicas.get(set_name)

    def failed(self, set_name: str, brokers: Iterable[str]) -> dict[str, str]:
        """Which of these cannot have a replica of that set, by their own reports, and why."""
        return {
            name: replica.problem
            for name in brokers
            if (replica := self.replica(name, set_name)) is not None and replica.state == FAILED
        }

    def with_replica(self, set_name: str) -> set[str]:
        """The brokers that have one of that set, or cannot have it, by their own reports."""
        return {name for name, there in self.brokers.items() if set_name in there.replicas}

    def leads(self, broker: str, set_name: str, generation: int) -> ReplicaReport | None:
        """Its replica, if it leads that generation."""
        replica = self.replica(broker, set_name)
        return (
            replica if replica is not None and replica.state == LEADING and replica.generation == generation else None
        )

    def catching_up(self, broker: str) -> Iterator[str]:
        """The sets of which it says so."""
        there = self.brokers.get(broker)
        for replica in () if there is None else there.replicas.values():
            if replica.state == CATCHING_UP:
                yield replica.set

    def backups_of_default(self) -> set[str]:
        """Who has a replica of `default` besides its primary."""
        replicas = [there.replicas.get(DEFAULT) for there in self.brokers.values()]
        return {backup.name for replica in replicas if replica is not None for backup in replica.backups}

    def lags(self) -> Counter[str]:
        """By how much each broker's replicas are behind, together."""
        lags: Counter[str] = Counter()
        for there in self.brokers.values():
            for replica in there.replicas.values():
                for backup in replica.backups:
                    lags[backup.name] += backup.lag
        return lags
