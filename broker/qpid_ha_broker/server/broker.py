"""The broker process: listeners, the turn of the loop, timers, control socket, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from qpid_ha_broker import __version__
from qpid_ha_broker.access.address_rules import rules_in_force
from qpid_ha_broker.amqp.connections.connection import Connection, Connections
from qpid_ha_broker.amqp.connections.container import Container, ContainerSettings
from qpid_ha_broker.amqp.connections.nodes import NodeSettings
from qpid_ha_broker.amqp.links.attach import attach
from qpid_ha_broker.amqp.wire.batches import uses_kernel
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.states import LEADING, State
from qpid_ha_broker.model.commands.naming import NamingRules
from qpid_ha_broker.model.queues.queue_arguments import FullPolicy
from qpid_ha_broker.model.queues.queue_sums import sum_queues
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.clients.admission import Admission, AdmissionLimits
from qpid_ha_broker.server.clients.client_protocol import ClientProtocol
from qpid_ha_broker.server.clients.connection_methods import ConnectionMethods
from qpid_ha_broker.server.clients.listeners import Listeners
from qpid_ha_broker.server.clients.session_methods import SessionMethods
from qpid_ha_broker.server.control.access_rules import AccessRules, Reread
from qpid_ha_broker.server.control.administration import control_methods
from qpid_ha_broker.server.control.audit_log import AuditLog
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.control.control import ControlError, ControlServer, Method
from qpid_ha_broker.server.control.event_methods import EventMethods
from qpid_ha_broker.server.control.reloaded_files import ReloadedFiles
from qpid_ha_broker.server.control.remote_control import RemoteControl
from qpid_ha_broker.server.control.setting_layers import SettingLayers
from qpid_ha_broker.server.proxies.proxying import Proxying
from qpid_ha_broker.server.runtime.cluster_secret import ClusterSecret
from qpid_ha_broker.server.runtime.descriptors import Descriptors
from qpid_ha_broker.server.runtime.due_parties import TurnPlace
from qpid_ha_broker.server.runtime.engines import Engines, PeerEngines
from qpid_ha_broker.server.runtime.kept_logins import KeptLogins
from qpid_ha_broker.server.runtime.logs import NoticeLog, configure_logging
from qpid_ha_broker.server.runtime.member_settings import member_settings, reservation_hold_ms
from qpid_ha_broker.server.runtime.slices import in_slices
from qpid_ha_broker.server.runtime.steady_clock import SteadyClock
from qpid_ha_broker.server.sets.cluster_connections import ClusterConnections
from qpid_ha_broker.server.sets.cluster_control import cluster_methods
from qpid_ha_broker.server.sets.cluster_logins import ClusterLogins, LoginMethods
from qpid_ha_broker.server.sets.cluster_settings import ClusterSettings
from qpid_ha_broker.server.sets.forwarded_commands import ForwardedCommands
from qpid_ha_broker.server.sets.membership import Membership
from qpid_ha_broker.server.sets.outside import OutsideBrokers
from qpid_ha_broker.server.sets.set_cluster import SetCluster, make_set_cluster
from qpid_ha_broker.server.sets.set_methods import SetMethods
from qpid_ha_broker.server.stores.broker_store import BrokerStore
from qpid_ha_broker.server.stores.loading import StoreLoading
from qpid_ha_broker.server.stores.storage import Storage
from qpid_ha_broker.server.stores.store import make_store
from qpid_ha_broker.server.turns import Turns
from qpid_ha_config.kinds import AUTO, QueueArgument
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("broker")

TICK_S = 0.25
"""How late an expiry, an automatic deletion or the end of a silence may be noticed."""
TEMPORARY_QUEUE_SHARE = 128
"""Of memory-limit, by default: 64 readers that do not read at all fill it."""
LAST_ANSWERS_S = 1.0
"""How long a primary that stops waits for what its backups still owe its clients."""
PARTING_S = 1.0
"""How long a broker that was not primary waits for the goodbyes of clients that it did not serve."""

KNOWS_LOGINS = (*LEADING, State.READY, State.OBSERVER)
"""The states in which it has caught up, and so has what its cluster keeps."""


class BrokerFailed(Exception):
    """The broker has ended by itself; the text says why, and what to do."""


class Broker:
    """Joins the pure container with sockets and clocks."""

    def __init__(
        self, settings: BrokerSettings, reread_access: Reread | None = None, storage: Storage | None = None
    ) -> None:
        """`reread_access`: for `qpid-ha acl reload`, see `AccessRules`. `storage`: None: the machine's."""
        self.layers = SettingLayers(settings)
        """Its settings, those of the cluster above its own."""
        self.container = Container(container_settings(settings), lambda: uuid.uuid4().hex)
        self.container.clock = time.perf_counter
        self.container.steady = SteadyClock()
        self.set_time()
        self.container.limits.turn_after = partial(_turn_after, self)
        self.connections = Connections(self.container, attach)
        if settings.ha.cluster and not settings.ha.username:
            secret = ClusterSecret()
            secret.read()
            self.connections.is_proof = secret.is_proof
        self.is_stopping = False
        self.failure = ""
        """Why it cannot go on; empty: it can."""
        self.ended = asyncio.Event()
        """This broker was told to end, through itself, or cannot go on: whoever runs it has to call `stop`."""
        self._clean = ""
        self._started = time.monotonic()
        self._protocols: dict[Connection, ClientProtocol] = {}
        self._deserted = asyncio.Event()
        self._deserted.set()
        self.is_in_turn = False
        """Near its end: what is committed by now is told, and what was sent is written, before it is over."""
        self.waiters = CommitWaiters(self.schedule_turn)
        descriptors = Descriptors.current()
        self.admission: Admission[ClientProtocol] = Admission(_admission_limits(settings, descriptors))
        self.notices = NoticeLog()
        self.listeners = Listeners(self.admission, descriptors, self.notices.refusals)
        access = AccessRules(self, self.container.access, self.connections, reread_access)
        audit = AuditLog(settings.audit.file, settings.name)
        kept = KeptLogins(
            lambda: self.is_loaded and self.membership.member.status.state in KNOWS_LOGINS, settings.ha.username or ""
        )
        engines = Engines(self.current, self.notices.fault, kept)
        self.files = ReloadedFiles(engines, access, audit)
        self._ticker: asyncio.Task[None] | None = None
        self.outside = OutsideBrokers(self)
        self.turns = Turns(self)
        management = self.container.management
        management.control = RemoteControl(
            self.current, self.container.access, self.schedule_turn, lambda: self.control
        )
        management.record = None if settings.audit.file is None else audit.record
        self.membership: Membership
        """Since the store is loaded."""
        self.sets: SetCluster | None = None
        """This broker's part in the other resource sets; None: it is in no cluster."""
        self._set_replication()
        self._set_naming()
        store = make_store(settings, storage)
        self.broker_store = None if store is None else BrokerStore(self, store, self.container.default.resources)
        """What is done with the store, if there is one."""
        self.loading: StoreLoading | None = None
        """While the store is loaded; nobody may touch the container's resources then."""
        self.control: ControlServer = ControlServer(settings.control_socket, self._own_methods(), record=audit.request)
        """Answers what operators and agents ask, through its socket or otherwise."""

    def _own_methods(self) -> dict[str, Method]:
        """Of the control socket: those that have nothing to do with a cluster."""
        name, administration = self.layers.current.name, self.container.management.administration
        return control_methods(name, administration, self, self.waiters.wait_done) | {
            "sessions": SessionMethods(self.container, self.waiters.wait_done).sessions,
            **self.outside.methods(),
            **self.files.methods(),
        }

    # --- settings, as the control socket's methods want them

    def current(self) -> BrokerSettings:
        """The settings in force."""
        return self.layers.current

    def replace(self, settings: BrokerSettings) -> list[str]:
        """Have other settings as its own, and tell what that came to; what is open keeps the sizes that it has."""
        before, settings = self.layers.current, self.layers.change(settings)
        if settings.log_level != before.log_level:
            configure_logging(settings.log_level, settings.log_file)
        older, newer = before.as_mapping(), settings.as_mapping()
        changed = [key for key in newer if older[key] != newer[key]]
        for key in changed:
            log.info("setting %s changed from %s to %s", key, older[key], newer[key])
        if settings.access != before.access:
            self.files.access.settings_changed()
        if not self.is_loaded:  # nobody but access control has other settings by then
            return []
        self.admission.limits = _admission_limits(settings, self.listeners.descriptors)
        self.container.change_settings(container_settings(settings))
        self.membership.change_settings(settings)
        self._set_naming()
        if self.sets is not None:
            self.sets.change_settings(settings)
        return self._set_replication() if {"replication-rules", "ha.replicate"} & {*changed} else []

    def _set_replication(self) -> list[str]:
        """The rules are about what other brokers get: for a standalone one they are not in force."""
        ha = self.layers.current.ha
        if not ha.cluster:
            return []
        rules = tuple((rule.pattern, rule.replicate) for rule in ha.replication_rules)
        return self.container.default.configuration.set_replication(rules, ha.replicate)

    def _set_naming(self) -> None:
        """As `_set_replication`: a standalone broker has one resource set."""
        ha, own = self.layers.current.ha, self.layers.current.resource_sets
        if ha.cluster:
            rules = tuple((rule.pattern, rule.resource_set) for rule in own.rules)
            replicas = min(len(ha.brokers_url), self.layers.current.replicas.min_replicas)
            self.container.default.configuration.naming = NamingRules(rules, own.spread, replicas)

    # --- start and stop

    async def start(self) -> None:
        """Listen, load the store, and serve. May be cancelled. Raises SettingsError, StoreError or OSError.

        Then nothing listens. Until the store is loaded everybody who connects is told so.
        """
        settings = self.layers.current
        self.files.engines.start()
        if self.broker_store is not None:
            self.loading = StoreLoading(settings.name, lambda: self.listening, lambda: self.end(""))
            self.control.methods = self.loading.methods(self._own_methods()["ping"])
            self.control.not_yet = self.loading.refuse
        else:
            self._join(None)
        try:
            await self._listen()
            await self.control.start()
            self._ticker = asyncio.create_task(self._tick_forever())
            if self.broker_store is not None and self.loading is not None:
                await self._load(self.broker_store, self.loading)
        except BaseException:
            await self._close_listeners()
            await self.control.close()
            if self.broker_store is not None and self.broker_store.store.is_started:
                await self.broker_store.store.close("")
            raise
        if self.sets is not None:
            self.membership.start()
            self.sets.start()

    async def _load(self, kept: BrokerStore, loading: StoreLoading) -> None:
        settings = member_settings(self.layers.current, "")
        loaded = await loading.run(lambda: kept.read(settings, loading.show))
        kept.begin(loaded.found, self.container.default)
        self._join(loaded.restored)
        self.loading = self.control.not_yet = None

    def _join(self, restored: Restored | None) -> None:
        """Be a member, of the cluster or of none. Raises what `Membership` does."""
        cluster_map = self.container.default.resources.replicated.state.map
        self.layers.shared = cluster_map.plain_settings
        before = self.layers.current
        if self.layers.change(self.layers.own).access != before.access:
            self.files.access.settings_changed()
        self.membership = Membership(self, self.broker_store, restored)
        own = ConnectionMethods(self.connections, self.schedule_turn, lambda: self.container.management.record)
        events = EventMethods(self.container.notices.events, self.layers.current.name)
        passing_on = ForwardedCommands(
            self.layers.current.name, self.membership.questions, lambda: self.control, self.container.access
        )
        self.membership.default.links.command_asked = passing_on.asked
        methods = cluster_methods(self.facts, self.end, self.membership, events, self._own_methods(), passing_on)
        self.control.methods = {**methods, "connections": ClusterConnections(own, self.membership).connections}
        if self.membership.is_standalone:
            self.membership.start()  # before the first client: there is nobody to ask
        else:
            self.container.peers.single = self.membership.default.links
            self.sets = make_set_cluster(
                self, None if self.broker_store is None else self.broker_store.store.storage, self.turns.due
            )
            if self.layers.current.ha.clients == "proxy":
                proxying = Proxying(self, PeerEngines(self.current, self.notices.fault), self.sets.addresses)
                self.sets.proxying = self.connections.relays = proxying
                proxying.unflushed.due = self.turns.due.join(TurnPlace.RELAYS, proxying.flush)
                self.container.gate = proxying.gate
            of_sets = SetMethods(self.sets, self._own_methods()["queues"], passing_on)
            told = self.container.notices.events
            logins = ClusterLogins(self, self.files.engines.kept, cluster_map)
            shared = ClusterSettings(self, cluster_map, self.membership.questions, of_sets.ask, told, logins)
            of_logins = LoginMethods(logins, cluster_map, shared.ask_others, of_sets.ask)
            self.membership.default.links.facts_asked = shared.facts
            added = {**shared.methods(), **of_logins.methods()}
            self.control.methods = {**of_sets.methods(self.control.methods), **added}
            if cluster_map.settings:
                shared.put_in_force()

    async def _listen(self) -> None:
        for address in self.layers.current.listen:
            engines = self.files.engines.for_listener(address)
            is_shared = self.layers.current.workers.is_shared(address)
            await self.listeners.listen(address, partial(ClientProtocol, self, engines), is_shared=is_shared)

    async def stop(self) -> None:
        """Settle what can be settled, tell every client, and wait for them at most `stop-timeout`.

        A broker that served nobody waits a moment: those who are still connected were told to go before, and many
        cannot be reached any more, because the address that they came by has moved to the next primary.
        """
        if self.sets is not None and not self.failure and not self._clean:
            await self.sets.leave()
        await self.membership.meet_successor()
        self.is_stopping = True
        log.info("stopping: %s told", counted(len(self._protocols), "client is", "clients are"))
        served = [self.container.default.resources] if self.membership.clients.is_serving else []
        if self.sets is not None:
            served += self.sets.served()
        patience_s = (
            self.layers.current.stop_timeout_s if served else min(self.layers.current.stop_timeout_s, PARTING_S)
        )
        self.listeners.close()
        for protocol in self.admission.unopened:
            if protocol.connection is None:
                protocol.abort()
        self.turn()
        if served and not self.failure:
            await self._wait_committed(served)
        goodbye = AmqpError(CONNECTION_FORCED, f"broker {self.layers.current.name} is stopping")
        self.end_clients(goodbye)
        self.turn()
        self.outside.copies.stop()
        if not self.membership.is_standalone:  # one that is keeps to the end what clients do
            self.membership.stop()
        if self.sets is not None:
            self.sets.stop()
        for connection in list(self._protocols):
            connection.send_away(goodbye)
        self.turn()
        if self.sets is not None and self.sets.proxying is not None:
            self.sets.proxying.stop()
        self.outside.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._deserted.wait()
        for protocol in list(self._protocols.values()):
            protocol.abort()
        await self._close_listeners()
        await self.control.close()
        if self.broker_store is not None:
            self.turn()
        self.membership.stop()
        if self.sets is not None:
            await self.sets.close_stores()
        if self.broker_store is not None:
            await self.broker_store.close(self._clean if not self.failure else "")
        log.info("stopped")

    async def _wait_committed(self, served: Sequence[Resources]) -> None:
        """For what backups still owe the clients of these sets; at most LAST_ANSWERS_S."""
        waits = [asyncio.create_task(self.waiters.wait_committed(resources.written)) for resources in served]
        done, late = await asyncio.wait(waits, timeout=LAST_ANSWERS_S)
        for wait in late:
            wait.cancel()
        for wait in done:
            error = wait.exception()
            if error is not None and not isinstance(error, ControlError):  # a set may have gone to another broker
                raise error

    def end(self, clean: str) -> None:
        """Stop as soon as possible; `clean`: the UUID under which the store is closed as one that is whole."""
        self._clean = clean
        self.ended.set()

    def fail(self, reason: str) -> None:
        """Serve nobody any more: whoever runs this broker has to end it, and gets the reason."""
        if self.failure:
            return
        log.error("this broker ends: %s", reason)
        self.failure = reason
        self.ended.set()
        self.end_clients(AmqpError(CONNECTION_FORCED, f"broker {self.layers.current.name} ends"))

    async def _close_listeners(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self.listeners.close()
        self.files.engines.close()

    @property
    def is_loaded(self) -> bool:
        """Its store is loaded, so there is something to ask about."""
        return self.loading is None and hasattr(self, "membership")

    # --- clients

    @property
    def listening(self) -> list[str]:
        """The addresses in use, with the real port where 0 was asked."""
        return self.listeners.addresses

    @property
    def connection_count(self) -> int:
        """Sockets on which something was said."""
        return len(self._protocols)

    def add(self, connection: Connection, protocol: ClientProtocol) -> None:
        """A client has connected."""
        self._protocols[connection] = protocol
        self._deserted.clear()

    def remove(self, connection: Connection) -> None:
        """A client's socket is gone."""
        self._protocols.pop(connection, None)
        if not self._protocols:
            self._deserted.set()

    def end_clients(self, reason: AmqpError) -> None:
        """End all connections but those of other brokers and of administrators, who are let in everywhere."""
        self.connections.end_clients(reason)

    def unwritten_bytes(self, connection: Connection) -> int:
        """What its socket has not taken yet."""
        protocol = self._protocols.get(connection)
        return 0 if protocol is None else protocol.unwritten_bytes

    # --- the turn

    def set_time(self) -> None:
        """Let the container know what time it is."""
        self.container.now_ms = self.container.steady.now_ms()

    def schedule_turn(self) -> None:
        """Have a turn at the end of this round of the loop."""
        self.turns.schedule()

    def tell_committed(self) -> None:
        """Something was committed: have those told who wait for it, at the end of this turn, or without one."""
        self.turns.tell_committed()

    def turn(self) -> None:
        """Make the broker's move, and write to everybody what came of it."""
        self.turns.run()

    def flush_touched(self) -> None:
        """Write what links have for their peers."""
        touched = self.connections.take_touched()
        for connection in sorted(touched, key=_is_a_client):  # brokers first: confirmations wait for their answers
            protocol = self._protocols.get(connection)
            if protocol is not None:
                protocol.flush()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.set_time()
            await self.control.restore_socket()
            if self.loading is None:
                self.container.tick()
                self.outside.tick()
            now_ms = int(time.monotonic() * 1000)
            for connection in list(self._protocols):
                connection.heartbeat(now_ms)
            if self.broker_store is not None and self.loading is None:
                self.broker_store.tick()
            self.notices.flush()
            self.schedule_turn()

    # ---

    def _cluster_facts(self) -> dict[str, object]:
        if self.sets is None:
            return {}
        proxying = self.sets.proxying
        return self.sets.service.facts | ({} if proxying is None else {"relayed_links": proxying.count})

    async def facts(self) -> dict[str, object]:
        """What `qpid-ha query` shows. With many queues others have their turns meanwhile."""
        hosted = list(self.container.sets.values())
        queues = [queue for each in hosted for queue in each.resources.catalog.queues.values()]
        sums = await in_slices(sum_queues(queues))
        catalog, log_ = self.container.default.resources.catalog, self.container.default.resources.replicated.log
        sets = [each.resources for each in self.container.sets.values()]
        return {
            "name": self.layers.current.name,
            "version": self.container.settings.version,
            "kernel": "compiled" if uses_kernel() else "Python",
            "pid": os.getpid(),
            **self.membership.facts(),
            **self._cluster_facts(),
            **({"store": "off"} if self.broker_store is None else self.broker_store.facts()),
            **self.outside.facts(),
            **self.container.access.facts(),
            **self.container.limits.facts(),
            **self.files.audit.facts(),
            **({"settings_left_out": problems} if (problems := self.layers.problems) else {}),
            "listening": ", ".join(self.listening),
            "uptime_s": round(time.monotonic() - self._started, 1),
            "time_ms": self.container.steady.wall_ms(),
            "message_clock_ahead_s": _message_clock_ahead_s(self.container),
            "connections": len(self._protocols),
            "unopened_connections": len(self.admission.unopened),
            "sessions": len(self.container.default.resources.replicated.state.sessions),
            "queues": sums.queues,
            "exchanges": len(catalog.exchanges),
            "messages": sums.messages,
            "message_bytes": sums.bytes,
            "enqueued": sums.enqueued,
            "dequeued": sums.dequeued,
            "unroutable": sum(each.unroutable_total for each in sets),
            "duplicates_dropped": sum(each.deduplication.dropped_total for each in sets),
            "overrun_queues": sum(hosted.overrun_queues_total for hosted in self.container.sets.values()),
            "outranked_in_rings": sum(each.outranked_total for each in sets),
            "dead_letters_dropped": sum(each.dead_letters_dropped_total for each in sets),
            "bugs": self.notices.bugs_total,
            "last_lsn": log_.last_lsn,
            "committed_lsn": log_.committed_lsn,
            "memory_bytes": self.container.memory_bytes,
            "peak_resident_bytes": _peak_resident_bytes(),
        }


def _message_clock_ahead_s(container: Container) -> float:
    """The clock by which messages of `default` expire, of the time of day here."""
    steady, clock = container.steady, container.default.resources.catalog.clock
    return round((clock.now_ms(steady.now_ms()) - steady.wall_ms()) / 1000, 1)


def _turn_after(broker: Broker, wait_s: float) -> None:
    """Publishers that wait for the rates of their users may go on then."""
    loop = asyncio.get_running_loop()
    loop.call_later(wait_s, lambda: None if broker.is_stopping else broker.schedule_turn())


def _admission_limits(settings: BrokerSettings, descriptors: Descriptors) -> AdmissionLimits:
    usable = descriptors.for_clients
    limits = AdmissionLimits.within(
        usable,
        clients=settings.max_connections,
        clients_per_address=settings.max_connections_per_address,
        unopened=settings.max_unopened_connections,
    )
    if limits.clients < settings.max_connections:
        text = "max-connections is %d, but %d file descriptors allow for %d clients only: raise LimitNOFILE"
        log.warning(text, settings.max_connections, descriptors.limit, limits.clients)
    return limits


def _is_a_client(connection: Connection) -> bool:
    return connection.peer_channel is None


def container_settings(settings: BrokerSettings) -> ContainerSettings:
    """What the container needs to know of the settings."""
    return ContainerSettings(
        name=settings.name,
        version=__version__,
        nodes=node_settings(settings),
        max_message_bytes=settings.max_message_bytes,
        max_links_per_connection=settings.max_links_per_connection,
        max_unsettled_per_connection=settings.max_unsettled_per_connection,
        max_sessions_per_connection=settings.max_sessions_per_connection,
        max_transaction_messages=settings.max_transaction_messages,
        publisher_credit=settings.publisher_credit,
        producers=settings.deduplication.producers,
        max_client_sessions=settings.sessions.most,
        max_session_timeout_ms=int(settings.sessions.max_timeout_s * 1000),
        peer_user=settings.ha.username or "",
        reserves_container_ids=settings.ha.sole_connections == "cluster",
        reservation_hold_ms=reservation_hold_ms(settings),
        confirm_dequeue=settings.ha.confirm_dequeue,
        memory_limit_bytes=settings.memory_limit_bytes,
    )


def node_settings(settings: BrokerSettings) -> NodeSettings:
    """How nodes come to be on demand, and what addresses mean."""
    addresses = settings.addresses
    return NodeSettings(
        addresses.auto_create,
        dict(addresses.auto_create_arguments),
        temporary_limits(settings),
        rules_in_force(addresses.rules),
        addresses.jms_priorities,
    )


def temporary_limits(settings: BrokerSettings) -> dict[str, QueueArgument]:
    """Queue arguments that bound what waits for a reader: bytes of payload, and as much again besides it."""
    size_bytes = settings.temporary_queue_bytes
    if size_bytes == AUTO:
        size_bytes = max(settings.memory_limit_bytes // TEMPORARY_QUEUE_SHARE, 1024**2)
    if not size_bytes:
        return {}
    limits = {"qpid.max_size": size_bytes, "qpid.max_count": max(size_bytes // MESSAGE_OVERHEAD, 1)}
    return {**limits, "qpid.policy_type": FullPolicy.SELF_DESTRUCT.value}


def _peak_resident_bytes() -> int:
    """Of this program. What getrusage tells begins with the peak of whoever started it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    return 0
