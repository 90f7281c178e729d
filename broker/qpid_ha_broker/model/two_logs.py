"""The two logs of a resource set, which a store keeps in one order: the one that others follow, and a broker's own."""

from __future__ import annotations

from typing import NamedTuple

from qpid_ha_broker.events.codec import encode_counting
from qpid_ha_broker.events.types import Event
from qpid_ha_broker.model.log import LOCAL_BASE, Log, LogBatch


class LocalPart(NamedTuple):
    """A piece of the local log, and its place in the order of both: after `after_lsn` of the replicated one."""

    after_lsn: int
    batch: LogBatch


class LocalLog(Log):
    """What a broker keeps for itself. A store holds both logs in the order in which they were written.

    That order counts: what is said here of a queue may need what the other log said of it before.
    """

    __slots__ = ("_beside", "_places")

    def __init__(self, beside: Log) -> None:
        super().__init__(LOCAL_BASE)
        self._beside = beside
        self._places: list[tuple[int, int]] = []
        """At each index of what is pending from which on it stands behind another LSN of the other log: both."""

    def append(self, event: Event, part: bool = False) -> int:
        """As `Log.append`."""
        if self._acknowledged:
            after_lsn = self._beside.last_lsn
            if not self._places or self._places[-1][1] != after_lsn:
                self._places.append((len(self._pending), after_lsn))
        return super().append(event, part)

    def take_parts(self) -> list[LocalPart]:
        """What was written since the last call, cut where the other log was written in between."""
        if not self._pending:
            return []
        pending, self._pending = self._pending, []
        places, self._places = self._places, []
        ends = [start for start, _ in places[1:]] + [len(pending)]
        parts = []
        for (start, after_lsn), end in zip(places, ends, strict=True):
            data, transient = encode_counting(pending[start:end])
            parts.append(LocalPart(after_lsn, LogBatch(pending[start].lsn, pending[end - 1].lsn, data, transient)))
        return parts

    def reset(self, last_lsn: int) -> None:
        """As `Log.reset`."""
        super().reset(last_lsn)
        self._places.clear()

    def remove_witness(self, name: str) -> None:
        """As `Log.remove_witness`."""
        super().remove_witness(name)
        if not self._acknowledged:
            self._places.clear()


class TwoLogs:
    """The promise: what waits for both logs waits for one number, and for what is replicated that is its LSN."""

    def __init__(self) -> None:
        self.log = Log()
        self.local_log = LocalLog(self.log)
        """What this broker keeps for itself; committed at once, unless there is a store."""

    @property
    def written_lsn(self) -> int:
        """What to wait for so that all that was written in both logs is certain: a number for `is_certain`."""
        local = self.local_log
        if not local.is_witnessed or local.committed_lsn == local.last_lsn:
            return self.log.last_lsn
        return self.local_written_lsn + self.log.last_lsn

    @property
    def local_written_lsn(self) -> int:
        """What to wait for so that the local log is certain; 0 when nobody witnesses it."""
        return (self.local_log.last_lsn - LOCAL_BASE) * LOCAL_BASE if self.local_log.is_witnessed else 0

    def is_certain(self, lsn: int) -> bool:
        """Whether what waits for `lsn` may be told.

        An LSN of the replicated log stands for itself. What waits for the local log (too) has its LSN there, from
        LOCAL_BASE on, as a second digit: so one number says it, and for what is replicated one comparison is enough.
        """
        if lsn < LOCAL_BASE:
            return lsn <= self.log.committed_lsn
        local, replicated = divmod(lsn, LOCAL_BASE)
        return replicated <= self.log.committed_lsn and LOCAL_BASE + local <= self.local_log.committed_lsn
