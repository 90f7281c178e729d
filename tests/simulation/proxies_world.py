"""Brokers that relay their clients' links to the primary, those clients, and the promises that both are given.

Real are: the members and their log, containers, connections, relayed links, Proton's engines at both ends of each
connection, and `server.proxying` with its timers, on a loop in virtual time. Simplified are: there is one set,
`default`, in the brokers' memory; a broker is killed only while another one could take over, so that nothing that was
confirmed may be lost; and who promotes is no agent, but somebody who tries who is ready.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from qpid_ha_broker.amqp import engine
from qpid_ha_broker.amqp.consumer_credit import ASKED_MESSAGES
from qpid_ha_broker.amqp.relayed_links import RelayedConsumer, RelayedPublisher
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.store.errors import StoreError
from simulation.amqp_client import BEGAN_MS
from simulation.custody import Custody
from simulation.network import Network
from simulation.node import Node, Violation, World
from simulation.proxies_clients import DELETED, BrowsingClient, ConsumingClient, LinkClient, PublishingClient
from simulation.proxies_ledger import Ledger
from simulation.proxies_node import ProxyNode, Terms
from simulation.proxies_plan import FAULTS_END_S, ProxiesPlan
from simulation.proxies_trouble import ProxiesTrouble
from simulation.proxies_watch import Watch, queued
from simulation.register import Register
from simulation.streams import Streams
from simulation.trace import Trace
from simulation.virtual_time import Clock, Schedule

QUEUES: dict[str, dict[str, str | int | float | bool | None]] = {
    "plain": {},
    "small": {"qpid.max_count": 5, "qpid.policy_type": "reject"},
    DELETED: {},
}
"""With their arguments."""
LOOK_S = 0.1
CHECK_S = 0.05
DRIFT = 0.01
REST_WITHIN_S = 40.0
GONE_WITHIN_S = 8.0
"""After the last client has gone: those who died without a word are noticed by their silence."""


@dataclass(frozen=True)
class ProxiesOutcome:
    """What became of a run; `problem` is empty when every promise was kept."""

    plan: ProxiesPlan
    problem: str
    steps: int
    confirmed: int
    handed_out: int
    ended: int
    late: int
    """How often something came again because a consumer's link had ended, or because its proxy was late."""
    generations: int
    trace: tuple[str, ...]
    fingerprint: str


class ProxiesWorld:
    """Everything that a plan brings to life; the watcher of its nodes, and what its clients have in common."""

    def __init__(self, plan: ProxiesPlan, with_trace: bool) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.trace = Trace(self.schedule, with_trace)
        self.brokers = tuple(f"n{index}" for index in range(plan.brokers))
        self.network = Network(self.schedule, self._draw("network"), plan.delay_s, 1000, None)
        self.streams = Streams(self.schedule, self._draw("streams"), plan.delay_s, plan.socket_bytes)
        register = Register(self.schedule, *(self._draw(f"register {number}") for number in range(3)))
        custody = Custody(self.brokers, False, lambda: self.schedule.now_s)
        around = World(self.schedule, self.network, register, self.trace, self, custody, 50)
        self.nodes: list[ProxyNode] = []
        self.watch = Watch(self.nodes, lambda: self.schedule.now_s)
        terms = Terms(
            self.streams, plan.publisher_credit, plan.most_unsettled, self.watch.attached, self.watch.ends_to_lead
        )
        self.nodes += [self._node(around, index, terms) for index in range(plan.brokers)]
        self.network.hosts = {_address(node.index): node for node in self.nodes}
        self.streams.listeners = {node.name: node for node in self.nodes}
        self.ledger = Ledger(lambda: self.schedule.now_s, self.watch)
        self.watch.gives = self.ledger.leaves_primary
        self.trouble = ProxiesTrouble(
            self.schedule, self.network, self.streams, self.nodes, self.delete_queue, lambda: register.record
        )
        self.generations = 0
        self._promoting_until_s = 0.0
        self._deleting_until_s = 0.0
        self._declared: set[str] = set()
        """Queues that were there once."""
        self._refused: dict[str, int] = {}
        """How often each broker has refused to lead, since somebody has."""
        self._manager = self._draw("manager")
        self.clients: list[LinkClient] = []

    def _draw(self, what: str) -> random.Random:
        return random.Random(f"{self.plan.seed}/{what}")

    def _node(self, around: World, index: int, terms: Terms) -> ProxyNode:
        draw = self._draw(f"clock {index}")
        clock = Clock(self.schedule, 1.0 + draw.uniform(-DRIFT, DRIFT), draw.uniform(1.0, 1e6))
        plan = self.plan

        def settings(instance: str) -> MemberSettings:
            return MemberSettings(
                name=f"n{index}",
                instance=instance,
                addresses=tuple(_address(other) for other in range(plan.brokers)),
                own_address=_address(index),
                clients_url=_address(index),
                backup_timeout_s=2.0,
                min_in_sync=min(plan.min_in_sync, plan.brokers - 1),
                heartbeat_interval_s=0.3,
                link_timeout_s=0.9,
                ask_limit_s=0.5,
                has_coordinator=True,
            )

        return ProxyNode(around, index, clock, settings, terms)

    def now_ms(self) -> int:
        return BEGAN_MS + int(self.schedule.now_s * 1000)

    def _make_clients(self) -> list[LinkClient]:
        plan, queues = self.plan, self._draw("queues")
        kinds: list[tuple[str, type[LinkClient], int]] = [
            ("p", PublishingClient, plan.publishers),
            ("c", ConsumingClient, plan.consumers),
            ("b", BrowsingClient, plan.browsers),
        ]
        return [
            kind(self, f"{letter}{number}", self._draw(f"{letter}{number}"), self.ledger, _pick(queues))
            for letter, kind, count in kinds
            for number in range(count)
        ]

    # --- the brokers' watcher

    def state_changed(self, node: Node, change: fx.StateChanged) -> None:
        if change.after is State.PRIMARY and isinstance(node, ProxyNode):
            self.generations += 1
            self.watch.leads(node)

    def handled(self, node: Node) -> None:
        """Each node checks its invariants itself."""

    def process_ended(self, node: Node, in_order: bool) -> None:
        raise Violation(f"{node.name} has ended by itself")

    def store_refused(self, node: Node, problem: StoreError) -> None:
        raise Violation(f"{node.name} has no store: {problem}")

    def ended_for_good(self, node: Node, reason: str) -> None:
        raise Violation(f"{node.name} ends for good: {reason}")

    # --- who promotes, and who declares queues

    def _look(self) -> None:
        self.schedule.after(LOOK_S, self._look)
        healthy = [node for node in self.nodes if node.is_up and not node.is_paused]
        primary = next((node for node in healthy if node.is_primary), None)
        if primary is not None:
            primary.do(partial(self._declare, primary))
        elif self.schedule.now_s >= self._promoting_until_s and healthy:
            self._promoting_until_s = self.schedule.now_s + 1.5
            self._manager.shuffle(healthy)
            node = min(healthy, key=self._rank)
            node.ask_for(
                lambda request: fx.PromoteAsked(request, False, "the primary is gone"),
                partial(self._promoted, node.name),
            )

    def _rank(self, node: ProxyNode) -> tuple[int, int, int]:
        """Who is to lead: of those that have refused least often the one that has most."""
        return self._refused.get(node.name, 0), -node.member.status.generation, -node.member.position.lsn

    def _promoted(self, name: str, done: bool, text: str) -> None:
        self._promoting_until_s = self.schedule.now_s + 0.2
        if done:
            self._refused.clear()
        else:
            self._refused[name] = self._refused.get(name, 0) + 1
        if self.trace.wanted:
            self.trace.add("manager", f"hears: {done}, {text}")

    def _declare(self, node: ProxyNode) -> None:
        if not node.clients.is_serving or self.schedule.now_s < self._deleting_until_s:
            return
        for name, arguments in QUEUES.items():
            if name not in node.resources.catalog.queues:
                if name in self._declared:
                    self.ledger.queue_deleted(name)
                node.configuration.declare_queue(name, arguments)
                self._declared.add(name)
        node.written()

    def delete_queue(self, node: ProxyNode, for_s: float) -> None:
        """An operator deletes a queue at the primary; after a while it is declared again."""
        if node.clients.is_serving and DELETED in node.resources.catalog.queues:
            self._deleting_until_s = self.schedule.now_s + min(for_s, 1.0)
            node.configuration.delete_queue(DELETED)
            self.ledger.queue_deleted(DELETED)
            node.written()

    # --- what must be so at any time

    def _check(self) -> None:
        self.schedule.after(CHECK_S, self._check)
        self.watch.may_be_outdated()
        for node in self.nodes:
            if node.is_up and not node.is_paused and not node.is_in_turn:
                self._check_links(node)

    def _check_links(self, node: ProxyNode) -> None:
        for link in node.proxying._links:
            if isinstance(link, RelayedConsumer):
                _check_consumer(node, link)
            elif isinstance(link, RelayedPublisher):
                self._check_publisher(node, link)

    def _check_publisher(self, node: ProxyNode, link: RelayedPublisher) -> None:
        """It keeps no more than the client had credit for, which is the primary's."""
        if not link.is_open:
            return
        kept, credit = len(link._kept), max(engine.credit(link.link), 0)
        if kept + credit > self.plan.publisher_credit:
            raise Violation(f"{node.name} keeps {kept} messages of a publisher that has credit for {credit} more")

    # --- the run

    def run(self) -> None:
        """Raises Violation, or whatever a broken core raises."""
        for node in self.nodes:
            node.start()
        self.schedule.after(0.3, self._look)
        self.schedule.after(CHECK_S, self._check)
        self._until(self._why_brokers_are_not_at_rest, REST_WITHIN_S)
        self.clients = self._make_clients()
        began_s = self.schedule.now_s
        for fault in self.plan.faults:
            self.schedule.after(fault.at_s, partial(self.trouble.strike, fault, self))
        self.schedule.run_until(began_s + FAULTS_END_S + 0.5)
        self.trouble.end()
        self._until(self._why_brokers_are_not_at_rest, REST_WITHIN_S)
        self.schedule.run_until(self.schedule.now_s + 1.0)
        for client in self.clients:
            client.is_quiet = True
        self._until(self._why_not_at_rest, REST_WITHIN_S)
        for client in self.clients:
            client.stop()
        self._until(self._why_somebody_is_there, GONE_WITHIN_S)
        self._check_end()

    def _until(self, why_not: Callable[[], str], limit_s: float) -> None:
        end_s = self.schedule.now_s + limit_s
        while reason := why_not():
            if self.schedule.now_s > end_s:
                raise Violation(f"after {limit_s:g} s: {reason}")
            self.schedule.run_until(self.schedule.now_s + 0.1)

    def _why_brokers_are_not_at_rest(self) -> str:
        states = [node.member.status.state if node.is_up else None for node in self.nodes]
        is_so = states.count(State.PRIMARY) == 1 and states.count(State.READY) == len(states) - 1
        return "" if is_so and len(self._declared) == len(QUEUES) else f"brokers are {states}"

    def _why_not_at_rest(self) -> str:
        return next(filter(None, [client.why_not_at_rest() for client in self.clients]), "")

    def _why_somebody_is_there(self) -> str:
        for node in self.nodes:
            clients = [each.peer for each in node.open_connections if not each.is_admin]
            if clients:
                return f"{node.name} still has {len(clients)} clients"
            if node.proxying.count:
                return f"{node.name} still relays {node.proxying.count} links"
            held = node.container.unsettled_bytes, node.container.partial_bytes
            if held != (0, 0):
                return f"{node.name} still holds {held} bytes of messages, and has no clients"
            for queue in node.resources.catalog.queues.values():
                if node.is_primary and (queue.dispatcher.consumers or queue.messages.acquired):
                    return f"{queue.name}: {queue.messages.acquired} messages are held, and nobody is there"
        return ""

    def _check_end(self) -> None:
        """All that is left can be had at the primary."""
        node = next(node for node in self.nodes if node.is_primary)
        self.ledger.check_rest(queued(node))


def _check_consumer(node: ProxyNode, link: RelayedConsumer) -> None:
    """It never asks for more than its client takes."""
    far = link.far
    if far is None or not link.is_open or link._is_draining or link._is_stopped:
        return
    asked, wanted = engine.credit(far) - len(link._reclaimed), max(link._sender.credit, 0)
    if asked > min(wanted, ASKED_MESSAGES):
        raise Violation(f"{node.name} has asked for {asked} messages, and its client has credit for {wanted}")


def _pick(draw: random.Random) -> str:
    return draw.choices(list(QUEUES), (5, 3, 1))[0]


def _address(index: int) -> str:
    return f"amqp://n{index}:5672"


def run_proxies(plan: ProxiesPlan, with_trace: bool = False) -> ProxiesOutcome:
    """The whole run of `plan`. A problem is the outcome, not an exception."""
    world, problem = ProxiesWorld(plan, with_trace), ""
    try:
        world.run()
    except Violation as violation:
        problem = str(violation)
    except Exception:  # noqa: BLE001 - whatever a broken core raises is what was looked for
        problem = traceback.format_exc()
    if problem and with_trace:
        world.trace.add("PROBLEM", problem)
    outcome = ProxiesOutcome(
        plan, problem, world.schedule.count, len(world.ledger.accepted), world.ledger.handed_out,
        world.ledger.ended, world.ledger.late, world.generations, tuple(world.trace.lines), world.trace.fingerprint(),
    )  # fmt: skip
    for node in world.nodes:
        node.close_engines()
    return outcome
