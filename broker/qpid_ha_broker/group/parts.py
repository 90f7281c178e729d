"""What a group's member keeps whatever its role, and the ways from a role to the next: see `member` for the table."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.acknowledging import Acknowledging
from qpid_ha_broker.group.context import WITNESS, GroupContext, GroupSettings
from qpid_ha_broker.group.delivery import DeliveredLog
from qpid_ha_broker.group.durable import DurableLog
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import MemberPresent
from qpid_ha_broker.group.joining import JoinRequest, LevelingUp
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.recorder import RecordWriter, SlowMembers
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.model.sets.resource_set import ResourceSet


class OwnUnit(NamedTuple):
    """What this member has submitted."""

    request: int
    events: tuple[ev.Event, ...]


class GroupParts:
    """`committed_lsn`: how far its store was told that the log is committed."""

    def __init__(self, settings: GroupSettings, resource_set: ResourceSet, committed_lsn: int = 0) -> None:
        self.ctx = GroupContext(settings, resource_set)
        self.role = GroupRole.OUTSIDE
        self.committed_lsn = committed_lsn
        """As far as this member knows."""
        self._stable_position = 0
        """As `Lineage.stable_position` was when that was looked at last."""
        self.log: DeliveredLog | None = None
        """None: outside."""
        self.is_whole = self.ctx.last_lsn > 0
        """The copy is what some lineage had: it may go on with the group if the record names this member."""
        self.min_in_sync = settings.min_in_sync
        """As it was set last."""
        self.request = JoinRequest(self.ctx)
        self.leveling: LevelingUp | None = None
        """While this member is let in."""
        self.has_asked_admission = False
        self.records = RecordWriter(self.ctx)
        self.slow = SlowMembers(self.ctx)
        self.durable = DurableLog(self.ctx)
        self.view: tuple[str, ...] = ()
        self.is_returning = False
        """This view is the first since the transport was lost: others may be about to join it."""
        self.ended: set[str] = set()
        """Who has left as a process that ended."""
        self.alone_since_s = 0.0
        """When somebody who may go on with the group was heard of last, or a view began."""
        self.units: dict[int, OwnUnit] = {}
        """Units of this member that were not delivered yet, and links that it takes, by their numbers."""
        self.taken_links: dict[int, int] = {}
        """Positions by the numbers of LinkTaken to which not all in sync have come."""
        self.yielding: Counter[int] = Counter()
        """Queues that were yielded, and how many of these yields were not delivered yet."""
        self.present_s = float("-inf")
        """When this member said last that it is there."""
        self.acknowledging = Acknowledging()

    def become(self, role: GroupRole, reason: str) -> None:
        if role is not self.role:
            self.ctx.effects.append(fx.RoleChanged(self.role, role, reason))
            self.role = role

    def settle(self) -> None:
        """Being level, commitment, and role follow from what was delivered."""
        if self.log is None:
            return
        if self.leveling is not None and not self.is_whole and self.leveling.is_done:
            self.leveling.finish()
            self.is_whole = True
        lineage = self.log.lineage
        committed_lsn, stable_position = max(lineage.committed_lsn, self.committed_lsn), lineage.stable_position
        if (committed_lsn, stable_position) != (self.committed_lsn, self._stable_position):
            self.committed_lsn, self._stable_position = committed_lsn, stable_position
            self.ctx.resource_set.log.acknowledge(WITNESS, min(committed_lsn, self.ctx.last_lsn))
            self.ctx.effects.append(fx.Progressed(committed_lsn))
        if self.taken_links:
            self._settle_links(self.taken_links, stable_position)
        if self.leveling is None:
            is_serving = lineage.is_complete and not lineage.is_cold and bool(self.view)
            missing = "some whom the record names are missing" if self.view else "nothing is delivered here"
            self.become(
                GroupRole.SERVING if is_serving else GroupRole.WITHHELD,
                "all whom the record names are in step" if is_serving else missing,
            )

    def _settle_links(self, taken: dict[int, int], stable_position: int) -> None:
        """Answer those who have taken a link: all know it."""
        for number in [number for number, position in taken.items() if position <= stable_position]:
            del taken[number]
            self.ctx.effects.append(fx.Placed(self.units.pop(number).request, self.ctx.last_lsn))

    def step_out(self, reason: str) -> None:
        """This member's copy counts no more, unless the record names it all the same."""
        if self.log is not None:
            if self.leveling is not None and not self.is_whole:
                self.leveling.abandon()
            self.log.release_all()
        self.log = self.leveling = None
        self.ctx.outbox.drop_waiting()
        self.records.forget()
        self.slow.forget()
        self.request.forget()
        self.units.clear()
        self.taken_links.clear()
        self.yielding.clear()
        self.alone_since_s = self.ctx.now_s
        self.become(GroupRole.OUTSIDE, reason)

    def go_by(self, lineage: Lineage) -> DeliveredLog:
        """Take part in it from now on."""
        lineage.min_in_sync = self.min_in_sync
        self.log = DeliveredLog(self.ctx, lineage)
        return self.log

    def begin_alone(self, record: ClusterRecord, reason: str) -> None:
        """This member's copy counts: it goes on by itself, if it can have that recorded."""
        lineage = Lineage(record, (self.ctx.settings.name,), self.committed_lsn)
        lineage.is_cold = True
        self.go_by(lineage)
        self.acknowledging.begin()
        self.become(GroupRole.WITHHELD, reason)

    def learn(self, record: ClusterRecord) -> None:
        """A record that was written, by whomever. Without this member it does not go on."""
        is_newer = self.records.learn(record)
        if not is_newer or self.log is None:
            return
        if self.leveling is not None:
            if self.log.lineage.in_step.isdisjoint(record.members):
                self.step_out("none of those who let this member in goes on")
        elif self.ctx.settings.name not in record.members:
            self.step_out(f"the record names {', '.join(record.members)} since epoch {record.epoch}")
        else:
            self.log.lineage.newer_record = record

    def say_present(self) -> None:
        if self.log is not None and self.leveling is None:
            self.present_s = self.ctx.now_s
            self.ctx.say(MemberPresent(self.log.lineage.record, self.role is GroupRole.SERVING))

    def is_first(self) -> bool:
        """Whether this member answers for those in step."""
        return self.log is not None and min(self.log.lineage.in_step, default="") == self.ctx.settings.name
