"""The link on which a client declares and discharges transactions (AMQP 1.0 section 4.1)."""

from __future__ import annotations

import proton

from qpid_ha_broker.amqp import engine
from qpid_ha_broker.amqp.conditions import INVALID_FIELD, NOT_IMPLEMENTED, AmqpError
from qpid_ha_broker.amqp.connection import Connection
from qpid_ha_broker.amqp.engine import Delivery
from qpid_ha_broker.amqp.incoming import ReceivingLink
from qpid_ha_broker.amqp.outgoing import OutgoingLink
from qpid_ha_broker.model.log import CommitToken
from qpid_ha_broker.model.sequence import Entry
from qpid_ha_broker.model.transaction import Transaction

_DECLARE = ("amqp:declare:list", 0x31)
_DISCHARGE = ("amqp:discharge:list", 0x32)
_COORDINATOR_CREDIT = 100


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
            transaction = transactions.take(bytes(fields[0]))
            if transaction.hosted is not None:
                transaction.hosted.flush_accepted()
            if len(fields) > 1 and fields[1]:
                token = transactions.roll_back(transaction)
            else:
                token = transactions.commit(transaction, now_ms)
                _settle_accepted(transaction, token)
            self._unconfirmed.append((*token, delivery))
            self.hosted.unconfirmed[self] = None
        else:
            raise AmqpError(NOT_IMPLEMENTED, f"a coordinator takes declare and discharge, not {descriptor}")

    def closed(self, *, lost: bool) -> None:
        """The link is gone; what is open ends with it (AMQP 1.0 section 4.3)."""
        super().closed(lost=lost)
        self.connection.transactions.closed(self.connection.budget())


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
        message.decode(payload)
        body = message.body
    except (proton.ProtonException, ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise AmqpError(INVALID_FIELD, f"a coordinator cannot read this message: {error}") from error
    if not isinstance(body, proton.Described) or not isinstance(body.value, list):
        raise AmqpError(INVALID_FIELD, "a coordinator takes a described list: declare or discharge")
    # A view points into the message, which is gone when this returns.
    return body.descriptor, [bytes(value) if isinstance(value, memoryview) else value for value in body.value]
