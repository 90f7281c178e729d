"""What may be in front of the AMQP message in a payload: its `message-format` (AMQP 1.0 section 2.7.5), if not 0.

It is an encoded uint, in its shortest form: 0x52 and a byte, or 0x70 and four. A message begins with a section, and a
section with 0x00. A payload without it is the message as it was sent, and all payloads of releases before are.
"""

from __future__ import annotations

from typing import Final

_SHORT: Final = b"\x52"
_LONG: Final = b"\x70"
"""Constructors of a uint (AMQP 1.0 section 1.6.5)."""
FORMAT_LENGTHS: Final = {_SHORT: 2, _LONG: 5}
"""Bytes of an encoded format, by the first of them."""
FORMAT_STARTS: Final = tuple(FORMAT_LENGTHS)


def with_format(payload: bytes, message_format: int) -> bytes:
    """The message `payload`, as it is kept."""
    if not message_format:
        return payload
    if message_format < 256:
        return _SHORT + bytes((message_format,)) + payload
    return _LONG + message_format.to_bytes(4, "big") + payload


def without_format(payload: bytes) -> bytes:
    """The message itself."""
    return payload[FORMAT_LENGTHS.get(bytes(payload[:1]), 0) :]


def format_of(payload: bytes) -> bytes:
    """The encoded format in front of the message; empty: it is 0."""
    return bytes(payload[: FORMAT_LENGTHS.get(bytes(payload[:1]), 0)])
