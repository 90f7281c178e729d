"""A client's link whose node is of a set that another broker leads: relayed there, with its bytes untouched.

The client has attached here (*near*); the same link is attached at the primary of the set (*far*), with what
`relay.RelayRequest` says. When the far link is lost, because the primary is dead or leads no more, the near one stays:
whoever drives this attaches it again where the set is led then, and nobody but the client's clock notices.

1. The client's attach waits until the primary has answered it, and gets that answer, or that refusal.
2. A publisher's messages are kept until the primary has answered them, under numbers; after a loss they are sent again,
   in order and before anything new, and the primary knows which of them it has.
3. A consumer's credit is asked for at the primary, and nothing is held here but for a while what comes when the client
   has taken its credit back: see `consumer_credit`. What the client has not answered, or nobody has confirmed, is
   reclaimed after a loss; what cannot be had again goes to somebody else, marked as a
   redelivery, and what the client says of it then changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.far_link import ClientFarLink, FarConsumer, FarDelivery, FarPublisher
from qpid_ha_broker.amqp.links.incoming import ReceivingLink
from qpid_ha_broker.amqp.links.outgoing import FAILED
from qpid_ha_broker.amqp.links.transacted_links import (
    ACCEPTED,
    HeldMessage,
    RelayedAccepts,
    RelayedPublishes,
)
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.link_state import LinkState, WaitsFor
from qpid_ha_broker.amqp.nodes.management_messages import MANAGEMENT, REQUEST_BYTES, given_up_text, read_request
from qpid_ha_broker.amqp.nodes.terminus import read_filters, read_terminus
from qpid_ha_broker.amqp.relaying.relayed_transactions import FarCoordinator
from qpid_ha_broker.amqp.relaying.relayer import Producer, Relayer, is_elsewhere, unreachable
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.annotations import number_of
from qpid_ha_broker.amqp.wire.conditions import (
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    RESOURCE_LOCKED,
    TRANSACTION_ROLLBACK,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.consumer_wishes import EXCLUSIVE, read_wishes
from qpid_ha_broker.amqp.wire.endpoint_ending import ending_by_peer
from qpid_ha_broker.amqp.wire.engine import (
    Consuming,
    Delivery,
    Disposition,
    Outcome,
    RemoteOutcome,
    Sender,
    Sending,
    Transfer,
)
from qpid_ha_broker.amqp.wire.outcome_annotations import checked_outcome
from qpid_ha_broker.amqp.wire.relay import (
    LATE_REFUSAL,
    OWN_NODES_CAPABILITY,
    RUN_BITS,
    UNSEEN,
    RelayAnswer,
    RelayRequest,
    read_answer,
    told_to_client,
)
from qpid_ha_broker.model.queues.dispatcher import DECLINED_MOST
from qpid_ha_broker.model.transactions.producers import REFUSED_MOST

_GONE: Final = AmqpError(
    TRANSACTION_ROLLBACK, "a message that was accepted in the transaction went to somebody else; it is rolled back"
)
_OUTCOMES: Final = (engine.ACCEPTED, engine.REJECTED, engine.RELEASED, engine.MODIFIED)


class RelayedLink(ClientFarLink[Upstream]):
    """What both kinds have in common: the way from the client's attach to the end of the link at both ends."""

    def begin(self, connection: Connection, link: proton.Link, set_name: str, relayer: Relayer) -> None:
        """The client has attached, and the set is led elsewhere."""
        self.begin_far(connection, link, f"the broker that leads the resource set {set_name} is asked")
        self.set_name = set_name
        self.relayer = relayer
        self.path: tuple[str, ...] = (relayer.name,)
        """The brokers that it comes by."""
        self.needed_capability = OWN_NODES_CAPABILITY if _needs_own_nodes(connection, link) else ""
        self.needs_sessions = connection.session is not None
        self.own_queue = ""
        """What was made for it at the primary, and is to be there when it is attached again."""
        self._has_closed = False
        """The client has closed its link, and not only detached it, or gone."""
        self.has_left = False
        """The client's link has ended. The far one stays while it has something to do for a transaction."""
        connection.relay.links[self] = None

    @property
    def is_in_doubt(self) -> bool:
        """If the client's connection ended now, nobody could tell the client whether what it has sent is queued."""
        return False

    def request(self) -> RelayRequest:
        """What the primary is told of the link."""
        connection = self.connection
        container = connection.engine.connection.remote_container or ""
        part = None if connection.session is None else connection.session.part(self.link.name)
        return RelayRequest(
            self.path, connection.relay.name, container, connection.identity.user, link=self.link.name,
            own_queue=self.own_queue, session=part, address=connection.peer,
        )  # fmt: skip

    def new_coordinator(self) -> FarCoordinator:
        """Of the client's transactions in this set, at its primary."""
        return FarCoordinator(RelayedLink.request(self)._replace(set_name=self.set_name), self.relayer)

    def open_far(self, upstream: Upstream, session: Any, name: str) -> proton.Link:
        """Make and open a link at the primary, as the client has asked for it."""
        far = self._far_as_near(session, name)
        if far.is_sender and far.target.type == proton.Terminus.UNSPECIFIED:
            # An anonymous relay may be asked for without a target, and an answer without one would be a refusal.
            far.target.type = proton.Terminus.TARGET
        far.properties = self.request().properties()
        far.open()
        return far

    def state(self) -> LinkState:
        """Whether the far end is there; what it waits for in turn, the broker there says."""
        state, upstream = LinkEndpoint.state(self), self.upstream
        if upstream is None:
            return state._replace(waits_for=WaitsFor.PRIMARY)
        waits_for = WaitsFor.CREDIT if state.credit <= 0 else WaitsFor.FAR_BROKER
        return state._replace(waits_for=waits_for, relayed_to=upstream.engine.connection.remote_container or "")

    def finish(self) -> LinkEndpoint:
        """Answer the client's attach, as the primary has. Raises AmqpError."""
        far = self.far
        if far is None:
            raise AmqpError(RESOURCE_LOCKED, f"the broker that leads {self.set_name} was lost: try again")
        self._near_as_far(far)
        if self.needs_sessions:
            told = told_to_client(engine.remote_properties_of(far))
            self.link.properties = {**(self.link.properties or {}), **told} if told else self.link.properties
        self._open_near()
        return self

    # --- the far end

    def attached(self, upstream: Upstream, far: proton.Link) -> Consuming | Sending:
        """The primary has answered; who is told what comes."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to do at the primary")

    def detached(self, error: AmqpError) -> None:
        """The primary has refused the link, or ended it: the client is told, unless somebody else leads now."""
        self._left()
        if self.has_left:
            self.relayer.forget(self)
        elif not self.is_open:
            if is_elsewhere(error):
                self.relayer.try_again(self)
            else:
                self.relayer.forget(self)
                self.connection.relay.forget(self)
                self.wait.fail(error)
        elif is_elsewhere(error):
            self._paused(error.description)
        else:
            self.end(error)

    def _paused(self, reason: str) -> None:
        if self.has_left:
            self.relayer.forget(self)
        else:
            self.relayer.attach_again(self)

    # --- the near end

    def look_again(self) -> None:
        """Let the client's attach be looked at again."""
        self.relayer.forget(self, closed=False)
        self.connection.relay.forget(self)
        self.wait.ready()

    def out_of_reach(self) -> None:
        """A client that has something here all the same stays for that."""
        connection = self.connection
        if not connection.is_admin and connection.relay.has_nothing(connection.container, connection.links):
            connection.send_away(unreachable(self.relayer.name, self.set_name))

    def abandon(self) -> None:
        """The client does not wait for the answer any more. If it has not said so, it may come back to what it had: a
        durable subscription, or what its session holds."""
        self.connection.relay.forget(self)
        self.relayer.forget(self, closed=self._is_closed_by_client)

    def _forget(self) -> None:
        self.relayer.forget(self, closed=self._has_closed)

    def _near_ended(self) -> None:
        """The client's link has ended."""
        self.is_open, self.has_left = False, True
        self._has_closed = self._is_closed_by_client
        self.connection.relay.forget(self)

    @property
    def _is_closed_by_client(self) -> bool:
        return bool(self.link.state & proton.Endpoint.REMOTE_CLOSED) and ending_by_peer(self.link).is_farewell


def _needs_own_nodes(connection: Connection, link: proton.Link) -> bool:
    """See `relay.OWN_NODES_CAPABILITY`."""
    terminus = read_terminus(link.remote_source if link.is_sender else link.remote_target)
    address = terminus.address or ""
    if terminus.dynamic or address == MANAGEMENT:
        return True
    is_subscription = terminus.topic or not address or connection.container.nodes.is_exchange(address, terminus)
    return link.is_sender and is_subscription


class RelayedPublisher(FarPublisher[Upstream], RelayedLink):
    """The promise: a message is `accepted` when the primary has said so, and is there once however often it was sent.

    Numbers ascend by link. Those that the primary has not answered are the keys of `_kept`, in order; what the primary
    refuses, it refuses before it looks at anything of that run behind it, which is then numbered anew. (What another
    set refuses is said late, and what is behind that may have been taken.) So where several runs are to be sent
    again, to a primary that may refuse what another one took, the next one waits for the answers to the one before.
    """

    sends_settled = True
    """Whether a message that the client has settled may go on settled."""

    def __init__(self, connection: Connection, link: proton.Link, set_name: str, relayer: Relayer) -> None:
        self.begin(connection, link, set_name, relayer)
        self._producer, self._run, self._sent = relayer.take_producer()
        self._kept: dict[int, tuple[Delivery | None, bytes]] = {}
        """Delivery None: the client has settled it."""
        self._numbers: dict[Delivery, int] = {}
        """Of what was sent on the far link that there is now."""
        self._publishes = RelayedPublishes(self)
        self._run_again: int | None = None
        """Which run is sent again, while those behind it wait for its answers; None: all is sent."""
        self._most_credit = 0
        """That the primary has given at once."""
        self._kept_bytes = 0
        self._refused: tuple[tuple[bytes, int], ...] = ()
        """Producers and numbers of the client's, of the newest that were refused: for a primary that did not do so."""
        connection.container.relayed.links.add(self)
        ReceivingLink.__init__(self, connection, link, 0)

    @property
    def is_in_doubt(self) -> bool:
        return bool(self._kept) and self.connection.session is None

    def request(self) -> RelayRequest:
        refused: dict[bytes, set[int]] = {}
        for name, number in self._refused:
            refused.setdefault(name, set()).add(number)
        numbers = tuple([(name, tuple(sorted(found))) for name, found in refused.items()])
        return super().request()._replace(producer=self._producer, refused=numbers)

    def state(self) -> LinkState:
        """As of both kinds; a publisher waits for somebody only while there is something to be answered."""
        state = super().state()
        unsettled, has_far = len(self._kept), self.upstream is not None
        if has_far and not unsettled and state.credit > 0:
            state = state._replace(waits_for=WaitsFor.NOTHING)
        elif has_far and unsettled:
            state = state._replace(waits_for=WaitsFor.FAR_BROKER)
        elif self._is_held_back:
            state = state._replace(waits_for=WaitsFor.RATE)
        return state._replace(unsettled=unsettled)

    # --- from the client

    def transfers(self, batch: list[Transfer]) -> None:
        """Send messages on together, where there is nothing special about any of them."""
        sender, most, size = self._sender, self.max_message_bytes, 0
        is_plain = self._run_again is None and not self._parts and engine.credit(self.link) >= 0
        for _, payload, settled, state in batch:
            size += len(payload)
            if settled or state or len(payload) > most:
                is_plain = False
        if sender is None or not is_plain:
            super().transfers(batch)
            return
        if self.upstream is not None and self.upstream.has_answers:
            self.upstream.answer_first()
        kept, numbers, number = self._kept, self._numbers, (self._run << RUN_BITS | self._sent) + 1
        self._sent += len(batch)
        deliveries = sender.send_numbered([payload for _, payload, _, _ in batch], number)
        for far, (near, payload, _, _) in zip(deliveries, batch, strict=True):
            kept[number] = near, payload
            numbers[far] = number
            number += 1
        self._hold(max([len(payload) for _, payload, _, _ in batch]), size)
        self._touch_far()

    def publish(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        if state == engine.TRANSACTIONAL:
            self._publishes.publish(delivery, payload, settled)
            return
        if self.upstream is not None and self.upstream.has_answers:
            self.upstream.answer_first()
        if settled:
            engine.forget(delivery)
            # What is refused and sent again must not be overtaken.
            if self.sends_settled and self._sender is not None and not self._kept:
                self._sender.send_settled(payload)
                self._touch_far()
                return
        self._keep(None if settled else delivery, payload)

    def _keep(self, delivery: Delivery | None, payload: bytes) -> None:
        """Until the primary has answered it; sent now, unless there is nobody, or a run before it is sent again."""
        self._sent += 1
        number = self._run << RUN_BITS | self._sent
        self._kept[number] = delivery, payload
        if not self._hold(len(payload), len(payload)):
            return
        if self._sender is not None and self._run_again is None:
            self._send(self._sender, number)
            self._touch_far()

    def _hold(self, largest: int, size: int) -> bool:
        """Messages of so many bytes, and of so many at most, are kept. False: too much is, and the link has ended."""
        relayed = self.connection.container.relayed
        relayed.hold(size)
        self._kept_bytes += size
        self._largest = largest
        if relayed.is_exceeded and self._kept_bytes > max(relayed.link_bytes, size):
            text = "is under way through this broker than it has memory for"
            self.end(AmqpError(RESOURCE_LIMIT, f"more {text}, {self._kept_bytes} bytes of it on this link"))
        return not self._has_ended

    def _send(self, sender: Sender, number: int) -> None:
        self._numbers[sender.send(self._kept[number][1], number)[0]] = number

    def _drop(self, number: int) -> Delivery | None:
        delivery, payload = self._kept.pop(number)
        self._dropped(1, len(payload))
        return delivery

    def _dropped(self, count: int, size: int) -> None:
        """So many messages, of so many bytes together, are not kept any more."""
        self.connection.container.relayed.let_go(size)
        self._kept_bytes -= size

    def _most_credit_of(self, given: int, most: int) -> int:
        # What is refused has its credit given back before it is sent again: until then it takes some of it here.
        self._most_credit = max(self._most_credit, given)
        return min(given - self._publishes.unsent, min(self._most_credit, most) - len(self._kept))

    # --- from the primary

    def attached(self, upstream: Upstream, far: proton.Link) -> RelayedPublisher:
        """Send what it has not answered."""
        self._arrived(upstream, far)
        if self.link.remote_target.dynamic:
            self.own_queue = far.remote_target.address or ""
        self._send_again()
        self._publishes.attached()
        self._go_on()
        return self

    def _send_again(self) -> None:
        """The next run."""
        numbers = list(self._kept)
        runs = [number >> RUN_BITS for number in numbers]
        self._run_again = runs[0] if numbers and runs[0] != runs[-1] else None
        for number, run in zip(numbers, runs, strict=True):
            if self._sender is not None and run == runs[0]:
                self._send(self._sender, number)
        self._touch_far()

    def _was_answered(self) -> None:
        if self._run_again is not None and next(iter(self._kept), -1) >> RUN_BITS != self._run_again:
            self._send_again()  # what was left of the run before
        super()._was_answered()

    def flow(self) -> None:
        """The primary changed its credit."""
        self.replenish()

    def dispositions(self, batch: list[Disposition]) -> None:
        """The primary has answered messages: mostly it accepts them."""
        if not self._publishes.is_idle or {state for _, state, _ in batch} != {engine.ACCEPTED}:
            super().dispositions(batch)
            return
        kept, numbers, accepted, count, size = self._kept, self._numbers, [], len(self._kept), 0
        for delivery, _, _ in batch:
            number = numbers.pop(delivery, None)
            if number is None:  # numbered anew since
                continue
            near, payload = kept.pop(number)
            size += len(payload)
            if near is not None:
                accepted.append(near)
        engine.forget_all([delivery for delivery, _, _ in batch])
        engine.accept_all(accepted)
        self._dropped(count - len(kept), size)
        self._was_answered()

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """The primary has answered a message."""
        if not settled and state not in _OUTCOMES:
            return
        number = self._numbers.pop(delivery, None)
        if number is None:  # in a transaction, or numbered anew since
            if not self._publishes.answered(delivery, state):
                engine.forget(delivery)
            return
        if state == engine.ACCEPTED:
            engine.forget(delivery)
            near = self._drop(number)
            if near is not None:
                engine.settle(near, engine.ACCEPTED)
        elif state == engine.REJECTED:
            outcome = RemoteOutcome(delivery)
            refusal, is_late = outcome.read(), outcome.says(LATE_REFUSAL)
            engine.forget(delivery)
            container = self.connection.container
            if number in self._kept:
                named = number_of(container.sections, self._kept[number][1])
                self._refused = (*self._refused, *([] if named is None else [named]))[-REFUSED_MOST:]
            near = self._drop(number)
            if near is not None:
                refusal.settle(near)
            if not is_late:
                self._number_anew(number)
        else:  # released: one before it was refused, as is said before or after this, and it was not looked at
            engine.forget(delivery)
        self._was_answered()

    @property
    def far_sender(self) -> Sender | None:
        """On the far link; None: there is none now."""
        return self._sender

    def transacted(self) -> None:
        """A message that came in a transaction is answered."""
        if self.is_open:
            self.connection.touch()
            self.replenish()

    def _number_anew(self, refused: int) -> None:
        """What was sent behind `refused` was not looked at: send it again, under numbers that were never used."""
        self._run += 1
        self._run_again = None
        again = [number for number in self._kept if number > refused]
        self._numbers = {delivery: number for delivery, number in self._numbers.items() if number < refused}
        for number in again:
            kept = self._kept.pop(number)
            self._sent += 1
            number = self._run << RUN_BITS | self._sent
            self._kept[number] = kept
            if self._sender is not None:
                self._send(self._sender, number)
        self._touch_far()

    def _left(self) -> None:
        super()._left()
        self._run_again = None
        self._numbers.clear()
        self._publishes.left()

    # --- the end

    def closed(self, *, lost: bool) -> None:
        """The client's link is gone. What is not answered may be there or not, as without a proxy."""
        ReceivingLink.closed(self, lost=lost)
        self._near_ended()
        self.connection.container.relayed.forget(self)
        kept = bool(self._kept)
        for number in list(self._kept):
            self._drop(number)
        self._numbers.clear()
        self._publishes.closed(partial(self._leave, kept=kept))

    def _leave(self, *, kept: bool) -> None:
        """Nothing more is to be heard. `kept`: of some messages it was not, so the name is not used again."""
        self._forget()
        if not kept:
            self.relayer.give_producer_back(Producer(self._producer, self._run, self._sent))

    def abandon(self) -> None:
        super().abandon()
        self.relayer.give_producer_back(Producer(self._producer, self._run, self._sent))

    def look_again(self) -> None:
        self.relayer.give_producer_back(Producer(self._producer, self._run, self._sent))
        super().look_again()


class RelayedRequests(RelayedPublisher):
    """To `$management`. The promise: what wants a reply is not sent for a client that has hung up: the primary sees
    that this broker is there, and would carry it out."""

    is_paced = False
    _largest = REQUEST_BYTES

    def transfers(self, batch: list[Transfer]) -> None:
        """Send requests on."""
        if self.connection.engine.input.has_hung_up():
            FarPublisher.transfers(self, batch)  # one by one
        else:
            super().transfers(batch)

    def publish(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        if _is_given_up(self.connection, payload):
            self._discard(delivery, settled, state)
        else:
            super().publish(delivery, payload, settled, state)

    def _send(self, sender: Sender, number: int) -> None:
        if not _is_given_up(self.connection, self._kept[number][1]):
            super()._send(sender, number)
        elif (near := self._drop(number)) is not None:
            engine.settle(near, engine.RELEASED)


def _is_given_up(connection: Connection, request_bytes: bytes) -> bool:
    """Whether the client wants a reply and has hung up, which is noted in the log."""
    if not connection.engine.input.has_hung_up():
        return False
    request = read_request(request_bytes)
    if request is None or request.reply_to is None:
        return False
    connection.log.note("warning", given_up_text(request, connection.identity.text))
    return True


def relayed_kind(link: proton.Link) -> Callable[[Connection, proton.Link, str, Relayer], RelayedLink]:
    """What a client's link is that is relayed."""
    if link.is_sender:
        return RelayedConsumer
    return RelayedRequests if link.remote_target.address == MANAGEMENT else RelayedPublisher


class DeclinedMessages:
    """What a client has found undeliverable on its link, so that no primary may send it there. The newest are known, as
    many as a primary takes: with more that are there it ends the link."""

    def __init__(self) -> None:
        self.since = 0
        """The generation in which ids that are known here, those of what the client holds too, mean its messages."""
        self._ids: dict[int, None] = {}
        """The newest is the last."""

    def note(self, number: int | None) -> None:
        """The client has declined that one. None or 0: it has no id."""
        if number:
            self._ids[number] = None
        if len(self._ids) > DECLINED_MOST:
            del self._ids[next(iter(self._ids))]

    def attached(self, answer: RelayAnswer) -> None:
        """A primary has said which of them are there."""
        self.since = answer.generation
        self._ids = dict.fromkeys(answer.declined)

    def besides(self, held: Iterable[int]) -> tuple[int, ...]:
        """The ids, ascending, but for those of what was declined and is still to be reclaimed."""
        return tuple(sorted(self._ids.keys() - held))


class RelayedConsumer(FarConsumer[Upstream], RelayedLink):
    """The promise: what the client accepts, the primary hears, once, from it or from whoever leads after it.

    Invariant: a message is in `_by_near` until the client has answered it; and in `_held`, by its id, while no far link
    knows it and the next one may.
    """

    def __init__(self, connection: Connection, link: proton.Link, set_name: str, relayer: Relayer) -> None:
        self.begin(connection, link, set_name, relayer)
        self.begin_credit(Sender(link, connection.engine.formats))
        self._held: dict[int, FarDelivery] = {}
        self._declined = DeclinedMessages()
        self._reclaimed: dict[int, FarDelivery] = {}
        """Those of `_held` that the primary has granted: they are still to come on the far link."""
        self._is_held = False
        """What goes out is held for the client's session: it is for the session's next connection, whatever ends."""
        source = read_terminus(link.remote_source)
        has_own_queue = source.dynamic or connection.container.nodes.is_exchange(source.address or "", source)
        self._is_browsing = source.browse and not has_own_queue
        self._shows_ids = read_filters(link.remote_source).after is not None
        is_settled = link.remote_snd_settle_mode == proton.Link.SND_SETTLED
        self._is_presettled = is_settled and not (self._is_browsing or self.needs_sessions)
        """The client hears of nothing twice; here each message is accepted as soon as it goes out, and not before. (The
        link of a session is settled at the primary, too, or messages would be held for the session.)"""
        self._accepts = RelayedAccepts(self)
        read_wishes(engine.remote_properties_of(link), browses=self._is_browsing)  # raises for what makes no sense

    def request(self) -> RelayRequest:
        wishes = read_wishes(engine.remote_properties_of(self.link), browses=self._is_browsing)
        held, declined, generation = tuple(sorted(self._held)), self._declined.besides(self._held), self._declined.since
        return super().request()._replace(generation=generation, held=held, declined=declined, wishes=wishes)

    def _near_as_far(self, far: proton.Link) -> None:
        """Raises AmqpError where the primary is of a release that would let others consume, too."""
        super()._near_as_far(far)
        asked, given = (read_wishes(engine.remote_properties_of(link)) for link in (self.link, far))
        if asked.exclusive and not (given.exclusive or self._is_browsing):
            raise AmqpError(NOT_IMPLEMENTED, f"the broker that leads {self.set_name} knows no {EXCLUSIVE} consumers")
        if given.properties():
            self.link.properties = given.properties()

    def open_far(self, upstream: Upstream, session: Any, name: str) -> proton.Link:
        far = super().open_far(upstream, session, name)
        if self._is_presettled:
            far.snd_settle_mode = proton.Link.SND_UNSETTLED
        return far

    def _open_near(self) -> None:
        if self._is_presettled:
            self.link.snd_settle_mode = proton.Link.SND_SETTLED
        super()._open_near()

    @property
    def _still_to_come(self) -> int:
        return len(self._reclaimed)

    @property
    def _may_pass_on(self) -> bool:
        return self.upstream is None or not self.upstream.silence.is_too_long

    def _return_unseen(self, delivery: Delivery) -> None:
        engine.return_with(delivery, UNSEEN)

    def state(self) -> LinkState:
        return super().state()._replace(unsettled=len(self._by_near))

    # --- from the primary

    def attached(self, upstream: Upstream, far: proton.Link) -> RelayedConsumer:
        """Know which of the client's messages are still its own, and go on. Raises AmqpError."""
        answer = read_answer(engine.remote_properties_of(far))
        self._arrived(upstream, far)
        self._is_held = answer.session_held is not None
        self._credit.keeps_held = self._is_browsing or self._is_held
        if self.needed_capability:
            self.own_queue = answer.own_queue
        self._declined.attached(answer)
        granted = set(answer.held)
        for number, held in list(self._held.items()):
            if number in granted:
                self._reclaimed[number] = held
            else:
                del self._held[number]
                self._give_up(held)
        if self._reclaimed:
            engine.give_credit(far, len(self._reclaimed))
            self._touch_far()
        self._go_on()
        return self

    def _take_all(self, batch: list[Transfer]) -> None:
        """Together, where there is nothing special about any of them."""
        sender, largest, total = self._sender, 0, 0
        is_plain = self.is_open and not self._is_presettled and not self._reclaimed
        if not is_plain or self._shows_ids or True in {settled for _, _, settled, _ in batch}:
            for delivery, payload, settled, _ in batch:
                self._take(delivery, payload, settled)
            return
        by_near, by_far = self._by_near, self._by_far
        sent = sender.send_all([payload for _, payload, _, _ in batch])
        for (delivery, payload, _, _), (near, tag) in zip(batch, sent, strict=True):
            size = len(payload)
            by_near[near] = by_far[delivery] = FarDelivery(near, tag, delivery, size)
            total += size
            if size > largest:
                largest = size
        self._count(len(batch), total)
        self._newest.note(len(batch))
        self._largest = largest

    def _take(self, delivery: Delivery, payload: bytes, settled: bool) -> None:
        """A message for the client; or one that it has, as was reclaimed."""
        number = engine.number_if_any(delivery) or 0
        reclaimed = self._reclaimed.pop(number, None)
        if reclaimed is not None:
            del self._held[number]
            reclaimed.far = delivery
            self._by_far[delivery] = reclaimed
            if reclaimed.outcome is not None:
                reclaimed.outcome.put(delivery)
                self._touch_far()
            elif reclaimed.accepted is not None:
                self._accepts.attached()
        elif settled:
            engine.forget(delivery)
            if self.is_open:
                self._sender.send_settled(payload, number if self._shows_ids else None)
        elif self.has_left and self._is_held:
            pass  # it stays the session's
        elif not self.is_open:
            self._return_unseen(delivery)
            self._touch_far()
        elif self._is_presettled:
            self._sender.send_settled(payload, number if self._shows_ids else None)
            held = self._by_far[delivery] = FarDelivery(None, None, delivery, len(payload))
            held.outcome = ACCEPTED
            ACCEPTED.put(delivery)
            self._largest = held.size
            self._told_far()
        else:
            near, tag = self._sender.send(payload, number if self._shows_ids else None)
            size = len(payload)
            self._by_near[near] = self._by_far[delivery] = FarDelivery(near, tag, delivery, size)
            self._count(1, size)
            self._newest.note(1)
            self._largest = size

    def settlements(self, batch: list[Disposition]) -> None:
        """The primary has confirmed what the client said; or has ended the link, and settles what still comes on it."""
        by_far = self._by_far
        if self._backlog:
            self._forget_in_backlog(batch)
        for delivery, state, _ in batch:
            held = by_far.pop(delivery, None)
            if held is None:
                continue
            if state and held.accepted is not None:
                held.accepted = None
                self.committed(held)
            held.far = None
            if not state:
                self._keep(held, engine.number_if_any(delivery) or 0)
            elif held.near is not None:
                self._give_up(held)
        engine.forget_all([delivery for delivery, _, _ in batch])

    def _keep(self, held: FarDelivery, number: int) -> None:
        """The far link does not know it any more: it is to be reclaimed on the next one, under that id."""
        held.number = number
        older = self._held.get(number)
        self._held[number] = held
        if older is not None:  # the primary has carried out what the client said of that, or it had not come again
            self._give_up(older)

    def _give_up(self, held: FarDelivery) -> None:
        """The primary has no more to do with it: it is confirmed, or cannot be had again."""
        if self._held.get(held.number) is held:  # the client may have had it back by now: then it is held anew
            del self._held[held.number]
        if held.accepted is not None:
            held.accepted.transaction.fail(_GONE)
        if held.near is not None and held.outcome is not None:
            held.outcome.without_annotations().settle(held.near)
            self._sender.free(held.tag)
            held.near = None
            self.connection.touch()

    def _left(self) -> None:
        super()._left()
        under_way = [(held, engine.number_if_any(far) or 0) for far, held in self._by_far.items()]
        self._by_far.clear()
        for held, _ in under_way:
            held.far = None
        for held, number in under_way:
            self._keep(held, number)
        for held in [] if self._is_held else list(self._held.values()):
            if held.outcome is not None and held.outcome.is_return:  # whoever leads then has it in the queue,
                self._give_up(held)  # and somebody else may have got it before that was confirmed
        self._accepts.left(list(self._held.values()))
        self._reclaimed.clear()

    # --- from the client

    def dispositions(self, batch: list[Disposition]) -> None:
        """The client has answered messages: mostly it accepts and settles them."""
        if {state for _, state, _ in batch} != {engine.ACCEPTED} or False in {settled for _, _, settled in batch}:
            super().dispositions(batch)
            return
        by_near, size = self._by_near, 0
        settled_now, tags, far = [], [], []
        for delivery, _, _ in batch:
            held = by_near.pop(delivery, None)
            if held is None:
                continue  # answered before
            settled_now.append(delivery)
            tags.append(held.tag)
            size += held.size
            held.near, held.outcome, held.accepted = None, ACCEPTED, None
            if held.far is not None:
                far.append(held.far)
        engine.forget_all(settled_now)
        engine.say_accepted(far)
        self._sender.free_all(tags)
        self._count(-len(tags), -size)
        self._told_far()

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """The client answered, or settled, or both."""
        held = self._by_near.get(delivery)
        if held is None:
            return  # answered before
        at_once: Outcome | None = None
        if state == engine.TRANSACTIONAL:
            at_once = ACCEPTED if self._is_browsing else self._accepts.answered(held, delivery, settled)
            if at_once is None:
                if held.accepted is not None and held.far is None and self._held.get(held.number) is not held:
                    held.accepted.transaction.fail(_GONE)  # it could not be had again, before the client accepted it
                return
        if not (settled or state in _OUTCOMES or at_once):
            return  # `received`: it is still on its way
        del self._by_near[delivery]
        self._count(-1, -held.size)
        held.accepted = None
        if at_once is not None:
            held.outcome = at_once
        elif state == engine.ACCEPTED:
            held.outcome = ACCEPTED
        elif state in _OUTCOMES:
            held.outcome = RemoteOutcome(delivery).read()
        else:  # settled without a word: the primary takes that for a failed delivery
            held.outcome = FAILED
        if held.outcome.undeliverable and not self._is_browsing:
            self._declined.note(held.number if held.far is None else engine.number_if_any(held.far))
        held.outcome, problem = checked_outcome(held.outcome)  # what a primary reads as this broker's word is not in it
        if settled:
            engine.forget(delivery)
            self._sender.free(held.tag)
            held.near = None
        if held.far is not None:
            held.outcome.put(held.far)
            self._has_returned = self._has_returned or held.outcome.is_return
            self._told_far()
        elif held.near is not None and self._held.get(held.number) is not held:  # nobody has it for this link any more
            held.outcome.without_annotations().settle(held.near)
            self._sender.free(held.tag)
            self.connection.touch()
        if problem is not None:
            self.end(problem)

    def _told_far(self) -> None:
        """The primary is told of answers, before any message that comes behind them."""
        if self.upstream is not None:
            self.upstream.has_answers = True
            self.upstream.touch()

    # --- in transactions: see `transacted_links.ConsumingLink`

    def client_settled(self, held: HeldMessage) -> None:
        near, held.near = held.near, None
        if near is not None and isinstance(held, FarDelivery):
            del self._by_near[near]
            self._count(-1, -held.size)
            engine.forget(near)
            self._sender.free(held.tag)
            self.connection.touch()

    def primary_settled(self, held: HeldMessage) -> None:
        far, held.far = held.far, None
        self._by_far.pop(far, None)
        if isinstance(held, FarDelivery) and self._held.get(held.number) is held:
            del self._held[held.number]
        self._touch_far()

    def committed(self, held: HeldMessage) -> None:
        if not isinstance(held, FarDelivery) or (held.far is None and self._held.get(held.number) is not held):
            return
        held.outcome = ACCEPTED
        if held.near is not None and self._by_near.pop(held.near, None) is not None:
            self._count(-1, -held.size)
        if held.far is None:
            self._give_up(held)

    # --- the end

    def closed(self, *, lost: bool) -> None:
        """What the client has not answered goes back, and so does all that is still on its way; `lost`: as failed."""
        self.stop()
        self._near_ended()
        if lost and self.far is not None and (left := engine.credit(self.far)) > 0:
            # Before what goes back: else that could come here again, to nobody. A drain would still let it come.
            engine.give_credit(self.far, -left)
        if self._is_held:
            self._empty_backlog()  # it stays the session's
        else:
            self._give_backlog_back()
            if lost:
                self._return_sent()
        for held in self._by_near.values():
            self._count(-1, -held.size)
            held.near = None
        self._forget_near()
        self._accepts.closed(self._forget)
