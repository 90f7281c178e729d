"""How far this member's store has the log: what it may acknowledge."""

from __future__ import annotations

from qpid_ha_broker.group.context import GroupContext
from qpid_ha_broker.ha.effects import CheckpointPersisted, Persist, Persisted, WriteCheckpoint


class DurableLog:
    """The promise: `lsn` never passes what the store has told to be on disk, without a gap below it."""

    def __init__(self, ctx: GroupContext) -> None:
        self._ctx = ctx
        self.lsn = ctx.last_lsn
        self.is_kept = True
        """False: a checkpoint has to come first, because what is in the store does not lead to what is here."""
        self._pending: dict[int, int] = {}
        """Last LSN by the number of what was given to the store."""
        self._checkpoint = 0
        """Number of the last checkpoint that is on its way; 0: none. What follows it counts once it does."""
        self._beyond_lsn = 0
        """How far the store has told to have what follows it."""

    def stop(self) -> None:
        """The copy becomes another one: the store keeps what it has until a checkpoint takes its place."""
        self.lsn, self.is_kept = 0, False
        self._checkpoint = self._beyond_lsn = 0
        self._pending.clear()

    def write_checkpoint(self) -> None:
        """The copy is whole as it is now: put it into the store, and from here on what follows."""
        self._ctx.resource_set.log.take_batch()
        number = self._checkpoint = self._ctx.number()
        self._pending[number] = self._ctx.last_lsn
        self._ctx.effects.append(WriteCheckpoint(number))
        self.is_kept = True

    def store(self, committed_lsn: int) -> None:
        """Give the store what was appended since; none of it while a checkpoint has to come first."""
        batch = self._ctx.resource_set.log.take_batch()
        if batch is not None and self.is_kept:
            number = self._ctx.number()
            self._pending[number] = batch.last_lsn
            first_lsn, last_lsn, data, transient = batch
            self._ctx.effects.append(Persist(number, first_lsn, last_lsn, committed_lsn, transient, data))

    def persisted(self, happened: Persisted | CheckpointPersisted) -> bool:
        """The store has it; whether it is of this copy."""
        last_lsn = self._pending.pop(happened.number, None)
        if last_lsn is None:
            return False
        if happened.number == self._checkpoint:
            self._checkpoint = 0
        self._beyond_lsn = max(self._beyond_lsn, last_lsn)
        if not self._checkpoint:
            self.lsn = max(self.lsn, self._beyond_lsn)
        return True
