"""A member of a group: what each input and each frame makes of it.

`INPUTS` and `FRAMES` have a row for each, and a column for each role; a cell names the method that handles it. A pair
without a cell is a bug, and a test looks for it.

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
| withheld, serving | outside | a record without it is delivered, or read |
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group import frames as fr
from qpid_ha_broker.group.checks import SUBMITTED_TYPES
from qpid_ha_broker.group.context import WITNESS, GroupContext, GroupSettings
from qpid_ha_broker.group.delivery import DeliveredLog
from qpid_ha_broker.group.durable import DurableLog
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.joining import JoinRequest, LevelingUp, read_objects, show, show_chunk
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.recorder import NextRecord, RecordWriter, SlowMembers
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.effects import ClusterRecord
from qpid_ha_broker.model.sets.resource_set import ResourceSet


class GroupMember:
    """One member. `committed_lsn`: how far its store was told that the log is committed."""

    def __init__(self, settings: GroupSettings, resource_set: ResourceSet, committed_lsn: int = 0) -> None:
        self._ctx = GroupContext(settings, resource_set)
        self.role = GroupRole.OUTSIDE
        self.committed_lsn = committed_lsn
        """As far as this member knows."""
        self._log: DeliveredLog | None = None
        """None: outside."""
        self._is_whole = self._ctx.last_lsn > 0
        """The copy is what some lineage had: it may go on with the group if the record names this member."""
        self._request = JoinRequest(self._ctx)
        self._leveling: LevelingUp | None = None
        """While this member is let in."""
        self._has_asked_admission = False
        self._records = RecordWriter(self._ctx)
        self._slow = SlowMembers(self._ctx)
        self._durable = DurableLog(self._ctx)
        self._view: tuple[str, ...] = ()
        self._ended: set[str] = set()
        """Who has left as a process that ended."""
        self._alone_since_s = 0.0
        """When somebody who may go on with the group was heard of last, or a view began."""
        self._units: dict[int, int] = {}
        """Requests by the numbers of their units."""
        self._yielding: set[int] = set()
        """Queues that were yielded, and whose yielding was not delivered yet."""
        self._read_s = self._present_s = float("-inf")
        self._acknowledged: tuple[int, int] | None = None
        """The last that was said in this lineage."""

    # --- what a driver asks

    @property
    def resource_set(self) -> ResourceSet:
        """This member's copy."""
        return self._ctx.resource_set

    @property
    def is_full(self) -> bool:
        """Nothing should be submitted now: the window is full."""
        return self._ctx.outbox.is_full

    @property
    def record(self) -> ClusterRecord:
        """The set's record, as far as this member knows."""
        return self._records.record

    def may_hand_out(self, queue: int) -> bool:
        """Whether consumers here get messages of the queue, as far as `committed_lsn`."""
        if self._log is None or self.role is not GroupRole.SERVING or queue in self._yielding:
            return False
        lineage = self._log.lineage
        owner, since = lineage.ownership.owner(queue)
        return owner == self._ctx.settings.name and since <= lineage.stable_position

    def others_want(self, queue: int) -> bool:
        """Whether another member waits for the queue."""
        return self._log is not None and bool(self._log.lineage.ownership.wanting(queue))

    def owner(self, queue: int) -> str:
        """Who owns the queue, as far as this member was delivered; empty: nobody."""
        return self._log.lineage.ownership.owner(queue)[0] if self._log is not None else ""

    def check_invariants(self) -> None:
        """Raise AssertionError where what is here cannot be; slow, for tests."""
        if self._log is not None:
            self._log.lineage.check_invariants()
            if self._log.catch_up is not None:
                self._log.catch_up.check_invariants()

    # --- inputs

    def handle(self, happened: fx.Input, now_s: float) -> list[fx.Effect]:
        """One input. Raises KeyError where the table has no row, which is a bug."""
        self._ctx.now_s = max(self._ctx.now_s, now_s)
        self._ctx.effects = []
        getattr(self, INPUTS[type(happened)].of(self.role))(happened)
        self._settle()
        if self._leveling is not None and self._is_whole and not self._durable.is_kept:
            self._durable.write_checkpoint()  # of all that this input has brought
        self._consider()
        return self._ctx.effects

    def ignore(self, happened: Any, frame: Any = None) -> None:
        """Nothing follows from it."""

    def start(self, _: fx.Started) -> None:
        """The store is loaded: what does the record say?"""
        self._alone_since_s = self._ctx.now_s
        self._read_record()

    def _read_record(self) -> None:
        self._read_s = self._ctx.now_s
        self._ctx.effects.append(fx.ReadRecord(self._ctx.number()))

    def tick(self, _: fx.Ticked) -> None:
        """A while went by."""
        now_s, settings = self._ctx.now_s, self._ctx.settings
        if self._log is None:
            if now_s - self._read_s >= settings.ask_again_s:
                self._read_record()
            return
        self._slow.tick(self._log.lineage)
        if self._leveling is None and now_s - self._present_s >= settings.heartbeat_interval_s:
            self._say_present()

    def _say_present(self) -> None:
        if self._log is not None and self._leveling is None:
            self._present_s = self._ctx.now_s
            self._ctx.say(fr.MemberPresent(self._log.lineage.record, self.role is GroupRole.SERVING))

    def turn_ended(self, _: fx.GroupTurnEnded) -> None:
        """Store, acknowledge, multicast."""
        self._durable.store(self.committed_lsn)
        if self._log is not None and (self._leveling is None or self._has_asked_admission):
            progress = (self._durable.lsn, self._log.lineage.position)
            if progress != self._acknowledged:
                self._acknowledged = progress
                self._ctx.say(fr.Acknowledged(*progress))
        self._ctx.multicast()

    # --- the record

    def record_read(self, read: fx.RecordRead) -> None:
        """What it is; of no use when it could not be read."""
        if read.record is not None:
            self._learn(read.record)

    def record_written(self, answer: fx.RecordWritten) -> None:
        """A write of this member's is answered."""
        record = self._records.written(answer)
        if record is None:
            return
        if not answer.written:
            self._learn(record)
            return
        self._records.learn(record)
        if self._log is None and record.claimed:
            self._begin_claim(record)
        if self._log is not None and self._leveling is None:
            self._log.lineage.newer_record = record
            self._records.say(self._log.lineage)

    def _learn(self, record: ClusterRecord) -> None:
        """A record that was written, by whomever. Without this member it does not go on."""
        is_newer = self._records.learn(record)
        if not is_newer or self._log is None:
            return
        if self._leveling is not None:
            if self._log.lineage.in_step.isdisjoint(record.members):
                self._step_out("none of those who let this member in goes on")
        elif self._ctx.settings.name not in record.members:
            self._step_out(f"the record names {', '.join(record.members)} since epoch {record.epoch}")
        else:
            self._log.lineage.newer_record = record

    def _begin_claim(self, record: ClusterRecord) -> None:
        """Nobody has confirmed anything: what is here is of a claim that came to nothing."""
        ctx = self._ctx
        ctx.effects += CatchUp(ctx.resource_set, 0).discard_after_common()
        ctx.resource_set.state.generations.clear()
        ctx.resource_set.log.reset(0)
        self.committed_lsn = 0
        self._durable.stop()
        self._durable.write_checkpoint()
        self._is_whole = True
        self._begin_alone(record._replace(generation=0, epoch=0), "nobody has begun the group before")

    def _begin_alone(self, record: ClusterRecord, reason: str) -> None:
        """This member's copy counts: it goes on by itself, if it can have that recorded."""
        lineage = Lineage(record, (self._ctx.settings.name,), self.committed_lsn)
        lineage.is_cold = True
        self._log = DeliveredLog(self._ctx, lineage)
        self._acknowledged = None
        self._become(GroupRole.WITHHELD, reason)

    # --- what clients want

    def refuse(self, asked: fx.SubmitAsked) -> None:
        """Nothing is written here."""
        text = f"{self._ctx.settings.name} is {self.role}: ask another member of the group"
        self._ctx.effects.append(fx.SubmitRefused(asked.request, text))

    def submit(self, asked: fx.SubmitAsked) -> None:
        """Have it delivered to all."""
        strange = [type(event).__name__ for event in asked.events if type(event) not in SUBMITTED_TYPES]
        if strange or not asked.events:
            text = f"no unit of a group has {strange[0] if strange else 'no event'}"
            self._ctx.effects.append(fx.SubmitRefused(asked.request, text))
            return
        if self._log is None or self._log.lineage.is_cold:
            self.refuse(asked)
            return
        number = self._ctx.number()
        records = [LogRecord(place, event, False) for place, event in enumerate(asked.events, 1)]
        self._ctx.say(fr.Submitted(number, encode_all(records)))
        self._units[number] = asked.request

    def want(self, asked: fx.WantAsked) -> None:
        """A consumer has credit."""
        self._ctx.say(fr.QueueWanted(asked.queue))

    def give_up_queue(self, asked: fx.YieldAsked) -> None:
        """Hand out no more from here on."""
        self._yielding.add(asked.queue)
        self._ctx.say(fr.QueueYielded(asked.queue, asked.held))

    # --- the store

    def persisted(self, happened: fx.Persisted | fx.CheckpointPersisted) -> None:
        """The store holds more, or the copy that was made level."""
        is_own = self._durable.persisted(happened)
        if is_own and isinstance(happened, fx.CheckpointPersisted) and self._leveling is not None:
            self._has_asked_admission, self._acknowledged = True, None
            self._ctx.say(fr.AdmissionAsked(self._request.number))

    def lose_store(self, _: fx.StoreFailed) -> None:
        """Acknowledge nothing more: leave, and come back with what is on the disk."""
        self._ctx.effects.append(fx.Stop("the store has failed: this member leaves its group"))

    # --- what is delivered

    def view_changed(self, happened: fx.ViewChanged) -> None:
        """Who is not in the view that went before, or was not, is not in step."""
        own = self._ctx.settings.name
        self._view = happened.members
        self._ended = (self._ended | set(happened.ended)) - set(happened.joined)
        self._alone_since_s = self._ctx.now_s
        if self._log is None:
            self._request.keep(happened)
            self._request.forget_pause()
            return
        lineage, first = self._log.lineage, min(self._log.lineage.in_step)
        lineage.leave_view({*happened.left, *happened.joined} - {own})
        if not lineage.in_step:
            self._step_out("all who let this member in have left")
        elif self._leveling is not None and first not in lineage.in_step:
            self._leveling.ask_again()
        elif happened.joined:
            self._say_present()

    def delivered(self, happened: fx.Delivered) -> None:
        """The frames of a batch, in their order."""
        sender = happened.sender
        if sender == self._ctx.settings.name:
            self._ctx.outbox.came_back(happened.size)
        if self._log is None:
            self._request.keep(happened)
        self._take_frames(happened)
        self._be_let_in()

    def _take_frames(self, happened: fx.Delivered) -> None:
        for frame in happened.frames:
            getattr(self, FRAMES[type(frame)].of(self.role))(happened.sender, frame)
            self._settle()

    def _be_let_in(self) -> None:
        """A group was shown to this member: be as it was then, and apply what was delivered since."""
        answer = self._request.answer() if self._log is None else None
        if answer is None:
            return
        shown, objects, kept = answer
        self._is_whole = False
        self._durable.stop()
        self._log = DeliveredLog(self._ctx, Lineage.from_shown(shown))
        self._leveling = LevelingUp(self._ctx, self._log, read_objects(objects), self.committed_lsn)
        self._has_asked_admission = False
        self._become(GroupRole.CATCHING_UP, f"let in by {min(shown.in_step)}")
        for happened in kept:
            if isinstance(happened, fx.Delivered):
                self._take_frames(happened)
            else:
                self.view_changed(happened)
        if self._leveling is not None:
            self._leveling.ask()

    def take_unit(self, sender: str, frame: fr.Submitted) -> None:
        """It counts or is skipped, for all alike."""
        if self._log is None or sender not in self._log.lineage.in_step:
            return
        outcome = self._log.submitted(sender, frame)
        if self._leveling is not None:
            self._leveling.forget_deleted()
        request = self._units.pop(frame.number, None) if sender == self._ctx.settings.name else None
        if request is not None:
            answer = fx.SubmitRefused(request, outcome.why_skipped)
            self._ctx.effects.append(fx.Placed(request, outcome.lsn) if outcome.lsn else answer)

    def take_acknowledgement(self, sender: str, frame: fr.Acknowledged) -> None:
        """A member has more on its disk."""
        if self._log is not None:
            self._log.lineage.acknowledge(sender, frame.lsn, frame.position)

    def queue_wanted(self, sender: str, frame: fr.QueueWanted) -> None:
        """A member has a consumer."""
        if self._log is not None and sender in self._log.lineage.in_step:
            self._log.wanted(sender, frame.queue)

    def queue_yielded(self, sender: str, frame: fr.QueueYielded) -> None:
        """A member hands out no more."""
        if sender == self._ctx.settings.name:
            self._yielding.discard(frame.queue)
        if self._log is not None and sender in self._log.lineage.in_step:
            self._log.yielded(sender, frame)

    def epoch_begun(self, sender: str, frame: fr.EpochBegun) -> None:
        """The record was written: by this lineage, or by another one."""
        own = self._ctx.settings.name
        if self._log is None or sender not in self._log.lineage.in_step:
            self._learn(frame.record)
            return
        self._records.learn(frame.record)
        self._records.delivered(frame.record)
        if frame.record.position <= self._log.lineage.record.position:
            return
        is_admitted = own in frame.record.members
        if not is_admitted and (self._leveling is None or own in frame.given_up):
            self._step_out(f"{sender} goes on without it in epoch {frame.record.epoch}")
            return
        self._log.begin_epoch(frame)
        if is_admitted and self._leveling is not None:
            self._leveling = None
        if not self._log.lineage.in_step:
            self._step_out("none of those who let this member in goes on")

    def note_present(self, sender: str, frame: fr.MemberPresent) -> None:
        """Somebody is there, perhaps of another lineage."""
        is_in_step = self._log is not None and sender in self._log.lineage.in_step
        if frame.is_serving and not is_in_step:
            self._alone_since_s = self._ctx.now_s
        self._learn(frame.record)

    # --- letting somebody in

    def _is_first(self) -> bool:
        """Whether this member answers for those in step."""
        return self._log is not None and min(self._log.lineage.in_step, default="") == self._ctx.settings.name

    def own_request(self, sender: str, frame: fr.JoinAsked) -> None:
        """What this member is shown will be as of here."""
        if sender == self._ctx.settings.name:
            self._request.asked(frame)

    def note_outside(self, sender: str, frame: fr.JoinAsked) -> None:
        """Who was in step, and asks to be let in, is not any more."""
        if self._log is not None:
            self._log.lineage.leave_view({sender} - {self._ctx.settings.name})
            if not self._log.lineage.in_step:
                self._step_out("all who let this member in are outside")

    def let_in(self, sender: str, frame: fr.JoinAsked) -> None:
        """Show what there is. Not to whom a record may name: its old copy may be needed."""
        self.note_outside(sender, frame)
        if self._log is not None and self._is_first() and sender not in self._log.lineage.required:
            show(self._ctx, self._log.lineage, sender, frame)

    def lineage_shown(self, sender: str, frame: fr.LineageShown) -> None:
        """Who was let in is waited for when it says that it is level."""
        if self._log is not None and sender in self._log.lineage.in_step and frame.to in self._view:
            self._log.lineage.joining[frame.to] = frame.number

    def be_shown(self, sender: str, frame: fr.LineageShown) -> None:
        """An answer, perhaps to this member."""
        self._request.shown(frame)

    def be_shown_objects(self, sender: str, frame: fr.ObjectsShown) -> None:
        """The rest of that answer."""
        self._request.objects_shown(frame)

    def answer_chunk(self, sender: str, frame: fr.ChunkAsked) -> None:
        """Show the next piece of a queue."""
        if self._log is not None and self._is_first():
            show_chunk(self._ctx, self._log.lineage, sender, frame)

    def take_chunk(self, sender: str, frame: fr.ChunkShown) -> None:
        """A piece of a queue, if it is for this member."""
        if self._leveling is not None and frame.to == self._ctx.settings.name and not self._is_whole:
            self._leveling.chunk(frame)

    def admit(self, sender: str, frame: fr.AdmissionAsked) -> None:
        """Wait for it from here on."""
        if self._log is not None:
            self._log.lineage.admit(sender, frame.number, self._ctx.last_lsn)

    # --- what follows from all that

    def _settle(self) -> None:
        """Being level, commitment, and role follow from what was delivered."""
        if self._log is None:
            return
        if self._leveling is not None and not self._is_whole and self._leveling.is_done:
            self._leveling.finish()
            self._is_whole = True
        lineage = self._log.lineage
        if lineage.committed_lsn > self.committed_lsn:
            self.committed_lsn = lineage.committed_lsn
            self._ctx.resource_set.log.acknowledge(WITNESS, min(self.committed_lsn, self._ctx.last_lsn))
            self._ctx.effects.append(fx.CommitAdvanced(self.committed_lsn))
        if self._leveling is None:
            is_serving = lineage.is_complete and not lineage.is_cold
            self._become(
                GroupRole.SERVING if is_serving else GroupRole.WITHHELD,
                "all whom the record names are in step" if is_serving else "some whom the record names are missing",
            )

    def _become(self, role: GroupRole, reason: str) -> None:
        if role is not self.role:
            self._ctx.effects.append(fx.RoleChanged(self.role, role, reason))
            self.role = role

    def _step_out(self, reason: str) -> None:
        """This member's copy counts no more, unless the record names it all the same."""
        if self._log is not None:
            if self._leveling is not None and not self._is_whole:
                self._leveling.abandon()
            self._log.release_all()
        self._log = self._leveling = None
        self._ctx.outbox.drop_waiting()
        self._records.forget()
        self._slow.forget()
        self._request.forget()
        self._units.clear()
        self._yielding.clear()
        self._alone_since_s = self._ctx.now_s
        self._become(GroupRole.OUTSIDE, reason)

    def _consider(self) -> None:
        """Whether something is to be recorded, or asked for."""
        if self._view and not self._records.is_busy:
            if self._log is None:
                self._consider_outside()
            elif self._leveling is None:
                self._consider_record(self._log.lineage)

    def _consider_outside(self) -> None:
        record = self._records.record
        if not self._records.is_known:
            return
        if self._ctx.settings.name in record.members and self._is_whole:
            self._begin_alone(record, "the record names it")
        elif not record.generation or record.claimed:
            if self._is_patience_over():
                self._records.claim()
        else:
            self._request.ask()

    def _consider_record(self, lineage: Lineage) -> None:
        record, slow = self._records.record, self._slow.names
        if lineage.is_settled and record == lineage.record and not slow:
            return
        if record.claimed and not lineage.is_cold and record.position == lineage.record.position:
            if self._durable.lsn >= self._ctx.last_lsn:
                self._records.confirm_claim()
            return
        wanted = NextRecord(lineage, record, slow)
        if wanted.first != self._ctx.settings.name:
            return
        if wanted.is_due and record.position >= lineage.record.position:
            if self._is_majority(lineage) or self._is_patience_over():
                self._records.change(wanted.members, wanted.given_up)
        elif record.position > lineage.record.position:
            self._records.say(lineage)

    def _is_majority(self, lineage: Lineage) -> bool:
        """Of those who may go on with the group, more are in step than not: nobody need be waited for."""
        named = set(lineage.record.members)
        here, elsewhere = named & lineage.in_step, named - lineage.in_step - self._ended
        has_tie = len(here) == len(elsewhere) and min(named) in here
        return not lineage.is_cold and (len(here) > len(elsewhere) or has_tie)

    def _is_patience_over(self) -> bool:
        """The first in the order of names waits for a while, each next one longer."""
        rank = sorted(self._view).index(self._ctx.settings.name)
        return self._ctx.now_s - self._alone_since_s >= self._ctx.settings.patience_s * (1 + rank)


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
    fx.RecordRead: RoleCells("record_read", "record_read", "record_read", "record_read"),
    fx.RecordWritten: RoleCells("record_written", "record_written", "record_written", "record_written"),
    fx.Persisted: RoleCells("persisted", "persisted", "persisted", "persisted"),
    fx.CheckpointPersisted: RoleCells("persisted", "persisted", "persisted", "persisted"),
    fx.StoreFailed: RoleCells("lose_store", "lose_store", "lose_store", "lose_store"),
    fx.Stopping: RoleCells("ignore", "ignore", "ignore", "ignore"),
}
FRAMES: Final[dict[type, RoleCells]] = {
    # frame                          outside            catching up       withheld          serving
    fr.Submitted: RoleCells("ignore", "take_unit", "take_unit", "take_unit"),
    fr.Acknowledged: RoleCells("ignore", "take_acknowledgement", "take_acknowledgement", "take_acknowledgement"),
    fr.QueueWanted: RoleCells("ignore", "queue_wanted", "queue_wanted", "queue_wanted"),
    fr.QueueYielded: RoleCells("ignore", "queue_yielded", "queue_yielded", "queue_yielded"),
    fr.EpochBegun: RoleCells("epoch_begun", "epoch_begun", "epoch_begun", "epoch_begun"),
    fr.MemberPresent: RoleCells("note_present", "note_present", "note_present", "note_present"),
    fr.JoinAsked: RoleCells("own_request", "note_outside", "note_outside", "let_in"),
    fr.LineageShown: RoleCells("be_shown", "lineage_shown", "lineage_shown", "lineage_shown"),
    fr.ObjectsShown: RoleCells("be_shown_objects", "ignore", "ignore", "ignore"),
    fr.ChunkAsked: RoleCells("ignore", "ignore", "answer_chunk", "answer_chunk"),
    fr.ChunkShown: RoleCells("ignore", "take_chunk", "ignore", "ignore"),
    fr.AdmissionAsked: RoleCells("ignore", "admit", "admit", "admit"),
}
