"""A resource set: a log, the state that follows from it, and the commands that are allowed to write.

Each command looks, decides, writes events, and applies them: refused means that nothing was written. What has to wait
for a witness comes back as a CommitToken; the caller tells the outcome once it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.types import DequeueReason
from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.errors import ModelError, NotFound, NotPrimary, QueueFull
from qpid_ha_broker.model.exchanges import Exchange
from qpid_ha_broker.model.following import check_owner, safe_name, take_over_queues
from qpid_ha_broker.model.gate import Gate
from qpid_ha_broker.model.local_log import LocalLog
from qpid_ha_broker.model.log import COMMITTED, LOCAL_BASE, CommitToken, Log
from qpid_ha_broker.model.plan import Departure, EnqueuePlan, MessageReader, write
from qpid_ha_broker.model.producers import Deduplication
from qpid_ha_broker.model.purge import PURGED_LENGTH, Purge
from qpid_ha_broker.model.queue import DISPLACED_LENGTH, Consumer, Handout, Queue, Returning
from qpid_ha_broker.model.sequence import Entry, Holder
from qpid_ha_broker.model.state import MESSAGE_OVERHEAD, SetState
from qpid_ha_broker.model.transaction import Message, Transaction
from qpid_ha_broker.model.work import Task, WorkQueue, finish

DEQUEUED_LENGTH = 65_536
"""Messages in one event at most: twenty million would not fit into one record."""

EXPIRED_LENGTH = 500
"""Messages that are looked at together when their time is over."""
RELEASED_LENGTH = 250
"""Messages that are given back together: a few milliseconds of work, should all of them be dead letters."""
_NEVER = 1 << 64
_entry_id = attrgetter("id")


class ResourceSet(Gate):
    """The promise: whatever `state` holds was written to `log` first, and units are written whole."""

    def __init__(self, name: str, reader: MessageReader, *, log_acquisitions: bool = False) -> None:
        Gate.__init__(self)
        self.name = name
        self.log = Log()
        self.local_log = LocalLog(self.log)
        """What this broker keeps for itself; committed at once, unless there is a store."""
        self.state = SetState(self.log, self.local_log)
        self._reader = reader
        self.log_acquisitions = log_acquisitions
        # Dictionaries, not sets: what is written in which order must follow from what was asked in which order.
        self._awake: dict[Queue, None] = {}
        self._timed: dict[Queue, None] = {}
        self._uncommitted: dict[Queue, int] = {}
        """Queues of which browsers may not see everything yet, and how far their log was committed then."""
        self.work = WorkQueue()
        """What is written in portions: for the driver to go on with. None of it outlives the right to write: see
        `begin`."""
        self._purges: dict[Purge, Task] = {}
        """Those that go on."""
        self._shrinking: set[Queue] = set()
        """Rings that may be over their limits; a task is about each."""
        self._now_ms = 0
        self.is_expiring = False
        """The last `tick` came to no end: it is due again."""
        self.deleted_queues = self.state.deleted_queues
        self.overrun: dict[Queue, QueueFull] = {}
        """Queues with the policy self-destruct that were full when something came: the driver is to delete them."""
        self.deduplication = Deduplication(self.state.producers, self.state.local_producers)
        self.unroutable_total = 0
        self.outranked_total = 0
        """Messages that a ring with priorities did not take because all that it held had a higher one."""
        self.dead_letters_dropped_total = 0
        """Messages for an alternate exchange that led to a full queue, to none, or only back to where they were."""

    @property
    def written(self) -> CommitToken:
        """What to wait for so that all that was written in both logs is committed."""
        local = self.local_log
        if local.committed_lsn == local.last_lsn:
            return self.log.written
        return CommitToken(local, local.last_lsn, self.log.written)

    # --- following another broker's log

    @property
    def applied_lsn(self) -> int:
        """The last LSN that counts here."""
        return self.log.last_lsn

    def follow(self, record: LogRecord) -> None:
        """Do as the one who wrote `record` did: the next of its log. Raises ReplayError."""
        lsn, event, part = record
        state = self.state
        if type(event) is ev.Enqueued and len(event.queues) == 1 and not (part or state.open_unit):
            queue = state.queues_by_id.get(event.queues[0])
            if queue is not None:
                queue.add(Entry(lsn, event), event)
                state.memory_bytes += len(event.payload) + MESSAGE_OVERHEAD
                if queue.consumers:
                    self._awake[queue] = None
                self.log.last_lsn = lsn
                return
        parts = state.open_unit or (record,)
        state.replay(record)
        if not state.open_unit:
            self.log.last_lsn = lsn
            self._wake_browsers(parts)

    def _wake_browsers(self, records: Iterable[LogRecord]) -> None:
        for _, event, _ in records:
            if isinstance(event, ev.Enqueued):
                self._wake(map(self.state.queues_by_id.__getitem__, event.queues))

    def drop_open_unit(self) -> None:
        """The rest of a unit will not come: forget its parts."""
        self.state.drop_open_unit()

    def take_over(self, now_ms: int, grace_ms: int) -> None:
        """Become the one who writes. Users of the last primary have `grace_ms` to come back to what was theirs."""
        self._now_ms = now_ms
        self.drop_open_unit()
        self._timed = take_over_queues(self.state.queues.values(), now_ms, grace_ms)
        self._awake |= {queue: None for queue in self.state.queues.values() if queue.consumers}

    def write(self, event: ev.Event) -> int:
        """Write what concerns the whole resource set, and let it count; returns its LSN."""
        lsn = self.log.append(event)
        self.state.apply(lsn, event)
        return lsn

    # --- messages in

    def publish(self, queue: Queue, message: Message, now_ms: int) -> CommitToken:
        """Enqueue; returns what to wait for.

        Raises QueueFull, NotFound (deleted), NotPrimary or what `refusal` says, and then nothing has changed.
        """
        lsn = self.enqueue_plain(queue, message)
        if lsn:
            return CommitToken(queue.log, lsn)
        known_at = self._known_at(message)
        return self._publish_to((queue,), message, now_ms, routed=False) if known_at is None else known_at

    def enqueue_plain(self, queue: Queue, message: Message) -> int:
        """The short way of `publish` for a message about which there is nothing to decide.

        Returns its LSN in the log of `queue`; 0: there is, and nothing was done.
        """
        if queue.needs_care or message.expires_at_ms or self._barred or message.producer:
            return 0
        event = ev.Enqueued(queue.ids, message.payload, message.durable, message.priority, 0, "")
        lsn = queue.log.append(event)
        queue.add(Entry(lsn, event), event)
        self.state.memory_bytes += len(message.payload) + MESSAGE_OVERHEAD
        if queue.consumers:
            self._awake[queue] = None
        return lsn

    def publish_to_exchange(self, exchange: Exchange, message: Message, key: str, now_ms: int) -> CommitToken:
        """Enqueue wherever the exchange says, everywhere or nowhere; returns and raises as `publish`."""
        self.check_writable()
        known_at = self._known_at(message)
        if known_at is not None:
            return known_at
        queues = self.route(exchange, message.payload, key)
        return self._publish_to(queues, message, now_ms, routed=True) if queues else self.written

    def _known_at(self, message: Message) -> CommitToken | None:
        """Of a duplicate: what to wait for so that the original is committed. None: it is new. Raises NotPrimary."""
        if not message.producer or not self.deduplication.knows(message):
            return None
        self.check_writable()
        self.deduplication.dropped_total += 1
        return self.written

    def route(self, exchange: Exchange, payload: bytes, key: str) -> tuple[Queue, ...]:
        """The queues for a message; counts one for which there are none. Raises NotFound: see `SetState.route`."""
        queues = self.state.route(exchange, key, lambda: self._reader.properties(payload))
        if not queues:
            self.unroutable_total += 1
        return queues

    def _publish_to(self, queues: tuple[Queue, ...], message: Message, now_ms: int, *, routed: bool) -> CommitToken:
        self._now_ms = now_ms
        if self._barred:
            self._check_publish(queues)
        plan = EnqueuePlan(self._reader, self.deduplication.producers)
        plan.add(queues, message, now_ms, routed=routed)
        return self._carry_out(plan, [])

    def take_overrun(self) -> dict[Queue, QueueFull]:
        """The queues that are to delete themselves, with what their consumers are to be told."""
        overrun, self.overrun = self.overrun, {}
        return overrun

    def _carry_out(self, plan: EnqueuePlan, departures: list[Departure]) -> CommitToken:
        """Write the plan, one unit in each log, and let it count. Returns what to wait for."""
        before = self.log.last_lsn, self.local_log.last_lsn
        written = write(plan, departures, self.log, self.local_log)
        only_local = self.log.last_lsn == before[0] and self.local_log.last_lsn != before[1]
        token = self.local_log.written if only_local else self.written
        self.outranked_total += plan.outranked
        self.overrun |= plan.overrun
        outdated: dict[Queue, list[Entry]] = {queue: list(entries) for queue, entries in plan.displaced.items()}
        for event_lsn, event in written:
            if isinstance(event, ev.ProducerAdvanced):
                self.state.apply(event_lsn, event)
                continue
            for queue, older in self.state.enqueued(event_lsn, event):
                if older.holder is None:
                    outdated.setdefault(queue, []).append(older)
        for departure in departures:
            self.state.removed(departure.queue, departure.entries)
        for queue, entries in outdated.items():
            self._dequeue(queue, entries, DequeueReason.DISPLACED)
            if len(entries) >= DISPLACED_LENGTH and queue not in self._shrinking:
                self._shrinking.add(queue)
                self.work.add(self._shrink(queue))
        self._wake(plan.queues)
        return token

    def _wake(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            if queue.consumers:
                self._awake[queue] = None
            if queue.next_expiry_ms() is not None:
                self._timed[queue] = None

    # --- messages out

    def subscribe(self, queue: Queue, consumer: Consumer, owner: object, owner_name: str = "") -> None:
        """Serve `consumer`. Raises InUse when the queue is exclusive to somebody other than `owner`.

        `owner_name` is what `owner` is known by when it comes back after a failover: its container id.
        """
        if not consumer.browsing:
            self.check_writable()
            self._check_unlocked(queue)
        name = queue.owner
        if queue.arguments.exclusive and not consumer.browsing:
            name = safe_name(owner_name)
            check_owner(queue, owner, name, self._now_ms)
            queue.exclusive_owner = owner
        queue.subscribe(consumer)
        if self._read_only:
            return
        if name != queue.owner or (queue.arguments.auto_delete and not queue.used):
            self._write_use(queue, name)

    def unsubscribe(self, queue: Queue, consumer: Consumer, now_ms: int) -> None:
        """Serve it no more; give back what it holds with `release` or `release_in_portions` first."""
        queue.unsubscribe(consumer, now_ms)
        if self._read_only:
            return
        if queue.arguments.auto_delete and not queue.consumers:
            self.watch(queue)
        if queue.owner and queue.exclusive_owner is None and not consumer.browsing and not queue.deleted:
            self._write_use(queue, "")

    def _write_use(self, queue: Queue, owner: str) -> None:
        """Tell backups what clients will expect of them after a failover."""
        event = ev.QueueUsed(queue.id, owner)
        log = self.log if queue.id < LOCAL_BASE else self.local_log
        self.state.apply(log.append(event), event)

    def wake(self, queue: Queue) -> None:
        """A consumer of `queue` has new credit or room."""
        self._awake[queue] = None

    def hand_out(self, now_ms: int, limit: int, budget: Budget = UNLIMITED) -> list[Handout]:
        """Up to `limit` messages for each consumer that can take some. Call again while `has_work`.

        When `budget` is spent the other queues wait for the next call, and are the first in it.
        """
        handouts: list[Handout] = []
        self._now_ms = now_ms
        if self._uncommitted:
            self._wake_for_committed()
        awake, self._awake = self._awake, {}
        pending = iter(awake)
        for queue in pending:
            if queue.deleted:
                continue
            given, expired = queue.hand_out(now_ms, limit, only_browsers=bool(self._read_only), budget=budget)
            if expired:
                self._dequeue(queue, expired, DequeueReason.EXPIRED)
            if queue.interrupted:
                self._awake[queue] = None
            if queue.awaits_commit:
                self._uncommitted[queue] = queue.log.committed_lsn
            for consumer, entries in given:
                if len(entries) == limit:
                    self._awake[queue] = None
                handouts.append(Handout(consumer, entries, self._acquired(queue, consumer, entries)))
            if budget.is_spent:
                self._awake = dict.fromkeys(pending) | self._awake
        return handouts

    @property
    def has_work(self) -> bool:
        """Whether `hand_out` may find something."""
        if self._uncommitted:
            self._wake_for_committed()
        return bool(self._awake)

    def _wake_for_committed(self) -> None:
        known, self._uncommitted = self._uncommitted, {}
        for queue, committed_lsn in known.items():
            if queue.log.committed_lsn == committed_lsn:
                self._uncommitted[queue] = committed_lsn
            else:
                self._awake[queue] = None

    def _acquired(self, queue: Queue, consumer: Consumer, entries: list[Entry]) -> CommitToken:
        if consumer.browsing or not self.log_acquisitions:
            return COMMITTED
        queue.log.append(ev.Acquired(queue.id, tuple(entry.id for entry in entries)))
        return queue.log.written

    def accept(self, queue: Queue, entries: list[Entry]) -> CommitToken:
        """Consumers have done with `entries`: forget them. Returns what to wait for.

        Once this broker may not write, what was held here goes back to its place, here and in what follows.
        """
        if queue.deleted:
            return self.written
        if self._read_only:
            return self._give_back_unwritten(queue, entries)
        return self._dequeue(queue, entries, DequeueReason.CONSUMED)

    def release(self, queue: Queue, entries: list[Entry], failed: bool) -> CommitToken:
        """Give `entries` back to their places; `failed` counts against the delivery limit."""
        if queue.deleted:
            return self.written
        if self._read_only:
            return self._give_back_unwritten(queue, entries)
        limit = queue.arguments.delivery_limit
        spent = [entry for entry in entries if failed and limit and entry.delivery_count + 1 >= limit]
        if spent:
            self.reject(queue, spent)
        outdated = [entry for entry in entries if entry.event is not None and queue.is_superseded(entry)]
        if outdated:
            self._dequeue(queue, outdated, DequeueReason.DISPLACED)
        returning = [entry for entry in entries if entry.event is not None]
        if returning and (failed or self.log_acquisitions):
            queue.log.append(ev.Released(queue.id, tuple(entry.id for entry in returning), failed))
        for entry in returning:
            queue.give_back(entry, failed)
        self._wake((queue,))
        return queue.log.written

    def release_in_portions(self, queue: Queue, holder: Holder, entries: list[Entry], failed: bool) -> None:
        """`release` what `holder` held, which has gone.

        What has not come back yet is held, and consumers of the queue get only what lies before all of it.
        """
        if self._read_only or len(entries) <= RELEASED_LENGTH:
            self.release(queue, entries, failed)
        elif not queue.deleted:
            entries.sort(key=_entry_id, reverse=True)
            returning = Returning(holder, entries)
            queue.returning.append(returning)
            self.work.add(self._release_returning(queue, returning, failed))

    def _release_returning(self, queue: Queue, returning: Returning, failed: bool) -> Task:
        holder, entries = returning
        while True:
            portion = [entry for entry in reversed(entries[-RELEASED_LENGTH:]) if entry.holder is holder]
            del entries[-RELEASED_LENGTH:]
            if not entries:
                queue.returning = [other for other in queue.returning if other is not returning]
            self.release(queue, portion, failed)
            if not entries:
                return
            yield

    def begin(self, task: Task, budget: Budget) -> None:
        """Do as much of `task` now as there is time for, and the rest in the turns to come.

        Where nothing may be written all of it is done now: what others write must not come in between.
        """
        for _ in task:
            if budget.is_spent and not self._read_only:
                self.work.add(task)
                break

    def _became_read_only(self) -> None:
        """Let all work come to its end: each task finds that nothing may be written any more."""
        self.work.run()

    def _give_back_unwritten(self, queue: Queue, entries: list[Entry]) -> CommitToken:
        """The log is another one's to write: nothing that it does not say may count, a failed delivery neither."""
        for entry in entries:
            if entry.event is not None:
                queue.give_back(entry, failed=False)
        return self.written

    def reject(self, queue: Queue, entries: list[Entry]) -> CommitToken:
        """Nobody wants `entries`: to the alternate exchange where the queue has one, else away."""
        if queue.deleted:
            return self.written
        if self._read_only:
            return self._give_back_unwritten(queue, entries)
        alternate = self.state.exchanges.get(queue.arguments.alternate_exchange)
        if alternate is None and entries:
            return self._dequeue(queue, entries, DequeueReason.REJECTED)
        for entry in entries:
            if alternate is not None and not self._move(queue, entry, alternate):
                self.dead_letters_dropped_total += 1
                self._dequeue(queue, [entry], DequeueReason.REJECTED)
        return self.written  # dead letters may be replicated where the queue is not

    def _move(self, queue: Queue, entry: Entry, exchange: Exchange) -> bool:
        """To wherever `exchange` leads but back; False: nowhere that has room for it."""
        event = entry.content()
        message = Message(event.payload, event.durable, event.priority, event.expires_at_ms)
        plan = EnqueuePlan(self._reader)
        try:
            key = self._reader.routing_key(event.payload)
        except ModelError:
            key = ""  # what nobody could read is what dead letters are for
        try:
            targets = self.route(exchange, event.payload, key)
            elsewhere = tuple(target for target in targets if target is not queue)
            plan.add(elsewhere, message, self._now_ms, routed=True)
        except ModelError:
            return False
        self.overrun |= plan.overrun
        if not (plan.events or plan.local_events):
            return False
        self._carry_out(plan, [Departure(queue, [entry], DequeueReason.MOVED)])
        return True

    def _dequeue(self, queue: Queue, entries: list[Entry], reason: DequeueReason) -> CommitToken:
        for start in range(0, len(entries), DEQUEUED_LENGTH):
            ids = tuple([entry.id for entry in entries[start : start + DEQUEUED_LENGTH]])
            queue.log.append(ev.Dequeued(queue.id, ids, reason))
        self.state.removed(queue, entries)
        return queue.log.written

    def purge(self, queue: Queue) -> Purge:
        """Drop what is available; what consumers hold stays theirs. Raises NotPrimary, QueueLocked.

        More than a portion takes its time; consumers that take some of it meanwhile have it.
        """
        self.check_writable()
        self._check_unlocked(queue)
        purge = Purge(queue)
        self._purges[purge] = task = self._purge(purge)
        if queue.count <= PURGED_LENGTH:
            finish(task)
        else:
            self.work.add(task)
        return purge

    def end_purges(self, queue: Queue) -> None:
        """Bring the purges of `queue` to their end now: its messages are about to get other ids."""
        for purge, task in list(self._purges.items()):
            if purge.queue is queue:
                finish(task)

    def _purge(self, purge: Purge) -> Task:
        queue = purge.queue
        while not (queue.deleted or self._read_only):
            entries = purge.next_portion()
            if entries:
                purge.count += len(entries)
                self._dequeue(queue, entries, DequeueReason.PURGED)
            if purge.has_seen_all:
                purge.written = self.written
                break
            yield
        else:
            if queue.deleted:
                purge.give_up(NotFound, f"queue {queue.name} was deleted meanwhile")
            else:
                purge.give_up(NotPrimary, self._read_only)
        del self._purges[purge]

    def _shrink(self, queue: Queue) -> Task:
        """Once nothing may be written here, the next primary drops the rest with the next message that comes."""
        while not (queue.deleted or self._read_only) and (dropped := queue.excess()):
            self._dequeue(queue, dropped, DequeueReason.DISPLACED)
            yield
        self._shrinking.discard(queue)

    # --- transactions

    def commit(self, transaction: Transaction, now_ms: int) -> CommitToken:
        """Do all of it in one unit; returns what to wait for. Raises as `publish`: then roll it back."""
        self._now_ms = now_ms
        self.check_writable()
        new = self.deduplication.new_among(transaction.published)
        routed = [
            ((target,) if isinstance(target, Queue) else self.route(target, message.payload, key), message, target)
            for target, message, key in new
        ]
        if self._barred:
            self._check_publish(queue for queues, _, _ in routed for queue in queues)
        plan = EnqueuePlan(self._reader, self.deduplication.producers)
        for queues, message, target in routed:
            plan.add(queues, message, now_ms, routed=not isinstance(target, Queue))
        accepted: dict[Queue, list[Entry]] = {}
        for queue, entry in transaction.accepted:
            if entry.holder is transaction and not queue.deleted:  # a queue that is being deleted may have moved it
                accepted.setdefault(queue, []).append(entry)
        departures = [Departure(queue, entries, DequeueReason.CONSUMED) for queue, entries in accepted.items()]
        token = self._carry_out(plan, departures)
        duplicates = len(transaction.published) - len(new)
        self.deduplication.dropped_total += duplicates
        return self.written if duplicates else token

    def roll_back(self, transaction: Transaction) -> None:
        """Forget the publishes; what it had accepted is its consumer's again, or the queue's, as a failed delivery."""
        returning: dict[Queue, list[Entry]] = {}
        for queue, entry in transaction.accepted:
            if entry.holder is not transaction or queue.deleted:
                continue
            consumer = transaction.consumer_of(entry)
            if consumer is not None:
                queue.hold(entry, consumer)
            else:
                returning.setdefault(queue, []).append(entry)
        for queue, entries in returning.items():
            self.release_in_portions(queue, transaction, entries, failed=True)

    # --- time

    def watch(self, queue: Queue) -> None:
        """Look at `queue` at every tick: it may have to delete itself."""
        self._timed[queue] = None

    def tick(self, now_ms: int, budget: Budget = UNLIMITED) -> list[Queue]:
        """Expire messages; returns the auto-delete queues whose time has come, for the caller to delete.

        When `budget` is spent there is more to do: see `is_expiring`.
        """
        self.is_expiring = False
        if self._read_only:
            return []
        due = []
        self._now_ms = now_ms
        for queue in list(self._timed):
            if queue.deleted:
                del self._timed[queue]
                continue
            if not self._expire(queue, now_ms, budget):
                self.is_expiring = True
                del self._timed[queue]
                self._timed[queue] = None  # behind the others, the next time
                break
            if queue.is_due_for_deletion(now_ms):
                due.append(queue)
            elif queue.next_expiry_ms() is None and not queue.arguments.auto_delete:
                del self._timed[queue]
        return due

    def _expire(self, queue: Queue, now_ms: int, budget: Budget) -> bool:
        """Whether all is gone whose time is over; False when `budget` was spent before."""
        while (expired := queue.expired(now_ms, EXPIRED_LENGTH)) or (queue.next_expiry_ms() or _NEVER) <= now_ms:
            if expired:
                self._dequeue(queue, expired, DequeueReason.EXPIRED)
            if budget.is_spent:
                return False
        return True
