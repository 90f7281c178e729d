"""What an Annotated comes to: what consumers have said of messages is kept with their queue, and counts as memory."""

from __future__ import annotations

from collections.abc import Sequence

from qpid_ha_broker.events.types import Annotated
from qpid_ha_broker.model.queues.handout_marks import SetMarks
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.catalog import Catalog


def apply_annotated(catalog: Catalog, marks: SetMarks, lsn: int, event: Annotated) -> None:
    """Raises LookupError where one of the messages, or the queue, is not there."""
    queue = catalog.queues_by_id[event.queue]
    if len(queue.messages.find_all(event.ids)) != len(event.ids):
        raise LookupError(f"queue {queue.name} lacks some of the messages {event.ids[:5]}")
    annotate(catalog, queue, event.ids, event.annotations)
    marks.annotated_lsn = lsn


def annotate(catalog: Catalog, queue: Queue, ids: Sequence[int], annotations: bytes) -> None:
    """Keep that of messages of `queue` which are there."""
    before = queue.messages.resident
    queue.messages.annotations.note(ids, annotations)
    catalog.memory_bytes += queue.messages.resident - before
