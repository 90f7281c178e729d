"""The body of each kind of record: one number, one row, its fields in the order of the bytes. See docs/protocol.md.

What comes with nearly every message has a writer and a reader of its own, which do what its row would, only faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .fields import (
    ARGUMENTS,
    BYTES,
    COUNTS,
    FIXED,
    IDS,
    TEXT,
    TEXTS,
    TRUTH,
    U8,
    U64,
    FieldType,
    checked,
    list_of,
    read_ids,
    write_ids,
)
from .forms import Form, Pieces, expect_end
from .layout import BODIES, DUE, ENQUEUED, RecordKind
from .layout import IDS as IDS_LAYOUT
from .types import (
    Acquired,
    Annotated,
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
    SetGrouped,
    SetPlaced,
    SetRecorded,
    SettingChanged,
    TransactionCommitted,
    TransientsLost,
    Unbound,
)

_NO_PAYLOAD: Final = b""
_REFUSED: Final = BODIES[RecordKind.NUMBERS_REFUSED]
_ANNOTATED: Final = BODIES[RecordKind.ANNOTATED]
_REASONS: Final = tuple(sorted(DequeueReason))

Writer = Callable[[Any], Pieces]
"""From an event of its own type: `Any` because the table pairs type and writer, which its type cannot say."""
Reader = Callable[[memoryview], Event]


def _write_enqueued(event: Enqueued) -> Pieces:
    queues, payload, durable, priority, expires_at_ms, key, due_at_ms = event
    encoded = key.encode()
    head = ENQUEUED.pack(durable, priority, expires_at_ms, len(queues), len(encoded))
    due = DUE.pack(due_at_ms) if due_at_ms else _NO_PAYLOAD
    return head + write_ids(queues) + encoded + due, payload


def _read_enqueued(body: memoryview, due_bytes: int = 0) -> Enqueued:
    durable, priority, expires_at_ms, count, key_bytes = ENQUEUED.unpack_from(body)
    if durable > 1:
        raise ValueError(f"durable: expected 0 or 1, found {durable}")
    queues = read_ids(body, ENQUEUED.size, count)
    key_at = ENQUEUED.size + 8 * count
    key_end = key_at + key_bytes
    if key_end > len(body):
        raise ValueError(f"key: expected {key_bytes} bytes, found {len(body) - key_at}")
    key = str(body[key_at:key_end], "utf-8") if key_bytes else ""
    (due_at_ms,) = DUE.unpack_from(body, key_end) if due_bytes else (0,)
    payload = bytes(body[key_end + due_bytes :])
    return Enqueued(queues, payload, durable == 1, priority, expires_at_ms, key, due_at_ms)


def _read_scheduled(body: memoryview) -> Enqueued:
    event = _read_enqueued(body, DUE.size)
    if not event.due_at_ms:
        raise ValueError("due_at_ms: expected a time, found 0")
    return event


def _write_dequeued(event: Dequeued) -> Pieces:
    queue, ids, reason = event
    if type(reason) is not DequeueReason:
        raise ValueError("reason")
    return IDS_LAYOUT.pack(queue, reason, len(ids)) + write_ids(ids), _NO_PAYLOAD


def _read_dequeued(body: memoryview) -> Dequeued:
    queue, reason, count = IDS_LAYOUT.unpack_from(body)
    if reason >= len(_REASONS):
        raise ValueError(f"reason: expected at most {len(_REASONS) - 1}, found {reason}")
    expect_end(body, IDS_LAYOUT.size + 8 * count)
    return Dequeued(queue, read_ids(body, IDS_LAYOUT.size, count), _REASONS[reason])


def _write_numbers_refused(event: NumbersRefused) -> Pieces:
    producer, sequences = event
    return _REFUSED.pack(len(sequences), len(producer)) + write_ids(sequences) + producer, _NO_PAYLOAD


def _read_numbers_refused(body: memoryview) -> NumbersRefused:
    count, length = _REFUSED.unpack_from(body)
    sequences = read_ids(body, _REFUSED.size, count)
    producer_at = _REFUSED.size + 8 * count
    expect_end(body, producer_at + length)
    return NumbersRefused(bytes(body[producer_at:]), sequences)


def _write_annotated(event: Annotated) -> Pieces:
    queue, ids, annotations = event
    return _ANNOTATED.pack(queue, len(ids)) + write_ids(ids), annotations


def _read_annotated(body: memoryview) -> Annotated:
    queue, count = _ANNOTATED.unpack_from(body)
    end = _ANNOTATED.size + 8 * count
    return Annotated(queue, read_ids(body, _ANNOTATED.size, count), bytes(body[end:]))


def _reason(number: int) -> DequeueReason:
    if number >= len(_REASONS):
        raise ValueError(f"expected at most {len(_REASONS) - 1}, found {number}")
    return _REASONS[number]


def _write_ids_alone(ids: tuple[int, ...]) -> bytes:
    return b"\0" + IDS.write(ids)


def _read_ids_alone(body: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    zero, at = U8.read(body, at)
    if zero:
        raise ValueError(f"expected 0 before the ids, found {zero}")
    return IDS.read(body, at)


class _Row(NamedTuple):
    kind: RecordKind
    form: Form
    write: Writer
    read: Reader


def _row(kind: RecordKind, event: type[Event], /, **rest: FieldType) -> _Row:
    """Of an event whose fields are those that `BODIES` has for it, and `rest` after them, in that order."""
    return _of(kind, Form(event, {**{name: FIXED[letter] for name, letter in BODIES[kind].fields.items()}, **rest}))


def _of(kind: RecordKind, form: Form) -> _Row:
    return _Row(kind, form, form.write, form.read)


_QUEUE_REASON_IDS: Final = {"queue": U64, "reason": checked(U8, _reason), "ids": IDS}
_QUEUE_IDS: Final = {"queue": U64, "ids": FieldType(_write_ids_alone, _read_ids_alone)}
_QUEUE_FAILED_IDS: Final = {"queue": U64, "failed": TRUTH, "ids": IDS}
_SAID: Final = {"queue": U64, "ids": IDS}
_MESSAGE: Final = {
    "durable": TRUTH, "priority": U8, "expires_at_ms": U64, "queues": list_of("H", U64), "key": TEXT, "due_at_ms": U64,
}  # fmt: skip
_NUMBERS: Final = {"sequences": list_of("H", U64), "producer": BYTES}
"""These two have both lengths before both values: their own writers and readers alone know that."""

# fmt: off
_TABLE: Final = (
    _row(RecordKind.QUEUE_DECLARED, QueueDeclared, name=TEXT, arguments=ARGUMENTS),
    _row(RecordKind.QUEUE_UPDATED, QueueUpdated, arguments=ARGUMENTS),
    _row(RecordKind.QUEUE_DELETED, QueueDeleted),
    _row(RecordKind.EXCHANGE_DECLARED, ExchangeDeclared, name=TEXT, kind=TEXT, arguments=ARGUMENTS),
    _row(RecordKind.EXCHANGE_DELETED, ExchangeDeleted),
    _row(RecordKind.BOUND, Bound, key=TEXT, arguments=ARGUMENTS),
    _row(RecordKind.UNBOUND, Unbound, key=TEXT),
    _row(RecordKind.QUEUE_USED, QueueUsed, owner=TEXT),
    _row(RecordKind.REPLICATION_CHANGED, ReplicationChanged),
    _Row(RecordKind.ENQUEUED, Form(Enqueued, _MESSAGE, "payload"), _write_enqueued, _read_enqueued),
    _Row(RecordKind.SCHEDULED, Form(Enqueued, _MESSAGE, "payload"), _write_enqueued, _read_scheduled),
    _Row(RecordKind.DEQUEUED, Form(Dequeued, _QUEUE_REASON_IDS), _write_dequeued, _read_dequeued),
    _of(RecordKind.ACQUIRED, Form(Acquired, _QUEUE_IDS)),
    _of(RecordKind.RELEASED, Form(Released, _QUEUE_FAILED_IDS)),
    _row(RecordKind.PRODUCER_ADVANCED, ProducerAdvanced, producer=BYTES),
    _Row(RecordKind.NUMBERS_REFUSED, Form(NumbersRefused, _NUMBERS), _write_numbers_refused, _read_numbers_refused),
    _row(RecordKind.SESSION_ACQUIRED, SessionAcquired, name=TEXT, link=TEXT, ids=IDS),
    _row(RecordKind.HANDED_OUT, HandedOut),
    _Row(RecordKind.ANNOTATED, Form(Annotated, _SAID, "annotations"), _write_annotated, _read_annotated),
    _row(RecordKind.TRANSACTION_COMMITTED, TransactionCommitted),
    _row(RecordKind.GENERATION_STARTED, GenerationStarted, primary=TEXT, cluster=TEXT, cause=TEXT),
    _row(RecordKind.IN_SYNC_CHANGED, InSyncChanged, members=TEXTS),
    _row(RecordKind.TRANSIENTS_LOST, TransientsLost),
    _row(
        RecordKind.BROKER_REGISTERED, BrokerRegistered,
        name=TEXT, uuid=TEXT, address=TEXT, clients_url=TEXT, zone=TEXT, version=TEXT,
    ),
    _row(RecordKind.BROKER_CHANGED, BrokerChanged, name=TEXT),
    _row(RecordKind.BROKER_REMOVED, BrokerRemoved, name=TEXT),
    _row(RecordKind.SET_PLACED, SetPlaced, name=TEXT, replicas=TEXTS, leaving=TEXTS, preferred=TEXT),
    _row(RecordKind.SET_DELETED, SetDeleted, name=TEXT),
    _row(RecordKind.SET_RECORDED, SetRecorded, name=TEXT, cluster=TEXT, primary=TEXT, members=TEXTS),
    _row(RecordKind.QUEUE_PLACED, QueuePlaced, name=TEXT, set=TEXT, arguments=ARGUMENTS),
    _row(RecordKind.QUEUE_REMOVED, QueueRemoved),
    _row(RecordKind.REPLICA_POLICIES_CHANGED, ReplicaPoliciesChanged, patterns=TEXTS, counts=COUNTS),
    _row(RecordKind.SET_GROUPED, SetGrouped, name=TEXT),
    _row(RecordKind.SETTING_CHANGED, SettingChanged, key=TEXT, value=TEXT, user=TEXT),
    _row(RecordKind.SESSION_STARTED, SessionStarted, name=TEXT, user=TEXT),
    _row(RecordKind.SESSION_RESUMED, SessionResumed),
    _row(RecordKind.SESSION_DETACHED, SessionDetached),
    _row(RecordKind.SESSION_ENDED, SessionEnded),
)
# fmt: on

WRITERS: Final[Mapping[type[Event], tuple[int, Writer]]] = {
    row.form.made: (int(row.kind), row.write) for row in _TABLE if row.kind is not RecordKind.SCHEDULED
}
"""An Enqueued that is due later has the other kind: see `codec.encode`."""
READERS: Final[Mapping[int, Reader]] = {int(row.kind): row.read for row in _TABLE}
FORMS: Final[Mapping[type[Event], Form]] = {row.form.made: row.form for row in _TABLE}
