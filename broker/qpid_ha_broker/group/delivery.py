"""What is delivered, applied to this member's copy of the set: the same at all members in step.

A unit gets the next LSNs and counts, or is skipped (`checks`). While the copy is being brought level (`ha.catchup`),
LSNs and decisions are those of the others already, and what a unit does to messages that are not here yet is noted.

What members have at consumers is no part of the copy but at the member itself. Elsewhere a message that another member
still holds after it has yielded is held by ELSEWHERE. What a session holds is part of it: see `ownership`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, cast

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.group.acknowledging import is_awaited
from qpid_ha_broker.group.checks import SUBMITTED_TYPES, why_skipped
from qpid_ha_broker.group.context import GroupContext
from qpid_ha_broker.group.frames import EpochBegun, LinkLeft, LinkTaken, QueueYielded, Submitted
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.ownership import Returned, ids_of
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.model.errors import InUse, InvalidArgument, ModelError, NotFound
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import ELSEWHERE, SessionOwner
from qpid_ha_broker.model.sets.plain_arrivals import take_in_events


class UnitOutcome(NamedTuple):
    """What became of a unit."""

    lsn: int
    """Of its last record; of a duplicate: at least that of the original; 0: it was skipped."""
    failure: ModelError | None
    """Why it was skipped."""
    is_awaited: bool = False
    """Others wait until this member has all up to here on its disk."""


class DeliveredLog:
    """The promise: after the same deliveries, two copies have one log, and hold the same as far as they are level."""

    def __init__(self, ctx: GroupContext, lineage: Lineage) -> None:
        self._ctx = ctx
        self.lineage = lineage
        self.catch_up: CatchUp | None = None
        """While the copy is not whole."""

    # --- units

    def submitted(self, sender: str, frame: Submitted, own_events: Sequence[ev.Event] | None = None) -> UnitOutcome:
        """A unit of a member in step. `own_events`: of this member's own, what is in `frame`."""
        if own_events is None:
            records, _, problem = decode(frame.data)
            if problem is not None:
                return UnitOutcome(0, InvalidArgument(f"damaged at byte {problem.offset}: {problem.text}"))
            events: Sequence[ev.Event] = [record.event for record in records]
        else:
            events = own_events
        queue = self._one_queue(events)
        if queue is not None:
            messages = cast("Sequence[ev.Enqueued]", events)
            self._ctx.resource_set.deliver(
                messages, partial(take_in_events, self._ctx.resource_set.catalog, queue, messages)
            )
            self._note_arrival(queue)
            awaited = is_awaited(self._ctx.settings.name, sender, events[:1], self.lineage.ownership)
            return UnitOutcome(self._ctx.last_lsn, None, awaited)
        strange = [type(event).__name__ for event in events if type(event) not in SUBMITTED_TYPES]
        if strange or not events:
            text = f"no unit of a group has {strange[0] if strange else 'no event'}"
            return UnitOutcome(0, InvalidArgument(text))
        skip = why_skipped(self._ctx.resource_set.state, self.lineage.ownership, sender, events)
        if skip is not None:
            is_anothers = sender != self._ctx.settings.name
            return UnitOutcome(self._ctx.last_lsn if skip.is_duplicate else 0, skip.failure, is_anothers)
        awaited = is_awaited(self._ctx.settings.name, sender, events, self.lineage.ownership)
        self._before(sender, events)
        self._deliver(events)
        self._wake(events)
        return UnitOutcome(self._ctx.last_lsn, None, awaited)

    def _one_queue(self, events: Sequence[ev.Event]) -> Queue | None:
        """Where all of a unit goes, if it is messages for one queue that is there, about which there is nothing to
        decide, and the copy is whole: what a publisher sends at full speed is this, hundreds of them."""
        first = events[0] if events else None
        if type(first) is not ev.Enqueued or len(first.queues) != 1 or self.catch_up is not None:
            return None
        queues = first.queues
        for event in events:
            if (
                type(event) is not ev.Enqueued
                or event.queues != queues
                or event.expires_at_ms
                or event.key
                or event.due_at_ms
            ):
                return None
        queue = self._ctx.resource_set.catalog.queues_by_id.get(queues[0])
        return None if queue is None or queue.needs_care else queue

    def _before(self, sender: str, events: Iterable[ev.Event]) -> None:
        """What becomes of ownership; and who gives back what nobody else knows it had was given it all the same."""
        ownership = self.lineage.ownership
        for event in events:
            if isinstance(event, ev.QueueDeleted):
                ownership.forget(event.queue)
            elif isinstance(event, ev.QueueUsed):
                if not event.owner and ownership.user(event.queue) == sender:
                    ownership.use_alone(event.queue, "")  # though it may be exclusive no more
                elif self._ctx.resource_set.catalog.queues_by_id[event.queue].arguments.exclusive:
                    ownership.use_alone(event.queue, sender)
            elif isinstance(event, ev.Released):
                ownership.answered(event.queue, event.ids)
                self._hold_elsewhere(self._ctx.resource_set.catalog.queues_by_id[event.queue], event.ids)
            elif isinstance(event, ev.Dequeued | ev.SessionAcquired):
                ownership.answered(event.queue, event.ids)

    def _wake(self, events: Iterable[ev.Event]) -> None:
        """Consumers may find something, or have to be told that their queue is but a tombstone."""
        catalog = self._ctx.resource_set.catalog
        for event in events:
            if isinstance(event, ev.QueueUsed) and event.queue in catalog.queues_by_id:
                catalog.note_use(catalog.queues_by_id[event.queue])
            elif isinstance(event, ev.QueueUpdated):
                updated = catalog.queues_by_id.get(event.queue)
                if updated is not None:
                    catalog.note_use(updated)  # who has to ask for it depends on its arguments
                if updated is not None and updated.deleted:
                    catalog.deleted_queues.append(updated)
            elif isinstance(event, ev.Enqueued | ev.Released):
                for queue_id in event.queues if isinstance(event, ev.Enqueued) else (event.queue,):
                    queue = catalog.queues_by_id.get(queue_id)
                    if queue is not None:  # the same unit may delete it
                        self._note_arrival(queue)

    def _note_arrival(self, queue: Queue) -> None:
        """Consumers may find something, or something has to leave."""
        resource_set = self._ctx.resource_set
        resource_set.catalog.note_arrival(queue)
        if queue.displaces:
            resource_set.replication.note_due(queue)

    def _deliver(self, events: Sequence[ev.Event]) -> None:
        by_hand = None if self.catch_up is None else partial(self._follow, self.catch_up, events)
        self._ctx.resource_set.deliver(events, by_hand)

    @staticmethod
    def _follow(catch_up: CatchUp, events: Sequence[ev.Event], lsns: Sequence[int]) -> None:
        """As one who is sent records would: parts of a unit count with the record that closes it."""
        if len(events) == 1:
            catch_up.follow(LogRecord(lsns[0], events[0], False))
            return
        for lsn, event in zip(lsns, events, strict=True):
            catch_up.follow(LogRecord(lsn, event, True))
        catch_up.follow(LogRecord(lsns[-1] + 1, ev.TransactionCommitted(len(events)), False))

    # --- ownership

    def wanted(self, sender: str, queue: int) -> None:
        """A member in step has a consumer of the queue."""
        if queue in self._ctx.resource_set.catalog.queues_by_id:
            self.lineage.position += 1
            self.lineage.ownership.want(queue, sender, self.lineage.position)

    def yielded(self, sender: str, frame: QueueYielded) -> None:
        """A member in step hands out from the queue no more."""
        queue = self._ctx.resource_set.catalog.queues_by_id.get(frame.queue)
        if queue is None:
            return
        self.lineage.position += 1
        held = tuple(ids_of(frame.held))
        is_owners = self.lineage.ownership.give_up(frame.queue, sender, held, self.lineage.position)
        if is_owners and sender != self._ctx.settings.name:
            self._hold_elsewhere(queue, held)

    def link_taken(self, sender: str, frame: LinkTaken) -> UnitOutcome:
        """A session's link was attached at a member in step: whether it is, and as of which LSN."""
        if frame.queue not in self._ctx.resource_set.catalog.queues_by_id:
            return UnitOutcome(0, NotFound(f"there is no queue with the id {frame.queue} any more"))
        self.lineage.position += 1
        link = SessionOwner(frame.session, frame.name, frame.link)
        if not self.lineage.ownership.take_link(frame.queue, link, frame.epoch, sender):
            return UnitOutcome(0, InUse("the session was resumed on another connection"))
        return UnitOutcome(self._ctx.last_lsn, None)

    def link_left(self, sender: str, frame: LinkLeft) -> None:
        """It has ended there."""
        self.lineage.position += 1
        link = SessionOwner(frame.session, frame.name, frame.link)
        self.lineage.ownership.leave_link(frame.queue, link, sender)

    def _hold_elsewhere(self, queue: Queue, ids: Sequence[int]) -> None:
        for entry in queue.messages.find_all(ids):
            if entry.is_free:
                queue.messages.hold(entry, ELSEWHERE)

    # --- epochs

    def begin_epoch(self, begun: EpochBegun) -> None:
        """The record was written. What those who are not named any more had goes back, marked."""
        lineage, record = self.lineage, begun.record
        is_new = record.generation > lineage.record.generation
        left = lineage.begin(begun)
        lineage.position += 1
        if begun.is_cold:
            self.mark_all()
        for returned in lineage.ownership.leave(left, lineage.position):
            self._return(returned)
        if is_new:
            started = ev.GenerationStarted(
                record.generation, record.primary, record.cluster, 0, False, ev.MEMBERS_CHANGED
            )
            self._deliver((started, ev.InSyncChanged(record.epoch, record.members)))

    def mark_all(self) -> None:
        """Whatever is there may have been handed out."""
        for queue in self._ctx.resource_set.state.queues():
            queue.redelivered_below = self._ctx.last_lsn

    def _return(self, returned: Returned) -> None:
        queue = self._ctx.resource_set.catalog.queues_by_id.get(returned.queue)
        if queue is None:
            return
        if returned.was_owned:
            queue.redelivered_below = self._ctx.last_lsn
        for entry in queue.messages.find_all(returned.held):
            queue.messages.give_back(entry, failed=False)
            entry.acquired_before = True
        self._note_arrival(queue)

    def release_all(self) -> None:
        """Nobody but sessions holds anything, as far as this copy knows: this member is outside."""
        for queue in self._ctx.resource_set.state.queues():
            if queue.messages.acquired:
                for entry in queue.messages:
                    if entry.id in queue.held:
                        queue.messages.hold(entry, queue.held[entry.id])
                    elif not entry.is_free:
                        queue.messages.give_back(entry, failed=False)
