"""The body of each kind of record: one number, one writer, one reader. The tables are in docs/protocol.md.

A writer gives the body in two pieces, the second of which is the payload, so that a message's bytes are copied once.
A reader gets the body alone and raises ValueError or struct.error when it is not one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .fields import (
    expect_end,
    read_arguments,
    read_counts,
    read_ids,
    read_list_of_ids,
    read_text,
    read_texts,
    write_arguments,
    write_counts,
    write_ids,
    write_list_of_ids,
    write_text,
    write_texts,
)
from .layout import BODIES, ENQUEUED, IDS, RecordKind
from .types import (
    Acquired,
    Bound,
    BrokerChanged,
    BrokerRegistered,
    BrokerRemoved,
    Dequeued,
    DequeueReason,
    Enqueued,
    Event,
    ExchangeDeclared,
    ExchangeDeleted,
    GenerationStarted,
    HandedOut,
    InSyncChanged,
    NumbersRefused,
    ProducerAdvanced,
    QueueDeclared,
    QueueDeleted,
    QueuePlaced,
    QueueRemoved,
    QueueUpdated,
    QueueUsed,
    Released,
    ReplicaPoliciesChanged,
    ReplicationChanged,
    SessionAcquired,
    SessionDetached,
    SessionEnded,
    SessionResumed,
    SessionStarted,
    SetDeleted,
    SetPlaced,
    SetRecorded,
    TransactionCommitted,
    TransientsLost,
    Unbound,
)

Pieces = tuple[bytes, bytes]
"""The body up to the payload, and the payload: empty but for Enqueued."""

_NO_PAYLOAD: Final = b""
_IN_SYNC: Final = BODIES[RecordKind.IN_SYNC_CHANGED]
_PRODUCER: Final = BODIES[RecordKind.PRODUCER_ADVANCED]
_REFUSED: Final = BODIES[RecordKind.NUMBERS_REFUSED]
_REASONS: Final = tuple(sorted(DequeueReason))


def _write_enqueued(event: Enqueued) -> Pieces:
    queues, payload, durable, priority, expires_at_ms, key = event
    encoded = key.encode()
    head = ENQUEUED.pack(durable, priority, expires_at_ms, len(queues), len(encoded))
    return head + write_ids(queues) + encoded, payload


def _read_enqueued(body: memoryview) -> Enqueued:
    durable, priority, expires_at_ms, count, key_bytes = ENQUEUED.unpack_from(body)
    if durable > 1:
        raise ValueError(f"durable: expected 0 or 1, found {durable}")
    queues = read_ids(body, ENQUEUED.size, count)
    key_at = ENQUEUED.size + 8 * count
    payload_at = key_at + key_bytes
    if payload_at > len(body):
        raise ValueError(f"key: expected {key_bytes} bytes, found {len(body) - key_at}")
    key = str(body[key_at:payload_at], "utf-8") if key_bytes else ""
    return Enqueued(queues, bytes(body[payload_at:]), durable == 1, priority, expires_at_ms, key)


def _write_dequeued(event: Dequeued) -> Pieces:
    queue, ids, reason = event
    if type(reason) is not DequeueReason:
        raise ValueError("reason")
    return IDS.pack(queue, reason, len(ids)) + write_ids(ids), _NO_PAYLOAD


def _write_acquired(event: Acquired) -> Pieces:
    return IDS.pack(event.queue, 0, len(event.ids)) + write_ids(event.ids), _NO_PAYLOAD


def _write_released(event: Released) -> Pieces:
    return IDS.pack(event.queue, 1 if event.failed else 0, len(event.ids)) + write_ids(event.ids), _NO_PAYLOAD


def _read_ids_of(body: memoryview, most: int) -> tuple[int, tuple[int, ...], int]:
    """Queue, ids, and the byte between them, which says more about the kind of event and is at most `most`."""
    queue, detail, count = IDS.unpack_from(body)
    if detail > most:
        raise ValueError(f"reason or failed: expected at most {most}, found {detail}")
    ids = read_ids(body, IDS.size, count)
    expect_end(body, IDS.size + 8 * count)
    return queue, ids, detail


def _read_dequeued(body: memoryview) -> Dequeued:
    queue, ids, reason = _read_ids_of(body, most=len(_REASONS) - 1)
    return Dequeued(queue, ids, _REASONS[reason])


def _read_acquired(body: memoryview) -> Acquired:
    queue, ids, _ = _read_ids_of(body, most=0)
    return Acquired(queue, ids)


def _read_released(body: memoryview) -> Released:
    queue, ids, failed = _read_ids_of(body, most=1)
    return Released(queue, ids, failed == 1)


def _write_producer_advanced(event: ProducerAdvanced) -> Pieces:
    producer, sequence, kept = event
    return _PRODUCER.pack(sequence, kept, len(producer)) + producer, _NO_PAYLOAD


def _read_producer_advanced(body: memoryview) -> ProducerAdvanced:
    sequence, kept, length = _PRODUCER.unpack_from(body)
    expect_end(body, _PRODUCER.size + length)
    return ProducerAdvanced(bytes(body[_PRODUCER.size :]), sequence, kept)


def _write_numbers_refused(event: NumbersRefused) -> Pieces:
    producer, sequences = event
    return _REFUSED.pack(len(sequences), len(producer)) + write_ids(sequences) + producer, _NO_PAYLOAD


def _read_numbers_refused(body: memoryview) -> NumbersRefused:
    count, length = _REFUSED.unpack_from(body)
    sequences = read_ids(body, _REFUSED.size, count)
    producer_at = _REFUSED.size + 8 * count
    expect_end(body, producer_at + length)
    return NumbersRefused(bytes(body[producer_at:]), sequences)


def _write_in_sync_changed(event: InSyncChanged) -> Pieces:
    names = b"".join([write_text(name) for name in event.members])
    return _IN_SYNC.pack(event.epoch, len(event.members)) + names, _NO_PAYLOAD


def _read_in_sync_changed(body: memoryview) -> InSyncChanged:
    epoch, count = _IN_SYNC.unpack_from(body)
    at, members = _IN_SYNC.size, []
    for _ in range(count):
        name, at = read_text(body, at)
        members.append(name)
    expect_end(body, at)
    return InSyncChanged(epoch, tuple(members))


Writer = Callable[[Any], Pieces]
"""From an event of its own type: `Any` because the table pairs type and writer, which its type cannot say."""
Reader = Callable[[memoryview], Event]


class _Row(NamedTuple):
    kind: RecordKind
    event: type[Event]
    write: Writer
    read: Reader


_Spelling = tuple[Callable[[Any], bytes], Callable[[memoryview, int], tuple[Any, int]]]
_TEXT: Final[_Spelling] = (write_text, read_text)
_TEXTS: Final[_Spelling] = (write_texts, read_texts)
_COUNTS: Final[_Spelling] = (write_counts, read_counts)
_IDS: Final[_Spelling] = (write_list_of_ids, read_list_of_ids)
_ARGUMENTS: Final[_Spelling] = (write_arguments, read_arguments)


def _row(kind: RecordKind, event: type[Event], /, **rest: _Spelling) -> _Row:
    """Of an event whose fields are those that `BODIES` has for it, and `rest` after them, in that order."""
    layout = BODIES[kind]
    pack, unpack, size = layout.pack, layout.unpack_from, layout.size
    truths = [(number, name) for number, (name, form) in enumerate(layout.fields.items()) if form == "?"]
    names = (*layout.fields, *rest)
    places = [names.index(name) for name in event._fields]

    def write(given: Any) -> Pieces:
        pieces = [pack(*[getattr(given, name) for name in layout.fields])]
        pieces += [write_field(getattr(given, name)) for name, (write_field, _) in rest.items()]
        return b"".join(pieces), _NO_PAYLOAD

    def numbers(body: memoryview) -> list[Any]:
        values = list(unpack(body))
        for number, name in truths:
            if values[number] > 1:
                raise ValueError(f"{name}: expected 0 or 1, found {values[number]}")
            values[number] = values[number] == 1
        return values

    def read(body: memoryview) -> Event:
        values, at = numbers(body), size
        for _, read_field in rest.values():
            value, at = read_field(body, at)
            values.append(value)
        expect_end(body, at)
        return event(*[values[place] for place in places])

    def write_numbers(given: Any) -> Pieces:
        return pack(*given), _NO_PAYLOAD

    def read_numbers(body: memoryview) -> Event:
        expect_end(body, size)
        return event(*numbers(body))

    return _Row(kind, event, write, read) if rest else _Row(kind, event, write_numbers, read_numbers)


# fmt: off
_TABLE: Final = (
    _row(RecordKind.QUEUE_DECLARED, QueueDeclared, name=_TEXT, arguments=_ARGUMENTS),
    _row(RecordKind.QUEUE_UPDATED, QueueUpdated, arguments=_ARGUMENTS),
    _row(RecordKind.QUEUE_DELETED, QueueDeleted),
    _row(RecordKind.EXCHANGE_DECLARED, ExchangeDeclared, name=_TEXT, kind=_TEXT, arguments=_ARGUMENTS),
    _row(RecordKind.EXCHANGE_DELETED, ExchangeDeleted),
    _row(RecordKind.BOUND, Bound, key=_TEXT, arguments=_ARGUMENTS),
    _row(RecordKind.UNBOUND, Unbound, key=_TEXT),
    _row(RecordKind.QUEUE_USED, QueueUsed, owner=_TEXT),
    _row(RecordKind.REPLICATION_CHANGED, ReplicationChanged),
    _Row(RecordKind.ENQUEUED, Enqueued, _write_enqueued, _read_enqueued),
    _Row(RecordKind.DEQUEUED, Dequeued, _write_dequeued, _read_dequeued),
    _Row(RecordKind.ACQUIRED, Acquired, _write_acquired, _read_acquired),
    _Row(RecordKind.RELEASED, Released, _write_released, _read_released),
    _Row(RecordKind.PRODUCER_ADVANCED, ProducerAdvanced, _write_producer_advanced, _read_producer_advanced),
    _Row(RecordKind.NUMBERS_REFUSED, NumbersRefused, _write_numbers_refused, _read_numbers_refused),
    _row(RecordKind.SESSION_ACQUIRED, SessionAcquired, name=_TEXT, link=_TEXT, ids=_IDS),
    _row(RecordKind.HANDED_OUT, HandedOut),
    _row(RecordKind.TRANSACTION_COMMITTED, TransactionCommitted),
    _row(RecordKind.GENERATION_STARTED, GenerationStarted, primary=_TEXT, cluster=_TEXT, cause=_TEXT),
    _Row(RecordKind.IN_SYNC_CHANGED, InSyncChanged, _write_in_sync_changed, _read_in_sync_changed),
    _row(RecordKind.TRANSIENTS_LOST, TransientsLost),
    _row(
        RecordKind.BROKER_REGISTERED, BrokerRegistered,
        name=_TEXT, uuid=_TEXT, address=_TEXT, clients_url=_TEXT, zone=_TEXT, version=_TEXT,
    ),
    _row(RecordKind.BROKER_CHANGED, BrokerChanged, name=_TEXT),
    _row(RecordKind.BROKER_REMOVED, BrokerRemoved, name=_TEXT),
    _row(RecordKind.SET_PLACED, SetPlaced, name=_TEXT, replicas=_TEXTS, leaving=_TEXTS, preferred=_TEXT),
    _row(RecordKind.SET_DELETED, SetDeleted, name=_TEXT),
    _row(RecordKind.SET_RECORDED, SetRecorded, name=_TEXT, cluster=_TEXT, primary=_TEXT, members=_TEXTS),
    _row(RecordKind.QUEUE_PLACED, QueuePlaced, name=_TEXT, set=_TEXT, arguments=_ARGUMENTS),
    _row(RecordKind.QUEUE_REMOVED, QueueRemoved),
    _row(RecordKind.REPLICA_POLICIES_CHANGED, ReplicaPoliciesChanged, patterns=_TEXTS, counts=_COUNTS),
    _row(RecordKind.SESSION_STARTED, SessionStarted, name=_TEXT, user=_TEXT),
    _row(RecordKind.SESSION_RESUMED, SessionResumed),
    _row(RecordKind.SESSION_DETACHED, SessionDetached),
    _row(RecordKind.SESSION_ENDED, SessionEnded),
)
# fmt: on

WRITERS: Final[Mapping[type[Event], tuple[int, Writer]]] = {row.event: (int(row.kind), row.write) for row in _TABLE}
READERS: Final[Mapping[int, Reader]] = {int(row.kind): row.read for row in _TABLE}
