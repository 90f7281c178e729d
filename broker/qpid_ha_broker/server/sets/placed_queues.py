"""The queues of the sets that this broker leads, as the directory says that they should be: see `cluster.directory`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial

from qpid_ha_broker.cluster.directory import DirectoryDifference, KeptQueues, SetLeader, compare, conditions_of
from qpid_ha_broker.cluster.messages import DeclaredQueues, KeptQueue, UnplacedQueue
from qpid_ha_broker.cluster_map import Changes, ClusterMap, PlacedQueue
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.errors import InUse, ModelError
from qpid_ha_broker.server.peers.replica_reports import QueueReport
from qpid_ha_broker.server.sets.set_member import SetMember

log = logging.getLogger("cluster")


class PlacedQueues:
    """The promise: what is reported as deleted, or as without an entry, is so in what the set's log has committed.

    `default`: the member of the set whose log has the map. `reportable`: called when there is something to report.
    """

    def __init__(
        self,
        name: str,
        cluster_map: ClusterMap,
        default: Member,
        members: Mapping[str, SetMember],
        reportable: Callable[[], None],
    ) -> None:
        self._name = name
        self._map = cluster_map
        self._default = default
        self._members = members
        self._reportable = reportable
        self._uncommitted: dict[str, int] = {}
        """Queues of which the map has an event that may not be committed, and its LSN, or that of its unit's end."""
        self._due: dict[str, None] = {}
        """Sets to look at."""
        self._seen: dict[str, tuple[int, DirectoryDifference]] = {}
        """By set: what is to be reported once its log is committed up to there."""
        self._declared: dict[str, tuple[int, int]] = {}
        """The same, but until it is another one: the last entry up to which it has the queues of all."""
        self._reported: dict[str, int] = {}
        """By set: which of those was reported."""
        self._unreported: dict[str, None] = {}
        """Sets of which another one may be reported once it is committed: few, where there are many sets."""
        self._kept: dict[str, KeptQueues] = {}
        self._uncommitted_sets: dict[str, int] = {}
        """Sets whose log has to be committed up to there before more is to be reported."""
        self._complaints: dict[str, str] = {}
        self._unwanted: dict[str, set[str]] = {}
        """By set of which there is a replica here: queues that the map last said are to be deleted."""

    def look_at(self, set_name: str) -> None:
        """Something may be different there: who leads it, or what it has."""
        self._due[set_name] = None

    def map_changed(self, changes: Changes, names: Iterable[str]) -> None:
        """The map has changed; `names`: of all queues that it has changed, also of those that are gone."""
        for set_name in changes.sets:
            self._due[set_name] = None
        for name in names:
            self._uncommitted[name] = self._default.position.lsn
            queue = self._map.queues.get(name)
            if queue is not None:
                self._due[queue.set] = None
                self._note_wanted(queue)

    def _note_wanted(self, queue: PlacedQueue) -> None:
        """A replica hears of what its set commits when something else comes, and of the map at once."""
        unwanted = self._unwanted.pop(queue.set, set())
        member = self._members.get(queue.set)
        if member is not None:
            unwanted &= member.hosted.resources.catalog.queues.keys()  # the others are gone here, too
        if member is not None and queue.deleting:
            unwanted.add(queue.name)
        else:
            unwanted.discard(queue.name)
        if unwanted:
            self._unwanted[queue.set] = unwanted

    def take_unwanted(self, set_name: str) -> Set[str]:
        """Queues of a set that is to have no replica here any more which were to be deleted, as the map said; once."""
        return self._unwanted.pop(set_name, set())

    def work(self) -> None:
        """At the end of a turn, and now and then."""
        if self._uncommitted:
            committed_lsn = self._default.committed_lsn
            done = [name for name, lsn in self._uncommitted.items() if lsn <= committed_lsn]
            for name in done:
                del self._uncommitted[name]
                queue = self._map.queues.get(name)
                if queue is not None:
                    self._due[queue.set] = None
        for set_name, lsn in list(self._uncommitted_sets.items()):
            member = self._members.get(set_name)
            if member is None or lsn <= member.hosted.resources.replicated.log.committed_lsn:
                del self._uncommitted_sets[set_name]
                self._reportable()
        if self._due:
            due, self._due = self._due, {}
            for set_name in due:
                self._compare(set_name)

    def report(self, full: bool) -> QueueReport:
        """What the controller is to know; `full`: it has not heard anything before."""
        deleted: list[int] = []
        unplaced: list[UnplacedQueue] = []
        for set_name, (lsn, found) in self._seen.items():
            member = self._members.get(set_name)
            if member is not None and lsn <= member.hosted.resources.replicated.log.committed_lsn:
                deleted += found.deleted
                unplaced += found.unplaced
        if full:
            self._reported.clear()
            self._unreported = dict.fromkeys(self._declared)
        declared = self._report_declared()
        kept: list[KeptQueue] = []
        for of_set in self._kept.values():
            kept += of_set.report(self._map)
        return QueueReport(tuple(deleted), tuple(unplaced), tuple(declared), tuple(kept))

    def _report_declared(self) -> list[DeclaredQueues]:
        declared: list[DeclaredQueues] = []
        for set_name in list(self._unreported):
            member, (lsn, newest) = self._members.get(set_name), self._declared.get(set_name, (0, 0))
            if member is not None and lsn > member.hosted.resources.replicated.log.committed_lsn:
                continue
            del self._unreported[set_name]
            if member is not None and set_name in self._declared and self._reported.get(set_name) != newest:
                self._reported[set_name] = newest
                declared.append(DeclaredQueues(set_name, newest))
        return declared

    def _compare(self, set_name: str) -> None:
        self._seen.pop(set_name, None)
        member = self._members.get(set_name)
        if member is None:
            self._kept.pop(set_name, None)
        if member is None or not member.is_serving:
            self._declared.pop(set_name, None)
            return
        hosted = member.hosted
        queues = {queue.name: queue.arguments.given for queue in hosted.resources.catalog.queues.values()}
        leader = SetLeader(set_name, self._name, member.member.status.generation)
        found = compare(leader, self._map, self._uncommitted, queues)
        if found is None:
            return
        configuration = hosted.configuration
        set_log = hosted.resources.replicated.log
        for placed in found.declare:
            self._try(placed.name, partial(configuration.declare_queue, placed.name, placed.arguments))
        kept = self._kept.get(set_name) or KeptQueues()
        kept.begin(leader.generation, self._map, self._uncommitted)
        deleting = [queue for queue in map(self._map.queues.__getitem__, found.delete) if not kept.has(queue)]
        for placed in deleting:
            self._delete(configuration, placed, kept, leader.generation)
        if kept.is_empty:
            self._kept.pop(set_name, None)
        else:
            self._kept[set_name] = kept
        if found.declare or deleting:
            hosted.touch()
            self._due[set_name] = None  # once more: to see that it is done, and to report what has come of it
        else:
            self._declared_up_to(set_name, set_log.last_lsn)
        if found.deleted or found.unplaced:
            self._seen[set_name] = set_log.last_lsn, found
            self._uncommitted_sets[set_name] = set_log.last_lsn

    def _declared_up_to(self, set_name: str, lsn: int) -> None:
        """The set has, as of `lsn` of its log, what each committed entry says."""
        entries = self._map.queues_of(set_name).values()
        newest = max((each.id for each in entries if each.name not in self._uncommitted), default=0)
        if newest != self._declared.get(set_name, (0, 0))[1]:
            self._declared[set_name] = lsn, newest
            self._unreported[set_name] = None
            self._uncommitted_sets[set_name] = lsn

    def _delete(self, configuration: Configuration, queue: PlacedQueue, kept: KeptQueues, generation: int) -> None:
        """Delete a queue, if the conditions of that hold now."""
        conditions = conditions_of(queue)
        try:
            configuration.delete_queue(queue.name, if_empty=conditions.if_empty, if_unused=conditions.if_unused)
        except InUse as error:
            kept.keep(queue, generation, str(error))
            self._reportable()
        except ModelError as error:
            self._complain(queue.name, error)
        else:
            self._complaints.pop(queue.name, None)

    def _try(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except ModelError as error:
            self._complain(name, error)
        else:
            self._complaints.pop(name, None)

    def _complain(self, name: str, error: ModelError) -> None:
        if self._complaints.get(name) != str(error):
            self._complaints[name] = str(error)
            log.error("queue %s cannot be as the directory says: %s", name, error)
