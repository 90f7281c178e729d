"""Sessions of clients in a simulated group: what one holds is nobody else's, at whichever member it comes back."""

from __future__ import annotations

import random
from functools import partial

from model_support import PLENTY
from qpid_ha_broker.events.types import EVERYTHING
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.model.errors import InUse, ModelError, NotFound
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.session_messages import give_back_held, held_for
from simulation.group_clients import Connections, queue_named
from simulation.group_ledger import GroupLedger, SessionCopy
from simulation.group_node import GroupNode
from simulation.node import Violation
from simulation.virtual_time import Schedule

GIVE_BACK_S = 0.1
CREDIT = 3


class SessionRegistryModel:
    """Which sessions have ended: what `default` tells all brokers, in no time."""

    def __init__(self, nodes: list[GroupNode], schedule: Schedule) -> None:
        self._nodes, self._schedule = nodes, schedule
        self.started = 0
        self.ended: set[int] = set()

    def step(self) -> None:
        """As brokers do several times a second."""
        self._schedule.after(GIVE_BACK_S, self.step)
        for node in self._nodes:
            resources = node.resources
            if resources is None or node.is_paused or resources.replication.read_only:
                continue
            if resources.replication.is_first():
                for link in resources.catalog.holdings:
                    if link.session in self.ended:
                        give_back_held(resources, link, EVERYTHING, failed=False)
                        node.turn_soon()


class SessionAttach(Consumer):
    """The link of a session on one of its connections, which may be there long after its client has gone."""

    __slots__ = ("__dict__",)

    def __init__(self, client: SimulatedSession, node: GroupNode, resources: Resources, queue: Queue) -> None:
        super().__init__()
        self.session_owner = client.owner
        self.owner: SessionOwner = client.owner
        self.client, self.node, self.resources, self.queue = client, node, resources, queue
        self.is_attached = self.has_ended = False
        self.out: dict[int, Entry] = {}

    def attached(self) -> None:
        if self.has_ended or self.queue.deleted or self.client.attach is not self:
            return
        if not self.resources.replication.has_link(self.queue, self.owner):
            self.end()  # taken meanwhile
            return
        self.is_attached = True
        held = held_for(self.resources, self.queue, self.owner)
        self.client.told(self, held)
        self.resources.subscribe(self.queue, self, self)
        self.credit, self.window_bytes = CREDIT, PLENTY
        self.resources.catalog.wake(self.queue)
        self.take(held)

    def deliver(self, entries: list[Entry]) -> None:
        if not self.has_ended:
            self.client.got(self, entries)
            self.take(entries)

    def take(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.out[entry.id] = entry
            self.client.schedule.after(self.client.draw.uniform(0.001, 0.15), partial(self.answer, entry))
        self.node.turn_soon()

    def answer(self, entry: Entry) -> None:
        if self.has_ended or self.out.get(entry.id) is not entry:
            return
        if self.node.is_paused:
            self.client.schedule.after(0.1, partial(self.answer, entry))
            return
        del self.out[entry.id]
        self.client.answers(self, entry)
        self.credit = min(self.credit + 1, CREDIT)
        if not self.queue.deleted:
            self.resources.catalog.wake(self.queue)
        self.node.turn_soon()

    def end(self, _: object = None) -> None:
        """The broker notices that it is over."""
        if self.has_ended:
            return
        self.has_ended = True
        if self.client.attach is self:
            self.client.attach = None
        if self.is_attached and not self.queue.deleted:
            self.resources.unsubscribe(self.queue, self, self.node.now_ms)
            if self.client.attach is None or self.client.attach.node is not self.node:
                self.resources.replication.leave_link(self.queue, self.owner)


class SimulatedSession:
    """A client that consumes in a session: it goes from member to member, and now and then it ends, and begins anew."""

    def __init__(
        self, name: str, queue: str, nodes: list[GroupNode], connections: Connections, schedule: Schedule,
        registry: SessionRegistryModel, seed: int,
    ) -> None:  # fmt: skip
        self._name, self._queue, self._nodes = name, queue, nodes
        self._connections, self.schedule, self._registry = connections, schedule, registry
        self._ledger: GroupLedger = nodes[0].ledger
        self.draw = random.Random(f"{seed}/{name}")
        self.attach: SessionAttach | None = None
        self._links: list[SessionAttach] = []
        """Of connections before, too, as long as their brokers have them."""
        self._begin()
        self.accepts_all = False
        connections.clients.append(self)

    def _begin(self) -> None:
        self._registry.started += 1
        self.owner = SessionOwner(self._registry.started, self._name, "in")
        self._epoch = 0

    def step(self) -> None:
        self.schedule.after(self.draw.uniform(0.005, 0.04), self.step)
        fate = 1.0 if self.accepts_all else self.draw.random()
        if self.attach is None:
            self._come()
        elif fate < 0.01:
            self._go()
        elif fate < 0.012:
            self._go()
            self._registry.ended.add(self.owner.id)
            self._ledger.session_ended(self.owner.id)
            self._begin()

    def _come(self) -> None:
        serving = [node for node in self._nodes if node.role is GroupRole.SERVING and not node.is_paused]
        node = self.draw.choice(serving) if serving else None
        queue = queue_named(node, self._queue) if node is not None else None
        if node is None or queue is None or node.resources is None:
            return
        self._epoch += 1
        for link in self._links:
            if link.node is node:
                link.end()  # what it has said counts before what it holds is told
        self.attach = attach = SessionAttach(self, node, node.resources, queue)
        self._links = [link for link in self._links if not link.has_ended] + [attach]
        token = node.resources.replication.take_link(queue, self.owner, self._epoch)
        if token is None:
            raise Violation(f"{node.name} needs nobody to know where the link is")
        self._connections.wait(node, token, attach.attached, attach.end)
        node.turn_soon()

    def _go(self) -> None:
        """Its broker may notice only later, and serve the link until then."""
        attach, self.attach = self.attach, None
        if attach is not None:
            self.schedule.after(self.draw.choice((0.0, 0.3)), attach.end)

    def node_lost(self, node: GroupNode) -> None:
        for link in self._links:
            if link.node is node:
                link.end()

    # --- what it is told and says

    def told(self, link: SessionAttach, held: list[Entry]) -> None:
        """What it holds comes first; what is not there it must have accepted, or given back."""
        copies = {entry.resident_body(): SessionCopy(self.owner.id, link.queue.id) for entry in held}
        self._ledger.session_resumed(link.node.name, self.owner.id, link.queue.id, copies)

    def got(self, link: SessionAttach, entries: list[Entry]) -> None:
        for entry in entries:
            payload, copy = entry.resident_body(), SessionCopy(self.owner.id, link.queue.id)
            if link is self.attach:
                self._ledger.given_to_session(link.node.name, payload, copy)

    def answers(self, link: SessionAttach, entry: Entry) -> None:
        if link.queue.deleted:
            return
        if not link.resources.replication.has_link(link.queue, link.owner):
            link.end()
            return
        payload = entry.resident_body()
        if not self.accepts_all and self.draw.random() < 0.15:
            self._ledger.session_gives_back(payload)
            link.resources.release(link.queue, [entry], failed=False)
            return
        self._ledger.accepting.add(payload)
        token = link.resources.accept(link.queue, [entry])
        self._connections.wait(
            link.node, token, partial(self._ledger.session_accepted, payload), partial(self._refused, link)
        )

    def _refused(self, link: SessionAttach, failure: ModelError) -> None:
        if not isinstance(failure, InUse | NotFound):
            raise Violation(f"{self._name} could not accept: {failure}")
        link.end()
