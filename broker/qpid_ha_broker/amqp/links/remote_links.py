"""A client's link to a node of a broker outside of the cluster: attached there as any client would, by AMQP 1.0 alone.

The client has attached here (*near*); the link is attached there (*far*). Nobody there remembers a link that was lost,
so nothing is sent twice:

1. The client's attach waits until the other broker has answered it, and gets that answer, or that refusal.
2. A publisher has the credit of the other broker, and hears what that says of each message. What is not answered when
   the far link is lost may be there or not: it is `modified` with delivery-failed. What comes while there is none waits
   for one, and is `released` after a while.
3. A consumer's credit is asked for there, and nothing is held here but for a while what comes when the client has taken
   its credit back: see `consumer_credit`. Its outcomes are passed on, and settled when the other broker has settled
   them. What it had when the far link was lost is given to somebody again by the other broker, and what it says of that
   changes nothing.

The near link stays meanwhile: whoever drives this attaches it again.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple, Protocol

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.far_link import ClientFarLink, FarConsumer, FarDelivery, FarPublisher
from qpid_ha_broker.amqp.links.incoming import ReceivingLink
from qpid_ha_broker.amqp.links.outgoing import FAILED
from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection
from qpid_ha_broker.amqp.links.transacted_links import RELEASED
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.terminus import SHARED, read_terminus
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import (
    CONNECTION_FORCED,
    DETACH_FORCED,
    LINK_REDIRECT,
    MESSAGE_SIZE,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_LOCKED,
    TRANSFER_LIMIT,
    AmqpError,
)
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
from qpid_ha_broker.amqp.wire.remote_path import Step, extend, properties_of, read_path
from qpid_ha_broker.amqp.wire.sections import without_delivery_annotations

QUIET_S: Final = 0.3
"""A broker that cannot say that it has no more messages has none when it has sent none for so long."""
_OUTCOMES: Final = (engine.ACCEPTED, engine.REJECTED, engine.RELEASED, engine.MODIFIED)


class RemoteTarget(NamedTuple):
    """A node of another broker, and what it is called here."""

    name: str
    """Its address here."""
    node: str
    """Its address there."""
    where: str
    """The URL of the brokers that have it, for readers."""

    def blamed(self, error: AmqpError) -> AmqpError:
        """An error of theirs as clients here get it."""
        text = f"{self.name} is {self.node} at {self.where}, which says: {error.description}"
        return AmqpError(error.name, text)


class RemoteDriver(Protocol):
    """Who drives far ends at brokers outside of the cluster: of clients' links, of bridges, of probes."""

    @property
    def broker(self) -> str:
        """By which this broker, or its cluster, is told from all others."""

    name: str
    """Of this broker."""

    def attach_again(self, link: Any, reason: str) -> None:
        """Its far end is gone, or was not to be had: attach it, a little later."""

    def redirect(self, link: Any, error: AmqpError) -> bool:
        """Attach it where the other broker says; whether it says so."""

    def gone(self, link: Any, error: AmqpError) -> None:
        """The other broker has refused it, or ended it for good."""

    def forget(self, link: Any, *, closed: bool = True) -> None:
        """It has ended: its far end, too, if there is one. Not `closed`: what the other broker keeps for it stays."""

    def found(self, link: Any) -> None:
        """The other broker has such a node."""

    def warn(self, link: Any, text: str) -> None:
        """Something for operators, who see the last one beside the node."""


class RemoteLink(ClientFarLink[RemoteConnection]):
    """What both kinds have in common: the way from the client's attach to the end of the link at both ends."""

    far_container = ""
    far_name = ""

    def begin(self, connection: Connection, link: proton.Link, target: RemoteTarget, driver: RemoteDriver) -> None:
        """The client has attached. Raises AmqpError for what cannot be passed on."""
        self.begin_far(connection, link, f"the other broker at {target.where} is asked for {target.node}")
        self.target = target
        self.driver = driver
        path = read_path(engine.remote_properties_of(link))
        self._path = extend(path, Step(driver.broker, driver.name, target.name))
        self.passed = 0
        """Messages, so far."""

    def open_far(self, connection: RemoteConnection, session: Any, name: str) -> proton.Link:
        """Make and open a link there, as the client has asked for it."""
        far = self._far_as_near(session, name)
        (far.target if far.is_sender else far.source).address = self.target.node
        if connection.is_limited:
            far.rcv_settle_mode = proton.Link.RCV_FIRST
        far.properties = properties_of(self._path)
        far.open()
        return far

    def finish(self) -> LinkEndpoint:
        """Answer the client's attach, as the other broker has. Raises AmqpError."""
        near, far = self.link, self.far
        if far is None:
            raise AmqpError(RESOURCE_LOCKED, f"the broker at {self.target.where} was lost: try again")
        self._near_as_far(far)
        (near.target if near.is_receiver else near.source).address = self.target.name
        self._open_near()
        return self

    # --- the far end

    def attached(self, connection: RemoteConnection, far: proton.Link) -> Consuming | Sending:
        """The other broker has answered; who is told what comes."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to do there")

    def detached(self, error: AmqpError) -> None:
        """The other broker has refused the link, or ended it: the client is told, unless it is worth another try."""
        self._left()
        if error.name == LINK_REDIRECT and self.driver.redirect(self, error):
            return
        if error.name in (CONNECTION_FORCED, DETACH_FORCED):
            self._paused(error.description)
        else:
            self.refuse(error)

    def refuse(self, error: AmqpError) -> None:
        """It cannot be had there."""
        self.driver.gone(self, error)
        blamed = self.target.blamed(error)
        if self.is_open:
            self.end(blamed)
        else:
            self.driver.forget(self)
            self.connection.relay.pending.pop(self.link._impl, None)
            self.wait.fail(blamed)

    def _paused(self, reason: str) -> None:
        self.driver.attach_again(self, reason)

    def note(self, reason: str) -> None:
        """Why it is not attached: a client that waits for that is told so."""
        target = self.target
        self.wait.reason = f"{target.name} is {target.node} at {target.where}, and it is not reached ({reason})"

    def expire(self, now_s: float) -> None:
        """Give up what has waited for too long for a far end, by the container's clock."""

    # --- the near end

    def abandon(self) -> None:
        """The client does not wait for the answer any more."""
        self.connection.relay.pending.pop(self.link._impl, None)
        self.driver.forget(self)

    def _refuse_transaction(self, delivery: Delivery) -> None:
        text = f"{self.target.name} is a node of another broker, and a transaction does not reach there: do without"
        error = AmqpError(NOT_IMPLEMENTED, text)
        self.connection.transactions.refused(delivery, error)
        self.end(error)


class _Unsent(NamedTuple):
    """A message that waits for a far link with credit."""

    near: Delivery | None
    """None: the client has settled it."""
    payload: bytes
    since_s: float


class RemotePublisher(FarPublisher[RemoteConnection], RemoteLink):
    """The promise: a message is `accepted` when the other broker has said so, and is sent once at most.

    Invariant: what waits here is no more than the credit that the client had.
    """

    def __init__(self, connection: Connection, link: proton.Link, target: RemoteTarget, driver: RemoteDriver) -> None:
        self.begin(connection, link, target, driver)
        self._unanswered: dict[Delivery, tuple[Delivery, Any, int]] = {}
        """By what was sent there: what came from the client, the tag, and the size."""
        self._unsent: deque[_Unsent] = deque()
        connection.container.relayed.links.add(self)
        ReceivingLink.__init__(self, connection, link, 0)

    # --- from the client

    def publish(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        if state == engine.TRANSACTIONAL:
            self._refuse_transaction(delivery)
            return
        self._largest = len(payload)
        if settled:
            engine.forget(delivery)
        near = None if settled else delivery
        if self._sender is not None and not self._unsent and self._sender.credit > 0:
            self._send(self._sender, near, payload)
            self._touch_far()
        else:
            self._unsent.append(_Unsent(near, payload, self.connection.container.clock()))
            self.connection.container.relayed.hold(len(payload))

    def _send(self, sender: Sender, near: Delivery | None, payload: bytes) -> None:
        self.passed += 1
        payload = without_delivery_annotations(payload)
        if near is None:
            sender.send_settled(payload)
            return
        far, tag = sender.send(payload)
        self._unanswered[far] = near, tag, len(payload)
        self.connection.container.relayed.hold(len(payload))

    def _send_unsent(self) -> None:
        sender = self._sender
        while sender is not None and self._unsent and sender.credit > 0:
            near, payload, _ = self._take_unsent()
            self._send(sender, near, payload)
        self._touch_far()

    def _take_unsent(self) -> _Unsent:
        unsent = self._unsent.popleft()
        self.connection.container.relayed.let_go(len(unsent.payload))
        return unsent

    def _most_credit_of(self, given: int, most: int) -> int:
        given = min(given, self.connection.container.settings.publisher_credit)
        return min(given, most - len(self._unanswered)) - len(self._unsent)

    # --- from the other broker

    def attached(self, connection: RemoteConnection, far: proton.Link) -> RemotePublisher:
        """Go on."""
        self._arrived(connection, far)
        if self._unsent:
            self._send_unsent()
        self._go_on()
        return self

    def flow(self) -> None:
        """The other broker changed its credit."""
        if self._unsent:
            self._send_unsent()
        self.replenish()

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """The other broker has answered a message; of what it has answered before, or never got, nothing is heard."""
        if not settled and state not in _OUTCOMES:
            return
        answered = self._unanswered.pop(delivery, None)
        # Settled without an outcome: nobody knows, and it must not count as accepted.
        outcome = RemoteOutcome(delivery).read() if state in _OUTCOMES else FAILED
        engine.forget(delivery)
        if answered is None:
            return
        near, tag, size = answered
        if self._sender is not None:
            self._sender.free(tag)
        self.connection.container.relayed.let_go(size)
        outcome.settle(near)
        self._was_answered()

    def _left(self) -> None:
        super()._left()
        unanswered, self._unanswered = self._unanswered, {}
        for near, _, size in unanswered.values():
            self.connection.container.relayed.let_go(size)
            if self.is_open:
                FAILED.settle(near)
        if unanswered and self.is_open:
            self.connection.touch()

    def expire(self, now_s: float) -> None:
        limit_s = self.connection.container.settings.attach_timeout_s
        while self._unsent and now_s - self._unsent[0].since_s >= limit_s:
            near = self._take_unsent().near
            if near is not None:
                RELEASED.settle(near)
            else:
                text = f"a message sent at most once to {self.target.name} found no broker there"
                self.connection.log.note("warning", text)
            self.connection.touch()

    # --- the end

    def closed(self, *, lost: bool) -> None:
        """The client's link is gone. What is not answered may be there or not, as without a broker in between."""
        ReceivingLink.closed(self, lost=lost)
        self.is_open = False
        self.connection.container.relayed.forget(self)
        while self._unsent:
            self._take_unsent()
        for _, _, size in self._unanswered.values():
            self.connection.container.relayed.let_go(size)
        self._unanswered.clear()
        self.driver.forget(self)


class RemoteConsumer(FarConsumer[RemoteConnection], RemoteLink):
    """The promise: no more is taken than the client has credit for, and its answer is settled when theirs is.

    Invariant: a message is in `_by_near` until it is settled with the client.
    """

    def __init__(self, connection: Connection, link: proton.Link, target: RemoteTarget, driver: RemoteDriver) -> None:
        self.begin(connection, link, target, driver)
        source = read_terminus(link.remote_source)
        if source.durable or SHARED in source.capabilities:
            text = f"{target.name} is a node of another broker: subscriptions that outlive their link are made there"
            raise AmqpError(NOT_IMPLEMENTED, f"{text}, for a queue of which there can be a name here")
        self.begin_credit(Sender(link, connection.engine.formats))
        self._is_browsing = source.browse
        self._quiet_since_s = 0.0
        """When the last message came, or the drain began, by the container's clock."""
        self._withdrawn = 0
        """Credit that the other broker may have used before it heard that it is taken back."""
        self._is_confirmed = True
        """The other broker settles an answer that is not settled: some know of no other than those that are."""

    # --- credit

    def _drain(self, far: proton.Link, more: int) -> None:
        if self.upstream is not None and not self.upstream.is_limited:
            engine.drain(far, more)
        elif more:
            engine.give_credit(far, more)
        self._quiet_since_s = self.connection.container.clock()

    def expire(self, now_s: float) -> None:
        """Where nobody says that there is no more, some silence has to do; what still comes then is held."""
        far, upstream, credit = self.far, self.upstream, self._credit
        if far is None or upstream is None or not upstream.is_limited or not credit.is_draining:
            return
        if credit.client_drains and now_s - self._quiet_since_s < QUIET_S:
            return
        self._withdrawn = engine.credit(far)
        self._quiet_since_s = now_s
        engine.give_credit(far, -self._withdrawn)
        self._carry_out(far, credit.far_drained(given_up=1))
        self._ask()
        self._touch_far()

    @property
    def _may_return(self) -> bool:
        if self.upstream is None or not self.upstream.is_limited:
            return True
        return self.connection.container.clock() - self._quiet_since_s >= QUIET_S

    def _may_come(self, far: proton.Link) -> bool:
        """Whether there was credit for what has come, or there had been when it was sent."""
        excess = -engine.credit(far)
        if excess > 0 and self._withdrawn >= excess:
            self._withdrawn -= excess
            engine.give_credit(far, excess)  # Proton would write credit below 0 as very much
            return True
        return excess <= 0

    def drained(self) -> None:
        """The other broker may have used or given up its credit."""
        far, upstream = self.far, self.upstream
        if upstream is None or not upstream.is_limited:
            super().drained()
        elif far is not None and self._credit.is_draining and engine.credit(far) <= 0:
            self._credit.far_drained(given_up=0)  # all of it was used: there may be more
            self._ask()

    # --- from the other broker

    def attached(self, connection: RemoteConnection, far: proton.Link) -> RemoteConsumer:
        """Go on."""
        self._arrived(connection, far)
        is_as_asked = far.remote_rcv_settle_mode == self.link.remote_rcv_settle_mode
        self._is_confirmed = is_as_asked and not connection.is_limited
        self._credit.keeps_held = self._is_browsing
        self._go_on()
        return self

    def partial(self, delivery: Delivery, data: bytes) -> None:
        super().partial(delivery, data)
        self._check_size(len(self._parts))

    def _check_size(self, size: int) -> bool:
        limit = self.connection.container.settings.max_message_bytes
        if size > limit and self.upstream is not None:
            text = f"it has sent a message of {size} bytes or more; max-message-size is {limit}"
            self.upstream.fail_link(self, AmqpError(MESSAGE_SIZE, text))
        return size <= limit

    def transfers(self, batch: list[Transfer]) -> None:
        """Messages for the client."""
        far, upstream = self.far, self.upstream
        if far is None or upstream is None:
            return
        if not self._may_come(far):
            error = AmqpError(TRANSFER_LIMIT, "it has sent more messages than there was credit for")
            upstream.fail_link(self, error)
            return
        self._quiet_since_s = self.connection.container.clock()
        super().transfers(batch)

    def _take_all(self, batch: list[Transfer]) -> None:
        for delivery, payload, settled, _ in batch:
            self._take(delivery, payload, settled)

    def _take(self, delivery: Delivery, payload: bytes, settled: bool) -> None:
        if self.far is None or not self._check_size(len(payload)):
            return
        self.passed += 1
        payload = without_delivery_annotations(payload)
        if not self.is_open:
            if settled:
                engine.forget(delivery)
            else:
                engine.settle(delivery, engine.RELEASED)
            self._touch_far()
        elif settled:
            engine.forget(delivery)
            self._sender.send_settled(payload)
        else:
            near, tag = self._sender.send(payload)
            held = FarDelivery(near, tag, delivery, len(payload))
            self._by_near[near] = self._by_far[delivery] = held
            self._newest.note(1)
            self._count(1, held.size)
            self._largest = held.size

    def settlements(self, batch: list[Disposition]) -> None:
        """The other broker has settled messages."""
        if self._backlog:
            self._forget_in_backlog(batch)
        for delivery, state, _ in batch:
            self.settled(delivery, state)

    def settled(self, delivery: Delivery, state: int) -> None:
        """The other broker has done what the client said; or has taken the message back without being asked."""
        held = self._by_far.pop(delivery, None)
        said = RemoteOutcome(delivery).read() if state in _OUTCOMES else None
        engine.forget(delivery)
        if held is None:
            return
        held.far = None
        if held.outcome is not None:
            self._settle(held, said or held.outcome.without_annotations())

    def _settle(self, held: FarDelivery, outcome: Outcome) -> None:
        """Nothing more will become of it."""
        self._count(-1, -held.size)
        near, held.near = held.near, None
        if near is not None:
            self._by_near.pop(near, None)
            outcome.settle(near)
            self._sender.free(held.tag)
            self.connection.touch()

    def _left(self) -> None:
        super()._left()
        stale, self._by_far = self._by_far, {}
        for held in stale.values():
            held.far = None
            if held.outcome is not None:  # nobody knows whether it was heard
                self._settle(held, FAILED)
        self._withdrawn = 0

    # --- from the client

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """The client answered, or settled, or both."""
        held = self._by_near.get(delivery)
        if held is None:
            return
        if state == engine.TRANSACTIONAL:
            self._refuse_transaction(delivery)
            return
        if not settled and state not in _OUTCOMES:
            return  # `received`: it is still on its way
        if held.outcome is not None:
            if settled:  # it has been answered, and leaves the rest to us
                self._let_go(held)
            return
        # Settled without a word counts as a failed delivery.
        held.outcome = outcome = RemoteOutcome(delivery).read() if state in _OUTCOMES else FAILED
        if settled:
            self._let_go(held)
        if held.far is None:  # they have it no more for this link: what the client says changes nothing
            self._settle(held, FAILED)
            return
        outcome.put(held.far)
        self._has_returned = self._has_returned or outcome.is_return
        if settled or not self._is_confirmed:
            engine.forget(held.far)
            del self._by_far[held.far]
            held.far = None
            self._settle(held, outcome.without_annotations())
        self._touch_far()

    def _let_go(self, held: FarDelivery) -> None:
        """The client has settled."""
        near, held.near = held.near, None
        del self._by_near[near]
        engine.forget(near)
        self._sender.free(held.tag)

    # --- the end

    def closed(self, *, lost: bool) -> None:
        """What the client has not answered goes back, with the end of the far link; `lost`: as failed."""
        self.stop()
        self.is_open = False
        self._give_backlog_back()
        if lost:
            self._return_sent()
        for held in {id(held): held for held in (*self._by_near.values(), *self._by_far.values())}.values():
            self._count(-1, -held.size)
            held.near = held.far = None
        self._by_far.clear()
        self._forget_near()
        self.driver.forget(self)


def remote_link(connection: Connection, link: proton.Link, target: RemoteTarget, driver: RemoteDriver) -> RemoteLink:
    """The link of a client that has attached to `target`. Raises AmqpError for what cannot be passed on."""
    if connection.relay.is_proxy:
        text = f"{target.name} is a node of another broker, of which the broker in between has not heard yet: try again"
        raise AmqpError(NOT_ALLOWED, text)
    return (
        RemoteConsumer(connection, link, target, driver)
        if link.is_sender
        else RemotePublisher(connection, link, target, driver)
    )
