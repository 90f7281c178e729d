"""The AMQP container: the nodes that clients attach to, and the turn that joins their links with the model.

While sockets are read, messages and answers come in. At the end of that round of the event loop there is one turn: it
hands out messages, takes what was written to the logs for their witnesses, and confirms what was committed. So the cost
of a confirmation is shared by all that happened in the round. What belongs to one resource set is in its `HostedSet`;
what all of them share is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from qpid_ha_broker.access.rules import AccessControl
from qpid_ha_broker.access.user_limits import UserLimits
from qpid_ha_broker.amqp.connections.nodes import Nodes, NodeSettings
from qpid_ha_broker.amqp.connections.relayed_memory import RelayedMemory
from qpid_ha_broker.amqp.connections.reservation_keeper import ReservationKeeper
from qpid_ha_broker.amqp.connections.sessions import ClientSessions
from qpid_ha_broker.amqp.nodes.directory import OneSet, ServedElsewhere, SetDirectory
from qpid_ha_broker.amqp.nodes.hosted_set import PORTIONS_S, HostedSet
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.management import Management
from qpid_ha_broker.amqp.nodes.node_wait import WaitingAttach
from qpid_ha_broker.amqp.nodes.sets_administration import SetsAdministration
from qpid_ha_broker.amqp.nodes.terminus import DELAYED_DELIVERY
from qpid_ha_broker.amqp.selectors.message_reader import AmqpMessageReader
from qpid_ha_broker.amqp.wire.conditions import RESOURCE_LOCKED, RESOURCE_SETS, AmqpError
from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_broker.model.budget import Budget, Clock
from qpid_ha_broker.model.commands.administration import Administration
from qpid_ha_broker.model.commands.publishing import ExchangePublisher
from qpid_ha_broker.model.exchanges.broker_events import BrokerEvents, EventSubject
from qpid_ha_broker.model.logs.log import DEFAULT_SET, LogBatch
from qpid_ha_broker.model.sets.grouped import Grouped
from qpid_ha_broker.model.sets.message_clock import SteadyTime
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.strategies import HotStandby
from qpid_ha_broker.model.transactions.producers import DEFAULT_PRODUCERS
from qpid_ha_broker.model.work import Task, WorkQueue

OTHER_SETS_S = 0.008
"""For the turns of all sets but `default`, in one turn of the container: those that are left out come first the next
time."""


@dataclass(frozen=True)
class ContainerSettings:
    """What the container needs to know; credit counts messages."""

    name: str
    version: str
    nodes: NodeSettings = field(default_factory=NodeSettings)
    max_message_bytes: int = 100 * 1024 * 1024
    max_partial_bytes: int = 16 * 1024 * 1024
    """What one connection may have in unfinished messages, beyond one of the largest size."""
    max_transaction_bytes: int = 256 * 1024 * 1024
    max_transaction_messages: int = 2000
    max_links_per_connection: int = 1000
    max_sessions_per_connection: int = 256
    attach_timeout_s: float = 10.0
    """How long an attach waits for a node that is being made in another set."""
    max_client_sessions: int = 10_000
    """Sessions of clients, which outlive their connections; 0: there are none."""
    max_session_timeout_ms: int = 300_000
    """How long such a one may wait for its client."""
    max_unsettled_per_connection: int = 30_000
    """Messages that a client may have and not have answered: credit beyond it waits until some are."""
    publisher_credit: int = 1000
    memory_limit_bytes: int = 1 << 40
    producers: int = DEFAULT_PRODUCERS
    """How many producers that number their messages are remembered, in each set; 0: none."""
    reserves_container_ids: bool = False
    """With proxies, a connection that asks for it has its container id alone in the whole cluster."""
    reservation_hold_ms: int = 6_000
    """How long connections that alone have their container id go on, without a sign of who leads `default`."""
    confirm_dequeue: bool = True
    """Settle a consumer's answer only when what it led to is committed."""
    peer_user: str = ""
    """Who other brokers of the cluster log in as; empty: anybody may say to be one."""

    @property
    def max_unfinished_bytes(self) -> int:
        """What all connections together may have in unfinished messages: a quarter of the memory, but one at least."""
        return max(self.memory_limit_bytes // 4, self.max_message_bytes + self.max_partial_bytes)


class LogNotice(NamedTuple):
    """Something an operator may want to read; the driver logs it. `source`: connection, configuration or memory.

    Or handshake: of a connection that was not let in (yet), so that whoever can reach the port can cause it at will. Or
    elsewhere: of a link that is tried again and again, until somebody leads its set.
    """

    level: str
    source: str
    text: str


class Notices:
    """What there is to log since it was taken, and what happens here, for who watches."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.events = BrokerEvents(wall_ms)
        self.due: Callable[[], None] = lambda: None
        """Called when there is something."""
        self._notices: list[LogNotice] = []

    def add(self, level: str, source: str, text: str) -> None:
        """One more line."""
        self._notices.append(LogNotice(level, source, text))
        self.due()

    def take(self) -> list[LogNotice]:
        """Once each."""
        notices, self._notices = self._notices, []
        return notices


class Greeting:
    """What clients are told at their open."""

    def __init__(self) -> None:
        self.refusal: AmqpError | None = None
        """Why ordinary clients are not served, which each is told once it has opened."""
        self.failover_servers: list[dict[str, object]] = []
        """Where clients find the cluster: network-host, port, scheme of each broker."""
        self.interchangeable = 0
        """So many of them, from the first on, serve alike: each client has another one of these at the top, so that
        those who lose this broker do not all go to the same one."""
        self._greeted = 0

    def servers_for_next_client(self) -> list[dict[str, object]]:
        """`failover_servers`, in the order in which the client that opens now should try them."""
        servers, alike = self.failover_servers, self.interchangeable
        if alike < 2:
            return servers
        first = self._greeted % alike
        self._greeted += 1
        return servers[first:alike] + servers[:first] + servers[alike:]


class TurnTime:
    """Time as it is at the beginning of a turn, where no driver has better clocks. `wall_ahead_ms`: of the other."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self.wall_ahead_ms = 0

    def now_ms(self) -> int:
        """See `SteadyTime`."""
        return self._container.now_ms

    def wall_ms(self) -> int:
        """See `SteadyTime`."""
        return self._container.now_ms + self.wall_ahead_ms

    def steady_at(self, wall_ms: int) -> int:
        """See `SteadyTime`."""
        return wall_ms - self.wall_ahead_ms


@dataclass
class HeldBytes:
    """What all connections together hold."""

    partial_bytes: int = 0
    """In unfinished messages."""
    unsettled_bytes: int = 0
    """Sent and not settled: Proton keeps a copy of each message for its link."""


@dataclass
class PeerListeners:
    """Who takes the channels that brokers open to this one; None: nobody does."""

    single: PeerListener | None = None
    """A channel for one replica, on a connection of its own."""
    shared: PeerListener | None = None
    """Those of all replicas, on one connection."""


class Container:
    """The promise: a set in which nothing happened costs a turn nothing, and no set waits for another one's disk."""

    def __init__(
        self,
        settings: ContainerSettings,
        unique_name: Callable[[], str],
        *,
        log_acquisitions: bool = False,
    ) -> None:
        self.settings = settings
        self.sections = AmqpMessageReader()
        self.clock: Clock = lambda: 0.0
        """What a turn's work is measured by; the driver sets it. Without, a turn does all that there is to do."""
        self.now_ms = 0
        """The time of the current turn, of the clock that nobody can set; the driver sets it. By that each set has its
        own: see `HostedSet.now_ms`."""
        self.steady: SteadyTime = TurnTime(self)
        """The driver sets it."""
        self.work = WorkQueue()
        """Links that end because their session or connection has, of whichever sets."""
        self.notices = Notices(lambda: self.steady.wall_ms())
        self._touched: dict[HostedSet, None] = {}
        """Sets other than `default` that are to have a turn."""
        self.visited: list[HostedSet] = []
        """Those that had one in the last turn."""
        self.sets: dict[str, HostedSet] = {}
        """The sets that this broker has a replica of, by name."""
        self.default = self.host(DEFAULT_SET, self._new_resources(DEFAULT_SET, None, log_acquisitions=log_acquisitions))
        """The set that is always there, and has all exchanges and bindings."""
        self.default.is_touched = True  # always: it is in every turn, and nobody has to say so
        self.publisher = ExchangePublisher(self.default.resources, self._led)
        """Brings what comes to an exchange to the queues of all sets."""
        self.directory: SetDirectory = OneSet()
        """What is known of the sets of the cluster."""
        access = AccessControl(lambda level, text: self.notices.add(level, "access", text), lambda: self.now_ms)
        access.cluster_user = settings.peer_user
        limits = UserLimits(
            lambda level, text: self.notices.add(level, "access", text),
            lambda: self.now_ms,
            lambda: self.clock(),
            settings.max_message_bytes,
        )
        self.management = Management(SetsAdministration(self), settings.name, access)
        self.nodes = Nodes(self, settings.nodes, unique_name, access, limits)
        self.management.created_by = self.nodes.created_by
        self.management.taking_over = lambda: [
            hosted.resources.replicated for hosted in self.sets.values() if hosted.resources.replicated.is_taking_over
        ]
        self.peers = PeerListeners()
        self.greeting = Greeting()
        self.sessions = ClientSessions(self)
        self.reservations = ReservationKeeper(self)
        self.held = HeldBytes()
        """By connections, of messages that are in no queue, or besides."""
        self.relayed = RelayedMemory(lambda: self.settings.memory_limit_bytes)
        """Of clients' links that go on to other brokers."""
        self._other_bytes = 0
        """Of the messages of all sets but `default`, when they had their last turn."""
        self.waiting: dict[WaitingAttach, None] = {}
        """Attaches that are to be answered later."""
        self.gate: Callable[[HostedSet], None] | None = None
        """Who opens the gate of a set that begins to be led here, some time later; None: it has none."""
        self.starved: dict[LinkEndpoint, None] = {}
        """Publishers that wait for memory."""

    # --- the sets

    @property
    def administration(self) -> Administration:
        """What an operator can have done to all sets."""
        return self.management.administration

    @property
    def access(self) -> AccessControl:
        """Who may do what."""
        return self.management.access

    @property
    def limits(self) -> UserLimits:
        """What each user may have."""
        return self.nodes.limits

    @property
    def spans_sets(self) -> bool:
        """Whether what one publisher sends may be for several sets."""
        return len(self.sets) > 1 or self.publisher.forwarder is not None

    def _led(self, name: str) -> Resources | None:
        """The resources of a set that is led here, about to be written to; None: messages for it are handed on.

        Raises ServedElsewhere for one that is about to be handed over, as long as something is not committed: nothing
        goes another way before the links that wait for it have ended. For `default` nothing is handed on at all: what
        comes to its exchanges comes to who leads it.
        """
        hosted = self.sets.get(name)
        if hosted is None:
            return None
        if hosted.read_only:
            written = hosted.resources.replicated
            may_be_lost = not written.replication.read_only and written.log.committed_lsn < written.log.last_lsn
            if may_be_lost or hosted is self.default:
                raise ServedElsewhere(self.directory, name)
            return None
        hosted.flush_accepted()
        hosted.touch()
        return hosted.resources

    def led_set(self, name: str) -> HostedSet:
        """The set `name`, where this broker leads it. Raises ServedElsewhere."""
        hosted = self.sets.get(name)
        if hosted is None or hosted.read_only:
            raise ServedElsewhere(self.directory, name)
        return hosted

    def host(self, name: str, resources: Resources | None = None) -> HostedSet:
        """Have a replica of the set `name`, with what is in `resources` (None: it is empty so far).

        Raises ValueError when there is one.
        """
        if name in self.sets:
            raise ValueError(f"the resource set {name} is hosted already")
        hosted = self.sets[name] = HostedSet(self, resources or self.new_resources(name))
        return hosted

    def new_resources(self, name: str, *, is_group: bool = False) -> Resources:
        """Of a set that is not hosted yet, so that it can be filled before it is. `is_group`: see `Grouped`."""
        log_acquisitions = self.default.resources.log_acquisitions and not is_group
        return self._new_resources(name, Grouped() if is_group else None, log_acquisitions=log_acquisitions)

    def _new_resources(self, name: str, replication: HotStandby | None, *, log_acquisitions: bool) -> Resources:
        resources = Resources(self.sections, name, log_acquisitions=log_acquisitions, replication=replication)
        resources.deduplication.producers = self.settings.producers
        resources.deduplication.is_live = lambda producer: self.sessions.producers.is_live(producer)
        return resources

    def unhost(self, name: str, error: AmqpError) -> None:
        """Have no replica of the set `name` any more: its links end with `error`, and its messages are forgotten.

        Raises ValueError for `default`, and KeyError for a set that is not hosted.
        """
        if name == DEFAULT_SET:
            raise ValueError(f"the resource set {name} is always hosted")
        hosted = self.sets.pop(name)
        hosted.read_only = True
        hosted.resources.replication.read_only = error.description  # so all that goes on there comes to its end
        hosted.end_links(error, browsers=True)
        self._touched.pop(hosted, None)
        self._other_bytes -= hosted.counted_bytes
        for queue in hosted.resources.catalog.queues.values():
            self.default.garbage.add(queue.messages.dismantle())

    def change_settings(self, settings: ContainerSettings) -> None:
        """Put other settings in force; what is open keeps the sizes it was opened with."""
        self.settings = settings
        self.nodes.settings = settings.nodes
        self.limits.change_max_message_bytes(settings.max_message_bytes)
        for hosted in self.sets.values():
            hosted.resources.deduplication.producers = settings.producers

    def led(self, hosted: HostedSet) -> None:
        """`hosted` is led here after another broker: with proxies, its consumers come for what they had there, and
        brokers for the container ids that they had reserved."""
        if hosted is self.default:
            self.reservations.begin()
        if self.gate is not None:
            hosted.resources.is_gated = True
            self.gate(hosted)

    def touched(self, hosted: HostedSet) -> None:
        """See `HostedSet.touch`."""
        self._touched[hosted] = None

    # --- turns

    def take_notices(self) -> list[LogNotice]:
        """What there is to log. Who watches is told of what was done."""
        notices = self.notices.take()
        for hosted in (self.default, *self.visited):
            of_set = "" if hosted is self.default else f"set {hosted.name}: "
            for change in hosted.configuration.take_changes():
                level = "debug" if change.transient else "info"
                notices.append(LogNotice(level, "configuration", of_set + change.text))
                self.notices.events.tell(change.subject, **change.facts)
        return notices

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What every connection is offered, beside sessions."""
        deduplicates = self.default.resources.deduplication.producers > 0
        return (
            "ANONYMOUS-RELAY",
            "SHARED-SUBS",
            "qpid.known-hosts",
            "qpid.known-hosts-of-broker",
            *(() if self.default.resources.replicated.state.marks.why_no_delay else (DELAYED_DELIVERY,)),
            *(("qpid.producer-deduplication",) if deduplicates else ()),
            *((RESOURCE_SETS,) if self.directory.has_many_sets else ()),
        )

    @property
    def has_work(self) -> bool:
        """Whether another turn is due at once."""
        return bool(self._touched or self.work.tasks) or self.notices.events.has_due or self.default.has_work

    def turn(self) -> list[tuple[HostedSet, LogBatch | None]]:
        """End a round; returns what the witnesses of each set that had a turn must see. `default` is the first.

        Call again when a witness has acknowledged.
        """
        if self.work.tasks:
            self.work.run(Budget(self.clock, PORTIONS_S))
        self.sessions.look()
        turns = [(self.default, self.default.turn())]
        self.visited = []
        if self._touched:
            turns += self._turn_of_others()
        self._tell_starved()
        if self.nodes.limits.held:
            self.nodes.limits.wake()
        if self.notices.events.has_due:
            self.notices.events.wake_readers()
        return turns

    def _turn_of_others(self) -> list[tuple[HostedSet, LogBatch | None]]:
        touched, self._touched = self._touched, {}
        budget, pending, turns = Budget(self.clock, OTHER_SETS_S), iter(touched), []
        for hosted in pending:
            hosted.is_touched = False
            turns.append((hosted, hosted.turn()))
            self._count(hosted)
            if hosted.has_work:
                hosted.touch()
            if budget.is_spent:
                self._touched = dict.fromkeys(pending) | self._touched
        self.visited = [hosted for hosted, _ in turns]
        return turns

    def tell_what_is_committed(self, *, in_turn: bool = True) -> None:
        """Tell those who wait in `default` and in what was touched since its turn: after the last steps of a turn, or
        without one."""
        if not in_turn:
            self.visited = list(self._touched)
        self.default.tell_what_is_committed()
        for hosted in list(self._touched):
            hosted.tell_what_is_committed()
            if not hosted.awaits_turn:
                hosted.is_touched = False
                del self._touched[hosted]
        self._tell_starved()

    def flush_accepted(self) -> None:
        """Carry out what consumers have accepted in this turn, in all sets."""
        self.default.flush_accepted()
        for hosted in self._touched:  # whoever has accepted has touched
            hosted.flush_accepted()

    def tick(self) -> None:
        """Expire messages and delete queues whose time has come, where this broker leads: now, or in the next turn."""
        self.default.tick()
        self.sessions.tick()
        self.reservations.tick()
        self.access.tick()
        self.limits.tick()
        if self.waiting:
            self._refuse_late()
        if len(self.sets) > 1:
            for hosted in self.sets.values():
                if hosted is not self.default:
                    hosted.tick_in_turn()
                    self._count(hosted)

    # --- links that end, or do not begin

    def _refuse_late(self) -> None:
        """Attaches that have waited for too long are refused."""
        now_s = self.clock()
        for waiting in list(self.waiting):
            if now_s >= waiting.until_s:
                waiting.callback(AmqpError(RESOURCE_LOCKED, f"{waiting.wait.reason}, which takes too long: try again"))

    def begin(self, task: Task, budget: Budget, *, at_once: bool) -> None:
        """End links: as many now as there is time for, and the rest in the turns to come.

        `at_once`: all of them now, for they hold what others write, and it must be back before they do.
        """
        for _ in task:
            if budget.is_spent and not at_once:
                self.work.add(task)
                break

    def end_links_now(self) -> None:
        """Do all that `begin` has left for later."""
        self.work.run()

    # --- memory

    def has_room(self, link: LinkEndpoint) -> bool:
        """Whether `link` may have more credit; if not, it gets some when there is room again."""
        if self._used_bytes < self.settings.memory_limit_bytes:
            return True
        if not self.starved:
            text = f"{self._used_bytes} bytes are held, memory-limit is reached: publishers wait"
            self.notices.add("warning", "memory", text)
            self.notices.events.tell(EventSubject.ALARM_RAISED, alarm="memory", reason=text)
        self.starved[link] = None
        return False

    def _tell_starved(self) -> None:
        self.relayed.tell_waiting()
        if self.starved and self._used_bytes < self.settings.memory_limit_bytes * 0.9:
            starved, self.starved = self.starved, {}
            for link in starved:
                link.replenish()
            self.notices.events.tell(EventSubject.ALARM_CLEARED, alarm="memory")

    def _count(self, hosted: HostedSet) -> None:
        """Of a set other than `default`: bring up to date what it adds to the memory of all."""
        resources = hosted.resources
        memory_bytes = resources.catalog.memory_bytes + resources.replication.unplaced_bytes
        self._other_bytes += memory_bytes - hosted.counted_bytes
        hosted.counted_bytes = memory_bytes

    @property
    def memory_bytes(self) -> int:
        """What the messages of all sets take; of those that are not `default` when they last had a turn, or a tick."""
        return self.default.resources.catalog.memory_bytes + self._other_bytes

    @property
    def _used_bytes(self) -> int:
        return self.memory_bytes + self.held.partial_bytes + self.held.unsettled_bytes + self.relayed.bytes
