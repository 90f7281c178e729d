"""The list of queues for the web page: made between the turns of the loop, in slices."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from qpid_ha_broker.metrics.figure_history import STEP_S
from qpid_ha_broker.metrics.queue_listing import QueueListing, list_queues
from qpid_ha_broker.server.http.figure_looks import FigureLooks
from qpid_ha_broker.server.runtime.slices import in_slices

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker


class QueueLists:
    """The promise: however many queues there are, no message waits for a list of them longer than SLICE_S."""

    def __init__(self, broker: Broker, looks: FigureLooks) -> None:
        self._broker = broker
        self._looks = looks
        self._one_at_a_time = asyncio.Lock()

    async def page(self, asked: QueueListing) -> dict[str, object]:
        """See `list_queues`; also how many queues are in sets of which this broker has no replica (`elsewhere`).

        One at a time: who asks meanwhile waits.
        """
        if not self._broker.is_loaded:
            return {"total": 0, "matching": 0, "offset": asked.offset, "rows": [], "elsewhere": 0}
        looks = self._looks
        async with self._one_at_a_time:
            listing = await in_slices(list_queues(looks.queues(), asked, looks.trends, int(time.time() * 1000)))
        self._tell_users(listing)
        return {**listing, "elsewhere": self._elsewhere(), "sample_interval_s": STEP_S}

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
