"""A member of a resource set as `ha.Member` behaves towards a controller, without its frames and its log's contents.

It keeps what decides: which writes it holds, the generation of its log, whether it is in sync, and whether it was
restarted. A promotion asks everybody who can be reached, and is refused for the reasons of `ha.verdict`; what counts is
the compare-and-set of the record, as with the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qpid_ha_broker.cluster.messages import (
    AnswerRecord,
    BackupReport,
    ControllerSettings,
    GiveOrder,
    OrderDeletion,
    OrderKind,
    ReplicaReport,
)
from qpid_ha_broker.cluster.placement import Placement, spread
from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.server.peers.replica_reports import QueueReport
from simulation.node import Node, Violation
from simulation.sets_world import BrokerModel, World

BACKUP_TIMEOUT_S = 3.0
"""So long a primary that has begun waits for those that were in sync."""


@dataclass
class MemberModel:
    """One replica."""

    broker: str
    set_name: str
    state: str = "connecting"
    generation: int = 0
    cluster: str = ""
    """The UUID of its log; empty: it holds nothing."""
    log: list[int] = field(default_factory=list)
    """Numbers of writes."""
    is_restarted: bool = False
    follows: int = 0
    """The generation of the primary that it follows."""
    level_s: float = 0.0
    """When its catch-up ends."""
    members: set[str] = field(default_factory=set)
    """Of a primary: who is in sync."""
    expected: set[str] = field(default_factory=set)
    """Of a primary: who was in sync when it began, and has not come yet."""
    began_s: float = 0.0
    leavers: dict[str, int] = field(default_factory=dict)
    """Of a primary: who has left, and the epoch that has to be recorded before it counts no more."""
    epoch: int = 0
    record: SetRecorded | None = None
    """Of a primary: the last one that was confirmed to it."""
    asked: int = 0
    """The number of its request to the controller that is under way."""
    asked_s: float = 0.0
    wanted: SetRecorded | None = None
    promoting: Callable[[bool, str], None] | None = None
    """Who hears what comes of it."""
    promoting_s: float = 0.0
    predecessor: str = ""
    """Who may live, and is to hand over first if it can confirm nothing."""
    handing_to: str = ""
    handing_s: float = 0.0

    def restarted(self) -> MemberModel:
        """As another process finds it: what its store has is still there."""
        return MemberModel(
            self.broker, self.set_name, generation=self.generation, cluster=self.cluster, log=self.log,
            is_restarted=bool(self.generation),
        )  # fmt: skip

    def report(self) -> ReplicaReport:
        """As its broker tells the controller."""
        leads = self.state == "primary"
        backups = tuple(
            BackupReport(name, True, 0) for name in sorted(self.members - {self.broker}) if name not in self.expected
        )
        phase = ("recovering" if self.expected else "active") if leads else ""
        return ReplicaReport(
            self.set_name, self.state, phase, self.generation, len(self.log), backups=backups if leads else ()
        )

    def step_down(self) -> None:
        """Another one leads."""
        self.state, self.follows, self.handing_to = "connecting", 0, ""
        self.members, self.expected, self.asked, self.wanted = set(), set(), 0, None
        self.leavers = {}

    def why_not_promoted(
        self, entry: SetEntry, peers: list[MemberModel], unreachable: list[str], handed_over: bool
    ) -> str:
        """The reasons of `ha.verdict`, with a coordinator. `peers`: who answers."""
        record = entry.record
        if self.state in ("catchup", "primary"):
            return f"this broker is {self.state}"
        if not self.generation:
            if any(peer.generation for peer in peers):
                return "this broker holds no data"
            if record.generation and record.primary != self.broker:
                return "this broker holds no data, and the record names another one"
            return f"{unreachable} cannot be asked" if unreachable else ""
        if record.generation and self.broker not in record.members:
            return "not in sync"
        newest = [peer for peer in peers if peer.generation >= record.generation]
        live = [peer for peer in newest if peer.state == "primary"]
        if live and not handed_over:
            return f"{live[0].broker} is primary, and answers"
        follows = [peer.broker for peer in newest if peer.state == "ready"]
        if self.predecessor and follows and self.state != "ready" and not handed_over:
            return f"{follows[0]} still follows {self.predecessor}"
        if self.is_restarted:
            others = [peer for peer in peers if peer.broker in record.members]
            if any(not peer.is_restarted and peer.generation for peer in others):
                return "this broker was restarted, unlike others"
            missing = set(record.members) - {self.broker} - {peer.broker for peer in others}
            if missing:
                return f"{sorted(missing)} of the last in-sync set cannot be asked"
            if any((peer.generation, len(peer.log)) > (self.generation, len(self.log)) for peer in others):
                return "another one goes further"
        return ""

    @property
    def is_stalled(self) -> bool:
        """Of a primary: somebody has left, and confirmations wait until that is recorded."""
        return self.record is not None and any(self.record.epoch < epoch for epoch in self.leavers.values())

    def lead(self, record: SetRecorded, hollow: set[str], now_s: float) -> None:
        """Its record was taken."""
        self.step_down()
        self.state, self.generation, self.cluster, self.record = "primary", record.generation, record.cluster, record
        self.members = set(record.members) - hollow | {self.broker}
        self.expected = self.members - {self.broker}
        self.epoch, self.began_s, self.is_restarted = record.epoch, now_s, False

    def change(self, members: set[str]) -> None:
        """Another in-sync set."""
        if members != self.members:
            self.epoch += 1
            self.leavers |= dict.fromkeys(self.members - members, self.epoch)
            self.members = members
            for name in members & self.leavers.keys():
                del self.leavers[name]


class ModelledMembers:
    """All of them, on all brokers: see `sets_world.Members`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._members: dict[str, dict[str, MemberModel]] = {name: {} for name in world.brokers}
        """By broker and set."""
        self.confirmed: dict[str, list[int]] = {}
        self._writes = 0
        self._requests = 0
        self._deleted: set[int] = set()
        """Entries whose queues are gone, as the logs of their sets have it."""
        self.on_step: Callable[[Node, str], None] = lambda node, step: None

    # --- what happens

    def step(self, broker: BrokerModel) -> None:
        """A little time went by."""
        self._host(broker)
        for member in list(self._members[broker.name].values()):
            entry = broker.map.sets[member.set_name]
            if member.state == "primary":
                self._step_primary(member, entry)
            elif member.promoting is None or self._world.now_s - member.promoting_s > 1.5:
                member.promoting = None
                self._step_standby(member, entry)

    def died(self, broker: str, has_power: bool) -> None:
        """What it holds is on its disk."""

    def started(self, broker: str, is_empty: bool) -> None:
        """With what its disk has."""
        kept = {} if is_empty else self._members[broker]
        self._members[broker] = {name: member.restarted() for name, member in kept.items()}

    def paused(self, broker: str, is_paused: bool) -> None:
        """It has no turns meanwhile, which the world sees to."""

    def blocked(self, sender: str, receiver: str, is_blocked: bool) -> None:
        """They do not reach each other, which the world says."""

    def silent(self, one: str, other: str) -> None:
        """The same."""

    def reset(self, one: str, other: str) -> None:
        """Backups begin to catch up anew."""
        for name, peer in ((one, other), (other, one)):
            for member in self._members[name].values():
                leader = self._members[peer].get(member.set_name)
                if leader is not None and leader.state == "primary" and member.follows == leader.generation:
                    member.state, member.follows = "connecting", 0

    def healed(self) -> None:
        """Models have no faults of their own."""

    def stop_clients(self) -> None:
        """Models are compared with each write."""

    def set_deleted(self, name: str) -> None:
        """Nothing that it confirmed has to be there any more."""
        self.confirmed.pop(name, None)

    def _host(self, broker: BrokerModel) -> None:
        here = self._members[broker.name]
        for name, entry in broker.map.sets.items():
            if broker.name in entry.replicas and name not in here:
                here[name] = MemberModel(broker.name, name)
        for name in list(here):
            there = broker.map.sets.get(name)
            if there is None or (broker.name not in there.replicas and broker.name not in there.record.members):
                del here[name]
            elif here[name].cluster not in ("", there.record.cluster) and self._world.knows_map(broker.name):
                here[name] = MemberModel(broker.name, name)  # that set was deleted, and another one has its name
            elif broker.name not in there.replicas:
                here[name].step_down()  # its data stays until the record knows that it is gone

    def reports(self, broker: BrokerModel) -> Mapping[str, ReplicaReport]:
        """As its broker tells the controller."""
        here = self._members[broker.name]
        return {name: member.report() for name, member in here.items() if self._member(broker.name, name) is member}

    def _member(self, broker: str, set_name: str) -> MemberModel | None:
        """A replica that runs, by its broker's map."""
        there = self._world.brokers[broker]
        entry = there.map.sets.get(set_name)
        is_listed = entry is not None and broker in entry.replicas
        return self._members[broker].get(set_name) if there.is_up and is_listed else None

    def _peers(self, member: MemberModel, entry: SetEntry) -> tuple[list[MemberModel], list[str]]:
        """The other replicas that can be reached, and who cannot be."""
        found, unreachable = [], []
        for name in entry.replicas:
            if name == member.broker:
                continue
            peer = self._member(name, member.set_name) if self._world.reaches(member.broker, name) else None
            if peer is None:
                unreachable.append(name)
            else:
                found.append(peer)
        return found, unreachable

    # --- what members do

    def _step_standby(self, member: MemberModel, entry: SetEntry) -> None:
        if member.broker not in entry.replicas:
            return
        peers, _ = self._peers(member, entry)
        leading = [
            peer
            for peer in peers
            if peer.state == "primary" and peer.generation >= member.generation and member.cluster in ("", peer.cluster)
        ]
        if not leading:
            member.state, member.follows = "connecting", 0
            return
        primary = max(leading, key=lambda peer: peer.generation)
        if member.follows != primary.generation:
            is_near = primary.log[: len(member.log)] == member.log and member.log
            member.state, member.follows = "catchup", primary.generation
            member.level_s = self._world.now_s + (0.1 if is_near else self._world.random.uniform(0.3, 2.0))
        elif member.state == "catchup" and self._world.now_s >= member.level_s:
            member.log, member.generation, member.cluster = list(primary.log), primary.generation, primary.cluster
            member.state, member.is_restarted = "ready", False
            primary.expected.discard(member.broker)
            primary.change(primary.members | {member.broker})
        elif member.state == "ready" and member.broker not in primary.members:
            member.state, member.follows = "connecting", 0  # its channel was lost
        elif member.state == "ready":
            member.log += primary.log[len(member.log) :]

    def _step_primary(self, member: MemberModel, entry: SetEntry) -> None:
        peers, _ = self._peers(member, entry)
        if any(peer.generation > member.generation for peer in peers) or member.broker not in entry.replicas:
            member.step_down()
            return
        following = {peer.broker: peer for peer in peers if peer.state == "ready" and peer.follows == member.generation}
        if self._world.now_s - member.began_s > BACKUP_TIMEOUT_S:
            member.expected.clear()
        member.change((member.members & following.keys()) | (member.members & member.expected) | {member.broker})
        if member.handing_to and self._world.now_s - member.handing_s > 2.0:
            member.handing_to = ""
        if not member.handing_to and self._world.random.random() < 0.5:
            self._writes += 1
            member.log.append(self._writes)
        record = member.record
        assert record is not None
        needed = member.members | {name for name, epoch in member.leavers.items() if record.epoch < epoch}
        held = [len(following[name].log) if name in following else 0 for name in needed - {member.broker}]
        if not record.claimed and not member.expected:
            self._confirm(member, min([*held, len(member.log)]))
        self._record(member, record)

    def _confirm(self, member: MemberModel, lsn: int) -> None:
        entry = self._world.committed_map.sets.get(member.set_name)
        if entry is None or entry.record.cluster != member.cluster:
            return  # its set was deleted, and it has not heard of that
        before = self.confirmed.setdefault(member.set_name, [])
        if lsn > len(before):
            if member.log[: len(before)] != before:
                raise Violation(f"{member.broker} leads {member.set_name} without what was confirmed")
            before += member.log[len(before) : lsn]

    def _record(self, member: MemberModel, record: SetRecorded) -> None:
        """Have the in-sync set recorded, or see whether another one was named."""
        if member.asked and self._world.now_s - member.asked_s < 1.0:
            return
        was_lost, member.asked = bool(member.asked), 0
        is_due = self._world.now_s - member.asked_s > 1.0
        wanted = record._replace(epoch=member.epoch, members=tuple(sorted(member.members)), claimed=False)
        if wanted != record and not was_lost:
            self._ask_record(member, record, wanted)
        elif is_due:
            self._ask_record(member, None, None)

    def _ask_record(self, member: MemberModel, expected: SetRecorded | None, wanted: SetRecorded | None) -> None:
        self._requests += 1
        number = self._requests
        member.asked, member.asked_s, member.wanted = number, self._world.now_s, wanted

        def answered(answer: AnswerRecord) -> None:
            if member.asked == number and self._members[member.broker].get(member.set_name) is member:
                self._record_answered(member, answer.record)

        self._world.ask_record(member.broker, member.set_name, expected, wanted, answered)

    def _record_answered(self, member: MemberModel, record: SetRecorded | None) -> None:
        member.asked = 0
        if record is None:
            return
        if member.promoting is not None:
            self._promoting(member, record)
        elif member.state == "primary":
            newer = record.generation > member.generation
            if newer or record.primary != member.broker:
                member.step_down()
            else:
                member.record = record

    # --- orders

    def have_deleted(self, order: OrderDeletion, refuse: Callable[[bool, str], None]) -> None:
        """Of a queue that nobody uses."""
        member = self._member(order.broker, order.set)
        if member is not None and member.state == "primary":
            self._deleted.add(order.queue)

    def report_queues(self, broker: BrokerModel, full: bool) -> QueueReport:
        """All that there are, in the sets that it leads, but those that are gone."""
        led = [name for name, report in self.reports(broker).items() if report.state == "primary"]
        there = [entry for name in led for entry in broker.map.queues_of(name).values()]
        return QueueReport(tuple([entry.id for entry in there if entry.id in self._deleted]))

    def obey(self, order: GiveOrder, answer: Callable[[bool, str], None]) -> None:
        """Of the controller."""
        member = self._member(order.broker, order.set)
        if member is None:
            return
        if order.kind is OrderKind.DROP:
            member.expected.discard(order.to)
            answer(member.state == "primary", "it is not waited for")
        elif order.kind is OrderKind.PROMOTE:
            if member.state == "primary" or member.promoting is not None:
                answer(False, f"it is {member.state} already")
            else:
                self._begin_promotion(member, answer, order.to)
        else:
            to = self._member(order.to, order.set)
            is_fit = member.state == "primary" and to is not None and to.broker in member.members
            if not is_fit or to is None or not self._world.reaches(order.broker, order.to) or to.state != "ready":
                answer(False, f"{order.to} is not in sync")
                return
            member.handing_to, member.handing_s = order.to, self._world.now_s
            to.log = list(member.log)
            self._begin_promotion(to, _nobody_asked)
            answer(True, f"{order.to} takes over")

    def _begin_promotion(self, member: MemberModel, answer: Callable[[bool, str], None], predecessor: str = "") -> None:
        member.promoting, member.promoting_s, member.predecessor = answer, self._world.now_s, predecessor

        def ask() -> None:
            self._world.deliver(member.broker, lambda: self._ask_record(member, None, None))

        self._world.after(self._world.random.uniform(0.01, 0.2), ask)

    def _promoting(self, member: MemberModel, record: SetRecorded) -> None:
        there = self._world.brokers[member.broker].map.sets.get(member.set_name)
        if there is None:
            return
        entry = there._replace(record=record)
        if member.wanted is not None:
            if record == member.wanted:
                self._take_over(member, entry, record)
            else:
                self._refuse_promotion(member, "the record names another one")
            return
        peers, unreachable = self._peers(member, entry)
        for peer in peers:
            if (
                peer.state == "primary"
                and peer.broker == member.predecessor
                and peer.is_stalled
                and member.broker in peer.members
            ):
                peer.handing_to, peer.handing_s = member.broker, self._world.now_s
        handed = [peer for peer in peers if peer.state == "primary" and peer.handing_to == member.broker]
        is_listed = member.broker in entry.replicas
        why = member.why_not_promoted(entry, peers, unreachable, bool(handed)) if is_listed else "not listed"
        if not why and member.promoting is _nobody_asked and not handed:
            why = "the primary wanted to hand over, and cannot be asked"
        if why:
            self._refuse_promotion(member, why)
            return
        if handed:
            member.log = list(handed[0].log)
        generation = max([record.generation, member.generation, *[peer.generation for peer in peers]]) + 1
        gone = {record.primary} - {peer.broker for peer in handed}
        hollow = {peer.broker for peer in peers if not peer.generation}
        members = tuple(sorted(set(record.members) - gone - hollow | {member.broker}))
        epoch = record.epoch + generation - record.generation
        wanted = SetRecorded(member.set_name, record.cluster, generation, member.broker, epoch, members, True)
        self._ask_record(member, record, wanted)

    def _refuse_promotion(self, member: MemberModel, why: str) -> None:
        answer, member.promoting, member.wanted = member.promoting, None, None
        if answer is not None:
            answer(False, why)

    def _take_over(self, member: MemberModel, entry: SetEntry, record: SetRecorded) -> None:
        answer = member.promoting
        confirmed, newest = self.confirmed.get(member.set_name, []), self._world.committed_map.sets.get(member.set_name)
        is_newest = newest is not None and newest.record.generation == record.generation
        if is_newest and member.log[: len(confirmed)] != confirmed:  # one that slept hears soon that others lead
            raise Violation(f"{member.broker} leads {member.set_name} and lacks what was confirmed")
        peers, _ = self._peers(member, entry)
        for peer in peers:
            if peer.state == "primary":
                peer.step_down()
        member.lead(record, set(), self._world.now_s)
        member.promoting = None
        if answer is not None:
            answer(True, "it leads")

    # --- at rest

    def leaders(self, set_name: str) -> list[str]:
        """Who leads it."""
        members = [self._member(broker, set_name) for broker in self._world.brokers]
        return [member.broker for member in members if member is not None and member.state == "primary"]

    def could_lead(self, entry: SetEntry) -> list[str]:
        """By the reasons of `why_not_promoted`."""
        found = []
        for broker in self._world.brokers:
            member = self._member(broker, entry.name)
            if member is not None:
                peers, unreachable = self._peers(member, entry)
                if not member.why_not_promoted(entry, peers, unreachable, False):
                    found.append(broker)
        return found

    def check_at_rest(self, entry: SetEntry) -> None:
        """Its primary has been checked when it took over, and with each write."""


def _nobody_asked(done: bool, text: str) -> None:
    """It takes over from the primary, which was asked."""


def modelled_world(
    seed: int,
    brokers: Mapping[str, str],
    settings: ControllerSettings | None = None,
    placement: Placement = spread,
) -> World:
    """Brokers by their zones, and models of the sets' members."""
    return World(seed, brokers, ModelledMembers, settings, placement)
