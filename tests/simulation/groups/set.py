"""A set that is a group, in brokers that ship: who made it, what its members hand out, and what is so at rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.amqp.links.relayed_links import RelayedConsumer
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.types import GROUP
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.member import TAKING, GroupMember
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import Persist, WriteCheckpoint
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.server.sets.core_loop import Action
from qpid_ha_broker.server.sets.group_set_member import GroupSetMember
from simulation.brokers.ledger import Handout, Reading, Sent
from simulation.brokers.placed_sets import LOOK_S, ControlledSet, DefaultSet
from simulation.brokers.watch import Watch, queued, sent_in
from simulation.groups.guarantees import Check
from simulation.groups.ledger import GroupLedger
from simulation.machines.node import BrokerNode, BrokerReplica, ReplicaNode
from simulation.trace import Trace
from simulation.violations import Violation
from simulation.virtual_time import Schedule


class GroupReplica(BrokerReplica):
    """A broker's replica of a group."""

    @property
    def driver(self) -> GroupSetMember:
        """What feeds its member."""
        sets = self.node.broker.sets
        assert sets is not None
        driver = sets.hosts.members[self.set_name]
        assert isinstance(driver, GroupSetMember)
        return driver

    @property
    def member(self) -> GroupMember:  # type: ignore[override]
        return self.driver.member

    @property
    def is_primary(self) -> bool:
        """Whether clients would be served."""
        return self.is_up and self.member.role is GroupRole.SERVING

    @property
    def lineage(self) -> Lineage | None:
        """What was delivered to it of its group, where that counts; None: it comes back, or comes anew."""
        log = self.member._parts.log
        return log.lineage if log is not None and self.member.role in TAKING and not log.lineage.is_cold else None

    def knows_less_than(self, other: GroupReplica, queue: int) -> bool:
        """Whether it was not delivered yet that `other` owns the queue, which thinks so."""
        mine, its = self.lineage, other.lineage
        if mine is None or its is None or mine.record != its.record or other.name not in mine.in_step:
            return False  # they have parted
        owner, since = its.ownership.owner(queue)
        return owner == other.name and mine.position < since

    def has_out(self, queue: str, number: int, sent: Sent) -> bool:
        """Whether a consumer here has that message, which has this number."""
        there = self.resources.catalog.queues.get(queue)
        entries = [] if there is None else there.messages.find_all((number,))
        return any(isinstance(entry.holder, OutgoingLink) and _is(entry, sent) for entry in entries)


def _is(entry: Entry, sent: Sent) -> bool:
    return entry.body is None or sent_in(entry.resident_body()) == sent


class SeenLog:
    """What one member has put into its log, until it is told that it is committed, perhaps in another life."""

    def __init__(self, member: str, ledger: GroupLedger) -> None:
        self._member = member
        self._ledger = ledger
        self._records: dict[int, LogRecord] = {}

    def persists(self, effect: Persist) -> None:
        """These come next."""
        self._records.update({record.lsn: record for record in decode(effect.data).records})

    def progressed(self, effect: fx.Progressed) -> None:
        """So far it is committed."""
        for lsn in [lsn for lsn in self._records if lsn <= effect.lsn]:
            self._ledger.log.committed(self._member, self._records.pop(lsn))

    def begins_anew(self) -> None:
        """What is not committed is not what the others have."""
        self._records.clear()

    def is_loaded(self, last_lsn: int) -> None:
        """Another process has found so much on the disk."""
        self._records = {lsn: record for lsn, record in self._records.items() if lsn <= last_lsn}


class GroupWatch(Watch):
    """Sees what members hand out."""

    ledger: GroupLedger

    def __init__(self, nodes: Sequence[GroupReplica], record: Callable[[], ClusterRecord], now_s: Callable[[], float]):
        super().__init__(nodes, now_s)
        self._replicas = nodes
        self._record = record
        self._used: dict[str, list[tuple[GroupReplica, OutgoingLink]]] = {}
        """By exclusive queue: links on which messages were handed out."""
        self._logs: dict[str, SeenLog] = {}
        """By member."""

    def begins(self, driver: GroupSetMember, actions: dict[type, Action]) -> dict[type, Action]:
        """A member does; see `GroupSetMember._make_actions`."""
        seen = self._logs.setdefault(driver.settings.name, SeenLog(driver.settings.name, self.ledger))
        seen.is_loaded(driver.hosted.resources.replicated.log.last_lsn)
        persist, progressed, changed = actions[Persist], actions[fx.Progressed], actions[fx.RoleChanged]
        checkpoint = actions[WriteCheckpoint]

        def seen_persist(effect: Persist) -> None:
            seen.persists(effect)
            persist(effect)

        def seen_progress(effect: fx.Progressed) -> None:
            seen.progressed(effect)
            progressed(effect)

        def seen_change(effect: fx.RoleChanged) -> None:
            if effect.after is GroupRole.CATCHING_UP:
                seen.begins_anew()
            changed(effect)

        def seen_checkpoint(effect: WriteCheckpoint) -> None:
            seen.begins_anew()
            checkpoint(effect)

        return {
            **actions,
            Persist: seen_persist,
            fx.Progressed: seen_progress,
            fx.RoleChanged: seen_change,
            WriteCheckpoint: seen_checkpoint,
        }

    def attached(self, node: ReplicaNode, connection: Connection, endpoint: OutgoingLink) -> None:
        assert isinstance(node, GroupReplica)
        if not endpoint.browsing:
            send = endpoint._send

            def seen_send(entries: list[Entry], bodies: list[bytes]) -> None:
                for entry, body in zip(entries, bodies, strict=False):
                    self._leaves(node, endpoint, entry, sent_in(body))
                send(entries, bodies)

            setattr(endpoint, "_send", seen_send)  # noqa: B010 - a method, which mypy lets nobody replace

    def _leaves(self, node: GroupReplica, endpoint: OutgoingLink, entry: Entry, sent: Sent) -> None:
        recorded = self._record().members
        others: list[str] | None = None
        if node.name in recorded:
            fellows = [each for each in self._replicas if each is not node and each.name in recorded and each.is_up]
            others = [each.name for each in fellows if each.has_out(endpoint.queue.name, entry.id, sent)]
            for other in fellows:
                # What a session has is its own, whoever owns the queue.
                if endpoint.session_owner is None and other.knows_less_than(node, endpoint.queue.id):
                    raise Check.UNKNOWN_OWNER.broken(who=node.name, queue=endpoint.queue.name, other=other.name)
            if endpoint.queue.arguments.exclusive:
                self._leaves_exclusive(node, endpoint, recorded)
        owner = endpoint.session_owner
        self.ledger.leaves_member(node.name, sent, endpoint, "" if owner is None else owner.name, others)

    def _leaves_exclusive(self, node: GroupReplica, endpoint: OutgoingLink, recorded: Sequence[str]) -> None:
        used = self._used.get(endpoint.queue.name, [])
        used = [
            (other, link)
            for other, link in used
            if not link._ended and other.is_up and link in other.node.container.sets[other.set_name].links
        ]
        for other, _ in used:
            if other is not node and other.name in recorded:
                self.ledger.has_alone(node.name, endpoint.queue.name, other.name)
        self._used[endpoint.queue.name] = [*used, (node, endpoint)]

    # --- see `proxies_ledger.Custodian`

    def may_be_outdated(self) -> bool:
        return False

    def is_its_own(self, handout: Handout) -> bool:
        return False

    def has_left(self, reading: Reading) -> bool:
        return False

    def relayed(self, link: RelayedConsumer) -> None:
        """A consumer's link was attached at a broker that relays it to a member."""
        client = link.connection.engine.connection.remote_container or ""
        queue, left = link.link.remote_source.address or "", link._left

        def seen_left() -> None:
            self.ledger.is_parted(client, queue)
            left()

        setattr(link, "_left", seen_left)  # noqa: B010 - a method, which mypy lets nobody replace


class GroupSet(ControlledSet):
    """One that all its members write."""

    nodes: Sequence[GroupReplica]

    def __init__(
        self, name: str, schedule: Schedule, trace: Trace, default: DefaultSet, nodes: Sequence[GroupReplica]
    ) -> None:
        super().__init__(name, schedule, trace, default, nodes)
        self.watch = self.seen = GroupWatch(nodes, self.newest_record, lambda: schedule.now_s)
        self.ledger = self.books = GroupLedger(lambda: schedule.now_s, self.watch, sent_in)
        self.seen.ledger = self.books
        self._newest = ClusterRecord()
        self._deleting: dict[str, set[str]] = {}
        """By queue, which brokers have not answered."""

    def newest_record(self) -> ClusterRecord:
        """As far as any broker knows it that is there, or ever was."""
        known = [self._newest]
        for broker in self._default.brokers:
            if broker.is_up:
                entry = broker.resources.catalog.map.sets.get(self.name)
                known += [] if entry is None else [ClusterRecord(*entry.record[1:])]
        known += [node.member.record for node in self.nodes if node.is_up]
        self._newest = max(known, key=lambda record: record.position)
        return self._newest

    @property
    def primary(self) -> GroupReplica | None:
        """Some member that serves clients."""
        return next((node for node in self.nodes if node.is_primary and not node.is_paused), None)

    def look(self) -> None:
        """Now and then, and what was deleted is made again."""
        self._schedule.after(LOOK_S, self.look)
        self._declared.clear()
        self._see_to_it()
        for name in [name for name, asked in self._deleting.items() if not asked and name in self._declared]:
            del self._deleting[name]
            self.ledger.queue_deleted(name)

    def delete_queue(self, brokers: Sequence[BrokerNode], queue: str) -> None:
        """An operator asks brokers for it, perhaps two at once: the other one is refused then."""
        self.books.deletes(queue)
        asked = self._deleting.setdefault(queue, set())
        for broker in brokers:
            asked.add(broker.name)
            heard = partial(self._has_deleted, asked, broker.name)
            broker.ask("queues", {"action": "delete", "name": queue}, heard)

    def _has_deleted(self, asked: set[str], broker: str, problem: str) -> None:
        asked.discard(broker)
        if self._trace.wanted:
            self._trace.add("operator", f"hears of a deletion at {broker}: {problem or 'done'}")

    def _ask(self, operator: BrokerNode, method: str, wanted: str, params: dict[str, Any]) -> None:
        if method == "sets":
            params = {**params, "strategy": GROUP}
        super()._ask(operator, method, wanted, params)

    def why_replicas_differ(self) -> str:
        return ""  # `check_rest` compares them

    def why_not_at_rest(self) -> str:
        names = {node.name for node in self.nodes}
        for node in self.nodes:
            if not node.is_up or node.member.role is not GroupRole.SERVING:
                return f"{node.name} is {node.member.role if node.is_up else 'down'} in {self.name}"
            if set(node.member.record.members) != names:
                return f"the record of {self.name} names {node.member.record.members}"
        return "" if len(self._declared) == len(self.all_queues) else f"{self.name} has not all its queues"

    def why_something_is_held(self) -> str:
        for node in self.nodes:
            if len(node.resources.catalog.holdings):
                return f"{node.name} has messages of {self.name} that are held for sessions"
            for queue in node.resources.catalog.queues.values():
                if queue.dispatcher.consumers or queue.messages.acquired:
                    return f"{node.name}, {queue.name}: {queue.messages.acquired} messages are held, by nobody"
        logs = {(node.resources.replicated.log.last_lsn, node.member.committed_lsn) for node in self.nodes}
        return "" if len(logs) == 1 else f"members have come to {logs}"

    def check_rest(self) -> set[Sent]:
        """All that is left, which all members have. Raises Violation."""
        self.generations = self.newest_record().epoch
        copies = {
            node.name: {name: sent for name, sent in queued(node).items() if name in self.queues} for node in self.nodes
        }
        first = copies[self.nodes[0].name]
        for name, copy in copies.items():
            if copy != first:
                raise Violation(f"{name} and {self.nodes[0].name} have other messages: {copy}, not {first}")
        histories = {
            node.name: [(lsn, begun.generation) for lsn, begun in node.resources.replicated.state.generations]
            for node in self.nodes
        }
        if len({tuple(history) for history in histories.values()}) > 1:
            raise Violation(f"by their generations copies would be of different logs: {histories}")
        self.ledger.check_rest(first)
        return {sent for messages in first.values() for sent in messages}
