"""The log of a resource set, seen from memory: who must know of an event before its outcome may be told.

Every event gets the next LSN at once, and goes to each witness at the end of the turn. A witness (a store, a stream to
backups, a group multicast) answers with one number, the LSN up to which it has seen the log; what all have seen is
committed, and only then may a publisher, a consumer or an administrator hear of it. The model appends and
does not know who is listening; with no witness an event is committed as soon as it is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.events.codec import LogRecord, encode_counting
from qpid_ha_broker.events.scan import durable_only, offset_after
from qpid_ha_broker.events.types import EVERYTHING, Event, TransactionCommitted
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.logs.write_times import WriteTimes

_new_tuple = tuple.__new__
"""Makes a named tuple of a tuple at half of what calling its class costs."""

DEFAULT_SET: Final = "default"
"""The name of the resource set whose log all brokers of a cluster share."""


class LogBatch(NamedTuple):
    """What one turn wrote. `data` is the records, encoded once, for every witness the same bytes."""

    first_lsn: int
    last_lsn: int
    data: bytes
    transient: int = 0
    """Copies in queues of messages that are not durable, and no part of a unit: a store leaves them out."""

    def cut_after(self, lsn: int) -> tuple[LogBatch, LogBatch]:
        """What goes up to `lsn`, which lies in it, and what comes after; each with its own count."""
        at = offset_after(self.data, lsn)
        first, rest = self.data[:at], self.data[at:]
        transient = durable_only(first)[1] if self.transient else 0
        return (
            LogBatch(self.first_lsn, lsn, first, transient),
            LogBatch(lsn + 1, self.last_lsn, rest, self.transient - transient),
        )


class Commitment(Protocol):
    """Something that is committed sooner or later, or fails."""

    @property
    def is_committed(self) -> bool:
        """Whether clients may hear of what was written."""

    @property
    def failure(self) -> ModelError | None:
        """Why it never will be; None: it may still be."""

    def waits_for(self, log: Log) -> bool:
        """Whether what is not committed yet was written to `log`."""


class CommitToken(NamedTuple):
    """What waits until something is committed holds one: `log` up to `lsn`, and where more was written, `also`."""

    log: Log
    lsn: int
    also: Commitment | None = None

    @property
    def failure(self) -> ModelError | None:
        """What was written here counts; what was handed to others may fail."""
        return None if self.also is None else self.also.failure

    @property
    def is_committed(self) -> bool:
        """Whether clients may hear of what was written."""
        return self.lsn <= self.log.committed_lsn and (self.also is None or self.also.is_committed)

    def and_also(self, also: CommitToken) -> CommitToken:
        """What to wait for so that both are committed; at least one of them has no `also` yet."""
        if self.is_committed:
            return also
        return self._replace(also=also) if self.also is None else also._replace(also=self)

    def is_of(self, log: Log) -> bool:
        """Whether the token is of `log`, or waits for one that is: of a log that has no witnesses any more that is all
        that can be said."""
        return self.log is log or (self.also is not None and self.also.waits_for(log))

    def waits_for(self, log: Log) -> bool:
        """Whether what is not committed yet was written to `log`."""
        return not self.is_committed and (self.log is log or (self.also is not None and self.also.waits_for(log)))


class AllOf:
    """What waits for several."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Commitment]) -> None:
        self._parts = parts

    @property
    def is_committed(self) -> bool:
        """As `Commitment.is_committed`."""
        return all(part.is_committed for part in self._parts)

    @property
    def failure(self) -> ModelError | None:
        """As `Commitment.failure`: the first."""
        return next((part.failure for part in self._parts if part.failure is not None), None)

    def waits_for(self, log: Log) -> bool:
        """As `Commitment.waits_for`."""
        return any(part.waits_for(log) for part in self._parts)


class Log:
    """The promise: `committed_lsn` never passes an event that a witness has not acknowledged."""

    __slots__ = (
        "_acknowledged",
        "_doubtful_upto",
        "_units",
        "_unsure_upto",
        "last_lsn",
        "pending",
        "shown_lsn",
        "write_times",
    )

    def __init__(self, last_lsn: int = 0) -> None:
        self.last_lsn = last_lsn
        self.shown_lsn = EVERYTHING
        """Where others write: up to there it may be shown. What lies beyond was written here, and may be taken back."""
        self._doubtful_upto = 0
        self._unsure_upto = 0
        """Where others write: what counts here may be taken back until that LSN is committed. 0: nothing may."""
        self.write_times = WriteTimes()
        self._acknowledged: dict[str, int] = {}
        self.pending: list[LogRecord] = []
        """What `take_batch` has for the witnesses."""
        self._units: deque[tuple[int, int]] = deque()
        """First and closing LSN of units that may not be committed yet."""

    @property
    def committed_lsn(self) -> int:
        """The last LSN that every witness has acknowledged."""
        return min(self._acknowledged.values()) if self._acknowledged else self.last_lsn

    def whole_lsn(self) -> int:
        """As `committed_lsn`, but never within a unit: a witness may have seen half of one, which is nothing yet."""
        committed, units = self.committed_lsn, self._units
        while units and units[0][1] <= committed:
            units.popleft()
        return units[0][0] - 1 if units and units[0][0] <= committed else committed

    @property
    def written(self) -> CommitToken:
        """What to wait for so that all that was written so far is committed."""
        return CommitToken(self, self.last_lsn)

    @property
    def is_unsure(self) -> bool:
        """Where others write: whether something counts here of which nobody has said that it is committed."""
        return self._unsure_upto > 0

    @property
    def is_witnessed(self) -> bool:
        """Whether anybody has to see what is written."""
        return bool(self._acknowledged)

    def append(self, event: Event, part: bool = False) -> int:
        """Give `event` the next LSN. `part`: it counts only when the unit's TransactionCommitted follows."""
        lsn = self.last_lsn = self.last_lsn + 1
        if self._acknowledged:
            self.pending.append(LogRecord(lsn, event, part))
        return lsn

    def append_run(self, events: Sequence[Event]) -> Sequence[int]:
        """`append` for each of `events`: the LSNs."""
        first = self.last_lsn + 1
        self.last_lsn += len(events)
        lsns = range(first, first + len(events))
        if self._acknowledged:
            records = zip(lsns, events, repeat(False))
            self.pending += map(_new_tuple, repeat(LogRecord), records)
        return lsns

    def append_unit(self, events: Sequence[Event]) -> list[int]:
        """Append all or none: the LSNs of `events`. What waits for the unit waits for the one after them."""
        lsns = [self.append(event, part=True) for event in events]
        closing = self.append(TransactionCommitted(len(lsns)))
        if self._acknowledged:
            self._units.append((lsns[0] if lsns else closing, closing))
            self.whole_lsn()  # forgets those that are committed: there may be nobody else who asks
        return lsns

    def take_batch(self) -> LogBatch | None:
        """What was written since the last call, for every witness; None when there is nothing to tell."""
        pending = self.pending
        if not pending:
            return None
        self.pending = []
        data, transient = encode_counting(pending)
        return LogBatch(pending[0].lsn, pending[-1].lsn, data, transient)

    def end_writing(self) -> None:
        """Others write it from now on: what is not committed here counts if they say so."""
        self._doubtful_upto = self.last_lsn
        self.shown_lsn = self.whole_lsn()
        self.count_unsure()
        self.committed_elsewhere(self.shown_lsn)

    def count_unsure(self) -> None:
        """All that is here counts, and whoever writes it has not said of the last of it that it is committed."""
        self._unsure_upto = self.last_lsn

    def committed_elsewhere(self, lsn: int) -> None:
        """Whoever writes it says that it is committed up to there, or has put something else in the place of the rest:
        EVERYTHING."""
        if lsn >= self._doubtful_upto:
            self.shown_lsn = EVERYTHING
        if lsn >= self._unsure_upto:
            self._unsure_upto = 0

    def reset(self, last_lsn: int) -> None:
        """The log now ends at `last_lsn`, and every witness holds it so far: what nobody has taken yet is dropped."""
        self.last_lsn = last_lsn
        self.write_times.truncate(last_lsn)
        self.pending = []
        self._units.clear()
        self._acknowledged = dict.fromkeys(self._acknowledged, last_lsn)

    def note_time(self, now_ms: int) -> None:
        """The time of day is `now_ms`, and all that is in the log has been written."""
        if self.last_lsn != self.write_times.last_lsn:
            self.write_times.note(now_ms, self.last_lsn)

    def add_witness(self, name: str) -> None:
        """From the next event on, nothing is committed without `name`. It holds all that was written before."""
        if name in self._acknowledged:
            raise ValueError(f"{name} is a witness already")
        self._acknowledged[name] = self.last_lsn

    def remove_witness(self, name: str) -> None:
        """Stop waiting for `name`. Whether that is safe is for the caller to know."""
        del self._acknowledged[name]
        if not self._acknowledged:
            self.pending.clear()
            self._units.clear()

    def acknowledge(self, name: str, lsn: int) -> None:
        """`name` has everything up to `lsn`. Raises ValueError for what was never written: a confused witness."""
        if lsn > self.last_lsn:
            raise ValueError(f"{name} acknowledged LSN {lsn}, but the log ends at {self.last_lsn}")
        self._acknowledged[name] = max(self._acknowledged[name], lsn)


COMMITTED: Final = Log().written
"""For what has to wait for nothing."""
