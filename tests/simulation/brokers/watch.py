"""Who was attached where, and when: which messages must still be a consumer's own after what its cluster went through.

docs/cluster.md, "Proxies", has the promise: when the primary dies, or the set moves, what a consumer has stays its own,
and what it accepted meanwhile counts, if its proxy comes for it before the new primary hands out anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.amqp.links.relayed_links import RelayedConsumer
from qpid_ha_broker.amqp.wire.engine import Transfer
from qpid_ha_broker.events.types import SessionAcquired
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, load_bodies
from qpid_ha_broker.model.sets.catalog import Catalog
from simulation.brokers.ledger import Handout, Ledger, Reading, Sent
from simulation.machines.node import ReplicaNode
from simulation.violations import Violation

OVERTAKEN_S = 0.3
"""So long after a promotion, what its successor acknowledged before may still be on its way to the one before it.

That one has it all committed, and takes it for proof; its successor has the marks. Seed 90462: it took 0.21 s."""
LATE_S = 1.6
"""So long a message may be on its way from a primary to a broker that relays it, and is passed on."""
STILL_ON_ITS_WAY_S = 3.0
"""So long after its end, what a primary that was overtaken has sent may still come."""

_SENT = re.compile(rb"([adfpstx]\d+-\d+) (\d+) (\w+) ")


def queued(node: ReplicaNode) -> dict[str, list[Sent]]:
    """What is in its queues, in their order."""
    found: dict[str, list[Sent]] = {}
    for name, queue in node.resources.catalog.queues.items():
        found[name] = [sent_in(body) for body in load_bodies(list(queue.messages))]
    return found


def sent_in(payload: bytes) -> Sent:
    """What it is. Raises Violation for something that nobody has sent."""
    parts = _SENT.search(payload)
    if parts is None:
        raise Violation(f"nobody has sent {payload!r}")
    return Sent(parts[1].decode(), int(parts[2]), parts[3].decode())


def _sent_by(entry: Entry) -> Sent:
    """The same of a message in a queue, wherever its body is."""
    (body,) = load_bodies([entry])
    return sent_in(body)


class Attachment:
    """A consumer's link at a primary: straight, or for a client of a proxy."""

    def __init__(self, at_s: float, connection: Connection, endpoint: OutgoingLink, in_time: bool) -> None:
        self.at_s = at_s
        self.in_time = in_time
        """The primary had not handed out anything yet that somebody may come for."""
        self._connection = connection
        self._endpoint = endpoint
        self._is_past = False
        self._was_whole = False

    @property
    def is_whole(self) -> bool:
        """It has not ended, or only with the command of its primary."""
        return self._was_whole if self._is_past else self._endpoint in self._connection.links

    def note_end_of_command(self) -> None:
        """Its primary leads no more, from now on."""
        if not self._is_past:
            self._was_whole, self._is_past = self.is_whole, True


class Watch:
    """Sees each attach at a primary of one set, and when primaries come and go."""

    def __init__(self, nodes: Sequence[ReplicaNode], now_s: Callable[[], float]) -> None:
        self._nodes = nodes
        self.ledger: Ledger
        """Told of each message that the newest primary hands out, or lets a client have again, and to which one."""
        self.ledgers_of: dict[str, Ledger] = {}
        """By queue: who is told instead of `ledger`."""
        self._now_s = now_s
        self._attachments: dict[tuple[str, str, int], list[Attachment]] = {}
        """By container id of the client's connection, queue, and generation."""
        self._relayed: dict[tuple[str, str], list[tuple[float, RelayedConsumer]]] = {}
        """By container id and queue: consumers' links at proxies, and since when."""
        self._browsing_here: dict[str, OutgoingLink] = {}
        """By container id: links of clients who only look, where no other broker relays them."""
        self.generation = 0
        self._outdated_until_s = 0.0
        self._promoted_s = 0.0
        """When somebody began to lead last."""

    # --- what happens

    def attached(self, node: ReplicaNode, connection: Connection, endpoint: OutgoingLink) -> None:
        """A consumer's link was attached at `node`."""
        request = endpoint._relay
        if endpoint.browsing:
            if request is None:
                self._browsing_here[connection.engine.connection.remote_container or ""] = endpoint
            return
        client = request.container if request is not None else connection.engine.connection.remote_container or ""
        if endpoint.session_owner is not None:
            self._watch_holds(endpoint.hosted.resources.catalog)
        key = client, endpoint.queue.name, node.member.status.generation
        attachment = Attachment(self._now_s(), connection, endpoint, node.resources.is_gated)
        self._attachments.setdefault(key, []).append(attachment)
        deliver, generation = endpoint.deliver, key[2]
        ledger = self.ledgers_of.get(endpoint.queue.name, self.ledger)
        for entry in endpoint.queue.messages.find_all(request.held if request is not None else ()):
            if entry.holder is endpoint and generation == self.generation:
                ledger.is_reclaimed(_sent_by(entry), client)

        def seen_deliver(entries: list[Entry]) -> None:
            if generation < self.generation and not endpoint._ended:
                self._check_overtaken(node, generation)
                for entry in entries:
                    ledger.leaves_overtaken(_sent_by(entry), client, generation)
            is_gone = endpoint.queue.deleted
            if generation == self.generation and not (endpoint._ended or is_gone):  # else nothing goes out
                for entry in entries:
                    if entry.id <= endpoint.queue.id:
                        raise Violation(f"message {entry.id} goes out of {endpoint.queue.name}, which was made anew")
                    ledger.leaves_primary(_sent_by(entry), client, attachment.at_s)
            unsettled = len(endpoint._unsettled)
            deliver(entries)
            if is_gone and len(endpoint._unsettled) > unsettled:
                raise Violation(f"message {entries[0].id} goes out of {endpoint.queue.name}, which was deleted")

        setattr(endpoint, "deliver", seen_deliver)  # noqa: B010 - a method, which mypy lets nobody replace

    def _watch_holds(self, catalog: Catalog) -> None:
        """A session's link has a message before `deliver` is called, and where that never is."""
        if "session_acquired" in vars(catalog):
            return
        acquired = catalog.session_acquired

        def seen_acquired(queue: Queue, entries: Sequence[Entry], event: SessionAcquired) -> None:
            for entry in entries:
                self.ledgers_of.get(queue.name, self.ledger).is_held(_sent_by(entry))
            acquired(queue, entries, event)

        setattr(catalog, "session_acquired", seen_acquired)  # noqa: B010 - a method, which mypy lets nobody replace

    def _check_overtaken(self, node: ReplicaNode, generation: int) -> None:
        """It gives messages to a consumer, and somebody else leads: since a moment ago only, when that one may still
        have acknowledged what this one wrote. Raises Violation."""
        for_s = self._now_s() - self._promoted_s
        if for_s > OVERTAKEN_S:
            text = f"{node.name} gives messages to consumers as primary of generation {generation}"
            raise Violation(f"{text}: that is over since {for_s:.3f} s, when {self.generation} began")

    def relayed(self, link: RelayedConsumer) -> None:
        """A consumer's link was attached at a proxy, which was answered by the primary."""
        key = link.connection.engine.connection.remote_container or "", link.link.remote_source.address or ""
        self._relayed.setdefault(key, []).append((self._now_s(), link))
        if link.needs_sessions:
            return  # what goes to a session is its own, and committed, however often it is sent
        transfers, client = link.transfers, key[0]
        ledger = self.ledgers_of.get(key[1], self.ledger)

        def seen_transfers(batch: list[Transfer]) -> None:
            for _, payload, _, _ in batch:
                if _SENT.search(payload) is not None:
                    ledger.comes_to_proxy(sent_in(payload), client, LATE_S)
            transfers(batch)

        setattr(link, "transfers", seen_transfers)  # noqa: B010 - a method, which mypy lets nobody replace

    def leads(self, node: ReplicaNode) -> None:
        """A node has become primary."""
        self.generation = max(self.generation, node.member.status.generation)
        self.may_be_outdated()
        self._promoted_s = self._now_s()

    def ends_to_lead(self, generation: int) -> None:
        """The primary of that generation dies, steps down, or hands over."""
        for key, attachments in self._attachments.items():
            if key[2] == generation:
                for attachment in attachments:
                    attachment.note_end_of_command()
        if generation < self.generation:
            self._outdated_until_s = self._now_s() + STILL_ON_ITS_WAY_S

    # --- see `proxies_ledger.Custodian`

    def may_be_outdated(self) -> bool:
        """Whether there is, or was a moment ago, a primary that was overtaken."""
        leading = [node.member.status.generation for node in self._nodes if node.is_primary]
        if any(generation < self.generation for generation in leading):
            self._outdated_until_s = self._now_s() + STILL_ON_ITS_WAY_S
        return self._now_s() < self._outdated_until_s

    def browses_replica(self, client: str) -> bool:
        """See there."""
        endpoint = self._browsing_here.get(client)
        return endpoint is not None and bool(endpoint.hosted.resources.replication.read_only)

    def has_left(self, reading: Reading) -> bool:
        """See there."""
        found = self._relayed.get((reading.client, reading.queue), [])
        found = [(at_s, link) for at_s, link in found if at_s >= reading.opened_s]
        return bool(found) and all(link.has_left for _, link in found)

    def is_its_own(self, handout: Handout) -> bool:
        """Its link lives, and was attached, once, in each generation since, in time for what it had."""
        reading = handout.reading
        if reading.session is not None:
            return not (reading.has_ended or reading.session.has_ended)
        if reading.has_ended or handout.generation > self.generation:
            return False
        for generation in range(handout.generation, self.generation + 1):
            found = self._attachments.get((reading.client, reading.queue, generation), [])
            found = [each for each in found if each.at_s >= reading.opened_s]
            if len(found) != 1 or not found[0].is_whole:
                return False
            if not found[0].in_time and (generation > handout.generation or self._was_attached(reading, generation)):
                return False
        return True

    def _was_attached(self, reading: Reading, before: int) -> bool:
        """In an earlier generation: what it got since may have been handed out then."""
        return any(
            key[:2] == (reading.client, reading.queue) and key[2] < before and found[-1].at_s >= reading.opened_s
            for key, found in self._attachments.items()
        )
