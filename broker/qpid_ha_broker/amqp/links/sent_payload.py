"""How a message goes out: with the marks of a second delivery, with what consumers have said of it when they gave it
back, and with what is left of its time to live."""

from __future__ import annotations

from collections.abc import Sequence

from qpid_ha_broker.amqp.wire.outcome_annotations import annotated
from qpid_ha_broker.amqp.wire.sections import FreshBeginning, MessageSections
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry

_NOTHING_KNOWN = FreshBeginning((), b"", 0)


def sent_payload(sections: MessageSections, queue: Queue, entry: Entry, body: bytes, now_ms: int) -> bytes:
    """`body`, of `entry` of `queue`, for a consumer. `now_ms`: by the clock by which it expires."""
    if queue.messages.annotations:
        body = queue.annotated(entry, body, annotated)
    is_first = not queue.is_redelivered(entry)
    failures = 0 if is_first else queue.deliveries_before(entry)
    if expires_at_ms := entry.header.expires_at_ms:
        return sections.aged(body, expires_at_ms - now_ms, failures, is_first=is_first)
    return sections.fresh(body) if is_first else sections.redelivered(body, failures)


def sent_payloads(
    sections: MessageSections, queue: Queue, entries: Sequence[Entry], bodies: Sequence[bytes], now_ms: int
) -> list[bytes]:
    """The same for each of them; nearly always nothing in the queue expires."""
    if len(queue.messages.expiries):
        return [
            sent_payload(sections, queue, entry, body, now_ms) for entry, body in zip(entries, bodies, strict=False)
        ]
    if queue.messages.annotations:
        bodies = [queue.annotated(entry, body, annotated) for entry, body in zip(entries, bodies, strict=False)]
    below, payloads = queue.redelivered_below, []
    begins, text, length = _NOTHING_KNOWN
    for entry, body in zip(entries, bodies, strict=False):
        if entry.acquired_before or entry.id <= below:  # `is_redelivered`, without a call
            payloads.append(sections.redelivered(body, queue.deliveries_before(entry)))
        elif body.startswith(begins):
            payloads.append(text + body[length:])
        else:
            payloads.append(sections.fresh(body))
            begins, text, length = sections.fresh_beginning(body)
    return payloads
