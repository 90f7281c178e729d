"""A message for people and programs that know no AMQP: its sections as what JSON can carry, the body cut to a size.

Whatever a publisher has put into it, a message costs a few milliseconds: a section that is longer than SECTION_BYTES is
not decoded, and of the body no more is looked at than is shown.
"""

from __future__ import annotations

import math
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    section_at,
)
from qpid_ha_broker.amqp.wire.values import is_uuid, value_end, value_of

SECTION_BYTES: Final = 8 * 1024
"""Of a section that is decoded as a whole."""
SECTIONS_MOST: Final = 1000
"""Of one message: a body may have as many as it has bytes, and what is behind so many is not shown."""
DEPTH_MAX: Final = 8
"""Of lists and maps in each other; what is deeper is not shown."""

DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
"""Codes of the sections that a body may have (AMQP 1.0 sections 3.2.6 to 3.2.8)."""
_KINDS: Final = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}
_MAPS: Final = {
    DELIVERY_ANNOTATIONS: "delivery_annotations",
    MESSAGE_ANNOTATIONS: "annotations",
    APPLICATION_PROPERTIES: "application_properties",
    FOOTER: "footer",
}
_PROPERTY_NAMES: Final = (
    "message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "absolute_expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id",
)  # fmt: skip
_BINARY: Final = {0xA0: 2, 0xB0: 5}
_STRINGS: Final = {0xA1: 2, 0xB1: 5}
"""First bytes of binaries and strings, and how many bytes come before the content."""

MessageFacts = dict[str, object]


class _Body(NamedTuple):
    """The first section of a body. `size`: of all of them, in bytes of the message."""

    code: int
    start: int
    end: int
    sections: int
    size: int


def describe_message(payload: bytes, body_bytes: int) -> MessageFacts:
    """The properties, the annotations and the body, of which `body_bytes` at most are shown.

    `unreadable` is there where the bytes are no message of AMQP 1.0, and says why; what comes before is shown.
    """
    facts: MessageFacts = {"properties": {}, "application_properties": {}, "annotations": {}}
    body: _Body | None = None
    try:
        for code, start, end in _sections(payload):
            if code in _KINDS:
                before = body or _Body(code, start, end, 0, 0)
                body = before._replace(sections=before.sections + 1, size=before.size + end - start)
            elif code == PROPERTIES:
                facts["properties"] = _properties(payload, start, end)
            elif code in _MAPS:
                facts[_MAPS[code]] = _decoded(payload, start, end)
        facts["body"] = None if body is None else _body(payload, body, body_bytes)
    except DecodeError as error:
        facts |= {"unreadable": str(error), "body": facts.get("body")}
    return facts


def _sections(payload: bytes) -> Iterator[tuple[int, int, int]]:
    offset = 0
    for _ in range(SECTIONS_MOST):
        if offset >= len(payload):
            return
        code, end = section_at(payload, offset)
        yield code, offset, end
        offset = end


def _properties(payload: bytes, start: int, end: int) -> object:
    fields = _decoded(payload, start, end)
    if not isinstance(fields, list):
        return fields
    return {name: value for name, value in zip(_PROPERTY_NAMES, fields, strict=False) if value is not None}


def _decoded(payload: bytes, start: int, end: int) -> object:
    """What the section between `start` and `end` holds. Raises DecodeError."""
    if end - start > SECTION_BYTES:
        return {"not_shown_bytes": end - start}
    data = proton.Data()
    try:
        data.decode(payload[value_end(payload, start + 1) : end])
    except (proton.ProtonException, ValueError) as error:
        raise DecodeError(f"a section cannot be decoded: {error}") from error
    return json_safe(value_of(data))


def _body(payload: bytes, body: _Body, most: int) -> MessageFacts:
    facts: MessageFacts = {"kind": _KINDS[body.code], "sections": body.sections, "bytes": body.size}
    at = value_end(payload, body.start + 1)
    head = _BINARY.get(payload[at]) or _STRINGS.get(payload[at])
    if head is not None:
        content = payload[at + head : min(body.end, at + head + most)]
        is_cut = body.end - at - head > most or body.sections > 1
        return facts | _content(content, is_cut=is_cut)
    if body.end - body.start <= min(SECTION_BYTES, most):
        value = _decoded(payload, body.start, body.end)
        return facts | {"encoding": "json", "content": value, "truncated": body.sections > 1}
    encoded = payload[at : min(body.end, at + most)]
    is_cut = body.end - at > most or body.sections > 1
    return facts | {"encoding": "amqp", "content": b64encode(encoded).decode("ascii"), "truncated": is_cut}


def _content(content: bytes, *, is_cut: bool) -> MessageFacts:
    """As text, if it is one."""
    try:
        text = getincrementaldecoder("utf-8")().decode(content, final=not is_cut)
    except UnicodeDecodeError:
        text = ""
    if (text or not content) and all(char.isprintable() or char in "\t\r\n" for char in text):
        return {"encoding": "text", "content": text, "truncated": is_cut}
    return {"encoding": "base64", "content": b64encode(content).decode("ascii"), "truncated": is_cut}


def json_safe(value: Any, depth: int = 0) -> object:
    """A value of AMQP as JSON can carry it: binaries as {"base64": ...}, what has no form of its own as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": b64encode(bytes(value)).decode("ascii")}
    if is_uuid(value):
        return str(value)
    if depth >= DEPTH_MAX:
        return "..."
    if isinstance(value, dict):
        return {_name(name): json_safe(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, proton.Array):
        return [json_safe(inner, depth + 1) for inner in value.elements]
    if isinstance(value, list | tuple):
        return [json_safe(inner, depth + 1) for inner in value]
    if isinstance(value, proton.Described):
        inner = json_safe(value.value, depth + 1)
        return {"descriptor": json_safe(value.descriptor, depth + 1), "value": inner}
    return str(value)


def _name(name: object) -> str:
    shown = json_safe(name, DEPTH_MAX)
    return shown if isinstance(shown, str) else str(shown)
