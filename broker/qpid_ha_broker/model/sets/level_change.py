"""Moving what exists from one replication level to another, while its publishers and consumers go on.

Messages stay in their queue, also those that consumers hold; the log in which they are written is another one, and so
are their ids. A queue that comes into the replicated log is written there from the start, in one unit, so backups have
all of it or none; a queue that leaves it is deleted there and goes on here.

The local log does not say that something leaves it: the declaration in the other log takes the name, as each does that
finds a local object there (`SetState`). So if the broker ends in between, or if the next primary lacks that
declaration, the object is still what it was.

It is done in one step. In portions a part of a queue would be in either log meanwhile, and the order of its messages is
that of their ids, which is that of one log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.model.exchanges.exchange import Binding, Exchange
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.queues.sequence import Entry, load_bodies
from qpid_ha_broker.model.replication import is_local, is_local_binding
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD, Catalog
from qpid_ha_broker.model.sets.resource_set import ResourceSets

COPIED_BYTES_MAX = 64 * 1024 * 1024
"""Of messages that one unit brings into the replicated log: it is written, sent and confirmed in one piece."""
IDS_LENGTH = 65_536
MOVED_MOST = 2000
"""Messages and bindings of a queue of which a client may change the level: some 20 ms of work at most."""


class _Copies(NamedTuple):
    """A queue's messages, to be told again: events for a log, and which message gets the LSN of which of them."""

    entries: list[Entry]
    enqueued: list[ev.Enqueued]
    history: list[ev.Event]


class LevelChange:
    """The promise: who follows the replicated log holds, before and after, what its level says of every object."""

    def __init__(self, sets: ResourceSets, *, log_acquisitions: bool) -> None:
        self._sets = sets
        self._catalog = sets.catalog
        self._state = sets.replicated.state
        self._replicated = sets.replicated
        self._log = sets.replicated.log
        self._log_acquisitions = log_acquisitions

    def obstacle(self, queue: Queue, level: Replicate, most: int | None = None) -> str:
        """Why `queue` cannot have `level` now; empty: it can. `most`: messages and bindings that may be moved."""
        if queue.replication is level:
            return ""
        if queue.held:
            return (
                f"queue {queue.name} stays at {queue.replication}: {len(queue.held)} of its messages are held for"
                " sessions of clients, which know them by their ids; end those (`qpid-ha session end`), and try again"
            )
        bindings = sum(exchange.count_of(queue.id) for exchange in self._catalog.exchanges.values())
        count = queue.messages.count
        if most is not None and count + bindings > most:
            return (
                f"queue {queue.name} stays at {queue.replication}: it has {counted(count, 'message')} and"
                f" {counted(bindings, 'binding')}, and nobody is served while more than {most} of them get another"
                " level; drain it and set this again, or let an operator set it, through the control socket"
            )
        size = queue.messages.size + queue.messages.annotations.size + MESSAGE_OVERHEAD * count
        if level is not Replicate.MESSAGES or size <= COPIED_BYTES_MAX:
            return ""
        take = counted(count, "message takes", "messages take")
        return (
            f"queue {queue.name} stays at {queue.replication}: {take} {size} bytes, and at most"
            f" {COPIED_BYTES_MAX} can be replicated at once; drain it and set this again"
        )

    def move_queue(self, queue: Queue, level: Replicate) -> None:
        """Give `queue` another level, where there is no obstacle."""
        self._sets.local_log.join()
        if level is Replicate.NONE:
            self._to_local(queue)
        elif is_local(queue):
            self._to_replicated(queue, level)
        elif level is Replicate.CONFIGURATION:
            changed = ev.ReplicationChanged(queue.id, False)
            self._replicated.submit((changed,), lambda lsns: self._state.set_replication(queue, level))
            self._copy_messages_to_local(queue)
        else:
            copies = self._copies(queue, self._log, self._log.last_lsn + 2)

            def count(lsns: Sequence[int]) -> None:
                self._state.set_replication(queue, level)
                self._came_into_the_log(queue, copies, lsns[1:])

            events = [ev.ReplicationChanged(queue.id, True), *copies.enqueued, *copies.history]
            self._replicated.submit(events, count)

    def move_exchange(self, exchange: Exchange, *, local: bool) -> None:
        """Take `exchange` into this broker's own log, or out of it, with those bindings that may be with it."""
        self._sets.local_log.join()
        declared = ev.ExchangeDeclared(exchange.name, exchange.kind.value, exchange.arguments)
        if local:
            self._replicated.submit((ev.ExchangeDeleted(exchange.id),), goes_on)
            self._sets.local.submit((declared,), partial(self._renumber_exchange, exchange))
            exchange.replication = Replicate.NONE
            for binding in exchange.bindings():
                bound = ev.Bound(exchange.id, binding.queue, binding.key, binding.arguments)
                self._sets.local.submit((bound,), goes_on)
            return
        self._catalog.renumber_exchange(exchange, self._log.last_lsn + 1)
        exchange.replication = Replicate.MESSAGES
        shared: list[ev.Event] = []
        private: list[Binding] = []
        for binding in exchange.bindings():
            if is_local_binding(exchange, self._catalog.bindable(binding.queue), binding.arguments):
                private.append(binding)
            else:
                shared.append(ev.Bound(exchange.id, binding.queue, binding.key, binding.arguments))
        self._replicated.submit((declared, *shared), goes_on)
        for binding in private:  # after the declaration that they name, here as in the log
            exchange.unbind(binding.queue, binding.key)
            bound = ev.Bound(exchange.id, binding.queue, binding.key, binding.arguments)
            self._sets.local.submit((bound,))

    def _renumber_exchange(self, exchange: Exchange, lsns: Sequence[int]) -> None:
        self._catalog.renumber_exchange(exchange, lsns[0])

    def _to_local(self, queue: Queue) -> None:
        local = self._sets.local
        self._replicated.submit((ev.QueueDeleted(queue.id),), goes_on)
        bindings = self._unbind(queue)
        declared = ev.QueueDeclared(queue.name, queue.arguments.given)
        local.submit((declared,), lambda lsns: self._catalog.renumber_queue(queue, lsns[0]))
        self._state.set_replication(queue, Replicate.NONE)
        if queue.used:
            local.submit((ev.QueueUsed(queue.id, queue.owner),))
        for exchange, binding in bindings:
            local.submit((_rebound(exchange, binding, queue),))
        self._copy_messages_to_local(queue)

    def _copy_messages_to_local(self, queue: Queue) -> None:
        """Tell a store of the messages again, in the log that is now theirs; nobody else reads that one.

        One by one: the level of a queue may change whatever it holds, and nobody was promised that all of it moves at
        once.
        """
        local = self._sets.local
        if not local.log.is_witnessed:
            return
        copies = self._copies(queue, local.log, local.log.last_lsn + 1)
        lsns = [local.submit((event,), goes_on).lsn for event in (*copies.enqueued, *copies.history)]
        _renumber(self._catalog, queue, copies, lsns)

    def _to_replicated(self, queue: Queue, level: Replicate) -> None:
        bindings = self._unbind(queue)
        self._catalog.renumber_queue(queue, self._log.last_lsn + 1)
        self._state.set_replication(queue, level)
        events: list[ev.Event] = [ev.QueueDeclared(queue.name, queue.arguments.given)]
        if level is Replicate.CONFIGURATION:
            events.append(ev.ReplicationChanged(queue.id, False))
        if queue.used:
            events.append(ev.QueueUsed(queue.id, queue.owner))
        local_bindings = [binding for binding in bindings if is_local_binding(binding[0], queue, binding[1].arguments)]
        rebound = [_rebound(*binding, queue) for binding in bindings if binding not in local_bindings]
        events += rebound
        copies = _Copies([], [], [])
        if level is not Replicate.CONFIGURATION:
            copies = self._copies(queue, self._log, self._log.last_lsn + 1 + len(events))

        def count(lsns: Sequence[int]) -> None:
            for lsn, bound in zip(lsns[len(events) - len(rebound) :], rebound, strict=False):
                self._state.apply(lsn, bound)
            if level is not Replicate.CONFIGURATION:
                self._came_into_the_log(queue, copies, lsns[len(events) :])

        self._replicated.submit([*events, *copies.enqueued, *copies.history], count)
        for binding in local_bindings:  # after the declaration that they name
            self._sets.local.submit((_rebound(*binding, queue),))
        if level is Replicate.CONFIGURATION:
            self._copy_messages_to_local(queue)

    def _came_into_the_log(self, queue: Queue, copies: _Copies, lsns: Sequence[int]) -> None:
        """The messages of `queue` are those of `copies`, which are in the replicated log, in one unit with a mark."""
        _renumber(self._catalog, queue, copies, lsns)
        if queue.messages.annotations:
            self._state.marks.annotated_lsn = self._log.last_lsn
        queue.mark.highest = max(queue.mark.highest, queue.redelivered_below)
        queue.mark.told(queue.mark.highest, lsns[-1] if lsns else self._log.last_lsn)
        queue.mark.settled = queue.mark.upto  # who leads next without the mark has not got the messages

    def _unbind(self, queue: Queue) -> list[tuple[Exchange, Binding]]:
        return [
            (exchange, binding)
            for exchange in self._catalog.exchanges.values()
            for binding in self._catalog.unbind_queue(exchange, queue.id)
        ]

    def _copies(self, queue: Queue, log: Log, first_lsn: int) -> _Copies:
        """What to write so that a reader of `log` holds the messages of `queue`, the first under `first_lsn`."""
        entries = sorted(queue.messages, key=attrgetter("id"))
        bodies = load_bodies(entries)
        enqueued = [
            entry.enqueued(body)._replace(queues=(queue.id,)) for entry, body in zip(entries, bodies, strict=True)
        ]
        lsns = {entry: lsn for lsn, entry in enumerate(entries, start=first_lsn)}
        history: list[ev.Event] = []
        for failures in range(1, max((entry.delivery_count for entry in entries), default=0) + 1):
            ids = [lsn for entry, lsn in lsns.items() if entry.delivery_count >= failures]
            history += [ev.Released(queue.id, part, True) for part in _parts(ids)]
        if queue.messages.annotations and (log is not self._log or self._state.marks.tells_annotations):
            said = queue.messages.annotations
            history += [
                ev.Annotated(queue.id, (lsn,), said[entry.id]) for entry, lsn in lsns.items() if entry.id in said
            ]
        if self._log_acquisitions:
            ids = [lsn for entry, lsn in lsns.items() if not entry.is_free]
            history += [ev.Acquired(queue.id, part) for part in _parts(ids)]
        if self._state.marks.is_told and log is self._log:
            highest = max(queue.mark.highest, queue.redelivered_below)
            marked = max((lsn for entry, lsn in lsns.items() if entry.id <= highest), default=0)
            history.append(ev.HandedOut(queue.id, marked))
        return _Copies(entries, enqueued, history)


def goes_on(lsns: Sequence[int]) -> None:
    """What was written is about what goes on here as it is."""


def _rebound(exchange: Exchange, binding: Binding, queue: Queue) -> ev.Bound:
    return ev.Bound(exchange.id, queue.id, binding.key, binding.arguments)


def _renumber(catalog: Catalog, queue: Queue, copies: _Copies, lsns: Sequence[int]) -> None:
    """Let the messages of `queue` be those of `copies`. `lsns`: of the events, the messages' first."""
    new_ids = {entry.id: lsn for entry, lsn in zip(copies.entries, lsns, strict=False)}
    for entry, event in zip(copies.entries, copies.enqueued, strict=True):
        entry.header = catalog.headers.of(event)
        catalog.replace_body(queue, entry, event.payload)
    queue.renumber(new_ids)


def _parts(ids: list[int]) -> list[tuple[int, ...]]:
    return [tuple(ids[at : at + IDS_LENGTH]) for at in range(0, len(ids), IDS_LENGTH)]
