"""The sections of a message: looked at only as far as somebody needs, and never changed but for the header.

A message is a sequence of described values (AMQP 1.0 section 3.2). Its bytes stay as they came. Where a section ends
can be seen from its first bytes, and so can where each value in it ends. Headers repeat from message to message, so
each different one is decoded once.

What a message makes us read is bounded, whatever its publisher has put into it: a few fields of a list, `MAX_PAIRS` of
a map. What is longer is refused where the broker has to look into it, and passed on where not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.jms_ids import IDENTIFIERS, id_text
from qpid_ha_broker.amqp.wire.values import behind, compound_at, is_simple, places, simple_value, value_end
from qpid_ha_broker.events.payloads import FORMAT_LENGTHS, format_of

FORMAT = 0x6F
"""No section, but the format in front of the first: see `events.payloads`."""
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

ABSOLUTE_EXPIRY_FIELD = 8
_LIST0, _LIST8, _UPTO_EXPIRY = b"\x45", b"\xc0", bytes((ABSOLUTE_EXPIRY_FIELD,))
_NULL_CODE = 0x40
TEXT8 = 0xA1
SHORT_HEADER, EMPTY_HEADER = b"\x00Sp\xc0", b"\x00SpE"
SHORT_PROPERTIES_SECTION = b"\x00Ss\xc0"
"""How sections begin as most clients write them."""
_SECTION = b"\x00S"
_ANNOTATIONS_BEGIN, _PROPERTIES_BEGIN = (b"\x00S" + bytes((code,)) for code in (MESSAGE_ANNOTATIONS, PROPERTIES))
_NO_PROPERTIES = frozenset(b"\x00S" + bytes((code,)) for code in range(APPLICATION_PROPERTIES, FOOTER + 1))
"""How a section begins that comes after the properties, if there were any."""

MAX_PAIRS = 1000
"""Of a map of properties or annotations in which something is sought."""
MAX_TEXT_BYTES = 64 * 1024
"""Of a subject or an address."""

PRODUCER = "x-opt-qpid-producer"
SEQUENCE = "x-opt-qpid-sequence"
"""Message annotations by which a client numbers its messages. They are between it and the broker: whoever knows the
name, and is the same user or nobody like it, could number in its place."""
NUMBERED = b"x-opt-qpid-"
"""How both begin."""
DESTINATION_KIND = "x-opt-jms-dest"
"""Message annotation: what the address in `to` is. Of the same kind is `x-opt-jms-reply-to`, for whoever replies."""
_KIND = DESTINATION_KIND.encode()
MAX_NUMBERED_PAIRS = 100
"""Annotations of a message that has those two: they are taken off whenever it goes out."""

_DEFAULT_PRIORITY = 4
_HEADER_CACHE_LENGTH = 1024
_CACHED_HEADER_BYTES = 64
"""No header of a client is as long: publishers must not decide how much memory the cache takes."""
_HEADER_FIELDS = 5
_UINT_MAX = 0xFFFFFFFF
_LONGEST_DESCRIPTOR_BYTES = 64
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


_MESSAGE_ID = b"\x00Sq\xc1\x1b\x02\xa3\x0fqpid.message-id\x80"
"""Delivery annotations with one entry, whose value follows: 8 bytes of a ulong."""


def with_message_id(payload: bytes, message_id: int) -> bytes:
    """`payload`, which has a header, with the delivery annotation `qpid.message-id` in place of those that it had.

    They are for the next hop alone (AMQP 1.0 section 3.2.2), which is here. Raises DecodeError.
    """
    start = _header_end(payload)
    return payload[:start] + _MESSAGE_ID + message_id.to_bytes(8, "big") + payload[bare_start(payload, start) :]


def bare_start(payload: bytes, header_bytes: int) -> int:
    """Where what is passed on of `payload` begins, behind a header of so many bytes, and behind delivery annotations.

    These are for whom they were sent to, which is this broker (AMQP 1.0 section 3.2.2). Nearly no message has any: then
    three bytes are looked at.
    """
    start = payload[header_bytes : header_bytes + 3]
    if start[:2] == b"\x00S" and start[2:] != b"q":
        return header_bytes
    try:
        code, end = section_at(payload, header_bytes)
    except DecodeError:
        return header_bytes  # it is passed on as it is, for whoever reads it to say so
    return end if code == DELIVERY_ANNOTATIONS else header_bytes


def _header_end(payload: bytes) -> int:
    """Where what is behind the format and the header begins, of which both may be missing. Raises DecodeError."""
    start = 0
    for kind in (FORMAT, HEADER):
        code, end = section_at(payload, start)
        start = end if code == kind else start
    return start


def without_delivery_annotations(payload: bytes) -> bytes:
    """`payload` as it is passed on where this broker only stands in front of another one; the same if it has none."""
    if payload[:2] == b"\x00S" and payload[2:3] not in (b"p", b"q"):
        return payload
    try:
        start = _header_end(payload)
    except DecodeError:
        return payload
    bare = bare_start(payload, start)
    return payload if bare == start else payload[:start] + payload[bare:]


class Header(NamedTuple):
    """The header section. `length` is its size in bytes (0: the message has none); `ttl_ms` 0: none was given."""

    durable: bool
    priority: int
    ttl_ms: int
    delivery_count: int
    length: int
    fresh: bytes
    """The same header, saying that nobody else has acquired the message here.

    It says that somebody may have seen it where its publisher says so: a bridge passes on what it was told.
    """
    first_acquirer: bool = True
    """As its publisher says."""


class FreshBeginning(NamedTuple):
    """Of a message that begins with `begins`, the first acquirer gets `text` in place of the first `length` bytes."""

    begins: bytes | tuple[()]
    """The header, and the beginning of what comes behind it, or all annotations; (), with which nothing begins: it has
    to be looked at more closely."""
    text: bytes
    length: int


_TRUTHS = (b"\x42", b"\x41")
_NULL, _UBYTE, _UINT, _SMALL_UINT, _UINT0 = b"\x40", b"\x50", b"\x70", b"\x52", b"\x43"


def _uint(number: int) -> bytes:
    if number < 256:
        return _SMALL_UINT + bytes((number,)) if number else _UINT0
    return _UINT + number.to_bytes(4, "big")


def encode_header(durable: bool, priority: int, ttl_ms: int, first_acquirer: bool, delivery_count: int) -> bytes:
    """A header section. `ttl_ms` 0: none."""
    # By hand: each message with a time to live has another one whenever it goes out.
    fields = b"".join(
        (
            _TRUTHS[durable],
            _UBYTE + bytes((priority,)),
            _uint(ttl_ms) if ttl_ms else _NULL,
            _TRUTHS[first_acquirer],
            _uint(delivery_count),
        )
    )
    return SHORT_HEADER + bytes((len(fields) + 1, _HEADER_FIELDS)) + fields


_NO_HEADER = Header(False, _DEFAULT_PRIORITY, 0, 0, 0, encode_header(False, _DEFAULT_PRIORITY, 0, True, 0))

_NO_FIELDS = _NO_HEADER._replace(length=len(EMPTY_HEADER))


class MessageSections:
    """Reads messages; holds the headers it has met. Every method raises DecodeError for bytes that are no message."""

    def __init__(self) -> None:
        self._headers: dict[bytes, Header] = {}
        self._kinds: dict[bytes, object] = {}
        """By section of annotations: see `destination_kind`."""

    def header(self, payload: bytes) -> Header:
        """The header section, or the defaults where there is none."""
        start = payload[:4]
        if start == EMPTY_HEADER:
            return _NO_FIELDS
        if start == SHORT_HEADER:
            header = self._headers.get(payload[: 5 + payload[4]]) if len(payload) > 4 else None
            return header or self._decode_header(payload)
        if start[:2] == b"\x00S" and len(start) == 4 and HEADER < start[2] <= FOOTER:
            return _NO_HEADER
        return self._decode_header(payload)

    def _decode_header(self, payload: bytes) -> Header:
        if before := format_of(payload):
            return self._header_behind(before, payload)
        section, end = section_at(payload, 0)
        if section != HEADER:
            return _NO_HEADER
        compound = compound_at(payload, _described_value_at(payload, 0))
        values = (
            []
            if compound.is_map
            else [simple_value(payload, *place) for place in places(payload, compound, _HEADER_FIELDS)]
        )
        fields = [*values, None, None, None, None, None]
        durable, priority = fields[0] is True, _number(fields[1], _DEFAULT_PRIORITY, 0xFF)
        ttl_ms, count = _number(fields[2], 0, _UINT_MAX), _number(fields[4], 0, _UINT_MAX)
        fresh = encode_header(durable, priority, ttl_ms, fields[3] is not False, count)
        header = Header(durable, priority, ttl_ms, count, end, fresh, fields[3] is not False)
        if end <= _CACHED_HEADER_BYTES:
            if len(self._headers) >= _HEADER_CACHE_LENGTH:
                self._headers.clear()
            self._headers[payload[:end]] = header
        return header

    def _header_behind(self, message_format: bytes, payload: bytes) -> Header:
        """Of a message with a format other than 0, which counts as a part of it."""
        length = len(message_format)
        if payload[length : length + 1] in FORMAT_LENGTHS:
            raise DecodeError("a message has one format")
        header = self.header(payload[length:])
        return header._replace(length=length + header.length, fresh=message_format + header.fresh)

    def fresh(self, payload: bytes) -> bytes:
        """`payload` as its first acquirer gets it: without its number and delivery annotations, see `bare_start`."""
        header = self.header(payload)
        return header.fresh + _from(payload, header.length)

    def fresh_beginning(self, payload: bytes) -> FreshBeginning:
        """What `fresh` does to `payload`, for the messages behind it: most of a publisher begin as it does."""
        header = self.header(payload)
        length = header.length
        begins = payload[: length + 3]
        has_next = begins[length : length + 2] == _SECTION and begins[length + 2 :] in NO_ANNOTATIONS
        if 0 < (end := annotations_end(payload, length)) <= len(payload):
            begins, has_next = payload[:end], payload.find(NUMBERED, length, end) < 0
        return FreshBeginning(begins if has_next else (), header.fresh, length)

    def redelivered(self, payload: bytes, delivery_count: int) -> bytes:
        """`payload` as it goes out again, with the failed deliveries counted: without these, too."""
        header = self.header(payload)
        count = min(header.delivery_count + delivery_count, _UINT_MAX)
        text = encode_header(header.durable, header.priority, header.ttl_ms, False, count)
        return format_of(payload) + text + _from(payload, header.length)

    def aged(self, payload: bytes, left_ms: int, delivery_count: int, *, is_first: bool) -> bytes:
        """As `fresh` (`is_first`) or `redelivered`, of a message that lives for `left_ms` yet: that is its ttl, if its
        publisher gave it one, and not less already (section 3.2.1)."""
        header = self.header(payload)
        ttl_ms = min(header.ttl_ms, max(left_ms, 1))
        count = min(header.delivery_count + delivery_count, _UINT_MAX)
        is_first &= header.first_acquirer
        text = encode_header(header.durable, header.priority, ttl_ms, is_first, count)
        return format_of(payload) + text + _from(payload, header.length)

    def absolute_expiry(self, payload: bytes, start: int) -> int:
        """`absolute-expiry-time` of the properties, in milliseconds since 1970; 0: it never expires by that.

        `start`: where the header ends. What cannot be read says nothing. Nearly all messages are done with after a look
        at a few bytes.
        """
        try:
            begin = payload[start : start + 3]
            if begin == _ANNOTATIONS_BEGIN:
                _, start = annotations_at(payload, start)
                begin = payload[start : start + 3]
            if begin == _PROPERTIES_BEGIN:
                form = payload[start + 3 : start + 4]
                if form == _LIST0:
                    return 0
                if form == _LIST8:
                    if payload[start + 5 : start + 6] <= _UPTO_EXPIRY:
                        return 0
                    # Who says when a message was made, or its group, has a null here.
                    at = behind(payload, start + 6, ABSOLUTE_EXPIRY_FIELD)
                    if payload[at] == _NULL_CODE:
                        return 0
            elif begin in _NO_PROPERTIES:
                return 0
            value = _property(payload, ABSOLUTE_EXPIRY_FIELD)
        except (DecodeError, IndexError):
            return 0
        return int(value) if isinstance(value, proton.timestamp) and value > 0 else 0

    def routing_key(self, payload: bytes) -> str:
        """The subject, empty where there is none."""
        # Without a call for each field where it is written as most clients do: it is looked for in every message.
        try:
            head = payload[:4]
            at = 5 + payload[4] if head == SHORT_HEADER else 4 if head == EMPTY_HEADER else 0
            if payload[at : at + 3] == _ANNOTATIONS_BEGIN:
                _, at = annotations_at(payload, at)
            if payload[at : at + 4] == SHORT_PROPERTIES_SECTION and payload[at + 5] > SUBJECT_FIELD:
                list_end = at + 5 + payload[at + 4]
                at = behind(payload, at + 6, SUBJECT_FIELD)
                start = at + 2
                stop = start + payload[at + 1]
                if payload[at] == TEXT8 and stop <= list_end <= len(payload):
                    return payload[start:stop].decode("utf-8")
        except (DecodeError, IndexError, UnicodeDecodeError):
            pass  # it is refused below, or says nothing
        return self._property(payload, SUBJECT_FIELD)

    def to(self, payload: bytes) -> str:
        """The address in `to`, empty where there is none."""
        return self._property(payload, TO_FIELD)

    def _property(self, payload: bytes, field: int) -> str:
        value = _property(payload, field)
        return value if isinstance(value, str) else ""

    def properties(self, payload: bytes) -> Mapping[str, object]:
        """The application properties; of lists and maps among them, which the standard forbids, only the names."""
        return _map(payload, APPLICATION_PROPERTIES)

    def annotations(self, payload: bytes) -> Mapping[str, object]:
        """The message annotations; of those that are lists and maps, only the names."""
        return _map(payload, MESSAGE_ANNOTATIONS)

    def destination_kind(self, payload: bytes, header_bytes: int) -> object:
        """What the annotation DESTINATION_KIND says; None: the message lacks it. `header_bytes`: so long is its header.

        Clients say the same in all of their messages, so each different section is decoded once.
        """
        if payload[header_bytes + 2 : header_bytes + 3] in NO_ANNOTATIONS:
            return None
        start, end = annotations_at(payload, header_bytes)
        section = payload[start:end] if end - start <= _CACHED_HEADER_BYTES else b""
        kind = self._kinds.get(section, self)
        if kind is self:
            kind = self.annotations(payload).get(DESTINATION_KIND) if _KIND in payload[start:end] else None
            if section and len(self._kinds) < _HEADER_CACHE_LENGTH:
                self._kinds[section] = kind
        return kind

    def selector_value(self, payload: bytes, name: str) -> object:
        """What a selector's identifier stands for (JMS mapping of AMQP 1.0); None where the message lacks it."""
        if name in _HEADER_IDENTIFIERS:
            return _HEADER_IDENTIFIERS[name](self.header(payload))
        if name in _PROPERTY_IDENTIFIERS:
            value = _property(payload, _PROPERTY_IDENTIFIERS[name])
            return _JMS_TEXTS[name](value) if name in _JMS_TEXTS else value
        return self.properties(payload).get(name)

    def lookup(self, payload: bytes) -> Callable[[str], object]:
        """`selector_value` of one message, for many names: its properties are read once."""
        properties: Mapping[str, object] | None = None

        def value_of_name(name: str) -> object:
            nonlocal properties
            if name in _HEADER_IDENTIFIERS or name in _PROPERTY_IDENTIFIERS:
                return self.selector_value(payload, name)
            if properties is None:
                properties = self.properties(payload)
            return properties.get(name)

        return value_of_name


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
    "JMSXUserID": 1,
}


def _user_text(value: object) -> str | None:
    """`user-id`, which is binary, as JMS has it."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


_JMS_TEXTS: dict[str, Callable[[object], object]] = {
    **dict.fromkeys(IDENTIFIERS, id_text),
    "JMSXUserID": _user_text,
}
"""What JMS has as text, whatever its type of AMQP is."""


def _property(payload: bytes, field: int) -> object:
    """One field of the properties, None where the message lacks it."""
    start, end = find_section(payload, PROPERTIES)
    if not end:
        return None
    compound = compound_at(payload, _described_value_at(payload, start))
    if compound.is_map or compound.length <= field:
        return None
    *_, (at, stop) = places(payload, compound, field + 1)
    if stop - at > MAX_TEXT_BYTES:
        raise DecodeError(f"a field of the properties has {stop - at} bytes; {MAX_TEXT_BYTES} are allowed")
    return simple_value(payload, at, stop)


def _map(payload: bytes, wanted: int) -> dict[str, object]:
    """The simple values of a section that is a map; empty where the message lacks it."""
    start, end = find_section(payload, wanted)
    if not end:
        return {}
    compound = compound_at(payload, _described_value_at(payload, start))
    if not compound.is_map:
        return {}
    if compound.length > 2 * MAX_PAIRS:
        raise DecodeError(f"the section at byte {start} has {compound.length // 2} entries; {MAX_PAIRS} are allowed")
    entries = list(places(payload, compound, compound.length))
    if any(not is_simple(payload[at]) for at, _ in entries[::2]):
        raise DecodeError(f"the section at byte {start} has a list or a map where a name belongs")
    values = [simple_value(payload, *entry) for entry in entries]
    return {str(name): value for name, value in zip(values[::2], values[1::2], strict=False)}


def _from(payload: bytes, start: int) -> bytes:
    """What is behind the header and delivery annotations, without the number that the publisher has given it."""
    if payload[start + 2 : start + 3] in NO_ANNOTATIONS:
        return payload[start:]
    return _without_number(payload, bare_start(payload, start))


def without_number(payload: bytes) -> bytes:
    """`payload` without the annotations that number it; as it is where there are none that would have been read."""
    return _without_number(payload, 0)


_NAMES = frozenset((PRODUCER, SEQUENCE))
_KEYS = tuple(b"\xa3" + bytes((len(name),)) + name.encode() for name in (PRODUCER, SEQUENCE))
_KEY_BYTES = len(_KEYS[0])
_SHORT_MAP = bytes((0, 0x53, MESSAGE_ANNOTATIONS, 0xC1))
_LONG_MAP = bytes((0, 0x53, MESSAGE_ANNOTATIONS, 0xD1))
"""How the section begins in nearly every message that has one; its size follows, in one byte or in four."""


def annotations_at(payload: bytes, start: int) -> tuple[int, int]:
    """Where the message annotations lie, (0, 0) where there are none; `start`: some place in front of them, or theirs.

    May end behind the end of a message that is cut off. Raises DecodeError.
    """
    end = annotations_end(payload, start)
    return (start, end) if end else find_section(payload, MESSAGE_ANNOTATIONS)


def annotations_end(payload: bytes, start: int) -> int:
    """Where the message annotations end that begin at `start`, as their beginning says; 0: none do, as most clients
    write them.

    May be behind the end of a message that is cut off: what begins as that does need not go on so.
    """
    beginning = payload[start : start + 4]
    if beginning == _LONG_MAP:
        return start + 8 + int.from_bytes(payload[start + 4 : start + 8], "big")
    if beginning == _SHORT_MAP:
        return start + 5 + int.from_bytes(payload[start + 4 : start + 5], "big")
    return 0


def _without_number(payload: bytes, start: int) -> bytes:
    """`payload` from `start` on, which is in front of its message annotations."""
    try:
        at, end = annotations_at(payload, start)
        if payload.find(NUMBERED, at, end) < 0:
            return payload[start:]
        if _has_number_alone(payload, at, end):
            return payload[start:at] + payload[end:]
        entries = entries_of(payload, at, MAX_NUMBERED_PAIRS)
    except DecodeError:
        return payload[start:]  # it was not taken under a number
    kept = [payload[name_at : value_at + size] for name, name_at, value_at, size in entries if name not in _NAMES]
    return payload[start:] if len(kept) == len(entries) else replace_annotations(payload, at, end, kept)[start:]


def _has_number_alone(payload: bytes, start: int, end: int) -> bool:
    """Whether the section is message annotations that number the message and say nothing else, as most clients write
    them; if not, look closer. Raises DecodeError."""
    beginning = payload[start : start + 4]
    if beginning == _LONG_MAP:
        count, at = payload[start + 8 : start + 12], start + 12
    elif beginning == _SHORT_MAP:
        count, at = payload[start + 5 : start + 6], start + 6
    else:
        return False
    if int.from_bytes(count, "big") != 2 * len(_KEYS):
        return False
    for _ in _KEYS:
        if payload[at : at + _KEY_BYTES] not in _KEYS:
            return False
        at = value_end(payload, at + _KEY_BYTES)
    return at == end


def replace_annotations(payload: bytes, start: int, end: int, entries: list[bytes]) -> bytes:
    """`payload` with these message annotations, each encoded with its name, in place of what is from `start` to `end`.

    There is no such section where there are none.
    """
    content = b"".join(entries)
    sizes = (len(content) + 4).to_bytes(4, "big") + (2 * len(entries)).to_bytes(4, "big")
    section = bytes((0, 0x53, MESSAGE_ANNOTATIONS, 0xD1)) + sizes + content if entries else b""
    return payload[:start] + section + payload[end:]


def entries_of(payload: bytes, start: int, most: int) -> list[tuple[object, int, int, int]]:
    """Of the section at `start`, a map, each entry: its name, where that begins, where its value begins, and its size.

    Raises DecodeError for what is none, and for more than `most` entries.
    """
    compound = compound_at(payload, _described_value_at(payload, start))
    if not compound.is_map or compound.length % 2 or compound.length > 2 * most:
        raise DecodeError(f"the message's annotations are no map of at most {most} entries")
    bounds = list(places(payload, compound, compound.length))
    return [
        (simple_value(payload, *name) if is_simple(payload[name[0]]) else None, name[0], value[0], value[1] - value[0])
        for name, value in zip(bounds[::2], bounds[1::2], strict=True)
    ]


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
    start = payload[offset : offset + 3]
    if start[:2] == b"\x00S" and len(start) == 3:
        code, at = start[2], offset + 3
    elif not offset and (length := FORMAT_LENGTHS.get(start[:1])):
        return FORMAT, length
    else:
        code, at = _unusual_descriptor_at(payload, offset)
    if not HEADER <= code <= FOOTER:
        raise DecodeError(f"no message section at byte {offset}: see AMQP 1.0 section 3.2")
    return code, value_end(payload, at)


def _unusual_descriptor_at(payload: bytes, offset: int) -> tuple[int, int]:
    """A long or a symbolic one: legal, and rare. Its code, -1 for no section's, and where its value begins."""
    if payload[offset : offset + 1] != b"\x00":
        return -1, offset
    at = value_end(payload, offset + 1)
    if at - offset > _LONGEST_DESCRIPTOR_BYTES:
        return -1, at
    descriptor = simple_value(payload, offset + 1, at)
    code = _SYMBOLS.get(descriptor) if isinstance(descriptor, str) else descriptor
    return (code if isinstance(code, int) else -1), at


def _described_value_at(payload: bytes, offset: int) -> int:
    """Where the value of the section at `offset` begins."""
    return value_end(payload, offset + 1)


def _number(value: object, default: int, most: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise DecodeError(f"the message's header has {value!r:.40} where a number up to {most} belongs")
    return int(value)
