"""Local transactions of one connection, and the link on which they are declared and discharged (AMQP 1.0 part 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import proton

from qpid_ha_broker.amqp import engine
from qpid_ha_broker.amqp.conditions import (
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    TRANSACTION_ROLLBACK,
    UNKNOWN_TRANSACTION,
    AmqpError,
)
from qpid_ha_broker.amqp.engine import Delivery, RemoteOutcome
from qpid_ha_broker.amqp.incoming import ReceivingLink
from qpid_ha_broker.amqp.outgoing import OutgoingLink
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.log import CommitToken
from qpid_ha_broker.model.transaction import Transaction
from qpid_ha_broker.model.work import Task

if TYPE_CHECKING:
    from qpid_ha_broker.amqp.connection import Connection
    from qpid_ha_broker.model.resources import Resources
    from qpid_ha_broker.model.sequence import Entry

MAX_OPEN_TRANSACTIONS = 1024
_DECLARE = ("amqp:declare:list", 0x31)
_DISCHARGE = ("amqp:discharge:list", 0x32)
_COORDINATOR_CREDIT = 100


class Transactions:
    """The transactions that one connection has open, by id."""

    def __init__(self, resources: Resources, max_bytes: int, max_messages: int) -> None:
        self._resources = resources
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        """Published and accepted: all of it is written in one unit, in which nobody else is served."""
        self._open: dict[bytes, Transaction] = {}
        self._last_id = 0

    def declare(self) -> bytes:
        """Begin one. Raises AmqpError when too many are open."""
        if len(self._open) >= MAX_OPEN_TRANSACTIONS:
            raise AmqpError(RESOURCE_LIMIT, f"{MAX_OPEN_TRANSACTIONS} transactions are open: discharge some first")
        self._last_id += 1
        transaction_id = self._last_id.to_bytes(8, "big")
        self._open[transaction_id] = Transaction()
        return transaction_id

    def of(self, delivery: Delivery) -> tuple[bytes, Transaction]:
        """The transaction that a delivery's state names. Raises AmqpError for one that is not open."""
        try:
            transaction_id = RemoteOutcome(delivery).transaction()[0]
        except (TypeError, ValueError) as error:
            raise AmqpError(INVALID_FIELD, str(error)) from error
        if transaction_id not in self._open:
            raise AmqpError(UNKNOWN_TRANSACTION, f"transaction {transaction_id.hex()} is not open on this connection")
        return transaction_id, self._open[transaction_id]

    def check_size(self, transaction: Transaction) -> None:
        """Raises AmqpError when more waits than the broker holds for one, and takes back the last publish."""
        if transaction.size > self._max_bytes:
            transaction.withdraw()
            raise AmqpError(RESOURCE_LIMIT, f"a transaction holds at most {self._max_bytes} bytes: discharge it first")
        if transaction.length > self._max_messages:
            transaction.withdraw()
            raise self._too_long()

    def check_accept(self, transaction: Transaction) -> None:
        """Raises AmqpError when no more may be accepted in it."""
        if transaction.length >= self._max_messages:
            raise self._too_long()

    def _too_long(self) -> AmqpError:
        text = (
            f"a transaction holds at most {self._max_messages} messages (max-transaction-messages): discharge it first"
        )
        return AmqpError(RESOURCE_LIMIT, text)

    def discharge(self, transaction_id: bytes, fail: bool, now_ms: int) -> CommitToken:
        """End one; returns what to wait for. Raises AmqpError when it cannot be committed: it is rolled back."""
        transaction = self._open.pop(transaction_id, None)
        if transaction is None:
            raise AmqpError(UNKNOWN_TRANSACTION, f"transaction {transaction_id.hex()} is not open on this connection")
        if fail:
            self._resources.roll_back(transaction)
            return self._resources.written
        try:
            token = self._resources.commit(transaction, now_ms)
        except ModelError as error:
            self._resources.roll_back(transaction)
            raise AmqpError(TRANSACTION_ROLLBACK, str(error)) from error
        _settle_accepted(transaction, token)
        return token

    def closed(self, budget: Budget) -> None:
        """The connection is gone: roll everything back, what there is no time for in the turns to come."""
        transactions, self._open = list(self._open.values()), {}
        self._resources.begin(self._roll_back(transactions), budget)

    def _roll_back(self, transactions: list[Transaction]) -> Task:
        for transaction in transactions:
            self._resources.roll_back(transaction)
            yield


def _settle_accepted(transaction: Transaction, token: CommitToken) -> None:
    """Some clients accept in a transaction and settle nothing: what is done is ours to settle then."""
    entries_by_link: dict[OutgoingLink, set[Entry]] = {}
    for _, entry in transaction.accepted:
        consumer = transaction.consumer_of(entry)
        if isinstance(consumer, OutgoingLink):
            entries_by_link.setdefault(consumer, set()).add(entry)
    for link, entries in entries_by_link.items():
        link.settle_committed(entries, token)


class CoordinatorLink(ReceivingLink):
    """Each message declares or discharges. The promise: a commit is accepted only when the log has committed it."""

    request_bytes = 4 * 1024

    def __init__(self, connection: Connection, link: proton.Link) -> None:
        super().__init__(connection, link, _COORDINATOR_CREDIT)

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
        transactions, now_ms = self.connection.transactions, self.connection.container.now_ms
        descriptor, fields = read_request(payload)
        if descriptor in _DECLARE:
            engine.set_local_data(delivery, engine.DECLARED, [transactions.declare()], settle_now=True)
            self.answered()
        elif descriptor in _DISCHARGE and fields and isinstance(fields[0], bytes | memoryview):
            self.connection.container.flush_accepted()
            fail = len(fields) > 1 and bool(fields[1])
            self._unconfirmed.append((*transactions.discharge(bytes(fields[0]), fail, now_ms), delivery))
            self.connection.container.unconfirmed[self] = None
        else:
            raise AmqpError(NOT_IMPLEMENTED, f"a coordinator takes declare and discharge, not {descriptor}")

    def closed(self, *, lost: bool) -> None:
        """The link is gone; what is open ends with it (AMQP 1.0 section 4.3)."""
        super().closed(lost=lost)
        self.connection.transactions.closed(self.connection.budget())


def read_request(payload: bytes) -> tuple[object, list[object]]:
    """Descriptor and fields of what a client wants of the coordinator. Raises AmqpError."""
    message = proton.Message()
    try:
        message.decode(payload)
        body = message.body
    except (proton.ProtonException, ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise AmqpError(INVALID_FIELD, f"a coordinator cannot read this message: {error}") from error
    if not isinstance(body, proton.Described) or not isinstance(body.value, list):
        raise AmqpError(INVALID_FIELD, "a coordinator takes a described list: declare or discharge")
    # A view points into the message, which is gone when this returns.
    return body.descriptor, [bytes(value) if isinstance(value, memoryview) else value for value in body.value]
