"""The directory says which queues a set is to have; the primary of the set compares that with what it has.

A queue is made and deleted in two logs: its entry in that of `default`, the queue itself in that of its set. Each keeps
what it has committed, whatever dies, and nothing else is sure. So there is no step that has to follow another one:
whoever leads the set looks at both, again and again, and does what is missing.

the entry, as far as it is committed   the set has a queue of that name    it has none
-------------------------------------  ----------------------------------  ------------------------------------------
there                                  nothing                             declare it, with the entry's arguments
there, deleting                        delete it                           tell the controller: the entry can go
last changed by what is not committed  nothing                             nothing
not there                              tell the controller: it adds one    nothing

The promise: once nothing happens any more, a set has the queues of its entries and no others, and no queue is deleted
whose deletion nobody has asked for. It rests on three things:

1. A name is that of one entry at a time, and its entry goes only when the set's log has *committed* that the queue is
   gone: until then the name is not free, and what is told to the controller is told of committed state only.
2. Who begins to lead a set begins to compare when its map has the set's record with its own generation in it. What
   the primary before it had acted on was in the map before that record; so nobody declares what was just deleted.
3. A queue without an entry is never deleted: its entry may have been lost with the log of `default` (promoted by force,
   restored from an older store), and then it gets another one.

A client that has a queue declared or deleted is answered when both logs have committed it. Conditions of a deletion
(only if it is empty or unused) are in the entry that says `deleting`, as arguments of it, and so is an id of that
deletion. The set's primary looks at them at the moment at which it would delete; if they do not hold, the controller
withdraws the deletion. That rests on two more things, without which messages might go that somebody was told stay:

4. A primary decides once about a deletion. If it has said that the queue is kept, it keeps it, whatever comes later.
5. What it said counts only while the entry is of that same deletion, and the set's record has its generation: then
   nobody after it has looked at that entry, and whoever does sees it withdrawn.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from qpid_ha_broker.cluster.messages import KeptQueue, UnplacedQueue
from qpid_ha_broker.cluster_map import DELETION, IF_EMPTY, IF_UNUSED, ClusterMap, PlacedQueue, without_conditions
from qpid_ha_broker.events.types import Arguments, SetRecorded


class DeletionConditions(NamedTuple):
    """What has to hold at the moment at which a queue is deleted."""

    if_empty: bool = False
    if_unused: bool = False


def conditions_of(queue: PlacedQueue) -> DeletionConditions:
    """Those on which it is being deleted."""
    return DeletionConditions(bool(queue.arguments.get(IF_EMPTY)), bool(queue.arguments.get(IF_UNUSED)))


def deletion_of(queue: PlacedQueue) -> str:
    """The id of the deletion on conditions that is under way; empty: there is none."""
    return str(queue.arguments.get(DELETION, "")) if queue.deleting else ""


def with_conditions(arguments: Arguments, conditions: DeletionConditions, deletion: str) -> Arguments:
    """What the entry has then. Earlier conditions do not count any more."""
    given = dict(without_conditions(arguments))
    if any(conditions):
        asked = zip((IF_EMPTY, IF_UNUSED), conditions, strict=True)
        given |= {**{name: True for name, is_asked in asked if is_asked}, DELETION: deletion}
    return given


class KeptQueues:
    """The promise: about each deletion on conditions the primary of a set decides once, as long as it leads.

    A queue that is said to be kept is not deleted for that request when its conditions hold later: whoever asked may
    have heard by then that it stays.
    """

    def __init__(self) -> None:
        self._by_deletion: dict[str, KeptQueue] = {}

    def begin(self, generation: int, there: ClusterMap, uncommitted: Container[str]) -> None:
        """Before a look: forget what another generation decided, and what is over for certain."""
        self._by_deletion = {
            deletion: kept
            for deletion, kept in self._by_deletion.items()
            if kept.generation == generation
            and (queue := there.queues_by_id.get(kept.id)) is not None
            and (deletion_of(queue) == deletion or queue.name in uncommitted)
        }

    @property
    def is_empty(self) -> bool:
        """Nothing was decided, or it is all over."""
        return not self._by_deletion

    def has(self, queue: PlacedQueue) -> bool:
        """Whether it was decided that this deletion does not happen."""
        return deletion_of(queue) in self._by_deletion

    def keep(self, queue: PlacedQueue, generation: int, text: str) -> None:
        """The conditions do not hold, `text` says why."""
        deletion = deletion_of(queue)
        self._by_deletion[deletion] = KeptQueue(queue.id, deletion, generation, text)

    def report(self, there: ClusterMap) -> tuple[KeptQueue, ...]:
        """What the controller is to know, until the entries say so."""
        found = [(kept, there.queues_by_id.get(kept.id)) for kept in self._by_deletion.values()]
        return tuple([kept for kept, queue in found if queue is not None and deletion_of(queue) == kept.deletion])


def is_withdrawn(queue: PlacedQueue | None, record: SetRecorded, broker: str, kept: KeptQueue) -> bool:
    """Whether what `broker` has said of `queue`, as the controller has it, ends the deletion."""
    leads = (record.primary, record.generation) == (broker, kept.generation)
    return leads and queue is not None and kept.deletion != "" and deletion_of(queue) == kept.deletion


class SetLeader(NamedTuple):
    """Who compares: the primary of that set, in that generation of it."""

    set: str
    broker: str
    generation: int


class DirectoryDifference(NamedTuple):
    """What the primary of a set has to do so that the set has what the directory says."""

    declare: tuple[PlacedQueue, ...] = ()
    delete: tuple[str, ...] = ()
    """Queues, by name."""
    deleted: tuple[int, ...] = ()
    """Ids of entries whose queues are gone: for a report, once all that the set's log has now is committed."""
    unplaced: tuple[UnplacedQueue, ...] = ()
    """For a report, then, too."""


def compare(
    leader: SetLeader, there: ClusterMap, uncommitted: Container[str], queues: Mapping[str, Arguments]
) -> DirectoryDifference | None:
    """What is missing; None: nothing can be said before `there` has the record of the leader's generation.

    `uncommitted`: names of queues about which `there` has events that are not known to be committed. `queues`: what the
    set has, by name, with the arguments that were given.
    """
    entry = there.sets.get(leader.set)
    if entry is None or (entry.record.generation, entry.record.primary) != (leader.generation, leader.broker):
        return None
    entries = there.queues_of(leader.set)
    settled = [each for each in entries.values() if each.name not in uncommitted]
    return DirectoryDifference(
        tuple([each for each in settled if not each.deleting and each.name not in queues]),
        tuple([each.name for each in settled if each.deleting and each.name in queues]),
        tuple([each.id for each in settled if each.deleting and each.name not in queues]),
        tuple(
            [
                UnplacedQueue(leader.set, name, arguments)
                for name, arguments in queues.items()
                if name not in entries and name not in uncommitted
            ]
        ),
    )
