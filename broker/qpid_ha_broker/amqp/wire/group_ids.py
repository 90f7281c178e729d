"""The group of a message: `group-id` and `group-sequence` of its properties (AMQP 1.0 section 3.2.4).

It is looked for in every message that comes to a queue without groups, and in every message of one that has them. So
sections are stepped over by their first bytes here, as nearly all publishers write them; where a message is written in
another way, its properties are found as for any other field.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.sections import (
    EMPTY_HEADER,
    FOOTER,
    PROPERTIES,
    SHORT_HEADER,
    SHORT_PROPERTIES_SECTION,
    TEXT8,
    find_section,
)
from qpid_ha_broker.amqp.wire.values import behind, value_end
from qpid_ha_broker.model.message_reader import GroupProperty

ID_BYTES: Final = 64
"""Of a group's id that is kept as it is. Of a longer one these are its first, and 16 bytes of a hash follow."""
_LAST_SEQUENCE: Final = b"\x70\xff\xff\xff\xff"
"""What JMS calls the JMSXGroupSeq -1, as the uint that group-sequence is: the group ends with this message."""
_new_tuple = tuple.__new__
"""Makes a named tuple of a tuple at half of what calling its class costs."""
_GROUP_FIELD: Final = 10
_HASH_BYTES: Final = 16
_SMALL_ULONG, _TEXT32, _LIST8, _LIST32 = 0x53, 0xB1, 0xC0, 0xD0
PROPERTIES_CODE: Final = b"s"
SHORT_PROPERTIES: Final = b"s\xc0"
"""How the section begins behind the two bytes of every section, in nearly every message that has one with fields. The
number of these is two bytes further."""
UPTO_EXPIRY, UPTO_GROUP, MANY = b"\x08", b"\x0a", b"\xff"
"""So many fields, and none of them is the time when it expires, or the group's; any number."""
WITHOUT_GROUP: Final = frozenset(
    [b"sE", *(bytes((code, kind)) for code in range(PROPERTIES + 1, FOOTER + 1) for kind in range(256))]
)
"""How a section begins, behind two bytes, that comes behind the header of a message with neither annotations nor a
group."""
_NINE_NULLS: Final = b"@" * (_GROUP_FIELD - 1)
"""What stands between a message's id and its group where there is nothing else."""


def has_group(payload: bytes) -> bool:
    """Whether it is of a group."""
    return group_of(payload) is not None


def group_of(payload: bytes) -> GroupProperty | None:
    """None: it is of no group; so is one whose properties cannot be read, or whose group-id is no text, or empty."""
    # Without a call where it is written as most clients do: all messages of a queue with groups come here.
    try:
        head = payload[:4]
        at = 5 + payload[4] if head == SHORT_HEADER else 4 if head == EMPTY_HEADER else 0
        if payload[at : at + 4] == SHORT_PROPERTIES_SECTION:
            if payload[at + 5] <= _GROUP_FIELD:
                return None
            at += 6
        else:
            at = _fields_at(payload, at)
            if at < 0:
                return None
        if payload[at] != TEXT8:
            at = behind(payload, at, _GROUP_FIELD)
        else:
            at += 2 + payload[at + 1]
            if payload[at : at + _GROUP_FIELD - 1] == _NINE_NULLS:
                at += _GROUP_FIELD - 1
            else:
                at = behind(payload, at, _GROUP_FIELD - 1)
        size = payload[at + 1] if payload[at] == TEXT8 else 0
        at += 2
        stop = at + size
        if 0 < size <= ID_BYTES and stop <= len(payload):
            # In a list that ends with the group's id the next byte is that of a section, or nothing.
            return _new_tuple(GroupProperty, (payload[at:stop], payload[stop : stop + 5] == _LAST_SEQUENCE))
        return _long_group(payload, at - 2)
    except (DecodeError, IndexError):
        return None


def _fields_at(payload: bytes, at: int) -> int:
    """Where the fields of the properties begin, which are not before the section at `at`; -1: none of them is a group's
    id. Raises IndexError, DecodeError."""
    while payload[at : at + 2] == b"\x00S":
        code = payload[at + 2]
        if code == PROPERTIES:
            break
        if code > PROPERTIES:
            return -1
        at = value_end(payload, at + 3)
    else:  # it begins with a format, or has a descriptor of another kind
        at, end = find_section(payload, PROPERTIES)
        if not end:
            return -1
    at = at + 3 if payload[at + 1] == _SMALL_ULONG else value_end(payload, at + 1)
    kind = payload[at]
    if kind == _LIST8:
        count, at = payload[at + 2], at + 3
    elif kind == _LIST32:
        count, at = _word(payload, at + 5), at + 9
    else:
        return -1
    return at if count > _GROUP_FIELD else -1


def _long_group(payload: bytes, at: int) -> GroupProperty | None:
    """Of any length. Raises IndexError."""
    code = payload[at]
    if code == TEXT8:
        first, size = at + 2, payload[at + 1]
    elif code == _TEXT32:
        first, size = at + 5, _word(payload, at + 1)
    else:
        return None
    stop = first + size
    if not size or stop > len(payload):
        return None
    is_last = payload[stop : stop + 5] == _LAST_SEQUENCE
    if size <= ID_BYTES:
        return GroupProperty(payload[first:stop], is_last)
    digest = blake2b(payload[first:stop], digest_size=_HASH_BYTES).digest()
    return GroupProperty(payload[first : first + ID_BYTES] + digest, is_last)


def _word(payload: bytes, at: int) -> int:
    if at + 4 > len(payload):
        raise IndexError
    return int.from_bytes(payload[at : at + 4], "big")
