"""Local transactions of one connection (AMQP 1.0 part 4): which are open, and how large they may become."""

from __future__ import annotations

from qpid_ha_broker.amqp.conditions import (
    INVALID_FIELD,
    RESOURCE_LIMIT,
    TRANSACTION_ROLLBACK,
    UNKNOWN_TRANSACTION,
    AmqpError,
)
from qpid_ha_broker.amqp.engine import Delivery, RemoteOutcome
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.log import CommitToken
from qpid_ha_broker.model.resources import Resources
from qpid_ha_broker.model.transaction import Transaction
from qpid_ha_broker.model.work import Task

MAX_OPEN_TRANSACTIONS = 1024


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

    def take(self, transaction_id: bytes) -> Transaction:
        """One that is open, and is no longer: to be committed or rolled back. Raises AmqpError."""
        transaction = self._open.pop(transaction_id, None)
        if transaction is None:
            raise AmqpError(UNKNOWN_TRANSACTION, f"transaction {transaction_id.hex()} is not open on this connection")
        return transaction

    def commit(self, transaction: Transaction, now_ms: int) -> CommitToken:
        """Carry it out; returns what to wait for. Raises AmqpError when that cannot be: it is rolled back."""
        try:
            return self._resources.commit(transaction, now_ms)
        except ModelError as error:
            self._resources.roll_back(transaction)
            raise AmqpError(TRANSACTION_ROLLBACK, str(error)) from error

    def roll_back(self, transaction: Transaction) -> CommitToken:
        """Undo it; returns what to wait for."""
        self._resources.roll_back(transaction)
        return self._resources.written

    def closed(self, budget: Budget) -> None:
        """The connection is gone: roll everything back, what there is no time for in the turns to come."""
        transactions, self._open = list(self._open.values()), {}
        self._resources.begin(self._roll_back(transactions), budget)

    def _roll_back(self, transactions: list[Transaction]) -> Task:
        for transaction in transactions:
            self._resources.roll_back(transaction)
            yield
