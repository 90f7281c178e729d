"""What waits in a queue for its time: messages that are due later, or that are to be delivered again later."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from qpid_ha_broker.model.queues.expiries import Expiries
from qpid_ha_broker.model.queues.orders import SeesReturned
from qpid_ha_broker.model.queues.sequence import WAITING, Entry


class Schedule(Expiries):
    """Promise: no message that WAITING holds is had by anybody before its time, and each may be had after that.

    `count`: of them. `cursors`: of who takes messages, who have to see what they had passed.
    """

    __slots__ = ("_cursors", "count")

    def __init__(self, cursors: Sequence[SeesReturned]) -> None:
        super().__init__()
        self._cursors = cursors
        self.count = 0

    @property
    def next_ms(self) -> int | None:
        """When the next message is due; None: nothing waits."""
        heap = self._heap
        while heap and heap[0][2].holder is not WAITING:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def wait(self, entry: Entry, until_ms: int, among: int) -> None:
        """Nobody gets `entry`, which is available, before that; its queue holds `among` messages."""
        block = entry.block
        if entry.holder is None and block is not None:
            entry.holder = WAITING
            block.waiting += 1
            self.count += 1
            self.note(until_ms, entry, among)

    def over(self, entry: Entry) -> None:
        """`entry` waits no more: it is available, until the caller says otherwise."""
        entry.holder = None
        self.count -= 1
        if entry.block is not None:
            entry.block.waiting -= 1

    def fall_due(self, now_ms: int, most: int = 1 << 62) -> bool:
        """Whoever comes gets from now on, in its place, what was to wait until now; whether there was something.

        Of `most` notes: there may be more, as `next_ms` tells.
        """
        entries = [entry for entry in dict.fromkeys(self.pop(now_ms, most)) if entry.holder is WAITING]
        for entry in entries:
            self.over(entry)
        for cursor in self._cursors if entries else ():
            for entry in entries:
                cursor.rewind(entry)
        return bool(entries)

    def is_before(self, due_at_ms: int) -> bool:
        """Whether it is not `due_at_ms` yet, as far as anybody has asked here."""
        return due_at_ms > self.popped_ms

    def forget(self, taken: Sequence[Entry]) -> None:
        """The queue was emptied; it had `taken`."""
        self.clear()
        self.count = 0
        for entry in taken:
            if entry.holder is WAITING:
                entry.holder = None
