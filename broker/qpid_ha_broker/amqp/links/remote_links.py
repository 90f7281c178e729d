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
from weakref import ref

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.consumer_credit import CreditedConsumer, most_messages
from qpid_ha_broker.amqp.links.incoming import ReceivingLink
from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait, Told
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
    EachDisposition,
    Outcome,
    RemoteOutcome,
    Sender,
    Sending,
    Transfer,
)
from qpid_ha_broker.amqp.wire.remote_path import Step, extend, properties_of, read_path
from qpid_ha_broker.amqp.wire.sections import without_delivery_annotations

GRANT: Final = 64
"""Messages of credit that are worth a frame to a publisher."""
QUIET_S: Final = 0.3
"""A broker that cannot say that it has no more messages has none when it has sent none for so long."""
_OUTCOMES: Final = (engine.ACCEPTED, engine.REJECTED, engine.RELEASED, engine.MODIFIED)
_FAILED: Final = Outcome(engine.MODIFIED, failed=True)
_RELEASED: Final = Outcome(engine.RELEASED)


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
    """Who drives remote links."""

    @property
    def broker(self) -> str:
        """By which this broker, or its cluster, is told from all others."""

    name: str
    """Of this broker."""

    def attach_again(self, link: RemoteLink, reason: str) -> None:
        """Its far end is gone, or was not to be had: attach it, a little later."""

    def redirect(self, link: RemoteLink, error: AmqpError) -> bool:
        """Attach it where the other broker says; whether it says so."""

    def gone(self, link: RemoteLink, error: AmqpError) -> None:
        """The other broker has refused it, or ended it for good."""

    def forget(self, link: RemoteLink) -> None:
        """It has ended: its far end, too, if there is one."""


class RemoteWait(NodeWait):
    """What one client's attach waits for."""

    def __init__(self, link: RemoteLink) -> None:
        super().__init__(f"the other broker at {link.target.where} is asked for {link.target.node}")
        self._link = ref(link)

    def forget(self, told: Told) -> None:
        """Nobody wants the answer any more, unless it has just been given."""
        waits = len(self)
        super().forget(told)
        link = self._link()
        if len(self) < waits and link is not None:
            link.abandon()


class RemoteLink(LinkEndpoint):
    """What both kinds have in common: the way from the client's attach to the end of the link at both ends."""

    connection: Connection
    far_container = ""
    far_name = ""

    def begin(self, connection: Connection, link: proton.Link, target: RemoteTarget, driver: RemoteDriver) -> None:
        """The client has attached. Raises AmqpError for what cannot be passed on."""
        self.connection = connection
        self.link = link
        self.target = target
        self.driver = driver
        path = read_path(engine.remote_properties_of(link))
        self._path = extend(path, Step(driver.broker, driver.name, target.name))
        self.wait = RemoteWait(self)
        self.upstream: RemoteConnection | None = None
        self.far: proton.Link | None = None
        """Attached there; None: not now."""
        self.is_open = False
        """The client's attach is answered, and its link has not ended."""
        self.passed = 0
        """Messages, so far."""

    @property
    def is_attached(self) -> bool:
        """The other broker has answered."""
        return self.far is not None

    def open_far(self, connection: RemoteConnection, session: Any, name: str) -> proton.Link:
        """Make and open a link there, as the client has asked for it."""
        near = self.link
        far: proton.Link = session.sender(name) if near.is_receiver else session.receiver(name)
        far.source.copy(near.remote_source)
        far.target.copy(near.remote_target)
        (far.target if near.is_receiver else far.source).address = self.target.node
        far.snd_settle_mode = near.remote_snd_settle_mode
        far.rcv_settle_mode = proton.Link.RCV_FIRST if connection.is_limited else near.remote_rcv_settle_mode
        far.properties = properties_of(self._path)
        far.open()
        return far

    def finish(self) -> LinkEndpoint:
        """Answer the client's attach, as the other broker has. Raises AmqpError."""
        near, far = self.link, self.far
        if far is None:
            raise AmqpError(RESOURCE_LOCKED, f"the broker at {self.target.where} was lost: try again")
        near.source.copy(far.remote_source)
        near.target.copy(far.remote_target)
        (near.target if near.is_receiver else near.source).address = self.target.name
        near.snd_settle_mode = far.remote_snd_settle_mode
        near.rcv_settle_mode = far.remote_rcv_settle_mode
        self.is_open = True
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

    def lost(self, reason: str) -> None:
        """The connection there is gone."""
        self._left()
        self._paused(reason)

    def _left(self) -> None:
        self.upstream = self.far = None

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

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, error)

    def _touch_far(self) -> None:
        if self.upstream is not None:
            self.upstream.touch()

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


class RemotePublisher(RemoteLink, ReceivingLink, EachDisposition):
    """The promise: a message is `accepted` when the other broker has said so, and is sent once at most.

    Invariant: what waits here is no more than the credit that the client had.
    """

    def __init__(self, connection: Connection, link: proton.Link, target: RemoteTarget, driver: RemoteDriver) -> None:
        self.begin(connection, link, target, driver)
        self._unanswered: dict[Delivery, tuple[Delivery, Any, int]] = {}
        """By what was sent there: what came from the client, the tag, and the size."""
        self._unsent: deque[_Unsent] = deque()
        self._sender: Sender | None = None
        self._largest = 0
        """Bytes of the message that came last; 0: none has."""
        connection.container.relayed.links.add(self)
        self._most_bytes = 0
        """Of one message, as the other broker says; 0: as here."""
        ReceivingLink.__init__(self, connection, link, 0)

    @property
    def must_end_at_once(self) -> bool:
        return False

    @property
    def max_message_bytes(self) -> int:
        own = super().max_message_bytes
        return min(own, self._most_bytes) if self._most_bytes else own

    def finish(self) -> LinkEndpoint:
        super().finish()
        self.link.rcv_settle_mode = proton.Link.RCV_FIRST
        if self.far is not None:
            self._most_bytes = self.far.remote_max_message_size
        self.link.max_message_size = self.max_message_bytes
        self.link.open()
        self.connection.engine.attach_receiving(self.link, self)
        self.replenish()
        return self

    # --- from the client

    def transfers(self, batch: list[Transfer]) -> None:
        """Send messages on."""
        super().transfers(batch)
        if self.is_open and not engine.credit(self.link):  # pre-settled ones have no answer that gives credit
            self.replenish()

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """Send one message on, or keep it until there is somebody to send it to."""
        whole = self.whole(payload)
        if whole is None:
            return
        if engine.credit(self.link) < 0:
            self.end(AmqpError(TRANSFER_LIMIT, "more messages than there was credit for"))
            return
        if state == engine.TRANSACTIONAL:
            self._refuse_transaction(delivery)
            return
        self._largest = len(whole)
        if settled:
            engine.forget(delivery)
        near = None if settled else delivery
        if self._sender is not None and not self._unsent and self._sender.credit > 0:
            self._send(self._sender, near, whole)
            self._touch_far()
        else:
            self._unsent.append(_Unsent(near, whole, self.connection.container.clock()))
            self.connection.container.relayed.hold(len(whole))

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

    def replenish(self) -> None:
        """Give the client what credit the other broker gives, as far as this one wants to have messages under way."""
        if self.far is None or not self.is_open:
            return
        left = engine.credit(self.link)
        most = min(engine.credit(self.far), self.connection.container.settings.publisher_credit)
        container = self.connection.container
        most = min(most, most_messages(self._largest, container.relayed.link_bytes) - len(self._unanswered))
        due = most - left - len(self._unsent)
        is_worth_it = due > 0 and (due >= GRANT or left < GRANT)
        if is_worth_it and container.has_room(self) and container.relayed.has_room(self):
            self._give_credit(due)

    def _give_due_credit(self) -> None:
        """All credit is the other broker's: see `replenish`."""

    # --- from the other broker

    def attached(self, connection: RemoteConnection, far: proton.Link) -> RemotePublisher:
        """Go on."""
        self.upstream, self.far = connection, far
        self._sender = Sender(far, connection.engine.formats)
        if self.is_open:
            self.flow()
        else:
            self.wait.ready()
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
        outcome = RemoteOutcome(delivery).read() if state in _OUTCOMES else _FAILED
        engine.forget(delivery)
        if answered is None:
            return
        near, tag, size = answered
        if self._sender is not None:
            self._sender.free(tag)
        self.connection.container.relayed.let_go(size)
        _answer(near, outcome)
        self.connection.touch()
        if engine.credit(self.link) < GRANT:
            self.replenish()

    def _left(self) -> None:
        super()._left()
        self._sender = None
        unanswered, self._unanswered = self._unanswered, {}
        for near, _, size in unanswered.values():
            self.connection.container.relayed.let_go(size)
            if self.is_open:
                _answer(near, _FAILED)
        if unanswered and self.is_open:
            self.connection.touch()

    def expire(self, now_s: float) -> None:
        limit_s = self.connection.container.settings.attach_timeout_s
        while self._unsent and now_s - self._unsent[0].since_s >= limit_s:
            near = self._take_unsent().near
            if near is not None:
                _answer(near, _RELEASED)
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


class _RemoteDelivery:
    """A message that the client has, or has answered and the other broker has not settled it."""

    __slots__ = ("far", "near", "outcome", "size", "tag")

    def __init__(self, near: Delivery, tag: Any, far: Delivery, size: int) -> None:
        self.near: Delivery | None = near
        """None once it is settled."""
        self.tag = tag
        self.far: Delivery | None = far
        """None once the other broker has settled it, or is lost."""
        self.size = size
        self.outcome: Outcome | None = None
        """What the client says of it."""


class RemoteConsumer(RemoteLink, CreditedConsumer, EachDisposition):
    """The promise: no more is taken than the client has credit for, and its answer is settled when theirs is.

    Invariant: a message is in `_by_near` until it is settled with the client, in `_by_far` while the far link knows it.
    """

    def __init__(self, connection: Connection, link: proton.Link, target: RemoteTarget, driver: RemoteDriver) -> None:
        self.begin(connection, link, target, driver)
        source = read_terminus(link.remote_source)
        if source.durable or SHARED in source.capabilities:
            text = f"{target.name} is a node of another broker: subscriptions that outlive their link are made there"
            raise AmqpError(NOT_IMPLEMENTED, f"{text}, for a queue of which there can be a name here")
        self.begin_credit(Sender(link, connection.engine.formats))
        self._by_near: dict[Delivery, _RemoteDelivery] = {}
        self._by_far: dict[Delivery, _RemoteDelivery] = {}
        self._is_browsing = source.browse
        self._quiet_since_s = 0.0
        """When the last message came, or the drain began, by the container's clock."""
        self._withdrawn = 0
        """Credit that the other broker may have used before it heard that it is taken back."""
        self._is_confirmed = True
        """The other broker settles an answer that is not settled: some know of no other than those that are."""

    @property
    def is_writer(self) -> bool:
        return not self._is_browsing

    def finish(self) -> LinkEndpoint:
        super().finish()
        self.link.open()
        self.connection.engine.attach_sending(self.link, self)
        return self

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
        self.upstream, self.far = connection, far
        is_as_asked = far.remote_rcv_settle_mode == self.link.remote_rcv_settle_mode
        self._is_confirmed = is_as_asked and not connection.is_limited
        self._credit.keeps_held = self._is_browsing
        if self.is_open:
            self._ask()
        else:
            self.wait.ready()
        return self

    def partial(self, delivery: Delivery, data: bytes) -> None:
        """A part of a message."""
        self._parts += data
        self._check_size(len(self._parts))

    def _check_size(self, size: int) -> bool:
        limit = self.connection.container.settings.max_message_bytes
        if size > limit and self.upstream is not None:
            text = f"it has sent a message of {size} bytes or more; max-message-size is {limit}"
            self.upstream.fail_link(self, AmqpError(MESSAGE_SIZE, text))
        return size <= limit

    def aborted(self, delivery: Delivery) -> None:
        """The other broker took back what it had begun."""
        self._parts.clear()
        self._look_for_credit()

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
            held = _RemoteDelivery(near, tag, delivery, len(payload))
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
            self._settle(held, said or held.outcome)

    def _settle(self, held: _RemoteDelivery, outcome: Outcome) -> None:
        """Nothing more will become of it."""
        self._count(-1, -held.size)
        near, held.near = held.near, None
        if near is not None:
            self._by_near.pop(near, None)
            _answer(near, outcome)
            self._sender.free(held.tag)
            self.connection.touch()

    def _left(self) -> None:
        super()._left()
        stale, self._by_far = self._by_far, {}
        for held in stale.values():
            held.far = None
            if held.outcome is not None:  # nobody knows whether it was heard
                self._settle(held, _FAILED)
        self._parts.clear()
        self._empty_backlog()
        self._note_held()
        self._credit.far_lost()
        self._withdrawn = 0

    def _paused(self, reason: str) -> None:
        if self._is_browsing and self.is_open:
            text = f"the broker at {self.target.where} was lost ({reason}), and nobody knows how far the browsing came"
            self.end(AmqpError(RESOURCE_LOCKED, f"{text}: browse again"))
        else:
            super()._paused(reason)

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
        held.outcome = outcome = RemoteOutcome(delivery).read() if state in _OUTCOMES else _FAILED
        if settled:
            self._let_go(held)
        if held.far is None:  # they have it no more for this link: what the client says changes nothing
            self._settle(held, _FAILED)
            return
        outcome.put(held.far)
        self._has_returned = self._has_returned or outcome.is_return
        if settled or not self._is_confirmed:
            engine.forget(held.far)
            del self._by_far[held.far]
            held.far = None
            self._settle(held, outcome)
        self._touch_far()

    def _let_go(self, held: _RemoteDelivery) -> None:
        """The client has settled."""
        near, held.near = held.near, None
        del self._by_near[near]
        engine.forget(near)
        self._sender.free(held.tag)

    def _count(self, messages: int, size: int) -> None:
        self.connection.container.relayed.hold(size)
        self.connection.window.count_unsettled(messages)

    # --- the end

    def closed(self, *, lost: bool) -> None:
        """What the client has not answered goes back, with the end of the far link; `lost`: as failed."""
        self.stop()
        self.is_open = False
        self._give_backlog_back()
        unsent = set(list(self._by_near)[len(self._by_near) - self._newest.count_unsent() :])
        for held in {id(held): held for held in (*self._by_near.values(), *self._by_far.values())}.values():
            self._count(-1, -held.size)
            if lost and held.far is not None and held.outcome is None:
                (_RELEASED if held.near in unsent else _FAILED).put(held.far)
                engine.forget(held.far)
            held.near = held.far = None
        self._by_near.clear()
        self._by_far.clear()
        self._sender.take_tags()
        self.connection.window.forget(self)
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


def _answer(near: Delivery, outcome: Outcome) -> None:
    outcome.put(near)
    engine.forget(near)
