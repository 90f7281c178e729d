"""What a primary knows of one backup that is connected: how far it is, and what it still owes."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from math import inf
from typing import Final

from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.browser import Browsers

OWES_MOST_S: Final = 0.5
"""Whoever owes an acknowledgement for longer does not answer as one that is waited for should."""
READING_PAUSE_MOST_S: Final = 300.0
"""Between two readings of the clock: what is off by 100 ppm is off by 30 ms then."""


class BackupProgress(Enum):
    """How far a backup's resynchronisation is."""

    HOLDINGS = auto()
    """It tells what it holds."""
    DUE = auto()
    """The objects go out at the end of this turn."""
    BROWSING = auto()
    """It is sent what it lacks, beside the live stream."""
    REPLAYING = auto()
    """It is sent the stream from where it was, piece by piece; what is written meanwhile comes after that."""
    FOLLOWING = auto()
    """All that it lacks is in the stream."""


class ReadingsDue:
    """When one that follows a primary is told by what clock messages expire: at once, soon again, then more rarely.

    Clocks of two machines move apart slowly, and hundreds of sets that are at rest should stay so.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._due_s = 0.0 if is_wanted else inf
        self._pause_s = 1.0

    def take(self, clock_s: float) -> bool:
        """Whether one is due; then it is about to be sent."""
        if clock_s < self._due_s:
            return False
        self._due_s = clock_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, READING_PAUSE_MOST_S)
        return True


class BackupLink:
    """One backup that is connected. `acknowledged`: what it holds, by its own word."""

    def __init__(self, link: int, hello: fr.Hello, clock_s: float) -> None:
        self.link = link
        self.hello = hello
        """What it said of itself when it came."""
        self.name = hello.name
        self.instance = hello.instance
        self.acknowledged = 0
        self.compared_lsn = 0
        """What it holds up to there is compared with what is here; the stream goes on from there."""
        self.progress = BackupProgress.FOLLOWING
        self.vote_history_intact = hello.remembers and bool(hello.history)
        """It remembers what it confirmed for whom, if ever it did."""
        self.awaits_peer_check = False
        self.observes = ""
        """Why it is not in the in-sync set although it is level, as it was told; empty: it was not."""
        self.readings = ReadingsDue(hello.reads_clock)
        self.sent_lsn = 0
        """The stream was sent up to there."""
        self.level_lsn = 0
        """Having acknowledged this far after CaughtUp, it is level."""
        self.probation_s = 0.0
        """So long it has to be level, and to answer, before it may be in sync."""
        self._level_since_s: float | None = None
        """Since when it is, and has answered in time."""
        self.holdings: dict[int, tuple[tuple[int, int], ...]] = {}
        self.browsers: Browsers | None = None
        self.writable = True
        self._full_since_s: float | None = None
        self.heard_s = clock_s
        self.sent_s = clock_s
        self.told_committed = 0
        self.sent: deque[tuple[int, int, float]] = deque()
        """Not yet acknowledged: last LSN, bytes, time."""
        self.unacknowledged_bytes = 0
        self.unread_bytes = 0
        """Of the live stream, sent while there was no room on its channel."""

    @property
    def is_level(self) -> bool:
        """Whether it holds all that it was to fetch."""
        return self.progress is BackupProgress.FOLLOWING and self.acknowledged >= self.level_lsn

    def note_level(self, clock_s: float) -> None:
        """Begin its probation, or begin it again where it lacks something or does not answer. To be called when time
        has gone by, and when it has acknowledged something."""
        owes_since_s = self.owes_since_s()
        if not self.is_level:
            self._level_since_s = None
        elif self._level_since_s is None or (owes_since_s is not None and clock_s - owes_since_s > OWES_MOST_S):
            self._level_since_s = clock_s

    def is_proven(self, clock_s: float, most_s: float = inf) -> bool:
        """Whether it is level, and its probation is over, of which `most_s` is enough."""
        level_s = 0.0 if self._level_since_s is None else clock_s - self._level_since_s
        return self.is_level and level_s >= min(self.probation_s, most_s)

    @property
    def is_fetching(self) -> bool:
        """Whether it is in the middle of being sent what it lacks."""
        return self.browsers is not None or self.progress is BackupProgress.REPLAYING

    @property
    def could_take_more(self) -> bool:
        """Whether there is more of that which could be sent now."""
        return self.is_fetching and self.writable and (self.browsers is None or self.browsers.has_window)

    def set_writable(self, writable: bool, clock_s: float) -> None:
        """Whether there is room on its channel for more than the live stream."""
        self.writable = writable
        self.unread_bytes = 0
        self._full_since_s = None if writable else clock_s

    def replay_from(self, lsn: int) -> None:
        """It holds all up to `lsn`, in memory at least, and is sent the stream from there."""
        self.progress, self.sent_lsn, self.compared_lsn = BackupProgress.REPLAYING, lsn, lsn

    def note_sent(self, frame: fr.Batch, clock_s: float) -> None:
        """A batch goes to it."""
        self.sent_lsn = frame.last_lsn
        self.sent.append((frame.last_lsn, len(frame.data), clock_s))
        self.unacknowledged_bytes += len(frame.data)
        if not self.writable:
            self.unread_bytes += len(frame.data)
        self.told_committed = frame.committed_lsn
        self.sent_s = clock_s

    def acknowledge(self, lsn: int) -> None:
        """It holds everything up to `lsn`."""
        self.acknowledged = max(self.acknowledged, lsn)
        while self.sent and self.sent[0][0] <= lsn:
            self.unacknowledged_bytes -= self.sent.popleft()[1]

    def owes_since_s(self) -> float | None:
        """Since when it owes an acknowledgement."""
        return self.sent[0][2] if self.sent else None

    def stuck_since_s(self, in_sync: bool) -> float | None:
        """Since when it has not done what it should; None: it owes nothing.

        Publishers wait for the acknowledgements of one that is in sync. Before that it may need long for what it lacks,
        and has only to read what it is sent.
        """
        return self.owes_since_s() if in_sync else self._full_since_s
