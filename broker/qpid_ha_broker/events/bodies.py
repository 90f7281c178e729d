"""The body of each kind of record: one number, one writer, one reader. The tables are in docs/protocol.md.

A writer gives the body in two pieces, the second of which is the payload, so that a message's bytes are copied once.
A reader gets the body alone and raises ValueError or struct.error when it is not one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from .fields import (
    expect_end,
    read_arguments,
    read_id,
    read_ids,
    read_text,
    write_arguments,
    write_id,
    write_ids,
    write_text,
)
from .types import (
    Acquired,
    Bound,
    Dequeued,
    DequeueReason,
    Enqueued,
    Event,
    ExchangeDeclared,
    ExchangeDeleted,
    GenerationStarted,
    InSyncChanged,
    ProducerAdvanced,
    QueueDeclared,
    QueueDeleted,
    QueueUpdated,
    QueueUsed,
    Released,
    ReplicationChanged,
    TransactionCommitted,
    TransientsLost,
    Unbound,
)


class Kind(IntEnum):
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

    TRANSACTION_COMMITTED = 0x30

    GENERATION_STARTED = 0x40
    IN_SYNC_CHANGED = 0x41
    TRANSIENTS_LOST = 0x42


Pieces = tuple[bytes, bytes]
"""The body up to the payload, and the payload: empty but for Enqueued."""

_NO_PAYLOAD: Final = b""
_ENQUEUED: Final = struct.Struct("<BBQHH")
_IDS: Final = struct.Struct("<QBI")
_PARTS: Final = struct.Struct("<I")
_FLAGGED_ID: Final = struct.Struct("<QB")
_GENERATION: Final = struct.Struct("<QQB")
_IN_SYNC: Final = struct.Struct("<QH")
_PRODUCER: Final = struct.Struct("<QIH")
_REASONS: Final = tuple(sorted(DequeueReason))


def _write_enqueued(event: Enqueued) -> Pieces:
    queues, payload, durable, priority, expires_at_ms, key = event
    encoded = key.encode()
    head = _ENQUEUED.pack(1 if durable else 0, priority, expires_at_ms, len(queues), len(encoded))
    return head + write_ids(queues) + encoded, payload


def _read_enqueued(body: memoryview) -> Enqueued:
    durable, priority, expires_at_ms, count, key_bytes = _ENQUEUED.unpack_from(body)
    if durable > 1:
        raise ValueError(f"durable: expected 0 or 1, found {durable}")
    queues = read_ids(body, _ENQUEUED.size, count)
    key_at = _ENQUEUED.size + 8 * count
    payload_at = key_at + key_bytes
    if payload_at > len(body):
        raise ValueError(f"key: expected {key_bytes} bytes, found {len(body) - key_at}")
    key = str(body[key_at:payload_at], "utf-8") if key_bytes else ""
    return Enqueued(queues, bytes(body[payload_at:]), durable == 1, priority, expires_at_ms, key)


def _write_dequeued(event: Dequeued) -> Pieces:
    queue, ids, reason = event
    if type(reason) is not DequeueReason:
        raise ValueError("reason")
    return _IDS.pack(queue, reason, len(ids)) + write_ids(ids), _NO_PAYLOAD


def _write_acquired(event: Acquired) -> Pieces:
    return _IDS.pack(event.queue, 0, len(event.ids)) + write_ids(event.ids), _NO_PAYLOAD


def _write_released(event: Released) -> Pieces:
    return _IDS.pack(event.queue, 1 if event.failed else 0, len(event.ids)) + write_ids(event.ids), _NO_PAYLOAD


def _read_ids_of(body: memoryview, most: int) -> tuple[int, tuple[int, ...], int]:
    """Queue, ids, and the byte between them, which says more about the kind of event and is at most `most`."""
    queue, detail, count = _IDS.unpack_from(body)
    if detail > most:
        raise ValueError(f"reason or failed: expected at most {most}, found {detail}")
    ids = read_ids(body, _IDS.size, count)
    expect_end(body, _IDS.size + 8 * count)
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


def _write_queue_declared(event: QueueDeclared) -> Pieces:
    return write_text(event.name) + write_arguments(event.arguments), _NO_PAYLOAD


def _read_queue_declared(body: memoryview) -> QueueDeclared:
    name, at = read_text(body, 0)
    arguments, at = read_arguments(body, at)
    expect_end(body, at)
    return QueueDeclared(name, arguments)


def _write_queue_updated(event: QueueUpdated) -> Pieces:
    return write_id(event.queue) + write_arguments(event.arguments), _NO_PAYLOAD


def _read_queue_updated(body: memoryview) -> QueueUpdated:
    queue, at = read_id(body, 0)
    arguments, at = read_arguments(body, at)
    expect_end(body, at)
    return QueueUpdated(queue, arguments)


def _write_queue_deleted(event: QueueDeleted) -> Pieces:
    return write_id(event.queue), _NO_PAYLOAD


def _read_queue_deleted(body: memoryview) -> QueueDeleted:
    queue, at = read_id(body, 0)
    expect_end(body, at)
    return QueueDeleted(queue)


def _write_exchange_declared(event: ExchangeDeclared) -> Pieces:
    return write_text(event.name) + write_text(event.kind) + write_arguments(event.arguments), _NO_PAYLOAD


def _read_exchange_declared(body: memoryview) -> ExchangeDeclared:
    name, at = read_text(body, 0)
    kind, at = read_text(body, at)
    arguments, at = read_arguments(body, at)
    expect_end(body, at)
    return ExchangeDeclared(name, kind, arguments)


def _write_exchange_deleted(event: ExchangeDeleted) -> Pieces:
    return write_id(event.exchange), _NO_PAYLOAD


def _read_exchange_deleted(body: memoryview) -> ExchangeDeleted:
    exchange, at = read_id(body, 0)
    expect_end(body, at)
    return ExchangeDeleted(exchange)


def _write_bound(event: Bound) -> Pieces:
    ends = write_id(event.exchange) + write_id(event.queue)
    return ends + write_text(event.key) + write_arguments(event.arguments), _NO_PAYLOAD


def _read_bound(body: memoryview) -> Bound:
    exchange, at = read_id(body, 0)
    queue, at = read_id(body, at)
    key, at = read_text(body, at)
    arguments, at = read_arguments(body, at)
    expect_end(body, at)
    return Bound(exchange, queue, key, arguments)


def _write_unbound(event: Unbound) -> Pieces:
    return write_id(event.exchange) + write_id(event.queue) + write_text(event.key), _NO_PAYLOAD


def _read_unbound(body: memoryview) -> Unbound:
    exchange, at = read_id(body, 0)
    queue, at = read_id(body, at)
    key, at = read_text(body, at)
    expect_end(body, at)
    return Unbound(exchange, queue, key)


def _write_transaction_committed(event: TransactionCommitted) -> Pieces:
    return _PARTS.pack(event.parts), _NO_PAYLOAD


def _read_transaction_committed(body: memoryview) -> TransactionCommitted:
    (parts,) = _PARTS.unpack_from(body)
    expect_end(body, _PARTS.size)
    return TransactionCommitted(parts)


def _write_queue_used(event: QueueUsed) -> Pieces:
    return write_id(event.queue) + write_text(event.owner), _NO_PAYLOAD


def _read_queue_used(body: memoryview) -> QueueUsed:
    queue, at = read_id(body, 0)
    owner, at = read_text(body, at)
    expect_end(body, at)
    return QueueUsed(queue, owner)


def _write_replication_changed(event: ReplicationChanged) -> Pieces:
    return _FLAGGED_ID.pack(event.queue, 1 if event.messages else 0), _NO_PAYLOAD


def _read_replication_changed(body: memoryview) -> ReplicationChanged:
    queue, messages = _FLAGGED_ID.unpack_from(body)
    expect_end(body, _FLAGGED_ID.size)
    return ReplicationChanged(queue, _truth("messages", messages))


def _write_generation_started(event: GenerationStarted) -> Pieces:
    head = _GENERATION.pack(event.generation, event.started_at_ms, 1 if event.forced else 0)
    return head + write_text(event.primary) + write_text(event.cluster) + write_text(event.cause), _NO_PAYLOAD


def _read_generation_started(body: memoryview) -> GenerationStarted:
    generation, started_at_ms, forced = _GENERATION.unpack_from(body)
    primary, at = read_text(body, _GENERATION.size)
    cluster, at = read_text(body, at)
    cause, at = read_text(body, at)
    expect_end(body, at)
    return GenerationStarted(generation, primary, cluster, started_at_ms, _truth("forced", forced), cause)


def _write_in_sync_changed(event: InSyncChanged) -> Pieces:
    names = b"".join([write_text(name) for name in event.members])
    return _IN_SYNC.pack(event.epoch, len(event.members)) + names, _NO_PAYLOAD


def _write_transients_lost(event: TransientsLost) -> Pieces:
    return write_id(event.before), _NO_PAYLOAD


def _read_transients_lost(body: memoryview) -> TransientsLost:
    before, at = read_id(body, 0)
    expect_end(body, at)
    return TransientsLost(before)


def _read_in_sync_changed(body: memoryview) -> InSyncChanged:
    epoch, count = _IN_SYNC.unpack_from(body)
    at, members = _IN_SYNC.size, []
    for _ in range(count):
        name, at = read_text(body, at)
        members.append(name)
    expect_end(body, at)
    return InSyncChanged(epoch, tuple(members))


def _truth(name: str, value: int) -> bool:
    if value > 1:
        raise ValueError(f"{name}: expected 0 or 1, found {value}")
    return value == 1


Writer = Callable[[Any], Pieces]
"""From an event of its own type: `Any` because the table pairs type and writer, which its type cannot say."""
Reader = Callable[[memoryview], Event]


class _Row(NamedTuple):
    kind: Kind
    event: type[Event]
    write: Writer
    read: Reader


_TABLE: Final = (
    _Row(Kind.QUEUE_DECLARED, QueueDeclared, _write_queue_declared, _read_queue_declared),
    _Row(Kind.QUEUE_UPDATED, QueueUpdated, _write_queue_updated, _read_queue_updated),
    _Row(Kind.QUEUE_DELETED, QueueDeleted, _write_queue_deleted, _read_queue_deleted),
    _Row(Kind.EXCHANGE_DECLARED, ExchangeDeclared, _write_exchange_declared, _read_exchange_declared),
    _Row(Kind.EXCHANGE_DELETED, ExchangeDeleted, _write_exchange_deleted, _read_exchange_deleted),
    _Row(Kind.BOUND, Bound, _write_bound, _read_bound),
    _Row(Kind.UNBOUND, Unbound, _write_unbound, _read_unbound),
    _Row(Kind.QUEUE_USED, QueueUsed, _write_queue_used, _read_queue_used),
    _Row(Kind.REPLICATION_CHANGED, ReplicationChanged, _write_replication_changed, _read_replication_changed),
    _Row(Kind.ENQUEUED, Enqueued, _write_enqueued, _read_enqueued),
    _Row(Kind.DEQUEUED, Dequeued, _write_dequeued, _read_dequeued),
    _Row(Kind.ACQUIRED, Acquired, _write_acquired, _read_acquired),
    _Row(Kind.RELEASED, Released, _write_released, _read_released),
    _Row(Kind.PRODUCER_ADVANCED, ProducerAdvanced, _write_producer_advanced, _read_producer_advanced),
    _Row(Kind.TRANSACTION_COMMITTED, TransactionCommitted, _write_transaction_committed, _read_transaction_committed),
    _Row(Kind.GENERATION_STARTED, GenerationStarted, _write_generation_started, _read_generation_started),
    _Row(Kind.IN_SYNC_CHANGED, InSyncChanged, _write_in_sync_changed, _read_in_sync_changed),
    _Row(Kind.TRANSIENTS_LOST, TransientsLost, _write_transients_lost, _read_transients_lost),
)

WRITERS: Final[Mapping[type[Event], tuple[int, Writer]]] = {row.event: (int(row.kind), row.write) for row in _TABLE}
READERS: Final[Mapping[int, Reader]] = {int(row.kind): row.read for row in _TABLE}
