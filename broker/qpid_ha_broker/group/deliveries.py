"""What is delivered to a group's member: views, and frames, by the table `FRAMES`.

It has a row for each frame, and a column for each role; a cell names the method of `Deliveries` that handles it. A pair
without a cell is a bug, and a test looks for it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group import frames as fr
from qpid_ha_broker.group.delivery import UnitOutcome
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.joining import LevelingUp, common_with, read_objects, show, show_chunk
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.parts import GroupParts, OwnUnit


class RoleCells(NamedTuple):
    """The methods that handle an input or a frame, by role."""

    outside: str
    catching_up: str
    withheld: str
    serving: str

    def of(self, role: GroupRole) -> str:
        """The one for that role."""
        return self[_COLUMNS[role]]


_COLUMNS: Final = {role: column for column, role in enumerate(GroupRole)}


class Deliveries:
    """The promise: what follows for the copy and the lineage is the same at all members in step."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts
        self._ctx = parts.ctx

    def ignore(self, sender: str, frame: Any) -> None:
        """Nothing follows from it in that role."""

    def view_changed(self, happened: fx.ViewChanged) -> None:
        """Who is not in the view that went before, or was not, is not in step."""
        own = self._ctx.settings.name
        self._parts.view = happened.members
        self._parts.is_returning = own in happened.joined
        self._parts.ended = (self._parts.ended | set(happened.ended)) - set(happened.joined)
        self._parts.alone_since_s = self._ctx.now_s
        if self._parts.log is None:
            self._parts.request.keep(happened)
            self._parts.request.forget_pause()
            return
        lineage = self._parts.log.lineage
        lineage.leave_view({*happened.left, *happened.joined} - {own})
        if not lineage.in_step:
            self._parts.step_out("all who let this member in have left")
        elif self._parts.leveling is not None:
            self._parts.leveling.ask_others()
        elif happened.joined:
            self._parts.say_present()

    def take(self, happened: fx.Delivered) -> None:
        """The frames of a batch, in their order."""
        for frame in happened.frames:
            getattr(self, FRAMES[type(frame)].of(self._parts.role))(happened.sender, frame)
            if self._parts.leveling is not None:
                self._parts.leveling.ask_others()
            elif type(frame) is fr.Submitted:
                continue  # of a copy that is level nothing follows from it but what it says: not commitment, nor a role
            self._parts.settle()

    def be_let_in(self, read: fx.RecordRead) -> None:
        """A group was shown to this member, and the record is that group's: be as it was then, and apply what was
        delivered since."""
        parts = self._parts
        answer = parts.request.answer(read) if parts.log is None else None
        if answer is None:
            return
        shown, objects, kept = answer
        parts.is_whole = False
        parts.durable.stop()
        log = parts.go_by(Lineage.from_shown(shown))
        parts.committed_lsn = common_with(self._ctx, shown, parts.committed_lsn)
        parts.leveling = LevelingUp(self._ctx, log, shown, read_objects(objects), parts.committed_lsn)
        parts.has_asked_admission = False
        parts.become(GroupRole.CATCHING_UP, f"let in by {parts.request.answered_by}")
        for happened in kept:
            if isinstance(happened, fx.Delivered):
                self.take(happened)
            else:
                self.view_changed(happened)
        if parts.leveling is not None:
            parts.leveling.ask()

    def take_unit(self, sender: str, frame: fr.Submitted) -> None:
        """It counts or is skipped, for all alike."""
        if self._parts.log is None or sender not in self._parts.log.lineage.in_step:
            return
        own = self._parts.units.pop(frame.number, None) if sender == self._ctx.settings.name else None
        outcome = self._parts.log.submitted(sender, frame, None if own is None else own.events)
        self._parts.acknowledging.note_unit(self._ctx.last_lsn, is_awaited=outcome.is_awaited)
        if self._parts.leveling is not None:
            self._parts.leveling.forget_deleted()
        self._answer(own, outcome)

    def _answer(self, own: OwnUnit | None, outcome: UnitOutcome) -> None:
        if own is not None:
            if outcome.failure is None or outcome.lsn:
                self._ctx.effects.append(fx.Placed(own.request, outcome.lsn))
            else:
                self._ctx.effects.append(fx.SubmitRefused(own.request, outcome.failure))

    def take_acknowledgement(self, sender: str, frame: fr.Acknowledged) -> None:
        """A member has more on its disk."""
        if self._parts.log is not None:
            self._parts.log.lineage.acknowledge(sender, frame.lsn, frame.position)

    def queue_wanted(self, sender: str, frame: fr.QueueWanted) -> None:
        """A member has a consumer."""
        if self._parts.log is not None and sender in self._parts.log.lineage.in_step:
            self._parts.log.wanted(sender, frame.queue)
            self._note_owner(frame.queue)

    def queue_yielded(self, sender: str, frame: fr.QueueYielded) -> None:
        """A member hands out no more."""
        if sender == self._ctx.settings.name:
            self._parts.yielding -= Counter((frame.queue,))  # a later one may be on its way
        if self._parts.log is not None and sender in self._parts.log.lineage.in_step:
            self._parts.log.yielded(sender, frame)
            self._note_owner(frame.queue)

    def _note_owner(self, queue: int) -> None:
        """Who owns the queue now hands out from it once all have come here."""
        log = self._parts.log
        if log is not None and log.lineage.ownership.owner(queue)[0] not in ("", self._ctx.settings.name):
            self._parts.acknowledging.note_position(log.lineage.position)

    def link_taken(self, sender: str, frame: fr.LinkTaken) -> None:
        """A session's link was attached at a member."""
        if self._parts.log is None or sender not in self._parts.log.lineage.in_step:
            return
        outcome, position = self._parts.log.link_taken(sender, frame), self._parts.log.lineage.position
        if sender != self._ctx.settings.name:
            self._parts.acknowledging.note_position(position)
        elif outcome.failure is None:
            self._parts.taken_links[frame.number] = position
        else:
            self._answer(self._parts.units.pop(frame.number, None), outcome)

    def link_left(self, sender: str, frame: fr.LinkLeft) -> None:
        """It has ended there."""
        if self._parts.log is not None and sender in self._parts.log.lineage.in_step:
            self._parts.log.link_left(sender, frame)

    def epoch_begun(self, sender: str, frame: fr.EpochBegun) -> None:
        """The record was written: by this lineage, or by another one."""
        own = self._ctx.settings.name
        if self._parts.log is None or sender not in self._parts.log.lineage.in_step:
            self._parts.learn(frame.record)
            return
        self._parts.records.learn(frame.record)
        self._parts.records.delivered(frame.record)
        if frame.record.position <= self._parts.log.lineage.record.position:
            return
        is_admitted = own in frame.record.members
        if not is_admitted and (self._parts.leveling is None or own in frame.given_up):
            self._parts.step_out(f"{sender} goes on without it in epoch {frame.record.epoch}")
            return
        self._parts.log.begin_epoch(frame)
        self._parts.acknowledging.note_position(self._parts.log.lineage.position)
        if is_admitted and self._parts.leveling is not None:
            self._parts.leveling = None
        if not self._parts.log.lineage.in_step:
            self._parts.step_out("none of those who let this member in goes on")

    def note_present(self, sender: str, frame: fr.MemberPresent) -> None:
        """Somebody is there, perhaps of another lineage."""
        is_in_step = self._parts.log is not None and sender in self._parts.log.lineage.in_step
        if frame.is_serving and not is_in_step:
            self._parts.alone_since_s = self._ctx.now_s
        self._parts.learn(frame.record)

    def own_request(self, sender: str, frame: fr.JoinAsked) -> None:
        """What this member is shown will be as of here."""
        if sender == self._ctx.settings.name:
            self._parts.request.asked(frame)

    def note_outside(self, sender: str, frame: fr.JoinAsked) -> None:
        """Who was in step, and asks to be let in, is not any more."""
        if self._parts.log is not None:
            self._parts.log.lineage.leave_view({sender} - {self._ctx.settings.name})
            if not self._parts.log.lineage.in_step:
                self._parts.step_out("all who let this member in are outside")

    def let_in(self, sender: str, frame: fr.JoinAsked) -> None:
        """Show what there is. Not to whom a record may name: its old copy may be needed."""
        self.note_outside(sender, frame)
        if self._parts.log is not None and self._parts.is_first() and sender not in self._parts.log.lineage.required:
            show(self._ctx, self._parts.log.lineage, sender, frame)

    def lineage_shown(self, sender: str, frame: fr.LineageShown) -> None:
        """Who was let in is waited for when it says that it is level."""
        if self._parts.log is not None and sender in self._parts.log.lineage.in_step and frame.to in self._parts.view:
            self._parts.log.lineage.joining[frame.to] = fr.AdmissionAsked(frame.number, sender)

    def be_shown(self, sender: str, frame: fr.LineageShown) -> None:
        """An answer, perhaps to this member."""
        self._parts.request.shown(sender, frame)

    def be_shown_objects(self, sender: str, frame: fr.ObjectsShown) -> None:
        """The rest of that answer."""
        self._parts.request.objects_shown(sender, frame)

    def answer_chunk(self, sender: str, frame: fr.ChunkAsked) -> None:
        """Show the next piece of a queue, to whom this lineage has let in."""
        if self._parts.log is not None and self._parts.is_first() and sender in self._parts.log.lineage.joining:
            show_chunk(self._ctx, self._parts.log.lineage, sender, frame)

    def take_chunk(self, sender: str, frame: fr.ChunkShown) -> None:
        """A piece of a queue, if it is for this member, and of the lineage that has let it in (seed 932)."""
        leveling, log = self._parts.leveling, self._parts.log
        if leveling is None or log is None or self._parts.is_whole:
            return
        if frame.to == self._ctx.settings.name and sender in log.lineage.in_step:
            leveling.chunk(frame)

    def admit(self, sender: str, frame: fr.AdmissionAsked) -> None:
        """Wait for it from here on."""
        if self._parts.log is not None:
            self._parts.log.lineage.admit(sender, frame, self._ctx.last_lsn)


FRAMES: Final[dict[type, RoleCells]] = {
    # frame                          outside            catching up       withheld          serving
    fr.Submitted: RoleCells("ignore", "take_unit", "take_unit", "take_unit"),
    fr.Acknowledged: RoleCells("ignore", "take_acknowledgement", "take_acknowledgement", "take_acknowledgement"),
    fr.QueueWanted: RoleCells("ignore", "queue_wanted", "queue_wanted", "queue_wanted"),
    fr.QueueYielded: RoleCells("ignore", "queue_yielded", "queue_yielded", "queue_yielded"),
    fr.LinkTaken: RoleCells("ignore", "link_taken", "link_taken", "link_taken"),
    fr.LinkLeft: RoleCells("ignore", "link_left", "link_left", "link_left"),
    fr.EpochBegun: RoleCells("epoch_begun", "epoch_begun", "epoch_begun", "epoch_begun"),
    fr.MemberPresent: RoleCells("note_present", "note_present", "note_present", "note_present"),
    fr.JoinAsked: RoleCells("own_request", "note_outside", "note_outside", "let_in"),
    fr.LineageShown: RoleCells("be_shown", "lineage_shown", "lineage_shown", "lineage_shown"),
    fr.ObjectsShown: RoleCells("be_shown_objects", "ignore", "ignore", "ignore"),
    fr.ChunkAsked: RoleCells("ignore", "ignore", "answer_chunk", "answer_chunk"),
    fr.ChunkShown: RoleCells("ignore", "take_chunk", "ignore", "ignore"),
    fr.AdmissionAsked: RoleCells("ignore", "admit", "admit", "admit"),
}
