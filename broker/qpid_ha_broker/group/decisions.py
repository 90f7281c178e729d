"""When a member begins, goes on with, or asks for a group: what it has recorded, and what it learns of the record.

`recorder` has the table of reasons, and the writing.
"""

from __future__ import annotations

from collections.abc import Collection

from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.parts import GroupParts
from qpid_ha_broker.group.recorder import EpochChange, NextRecord
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.cluster_record import ClusterRecord


class RecordDecisions:
    """Who tries to change the record, and when; what must not be lost is left to the compare-and-set."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts
        self._ctx = parts.ctx
        self._told: frozenset[str] = frozenset()
        """What was said of members that are to be dropped; it may take several attempts."""

    def record_read(self, read: fx.RecordRead) -> None:
        """What it is; of no use when it could not be read."""
        if read.record is not None:
            self._learn(read.record)

    def record_written(self, answer: fx.RecordWritten) -> None:
        """A write of this member's is answered."""
        change = self._parts.records.written(answer)
        if change is None:
            return
        if answer.written:
            self._wrote(change)
        else:
            self._learn(change.record)

    def _learn(self, record: ClusterRecord) -> None:
        """It may be what this member wrote and had no answer to."""
        change = self._parts.records.recognise(record)
        if change is not None:
            self._wrote(change)
        else:
            self._parts.learn(record)

    def _wrote(self, change: EpochChange) -> None:
        record = change.record
        self._parts.records.learn(record)
        if self._parts.log is None and record.claimed:
            self._begin_claim(record)
        if self._parts.log is not None and self._parts.leveling is None:
            self._parts.log.lineage.newer_record = record
            self._parts.records.say(self._parts.log.lineage, change)

    def _begin_claim(self, record: ClusterRecord) -> None:
        """Nobody has confirmed anything: what is here is of a claim that came to nothing."""
        ctx = self._ctx
        ctx.effects += CatchUp(ctx.resource_set, 0).discard_after_common()
        ctx.resource_set.state.generations.clear()
        ctx.resource_set.log.reset(0)
        self._parts.committed_lsn = 0
        self._parts.durable.stop()
        self._parts.durable.write_checkpoint()
        self._parts.is_whole = True
        self._parts.begin_alone(record._replace(generation=0, epoch=0), "nobody has begun the group before")

    def consider(self) -> None:
        """Whether something is to be recorded, or asked for."""
        if self._parts.view and not self._parts.records.is_busy:
            if self._parts.log is None:
                self._consider_outside()
            elif self._parts.leveling is None:
                self._consider_record(self._parts.log.lineage)

    def _consider_outside(self) -> None:
        record = self._parts.records.record
        if not self._parts.records.is_known:
            return
        if self._ctx.settings.name in record.members and self._parts.is_whole:
            self._parts.begin_alone(record, "the record names it")
        elif not record.generation or record.claimed:
            if self._is_patience_over():
                self._parts.records.claim()
        else:
            self._parts.request.ask()

    def _consider_record(self, lineage: Lineage) -> None:
        record, slow = self._parts.records.record, self._parts.slow.names
        if lineage.is_settled and record == lineage.record and not slow:
            self._told = frozenset()
            return
        if record.claimed and not lineage.is_cold and record.position == lineage.record.position:
            if self._parts.durable.lsn >= self._ctx.last_lsn:
                self._parts.records.confirm_claim()
            return
        wanted = NextRecord(lineage, record, slow)
        if wanted.first != self._ctx.settings.name:
            return
        if wanted.is_due and record.position >= lineage.record.position:
            if self._is_majority(lineage) or self._is_patience_over():
                self._parts.records.change(wanted.members, wanted.given_up)
                self._tell_of(set(record.members) - wanted.members, slow)
        elif record.position > lineage.record.position:
            self._parts.records.say(lineage)

    def _tell_of(self, dropped: Collection[str], slow: Collection[str]) -> None:
        whys = {name: "acknowledges nothing" if name in slow else "is not in step" for name in dropped}
        texts = frozenset(f"{name} {why}, and is not to be waited for any more" for name, why in whys.items())
        for text in sorted(texts - self._told):
            self._ctx.note("warning", text)
        self._told = texts

    def _is_majority(self, lineage: Lineage) -> bool:
        """Of those who may go on with the group, more are in step than not: nobody need be waited for. Who has just got
        its transport back waits all the same: it may be alone for a moment, and the others have noticed nothing."""
        named = set(lineage.record.members)
        here, elsewhere = named & lineage.in_step, named - lineage.in_step - self._parts.ended
        has_tie = len(here) == len(elsewhere) and min(named) in here
        is_sure = not (lineage.is_cold or self._parts.is_returning)
        return is_sure and (len(here) > len(elsewhere) or has_tie)

    def _is_patience_over(self) -> bool:
        """The first in the order of names waits for a while, each next one longer."""
        rank = sorted(self._parts.view).index(self._ctx.settings.name)
        return self._ctx.now_s - self._parts.alone_since_s >= self._ctx.settings.patience_s * (1 + rank)
