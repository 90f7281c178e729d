"""Brokers that serve one set or relay their clients' links to who leads one, clients, and the promises both are given.

Real is all of `server`: listeners but for their sockets, channels between brokers, the drivers of members, stores with
their journals, the controller, and proxies, with Proton's engines at both ends of each connection, on loops in virtual
time. Brokers have stores, so a power cut leaves what was synced. Beside them run the agents that ship, or somebody
promotes who tries who is ready, as a manager of another make does. A broker alone is killed only while another one
could take over what it leads, so that nothing that was confirmed may be lost.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import proton

from kernel_use import use_what_is_built
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.consumer_credit import ASKED_MESSAGES
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.amqp.links.relayed_links import RelayedConsumer, RelayedPublisher
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sessions import Session
from qpid_ha_config.settings import ActivationSettings, BrokerSettings
from simulation.brokers.agents import AgentsWatch
from simulation.brokers.amqp_client import BEGAN_MS
from simulation.brokers.clients import (
    BUSY,
    DELETED,
    AnonymousClient,
    BrowsingClient,
    BusyClient,
    ConsumingClient,
    LinkClient,
    PublishingClient,
    ShrinkingClient,
)
from simulation.brokers.custody import ConfirmationsWatch, payloads_in
from simulation.brokers.deletions import DeletionClient, why_deleted_are_used
from simulation.brokers.disks import PUT_BACK_S, SLOW_DISKS_S
from simulation.brokers.forks import Forks
from simulation.brokers.ledger import ClientSession, Sent
from simulation.brokers.numbering import NumberingPublisher
from simulation.brokers.operator import OperatorOnCall
from simulation.brokers.placed_sets import ControlledSet, DefaultSet, PlacedSet, RecordOfCoordinator
from simulation.brokers.plan import BrokersKind, BrokersPlan, PowerCut
from simulation.brokers.sessions import SessionClient
from simulation.brokers.subscriptions import SubscribedExchange
from simulation.brokers.transactions import TransactingClient
from simulation.brokers.trouble import BrokersTrouble
from simulation.custody import Custody
from simulation.machines.coordinator import Leases, LeaseUser, SessionLeases, SimulatedCoordinator
from simulation.machines.machine import Surroundings
from simulation.machines.node import (
    PORT,
    BrokerNode,
    BrokerReplica,
    NodeListener,
    SimulatedBroker,
    Site,
    host_of,
    name_at,
)
from simulation.machines.streams import Streams
from simulation.trace import Trace
from simulation.violations import Violation, problem_of
from simulation.virtual_time import Clock, Schedule

PLAIN: Final = "plain"
"""A queue that refuses nothing."""
QUEUES: dict[str, dict[str, str | int | float | bool | None]] = {
    PLAIN: {},
    "small": {"qpid.max_count": 5, "qpid.policy_type": "reject"},
    DELETED: {},
}
"""Of `default`, with their arguments."""
QUEUES_OF_OTHERS = (PLAIN, "small")
use_what_is_built()
AnyClient = LinkClient | TransactingClient | SessionClient
SIZES: Final = (*(0,) * 60, *(1000,) * 3, 10_000, 70_000)
"""Of messages: a few are longer than a frame. All brokers keep them in memory, in a journal and in a snapshot."""
BUSY_SIZES: Final = (2_000,)
"""Of those that are on their way to consumers who take credit back."""
IN_MEMORY: Final = Path("/dev/shm")
CHECK_S = 0.05
MEMBERS_CHECKED_S: Final = 1.0
"""So often the invariants of all members are checked, which takes long."""
DRIFT = 0.01
REST_WITHIN_S = 40.0
REPLICAS_EQUAL_WITHIN_S: Final = 2.0
"""What the last clients leave is still on its way to backups."""
FAILBACK_DELAY_S: Final = 1.0
GONE_WITHIN_S = 12.0
"""After the last client has gone: those who died without a word are noticed by their silence."""


@dataclass(frozen=True)
class BrokersOutcome:
    """What became of a run; `problem` is empty when every promise was kept."""

    plan: BrokersPlan
    problem: str
    steps: int
    confirmed: int
    handed_out: int
    ended: int
    late: int
    """How often something came again because a consumer's link had ended, or because its proxy was late."""
    committed: int
    """Transactions that were committed."""
    unknown: int
    """Transactions of which their client does not know whether they were."""
    to_subscribers: int
    """Messages that subscribers of an exchange got."""
    resumed: int
    lost: int
    """How often a client came back to its session in time, and too late."""
    generations: int
    forced: int
    """How often an operator has overridden a refusal."""
    trace: tuple[str, ...]
    fingerprint: str


class BrokersWorld:
    """Everything that a plan brings to life; the watcher of its nodes, and what its clients have in common."""

    sizes: tuple[int, ...] = SIZES
    busy_sizes: tuple[int, ...] = BUSY_SIZES

    def __init__(self, plan: BrokersPlan, with_trace: bool, directory: Path) -> None:
        """`directory`: an empty one, which is used up."""
        self.plan = plan
        self.schedule = Schedule()
        self.trace = Trace(self.schedule, with_trace)
        self.brokers = tuple(f"n{index}" for index in range(plan.brokers))
        self.streams = Streams(self.schedule, self._draw("streams"), plan.delay_s, plan.socket_bytes)
        self._coordinator = directory / "coordinator"
        self._coordinator.mkdir()
        self.leases = self._make_leases()
        self.surroundings = Surroundings(
            self.trace, directory, self._refuses, self._coordinator_of, plan.chunk_messages
        )
        self.custody = Custody(self.brokers, True, lambda: self.schedule.now_s, payloads_in)
        site = Site(
            plan.seed,
            self.schedule,
            self.streams,
            self.trace,
            self.surroundings,
            self,
            directory,
            plan.turn_within_s,
            self.leases,
            plan.has_agents,
            self._activation,
            self.custody,
        )
        self.nodes = [
            BrokerNode(site, index, self._clock(index), self._broker_settings) for index in range(plan.brokers)
        ]
        self.streams.listeners = {node.name: NodeListener(node) for node in self.nodes}
        record = RecordOfCoordinator(self._coordinator)
        self.default = DefaultSet(self.schedule, self.trace, self._draw("manager"), record, self.nodes)
        self.default.queues = QUEUES | ({BUSY: {}} if plan.shrinking else {})
        self.sets: list[PlacedSet] = [self.default]
        self.sets += [self._other_set(number, replicas) for number, replicas in enumerate(plan.replicas, 1)]
        self._confirmations: list[ConfirmationsWatch] = []
        self._look_at_confirmations()
        self.forks = Forks(self, self.default, self.sets, plan)
        self.exchange = SubscribedExchange(self, self.default, self._draw("exchange"), plan)
        self.operator = OperatorOnCall(
            self.schedule, self.leases, self.nodes, self.default, [placed.ledger for placed in self.sets]
        )
        self.trouble = BrokersTrouble(
            self.schedule,
            self.streams,
            self.nodes,
            self.default,
            self.sets,
            self.leases,
            self.operator,
        )
        self.agents = AgentsWatch(
            self.schedule, self.leases, self.nodes, self.default, self.streams.is_blocked, plan.priorities
        )
        self.clients: list[AnyClient] = []
        self._sessions: dict[str, ClientSession] = {}
        """By UUID."""
        self._attached_lsns: dict[tuple[str, int, int], int] = {}
        """Of sessions that the newest primary counts as attached: by UUID, epoch and generation, an LSN that is not
        below that of the event that says so."""

    def _make_leases(self) -> Leases:
        timeout_s = self.plan.session_timeout_s
        return SessionLeases(self.schedule, self._draw("sessions"), timeout_s) if timeout_s else Leases(self.schedule)

    def _coordinator_of(self, directory: Path, user: LeaseUser) -> SimulatedCoordinator:
        return SimulatedCoordinator(directory, user, self.leases)

    def _draw(self, what: str) -> random.Random:
        return random.Random(f"{self.plan.seed}/{what}")

    def _clock(self, index: int) -> Clock:
        draw = self._draw(f"clock {index}")
        return Clock(self.schedule, 1.0 + draw.uniform(-DRIFT, DRIFT), draw.uniform(1.0, 1e6))

    def _broker_settings(self, index: int, directory: Path) -> BrokerSettings:
        return BrokerSettings.from_values(self._values(index, directory))

    def _values(self, index: int, directory: Path) -> dict[str, Any]:
        """Of the settings of a broker."""
        addresses = [f"amqp://{host_of(number)}:{PORT}" for number in range(self.plan.brokers)]
        own: dict[str, Any] = {
            "name": f"n{index}",
            "listen": addresses[index],
            "data-dir": str(directory),
            "control-socket": str(directory / "control.sock"),
            "acl.rules": ["allow all all"],
            "auto-create": False,
            "idle-timeout": "3s",
            "publisher-credit": self.plan.publisher_credit,
            "max-unsettled-per-connection": self.plan.most_unsettled,
            "deduplication.producers": 1000,
            "store.segment-size": self.plan.segment_bytes,
            "store.consolidate-at": 2 * self.plan.segment_bytes,
            "store.memory": "64MiB",
            "memory-limit": "256MiB",
            "ha.cluster": True,
            "ha.brokers-url": ",".join(addresses),
            "ha.clients": "proxy" if self.plan.relays else "redirect",
            "ha.default-replicas": self.plan.brokers,
            "ha.coordinator": f"file:{self._coordinator}",
            "ha.min-in-sync": self.plan.min_in_sync,
            "link-heartbeat-interval": "450ms",
        }
        if self.plan.tail_bytes:
            own["ha.tail-size"] = self.plan.tail_bytes
        return own

    def _activation(self, index: int) -> ActivationSettings:
        if not self.plan.priorities:
            return ActivationSettings()
        priority = self.plan.priorities[index]
        return ActivationSettings(failback="preferred", priority=priority, failback_delay_s=FAILBACK_DELAY_S)

    def _look_at_confirmations(self) -> None:
        """At each, of each set. What brokers hand on to queues of another set is not known as its publisher's there."""
        for placed in self.sets:
            watch = ConfirmationsWatch(self.custody, self.plan.min_in_sync, placed.register)
            placed.ledger.confirmed = watch.confirmed
            self._confirmations.append(watch)

    def _other_set(self, number: int, replicas: tuple[int, ...]) -> PlacedSet:
        name = f"set-{number}"
        members = [BrokerReplica(self.nodes[index], name) for index in replicas]
        placed = ControlledSet(name, self.schedule, self.trace, self.default, members)
        placed.queues = {f"{queue}_{number}": QUEUES[queue] for queue in QUEUES_OF_OTHERS}
        return placed

    def _refuses(self, host: str) -> bool:
        return not self.streams.listeners[name_at(host)].is_up

    def _set(self, name: str) -> PlacedSet:
        return next(placed for placed in self.sets if placed.name == name)

    def now_ms(self) -> int:
        return BEGAN_MS + int(self.schedule.now_s * 1000)

    def _make_clients(self) -> list[AnyClient]:
        plan, queues = self.plan, self._draw("queues")
        kinds: list[tuple[str, type[LinkClient], int]] = [
            ("p", PublishingClient, plan.publishers),
            ("c", ConsumingClient, plan.consumers),
            ("b", BrowsingClient, plan.browsers),
        ]
        clients: list[AnyClient] = self._make_shrinking()
        for letter, kind, count in kinds:
            for number in range(count):
                placed, queue = self._pick(queues)
                clients.append(self._make_client(kind, f"{letter}{number}", placed, queue))
        for client in clients:
            if isinstance(client, BrowsingClient):
                client.drains = plan.most_unsettled > 1000
        draw = self._draw("queues of transactions")
        for number in range(plan.transacting):
            placed = draw.choice(self.sets)
            plain, *others = [name for name in placed.queues if name not in (DELETED, BUSY)]
            name, source = f"t{number}", draw.choice([plain, *others])
            client = TransactingClient(self, name, self._draw(name), placed.ledger, (source, plain))
            client.is_hurried = plan.hurried
            clients.append(client)
        for number in range(plan.numbering):
            name = f"d{number}"
            clients.append(NumberingPublisher(self, name, self._draw(name), self.default.ledger, PLAIN))
        ledgers = {queue: placed.ledger for placed in self.sets for queue in placed.queues}
        for number in range(plan.anonymous):
            name = f"a{number}"
            clients.append(AnonymousClient(self, name, self._draw(name), ledgers))
        lasting = {queue: ledger for queue, ledger in ledgers.items() if queue not in (DELETED, BUSY)}
        for number in range(plan.sessions):
            name = f"s{number}"
            clients.append(SessionClient(self, name, self._draw(name), lasting, self._session_begins))
        for number in range(plan.bereft):
            name = f"s{plan.sessions + number}"
            deleted = {DELETED: self.default.ledger}
            clients.append(DeletionClient(self, name, self._draw(name), deleted, self._session_begins))
        clients += self.exchange.make_clients(self._draw) + self.forks.make_clients(self._draw)
        for client in clients if plan.needs_stores else ():
            if isinstance(client, PublishingClient):
                client.is_durable = True
        return clients

    def _make_client(self, kind: type[LinkClient], name: str, placed: PlacedSet, queue: str) -> LinkClient:
        return kind(self, name, self._draw(name), placed.ledger, queue)

    # --- power

    def _plan_power_cuts(self) -> None:
        """From now on, when clients have begun."""
        if self.plan.power_cuts:
            draw = self._draw("disks")
            self._slow_disks([draw.choice(SLOW_DISKS_S) for _ in self.nodes])
            # One that stays slow keeps its broker from the in-sync set for as long as clients are busy.
            self.schedule.after(self.plan.faults_end_s, partial(self._slow_disks, [0.0] * len(self.nodes)))
        for cut in self.plan.power_cuts:
            self.schedule.after(cut.at_s, partial(self._cut_power, cut))

    def _slow_disks(self, slow_s: Sequence[float]) -> None:
        for node, machine_s in zip(self.nodes, slow_s, strict=True):
            node.disks.slow_s = machine_s

    def _cut_power(self, cut: PowerCut) -> None:
        """No broker could take over: each has what it has synced. Not where one is away already, and comes again."""
        if all(node.is_up and not node.is_paused and not node.disks.is_full for node in self.nodes):
            for node, back_s in zip(self.nodes, cut.back_s, strict=True):
                node.kill(is_silent=True)
                self.schedule.after(back_s - cut.at_s, node.start_machine)

    def _make_shrinking(self) -> list[AnyClient]:
        """Consumers whose credit shrinks, and who publishes to them."""
        ledger, clients = self.default.ledger, list[AnyClient]()
        for number in range(self.plan.shrinking):
            publishers = [(f"p{100 + 2 * number + each}", BusyClient) for each in range(2)]
            for name, kind in ((f"k{number}", ShrinkingClient), *publishers):
                clients.append(kind(self, name, self._draw(name), ledger, BUSY))
        return clients

    # --- sessions

    def _session_begins(self, session: ClientSession) -> None:
        self._sessions[session.name] = session

    def session_may_end(self, name: str) -> None:
        """See `trouble.WithClients`."""
        self._sessions[name].may_end = True

    def session_ends(self, node: BrokerNode, session: Session) -> None:
        """At its timeout, and no sooner, unless its client has ended it."""
        known = self._sessions[session.name]
        if node.member.status.generation != self.default.watch.generation or known.has_ended:
            return
        known.has_ended = True
        if not known.may_end and session.is_attached:
            raise Violation(f"{node.name} ends session {session.name}, whose client has not said that it goes for good")
        away_s = self.schedule.now_s - known.attached_s
        if not known.may_end and away_s < known.timeout_s - 2 * CHECK_S:
            raise Violation(f"{node.name} ends session {session.name}, whose client was there {away_s:.3f} s ago")

    def _look_at_sessions(self) -> None:
        primary = self.default.primary
        # One that was replaced and does not know it yet counts clients as connected that are not, at the newest.
        if primary is not None and primary.member.status.generation == self.default.watch.generation:
            log, attached = primary.resources.replicated.log, dict[tuple[str, int, int], int]()
            for session in primary.resources.replicated.state.sessions.by_id.values():
                if session.is_attached:
                    key = session.name, session.epoch, self.default.watch.generation
                    attached[key] = self._attached_lsns.get(key, log.last_lsn)
                    if attached[key] <= log.committed_lsn:
                        self._sessions[session.name].attached_s = self.schedule.now_s
            self._attached_lsns = attached

    def _why_sessions_differ(self) -> str:
        """Of what brokers know; empty: they know the same."""
        registries = [node.resources.replicated.state.sessions.by_id for node in self.nodes]
        return "" if all(each == registries[0] for each in registries) else f"brokers know sessions {registries}"

    def _why_sessions_are_not_at_rest(self) -> str:
        if not all(node.is_up or node.name in self.default.gone for node in self.nodes):
            return "not all brokers are up"
        names = {client.session.name for client in self.clients if isinstance(client, SessionClient)}
        found = self.nodes[0].resources.replicated.state.sessions.by_name
        attached = {name for name, session in found.items() if session.is_attached}
        return self._why_sessions_differ() or ("" if attached == names else f"attached are {attached}, not {names}")

    def _pick(self, draw: random.Random) -> tuple[PlacedSet, str]:
        placed = draw.choice(self.sets) if len(self.sets) > 1 else self.default
        queues = [name for name in placed.queues if name != BUSY]
        return placed, draw.choices(queues, (5, 3, 1)[: len(queues)])[0]

    # --- see `brokers_node.BrokersWatcher`

    def joined(self, node: BrokerNode, broker: SimulatedBroker) -> None:
        """A kind of cluster may look at more of it."""

    def member_changed(self, node: BrokerNode, set_name: str, change: fx.StateChanged, led_generation: int) -> None:
        if change.before is State.PRIMARY:
            self.ends_to_lead(set_name, led_generation)
        placed = self._set(set_name)
        if placed is self.default and self.plan.has_agents:
            self.agents.changes(node, change)
        replica = placed.at(node.index)
        if change.after is State.PRIMARY and replica is not None:
            placed.leads(replica)

    def asks_to_step_down(self, node: BrokerNode, set_name: str, cause: str) -> None:
        if self._set(set_name) is self.default:
            self.agents.asks_to_step_down(node, cause)

    def ends_to_lead(self, set_name: str, led_generation: int) -> None:
        self._set(set_name).watch.ends_to_lead(led_generation)

    def broke(self, node: BrokerNode, reason: str) -> None:
        if not self._waits_for_room(node):
            raise Violation(f"{node.name} ends: {reason}")

    def _waits_for_room(self, node: BrokerNode) -> bool:
        """Whoever cannot write what it is about to promise ends, and its agent starts it again until it can."""
        return self.plan.has_agents and node.disks.is_full

    def store_refused(self, node: BrokerNode, problem: str) -> None:
        if self._waits_for_room(node):
            return
        if not node.disks.is_damaged:
            raise Violation(f"{node.name} cannot use its store: {problem}")
        node.note_line("AN OPERATOR SETS ITS STORE ASIDE")
        node.disks.put_back({})

    def agent_asks(self, node: BrokerNode, method: str) -> None:
        self.agents.asks(node, method)

    def agent_starts_again(self, node: BrokerNode) -> None:
        self.agents.starts_again(node)

    def agent_signals(self, node: BrokerNode, number: signal.Signals) -> None:
        (self.agents.kills if number is signal.SIGKILL else self.agents.signals)(node)

    def attached(self, node: BrokerNode, connection: Connection, link: proton.Link, endpoint: LinkEndpoint) -> None:
        if isinstance(endpoint, OutgoingLink):
            placed = self._set(endpoint.hosted.name)
            replica = placed.at(node.index)
            if replica is not None:
                placed.watch.attached(replica, connection, endpoint)
        elif isinstance(endpoint, RelayedConsumer):
            self._set(endpoint.set_name).watch.relayed(endpoint)

    # --- what must be so at any time

    def _check(self) -> None:
        self.schedule.after(CHECK_S, self._check)
        for placed in self.sets:
            placed.watch.may_be_outdated()
        for confirmations in self._confirmations:
            confirmations.look(self.schedule.now_s)
        self._look_at_sessions()
        for node in self.nodes:
            if self.plan.relays and node.is_up and not node.is_paused and not node.is_in_turn:
                self._check_links(node)

    def _check_members(self) -> None:
        self.schedule.after(MEMBERS_CHECKED_S, self._check_members)
        for placed in self.sets:
            for node in placed.nodes:
                if node.is_up:
                    node.member.check_invariants()

    def _check_links(self, node: BrokerNode) -> None:
        for link in node.proxying.pool.links:
            if isinstance(link, RelayedConsumer):
                _check_consumer(node, link)
            elif isinstance(link, RelayedPublisher):
                self._check_publisher(node, link)

    def _check_publisher(self, node: BrokerNode, link: RelayedPublisher) -> None:
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
            node.start_machine()
        for placed in self.sets:
            self.schedule.after(0.3, placed.look)
        self.schedule.after(CHECK_S, self._check)
        self.schedule.after(MEMBERS_CHECKED_S, self._check_members)
        if self.plan.has_agents:
            self.agents.look()
            self.operator.look()
        self._until(self._why_brokers_are_not_at_rest, REST_WITHIN_S)
        self.clients = self._make_clients()
        self._plan_power_cuts()
        began_s = self.schedule.now_s
        for fault in self.plan.faults:
            self.schedule.after(fault.at_s, partial(self.trouble.strike, fault, self))
            if fault.kind is BrokersKind.DISKS_PUT_BACK:
                self.schedule.after(max(0.0, fault.at_s - PUT_BACK_S), self.trouble.disks.copy)
        self.schedule.run_until(began_s + self.plan.faults_end_s + 0.5)
        self.trouble.end()
        self._until(self._why_brokers_are_not_at_rest, REST_WITHIN_S)
        self.come_to_rest()
        self.schedule.run_until(self.schedule.now_s + 1.0)
        for client in self.clients:
            client.is_quiet = True
        self._until(self._why_not_at_rest, REST_WITHIN_S)
        self._until(self._why_sessions_are_not_at_rest, REST_WITHIN_S)
        for client in self.clients:
            client.stop()
        self._until(self._why_somebody_is_there, GONE_WITHIN_S)
        self._until(self._why_brokers_are_not_at_rest, REST_WITHIN_S)
        self._until(self._why_replicas_differ, REPLICAS_EQUAL_WITHIN_S)
        left: set[Sent] = set()
        for placed in self.sets:
            left |= placed.check_rest()
        self.exchange.check_rest()
        self.forks.check_rest()
        for client in self.clients:
            if isinstance(client, TransactingClient):
                client.check_unknown(left)

    def come_to_rest(self) -> None:
        """Nothing goes wrong any more, and brokers are at rest: what else a kind of cluster has happen then."""

    def _until(self, why_not: Callable[[], str], limit_s: float) -> None:
        end_s = self.schedule.now_s + limit_s
        while reason := why_not():
            if self.schedule.now_s > end_s:
                raise Violation(f"after {limit_s:g} s: {reason}")
            self.schedule.run_until(self.schedule.now_s + 0.1)

    def _why_brokers_are_not_at_rest(self) -> str:
        return (
            next(filter(None, [placed.why_not_at_rest() for placed in self.sets]), "") or self.forks.why_not_at_rest()
        )

    def _why_not_at_rest(self) -> str:
        waiting = next(filter(None, [client.why_not_at_rest() for client in self.clients]), "")
        return waiting or why_deleted_are_used(self.nodes)

    def _why_replicas_differ(self) -> str:
        """A controller has a move that came to nothing tried again: the last attempt may have begun just now."""
        differ = [placed.why_replicas_differ() for placed in self.sets]
        return self._why_brokers_are_not_at_rest() or next(filter(None, differ), "")

    def _why_somebody_is_there(self) -> str:
        for node in self.nodes:
            if not node.is_up and node.agent is not None:
                return f"{node.name} has not come back"  # its agent has it restarted
            if not node.is_up:
                continue
            clients = [each.peer for each in node.open_connections if not each.is_admin]
            if clients:
                return f"{node.name} still has {len(clients)} clients"
            if self.plan.relays and node.proxying.count:
                return f"{node.name} still relays {node.proxying.count} links"
            held = node.container.held.unsettled_bytes, node.container.held.partial_bytes
            if held != (0, 0):
                return f"{node.name} still holds {held} bytes of messages, and has no clients"
            if len(node.resources.replicated.state.sessions):
                return f"{node.name} still has sessions: {node.resources.replicated.state.sessions.by_name}"
        held_in_sets = [placed.why_something_is_held() for placed in self.sets]
        return next(filter(None, held_in_sets), "") or self.exchange.why_somebody_is_there()


def _check_consumer(node: BrokerNode, link: RelayedConsumer) -> None:
    """It never asks for more than its client takes."""
    far = link.far
    if far is None or not link.is_open or link._credit.is_draining or link._is_stopped:
        return
    asked, wanted = engine.credit(far) - len(link._reclaimed), max(link._sender.credit, 0)
    if asked > min(wanted, ASKED_MESSAGES):
        raise Violation(f"{node.name} has asked for {asked} messages, and its client has credit for {wanted}")


def run_proxies(plan: BrokersPlan, with_trace: bool = False) -> BrokersOutcome:
    """The whole run of `plan`. A problem is the outcome, not an exception."""
    return run_world(partial(BrokersWorld, plan, with_trace))


def run_world(make_world: Callable[[Path], BrokersWorld]) -> BrokersOutcome:
    """The whole run of a world that is made in an empty directory."""
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        world = make_world(directory)
        with world.surroundings.installed():
            problem = problem_of(world.run, world.trace)
            outcome = _outcome_of(world, problem)
            for node in world.nodes:
                node.let_go()
        return outcome
    finally:
        shutil.rmtree(directory)


def _outcome_of(world: BrokersWorld, problem: str) -> BrokersOutcome:
    """Of its run."""
    plan = world.plan
    ledgers = [*[placed.ledger for placed in world.sets], world.exchange.ledger, world.forks.ledger]
    transacting = [client for client in world.clients if isinstance(client, TransactingClient)]
    with_sessions = [client for client in world.clients if isinstance(client, SessionClient)]
    return BrokersOutcome(
        plan,
        problem,
        world.schedule.count,
        sum(len(each.accepted) for each in ledgers),
        sum(each.handed_out for each in ledgers),
        sum(each.ended for each in ledgers),
        sum(each.late for each in ledgers),
        sum(each.committed for each in transacting),
        sum(len(each.unknown) for each in transacting),
        world.exchange.handed_out,
        sum(each.resumed for each in with_sessions),
        sum(each.lost for each in with_sessions),
        sum(each.generations for each in world.sets),
        world.operator.forced,
        tuple(world.trace.lines),
        world.trace.fingerprint(),
    )
