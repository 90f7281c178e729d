"""Who may take messages of a queue beside whom: what is decided when a consumer comes, or the first of a group."""

from __future__ import annotations

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import InUse
from qpid_ha_broker.model.queues.dispatcher import ConsumerStanding
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import GROUPED
from qpid_ha_broker.model.replication import is_local
from qpid_ha_broker.model.sets.resource_set import ResourceSets


def check_alone(queue: Queue, standing: ConsumerStanding) -> None:
    """Raises InUse where a consumer of that standing wants to be alone, or another one is."""
    if queue.dispatcher.exclusive is not None:
        raise InUse(f"queue {queue.name} has an exclusive consumer: try again when that has gone")
    if standing.is_exclusive and queue.dispatcher.has_takers:
        raise InUse(f"queue {queue.name} has consumers: an exclusive one has to be alone")


def note_groups(sets: ResourceSets, queue: Queue) -> None:
    """A message of a group comes to `queue`: from here on, and for whoever leads next, groups are kept together.

    Not in a group of brokers, where consumers of other members are not known.
    """
    if queue.detects_groups and not (queue.deleted or sets.replication.counts_later):
        resource_set = sets.local if is_local(queue) else sets.replicated
        resource_set.write(ev.QueueUpdated(queue.id, {**queue.arguments.given, GROUPED: True}))
