"""A broker's part in a cluster of many resource sets: it hosts what the map says, and reports to the controller.

The parts know nothing of each other: `SetHost` the replicas, `ControllerClient` the way to the controller,
`ControllerService` the controller while this broker is it, `PlacedQueues` the queues of sets that are led here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from qpid_ha_broker import __version__
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.cluster.control_frames import Ordered, RecordTold
from qpid_ha_broker.cluster.controller import Controller
from qpid_ha_broker.cluster.messages import BrokerIdentity, BrokerReport, ControllerSettings, OrderDeletion, OrderKind
from qpid_ha_broker.cluster_map import BrokerPlace, Changes, SetEntry
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import (
    Answered,
    DropAsked,
    Input,
    PromoteAsked,
    ShutdownAsked,
    SwitchoverAsked,
)
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import DEFAULT_SET, LogBatch
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.control.placements import find_placement
from qpid_ha_broker.server.controller.controller_client import ControllerClient, ControllerGone
from qpid_ha_broker.server.controller.controller_directory import ControllerDirectory
from qpid_ha_broker.server.controller.controller_service import ControllerService
from qpid_ha_broker.server.controller.leader_questions import LeaderQuestions
from qpid_ha_broker.server.peers.loopback_channel import LoopbackChannel
from qpid_ha_broker.server.peers.peer_channels import Dialler
from qpid_ha_broker.server.peers.record_requests import RecordAnswer
from qpid_ha_broker.server.peers.replica_reports import HostedReplica, ReplicaReports
from qpid_ha_broker.server.proxies.proxying import Proxying
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.broker_addresses import BrokerAddresses
from qpid_ha_broker.server.runtime.broker_identity import broker_uuid
from qpid_ha_broker.server.runtime.due_parties import DueParties, TurnPlace
from qpid_ha_broker.server.runtime.engines import PeerEngines
from qpid_ha_broker.server.sets.forward_links import SetForwarding
from qpid_ha_broker.server.sets.hosted_member import HostedMember, SetMemberHost
from qpid_ha_broker.server.sets.membership import Membership
from qpid_ha_broker.server.sets.placed_queues import PlacedQueues
from qpid_ha_broker.server.sets.removals import Removals
from qpid_ha_broker.server.sets.set_host import SetHost
from qpid_ha_broker.server.sets.set_member import SetMember
from qpid_ha_broker.server.stores.storage import Storage
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("cluster")

TICK_S: Final = 0.1
HOSTING_RETRY_S: Final = 5.0
"""Between two attempts to have a replica that this broker could not go on with."""
LEAVING_LIMIT_S: Final = 5.0
"""So long a broker that is told to stop waits for others to lead what it led."""
CONTROLLER_LIMIT_S: Final = 1.0
"""So long it waits for a controller for that; where all are stopped there is none."""
_HERE: Final = "this broker"


class SetClusterHost(SetMemberHost, Protocol):
    """What is needed of the broker."""

    membership: Membership


class SetCluster:
    """The promise: this broker has replicas of the sets of which the map says so, and of no others."""

    def __init__(self, broker: SetClusterHost, hosts: SetHost, identity: BrokerIdentity, due: DueParties) -> None:
        default = broker.container.default
        resource_set = default.resources.replicated
        self.map = resource_set.state.map
        self.hosts = hosts
        self._broker = broker
        self._member = broker.membership.member
        self._identity = identity
        self.name = identity.name
        leaders = LeaderQuestions(hosts.questions, identity.name, identity.instance)
        self.service = ControllerService(broker, identity.name, self._make_controller, resource_set, leaders)
        self.queues = PlacedQueues(identity.name, self.map, self._member, hosts.members, self._want_report)
        replicas = _Replicas(broker.membership.default, hosts)
        self._reports = ReplicaReports(self._whoami, replicas, self.queues.report, self._room_bytes)
        self.client = ControllerClient(self, self, self._dial, broker.current().replicas.failure_timeout_s)
        self._status: object = None
        self._due: dict[str, None] = dict.fromkeys(self.map.sets)
        """Sets to host, not to host any more, or with other brokers."""
        self._arranged: dict[str, tuple[object, ...]] = {}
        """Of sets that are hosted: what was said of them last. A record changes often, and hardly ever any of that."""
        self._entries = dict(self.map.queues_by_id)
        self._had_many = bool(self.map.sets)
        """There were sets beside `default` when clients were last told who serves."""
        self._unsettled: dict[str, None] = {}
        """Sets of which this broker hosts another one of that name, unless its map is old."""
        self._removals = Removals()
        self._again_s = 0.0
        self.addresses = BrokerAddresses(
            identity.name, self.map, self._member, lambda: broker.membership.clients.is_serving
        )
        self.forwarding = SetForwarding(broker, hosts, self.map, self.addresses, identity.instance)
        self.proxying: Proxying | None = None
        """Relays links of clients to other brokers; None: clients are told where to go."""
        self._tasks = BackgroundTasks()
        self.map.listeners.append(self._map_changed)
        hosts.records = self
        hosts.changed = self._member_changed
        hosts.absent.failed = self._want_report
        hosts.is_map_current = self._knows_map
        self._want_hosting = due.join(TurnPlace.HOSTING, self.arrange)
        broker.membership.clients.changed = due.join(TurnPlace.CLUSTER, self.look)
        self._want_hosting()
        broker.membership.clients.changed()
        _take_part_in_turns(self, due)
        directory = ControllerDirectory(broker, self.map, lambda: self._member.status, self.client)
        self.directory = broker.container.directory = directory

    def start(self) -> None:
        """Take part. The broker listens already."""
        self.hosts.start()
        self._tasks.start(self._tick_forever())

    def change_settings(self, settings: BrokerSettings) -> None:
        """Other settings are in force."""
        self.service.core.change_settings(controller_settings(settings), find_placement(settings.replicas.placement))
        self._arranged.clear()
        self._due |= dict.fromkeys(self.map.sets)
        self._want_hosting()
        self._broker.schedule_turn()

    async def leave(self) -> None:
        """Have other brokers lead what this one leads, as far as they can, before it stops; within LEAVING_LIMIT_S."""
        led = sum(member.is_serving and member.has_primary for member in self.hosts.members.values())
        if not led:
            return
        sets = counted(led, "set that is led here gets", "sets that are led here get")
        log.info("%s other primaries first", sets)
        try:
            async with asyncio.timeout(LEAVING_LIMIT_S):
                problem = await self._ask_to_leave()
        except TimeoutError:
            problem = f"it took more than {LEAVING_LIMIT_S:g} s"
        if problem:
            log.warning("not all sets are led by others: %s", problem)

    async def _ask_to_leave(self) -> str:
        """Until nobody else could lead what is led here; why that is not known."""
        lost_s = time.monotonic() + CONTROLLER_LIMIT_S
        while True:
            try:
                told = await self.client.ask("brokers-leave", {"broker": self.name})
            except ControllerGone as gone:  # another one may be about to begin, or nobody is left
                if time.monotonic() >= lost_s:
                    return str(gone)
            else:
                if not told.done:
                    return told.text
                if not told.result.get("left"):
                    return ""
                lost_s = time.monotonic() + CONTROLLER_LIMIT_S
            await asyncio.sleep(TICK_S)

    def stop(self) -> None:
        """The process will end."""
        self._tasks.cancel()
        self.directory.stop()
        self.service.end("the broker is stopping")
        self.client.close()
        self.hosts.stop()

    async def close_stores(self) -> None:
        """The last turn is over: write what is left."""
        await self.hosts.close_stores()

    def turn_pagers(self, turns: Sequence[tuple[HostedSet, LogBatch | None]]) -> None:
        """The turn is over for everybody else."""
        self.hosts.turn_pagers(turns)

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._due |= dict.fromkeys([*self.hosts.absent.resumed(time.monotonic()), *self._removals.waiting])
            self.look()
            self.service.tick()
            self.client.tick(time.monotonic())
            self.queues.work()
            self.forwarding.work()
            if time.monotonic() >= self._again_s:
                self._again_s = time.monotonic() + HOSTING_RETRY_S
                self._due |= self._unsettled
                self._unsettled.clear()
            if self._due:
                self._want_hosting()

    # --- who the controller is

    def _make_controller(self) -> Controller:
        settings = self._broker.current()
        return Controller(controller_settings(settings), find_placement(settings.replicas.placement))

    def look(self) -> None:
        """What has become of the member of `default`."""
        status, clients = self._member.status, self._broker.membership.clients
        leads = clients.is_serving
        if (status, leads) == self._status:
            return
        self._status = status, leads
        if self.proxying is not None:
            self.proxying.look_soon()
        if leads:
            self.service.begin(status.generation)
            self.hosts.control = self.service
            self.client.follow(_HERE)
        else:
            self.hosts.control = None
            self.service.end(f"broker {self.name} does not lead the set default any more")
            self.client.follow(status.primary_broker_address or None)
        self._reportable(DEFAULT_SET)

    def _dial(self, address: str, listener: PeerListener) -> Channel:
        if address == _HERE:
            return LoopbackChannel.open(listener, self.service)
        return self.hosts.open_control(address, listener)

    # --- what the map says

    def _map_changed(self, changes: Changes) -> None:
        self._due |= dict.fromkeys(changes.sets)
        if changes.brokers:
            self._due |= dict.fromkeys(
                name for name, entry in self.map.sets.items() if not set(entry.replicas).isdisjoint(changes.brokers)
            )
        queues = []
        for queue_id in changes.queues:
            queue = self.map.queues_by_id.get(queue_id)
            if queue is not None:
                self._entries[queue_id] = queue
                self.directory.queue_changed(queue.name)
            if queue_id in self._entries:
                queues.append(self._entries[queue_id] if queue is not None else self._entries.pop(queue_id))
        self._want_hosting()
        self.queues.map_changed(changes, queues)
        self.forwarding.map_changed()
        has_many = bool(self.map.sets)
        if has_many != self._had_many or (has_many and changes.brokers):  # not for the record of each of hundreds
            self._had_many = has_many
            self._broker.membership.clients.update()
        if self.proxying is not None:
            self.proxying.look_soon()
        self._broker.schedule_turn()

    def arrange(self) -> None:
        """Host what is to be hosted."""
        due, self._due = self._due, {}
        written = self._broker.container.default.resources.replicated.log.last_lsn
        for name in due:
            entry = self.map.sets.get(name)
            own = self.map.brokers.get(self.name)
            if entry is None or own is None or self.name not in entry.replicas:
                if not (name in self.hosts.members or name in self.hosts.loading or name in self.hosts.absent):
                    self._removals.forget(name)
                elif self._removals.may_go(name, written, self._member.committed_lsn):
                    self._unhost(name, entry)
                continue
            self._removals.forget(name)
            if name in self.hosts.absent:  # until somebody looks at it; or it is over
                continue
            brokers = [self.map.brokers[each] for each in entry.replicas if each in self.map.brokers]
            addresses = tuple(each.address for each in brokers)
            cluster = entry.record.cluster
            if name in self.hosts.loading and self.hosts.loading[name].cluster not in ("", cluster):
                self._unsettled[name] = None  # it ends where it is not that of this set
                continue
            if self._is_of_another(name, cluster):
                if not self._knows_map():
                    self._unsettled[name] = None
                    continue
                log.warning("set %s was deleted and made again: what is here of the earlier one is left behind", name)
                self.hosts.unhost(name, "it was deleted, and another set has its name", delete=False)
            wanted = addresses, own.address, entry.min_in_sync, cluster
            if name in self.hosts.members and self._arranged.get(name) == wanted:
                self.queues.look_at(name)
                continue
            self._arranged[name] = wanted
            if name in self.hosts.members or name in self.hosts.loading:
                self.hosts.change_replicas(name, addresses, own.address, min_in_sync=entry.min_in_sync, cluster=cluster)
            else:
                log.info("set %s is hosted here, with replicas at %s", name, ", ".join(each.name for each in brokers))
                self.hosts.host(
                    name,
                    addresses,
                    own.address,
                    min_in_sync=entry.min_in_sync,
                    cluster=cluster,
                    is_group=entry.is_group,
                )
            self.queues.look_at(name)

    def _is_of_another(self, name: str, cluster: str) -> bool:
        """Whether what is hosted belongs to an earlier set of that name."""
        member = self.hosts.members.get(name)
        if member is None:
            return False
        return bool(member.facts.cluster and cluster) and member.facts.cluster != cluster

    def _knows_map(self) -> bool:
        """Whether the map here is the newest there is: what it does not know yet, an older one may contradict."""
        return self._member.status.state in (State.PRIMARY, State.READY)

    def _unhost(self, name: str, entry: SetEntry | None) -> None:
        """A set that was deleted has no queues, or those whose entries were removed: its log may say so here no more.

        One whose replica was moved is held by others. If it is not so, the map has lost what it knew: another log of
        `default` was made the cluster's by force.
        """
        unwanted = self.queues.take_unwanted(name)
        if entry is None or self._is_of_another(name, entry.record.cluster):
            reason = "the cluster map has no such set any more"
            hosted = self._broker.container.sets.get(name)
            queues = {} if hosted is None else hosted.resources.catalog.queues
            may_be_wanted = hosted is None or not {name for name in queues if not queues[name].deleted} <= unwanted
        else:
            reason = "the cluster map has its replicas elsewhere"
            may_be_wanted = self.name in entry.record.members
        log.info("set %s is not hosted here any more: %s", name, reason)
        self._arranged.pop(name, None)
        self.hosts.unhost(name, reason, delete=not may_be_wanted)
        self._reportable(name)

    def _member_changed(self, member: HostedMember) -> None:
        self.queues.look_at(member.name)
        self._reportable(member.name)

    # --- reports: see `controller_client.ReportSource`

    def report(self, *, full: bool) -> BrokerReport | None:
        """None as long as this broker does not know by which address others reach it."""
        return self._reports.report(time.monotonic(), full=full) if self._member.settings.own_address else None

    def _reportable(self, set_name: str) -> None:
        self._reports.changed(set_name)
        self._want_report()

    def _want_report(self) -> None:
        self.client.changed()
        self._broker.schedule_turn()

    def _whoami(self) -> BrokerIdentity:
        return self._identity._replace(address=self._member.settings.own_address)

    def _room_bytes(self) -> int:
        settings = self._broker.current()
        if settings.data_dir is not None and settings.has_store:
            room = os.statvfs(settings.data_dir)
            return room.f_bavail * room.f_frsize
        return max(0, settings.memory_limit_bytes - self._broker.container.default.resources.catalog.memory_bytes)

    # --- orders: see `controller_client.OrderTaker`

    def carry_out(self, order: Ordered | OrderDeletion, answer: Callable[[bool, str], None]) -> None:
        """Of the controller."""
        if isinstance(order, OrderDeletion):
            self.queues.have_deleted(order, answer)
            self._broker.schedule_turn()
            return

        def answered(told: Answered) -> None:
            answer(told.done, told.text)

        if order.set == DEFAULT_SET:
            self._drop_of_default(order.kind, order.to, order.cause, answered)
            return
        try:
            self.hosts.ask(order.set, lambda number: _asked(number, order), answered)
        except KeyError:
            answer(False, f"broker {self.name} has no replica of {order.set}")

    def _drop_of_default(self, kind: OrderKind, to: str, cause: str, done: Callable[[Answered], None]) -> None:
        """Who leads `default` others say: all that the controller wants of it is that nobody waits for who is lost."""
        if kind is not OrderKind.DROP:
            done(Answered(0, False, f"the controller does not say who leads {DEFAULT_SET}"))
            return
        self._broker.membership.default.requests.begin(lambda number: DropAsked(number, to, cause), done)

    # --- records: see `set_member.RecordService`

    def read_record(self, set_name: str, answer: Callable[[RecordAnswer], None]) -> None:
        """From the controller."""
        self.client.read_record(set_name, lambda told: answer(_record_answer(told)))

    def write_record(
        self, set_name: str, expected: ClusterRecord, wanted: ClusterRecord, answer: Callable[[RecordAnswer], None]
    ) -> None:
        """By the controller."""
        self.client.write_record(
            set_name,
            SetRecorded(set_name, *expected),
            SetRecorded(set_name, *wanted),
            lambda told: answer(_record_answer(told)),
        )

    def served(self) -> list[Resources]:
        """Of the sets that this broker serves, other than `default`."""
        return [member.hosted.resources for member in self.hosts.members.values() if member.is_serving]

    def leads(self, set_name: str) -> bool:
        """Whether this broker serves that set."""
        member = self.hosts.members.get(set_name)
        return member is not None and member.is_serving


def _take_part_in_turns(cluster: SetCluster, due: DueParties) -> None:
    """Each part says when it has something: see `DueParties`."""
    shared, forwarding, service, queues = cluster.hosts.shared, cluster.forwarding, cluster.service, cluster.queues
    forwarding.due = due.join(TurnPlace.FORWARDING, forwarding.work)
    service.due = due.join(TurnPlace.CONTROLLER, service.turn_ended)
    queues.due = due.join(TurnPlace.DIRECTORY, queues.work)
    cluster.client.due = due.join(TurnPlace.REPORT, cluster.client.flush)
    shared.unflushed.due = due.join(TurnPlace.SHARED, shared.flush)


class _Replicas:
    """All that this broker hosts: see `replica_reports.HostedReplicas`."""

    def __init__(self, default: SetMember, hosts: SetHost) -> None:
        self._default, self._hosts = default, hosts

    @property
    def problems(self) -> Mapping[str, str]:
        """Sets of which there should be a replica here, and why there is none."""
        return self._hosts.absent.problems

    def replica(self, set_name: str) -> HostedReplica | None:
        """The one of that set; None: there is none."""
        driver = self._default if set_name == DEFAULT_SET else self._hosts.members.get(set_name)
        return None if driver is None else HostedReplica(driver.facts.report, driver.hosted.resources.catalog)

    def names(self) -> set[str]:
        """Their sets."""
        return {DEFAULT_SET, *self._hosts.members}

    def take_active(self) -> set[str]:
        """The sets to which something may have happened since the last call; `default` always counts as one."""
        return {DEFAULT_SET, *self._hosts.take_active()}


def _asked(number: int, order: Ordered) -> Input:
    """What an order is for the set's member."""
    match order.kind:
        case OrderKind.PROMOTE:
            return PromoteAsked(number, order.force, order.cause, not order.force, order.to)
        case OrderKind.SWITCH_OVER:
            return SwitchoverAsked(number, order.to, order.cause)
        case OrderKind.DROP:
            return DropAsked(number, order.to, order.cause)
        case OrderKind.SHUT_DOWN:
            return ShutdownAsked(number, order.to)


def _record_answer(told: RecordTold) -> RecordAnswer:
    record = None if told.record is None else ClusterRecord(*told.record[1:])
    return RecordAnswer(told.written, record, told.problem)


def controller_settings(settings: BrokerSettings) -> ControllerSettings:
    """What the controller needs to know of the settings."""
    own = settings.replicas
    return ControllerSettings(
        failure_timeout_s=own.failure_timeout_s,
        min_replicas=own.min_replicas,
        recovery_interval_s=own.failure_recovery_interval_s,
        check_interval_s=own.check_interval_s,
        additions=own.additions,
        auto_trim=own.auto_trim,
        policies=own.policies,
    )


def place_of(settings: BrokerSettings) -> str:
    """What a broker says of what it fails together with."""
    zone, machine = settings.replicas.zone or "", settings.workers.machine_of(settings.name)
    return BrokerPlace(zone, machine).text if machine else zone


def make_set_cluster(broker: SetClusterHost, storage: Storage | None, due: DueParties) -> SetCluster:
    """The part of `broker`, which is a member of `default`, whose store is on `storage`. Raises SettingsError."""
    settings = broker.current()
    identity = BrokerIdentity(
        name=settings.name,
        uuid=broker_uuid(settings.data_dir if settings.has_store else None),
        instance=broker.membership.member.settings.instance,
        address="",
        clients_url="",
        zone=place_of(settings),
        version=__version__,
    )
    dialler = Dialler(settings.name, PeerEngines(broker.current, broker.notices.fault))
    hosts = SetHost(broker, dialler, broker.membership.process, storage)
    return SetCluster(broker, hosts, identity, due)
