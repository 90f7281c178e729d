"""A publisher's link: takes messages in, and says "accepted" when the log says that it may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import proton

from qpid_ha_broker.access.rules import Permission
from qpid_ha_broker.amqp.connections.connection import Connection, transactions_of
from qpid_ha_broker.amqp.connections.nodes import Meaning, Target
from qpid_ha_broker.amqp.connections.transactions import LINK_ENDED
from qpid_ha_broker.amqp.links.plain_messages import by_route, runs_of
from qpid_ha_broker.amqp.nodes.access_checks import PublisherIdentity
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_state import LinkState, WaitsFor
from qpid_ha_broker.amqp.nodes.live_producers import OwnProducer
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits
from qpid_ha_broker.amqp.nodes.own_addresses import is_own, no_such_address
from qpid_ha_broker.amqp.nodes.primary_link import PrimaryLink
from qpid_ha_broker.amqp.nodes.terminus import Terminus, terminus_of_message
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.annotations import Clocks, annotated, with_expiry
from qpid_ha_broker.amqp.wire.conditions import (
    MESSAGE_SIZE,
    NOT_FOUND,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    RESOURCE_LOCKED,
    TRANSFER_LIMIT,
    AmqpError,
    as_amqp,
    symbol_map,
)
from qpid_ha_broker.amqp.wire.engine import Delivery, EachTransfer, Transfer
from qpid_ha_broker.amqp.wire.relay import LATE_REFUSAL, RelayRequest
from qpid_ha_broker.amqp.wire.sections import NO_ANNOTATIONS, Header
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import Exchange
from qpid_ha_broker.model.logs.log import Commitment, CommitToken, Log
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resources import UNIT_BYTES, UNIT_MESSAGES, publish_numbered
from qpid_ha_broker.model.transactions.producers import REFUSED_MOST, relayed_producer
from qpid_ha_broker.model.transactions.transaction import Message, Publish

ACCEPTED_OUTCOME = proton.Described(proton.ulong(engine.ACCEPTED), [])

Unconfirmed = tuple[Log, int, Commitment | None, Delivery]
"""The commit token that has to be committed before a delivery is settled as accepted, and the delivery."""


class ReceivingLink(PrimaryLink, EachTransfer):
    """What every link has on which messages come in: parts of a message, the size limit, and credit."""

    _late_refusal: Mapping[Any, object] | None = None
    """What the error of a message says that was refused when others behind it had been taken."""
    request_bytes: int | None = None
    """Where messages are requests, which are read whole: no longer than that, for nobody else is served meanwhile."""
    is_paced = True
    """What comes counts for the rate of its user: requests do not."""
    spans_sets = True
    """What comes may be for any set."""

    def __init__(self, connection: Connection, link: proton.Link, credit: int, hosted: HostedSet | None = None) -> None:
        self.connection = connection
        self.link = link
        self._use = connection.links.use
        self.hosted = hosted or connection.container.default
        """The set in whose turns it is asked; what may wait for any set's log is asked in each turn."""
        self._has_ended = False
        self._parts = bytearray()
        self._unconfirmed: list[Unconfirmed] = []
        self._credit = credit
        self._credit_due = credit
        self._give_due_credit()

    def transfers(self, batch: list[Transfer]) -> None:
        """Each of them, until the link ends at one: what is behind that is dropped, as all that comes later."""
        transfer = self.transfer
        for delivery, payload, settled, state in batch:
            if self._has_ended:
                self._discard(delivery, settled, state)
            elif state == engine.TRANSACTIONAL:
                self._transfer_in_transaction(delivery, payload, settled)
            else:
                transfer(delivery, payload, settled, state)

    def _transfer_in_transaction(self, delivery: Delivery, payload: bytes, settled: bool) -> None:
        transactions = self.connection.transactions
        transaction = transactions.find(delivery)
        self.transfer(delivery, payload, settled, engine.TRANSACTIONAL)
        if self._has_ended:
            transactions.fail(transaction, LINK_ENDED)

    def _discard(self, delivery: Delivery, settled: bool, state: int) -> None:
        """What came behind the message at which the link has ended."""
        if state == engine.TRANSACTIONAL:
            self.connection.transactions.dropped(delivery)
        if settled:
            engine.forget(delivery)
        elif self.connection.engine.answers_late:
            engine.settle(delivery, engine.RELEASED)

    def partial(self, delivery: Delivery, data: bytes) -> None:
        """Collect, up to the limits of the message and of the connection."""
        container, settings = self.connection.container, self.connection.container.settings
        self._parts += data
        self.connection.partial_bytes += len(data)
        container.held.partial_bytes += len(data)
        if len(self._parts) > self.max_message_bytes:
            self._too_large(len(self._parts))
        elif self.connection.partial_bytes > settings.max_message_bytes + settings.max_partial_bytes:
            text = f"{self.connection.partial_bytes} bytes of unfinished messages on one connection"
            self.end(AmqpError(RESOURCE_LIMIT, text))
        elif container.held.partial_bytes > settings.max_unfinished_bytes:
            text = f"{container.held.partial_bytes} bytes of unfinished messages on all connections together"
            self.end(AmqpError(RESOURCE_LIMIT, text))

    def aborted(self, delivery: Delivery) -> None:
        """Forget the parts; the credit may be used again."""
        self._take_parts()
        self._credit_due += 1
        if engine.credit(self.link) < 0:
            self.end(AmqpError(TRANSFER_LIMIT, "more messages than there was credit for"))
            return
        self.replenish()

    def confirm(self) -> bool:
        """Settle what is committed and replenish the credit; returns whether something still waits."""
        waiting = self._unconfirmed
        if waiting:
            count, may_have_failed = _count_over(waiting)
            over = waiting[:count]
            del waiting[:count]
            if waiting and self.spans_sets and self.connection.container.spans_sets:
                # What one set has committed does not wait for what another one has not.
                over += [each for each in waiting if _is_over(each)]
                self._unconfirmed = [each for each in waiting if not _is_over(each)]
                may_have_failed = True
            if may_have_failed:  # refused by another broker, or others of a group were faster
                for each in over:
                    self._reject(each)
                over = [each for each in over if _token(each).failure is None]
            if over:
                self._accept(over)
        self.replenish()
        return bool(self._unconfirmed)

    def _accept(self, committed: list[Unconfirmed]) -> None:
        engine.accept_all([delivery for _, _, _, delivery in committed])
        self._credit_due += len(committed)
        self.connection.touch()

    def _reject(self, failed: Unconfirmed) -> None:
        failure = _token(failed).failure
        if failure is not None:
            error = as_amqp(failure)
            engine.reject(failed[3], error.name, error.description, self._late_refusal)
            self._credit_due += 1
            self.connection.touch()

    def state(self) -> LinkState:
        unconfirmed, has_credit = len(self._unconfirmed), engine.credit(self.link) > 0
        waits_for = WaitsFor.NOTHING
        if unconfirmed:
            waits_for = WaitsFor.COMMIT
        elif self in self.connection.container.starved:
            waits_for = WaitsFor.MEMORY
        elif self._is_held_back:
            waits_for = WaitsFor.RATE
        elif not has_credit:
            waits_for = WaitsFor.CREDIT
        return super().state()._replace(unsettled=unconfirmed, waits_for=waits_for)

    def waits_for(self, log: Log) -> bool:
        return any(_token(each).waits_for(log) for each in self._unconfirmed)

    def answered(self, count: int = 1) -> None:
        """So many messages were dealt with at once: their credit is due, and there is something to write."""
        self._credit_due += count
        self.hosted.unconfirmed[self] = None
        self.hosted.touch()
        self.connection.touch()

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, error)

    def bug(self, error: Exception, handed_out: Sequence[Entry] = ()) -> None:
        self.connection.engine.link_failed(self.link._impl, error)
        self.connection.touch()

    def closed(self, *, lost: bool) -> None:
        """The link is gone. What was not confirmed stays unconfirmed: the peer will ask again, or never know."""
        self._has_ended = True
        self._take_parts()
        self._unconfirmed.clear()
        self.connection.container.starved.pop(self, None)
        self.hosted.forget(self)
        rate = self._use.rate
        if rate is not None:
            rate.left(self, engine.credit(self.link))

    def whole(self, payload: bytes) -> bytes | None:
        """The message with its earlier parts; None when it is too large, and then the link has been ended."""
        if self._parts:
            payload = self._take_parts() + payload
        if len(payload) > self.max_message_bytes:
            self._too_large(len(payload))
            return None
        return payload

    def replenish(self) -> None:
        """Give back the credit that was used, once it is worth a frame and the broker has room."""
        if engine.credit(self.link) < 0:
            text = f"more messages than the {self._credit} that there was credit for"
            self.end(AmqpError(TRANSFER_LIMIT, text))
        elif self._credit_due * 2 >= self._credit:
            self._give_due_credit()

    def _give_due_credit(self) -> None:
        if self._may_have_credit():
            self._credit_due -= self._give_credit(self._credit_due)

    def _give_credit(self, due: int) -> int:
        """Give the credit that is due, as far as the rate of the user allows, and return it: for the rest the link is
        asked again when the user may send more."""
        if self.link.rcv_settle_mode == proton.Link.RCV_SECOND:
            most = self._credit or self.connection.container.settings.publisher_credit
            due = min(due, _room_until_settled(self.link, most))
        rate = self._use.rate
        if rate is not None and self.is_paced:
            due = rate.take(self, due, engine.credit(self.link))
        if due:
            engine.give_credit(self.link, due)
            self.connection.touch()
        return due

    @property
    def _is_held_back(self) -> bool:
        """It waits for the rate of its user."""
        rate = self._use.rate
        return rate is not None and rate.is_waiting(self)

    def _may_have_credit(self) -> bool:
        """Commands are always let in: they may be what makes room."""
        return True

    def _take_parts(self) -> bytes:
        parts, self._parts = bytes(self._parts), bytearray()
        self.connection.partial_bytes -= len(parts)
        self.connection.container.held.partial_bytes -= len(parts)
        return parts

    @property
    def max_message_bytes(self) -> int:
        """Of one message on this link."""
        limit = self._use.max_message_bytes
        return limit if self.request_bytes is None else min(limit, self.request_bytes)

    def _too_large(self, size: int) -> None:
        limit = self.max_message_bytes
        use = self._use
        if use.is_size_limited and limit == use.max_message_bytes:
            self.end(AmqpError(MESSAGE_SIZE, self.connection.container.limits.size_refusal(use, size)))
            return
        limits = f"max-message-size is {limit}" if self.request_bytes is None else f"a request has {limit} at most"
        self.end(AmqpError(MESSAGE_SIZE, f"a message of {size} bytes or more; {limits}"))


class IncomingLink(ReceivingLink):
    """The promise: a delivery is settled as accepted only when the log has committed its event.

    `target` None: an anonymous relay, each message says where it goes; where another broker relays it, within one set.
    """

    def __init__(
        self, connection: Connection, link: proton.Link, target: Target | None, relay: RelayRequest | None = None
    ) -> None:
        container = connection.container
        self._relay = relay
        self._sent_by = PublisherIdentity.of(connection, relay)
        self.is_relayed = relay is not None
        if self.is_relayed:
            self._late_refusal = symbol_map({LATE_REFUSAL: True})
        self._producers = container.sessions.producers
        self._own_producer = OwnProducer(self._producers, self._sent_by.subject.user, _session_of(connection, relay))
        """By which its client numbers its messages itself."""
        self._relayed_by = b""
        """The key of the proxy's producer; empty: this link is not relayed, or not numbered."""
        self._relayed: list[tuple[Delivery, Message]] = []
        """Numbered by a proxy, and to be written together: a unit of the log costs as much as a message."""
        self._relayed_bytes = 0
        if target is not None:
            hosted = target.hosted
        elif relay is None:
            hosted = container.default
        else:
            hosted = container.led_set(relay.set_name)
        credit = container.settings.publisher_credit
        super().__init__(connection, link, credit if relay is None else min(credit, REFUSED_MOST), hosted)
        self.target = target
        self.spans_sets = target is None or isinstance(target.node, Exchange)
        self._queue = target.node if target is not None and isinstance(target.node, Queue) else None
        self._container = container
        self._enqueue_plain = hosted.resources.enqueue_plain
        self._deduplication = hosted.resources.deduplication
        self._read_header = container.sections.header
        self._clocks = Clocks(hosted.resources.catalog.clock, container.steady)
        hosted.links[self] = None
        if relay is not None and relay.producer:
            self._relayed_by = relayed_producer(self._sent_by.subject.user, relay.producer)
            hosted.numbered_publishers.began(self._relayed_by, self)
            self._producers.began(self._relayed_by)
            self._note_refused_before(relay)

    def state(self) -> LinkState:
        state = super().state()
        if self._relay is not None:
            state = state._replace(relayed_for=self._relay.client_text)
        return state if self.target is None else state._replace(node=self.target.node.name)

    def transfers(self, batch: list[Transfer]) -> None:
        """As of every link; the short way for messages about which there is nothing to decide, as `enqueue_plain`."""
        target, queue, is_numbered = self.target, self._queue, bool(self._relayed_by)
        # What another broker relays comes in runs where that numbers it, and to a queue.
        is_looked_at = self._relay is not None and (queue is None or not is_numbered)
        if target is None or is_looked_at or self.hosted.resources.replication.is_restricted:
            super().transfers(batch)
            return
        # Whatever is numbered `publish_numbered` looks at.
        detects_groups = (queue is None or queue.detects_groups) and not is_numbered
        sections = self._container.sections
        for run, header in runs_of(batch, sections, self.max_message_bytes, detects_groups=detects_groups):
            if header is None or self._parts or (queue is not None and queue.needs_care):
                super().transfers(run)
                continue
            expires_at_ms = self._clocks.now_ms + header.ttl_ms if header.ttl_ms else 0
            if is_numbered:
                for delivery, payload, settled, state in run:
                    message = Message(payload, header.durable, header.priority, expires_at_ms)
                    if self._has_ended:  # at one in front of it
                        self._discard(delivery, settled, state)
                    elif not self._joins_relayed(delivery, message, settled, state):
                        self.transfer(delivery, payload, settled, state)
                continue
            parts = (((queue,), run),) if queue is not None else by_route(run, target, self._container)
            for queues, routed in parts:
                if self._has_ended or not queues:
                    super().transfers(routed)
                else:
                    self._take_in(queues, routed, header, expires_at_ms)

    def _take_in(self, queues: Sequence[Queue], run: Sequence[Transfer], header: Header, expires_at_ms: int) -> None:
        """Plain messages, which come to all of `queues`."""
        log = queues[0].log
        payloads = [payload for _, payload, _, _ in run]
        lsns = self.hosted.resources.sets.holding(queues[0]).enqueue_plain(
            queues, payloads, header.durable, header.priority, expires_at_ms
        )
        for lsn, (delivery, _, settled, _) in zip(lsns, run, strict=True):
            if settled:
                engine.forget(delivery)
                self._credit_due += 1
            else:
                self._unconfirmed.append((log, lsn, None, delivery))
        self.hosted.unconfirmed[self] = None
        if not self.hosted.is_touched:
            self.hosted.touch()

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """Publish one message."""
        whole = self.whole(payload)
        if whole is None:
            return
        container, hosted = self._container, self.hosted
        message: Message | None = None
        try:
            header = self._read_header(whole)
            message = with_expiry(container.sections, whole, header, self._clocks)
            if whole[header.length + 2 : header.length + 3] not in NO_ANNOTATIONS:
                with_numbers = self._deduplication.producers > 0
                found = annotated(container.sections, message, header.length, self._clocks, with_numbers=with_numbers)
                message = self._own_producer.numbered(found) if found.producer else found
            if self._relay is not None and self._joins_relayed(delivery, message, settled, state):
                return
            if state == engine.TRANSACTIONAL:
                self._publish_in_transaction(delivery, message)
                return
            queue = self._queue
            if queue is None or queue.needs_care:
                waits: Unconfirmed = (*self._publish_anywhere(delivery, message), delivery)
            elif lsn := self._enqueue_plain(queue, message):
                waits = queue.log, lsn, None, delivery
            else:
                waits = (*hosted.resources.publish(queue, message, hosted.now_ms), delivery)
        except (ModelError, AmqpError) as error:
            self.flush_accepted()  # what came before it has lower numbers
            if self._has_ended:
                self._discard(delivery, settled, state)
                return
            if message is not None and message.producer and not (settled or state == engine.TRANSACTIONAL):
                self._note_refused(message.producer, message.sequence)
            self.refuse(delivery, settled, state, as_amqp(error) if isinstance(error, ModelError) else error)
        else:
            if settled:
                engine.forget(delivery)
                self._credit_due += 1
            else:
                self._unconfirmed.append(waits)
            hosted.unconfirmed[self] = None
            if not hosted.is_touched:
                hosted.touch()

    def refuse(self, delivery: Delivery, settled: bool, state: int, error: AmqpError) -> None:
        """It is not taken, and so neither is the transaction that it came in."""
        if state == engine.TRANSACTIONAL:
            self.connection.transactions.refused(delivery, error)
        self._refuse(delivery, settled, error)

    def _refuse(self, delivery: Delivery, settled: bool, error: AmqpError) -> None:
        self.answered()
        is_elsewhere = isinstance(error, ServedElsewhere) or self.hosted.read_only
        if self._relay is not None and is_elsewhere:  # to be sent again, there
            self.end(ServedElsewhere(self._container.directory, self.hosted.name))
            return
        if error.name == RESOURCE_DELETED:
            self.end(error)
        elif settled:
            engine.forget(delivery)
            self.connection.log.note("warning", f"a message sent at most once was refused: {error}")
        else:
            info = dict(error.info or {})
            if self._relay is not None and (number := engine.number_if_any(delivery)) is not None:
                self._note_refused(self._relayed_by, number)
                info[LATE_REFUSAL] = True
            engine.reject(delivery, error.name, error.description, symbol_map(info) if info else None)

    def _note_refused(self, producer: bytes, sequence: int) -> None:
        """A message that its publisher has numbered, or its proxy. A later one may be accepted before that one hears of
        this, and be all that it hears of.

        Where an exchange or the message says where it goes, that may be for any set which is led here.
        """
        sets = self._container.sets.values() if self.spans_sets else (self.hosted,)
        for hosted in sets:
            hosted.resources.deduplication.note_refused(producer, sequence)

    def _note_refused_before(self, relay: RelayRequest) -> None:
        """What the primary before this one refused, and told the proxy alone."""
        for name, numbers in relay.refused:
            try:
                key = self._own_producer.key_of(name)
            except AmqpError:  # it was refused for that
                continue
            for number in numbers:
                self._note_refused(key, number)

    # --- messages that another broker relays

    def _joins_relayed(self, delivery: Delivery, message: Message, settled: bool, state: int) -> bool:
        """Whether it is written with others, under the number that the proxy gave it. What came before is, in any case.

        A message that its publisher numbers itself, or that is not numbered, is written as any other.
        """
        queue, producer = self._queue, self._relayed_by
        is_plain = producer and not (settled or state == engine.TRANSACTIONAL or message.producer)
        if is_plain and (number := engine.number_if_any(delivery)) is not None:
            self._relayed.append((delivery, message._replace(producer=producer, sequence=number)))
            self._relayed_bytes += len(message.payload)
            may_wait = len(self._relayed) < UNIT_MESSAGES and self._relayed_bytes < UNIT_BYTES
            if may_wait and queue is not None and not queue.needs_care:
                self.hosted.accepting[self] = None
                if not self.hosted.is_touched:
                    self.hosted.touch()
            else:
                self.flush_accepted()
            return True
        self.flush_accepted()
        return False

    def flush_accepted(self) -> None:
        """Write what was relayed in this turn: all of it together, or one by one where some of it is refused."""
        relayed, self._relayed, self._relayed_bytes = self._relayed, [], 0
        if not relayed:
            return
        queue, now_ms = self._queue, self.hosted.now_ms
        if queue is not None and not queue.needs_care:
            try:
                messages = [message for _, message in relayed]
                log, lsn, also = publish_numbered(self.hosted.resources, queue, messages, now_ms)
            except (ModelError, AmqpError):
                pass  # which of them is refused, and why, shows one by one
            else:
                self._unconfirmed += [(log, lsn, also, delivery) for delivery, _ in relayed]
                self.hosted.unconfirmed[self] = None
                self.hosted.touch()
                return
        for delivery, message in relayed:
            if self not in self.hosted.links:  # it has ended
                return
            try:
                waits = (*self._publish_anywhere(delivery, message), delivery)
            except (ModelError, AmqpError) as error:
                self._refuse(delivery, False, as_amqp(error) if isinstance(error, ModelError) else error)
            else:
                self._unconfirmed.append(waits)
                self.hosted.unconfirmed[self] = None
                self.hosted.touch()

    def closed(self, *, lost: bool) -> None:
        if not self.hosted.read_only:
            self.flush_accepted()
        super().closed(lost=lost)
        self._own_producer.ended()
        if self._relayed_by:
            self._producers.ended(self._relayed_by)
            self.hosted.numbered_publishers.ended(self._relayed_by, self)
            self._relayed_by = b""
        self._container.sessions.links.forget(self)

    def _publish_anywhere(self, delivery: Delivery, message: Message) -> CommitToken:
        """To queues with limits, too: whoever accepted a message before sending this one has made room for it."""
        try:
            hosted, target, key = self._destination(message.payload)
        except ServedElsewhere:
            raise
        except (ModelError, AmqpError):
            known_at = self._relayed_before(delivery)
            if known_at is None:
                raise
            return known_at
        hosted.flush_accepted()
        message, now_ms = hosted.by_own_clock(message, self.hosted), hosted.now_ms
        if isinstance(target, Queue):
            token = hosted.resources.publish(target, message, now_ms)
        else:
            token = self._container.publisher.publish(target, message, key, now_ms, self._sent_by.origin)
        hosted.touch()
        return token

    def _relayed_before(self, delivery: Delivery) -> CommitToken | None:
        """Of a message for an anonymous relay that is sent again and was taken: see `Resources.known_at`.

        Its queue may have been deleted since, or its publisher may not publish there any more. Were it refused for
        that, its proxy would number anew what is behind it, which was taken, too, and would be there twice.
        """
        number = None if self._relay is None or self.target is not None else engine.number_if_any(delivery)
        if number is None:
            return None
        return self.hosted.resources.known_at(Message(b"", producer=self._relayed_by, sequence=number))

    def _destination(self, payload: bytes) -> tuple[HostedSet, Queue | Exchange, str]:
        sections = self._container.sections
        target = self.target
        if target is None:
            address = sections.to(payload)
            if not address:
                raise AmqpError(NOT_FOUND, "a message for the anonymous relay needs an address in `to`")
            target = self._find(address, terminus_of_message(sections, payload))
        elif not target.hosted.is_there(target.node):
            raise AmqpError(RESOURCE_DELETED, f"{target.node.name} was deleted")
        if isinstance(target.node, Queue):
            return target.hosted, target.node, ""
        return target.hosted, target.node, sections.routing_key(payload) if target.key is None else target.key

    def meant_to_publish(self, address: str, terminus: Terminus | None) -> Meaning:
        """What the address of a message of an anonymous relay means. Raises ModelError where its publisher may not
        publish there, and AmqpError where nobody can: a message cannot be sent to the broker's own addresses, only a
        link be attached."""
        container = self._container
        if is_own(address):
            raise no_such_address(address)
        meaning = container.nodes.meaning(address, terminus)
        container.access.check(self._sent_by.subject, Permission.PUBLISH, *container.nodes.access(meaning))
        return meaning

    def _find(self, address: str, terminus: Terminus | None) -> Target:
        """Where the message of an anonymous relay goes. Raises AmqpError or ModelError."""
        relay, name = self._relay, self.hosted.name
        plain = self._container.nodes.plain_queue(address, terminus)
        if plain is not None and (relay is None or plain.hosted is self.hosted):
            self._container.access.check(self._sent_by.subject, Permission.PUBLISH, address)
            return plain
        meaning = self.meant_to_publish(address, terminus)
        try:
            target = self._container.nodes.find_meant_to_publish(meaning, self._sent_by.subject, terminus)
        except AttachWaits as waits:
            raise AmqpError(RESOURCE_LOCKED, f"{waits}: try again") from waits
        except ServedElsewhere as elsewhere:
            if relay is None or elsewhere.set_name == name:
                raise
            belongs_to = elsewhere.set_name
        else:
            self.connection.log.note_made(target, self._sent_by.subject)
            belongs_to = target.hosted.name
            if relay is None or belongs_to == name:
                return target
        # Its numbers are those of this link in one set: in another one they would say nothing, or something wrong.
        raise AmqpError(
            RESOURCE_LOCKED,
            f"{address} belongs to the resource set {belongs_to}, which {relay.path[-1]} does not know yet: try again",
        )

    def _publish_in_transaction(self, delivery: Delivery, message: Message) -> None:
        """Accepted at once: whether it counts, the discharge will tell (AMQP 1.0 section 4.4.1)."""
        transactions = transactions_of(self.connection, self._relay, self.hosted.name)
        transaction_id, transaction = transactions.of(delivery)
        hosted, target, key = self._destination(message.payload)
        transactions.join(transaction, hosted)
        transaction.publish(Publish(target, hosted.by_own_clock(message, self.hosted), key, self._sent_by.origin))
        transactions.check_size(transaction)
        engine.set_local_data(delivery, engine.TRANSACTIONAL, [transaction_id, ACCEPTED_OUTCOME], settle_now=True)
        self.answered()

    def _may_have_credit(self) -> bool:
        container = self.connection.container
        if (self.spans_sets and container.publisher.is_full) or self.hosted.resources.replication.is_full:
            container.starved[self] = None
            return False
        return container.has_room(self)


def _room_until_settled(link: proton.Link, most: int) -> int:
    """How much more credit a publisher may have that settles before we do, and may have `most` in all: what it has not
    settled takes credit, too, for it is remembered here."""
    return max(most - engine.credit(link) - engine.unsettled_on(link), 0)


def _session_of(connection: Connection, relay: RelayRequest | None) -> str:
    """The UUID of the session that a link is one of; empty: it is of none."""
    if relay is not None:
        return "" if relay.session is None else relay.session.name
    return "" if connection.session is None else connection.session.name


def _token(unconfirmed: Unconfirmed) -> CommitToken:
    return CommitToken(*unconfirmed[:3])


def _is_over(unconfirmed: Unconfirmed) -> bool:
    token = _token(unconfirmed)
    return token.failure is not None or token.is_committed


def _count_over(unconfirmed: list[Unconfirmed]) -> tuple[int, bool]:
    """How many are committed or have failed, up to the first of which neither is known, and whether one of them has
    failed: asked in every turn until a sync."""
    latest: Log | None = None
    committed_lsn, counted, has_failed = 0, None, False
    for at, (log, lsn, also, _) in enumerate(unconfirmed):
        if log is not latest:
            latest, committed_lsn = log, log.committed_lsn
        if also is not None and also is not counted:  # in a group, hundreds of messages have one
            if also.failure is not None:
                has_failed = True
            elif not also.is_committed:
                return at, has_failed
            counted = also
        if lsn > committed_lsn and (also is None or also.failure is None):
            return at, has_failed
    return len(unconfirmed), has_failed
