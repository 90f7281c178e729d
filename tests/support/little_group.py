"""Members of a group in one thread, on the real cores and the real resource set: an order without faults, for tests of
what commands come to. Deliveries are held back until the test lets them go."""

from __future__ import annotations

from collections import deque
from functools import partial

from model_support import Core, TextReader
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import GroupFrame, decode_batch
from qpid_ha_broker.group.serving import GroupServing
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.grouped import Grouped
from qpid_ha_broker.model.sets.resources import Resources

ROUNDS = 10_000


class _MembersCore(Core):
    """What is committed the group says."""

    def commit(self) -> None:
        pass


class LittleMember:
    """One member, with the commands of `Core` on its copy."""

    def __init__(self, group: LittleGroup, name: str) -> None:
        self.name = name
        self.replication = Grouped()
        self.core = _MembersCore(Resources(TextReader(), "orders", replication=self.replication), witness=False)
        self.resources = self.core.resources
        self._group = group
        settings = GroupSettings(name, f"{name}-1", patience_s=0.1, ask_again_s=0.1, min_in_sync=group.min_in_sync)
        self.serving = GroupServing(settings, self.resources, self.replication, 0, self.feed, group.slice_s)

    @property
    def role(self) -> GroupRole:
        return self.serving.member.role

    def feed(self, happened: fx.Input) -> None:
        for effect in self.serving.member.handle(happened, self._group.now_s):
            self._group.carry_out(self, effect)

    def turn(self) -> None:
        self.resources.work.run()
        self.serving.turn_ends(self._group.now_s)
        if not self.replication.read_only:
            self.core.hand_out()
        self.feed(fx.GroupTurnEnded())

    def queue(self, name: str = "q") -> Queue:
        return self.core.catalog.queues[name]

    def write(self, *events: ev.Event) -> None:
        self.resources.replicated.submit(events)


def answer_to(effect: fx.Effect, record: ClusterRecord) -> tuple[fx.Input | None, ClusterRecord]:
    """What a store and a keeper of the record that never fail answer, None: they are not asked; and the record then."""
    match effect:
        case fx.Persist(number):
            return fx.Persisted(number), record
        case fx.WriteCheckpoint(number):
            return fx.CheckpointPersisted(number), record
        case fx.ReadRecord(number):
            return fx.RecordRead(number, record, ""), record
        case fx.WriteRecord(number, expected, wanted):
            record = wanted if record == expected else record
            return fx.RecordWritten(number, record == wanted, record, ""), record
    return None, record


class LittleGroup:
    """Members `a`, `b`, `c`, all serving, with a queue `q`."""

    def __init__(self, slice_s: float = 1.0, cluster: str = "", *, min_in_sync: int = 1) -> None:
        """`cluster`: the UUID of the set's log, where the record has one before the group begins."""
        self.min_in_sync = min_in_sync
        self.now_s, self.slice_s = 0.0, slice_s
        self.record = ClusterRecord(cluster)
        self.loses_answers = False
        """Of the record: what is written counts, and who has written it never hears of it."""
        self._order: deque[tuple[str, bytes]] = deque()
        self._soon: deque[partial[None]] = deque()
        self.delivered: list[tuple[str, tuple[GroupFrame, ...]]] = []
        """All that came to its place: senders, and what they said."""
        names = "a", "b", "c"
        self.members = [LittleMember(self, name) for name in names]
        self.a, self.b, self.c = self.members
        for member in self.members:
            member.feed(fx.Started())
        for member in self.members:
            member.feed(fx.ViewChanged(names, names, ()))
        for _ in range(100):
            self.pass_time(0.2)
            if all(member.role is GroupRole.SERVING for member in self.members):
                break
        self.a.write(ev.QueueDeclared("q", {}))
        self.settle()

    def carry_out(self, member: LittleMember, effect: fx.Effect) -> None:
        answer, self.record = answer_to(effect, self.record)
        if self.loses_answers and isinstance(answer, fx.RecordWritten):
            answer = fx.RecordWritten(answer.number, False, None, "no answer")
        match effect:
            case fx.Multicast(data):
                self._order.append((member.name, data))
            case fx.Placed():
                member.serving.placed(effect)
            case fx.SubmitRefused():
                member.serving.refused(effect)
            case fx.RoleChanged():
                member.serving.look(effect.reason)
            case fx.Progressed():
                member.serving.progressed()
        if answer is not None:
            self._soon.append(partial(member.feed, answer))

    def turn(self) -> None:
        """One turn of each member: what they have to say goes into the order, and is delivered to nobody yet."""
        for member in self.members:
            member.turn()

    def settle(self) -> None:
        """Until nothing moves. Raises RuntimeError when it never ends."""
        for _ in range(ROUNDS):
            self.turn()
            if self._soon:
                self._soon.popleft()()
            elif self._order:
                self.deliver_next()
            elif not any(member.resources.work for member in self.members):
                return
        raise RuntimeError("the group does not come to rest")

    def lose(self, gone: LittleMember) -> None:
        """A member ends; the others go on."""
        self.members.remove(gone)
        names = tuple(member.name for member in self.members)
        for member in self.members:
            member.feed(fx.ViewChanged(names, (), (gone.name,), (gone.name,)))
        self.pass_time(0.2)

    def come_anew(self, name: str) -> LittleMember:
        """A member that is gone comes with an empty store, and is let in."""
        new = LittleMember(self, name)
        new.feed(fx.Started())
        self.members.append(new)
        names = tuple(sorted(member.name for member in self.members))
        for member in self.members:
            member.feed(fx.ViewChanged(names, names if member is new else (name,), ()))
        for _ in range(100):
            self.pass_time(0.2)
            if new.role is GroupRole.SERVING:
                return new
        raise RuntimeError(f"{name} is not let in: it is {new.role}")

    def go_on_with(self, older: LittleMember) -> None:
        """All others are lost, too, and an operator has the group go on with the copy of one that was lost before."""
        record = self.record
        self.record = ClusterRecord(record.cluster, record.generation + 1, older.name, record.epoch + 1, (older.name,))
        gone = tuple(member.name for member in self.members)
        self.members = [older]
        older.feed(fx.ViewChanged((older.name,), (), gone, gone))
        self.pass_time(0.2)
        self.pass_time(0.5)

    def come_back(self, member: LittleMember) -> None:
        """One that was lost is there again, and has heard nothing meanwhile."""
        there = tuple(other.name for other in self.members)
        self.members.append(member)
        names = tuple(sorted((*there, member.name)))
        for other in self.members:
            other.feed(fx.ViewChanged(names, (member.name,) if other is not member else there, ()))
        for _ in range(20):
            self.pass_time(0.2)

    def deliver_next(self) -> None:
        """The next batch of the order, to all."""
        sender, data = self._order.popleft()
        frames = tuple(decode_batch(data)[1])
        self.delivered.append((sender, frames))
        for member in self.members:
            member.feed(fx.Delivered(sender, frames, len(data)))

    def deliver_those_of(self, name: str) -> None:
        """What that member has said comes first in the order, and is delivered."""
        others = [batch for batch in self._order if batch[0] != name]
        self._order = deque([*(batch for batch in self._order if batch[0] == name), *others])
        while len(self._order) > len(others):
            self.deliver_next()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for member in self.members:
            member.feed(fx.Ticked())
        self.settle()

    def stall(self, seconds: float, step_s: float = 0.2) -> None:
        """Time passes, and nothing is delivered: what members say stays in the order."""
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            for member in self.members:
                member.feed(fx.Ticked())
            self.turn()
            while self._soon:
                self._soon.popleft()()
