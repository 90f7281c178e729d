"""Errors in AMQP's own terms: a condition that a program reads, and a sentence that a person reads."""

from __future__ import annotations

from qpid_ha_broker.model import errors

DECODE_ERROR = "amqp:decode-error"
INTERNAL_ERROR = "amqp:internal-error"
INVALID_FIELD = "amqp:invalid-field"
NOT_FOUND = "amqp:not-found"
NOT_IMPLEMENTED = "amqp:not-implemented"
PRECONDITION_FAILED = "amqp:precondition-failed"
RESOURCE_DELETED = "amqp:resource-deleted"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
RESOURCE_LOCKED = "amqp:resource-locked"
CONNECTION_FORCED = "amqp:connection:forced"
FRAMING_ERROR = "amqp:connection:framing-error"
MESSAGE_SIZE = "amqp:link:message-size-exceeded"
TRANSFER_LIMIT = "amqp:link:transfer-limit-exceeded"
TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"

_OF_MODEL = {
    errors.NotFound: NOT_FOUND,
    errors.AlreadyExists: PRECONDITION_FAILED,
    errors.InvalidArgument: INVALID_FIELD,
    errors.QueueFull: RESOURCE_LIMIT,
    errors.InUse: RESOURCE_LOCKED,
}


class AmqpError(Exception):
    """What a peer is told: `name` is the condition's symbol, `description` says what was wrong and what to do."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(f"{name}: {description}")
        self.name = name
        self.description = description


class DecodeError(AmqpError, errors.ModelError):
    """Bytes that cannot be read. Also an error of the model, which asks for a message's properties when it routes."""

    def __init__(self, description: str) -> None:
        super().__init__(DECODE_ERROR, description)


def as_amqp(error: errors.ModelError) -> AmqpError:
    """The same refusal in the protocol's terms."""
    if isinstance(error, AmqpError):
        return error
    return AmqpError(_OF_MODEL.get(type(error), INTERNAL_ERROR), str(error))
