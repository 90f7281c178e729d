"""The directory says which queues a set is to have; the primary of the set compares that with what it has.

The log of the set is the truth about a queue; its entry, in the log of `default`, is a reservation of its name. Each
log keeps what it has committed, whatever dies, and nothing else is sure. So there is no step that has to follow another
one: whoever leads the set looks at both, again and again, and does what is missing.

A queue is deleted in three steps: 1. the primary of its set, whom the controller has asked, makes a *tombstone* of it,
in one record, if the conditions of the deletion (that it is empty, or unused) hold then. That is the deletion. A
tombstone is no queue for anybody but the log, which knows from it that the entry, whose id it has, had its queue.
2. The controller, once it is told, removes the entry: the name is free. 3. The primary removes the tombstone.

the entry, as far as it is committed   the set has a queue     a tombstone of the entry   neither
-------------------------------------  ----------------------  -------------------------  ----------
there                                  nothing                 tell: the entry can go     declare it
there, and a deletion is asked for     a tombstone, or refuse  tell: the entry can go     declare it
last changed by what is not committed  nothing                 nothing                    nothing
not there                              tell: it gets one       remove it                  nothing

What is told goes to the controller, and is true of what the set's log has committed.

The promise: once nothing happens any more, a set has the queues of its entries and no others. A name is not free while
its queue is there; no queue is deleted unless somebody has asked for it; none that was deleted comes back; and a queue
of which somebody was told that it stays, is not deleted because of what he asked. It rests on this:

1. A name is that of one entry at a time, and its entry goes only when the set's log has *committed* the tombstone.
2. Who begins to lead a set begins to compare when its map has the set's record with its own generation in it. What
   the primary before it had acted on was in the map before that record. So nobody declares what was just deleted, and
   who finds a tombstone without its entry knows that the entry is gone, not that it is still to come.
3. A queue without an entry is never deleted: its entry may have been lost with the log of `default` (promoted by force,
   restored from an older store), and then it gets another one.
4. Before it is done nothing keeps a deletion but the memory of the two who carry it out, for as long as they lead, and
   whoever has asked for it. Who gets no answer asks again.

**Beside the release before**, whose controller has the entry say `deleting`, and whose primaries know nothing else.
Such an entry is as good as a tombstone: the queue is deleted, with its record, and then the entry can go. Where it has
conditions whoever leads the set says at once that it keeps the queue, whatever holds, and the controller has the entry
say so. A controller writes `deleting` where a replica of the set is with a broker of that release, which would take a
tombstone for a queue, and refuses to have queues of that set deleted on conditions.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from qpid_ha_broker.cluster.messages import KeptQueue, UnplacedQueue
from qpid_ha_broker.cluster_map import TOMBSTONE_OF, ClusterMap, PlacedQueue
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
    """Queues, by name, whose entries say `deleting`."""
    tombstones: tuple[str, ...] = ()
    """By name: to be removed."""
    deleted: tuple[int, ...] = ()
    """Ids of entries whose queues are gone: for a report, once all that the set's log has now is committed."""
    unplaced: tuple[UnplacedQueue, ...] = ()
    """For a report, then, too."""
    kept: tuple[KeptQueue, ...] = ()
    """For a report, then, too."""


def compare(
    leader: SetLeader, there: ClusterMap, uncommitted: Container[str], queues: Mapping[str, Arguments]
) -> DirectoryDifference | None:
    """What is missing; None: nothing can be said before `there` has the record of the leader's generation.

    `uncommitted`: names of queues about which `there` has events that are not known to be committed. `queues`: what the
    set has, tombstones too, by name, with their arguments.
    """
    entry = there.sets.get(leader.set)
    if entry is None or (entry.record.generation, entry.record.primary) != (leader.generation, leader.broker):
        return None
    entries = there.queues_of(leader.set)
    settled = [placed for placed in entries.values() if placed.name not in uncommitted]
    awaiting = [placed for placed in settled if placed.name not in queues]
    deleting = [placed for placed in settled if placed.deleting and placed.name in queues]
    tombstones = {name: arguments[TOMBSTONE_OF] for name, arguments in queues.items() if TOMBSTONE_OF in arguments}
    certain = {name: None if name not in entries else entries[name].id for name in queues if name not in uncommitted}
    return DirectoryDifference(  # in the order of its fields
        tuple([placed for placed in awaiting if not placed.deleting]),
        tuple([placed.name for placed in deleting if not placed.deletion and placed.name not in tombstones]),
        tuple([name for name in tombstones if name in certain and certain[name] != tombstones[name]]),
        (
            *[placed.id for placed in awaiting if placed.deleting],
            *[placed.id for placed in settled if tombstones.get(placed.name) == placed.id],
        ),
        tuple(
            [
                UnplacedQueue(leader.set, name, queues[name])
                for name in certain
                if certain[name] is None and name not in tombstones
            ]
        ),
        tuple(
            [
                KeptQueue(placed.id, placed.deletion, leader.generation, _KEPT.format(placed.name, leader.broker))
                for placed in deleting
                if placed.deletion and placed.name not in tombstones
            ]
        ),
    )


_KEPT = "queue {} stays: {}, which leads its set, is of a newer release than the controller that has asked: try again"
