"""The members of a cluster's sets, as they ship: each replica a `Node` with its store, each set a network of its own.

The controller of the simulated cluster is to them what it is to those of a broker: it has their records, and what it
orders is fed to them. Connections are shared by all sets, so whatever cuts them cuts all: without heartbeats of their
own, members hear of a lost one from those.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from qpid_ha_broker.cluster.messages import (
    AnswerRecord,
    BackupReport,
    GiveOrder,
    OrderDeletion,
    OrderKind,
    ReplicaReport,
)
from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.record_keeper import controller_of
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.peers.replica_reports import QueueReport
from qpid_ha_broker.store.errors import StoreError
from simulated_disk import SimulatedDisk
from simulation.copies import Copy, copies_in, queued_copies
from simulation.custody import Custody
from simulation.network import Network
from simulation.node import Node, Session, Taker, Violation
from simulation.node import World as NodeWorld
from simulation.node_store import Machine
from simulation.queue_ledger import PUBLISHED, QueueLedger
from simulation.sets_queues import BrokerQueues
from simulation.sets_world import BrokerModel, World
from simulation.trace import Trace
from simulation.virtual_time import Clock

PUBLISH_WITHIN_S = 0.6
BUSY_SETS = 8
"""Where there are more sets, each is published to the less often."""
RECORD_LIMIT_S = 5.0
"""As `server.controller.controller_client.RECORD_LIMIT_S`."""
NO_CONTROLLER_S = 0.01
LOAD_WITHIN_S = 0.3
TRY_AGAIN_S = 1.0
"""After a replica could not go on."""
DRIFT = 0.01


class SetTrace(Trace):
    """Says of which set each line is."""

    def __init__(self, world: World, set_name: str) -> None:
        super().__init__(world.schedule, world.trace.wanted)
        self._whole, self._set = world.trace, set_name

    def add(self, who: str, text: str) -> None:
        self._whole.add(f"{who}/{self._set}", text)


class SetRecordsOfController:
    """The record of one set, as its members read and write it: see `node.Records`."""

    def __init__(self, world: World, set_name: str) -> None:
        self._world = world
        self._set = set_name

    def read(
        self, number: int, reply: Callable[[fx.RecordRead], None], asker: str = "", *, is_backup: bool = False
    ) -> None:
        def answered(answer: AnswerRecord | None) -> None:
            reply(fx.RecordRead(number, _record(answer), "" if answer else "no answer"))

        self._ask(asker, None, None, answered)

    def write(
        self,
        number: int,
        expected: ClusterRecord,
        wanted: ClusterRecord,
        reply: Callable[[fx.RecordWritten], None],
        asker: str = "",
    ) -> None:
        def answered(answer: AnswerRecord | None) -> None:
            reply(fx.RecordWritten(number, answer is not None and answer.written, _record(answer)))

        self._ask(asker, SetRecorded(self._set, *expected), SetRecorded(self._set, *wanted), answered)

    def _ask(
        self,
        asker: str,
        expected: SetRecorded | None,
        wanted: SetRecorded | None,
        reply: Callable[[AnswerRecord | None], None],
    ) -> None:
        replies = [reply]

        def answered(answer: AnswerRecord | None) -> None:
            if replies:
                replies.pop()(answer)

        was_sent = self._world.ask_record(asker, self._set, expected, wanted, answered)
        self._world.after(RECORD_LIMIT_S if was_sent else NO_CONTROLLER_S, lambda: answered(None))


def _record(answer: AnswerRecord | None) -> ClusterRecord | None:
    return None if answer is None or answer.record is None else ClusterRecord(*answer.record[1:])


class SimulatedSet:
    """One set: its replicas, the network between them, and who publishes to it."""

    def __init__(self, world: World, name: str, clocks: Mapping[str, Clock]) -> None:
        self.name = name
        self._world = world
        self._draw = random.Random(f"{world.random.random()}/{name}")
        draw = self._draw
        self.network = Network(world.schedule, draw, draw.choice((0.0005, 0.005, 0.02)), draw.choice((4, 1000)), None)
        self._custody = Custody(world.brokers, True, lambda: world.now_s)
        self._addresses: dict[str, tuple[str, ...]] = dict.fromkeys(world.brokers, ())
        """Of the replicas, as each broker knows them."""
        self._min_in_sync = 1
        self._clusters: dict[str, str] = dict.fromkeys(world.brokers, "")
        """Of the set, as each broker knows it."""
        self._tail_bytes, self._chunk_messages = draw.choice((1, 2_000, 1_000_000)), draw.choice((1, 20))
        self._segment_bytes = draw.choice((2_048, 65_536))
        self.confirmed: list[int] = []
        self._published = 0
        self.is_stopping = False
        records = SetRecordsOfController(world, name)
        around = NodeWorld(world.schedule, self.network, records, SetTrace(world, name), self, self._custody, 20)
        self.nodes = {
            broker: Node(around, index, clocks[broker], partial(self._settings, broker), self._new_machine(broker))
            for index, broker in enumerate(world.brokers)
        }
        self.network.hosts = {_address(broker): node for broker, node in self.nodes.items()}
        for sender, receiver in world.blocked:
            self.network.block(self.nodes[sender].index, self.nodes[receiver].index)
        self._publish_later()

    def _new_machine(self, broker: str) -> Machine:
        draw = random.Random(self._draw.random())
        disk = SimulatedDisk(random.Random(draw.random()))
        disk.on_sync = partial(self._custody.synced, broker)
        return Machine(disk, draw, self._segment_bytes, has_stalls=self._world.has_faults)

    def _settings(self, broker: str, instance: str) -> MemberSettings:
        return MemberSettings(
            name=broker,
            instance=instance,
            addresses=self._addresses[broker] or (_address(broker),),
            own_address=_address(broker),
            clients_url=_address(broker),
            backup_timeout_s=3.0,
            min_in_sync=self._min_in_sync,
            has_heartbeats=False,
            reconnect_s=0.5,
            looks_everywhere=False,
            tail_bytes=self._tail_bytes,
            chunk_messages=self._chunk_messages,
            has_coordinator=True,
            keeper=controller_of(self.name),
            has_store=True,
            cluster=self._clusters[broker],
        )

    # --- its replicas

    def host(self, broker: str, entry: SetEntry, addresses: tuple[str, ...]) -> None:
        """There is a replica at that broker, and others at those addresses."""
        node = self.nodes[broker]
        self._addresses[broker], self._min_in_sync = addresses, entry.min_in_sync or 1
        self._clusters[broker] = entry.record.cluster
        if node.is_up and self._is_of_another(node, entry.record.cluster):
            self.settle_identity(broker)
        elif node.is_up:
            node.do(partial(self._change_settings, node))
        else:
            self._load(broker)

    def _load(self, broker: str) -> None:
        node = self.nodes[broker]
        starts = self._world.brokers[broker].starts

        def load() -> None:
            there = self._world.brokers[broker]
            if there.is_up and there.starts == starts and self._addresses[broker] and not node.is_up:
                node.start()
                self.settle_identity(broker)
                if there.is_paused:
                    node.pause()

        self._world.after(LOAD_WITHIN_S * self._draw.random(), load)

    def _is_of_another(self, node: Node, cluster: str) -> bool:
        status = node.member.status
        return bool(status.cluster and cluster) and status.cluster != cluster

    def settle_identity(self, broker: str) -> None:
        """What is here of an earlier set of that name counts for nothing where the map has another one."""
        node = self.nodes[broker]
        if node.is_up and self._is_of_another(node, self._clusters[broker]) and self._world.knows_map(broker):
            node.kill(is_silent=False, cause="its store is of another set of that name")
            self.empty(broker, "it was of another set of that name")
            node.start()

    def _change_settings(self, node: Node) -> None:
        instance = node.member.settings.instance
        node.member.settings = self._settings(node.name, instance)
        node.want_turn()

    def unhost(self, broker: str, *, delete: bool) -> None:
        """There is none any more."""
        node = self.nodes[broker]
        self._addresses[broker] = ()
        if node.is_up:
            node.feed(fx.Stopping())
            if node.is_up:
                node.kill(is_silent=False, cause="not hosted any more")
        if delete:
            self.empty(broker, "its replica was removed")

    def empty(self, broker: str, cause: str) -> None:
        """Of a replica that does not run: its store is gone."""
        self._custody.disk_lost(broker, cause)
        self.nodes[broker].machine = self._new_machine(broker)

    def report(self, broker: str) -> ReplicaReport | None:
        """As its broker tells the controller; None: it does not run."""
        node = self.nodes[broker]
        if not node.is_up:
            return None
        member, status = node.member, node.member.status
        primary = member.primary
        backups: tuple[BackupReport, ...] = ()
        if primary is not None:
            links = primary.links.values()
            backups = tuple([BackupReport(each.name, each.name in primary.in_sync, 0) for each in links])
        phase = "" if status.phase is None else status.phase.value
        lsn = member.position.lsn
        return ReplicaReport(self.name, status.state.value, phase, status.generation, lsn, status.problem, backups)

    # --- its clients, see `node.Client`

    def _publish_later(self) -> None:
        crowd = max(1.0, len(self._world.committed_map.sets) / BUSY_SETS)
        self._world.after(PUBLISH_WITHIN_S * crowd * self._draw.random(), self._publish)

    def _publish(self) -> None:
        if self.is_stopping:
            return
        self._publish_later()
        primaries = [node for node in self.nodes.values() if node.is_primary and not node.is_paused]
        node = self._draw.choice(primaries) if primaries else None
        session = None if node is None else node.open_session(self)
        if node is not None and session is not None:
            self._published += 1
            node.do(partial(self._arrive, session, self._published))

    def _arrive(self, session: Session, number: int) -> None:
        node = session.node
        if not session.is_open:
            return
        payload = Copy(f"{node.name}#{node.process}", number, 0, PUBLISHED, 0).payload()
        try:
            queue = node.configuration.declare_queue(PUBLISHED, {})
            token = node.resources.publish(queue, Message(payload, True), node.message_ms())
        except ModelError:
            node.end_session(session)  # below min-in-sync, say
            return
        node.wait(token, session, partial(self._confirmed, session, number))
        node.written()

    def _confirmed(self, session: Session, number: int) -> None:
        """Of a set that was deleted, or of the one that was there before it was made again, nothing has to stay."""
        entry = self._world.committed_map.sets.get(self.name)
        if entry is not None and entry.record.cluster == session.node.member.status.cluster:
            self.confirmed.append(number)
        session.node.end_session(session)

    def handed_out(self, taker: Taker, entry: Entry) -> None:
        raise AssertionError("a publisher takes nothing")

    def ended(self, session: Session) -> None:
        """Whether it was written is not known."""

    # --- what is watched, see `node.Watcher`

    def state_changed(self, node: Node, change: fx.StateChanged) -> None:
        """One that slept while another one was recorded may take up what it was promised: it confirms nothing."""
        entry = self._world.committed_map.sets.get(self.name)
        was_replaced = entry is not None and entry.record.generation > node.member.status.generation
        if change.after is State.PRIMARY and not was_replaced:
            self._check(node)

    def handled(self, node: Node) -> None:
        """Invariants are checked by the node."""

    def process_ended(self, node: Node, in_order: bool) -> None:
        raise Violation(f"the replica of {self.name} at {node.name} has ended by itself")

    def store_refused(self, node: Node, problem: StoreError) -> None:
        raise Violation(f"{node.name} cannot use its store of {self.name}: {problem}")

    def ended_for_good(self, node: Node, reason: str) -> None:
        """Its broker goes on without it, and tries again; its store stays."""
        self._world.notes.append(f"{self._world.now_s:8.2f} {node.name}: the replica of {self.name} ends: {reason}")
        self._world.after(TRY_AGAIN_S, partial(self._load, node.name))

    def _check(self, node: Node) -> None:
        """It has all that was confirmed; and of each process that was primary what that wrote, in its order."""
        copies = queued_copies(node.resources.catalog).get(PUBLISHED, [])
        present = {copy.number for copy in copies}
        gone = [number for number in self.confirmed if number not in present]
        if gone:
            raise Violation(f"{node.name} leads {self.name} without what was confirmed: {gone[:5]}")
        last: dict[str, int] = {}
        for copy in copies:
            if last.setdefault(copy.publisher, 0) >= copy.number:
                raise Violation(f"{node.name} leads {self.name}, where {copy} comes behind {last[copy.publisher]}")
            last[copy.publisher] = copy.number

    def check_at_rest(self, entry: SetEntry) -> None:
        """All that were in sync have the same, and everything that was confirmed."""
        primary = self.nodes[entry.record.primary]
        queued = copies_in(primary.resources.catalog)
        self._check(primary)
        for broker in entry.record.members:
            node = self.nodes[broker]
            if node.is_up and node.member.status.state is State.READY:
                missing = {copy.number for copy in queued ^ copies_in(node.resources.catalog)}
                if missing & set(self.confirmed):
                    raise Violation(f"{broker} is in sync with {primary.name} in {self.name}, and differs in {missing}")


class Members:
    """All sets, on all brokers: what happens to a broker happens to each of its replicas."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sets: dict[str, SimulatedSet] = {}
        self._clocks: dict[str, Clock] = {}
        for broker in world.brokers:
            drift, offset_s = world.random.uniform(-DRIFT, DRIFT), world.random.uniform(1.0, 1e6)
            self._clocks[broker] = Clock(world.schedule, 1.0 + drift, offset_s)
        self._hosted: dict[str, dict[str, tuple[SetEntry, tuple[str, ...]]]] = {broker: {} for broker in world.brokers}
        """By broker and set: as the broker knew it last."""
        self._queues = {broker.name: self._watch_queues(broker) for broker in world.brokers.values()}
        self.ledger = QueueLedger(world.committed_map)
        self.on_step: Callable[[Node, str], None] = lambda node, step: None
        """Called where a step of a queue's deletion was done at the primary of its set."""

    @property
    def confirmed(self) -> dict[str, list[int]]:
        """Of each set, the writes that were confirmed to clients, in their order."""
        return {name: each.confirmed for name, each in self._sets.items()}

    # --- what happens

    def step(self, broker: BrokerModel) -> None:
        """Host what its map says, and nothing else."""
        hosted, cluster = self._hosted[broker.name], broker.map
        committed = self._world.committed_map.sets  # a removal counts when it is committed: see `removals`
        for name in [name for name in hosted if name not in cluster.sets and name not in committed]:
            del hosted[name]
            self._sets[name].unhost(broker.name, delete=True)
        if broker.name not in cluster.brokers:
            return
        for name, entry in cluster.sets.items():
            if broker.name in entry.replicas:
                addresses = tuple([_address(each) for each in entry.replicas if each in cluster.brokers])
                if hosted.get(name) != (entry, addresses):
                    hosted[name] = entry, addresses
                    self._set(name).host(broker.name, entry, addresses)
                else:
                    self._set(name).settle_identity(broker.name)
            elif name in hosted and not (name in committed and broker.name in committed[name].replicas):
                del hosted[name]
                self._set(name).unhost(broker.name, delete=broker.name not in entry.record.members)
        self._queues[broker.name].work()
        for name in hosted:
            there, node = committed.get(name), self._sets[name].nodes[broker.name]
            if there is None or there.record.primary != broker.name or not node.is_primary:
                continue
            if node.member.status.generation == there.record.generation and self.leaders(name) == [broker.name]:
                for step in self.ledger.look(node, there):
                    self.on_step(node, step)

    def _watch_queues(self, broker: BrokerModel) -> BrokerQueues:
        """From the start of its process: nothing is written that it does not hear of."""
        return BrokerQueues(self._world, broker, _Running(self._sets, broker.name))

    def have_deleted(self, order: OrderDeletion, refuse: Callable[[bool, str], None]) -> None:
        """A queue, as the controller wants it of a broker that is up."""
        self._queues[order.broker].placed.have_deleted(order, refuse)

    def report_queues(self, broker: BrokerModel, full: bool) -> QueueReport:
        """What its broker says of queues."""
        return self._queues[broker.name].placed.report(full)

    def _set(self, name: str) -> SimulatedSet:
        if name not in self._sets:
            self._sets[name] = SimulatedSet(self._world, name, self._clocks)
        return self._sets[name]

    def reports(self, broker: BrokerModel) -> Mapping[str, ReplicaReport]:
        """What its broker says of each replica."""
        found = [self._sets[name].report(broker.name) for name in self._hosted[broker.name]]
        return {each.set: each for each in found if each is not None}

    def obey(self, order: GiveOrder, answer: Callable[[bool, str], None]) -> None:
        """Of the controller, to a broker that is up."""
        node = self._sets[order.set].nodes[order.broker] if order.set in self._sets else None
        if node is None or not node.is_up:
            answer(False, f"broker {order.broker} has no replica of {order.set}")
        elif order.kind is OrderKind.PROMOTE:
            asked = fx.PromoteAsked(0, order.force, order.cause, not order.force, order.to)
            node.ask_for(lambda number: asked._replace(request=number), answer)
        elif order.kind is OrderKind.SWITCH_OVER:
            node.ask_for(lambda number: fx.SwitchoverAsked(number, order.to, order.cause), answer)
        else:
            node.ask_for(lambda number: fx.DropAsked(number, order.to, order.cause), answer)

    def _nodes(self, broker: str) -> list[Node]:
        return [each.nodes[broker] for each in self._sets.values() if each.nodes[broker].is_up]

    def died(self, broker: str, has_power: bool) -> None:
        """Its process has died; without power, with what was not synced."""
        self._hosted[broker].clear()
        for node in self._nodes(broker):
            node.kill(is_silent=not has_power, has_power=has_power)

    def started(self, broker: str, is_empty: bool) -> None:
        """A new process, with its disk or an empty one. Who still had a connection to the one before hears of it."""
        self._queues[broker] = self._watch_queues(self._world.brokers[broker])
        for each in self._sets.values():
            if is_empty:
                each.empty(broker, "its disk was replaced")
        for other in self._world.others(broker):
            self.reset(broker, other)

    def paused(self, broker: str, is_paused: bool) -> None:
        """Its process is stopped, or goes on."""
        for node in self._nodes(broker):
            if is_paused:
                node.pause()
            else:
                node.resume()

    def blocked(self, sender: str, receiver: str, is_blocked: bool) -> None:
        """Nothing goes from one to the other any more, or again."""
        for each in self._sets.values():
            one, other = each.nodes[sender].index, each.nodes[receiver].index
            if is_blocked:
                each.network.block(one, other)
            else:
                each.network.unblock(one, other)

    def reset(self, one: str, other: str) -> None:
        """All connections between two brokers break; either notices now or a little later."""
        for each in self._sets.values():
            each.network.break_between(each.nodes[one].index, each.nodes[other].index, True, True)

    def healed(self) -> None:
        """Nothing goes wrong any more."""
        for each in self._sets.values():
            for node in each.nodes.values():
                if node.machine is not None:
                    node.machine.has_stalls = False

    def stop_clients(self) -> None:
        """Nothing is published any more, so that replicas can be compared."""
        for each in self._sets.values():
            each.is_stopping = True

    def set_deleted(self, name: str) -> None:
        """That is committed: nothing that it confirmed has to be there any more."""
        if name in self._sets:
            self._sets[name].confirmed.clear()

    # --- at rest

    def leaders(self, set_name: str) -> list[str]:
        """The brokers that lead it, by themselves."""
        nodes = self._sets[set_name].nodes if set_name in self._sets else {}
        return [name for name, node in nodes.items() if node.is_primary]

    def could_lead(self, entry: SetEntry) -> list[str]:
        """Where all that were in sync are here with what they had, or all are empty, one of them could.

        By the record, and by what those know who are in it: a change that was not recorded yet may have been confirmed.
        """
        needed = dict.fromkeys(entry.record.members if entry.record.generation else entry.replicas)
        nodes = self._set(entry.name).nodes
        for name in list(needed):
            if nodes[name].is_up:
                needed |= dict.fromkeys(nodes[name].member.status.members)
        found = [name for name in needed if self._holds_its_data(name, entry)]
        return found if len(found) == len(needed) else []

    def _holds_its_data(self, broker: str, entry: SetEntry) -> bool:
        node = self._set(entry.name).nodes[broker]
        is_listed = node.is_up and broker in entry.replicas
        return is_listed and (entry.record.claimed or not entry.record.generation or node.member.status.generation > 0)

    def check_at_rest(self, entry: SetEntry) -> None:
        """Of a set that is led. Raises Violation."""
        self._sets[entry.name].check_at_rest(entry)
        problem = self.ledger.why_not_at_rest(self._sets[entry.name].nodes[entry.record.primary], entry)
        if problem:
            raise Violation(problem)


class _Running(Mapping[str, Node]):
    """The replicas at one broker that run, by set."""

    def __init__(self, sets: Mapping[str, SimulatedSet], broker: str) -> None:
        self._sets, self._broker = sets, broker

    def __getitem__(self, name: str) -> Node:
        node = self._sets[name].nodes[self._broker]
        if not node.is_up:
            raise KeyError(name)
        return node

    def __iter__(self) -> Iterator[str]:
        return (name for name, there in self._sets.items() if there.nodes[self._broker].is_up)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _address(broker: str) -> str:
    return f"{broker}:5672"
