"""One run: a cluster, its clients, its manager and its faults on one clock, and the verdict at the end."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from math import inf

from qpid_ha_broker.events.types import BrokerRegistered, SetPlaced
from qpid_ha_broker.ha.effects import StateChanged
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.store.errors import StoreError
from simulated_disk import SimulatedDisk
from simulation.core.clients import Administrator, ConsumingClient, Publisher, Shop
from simulation.core.codec import recoded
from simulation.core.faults import Faults
from simulation.core.ledger import Excuse, Ledger, Terms
from simulation.core.manager import Manager
from simulation.core.network import Network
from simulation.core.node import Node, World
from simulation.core.node_store import Machine
from simulation.core.plan import Plan
from simulation.core.register import Register
from simulation.core.short_lives import ShortLived
from simulation.custody import Custody, Process
from simulation.operator import Operator
from simulation.replicas import replica_picture
from simulation.trace import Trace
from simulation.violations import Violation, problem_of
from simulation.virtual_time import Clock, Schedule

CLIENTS_GO_ON_S = 1.0
REST_WITHIN_S = 25.0
OPERATOR_S = 20.0
"""What it may take longer when an operator has to be asked, whom all refusals lead to."""
QUEUES = ("a", "b")
PASSING_QUEUES = ("v", "w")
DRIFT = 0.01
DAY_MS = 86_400_000
SECOND_SET_AGAIN_S = 0.7
FENCED_DOWN_S = 0.5
RESTARTED_AFTER_S = 0.2, 1.0, 4.0


@dataclass(frozen=True)
class Outcome:
    """What came of a run. `problem` is empty when every promise was kept."""

    plan: Plan
    problem: str
    steps: int
    confirmed: int
    delivered: int
    generations: int
    forced: int
    duplicates: int
    """That brokers dropped in their last lives."""
    excuses: tuple[Excuse, ...]
    """For what was lost although it had been confirmed."""
    trace: tuple[str, ...]
    fingerprint: str


class Cluster:
    """Everything that a plan brings to life."""

    def __init__(self, plan: Plan, with_trace: bool) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.trace = Trace(self.schedule, with_trace)
        codec = recoded if plan.use_codec else None
        draw = self._draw("network")
        self.network = Network(self.schedule, draw, plan.delay_s, plan.channel_frames, codec)
        self.register = Register(
            self.schedule, self._draw("register"), self._draw("register of backups"), self._draw("register of begins")
        )
        names = [f"n{index}" for index in range(plan.nodes)]
        self.custody = Custody(names, plan.has_store, lambda: self.schedule.now_s)
        world = World(self.schedule, self.network, self.register, self.trace, self, self.custody, plan.check_every)
        self.nodes = [self._node(world, index) for index in range(plan.nodes)]
        self.network.hosts = {_address(node.index): node for node in self.nodes}
        terms = Terms(
            plan.min_in_sync, plan.has_coordinator, plan.has_store, bool(plan.producers), plan.delayed_every
        )  # fmt: skip
        self._by_name = {node.name: node for node in self.nodes}
        self.ledger = Ledger(self._by_name, self.custody, terms, lambda: self.schedule.now_s)
        self.forced = 0
        self.generations = self.newest_generation = 0
        self.newest_in_sync: dict[str, int] = {}
        """The in-sync set of the newest primary, as processes."""
        self._in_sync: dict[Process, dict[str, int]] = {}
        self._led_since_s: dict[str, float] = {}
        """When each cluster had its first primary."""
        self._restarts = self._draw("restarts")
        fault_draw = self._draw("faults")
        self.faults = Faults(
            self.schedule, fault_draw, self.network, self.register, self.trace, self.nodes, plan.is_fenced,
            self.custody, self.ledger, plan.faults_end_s,
        )  # fmt: skip
        operator = Operator[Node](
            self.nodes, plan.has_store, lambda: self.ledger.has_promises, lambda: self.faults.damage.has_struck,
            self._note_force, self._force_settled, self._set_stranger_aside, self._set_rival_aside,
            lambda: self.register.record, self._delete_foreign_record,
        )  # fmt: skip
        self.manager = self._make_manager(operator)
        shop = Shop(
            self.schedule, self._draw("clients"), self.ledger, self.nodes, plan.transient, bool(plan.producers),
            plan.delayed_every,
        )  # fmt: skip
        self.publishers = [Publisher(shop, f"p{number}", QUEUES) for number in range(2)]
        self.consumers = [ConsumingClient(shop, queue) for queue in QUEUES for _ in range(2)]
        self.administrator = Administrator(shop, PASSING_QUEUES)
        self.short_lived = ShortLived(shop, self._draw("short lives")) if plan.has_short_lives else None

    def _draw(self, what: str) -> random.Random:
        return random.Random(f"{self.plan.seed}/{what}")

    def _node(self, world: World, index: int) -> Node:
        draw = self._draw(f"clock {index}")
        clock = Clock(self.schedule, 1.0 + draw.uniform(-DRIFT, DRIFT), draw.uniform(1.0, 1e6))
        plan = self.plan
        addresses = tuple(_address(other) for other in range(plan.nodes))

        def settings(instance: str) -> MemberSettings:
            return MemberSettings(
                name=f"n{index}",
                instance=instance,
                addresses=addresses,
                own_address=_address(index) if plan.knows_own_address else "",
                clients_url=_address(index),
                backup_timeout_s=plan.backup_timeout_s,
                min_in_sync=plan.min_in_sync,
                heartbeat_interval_s=plan.heartbeat_interval_s,
                link_timeout_s=3 * plan.heartbeat_interval_s,
                ask_limit_s=0.5,
                tail_bytes=plan.tail_bytes,
                chunk_messages=plan.chunk_messages,
                chunks_ahead=plan.chunks_ahead,
                has_coordinator=plan.has_coordinator,
                has_store=plan.has_store,
                most_in_sync=plan.most_in_sync,
            )

        node = Node(world, index, clock, settings, self._machine(index) if plan.has_store else None)
        node.producers = plan.producers[index] if plan.producers else 0
        if plan.has_short_lives:
            clock.wall_offset_ms = self._draw(f"day {index}").choice((-DAY_MS, 0, DAY_MS))
        return node

    def _machine(self, index: int) -> Machine:
        draw, disk = self._draw(f"disk {index}"), SimulatedDisk(self._draw(f"platters {index}"))
        disk.on_sync = partial(self.custody.synced, f"n{index}")
        return Machine(disk, draw, self.plan.segment_bytes)

    def _make_manager(self, operator: Operator[Node]) -> Manager:
        draw = self._draw("manager")
        return Manager(
            self.schedule, draw, self.trace, self.nodes, self.plan.is_fenced,
            lambda node: not self.faults.is_isolated(node), operator,
            lambda node: self.faults.crash(node, FENCED_DOWN_S, cause="fenced"), self.plan.has_store,
        )  # fmt: skip

    # --- what is watched

    def state_changed(self, node: Node, change: StateChanged) -> None:
        if change.after is State.PRIMARY:
            self._led_since_s.setdefault(node.member.status.cluster, self.schedule.now_s)
            self._note_force_before(node)
            self.ledger.became_primary(node)
            self.generations += 1
            if self.short_lived is not None:
                self.short_lived.became_primary()
            self.newest_generation = node.member.status.generation
        if change.before is State.PRIMARY and change.reason.startswith("handed over"):
            self.manager.handed_over(change.reason)

    def handled(self, node: Node) -> None:
        if node.is_primary:
            in_sync = self._in_sync_processes(node)
            if node.member.status.generation >= self.newest_generation:
                self.newest_in_sync = in_sync
                self.ledger.in_sync_is(in_sync)
                self.manager.last_in_sync = dict.fromkeys(in_sync, 0) if self.plan.has_store else in_sync

    def _in_sync_processes(self, primary: Node) -> dict[str, int]:
        """Of a primary, for whoever shoots before he promotes: a name may stand for one that died, until that is
        noticed."""
        before, by_name = self._in_sync.get((primary.name, primary.process), {}), self._by_name
        now = {name: self._process_behind(by_name[name], before.get(name)) for name in primary.member.status.members}
        self._in_sync[primary.name, primary.process] = now
        return now

    def _process_behind(self, node: Node, known: int | None) -> int:
        if known is None:
            has_held_data = not node.is_up or (
                node.was_level if self.plan.has_store else node.member.status.generation > 0
            )
            return node.process if has_held_data else node.process - 1
        return node.process if node.is_up and node.member.status.state is State.READY else known

    def process_ended(self, node: Node, in_order: bool) -> None:
        self.faults.start_later(node, self._restarts.choice(RESTARTED_AFTER_S))

    def store_refused(self, node: Node, problem: StoreError) -> None:
        """An operator sets a damaged store aside, and its broker begins anew."""
        if node.machine is None or not node.machine.is_damaged:
            raise Violation(f"{node.name} cannot use its store: {problem}")
        self.faults.damage.set_aside(node, str(problem))
        self.faults.start_later(node, self._restarts.choice(RESTARTED_AFTER_S))

    def ended_for_good(self, node: Node, reason: str) -> None:
        """An operator has a broker begin anew that is of another cluster: its store was put back, or another one began
        its first start at the same time, and the record of the faster one was lost in just that moment."""
        is_put_back = node.machine is not None and node.machine.is_put_back
        cluster = node.member.status.cluster
        if not is_put_back and not self.register.was_overtaken(cluster, self._led_since_s.get(cluster, inf)):
            raise Violation(f"{node.name} stops for good: {reason}")
        if node.machine is not None:
            self.faults.damage.set_aside(node, reason)
        self.faults.start_later(node, self._restarts.choice(RESTARTED_AFTER_S))

    def _set_stranger_aside(self, node: Node) -> None:
        node.kill(is_silent=False, cause="an operator stops it")
        self.ended_for_good(node, "it is of another cluster")

    def _set_rival_aside(self, rival: Node) -> None:
        """An operator has one of two primaries begin anew: what it confirmed alone is given up."""
        if not self.faults.damage.has_struck:
            raise Violation(f"{rival.name} leads beside the primary that the record names, and nothing was damaged")
        if rival.resources.replicated.log.committed_lsn >= rival.member.status.history[-1].first_lsn:
            self.ledger.give_up(next(node for node in self._primaries() if node is not rival))
        rival.kill(is_silent=False, cause="an operator stops it")
        if rival.machine is not None:
            self.faults.damage.set_aside(rival, "the record names another primary")
        self.faults.start_later(rival, self._restarts.choice(RESTARTED_AFTER_S))

    def _delete_foreign_record(self) -> None:
        if not self.faults.damage.has_struck:
            raise Violation(f"nothing was damaged, and the record is of another cluster: {self.register.record}")
        if self.trace.wanted:
            self.trace.add("operator", f"deletes the record of another cluster: {self.register.record}")
        self.faults.damage.record_lost()

    def _note_force(self, node: Node) -> None:
        self.forced += 1
        self.ledger.force(node)

    def _note_force_before(self, primary: Node) -> None:
        """The one whom an operator promoted by force was recorded, and overtaken by this one before it heard of that.

        The record that the operator had written is the one by which this one leads. If it goes as far as the other one,
        what it lacks was given up.
        """
        own = primary.member.status.generation, primary.name
        records = [record for record in self.register.history if record.cluster == primary.member.status.cluster]
        index = next((at for at, record in enumerate(records) if (record.generation, record.primary) == own), 0)
        before = records[index - 1].primary if index else ""
        if before not in self.ledger.given_up_for or before == primary.name:
            return
        forced = next(node for node in self.nodes if node.name == before)
        history = primary.member.status.history
        held = history[-2].generation if len(history) > 1 else 0, history[-1].first_lsn - 1
        if held >= forced.member.position:
            self.ledger.give_up(primary)

    def _force_settled(self, node: Node) -> None:
        """The promotion by force was answered. If its record was written all the same, the next one need not force."""
        record = self.register.record
        is_recorded = record.primary == node.name and record.generation > node.member.status.generation
        if not (is_recorded or self.register.writes_late):
            self.ledger.given_up_for.discard(node.name)

    # --- the run

    def run(self) -> None:
        """Raises Violation, or whatever a broken core raises."""
        for node in self.nodes:
            node.start()
        self.faults.plan(self.plan.faults)
        if self.plan.most_in_sync:
            self.schedule.after(self.plan.second_set_s, self._have_second_set)
        end_s = self.plan.faults_end_s
        self.schedule.run_until(end_s)
        self.manager.is_careful = True
        for node in self.nodes:
            if node.machine is not None:
                node.machine.has_stalls = False
        self.schedule.run_until(end_s + CLIENTS_GO_ON_S)
        rest_within_s = REST_WITHIN_S + (OPERATOR_S if self.faults.damage.has_struck else 0.0)
        while (why_not := self._why_not_at_rest()) and self.schedule.now_s < end_s + rest_within_s:
            self._stop_clients()
            self.schedule.run_until(self.schedule.now_s + 0.5)
        if why_not:
            raise Violation(f"no rest after {rest_within_s:.0f} s without faults: {why_not}")
        self.ledger.check_end(self._primaries()[0], [node for node in self.nodes if not node.is_primary])

    def _have_second_set(self) -> None:
        """What the controller would write into the map; again, as long as it may have been lost with a primary."""
        for node in self._primaries():
            node.do(partial(self._write_map, node))
        self.schedule.after(SECOND_SET_AGAIN_S, self._have_second_set)

    def _write_map(self, node: Node) -> None:
        resource_set = node.resources.replicated
        if not node.is_serving or resource_set.state.map.sets:
            return
        zones = cycle(self.plan.zones)
        for other in self.nodes:
            resource_set.write(BrokerRegistered(other.name, "", "", "", next(zones), ""))
        resource_set.write(SetPlaced("second", (node.name,), (), "", 0, 0))
        node.written()

    def _stop_clients(self) -> None:
        """Once they have a broker: a publish that is confirmed after the faults is part of the promise."""
        if self._primaries():
            for publisher in self.publishers:
                publisher.is_stopping = True
            for consumer in self.consumers:
                consumer.is_stopping = True
            self.administrator.is_stopping = True
            if self.short_lived is not None:
                self.short_lived.is_stopping = True

    def _primaries(self) -> list[Node]:
        return [node for node in self.nodes if node.is_primary]

    def _why_not_at_rest(self) -> str:
        states = {node.name: node.member.status.state.value if node.is_up else "down" for node in self.nodes}
        primaries = self._primaries()
        if len(primaries) != 1:
            return f"{len(primaries)} primaries, {states}; refused: {self.manager.refusals}"
        idle = [node.member.status.state if node.is_up else None for node in self.nodes if not node.is_primary]
        observers = max(0, self.plan.nodes - self.plan.most_in_sync) if self.plan.most_in_sync else 0
        if idle.count(State.READY) != len(idle) - observers or idle.count(State.OBSERVER) != observers:
            return f"not all are ready, or observe: {states}"
        if any(publisher.unconfirmed or not publisher.is_stopping for publisher in self.publishers):
            return f"publishes are not confirmed: {[publisher.unconfirmed for publisher in self.publishers]}"
        pictures = [replica_picture(node.member, node.resources) for node in self.nodes]
        different = [node.name for node, each in zip(self.nodes, pictures, strict=True) if each != pictures[0]]
        return f"replicas differ: {different} from n0" if different else ""


def _address(index: int) -> str:
    return f"n{index}:5672"


def run(plan: Plan, with_trace: bool = False) -> Outcome:
    """The whole run of `plan`. A problem is the outcome, not an exception."""
    return outcome_of(Cluster(plan, with_trace))


def outcome_of(cluster: Cluster) -> Outcome:
    """Let `cluster` live, and say what came of it."""
    problem, ledger = problem_of(cluster.run, cluster.trace), cluster.ledger
    return Outcome(
        cluster.plan, problem, cluster.schedule.count, len(ledger.confirmations), ledger.deliveries_total,
        cluster.generations, cluster.forced,
        sum(node.resources.deduplication.dropped_total for node in cluster.nodes), tuple(ledger.excuses),
        tuple(cluster.trace.lines), cluster.trace.fingerprint(),
    )  # fmt: skip
