"""The log that a broker keeps for itself, with its place beside the one that others follow: a store holds both."""

from __future__ import annotations

from typing import NamedTuple

from qpid_ha_broker.events.codec import encode_counting
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.types import Event
from qpid_ha_broker.model.log import Log, LogBatch


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
