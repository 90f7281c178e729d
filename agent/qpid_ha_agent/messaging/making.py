"""Messages as the command line describes them, and as it shows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.message_facts import describe_message


class MakingError(ValueError):
    """What the command line says makes no message; the text says what to write instead."""


class MessageOptions(NamedTuple):
    """What all messages of one command have in common. Names as AMQP has them (sections 3.2.1 and 3.2.4)."""

    durable: bool = False
    priority: int | None = None
    ttl_s: float | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    group_id: str | None = None
    properties: Mapping[str, object] = {}
    annotations: Mapping[str, object] = {}


def read_pairs(texts: Iterable[str], kind: str) -> dict[str, object]:
    """`NAME=VALUE` each: true, false, whole numbers and fractions are what they look like, all else is text, and so is
    what is in double quotes. Raises MakingError."""
    pairs: dict[str, object] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise MakingError(f"{kind}: {text!r:.80} is not NAME=VALUE")
        pairs[name] = read_value(value)
    return pairs


def read_value(text: str) -> object:
    """See `read_pairs`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def make_message(body: Any, options: MessageOptions) -> Any:
    """A message of Proton's."""
    message: Any = proton.Message(body=body)
    message.durable = options.durable
    if options.priority is not None:
        message.priority = options.priority
    if options.ttl_s is not None:
        message.ttl = options.ttl_s
    for name in ("subject", "reply_to", "correlation_id", "content_type", "group_id"):
        value = getattr(options, name)
        if value is not None:
            setattr(message, name, value)
    if options.properties:
        message.properties = dict(options.properties)
    if options.annotations:
        message.annotations = {proton.symbol(name): value for name, value in options.annotations.items()}
    return message


def message_facts(message: Any) -> dict[str, object]:
    """All that is known of a message that came, as JSON has it: header, properties, annotations and the whole body."""
    payload = bytes(message.encode())
    header = {
        "durable": bool(message.durable),
        "priority": int(message.priority),
        "ttl_ms": round(message.ttl * 1000) or None,
        "first_acquirer": bool(message.first_acquirer),
        "delivery_count": int(message.delivery_count),
    }
    return {**header, **describe_message(payload, len(payload))}


def body_text(message: Any) -> str:
    """The body for a person: text as it is, binary as UTF-8 as far as it goes, all else as JSON where it can be."""
    body = message.body
    if isinstance(body, str):
        return body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body).decode("utf-8", "backslashreplace")
    described = describe_message(bytes(proton.Message(body=body).encode()), 1 << 30).get("body")
    content = described.get("content") if isinstance(described, dict) else None
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def lines_of(stream: Iterable[str]) -> Iterator[str]:
    """Each line is a body, without its end."""
    for line in stream:
        yield line.removesuffix("\n").removesuffix("\r")
