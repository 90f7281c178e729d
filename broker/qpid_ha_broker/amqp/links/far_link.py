"""What far links have in common, whatever they do with messages: where they are attached, and a client's link there.

What becomes of messages when the far end is lost is the policy of each kind: docs/architecture.md has all of them.
"""

from __future__ import annotations

from typing import Any, Final, Generic
from weakref import ref

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.consumer_credit import CreditedConsumer, most_messages
from qpid_ha_broker.amqp.links.incoming import ReceivingLink
from qpid_ha_broker.amqp.links.outgoing import FAILED
from qpid_ha_broker.amqp.links.transacted_links import RelayedAccept
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait, Told
from qpid_ha_broker.amqp.relaying.far_connection import AnyFar
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import RESOURCE_LOCKED, TRANSFER_LIMIT, AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, Outcome, Sender, Transfer

GRANT: Final = 64
"""Messages of credit that are worth a frame to a publisher."""


class FarWait(NodeWait):
    """What one client's attach waits for; `link`, whose it is, is abandoned when the client waits no more."""

    def __init__(self, reason: str, link: ClientFarLink[Any]) -> None:
        super().__init__(reason)
        self._link = ref(link)

    def forget(self, told: Told) -> None:
        """Nobody wants the answer any more, unless it has just been given."""
        waits = len(self)
        super().forget(told)
        link = self._link()
        if len(self) < waits and link is not None:
            link.abandon()


class FarLink(LinkEndpoint, Generic[AnyFar]):
    """A link whose far end comes and goes.

    | it is | `upstream` and `far` | the connection is lost | the other broker detaches it |
    | --- | --- | --- | --- |
    | pending, or lost before | None | `lost`: it stays so | `detached`: refused, or attached again |
    | attached | are there | `lost`: nothing more is heard of what is under way | `detached`: the same, or it is over |
    | over | None | it has been forgotten by its driver, and is told nothing | |
    """

    upstream: AnyFar | None = None
    far: proton.Link | None = None
    """Attached there; None: not now."""

    @property
    def is_attached(self) -> bool:
        """The other broker has answered."""
        return self.far is not None

    def _arrived(self, upstream: AnyFar, far: proton.Link) -> None:
        self.upstream, self.far = upstream, far

    def lost(self, reason: str) -> None:
        """The connection there is gone."""
        self._left()
        self._paused(reason)

    def _left(self) -> None:
        """There is no far end any more."""
        self.upstream = self.far = None

    def _paused(self, reason: str) -> None:
        """Have it attached again, if it is worth that."""
        raise NotImplementedError(f"{type(self).__name__} does not say who attaches it again")

    def _touch_far(self) -> None:
        if self.upstream is not None:
            self.upstream.touch()


class ClientFarLink(FarLink[AnyFar]):
    """The far end of a link of a client here (*near*), whose attach is answered as the other broker has answered it."""

    connection: Connection
    is_open = False
    """The client's attach is answered, and its link has not ended."""

    def begin_far(self, connection: Connection, link: proton.Link, reason: str) -> None:
        """The client has attached; `reason`: what it waits for."""
        self.connection = connection
        self.link = link
        self.wait = FarWait(reason, self)

    def _far_as_near(self, session: Any, name: str) -> proton.Link:
        """A link for the far end, which is not opened, as the client has asked for it."""
        near = self.link
        far: proton.Link = session.sender(name) if near.is_receiver else session.receiver(name)
        far.source.copy(near.remote_source)
        far.target.copy(near.remote_target)
        far.snd_settle_mode = near.remote_snd_settle_mode
        # A publisher that settles before who receives does so with this broker, which settles what it has sent on.
        far.rcv_settle_mode = proton.Link.RCV_FIRST if near.is_receiver else near.remote_rcv_settle_mode
        return far

    def _near_as_far(self, far: proton.Link) -> None:
        """The client is to get this answer."""
        near = self.link
        near.source.copy(far.remote_source)
        near.target.copy(far.remote_target)
        near.snd_settle_mode = far.remote_snd_settle_mode
        near.rcv_settle_mode = far.remote_rcv_settle_mode
        self.is_open = True

    def _open_near(self) -> None:
        """Let the client have its link."""
        raise NotImplementedError(f"{type(self).__name__} does not say who is told what comes of the client")

    def _go_on(self) -> None:
        """The other broker has answered."""
        if self.is_open:
            self.replenish()
        else:
            self.wait.ready()

    def abandon(self) -> None:
        """The client does not wait for the answer any more."""
        raise NotImplementedError(f"{type(self).__name__} does not say who has to forget it")

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, error)


class FarPublisher(ClientFarLink[AnyFar], ReceivingLink, EachDisposition):
    """A client's publisher: its credit, and the size of its messages, are what the other broker gives."""

    _most_bytes = 0
    """Of one message, as the other broker says; 0: as here."""
    _largest = 0
    """Bytes of the largest message of those that came last; 0: none has."""
    _sender: Sender | None = None
    """On the far link; None: there is none now."""

    @property
    def must_end_at_once(self) -> bool:
        return False

    @property
    def max_message_bytes(self) -> int:
        own = super().max_message_bytes
        return min(own, self._most_bytes) if self._most_bytes else own

    def _open_near(self) -> None:
        self.link.rcv_settle_mode = self.link.remote_rcv_settle_mode
        if self.far is not None:
            self._most_bytes = self.far.remote_max_message_size
        self.link.max_message_size = self.max_message_bytes
        self.link.open()
        self.connection.engine.attach_receiving(self.link, self, on_settled=self.replenish)
        self.replenish()

    def _arrived(self, upstream: AnyFar, far: proton.Link) -> None:
        super()._arrived(upstream, far)
        self._sender = Sender(far, upstream.engine.formats)

    def _left(self) -> None:
        super()._left()
        self._sender = None

    # --- messages

    def transfers(self, batch: list[Transfer]) -> None:
        """Publish them."""
        super().transfers(batch)
        if self.is_open and not engine.credit(self.link):  # pre-settled ones have no answer that gives credit
            self.replenish()

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """Publish one message."""
        whole = self.whole(payload)
        if whole is None:
            return
        if engine.credit(self.link) < 0:
            self.end(AmqpError(TRANSFER_LIMIT, "more messages than there was credit for"))
        else:
            self.publish(delivery, whole, settled, state)

    def publish(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """Send a message on, or keep it until there is somebody to send it to."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to do with messages")

    def _was_answered(self) -> None:
        """The other broker has answered messages."""
        self.connection.touch()
        if engine.credit(self.link) < GRANT:
            self.replenish()

    # --- credit

    def replenish(self) -> None:
        """Give the client what credit the other broker gives, as far as messages may be under way here."""
        if self.far is None or not self.is_open:
            return
        left, container = engine.credit(self.link), self.connection.container
        most = most_messages(self._largest, container.relayed.link_bytes)
        due = self._most_credit_of(engine.credit(self.far), most) - left
        is_worth_it = due > 0 and (due >= GRANT or left < GRANT)
        if is_worth_it and container.has_room(self) and container.relayed.has_room(self):
            self._give_credit(due)

    def _most_credit_of(self, given: int, most: int) -> int:
        """That the client may have; `given`: by the other broker, `most`: messages may be under way."""
        raise NotImplementedError(f"{type(self).__name__} does not say what is under way")

    def _give_due_credit(self) -> None:
        """All credit is the other broker's: see `replenish`."""


class FarDelivery:
    """A message that a client has of another broker, or has answered and nobody there has confirmed it."""

    __slots__ = ("accepted", "far", "near", "number", "outcome", "size", "tag")

    def __init__(self, near: Delivery | None, tag: Any, far: Delivery, size: int) -> None:
        self.number = 0
        """Its id at the primary of a set; 0: not read yet, or another broker has it."""
        self.near: Delivery | None = near
        """None once it is settled with the client, or where it was sent settled."""
        self.tag = tag
        self.far: Delivery | None = far
        """None once the far link knows it no more: it is settled there, to be reclaimed, or cannot be had again."""
        self.size = size
        self.outcome: Outcome | None = None
        """What the client says of it."""
        self.accepted: RelayedAccept | None = None
        """In a transaction that is not over."""


class FarConsumer(ClientFarLink[AnyFar], CreditedConsumer, EachDisposition):
    """A client's consumer: what the other broker sends goes on to it, and what it says of that goes back.

    Invariant: a message is in `_by_far` while the far link knows it. In `_by_near` it is until the client has answered
    it, or until it is settled with the client.
    """

    _is_browsing = False

    def begin_credit(self, sender: Sender) -> None:
        super().begin_credit(sender)
        self._by_near: dict[Delivery, FarDelivery] = {}
        self._by_far: dict[Delivery, FarDelivery] = {}

    @property
    def needs_primary(self) -> bool:
        return not self._is_browsing

    def _open_near(self) -> None:
        self.link.open()
        self.connection.engine.attach_sending(self.link, self)

    def partial(self, delivery: Delivery, data: bytes) -> None:
        """A part of a message."""
        self._parts += data

    def aborted(self, delivery: Delivery) -> None:
        """The other broker took back what it had begun."""
        self._parts.clear()
        self._look_for_credit()

    def _count(self, messages: int, size: int) -> None:
        self.connection.container.relayed.hold(size)
        self.connection.window.count_unsettled(messages)

    def _left(self) -> None:
        super()._left()
        self._parts.clear()
        self._empty_backlog()
        self._note_held()
        self._credit.far_lost()

    def _paused(self, reason: str) -> None:
        if self._is_browsing and self.is_open:
            text = f"the broker whose queue was browsed was lost ({reason}), and nobody knows how far this came"
            self.end(AmqpError(RESOURCE_LOCKED, f"{text}: browse again"))
        else:
            super()._paused(reason)

    # --- the end

    def _return_sent(self) -> None:
        """The client is lost: what it may have seen goes back as failed, and the rest as it was."""
        seen = len(self._by_near) - self._newest.count_unsent()
        for number, held in enumerate(self._by_near.values()):
            if held.far is None or held.outcome is not None:
                continue
            if number < seen:
                FAILED.settle(held.far)
            else:
                self._return_unseen(held.far)

    def _forget_near(self) -> None:
        """The client's link has ended."""
        self._by_near.clear()
        self._sender.take_tags()
        self.connection.window.forget(self)
