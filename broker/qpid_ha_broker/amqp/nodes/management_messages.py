"""Requests to `$management` and their answers as AMQP messages (OASIS AMQP Management 1.0, working draft, section 3).

A request may be any bytes. What Proton makes of them is turned into plain values here, so that nothing further in meets
a descriptor, a symbol or a view into C's memory; what it cannot make sense of is answered, as long as the bytes say to
whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, AmqpError
from qpid_ha_broker.events.payloads import without_format
from qpid_ha_broker.model.logs.log import COMMITTED, CommitToken

MANAGEMENT = "$management"
REQUEST_BYTES: Final = 16 * 1024
"""Of a request, at most."""
OK, CREATED, ACCEPTED, NO_CONTENT, TEMPORARY_REDIRECT = 200, 201, 202, 204, 307
BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, GIVEN_UP, CONFLICT, PRECONDITION_FAILED = 400, 401, 404, 408, 409, 412
NOT_IMPLEMENTED, UNAVAILABLE = 501, 503

MAX_DESCRIPTION_CHARACTERS = 1000
_ASKED: Final = ("operation", "type", "name")
MAX_DEPTH = 16
"""Of the maps and lists of a request; four would do."""
_LARGEST_LONG = 2**63 - 1
_UNREADABLE = (proton.ProtonException, ValueError, TypeError, LookupError, OverflowError, RecursionError)
"""What Proton's classes raise for a message that is none: bad UTF-8, keys that cannot be keys, nesting without end."""


class RequestRefusal(Exception):
    """The request cannot be carried out: a status code, and what to do."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(description)
        self.status = status
        self.description = description


class Request(NamedTuple):
    """`problem` is empty, or says why there is nothing in `properties` and `body`."""

    reply_to: str | None
    correlation_id: object
    properties: Mapping[str, object]
    body: object
    problem: str = ""
    created_by: str = ""
    """The user for whom a queue is made that the request asks for, if that is counted."""


class ManagementAnswer(NamedTuple):
    """What goes back. `properties` are the application properties beside the status."""

    status: int
    description: str
    body: object
    properties: Mapping[str, object] = {}
    written: CommitToken = COMMITTED
    """Has to be committed before the answer may go out."""


def read_request(data: bytes) -> Request | None:
    """None when the bytes are no message, and nobody can be told so."""
    message = proton.Message()
    try:
        message.decode(without_format(data))
        properties, body, problem = _plain(message.properties), _plain(message.body), ""
    except _UNREADABLE as error:
        properties, body, problem = {}, None, f"the message cannot be read: {error!s:.200}"
    if properties is None:
        properties = {}
    if not isinstance(properties, dict):
        properties, problem = {}, "the application properties are not a map"
    try:
        reply_to, correlation_id = message.reply_to, _correlation_id(message)
    except _UNREADABLE:
        return None
    if problem and reply_to is None:
        return None
    return Request(reply_to, correlation_id, properties, body, problem)


def given_up_text(request: Request, who: str) -> str:
    """For the log, where it is not begun because nobody waits for the reply any more."""
    asked = " ".join(str(request.properties[name]) for name in _ASKED if name in request.properties)
    return f"{asked:.200} was asked for by {who}, who has gone since: not done"


def write_answer(request: Request, answer: ManagementAnswer) -> bytes:
    """The reply as it goes to the client."""
    description = answer.description[:MAX_DESCRIPTION_CHARACTERS].encode("utf-8", "replace").decode()
    status = {"statusCode": proton.int32(answer.status), "statusDescription": description}
    message: Any = proton.Message()
    message.body = _wire(answer.body)
    message.properties = {**status, **{name: _wire(value) for name, value in answer.properties.items()}}
    message.address = request.reply_to
    message.correlation_id = request.correlation_id
    return bytes(message.encode())


def write_request(request: Request, reply_to: str, number: int) -> bytes:
    """The same request as another broker gets it, whose reply has `number`."""
    message: Any = proton.Message()
    message.body = _wire(request.body)
    message.properties = {name: _wire(value) for name, value in request.properties.items()}
    message.reply_to = reply_to
    message.correlation_id = number
    return bytes(message.encode())


def read_answer(data: bytes) -> tuple[int, ManagementAnswer]:
    """What another broker has answered, and to the request of which number. Raises AmqpError."""
    message = proton.Message()
    try:
        message.decode(without_format(data))
        properties, body, number = _plain(message.properties), _plain(message.body), message.correlation_id
        if not isinstance(properties, dict) or not isinstance(number, int):
            raise ValueError("it has no number, or no application properties")
        status, description = int(properties.pop("statusCode")), str(properties.pop("statusDescription"))
    except _UNREADABLE as error:
        raise AmqpError(INVALID_FIELD, f"a reply of another broker cannot be read: {error!s:.200}") from error
    return int(number), ManagementAnswer(status, description, body, properties)


def _correlation_id(message: proton.Message) -> object:
    correlation_id = message.id if message.correlation_id is None else message.correlation_id
    # A view points into the request, which will be gone by the time the reply is written.
    return bytes(correlation_id) if isinstance(correlation_id, memoryview) else correlation_id


def _plain(value: object, depth: int = 0) -> object:
    """Python's own types for AMQP's; binary, UUIDs and decimals stay, for the check that meets them to refuse."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it nests maps and lists deeper than {MAX_DEPTH}")
    if isinstance(value, list | proton.Array):
        elements = value.elements if isinstance(value, proton.Array) else value
        return [_plain(element, depth + 1) for element in elements]
    if isinstance(value, dict):
        return {_plain(name, depth + 1): _plain(element, depth + 1) for name, element in value.items()}
    if isinstance(value, bool | proton.decimal32 | proton.decimal64):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, proton.Described):
        raise ValueError("it has a described value, which means nothing here")
    return bytes(value) if isinstance(value, memoryview) else value


def _wire(value: object) -> object:
    """What Proton encodes as it is meant: an integer beyond long is a ulong."""
    if isinstance(value, list):
        return [_wire(element) for element in value]
    if isinstance(value, dict):
        return {name: _wire(element) for name, element in value.items()}
    if isinstance(value, int) and value > _LARGEST_LONG:
        return proton.ulong(value)
    return value
