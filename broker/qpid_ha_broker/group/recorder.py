"""When a lineage has the set's record changed, and how: one write at a time, by compare-and-set.

| reason | the record then names | who writes |
| --- | --- | --- |
| a member of it is not in step, or owes an acknowledgement for `backup_timeout_s` | the others | the first of those |
| a member is admissible (`Lineage.is_admissible`) | it, too | the same |
| whose admission began has left, or is slow | the same as before | the same |
| this member was restarted, and nobody else goes on | it alone | it |
| a first claim is on disk | the same, `claimed` no more | it |
| nobody has ever begun the group, or whoever claimed it has not confirmed that | this member alone, `claimed` | it |

Who is restarted, has lost its transport, or has fewer than half of the record in step, waits for a while: others may
live, and go on with more.
That is for the clients' sake; what is safe is decided by the compare-and-set alone. And who has no view has nothing
recorded: it could not go on, and those who can would be kept from it.

What was written is said to all (`EpochBegun`), and nothing else is written before that was delivered. Who has no answer
reads the record until it is known what came of the write: the reason for it may be gone by then, and nobody else knows
that there is something to be said. A first claim counts for nothing until it is confirmed, so whoever finds one that is
not may replace it: its process may have died before its log was on disk, and then nobody else could ever begin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from qpid_ha_broker.group.context import GroupContext
from qpid_ha_broker.group.frames import EpochBegun
from qpid_ha_broker.group.lineage import NOTHING_ACKNOWLEDGED, Lineage
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import ReadRecord, RecordWritten, WriteRecord


class SlowMembers:
    """Who owes an acknowledgement, and since when.

    While nothing is delivered at all, nobody's acknowledgement can come: a node was lost, say, and the transport waits
    for its token's time-out, which may take longer than a member may. That says nothing of anybody: it does not count.
    """

    def __init__(self, ctx: GroupContext) -> None:
        self._ctx = ctx
        self._owing: dict[str, tuple[tuple[int, int], float]] = {}
        """By member: what it had acknowledged when it began to owe, and when that was."""
        self._ticked_s = self._heard_s = 0.0
        self.names: frozenset[str] = frozenset()
        """Members that are to be dropped."""

    def forget(self) -> None:
        """It is another lineage."""
        self._owing.clear()
        self.names = frozenset()

    def heard(self) -> None:
        """Something was delivered. What was owed before a silence is owed from now on."""
        if self._ctx.now_s - self._heard_s > self._ctx.settings.silence_s:
            self._owing.clear()
        self._heard_s = self._ctx.now_s

    def tick(self, lineage: Lineage) -> None:
        """Compare with what is to be acknowledged. A process that was stopped begins anew: it has not read yet."""
        now_s, settings = self._ctx.now_s, self._ctx.settings
        if now_s - min(self._ticked_s, self._heard_s) > settings.silence_s:
            self._owing.clear()
        self._ticked_s = now_s
        due, required = (self._ctx.last_lsn, lineage.position), lineage.required
        for member in self._owing.keys() - required:
            del self._owing[member]
        for member in required:
            acknowledged = lineage.acknowledged.get(member, NOTHING_ACKNOWLEDGED)
            before = self._owing.get(member)
            if acknowledged[0] >= due[0] and acknowledged[1] >= due[1]:
                self._owing.pop(member, None)
            elif before is None or before[0] != acknowledged:
                self._owing[member] = (acknowledged, now_s)
        limit_s = now_s - settings.backup_timeout_s
        slow = frozenset(member for member, (_, since_s) in self._owing.items() if since_s < limit_s)
        self.names = frozenset() if settings.name in slow else slow  # it may be this one that is slow


class EpochChange(NamedTuple):
    """What is written, and whose admission is given up with it. What another has written gives up nobody here."""

    record: ClusterRecord
    given_up: tuple[str, ...] = ()


class RecordWriter:
    """The promise: at most one write is on its way, and each follows from the one before that was delivered or read."""

    def __init__(self, ctx: GroupContext) -> None:
        self._ctx = ctx
        self.record = ClusterRecord()
        """As far as this member knows: delivered, read, or written."""
        self.is_known = False
        """It was read, or heard of: it may be that there is none."""
        self._writing: tuple[int, EpochChange] | None = None
        self._unanswered: EpochChange | None = None
        """What this member wrote without an answer: it may be the record, or yet be."""
        self._said: ClusterRecord | None = None
        """The record that was said to all, and was not delivered yet."""
        self._again_s = 0.0
        self.problem = ""
        """Why the last write came to nothing; empty: it was answered, or there was none."""
        self._read_s = float("-inf")

    def read(self) -> None:
        """What it is by now; unless that was asked a moment ago."""
        if self._ctx.now_s - self._read_s >= self._ctx.settings.ask_again_s:
            self._read_s = self._ctx.now_s
            self._ctx.effects.append(ReadRecord(self._ctx.number()))

    @property
    def is_busy(self) -> bool:
        """Whether a write is on its way, or was said and not delivered."""
        return self._writing is not None or self._said is not None

    @property
    def is_unsure(self) -> bool:
        """Whether nobody knows what came of a write: the record has to be read, until that is found out."""
        return self._unanswered is not None

    def recognise(self, record: ClusterRecord) -> EpochChange | None:
        """What this member wrote without an answer, if that is it: then it is as if the answer had come now."""
        change = self._unanswered
        return change if change is not None and change.record == record else None

    def forget(self) -> None:
        """The member is outside: what was said counts no more. A write that is on its way is still waited for."""
        self._said = None

    def learn(self, record: ClusterRecord) -> bool:
        """A record that was written, or read; whether it is newer than what was known."""
        self.is_known = True
        if self._said is not None and record.position > self._said.position:
            self._said = None
        if not record.generation and not self.record.generation:
            self.record = record  # nobody has begun, and the set's log has its UUID already: a claim is to keep that
        if record.position <= self.record.position:
            return False
        if self._unanswered is not None and record.position >= self._unanswered.record.position:
            self._unanswered = None
        self.record = record
        self.problem = ""
        return True

    def delivered(self, record: ClusterRecord) -> None:
        """What was said has come to all."""
        if self._said is not None and record.position >= self._said.position:
            self._said = None

    # --- writing

    def claim(self) -> None:
        """Begin the group with an empty log, under the UUID that the record has for it, if there is one."""
        name, generation, epoch = self._ctx.settings.name, self.record.generation + 1, self.record.epoch + 1
        cluster = self.record.cluster or self._ctx.settings.instance
        self._write(EpochChange(ClusterRecord(cluster, generation, name, epoch, (name,), True)))

    def confirm_claim(self) -> None:
        """The first claim is on disk."""
        self._write(EpochChange(self.record._replace(claimed=False)))

    def change(self, members: Iterable[str], given_up: Iterable[str] = ()) -> None:
        """Have these named, and nobody else."""
        record, name = self.record, self._ctx.settings.name
        wanted = ClusterRecord(record.cluster, record.generation + 1, name, record.epoch + 1, tuple(sorted(members)))
        self._write(EpochChange(wanted, tuple(sorted(given_up))))

    def _write(self, wanted: EpochChange) -> None:
        if self._writing is None and self._ctx.now_s >= self._again_s:
            self._writing = (self._ctx.number(), wanted)
            self._ctx.effects.append(WriteRecord(self._writing[0], self.record, wanted.record))

    def written(self, answer: RecordWritten) -> EpochChange | None:
        """What the record is after a write, whether it was this one's; None: nobody knows, or it was another write."""
        if self._writing is None or answer.number != self._writing[0]:
            return None
        wanted = self._writing[1]
        self._writing = None
        if answer.written:
            self.problem = ""
            return wanted
        if answer.record is not None:
            self.problem = ""
            return EpochChange(answer.record)
        self.problem = answer.problem or "nobody knows whether it was written"
        if wanted.record.position > self.record.position:
            self._unanswered = wanted
        self._again_s = self._ctx.now_s + self._ctx.settings.ask_again_s / 4
        self._ctx.note("warning", f"the set's record could not be changed: {answer.problem}")
        return None

    def say(self, lineage: Lineage, written: EpochChange | None = None) -> None:
        """Tell all in step of the record; and who is given up, if it is what this member has written."""
        self._said = self.record
        given_up = written.given_up if written is not None and written.record == self.record else ()
        self._ctx.say(EpochBegun(self.record, lineage.is_cold, given_up))


class NextRecord:
    """Whom the record should name, as this member sees it: the table above, without what only restarts need."""

    def __init__(self, lineage: Lineage, record: ClusterRecord, slow: Collection[str]) -> None:
        is_delivered = record.position == lineage.record.position
        let_in = lineage.admitting.keys() - lineage.gone
        present = (lineage.in_step | let_in) - set(slow)
        admitted = {member for member in let_in - set(slow) if is_delivered and lineage.is_admissible(member)}
        self.members = (set(record.members) & present) | admitted
        self.given_up = (lineage.admitting.keys() & (lineage.gone | set(slow))) - set(record.members)
        self.is_due = self.members != set(record.members) or bool(self.given_up) or lineage.is_cold
        self.first = min(lineage.in_step - set(slow), default="")
