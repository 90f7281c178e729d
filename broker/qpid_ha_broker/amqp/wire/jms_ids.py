"""Ids of messages as JMS has them, which are texts: `JMSMessageID` and `JMSCorrelationID` of the four types of AMQP.

| AMQP (section 3.2.11) | for a selector |
| --- | --- |
| ulong | `ID:AMQP_ULONG:5` |
| uuid | `ID:AMQP_UUID:` and the uuid in lower case |
| binary | `ID:AMQP_BINARY:` and its bytes in hexadecimal, upper case |
| string | the string itself; behind `ID:AMQP_STRING:` if it begins like one of these |

Qpid JMS shows a program the same, and a message id that does not begin with `ID:` behind `ID:AMQP_NO_PREFIX:`. As a
literal of a selector that is the string, too: a message is found by the id that a program was shown, and by the one
that its publisher has given it.

Source: AMQP binding and mapping for JMS 1.0, section 3.2.1.1 and 3.2.1.2.
"""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.amqp.wire.values import is_uuid

IDENTIFIERS: Final = frozenset({"JMSMessageID", "JMSCorrelationID"})
_ULONG, _UUID, _BINARY, _STRING, _NO_PREFIX = (
    f"ID:AMQP_{name}:" for name in ("ULONG", "UUID", "BINARY", "STRING", "NO_PREFIX")
)
_PREFIXES: Final = (_ULONG, _UUID, _BINARY, _STRING, _NO_PREFIX)


def id_text(value: object) -> str | None:
    """The id of a message, None where it has none that JMS knows of."""
    if isinstance(value, str):
        return f"{_STRING}{value}" if value.startswith(_PREFIXES) else value
    if isinstance(value, bytes):
        return f"{_BINARY}{value.hex().upper()}"
    if is_uuid(value):
        return f"{_UUID}{value}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{_ULONG}{int(value)}"
    return None


def canonical_id(text: str) -> str:
    """A literal of a selector, as `id_text` would say it."""
    for prefix in (_STRING, _NO_PREFIX):
        if text.startswith(prefix):
            bare = text.removeprefix(prefix)
            return f"{_STRING}{bare}" if bare.startswith(_PREFIXES) else bare
    if text.startswith(_UUID):
        return _UUID + text.removeprefix(_UUID).lower()
    if text.startswith(_BINARY):
        return _BINARY + text.removeprefix(_BINARY).upper()
    return text
