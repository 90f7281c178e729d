"""A cluster of many resource sets in virtual time: the real controllers, and models of members, network and `default`.

`default` is modelled by what it promises: one leader at a time can commit; what was committed stays; of what its leader
had written besides, some survives when another broker takes over. Reports, orders and answers may be late or lost, and
connections may be cut. Checks run with each event, and once everything has been left alone for a while.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.controller import Controller
from qpid_ha_broker.cluster.map import ClusterMap, SetEntry
from qpid_ha_broker.cluster.placement import Placement, spread
from qpid_ha_broker.events import types as ev
from simulation.sets_member import BACKUP_TIMEOUT_S, MemberModel

STEP_S = 0.05
QUIET_S = 14.0
"""Longer than it takes until replicas are made up for, in tests that draw their clusters."""
WALL_MS = 1_700_000_000_000


class Broken(Exception):
    """A promise was broken."""


def copy_map(source: ClusterMap) -> ClusterMap:
    copy = ClusterMap()
    copy.replace(source)
    return copy


@dataclass
class BrokerModel:
    """A broker: a process that may die, and what it keeps on disk."""

    name: str
    zone: str
    controller: Controller
    uuid: str = ""
    starts: int = 1
    is_up: bool = True
    map: ClusterMap = field(default_factory=ClusterMap)
    """As it knows it: committed, and perhaps a little late."""
    known: int = 0
    """How many events of the log of `default` are in it."""
    members: dict[str, MemberModel] = field(default_factory=dict)
    reported: dict[str, ms.ReplicaReport] = field(default_factory=dict)
    reported_to: int = 0
    """The generation of `default` whose controller has heard of this process."""
    number: int = 0
    next_report_s: float = 0.0

    @property
    def instance(self) -> str:
        return f"{self.name}/{self.starts}"


class World:
    """Brokers, the network between them, and the log of `default`."""

    def __init__(
        self,
        seed: int,
        brokers: dict[str, str],
        settings: ms.ControllerSettings | None = None,
        placement: Placement = spread,
    ) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.settings = settings if settings is not None else ms.ControllerSettings()
        self.placement = placement
        self.brokers = {name: self._new_broker(name, zone) for name, zone in brokers.items()}
        self.cut: set[frozenset[str]] = set()
        self.loss = 0.0
        """How often a report, an order or an answer is lost."""
        self.delay_s = 0.01
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        # `default`
        self.log: list[ev.MapEvent] = []
        self.committed_map = ClusterMap()
        self.leader = ""
        self.generation = 0
        self._written: list[ev.MapEvent] = []
        """By the leader, and not committed."""
        # checks
        self.answers: dict[int, ms.AnswerRequest] = {}
        self.requests = 0
        self.primaries: dict[tuple[str, int], str] = {}
        self.confirmed: dict[str, list[int]] = {}
        self.writes = 0
        self.moves = 0
        self.notes: list[str] = []
        self.map_events = 0
        self.orders = 0
        """But promotions: a set whose last in-sync replicas are away is tried again and again."""
        self.record_requests: dict[int, MemberModel] = {}
        self.record_numbers = 0

    def _new_broker(self, name: str, zone: str) -> BrokerModel:
        return BrokerModel(name, zone, Controller(self.settings, self.placement), f"uuid-{name}")

    # --- time

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self.now_s + seconds, self._order, do))

    def run(self, seconds: float) -> None:
        """Let so much time go by."""
        end_s = self.now_s + seconds
        while self.now_s + STEP_S <= end_s + 1e-9:
            self.now_s += STEP_S
            while self._queue and self._queue[0][0] <= self.now_s:
                heapq.heappop(self._queue)[2]()
            for broker in self.brokers.values():
                if broker.is_up:
                    self._step(broker)
            if self.leader:
                self.feed(ms.TimePassed())

    def run_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Raises Broken if it does not become true."""
        end_s = self.now_s + limit_s
        while not condition():
            if self.now_s > end_s:
                raise Broken(f"after {limit_s} s it is still not so")
            self.run(STEP_S)

    def latency_s(self) -> float:
        return self.delay_s * (0.5 + self.random.random())

    def reaches(self, one: str, other: str) -> bool:
        is_up = self.brokers[one].is_up and self.brokers[other].is_up
        return is_up and (one == other or frozenset((one, other)) not in self.cut)

    # --- `default` and its controller

    def lead(self, name: str) -> None:
        """`name` becomes primary of `default`; of what the last one has not committed some survives."""
        self.unlead()
        survived = self._written[: self.random.randint(0, len(self._written))]
        self._written = []
        for event in survived:
            self._commit(event)
        self.leader, self.generation = name, self.generation + 1
        broker = self.brokers[name]
        broker.map, broker.known = copy_map(self.committed_map), len(self.log)
        wall_ms = WALL_MS + int(self.now_s * 1000)
        self.feed(ms.ControllerBegan(broker.map, name, self.generation, wall_ms))

    def unlead(self) -> None:
        """The primary of `default` is gone, with what it has not committed in its map."""
        if self.leader:
            broker = self.brokers[self.leader]
            broker.controller.handle(ms.ControllerEnded(), self.now_s)
            broker.map, broker.known = copy_map(self.committed_map), len(self.log)
            self.leader = ""

    def feed(self, happened: ms.ControllerInput) -> None:
        """To the controller that there is."""
        if not self.leader:
            return
        broker = self.brokers[self.leader]
        effects = broker.controller.handle(happened, self.now_s)
        if any(isinstance(effect, ms.WriteMap) for effect in effects[1:]):
            raise Broken("WriteMap comes first, and once")
        for effect in effects:
            self._carry_out(effect, happened)

    def _carry_out(self, effect: ms.ControllerEffect, cause: ms.ControllerInput) -> None:
        match effect:
            case ms.WriteMap(number, events):
                self._write(number, events, cause)
            case ms.GiveOrder():
                self.orders += effect.kind is not ms.OrderKind.PROMOTE
                if not self._is_lost() and self.reaches(self.leader, effect.broker):
                    self.after(self.latency_s(), lambda: self._obey(effect))
            case ms.AskReport(name):
                if not self._is_lost():
                    self.brokers[name].reported_to = 0
            case ms.AnswerRecord():
                if not self._is_lost() and self.reaches(self.leader, effect.broker):
                    self.after(self.latency_s(), lambda: self._record_answered(effect))
            case ms.AnswerRequest(number):
                if number in self.answers:
                    raise Broken(f"request {number} is answered twice")
                self.answers[number] = effect
            case ms.ControllerNote(_, text):
                self.notes.append(f"{self.now_s:8.2f} {self.leader}: {text}")

    def _is_lost(self) -> bool:
        return self.random.random() < self.loss

    def _write(self, number: int, events: tuple[ev.MapEvent, ...], cause: ms.ControllerInput) -> None:
        leader, generation = self.brokers[self.leader], self.generation
        for event in events:
            self._check_event(leader.map, event, cause)
            self._written.append(event)
            leader.map.apply(len(self.log) + len(self._written), event)
        self.map_events += len(events)
        lsn = len(self.log) + len(self._written)

        def commit() -> None:
            if self.generation == generation and self.leader:
                while len(self.log) < lsn:
                    self._commit(self._written.pop(0))
                self.feed(ms.MapCommitted(lsn))

        self.after(self.latency_s(), commit)
        self.feed(ms.MapWritten(number, lsn))

    def _commit(self, event: ev.MapEvent) -> None:
        self.log.append(event)
        self.committed_map.apply(len(self.log), event)
        if isinstance(event, ev.SetRecorded):
            key = event.name, event.generation
            if self.primaries.setdefault(key, event.primary) != event.primary:
                raise Broken(f"{key} has two primaries: {self.primaries[key]} and {event.primary}")

    def _check_event(self, before: ClusterMap, event: ev.MapEvent, cause: ms.ControllerInput) -> None:
        if isinstance(event, ev.SetRecorded):
            record = before.sets[event.name].record
            if (
                not record.name
                and event.cluster
                and event == ev.SetRecorded(event.name, event.cluster, 0, "", 0, (), False)
            ):
                return  # a new set gets its UUID
            record = record if record.name else record._replace(name=event.name)
            is_asked = isinstance(cause, ms.RecordRequested) and (cause.expected, cause.wanted) == (record, event)
            if not is_asked:
                raise Broken(f"{event} replaces {record}, and that was not asked for: {cause}")
        if isinstance(event, ev.SetPlaced) and event.name in before.sets:
            entry = before.sets[event.name]
            gone = set(entry.replicas) - set(event.replicas)
            staying = set(event.replicas) - set(event.leaving)
            if gone and entry.record.generation and not isinstance(cause, ms.RequestReceived):
                rest = staying & set(entry.record.members)
                least = self.least(before, entry)
                if len(rest) < least:
                    raise Broken(f"{event.name} loses {gone}, and in sync is {rest} of {least}")

    def least(self, cluster: ClusterMap, entry: SetEntry) -> int:
        """How many replicas a set should have, as far as there are brokers."""
        open_brokers = sum(not broker.draining for broker in cluster.brokers.values())
        policies = [count for pattern, count in cluster.policies if pattern in ("*", entry.name)]
        wanted = entry.min_replicas or (policies[0] if policies else self.settings.min_replicas)
        return max(1, min(wanted, open_brokers))

    # --- requests

    def ask(self, request: ms.ClusterRequest) -> int:
        """Have the controller do something; the request's number."""
        self.requests += 1
        self.feed(ms.RequestReceived(self.requests, request))
        return self.requests

    def asked(self, request: ms.ClusterRequest, limit_s: float = 15.0) -> ms.AnswerRequest:
        """The same, and what came of it."""
        number = self.ask(request)
        self.run_until(lambda: number in self.answers, limit_s)
        return self.answers[number]

    # --- faults

    def kill(self, name: str) -> None:
        """The process is gone; its connections are reset."""
        broker = self.brokers[name]
        if self.leader == name:
            self.unlead()
        broker.is_up = False
        instance = broker.instance
        self.after(self.latency_s(), lambda: self.feed(ms.BrokerDisconnected(name, instance)))

    def start(self, name: str, uuid: str = "") -> None:
        """A new process; with another UUID its disk is empty."""
        broker = self.brokers[name]
        controller = Controller(self.settings, self.placement)
        started = BrokerModel(name, broker.zone, controller, uuid or broker.uuid, broker.starts + 1)
        if not uuid:
            started.members = broker.members
            for member in started.members.values():
                member.restart()
            started.map, started.known = broker.map, broker.known
        self.brokers[name] = started

    # --- brokers

    def _step(self, broker: BrokerModel) -> None:
        if broker.name != self.leader and self.leader and self.reaches(broker.name, self.leader):
            while broker.known < len(self.log):
                broker.known += 1
                broker.map.apply(broker.known, self.log[broker.known - 1])
        self._host(broker)
        for member in list(broker.members.values()):
            entry = broker.map.sets[member.set_name]
            if member.state == "primary":
                self._step_primary(member, entry)
            elif not member.promoting or self.now_s - member.promoting_s > 1.5:
                member.promoting = 0
                self._step_standby(member, entry)
        self._report(broker)

    def _host(self, broker: BrokerModel) -> None:
        for name, entry in broker.map.sets.items():
            if broker.name in entry.replicas and name not in broker.members:
                broker.members[name] = MemberModel(broker.name, name)
        for name in list(broker.members):
            there = broker.map.sets.get(name)
            if there is None or (broker.name not in there.replicas and broker.name not in there.record.members):
                del broker.members[name]
            elif broker.name not in there.replicas:
                broker.members[name].step_down()  # its data stays until the record knows that it is gone

    def member(self, broker: str, set_name: str) -> MemberModel | None:
        """A replica that runs, by its broker's map."""
        there = self.brokers[broker]
        is_listed = set_name in there.map.sets and broker in there.map.sets[set_name].replicas
        return there.members.get(set_name) if there.is_up and is_listed else None

    def peers(self, member: MemberModel, entry: SetEntry) -> tuple[list[MemberModel], list[str]]:
        """The other replicas that can be reached, and who cannot be."""
        found, unreachable = [], []
        for name in entry.replicas:
            if name == member.broker:
                continue
            peer = self.member(name, member.set_name) if self.reaches(member.broker, name) else None
            if peer is None:
                unreachable.append(name)
            else:
                found.append(peer)
        return found, unreachable

    def _step_standby(self, member: MemberModel, entry: SetEntry) -> None:
        if member.broker not in entry.replicas:
            return
        peers, _ = self.peers(member, entry)
        leading = [peer for peer in peers if peer.state == "primary" and peer.generation >= member.generation]
        if not leading:
            member.state, member.follows = "connecting", 0
            return
        primary = max(leading, key=lambda peer: peer.generation)
        if member.follows != primary.generation:
            is_near = primary.log[: len(member.log)] == member.log and member.log
            member.state, member.follows = "catchup", primary.generation
            member.level_s = self.now_s + (0.1 if is_near else self.random.uniform(0.3, 2.0))
        elif member.state == "catchup" and self.now_s >= member.level_s:
            member.log, member.generation = list(primary.log), primary.generation
            member.state, member.is_restarted = "ready", False
            primary.expected.discard(member.broker)
            primary.change(primary.members | {member.broker})
        elif member.state == "ready" and member.broker not in primary.members:
            member.state, member.follows = "connecting", 0  # its channel was lost
        elif member.state == "ready":
            member.log += primary.log[len(member.log) :]

    def _step_primary(self, member: MemberModel, entry: SetEntry) -> None:
        peers, _ = self.peers(member, entry)
        if any(peer.generation > member.generation for peer in peers) or member.broker not in entry.replicas:
            member.step_down()
            return
        following = {peer.broker: peer for peer in peers if peer.state == "ready" and peer.follows == member.generation}
        if self.now_s - member.began_s > BACKUP_TIMEOUT_S:
            member.expected.clear()
        member.change((member.members & following.keys()) | (member.members & member.expected) | {member.broker})
        if member.handing_to and self.now_s - member.handing_s > 2.0:
            member.handing_to = ""
        if not member.handing_to and self.random.random() < 0.5:
            self.writes += 1
            member.log.append(self.writes)
        record = member.record
        assert record is not None
        needed = member.members | {name for name, epoch in member.leavers.items() if record.epoch < epoch}
        held = [len(following[name].log) if name in following else 0 for name in needed - {member.broker}]
        if not record.claimed and not member.expected:
            self._confirm(member, min([*held, len(member.log)]))
        self._record(member, record)

    def _confirm(self, member: MemberModel, lsn: int) -> None:
        before = self.confirmed.setdefault(member.set_name, [])
        if lsn > len(before):
            if member.log[: len(before)] != before:
                raise Broken(f"{member.broker} leads {member.set_name} without what was confirmed")
            before += member.log[len(before) : lsn]

    def _record(self, member: MemberModel, record: ev.SetRecorded) -> None:
        """Have the in-sync set recorded, or see whether another one was named."""
        if member.asked and self.now_s - member.asked_s < 1.0:
            return
        was_lost, member.asked = bool(member.asked), 0
        is_due = self.now_s - member.asked_s > 1.0
        wanted = record._replace(epoch=member.epoch, members=tuple(sorted(member.members)), claimed=False)
        if wanted != record and not was_lost:
            self._ask_record(member, record, wanted)
        elif is_due:
            self._ask_record(member, None, None)

    def _ask_record(self, member: MemberModel, expected: ev.SetRecorded | None, wanted: ev.SetRecorded | None) -> None:
        self.record_numbers += 1
        member.asked, member.asked_s, member.wanted = self.record_numbers, self.now_s, wanted
        self.record_requests[member.asked] = member
        asked = ms.RecordRequested(member.broker, member.asked, member.set_name, expected, wanted)
        if self.leader and self.reaches(member.broker, self.leader) and not self._is_lost():
            self.after(self.latency_s(), lambda: self.feed(asked))

    def _record_answered(self, answer: ms.AnswerRecord) -> None:
        member = self.record_requests.pop(answer.number)
        here = self.brokers[member.broker]
        if member.asked != answer.number or here.members.get(member.set_name) is not member or not here.is_up:
            return
        member.asked = 0
        if answer.record is None:
            return
        if member.promoting:
            self._promoting(member, answer.record)
        elif member.state == "primary":
            newer = answer.record.generation > member.generation
            if newer or answer.record.primary != member.broker:
                member.step_down()
            else:
                member.record = answer.record

    # --- orders

    def _obey(self, order: ms.GiveOrder) -> None:
        member = self.member(order.broker, order.set)
        if member is None:
            return
        if order.kind is ms.OrderKind.DROP:
            member.expected.discard(order.to)
            self._answer_order(order.broker, order.number, member.state == "primary", "it is not waited for")
        elif order.kind is ms.OrderKind.PROMOTE:
            if member.state == "primary" or member.promoting:
                self._answer_order(order.broker, order.number, False, f"it is {member.state} already")
            else:
                self._begin_promotion(member, order.number)
        else:
            to = self.member(order.to, order.set)
            is_fit = member.state == "primary" and to is not None and to.broker in member.members
            if not is_fit or to is None or not self.reaches(order.broker, order.to) or to.state != "ready":
                self._answer_order(order.broker, order.number, False, f"{order.to} is not in sync")
                return
            member.handing_to, member.handing_s = order.to, self.now_s
            to.log = list(member.log)
            self._begin_promotion(to, 0)
            self._answer_order(order.broker, order.number, True, f"{order.to} takes over")

    def _begin_promotion(self, member: MemberModel, number: int) -> None:
        member.promoting, member.promoting_s = number or -1, self.now_s
        self.after(self.random.uniform(0.01, 0.2), lambda: self._ask_record(member, None, None))

    def _promoting(self, member: MemberModel, record: ev.SetRecorded) -> None:
        entry = self.brokers[member.broker].map.sets[member.set_name]._replace(record=record)
        if member.wanted is not None:
            if record == member.wanted:
                self._take_over(member, entry, record)
            else:
                self._refuse_promotion(member, "the record names another one")
            return
        peers, unreachable = self.peers(member, entry)
        handed = [peer for peer in peers if peer.state == "primary" and peer.handing_to == member.broker]
        is_listed = member.broker in entry.replicas
        why = member.why_not_promoted(entry, peers, unreachable, bool(handed)) if is_listed else "not listed"
        if not why and member.promoting == -1 and not handed:
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
        wanted = ev.SetRecorded(member.set_name, record.cluster, generation, member.broker, epoch, members, True)
        self._ask_record(member, record, wanted)

    def _refuse_promotion(self, member: MemberModel, why: str) -> None:
        number, member.promoting, member.wanted = member.promoting, 0, None
        self._answer_order(member.broker, number, False, why)

    def _take_over(self, member: MemberModel, entry: SetEntry, record: ev.SetRecorded) -> None:
        number = member.promoting
        confirmed = self.confirmed.get(member.set_name, [])
        if member.log[: len(confirmed)] != confirmed:
            raise Broken(f"{member.broker} leads {member.set_name} and lacks what was confirmed")
        peers, _ = self.peers(member, entry)
        for peer in peers:
            if peer.state == "primary":
                peer.step_down()
        member.lead(record, set(), self.now_s)
        member.promoting, self.moves = 0, self.moves + 1
        self._answer_order(member.broker, number, True, "it leads")

    def _answer_order(self, broker: str, number: int, done: bool, text: str) -> None:
        generation = self.generation
        if number <= 0 or self._is_lost() or not self.leader or not self.reaches(broker, self.leader):
            return

        def answer() -> None:
            if self.generation == generation:
                self.feed(ms.OrderAnswered(broker, number, done, text))

        self.after(self.latency_s(), answer)

    # --- reports

    def _report(self, broker: BrokerModel) -> None:
        if not self.leader or not self.reaches(broker.name, self.leader):
            broker.reported_to = 0  # the connection is lost
            return
        here = {
            name: member.report() for name, member in broker.members.items() if self.member(broker.name, name) is member
        }
        full = broker.reported_to != self.generation
        changed = tuple(report for name, report in here.items() if full or self._is_news(broker, report))
        dropped = () if full else tuple(name for name in broker.reported if name not in here)
        deleted = tuple(
            queue.id
            for name, report in here.items()
            if report.state == "primary"
            for queue in broker.map.queues_of(name).values()
            if queue.deleting
        )
        if not (full or changed or dropped) and self.now_s < broker.next_report_s:
            return
        broker.next_report_s = self.now_s + 0.5
        broker.number += 1
        broker.reported_to, broker.reported = self.generation, here
        version = "1.0"
        identity = ms.BrokerIdentity(
            broker.name, broker.uuid, broker.instance, f"{broker.name}:5672", "", broker.zone, version
        )
        report = ms.BrokerReport(identity, broker.number, full, 1 << 30, changed, dropped, deleted)
        if self._is_lost():
            return
        generation = self.generation

        def arrive() -> None:
            if self.generation == generation:
                self.feed(ms.ReportReceived(report))

        self.after(self.delay_s, arrive)  # in order

    def _is_news(self, broker: BrokerModel, report: ms.ReplicaReport) -> bool:
        """How far the log is changes all the time, and is told with the rest."""
        before = broker.reported.get(report.set)
        is_other = before is None or before._replace(lsn=report.lsn) != report
        return is_other or (before != report and self.now_s >= broker.next_report_s)

    # --- what must be so at rest

    def heal(self) -> None:
        """Nothing is cut, late or lost any more."""
        self.cut.clear()
        self.loss, self.delay_s = 0.0, 0.01

    def settle(self, seconds: float) -> None:
        """Let it come to rest within that time, and check that it has. Raises Broken."""
        end_s, before = self.now_s + seconds, (-1, -1)
        while (self.map_events, self.orders) != before:
            if self.now_s > end_s:
                raise Broken(f"it does not come to rest: {self.log[-3:]}; {self.notes[-5:]}")
            before = self.map_events, self.orders
            self.run(QUIET_S)
        for name, entry in self.committed_map.sets.items():
            self._check_at_rest(name, entry)
        for broker in self.brokers.values():
            if broker.is_up and list(broker.map.events(1)) != list(self.committed_map.events(1)):
                raise Broken(f"{broker.name} has another map")

    def _check_at_rest(self, name: str, entry: SetEntry) -> None:
        leaders = [
            member.broker
            for broker in self.brokers
            if (member := self.member(broker, name)) is not None and member.state == "primary"
        ]
        open_brokers = [
            broker.name
            for broker in self.committed_map.brokers.values()
            if not broker.draining and self.brokers[broker.name].is_up
        ]
        if leaders != [entry.record.primary]:
            could = [broker for broker in self.brokers if self._could_lead(broker, name, entry)]
            if leaders or could:
                raise Broken(f"{name} is led by {leaders}, recorded is {entry.record}; {could} could")
            return
        least = min(self.least(self.committed_map, entry), len(open_brokers))
        in_sync = set(entry.record.members) & set(entry.staying) & set(open_brokers)
        if len(in_sync) < least:
            raise Broken(f"{name} has in sync {in_sync} of {least}: {entry}")
        stuck = [broker for broker in entry.leaving if self.brokers[broker].is_up]
        if stuck and len(open_brokers) >= self.least(self.committed_map, entry):
            raise Broken(f"{name}: {stuck} should have left: {entry}")

    def _could_lead(self, broker: str, name: str, entry: SetEntry) -> bool:
        member = self.member(broker, name)
        if member is None:
            return False
        peers, unreachable = self.peers(member, entry)
        return not member.why_not_promoted(entry, peers, unreachable, False)
