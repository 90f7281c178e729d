"""The log that a broker keeps for itself, with its place beside the one that others follow: a store holds both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qpid_ha_broker.events.codec import encode_counting
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.types import Event
from qpid_ha_broker.model.logs.log import Log, LogBatch


class LocalPart(NamedTuple):
    """A piece of the local log, and its place in the order of both: after `after_lsn` of the replicated one."""

    after_lsn: int
    batch: LogBatch
    is_joined: bool = False
    """It counts only together with what the other log says in the same turn."""


class LocalLog(Log):
    """What a broker keeps for itself. A store holds both logs in the order in which they were written.

    That order counts: what is said here of a queue may need what the other log said of it before.
    """

    __slots__ = ("_beside", "_joined_lsn", "_places")

    def __init__(self, beside: Log) -> None:
        super().__init__(LOCAL_BASE)
        self._beside = beside
        self._places: list[tuple[int, int]] = []
        """At each index of what is pending from which on it stands behind another LSN of the other log: both."""
        self._joined_lsn: int | None = None
        """Of the other log, when it was joined in this turn."""

    def append(self, event: Event, part: bool = False) -> int:
        """As `Log.append`."""
        self._note_place()
        return super().append(event, part)

    def append_run(self, events: Sequence[Event]) -> Sequence[int]:
        """As `Log.append_run`."""
        self._note_place()
        return super().append_run(events)

    def _note_place(self) -> None:
        if self._acknowledged:
            after_lsn = self._beside.last_lsn
            if not self._places or self._places[-1][1] != after_lsn:
                self._places.append((len(self.pending), after_lsn))

    def join(self) -> None:
        """What this turn writes from here on to both logs counts together, or not at all: something goes from one to
        the other, and must not be in neither."""
        if self._acknowledged and self._joined_lsn is None:
            self._joined_lsn = self._beside.last_lsn

    def take_parts(self) -> list[LocalPart]:
        """What was written since the last call, cut where the other log was written in between."""
        joined_lsn, self._joined_lsn = self._joined_lsn, None
        is_joined = joined_lsn is not None and joined_lsn < self._beside.last_lsn
        if not self.pending:
            return []
        pending, self.pending = self.pending, []
        places, self._places = self._places, []
        ends = [start for start, _ in places[1:]] + [len(pending)]
        parts = []
        for (start, after_lsn), end in zip(places, ends, strict=True):
            data, transient = encode_counting(pending[start:end])
            batch = LogBatch(pending[start].lsn, pending[end - 1].lsn, data, transient)
            parts.append(LocalPart(after_lsn, batch, is_joined))
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
