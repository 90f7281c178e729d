"""The list of queues for the web page, and the trends that it shows: made between the turns of the loop, in slices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from qpid_ha_broker.metrics.queue_listing import PlacedIn, QueueListing, list_queues
from qpid_ha_broker.metrics.queue_trends import QueueTrends
from qpid_ha_broker.server.runtime.slices import in_slices

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

SAMPLE_INTERVAL_S: Final = 5.0


class QueueLists:
    """The promise: however many queues there are, no message waits for a list of them longer than SLICE_S."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._trends = QueueTrends()
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to note trends. The broker may load its store yet."""
        self._task = asyncio.get_running_loop().create_task(self._look_forever())

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _look_forever(self) -> None:
        while True:
            if self._broker.is_loaded:
                await in_slices(self._trends.look((queue for _, queue in self._queues()), time.monotonic()))
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def page(self, asked: QueueListing) -> dict[str, object]:
        """See `list_queues`; also how many queues are in sets of which this broker has no replica (`elsewhere`).

        One at a time: who asks meanwhile waits.
        """
        if not self._broker.is_loaded:
            return {"total": 0, "matching": 0, "offset": asked.offset, "rows": [], "elsewhere": 0}
        async with self._one_at_a_time:
            listing = await in_slices(list_queues(self._queues(), asked, self._trends, int(time.time() * 1000)))
        self._tell_users(listing)
        return {**listing, "elsewhere": self._elsewhere(), "sample_interval_s": SAMPLE_INTERVAL_S}

    def _queues(self) -> Iterator[PlacedIn]:
        for name, hosted in list(self._broker.container.sets.items()):
            for queue in list(hosted.resources.catalog.queues.values()):
                yield name, queue

    def _tell_users(self, listing: dict[str, object]) -> None:
        """Of queues of groups: which member hands out, and which ones wait."""
        sets, rows = self._broker.container.sets, listing["rows"]
        for row in rows if isinstance(rows, list) else ():
            hosted = sets.get(row["set"])
            queue = None if hosted is None else hosted.resources.catalog.queues.get(row["name"])
            if hosted is not None and queue is not None:
                row |= hosted.resources.replication.facts_of(queue)

    def _elsewhere(self) -> int:
        sets = self._broker.sets
        if sets is None:
            return 0
        hosted = self._broker.container.sets
        return sum(len(sets.map.queues_of(name)) for name in sets.map.sets if name not in hosted)
