"""What a controller may write into the map of a cluster, and what has to come of it, in whichever kind of cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster_map import ClusterMap, PlacedQueue, SetEntry
from qpid_ha_broker.events import types as ev
from simulation.violations import Violation


def copy_map(source: ClusterMap) -> ClusterMap:
    """One that changes by itself from now on."""
    copy = ClusterMap()
    copy.replace(source)
    return copy


class MapChecks:
    """The promise: Violation where a set has two primaries in a generation, where its record is replaced by one that
    nobody has asked for, where it loses a replica before the others are in sync, and where a queue's entry goes that
    nobody wanted deleted."""

    def __init__(self, min_replicas: int) -> None:
        """`min_replicas`: of sets of which neither they nor a policy say it."""
        self._min_replicas = min_replicas
        self.primaries: dict[tuple[str, int, int], str] = {}
        """By set, which one of that name, and generation."""
        self._made: Counter[str] = Counter()
        """How often a set of that name was made."""
        self.asked_deletions: set[int] = set()
        """Entries of queues that somebody has wanted deleted."""

    # --- what a controller writes

    def check_write(self, before: ClusterMap, event: ev.MapEvent, cause: ms.ControllerInput) -> None:
        """`before`: the map as the controller has it. Raises Violation."""
        if isinstance(event, ev.SetRecorded):
            record = before.sets[event.name].record
            is_first = not record.cluster and event == record._replace(name=event.name, cluster=event.cluster)
            is_asked = any((each.expected, each.wanted) == (record, event) for each in _records_in(cause))
            if not (is_first or is_asked):
                raise Violation(f"{event} replaces {record}, and that was not asked for: {cause}")
        if isinstance(event, ev.SetPlaced) and event.name in before.sets:
            entry = before.sets[event.name]
            gone = set(entry.replicas) - set(event.replicas)
            staying = set(event.replicas) - set(event.leaving)
            if gone and entry.record.generation and not isinstance(cause, ms.RequestReceived):
                rest = staying & set(entry.record.members)
                least = self.least(before, entry)
                if len(rest) < least:
                    raise Violation(f"{event.name} loses {gone}, and in sync is {rest} of {least}")

    # --- what is committed

    def made(self, set_name: str) -> None:
        """There was none of that name before."""
        self._made[set_name] += 1

    def recorded(self, record: ev.SetRecorded) -> None:
        """Of a set. Raises Violation."""
        key = record.name, self._made[record.name], record.generation
        if self.primaries.setdefault(key, record.primary) != record.primary:
            raise Violation(f"{key} has two primaries: {self.primaries[key]} and {record.primary}")

    def removed(self, queue: PlacedQueue) -> None:
        """Its entry has gone. Raises Violation."""
        if queue.id not in self.asked_deletions:
            raise Violation(f"entry {queue.id} of a queue is removed, and nobody has asked for that")

    # --- at rest

    def least(self, cluster: ClusterMap, entry: SetEntry) -> int:
        """How many replicas a set should have, as far as there are machines."""
        open_machines = {broker.place.machine for broker in cluster.brokers.values() if not broker.draining}
        policies = [count for pattern, count in cluster.policies if pattern in ("*", entry.name)]
        wanted = entry.min_replicas or (policies[0] if policies else self._min_replicas)
        return max(1, min(wanted, len(open_machines)))

    def why_not_placed(self, cluster: ClusterMap, entry: SetEntry, up: Collection[str]) -> str:
        """What a set that is led lacks; empty: nothing. `up`: brokers that are there."""
        open_brokers = [each.name for each in cluster.brokers.values() if not each.draining and each.name in up]
        machines = {cluster.brokers[broker].place.machine for broker in open_brokers}
        wanted = self.least(cluster, entry)
        in_sync = set(entry.record.members) & set(entry.staying) & set(open_brokers)
        if len(in_sync) < min(wanted, len(machines)):
            return f"{entry.name} has in sync {in_sync} of {min(wanted, len(machines))}: {entry}"
        if len(machines) < wanted:
            return ""
        stuck = [broker for broker in entry.leaving if broker in up]
        if stuck:
            return f"{entry.name}: {stuck} should have left: {entry}"
        here = [cluster.brokers[broker].place.machine for broker in entry.staying if broker in open_brokers]
        if len(set(here)) < len(here):
            return f"{entry.name} has two replicas on one machine: {entry}"
        return ""


def _records_in(cause: ms.ControllerInput) -> Iterator[ms.RecordRequested]:
    """What members have asked of their records."""
    for each in cause.inputs if isinstance(cause, ms.HeardTogether) else (cause,):
        if isinstance(each, ms.RecordRequested):
            yield each
