"""A member of a group: what each input and each frame makes of it.

`INPUTS`, and `deliveries.FRAMES`, have a row for each, and a column for each role; a cell names the method that handles
it. A pair without a cell is a bug, and a test looks for it.

The promise of all of it, the *safety property*: what was confirmed is on the disk of every member that may go on with
the group; no message is out at consumers of two members that the record names; and a message that was accepted, and
whose acceptance was confirmed, is given to nobody again. `lineage` says why the first holds, `ownership` the second;
the third follows from both, because an acceptance is an event that is confirmed as any other.

| role | its copy | units | hands out |
| --- | --- | --- | --- |
| outside | does not count | refuses | nothing |
| catching up | becomes level | refuses | nothing |
| withheld | counts | takes, unless it was restarted | nothing |
| serving | counts | takes | what is committed, of queues that it owns |

| from | to | when |
| --- | --- | --- |
| outside | withheld | the record names it, and its copy is whole; or nobody has begun the group, and it claims it |
| outside | catching up | it is shown a group |
| catching up | serving, withheld | a record that names it is delivered; all whom that names are in step, or not |
| catching up | outside | all who have let it in leave, or it is given up |
| serving | withheld | somebody whom the record names leaves the view |
| withheld | serving | a record that names those in step is delivered |
| serving | withheld | the transport is lost: there is no view |
| withheld, serving | outside | a record without it is delivered, or read: it reads now and then while it has no view |
"""

from __future__ import annotations

from typing import Any, Final

from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group import frames as fr
from qpid_ha_broker.group.acknowledging import Progress
from qpid_ha_broker.group.checks import SUBMITTED_TYPES
from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.group.decisions import RecordDecisions
from qpid_ha_broker.group.deliveries import Deliveries, RoleCells
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.parts import GroupParts, OwnUnit
from qpid_ha_broker.group.queue_use import QueueUse
from qpid_ha_broker.group.standing import MemberStanding
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.model.errors import InvalidArgument, NotPrimary
from qpid_ha_broker.model.sets.resource_set import ResourceSet

TAKING: Final = frozenset({GroupRole.SERVING, GroupRole.WITHHELD})
"""Roles in which units are taken."""


class GroupMember:
    """One member. `committed_lsn`: how far its store was told that the log is committed."""

    def __init__(self, settings: GroupSettings, resource_set: ResourceSet, committed_lsn: int = 0) -> None:
        self._parts = GroupParts(settings, resource_set, committed_lsn)
        self._ctx = self._parts.ctx
        self._decisions = RecordDecisions(self._parts)
        self._deliveries = Deliveries(self._parts)
        self.queues, self.standing = QueueUse(self._parts), MemberStanding(self._parts)

    # --- what a driver asks

    @property
    def name(self) -> str:
        """This member's."""
        return self._ctx.settings.name

    @property
    def role(self) -> GroupRole:
        """What it is to its group."""
        return self._parts.role

    @property
    def takes_units(self) -> bool:
        """Whether what is submitted here may come to count: its copy does, and others know that it is back."""
        return self._parts.role in TAKING and self._parts.log is not None and not self._parts.log.lineage.is_cold

    @property
    def committed_lsn(self) -> int:
        """How far the log is committed, as far as this member knows."""
        return self._parts.committed_lsn

    @property
    def resource_set(self) -> ResourceSet:
        """This member's copy."""
        return self._ctx.resource_set

    @property
    def is_full(self) -> bool:
        """Nothing should be submitted now: the window is full."""
        return self._ctx.outbox.is_full

    @property
    def is_silent(self) -> bool:
        """Nothing waits to be multicast."""
        return not self._ctx.outbox.has_frames

    @property
    def record(self) -> ClusterRecord:
        """The set's record, as far as this member knows."""
        return self._parts.records.record

    @property
    def is_first(self) -> bool:
        """Whether it does what one member has to do for all."""
        return self._parts.is_first()

    def check_invariants(self) -> None:
        """Raise AssertionError where what is here cannot be; slow, for tests."""
        if self._parts.log is not None:
            self._parts.log.lineage.check_invariants()
            if self._parts.log.catch_up is not None:
                self._parts.log.catch_up.check_invariants()

    def handle(self, happened: fx.Input, now_s: float) -> list[fx.Effect]:
        """One input. Raises KeyError where the table has no row, which is a bug."""
        self._ctx.now_s = max(self._ctx.now_s, now_s)
        self._ctx.effects = []
        getattr(self, INPUTS[type(happened)].of(self._parts.role))(happened)
        if type(happened) is fx.SubmitAsked:
            return self._ctx.effects  # nothing follows from it before it comes back
        self._parts.settle()
        if self._parts.leveling is not None and self._parts.is_whole and not self._parts.durable.is_kept:
            self._parts.durable.write_checkpoint()  # of all that this input has brought
        self._decisions.consider()
        return self._ctx.effects

    def ignore(self, happened: Any, frame: Any = None) -> None:
        """Nothing follows from it."""

    def start(self, _: fx.Started) -> None:
        """The store is loaded: what does the record say?"""
        self._parts.alone_since_s = self._ctx.now_s
        self._parts.records.read()

    def tick(self, _: fx.Ticked) -> None:
        """A while went by."""
        now_s, settings = self._ctx.now_s, self._ctx.settings
        self._parts.acknowledging.tick()
        is_deaf = not self._parts.view  # nobody will tell it of a record without it
        if self._parts.log is None or is_deaf or self._parts.records.is_unsure:
            self._parts.records.read()
        if self._parts.log is None or is_deaf:
            return
        self._parts.slow.tick(self._parts.log.lineage)
        if self._parts.leveling is None and now_s - self._parts.present_s >= settings.present_every_s:
            self._parts.say_present()

    def turn_ended(self, _: fx.GroupTurnEnded) -> None:
        """Store, acknowledge, multicast."""
        self._parts.durable.store(self._parts.committed_lsn)
        if self._parts.log is not None and (self._parts.leveling is None or self._parts.has_asked_admission):
            progress = Progress(self._parts.durable.lsn, self._parts.log.lineage.position)
            self._parts.log.lineage.acknowledge(self.name, *progress)
            if self._parts.acknowledging.say(progress, with_others=self._ctx.outbox.has_frames):
                self._ctx.say(fr.Acknowledged(*progress))
        self._ctx.multicast()

    def refuse(self, asked: fx.SubmitAsked | fx.LinkTakeAsked) -> None:
        """Nothing is written here."""
        text = f"{self._ctx.settings.name} is {self._parts.role}: ask another member of the group"
        self._ctx.effects.append(fx.SubmitRefused(asked.request, NotPrimary(text)))

    def submit(self, asked: fx.SubmitAsked) -> None:
        """Have it delivered to all."""
        strange = [type(event).__name__ for event in asked.events if type(event) not in SUBMITTED_TYPES]
        if strange or not asked.events:
            text = f"no unit of a group has {strange[0] if strange else 'no event'}"
            self._ctx.effects.append(fx.SubmitRefused(asked.request, InvalidArgument(text)))
            return
        if not self.takes_units:
            self.refuse(asked)
            return
        number = self._ctx.number()
        records = [LogRecord(place, event, False) for place, event in enumerate(asked.events, 1)]
        self._ctx.say(fr.Submitted(number, encode_all(records)))
        self._parts.units[number] = OwnUnit(asked.request, asked.events)

    def want(self, asked: fx.WantAsked) -> None:
        """A consumer has credit."""
        self._ctx.say(fr.QueueWanted(asked.queue))

    def give_up_queue(self, asked: fx.YieldAsked) -> None:
        """Hand out no more from here on."""
        self._parts.yielding[asked.queue] += 1
        self._ctx.say(fr.QueueYielded(asked.queue, asked.held))

    def take_link(self, asked: fx.LinkTakeAsked) -> None:
        """A session's link is being attached here."""
        if not self.takes_units:
            self.refuse(asked)
            return
        number = self._ctx.number()
        session, name, link = asked.link
        self._ctx.say(fr.LinkTaken(number, asked.queue, session, name, link, asked.epoch))
        self._parts.units[number] = OwnUnit(asked.request, ())

    def leave_link(self, ended: fx.LinkDetached) -> None:
        """It has ended."""
        self._ctx.say(fr.LinkLeft(ended.queue, *ended.link))

    def require_in_sync(self, changed: fx.MinInSyncChanged) -> None:
        """What waited for more members is committed if there are enough now."""
        self._parts.min_in_sync = changed.least
        if self._parts.log is not None:
            self._parts.log.lineage.min_in_sync = changed.least
            self._parts.log.lineage.advance()

    def persisted(self, happened: fx.Persisted | fx.CheckpointPersisted) -> None:
        """The store holds more, or the copy that was made level."""
        is_own = self._parts.durable.persisted(happened)
        if is_own and isinstance(happened, fx.CheckpointPersisted) and self._parts.leveling is not None:
            self._parts.has_asked_admission = True
            self._parts.acknowledging.begin()
            self._ctx.say(fr.AdmissionAsked(self._parts.request.number, self._parts.request.answered_by))

    def lose_store(self, _: fx.StoreFailed) -> None:
        """Acknowledge nothing more: leave, and come back with what is on the disk."""
        self._ctx.effects.append(fx.Stop("the store has failed: this member leaves its group"))

    def delivered(self, happened: fx.Delivered) -> None:
        """The frames of a batch, in their order."""
        sender = happened.sender
        self._parts.slow.heard()
        if sender == self._ctx.settings.name:
            self._ctx.outbox.came_back(happened.size)
        if self._parts.log is None:
            self._parts.request.keep(happened)
        self._deliveries.take(happened)
        if self._parts.log is None:
            self._parts.request.ask_for_proof()

    def view_changed(self, happened: fx.ViewChanged) -> None:
        """The transport says who is there."""
        self._deliveries.view_changed(happened)

    def record_read(self, read: fx.RecordRead) -> None:
        """Who keeps the record has answered."""
        self._decisions.record_read(read)
        self._deliveries.be_let_in(read)

    def record_written(self, answer: fx.RecordWritten) -> None:
        """The same, after a write."""
        self._decisions.record_written(answer)


INPUTS: Final[dict[type, RoleCells]] = {
    # input                          outside            catching up       withheld          serving
    fx.Started: RoleCells("start", "start", "start", "start"),
    fx.Ticked: RoleCells("tick", "tick", "tick", "tick"),
    fx.GroupTurnEnded: RoleCells("turn_ended", "turn_ended", "turn_ended", "turn_ended"),
    fx.ViewChanged: RoleCells("view_changed", "view_changed", "view_changed", "view_changed"),
    fx.Delivered: RoleCells("delivered", "delivered", "delivered", "delivered"),
    fx.SubmitAsked: RoleCells("refuse", "refuse", "submit", "submit"),
    fx.WantAsked: RoleCells("ignore", "ignore", "want", "want"),
    fx.YieldAsked: RoleCells("ignore", "ignore", "give_up_queue", "give_up_queue"),
    fx.LinkTakeAsked: RoleCells("refuse", "refuse", "take_link", "take_link"),
    fx.LinkDetached: RoleCells("ignore", "ignore", "leave_link", "leave_link"),
    fx.MinInSyncChanged: RoleCells("require_in_sync", "require_in_sync", "require_in_sync", "require_in_sync"),
    fx.RecordRead: RoleCells("record_read", "record_read", "record_read", "record_read"),
    fx.RecordWritten: RoleCells("record_written", "record_written", "record_written", "record_written"),
    fx.Persisted: RoleCells("persisted", "persisted", "persisted", "persisted"),
    fx.CheckpointPersisted: RoleCells("persisted", "persisted", "persisted", "persisted"),
    fx.StoreFailed: RoleCells("lose_store", "lose_store", "lose_store", "lose_store"),
    fx.Stopping: RoleCells("ignore", "ignore", "ignore", "ignore"),
}
