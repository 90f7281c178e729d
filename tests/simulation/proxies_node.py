"""A broker with clients: the real container, connections and proxy around the member of a simulated node.

What `server.broker` is to these with sockets and a loop, `ProxyNode` is on the virtual clock. Real are, of the server's
modules, `proxying`, `client_protocol`, `cluster_clients`, `broker_addresses`, `map_directory` and `forward_links`; sets
are in memory, and there is no administration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, cast

import proton

from kernel_use import use_what_is_built
from qpid_ha_broker.amqp.connections.connection import Connection, Connections
from qpid_ha_broker.amqp.connections.container import Container, ContainerSettings
from qpid_ha_broker.amqp.connections.nodes import NodeSettings
from qpid_ha_broker.amqp.links.attach import attach
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.engine import Engine, Workspace
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.sessions import Session
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.clients.admission import Admission, AdmissionLimits
from qpid_ha_broker.server.clients.client_protocol import ClientProtocol
from qpid_ha_broker.server.clients.cluster_clients import ClientAccess
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.proxies.proxying import Proxying
from qpid_ha_broker.server.runtime.broker_addresses import BrokerAddresses
from qpid_ha_broker.server.runtime.logs import NoticeLog
from qpid_ha_broker.server.stores.loading import StoreLoading
from qpid_ha_config.access_rules import parse_entries
from qpid_ha_config.addresses import Address
from qpid_ha_config.settings import BrokerSettings
from simulation.node import Node, World
from simulation.process_loop import ProcessLoop
from simulation.proxies_forwarding import NodeForwarding
from simulation.proxies_replica import Directory, SetReplica
from simulation.streams import Post, StreamEnd, Streams
from simulation.virtual_time import Clock

TICK_S = 0.5
LOOK_S = 0.1
"""So often a broker looks whether its process was stopped, and whether it has to say that it is there."""
IDLE_S = 2.0
"""A connection on which nothing comes for so long is given up."""
BETWEEN_BROKERS_IDLE_S = 6.0
"""The same between brokers, where nothing else limits it."""
EVERYBODY = parse_entries(["allow all all"]).rules
"""May do everything: addresses are no part of the simulation."""
PROOF = "of the cluster"
"""By which brokers know each other: here they have no login."""
use_what_is_built()
WORKSPACE = Workspace()
Attached = Callable[["ProxyNode", Connection, proton.Link, LinkEndpoint], None]


class RaisedBugs(NoticeLog):
    """A broker notes a bug and goes on; here it ends the run."""

    def fault(self, error: Exception) -> None:
        """Raises it."""
        raise error


class Terms:
    """What all brokers of a run have in common."""

    def __init__(
        self,
        streams: Streams,
        publisher_credit: int,
        most_unsettled: int,
        attached: Attached,
        ends_to_lead: Callable[[int], None],
        map_events: Callable[[], Sequence[ev.MapEvent]],
        session_ends: Callable[[ProxyNode, Session], None],
        *,
        forwards: bool,
    ) -> None:
        self.streams = streams
        self.publisher_credit = publisher_credit
        self.most_unsettled = most_unsettled
        self.attached = attached
        self.ends_to_lead = ends_to_lead
        """Told of the generation whose primary serves nobody any more, before its links end."""
        self.map_events = map_events
        """What a broker that starts knows of the cluster map; empty: there is one set."""
        self.session_ends = session_ends
        """Told of each session that the broker is about to end."""
        self.forwards = forwards
        """There is an exchange that leads to queues of other sets."""


class _Process:
    """One process of a node: see `process_loop.LoopProcess`."""

    def __init__(self, node: ProxyNode, number: int) -> None:
        self._node = node
        self._number = number

    def post(self, command: Callable[[], None]) -> None:
        self._node._in_process(self._number, command)

    def connect(self, host: str, opened: Callable[[StreamEnd | None, str], None]) -> None:
        self._node.terms.streams.connect(self._node.name, self.post, host, opened)


class _Engines:
    """Makes the engines of clients' connections."""

    def make(self, security: object = None) -> Engine:
        return _engine(proton.Transport.SERVER)


def _engine(mode: int | None = None, idle_s: float = IDLE_S) -> Engine:
    transport = proton.Transport() if mode is None else proton.Transport(mode)
    transport.max_frame_size = 64 * 1024
    transport.idle_timeout = idle_s
    return Engine(transport, proton.Connection(), WORKSPACE)


class _ClientSocket(ClientProtocol):
    """Works on what came at once: slices of real time would make each run another story."""

    def _work(self) -> None:
        if self.connection is not None:
            data, self._rest = self._rest, memoryview(b"")
            self._broker.set_time()
            self.connection.receive(data)
            self._broker.schedule_turn()


class ProxyNode(Node):
    """See `Node` for its promise. It is the broker that the server's parts are made with."""

    is_stopping = False
    loading: StoreLoading | None = None

    def __init__(
        self, world: World, index: int, clock: Clock, settings: Callable[[str], MemberSettings], terms: Terms
    ) -> None:
        super().__init__(world, index, clock, settings)
        self.terms = terms
        self.producers = 1000
        own = {
            "name": self.name,
            "control-socket": f"/run/{self.name}.sock",
            "ha.cluster": True,
            "ha.brokers-url": "amqp://127.0.0.1:5671,127.0.0.1:5672",
            "ha.clients": "proxy",
            "link-heartbeat-interval": "450ms",
        }
        self._settings_in_force = BrokerSettings.from_values(own)
        self.is_in_turn = False
        self.replicas: dict[str, SetReplica] = {}
        """Of sets other than `default`, by name."""
        self.led_generation = 0
        """In which it led last."""

    # --- the process

    def start(self) -> None:
        process = _Process(self, self.process + 1)
        self.loop = ProcessLoop(self._world.schedule, process)  # type: ignore[abstract] # it has what drivers use
        self.loop.run(super().start)
        for replica in self.replicas.values():
            self.loop.run(replica.start)

    def prepare(self, resources: Resources) -> None:
        numbers = count(1)
        settings = ContainerSettings(
            self.name, "0", NodeSettings(auto_create=False),
            publisher_credit=self.terms.publisher_credit, max_unsettled_per_connection=self.terms.most_unsettled,
        )  # fmt: skip
        self.container = Container(settings, lambda: str(next(numbers)))
        self.container.clock = self.clock.monotonic_s
        self.container.management.access.change(EVERYBODY, "")
        self.container.default.read_only = True
        end = self.container.sessions.end

        def seen_end(session: Session, *, failed: bool) -> None:
            self.terms.session_ends(self, session)
            end(session, failed=failed)

        setattr(self.container.sessions, "end", seen_end)  # noqa: B010 - a method, which mypy lets nobody replace
        super().prepare(self.container.default.resources)
        self.configuration = self.container.default.configuration
        self.connections = Connections(self.container, self._attach)
        self.connections.is_proof = lambda proof: proof == PROOF
        self._protocols: dict[Connection, ClientProtocol] = {}
        self._has_news = self.is_in_turn = False
        self.map = ClusterMap()
        self._map_changes = count(1)
        for event in self.terms.map_events():
            self.map.apply(next(self._map_changes), event)
        if self.map.sets:
            self.container.directory = Directory(self.name, self.map, lambda: self.member.status)

    def begin(self, settings: MemberSettings, draw: Callable[[], float], restored: Restored | None = None) -> None:
        super().begin(settings, draw, restored)
        self.waiters = CommitWaiters(self.schedule_turn)
        self.admission: Admission[ClientProtocol] = Admission(AdmissionLimits(10_000, 10_000, 10_000, 10_000, 10_000))
        self.notices: NoticeLog = RaisedBugs()
        self.clients = ClientAccess(self, self.member, self.feed, _nobody_listens)
        addresses = BrokerAddresses(self.name, self.map, self.member, lambda: self.clients.is_serving)
        self.proxying = Proxying(self, _engine_for, addresses)
        self.connections.relays = self.proxying
        self.container.gate = self.proxying.gate
        self.forwarding: NodeForwarding | None = None
        if self.terms.forwards:
            self.forwarding = NodeForwarding(self, self.map, addresses, self.terms.streams, self.post_here)
        self.process_time = ProcessTime()
        self.container.default.prove_lead = lambda: self.prove_lead(self.member)
        self.clients.update()
        self._look_at_time()
        self._tick_container()

    def prove_lead(self, member: Member) -> LeadProof:
        """What drivers ask of `member`, of whichever set."""
        now_s = self.clock.monotonic_s()
        return member.lead_proof(now_s, self.process_time.look(now_s))

    def _look_at_time(self) -> None:
        self.loop.call_later(LOOK_S, self._look_at_time)
        self.process_time.look(self.clock.monotonic_s())
        now_ms = int(self.loop.time() * 1000)
        for connection in list(self._protocols):
            connection.heartbeat(now_ms)

    def _tick_container(self) -> None:
        self.loop.call_later(TICK_S * (0.9 + 0.2 * self._draw()), self._tick_container)
        self.set_time()
        self.container.tick()
        if self.forwarding is not None:
            self.forwarding.work()
        self.schedule_turn()

    def kill(self, is_silent: bool, has_power: bool = True, cause: str = "killed") -> None:
        super().kill(is_silent, has_power, cause)
        for replica in self.replicas.values():
            replica.kill(is_silent, has_power, cause)
        self.terms.streams.died(self.name, is_silent)
        self._world.schedule.after(0.0, self.close_engines)  # not while one of them is at work

    def pause(self) -> None:
        super().pause()
        for replica in self.replicas.values():
            replica.pause()

    def resume(self) -> None:
        super().resume()
        for replica in self.replicas.values():
            replica.resume()

    def hears(self, event: Callable[[], ev.SetRecorded]) -> None:
        """The map has changed, as it is when this broker comes to it."""

        def apply() -> None:
            change = event()
            self.map.apply(next(self._map_changes), change)
            if self.forwarding is not None:
                self.forwarding.map_changed()
            self.proxying.look_soon()
            self.schedule_turn()

        self.do(apply)

    def close_engines(self) -> None:
        """Nothing happens in this process any more: let go of what C holds."""
        engines = [connection.engine for connection in self._protocols]
        upstreams = [socket.upstream for socket in self.proxying.pool.connections]
        engines += [upstream.engine for upstream in upstreams if upstream is not None]
        self._protocols = {}
        self.proxying.pool.connections.clear()
        for engine in engines:
            engine.close()

    def _pump(self) -> None:
        if not self._is_busy:
            self.loop.run(super()._pump)

    def post_here(self) -> Post:
        return _Process(self, self.process).post

    def accept(self, end: StreamEnd) -> None:
        self.post_here()(lambda: end.have_read_by(_ClientSocket(self, cast(Any, _Engines()))))

    def accept_forwarding(self, end: StreamEnd) -> None:
        def accept() -> None:
            if self.forwarding is not None:
                self.forwarding.accept(end)

        self.post_here()(accept)

    @property
    def is_serving(self) -> bool:
        return self.clients.is_serving

    # --- what the server's parts ask of the broker

    def current(self) -> BrokerSettings:
        """See `server.runtime.host.Host`."""
        return self._settings_in_force

    def fail(self, reason: str) -> None:
        raise AssertionError(f"{self.name} ends: {reason}")

    def set_time(self) -> None:
        self.container.now_ms = self.clock.steady_ms()

    def schedule_turn(self) -> None:
        super().want_turn()

    def want_turn(self) -> None:
        if self.is_in_turn:
            self._has_news = True
        else:
            self.schedule_turn()

    tell_committed = want_turn

    def add(self, connection: Connection, protocol: ClientProtocol) -> None:
        self._protocols[connection] = protocol

    def remove(self, connection: Connection) -> None:
        self._protocols.pop(connection, None)

    def end_clients(self, reason: AmqpError | None = None) -> None:
        """For `ClientAccess` with a reason; without, the member wants to be primary no more."""
        if reason is None:
            self.terms.ends_to_lead(self.led_generation)
            self.clients.end_soon(fx.EndClients())
        else:
            self.connections.end_clients(reason)

    def _attach(self, connection: Connection, link: proton.Link) -> LinkEndpoint:
        endpoint = attach(connection, link)
        self.terms.attached(self, connection, link, endpoint)
        return endpoint

    # --- what the member tells

    def note_state(self, change: fx.StateChanged) -> None:
        if change.after is State.PRIMARY:
            self.led_generation = self.member.status.generation
        elif change.before is State.PRIMARY:
            self.terms.ends_to_lead(self.led_generation)
        self.clients.update()
        super().note_state(change)
        if change.before is State.PRIMARY:
            self.clients.end_now()
        self.want_turn()

    def _note_last_batch(self) -> None:
        """Nobody asks who has held what."""

    def note_status(self, status: fx.MemberStatus) -> None:
        self.clients.status_changed()
        self.proxying.look_soon()

    # --- turns

    def turn(self) -> None:
        self._turn_waits = False
        self.set_time()
        (_, batch), *others = self.container.turn()
        self.resources.sets.take_local_parts()
        rest = self.resources.replicated.log.take_batch()  # what the turn's last steps have written
        if rest is not None:
            batch = rest if batch is None else _joined(batch, rest)
        self.is_in_turn = True
        self._handle(fx.TurnEnded(batch))
        if self.forwarding is not None and self.is_up:
            self.forwarding.work()
        for hosted, batch_of_set in others:
            if self.is_up:
                self.replicas[hosted.name].turn_ended(batch_of_set)
        self.is_in_turn = False
        if not self.is_up:
            return
        if self._has_news:
            self._has_news = False
            self.container.tell_what_is_committed()
        for connection in self.connections.take_touched():
            protocol = self._protocols.get(connection)
            if protocol is not None:
                protocol.flush()
        self.proxying.flush()
        self.waiters.turn_ended()
        self.container.take_notices()
        if self.container.has_work:
            self.schedule_turn()

    @property
    def open_connections(self) -> list[Connection]:
        """Those of clients and of other brokers."""
        return list(self._protocols)


def _joined(batch: LogBatch, rest: LogBatch) -> LogBatch:
    return LogBatch(batch.first_lsn, rest.last_lsn, batch.data + rest.data, batch.transient + rest.transient)


def _engine_for(_address: Address) -> Engine:
    engine = _engine(idle_s=BETWEEN_BROKERS_IDLE_S)
    engine.proof = PROOF
    return engine


def _nobody_listens() -> None:
    """Nobody asks for the events of the cluster."""
