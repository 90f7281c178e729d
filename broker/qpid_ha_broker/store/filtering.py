"""What of a batch goes into a journal: all but the messages that nobody asked to keep. Pure.

Records are cut apart by their headers alone; nothing is decoded, and what is kept is the bytes that others get, too.
"""

from __future__ import annotations

import struct
from typing import Final

from qpid_ha_broker.events.bodies import Kind
from qpid_ha_broker.events.codec import offset_after
from qpid_ha_broker.model.log import Batch

_HEADER: Final = struct.Struct("<IIQBBHBBQH")
"""As in `events.codec`: size, checksum, LSN, kind, flags, version. Then the body's beginning, of Enqueued: durable,
priority, expiry, number of queues."""
_ENQUEUED: Final = int(Kind.ENQUEUED)


def durable_only(data: bytes) -> tuple[bytes, int]:
    """`data` without the messages that are neither durable nor part of a unit, and how many copies of them queues have.

    Only for whole records that were encoded here.
    """
    kept: list[bytes] = []
    unpack, end = _HEADER.unpack_from, len(data) - _HEADER.size
    offset = start = left_out = 0
    while offset <= end:
        size, _, _, kind, flags, _, durable, _, _, queues = unpack(data, offset)
        if kind == _ENQUEUED and not durable and not flags:
            if start < offset:
                kept.append(data[start:offset])
            start = offset + size
            left_out += queues
        offset += size
    if start < len(data):
        kept.append(data[start:] if start else data)
    return b"".join(kept) if len(kept) != 1 else kept[0], left_out


def cut_after(batch: Batch, lsn: int) -> tuple[Batch, Batch]:
    """What of `batch` goes up to `lsn`, which lies in it, and what comes after; each with its own count."""
    at = offset_after(batch.data, lsn)
    first, rest = batch.data[:at], batch.data[at:]
    transient = durable_only(first)[1] if batch.transient else 0
    return (
        Batch(batch.first_lsn, lsn, first, transient),
        Batch(lsn + 1, batch.last_lsn, rest, batch.transient - transient),
    )
