"""What has become of the queues of sets, and of their entries in the directory."""

from __future__ import annotations

from typing import Protocol

from qpid_ha_broker.cluster_map import ClusterMap, SetEntry
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.sets.resources import Resources
from simulation.violations import Violation


class SetNode(Protocol):
    """A replica of a set."""

    name: str

    @property
    def resources(self) -> Resources:
        """What is in it."""

    @property
    def member(self) -> Member:
        """Its part in the cluster."""


class QueueLedger:
    """What has become of entries, and whether that may be. The promise: it raises Violation when it sees otherwise."""

    def __init__(self, committed_map: ClusterMap) -> None:
        """`committed_map`: as it is committed, all the time."""
        self._committed_map = committed_map
        self._made: dict[int, int] = {}
        """By entry: the id of the queue that was declared for it."""
        self.tombstones: dict[int, bool] = {}
        """By entry: whether it is known to be committed."""
        self._gone: set[int] = set()
        """Entries that are there, and whose queues are not any more."""

    def look(self, node: SetNode, entry: SetEntry) -> list[str]:
        """At the queues of a set, where it is led as recorded; steps of deletions that were done since."""
        there = self._committed_map.queues
        primary, steps = node.member.primary, list[str]()
        # Not as its log has it, for which a new primary has committed all that it found there: the others may lack it.
        committed_lsn = 0 if primary is None else primary.in_sync.committed_lsn
        here = node.resources.catalog.queues
        for placed in self._committed_map.queues_of(entry.name).values():
            if placed.name not in here and placed.id in self._made and placed.id not in self._gone:
                self._gone.add(placed.id)
                steps.append(f"{placed.name} is gone, and its entry is there")
        for name, queue in here.items():
            at, of_entry = there.get(name), queue.arguments.tombstone_of
            if of_entry:
                is_committed = node.resources.replicated.log.committed_lsn >= node.member.position.lsn
                if self.tombstones.get(of_entry) is not is_committed:
                    self.tombstones[of_entry] = is_committed
                    steps.append(f"the tombstone of {name} is {'committed' if is_committed else 'written'}")
            elif queue.id <= committed_lsn and at is None:
                raise Violation(f"{node.name} has a queue {name} in {entry.name}, and its name is free")
            elif queue.id <= committed_lsn and at is not None and at.set == entry.name:
                first = self._made.setdefault(at.id, queue.id)
                if first != queue.id:
                    raise Violation(f"{name} was deleted in {entry.name}, and is back: entry {at.id}, {queue.id}")
        return steps

    def why_not_at_rest(self, node: SetNode, entry: SetEntry) -> str:
        """What its queues lack where nothing has happened for a while; empty: nothing."""
        here = {name: queue.arguments.tombstone_of for name, queue in node.resources.catalog.queues.items()}
        wanted = dict.fromkeys(self._committed_map.queues_of(entry.name), 0)
        return "" if here == wanted else f"{node.name} has the queues {here} in {entry.name}, the directory {wanted}"
