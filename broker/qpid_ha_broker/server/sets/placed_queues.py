"""The queues of the sets that this broker leads, as the directory says that they should be: see `cluster.directory`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.cluster.directory import DirectoryDifference, SetLeader, compare
from qpid_ha_broker.cluster.messages import DeclaredQueues, KeptQueue, OrderDeletion, UnplacedQueue
from qpid_ha_broker.cluster_map import Changes, ClusterMap, PlacedQueue
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.errors import BeingMade, ModelError
from qpid_ha_broker.server.peers.replica_reports import QueueReport
from qpid_ha_broker.server.runtime.due_parties import nobody_asks
from qpid_ha_broker.server.sets.hosted_member import HostedMember

log = logging.getLogger("cluster")


class PlacedQueues:
    """The promise: what is reported as deleted, or as without an entry, is so in what the set's log has committed.

    `default`: the member of the set whose log has the map. `reportable`: called when there is something to report.

    It is there from the start of its process, and hears of all that becomes of the map. What the map has by then counts
    as committed: it comes before any record of a set that is led in this process, without which nothing is compared.
    """

    def __init__(
        self,
        name: str,
        cluster_map: ClusterMap,
        default: Member,
        members: Mapping[str, HostedMember],
        reportable: Callable[[], None],
    ) -> None:
        self._name = name
        self._map = cluster_map
        self._default = default
        self._members = members
        self._reportable = reportable
        self.due: Callable[[], None] = nobody_asks
        """Called when `work` has something to do."""
        self._uncommitted: dict[tuple[str, str], int] = {}
        """Queues, by name and set, of which the map has an event that may not be committed, and its LSN, or that of its
        unit's end."""
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
        self._orders: dict[str, dict[int, tuple[OrderDeletion, Callable[[bool, str], None]]]] = {}
        """By set and number: queues to be deleted as the controller has asked, and how to refuse that."""
        self._uncommitted_sets: dict[str, int] = {}
        """Sets whose log has to be committed up to there before more is to be reported."""
        self._complaints: dict[str, str] = {}
        self._unwanted: dict[str, set[str]] = {}
        """By set of which there is a replica here: queues that it still has, and whose entries were removed."""

    def look_at(self, set_name: str) -> None:
        """Something may be different there: who leads it, or what it has."""
        self._due[set_name] = None
        self.due()

    def have_deleted(self, order: OrderDeletion, refuse: Callable[[bool, str], None]) -> None:
        """The controller wants a queue deleted; `refuse` is called if it stays."""
        self._orders.setdefault(order.set, {})[order.number] = order, refuse
        self._due[order.set] = None
        self.due()

    def map_changed(self, changes: Changes, queues: Iterable[PlacedQueue]) -> None:
        """The map has changed; `queues`: all that it has changed, those that are gone as they were."""
        for set_name in changes.sets:
            self._due[set_name] = None
        for queue in queues:
            self._uncommitted[queue.name, queue.set] = self._default.position.lsn
            self._due[queue.set] = None
            self._note_wanted(queue, is_wanted=queue.id in self._map.queues_by_id or changes.policies)
        self.due()

    def _note_wanted(self, queue: PlacedQueue, *, is_wanted: bool) -> None:
        """A replica hears of what its set commits when something else comes, and of the map at once. Of what is gone
        with another map nobody may have been asked."""
        unwanted = self._unwanted.pop(queue.set, set())
        member = self._members.get(queue.set)
        if member is not None:
            unwanted &= member.hosted.resources.catalog.queues.keys()  # the others are gone here, too
        if member is not None and not is_wanted:
            unwanted.add(queue.name)
        else:
            unwanted.discard(queue.name)
        if unwanted:
            self._unwanted[queue.set] = unwanted

    def take_unwanted(self, set_name: str) -> Set[str]:
        """Queues of a set that is to have no replica here any more whose entries were removed; once."""
        return self._unwanted.pop(set_name, set())

    def work(self) -> bool:
        """At the end of a turn, and now and then; whether something is awaited, or is to be looked at again."""
        if self._uncommitted:
            committed_lsn = self._default.committed_lsn
            done = [key for key, lsn in self._uncommitted.items() if lsn <= committed_lsn]
            for name, set_name in done:
                del self._uncommitted[name, set_name]
                self._due[set_name] = None
        for set_name, lsn in list(self._uncommitted_sets.items()):
            member = self._members.get(set_name)
            if member is None or lsn <= member.hosted.resources.replicated.log.committed_lsn:
                del self._uncommitted_sets[set_name]
                self._reportable()
        if self._due:
            due, self._due = self._due, {}
            for set_name in due:
                self._compare(set_name)
        return bool(self._due or self._uncommitted or self._uncommitted_sets)

    def report(self, full: bool) -> QueueReport:
        """What the controller is to know; `full`: it has not heard anything before."""
        deleted: list[int] = []
        unplaced: list[UnplacedQueue] = []
        kept: list[KeptQueue] = []
        for set_name, (lsn, found) in self._seen.items():
            member = self._members.get(set_name)
            if member is not None and lsn <= member.hosted.resources.replicated.log.committed_lsn:
                deleted += found.deleted
                unplaced += found.unplaced
                kept += found.kept
        if full:
            self._reported.clear()
            self._unreported = dict.fromkeys(self._declared)
        declared = self._report_declared()
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
        if member is None or not (member.is_serving and member.facts.keeps_directory):
            self._declared.pop(set_name, None)
            self._orders.pop(set_name, None)
            return
        hosted, there = member.hosted, member.hosted.resources.catalog.queues
        queues = {queue.name: queue.arguments.given for queue in there.values()}
        leader = SetLeader(set_name, self._name, member.facts.generation)
        uncommitted = {name for name, of_set in self._uncommitted if of_set == set_name}
        difference = compare(leader, self._map, uncommitted, queues)
        if difference is None:
            return
        configuration, replicated = hosted.configuration, hosted.resources.replicated
        set_log = replicated.log
        for placed in difference.declare:
            self._try(placed.name, partial(configuration.declare_queue, placed.name, placed.arguments))
        for name in difference.delete:
            self._try(name, partial(configuration.delete_queue, name))
        for name in difference.tombstones:
            self._try(name, partial(replicated.write, ev.QueueDeleted(there[name].id)))
        ordered = self._carry_out_orders(set_name, hosted)
        if difference.declare or difference.delete or difference.tombstones or ordered:
            hosted.touch()
            self._due[set_name] = None  # once more: to see that it is done, and to report what has come of it
        else:
            self._declared_up_to(set_name, set_log.last_lsn)
        if difference.deleted or difference.unplaced or difference.kept:
            self._seen[set_name] = set_log.last_lsn, difference
            self._uncommitted_sets[set_name] = set_log.last_lsn

    def _carry_out_orders(self, set_name: str, hosted: HostedSet) -> bool:
        """Those about entries that are known here, and whose queues are there; whether something has changed, or is
        about to: in a group a queue is there until its deletion has its place, and then has to be told."""
        orders, has_changed = self._orders.get(set_name, {}), False
        for number, (order, refuse) in list(orders.items()):
            placed = self._map.queues_by_id.get(order.queue)
            if placed is None and order.queue > self._map.changed_lsn:
                continue  # the map here does not have it yet
            queue = None if placed is None else hosted.resources.catalog.queues.get(placed.name)
            if placed is not None and (queue is None or (placed.name, set_name) in self._uncommitted):
                continue  # it is about to be declared, or about to be known
            if queue is not None and hosted.configuration.deletion_of(queue) is not None:
                has_changed = True
                continue
            del orders[number]
            if placed is None or queue is None or queue.deleted or queue.arguments.tombstone_of:
                continue  # it is gone, or is about to be told
            try:
                hosted.configuration.delete_queue(
                    placed.name, if_empty=order.if_empty, if_unused=order.if_unused, tombstone_of=placed.id
                )
            except ModelError as error:
                refuse(False, str(error))
            else:
                has_changed = True
                if hosted.resources.replication.counts_later:
                    orders[number] = order, refuse
        return has_changed

    def _declared_up_to(self, set_name: str, lsn: int) -> None:
        """The set has, as of `lsn` of its log, what each committed entry says."""
        entries = self._map.queues_of(set_name).values()
        newest = max((each.id for each in entries if (each.name, set_name) not in self._uncommitted), default=0)
        if newest != self._declared.get(set_name, (0, 0))[1]:
            self._declared[set_name] = lsn, newest
            self._unreported[set_name] = None
            self._uncommitted_sets[set_name] = lsn

    def _try(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except BeingMade:
            return
        except ModelError as error:
            self._complain(name, error)
        else:
            self._complaints.pop(name, None)

    def _complain(self, name: str, error: ModelError) -> None:
        if self._complaints.get(name) != str(error):
            self._complaints[name] = str(error)
            log.error("queue %s cannot be as the directory says: %s", name, error)
