"""How messages come to their queues that are plain: due at once, without key, no part of a unit.

Nearly all are, and those that come behind each other mostly have one header: also one time when they expire, if they
have one, for they came together. So they count in runs, at a fraction of what each by itself would cost. All who let
messages count that were written do it here: their publisher's broker, who follows its log, and a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD, Catalog

_in_common, _payload = itemgetter(slice(2, 5)), itemgetter(1)
"""Of an Enqueued: whether it is durable, its priority and when it expires; its payload."""
_new_tuple = tuple.__new__
"""Makes a named tuple of a tuple at half of what calling its class costs."""


class Alike(NamedTuple):
    """What records of plain messages have in common that can count together."""

    queues: tuple[int, ...]
    durable: bool
    priority: int
    expires_at_ms: int


def alike(record: LogRecord) -> Alike | None:
    """None: it is not of a plain message."""
    _, event, part = record
    if part or type(event) is not Enqueued:
        return None
    queues, _, durable, priority, expires_at_ms, key, due_at_ms = event
    if key or due_at_ms:
        return None
    common: Alike = _new_tuple(Alike, (queues, durable, priority, expires_at_ms))
    return common


def header_of(queue: Queue, durable: bool, priority: int, expires_at_ms: int) -> MessageHeader:
    """What plain messages of `queue` have in common."""
    if expires_at_ms:
        return MessageHeader(queue.ids, durable, priority, expires_at_ms, "")
    headers = queue.durable_headers if durable else queue.transient_headers
    return headers.get(priority) or queue.add_header(durable, priority)


def take_in(
    catalog: Catalog, queue: Queue, header: MessageHeader, lsns: Sequence[int], bodies: Sequence[bytes]
) -> None:
    """What applying Enqueued comes to for plain messages with one header, of which each has its LSN."""
    catalog.memory_bytes += queue.messages.add_run(lsns, header, bodies) + MESSAGE_OVERHEAD * len(bodies)
    if queue.dispatcher.consumers:
        catalog.awake[queue] = None
    if header.expires_at_ms:
        catalog.timed[queue] = None


def take_in_events(catalog: Catalog, queue: Queue, events: Sequence[Enqueued], lsns: Sequence[int]) -> None:
    """The same for plain messages with headers of their own. There may be LSNs of other events behind theirs."""
    at = 0
    for in_common, run in groupby(events, key=_in_common):
        bodies = list(map(_payload, run))
        take_in(catalog, queue, header_of(queue, *in_common), lsns[at : at + len(bodies)], bodies)
        at += len(bodies)


def take_in_records(catalog: Catalog, queues: Sequence[Queue], common: Alike, records: Sequence[LogRecord]) -> int:
    """The same for records that are `alike`, of a log that is followed; returns the last LSN."""
    lsns, events, _ = zip(*records, strict=True)
    bodies = list(map(_payload, events))
    header = header_of(queues[0], *common[1:]) if len(queues) == 1 else catalog.headers.of(events[0])
    for queue in queues:
        take_in(catalog, queue, header, lsns, bodies)
    last: int = lsns[-1]
    return last
