"""A consumer's link: sends what the queue hands out, and hears what became of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import Any, Final

import proton

from qpid_ha_broker.amqp.connections.connection import Connection, transactions_of
from qpid_ha_broker.amqp.links.paced_consumer import PacedConsumer
from qpid_ha_broker.amqp.links.sent_payload import sent_payloads
from qpid_ha_broker.amqp.nodes.access_checks import client_names
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_state import LinkState, WaitsFor
from qpid_ha_broker.amqp.nodes.subscriptions import Subscriber
from qpid_ha_broker.amqp.nodes.terminus import Filters
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import (
    CONNECTION_FORCED,
    LINK_STOLEN,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    UNKNOWN_TRANSACTION,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.consumer_wishes import EXCLUSIVE, read_wishes
from qpid_ha_broker.amqp.wire.engine import Delivery, Disposition, EachDisposition, Outcome, RemoteOutcome, Sender
from qpid_ha_broker.amqp.wire.outcome_annotations import checked, encoded, merged
from qpid_ha_broker.amqp.wire.relay import RETURN_MS, UNSEEN, RelayAnswer, RelayRequest, same_ids
from qpid_ha_broker.model.logs.log import COMMITTED, CommitToken
from qpid_ha_broker.model.queues.dispatcher import DECLINED_MOST, ConsumerStanding
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resources import release_unseen
from qpid_ha_broker.model.transactions.transaction import Transaction
from qpid_ha_broker.model.work import emptied

_ANSWERS = (engine.ACCEPTED, engine.REJECTED, engine.RELEASED, engine.MODIFIED, engine.TRANSACTIONAL)
_OUTCOME_NAMES = {
    "amqp:accepted:list": engine.ACCEPTED,
    "amqp:rejected:list": engine.REJECTED,
    "amqp:released:list": engine.RELEASED,
    "amqp:modified:list": engine.MODIFIED,
}
FAILED: Final = Outcome(engine.MODIFIED, failed=True)


Answered = tuple[Delivery, int, Any]
"""A delivery that the consumer has answered and not settled, the state in which we shall settle it, and its tag."""


class OutgoingLink(PacedConsumer, EachDisposition):
    """The promise: a message is forgotten only when the consumer says so, which is confirmed only when committed."""

    def __init__(
        self,
        connection: Connection,
        link: proton.Link,
        hosted: HostedSet,
        queue: Queue,
        *,
        browsing: bool,
        filters: Filters,
        relay: RelayRequest | None = None,
    ) -> None:
        wishes = read_wishes(engine.remote_properties_of(link), browses=browsing)
        if wishes.exclusive and hosted.resources.replication.counts_later:
            text = "in a group of brokers others may consume at other members: leave it out"
            raise AmqpError(NOT_IMPLEMENTED, f"link property {EXCLUSIVE} is not there: {text}")
        selector = filters.selector
        super().__init__(browsing=browsing, accepts=self._matches if selector else None, after=filters.after)
        self.connection = connection
        self.link = link
        self.queue = queue
        self.hosted = hosted
        """The set of the queue."""
        self._container = connection.container
        self._window = connection.window
        self._sender = Sender(link, connection.engine.formats)
        self.begin_pace()
        self._relay = relay
        self._presettled = link.snd_settle_mode == proton.Link.SND_SETTLED
        self._selector = selector
        self._counted = 0
        """Of `_unsettled`, in what the connection knows."""
        self._unsettled = {}
        self._accepted: list[Entry] = []
        self._answered: list[Answered] = []
        """In this turn, and not settled by the consumer: it waits for our word."""
        self._unconfirmed: deque[tuple[CommitToken, list[Answered]]] = deque()
        hosted.touch()
        self.is_relayed = relay is not None
        owner: object = connection
        if relay is not None:
            owner = connection.relay.owner_of(relay.client)
        self._owner = owner
        self.subscriber: Subscriber | None = None
        """By that it is known in `HostedSet.named_consumers`; None: no other link takes its place."""
        self._is_stolen = False
        standing = ConsumerStanding(wishes.priority, wishes.exclusive)
        hosted.resources.subscribe(queue, self, owner, client_names(connection, relay).client, standing)
        hosted.links[self] = None
        if relay is not None:
            answer = self._reclaim(relay)
            _, declined = self._known(relay, () if browsing else relay.declined)
            link.properties = answer._replace(declined=queue.dispatcher.decline_all(self, declined)).properties()

    @property
    def needs_primary(self) -> bool:
        # A proxy's client wants to see what the primary has, wherever that is; its proxy may not know yet of a new one.
        return self.is_relayed or not self.browsing

    def _reclaim(self, relay: RelayRequest) -> RelayAnswer:
        """Let the client of another broker go on having what it has, unless somebody else got it meanwhile.

        Of each such message a delivery without content is sent first, about which the client's answer can come. Where
        this broker does not hand out from the queue, as in a group that another member does, whose they are is not for
        it to say: they may be somebody else's already, and what the client said here would count for nothing.
        """
        newest, ids = self._known(relay, relay.held)
        resources = self.hosted.resources
        is_ours = self.queue.log is resources.replicated.log and resources.sets.hands_out(self.queue)
        if self.browsing or not is_ours:
            return RelayAnswer(newest, (), self.queue.name)
        found = [entry for entry in self.queue.messages.find_all(ids) if _is_free(entry)]
        for entry in found:
            self.queue.messages.hold(entry, self)
        self.beyond = found[-1] if found else None
        self._send_without_content(found)
        return RelayAnswer(newest, tuple(sorted(entry.id for entry in found)), self.queue.name)

    def _known(self, relay: RelayRequest, ids: Iterable[int]) -> tuple[int, list[int]]:
        """The generation of the set, and those of `ids` that mean the same messages here."""
        resources = self.hosted.resources
        generations = [(started.generation, lsn) for lsn, started in resources.replicated.state.generations]
        is_group = resources.replication.counts_later
        known = same_ids(ids, relay.generation, generations, links_outlive=is_group)
        return generations[-1][0] if generations else 0, known

    def _send_without_content(self, entries: list[Entry]) -> None:
        """Of what the client of another broker has."""
        for entry in entries:
            delivery, tag = self._sender.send(b"", entry.id)
            self._unsettled[delivery] = (entry, tag, 0)
        self._count_unsettled()

    def _matches(self, body: bytes) -> bool:
        if self._selector is None:
            return True
        try:
            return self._selector.matches(self._container.sections.lookup(body))
        except AmqpError:
            return False  # a message whose properties cannot be read has none that a selector could match

    # --- for operators

    @property
    def client_text(self) -> str:
        return self._relay.client_text if self._relay is not None else self.connection.identity.text

    def state(self) -> LinkState:
        client = "" if self._relay is None else self._relay.client_text
        waits_for = self._waits_for()
        return LinkState(self.queue.name, self._sender.credit, len(self._unsettled), waits_for, relayed_for=client)

    def _waits_for(self) -> WaitsFor:
        """The first thing that it needs and has not, in the order in which the broker looks at them."""
        dispatcher, position = self.queue.dispatcher, self.position
        waits_for_proof = self.hosted.resources.replication.lead_proof is LeadProof.MISSING or dispatcher.awaits_mark
        if self.hosted.withholds_from(self) or dispatcher.awaits_commit or (waits_for_proof and not self.browsing):
            return WaitsFor.COMMIT
        if self._sender.credit <= 0:
            return WaitsFor.CREDIT
        if self in self._window.waiting_for_answers or (dispatcher.awaits_answers and self.must_answer):
            return WaitsFor.ANSWERS
        if self.window_bytes <= 0:
            return WaitsFor.SOCKET
        if self.hosted.resources.is_gated and not self.browsing:
            return WaitsFor.OTHER_CLIENTS
        if not self.browsing and dispatcher.active not in (None, self):
            return WaitsFor.ACTIVE_CONSUMER
        if position is None or position.peek() is None:
            return WaitsFor.MESSAGES if self.accepts is None else WaitsFor.MATCHING_MESSAGES
        return WaitsFor.BODIES if dispatcher.awaits_bodies else WaitsFor.NOTHING

    # --- messages out

    def _send(self, entries: list[Entry], bodies: list[bytes]) -> None:
        queue, sender = self.queue, self._sender
        payloads = sent_payloads(self._container.sections, queue, entries, bodies, self.hosted.now_ms)
        shows_ids = self.after is not None or self._relay is not None
        if self._presettled:
            for entry, payload in zip(entries, payloads, strict=True):
                sender.send_settled(payload, entry.id if shows_ids else None)
            if not self.browsing:
                self.hosted.resources.accept(queue, entries)
        else:
            if shows_ids:
                sent = [sender.send(payload, entry.id) for entry, payload in zip(entries, payloads, strict=True)]
            else:
                sent = sender.send_all(payloads)
            unsettled = self._unsettled
            for entry, payload, (delivery, tag) in zip(entries, payloads, sent, strict=True):
                unsettled[delivery] = (entry, tag, len(payload))
            self._container.held.unsettled_bytes += sum(map(len, payloads))
        self._newest.note(len(entries))

    def _count_unsettled(self) -> None:
        count = len(self._unsettled)
        change, self._counted = count - self._counted, count
        if change:
            self._window.count_unsettled(change)

    # --- what became of them

    def dispositions(self, batch: list[Disposition]) -> None:
        """The consumer answered messages: mostly it accepts them."""
        if {state for _, state, _ in batch} != {engine.ACCEPTED}:
            super().dispositions(batch)
            return
        unsettled, accepted, freed = self._unsettled, [], 0
        settled_now, tags = [], []
        for delivery, state, settled in batch:
            found = unsettled.pop(delivery, None)
            if found is None:
                continue  # answered before
            entry, tag, size = found
            accepted.append(entry)
            freed += size
            if settled:
                settled_now.append(delivery)
                tags.append(tag)
            else:
                self._answered.append((delivery, state, tag))
        engine.forget_all(settled_now)
        self._sender.free_all(tags)
        if not self.browsing:
            self._accepted += accepted
        self._container.held.unsettled_bytes -= freed
        hosted = self.hosted
        hosted.accepting[self] = None
        if not hosted.is_touched:
            hosted.touch()

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """The consumer answered, or settled, or both."""
        found = self._unsettled.get(delivery)
        if found is None:
            return  # answered before: what it says now changes nothing, and we settle when the log has committed
        entry, tag, size = found
        if state == engine.TRANSACTIONAL and not self.browsing:
            self._answered_in_transaction(delivery, entry, settled)
            return
        if not settled and state not in _ANSWERS:
            return  # `received`: it is still on its way
        del self._unsettled[delivery]
        self._container.held.unsettled_bytes -= size
        hosted = self.hosted
        hosted.accepting[self] = None
        if not hosted.is_touched:
            hosted.touch()
        if not self.browsing:
            if state == engine.ACCEPTED:
                self._accepted.append(entry)
            else:
                outcome = RemoteOutcome(delivery)
                if state == engine.MODIFIED and self._relay is not None and outcome.annotates(UNSEEN):
                    release_unseen(hosted.resources, self.queue, [entry])
                else:
                    self._return(entry, outcome.read())
        if settled:
            engine.forget(delivery)
            self._sender.free(tag)
        else:
            self._answered.append((delivery, engine.ACCEPTED if state == engine.TRANSACTIONAL else state, tag))

    def _return(self, entry: Entry, outcome: Outcome) -> None:
        """What an outcome other than accepted comes to (AMQP 1.0 section 3.4). Where something is wrong with what was
        said with it, it counts all the same, and the link ends."""
        self.hosted.touch()  # from now on it may have to wait
        state, queue = outcome.state, self.queue
        if state == engine.REJECTED:
            self.hosted.resources.reject(queue, [entry])
            return
        annotations, problem = _said(queue, entry, outcome)
        counts = state != engine.RELEASED and (state != engine.MODIFIED or outcome.failed)
        self.hosted.resources.release(queue, [entry], counts, annotations=annotations)
        is_declined = state == engine.MODIFIED and outcome.undeliverable and not queue.deleted
        if is_declined and not queue.dispatcher.decline(self, entry):
            text = f"{DECLINED_MOST} messages of {queue.name} are undeliverable here: reject them, or detach"
            problem = AmqpError(RESOURCE_LIMIT, text)
        if problem is not None:
            self.end(problem)

    def flush_accepted(self) -> None:
        """Dequeue all that was accepted in this turn, with one event, and count what is still unanswered."""
        self._count_unsettled()
        resources = self.hosted.resources
        accepted: CommitToken | None = None
        if self._accepted:
            accepted = resources.accept(self.queue, self._accepted)
            self._accepted = []
        if self._answered:
            token = resources.written if self._container.settings.confirm_dequeue else COMMITTED
            if accepted is not None and self.session_owner is not None and resources.replication.counts_later:
                token = accepted  # it may fail, and then the session holds them still
            self._unconfirmed.append((token, self._answered))
            self._answered = []
            self.hosted.unconfirmed[self] = None

    def confirm(self) -> bool:
        """Settle answers that are committed, with the outcome we carried out; whether some still wait."""
        waiting = self._unconfirmed
        while waiting and waiting[0][0].is_committed:
            _, answered = waiting.popleft()
            if all(state == engine.ACCEPTED for _, state, _ in answered):
                engine.accept_all([delivery for delivery, _, _ in answered])
            else:
                for delivery, state, _ in answered:
                    engine.settle(delivery, state)
            self._sender.free_all([tag for _, _, tag in answered])
            self.connection.touch()
        return bool(waiting)

    # --- transactions

    def _answered_in_transaction(self, delivery: Delivery, entry: Entry, settled: bool) -> None:
        """Accepted counts at the discharge; other outcomes return the message at once, which loses nothing.

        In a transaction that has failed already nothing is accepted, and its client hears that by the discharge: the
        message is as after a rollback, the consumer's, or, where it has settled, somebody else's.
        """
        if isinstance(entry.holder, Transaction):
            if settled:
                entry.holder.abandon(entry)
                self._settled(delivery)
            return
        try:
            transactions = transactions_of(self.connection, self._relay, self.hosted.name)
            _, transaction = transactions.of(delivery)
            outcome = read_outcome(RemoteOutcome(delivery).transaction()[1])
        except (AmqpError, ValueError) as error:
            self.end(AmqpError(UNKNOWN_TRANSACTION, str(error)))
            return
        if transaction.failure is None:
            try:
                transactions.join(transaction, self.hosted)
                transactions.check_accept(transaction)
            except AmqpError as error:
                transactions.fail(transaction, error)
                self.end(error)
                return
        elif outcome.state == engine.ACCEPTED:
            if not settled:
                return
            outcome = FAILED
        if outcome.state != engine.ACCEPTED:
            self._settled(delivery)
            self._return(entry, outcome)
            return
        transaction.accept(self.queue, entry, None if settled else self)
        if settled:
            self._settled(delivery)

    def settle_committed(self, entries: Container[Entry], token: CommitToken) -> None:
        """`token` is of the transaction that accepted `entries`, and the consumer has settled none of them."""
        answered: list[Answered] = []
        for delivery, (entry, tag, size) in list(self._unsettled.items()):
            if entry in entries:
                del self._unsettled[delivery]
                self._container.held.unsettled_bytes -= size
                answered.append((delivery, engine.ACCEPTED, tag))
        self._unconfirmed.append((token, answered))
        self.hosted.unconfirmed[self] = None
        self.hosted.accepting[self] = None
        self.hosted.touch()

    def _settled(self, delivery: Delivery) -> None:
        _, tag, size = self._unsettled.pop(delivery)
        self._container.held.unsettled_bytes -= size
        self.hosted.accepting[self] = None
        self.hosted.touch()
        engine.forget(delivery)
        self._sender.free(tag)

    # --- the end

    @property
    def must_end_at_once(self) -> bool:
        return not self.hosted.resources.sets.may_write(self.queue)

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, error)

    def stolen(self, connection: Connection, relay: RelayRequest | None, text: str) -> None:
        """The same client has attached the link anew, on `connection`: it will not answer what it got on this one."""
        self._is_stolen, mine = True, self._relay
        is_same_client = (
            mine is not None and relay is not None and (mine.path, mine.client) == (relay.path, relay.client)
        )
        # By its broker, on another connection: which of the two that has given up it knows, and attaches once more.
        is_its_brokers = is_same_client and connection is not self.connection
        self.end(AmqpError(CONNECTION_FORCED if is_its_brokers else LINK_STOLEN, text))

    def stop(self) -> None:
        """Take nothing more from the queue; what was not answered is held until `closed`."""
        self._ended = True
        self._set_credit(0)
        self._backlog.clear()

    def closed(self, *, lost: bool) -> None:
        """Give back what was not answered; `lost`: the connection broke, so each may have been seen that has left."""
        self.flush_accepted()
        self.stop()
        self._take_unsent_back(lost=lost)
        container, resources = self._container, self.hosted.resources
        self.hosted.touch()
        unsettled, self._unsettled = self._unsettled, {}
        self._count_unsettled()
        # In passes over lists: there may be a hundred thousand.
        container.held.unsettled_bytes -= sum([size for _, _, size in unsettled.values()])
        entries = [] if self.browsing else [entry for entry, _, _ in unsettled.values()]
        for collection in (unsettled, self._sender.take_tags()):
            if collection:
                self.hosted.garbage.add(emptied(collection))
        self.accepts = None
        if not self.browsing:
            self._give_back(entries, lost=lost)
        now_ms = self.hosted.now_ms
        keep_until_ms = now_ms + RETURN_MS if lost and self.is_relayed and not self.browsing else 0
        resources.unsubscribe(self.queue, self, now_ms, keep_until_ms=keep_until_ms)
        self.hosted.named_consumers.ended(self)
        self._window.forget(self)
        self.hosted.forget(self)

    def _give_back(self, entries: list[Entry], *, lost: bool) -> None:
        """`entries` were sent and not answered; what a transaction has accepted of them is no more this link's."""
        mine = [entry for entry in entries if entry.holder is self]
        if len(mine) != len(entries):
            abandon([entry for entry in entries if entry.holder is not self])
        if mine:
            # Another broker that is lost tells nothing of its clients: they may still have what was sent to them.
            failed = self._is_stolen or (lost and self._relay is None)
            self.hosted.resources.release_in_portions(self.queue, self, mine, failed=failed)


def _is_free(entry: Entry) -> bool:
    """Whether nobody has it. What is paged out cannot be had: see `Entry`."""
    return entry.holder is None and type(entry.body) is bytes


def abandon(entries: list[Entry]) -> None:
    """Who accepted `entries` in a transaction is gone."""
    for entry in entries:
        if isinstance(entry.holder, Transaction):
            entry.holder.abandon(entry)


def _said(queue: Queue, entry: Entry, outcome: Outcome) -> tuple[bytes, AmqpError | None]:
    """All that consumers have said of the message by now, empty where this one says nothing; and what is wrong with
    that."""
    if not outcome.annotations:
        return b"", None
    before = queue.messages.annotations.get(entry.id, b"")
    try:
        added = checked(outcome.annotations)
        return merged(before, added) if added else b"", None
    except AmqpError as error:
        return b"", error


def read_outcome(described: object) -> Outcome:
    """An outcome within a transactional state; its state is 0 where it is none that is known. Raises AmqpError."""
    if not isinstance(described, proton.Described):
        return Outcome(0)
    state = _OUTCOME_NAMES.get(str(described.descriptor), described.descriptor)
    if not isinstance(state, int):
        return Outcome(0)
    if state != engine.MODIFIED or not isinstance(described.value, list):
        return Outcome(state)
    failed, undeliverable, annotations, *_ = [*described.value, None, None, None]
    return Outcome(state, bool(failed), bool(undeliverable), annotations=encoded(annotations))
