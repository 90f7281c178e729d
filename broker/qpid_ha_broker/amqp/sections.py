"""The sections of a message: looked at only as far as somebody needs, and never changed but for the header.

A message is a sequence of described values (AMQP 1.0 section 3.2). Its bytes stay as they came. Where a section ends
can be seen from its first bytes; what is in it Proton decodes. Headers repeat from message to message, so each
different one is decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import proton

from qpid_ha_broker.amqp.conditions import DecodeError
from qpid_ha_broker.amqp.values import value_of

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
FOOTER = 0x78

NO_ANNOTATIONS = frozenset(bytes((code,)) for code in range(PROPERTIES, FOOTER + 1))
"""The third byte of a section that comes after message annotations, if there were any."""

TO_FIELD = 2
SUBJECT_FIELD = 3
"""Places in the properties' list (section 3.2.4)."""

_LIST0, _LIST8, _MAP8, _LIST32, _MAP32 = 0x45, 0xC0, 0xC1, 0xD0, 0xD1
_DEFAULT_PRIORITY = 4
_HEADER_CACHE_LENGTH = 1024
_UINT_MAX = 0xFFFFFFFF
_SYMBOLS = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": FOOTER,
}


class Header(NamedTuple):
    """The header section. `length` is its size in bytes (0: the message has none); `ttl_ms` 0: none was given."""

    durable: bool
    priority: int
    ttl_ms: int
    delivery_count: int
    length: int
    fresh: bytes
    """The same header, saying that nobody else has acquired the message before."""


def encode_header(durable: bool, priority: int, ttl_ms: int, first_acquirer: bool, delivery_count: int) -> bytes:
    """A header section."""
    data = proton.Data()
    data.put_object(
        proton.Described(
            proton.ulong(HEADER),
            [
                durable,
                proton.ubyte(priority),
                proton.uint(ttl_ms) if ttl_ms else None,
                first_acquirer,
                proton.uint(delivery_count),
            ],
        )
    )
    return bytes(data.encode())


_EMPTY_HEADER_TEXT = b"\x00SpE"
_NO_HEADER = Header(False, _DEFAULT_PRIORITY, 0, 0, 0, encode_header(False, _DEFAULT_PRIORITY, 0, True, 0))

_EMPTY_HEADER = _NO_HEADER._replace(length=len(_EMPTY_HEADER_TEXT))


class MessageSections:
    """Reads messages; holds the headers it has met. Every method raises DecodeError for bytes that are no message."""

    def __init__(self) -> None:
        self._headers: dict[bytes, Header] = {}

    def header(self, payload: bytes) -> Header:
        """The header section, or the defaults where there is none."""
        start = payload[:4]
        if start == _EMPTY_HEADER_TEXT:
            return _EMPTY_HEADER
        if start == b"\x00Sp\xc0":
            found = self._headers.get(payload[: 5 + payload[4]]) if len(payload) > 4 else None
            return found or self._decode_header(payload)
        if start[:2] == b"\x00S" and len(start) == 4 and HEADER < start[2] <= FOOTER:
            return _NO_HEADER
        return self._decode_header(payload)

    def _decode_header(self, payload: bytes) -> Header:
        section, end = section_at(payload, 0)
        if section != HEADER:
            return _NO_HEADER
        value = _decode(payload, 0, end)
        fields = [*(value if isinstance(value, list) else ()), None, None, None, None, None]
        durable, priority = fields[0] is True, _number(fields[1], _DEFAULT_PRIORITY, 0xFF)
        ttl_ms, count = _number(fields[2], 0, _UINT_MAX), _number(fields[4], 0, _UINT_MAX)
        header = Header(durable, priority, ttl_ms, count, end, encode_header(durable, priority, ttl_ms, True, count))
        if len(self._headers) >= _HEADER_CACHE_LENGTH:
            self._headers.clear()
        self._headers[payload[:end]] = header
        return header

    def fresh(self, payload: bytes) -> bytes:
        """`payload` as its first acquirer gets it."""
        header = self.header(payload)
        return header.fresh + payload[header.length :]

    def redelivered(self, payload: bytes, delivery_count: int) -> bytes:
        """`payload` as it goes out again, with the failed deliveries counted."""
        header = self.header(payload)
        count = min(header.delivery_count + delivery_count, _UINT_MAX)
        text = encode_header(header.durable, header.priority, header.ttl_ms, False, count)
        return text + payload[header.length :]

    def routing_key(self, payload: bytes) -> str:
        """The subject, empty where there is none."""
        return self._property(payload, SUBJECT_FIELD)

    def to(self, payload: bytes) -> str:
        """The address in `to`, empty where there is none."""
        return self._property(payload, TO_FIELD)

    def _property(self, payload: bytes, field: int) -> str:
        fields = _section(payload, PROPERTIES)
        value = fields[field] if isinstance(fields, list) and len(fields) > field else None
        return value if isinstance(value, str) else ""

    def properties(self, payload: bytes) -> Mapping[str, object]:
        """The application properties."""
        found = _section(payload, APPLICATION_PROPERTIES)
        return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}

    def annotations(self, payload: bytes) -> Mapping[str, object]:
        """The message annotations."""
        found = _section(payload, MESSAGE_ANNOTATIONS)
        return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}

    def selector_value(self, payload: bytes, name: str) -> object:
        """What a selector's identifier stands for (JMS mapping of AMQP 1.0); None where the message lacks it."""
        if name in _HEADER_IDENTIFIERS:
            return _HEADER_IDENTIFIERS[name](self.header(payload))
        if name in _PROPERTY_IDENTIFIERS:
            fields = _section(payload, PROPERTIES)
            at = _PROPERTY_IDENTIFIERS[name]
            return fields[at] if isinstance(fields, list) and len(fields) > at else None
        return self.properties(payload).get(name)


_HEADER_IDENTIFIERS: dict[str, Callable[[Header], object]] = {
    "JMSPriority": lambda header: header.priority,
    "amqp.priority": lambda header: header.priority,
    "JMSDeliveryMode": lambda header: "PERSISTENT" if header.durable else "NON_PERSISTENT",
    "amqp.durable": lambda header: header.durable,
}
_PROPERTY_IDENTIFIERS = {
    "JMSMessageID": 0,
    "amqp.message_id": 0,
    "amqp.to": 2,
    "JMSDestination": 2,
    "amqp.subject": 3,
    "JMSType": 3,
    "amqp.reply_to": 4,
    "JMSReplyTo": 4,
    "JMSCorrelationID": 5,
    "amqp.correlation_id": 5,
    "amqp.content_type": 6,
    "amqp.creation_time": 9,
    "JMSTimestamp": 9,
    "amqp.group_id": 10,
    "JMSXGroupID": 10,
    "JMSXGroupSeq": 11,
}


def _section(payload: bytes, wanted: int) -> list[object] | dict[object, object] | None:
    """The decoded value of a section, None where the message lacks it."""
    offset, end = find_section(payload, wanted)
    return _decode(payload, offset, end) if end else None


def find_section(payload: bytes, wanted: int) -> tuple[int, int]:
    """Where a section lies, (0, 0) where the message lacks it. They come in the order of their codes.

    Raises DecodeError.
    """
    offset = 0
    while offset < len(payload):
        start = payload[offset : offset + 3]
        if start[:2] == b"\x00S" and start[2:] > bytes((wanted,)):
            break  # seen without looking for its end, which for a large body is work
        section, end = section_at(payload, offset)
        if section == wanted:
            return offset, end
        if section > wanted:
            break
        offset = end
    return 0, 0


def section_at(payload: bytes, offset: int) -> tuple[int, int]:
    """Code and end of the section at `offset`. Raises DecodeError."""
    start = payload[offset : offset + 12]
    if start[:2] == b"\x00S" and len(start) > 4:
        kind = start[3]
        if kind in (_LIST8, _MAP8):
            end = offset + 5 + start[4]
        elif kind in (_LIST32, _MAP32) and len(start) >= 8:
            end = offset + 8 + int.from_bytes(start[4:8], "big")
        elif kind == _LIST0:
            end = offset + 4
        else:
            return start[2], offset + _decode_value(payload[offset:])[1]
        if HEADER <= start[2] <= FOOTER and end <= len(payload):
            return start[2], end
    return _unusual_section_at(payload, offset)


def _unusual_section_at(payload: bytes, offset: int) -> tuple[int, int]:
    """A section with a long or a symbolic descriptor: legal, rare, and Proton's to read."""
    value, size = _decode_value(payload[offset:])
    descriptor = value.descriptor if isinstance(value, proton.Described) else None
    code = _SYMBOLS.get(descriptor) if isinstance(descriptor, str) else descriptor
    if not isinstance(code, int) or not HEADER <= code <= FOOTER:
        raise DecodeError(f"no message section at byte {offset}: see AMQP 1.0 section 3.2")
    return code, offset + size


def _decode(payload: bytes, offset: int, end: int) -> list[object] | dict[object, object]:
    described, _ = _decode_value(payload[offset:end])
    value: object = described.value if isinstance(described, proton.Described) else None
    if not isinstance(value, list | dict):
        raise DecodeError(f"the message section at byte {offset} is neither a list nor a map")
    return value


def _decode_value(text: bytes) -> tuple[object, int]:
    """The first value in `text`, and how many bytes it takes."""
    data = proton.Data()
    try:
        size = int(data.decode(text))
    except (proton.ProtonException, ValueError) as error:
        raise DecodeError(f"the message cannot be decoded: {error}") from error
    if size <= 0:
        raise DecodeError("the message ends in the middle of a section")
    return value_of(data), size


def _number(value: object, default: int, most: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise DecodeError(f"the message's header has {value!r:.40} where a number up to {most} belongs")
    return int(value)
