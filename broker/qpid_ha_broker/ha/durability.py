"""How much of the log the store holds, as its answers come in.

Each batch gets a number when it is handed over, and the answer names that number. What was truncated in between is
taken off the batch's entry, so a late answer does not count it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.effects import BeginCheckpoint, Persist, TruncateLog, WriteCheckpoint

EVERYTHING: Final = (1 << 64) - 1


class DurableProgress:
    """The promise: `durable_lsn` never passes what would be there after the process is killed. Without a store: all."""

    def __init__(self, ctx: MemberContext, durable_lsn: int) -> None:
        self._ctx = ctx
        self._has_store = ctx.settings.has_store
        self._durable_lsn = durable_lsn if self._has_store else EVERYTHING
        self._handed_over: deque[tuple[int, int]] = deque()
        """Number of the request, and up to which LSN it still counts."""
        self._checkpoint = 0
        """Number of the one that is missing; without it nothing after it counts. 0: none is."""
        self._is_checkpoint_due = False
        self._unwritable_since_s = 0.0

    @property
    def durable_lsn(self) -> int:
        """The last LSN that is on disk, with all before it."""
        return 0 if self._checkpoint else self._durable_lsn

    def note_writable(self, problem: str) -> None:
        """The store takes what it is given, or why it does not."""
        ctx = self._ctx
        if problem and not ctx.store_problem:
            self._unwritable_since_s = ctx.clock_s
        ctx.store_problem, ctx.is_status_stale = problem, True

    @property
    def unwritable_s(self) -> float:
        """How long it has taken nothing; 0: it does."""
        return self._ctx.clock_s - self._unwritable_since_s if self._ctx.store_problem else 0.0

    def persist(self, first_lsn: int, last_lsn: int, committed_lsn: int, transient: int, data: bytes) -> None:
        """Hand a batch over."""
        if self._has_store:
            number = self._ctx.number()
            self._handed_over.append((number, last_lsn))
            self._ctx.effects.append(Persist(number, first_lsn, last_lsn, committed_lsn, transient, data))
        if self._is_checkpoint_due:
            self.write_checkpoint()

    def persisted(self, number: int) -> None:
        """The store has `number` and all before it."""
        while self._handed_over and self._handed_over[0][0] <= number:
            self._durable_lsn = self._handed_over.popleft()[1]

    def truncate(self, lsn: int) -> None:
        """The cluster does not have what lies after `lsn`."""
        if self._has_store:
            self._durable_lsn = min(self._durable_lsn, lsn)
            self._handed_over = deque((number, min(last_lsn, lsn)) for number, last_lsn in self._handed_over)
            self._ctx.effects.append(TruncateLog(lsn))

    def begin_checkpoint(self, lsn: int) -> None:
        """The state as of `lsn` does not follow from the log: nothing is durable until it has been written whole."""
        if self._has_store:
            self._checkpoint, self._is_checkpoint_due = self._ctx.number(), False
            self._durable_lsn = lsn
            self._handed_over.clear()
            self._ctx.effects.append(BeginCheckpoint(self._checkpoint, lsn))

    def write_checkpoint(self) -> None:
        """The state is whole again, and all that is in it was handed over."""
        self._is_checkpoint_due = False
        if self._checkpoint:
            self._ctx.effects.append(WriteCheckpoint(self._checkpoint))

    def write_checkpoint_later(self) -> None:
        """The same, once what is about to be written has been handed over."""
        self._is_checkpoint_due = bool(self._checkpoint)

    def checkpoint_persisted(self, number: int) -> None:
        """The checkpoint is there; an older one counts for nothing."""
        if number == self._checkpoint:
            self._checkpoint = 0
