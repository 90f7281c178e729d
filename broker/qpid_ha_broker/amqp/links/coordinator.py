"""The link on which a client declares and discharges transactions (AMQP 1.0 section 4.1)."""

from __future__ import annotations

from functools import partial

import proton

from qpid_ha_broker.amqp.connections.connection import Connection, RelayedOwner
from qpid_ha_broker.amqp.connections.transactions import UNDECIDED
from qpid_ha_broker.amqp.links.incoming import ReceivingLink
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, NOT_IMPLEMENTED, TRANSACTION_ROLLBACK, AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, Outcome
from qpid_ha_broker.amqp.wire.relay import RelayRequest
from qpid_ha_broker.events.payloads import without_format
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.transactions.transaction import Transaction

_DECLARE = ("amqp:declare:list", 0x31)
_DISCHARGE = ("amqp:discharge:list", 0x32)
_COORDINATOR_CREDIT = 100
_ROLLED_BACK = AmqpError(
    TRANSACTION_ROLLBACK, "the coordinator link has ended before the commit came, and the transaction with it"
)


class CoordinatorLink(ReceivingLink):
    """Each message declares or discharges. The promise: a commit is accepted only when the log has committed it."""

    request_bytes = 4 * 1024
    is_paced = False

    def __init__(self, connection: Connection, link: proton.Link, relay: RelayRequest | None = None) -> None:
        """`relay`: whose transactions these are, where another broker has it. Raises ServedElsewhere."""
        container = connection.container
        hosted = container.default if relay is None else container.led_set(relay.set_name)
        super().__init__(connection, link, _COORDINATOR_CREDIT, hosted)
        self._transactions = connection.transactions
        self._owner: RelayedOwner | None = None
        self._relayed: dict[Delivery, None] = {}
        """Discharges that another broker is to answer."""
        if relay is not None:
            self._owner = connection.relay.owner_of(relay.client)
            self._transactions = self._owner.transactions[hosted.name] = connection.transactions.of_another()
            hosted.links[self] = None

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """Carry out one request."""
        whole = self.whole(payload)
        if whole is None:
            return
        try:
            self._carry_out(delivery, whole)
        except AmqpError as error:
            engine.reject(delivery, error.name, error.description)
            self.answered()

    def _carry_out(self, delivery: Delivery, payload: bytes) -> None:
        transactions = self._transactions
        descriptor, fields = read_request(payload)
        if descriptor in _DECLARE:
            engine.set_local_data(delivery, engine.DECLARED, [transactions.declare()], settle_now=True)
            self.answered()
        elif descriptor in _DISCHARGE and fields and isinstance(fields[0], bytes | memoryview):
            transaction = transactions.take(bytes(fields[0]))
            fails = len(fields) > 1 and bool(fields[1])
            if transaction.undecided and not fails:
                transactions.fail(transaction, UNDECIDED)
            if transaction.relayed is not None and transaction.failure is None:
                self._relayed[delivery] = None
                transaction.relayed.discharge(fails, partial(self._discharged, delivery))
                return
            if transaction.hosted is not None:
                transaction.hosted.flush_accepted()
            if fails:
                token = transactions.roll_back(transaction)
            else:
                token = transactions.commit(transaction)
                _settle_accepted(transaction, token)
            self._unconfirmed.append((*token, delivery))
            self.hosted.unconfirmed[self] = None
            self.hosted.touch()
        else:
            raise AmqpError(NOT_IMPLEMENTED, f"a coordinator takes declare and discharge, not {descriptor}")

    def _discharged(self, delivery: Delivery, answer: Outcome | AmqpError) -> None:
        """The broker that leads the set has answered, or is lost."""
        if self._relayed.pop(delivery, self) is self:
            return  # this link is gone
        if isinstance(answer, AmqpError):
            self.end(answer)
            return
        answer.settle(delivery)
        self.answered()

    def closed(self, *, lost: bool) -> None:
        """The link is gone; what is open ends with it (AMQP 1.0 section 4.3)."""
        super().closed(lost=lost)
        self._relayed.clear()
        owner, name = self._owner, self.hosted.name
        if owner is not None and owner.transactions.get(name) is self._transactions:
            del owner.transactions[name]
        self._transactions.closed(self.connection.budget())


def answer_late(delivery: Delivery, payload: bytes) -> None:
    """Of a request that came when the coordinator link had ended on our side, and its transactions with it.

    A discharge is accepted or rejected. Released, as messages are that come late, it counts as accepted with clients
    that look for `rejected` alone, as Proton's Python client does; so it does when it is settled without a word.
    """
    try:
        descriptor, fields = read_request(payload)
    except AmqpError as error:
        engine.reject(delivery, error.name, error.description)
        return
    if descriptor not in _DISCHARGE:
        engine.settle(delivery, engine.RELEASED)
    elif len(fields) > 1 and fields[1]:
        engine.settle(delivery, engine.ACCEPTED)
    else:
        engine.reject(delivery, _ROLLED_BACK.name, _ROLLED_BACK.description)


def _settle_accepted(transaction: Transaction, token: CommitToken) -> None:
    """Some clients accept in a transaction and settle nothing: what is done is ours to settle then."""
    entries_by_link: dict[OutgoingLink, set[Entry]] = {}
    for _, entry in transaction.accepted:
        consumer = transaction.consumer_of(entry)
        if isinstance(consumer, OutgoingLink):
            entries_by_link.setdefault(consumer, set()).add(entry)
    for link, entries in entries_by_link.items():
        link.settle_committed(entries, token)


def read_request(payload: bytes) -> tuple[object, list[object]]:
    """Descriptor and fields of what a client wants of the coordinator. Raises AmqpError."""
    message = proton.Message()
    try:
        message.decode(without_format(payload))
        body = message.body
    except (proton.ProtonException, ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise AmqpError(INVALID_FIELD, f"a coordinator cannot read this message: {error}") from error
    if not isinstance(body, proton.Described) or not isinstance(body.value, list):
        raise AmqpError(INVALID_FIELD, "a coordinator takes a described list: declare or discharge")
    # A view points into the message, which is gone when this returns.
    return body.descriptor, [bytes(value) if isinstance(value, memoryview) else value for value in body.value]
