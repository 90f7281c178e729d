"""Local transactions of one connection (AMQP 1.0 part 4): which are open, and how large they may become."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.relaying.relayed_transactions import FarCoordinator, RelayedTransaction
from qpid_ha_broker.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    TRANSACTION_ROLLBACK,
    UNKNOWN_TRANSACTION,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.engine import Delivery, RemoteOutcome
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.errors import ModelError, fresh
from qpid_ha_broker.model.logs.log import COMMITTED, CommitToken
from qpid_ha_broker.model.transactions.transaction import Transaction
from qpid_ha_broker.model.work import Task

MAX_OPEN_TRANSACTIONS = 1024
UNDECIDED = AmqpError(
    TRANSACTION_ROLLBACK,
    "it is not known yet where one of its messages goes: await the answer to each before the commit",
)
LINK_ENDED = AmqpError(
    TRANSACTION_ROLLBACK, "the link of one of its messages has ended before what came on it was looked at"
)


class SetTransaction(Transaction):
    """A transaction, which stays within one resource set."""

    __slots__ = ("failure", "hosted", "relayed", "undecided")

    def __init__(self) -> None:
        super().__init__()
        self.hosted: HostedSet | None = None
        """The set of all that is in it; None: nothing is yet, or another broker leads that set."""
        self.relayed: RelayedTransaction | None = None
        """At the broker that leads the set of all that is in it."""
        self.failure: AmqpError | None = None
        """Why it was rolled back before its client could discharge it."""
        self.undecided = 0
        """Messages of it of which is asked where they go."""


class TransactionIds:
    """The transactions that are open on one connection, its own and those of clients that are relayed on it.

    An id is never used twice: it says which transaction it is also when nobody knows any more whose link it came on.
    """

    def __init__(self) -> None:
        self.open: dict[bytes, SetTransaction] = {}
        self._last = 0

    def add(self, transaction: SetTransaction) -> bytes:
        """Its id."""
        self._last += 1
        transaction_id = self._last.to_bytes(8, "big")
        self.open[transaction_id] = transaction
        return transaction_id


class Transactions:
    """The transactions that one client has open, by id.

    The promise: a commit is accepted only with everything that its client did in the transaction. What is refused of
    it, or came when its link had ended, rolls it back: a client may send the commit before it hears of that.
    """

    def __init__(
        self,
        default: HostedSet,
        max_bytes: int,
        max_messages: int,
        ids: TransactionIds | None = None,
    ) -> None:
        """`ids`: of the connection; None: it has none so far."""
        self._default = default
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        """Published and accepted: all of it is written in one unit, in which nobody else is served."""
        self._open: dict[bytes, SetTransaction] = {}
        self._ids = ids or TransactionIds()
        self._joined: dict[HostedSet, None] = {}
        """Sets that something was published to, or accepted from, in any of them."""
        self._coordinators: dict[str, FarCoordinator] = {}
        """By set, at the brokers that lead them."""

    def of_another(self) -> Transactions:
        """None so far, of another client, with the same limits."""
        return Transactions(self._default, self._max_bytes, self._max_messages, self._ids)

    def declare(self) -> bytes:
        """Begin one. Raises AmqpError when too many are open."""
        if len(self._open) >= MAX_OPEN_TRANSACTIONS:
            raise AmqpError(RESOURCE_LIMIT, f"{MAX_OPEN_TRANSACTIONS} transactions are open: discharge some first")
        transaction = SetTransaction()
        transaction_id = self._ids.add(transaction)
        self._open[transaction_id] = transaction
        return transaction_id

    def of(self, delivery: Delivery) -> tuple[bytes, SetTransaction]:
        """The transaction that a delivery's state names. Raises AmqpError for one that is not open."""
        transaction_id = _id_of(delivery)
        if transaction_id not in self._open:
            raise AmqpError(UNKNOWN_TRANSACTION, f"transaction {transaction_id.hex()} is not open on this connection")
        return transaction_id, self._open[transaction_id]

    def find(self, delivery: Delivery) -> SetTransaction | None:
        """That one, whichever client's on this connection; None where there is none."""
        try:
            return self._ids.open.get(_id_of(delivery))
        except AmqpError:
            return None

    def dropped(self, delivery: Delivery) -> None:
        """What came in a transaction, a message or what is said of one, when its link had ended is not looked at."""
        self.fail(self.find(delivery), LINK_ENDED)

    def refused(self, delivery: Delivery, error: AmqpError) -> None:
        """A message that came in a transaction is not taken, or not what is said of one."""
        self.fail(self.find(delivery), AmqpError(TRANSACTION_ROLLBACK, error.description))

    def fail(self, transaction: SetTransaction | None, error: AmqpError) -> None:
        """Roll it back, if it is open still; who discharges it gets `error`."""
        if transaction is None or transaction.failure is not None:
            return
        if transaction.relayed is not None:
            transaction.relayed.fail(error)
            return
        if transaction.hosted is not None:
            transaction.hosted.touch()
        self._fail(transaction, error)

    def _fail(self, transaction: SetTransaction, error: AmqpError) -> None:
        if transaction.hosted is not None:
            transaction.hosted.resources.roll_back(transaction)
        transaction.failure = AmqpError(TRANSACTION_ROLLBACK, error.description)

    def join(self, transaction: SetTransaction, hosted: HostedSet) -> None:
        """Something of `hosted` comes into it. Raises AmqpError when that is not the set of what is in it already."""
        if transaction.failure is not None:
            raise fresh(transaction.failure)
        if transaction.relayed is not None:
            raise _other_set(transaction.relayed.set_name, hosted.name)
        if transaction.hosted is None:
            transaction.hosted = hosted
            self._joined[hosted] = hosted.transactions[self] = None
        elif transaction.hosted is not hosted:
            raise _other_set(transaction.hosted.name, hosted.name)

    def join_relayed(
        self, transaction: SetTransaction, set_name: str, make: Callable[[], FarCoordinator]
    ) -> RelayedTransaction:
        """Something of a set comes into it that another broker leads. `make`: a coordinator there. Raises as `join`."""
        if transaction.failure is not None:
            raise fresh(transaction.failure)
        if transaction.hosted is not None:
            raise _other_set(transaction.hosted.name, set_name)
        relayed = transaction.relayed
        if relayed is None:
            coordinator = self._coordinators.get(set_name)
            if coordinator is None:
                coordinator = self._coordinators[set_name] = make()
            relayed = transaction.relayed = coordinator.begin(transaction)
        elif relayed.set_name != set_name:
            raise _other_set(relayed.set_name, set_name)
        return relayed

    def check_size(self, transaction: SetTransaction) -> None:
        """Raises AmqpError when more waits than the broker holds for one, and takes back the last publish."""
        if transaction.size > self._max_bytes:
            transaction.withdraw()
            raise AmqpError(RESOURCE_LIMIT, f"a transaction holds at most {self._max_bytes} bytes: discharge it first")
        if transaction.length > self._max_messages:
            transaction.withdraw()
            raise self._too_long()

    def check_accept(self, transaction: SetTransaction) -> None:
        """Raises AmqpError when no more may be accepted in it."""
        if transaction.length >= self._max_messages:
            raise self._too_long()

    def _too_long(self) -> AmqpError:
        text = (
            f"a transaction holds at most {self._max_messages} messages (max-transaction-messages): discharge it first"
        )
        return AmqpError(RESOURCE_LIMIT, text)

    def take(self, transaction_id: bytes) -> SetTransaction:
        """One that is open, and is no longer: to be committed or rolled back. Raises AmqpError."""
        transaction = self._open.pop(transaction_id, None)
        if transaction is None:
            raise AmqpError(UNKNOWN_TRANSACTION, f"transaction {transaction_id.hex()} is not open on this connection")
        del self._ids.open[transaction_id]
        return transaction

    def commit(self, transaction: SetTransaction) -> CommitToken:
        """Carry it out; returns what to wait for. Raises AmqpError when that cannot be: it is rolled back."""
        if transaction.failure is not None:
            raise fresh(transaction.failure)
        hosted = transaction.hosted
        if hosted is None:  # there is nothing in it
            return COMMITTED
        hosted.touch()
        resources = hosted.resources
        try:
            return resources.commit(transaction, hosted.now_ms)
        except ModelError as error:
            resources.roll_back(transaction)
            raise AmqpError(TRANSACTION_ROLLBACK, str(error)) from error

    def roll_back(self, transaction: SetTransaction) -> CommitToken:
        """Undo it; returns what to wait for."""
        hosted = transaction.hosted
        if hosted is None:
            return COMMITTED
        hosted.touch()
        hosted.resources.roll_back(transaction)
        return hosted.resources.written

    def set_ended(self, hosted: HostedSet, error: AmqpError) -> None:
        """Roll back those in `hosted`; who discharges one of them later gets `error` as the reason."""
        for transaction in self._open.values():
            if transaction.hosted is hosted and transaction.failure is None:
                self._fail(transaction, error)

    def closed(self, budget: Budget) -> None:
        """The connection is gone: roll everything back, what there is no time for in the turns to come."""
        coordinators, self._coordinators = self._coordinators, {}
        for coordinator in coordinators.values():
            coordinator.close(AmqpError(TRANSACTION_ROLLBACK, "the coordinator link has ended"))
        for transaction_id in self._open:
            del self._ids.open[transaction_id]
        transactions, self._open = list(self._open.values()), {}
        joined, self._joined = self._joined, {}
        for hosted in joined:
            hosted.transactions.pop(self, None)
            hosted.touch()
            hosted.resources.begin(_rolling_back(hosted, transactions), budget)


def _id_of(delivery: Delivery) -> bytes:
    """The id in its state. Raises AmqpError where there is none."""
    try:
        return RemoteOutcome(delivery).transaction()[0]
    except (TypeError, ValueError) as error:
        raise AmqpError(INVALID_FIELD, str(error)) from error


def _other_set(joined: str, other: str) -> AmqpError:
    if joined == other:  # it was led elsewhere when one of the links was attached, and is not now, or the other way
        text = f"the resource set {joined} has moved to another broker or back: roll back, and attach the links again"
    else:
        text = (
            f"a transaction stays within one resource set: this one has messages of {joined}, and the queue belongs to"
            f" {other}; discharge it first, or declare another one"
        )
    return AmqpError(NOT_IMPLEMENTED, text)


def _rolling_back(hosted: HostedSet, transactions: list[SetTransaction]) -> Task:
    for transaction in transactions:
        if transaction.hosted is hosted:
            hosted.resources.roll_back(transaction)
            yield
