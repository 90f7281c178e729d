"""A set that is a group, in brokers that ship: who made it, what its consumers must not get, and what is so at rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.events.types import GROUP
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.member import GroupMember
from qpid_ha_broker.model.queues.sequence import Entry, load_bodies
from qpid_ha_broker.server.sets.group_set_member import GroupSetMember
from simulation.brokers_node import BrokerNode, BrokerReplica, ReplicaNode
from simulation.node import Violation
from simulation.proxies_ledger import Handout, Ledger, Reading, Sent
from simulation.proxies_sets import ControlledSet, DefaultSet
from simulation.proxies_watch import STILL_ON_ITS_WAY_S, Watch, queued, sent_in
from simulation.trace import Trace
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


class GroupWatch(Watch):
    """Sees what members hand out. See `proxies_ledger.Custodian`: a group has one generation."""

    def __init__(self, nodes: Sequence[ReplicaNode], now_s: Callable[[], float]) -> None:
        super().__init__(nodes, now_s)
        self._disturbed_s = -STILL_ON_ITS_WAY_S

    def disturb(self, for_s: float) -> None:
        """So long somebody may not know what others have decided without it."""
        self._disturbed_s = max(self._disturbed_s, self._now_s() + for_s)

    def attached(self, node: ReplicaNode, connection: Connection, endpoint: OutgoingLink) -> None:
        request = endpoint._relay
        if endpoint.browsing:
            return
        client = request.container if request is not None else connection.engine.connection.remote_container or ""
        deliver, at_s, queue = endpoint.deliver, self._now_s(), endpoint.queue

        def seen_deliver(entries: list[Entry]) -> None:
            if not (endpoint._ended or queue.deleted):
                self._check_owner(node, endpoint)
                for body in load_bodies(entries):
                    if self.may_be_outdated():
                        self.ledger.leaves_overtaken(sent_in(body), client, 0)
                    else:
                        self.ledger.leaves_primary(sent_in(body), client, at_s)
            deliver(entries)

        setattr(endpoint, "deliver", seen_deliver)  # noqa: B010 - a method, which mypy lets nobody replace

    def _check_owner(self, node: ReplicaNode, endpoint: OutgoingLink) -> None:
        """Others that know as much agree on who owns the queue. Raises Violation."""
        if not endpoint.hosted.resources.hands_out(endpoint.queue):
            raise Violation(f"{node.name} hands out of {endpoint.queue.name}, which it does not own")

    def may_be_outdated(self) -> bool:
        return self._now_s() < self._disturbed_s + STILL_ON_ITS_WAY_S

    def is_its_own(self, handout: Handout) -> bool:
        """What its client was told that it has consumed."""
        return handout.is_consumed and handout.is_confirmed

    def has_left(self, reading: Reading) -> bool:
        return False


class GroupSet(ControlledSet):
    """One that all its members write."""

    nodes: Sequence[GroupReplica]

    def __init__(
        self, name: str, schedule: Schedule, trace: Trace, default: DefaultSet, nodes: Sequence[GroupReplica]
    ) -> None:
        super().__init__(name, schedule, trace, default, nodes)
        self.watch = GroupWatch(nodes, lambda: schedule.now_s)
        self.ledger = Ledger(lambda: schedule.now_s, self.watch)
        self.watch.ledger = self.ledger

    def _ask(self, operator: BrokerNode, method: str, wanted: str, params: dict[str, Any]) -> None:
        if method == "sets":
            params = {**params, "strategy": GROUP}
        super()._ask(operator, method, wanted, params)

    @property
    def is_whole(self) -> bool:
        """All members serve, and are of the record."""
        if not all(node.is_up and not node.is_paused and node.is_primary for node in self.nodes):
            return False
        names = {node.name for node in self.nodes}
        return all(set(node.member.record.members) == names for node in self.nodes)

    def why_not_at_rest(self) -> str:
        has_queues = len(self._declared) == len(self.all_queues)
        roles = [node.member.role if node.is_up else None for node in self.nodes]
        return "" if self.is_whole and has_queues else f"members of {self.name} are {roles}"

    def why_something_is_held(self) -> str:
        for node in self.nodes:
            for queue in node.resources.catalog.queues.values():
                if queue.dispatcher.consumers or queue.messages.acquired:
                    return f"{node.name}, {queue.name}: {queue.messages.acquired} messages are held, by nobody"
        logs = {(each.last_lsn, each.committed_lsn) for each in (node.resources.replicated.log for node in self.nodes)}
        return "" if len(logs) == 1 else f"members have come to {logs}"

    def check_rest(self) -> set[Sent]:
        """All that is left, which all members have. Raises Violation."""
        first, *others = [
            {name: messages for name, messages in queued(node).items() if name in self.queues} for node in self.nodes
        ]
        for node, other in zip(self.nodes[1:], others, strict=True):
            if other != first:
                raise Violation(f"{node.name} and {self.nodes[0].name} have other messages: {other}, not {first}")
        self.ledger.check_rest(first)
        return {sent for messages in first.values() for sent in messages}
