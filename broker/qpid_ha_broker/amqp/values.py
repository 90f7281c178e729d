"""Values that Proton has decoded, as Python objects: the one place that knows how that can fail.

What is well formed on the wire need not fit into Python: text that is not UTF-8, a list as the key of a map, lists in
lists a thousand deep. All of that is the peer's doing, and a peer is told so.
"""

from __future__ import annotations

import proton

from qpid_ha_broker.amqp.conditions import DecodeError


def value_of(data: proton.Data) -> object:
    """The first value in `data`, None when it holds none. Raises DecodeError."""
    try:
        data.rewind()
        return data.get_object() if data.next() is not None else None
    except (proton.ProtonException, ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise DecodeError(f"a value cannot be read: {error}") from error
