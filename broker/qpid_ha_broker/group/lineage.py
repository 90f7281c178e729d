"""Members whose logs are the same, because they went from one view to the next together, and what they have committed.

Everything here follows from what is delivered, so it is the same at all of them at any place of the order; who joins is
shown it as of one place, and goes on from there. Whoever leaves a view leaves the lineage. Whoever comes back, or comes
from another part, may have been delivered something else meanwhile, and has to be let in anew.

The promise: nothing is committed that is not on the disk of everybody whom the record may name. The record is replaced
by compare-and-set, so of several lineages only one goes on. Its three steps, and why nothing is lost in between:

1. **Narrowed**: members of the record leave. They are waited for until `begin` says that a record without them was
   written. Until then nothing is committed that they lack, so any one of them may be the one that goes on.
2. **Widened**: a member is to be named. It is waited for from the delivery of its wish (`admit`) on, and may be written
   into the record only once it has acknowledged all that the log had then. So whatever was committed without it is on
   its disk before any record names it.
3. **Given up**: whose admission came to nothing is waited for until the next `begin`. Whoever writes the record writes
   the next one only after this one was delivered, and admits nobody over a record that was not: so no write that names
   it can be on its way any more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from qpid_ha_broker.group.frames import AdmissionAsked, EpochBegun, LineageShown
from qpid_ha_broker.group.ownership import Ownership
from qpid_ha_broker.ha.cluster_record import ClusterRecord

NOTHING_ACKNOWLEDGED: Final = (0, 0)


class Lineage:
    """The promise: `committed_lsn` never passes an event that somebody lacks who may go on with the group."""

    def __init__(self, record: ClusterRecord, in_step: Collection[str], committed_lsn: int) -> None:
        self.record = record
        """As it was delivered last; of a member that was restarted: as it was read."""
        self.in_step = set(in_step)
        """Members that are waited for, and whose units count."""
        self.admitting: dict[str, int] = {}
        """Who is to be named by the record, and the LSN that it has to acknowledge before."""
        self.joining: dict[str, AdmissionAsked] = {}
        """Who was shown the lineage and is in step with it as to what is delivered, and what it has to say to be
        admitted."""
        self.gone: set[str] = set()
        """Of `admitting`: who left the view meanwhile."""
        self.acknowledged: dict[str, tuple[int, int]] = {}
        """(LSN, position) by member."""
        self.committed_lsn = committed_lsn
        self.position = 0
        """How much was delivered about ownership."""
        self.ownership = Ownership()
        self.min_in_sync = 1
        """While the record has fewer members nothing is committed. Each member's own: what it confirms it has waited
        for."""
        self.is_cold = False
        """Who owned what is not known: this member was restarted."""
        self.newer_record: ClusterRecord | None = None
        """One that was not delivered yet, and that this member alone knows of: it has read it."""

    # --- shown to who joins

    def shown(self, to: str, instance: str, number: int) -> LineageShown:
        """All of it, as of now."""
        return LineageShown(
            to,
            instance,
            number,
            self.record,
            tuple(sorted(self.in_step)),
            tuple(self.admitting.items()),
            tuple(sorted(self.gone)),
            tuple((member, *admission) for member, admission in self.joining.items()),
            tuple((member, lsn, position) for member, (lsn, position) in self.acknowledged.items()),
            self.committed_lsn,
            self.position,
            self.ownership.shares(),
        )

    @classmethod
    def from_shown(cls, shown: LineageShown) -> Lineage:
        """As it was where that was said."""
        lineage = cls(shown.record, shown.in_step, shown.committed_lsn)
        lineage.admitting, lineage.gone = dict(shown.admitting), set(shown.gone)
        lineage.joining = {member: AdmissionAsked(number, by) for member, number, by in shown.joining}
        lineage.acknowledged = {member: (lsn, position) for member, lsn, position in shown.acknowledged}
        lineage.position = shown.position
        lineage.ownership = Ownership(shown.shares)
        return lineage

    # --- what is delivered

    @property
    def required(self) -> set[str]:
        """Who has to have an event on disk before it is committed."""
        newer = () if self.newer_record is None else self.newer_record.members
        return {*self.record.members, *self.admitting, *newer}

    @property
    def is_complete(self) -> bool:
        """All whom the record names are in step, and what it says is confirmed."""
        return not self.record.claimed and self.in_step >= set(self.record.members)

    @property
    def is_settled(self) -> bool:
        """There is nothing to be recorded."""
        return self.is_complete and not (self.admitting or self.is_cold)

    @property
    def is_large_enough(self) -> bool:
        """Whether as many are in sync as have to be."""
        return len(self.record.members) >= self.min_in_sync

    @property
    def stable_position(self) -> int:
        """All whom the record may name have come to this position."""
        return min(self.acknowledged.get(member, NOTHING_ACKNOWLEDGED)[1] for member in self.required)

    def leave_view(self, members: Collection[str]) -> None:
        """Members are not in step any more."""
        self.in_step.difference_update(members)
        self.gone |= self.admitting.keys() & set(members)
        for member in members:
            self.joining.pop(member, None)

    def acknowledge(self, member: str, lsn: int, position: int) -> None:
        """A member has come so far; of somebody who is not waited for it says nothing. A member knows of itself before
        it is delivered: what it has on its disk no order has to say."""
        if member in self.in_step or (member in self.admitting and member not in self.gone):
            before_lsn, before = self.acknowledged.get(member, NOTHING_ACKNOWLEDGED)
            self.acknowledged[member] = (max(lsn, before_lsn), max(position, before))
            self.advance()

    def admit(self, member: str, asked: AdmissionAsked, last_lsn: int) -> None:
        """A member that has come level wants to be named: from here on it is waited for. One that has come level with
        another lineage, and was in that one's view when it said so, is not."""
        if self.joining.get(member) == asked and member not in self.required:
            self.admitting[member] = last_lsn
            self.acknowledged[member] = NOTHING_ACKNOWLEDGED

    def is_admissible(self, member: str) -> bool:
        """Whether a record may name it: it has all that was committed without it."""
        needed = self.admitting.get(member)
        return needed is not None and member not in self.gone and self._lsn_of(member) >= needed

    def begin(self, begun: EpochBegun) -> frozenset[str]:
        """A record was written: who is not named any more. `committed_lsn` may advance."""
        record = begun.record
        left = frozenset(self.record.members) - frozenset(record.members)
        let_in = self.admitting.keys() - self.gone
        self.in_step = {member for member in record.members if member in self.in_step or member in let_in}
        given_up = self.gone | set(begun.given_up)
        self.admitting = {
            member: lsn
            for member, lsn in self.admitting.items()
            if member not in record.members and member not in given_up
        }
        self.gone = set()
        for member in (*record.members, *given_up):
            self.joining.pop(member, None)
        self.record = record
        self.is_cold = False
        if self.newer_record is not None and self.newer_record.position <= record.position:
            self.newer_record = None
        self.acknowledged = {member: ack for member, ack in self.acknowledged.items() if member in self.required}
        self.advance()
        return left

    def advance(self) -> None:
        """Count again what is committed. Nothing is while a first claim is not confirmed, or too few are in sync."""
        if not self.record.claimed and self.is_large_enough:
            self.committed_lsn = max(self.committed_lsn, min(map(self._lsn_of, self.required)))

    def _lsn_of(self, member: str) -> int:
        return self.acknowledged.get(member, NOTHING_ACKNOWLEDGED)[0]

    def check_invariants(self) -> None:
        """Raise AssertionError where somebody is in step whom nobody waits for."""
        if not self.in_step <= set(self.record.members):
            raise AssertionError(f"in step are {self.in_step}, and the record names {self.record.members}")
        self.ownership.check_invariants()
