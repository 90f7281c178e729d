"""A cluster of many resource sets in virtual time: the real controllers, its sets' members, a network and `default`.

`default` is modelled by what it promises: one leader at a time can commit; what was committed stays; of what its leader
had written besides, some survives when another broker takes over. Reports, orders and answers may be late, lost or
repeated, and connections may be cut. Checks run with each event, and once everything has been left alone for a while.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.controller import Controller
from qpid_ha_broker.cluster.placement import Placement, spread
from qpid_ha_broker.cluster_map import ClusterMap, SetEntry
from qpid_ha_broker.events import types as ev
from simulation.map_checks import MapChecks, copy_map
from simulation.node import Violation
from simulation.trace import Trace, shown
from simulation.virtual_time import Schedule

if TYPE_CHECKING:
    from simulation.sets_nodes import Members

STEP_S = 0.05
LATE_S = 0.05
"""What takes longer may be too late for an answer."""
REACH_S = 3.0
"""A broker that the controller reaches for longer answers before it counts as failed."""
QUIET_S = 14.0
"""Longer than it takes until replicas are made up for, in tests that draw their clusters."""
LAST_WRITE_S = 3.0
"""Within that time all replicas have applied the last write: a primary's tick tells that it is committed."""
WALL_MS = 1_700_000_000_000


class RecordRequest(NamedTuple):
    """A member's, of the controller."""

    broker: str
    process: int
    answer: Callable[[ms.AnswerRecord], None]
    """Called at most once, and only while that process lives."""


@dataclass
class BrokerModel:
    """A broker: a process that may die, and what it keeps on disk."""

    name: str
    zone: str
    controller: Controller
    uuid: str = ""
    starts: int = 1
    is_up: bool = True
    is_paused: bool = False
    map: ClusterMap = field(default_factory=ClusterMap)
    """As it knows it: committed, and perhaps a little late. One for as long as the process lives: who listens to it
    hears of all that becomes of it."""
    known: int = 0
    """How many events of the log of `default` are in it."""
    reported: Mapping[str, ms.ReplicaReport] = field(default_factory=dict)
    reported_to: int = 0
    """The generation of `default` whose controller has heard of this process."""
    number: int = 0
    next_report_s: float = 0.0
    held: list[Callable[[], None]] = field(default_factory=list)
    """What came while it was stopped."""
    cut_since_s: float | None = None
    """How long something has not gone through between it and the controller."""
    no_channel_until_s: float = 0.0
    """Until then it can make no channel to the controller."""
    in_reach_since_s: float = math.inf
    """How long it has been there, and whatever the controller asks it gets there at once."""

    @property
    def instance(self) -> str:
        return f"{self.name}/{self.starts}"


MakeMembers = Callable[["World"], "Members"]


class World:
    """Brokers, the network between them, and the log of `default`."""

    def __init__(
        self,
        seed: int,
        brokers: Mapping[str, str],
        members: MakeMembers,
        settings: ms.ControllerSettings | None = None,
        placement: Placement = spread,
        *,
        with_trace: bool = False,
    ) -> None:
        """`brokers`: the zone of each."""
        self.random = random.Random(seed)
        self.schedule = Schedule()
        self.trace = Trace(self.schedule, with_trace)
        self.settings = settings if settings is not None else ms.ControllerSettings()
        self.placement = placement
        self.brokers = {name: self._new_broker(name, zone) for name, zone in brokers.items()}
        self._blocked: Counter[tuple[str, str]] = Counter()
        """Sender and receiver, and how many faults keep them apart."""
        self.loss = 0.0
        """How often a report, an order or an answer is lost."""
        self.repeats = 0.0
        """How often an order comes once more, later."""
        self.delay_s = 0.01
        self.has_faults = False
        """What is made from now on has faults of its own, such as a disk that stalls."""
        # `default`
        self.log: list[ev.MapEvent] = []
        self.committed_map = ClusterMap()
        self.leader = ""
        self.generation = 0
        self._written: list[tuple[ev.MapEvent, ...]] = []
        """By the leader, and not committed: a turn's batches, each of which survives whole or not at all."""
        # checks
        self.answers: dict[int, ms.AnswerRequest] = {}
        self.requests = 0
        self.checks = MapChecks(self.settings.min_replicas)
        self.notes: list[str] = []
        self.map_events = 0
        self.orders = 0
        """But promotions: a set whose last in-sync replicas are away is tried again and again."""
        self.record_requests: dict[int, RecordRequest] = {}
        self._record_numbers = 0
        self.members = members(self)

    def _new_broker(self, name: str, zone: str) -> BrokerModel:
        return BrokerModel(name, zone, Controller(self.settings, self.placement), f"uuid-{name}")

    # --- time

    @property
    def now_s(self) -> float:
        return self.schedule.now_s

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.schedule.after(seconds, do)

    def run(self, seconds: float) -> None:
        """Let so much time go by."""
        end_s = self.now_s + seconds
        while self.now_s + STEP_S <= end_s + 1e-9:
            self.schedule.run_until(self.now_s + STEP_S)
            for broker in self.brokers.values():
                if broker.is_up and not broker.is_paused:
                    self._step(broker)
            self._note_reach()
            if self.leader and not self.brokers[self.leader].is_paused:
                self.feed(ms.TimePassed())

    def run_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Raises Violation if it does not become true."""
        end_s = self.now_s + limit_s
        while not condition():
            if self.now_s > end_s:
                raise Violation(f"after {limit_s} s it is still not so")
            self.run(STEP_S)

    def note(self, who: str, text: str) -> None:
        """For the trace."""
        if self.trace.wanted:
            self.trace.add(who, text)

    # --- the network

    def others(self, name: str) -> list[str]:
        """All brokers but that one, always in the same order: a seed is to be the same story in each process."""
        return [other for other in self.brokers if other != name]

    def latency_s(self) -> float:
        return self.delay_s * (0.5 + self.random.random())

    def is_lost(self) -> bool:
        """Whether what is sent now does not arrive."""
        return self.random.random() < self.loss

    def carries(self, sender: str, receiver: str) -> bool:
        """Whether what is sent now gets there."""
        is_up = self.brokers[sender].is_up and self.brokers[receiver].is_up
        return is_up and (sender, receiver) not in self._blocked

    def reaches(self, one: str, other: str) -> bool:
        """Whether both are there, and hear of each other."""
        is_there = not (self.brokers[one].is_paused or self.brokers[other].is_paused)
        return one == other or (is_there and self.carries(one, other) and self.carries(other, one))

    def block(self, sender: str, receiver: str) -> None:
        """Nothing goes from `sender` to `receiver` until as many `unblock`s; in the end the connections are closed."""
        self._blocked[sender, receiver] += 1
        if self._blocked[sender, receiver] == 1:
            self.members.blocked(sender, receiver, True)
            self._watch(lambda: (sender, receiver) in self._blocked, sender, receiver)

    def unblock(self, sender: str, receiver: str) -> None:
        self._blocked[sender, receiver] -= 1
        if self._blocked[sender, receiver] <= 0:
            del self._blocked[sender, receiver]
            self.members.blocked(sender, receiver, False)

    @property
    def blocked(self) -> list[tuple[str, str]]:
        """Senders and receivers that are kept apart."""
        return list(self._blocked)

    def cut(self, one: str, other: str) -> None:
        """Nothing goes between two brokers."""
        self.block(one, other)
        self.block(other, one)

    def reset(self, one: str, other: str) -> None:
        """The connections between two brokers break, and are opened again."""
        self.members.reset(one, other)
        if self.leader in (one, other):
            self._disconnected(other if self.leader == one else one)

    def break_channel(self, name: str, for_s: float) -> None:
        """Its channel to the controller breaks, and it makes no other one for so long; all else goes on."""
        if self.leader and name != self.leader:
            self.brokers[name].no_channel_until_s = self.now_s + for_s
            self._disconnected(name)

    def has_channel(self, name: str) -> bool:
        """Whether it can have one to the controller."""
        return self.leader == name or self.brokers[name].no_channel_until_s <= self.now_s

    def _note_reach(self) -> None:
        for broker in self.brokers.values():
            is_there = broker.is_up and self.leader and self.reaches(self.leader, broker.name)
            if not is_there or self.delay_s > LATE_S:
                broker.in_reach_since_s = math.inf
            else:
                broker.in_reach_since_s = min(broker.in_reach_since_s, self.now_s)

    def _watch(self, is_silent: Callable[[], bool], one: str, other: str) -> None:
        """Whoever hears nothing for too long closes what is shared between two brokers."""

        def look() -> None:
            if is_silent():
                self.members.reset(one, other)

        self.after(self.settings.failure_timeout_s * (1.0 + 0.5 * self.random.random()), look)

    def _disconnected(self, name: str) -> None:
        broker = self.brokers[name]
        broker.reported_to, instance = 0, broker.instance
        self.after(self.latency_s(), lambda: self.feed(ms.BrokerDisconnected(name, instance)))
        if not broker.is_up and self.random.random() < 0.5:
            self.after(2 * self.latency_s(), lambda: self.feed(ms.BrokerRefuses(name, instance)))

    def deliver(self, name: str, do: Callable[[], None]) -> None:
        """Something has come to a process, which looks at it when it can; one that is dead never does."""
        broker = self.brokers[name]
        if broker.is_paused:
            broker.held.append(do)
        elif broker.is_up:
            do()

    # --- `default` and its controller

    def lead(self, name: str) -> None:
        """`name` becomes primary of `default`; of what the last one has not committed some survives."""
        self.unlead()
        survived = self._written[: self.random.randint(0, len(self._written))]
        self._written = []
        for batch in survived:
            self._commit(batch)
        self.leader, self.generation = name, self.generation + 1
        self.note(name, f"LEADS default in generation {self.generation}")
        broker = self.brokers[name]
        broker.known = len(self.log)
        broker.map.replace(self.committed_map)
        wall_ms = WALL_MS + int(self.now_s * 1000)
        self.feed(ms.ControllerBegan(broker.map, name, self.generation, wall_ms))

    def unlead(self) -> None:
        """The primary of `default` is gone, with what it has not committed in its map."""
        if self.leader:
            broker = self.brokers[self.leader]
            broker.controller.handle(ms.ControllerEnded(), self.now_s)
            self.leader, broker.known = "", len(self.log)
            broker.map.replace(self.committed_map)

    def feed(self, happened: ms.ControllerInput) -> None:
        """To the controller that there is, when it runs."""
        if not self.leader:
            return
        broker, generation = self.brokers[self.leader], self.generation
        if broker.is_paused:
            broker.held.append(lambda: self._feed_later(generation, happened))
            return
        effects = broker.controller.handle(happened, self.now_s)
        is_news = effects or not isinstance(happened, ms.TimePassed | ms.ReportReceived)
        if self.trace.wanted and is_news and not isinstance(happened, ms.ControllerBegan):
            self.note(self.leader, f"{shown(happened)} -> {'; '.join(map(shown, effects)) or '-'}")
        if any(isinstance(effect, ms.WriteMap) for effect in effects[1:]):
            raise Violation("WriteMap comes first, and once")
        for effect in effects:
            self._carry_out(effect, happened)

    def _feed_later(self, generation: int, happened: ms.ControllerInput) -> None:
        if self.leader and self.generation == generation:
            self.feed(happened)

    def _carry_out(self, effect: ms.ControllerEffect, cause: ms.ControllerInput) -> None:
        match effect:
            case ms.WriteMap(number, events):
                self._write(number, events, cause)
            case ms.GiveOrder():
                self.orders += effect.kind is not ms.OrderKind.PROMOTE
                self._give_order(effect, partial(self.members.obey, effect))
            case ms.OrderDeletion():
                self.orders += 1
                self._give_order(effect, partial(self.members.have_deleted, effect))
            case ms.AskReport(name):
                if not self.is_lost():
                    self.brokers[name].reported_to = 0
            case ms.LookForBroker(name):
                if not self.brokers[name].is_up:
                    generation, refuses = self.generation, ms.BrokerRefuses(name, "")
                    self.after(2 * self.delay_s, lambda: self._feed_later(generation, refuses))
            case ms.AskBroker():
                self._ask_leader(effect)
            case ms.AnswerRecord(_, number):
                asked = self.record_requests.pop(number, None)
                if asked is not None and not self.is_lost() and self.carries(self.leader, asked.broker):
                    self.after(self.latency_s(), lambda: self._answer_record(asked, effect))
            case ms.AnswerRequest(number):
                self.checks.deletions.pop(number, None)
                if number in self.answers:
                    raise Violation(f"request {number} is answered twice")
                self.answers[number] = effect
            case ms.ControllerNote(_, text):
                self.notes.append(f"{self.now_s:8.2f} {self.leader}: {text}")

    def _ask_leader(self, asked: ms.AskBroker) -> None:
        """On the connections that brokers share, in which nothing is lost as long as they reach each other."""
        generation, name = self.generation, asked.name

        def look() -> None:
            report = self.members.reports(self.brokers[name]).get(asked.set)
            if report is not None and report.state == "primary" and self.leader and self.reaches(name, self.leader):
                answered = ms.BrokerAnswered(name, asked.set, report.generation)
                self.after(self.latency_s(), lambda: self._feed_later(generation, answered))

        if self.carries(self.leader, name):
            self.after(self.latency_s(), lambda: self.deliver(name, look))

    def _give_order(
        self, order: ms.GiveOrder | ms.OrderDeletion, carry_out: Callable[[Callable[[bool, str], None]], None]
    ) -> None:
        """Answers to another controller than that which has ordered it count for nothing."""
        generation = self.generation

        def answer(done: bool, text: str) -> None:
            if self.leader and not self.is_lost() and self.carries(order.broker, self.leader):
                answered = ms.OrderAnswered(order.broker, order.number, done, text)
                self.after(self.latency_s(), lambda: self._feed_later(generation, answered))

        def obey() -> None:
            if self.brokers[order.broker].is_up:
                carry_out(answer)

        is_there = order.broker in self.brokers and self.carries(self.leader, order.broker)
        if not self.is_lost() and is_there and self.has_channel(order.broker):
            self.after(self.latency_s(), lambda: self.deliver(order.broker, obey))
            if self.random.random() < self.repeats:
                self.after(self.random.uniform(0.0, 3.0), lambda: self.deliver(order.broker, obey))

    @property
    def last_lsn(self) -> int:
        """Of `default`, as its leader has it."""
        return len(self.log) + sum(map(len, self._written))

    def _write(self, number: int, events: tuple[ev.MapEvent, ...], cause: ms.ControllerInput) -> None:
        leader, generation = self.brokers[self.leader], self.generation
        lsn = self.last_lsn
        self._written.append(events)
        for event in events:
            lsn += 1
            self._check_event(leader.map, event, cause)
            leader.map.apply(lsn, event)
        self.map_events += len(events)

        def commit() -> None:
            if self.generation == generation and self.leader:
                while len(self.log) < lsn:
                    self._commit(self._written.pop(0))
                self.feed(ms.MapCommitted(lsn))

        self.after(self.latency_s(), commit)
        self.feed(ms.MapWritten(number, lsn))

    def _commit(self, batch: tuple[ev.MapEvent, ...]) -> None:
        for event in batch:
            if isinstance(event, ev.SetPlaced) and event.name not in self.committed_map.sets:
                self.checks.made(event.name)
            if isinstance(event, ev.QueueRemoved):
                self.checks.removed(self.committed_map.queues_by_id[event.queue])
            self.log.append(event)
            self.committed_map.apply(len(self.log), event)
            if isinstance(event, ev.SetDeleted):
                self.members.set_deleted(event.name)
            if isinstance(event, ev.SetRecorded):
                self.checks.recorded(event)

    def _check_event(self, before: ClusterMap, event: ev.MapEvent, cause: ms.ControllerInput) -> None:
        if isinstance(event, ev.BrokerChanged) and not event.up and isinstance(cause, ms.TimePassed):
            self._check_loss(before, event.name)
        self.checks.check_write(before, event, cause)

    def _check_loss(self, before: ClusterMap, name: str) -> None:
        """A broker counts as failed from now on."""
        self._note_reach()  # it may have been cut off since the last tick
        since_s = self.brokers[name].in_reach_since_s
        led = [entry.name for entry in before.sets.values() if entry.record.primary == name]
        leads = [set_name for set_name in led if name in self.members.leaders(set_name)]
        if leads and self.now_s - since_s > REACH_S:
            raise Violation(f"{name} lives, is in reach since {since_s:.2f} s, leads {leads}, and is taken for failed")

    # --- requests

    def ask(self, request: ms.ClusterRequest) -> int:
        """Have the controller do something; the request's number."""
        self.requests += 1
        if isinstance(request, ms.DeleteQueue) and self.leader:
            queue = self.brokers[self.leader].map.queues.get(request.name)
            self.checks.asked_deletions |= set() if queue is None else {queue.id}
            self.checks.deletions[self.requests] = request.name
        self.feed(ms.RequestReceived(self.requests, request))
        return self.requests

    def asked(self, request: ms.ClusterRequest, limit_s: float = 15.0) -> ms.AnswerRequest:
        """The same, and what came of it."""
        number = self.ask(request)
        self.run_until(lambda: number in self.answers, limit_s)
        return self.answers[number]

    # --- records, as members ask for them

    def knows_map(self, broker: str) -> bool:
        """Whether that broker would hear of a change of the map."""
        return bool(self.leader) and self.reaches(broker, self.leader)

    def ask_record(
        self,
        broker: str,
        set_name: str,
        expected: ev.SetRecorded | None,
        wanted: ev.SetRecorded | None,
        answer: Callable[[ms.AnswerRecord], None],
    ) -> bool:
        """Of the controller: read it, or replace it. False: there is none that could be asked."""
        if not self.leader or not self.carries(broker, self.leader) or not self.has_channel(broker):
            return False
        self._record_numbers += 1
        number = self._record_numbers
        self.record_requests[number] = RecordRequest(broker, self.brokers[broker].starts, answer)
        asked = ms.RecordRequested(broker, number, set_name, expected, wanted)
        if not self.is_lost():
            self.after(self.latency_s(), lambda: self.feed(asked))
        return True

    def _answer_record(self, asked: RecordRequest, answer: ms.AnswerRecord) -> None:
        def tell() -> None:
            if self.brokers[asked.broker].starts == asked.process:
                asked.answer(answer)

        self.deliver(asked.broker, tell)

    # --- processes

    def kill(self, name: str, *, has_power: bool = True) -> None:
        """The process is gone; its connections are reset, or with its power nobody hears of it any more."""
        broker = self.brokers[name]
        if self.leader == name:
            self.unlead()
        broker.is_up = broker.is_paused = False
        broker.held.clear()
        self.note(name, "DIES" if has_power else "LOSES ITS POWER")
        self.members.died(name, has_power)
        if has_power:
            self._disconnected(name)
        else:
            starts = broker.starts
            for other in self.others(name):
                self._watch(lambda: self.brokers[name].starts == starts, name, other)

    def start(self, name: str, uuid: str = "") -> None:
        """A new process; with another UUID its disk is empty."""
        broker = self.brokers[name]
        controller = Controller(self.settings, self.placement)
        started = BrokerModel(name, broker.zone, controller, uuid or broker.uuid, broker.starts + 1)
        if not uuid:
            started.map, started.known = copy_map(broker.map), broker.known
        self.brokers[name] = started
        self.note(name, "STARTS with an empty disk" if uuid else "STARTS")
        self.members.started(name, bool(uuid))

    def pause(self, name: str) -> None:
        """As with SIGSTOP: others do not notice, but that it says nothing."""
        broker = self.brokers[name]
        broker.is_paused, starts = True, broker.starts
        self.note(name, "PAUSED")
        self.members.paused(name, True)

        def is_silent() -> bool:
            now = self.brokers[name]
            return now.is_paused and now.starts == starts

        for other in self.others(name):
            self._watch(is_silent, name, other)

    def resume(self, name: str) -> None:
        broker = self.brokers[name]
        if not broker.is_paused:
            return
        broker.is_paused = False
        self.note(name, "RESUMED")
        self.members.paused(name, False)
        held, broker.held = broker.held, []
        if self.leader == name and self.random.random() < 0.5:
            self.feed(ms.TimePassed())
        for do in held:
            do()

    # --- brokers

    def _step(self, broker: BrokerModel) -> None:
        is_follower = broker.name != self.leader and self.leader
        if is_follower and self.reaches(broker.name, self.leader):
            while broker.known < len(self.log):
                broker.known += 1
                broker.map.apply(broker.known, self.log[broker.known - 1])
        self.members.step(broker)
        self._report(broker)

    # --- reports

    def _report(self, broker: BrokerModel) -> None:
        if not self.leader:
            broker.reported_to = 0
            return
        if not self.has_channel(broker.name):
            broker.reported_to = 0
        elif not self.reaches(broker.name, self.leader):
            self._lose_connection(broker)
        else:
            broker.cut_since_s = None
            self._report_to(broker, self.leader)

    def _lose_connection(self, broker: BrokerModel) -> None:
        """What is sent into a connection through which nothing goes is lost with it; it is closed after a while."""
        if broker.cut_since_s is None:
            broker.cut_since_s = self.now_s
        if broker.reported_to and self.now_s - broker.cut_since_s > self.settings.failure_timeout_s:
            broker.reported_to = 0
            if self.carries(broker.name, self.leader):
                self._disconnected(broker.name)

    def _report_to(self, broker: BrokerModel, leader: str) -> None:
        here = self.members.reports(broker)
        full = broker.reported_to != self.generation
        changed = tuple(report for name, report in here.items() if full or self._is_news(broker, report))
        dropped = () if full else tuple(name for name in broker.reported if name not in here)
        if not (full or changed or dropped) and self.now_s < broker.next_report_s:
            return
        broker.next_report_s = self.now_s + 0.5
        broker.number += 1
        broker.reported_to, broker.reported = self.generation, here
        identity = ms.BrokerIdentity(
            broker.name, broker.uuid, broker.instance, f"{broker.name}:5672", "", broker.zone, "1.0"
        )
        queues = self.members.report_queues(broker, full)
        report = ms.BrokerReport(
            identity,
            broker.number,
            full,
            1 << 30,
            changed,
            dropped,
            *queues,
            reads_tombstones=True,
            reads_settings=True,
            reads_logins=True,
        )
        if self.is_lost():
            return
        generation = self.generation
        self.after(self.delay_s, lambda: self._feed_later(generation, ms.ReportReceived(report)))  # in order

    def _is_news(self, broker: BrokerModel, report: ms.ReplicaReport) -> bool:
        """How far the log is changes all the time, and is told with the rest."""
        before = broker.reported.get(report.set)
        if before is None or before[:4] != report[:4] or before[5:] != report[5:]:
            return True
        return before.lsn != report.lsn and self.now_s >= broker.next_report_s

    # --- what must be so at rest

    def heal(self) -> None:
        """Nothing is cut, stopped, late or lost any more."""
        for sender, receiver in list(self._blocked):
            del self._blocked[sender, receiver]
            self.members.blocked(sender, receiver, False)
        self.loss, self.delay_s, self.repeats, self.has_faults = 0.0, 0.01, 0.0, False
        for broker in self.brokers.values():
            broker.no_channel_until_s = 0.0
        for name in self.brokers:
            self.resume(name)
        self.members.healed()

    def settle(self, seconds: float) -> None:
        """Let it come to rest within that time, and check that it has. Raises Violation."""
        end_s, before = self.now_s + seconds, (-1, -1)
        while (self.map_events, self.orders) != before:
            if self.now_s > end_s:
                raise Violation(f"it does not come to rest: {self.log[-3:]}; {self.notes[-5:]}")
            before = self.map_events, self.orders
            self.run(QUIET_S)
        self.members.stop_clients()
        self.run(LAST_WRITE_S)
        self.check_at_rest()
        for broker in self.brokers.values():
            if broker.is_up and list(broker.map.events(1)) != list(self.committed_map.events(1)):
                raise Violation(f"{broker.name} has another map")

    def check_at_rest(self) -> None:
        """Nothing has been published for LAST_WRITE_S. Raises Violation."""
        for entry in self.committed_map.sets.values():
            self._check_at_rest(entry)

    def _check_at_rest(self, entry: SetEntry) -> None:
        name, leaders = entry.name, self.members.leaders(entry.name)
        if leaders != [entry.record.primary]:
            could = self.members.could_lead(entry)
            if leaders or could:
                raise Violation(f"{name} is led by {leaders}, recorded is {entry.record}; {could} could")
            return
        up = [broker.name for broker in self.brokers.values() if broker.is_up]
        problem = self.checks.why_not_placed(self.committed_map, entry, up)
        if problem:
            raise Violation(problem)
        self.members.check_at_rest(entry)
