"""A resource set: a log, and the state that follows from it. It knows nothing of other sets but what they share.

`default` is what the brokers of a cluster share: one of them writes its log, the others follow; and so is any other set
that has a name of its own. `local` is what a broker keeps for itself beside `default`: queues and bindings that are not
replicated, and the messages of queues of which only the configuration is. Beside other sets there is none: their queues
are replicated with their messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Final

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.model.logs.local_log import LocalLog, LocalPart
from qpid_ha_broker.model.logs.log import COMMITTED, DEFAULT_SET, CommitToken, Log
from qpid_ha_broker.model.message_reader import MessageReader
from qpid_ha_broker.model.queues.next_mark import next_mark
from qpid_ha_broker.model.queues.queue import Queue, QueueStrategy
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from qpid_ha_broker.model.replication import STANDARD_EXCHANGES, has_replicated_messages
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD, Catalog
from qpid_ha_broker.model.sets.following import take_over_queues
from qpid_ha_broker.model.sets.plain_arrivals import Alike, alike, header_of, take_in, take_in_records
from qpid_ha_broker.model.sets.state import ReplayError, SetState
from qpid_ha_broker.model.sets.strategies import Alone, ByHand, HotStandby, Replication
from qpid_ha_broker.model.transactions.plan import Departure, EnqueuePlan

LOCAL_SET: Final = "local"
DEQUEUED_LENGTH: Final = 65_536
"""Messages in one event at most: twenty million would not fit into one record."""
_new_tuple = tuple.__new__
"""Makes a named tuple of a tuple at half of what calling its class costs."""


class ResourceSet:
    """The promise: whatever `state` holds was written to `log` first.

    What is written goes through `submit`, and nothing else appends to a log but its short way for messages about which
    there is nothing to decide.
    """

    def __init__(self, name: str, log: Log, state: SetState, replication: Replication) -> None:
        self.name = name
        self.log = log
        self.replication = replication
        """Who else has a copy of it, and who may write."""
        self.beside: ResourceSet | None = None
        """What the broker keeps for itself beside this set."""
        self.state = state
        self.catalog = state.catalog
        self.is_level = True
        """Its queues are whole; not while a copy is made equal to another one, from the newest message down."""
        self._taken_over = COMMITTED
        """What this broker held when it began to write here."""

    @property
    def is_taking_over(self) -> bool:
        """Whether there may be more than this broker can show: of what it took over and has not committed yet its
        predecessor may have confirmed some. A replica shows what it has."""
        return not (self._taken_over.is_committed or self.replication.read_only)

    @property
    def may_lack_confirmed(self) -> bool:
        """Whether what this broker shows now may be less than what was confirmed and is here, or is coming here."""
        return not self.is_level or self.is_taking_over

    @property
    def written(self) -> CommitToken:
        """What to wait for so that all that was written here, and submitted here, is committed."""
        log = self.log
        return CommitToken(log, log.last_lsn, self.replication.unplaced)

    @property
    def is_committed(self) -> bool:
        """Whether nothing of what counts here can be taken back, whoever writes it."""
        if self.replication.read_only:  # then witnesses of the log, who saw what was written here, say nothing of it
            return not self.log.is_unsure
        return self.written.is_committed

    def submit(self, events: Sequence[ev.Event], by_hand: ByHand | None = None) -> CommitToken:
        """Have `events` written, all or none of them, and count; returns what to wait for.

        `by_hand`: where what they are about is at hand, and need not be found by id.
        """
        return self.replication.submit(self, events, by_hand)

    def deliver(self, events: Sequence[ev.Event], by_hand: ByHand | None = None) -> CommitToken:
        """Append `events`, as a unit if they are not one, and let them count: the order among brokers is known."""
        log = self.log
        lsns = [log.append(events[0])] if len(events) == 1 else log.append_unit(events)
        if by_hand is None:
            for lsn, event in zip(lsns, events, strict=True):
                self.state.apply(lsn, event)
        else:
            by_hand(lsns)
        return log.written

    def write(self, event: ev.Event) -> int:
        """Submit one event, which counts at once; returns its LSN."""
        return self.submit((event,)).lsn

    def enqueue_plain(
        self, queues: Sequence[Queue], bodies: Sequence[bytes], durable: bool, priority: int, expires_at_ms: int = 0
    ) -> Sequence[int]:
        """The short way to submit an Enqueued that is due at once and has no key, for `queues` of this log alone, of
        each of `bodies`; returns their LSNs. Each counts by itself."""
        first, is_one = queues[0], len(queues) == 1
        ids = first.ids if is_one else tuple([queue.id for queue in queues])
        events = [_new_tuple(ev.Enqueued, (ids, body, durable, priority, expires_at_ms, "", 0)) for body in bodies]
        lsns = self.log.append_run(events)
        header = header_of(first, durable, priority, expires_at_ms) if is_one else self.catalog.headers.of(events[0])
        for queue in queues:
            take_in(self.catalog, queue, header, lsns, bodies)
        return lsns

    # What happens to messages that are at hand.

    def enqueue(self, queue: Queue, event: ev.Enqueued) -> Entry:
        """A message comes to `queue`, and to no other."""
        entry = Entry(0, self.catalog.headers.of(event), event.payload)
        self.submit((event,), partial(self._came, queue, entry))
        return entry

    def _came(self, queue: Queue, entry: Entry, lsns: Sequence[int]) -> None:
        entry.id = lsns[0]
        queue.messages.add(entry)
        self.catalog.memory_bytes += entry.size + MESSAGE_OVERHEAD

    def acquire(self, queue: Queue, entries: Sequence[Entry]) -> CommitToken:
        """Consumers hold `entries`: they do already."""
        return self.submit((ev.Acquired(queue.id, _ids(entries)),), _is_done)

    def hold(self, queue: Queue, entries: Sequence[Entry], owner: SessionOwner) -> CommitToken:
        """`entries` are held for a link of a client's session."""
        event = ev.SessionAcquired(queue.id, *owner, _ids(entries))
        return self.submit((event,), lambda lsns: self.catalog.session_acquired(queue, entries, event))

    def release(self, queue: Queue, entries: Sequence[Entry], failed: bool, annotations: bytes = b"") -> None:
        """`entries` come back to their places; `annotations`: what is said of them now, empty: nothing new."""
        event = ev.Released(queue.id, _ids(entries), failed)
        are_of_sessions = bool(queue.held) and not queue.held.keys().isdisjoint(event.ids)
        if annotations:
            annotated = ev.Annotated(queue.id, event.ids, annotations)

            def count(lsns: Sequence[int]) -> None:
                self.state.apply(lsns[0], annotated)
                self.catalog.released(queue, entries, failed)

            written = self.submit((annotated, event), count)
        else:
            written = self.submit((event,), lambda lsns: self.catalog.released(queue, entries, failed))
        if are_of_sessions:
            self.catalog.holdings.given_back[queue] = written

    def dequeue(self, queue: Queue, entries: list[Entry], reason: ev.DequeueReason) -> CommitToken:
        """`entries` leave `queue`."""
        token: CommitToken | None = None
        for start in range(0, len(entries), DEQUEUED_LENGTH):
            part = entries if len(entries) <= DEQUEUED_LENGTH else entries[start : start + DEQUEUED_LENGTH]
            token = self.submit((ev.Dequeued(queue.id, _ids(part), reason),), partial(self._left, queue, part))
        return self.written if token is None else token

    def _left(self, queue: Queue, entries: list[Entry], lsns: Sequence[int]) -> None:
        self.catalog.removed(queue, entries)

    def commit(
        self, events: Sequence[ev.Enqueued | ev.ProducerAdvanced | ev.NumbersRefused], departures: Sequence[Departure]
    ) -> tuple[CommitToken, list[tuple[Queue, Entry]]]:
        """Messages come, producers have come as far with them, and others leave: all of it or nothing.

        Returns what to wait for, and what the messages take the place of (last-value queues).
        """
        dequeued = [ev.Dequeued(queue.id, _ids(entries), reason) for queue, entries, reason in departures]
        displaced: list[tuple[Queue, Entry]] = []

        def count(lsns: Sequence[int]) -> None:
            for lsn, event in zip(lsns, events, strict=False):
                if isinstance(event, ev.Enqueued):
                    displaced.extend(self.state.enqueued(lsn, event))
                else:
                    self.state.apply(lsn, event)
            for queue, entries, _ in departures:
                self.catalog.removed(queue, entries)

        return self.submit([*events, *dequeued], count), displaced

    def declare_standard_exchanges(self) -> None:
        """Make those that are missing: all for an empty log, none after most promotions."""
        for name, kind in STANDARD_EXCHANGES.items():
            if name not in self.catalog.exchanges:
                self.write(ev.ExchangeDeclared(name, kind, {}))

    # --- following another broker's log

    def follow(self, records: Iterable[LogRecord]) -> None:
        """Do as the one who wrote `records` did: the next of its log. Raises ReplayError, and those before it count."""
        for common, run in groupby(records, key=alike):
            queues = [] if common is None or self.state.open_unit else self._there(common)
            if common is None or not queues:
                for record in run:
                    self._follow_one(record)
            else:
                self.log.last_lsn = take_in_records(self.catalog, queues, common, list(run))

    def _there(self, common: Alike) -> list[Queue]:
        """The queues of messages that came; []: one of them is not known here."""
        try:
            return [self.catalog.queues_by_id[queue_id] for queue_id in common.queues]
        except KeyError:
            return []

    def _follow_one(self, record: LogRecord) -> None:
        lsn, event, part = record
        state, catalog = self.state, self.catalog
        if type(event) is ev.Enqueued and len(event.queues) == 1 and not (part or state.open_unit):
            queue = catalog.queues_by_id.get(event.queues[0])
            if queue is not None:
                queue.messages.add(Entry(lsn, catalog.headers.of(event), event.payload))
                if event.due_at_ms:
                    catalog.timed.note_scheduled(queue)
                catalog.memory_bytes += len(event.payload) + MESSAGE_OVERHEAD
                if queue.dispatcher.consumers:
                    catalog.awake[queue] = None
                self.log.last_lsn = lsn
                return
        parts, before = state.open_unit or [record], self.log.last_lsn
        if not part:
            self.log.last_lsn = lsn  # before it counts, as where it was written: who hears of it asks for the log's end
        try:
            state.replay(record)
        except ReplayError:
            self.log.last_lsn = before
            raise
        if not part:
            for _, done, _ in parts:
                if isinstance(done, ev.Enqueued):
                    for queue_id in done.queues:
                        catalog.note_arrival(catalog.queues_by_id[queue_id])

    def follow_own(self, record: LogRecord) -> None:
        """Do as this broker has done before it ended, where what that was about is still there and has this log.

        All of a unit is there, and what of it fits is done.
        """
        lsn, event, _ = record
        if isinstance(event, ev.TransactionCommitted):
            return
        if isinstance(event, ev.Enqueued):
            there = self.catalog.queues_by_id
            queues = tuple([queue_id for queue_id in event.queues if queue_id in there and self.has(there[queue_id])])
            if not queues:
                return
            event = event._replace(queues=queues)
        with suppress(ReplayError):
            self.state.apply(lsn, event)

    def has(self, queue: Queue) -> bool:
        """Whether the messages of `queue` are in this log."""
        return queue.log is self.log

    def drop_open_unit(self) -> None:
        """The rest of a unit will not come: forget its parts."""
        self.state.drop_open_unit()

    def take_over(self, now_ms: int, grace_ms: int) -> None:
        """Become the one who writes. Users of the last primary have `grace_ms` to come back to what was theirs."""
        self.drop_open_unit()
        queues = self.catalog.queues.values()
        self.catalog.holdings.given_back.clear()  # of an earlier lead, if this broker had one, and of its log
        self.catalog.now_ms = now_ms
        self.catalog.timed = take_over_queues(queues, self.log, self.state.marks, now_ms, grace_ms)
        self.catalog.wake_consumers()
        self._taken_over = self.written

    def begin_marks(self) -> None:
        """Tell from here on how far queues are handed out, and how far they have been until now."""
        marks = self.state.marks
        queues = [queue for queue in self.state.queues() if queue.log is self.log]
        for queue in queues:
            highest = max(queue.mark.highest, marks.inherited)
            if highest > marks.inherited or queue.mark.upto > highest:
                self.write(ev.HandedOut(queue.id, highest))
        self.write(ev.HandedOut(0, marks.inherited))
        for queue in queues:  # who leads next without having the last of these takes it that all was handed out
            queue.mark.upto = max(queue.mark.upto, marks.inherited)
            queue.mark.settled = queue.mark.upto
        marks.begun()

    def is_marked(self, queue: Queue) -> bool:
        """Whether its messages go out only where a mark covers them."""
        if queue.log is not self.log or not self.state.marks.gates(self.log):
            return False
        queue.mark.settle(self.log)
        return True

    def mark_ahead(self, queue: Queue, blocked_id: int) -> None:
        """Write how far `queue` may be handed out next, if it is time; `blocked_id` waits for that, if it is not 0."""
        upto = next_mark(queue, blocked_id)
        if upto is not None:
            newest = max(queue.mark.highest, blocked_id)
            self.write(ev.HandedOut(queue.id, upto))
            queue.mark.renew_at = newest + (upto - newest) // 2

    def narrow_mark(self, queue: Queue) -> None:
        """Nobody takes from `queue` any more: write how far it was handed out."""
        if queue.mark.upto > queue.mark.highest and self.is_marked(queue):
            self.write(ev.HandedOut(queue.id, queue.mark.highest))

    def end_marks(self) -> None:
        """Tell nothing any more: somebody follows who could not read it."""
        self.write(ev.HandedOut(0, ev.EVERYTHING))
        self.state.marks.ended()


class ResourceSets:
    """A set that others follow, beside `default` what a broker keeps for itself, and what the two share."""

    def __init__(self, name: str = DEFAULT_SET, replication: HotStandby | None = None) -> None:
        """`replication`: None, by one primary at a time."""
        self.catalog = Catalog()
        log = Log()
        self._local_log = LocalLog(log) if name == DEFAULT_SET else None
        self.replication = replication or HotStandby()
        """That of the next."""
        state = SetState(log, self.catalog, unreplicated=self._local_log)
        self.replicated = ResourceSet(name, log, state, self.replication)
        """The one that has a name in its cluster: others follow its log."""
        self.all: tuple[ResourceSet, ...] = (self.replicated,)
        """That one, and `local` where there is one."""
        if self._local_log is not None:
            state = SetState(self._local_log, self.catalog, level=Replicate.NONE)
            self.replicated.beside = ResourceSet(LOCAL_SET, self._local_log, state, Alone(self.replication))
            self.all += (self.replicated.beside,)

        self.logs = tuple([resource_set.log for resource_set in self.all])

    @property
    def has_local(self) -> bool:
        """Whether the broker keeps something for itself beside this set."""
        return self._local_log is not None

    @property
    def local(self) -> ResourceSet:
        """What the broker keeps for itself. Raises KeyError beside another set than `default`."""
        if self._local_log is None:
            raise KeyError(f"nothing is local beside {self.replicated.name}")
        return self.all[1]

    @property
    def local_log(self) -> LocalLog:
        """The log of `local`. Raises KeyError beside another set than `default`."""
        if self._local_log is None:
            raise KeyError(f"nothing is local beside {self.replicated.name}")
        return self._local_log

    def new_plan(self, reader: MessageReader, producers: int) -> EnqueuePlan:
        """For messages from publishers: see `EnqueuePlan`."""
        why_no_delay = self.replicated.state.marks.why_no_delay
        displaces = not self.replication.counts_later
        return EnqueuePlan(reader, self.logs, producers, displaces=displaces, why_no_delay=why_no_delay)

    def take_local_parts(self) -> list[LocalPart]:
        """What a store has to keep of the local log, with its places: see `LocalLog.take_parts`."""
        return [] if self._local_log is None else self._local_log.take_parts()

    @property
    def written(self) -> CommitToken:
        """What to wait for so that all that was written in both logs is committed."""
        beside = self.replicated.beside
        return self.replicated.written if beside is None else beside.written.and_also(self.replicated.written)

    @property
    def log_ends(self) -> tuple[int, int]:
        """The last LSNs of both logs; where nothing is local that of a local log in which nothing is."""
        local = self._local_log
        return self.replicated.log.last_lsn, LOCAL_BASE if local is None else local.last_lsn

    def reset(self, last_lsn: int, local_lsn: int) -> None:
        """The logs end there: see `Log.reset`."""
        self.replicated.log.reset(last_lsn)
        if self._local_log is not None:
            self._local_log.reset(local_lsn)

    def holding(self, queue: Queue) -> ResourceSet:
        """The set in whose log the messages of `queue` are."""
        return self.replicated if has_replicated_messages(queue) else self.local

    def strategy_of(self, queue: Queue) -> QueueStrategy:
        """Who may write what happens to messages of `queue`, and who hands them out."""
        strategy = queue.strategy
        return self.holding(queue).replication if strategy is None else strategy

    def may_write(self, queue: Queue) -> bool:
        """Whether what clients here do with messages of `queue` may be written."""
        return not self.strategy_of(queue).read_only

    def hands_out(self, queue: Queue) -> bool:
        """Whether this broker hands out from `queue`, and decides what expires in it or is too much: its owner."""
        return self.strategy_of(queue).hands_out(queue)

    def shown_lsn(self, queue: Queue) -> int:
        """Up to where messages of `queue` are shown to who only looks: what can no longer be taken back."""
        log = queue.log
        return log.shown_lsn if self.holding(queue).replication.read_only else log.whole_lsn()


def _is_done(lsns: Sequence[int]) -> None:
    """For what counts already."""


def _ids(entries: Sequence[Entry]) -> tuple[int, ...]:
    return tuple([entry.id for entry in entries])
