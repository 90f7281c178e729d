"""What readers ask of a queue that browse it and come back: where to begin, how much there is, what they are done with.

Each value comes from the wire and may be anything, as for `Administration`.
"""

from __future__ import annotations

from qpid_ha_broker.events.types import DequeueReason
from qpid_ha_broker.model.commands.administration import (
    Administration,
    Facts,
    Pending,
    checked_name,
    checked_number,
    committed_lsn,
)
from qpid_ha_broker.model.errors import NotFound
from qpid_ha_broker.model.queues.queue import Queue

MEASURED_MOST = 2_000
"""Messages that one request counts: a millisecond or two."""
WRITE_TIMES_MOST = 1_000
"""Of one answer: 20 KB."""


class BrowsingRequests:
    """Each raises NotFound where there is no queue of that name, and InvalidArgument; nothing is changed then."""

    def __init__(self, administration: Administration) -> None:
        self._resources = administration.resources
        self._configuration = administration.configuration

    def accept(self, name: object, queue_id: object, up_to: object) -> Pending[int]:
        """Accept, as a consumer would, what nobody has acquired up to the message `up_to`; how many messages that were.

        Raises NotFound also when the queue of that name has another id than `queue_id`: its messages are other ones.
        """
        queue, last = self._queue(name), checked_number(up_to, "up_to")
        if queue.id != checked_number(queue_id, "id"):
            raise NotFound(f"queue {queue.name} has the id {queue.id}: it was deleted and declared again")
        work = self._resources.purges.begin(queue, last, DequeueReason.CONSUMED)
        return Pending(work, self._resources.replicated.log, lambda: work.count)

    def measure(self, name: object, after: object, most: object, most_bytes: object) -> Facts:
        """How many committed messages, of how many bytes, come behind the message `after`, up to which of them.

        Counts by ascending ids, as a browser reads, also what consumers hold; `most` messages, at most MEASURED_MOST,
        and `most_bytes`, but always one. `whole`: there are no more.
        """
        queue = self._queue(name)
        limit, limit_bytes = min(checked_number(most, "messages"), MEASURED_MOST), checked_number(most_bytes, "bytes")
        last, readable_lsn = checked_number(after, "after"), committed_lsn(self._resources, queue)
        cursor = queue.messages.browsing_cursor(last)
        count = size = 0
        while (entry := cursor.peek()) is not None and entry.id <= readable_lsn:
            if count and (count >= limit or size + entry.size > limit_bytes):
                return {"messages": count, "bytes": size, "last": last, "whole": False}
            count, size, last = count + 1, size + entry.size, entry.id
            cursor.skip()
        return {"messages": count, "bytes": size, "last": last, "whole": True}

    def position_before(self, name: object, timestamp: object) -> Facts:
        """Behind which message to browse for what came at `timestamp` (ms since the Unix epoch) or later.

        Maybe for some that came before, too: see `WriteTimes`. 0: from the head.
        """
        queue = self._queue(name)
        position = queue.log.write_times.last_before(checked_number(timestamp, "timestamp"))
        return {"id": queue.id, "position": min(position, committed_lsn(self._resources, queue))}

    def write_times(self, name: object, after: object, up_to: object) -> Facts:
        """When messages behind the one with the id `after` came, up to `up_to`: see `WriteTimes.between`.

        WRITE_TIMES_MOST at most: whoever needs more asks again behind the last.
        """
        queue = self._queue(name)
        bounds = checked_number(after, "after"), checked_number(up_to, "up_to")
        notes = queue.log.write_times.between(*bounds, WRITE_TIMES_MOST)
        return {"id": queue.id, "positions": [lsn for _, lsn in notes], "times": [time_ms for time_ms, _ in notes]}

    def _queue(self, name: object) -> Queue:
        return self._configuration.queue(checked_name(name, "name"))
