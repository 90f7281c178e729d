"""A node of a simulated group: a process with a real core and the real resource set, and its disk."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from math import inf
from typing import Protocol

from model_support import NOW_MS, TextReader
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import GroupFrame, decode_batch
from qpid_ha_broker.group.member import GroupMember
from qpid_ha_broker.group.serving import GroupServing
from qpid_ha_broker.ha.browser import ReplicatingBrowser
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.frames import Chunk, Objects
from qpid_ha_broker.ha.objects import objects_frame
from qpid_ha_broker.model.queues.dispatcher import Handout
from qpid_ha_broker.model.sets.grouped import Grouped
from qpid_ha_broker.model.sets.resource_set import ResourceSet
from qpid_ha_broker.model.sets.resources import Resources
from simulation.group_ledger import GroupLedger
from simulation.group_record import RecordKeeperModel
from simulation.group_transport import Event, Port, SimulatedTransport, View
from simulation.trace import Trace, shown, shown_effects
from simulation.virtual_time import Schedule

SET_NAME = "orders"
TURN_S = 0.0003
TICK_S = 0.1
SLICE_S = 0.02
HANDOUT_LIMIT = 10
EVERYTHING = 1 << 30


@lru_cache(maxsize=256)
def frames_of(batch: bytes) -> tuple[GroupFrame, ...]:
    """Each member gets the same bytes; they are read once."""
    return tuple(decode_batch(batch)[1])


class DiskCheckpoint:
    """A whole state, as it was when it was asked for."""

    def __init__(self, resource_set: ResourceSet, committed_lsn: int) -> None:
        self.lsn = resource_set.log.last_lsn
        self.committed_lsn = committed_lsn
        self.generations = list(resource_set.state.generations)
        self.objects: Objects = objects_frame(resource_set.state, 0, self.lsn)
        self.chunks: list[Chunk] = [
            ReplicatingBrowser(queue, self.lsn, ()).next_chunk(0, EVERYTHING, EVERYTHING)
            for queue in resource_set.state.queues()
        ]

    def restore(self, resource_set: ResourceSet) -> None:
        catch_up = CatchUp(resource_set, 0)
        catch_up.discard_after_common()
        catch_up.objects(self.objects)
        for chunk in self.chunks:
            catch_up.chunk(chunk)
        catch_up.finish()
        resource_set.state.generations[:] = self.generations


class Disk:
    """What is there after a crash: writes take effect in their order, and are told when they are safe."""

    def __init__(self) -> None:
        self.checkpoint: DiskCheckpoint | None = None
        self.batches: list[fx.Persist] = []
        self.waiting: deque[fx.Persist | tuple[int, DiskCheckpoint]] = deque()

    def write_next(self) -> fx.Persisted | fx.CheckpointPersisted:
        write = self.waiting.popleft()
        if isinstance(write, fx.Persist):
            self.batches.append(write)
            return fx.Persisted(write.number)
        number, self.checkpoint = write
        self.batches.clear()
        return fx.CheckpointPersisted(number)

    def crash(self, draw: random.Random) -> None:
        """Of what waits, the beginning may have come to the disk."""
        for _ in range(draw.randint(0, len(self.waiting))):
            self.write_next()
        self.waiting.clear()

    def load(self, resource_set: ResourceSet) -> int:
        """What the disk has, into an empty set; returns how far its log was known to be committed."""
        committed_lsn = 0
        if self.checkpoint is not None:
            self.checkpoint.restore(resource_set)
            committed_lsn = self.checkpoint.committed_lsn
        for batch in self.batches:
            for record in decode(batch.data).records:
                resource_set.follow([record])
            resource_set.log.last_lsn = batch.last_lsn
            committed_lsn = batch.committed_lsn
        return committed_lsn


class NodeClients(Protocol):
    """Whoever is connected to a node."""

    def member_changed(self, node: GroupNode, role: GroupRole) -> None:
        """They are ended if it serves nobody."""

    def withhold(self, node: GroupNode, handout: Handout) -> None:
        """Messages of a session go out once it is committed that it holds them."""

    def tell(self, node: GroupNode) -> None:
        """A unit may be committed, or have failed."""


class GroupProcess:
    """A life of a node: ends, and nothing of it is left but the disk."""

    def __init__(self) -> None:
        self.replication = Grouped()
        self.resources = Resources(TextReader(), SET_NAME, replication=self.replication)
        self.serving: GroupServing
        self.port: Port | None = None
        self.inbox: deque[Event] = deque()
        self.is_busy = self.is_paused = self.is_turn_due = False
        self.next_turn_s = -1.0
        """When a slice ends, or has ended."""
        self.waiting_inputs: list[fx.Input] = []
        self.records: dict[int, bytes] = {}
        """Of the log, by LSN."""
        self.checked_lsn = 0

    @property
    def member(self) -> GroupMember:
        return self.serving.member


class GroupNode:
    def __init__(
        self, name: str, schedule: Schedule, transport: SimulatedTransport, keeper: RecordKeeperModel,
        settings: Callable[[str, str], GroupSettings], ledger: GroupLedger, trace: Trace, seed: int,
    ) -> None:  # fmt: skip
        self.name = name
        self._schedule, self._transport, self._keeper = schedule, transport, keeper
        self._settings, self.ledger, self._trace = settings, ledger, trace
        self._draw = random.Random(f"{seed}/{name}")
        self.disk = Disk()
        self.process: GroupProcess | None = None
        self.clients: NodeClients | None = None
        self.disk_s = 0.001
        self.delivery_s = 0.0
        self.lives = 0
        self.checks_all = False
        self.wants_start = True

    @property
    def member(self) -> GroupMember | None:
        return self.process.member if self.process is not None else None

    @property
    def role(self) -> GroupRole | None:
        """None: it is down."""
        return self.process.member.role if self.process is not None else None

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.is_paused

    # --- lives

    def start(self) -> None:
        if self.process is not None:
            return
        self.lives += 1
        settings = self._settings(self.name, f"{self.name}-{self.lives}")
        process = self.process = GroupProcess()
        committed_lsn = self.disk.load(process.resources.replicated)
        for batch in self.disk.batches:
            self._note_records(process, batch)
        process.serving = GroupServing(
            settings, process.resources, process.replication, committed_lsn, partial(self.feed, process), SLICE_S
        )  # fmt: skip
        process.port = self._transport.open(self.name, partial(self._came, process))
        self.feed(process, fx.Started())
        self._tick(process)

    def end(self, has_power: bool, why: str) -> None:
        process = self.process
        if process is None or process.port is None:
            return
        self._note(f"ends: {why}")
        self.process = None
        self._transport.close(process.port, has_power)
        self.disk.crash(self._draw)
        if self.clients is not None:
            self.clients.member_changed(self, GroupRole.OUTSIDE)

    def lose_disk(self) -> None:
        self.disk = Disk()
        self._keeper.empty.add(self.name)

    def pause(self, for_s: float) -> None:
        process = self.process
        if process is None:
            return
        process.is_paused = True

        def go_on() -> None:
            process.is_paused = False
            waiting, process.waiting_inputs = process.waiting_inputs, []
            for happened in waiting:
                self.feed(process, happened)
            self._take_next(process)

        self._schedule.after(for_s, go_on)

    def congest(self, for_s: float) -> None:
        if self.process is not None and self.process.port is not None:
            self._transport.congest(self.process.port, for_s)

    def lose_transport(self, for_s: float) -> None:
        if self.process is not None and self.process.port is not None:
            self._transport.lose(self.process.port, for_s)

    def _tick(self, process: GroupProcess) -> None:
        if self.process is process:
            if not process.is_paused:
                process.resources.timers.tick(self.now_ms)
                self.feed(process, fx.Ticked())
            self._schedule.after(TICK_S, partial(self._tick, process))

    # --- inputs

    def _came(self, process: GroupProcess, event: Event) -> None:
        process.inbox.append(event)
        self._take_next(process)

    def _take_next(self, process: GroupProcess) -> None:
        while not self.delivery_s and self._may_take(process):
            self._take(process)
        if not self._may_take(process):
            return
        process.is_busy = True

        def take() -> None:
            process.is_busy = False
            if not process.is_paused and self.process is process and process.inbox:
                self._take(process)
            self._take_next(process)

        self._schedule.after(self._draw.uniform(0.0, self.delivery_s), take)

    def _may_take(self, process: GroupProcess) -> bool:
        return bool(process.inbox) and not (process.is_busy or process.is_paused) and self.process is process

    def _take(self, process: GroupProcess) -> None:
        event = process.inbox.popleft()
        if isinstance(event, View):
            self.feed(process, fx.ViewChanged(*event))
        else:
            self.feed(process, fx.Delivered(event.sender, frames_of(event.data), len(event.data)))

    def ask(self, happened: fx.Input) -> None:
        """A client wants something of the process that lives now."""
        if self.process is not None:
            self.feed(self.process, happened)

    def feed(self, process: GroupProcess, happened: fx.Input) -> None:
        if self.process is not process:
            return
        if process.is_paused:
            process.waiting_inputs.append(happened)
            return
        effects = process.member.handle(happened, self._schedule.now_s)
        if self._trace.wanted and (effects or not isinstance(happened, fx.Ticked | fx.GroupTurnEnded)):
            self._note(f"{shown(happened)} -> {shown_effects(effects)}")
        if self.checks_all:
            process.member.check_invariants()
        for effect in effects:
            self._carry_out(process, effect)
        if not isinstance(happened, fx.GroupTurnEnded):
            self.turn_soon()

    def _end_turn(self, process: GroupProcess) -> None:
        process.is_turn_due = False
        if self.process is not process:
            return
        if not process.is_paused:
            process.serving.look("its part of the group has changed")
            self._turn_at(process, process.serving.turn_ends(self._schedule.now_s))
            self._hand_out(process)
            self._tell_clients()
        self.feed(process, fx.GroupTurnEnded())

    def _turn_at(self, process: GroupProcess, due_s: float) -> None:
        if process.next_turn_s < self._schedule.now_s and due_s < inf:
            process.next_turn_s = max(due_s, self._schedule.now_s)
            self._schedule.after(process.next_turn_s - self._schedule.now_s, self.turn_soon)

    def _hand_out(self, process: GroupProcess) -> None:
        resources = process.resources
        while resources.has_work and not resources.replication.read_only:
            for handout in resources.hand_out(self.now_ms, HANDOUT_LIMIT):
                if handout.consumer.session_owner is None:
                    handout.consumer.deliver(handout.entries)
                elif self.clients is not None:
                    self.clients.withhold(self, handout)

    def turn_soon(self) -> None:
        """A client has done something that follows no input."""
        process = self.process
        if process is not None and not process.is_turn_due:
            process.is_turn_due = True
            self._schedule.after(TURN_S, partial(self._end_turn, process))

    @property
    def now_ms(self) -> int:
        return NOW_MS + int(self._schedule.now_s * 1000)

    @property
    def resources(self) -> Resources | None:
        """None: it is down."""
        return self.process.resources if self.process is not None else None

    # --- effects

    def _carry_out(self, process: GroupProcess, effect: fx.Effect) -> None:
        if self.process is not process:
            return
        match effect:
            case fx.Multicast(data):
                if process.port is not None:
                    self._transport.multicast(process.port, data)
            case fx.Persist():
                self._note_records(process, effect)
                self._write(process, effect)
            case fx.WriteCheckpoint(number):
                process.records.clear()
                member = process.member
                self._write(process, (number, DiskCheckpoint(member.resource_set, member.committed_lsn)))
            case fx.ReadRecord(number):
                self._keeper.read(self.name, lambda record: self.feed(process, fx.RecordRead(number, record)))
            case fx.WriteRecord(number, expected, wanted):
                answer = partial(self._record_written, process, number)
                self._keeper.write(self.name, expected, wanted, answer)
            case fx.RoleChanged(_, after, reason):
                self._note(f"becomes {after}: {reason}")
                if after is GroupRole.CATCHING_UP:
                    process.records.clear()
                if after is GroupRole.SERVING:
                    self._keeper.empty.discard(self.name)
                process.serving.look(effect.reason)
                if self.clients is not None:
                    self.clients.member_changed(self, after)
            case fx.Placed():
                process.serving.placed(effect)
                self._tell_clients()
            case fx.SubmitRefused():
                process.serving.refused(effect)
                self._tell_clients()
            case fx.Progressed(lsn):
                self._check_committed(process, lsn)
                process.serving.progressed()
                self._tell_clients()
            case fx.Stop(reason):
                self.end(has_power=True, why=reason)
                self._schedule.after(self._draw.uniform(0.05, 1.0), self.start)

    def _tell_clients(self) -> None:
        if self.clients is not None:
            self.clients.tell(self)

    def _record_written(self, process: GroupProcess, number: int, written: bool, record: object) -> None:
        self.feed(process, fx.RecordWritten(number, written, record, "" if record else "no answer"))  # type: ignore[arg-type]

    def _write(self, process: GroupProcess, write: fx.Persist | tuple[int, DiskCheckpoint]) -> None:
        disk = self.disk
        disk.waiting.append(write)

        def written() -> None:
            if self.process is process and disk.waiting:
                self.feed(process, disk.write_next())

        self._schedule.after(self._draw.uniform(0.1, 1.0) * self.disk_s, written)

    # --- books

    def _note_records(self, process: GroupProcess, batch: fx.Persist) -> None:
        at = 0
        for record in decode(batch.data).records:
            size = int.from_bytes(batch.data[at : at + 4], "little")
            process.records[record.lsn] = batch.data[at : at + size]
            at += size

    def _check_committed(self, process: GroupProcess, upto: int) -> None:
        for lsn in range(process.checked_lsn + 1, upto + 1):
            record = process.records.pop(lsn, None)
            if record is not None:
                self.ledger.committed(self.name, lsn, record)
        process.checked_lsn = upto

    def _note(self, text: str) -> None:
        if self._trace.wanted:
            self._trace.add(self.name, text)
