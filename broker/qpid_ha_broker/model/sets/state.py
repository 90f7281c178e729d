"""The state of a resource set: what its log has made of queues, exchanges and bindings, and of nothing else.

`SetState.apply` is what a backup and a restart do with every event; a primary does the same to itself, on the message
path by calling what `apply` would call. It decides nothing: limits, expiry, rings and dead letters were decided once,
by whoever wrote the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, get_args

from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import Binding, Exchange, make_exchange
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.queues.handout_marks import SetMarks
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, Replicate
from qpid_ha_broker.model.queues.sequence import ELSEWHERE, Entry
from qpid_ha_broker.model.replication import has_replicated_messages, is_local, is_local_binding
from qpid_ha_broker.model.sessions import SessionRegistry
from qpid_ha_broker.model.sets.annotating import apply_annotated
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD, Catalog
from qpid_ha_broker.model.transactions.producers import Producers

T = TypeVar("T", Queue, Exchange)


class ReplayError(Exception):
    """The log does not fit the state: an event names what is not there, or a unit is not whole."""


class SetState:
    """The promise: two states to which the same records were applied hold the same."""

    def __init__(
        self, log: Log, catalog: Catalog, *, level: Replicate = Replicate.MESSAGES, unreplicated: Log | None = None
    ) -> None:
        """`level`: of what is declared in `log`; none: the set is `local`. `unreplicated`: the log in which messages
        are whose queue alone is of this set; None: there are no such queues."""
        self._log = log
        self._unreplicated = log if unreplicated is None else unreplicated
        self._level = level
        self._is_local = level is Replicate.NONE
        self.catalog = catalog
        self.generations: list[tuple[int, ev.GenerationStarted]] = []
        """By the LSN with which each began."""
        self.in_sync = ev.InSyncChanged(0, ())
        self.producers = Producers()
        """How far those have come that number their messages."""
        self.sessions = SessionRegistry()
        """Those of clients; in `default` alone."""
        self.transients_lost_lsn = 0
        """The last LSN with which messages that are not durable were given up."""
        self.marks = SetMarks()
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
            ev.Dequeued: self._dequeued,
            ev.Acquired: self._acquired,
            ev.Released: self._released,
            ev.HandedOut: partial(_handed_out, self),
            ev.Annotated: partial(apply_annotated, catalog, self.marks),
            ev.SessionAcquired: self._session_acquired,
            ev.ProducerAdvanced: self._producer_advanced,
            ev.NumbersRefused: lambda _, event: self.producers.were_refused(event),
            **dict.fromkeys(get_args(ev.SessionEvent), self.sessions.apply),
            **dict.fromkeys(get_args(ev.MapEvent), self._map_changed),
        }

    @property
    def map(self) -> ClusterMap:
        """Of `default` alone; any other set says nothing about it."""
        return self.catalog.map

    def replace_map(self, other: ClusterMap) -> None:
        """Let the map be `other`, with what that means for names and bindings. Raises ValueError for a name in use."""
        for gone in self.map.queues_by_id.keys() - other.queues_by_id.keys():
            self.catalog.unbind_everywhere(gone)
        for name in other.queues.keys() - self.map.queues.keys():
            self._claim_name("queue", name)
        self.map.replace(other)

    def queues(self) -> list[Queue]:
        """Those that this set has declared, the oldest first."""
        return self._own(self.catalog.queues_by_id)

    def exchanges(self) -> list[Exchange]:
        """Those that this set has declared, the oldest first."""
        return self._own(self.catalog.exchanges_by_id)

    def _own(self, by_id: Mapping[int, T]) -> list[T]:
        return sorted([thing for thing in by_id.values() if is_local(thing) is self._is_local], key=attrgetter("id"))

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

    def enqueued(self, lsn: int, event: ev.Enqueued) -> list[tuple[Queue, Entry]]:
        """Apply Enqueued; returns what the message takes the place of (last-value queues)."""
        displaced = []
        header, body = self.catalog.headers.of(event), event.payload
        queues = [self.catalog.queues_by_id[queue_id] for queue_id in event.queues]
        for queue in queues:
            older = queue.messages.add(Entry(lsn, header, body))
            if older is not None:
                displaced.append((queue, older))
        if header.due_at_ms:
            for queue in queues:
                self.catalog.timed.note_scheduled(queue)
        self.catalog.memory_bytes += (len(body) + MESSAGE_OVERHEAD) * len(queues)
        return displaced

    def set_replication(self, queue: Queue, level: Replicate) -> None:
        """From now on its messages are written where `level` says; what it holds stays."""
        queue.replication = level
        queue.log = self._log if level is Replicate.MESSAGES else self._unreplicated

    def drop_open_unit(self) -> None:
        """The rest of it will not come."""
        self.open_unit = []

    def _claim_name(self, kind: str, name: str) -> None:
        """A replicated object takes its name from a local one: the cluster's word counts for more than one broker's."""
        catalog = self.catalog
        if name in self.map.queues:
            raise ValueError(f"cannot make {kind} {name}: a queue of set {self.map.queues[name].set} has that name")
        queue, exchange = catalog.queues.get(name), catalog.exchanges.get(name)
        for there in (queue, exchange):
            if there is not None and (self._is_local or not is_local(there)):
                raise ValueError(f"cannot make {kind} {name}: the name is taken")
        if queue is not None:
            catalog.forget_queue(queue)
        if exchange is not None:
            catalog.forget_exchange(exchange)

    def _queue_declared(self, lsn: int, event: ev.QueueDeclared) -> None:
        self._claim_name("queue", event.name)
        arguments = QueueArguments.parse(event.arguments)
        self.catalog.add_queue(Queue(lsn, event.name, arguments, self._log, self._level))

    def _queue_updated(self, lsn: int, event: ev.QueueUpdated) -> None:
        queue = self.catalog.queues_by_id[event.queue]
        queue.change_arguments(QueueArguments.parse(event.arguments))
        self.catalog.note_arguments(queue)

    def _queue_deleted(self, lsn: int, event: ev.QueueDeleted) -> None:
        self.catalog.forget_queue(self.catalog.queues_by_id[event.queue])

    def _queue_used(self, lsn: int, event: ev.QueueUsed) -> None:
        queue = self.catalog.queues_by_id[event.queue]
        queue.used, queue.owner = True, event.owner

    def _replication_changed(self, lsn: int, event: ev.ReplicationChanged) -> None:
        queue = self.catalog.queues_by_id[event.queue]
        self.catalog.emptied(queue)
        self.set_replication(queue, Replicate.MESSAGES if event.messages else Replicate.CONFIGURATION)

    def _generation_started(self, lsn: int, event: ev.GenerationStarted) -> None:
        self.generations.append((lsn, event))
        self.marks.forget()

    def _in_sync_changed(self, lsn: int, event: ev.InSyncChanged) -> None:
        self.in_sync = event

    def _transients_lost(self, lsn: int, event: ev.TransientsLost) -> None:
        self.transients_lost_lsn = lsn
        for queue in self.queues():
            if has_replicated_messages(queue):
                lost = [entry for entry in queue.messages if entry.id < event.before and not entry.header.durable]
                self.catalog.removed(queue, lost)

    def _exchange_declared(self, lsn: int, event: ev.ExchangeDeclared) -> None:
        self._claim_name("exchange", event.name)
        exchange = make_exchange(event.kind, lsn, event.name, event.arguments)
        exchange.replication = self._level
        self.catalog.add_exchange(exchange)

    def _exchange_deleted(self, lsn: int, event: ev.ExchangeDeleted) -> None:
        self.catalog.forget_exchange(self.catalog.exchanges_by_id[event.exchange])

    def _bound(self, lsn: int, event: ev.Bound) -> None:
        exchange, queue = self.catalog.exchanges_by_id[event.exchange], self.catalog.bindable(event.queue)
        there = exchange.binding(queue.id, event.key)
        # One that others get to know only now comes last for them, and so it does here.
        if there is not None and is_local_binding(exchange, queue, there.arguments) is not is_local_binding(
            exchange, queue, event.arguments
        ):
            exchange.unbind(queue.id, event.key)
        exchange.bind(Binding(queue.id, event.key, event.arguments))

    def _unbound(self, lsn: int, event: ev.Unbound) -> None:
        self.catalog.exchanges_by_id[event.exchange].unbind(event.queue, event.key)

    def _map_changed(self, lsn: int, event: ev.MapEvent) -> None:
        if isinstance(event, ev.QueuePlaced) and event.name not in self.map.queues:
            self._claim_name("queue", event.name)
        if isinstance(event, ev.QueueRemoved):
            self.catalog.unbind_everywhere(event.queue)
        self.map.apply(lsn, event)

    def _producer_advanced(self, lsn: int, event: ev.ProducerAdvanced) -> None:
        self.producers.advanced(lsn, event)

    def _dequeued(self, lsn: int, event: ev.Dequeued) -> None:
        queue = self.catalog.queues_by_id[event.queue]
        self.catalog.removed(queue, _find(queue, event.ids))

    def _acquired(self, lsn: int, event: ev.Acquired) -> None:
        queue = self.catalog.queues_by_id[event.queue]
        for entry in _find(queue, event.ids):
            queue.messages.hold(entry, ELSEWHERE)

    def _released(self, lsn: int, event: ev.Released) -> None:
        queue = self.catalog.queues_by_id[event.queue]
        self.catalog.released(queue, _find(queue, event.ids), event.failed)

    def _session_acquired(self, lsn: int, event: ev.SessionAcquired) -> None:
        queue = self.catalog.queues_by_id[event.queue]
        self.catalog.session_acquired(queue, _find(queue, event.ids), event)


def _handed_out(state: SetState, lsn: int, event: ev.HandedOut) -> None:
    state.marks.last_lsn = lsn
    if event.queue:
        state.catalog.queues_by_id[event.queue].mark.told(event.upto, lsn)
        return
    state.marks.floor = event.upto
    if event.upto == ev.EVERYTHING:
        for queue in state.queues():
            queue.mark.told(event.upto, lsn)


def _find(queue: Queue, ids: tuple[int, ...]) -> list[Entry]:
    entries = queue.messages.find_all(ids)
    if len(entries) != len(ids):
        raise LookupError(f"queue {queue.name} lacks some of the messages {ids[:5]}")
    return entries
