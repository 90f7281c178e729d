"""Errors in AMQP's own terms: a condition that a program reads, and a sentence that a person reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import proton

from qpid_ha_broker.access.rules import Denied
from qpid_ha_broker.model import errors

DECODE_ERROR = "amqp:decode-error"
INTERNAL_ERROR = "amqp:internal-error"
INVALID_FIELD = "amqp:invalid-field"
NOT_ALLOWED = "amqp:not-allowed"
NOT_FOUND = "amqp:not-found"
NOT_IMPLEMENTED = "amqp:not-implemented"
PRECONDITION_FAILED = "amqp:precondition-failed"
RESOURCE_DELETED = "amqp:resource-deleted"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
RESOURCE_LOCKED = "amqp:resource-locked"
UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
CONNECTION_FORCED = "amqp:connection:forced"
CONNECTION_REDIRECT = "amqp:connection:redirect"
FRAME_TOO_SMALL = "amqp:frame-size-too-small"
FRAMING_ERROR = "amqp:connection:framing-error"
LINK_REDIRECT = "amqp:link:redirect"
LINK_STOLEN = "amqp:link:stolen"
DETACH_FORCED = "amqp:link:detach-forced"
MESSAGE_SIZE = "amqp:link:message-size-exceeded"
TRANSFER_LIMIT = "amqp:link:transfer-limit-exceeded"
TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
NOT_ENOUGH_REPLICAS = "qpid-ha:not-enough-replicas"

SOLE_CONNECTION = "sole-connection-for-container"
"""A capability that a client desires in its open, as Qpid JMS does: it knows the next name (AMQP Enforcing Connection
Uniqueness 1.0 has both)."""
READS_REFUSALS = "qpid.reads-refusals"
"""A capability that a client desires which knows the same, and does not ask to be the only one with its container id:
`qpid_ha_client`, which in releases before this one had but the other word for it."""
RESOURCE_SETS = "qpid.resource-sets"
"""A capability of our open: a queue that this broker does not lead, or has not, may be elsewhere."""
ESTABLISHMENT_FAILED = "amqp:connection-establishment-failed"
"""A property of our open: no connection comes of it, and a close with the reason follows."""

_OF_MODEL = {
    Denied: UNAUTHORIZED_ACCESS,
    errors.NotFound: NOT_FOUND,
    errors.AlreadyExists: PRECONDITION_FAILED,
    errors.InvalidArgument: INVALID_FIELD,
    errors.QueueFull: RESOURCE_LIMIT,
    errors.LimitReached: RESOURCE_LIMIT,
    errors.InUse: RESOURCE_LOCKED,
    errors.RefusedBefore: PRECONDITION_FAILED,
    errors.NumberTooHigh: INVALID_FIELD,
    errors.NotEnoughReplicas: NOT_ENOUGH_REPLICAS,
    errors.NotPrimary: NOT_ALLOWED,
    errors.QueueLocked: NOT_ALLOWED,
    errors.NotSupported: NOT_IMPLEMENTED,
    errors.OtherSet: NOT_IMPLEMENTED,
    errors.ControllerRefusal: NOT_ALLOWED,
    errors.Unavailable: RESOURCE_LOCKED,
}


UNLIMITED_BYTES = 1 << 32
"""Of a frame, where the peer takes any."""
CONDITION_BYTES = 160
"""Of a frame with an error in it, all that is neither the error's description nor its information, at most."""

BUG = "a bug of this broker came up: its log says which; connect again"
"""What a peer is told whose connection cannot go on for it."""


def encoded_bytes(value: Any) -> int:
    """How long the AMQP encoding of `value` is; nothing for None."""
    if value is None:
        return 0
    data = proton.Data()
    data.put_object(value)
    return len(data.encode())


def cut(text: str, most_bytes: int) -> str:
    """`text`, or as much of its beginning as fits into so many bytes of UTF-8."""
    if len(text) * 4 <= most_bytes:
        return text
    return text.encode("utf-8", "replace")[: max(most_bytes, 0)].decode("utf-8", "ignore")


class AmqpError(Exception):
    """What a peer is told: `name` is the condition's symbol, `description` says what was wrong and what to do.

    `info` is what a program needs beyond that, such as `network-host` and `port` of the primary.
    """

    def __init__(self, name: str, description: str, info: Mapping[str, object] | None = None) -> None:
        super().__init__(f"{name}: {description}")
        self.name = name
        self.description = description
        self.info = info

    def as_condition(self, frame_bytes: int = UNLIMITED_BYTES) -> proton.Condition:
        """For the end of a connection, a session or a link, in a frame of so many bytes at most."""
        info = symbol_map(self.info) if self.info else None
        room = frame_bytes - CONDITION_BYTES
        if info is not None:
            size = encoded_bytes(info)
            info, room = (info, room - size) if size <= room else (None, room)
        return proton.Condition(self.name, cut(self.description, room), info)


class DecodeError(AmqpError, errors.ModelError):
    """Bytes that cannot be read. Also an error of the model, which asks for a message's properties when it routes."""

    def __init__(self, description: str) -> None:
        super().__init__(DECODE_ERROR, description)


def as_amqp(error: errors.ModelError) -> AmqpError:
    """The refusal in the protocol's terms."""
    if isinstance(error, AmqpError):
        return error
    return AmqpError(_OF_MODEL.get(type(error), INTERNAL_ERROR), str(error))


def as_told(condition: proton.Condition | None, name: str, missing: str) -> AmqpError:
    """What a peer said when it ended something; `name` and `missing` where it said nothing."""
    if condition is None:
        return AmqpError(name, missing)
    info = condition.info if isinstance(condition.info, dict) else {}
    known = {str(key): value for key, value in info.items()}
    return AmqpError(str(condition.name), condition.description or missing, known or None)


def symbol_map(values: Mapping[str, Any]) -> dict[Any, Any]:
    """`values` as the standard wants a map of fields, and a port in it (AMQP 1.0 section 2.8.16)."""
    return {proton.symbol(name): proton.ushort(value) if name == "port" else value for name, value in values.items()}
