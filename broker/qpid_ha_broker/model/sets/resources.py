"""What clients do with the resource sets of a broker: commands about messages.

Each command looks, decides, writes events, and applies them: refused means that nothing was written. What has to wait
for a witness comes back as a CommitToken; the caller tells the outcome once it is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.types import DequeueReason
from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.errors import ModelError, QueueFull
from qpid_ha_broker.model.exchanges.exchange import NOBODY, Exchange, Origin
from qpid_ha_broker.model.logs.log import COMMITTED, DEFAULT_SET, AllOf, CommitToken
from qpid_ha_broker.model.message_reader import Death, DeathReason, MessageReader
from qpid_ha_broker.model.queues.dispatcher import NO_STANDING, Consumer, ConsumerStanding, Handout, Returning
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import SUBMITTED, Entry, Holder, load_bodies
from qpid_ha_broker.model.replication import is_local
from qpid_ha_broker.model.sets.following import check_owner, safe_name
from qpid_ha_broker.model.sets.plain_arrivals import take_in_events
from qpid_ha_broker.model.sets.purge import Purges, Shrinking
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.strategies import HotStandby, check_unlocked
from qpid_ha_broker.model.sets.takers import check_alone, note_groups
from qpid_ha_broker.model.sets.timers import QueueTimers
from qpid_ha_broker.model.transactions.plan import Departure, EnqueuePlan
from qpid_ha_broker.model.transactions.producers import Deduplication
from qpid_ha_broker.model.transactions.transaction import Message, Transaction
from qpid_ha_broker.model.work import Task, WorkQueue

UNIT_MESSAGES = 500
UNIT_BYTES = 256 * 1024
"""Of what one producer numbers, that is written together, at most; at least one message is."""
RELEASED_LENGTH = 250
"""Messages that are given back together: a few milliseconds of work, should all of them be dead letters."""
DUE_LENGTH = 500
"""Messages that may be had from now on, of those which waited; what more there is has the next tick."""
_new_tuple = tuple.__new__
"""Makes a named tuple of a tuple at half of what calling its class costs."""
_entry_id = attrgetter("id")


class Resources:
    """The promise: whatever a set holds was written to its log first, and units are written whole."""

    def __init__(
        self,
        reader: MessageReader,
        name: str = DEFAULT_SET,
        *,
        log_acquisitions: bool = False,
        replication: HotStandby | None = None,
    ) -> None:
        self.name = name
        """Of the replicated set."""
        self.sets = ResourceSets(name, replication)
        self.replicated = self.sets.replicated
        """The set of whose objects and messages these are the commands, and of those that are local beside it."""
        self.catalog = self.sets.catalog
        self.catalog.reader = reader
        self.replication = self.sets.replication
        """Whether these commands may be given here, and how what they write is shared."""
        self.replication.became_read_only = self._finish_work
        self._reader = reader
        self.log_acquisitions = log_acquisitions
        self._uncommitted: dict[Queue, int] = {}
        """Queues of which browsers may not see everything yet, and how far their log was committed then."""
        self.work = WorkQueue()
        """What is written in portions: for the driver to go on with. None of it outlives the right to write: see
        `begin`."""
        self.purges = Purges(self.sets, self.work)
        self.shrinking = Shrinking(self.sets, self.work)
        self.timers = QueueTimers(self.sets, self.shrinking)
        self.overrun: dict[Queue, QueueFull] = {}
        """Queues with the policy self-destruct that were full when something came: the driver is to delete them."""
        self.deduplication = Deduplication([resource_set.state.producers for resource_set in self.sets.all])
        self.is_gated = False
        """Nobody is given anything but those who only look: others may come for what they have had already."""
        self.unroutable_total = 0
        self.outranked_total = 0
        """Messages that a ring with priorities did not take because all that it held had a higher one."""
        self.dead_letters_dropped_total = 0
        """Messages for an alternate exchange that led to a full queue, to none, or only back to where they were."""

    @property
    def written(self) -> CommitToken:
        """What to wait for so that all that was written in both logs is committed."""
        return self.sets.written

    # --- messages in

    def publish(self, queue: Queue, message: Message, now_ms: int) -> CommitToken:
        """Enqueue; returns what to wait for.

        Raises QueueFull, NotFound (deleted), RefusedBefore, NotPrimary or what `refusal` says, and then nothing has
        changed.
        """
        body, _, priority, expires_at_ms, producer, _, due_at_ms = message
        if self.replication.counts_later:
            if not (queue.needs_care or expires_at_ms or producer or due_at_ms):
                self.replication.check_publish((queue,))
                event = ev.Enqueued(queue.ids, body, True, priority, 0, "")  # see `Grouped.submit`
                return self.replicated.submit((event,))
        elif lsn := self.enqueue_plain(queue, message):
            return CommitToken(queue.log, lsn)
        known_at = self.known_at(message)
        return known_at or self.carry_out(self.plan((queue,), message, now_ms, routed=False), [])

    def enqueue_plain(self, queue: Queue, message: Message) -> int:
        """The short way of `publish` for a message about which there is nothing to decide.

        Returns its LSN in the log of `queue`; 0: there is, and nothing was done.
        """
        body, durable, priority, expires_at_ms, producer, _, due_at_ms = message
        if queue.needs_care or self.replication.is_restricted or producer or due_at_ms:
            return 0
        if queue.detects_groups and self._reader.has_group(body):
            note_groups(self.sets, queue)
        return self.sets.holding(queue).enqueue_plain((queue,), (body,), durable, priority, expires_at_ms)[0]

    def publish_to_exchange(
        self, exchange: Exchange, message: Message, key: str, now_ms: int, origin: Origin = NOBODY
    ) -> CommitToken:
        """Enqueue wherever the exchange says, everywhere or nowhere; returns and raises as `publish`. `origin`: who
        publishes it."""
        self.replication.check_writable()
        known_at = self.known_at(message)
        if known_at is not None:
            return known_at
        queues = self.route(exchange, message.payload, key, origin)
        return self.carry_out(self.plan(queues, message, now_ms, routed=True), []) if queues else self.written

    def known_at(self, message: Message) -> CommitToken | None:
        """Of a duplicate: what to wait for so that the original is committed. None: it is new. Raises NotPrimary, and
        RefusedBefore."""
        if not message.producer or not self.deduplication.knows(message):
            return None
        self.replication.check_writable()
        self.deduplication.dropped_total += 1
        return self.written

    def route(self, exchange: Exchange, payload: bytes, key: str, origin: Origin = NOBODY) -> tuple[Queue, ...]:
        """The queues for a message; counts one for which there are none. Raises NotFound: see `Catalog.route`."""
        queues = self.catalog.route(exchange, key, payload, origin)
        if not queues:
            self.unroutable_total += 1
        return queues

    def plan(self, queues: tuple[Queue, ...], message: Message, now_ms: int, *, routed: bool) -> EnqueuePlan:
        """The first half of publishing, which writes nothing: `carry_out` it or abandon it. Raises as `publish`."""
        self.catalog.now_ms = now_ms
        if self.replication.is_restricted:
            self.replication.check_publish(queues)
        plan = self.sets.new_plan(self._reader, self.deduplication.producers)
        plan.add(queues, message, now_ms, routed=routed)
        return plan

    def take_overrun(self) -> dict[Queue, QueueFull]:
        """The queues that are to delete themselves, with what their consumers are to be told."""
        overrun, self.overrun = self.overrun, {}
        return overrun

    def carry_out(self, plan: EnqueuePlan, departures: list[Departure]) -> CommitToken:
        """Write the plan, one unit in each set, and let it count. Returns what to wait for."""
        for queue in plan.grouped:
            note_groups(self.sets, queue)
        sets, first = self.sets.all, plan.units[self.replicated.log]
        token: CommitToken | None = None
        # What a message moves to comes first: were only one of the units kept, it would be there twice, and not lost.
        # For the same reason the unit comes last after which the numbers of its messages are known.
        replicated_first = first.events and (departures or not first.advances)
        outdated: dict[Queue, list[Entry]] = {queue: list(entries) for queue, entries in plan.displaced.items()}
        for resource_set in sets if replicated_first else reversed(sets):
            leaving = [departure for departure in departures if departure.queue.log is resource_set.log]
            unit = plan.units[resource_set.log]
            if not (unit.events or leaving):
                continue
            events: Sequence[ev.Enqueued | ev.ProducerAdvanced | ev.NumbersRefused] = plan.written_to(resource_set.log)
            advances = unit.advances
            if advances:
                producers = resource_set.state.producers
                # In a group an event with a number that is there already is that of a duplicate.
                room = [] if self.replication.counts_later else self.deduplication.room_for(advances, producers)
                events = [*room, *events, *self.deduplication.take_refused(advances)]
            written, displaced = resource_set.commit(events, leaving)
            token = written if token is None else written.and_also(token)
            for queue, older in displaced:
                if older.is_free:
                    outdated.setdefault(queue, []).append(older)
        self.outranked_total += plan.outranked
        self.overrun |= plan.overrun
        for queue, entries in outdated.items():
            self._dequeue(queue, entries, DequeueReason.DISPLACED)
        for queue in plan.over_limits:
            self.shrinking.begin(queue)
        for queue in plan.queues:
            self.catalog.note_arrival(queue)
        return self.written if token is None else token

    # --- messages out

    def subscribe(
        self,
        queue: Queue,
        consumer: Consumer,
        owner: object,
        owner_name: str = "",
        standing: ConsumerStanding = NO_STANDING,
    ) -> None:
        """Serve `consumer`. Raises InUse when the queue is exclusive to somebody other than `owner`, or to a consumer.

        In a group that is known later, and nothing is given to it meanwhile: see `ExclusiveUse.awaited`.
        `owner_name` is what `owner` is known by when it comes back after a failover: see `following.owner_name`.
        """
        if not consumer.browsing:
            self.replication.check_writable()
            check_unlocked(queue)
        name = written = self.replication.exclusive_use.user(queue)
        if not consumer.browsing:
            check_alone(queue, standing)
        if queue.arguments.exclusive and not consumer.browsing:
            name = safe_name(owner_name)
            check_owner(queue, owner, name, self.catalog.now_ms)
            queue.exclusive_owner = owner
        queue.subscribe(consumer, standing)
        self.catalog.note_use(queue)
        if not self.sets.may_write(queue):
            return
        if name != written or (queue.arguments.auto_delete and not (queue.used or consumer.browsing)):
            self._write_use(queue, name)

    def unsubscribe(self, queue: Queue, consumer: Consumer, now_ms: int, *, keep_until_ms: int = 0) -> None:
        """Serve it no more; give back what it holds with `release` or `release_in_portions` first.

        `keep_until_ms`: until then the consumer may come back, and what it alone has and uses is kept for it.
        """
        queue.unsubscribe(consumer, now_ms)
        if queue.dispatcher.consumers:
            self.catalog.awake[queue] = None  # what was for that one may be for others now
        self.catalog.note_use(queue)
        if not self.sets.may_write(queue):
            return
        if not (consumer.browsing or queue.dispatcher.has_takers or queue.deleted):
            self.replicated.narrow_mark(queue)
        if keep_until_ms:
            self.timers.keep_for_return(queue, keep_until_ms)
            if not self.replication.counts_later:
                return  # in a group it may come back at another member, which would be refused the queue
        if queue.arguments.auto_delete and not queue.dispatcher.has_takers:
            self.timers.watch(queue)
        if queue.exclusive_owner is None and not consumer.browsing:
            if self.replication.exclusive_use.user(queue) and not queue.deleted:
                self._write_use(queue, "")
            else:
                self.replication.exclusive_use.forget(queue)

    def _write_use(self, queue: Queue, owner: str) -> None:
        """Tell backups what clients will expect of them after a failover."""
        (self.sets.local if is_local(queue) else self.replicated).write(ev.QueueUsed(queue.id, owner))

    def hand_out(self, now_ms: int, limit: int, budget: Budget = UNLIMITED) -> list[Handout]:
        """Up to `limit` messages for each consumer that can take some. Call again while `has_work`.

        When `budget` is spent the other queues wait for the next call, and are the first in it.
        """
        handouts: list[Handout] = []
        replicated = self.replicated
        self.catalog.now_ms = now_ms
        if self._uncommitted:
            self._wake_for_committed()
        awake, self.catalog.awake = self.catalog.awake, {}
        pending = iter(awake)
        for queue in pending:
            if queue.deleted:
                continue
            dispatcher, mark, hands_out = queue.dispatcher, queue.mark, self.sets.hands_out(queue)
            if queue.messages.schedule.count and now_ms:
                queue.messages.schedule.fall_due(now_ms, DUE_LENGTH)
            is_marked = replicated.is_marked(queue)
            given, expired = dispatcher.hand_out(
                now_ms,
                limit,
                queue.log.whole_lsn() if hands_out else self.sets.shown_lsn(queue),
                only_browsers=not hands_out,
                proof=self.proof_for(queue),
                mark=mark if is_marked else None,
                budget=budget,
            )
            if expired:
                self._dequeue(queue, expired, DequeueReason.EXPIRED)
            if dispatcher.interrupted:
                self.catalog.awake[queue] = None
            if dispatcher.awaits_commit:
                self._uncommitted[queue] = queue.log.committed_lsn
            for consumer, entries in given:
                if len(entries) == limit:
                    self.catalog.awake[queue] = None
                if not consumer.browsing:
                    mark.highest = max(mark.highest, dispatcher.newest_of(entries))
                handouts.append(Handout(consumer, entries, self._acquired(queue, consumer, entries)))
            if is_marked and hands_out:
                replicated.mark_ahead(queue, dispatcher.awaits_mark)
            if dispatcher.awaits_mark:
                self._uncommitted[queue] = queue.log.committed_lsn
            if budget.is_spent:
                self.catalog.awake = dict.fromkeys(pending) | self.catalog.awake
        return handouts

    def proof_for(self, queue: Queue) -> LeadProof:
        """What those who take messages of `queue` may be given. Of what is not replicated nobody else has a copy."""
        if self.is_gated:
            return LeadProof.MISSING
        return self.sets.holding(queue).replication.lead_proof

    @property
    def has_work(self) -> bool:
        """Whether `hand_out` may find something."""
        if self._uncommitted:
            self._wake_for_committed()
        return bool(self.catalog.awake)

    def _wake_for_committed(self) -> None:
        known, self._uncommitted = self._uncommitted, {}
        for queue, committed_lsn in known.items():
            if queue.log.committed_lsn == committed_lsn:
                self._uncommitted[queue] = committed_lsn
            else:
                self.catalog.awake[queue] = None

    def _acquired(self, queue: Queue, consumer: Consumer, entries: list[Entry]) -> CommitToken:
        if consumer.session_owner is not None:
            return self.sets.holding(queue).hold(queue, entries, consumer.session_owner)
        if consumer.browsing or self.replication.counts_later:
            return COMMITTED  # of a group all that was out is marked when its member ends: nothing need be told
        if not self.log_acquisitions:
            holdings = self.catalog.holdings
            return holdings.awaited(queue) if holdings.given_back else COMMITTED
        return self.sets.holding(queue).acquire(queue, entries)

    def accept(self, queue: Queue, entries: list[Entry]) -> CommitToken:
        """Consumers have done with `entries`: forget them. Returns what to wait for.

        Once this broker may not write, what was held here goes back to its place, here and in what follows.
        """
        if queue.deleted:
            return self.written
        if not self.sets.may_write(queue):
            return self._give_back_unwritten(queue, entries)
        return self._dequeue(queue, entries, DequeueReason.CONSUMED)

    def release(
        self, queue: Queue, entries: list[Entry], failed: bool, *, was_seen: bool = True, annotations: bytes = b""
    ) -> CommitToken:
        """Give `entries` back to their places; `failed` counts against the delivery limit.

        `was_seen`: they may have come to a client. `annotations`: what is said of them from now on, an encoded map with
        what was said before; empty: nothing new. It is left out while somebody follows who could not read it.
        """
        if queue.deleted:
            return self.written
        if not self.sets.may_write(queue):
            return self._give_back_unwritten(queue, entries)
        if annotations and not self.sets.holding(queue).state.marks.tells_annotations:
            annotations = b""
        limit = queue.arguments.delivery_limit
        spent = [entry for entry in entries if failed and limit and entry.delivery_count + 1 >= limit]
        if spent:
            self.reject(queue, spent, DeathReason.DELIVERY_LIMIT, annotations)
        outdated = [entry for entry in entries if _stays(entry) and queue.messages.is_superseded(entry)]
        if outdated:
            self._dequeue(queue, outdated, DequeueReason.DISPLACED)
        returning = [entry for entry in entries if _stays(entry)]
        held = queue.held
        is_written = (
            failed
            or annotations
            or self.log_acquisitions
            or self.sets.holding(queue).replication.tells_returns(queue, was_seen=was_seen)
            or (held and any(entry.id in held for entry in returning))
        )
        if returning and is_written:
            self.sets.holding(queue).release(queue, returning, failed, annotations)
        else:
            for entry in returning:
                queue.messages.give_back(entry, failed)
        if queue.limits.is_bounded:
            self.shrinking.begin(queue)
        self.catalog.note_arrival(queue)
        return self.sets.holding(queue).written

    def release_in_portions(self, queue: Queue, holder: Holder, entries: list[Entry], failed: bool) -> None:
        """`release` what `holder` held, which has gone.

        What has not come back yet is held, and consumers of the queue get only what lies before all of it.
        """
        if len(entries) <= RELEASED_LENGTH or not self.sets.may_write(queue):
            self.release(queue, entries, failed)
        elif not queue.deleted:
            entries.sort(key=_entry_id, reverse=True)
            returning = Returning(holder, entries)
            queue.dispatcher.returning.append(returning)
            self.work.add(self._release_returning(queue, returning, failed))

    def _release_returning(self, queue: Queue, returning: Returning, failed: bool) -> Task:
        holder, entries = returning
        dispatcher = queue.dispatcher
        while True:
            portion = [entry for entry in reversed(entries[-RELEASED_LENGTH:]) if entry.holder is holder]
            del entries[-RELEASED_LENGTH:]
            if not entries:
                dispatcher.returning = [other for other in dispatcher.returning if other is not returning]
            self.release(queue, portion, failed)
            if not entries:
                return
            yield

    def begin(self, task: Task, budget: Budget) -> None:
        """Do as much of `task` now as there is time for, and the rest in the turns to come.

        Where nothing may be written all of it is done now: what others write must not come in between.
        """
        for _ in task:
            if budget.is_spent and not self.replication.read_only:
                self.work.add(task)
                break

    def _finish_work(self) -> None:
        """Let all work come to its end: each task finds that nothing may be written any more."""
        self.deduplication.forget_unwritten()
        self.purges.owned.resume()
        self.work.run()

    def _give_back_unwritten(self, queue: Queue, entries: list[Entry]) -> CommitToken:
        """The log is another one's to write: nothing that it does not say may count, a failed delivery neither."""
        for entry in entries:
            if entry.id in queue.held:  # as the log says
                queue.messages.hold(entry, queue.held[entry.id])
            elif entry.body is not None:
                queue.messages.give_back(entry, failed=False)
        return self.written

    def reject(
        self,
        queue: Queue,
        entries: list[Entry],
        reason: DeathReason = DeathReason.REJECTED,
        annotations: bytes = b"",
    ) -> CommitToken:
        """Nobody wants `entries`: to the alternate exchange where the queue has one, else away.

        They go on as dead letters, without the time to live that they had; that of the next queue counts from now.
        `annotations`: with these; empty: with what was said of each.
        """
        if queue.deleted:
            return self.written
        if not self.sets.may_write(queue):
            return self._give_back_unwritten(queue, entries)
        alternate = self.catalog.alternate(queue.arguments.alternate_exchange)
        if alternate is None and entries:
            return self._dequeue(queue, entries, DequeueReason.REJECTED)
        for entry in entries:
            if alternate is not None and not self._move(queue, entry, alternate, reason, annotations):
                self.dead_letters_dropped_total += 1
                self._dequeue(queue, [entry], DequeueReason.REJECTED)
        return self.written  # dead letters may be replicated where the queue is not

    def _move(
        self, queue: Queue, entry: Entry, exchange: Exchange, reason: DeathReason, annotations: bytes = b""
    ) -> bool:
        """To wherever `exchange` leads but back; False: nowhere that has room for it."""
        header, now_ms = entry.header, self.catalog.now_ms
        (body,) = load_bodies((entry,))
        if said := annotations or queue.messages.annotations.get(entry.id):
            body = self._reader.annotated(body, said)
        message = Message(
            self._reader.dead_letter(body, Death(queue.name, reason, now_ms)), header.durable, header.priority
        )
        plan = EnqueuePlan(self._reader, self.sets.logs)
        try:
            key = self._reader.routing_key(body)
        except ModelError:
            key = ""  # what nobody could read is what dead letters are for
        try:
            targets = self.route(exchange, body, key)
            elsewhere = tuple(target for target in targets if target is not queue)
            plan.add(elsewhere, message, now_ms, routed=True)
        except ModelError:
            return False
        self.overrun |= plan.overrun
        if not plan.logs:
            return False
        self.carry_out(plan, [Departure(queue, [entry], DequeueReason.MOVED)])
        return True

    def _dequeue(self, queue: Queue, entries: list[Entry], reason: DequeueReason) -> CommitToken:
        return self.sets.holding(queue).dequeue(queue, entries, reason)

    # --- transactions

    def commit(self, transaction: Transaction, now_ms: int) -> CommitToken:
        """Do all of it in one unit; returns what to wait for. Raises as `publish`: then roll it back."""
        self.catalog.now_ms = now_ms
        self.replication.check_writable()
        new = self.deduplication.new_among(transaction.published)
        routed = [
            (
                (target,) if isinstance(target, Queue) else self.route(target, message.payload, key, origin),
                message,
                target,
            )
            for target, message, key, origin in new
        ]
        if self.replication.is_restricted:
            self.replication.check_publish(queue for queues, _, _ in routed for queue in queues)
        plan = self.sets.new_plan(self._reader, self.deduplication.producers)
        for queues, message, target in routed:
            plan.add(queues, message, now_ms, routed=not isinstance(target, Queue))
        accepted: dict[Queue, list[Entry]] = {}
        for queue, entry in transaction.accepted:
            if entry.holder is transaction and not queue.deleted:  # a queue that is being deleted may have moved it
                accepted.setdefault(queue, []).append(entry)
        departures = [Departure(queue, entries, DequeueReason.CONSUMED) for queue, entries in accepted.items()]
        if len(plan.logs.union(queue.log for queue in accepted)) > 1:
            self.sets.local_log.join()
        token = self.carry_out(plan, departures)
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
                queue.messages.hold(entry, queue.held.get(entry.id, consumer))
            else:
                returning.setdefault(queue, []).append(entry)
        for queue, entries in returning.items():
            self.release_in_portions(queue, transaction, entries, failed=True)


def _stays(entry: Entry) -> bool:
    """Whether it is in its queue, and not about to leave it."""
    return entry.body is not None and entry.holder is not SUBMITTED


def _enqueue_numbered(resources: Resources, queue: Queue, messages: Sequence[Message]) -> None:
    """The short way of `publish_numbered`, as `enqueue_plain` is that of `publish`."""
    producer, sequence = messages[-1].producer, messages[-1].sequence
    ids, catalog, state = queue.ids, resources.catalog, resources.replicated.state
    # Durable, all of them: a number outlives a crash, and without its message that would be taken for there.
    events: list[ev.Enqueued] = [
        _new_tuple(ev.Enqueued, (ids, body, True, priority, expires_at_ms, "", 0))
        for body, _, priority, expires_at_ms, _, _, _ in messages
    ]
    deduplication = resources.deduplication
    advances = [
        *deduplication.room_for({producer: sequence}, state.producers),
        ev.ProducerAdvanced(producer, sequence, deduplication.producers),
    ]

    def count(lsns: Sequence[int]) -> None:
        take_in_events(catalog, queue, events, lsns)
        for lsn, advanced in zip(lsns[len(events) :], advances, strict=True):
            state.apply(lsn, advanced)
        catalog.note_arrival(queue)

    resources.replicated.submit([*events, *advances], count)


def publish_numbered(resources: Resources, queue: Queue, messages: Sequence[Message], now_ms: int) -> CommitToken:
    """`Resources.publish`, all or none, for what one producer numbers, by ascending numbers: one unit of the log,
    or in a group one for each."""
    resources.replication.check_writable()
    deduplication = resources.deduplication
    new = messages
    if deduplication.knows(messages[0]):  # the others have higher numbers
        new = [message for message in messages if not deduplication.knows(message)]
        deduplication.dropped_total += len(messages) - len(new)
        if not new:
            return resources.written
    if queue.detects_groups and any(map(resources.catalog.reader.has_group, [message.payload for message in new])):
        note_groups(resources.sets, queue)
    is_plain = not (queue.needs_care or resources.replication.is_restricted) and queue.log is resources.replicated.log
    is_plain = is_plain and not deduplication.has_noted(messages[0].producer)
    if is_plain and deduplication.producers and not any(message.due_at_ms for message in new):
        _enqueue_numbered(resources, queue, new)
        return resources.written
    plan = resources.plan((queue,), new[0], now_ms, routed=False)
    for message in new[1:]:
        plan.add((queue,), message, now_ms, routed=False)
    if not resources.replication.counts_later:
        return resources.carry_out(plan, [])
    # Some of them may come at another member, too, and not in the same units: each is known for itself.
    plan.abandon()
    plans = (resources.plan((queue,), message, now_ms, routed=False) for message in new)
    return CommitToken(queue.log, 0, AllOf([resources.carry_out(plan, []) for plan in plans]))


def release_unseen(resources: Resources, queue: Queue, entries: list[Entry]) -> None:
    """Give back what was handed out and never left this broker: it carries no mark of it, and has not failed."""
    if entries:
        seen = [entry.acquired_before for entry in entries]
        resources.release(queue, entries, failed=False, was_seen=False)
        for entry, was_seen in zip(entries, seen, strict=True):
            entry.acquired_before = was_seen
