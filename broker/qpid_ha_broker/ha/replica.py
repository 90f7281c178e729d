"""This broker's copy of the replicated log: what it holds, what of it is applied, and what it can still take back.

A backup acknowledges what it holds and applies what is committed. In between lies what it could still be asked to
truncate: after a failover the new primary may lack the end of the stream, and then that end is simply dropped. Only a
backup whose state has already gone another way compares its messages one by one (`catchup`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.types import (
    Acquired,
    Annotated,
    Dequeued,
    Enqueued,
    Event,
    GenerationStarted,
    InSyncChanged,
    QueueDeclared,
    QueueDeleted,
    Released,
    SessionAcquired,
)
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.catchup import CatchUp, CatchUpError
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.durability import DurableProgress
from qpid_ha_broker.ha.effects import Discarded
from qpid_ha_broker.ha.tail import Tail
from qpid_ha_broker.ha.verdict import CommittedSet
from qpid_ha_broker.model.sets.state import ReplayError, SetState

Kind = TypeVar("Kind")
_MARKS: Final = (GenerationStarted, InSyncChanged)
DETAILS_MOST: Final = 1000
"""So many generations whoever compares is told the details of."""
CAUSE_LENGTH: Final = 500
"""Characters of why one began that are told then."""
_UNTOLD: Final = fr.GenerationDetails(0, False, "")


class StreamError(Exception):
    """What a peer sent does not fit; the channel is given up, and the state is as it was."""


STREAM_ERRORS: Final = (StreamError, CatchUpError, ReplayError)


class Held(NamedTuple):
    """A batch that is held and not applied."""

    last_lsn: int
    records: list[LogRecord]
    behind: tuple[LogRecord, ...] = ()
    """Of the broker's own log, in the order in which they were written: they may need what is held here."""


class Restored(NamedTuple):
    """What a broker has from its store, besides the state: that is in the resource set already."""

    store: fr.StoreOrigin
    held: tuple[Held, ...] = ()
    """Not applied: perhaps it was never committed."""
    lost_transient: int = 0
    """Messages that were not durable, and are not here any more."""
    promised: int = 0
    """The newest generation of a vote."""
    promised_to: str = ""
    claims: tuple[int, ...] = ()
    """The generations that this broker wanted for itself, ascending."""
    tail: Tail | None = None
    """The end of the stream as it was written, for those who lack little of it."""
    is_chosen: bool = False
    """An operator, or a comparison of all stores, says that this one is to be led from."""


class LogHistory:
    """Who led and who was in sync, as this broker's log tells: what is applied, and the held events about it."""

    def __init__(self, state: SetState, held: Iterable[Held]) -> None:
        self._state = state
        self.held_marks = [record for batch in held for record in _marks(batch.records)]
        """Of what is held and not applied."""

    @property
    def generation(self) -> int:
        """The newest in this broker's log; 0 for an empty one."""
        newest = self.newest_generation()
        return newest.generation if newest is not None else 0

    @property
    def cluster(self) -> str:
        """The UUID of this broker's log; empty for an empty one."""
        newest = self.newest_generation()
        return newest.cluster if newest is not None else ""

    def newest_generation(self) -> GenerationStarted | None:
        """The last one of this broker's log; None for an empty one."""
        for record in reversed(self.held_marks):
            if isinstance(record.event, GenerationStarted):
                return record.event
        generations = self._state.generations
        return generations[-1][1] if generations else None

    def generations(self) -> list[tuple[int, GenerationStarted]]:
        """The history with the LSN at which each began, together with what is held and not applied."""
        return [*self._state.generations, *self._held_events(GenerationStarted)]

    def entries(self) -> tuple[fr.GenerationEntry, ...]:
        """The same as frames carry it."""
        return tuple(fr.GenerationEntry(event.generation, event.primary, lsn) for lsn, event in self.generations())

    def started(self) -> tuple[int, ...]:
        """When each of them began, in ms since 1970; 0: that was not told."""
        return tuple(event.started_at_ms for _, event in self.generations())

    def details(self) -> tuple[fr.GenerationDetails, ...]:
        """When and why each of the newest began, as frames carry it."""
        newest = self.generations()[-DETAILS_MOST:]
        return tuple(
            fr.GenerationDetails(event.started_at_ms, event.forced, event.cause[:CAUSE_LENGTH]) for _, event in newest
        )

    def newest_in_sync(self) -> InSyncChanged:
        """The last in-sync set in this broker's log."""
        held = self._held_events(InSyncChanged)
        return held[-1][1] if held else self._state.in_sync

    def in_sync(self, store: fr.StoreOrigin) -> InSyncChanged:
        """The newest in-sync set that this broker knows of.

        Of a log out of a `store`: together with those that it may never have replaced. A primary that wrote "I am
        alone" and was not heard has not been alone, and its log does not know.
        """
        if store is not fr.StoreOrigin.DIRTY:
            return self.newest_in_sync()
        newest, has_begun = self._state.in_sync, False
        for record in self.held_marks:
            event = record.event
            if isinstance(event, GenerationStarted):
                has_begun = True  # by a verdict: what was before counts for it, and no more
            elif isinstance(event, InSyncChanged):
                before = () if has_begun else newest.members
                newest, has_begun = InSyncChanged(event.epoch, tuple(sorted({*before, *event.members}))), False
        return newest

    def _held_events(self, kind: type[Kind]) -> list[tuple[int, Kind]]:
        return [(lsn, event) for lsn, event, _ in self.held_marks if isinstance(event, kind)]

    # --- as the log goes on

    def hold(self, marks: list[LogRecord]) -> None:
        """These came, and are not applied yet."""
        self.held_marks += marks

    def truncate(self, lsn: int) -> None:
        """What is held after `lsn` is void."""
        self.held_marks = [mark for mark in self.held_marks if mark.lsn <= lsn]

    def applied_before(self, lsn: int) -> None:
        """What was held before `lsn` is applied."""
        self.held_marks = [mark for mark in self.held_marks if mark.lsn >= lsn]

    def forget_held(self) -> None:
        """Nothing of it can be applied."""
        self.held_marks.clear()

    def truncate_applied(self, lsn: int) -> None:
        """Generations that began after `lsn` go; a comparison brings what takes their place."""
        self._state.generations[:] = [(first, event) for first, event in self._state.generations if first <= lsn]

    def adopt(self, welcome: fr.Welcome) -> None:
        """The primary's generations, as far as this log has none, with when and why they began, if it could tell."""
        generations, history = self._state.generations, welcome.history
        present = {lsn for lsn, _ in generations}
        details = (*[_UNTOLD] * (len(history) - len(welcome.details)), *welcome.details[-len(history) :])
        for entry, (started_at_ms, forced, cause) in zip(history, details, strict=False):
            if entry.first_lsn not in present:
                event = GenerationStarted(
                    entry.generation, entry.primary, welcome.cluster, started_at_ms, forced, cause
                )
                generations.append((entry.first_lsn, event))


class Replica:
    """The promise: what this broker says it holds is held, unbroken and checked; what is committed is applied."""

    def __init__(self, ctx: MemberContext, restored: Restored) -> None:
        self._ctx = ctx
        self._set = ctx.resource_set
        self._held: deque[Held] = deque(restored.held)
        self.history = LogHistory(self._set.state, restored.held)
        held_lsn = self.held_lsn
        self.tail = restored.tail or Tail(ctx.settings.tail_bytes, held_lsn)
        """The end of the stream, for those who lack little of it."""
        if self.tail.last_lsn != held_lsn:
            self.tail.reset(held_lsn)
        self.durable = DurableProgress(ctx, held_lsn)
        self.store = restored.store
        """Where what is held comes from."""
        if self.store is fr.StoreOrigin.MEMORY and ctx.settings.has_coordinator:
            self.store = fr.StoreOrigin.UNVERIFIED  # it begins with nothing, and will hold what it is sent
        self.is_chosen = restored.is_chosen
        self.lacks_transient = restored.lost_transient > 0
        """Messages that were not durable were lost with the process before."""
        self._lost_upto_lsn = held_lsn
        """None of the messages that were lost with the process before is newer."""
        self.complete = True
        """This broker holds all that it may be in sync for."""
        self._follows_from_log = True
        """Its state is what a log says; not so in the middle of a comparison."""
        self._catch_up: CatchUp | None = None
        self.committed_lsn = 0
        """Up to there nobody can take anything back, as far as this broker was told since it started."""
        self._stored_ends = deque([held_lsn])
        """Of the log at the start and of each batch, the last event that a store keeps, until that is committed."""
        self._stored_committed_lsn = 0
        """The last of them that is."""
        self._committed_before = fr.LogPosition(0, 0)
        """The furthest that was told by the primaries before."""

    # --- what is held

    @property
    def held_lsn(self) -> int:
        """The end of this broker's log."""
        return self._held[-1].last_lsn if self._held else self._set.log.last_lsn

    @property
    def acknowledged_lsn(self) -> int:
        """What a primary may count on; 0 in the middle of a comparison."""
        return min(self.held_lsn, self.durable.durable_lsn) if self.complete else 0

    def committed_in_sync(self) -> CommittedSet | None:
        """The newest in-sync set that is applied, if a primary has said that all that is applied is committed."""
        state = self._set.state
        if not state.generations or self.committed_lsn < self._set.log.last_lsn:
            return None
        return CommittedSet(state.generations[-1][1].generation, state.in_sync.epoch, state.in_sync.members)

    @property
    def committed_position(self) -> fr.LogPosition:
        """The furthest event of which this process was told that it is committed, also if it has dropped that since.

        Messages that are not durable do not count: a log that came back from a store may end before them.
        """
        lsn = self._stored_committed_lsn
        started = [event.generation for first_lsn, event in self.history.generations() if first_lsn <= lsn]
        return max(self._committed_before, fr.LogPosition(started[-1] if started else 0, lsn))

    # --- the stream

    def append(self, frame: fr.Batch) -> None:
        """Hold the next batch. Raises StreamError, and then nothing of it is held."""
        held_lsn = self.held_lsn
        if frame.first_lsn != held_lsn + 1:
            raise StreamError(f"a batch from LSN {frame.first_lsn}; LSN {held_lsn + 1} should come next")
        records, _, wrong = decode(frame.data)
        if wrong is not None:
            raise StreamError(f"a damaged batch from LSN {frame.first_lsn}: {wrong.text}, at offset {wrong.offset}")
        if not records or len(records) != frame.last_lsn - frame.first_lsn + 1 or records[-1].lsn != frame.last_lsn:
            raise StreamError(f"a batch that should reach from LSN {frame.first_lsn} to {frame.last_lsn} does not")
        self.tail.append(frame.first_lsn, frame.last_lsn, frame.data)
        marks = _marks(records)
        if marks:
            self._ctx.is_status_stale = True
        if self._catch_up is not None:
            for record in records:
                self._catch_up.follow(record)
        else:
            self._held.append(Held(frame.last_lsn, records))
            self.history.hold(marks)
        for lsn, event, part in reversed(records):
            if part or type(event) is not Enqueued or event.durable:  # a store keeps it
                self._stored_ends.append(lsn)
                break
        transient = transient_count(records) if self._ctx.settings.has_store else 0
        self.durable.persist(frame.first_lsn, frame.last_lsn, frame.committed_lsn, transient, frame.data)
        self.commit(frame.committed_lsn)

    def commit(self, lsn: int) -> None:
        """Everything up to `lsn` can no longer be taken back by anybody."""
        if lsn > self.committed_lsn:
            self.committed_lsn = lsn
            self._set.log.committed_elsewhere(lsn)
            while self._stored_ends and self._stored_ends[0] <= lsn:
                self._stored_committed_lsn = self._stored_ends.popleft()
        if self._held and self._held[0].last_lsn <= self.committed_lsn:
            self._apply_held(self.committed_lsn)

    def _apply_held(self, lsn: int) -> None:
        follow, state = self._set.follow, self._set.state
        while self._held and self._held[0].last_lsn <= lsn:
            held = self._held.popleft()
            try:
                if self.lacks_transient:
                    for record in held.records:
                        follow((self._without_lost(record),))
                else:
                    follow(held.records)
            except ReplayError:
                self._apply_behind(held.behind)
                self._lose_track()
                raise
            if not state.open_unit:  # what a store left out is no record, but it was written
                self._set.log.last_lsn = held.last_lsn
            if held.behind:
                self._apply_behind(held.behind)
        if self.history.held_marks:
            # A batch out of a store may be empty: its messages were not durable.
            self.history.applied_before(
                next((lsn for held in self._held for lsn, _, _ in held.records), self.held_lsn + 1)
            )
            self._ctx.is_status_stale = True
        if state.transients_lost_lsn > self._lost_upto_lsn:
            self.lacks_transient = False  # nobody has them any more

    def _apply_behind(self, records: Iterable[LogRecord]) -> None:
        """What they were written after has come, or never will: this broker's own log goes on."""
        own = self._set.beside
        if own is not None:
            for record in records:
                own.follow_own(self._without_lost(record))

    def _lose_track(self) -> None:
        """What comes next does not fit what is here, which must never be: only a comparison helps, and no promotion."""
        for held in self._held:
            self._apply_behind(held.behind)
        self._held.clear()
        self.history.forget_held()
        self._set.drop_open_unit()
        self.tail.reset(self.held_lsn)
        self.complete = self._follows_from_log = False
        self._ctx.is_status_stale = True

    def _without_lost(self, record: LogRecord) -> LogRecord:
        """The record without the messages that were not durable, and did not come back with the store."""
        event = record.event
        if not isinstance(event, Dequeued | Acquired | Annotated | Released | SessionAcquired):
            return record
        queue = self._set.catalog.queues_by_id.get(event.queue)
        ids = tuple([id_ for id_ in event.ids if queue is None or queue.messages.find(id_) is not None])
        return record._replace(event=event._replace(ids=ids))

    # --- after a welcome

    def follow(self, welcome: fr.Welcome) -> list[fr.Frame]:
        """Go on as this primary's backup; what it has to be sent for that. Raises StreamError: it makes no sense."""
        if welcome.common_lsn > self.held_lsn:
            raise StreamError(f"welcomed at LSN {welcome.common_lsn}, but this log ends at {self.held_lsn}")
        if welcome.resync is fr.Resync.TAIL and welcome.common_lsn < self._set.log.last_lsn:
            raise StreamError(f"the tail cannot begin at LSN {welcome.common_lsn}: more than that is applied")
        self._committed_before = self.committed_position
        self._truncate(welcome.common_lsn, welcome.name)
        if welcome.resync is fr.Resync.DIFF:
            return self._begin_catch_up(welcome.common_lsn)
        if self.history.newest_generation() is None:
            # The beginning of a log may name this broker as in sync: so the one was whose memory is gone.
            self.complete = False
        return []

    def _truncate(self, lsn: int, primary: str) -> None:
        """Drop what lies after `lsn` and was not applied: the primary never had it.

        So nobody was told of it, unless that one was promoted by force; then this broker may be the only one that has
        it, and not know that it was committed. The messages are kept for an operator before the store forgets them.
        What is applied goes by comparison. The store has it until then: a checkpoint made of it cannot do without.
        """
        if self.held_lsn > lsn:
            self._ctx.effects += self._messages_after(lsn)
        taken_back, stored_lsn = self.held_lsn - lsn, max(lsn, self._set.log.last_lsn)
        if self.held_lsn > stored_lsn:
            self.durable.truncate(stored_lsn)
        behind: tuple[LogRecord, ...] = ()
        while self._held and self._held[-1].last_lsn > lsn:
            last = self._held.pop()
            behind = last.behind + behind
            if self.held_lsn < lsn:  # a part of it stays; there may be no record in that, but what a store left out
                self._held.append(Held(lsn, [record for record in last.records if record.lsn <= lsn]))
                break
        if self._held:
            last = self._held.pop()
            self._held.append(last._replace(behind=last.behind + behind))
        else:
            self._apply_behind(behind)
        while self._stored_ends and self._stored_ends[-1] > lsn:
            self._stored_ends.pop()
        self.history.truncate(lsn)
        self._lost_upto_lsn = min(self._lost_upto_lsn, lsn)
        if taken_back > 0:
            self.committed_lsn = min(self.committed_lsn, lsn)  # more than that was, if this one was promoted by force
            self.tail.truncate_after(lsn)
            events = counted(taken_back, f"event after LSN {lsn} is", f"events after LSN {lsn} are")
            self._ctx.note("info", f"{events} taken back: {primary} lacks them")

    def _messages_after(self, lsn: int) -> list[Discarded]:
        """What the events that are held after `lsn` bring into queues, and leave there.

        1. A message of a transaction: once that is whole, and with the part of it that lies before `lsn`; the primary
           has only that part, and drops it.
        2. One that is consumed after `lsn`, or whose queue is deleted: not, as if all of it had been applied.
        3. One for a queue that is declared here: under that name.
        """
        names = {queue.id: queue.name for queue in self._set.state.queues()}
        payloads: dict[int, dict[int, bytes]] = {}
        unit = list(self._set.state.open_unit)
        for record in chain.from_iterable(batch.records for batch in self._held):
            unit.append(record)
            if record.part:
                continue
            for event_lsn, event, _ in unit:
                if isinstance(event, QueueDeclared):
                    names[event_lsn] = event.name
                elif record.lsn > lsn:
                    _follow_messages(payloads, event_lsn, event)
            unit.clear()
        return [
            Discarded(names.get(queue, str(queue)), tuple(kept), tuple(kept.values()))
            for queue, kept in payloads.items()
            if kept
        ]

    # --- catching up by comparison

    def _begin_catch_up(self, common_lsn: int) -> list[fr.Frame]:
        self._apply_held(self.held_lsn)
        self._set.log.count_unsure()
        self.complete = self._follows_from_log = False
        self._catch_up = CatchUp(self._set, common_lsn)
        self._ctx.effects += self._catch_up.discard_after_common()
        self.history.truncate_applied(common_lsn)
        self._set.log.reset(common_lsn)
        self.tail.reset(common_lsn)
        return [*self._catch_up.holdings(), fr.HoldingsDone()]

    def catch_up_objects(self, frame: fr.Objects, welcome: fr.Welcome) -> None:
        """The configuration. Raises StreamError, CatchUpError."""
        self._ctx.effects += self._catching_up().objects(frame)
        self.tail.reset(frame.lsn)
        self.durable.begin_checkpoint(frame.lsn)
        self.history.adopt(welcome)
        self.committed_lsn = self._stored_committed_lsn = 0
        self._ctx.is_status_stale = True

    def catch_up_chunk(self, frame: fr.Chunk) -> None:
        """What a replicating browser found. Raises StreamError, CatchUpError."""
        self._catching_up().chunk(frame)

    def caught_up(self) -> None:
        """All that was missing has been sent."""
        if self._catch_up is not None:
            self._catch_up.finish()
            self._catch_up = None
            self._is_whole()
            self.durable.write_checkpoint()
        self.complete = True

    def abandon_catch_up(self) -> None:
        """Nothing more comes from that primary."""
        if self._catch_up is not None:
            self._catch_up.abandon()
            self._catch_up = None

    def _catching_up(self) -> CatchUp:
        if self._catch_up is None:
            raise StreamError("a frame of a catch-up, and there is none")
        return self._catch_up

    def _is_whole(self) -> None:
        self.complete = self._follows_from_log = True
        self.lacks_transient = False

    # --- leading

    def apply_all(self) -> None:
        """This broker leads: all that is held counts, because any of it may have been confirmed."""
        self._apply_held(self.held_lsn)
        self._set.drop_open_unit()
        if not self._follows_from_log:  # by force
            self._set.state.producers.clear()  # their messages may not be here: better twice than never
            self._set.state.sessions.clear()
            self._set.catalog.holdings.clear()
            self.durable.begin_checkpoint(self._set.log.last_lsn)
            self.durable.write_checkpoint_later()
        self._is_whole()
        self.mark_verified()
        last_lsn = self._set.log.last_lsn
        if self.tail.last_lsn != last_lsn:
            self.tail.reset(last_lsn)

    def mark_level(self) -> None:
        """What this broker holds is no longer just what its store had."""
        if not self._ctx.settings.has_coordinator:
            self.mark_verified()
        elif self.store in (fr.StoreOrigin.DIRTY, fr.StoreOrigin.CLEAN):
            self._begin_memory(fr.StoreOrigin.UNVERIFIED)

    def mark_verified(self) -> None:
        """The same, and no newer primary is recorded than the one that it was level with, or than itself."""
        if self.store is not fr.StoreOrigin.FAILED:
            self._begin_memory(fr.StoreOrigin.MEMORY)

    def _begin_memory(self, origin: fr.StoreOrigin) -> None:
        self.store, self.is_chosen = origin, False
        self._ctx.is_status_stale = True

    def mark_store_failed(self) -> None:
        """What comes from now on is held in memory only."""
        self.store = fr.StoreOrigin.FAILED
        self._ctx.is_status_stale = True

    def check_invariants(self) -> None:
        """Raise AssertionError where the promise is broken; called after each step in tests."""
        self.tail.check_invariants()
        if self.tail.last_lsn > self.held_lsn:
            raise AssertionError(f"the tail ends at LSN {self.tail.last_lsn}, the log at {self.held_lsn}")


def transient_count(records: list[LogRecord]) -> int:
    """As `model.log.Batch.transient`."""
    return sum(
        [len(event.queues) for _, event, part in records if type(event) is Enqueued and not (event.durable or part)]
    )


def _follow_messages(payloads: dict[int, dict[int, bytes]], lsn: int, event: Event) -> None:
    """Let `event` change what is in queues: by queue's and message's id."""
    if isinstance(event, Enqueued):
        for queue in event.queues:
            payloads.setdefault(queue, {})[lsn] = event.payload
    elif isinstance(event, Dequeued):
        for message_id in event.ids:
            payloads.get(event.queue, {}).pop(message_id, None)
    elif isinstance(event, QueueDeleted):
        payloads.pop(event.queue, None)


def _marks(records: list[LogRecord]) -> list[LogRecord]:
    return [record for record in records if type(record.event) in _MARKS]
