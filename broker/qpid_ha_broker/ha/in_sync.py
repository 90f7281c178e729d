"""The in-sync set: which brokers must hold an event before it is committed.

An event is committed when all members hold it. A new member counts from the next event on. One that leaves still counts
until the others hold the very event that says so, and until it is recorded where a candidate would look: whoever comes
back with an old copy can then find out that events were committed without it. One that is back before that goes on as
if nothing had happened, unless it has lost its memory: then it cannot say whether it was promoted elsewhere meanwhile,
and what was written with its name in the set waits for the record all the same.

Source: ISR in Kafka; seed 000, "New backups connecting to primary".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class InSyncChange(NamedTuple):
    """A new epoch: to be appended to the log, and to be recorded (`recorded` answers)."""

    epoch: int
    members: tuple[str, ...]


@dataclass(slots=True)
class _Leaving:
    """One that has left but still counts."""

    acknowledged: int
    epoch: int
    change_lsn: int = 0
    is_recorded: bool = False
    return_epoch: int = 0
    """In which it is back, before it was recorded that it left; 0: it is not back."""
    return_lsn: int = 0

    def counts(self, held_by_all: int) -> bool:
        """Whether all others know of it, and whoever would be asked."""
        return self.is_recorded and 0 < self.change_lsn <= held_by_all

    def is_undone(self, committable_lsn: int) -> bool:
        """Whether all know that it is back, and who leaves now too."""
        return 0 < self.return_lsn <= committable_lsn


class InSyncSet:
    """The promise: `committed_lsn` never passes an event that a broker which may be promoted lacks.

    It never goes back, and stands still while there are fewer than `least` members.
    """

    def __init__(self, primary: str, change: InSyncChange, committed_lsn: int, min_in_sync: int) -> None:
        self.primary = primary
        self.epoch = change.epoch
        self.min_in_sync = min_in_sync
        self.least_beside_rival = 0
        """So many besides, while somebody leads another cluster at an address of this one; 0: nobody does."""
        self.committed_lsn = committed_lsn
        self.begun_lsn = 0
        """The last of the generation's first events; 0: it has not begun."""
        self._acknowledged = dict.fromkeys(change.members, committed_lsn)
        self._leaving: dict[str, _Leaving] = {}
        self._forgotten: list[_Leaving] = []
        """Departures of some who are back and do not remember what they did meanwhile."""
        self._returned: list[_Leaving] = []
        """Departures of some who are back and do. None is ever committed without the return: it was not recorded."""
        if primary not in self._acknowledged:
            raise ValueError(f"{primary} is not in its own in-sync set {change.members}")

    @property
    def members(self) -> tuple[str, ...]:
        """Names in order, the primary among them; those who are leaving are not."""
        return tuple(sorted(self._acknowledged))

    @property
    def change(self) -> InSyncChange:
        """The newest epoch."""
        return InSyncChange(self.epoch, self.members)

    @property
    def least(self) -> int:
        """With fewer members nothing is committed."""
        return max(self.min_in_sync, self.least_beside_rival)

    @property
    def is_large_enough(self) -> bool:
        """Whether publishes may be accepted at all."""
        size = len(self._acknowledged)
        return size >= self.min_in_sync and size >= self.least_beside_rival

    def require_beside_rival(self, least: int) -> None:
        """See `least_beside_rival`. What waited for more members is committed if there are enough now."""
        self.least_beside_rival = least
        self._advance()

    def why_too_small(self) -> str:
        """Of a set that is not large enough."""
        members = ", ".join(self.members)
        if len(self._acknowledged) < self.min_in_sync:
            return f"in sync are only {members}, and ha.min-in-sync is {self.min_in_sync}"
        return (
            f"in sync are only {members}, and somebody else leads another cluster at an address of this one: of two"
            f" only the one that has {self.least_beside_rival} brokers in sync may confirm"
        )

    @property
    def has_begun(self) -> bool:
        """Whether the generation's first events are committed: all in sync hold them, the primary's store too."""
        return 0 < self.begun_lsn <= self.committed_lsn

    def __contains__(self, name: str) -> bool:
        return name in self._acknowledged

    def acknowledge(self, name: str, lsn: int) -> None:
        """`name` holds everything up to `lsn`. News of others than members is ignored."""
        before = self._acknowledged.get(name)
        if before is not None and lsn > before:
            self._acknowledged[name] = lsn
            if before <= self.committed_lsn or self._leaving or self._forgotten or self._returned:
                self._advance()

    def join(self, name: str, lsn: int, *, remembers: bool = True) -> InSyncChange:
        """`name` has caught up to `lsn`: from now on nothing is committed without it.

        `remembers`: it has been in no newer generation, and would know.
        """
        leaving = self._leaving.pop(name, None)
        self._acknowledged[name] = lsn
        self.epoch += 1
        if leaving is not None and not remembers:
            self._forgotten.append(leaving)
        elif leaving is not None and leaving.change_lsn:
            leaving.return_epoch = self.epoch
            self._returned.append(leaving)
        return self.change

    def leave(self, name: str) -> InSyncChange:
        """`name` is gone or silent. Raises ValueError for the primary, which steps down instead."""
        if name == self.primary:
            raise ValueError(f"{name} is the primary: it does not leave its own in-sync set")
        acknowledged = self._acknowledged.pop(name)
        self.epoch += 1
        self._leaving[name] = _Leaving(acknowledged, self.epoch)
        return self.change

    def appended(self, epoch: int, lsn: int) -> None:
        """The change to `epoch` is in the log at `lsn`."""
        for leaving in self._departures:
            if leaving.epoch <= epoch and not leaving.change_lsn:
                leaving.change_lsn = lsn
        for leaving in self._returned:
            if leaving.return_epoch <= epoch and not leaving.return_lsn:
                leaving.return_lsn = lsn
        self._advance()

    def recorded(self, epoch: int) -> None:
        """Whoever will be asked before a promotion knows `epoch`, or that nothing newer is around."""
        for leaving in self._departures:
            if leaving.epoch <= epoch:
                leaving.is_recorded = True
        self._advance()

    def behind(self, lsn: int) -> tuple[str, ...]:
        """Which members have not acknowledged all up to `lsn`; in order."""
        return tuple(sorted(name for name, acknowledged in self._acknowledged.items() if acknowledged < lsn))

    @property
    def awaited(self) -> frozenset[str]:
        """Who has left and counts all the same, because that is not recorded: nothing is committed without them."""
        return frozenset(name for name, leaving in self._leaving.items() if not leaving.is_recorded)

    @property
    def awaits_record(self) -> bool:
        """Whether a departure waits for `recorded`."""
        return any(not leaving.is_recorded for leaving in self._departures)

    @property
    def _departures(self) -> list[_Leaving]:
        return [*self._leaving.values(), *self._forgotten]

    def _advance(self) -> None:
        committable_lsn = min(self._acknowledged.values())
        if self._leaving or self._forgotten or self._returned:
            committable_lsn = self._committable(committable_lsn)
        if committable_lsn > self.committed_lsn and self.is_large_enough:
            self.committed_lsn = committable_lsn

    def _committable(self, held_by_all: int) -> int:
        """Where some have left or are back; forgets of them what counts no more."""
        for name, leaving in list(self._leaving.items()):
            if leaving.counts(held_by_all):
                del self._leaving[name]
        if self._forgotten:
            self._forgotten = [leaving for leaving in self._forgotten if not leaving.counts(held_by_all)]
        committable_lsn = min([held_by_all, *[leaving.acknowledged for leaving in self._departures]])
        return self._undo(committable_lsn) if self._returned else committable_lsn

    def _undo(self, committable_lsn: int) -> int:
        """Forget departures whose return will be committed with them; what may be committed because of the others.

        One that is kept takes the commit back behind its departure: perhaps before the return of another one.
        """
        kept: list[_Leaving] = []
        while keep := [
            leaving for leaving in self._returned if leaving not in kept and not leaving.is_undone(committable_lsn)
        ]:
            kept += keep
            committable_lsn = min(committable_lsn, *[leaving.acknowledged for leaving in keep])
        self._returned = kept
        return committable_lsn

    def check_invariants(self) -> None:
        """Raise AssertionError where the promise could be broken."""
        if self.primary not in self._acknowledged:
            raise AssertionError(f"{self.primary} left its own in-sync set")
        if self._leaving.keys() & self._acknowledged.keys():
            raise AssertionError(f"somebody both counts and leaves: {self.members}, {sorted(self._leaving)}")
