"""The state of a resource set: queues, exchanges and bindings, as a function of its log and of nothing else.

`SetState.apply` is what a backup and a restart do with every event; a primary does the same to itself, on the message
path by calling what `apply` would call. It decides nothing: limits, expiry, rings and dead letters were decided once,
by whoever wrote the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.model.errors import ModelError, NotFound
from qpid_ha_broker.model.exchanges import Binding, Exchange, make_exchange
from qpid_ha_broker.model.log import LOCAL_BASE, Log
from qpid_ha_broker.model.paged import Outline, PagedMessage
from qpid_ha_broker.model.producers import Producers
from qpid_ha_broker.model.queue import Queue
from qpid_ha_broker.model.queue_arguments import QueueArguments, Replicate
from qpid_ha_broker.model.sequence import ELSEWHERE, Entry
from qpid_ha_broker.model.work import WorkQueue

MESSAGE_OVERHEAD = 300
"""Bytes that a queued message takes besides its payload: docs/performance.md has the measurement."""


class ReplayError(Exception):
    """The log does not fit the state: an event names what is not there, or a unit is not whole."""


class SetState:
    """The promise: two states to which the same records were applied hold the same."""

    def __init__(self, log: Log | None = None, local_log: Log | None = None) -> None:
        self._log = log or Log()
        self._local_log = local_log or Log(LOCAL_BASE)
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.queues_by_id: dict[int, Queue] = {}
        self.exchanges_by_id: dict[int, Exchange] = {}
        self.memory_bytes = 0
        """What the messages take, roughly: payloads but those on disk alone, and the overhead of each.

        A message in two queues counts twice.
        """
        self.generations: list[tuple[int, ev.GenerationStarted]] = []
        """By the LSN with which each began."""
        self.in_sync = ev.InSyncChanged(0, ())
        self.producers, self.local_producers = Producers(), Producers()
        """How far those have come that number their messages, by the replicated log and by the broker's own."""
        self.transients_lost_lsn = 0
        """The last LSN with which messages that are not durable were given up."""
        self.deleted_queues: list[Queue] = []
        """Gone while somebody used them: for the driver to take, whose links have to be told."""
        self.garbage = WorkQueue()
        """The memory of what is no more: for the driver to go on with."""
        self.open_unit: list[LogRecord] = []
        """Parts that wait for the rest of their unit."""
        self._apply: dict[type, Callable[[int, Any], object]] = {
            ev.QueueDeclared: self._queue_declared,
            ev.QueueUpdated: self._queue_updated,
            ev.QueueDeleted: self._queue_deleted,
            ev.ExchangeDeclared: self._exchange_declared,
            ev.ExchangeDeleted: self._exchange_deleted,
            ev.Bound: self._bound,
            ev.Unbound: self._unbound,
            ev.QueueUsed: self._queue_used,
            ev.ReplicationChanged: self._replication_changed,
            ev.GenerationStarted: self._generation_started,
            ev.InSyncChanged: self._in_sync_changed,
            ev.TransientsLost: self._transients_lost,
            ev.Enqueued: self.enqueued,
            PagedMessage: self._enqueued_on_disk,
            ev.Dequeued: self._dequeued,
            ev.Acquired: self._acquired,
            ev.Released: self._released,
            ev.ProducerAdvanced: self._producer_advanced,
        }

    @property
    def log_ends(self) -> tuple[int, int]:
        """The last LSNs of the replicated log and of the broker's own."""
        return self._log.last_lsn, self._local_log.last_lsn

    def apply(self, lsn: int, event: ev.Event) -> None:
        """Let `event` count. Raises ReplayError when it does not fit."""
        try:
            self._apply[type(event)](lsn, event)
        except (LookupError, ValueError, ModelError) as error:
            raise ReplayError(f"LSN {lsn}: {type(event).__name__} does not fit the state: {error}") from error

    def replay(self, record: LogRecord) -> None:
        """Apply a record that was read back: parts of a unit wait for its TransactionCommitted."""
        if record.part:
            self.open_unit.append(record)
        elif isinstance(record.event, ev.TransactionCommitted):
            unit, self.open_unit = self.open_unit, []
            if len(unit) != record.event.parts:
                raise ReplayError(f"LSN {record.lsn}: a unit of {record.event.parts} events, {len(unit)} of them here")
            for part in unit:
                self.apply(part.lsn, part.event)
        elif self.open_unit:
            raise ReplayError(f"LSN {record.lsn}: inside a unit that began at LSN {self.open_unit[0].lsn}")
        else:
            self.apply(record.lsn, record.event)

    def route(self, exchange: Exchange, key: str, properties: Callable[[], Mapping[str, object]]) -> tuple[Queue, ...]:
        """The queues for a message; those of the alternate exchange when the exchange itself has none.

        Raises NotFound for an exchange that was deleted after the caller had found it.
        """
        if exchange.id not in self.exchanges_by_id:
            raise NotFound(f"exchange {exchange.name} was deleted")
        queues = self._there(exchange.route(key, properties))
        if not queues:
            alternate = self.exchanges.get(str(exchange.arguments.get("qpid.alternate_exchange", "")))
            queues = self._there(alternate.route(key, properties)) if alternate is not None else queues
        return queues

    def _there(self, ids: tuple[int, ...]) -> tuple[Queue, ...]:
        """The queues of a route, without those that are gone and have not left all routes yet."""
        by_id = self.queues_by_id
        try:
            return tuple([by_id[queue_id] for queue_id in ids])
        except KeyError:
            return tuple([by_id[queue_id] for queue_id in ids if queue_id in by_id])

    def enqueued(self, lsn: int, event: ev.Enqueued) -> list[tuple[Queue, Entry]]:
        """Apply Enqueued; returns what the message takes the place of (last-value queues)."""
        displaced = []
        queues = [self.queues_by_id[queue_id] for queue_id in event.queues]
        for queue in queues:
            older = queue.add(Entry(lsn, event), event)
            if older is not None:
                displaced.append((queue, older))
        self.memory_bytes += (len(event.payload) + MESSAGE_OVERHEAD) * len(queues)
        return displaced

    def _enqueued_on_disk(self, lsn: int, event: PagedMessage) -> None:
        """The same for a message whose payload a restart leaves where it is; what it displaces, the log says."""
        for queue_id in event.queues:
            queue = self.queues_by_id[queue_id]
            queue.add_paged(Entry(lsn, event), event)
        self.memory_bytes += MESSAGE_OVERHEAD * len(event.queues)

    def removed(self, queue: Queue, entries: list[Entry]) -> None:
        """What applying Dequeued comes to once the messages are found."""
        before = queue.resident
        for entry in entries:
            queue.remove(entry)
        self.memory_bytes -= before - queue.resident + MESSAGE_OVERHEAD * len(entries)

    def prepended(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """Take older messages into `queue`: see `Queue.prepend`."""
        before = queue.resident
        queue.prepend(entries)
        self.memory_bytes += queue.resident - before + MESSAGE_OVERHEAD * len(entries)

    def exchanged(self, queue: Queue, entry: Entry, event: Outline) -> None:
        """Let a message be paged out, or back: see `Queue.exchange`."""
        before = queue.paged
        queue.exchange(entry, event)
        self.memory_bytes -= queue.paged - before

    def emptied(self, queue: Queue) -> list[Entry]:
        """Take all messages out of `queue`, as if they had not come: see `Queue.take_all`."""
        self.memory_bytes -= queue.resident + MESSAGE_OVERHEAD * queue.count
        return queue.take_all()

    def forget_queue(self, queue: Queue) -> None:
        """`queue` is no more, with its messages and bindings."""
        del self.queues_by_id[queue.id]
        del self.queues[queue.name]
        queue.mark_deleted()
        self.memory_bytes -= queue.resident + MESSAGE_OVERHEAD * queue.count
        for exchange in self.exchanges.values():
            self.unbind_queue(exchange, queue.id)
        self.deleted_queues.append(queue)
        if queue.count:
            self.garbage.add(queue.dismantle())

    def unbind_queue(self, exchange: Exchange, queue_id: int) -> list[Binding]:
        """Remove and return the bindings of what is no queue, or under that id no longer one."""
        removed = exchange.unbind_queue(queue_id)
        if removed:
            self.garbage.add(exchange.unindex(removed))
        return removed

    def forget_exchange(self, exchange: Exchange) -> None:
        """`exchange` is no more, with its bindings."""
        del self.exchanges_by_id[exchange.id]
        del self.exchanges[exchange.name]
        self.garbage.add(exchange.dismantle())

    def set_replication(self, queue: Queue, level: Replicate) -> None:
        """From now on its messages are written where `level` says; what it holds stays."""
        queue.replication = level
        queue.log = self._log if level is Replicate.MESSAGES else self._local_log

    def renumber_queue(self, queue: Queue, new_id: int) -> None:
        """`queue` counts as one that another event declared; what it holds stays."""
        self.queues_by_id[new_id] = self.queues_by_id.pop(queue.id)
        queue.id, queue.ids = new_id, (new_id,)

    def renumber_exchange(self, exchange: Exchange, new_id: int) -> None:
        """`exchange` counts as one that another event declared."""
        self.exchanges_by_id[new_id] = self.exchanges_by_id.pop(exchange.id)
        exchange.id = new_id

    def drop_open_unit(self) -> None:
        """The rest of it will not come."""
        self.open_unit = []

    def _claim_name(self, kind: str, name: str, lsn: int) -> None:
        """A replicated object takes its name from a local one: the cluster's word counts for more than one broker's."""
        queue, exchange = self.queues.get(name), self.exchanges.get(name)
        for there in (queue, exchange):
            if there is not None and (there.id < LOCAL_BASE or lsn >= LOCAL_BASE):
                raise ValueError(f"cannot make {kind} {name}: the name is taken")
        if queue is not None:
            self.forget_queue(queue)
        if exchange is not None:
            self.forget_exchange(exchange)

    def _queue_declared(self, lsn: int, event: ev.QueueDeclared) -> None:
        self._claim_name("queue", event.name, lsn)
        local = lsn >= LOCAL_BASE
        log, level = (self._local_log, Replicate.NONE) if local else (self._log, Replicate.MESSAGES)
        queue = Queue(lsn, event.name, QueueArguments.parse(event.arguments), log, level)
        self.queues[event.name] = self.queues_by_id[lsn] = queue

    def _queue_updated(self, lsn: int, event: ev.QueueUpdated) -> None:
        self.queues_by_id[event.queue].change_arguments(QueueArguments.parse(event.arguments))

    def _queue_deleted(self, lsn: int, event: ev.QueueDeleted) -> None:
        self.forget_queue(self.queues_by_id[event.queue])

    def _queue_used(self, lsn: int, event: ev.QueueUsed) -> None:
        queue = self.queues_by_id[event.queue]
        queue.used, queue.owner = True, event.owner

    def _replication_changed(self, lsn: int, event: ev.ReplicationChanged) -> None:
        queue = self.queues_by_id[event.queue]
        self.emptied(queue)
        self.set_replication(queue, Replicate.MESSAGES if event.messages else Replicate.CONFIGURATION)

    def _generation_started(self, lsn: int, event: ev.GenerationStarted) -> None:
        self.generations.append((lsn, event))

    def _in_sync_changed(self, lsn: int, event: ev.InSyncChanged) -> None:
        self.in_sync = event

    def _transients_lost(self, lsn: int, event: ev.TransientsLost) -> None:
        self.transients_lost_lsn = lsn
        for queue in self.queues_by_id.values():
            if queue.id < LOCAL_BASE and queue.replication is Replicate.MESSAGES:
                lost = [each for each in queue.entries() if each.id < event.before and not each.outline().durable]
                self.removed(queue, lost)

    def _exchange_declared(self, lsn: int, event: ev.ExchangeDeclared) -> None:
        self._claim_name("exchange", event.name, lsn)
        exchange = make_exchange(event.kind, lsn, event.name, event.arguments)
        self.exchanges[event.name] = self.exchanges_by_id[lsn] = exchange

    def _exchange_deleted(self, lsn: int, event: ev.ExchangeDeleted) -> None:
        self.forget_exchange(self.exchanges_by_id[event.exchange])

    def _bound(self, lsn: int, event: ev.Bound) -> None:
        binding = Binding(self.queues_by_id[event.queue].id, event.key, event.arguments)
        self.exchanges_by_id[event.exchange].bind(binding)

    def _unbound(self, lsn: int, event: ev.Unbound) -> None:
        self.exchanges_by_id[event.exchange].unbind(event.queue, event.key)

    def _producer_advanced(self, lsn: int, event: ev.ProducerAdvanced) -> None:
        (self.producers if lsn < LOCAL_BASE else self.local_producers).advanced(lsn, event)

    def _dequeued(self, lsn: int, event: ev.Dequeued) -> None:
        queue = self.queues_by_id[event.queue]
        self.removed(queue, _find(queue, event.ids))

    def _acquired(self, lsn: int, event: ev.Acquired) -> None:
        queue = self.queues_by_id[event.queue]
        for entry in _find(queue, event.ids):
            queue.hold(entry, ELSEWHERE)

    def _released(self, lsn: int, event: ev.Released) -> None:
        queue = self.queues_by_id[event.queue]
        for entry in _find(queue, event.ids):
            queue.give_back(entry, event.failed)


def _find(queue: Queue, ids: tuple[int, ...]) -> list[Entry]:
    entries = queue.find_all(ids)
    if len(entries) != len(ids):
        raise LookupError(f"queue {queue.name} lacks some of the messages {ids[:5]}")
    return entries
