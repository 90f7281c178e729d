"""Where each field of a record lies: the one place that spells the offsets of docs/protocol.md, for codec and numpy.

A record is a header, the fields of its kind that have a fixed length, and what has not: ids, texts, the payload. The
first two are data here. Little-endian, without gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from itertools import accumulate
from struct import Struct, calcsize
from typing import Any, Final


class RecordKind(IntEnum):
    """The first digit (in hexadecimal) is the group; 0x00 to 0x0f stay free, so that zeros are never a record."""

    QUEUE_DECLARED = 0x10
    QUEUE_UPDATED = 0x11
    QUEUE_DELETED = 0x12
    EXCHANGE_DECLARED = 0x13
    EXCHANGE_DELETED = 0x14
    BOUND = 0x15
    UNBOUND = 0x16
    QUEUE_USED = 0x17
    REPLICATION_CHANGED = 0x18

    ENQUEUED = 0x20
    DEQUEUED = 0x21
    ACQUIRED = 0x22
    RELEASED = 0x23
    PRODUCER_ADVANCED = 0x24
    SESSION_ACQUIRED = 0x25
    NUMBERS_REFUSED = 0x26
    HANDED_OUT = 0x27
    SCHEDULED = 0x28
    """An Enqueued of a message that is due later. An older release cannot read it."""
    ANNOTATED = 0x29
    """An older release cannot read it."""

    TRANSACTION_COMMITTED = 0x30

    GENERATION_STARTED = 0x40
    IN_SYNC_CHANGED = 0x41
    TRANSIENTS_LOST = 0x42

    BROKER_REGISTERED = 0x50
    BROKER_CHANGED = 0x51
    BROKER_REMOVED = 0x52
    SET_PLACED = 0x53
    SET_DELETED = 0x54
    SET_RECORDED = 0x55
    QUEUE_PLACED = 0x56
    QUEUE_REMOVED = 0x57
    REPLICA_POLICIES_CHANGED = 0x58
    SET_GROUPED = 0x59
    SETTING_CHANGED = 0x5A

    SESSION_STARTED = 0x60
    SESSION_RESUMED = 0x61
    SESSION_DETACHED = 0x62
    SESSION_ENDED = 0x63


VERSION: Final = 1

LOCAL_BASE: Final = 1 << 63
"""Of a record with a higher LSN, or an id that is higher: it is of the log that a broker keeps for itself.

One journal holds both logs, and a record of either may name an object of the other.
"""

PART: Final = 1
"""Flag: counts only once the `TransactionCommitted` that closes its unit has come."""


def is_local_lsn(number: int) -> bool:
    """Whether an LSN, or an id, is of the log that a broker keeps for itself."""
    return number >= LOCAL_BASE


class Layout:
    """Fields that follow each other, the first of them `start` bytes behind the beginning of a record.

    `fields` gives the format of each as in `struct`; "?" is a byte that is 0 or 1, written from any truth value and
    read as a number, so that a reader sees any other. `offsets` are those in the record, and what follows is at `end`.
    """

    def __init__(self, fields: Mapping[str, str], start: int = 0) -> None:
        writer = Struct("<" + "".join(fields.values()))
        reader = Struct(writer.format.replace("?", "B"))
        sizes = [calcsize("<" + form) for form in fields.values()]
        self.fields: Final = fields
        self.start: Final = start
        self.size: Final = reader.size
        self.end: Final = start + reader.size
        self.offsets: Final = dict(zip(fields, accumulate(sizes, initial=start), strict=False))
        self.pack: Final[Callable[..., bytes]] = writer.pack
        self.unpack: Final[Callable[..., tuple[Any, ...]]] = reader.unpack
        self.unpack_from: Final[Callable[..., tuple[Any, ...]]] = reader.unpack_from

    def __add__(self, following: Layout) -> Layout:
        """The fields of both. Raises ValueError unless `following` begins where this one ends."""
        if following.start != self.end:
            raise ValueError(f"expected fields that begin at {self.end}, found some that begin at {following.start}")
        return Layout({**self.fields, **following.fields}, self.start)

    def between(self, first: str, last: str) -> Layout:
        """The fields from one to another."""
        names = list(self.fields)
        chosen = names[names.index(first) : names.index(last) + 1]
        return Layout({name: self.fields[name] for name in chosen}, self.offsets[first])

    def joined(self, name: str, part: Layout) -> Layout:
        """A layout of the same bytes, with those of `part` as one unsigned number: faster than field by field."""
        fields: dict[str, str] = {}
        for field, form in self.fields.items():
            if field in part.fields:
                fields[name] = {2: "H", 4: "I", 8: "Q"}[part.size]
            else:
                fields[field] = form
        return Layout(fields, self.start)

    def dtype(self) -> list[tuple[str, str]]:
        """What `numpy.dtype` takes for these fields."""
        return [(name, f"<u{calcsize('<' + form)}") for name, form in self.fields.items()]


SEAL: Final = Layout({"size": "I", "checksum": "I"})
"""Size of the record in bytes, and CRC-32 of what follows these two."""

HEAD: Final = Layout({"lsn": "Q", "kind": "B", "flags": "B", "version": "H"}, SEAL.end)

HEADER: Final = SEAL + HEAD
HEADER_BYTES: Final = HEADER.size

_MESSAGE: Final = {"durable": "?", "priority": "B", "expires_at_ms": "Q", "queues": "H", "key_bytes": "H"}
"""The queues follow, then the key, of a SCHEDULED when it is due, and the payload."""
_IDS: Final = {"queue": "Q", "detail": "B", "ids": "I"}
"""`detail`: the reason of a Dequeued, whether a Released failed, 0; `ids`: how many follow."""

BODIES: Final[Mapping[RecordKind, Layout]] = {
    kind: Layout(fields, HEADER.end)
    for kind, fields in {
        RecordKind.QUEUE_DECLARED: dict[str, str](),
        RecordKind.QUEUE_UPDATED: {"queue": "Q"},
        RecordKind.QUEUE_DELETED: {"queue": "Q"},
        RecordKind.EXCHANGE_DECLARED: {},
        RecordKind.EXCHANGE_DELETED: {"exchange": "Q"},
        RecordKind.BOUND: {"exchange": "Q", "queue": "Q"},
        RecordKind.UNBOUND: {"exchange": "Q", "queue": "Q"},
        RecordKind.QUEUE_USED: {"queue": "Q"},
        RecordKind.REPLICATION_CHANGED: {"queue": "Q", "messages": "?"},
        RecordKind.ENQUEUED: _MESSAGE,
        RecordKind.SCHEDULED: _MESSAGE,
        RecordKind.DEQUEUED: _IDS,
        RecordKind.ACQUIRED: _IDS,
        RecordKind.RELEASED: _IDS,
        RecordKind.PRODUCER_ADVANCED: {"sequence": "Q", "kept": "I"},
        RecordKind.SESSION_ACQUIRED: {"queue": "Q", "session": "Q"},
        RecordKind.NUMBERS_REFUSED: {"sequences": "H", "producer_bytes": "H"},
        RecordKind.HANDED_OUT: {"queue": "Q", "upto": "Q"},
        RecordKind.ANNOTATED: {"queue": "Q", "ids": "I"},
        RecordKind.TRANSACTION_COMMITTED: {"parts": "I"},
        RecordKind.GENERATION_STARTED: {"generation": "Q", "started_at_ms": "Q", "forced": "?"},
        RecordKind.IN_SYNC_CHANGED: {"epoch": "Q"},
        RecordKind.TRANSIENTS_LOST: {"before": "Q"},
        RecordKind.BROKER_REGISTERED: {},
        RecordKind.BROKER_CHANGED: {"up": "?", "draining": "?", "since_ms": "Q"},
        RecordKind.BROKER_REMOVED: {},
        RecordKind.SET_PLACED: {"min_replicas": "H", "min_in_sync": "H"},
        RecordKind.SET_DELETED: {},
        RecordKind.SET_RECORDED: {"generation": "Q", "epoch": "Q", "claimed": "?"},
        RecordKind.QUEUE_PLACED: {"deleting": "?"},
        RecordKind.QUEUE_REMOVED: {"queue": "Q"},
        RecordKind.REPLICA_POLICIES_CHANGED: {},
        RecordKind.SET_GROUPED: {},
        RecordKind.SETTING_CHANGED: {"at_ms": "Q"},
        RecordKind.SESSION_STARTED: {"timeout_ms": "Q", "since_ms": "Q"},
        RecordKind.SESSION_RESUMED: {"session": "Q", "epoch": "Q", "timeout_ms": "Q", "since_ms": "Q"},
        RecordKind.SESSION_DETACHED: {"session": "Q", "since_ms": "Q"},
        RecordKind.SESSION_ENDED: {"session": "Q", "failed": "?"},
    }.items()
}
"""The fields of a fixed length with which the body of each kind begins; `events.bodies` knows what follows them."""

ENQUEUED: Final = BODIES[RecordKind.ENQUEUED]
IDS: Final = BODIES[RecordKind.DEQUEUED]
"""Of an Acquired and a Released, too. The ids follow."""

DUE: Final = Layout({"due_at_ms": "Q"})
"""Of a SCHEDULED, behind its key. Here by itself, wherever it is."""
ENQUEUED_KINDS: Final = (RecordKind.ENQUEUED, RecordKind.SCHEDULED)
"""Of records that bring a message; both begin alike."""
ID: Final = Layout({"id": "Q"})
"""Of a queue, an exchange or a message: the LSN of the event that made it. Here by itself, wherever it is."""

PLAIN: Final = HEADER + ENQUEUED + Layout({"queue": "Q"}, ENQUEUED.end)
"""An Enqueued, with the first of its queues.

Nearly every record is plain: an Enqueued that is no part, for one queue, without a key. The payload follows.
"""
PLAIN_HEAD: Final = PLAIN.between("lsn", "queue")
"""What the checksum covers of it before the payload."""

TYPE: Final = HEADER.between("kind", "version")
LENGTHS: Final = ENQUEUED.between("queues", "key_bytes")

WORDS: Final = PLAIN.joined("word", TYPE).joined("lengths", LENGTHS)
"""PLAIN, with `word` to compare with `word_of`, and `lengths` to compare with `ONE_QUEUE`."""
HEADER_WORDS: Final = WORDS.between("size", "word")

ONE_QUEUE: Final = int.from_bytes(LENGTHS.pack(1, 0), "little")
"""The `lengths` of an Enqueued that is for one queue and has no key."""


def due_bytes(kind: int) -> int:
    """Of a record that brings a message: what is between its key and the payload."""
    return DUE.size if kind == RecordKind.SCHEDULED else 0


def word_of(kind: RecordKind, flags: int = 0) -> int:
    """The `word` of such a record."""
    return int.from_bytes(TYPE.pack(kind, flags, VERSION), "little")
