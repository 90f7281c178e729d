"""When the messages of one queue expire, or when they are due, the earliest first."""

from __future__ import annotations

import heapq

from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.work import Task, emptied

_SLACK = 64


class Expiries:
    """Promise: `pop` gives each message that was noted once its time has come, if it is still in the queue."""

    __slots__ = ("_heap", "popped_ms")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self.popped_ms = 0
        """Up to then all was given: what somebody had at that time has to be noted again when it comes back."""

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """When the time of the next message may come; None when none will."""
        return self._heap[0][0] if self._heap else None

    def note(self, expires_at_ms: int, entry: Entry, count: int) -> None:
        """The time of `entry` is then; its queue holds `count` messages."""
        if len(self._heap) > 2 * count + _SLACK:
            # Most were consumed long before their time: a long TTL must not keep a memory of every message.
            self._heap = [expiry for expiry in self._heap if expiry[2].body is not None]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (expires_at_ms, entry.id, entry))

    def pop(self, now_ms: int, most: int) -> list[Entry]:
        """What was due by `now_ms` and is still here, be it somebody's or not; of `most` notes, the rest later."""
        expired = []
        heap = self._heap
        for _ in range(most):
            if not heap or heap[0][0] > now_ms:
                break
            expires_at_ms, _, entry = heapq.heappop(heap)
            self.popped_ms = max(self.popped_ms, expires_at_ms)
            if entry.body is not None:
                expired.append(entry)
        if not heap or heap[0][0] > now_ms:
            self.popped_ms = max(self.popped_ms, now_ms)
        return expired

    def is_due(self, now_ms: int) -> bool:
        """Whether `pop` would give something that is nobody's: for who leaves that to another broker."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            expires_at_ms, _, entry = heap[0]
            if entry.body is not None and entry.is_free:
                return True
            heapq.heappop(heap)
            self.popped_ms = max(self.popped_ms, expires_at_ms)
        return False

    def clear(self) -> None:
        """Forget all messages."""
        self._heap.clear()

    def dismantle(self) -> Task:
        """Let go of all notes, some at each step."""
        return emptied(self._heap)

    def renumbered(self) -> None:
        """The messages have other ids."""
        there = [(expires_at_ms, entry) for expires_at_ms, _, entry in self._heap if entry.body is not None]
        self._heap = [(expires_at_ms, entry.id, entry) for expires_at_ms, entry in there]
        heapq.heapify(self._heap)
