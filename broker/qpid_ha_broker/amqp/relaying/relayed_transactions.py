"""A client's transaction in a resource set that another broker leads: it is declared there, and discharged there.

The client declares here, and is answered at once: which set the transaction is in, its first message tells. Then it is
declared once more at the primary of that set (*far*), on a coordinator link that this client's transactions in this set
have for themselves. A far transaction so is this client's alone, and goes with the client's coordinator.

1. DECLARING: the primary has not said its id yet. What the client does in it waits, in order. If the primary is lost
   now, it is declared at the next one: nothing of it was sent.
2. OPEN: what the client does in it is sent. If the primary is lost now, or leads no more, it has rolled back.
3. DISCHARGING: all that was published in it is answered, and the discharge is sent. If the primary is lost now, nobody
   knows whether a commit counts, and the client is told so.
4. ENDED.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol

import proton

from qpid_ha_broker.amqp.relaying.relayer import PrimaryEnd, Relayer, is_elsewhere
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import (
    DETACH_FORCED,
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    TRANSACTION_ROLLBACK,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, Outcome, RemoteOutcome, Sender
from qpid_ha_broker.amqp.wire.relay import COORDINATOR, RelayRequest

Discharged = Callable[[Outcome | AmqpError], None]
"""Told once: what the client's discharge is answered with, or that nobody knows."""
_ACCEPTED: Final = Outcome(engine.ACCEPTED)
_ANSWERS: Final = (engine.DECLARED, engine.ACCEPTED, engine.REJECTED)
"""Of a coordinator (AMQP 1.0 sections 4.2 and 4.3)."""
_NOT_TAKEN: Final = (engine.RELEASED, engine.MODIFIED)


class RelayedWork(Protocol):
    """A message that the client published in a transaction, or accepted, on a relayed link."""

    awaits_answer: bool
    """The primary answers it, which has to be heard before the discharge is sent."""

    @property
    def upstream(self) -> Upstream | None:
        """Where it can be sent now; None: nowhere yet."""

    def send(self, far_id: bytes) -> None:
        """Send it, as part of the primary's transaction."""

    def refuse(self, error: AmqpError) -> None:
        """It is not in the transaction: it was not sent, or its answer was not heard."""

    def ended(self, *, is_committed: bool) -> None:
        """It was sent, and the transaction is over."""


class NearTransaction(Protocol):
    """The client's."""

    failure: AmqpError | None
    """Why it was rolled back before its client could discharge it."""


class _State(Enum):
    DECLARING = "declaring"
    OPEN = "open"
    DISCHARGING = "discharging"
    ENDED = "ended"


class RelayedTransaction:
    """The promise: all of it is sent to one primary, in order, and taken before the discharge; or nothing counts."""

    def __init__(self, coordinator: FarCoordinator, near: NearTransaction) -> None:
        self.set_name = coordinator.set_name
        self._coordinator = coordinator
        self._near: NearTransaction | None = near
        """The client's, which has this one; None: this one has ended."""
        self._state = _State.DECLARING
        self._far_id = b""
        self._waiting: deque[RelayedWork] = deque()
        self._sent: dict[RelayedWork, None] = {}
        """Published and not answered, or accepted."""
        self._unanswered = 0
        """Of those in `_sent` that await an answer."""
        self._discharge: tuple[bool, Discharged] | None = None
        """The client's, whether it is a rollback, and who is to be told."""

    # --- from the client

    def add(self, work: RelayedWork) -> None:
        """The client did something in it."""
        self._waiting.append(work)
        self.go_on()

    def discharge(self, fails: bool, told: Discharged) -> None:
        """The client ends it; `fails`: by a rollback."""
        self._discharge = fails, told
        self.go_on()

    # --- from the primary

    def declared(self, far_id: bytes) -> None:
        """The primary calls it so."""
        self._far_id = far_id
        if self._state is _State.DECLARING:
            self._state = _State.OPEN
            self.go_on()
        elif self._state is _State.ENDED:
            self._coordinator.send_discharge(None, far_id, fails=True)

    def answered(self, work: RelayedWork) -> None:
        """The primary has taken a message that was published in it."""
        if self._sent.pop(work, self) is None:
            self._unanswered -= 1
            self.go_on()

    def refused(self, work: RelayedWork, outcome: Outcome) -> None:
        """The primary has not taken a message that was published in it: the rest of it does not count either."""
        if self._sent.pop(work, self) is None:
            self._unanswered -= 1
            self.fail(AmqpError(TRANSACTION_ROLLBACK, outcome.description or "one of its messages was refused"))

    def go_on(self) -> None:
        """Send what can be sent by now."""
        while self._waiting and self._state is _State.OPEN:
            work = self._waiting[0]
            upstream = work.upstream
            if upstream is None:
                return
            if upstream is not self._coordinator.upstream:
                self.fail(self._moved())
                return
            self._waiting.popleft()
            self._sent[work] = None
            self._unanswered += work.awaits_answer
            work.send(self._far_id)
        is_due = self._state is _State.OPEN and not self._unanswered
        if is_due and self._discharge is not None:
            self._state = _State.DISCHARGING
            self._coordinator.send_discharge(self, self._far_id, fails=self._discharge[0])

    def discharged(self, outcome: Outcome) -> None:
        """The primary has carried out the discharge, or has refused to: `accepted`, or `rejected`."""
        if self._discharge is not None:
            fails, told = self._discharge
            self._over(is_committed=outcome.state == engine.ACCEPTED and not fails)
            told(outcome)

    def not_discharged(self) -> None:
        """The primary has not looked at the discharge, because its end of the coordinator had ended: with that, it has
        rolled back."""
        if self._discharge is not None:
            fails, told = self._discharge
            self._over(is_committed=False)
            told(_ACCEPTED if fails else _refusal(self._moved()))

    # --- the end

    def lost(self, reason: str) -> None:
        """The primary is lost, or leads no more."""
        if self._state is _State.OPEN:
            self.fail(AmqpError(TRANSACTION_ROLLBACK, f"{reason}, and with it the transaction"))
        elif self._state is _State.DISCHARGING and self._discharge is not None:
            fails, told = self._discharge
            self._over(is_committed=False)
            text = f"{reason}, before it answered the commit: whether the transaction counts is not known"
            told(_ACCEPTED if fails else AmqpError(DETACH_FORCED, text))

    def fail(self, error: AmqpError) -> None:
        """It cannot go on, and is rolled back; not once its discharge is sent."""
        if self._state in (_State.DISCHARGING, _State.ENDED):
            return
        failure = AmqpError(TRANSACTION_ROLLBACK, error.description)
        if self._near is not None:
            self._near.failure = failure
        if self._far_id:
            self._coordinator.send_discharge(None, self._far_id, fails=True)
        discharge, waiting = self._discharge, self._waiting
        self._waiting = deque()
        unanswered = [work for work in self._sent if work.awaits_answer]
        self._over(is_committed=False)
        for work in (*unanswered, *waiting):
            work.refuse(error)
        if discharge is not None:
            fails, told = discharge
            told(_ACCEPTED if fails else _refusal(failure))

    def abandon(self, error: AmqpError) -> None:
        """The client's coordinator is gone: nobody will hear how it ends."""
        self._discharge = None
        self.fail(error)
        if self._state is not _State.ENDED:
            self._over(is_committed=False)

    def _moved(self) -> AmqpError:
        text = f"the resource set {self.set_name} has moved to another broker, and the transaction does not go with it"
        return AmqpError(TRANSACTION_ROLLBACK, text)

    def _over(self, *, is_committed: bool) -> None:
        self._state = _State.ENDED
        self._discharge = self._near = None
        sent, self._sent = self._sent, {}
        self._coordinator.forget(self)
        for work in sent:
            if not work.awaits_answer:
                work.ended(is_committed=is_committed)


class FarCoordinator(PrimaryEnd, EachDisposition):
    """One client's coordinator at the primary of one set, attached while it has transactions there.

    The promise: each transaction that was begun hears once how it ended.
    """

    def __init__(self, request: RelayRequest, relayer: Relayer) -> None:
        super().__init__(request)
        self._relayer = relayer
        self._is_placed = False
        self._sender: Sender | None = None
        self._open: dict[RelayedTransaction, None] = {}
        self._declaring: dict[Delivery, tuple[RelayedTransaction, Any]] = {}
        """With the delivery's tag."""
        self._discharging: dict[Delivery, tuple[RelayedTransaction | None, Any]] = {}
        """None: nobody waits for the answer."""

    def begin(self, near: NearTransaction) -> RelayedTransaction:
        """Declare one."""
        transaction = RelayedTransaction(self, near)
        self._open[transaction] = None
        if self._sender is not None:
            self._declare(self._sender, transaction)
        elif not self._is_placed:
            self._is_placed = True
            self._relayer.place(self)
        return transaction

    def forget(self, transaction: RelayedTransaction) -> None:
        """It is over."""
        self._open.pop(transaction, None)

    def _declare(self, sender: Sender, transaction: RelayedTransaction) -> None:
        delivery, tag = sender.send(_request("amqp:declare:list", None))
        self._declaring[delivery] = transaction, tag
        self._touch_far()

    def send_discharge(self, transaction: RelayedTransaction | None, far_id: bytes, *, fails: bool) -> None:
        """End one at the primary; `transaction`: who is told the answer. Where the primary is lost it ends by that."""
        sender = self._sender
        if sender is not None:
            delivery, tag = sender.send(_request("amqp:discharge:list", far_id, fails))
            self._discharging[delivery] = transaction, tag
            self._touch_far()

    def _touch_far(self) -> None:
        if self.upstream is not None:
            self.upstream.touch()

    # --- the far end: see `upstream.UpstreamLink`, `relayer.PlacedLink` and `engine.Sending`

    def open_far(self, upstream: Upstream, session: Any, name: str) -> proton.Link:
        far: proton.Link = session.sender(name)
        far.target.address = COORDINATOR
        return self._opened(far)

    def attached(self, upstream: Upstream, far: proton.Link) -> FarCoordinator:
        self.upstream, self._sender = upstream, Sender(far)
        if not upstream.relays_sets:
            text = f"the broker that leads the resource set {self.set_name} is of an older version, which takes no"
            self._fail_all(AmqpError(NOT_IMPLEMENTED, f"{text} transactions from other brokers: upgrade it"))
            self._let_go()
        for transaction in list(self._open):
            self._declare(self._sender, transaction)
        return self

    def flow(self) -> None:
        """The primary changed its credit: what was sent without goes out by itself."""

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """The primary has answered.

        Its answers are `declared`, `accepted` and `rejected`. Anything else is no answer of a coordinator but what is
        said of messages for a link that has ended there, as we are about to hear: see `_not_carried_out`.
        """
        if not settled:
            return
        if state not in _ANSWERS:
            self._not_carried_out(delivery, state)
            return
        declaring, discharging = self._declaring.pop(delivery, None), self._discharging.pop(delivery, None)
        remote = RemoteOutcome(delivery)
        far_id, outcome = b"", None
        try:
            if state == engine.DECLARED:
                far_id = remote.transaction()[0]
            else:
                outcome = remote.read()
        except (AmqpError, ValueError) as error:
            outcome = Outcome(engine.REJECTED, condition=INVALID_FIELD, description=str(error))
        engine.forget(delivery)
        found = declaring or discharging
        if found is not None and self._sender is not None:
            self._sender.free(found[1])
        if declaring is not None and far_id:
            declaring[0].declared(far_id)
        elif declaring is not None:
            text = (outcome is not None and outcome.description) or f"it answered with state {state}"
            declaring[0].fail(AmqpError(TRANSACTION_ROLLBACK, f"the primary has declared no transaction: {text}"))
        elif discharging is not None and discharging[0] is not None and outcome is not None:
            discharging[0].discharged(outcome)

    def _not_carried_out(self, delivery: Delivery, state: int) -> None:
        """A request came when the primary's end of the coordinator had ended. What it has released it did not look at;
        of what it has settled without a word nobody knows. What was to be declared is declared at the next primary."""
        engine.forget(delivery)
        self._declaring.pop(delivery, None)
        discharging = self._discharging.pop(delivery, None)
        transaction = None if discharging is None else discharging[0]
        if transaction is not None and state in _NOT_TAKEN:
            transaction.not_discharged()
        elif transaction is not None:
            transaction.lost(f"the broker that led the resource set {self.set_name} has ended the coordinator")

    def detached(self, error: AmqpError) -> None:
        if is_elsewhere(error):
            self.lost(error.description)
            return
        self._left()
        self._fail_all(error)
        self._let_go()

    def lost(self, reason: str) -> None:
        self._left()
        for transaction in list(self._open):
            transaction.lost(f"the broker that led the resource set {self.set_name} was lost, or leads it no more")
        if self._open:
            self._relayer.attach_again(self)
        else:
            self._let_go()

    def out_of_reach(self) -> None:
        """The links say it on which the client does something in its transactions."""

    def _left(self) -> None:
        self.upstream = self._sender = None
        self._declaring.clear()
        self._discharging.clear()

    def _fail_all(self, error: AmqpError) -> None:
        for transaction in list(self._open):
            transaction.lost(error.description)
            transaction.fail(error)

    def _let_go(self) -> None:
        self._is_placed = False
        self._relayer.forget(self)

    def close(self, error: AmqpError) -> None:
        """The client's coordinator is gone: all is rolled back."""
        self._sender = None
        for transaction in list(self._open):
            transaction.abandon(error)
        self._left()
        self._let_go()


def _refusal(error: AmqpError) -> Outcome:
    return Outcome(engine.REJECTED, condition=error.name, description=error.description)


def _request(descriptor: str, *fields: Any) -> bytes:
    body = proton.Described(proton.symbol(descriptor), list(fields))
    return bytes(proton.Message(body=body).encode())
