"""The resource set replicas of a broker, all but that of `default`: which there are, their ticks and turns.

Whoever knows the cluster map says which sets this broker is to host, and with whom (`host`, `unhost`,
`change_replicas`), and passes on what the controller wants of them (`ask`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.conditions import RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.bundles import Purpose
from qpid_ha_broker.ha.frame_codec import decode
from qpid_ha_broker.ha.frames import FrameError, Question
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.ha.record_keeper import controller_of
from qpid_ha_broker.ha.settings import GroupReplicaSettings, MemberSettings
from qpid_ha_broker.model.logs.log import DEFAULT_SET, LogBatch
from qpid_ha_broker.server.clients.set_clients import SetClients
from qpid_ha_broker.server.clients.shared_connections import SharedConnections, SubChannelOpener
from qpid_ha_broker.server.controller.absent_replicas import AbsentReplicas
from qpid_ha_broker.server.peers.peer_asker import PeerAsker
from qpid_ha_broker.server.peers.peer_channels import Dialler
from qpid_ha_broker.server.peers.sub_channels import SharedTimes, SubChannel
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.sets.hosted_member import HostedMember, RecordService, SetMemberHost
from qpid_ha_broker.server.sets.set_lines import SetLines
from qpid_ha_broker.server.sets.set_member import SetMember, Surroundings, new_instance
from qpid_ha_broker.server.stores.broker_store import BrokerStore, Loaded, check_dirty
from qpid_ha_broker.server.stores.fleet import StoreFleet, VoteWriter
from qpid_ha_broker.server.stores.loading import StoreReading
from qpid_ha_broker.server.stores.storage import Storage
from qpid_ha_broker.store.errors import StoreDamaged, StoreError
from qpid_ha_config.addresses import show_addresses

log = logging.getLogger("cluster")

TICK_S: Final = 0.1
MAP_INTERVAL_S: Final = 0.25
"""Between two looks whether the map is current that is waited for."""
HEARTBEAT_S: Final = 1.0
"""On a connection that sets share, or more often: twice in `ha.failure-timeout`."""
TICKED_AT_ONCE: Final = 64
TICK_SHARES: Final = 4
"""When more members than that are awake each gets one tick of so many: that hundreds of sets fail over is no reason to
look at all of them ten times in a second, which takes as much of the processor as a quarter of what they do."""
REST_TICKS: Final = 50
"""A member at rest gets one tick of so many."""
TAIL_SHARE: Final = 64
"""Of `ha.tail-bytes`, what a set keeps of its stream: there may be a thousand of them, and few have much to do."""
KEEP_S: Final = 0.5
"""Between two looks at the store of a member that is awake; then once it is at rest. None is pressing: hundreds of
sets that fail over do not need it before they are led."""
RECONNECT_S: Final = 0.5
"""A member's first pause between two attempts to find its primary: the next one announces itself sooner."""
_STOPPED_S: Final = 0.5
"""Between two ticks: then this process was stopped meanwhile."""


class SetHost:
    """The promise: each set that this broker hosts has a member, which is fed what happens to it and nothing else.

    It is their `set_member.MemberOwner`: a member that cannot go on costs this broker that one replica.
    For the listener's methods, which are about sub-channels for questions, see `peer_frames.PeerListener`.
    """

    def __init__(
        self, broker: SetMemberHost, dialler: Dialler, process: ProcessTime, storage: Storage | None = None
    ) -> None:
        """`process`, `storage`: those of `default`; a stop shows in all sets at once, and stores have one writer."""
        self.members: dict[str, HostedMember] = {}
        self.loading: dict[str, MemberSettings] = {}
        """Sets whose stores are being loaded."""
        self.records: RecordService
        """Where the records of sets are; before one of them is hosted."""
        self.control: PeerListener | None = None
        """Who listens to brokers that look for the controller here; None: this broker is not it."""
        self.arrivals: Callable[[str], PeerListener | str] | None = None
        """Who takes what another broker hands on for a set, or why nobody does."""
        self.changed: Callable[[HostedMember], None] = lambda member: None
        """Called when there is something new to be told of a member."""
        self.absent = AbsentReplicas()
        self.is_map_current: Callable[[], bool] = lambda: True
        """Whether what this broker knows of the cluster map is the newest there is."""
        settings = broker.current()
        silence_s = settings.replicas.failure_timeout_s
        times = SharedTimes(heartbeat_s=min(HEARTBEAT_S, silence_s / 2), silence_s=silence_s)
        self.shared = SharedConnections(broker, dialler, self._accept, times, partial(_is_pressing, self.members))
        self._broker = broker
        self._fleet: StoreFleet | None = None
        """The stores; None: replicas are in memory only."""
        if settings.data_dir is not None and settings.has_store:
            self._fleet = StoreFleet(settings.data_dir, settings.store, settings.name, storage)
        self.votes = None if self._fleet is None else VoteWriter(self._fleet)
        self.stored: list[str] = []
        """The sets that had a store here when the broker started."""
        self._reading: set[str] = set()
        """Sets whose stores are being read, or will be, whether they are still wanted or not."""
        self._damaged: set[str] = set()
        """Sets whose stores are here and cannot be loaded: out of the way once a replica is wanted here anew."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Stores that are being closed and deleted."""
        asking = SubChannelOpener(self.shared, "", Purpose.ASK)
        self.questions = PeerAsker(asking, may_be_stale=False)
        self.process = process
        self._lines = SetLines(log)
        self._asking: dict[Channel, dict[str, None]] = {}
        """The sets of which something was asked on a sub-channel."""
        self._awake: dict[HostedMember, float] = {}
        """Those that get every tick, with the second at which their stores have their next one."""
        self._active: set[str] = set()
        """The sets of members to which something has happened; see `take_active`."""
        self._ticks = 0
        self._ticked_s = 0.0
        self._tasks = BackgroundTasks()

    # --- start and stop

    def start(self) -> None:
        """Take part. The broker listens already. Raises OSError."""
        if self._fleet is not None:
            self.stored = [name for name in self._fleet.names() if name != DEFAULT_SET]
        self._broker.container.peers.shared = self.shared
        self._ticked_s = time.monotonic()
        self._tasks.start(self._tick_forever())

    def stop(self) -> None:
        """The process will end."""
        self._tasks.cancel()
        for member in self.members.values():
            member.stop("the broker is stopping")
        if self.votes is not None:
            self.votes.stop()
        self.questions.close()
        self.shared.close("the broker is stopping")

    # --- which sets there are

    def host(
        self,
        name: str,
        addresses: Sequence[str],
        own_address: str,
        *,
        min_in_sync: int = 0,
        cluster: str = "",
        is_group: bool = False,
    ) -> None:
        """Have a replica of the set `name`, and look for its primary: at once, or when its store is loaded.

        `addresses`: of the brokers that have one, this one too (`own_address`); `min_in_sync` 0: as `ha.min-in-sync`.
        `cluster`: the UUID of the set's log, where that is known: an earlier set of that name had another one.
        `is_group`: each broker that has one writes it.
        Raises ValueError when the set is hosted already, or for addresses without this broker's own.
        """
        if name in self.members or name in self.loading:
            raise ValueError(f"the resource set {name} is hosted already")
        make = GroupReplicaSettings if is_group else MemberSettings
        settings = self._member_settings(make, name, addresses, own_address, min_in_sync, cluster)
        self.absent.forget(name)
        if self._fleet is None:
            container = self._broker.container
            self._begin(settings, container.host(name, container.new_resources(name, is_group=is_group)), None, None)
        else:
            self.loading[name] = settings
            if name not in self._reading:  # it was wanted before, then not, and its turn has not come yet
                self._reading.add(name)
                self._tasks.start(self._load(name, self._fleet))

    async def _load(self, name: str, fleet: StoreFleet) -> None:
        """On a thread, before anybody else may see what is loaded; not while an earlier store of that name ends."""
        container = self._broker.container
        try:
            ending = self._ending.get(name)
            if ending is not None:
                await asyncio.wait({ending})
            await _make_way(name, self.loading, lambda: self.is_map_current(), fleet)
            async with fleet.side_by_side:
                settings = self.loading.get(name)
                if settings is None:
                    return
                await self._set_damaged_aside(name, fleet)
                is_group = isinstance(settings, GroupReplicaSettings)
                resources = container.new_resources(name, is_group=is_group)
                kept = BrokerStore(self._broker, fleet.store(name), resources, fleet.pager_threads)
                reading = StoreReading()
                loaded = await reading.run(partial(kept.read, settings, reading.show, apply_all=is_group))
            try:
                if not is_group:  # whose stores are never closed in order: the record says who may go on with it
                    check_dirty(self._broker.current(), loaded.restored.store, name)
            except StoreError:
                kept.store.abandon()
                raise
        except StoreError as error:
            if isinstance(error.__cause__, StoreDamaged):
                self._damaged.add(name)
            if self.loading.pop(name, None) is not None:  # else it is not wanted any more
                log.error("set %s: this broker has no replica: %s", name, error)
                self.absent.fail(name, str(error))
            return
        finally:
            self._reading.discard(name)
        wanted = self.loading.pop(name, None)
        if wanted is None:  # it is not wanted any more; what is there nobody has looked at, so it stays
            kept.store.abandon()
            return
        hosted = container.host(name, resources)
        kept.begin(loaded.found, hosted)
        self._begin(wanted, hosted, loaded, kept)

    async def _set_damaged_aside(self, name: str, fleet: StoreFleet) -> None:
        """It was refused, and this broker was told to have no replica, then to have one: that one begins with nothing.

        Raises StoreError.
        """
        if name in self._damaged:
            try:
                aside = await asyncio.to_thread(fleet.set_aside, name)
            except FileNotFoundError:  # an operator was faster
                pass
            except OSError as error:
                raise StoreError(f"the damaged store cannot be set aside: {error}") from error
            else:
                log.warning("set %s: the damaged store is set aside as %s, and its replica begins anew", name, aside)
            self._damaged.discard(name)

    def _begin(
        self, settings: MemberSettings, hosted: HostedSet, loaded: Loaded | None, kept: BrokerStore | None
    ) -> None:
        member: HostedMember
        if isinstance(settings, GroupReplicaSettings):
            # With Corosync's library and what declares it 1.5 MiB, and few brokers have groups.
            from qpid_ha_broker.server.sets.group_set_member import GroupSetMember

            committed_lsn = 0 if loaded is None else loaded.found.committed_lsn
            member = GroupSetMember(self, self._broker, hosted, settings, kept, committed_lsn)
        else:
            opener = SubChannelOpener(self.shared, hosted.name, Purpose.FOLLOW)
            around = Surroundings(self._broker, opener, partial(_make_clients, self._broker), kept)
            member = SetMember(self, around, hosted, settings, None if loaded is None else loaded.restored)
        self.members[hosted.name] = member
        member.start()

    def unhost(self, name: str, reason: str, *, delete: bool = True, clean: str = "") -> None:
        """Have no replica of that set any more; what was held of it is forgotten. Raises KeyError.

        `delete`: its store, too; if not, that is there for an operator, or for the next time. `clean`: the UUID under
        which it is whole.
        """
        if self.loading.pop(name, None) is not None or self.absent.forget(name):
            return
        member = self.members.pop(name)
        self._active.add(name)
        member.stop(reason)
        self._awake.pop(member, None)
        self._broker.container.unhost(name, AmqpError(RESOURCE_LOCKED, reason))
        if member.kept is not None and self._fleet is not None:
            ending = asyncio.get_running_loop().create_task(
                self._end_store(name, member.kept, self._fleet, delete=delete, clean=clean)
            )
            self._ending[name] = ending
            ending.add_done_callback(lambda _: self._ending.pop(name, None))
        self._broker.schedule_turn()

    async def _end_store(self, name: str, kept: BrokerStore, fleet: StoreFleet, *, delete: bool, clean: str) -> None:
        await kept.close(clean)
        if not delete:
            return
        try:
            await asyncio.to_thread(fleet.delete, name)
        except OSError as error:
            log.error("the store of the resource set %s cannot be deleted: %s", name, error)

    async def close_stores(self) -> None:
        """The last turn is over: write what is left."""
        kept = [member.kept for member in self.members.values() if member.kept is not None]
        await asyncio.gather(*[each.close("") for each in kept], *self._ending.values())
        if self._fleet is not None:
            self._fleet.close()

    def change_replicas(
        self, name: str, addresses: Sequence[str], own_address: str, *, min_in_sync: int = 0, cluster: str = ""
    ) -> None:
        """Other brokers have replicas of that set now. Raises KeyError, and ValueError as `host`."""
        current = self.loading.get(name) or self.members[name].settings
        settings = self._member_settings(
            type(current), name, addresses, own_address, min_in_sync, cluster or current.cluster, current.instance
        )
        if name in self.loading:
            self.loading[name] = settings
        else:
            self.members[name].change_settings(settings)

    def _member_settings(
        self,
        make: type[MemberSettings],
        name: str,
        addresses: Sequence[str],
        own_address: str,
        min_in_sync: int,
        cluster: str,
        instance: str = "",
    ) -> MemberSettings:
        if own_address not in addresses:
            raise ValueError(f"{own_address} is not among the addresses of the replicas, {', '.join(addresses)}")
        settings = self._broker.current()
        ha = settings.ha
        return make(
            name=settings.name,
            instance=instance or new_instance(),
            addresses=tuple(addresses),
            own_address=own_address,
            clients_url=show_addresses(ha.public_url),
            cluster=cluster,
            backup_timeout_s=ha.waits_for_backup_s,
            min_in_sync=min_in_sync or ha.min_in_sync,
            tail_bytes=ha.tail_bytes // TAIL_SHARE,
            has_heartbeats=False,
            replace_s=settings.replicas.failure_timeout_s,
            reconnect_s=RECONNECT_S,
            looks_everywhere=False,
            has_coordinator=True,
            keeper=controller_of(name),
            has_store=self._fleet is not None,
            auto_recover=ha.auto_recover,
        )

    # --- what members tell: see `set_member.MemberOwner`

    def state_changed(self, member: HostedMember, effect: fx.StateChanged) -> None:
        """For the log."""
        self._lines.log(logging.INFO, member.name, "status change: {} -> {} ({})".format(*effect))

    def note(self, member: HostedMember, level: int, text: str) -> None:
        """For the log, once for many sets."""
        self._lines.log(level, member.name, text)

    def cannot_go_on(self, member: HostedMember, reason: str) -> None:
        """The broker goes on with its other sets, and the store of this one stays: it may hold what nobody else does.

        Not at once: the member's effects are being carried out.
        """
        log.error("set %s: this broker's replica ends: %s", member.name, reason)
        asyncio.get_running_loop().call_soon(self._drop_replica, member, reason)

    def ended(self, member: HostedMember, uuid: str) -> None:
        """The whole cluster ends, this broker next. Not at once: the member's effects are being carried out."""
        asyncio.get_running_loop().call_soon(self._end_replica, member, uuid)

    def _end_replica(self, member: HostedMember, uuid: str) -> None:
        if self.members.get(member.name) is member:
            self.unhost(member.name, "the cluster is shut down", delete=False, clean=uuid)
            self.absent.end(member.name)

    def _drop_replica(self, member: HostedMember, reason: str) -> None:
        if self.members.get(member.name) is member:
            self.unhost(member.name, reason, delete=False)
            self.absent.fail(member.name, reason)

    # --- what the controller wants

    def ask(self, name: str, make: Callable[[int], fx.Input], done: Callable[[fx.Answered], None]) -> None:
        """Put what `make` gives for a number before the set's member, and have `done` hear what came of it.

        Raises KeyError.
        """
        self.members[name].ask(make, done)

    # --- what other brokers open

    def _accept(self, sub_channel: SubChannel) -> PeerListener | str:
        name = self._broker.current().name
        if sub_channel.purpose == Purpose.FOLLOW:
            self.shared.losses.tell_of(sub_channel.set)
            member = self.members.get(sub_channel.set)
            if member is not None:
                return member.peers.accept(sub_channel)
            return f"broker {name} has no replica of the resource set {sub_channel.set}"
        if sub_channel.purpose == Purpose.ASK:
            return self
        if sub_channel.purpose == Purpose.CONTROL:
            return self.control or f"broker {name} is not the controller"
        if sub_channel.purpose == Purpose.FORWARD and self.arrivals is not None:
            return self.arrivals(sub_channel.set)
        return f"broker {name} is of a release that knows no sub-channels of kind {sub_channel.purpose}"

    def open_control(self, address: str, listener: PeerListener) -> SubChannel:
        """A sub-channel to the broker at `address`, as to the controller; `listener` hears whether there is one."""
        return self.shared.open(address, "", Purpose.CONTROL, listener)

    def opened(self, channel: Channel) -> None:
        """Another broker has questions."""
        self._asking[channel] = {}

    def received(self, channel: Channel, data: bytes) -> None:
        """A question came. One about a set that is not here is left without an answer, as of a broker that is down:
        what this broker knows of that set counts for nothing, also where it is about to be loaded from its store."""
        try:
            question = decode(data)
        except FrameError as error:
            log.warning("%s: %s", channel.peer, error)
            return
        member = self.members.get(question.set) if isinstance(question, Question) else None
        if member is not None and isinstance(question, Question):
            self._asking[channel][member.name] = None
            member.peers.asked(channel, question)

    def closed(self, channel: Channel, reason: str) -> None:
        """It asks nothing more."""
        for name in self._asking.pop(channel, {}):
            if name in self.members:
                self.members[name].peers.closed(channel, reason)

    # --- turns and ticks

    def turn_ended(self, turns: Sequence[tuple[HostedSet, LogBatch | None]]) -> None:
        """These sets had a turn: let their members know."""
        for hosted, batch in turns:
            member = self.members.get(hosted.name)
            if member is not None:
                member.turn_ended(batch)

    def turn_pagers(self, turns: Sequence[tuple[HostedSet, LogBatch | None]]) -> None:
        """The turn is over for everybody else: what has no room in memory leaves it, what is wanted comes back."""
        for hosted, _ in turns:
            member = self.members.get(hosted.name)
            if member is not None and member.kept is not None:
                member.kept.pager.turn()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._tick(time.monotonic())

    def take_active(self) -> set[str]:
        """The sets to which something may have happened since the last call, also those that are gone since."""
        active, self._active = self._active, {member.name for member in self._awake}
        return active

    def wake(self, member: HostedMember) -> None:
        """Something happens to a member that was at rest."""
        self._awake[member] = time.monotonic() + KEEP_S
        self._active.add(member.name)

    def _tick(self, now_s: float) -> None:
        """Members at rest are spread over the ticks. After a stop of this process each gets one, and learns of it."""
        self.process.look(now_s)
        was_stopped = now_s - self._ticked_s > _STOPPED_S
        self._ticked_s = now_s
        if not was_stopped:
            self.process.ran_until_s = now_s
        self._ticks = (self._ticks + 1) % REST_TICKS
        self.shared.tick()
        self.questions.tick(now_s)
        self._lines.flush()
        members = list(self.members.values())
        awake = islice(self._awake, max(TICKED_AT_ONCE, -(-len(self._awake) // TICK_SHARES)))  # who was ticked is last
        for member in dict.fromkeys([*awake, *(members if was_stopped else members[self._ticks :: REST_TICKS])]):
            keep_at_s = self._awake.pop(member, 0.0)
            is_awake = member.tick(now_s)
            if member.kept is not None and (now_s >= keep_at_s or not is_awake):
                keep_at_s = now_s + KEEP_S
                member.kept.tick()
            if is_awake:
                self._awake[member] = keep_at_s


def _is_pressing(members: Mapping[str, HostedMember], set_name: str) -> bool:
    """Whether something of that set waits: its member has to hear at once that a sub-channel is lost."""
    member = members.get(set_name)
    return not (isinstance(member, SetMember) and member.is_at_rest)


async def _make_way(
    name: str, loading: Mapping[str, MemberSettings], is_map_current: Callable[[], bool], fleet: StoreFleet
) -> None:
    """Have no store of an earlier set of that name in the way: it never counts as that of the new one, and is moved
    only when the map that says so is not an old one. Raises StoreError."""
    while (settings := loading.get(name)) is not None and settings.cluster:
        found = await asyncio.to_thread(fleet.cluster_of, name)
        if found in ("", settings.cluster):
            return
        if is_map_current():
            try:
                aside = await asyncio.to_thread(fleet.set_aside, name)
            except OSError as error:
                raise StoreError(f"the store of an earlier set cannot be set aside: {error}") from error
            log.warning("set %s: what is stored here is of an earlier set: it is set aside as %s", name, aside)
            return
        await asyncio.sleep(MAP_INTERVAL_S)


def _make_clients(
    broker: SetMemberHost,
    hosted: HostedSet,
    member: Member,
    feed: Callable[[fx.Input], None],
    run_turn: Callable[[], None],
) -> SetClients:
    return SetClients(broker, hosted, lambda: member.status.serves_clients, feed, run_turn)
