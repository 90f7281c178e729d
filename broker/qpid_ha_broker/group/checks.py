"""Whether a unit that was delivered counts or is skipped: the same decision at every member.

So it follows from what was delivered before, and from nothing that only some members have: not from a message, which a
member that catches up may lack, not from a clock, not from who asks.

| event | skipped when |
| --- | --- |
| Enqueued | one of its queues is gone |
| Dequeued, Released, Annotated | its queue is gone; a message of it is not its sender's (`Ownership.may_take`) |
| SessionAcquired | the same; a session holds one already; the link is attached elsewhere, or nowhere |
| QueueDeclared, ExchangeDeclared | the name is taken |
| QueueUpdated, QueueDeleted, Bound, Unbound, ExchangeDeleted | what it is about is gone |
| QueueUsed | the queue is exclusive, and a client of another member has it; or none of its sender has it to give up |
| ProducerAdvanced | its producer has come as far before: it is a duplicate |
| NumbersRefused | never: it comes with a message that is accepted |

Other events are not submitted to a group (`SUBMITTED_TYPES`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group.ownership import Ownership
from qpid_ha_broker.model.errors import AlreadyExists, InUse, ModelError, NotFound, RefusedBefore
from qpid_ha_broker.model.queues.queue import SessionLink
from qpid_ha_broker.model.queues.sequence import SessionOwner
from qpid_ha_broker.model.sets.state import SetState


class Skip(NamedTuple):
    """Why a unit does not count."""

    failure: ModelError
    is_duplicate: bool = False
    """It was accepted before: who sent it waits for that to be committed."""


Check = Callable[[SetState, Ownership, str, Any], Skip | None]
"""Why the event of that member does not count; None: it does."""


def _queues_are_there(state: SetState, _: Ownership, __: str, event: ev.Enqueued) -> Skip | None:
    missing = [queue for queue in event.queues if queue not in state.catalog.queues_by_id]
    return Skip(NotFound(f"there is no queue with the id {missing[0]} any more")) if missing else None


def _queue_is_there(state: SetState, _: Ownership, __: str, event: Any) -> Skip | None:
    is_there = event.queue in state.catalog.queues_by_id
    return None if is_there else Skip(NotFound(f"there is no queue with the id {event.queue} any more"))


def _messages_are_theirs(
    state: SetState, ownership: Ownership, sender: str, event: ev.Dequeued | ev.Released | ev.Annotated
) -> Skip | None:
    refusal = _queue_is_there(state, ownership, sender, event)
    if refusal is not None or ownership.may_take(event.queue, sender, event.ids, _held_of_sessions(state, event.queue)):
        return refusal
    return Skip(NotFound(f"{sender} neither owns queue {event.queue} nor holds all of the messages {event.ids[:5]}"))


def _held_of_sessions(state: SetState, queue: int) -> Mapping[int, SessionLink]:
    """Of the copy of a member that catches up, too: what is held is shown before the messages are."""
    return state.catalog.queues_by_id[queue].held


def _session_may_have_them(
    state: SetState, ownership: Ownership, sender: str, event: ev.SessionAcquired
) -> Skip | None:
    refusal = _queue_is_there(state, ownership, sender, event)
    if refusal is not None:
        return refusal
    if ownership.link_at(event.queue, SessionOwner(event.session, event.name, event.link)) != sender:
        return Skip(InUse(f"the link {event.link} of the session is not attached at {sender}"))
    is_held = not _held_of_sessions(state, event.queue).keys().isdisjoint(event.ids)
    if is_held or not ownership.may_take(event.queue, sender, event.ids):
        return Skip(NotFound(f"{sender} cannot give the session the messages {event.ids[:5]} of queue {event.queue}"))
    return None


def _name_is_free(state: SetState, _: Ownership, __: str, event: ev.QueueDeclared | ev.ExchangeDeclared) -> Skip | None:
    catalog = state.catalog
    is_taken = event.name in catalog.queues or event.name in catalog.exchanges or event.name in state.map.queues
    return Skip(AlreadyExists(f"the name {event.name} is taken")) if is_taken else None


def _exchange_is_there(state: SetState, _: Ownership, __: str, event: Any) -> Skip | None:
    is_there = event.exchange in state.catalog.exchanges_by_id
    return None if is_there else Skip(NotFound(f"there is no exchange with the id {event.exchange} any more"))


def _both_are_there(state: SetState, ownership: Ownership, sender: str, event: ev.Bound | ev.Unbound) -> Skip | None:
    refusal = _queue_is_there(state, ownership, sender, event)
    return _exchange_is_there(state, ownership, sender, event) if refusal is None else refusal


def _user_may_have_it(state: SetState, ownership: Ownership, sender: str, event: ev.QueueUsed) -> Skip | None:
    refusal = _queue_is_there(state, ownership, sender, event)
    if refusal is not None:
        return refusal
    queue, user = state.catalog.queues_by_id[event.queue], ownership.user(event.queue)
    if not queue.arguments.exclusive or user in (sender, "" if event.owner else sender):
        return None
    return Skip(InUse(f"queue {queue.name} is exclusive, and a client of {user or 'no member'} has it"))


def _number_is_new(state: SetState, _: Ownership, __: str, event: ev.ProducerAdvanced) -> Skip | None:
    if state.producers.sequence_of(event.producer) < event.sequence:
        return None
    text = f"number {event.sequence} of the producer was accepted before"
    return Skip(RefusedBefore(text), is_duplicate=True)


def _counts(_: SetState, __: Ownership, ___: str, ____: ev.NumbersRefused) -> Skip | None:
    return None


CHECKS: Final[Mapping[type[ev.Event], Check]] = {
    ev.Enqueued: _queues_are_there,
    ev.Dequeued: _messages_are_theirs,
    ev.Released: _messages_are_theirs,
    ev.Annotated: _messages_are_theirs,
    ev.SessionAcquired: _session_may_have_them,
    ev.QueueDeclared: _name_is_free,
    ev.ExchangeDeclared: _name_is_free,
    ev.QueueUpdated: _queue_is_there,
    ev.QueueDeleted: _queue_is_there,
    ev.ExchangeDeleted: _exchange_is_there,
    ev.Bound: _both_are_there,
    ev.Unbound: _both_are_there,
    ev.QueueUsed: _user_may_have_it,
    ev.ProducerAdvanced: _number_is_new,
    ev.NumbersRefused: _counts,
}
SUBMITTED_TYPES: Final = frozenset(CHECKS)


def why_skipped(state: SetState, ownership: Ownership, sender: str, events: Iterable[ev.Event]) -> Skip | None:
    """Why a unit of that member does not count, by the table above; None: it does."""
    for event in events:
        skip = CHECKS[type(event)](state, ownership, sender, event)
        if skip is not None:
            return skip
    return None
