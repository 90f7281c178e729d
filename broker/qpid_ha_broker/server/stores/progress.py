"""How far the journal's pieces are on their way to the disk, as the loop keeps count of it, and who waits for that."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

STALLED_S: Final = 10.0
"""A disk that writes nothing for some seconds has a moment, and does not hang yet. Who waits for a backup with such a
disk gives it up sooner: `ha.backup-timeout`."""
STEP_MAX_S: Final = 0.5


class AwaitedSync(NamedTuple):
    """What is to be told once the pieces up to `ticket` are on disk; `number` 0: nothing of the replicated log."""

    ticket: int
    local_lsn: int
    number: int


class SyncProgress:
    """The promise: who waits is told once all that was appended before is on disk, and everybody in their order.

    Pieces have tickets, 1, 2, ... One sync covers a group of them, so what waited for any of these is told at once.
    """

    __slots__ = ("_awaited", "appended_ticket", "synced_ticket")

    def __init__(self) -> None:
        self.appended_ticket = 0
        """Of the newest piece that was appended; 0: there was none."""
        self.synced_ticket = 0
        """Of the newest piece that is on disk, with all before it. 0 <= synced_ticket <= appended_ticket."""
        self._awaited: deque[AwaitedSync] = deque()

    @property
    def is_all_synced(self) -> bool:
        """Whether nothing is on its way."""
        return self.appended_ticket == self.synced_ticket

    def await_all(self, local_lsn: int, number: int) -> bool:
        """Have `advance` tell these once all that was appended is on disk. False: it is, and nothing will be told."""
        if self.appended_ticket == self.synced_ticket:
            return False
        self._awaited.append(AwaitedSync(self.appended_ticket, local_lsn, number))
        return True

    def advance(self, ticket: int) -> tuple[int, int]:
        """All pieces up to `ticket` are on disk: the last LSN of the local log and the last number that waited for it.

        Of either 0: nothing did.
        """
        self.synced_ticket = ticket
        local_lsn = number = 0
        awaited = self._awaited
        while awaited and awaited[0].ticket <= ticket:
            covered = awaited.popleft()
            local_lsn, number = covered.local_lsn, covered.number or number
        return local_lsn, number


class StallWatch:
    """Whether a disk has taken nothing of what waits for it for so long that it hangs: no error says so."""

    def __init__(self) -> None:
        self._written_bytes = 0
        self._looked_s = self._waited_s = 0.0
        """When it was looked at last, and for how long nothing has been written by then."""

    def is_stalled(self, written_bytes: int, waiting_bytes: int, now_s: float) -> bool:
        """To be asked several times a second. The time in which this process did not run does not count."""
        step_s, self._looked_s = min(now_s - self._looked_s, STEP_MAX_S), now_s
        if not waiting_bytes or written_bytes != self._written_bytes:
            self._written_bytes, self._waited_s = written_bytes, 0.0
        else:
            self._waited_s += step_s
        return self._waited_s >= STALLED_S
