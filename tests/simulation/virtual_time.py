"""Time that passes only when nothing is left to do: a heap of what will happen, and the clocks of the nodes."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Callback = Callable[[], None]


class Schedule:
    """The promise: callbacks run by time, and those of one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.count = 0
        """Callbacks that ran."""
        self._heap: list[tuple[float, int, Callback]] = []
        self._number = 0

    def at(self, time_s: float, callback: Callback) -> None:
        """Call back at `time_s`, or as soon as possible when that is over."""
        self._number += 1
        now_s = self.now_s
        heapq.heappush(self._heap, (time_s if time_s > now_s else now_s, self._number, callback))

    def after(self, delay_s: float, callback: Callback) -> None:
        """Call back in `delay_s`."""
        self._number += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._number, callback))

    def run_until(self, time_s: float) -> None:
        """Let time pass up to `time_s`, and everything happen that was due by then."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= time_s:
            self.now_s, _, callback = pop(heap)
            self.count += 1
            callback()
        self.now_s = time_s


class Clock:
    """One node's idea of time: a monotonic clock that drifts, and a wall clock that somebody may set."""

    def __init__(self, schedule: Schedule, rate: float, offset_s: float) -> None:
        self._schedule = schedule
        self._rate = rate
        self._offset_s = offset_s
        self.wall_offset_ms = 0
        self._began_ms = 0
        self.begin()

    def begin(self) -> None:
        """A process begins: from now on `steady_ms` is its own."""
        self._began_ms = self.wall_ms() - int(self.monotonic_s() * 1000)

    def steady_ms(self) -> int:
        """What a process counts for itself, from the time of day at which it began: see `model.message_clock`."""
        return self._began_ms + int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return self._offset_s + self._schedule.now_s * self._rate

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.wall_offset_ms + int(self._schedule.now_s * 1000)

    def real_delay_s(self, delay_s: float) -> float:
        """How long it really takes until this clock has moved by `delay_s`."""
        return delay_s / self._rate
