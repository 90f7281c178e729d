"""What consumers of a queue are told that is gone, or was emptied beneath them."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint, endpoint_of
from qpid_ha_broker.amqp.wire.conditions import RESOURCE_DELETED, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.model.logs.log import COMMITTED, CommitToken
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.work import Task, used_up


class EndedQueues:
    """The promise: they get nothing more from it, and hear why when a failover cannot take that back."""

    def __init__(self, resources: Resources, begin: Callable[[Task], None]) -> None:
        """`begin`: do as much of a task now as there is time for, and the rest later."""
        self._resources = resources
        self._begin = begin
        self._deleted: list[tuple[CommitToken, Queue]] = []
        """Queues whose deletion consumers are told of when it is committed."""

    @property
    def are_due(self) -> bool:
        """Whether there is something to be done in the next turn."""
        catalog, waiting = self._resources.catalog, self._deleted
        is_told = bool(waiting) and any(token.is_committed for token, _ in waiting)
        return is_told or bool(catalog.deleted_queues or catalog.displaced_queues)

    def look(self, *, read_only: bool) -> None:
        """Tell those who are to know. `read_only`: others write, so what counts here may be told."""
        catalog = self._resources.catalog
        if catalog.deleted_queues or catalog.displaced_queues:
            self._stop_consumers(read_only)
        waiting, self._deleted = self._deleted, []
        for token, queue in waiting:
            if token.is_committed:
                self.end_consumers(queue, AmqpError(RESOURCE_DELETED, f"queue {queue.name} was deleted"))
            else:
                self._deleted.append((token, queue))

    def _stop_consumers(self, read_only: bool) -> None:
        """Who hears of a deletion takes its subscription for gone: not before it is committed. From a queue whose
        messages are moved before it goes consumers are taken at once."""
        catalog = self._resources.catalog
        deleted, catalog.deleted_queues = catalog.deleted_queues, []
        displaced, catalog.displaced_queues = catalog.displaced_queues, {}
        for queue in reversed(deleted):
            _stopped_consumers(queue)
            is_written = queue.deleted and not read_only
            self._deleted.append((self._resources.written if is_written else COMMITTED, queue))
        for queue in displaced:
            if not queue.deleted:
                text = f"this broker brings its copy of queue {queue.name} level with the primary's: browse again"
                self.end_consumers(queue, AmqpError(RESOURCE_LOCKED, text))

    def end_consumers(self, queue: Queue, error: AmqpError) -> None:
        """Of a queue: all their links end."""
        self._begin(ending(_stopped_consumers(queue), error))

    def forget(self) -> None:
        """This broker leads no more: whether the queues are gone is the next one's to say."""
        self._deleted.clear()


def _stopped_consumers(queue: Queue) -> list[LinkEndpoint]:
    links = [endpoint_of(consumer) for consumer in queue.dispatcher.consumers]
    for link in links:
        link.stop()
    return links


def ending(links: list[LinkEndpoint], error: AmqpError) -> Task:
    """End those that have not ended meanwhile, one at each step."""
    for link in used_up(links):
        link.end(error)
        yield
