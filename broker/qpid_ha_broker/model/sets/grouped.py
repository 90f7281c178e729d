"""A set that all members of a group write: what is submitted here counts once the group has given it its place.

Until then it is nowhere in the log, nobody sees it, and it has no LSN: whoever waits for it has a `Unit`. What a
command decides from is the state as it was delivered so far; where others were faster, the unit is skipped by all, and
fails here. Messages that are to leave, or to come back, are held meanwhile, so that nobody else is given them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import InUse, ModelError, NotPrimary
from qpid_ha_broker.model.logs.log import Commitment, CommitToken, Log
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import SUBMITTED, Entry, SessionOwner
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.model.sets.exclusive_use import GroupedUse
from qpid_ha_broker.model.sets.strategies import ByHand, HotStandby, LocalCopy

GATHERED_LENGTH: Final = 500
GATHERED_BYTES: Final = 64 * 1024
"""What becomes one unit, at most; at least one message does."""
_ELSEWHERE: Final = "what a session held is answered at another broker, or was before"
Taken = ev.Dequeued | ev.Released | ev.SessionAcquired
"""A member takes messages from a queue, gives them back, or lets a client's session hold them."""


class Unit:
    """What one command has submitted. Where it was skipped it has a place all the same: the end of the log."""

    __slots__ = ("_failure", "_log", "held", "is_numbered", "lsn", "size", "then")

    def __init__(
        self,
        log: Log,
        held: Sequence[Taken] = (),
        *,
        is_numbered: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._log = log
        self.then = then
        """Called when it has its place."""
        self.held = held
        """What it takes from queues, or gives back to them: held until it has its place."""
        self.is_numbered = is_numbered
        """It may be a duplicate, and then count nowhere."""
        self._failure: ModelError | None = None
        self.size = 0
        """Bytes of its messages."""
        self.lsn = 0
        """Of its last event; 0: it has no place yet."""

    def over(self, lsn: int, failure: ModelError | None) -> None:
        """It was placed, or skipped."""
        self.lsn, self._failure = lsn, failure

    @property
    def is_settled(self) -> bool:
        """Whether all that was submitted before it, and it itself, is committed or void."""
        return 0 < self.lsn <= self._log.committed_lsn

    @property
    def is_committed(self) -> bool:
        """As `Commitment.is_committed`."""
        return self._failure is None and self.is_settled

    @property
    def failure(self) -> ModelError | None:
        """As `Commitment.failure`."""
        return self._failure

    def waits_for(self, log: Log) -> bool:
        """As `Commitment.waits_for`."""
        return self._log is log and self._failure is None and not self.is_settled


class SessionUnit(Unit):
    """One by which a client's session holds messages of a queue: they may be given to its link as long as that is
    answered at this member. Where another one answers for it before all have this on their disks, that one may have
    given them back, or taken them from the queue, by then.

    `is_here`: whether the link is answered at this member.
    """

    __slots__ = ("_is_here",)

    def __init__(self, log: Log, held: Sequence[Taken], is_here: Callable[[], bool]) -> None:
        super().__init__(log, held)
        self._is_here = is_here

    @property
    def failure(self) -> ModelError | None:
        """As `Commitment.failure`."""
        if self._failure is None and self.lsn and not self._is_here():
            return InUse(_ELSEWHERE)
        return self._failure


class _AllBefore:
    """What to wait for so that nothing is on its way any more: whether the last of it counted does not matter. Where
    the group has gone on without this member nobody here will ever know: it fails."""

    __slots__ = ("_newest",)

    def __init__(self, newest: Unit) -> None:
        self._newest = newest

    @property
    def failure(self) -> ModelError | None:
        """As `Commitment.failure`."""
        return self._newest.failure if self._newest.lsn == ev.EVERYTHING else None

    @property
    def is_committed(self) -> bool:
        """As `Commitment.is_committed`."""
        return self._newest.is_settled

    def waits_for(self, log: Log) -> bool:
        """As `Commitment.waits_for`."""
        return self._newest.waits_for(log)


class QueueUsers(NamedTuple):
    """Which members have clients that use a queue."""

    owner: str = ""
    """Hands out from it; empty: none does."""
    waiting: Sequence[str] = ()
    """Are next, in this order."""
    are_elsewhere: bool = False
    """Another member than this one is among them, or has a client who has the queue alone."""
    moves_last_minute: int = 0
    """How often it came to a member that hands out from it then."""


class QueuesHere(Protocol):
    """What this member has of queues, as the group's order tells. Queues are told by their ids."""

    def may_hand_out(self, queue: int) -> bool:
        """Whether this member hands out from the queue."""

    def has_named(self, queue: int) -> bool:
        """Whether this member has named messages of the queue as held here when it yielded it."""

    def has_link(self, queue: int, link: SessionOwner) -> bool:
        """Whether what the session holds on that link to the queue is answered here."""


class _NothingHere:
    """Of a member that has not come to its group."""

    def may_hand_out(self, queue: int) -> bool:
        return False

    def has_named(self, queue: int) -> bool:
        return False

    def has_link(self, queue: int, link: SessionOwner) -> bool:
        return False


class Grouped(HotStandby):
    """The promise: a unit that was submitted here is placed or fails, and in the order in which it was submitted.

    `read_only` is said while this member has no part in the group: it was not let in, or was left behind.
    """

    counts_later = True

    def __init__(self) -> None:
        super().__init__()
        self.exclusive_use: GroupedUse = GroupedUse()
        self.lead_proof = LeadProof.PROVEN
        self.multicast: Callable[[int, Sequence[ev.Event]], None] = _nobody
        """Asks the group for a place for the events of the unit with that number; `placed` or `skipped` follows."""
        self.queues_here: QueuesHere = _NothingHere()
        self.window_bytes = 1
        """So much of what was submitted here may be without a place before publishers wait."""
        self.users: Callable[[int], QueueUsers] = lambda queue: QueueUsers()
        """Of the queue with that id."""
        self.ask_for_link: Callable[[int, int, SessionOwner, int], None] = _no_link
        """Asks the group, under the number of a unit, to have what a session holds on a link to the queue with that id
        answered here, for the connection of the session with that epoch; `placed` or `skipped` follows."""
        self.link_ended: Callable[[int, SessionOwner], None] = lambda queue, link: None
        """Tells the group that a link of a session has ended here, to the queue with that id."""
        self.give_back: Callable[[Taken], None] = lambda event: None
        """Has what a unit was to take stay in its queue."""
        self.is_first_member: Callable[[], bool] = lambda: False
        """Whether this member does what one has to do for all."""
        self._taking: set[tuple[Queue, SessionOwner]] = set()
        """Links that are being taken over here so that what is held on them can be given back."""
        self.due: dict[Queue, None] = {}
        """Queues of which something has to leave, whoever does it."""
        self._units: dict[int, Unit] = {}
        """Those without a place, by their numbers."""
        self._placed: deque[Unit] = deque()
        """Those that have one and may not be committed yet, in the order of their places."""
        self._newest: Unit | None = None
        self._number = 0
        self._gathered: list[ev.Enqueued] = []
        """Messages of this turn for the same queues, which become one unit: it costs hardly more than a message."""
        self._gathered_bytes = 0

    @property
    def is_full(self) -> bool:
        """As `HotStandby.is_full`. What publishers have credit for by then comes all the same."""
        return self.unplaced_bytes >= self.window_bytes

    @property
    def unplaced(self) -> Commitment | None:
        """As `Replication.unplaced`."""
        newest = self._newest
        return None if newest is None or newest.is_settled else _AllBefore(newest)

    def submit(self, copy: LocalCopy, events: Sequence[ev.Event], by_hand: ByHand | None) -> CommitToken:
        """As `Replication.submit`. What is at hand now may have changed by then, so it is found again by its id.

        All messages are durable: a member that comes back from its disk has what the others have.
        """
        first = events[0]
        if len(events) == 1 and type(first) is ev.Enqueued:
            return CommitToken(copy.log, 0, self._gather(copy.log, _kept(first)))
        self.flush()
        held = [event for event in events if isinstance(event, ev.Dequeued | ev.Released | ev.SessionAcquired)]
        is_numbered = any(isinstance(event, ev.ProducerAdvanced) for event in events)
        if isinstance(first, ev.SessionAcquired):
            link, queue = SessionOwner(first.session, first.name, first.link), copy.catalog.queues_by_id[first.queue]
            unit: Unit = SessionUnit(copy.log, held, partial(self.has_link, queue, link))
        else:
            unit = Unit(copy.log, held, is_numbered=is_numbered)
        queues = [copy.catalog.queues_by_id[event.queue] for event in held]
        taken = [queue.messages.find_all(event.ids) for queue, event in zip(queues, held, strict=True)]
        if any(entry.holder is SUBMITTED for entries in taken for entry in entries):
            # One unit takes it, or gives it back, and only one can count.
            unit.over(copy.log.last_lsn, InUse("a message was accepted, or given back, before, and that is on its way"))
            return CommitToken(copy.log, 0, unit)
        for queue, entries in zip(queues, taken, strict=True):
            for entry in entries:
                queue.messages.hold(entry, SUBMITTED)
        are_there = all(len(entries) == len(event.ids) for entries, event in zip(taken, held, strict=True))
        if not are_there or any(self._is_answered_elsewhere(copy.catalog, event) for event in held):
            # Nobody may say anything of that who knows: see `group.ownership`.
            unit.over(copy.log.last_lsn, InUse(_ELSEWHERE))
            for event in held:
                self.give_back(event)
            return CommitToken(copy.log, 0, unit)
        if isinstance(first, ev.QueueUsed):
            self.exclusive_use.submitted(copy.catalog.queues_by_id[first.queue], first.owner, unit)
        self._newest = unit
        self._count(unit, sum([len(event.payload) for event in events if isinstance(event, ev.Enqueued)]))
        self._multicast([_kept(event) if isinstance(event, ev.Enqueued) else event for event in events], unit)
        return CommitToken(copy.log, 0, unit)

    def _is_answered_elsewhere(self, catalog: Catalog, event: Taken) -> bool:
        queue = catalog.queues_by_id[event.queue]
        if isinstance(event, ev.SessionAcquired):
            return not self.has_link(queue, SessionOwner(event.session, event.name, event.link))
        links = {queue.held[number] for number in event.ids if number in queue.held} if queue.held else ()
        return not all(self.has_link(queue, link.owner) for link in links)

    def _gather(self, log: Log, event: ev.Enqueued) -> Unit:
        """The unit of a message; it is multicast with the end of the turn, or when another one has to come after it."""
        gathered, unit = self._gathered, self._newest
        is_full = len(gathered) >= GATHERED_LENGTH or self._gathered_bytes >= GATHERED_BYTES
        if unit is None or not gathered or gathered[0].queues != event.queues or is_full:
            self.flush()
            unit = self._newest = Unit(log)
        self._gathered.append(event)
        self._gathered_bytes += len(event.payload)
        self._count(unit, len(event.payload))
        return unit

    def _count(self, unit: Unit, size: int) -> None:
        unit.size += size
        self.unplaced_bytes += size

    def flush(self) -> None:
        """The end of a turn: what was gathered is a unit. All of it counts, or is skipped, for the same reason."""
        gathered, unit = self._gathered, self._newest
        if gathered and unit is not None:
            self._gathered, self._gathered_bytes = [], 0
            self._multicast(gathered, unit)

    def is_first(self) -> bool:
        """As `HotStandby.is_first`."""
        return self.is_first_member()

    # --- links of sessions

    def has_link(self, queue: Queue, link: SessionOwner) -> bool:
        """As `HotStandby.has_link`."""
        return bool(self.read_only) or self.queues_here.has_link(queue.id, link)

    def take_link(self, queue: Queue, link: SessionOwner, epoch: int) -> CommitToken | None:
        """As `HotStandby.take_link`."""
        return CommitToken(queue.log, 0, self._take_link(queue, link, epoch, None))

    def _take_link(self, queue: Queue, link: SessionOwner, epoch: int, then: Callable[[], None] | None) -> Unit:
        self.flush()
        unit = self._newest = Unit(queue.log, then=then)
        self._number += 1
        self._units[self._number] = unit
        self.ask_for_link(self._number, queue.id, link, epoch)
        return unit

    def leave_link(self, queue: Queue, link: SessionOwner) -> None:
        """As `HotStandby.leave_link`."""
        self.link_ended(queue.id, link)

    def when_answering(self, queue: Queue, link: SessionOwner, epoch: int, give_back: Callable[[], bool]) -> None:
        """As `HotStandby.when_answering`: what is held goes back once nobody else may say anything of it. Until then
        nothing is asked twice."""
        key = queue, link
        if key in self._taking:
            return

        def answering() -> None:
            self._taking.discard(key)
            if not queue.deleted and self.has_link(queue, link) and give_back():
                self.leave_link(queue, link)

        self._taking.add(key)
        unit = self._take_link(queue, link, epoch, answering)
        if unit.failure is not None:
            self._taking.discard(key)

    def _multicast(self, events: Sequence[ev.Event], unit: Unit) -> None:
        self._number += 1
        self._units[self._number] = unit
        self.multicast(self._number, events)

    def placed(self, number: int, lsn: int) -> Sequence[Taken]:
        """The unit ends at `lsn`, and counts; of a duplicate: the original lies before that. Returns what of it may
        not count all the same, and what it holds for that has to be given back."""
        unit = self._units.pop(number, None)
        if unit is None:
            return ()
        unit.over(lsn, None)
        self.unplaced_bytes -= unit.size
        while self._placed and self._placed[0].is_settled:
            self._placed.popleft()
        self._placed.append(unit)
        if unit.then is not None:
            unit.then()
        held, unit.held = unit.held, ()
        return held if unit.is_numbered else ()

    def skipped(self, number: int, end_lsn: int, failure: ModelError) -> Sequence[Taken]:
        """The unit counts nowhere; the log ended at `end_lsn` then. Returns as `placed`."""
        unit = self._units.pop(number, None)
        if unit is None:
            return ()
        unit.over(end_lsn, failure)
        self.unplaced_bytes -= unit.size
        if unit.then is not None:
            self._taking.clear()  # whoever wants it asks again
        return unit.held

    def left_behind(self, why: str) -> None:
        """The group goes on without this member: whether what was under way counts is known to the others. What comes
        to the same places of the log is not what was there."""
        units = [*self._units.values(), *[unit for unit in self._placed if not unit.is_settled]]
        if self._gathered and self._newest is not None:
            units.append(self._newest)
        self._gathered, self._gathered_bytes = [], 0
        self._units.clear()
        self._placed.clear()
        self._taking.clear()
        self.exclusive_use.clear()
        self.unplaced_bytes = 0
        for unit in units:
            unit.over(ev.EVERYTHING, NotPrimary(why))
        self._newest = None

    def hands_out(self, queue: Queue) -> bool:
        """As `QueueStrategy.hands_out`: the owner does, where nobody waits to have it alone."""
        is_ours = not self.read_only and self.queues_here.may_hand_out(queue.id)
        return is_ours and not self.exclusive_use.is_doubtful(queue)

    def facts_of(self, queue: Queue) -> Mapping[str, object]:
        """As `HotStandby.facts_of`."""
        users = self.users(queue.id)
        return {
            "owner": users.owner,
            "waiting": list(users.waiting),
            "moves_last_minute": users.moves_last_minute,
        }

    def is_used_elsewhere(self, queue: Queue) -> bool:
        """As `HotStandby.is_used_elsewhere`: a consumer that has never had credit nobody else knows, but that of a
        queue that deletes itself."""
        return self.users(queue.id).are_elsewhere

    def deletes_unused(self, queue: Queue) -> bool:
        """As `HotStandby.deletes_unused`: the first member does, whoever has used it."""
        return self.is_first() and not self.users(queue.id).are_elsewhere

    def tells_returns(self, queue: Queue, *, was_seen: bool) -> bool:
        """As `Replication.tells_returns`: whoever hands out next has to mark them. Others know of no message that is
        out before its queue is yielded; and of one that was named then they have to hear, whoever has the queue."""
        return was_seen or not self.hands_out(queue) or self.queues_here.has_named(queue.id)

    def note_due(self, queue: Queue) -> None:
        """As `Replication.note_due`: its owner does it, or somebody has to become that."""
        self.due[queue] = None

    def leaving(self, queue: Queue) -> Sequence[Entry]:
        """As `Replication.leaving`. They are counted until they have gone: nothing goes twice for one that came."""
        units = self._units.values()
        ids = [number for unit in units for event in unit.held if _leaves(event, queue) for number in event.ids]
        return queue.messages.find_all(sorted(ids)) if ids else ()


def _kept(event: ev.Enqueued) -> ev.Enqueued:
    return event if event.durable else event._replace(durable=True)


def _leaves(event: Taken, queue: Queue) -> bool:
    return isinstance(event, ev.Dequeued) and event.queue == queue.id


def _no_link(number: int, queue: int, link: SessionOwner, epoch: int) -> None:
    raise LookupError("a link to a queue of a set that has no group yet")


def _nobody(number: int, events: Sequence[ev.Event]) -> None:
    raise LookupError("a unit of a set that has no group yet")
