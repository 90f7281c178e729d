"""When which part of a log was written: few notes for long logs, so that a time leads to a place to read from."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

BUCKET_MS: Final = 100
"""Of what was written within so long, only the end is noted."""
MAX_NOTES: Final = 1 << 16
"""A megabyte. When there are more, every second one of the older half goes: what is long ago is known less exactly."""


class WriteTimes:
    """The promise: what `last_before` names had been written before that time. More than that may have been, too.

    Times are milliseconds since the Unix epoch, by this broker's clock, of when it wrote what is in its log: a primary
    when the message came, a backup some milliseconds later. They never go back, even if the clock does.
    """

    __slots__ = ("_lsns", "_times_ms")

    def __init__(self) -> None:
        self._times_ms = array("Q")
        self._lsns = array("Q")

    def __len__(self) -> int:
        return len(self._lsns)

    @property
    def last_lsn(self) -> int:
        """Of the last note; 0: there is none."""
        return self._lsns[-1] if self._lsns else 0

    def note(self, now_ms: int, lsn: int) -> None:
        """All up to `lsn` has been written by now."""
        times, lsns = self._times_ms, self._lsns
        self.truncate(lsn)
        if times:
            now_ms = max(now_ms, times[-1])
            if times[-1] // BUCKET_MS == now_ms // BUCKET_MS:
                times[-1], lsns[-1] = now_ms, lsn
                return
        times.append(now_ms)
        lsns.append(lsn)
        if len(times) > MAX_NOTES:
            del times[0 : MAX_NOTES // 2 : 2]
            del lsns[0 : MAX_NOTES // 2 : 2]

    def truncate(self, lsn: int) -> None:
        """What was noted of the log beyond `lsn` is void."""
        while self._lsns and self._lsns[-1] > lsn:
            self._lsns.pop()
            self._times_ms.pop()

    def between(self, after: int, up_to: int, most: int) -> list[tuple[int, int]]:
        """Times with LSNs, both ascending, `most` at most.

        An event behind `after` and up to `up_to` had been written at the time of the first LSN that is not below its
        own, and if that was not long ago, less than BUCKET_MS before.
        """
        begin = bisect_right(self._lsns, after)
        end = min(bisect_left(self._lsns, up_to) + 1, begin + most)
        return list(zip(self._times_ms[begin:end], self._lsns[begin:end], strict=True))

    def time_of(self, lsn: int) -> int | None:
        """When the event with that LSN had been written, less than BUCKET_MS before if that was not long ago.

        None: not known, for it was in the log before the first note, as after a restart.
        """
        at = bisect_left(self._lsns, lsn)
        return self._times_ms[at] if 0 < at < len(self._lsns) else None

    def last_before(self, time_ms: int) -> int:
        """The largest LSN of which it is noted that it was written before `time_ms`; 0: of none."""
        at = bisect_left(self._times_ms, time_ms) - 1
        return self._lsns[at] if at >= 0 else 0
