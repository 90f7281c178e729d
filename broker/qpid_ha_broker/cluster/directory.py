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
(only if it is empty or unused) are checked by the set's primary, which locks the queue, before its entry says
`deleting`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from qpid_ha_broker.cluster.map import ClusterMap, PlacedQueue
from qpid_ha_broker.cluster.messages import UnplacedQueue
from qpid_ha_broker.events.types import Arguments


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
