"""What a client does in a transaction on its relayed links: messages that it publishes, and messages that it accepts.

What becomes of each when the transaction is over, or cannot go on, is `relayed_transactions`' business; what it means
for the client's delivery is here, and is as at the primary:

1. A message that is published in a transaction is answered by the primary at once, with the client's own id in the
   state. One that is not answered before the transaction is lost is rejected, and never sent again.
2. A message that is accepted in one, and not settled, is the client's until the primary settles it, after the commit.
   When the transaction is lost or rolled back it is still the client's, which may accept it again.
3. One that is accepted and settled is the primary's: after a rollback somebody else gets it, as a failed delivery.
4. Other outcomes do not wait for the discharge.
5. What is accepted in one that is lost already is as in 2 and 3 after a rollback: the client hears by the discharge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar
from weakref import ref

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.incoming import ACCEPTED_OUTCOME
from qpid_ha_broker.amqp.links.outgoing import FAILED, read_outcome
from qpid_ha_broker.amqp.relaying.relayed_transactions import FarCoordinator, RelayedTransaction
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import TRANSACTION_ROLLBACK, UNKNOWN_TRANSACTION, AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, Outcome, RemoteOutcome, Sender

ACCEPTED: Final = Outcome(engine.ACCEPTED)
RELEASED: Final = Outcome(engine.RELEASED)
_LINK_LOST: Final = AmqpError(
    TRANSACTION_ROLLBACK, "a link was lost on which messages of the transaction were under way; it is rolled back"
)
_LINK_CLOSED: Final = AmqpError(
    TRANSACTION_ROLLBACK, "a link was closed while messages of the transaction waited to be sent; it is rolled back"
)


LinkKind = TypeVar("LinkKind")


def _still_there(link: LinkKind | None) -> LinkKind:
    """What its parts refer to weakly, so that no collector is needed when it ends. Raises RuntimeError without one."""
    if link is None:
        raise RuntimeError("a link is asked for when it has ended, and nothing of it was under way")
    return link


class TransactedLink(Protocol):
    """The relayed link, as far as transactions need to know it."""

    connection: Connection
    set_name: str
    upstream: Upstream | None

    def new_coordinator(self) -> FarCoordinator:
        """The client's, at the primary of the set."""

    def end(self, error: AmqpError) -> None:
        """Detach the client's link with an error."""


class PublishingLink(TransactedLink, Protocol):
    """On which a client publishes."""

    @property
    def far_sender(self) -> Sender | None:
        """On the far link; None: there is none now."""

    def transacted(self) -> None:
        """A message that came in a transaction is answered."""


class _Publish:
    """One message."""

    awaits_answer = True

    def __init__(
        self,
        publishes: RelayedPublishes,
        transaction: RelayedTransaction,
        near: Delivery | None,
        near_id: bytes,
        payload: bytes,
    ) -> None:
        self.transaction = transaction
        self.near = near
        """None: the client has settled it, or its link is gone."""
        self.near_id = near_id
        self.payload = payload
        self.far: Delivery | None = None
        self.tag: Any = None
        self._publishes = publishes
        self._link = publishes.link
        """Which is there while one of its messages is under way."""

    @property
    def upstream(self) -> Upstream | None:
        return self._link.upstream

    def send(self, far_id: bytes) -> None:
        self._publishes.send(self, far_id)

    def refuse(self, error: AmqpError) -> None:
        near = self._publishes.take(self)
        if near is not None:
            engine.reject(near, error.name, error.description)

    def ended(self, *, is_committed: bool) -> None:
        """It was answered before: there is nobody to tell."""


class RelayedPublishes:
    """Of one publisher's link: what came in transactions and is not answered. No numbers: nothing is sent again.

    It is asked by its link, or by a message that holds the link.
    """

    def __init__(self, link: PublishingLink) -> None:
        self._link = ref(link)
        self._unsent: dict[_Publish, None] = {}
        self._by_far: dict[Delivery, _Publish] = {}
        self._leave: Callable[[], None] | None = None
        """The client's link is gone, and this is to be called when all is answered."""

    @property
    def link(self) -> PublishingLink:
        """Whose it is."""
        return _still_there(self._link())

    @property
    def unsent(self) -> int:
        """How many wait: the primary does not know yet that they take of its credit."""
        return len(self._unsent)

    @property
    def is_idle(self) -> bool:
        """All is answered."""
        return not (self._unsent or self._by_far)

    def publish(self, delivery: Delivery, payload: bytes, settled: bool) -> None:
        """A message came."""
        connection = self.link.connection
        try:
            near_id, transaction = connection.transactions.of(delivery)
            relayed = connection.transactions.join_relayed(transaction, self.link.set_name, self.link.new_coordinator)
        except AmqpError as error:
            connection.transactions.refused(delivery, error)
            if settled:
                engine.forget(delivery)
                connection.log.note("warning", f"a message sent at most once was refused: {error}")
            else:
                engine.reject(delivery, error.name, error.description)
            self.link.transacted()
            return
        if settled:
            engine.forget(delivery)
        work = _Publish(self, relayed, None if settled else delivery, near_id, payload)
        connection.container.relayed.hold(len(payload))
        self._unsent[work] = None
        relayed.add(work)

    def send(self, work: _Publish, far_id: bytes) -> None:
        """The primary's transaction has that id."""
        sender, upstream = self.link.far_sender, self.link.upstream
        if sender is None or upstream is None:
            raise RuntimeError("a message of a transaction is sent where there is no link")
        del self._unsent[work]
        work.far, work.tag = sender.send(work.payload)
        engine.set_local_data(work.far, engine.TRANSACTIONAL, [far_id], settle_now=False)
        self._by_far[work.far] = work
        upstream.touch()

    def take(self, work: _Publish) -> Delivery | None:
        """It is not under way any more; returns the client's delivery. What the primary still says is ignored."""
        self._unsent.pop(work, None)
        if work.far is not None:
            self._by_far.pop(work.far, None)
        self.link.connection.container.relayed.let_go(len(work.payload))
        near, work.near = work.near, None
        self.link.transacted()
        if self._leave is not None and self.is_idle:
            leave, self._leave = self._leave, None
            leave()
        return near

    def answered(self, far: Delivery, state: int) -> bool:
        """The primary has answered a message; False: it is none of these."""
        work = self._by_far.get(far)
        if work is None:
            return False
        outcome = RemoteOutcome(far).read() if state == engine.REJECTED else None
        engine.forget(far)
        sender = self.link.far_sender
        if sender is not None:
            sender.free(work.tag)
        if outcome is None and state != engine.TRANSACTIONAL:  # it came when the primary had ended the link
            work.transaction.fail(_LINK_LOST)
            return True
        near = self.take(work)
        if outcome is not None:
            if near is not None:
                outcome.settle(near)
            work.transaction.refused(work, outcome)
            return True
        if near is not None:
            engine.set_local_data(near, engine.TRANSACTIONAL, [work.near_id, ACCEPTED_OUTCOME], settle_now=True)
        work.transaction.answered(work)
        return True

    def left(self) -> None:
        """The far link is gone: what is not answered may be there or not."""
        under_way, self._by_far = list(self._by_far.values()), {}
        for work in under_way:
            work.far = None
            work.transaction.fail(_LINK_LOST)
        if self._leave is not None:
            self._fail_unsent()

    def attached(self) -> None:
        """There is a far link: send what waited for it."""
        for work in list(self._unsent):
            work.transaction.go_on()

    def closed(self, leave: Callable[[], None]) -> None:
        """The client's link is gone. `leave`: to be called when what came on it is answered, which may be now."""
        for work in (*self._unsent, *self._by_far.values()):
            work.near = None
        self._leave = leave
        if self.link.upstream is None:
            self._fail_unsent()
        if self._leave is not None and self.is_idle:
            self._leave = None
            leave()

    def _fail_unsent(self) -> None:
        for work in list(self._unsent):
            work.transaction.fail(_LINK_CLOSED)


class HeldMessage(Protocol):
    """A message that the client has."""

    near: Delivery | None
    far: Delivery | None
    """None: it is to be reclaimed from the next primary."""
    accepted: RelayedAccept | None
    """In a transaction that is not over; None: in none."""


class ConsumingLink(TransactedLink, Protocol):
    """On which a client accepts."""

    def client_settled(self, held: HeldMessage) -> None:
        """The client has nothing more to say of it."""

    def primary_settled(self, held: HeldMessage) -> None:
        """There is nothing more to hear of it from the primary."""

    def committed(self, held: HeldMessage) -> None:
        """The transaction in which it was accepted, counts."""


class RelayedAccept:
    """One message that was accepted."""

    awaits_answer = False

    def __init__(self, accepts: RelayedAccepts, transaction: RelayedTransaction, held: HeldMessage) -> None:
        self.transaction = transaction
        self._accepts = accepts
        self._link = accepts.link
        """Which is there until the transaction is over."""
        self._held = held
        self._is_settled = False
        self.is_sent = False

    @property
    def upstream(self) -> Upstream | None:
        """None also while the message is to be reclaimed; whether it ever is, that shows."""
        return None if self._held.far is None and self._counts else self._link.upstream

    @property
    def _counts(self) -> bool:
        """The client has not said anything else of it since."""
        return self._held.accepted is self

    def settle(self) -> None:
        """The client has settled, before the transaction is over or with its answer."""
        self._is_settled = True
        self._link.client_settled(self._held)
        if self.is_sent and self._held.far is not None:
            engine.forget(self._held.far)
            self._let_go()

    def send(self, far_id: bytes) -> None:
        self.is_sent = True
        self._accepts.sent(self)
        far, upstream = self._held.far, self._link.upstream
        if far is None or upstream is None or not self._counts:
            return
        engine.set_local_data(far, engine.TRANSACTIONAL, [far_id, ACCEPTED_OUTCOME], settle_now=self._is_settled)
        upstream.touch()
        if self._is_settled:
            self._let_go()

    def refuse(self, error: AmqpError) -> None:
        self._accepts.sent(self)
        self.ended(is_committed=False)

    def ended(self, *, is_committed: bool) -> None:
        held = self._held
        if not self._counts:
            return
        held.accepted = None
        if is_committed:
            self._link.committed(held)
        elif self._is_settled and held.far is not None:  # it was not sent: what the primary would do now
            FAILED.put(held.far)
            engine.forget(held.far)
            self._link.primary_settled(held)
        elif self._is_settled:
            self._link.primary_settled(held)

    def _let_go(self) -> None:
        self._held.accepted = None
        self._link.primary_settled(self._held)


class RelayedAccepts:
    """Of one consumer's link: what was accepted in transactions. It is asked by its link, or by what holds the link."""

    def __init__(self, link: ConsumingLink) -> None:
        self._link = ref(link)
        self._unsent: dict[RelayedAccept, None] = {}
        self._leave: Callable[[], None] | None = None

    @property
    def link(self) -> ConsumingLink:
        """Whose it is."""
        return _still_there(self._link())

    def answered(self, held: HeldMessage, delivery: Delivery, settled: bool) -> Outcome | None:
        """The client's answer to a message within a transaction: an outcome that counts at once, or None."""
        if held.accepted is not None:
            if settled:
                held.accepted.settle()
            return None
        connection, link = self.link.connection, self.link
        try:
            _, transaction = connection.transactions.of(delivery)
            outcome = read_outcome(RemoteOutcome(delivery).transaction()[1])
        except (AmqpError, ValueError) as error:
            link.end(AmqpError(UNKNOWN_TRANSACTION, str(error)))
            return None
        relayed: RelayedTransaction | None = None
        if transaction.failure is None:
            try:
                relayed = connection.transactions.join_relayed(transaction, link.set_name, link.new_coordinator)
            except AmqpError as error:
                connection.transactions.fail(transaction, error)
                link.end(error)
                return None
        if outcome.state != engine.ACCEPTED:
            is_known = outcome.state in (engine.REJECTED, engine.RELEASED, engine.MODIFIED)
            return outcome if is_known else FAILED
        if relayed is None:
            return FAILED if settled else None
        work = held.accepted = RelayedAccept(self, relayed, held)
        self._unsent[work] = None
        if settled:
            work.settle()
        relayed.add(work)
        return None

    def sent(self, work: RelayedAccept) -> None:
        """It does not wait any more."""
        self._unsent.pop(work, None)
        if self._leave is not None and not self._unsent:
            leave, self._leave = self._leave, None
            leave()

    def attached(self) -> None:
        """The primary has a message again for the client."""
        for work in list(self._unsent):
            work.transaction.go_on()

    def closed(self, leave: Callable[[], None]) -> None:
        """The client's link is gone. `leave`: to be called when what was accepted is sent, which may be now."""
        self._leave = leave
        if self.link.upstream is None:
            for work in list(self._unsent):
                work.transaction.fail(_LINK_CLOSED)
        if self._leave is not None and not self._unsent:
            self._leave = None
            leave()

    def left(self, held: list[HeldMessage]) -> None:
        """The far link is gone, and what was accepted on it is nobody's now."""
        for each in held:
            if each.accepted is not None and (each.accepted.is_sent or self._leave is not None):
                each.accepted.transaction.fail(_LINK_LOST)
