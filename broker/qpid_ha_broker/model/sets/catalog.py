"""The catalog of a broker, which its resource sets share: objects by name, the memory they take, and what is due next.

A name is that of one queue or one exchange, whichever set it belongs to, and an exchange of one set may lead to a queue
of another. Each set changes this by the events of its own log alone: see `state`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from qpid_ha_broker.cluster_map import ClusterMap, PlacedQueue
from qpid_ha_broker.events.types import SessionAcquired
from qpid_ha_broker.model.errors import NotFound, OtherSet
from qpid_ha_broker.model.exchanges.exchange import NOBODY, Binding, Exchange, Origin
from qpid_ha_broker.model.exchanges.notices import (
    DURABLE_SUBSCRIPTION,
    NOTICE_EXCHANGE,
    TEMPORARY_SUBSCRIPTION,
    is_for_notices,
)
from qpid_ha_broker.model.message_reader import MessageReader, NoReader
from qpid_ha_broker.model.queues.headers import MessageHeaders
from qpid_ha_broker.model.queues.paged import Body
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sessions import SessionHoldings
from qpid_ha_broker.model.sets.message_clock import MessageClock
from qpid_ha_broker.model.sets.timed_queues import TimedQueues, has_times
from qpid_ha_broker.model.work import WorkQueue

MESSAGE_OVERHEAD = 300
"""Bytes that a queued message takes besides its payload: docs/performance.md has the measurement."""


class Destinations(NamedTuple):
    """Where a message goes that came to an exchange."""

    queues: tuple[Queue, ...]
    placed: tuple[PlacedQueue, ...]
    """Queues of other sets."""


class Catalog:
    """The promise: an object is found by its name and by its id, or by neither, and `memory_bytes` counts what it has.

    An id is unique in a broker: those of the set `local` lie above all others.
    """

    def __init__(self) -> None:
        self.reader: MessageReader = NoReader()
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.queues_by_id: dict[int, Queue] = {}
        self.exchanges_by_id: dict[int, Exchange] = {}
        self.map = ClusterMap()
        """State of `default`: it has the names of the queues of other sets, to which exchanges may lead."""
        self.holdings = SessionHoldings()
        """What is held for sessions of clients."""
        self.headers = MessageHeaders()
        self.memory_bytes = 0
        """What the messages take, roughly: payloads but those on disk alone, and the overhead of each.

        A message in two queues counts twice.
        """
        self.created_by: Counter[str] = Counter()
        """How many queues were made for each user, of those that have the argument."""
        self.enqueued_gone = self.dequeued_gone = 0
        """Messages that came into queues that are deleted by now, and that had left those: for totals over all."""
        # Dictionaries, not sets: what is written in which order must follow from what was asked in which order.
        self.awake: dict[Queue, None] = {}
        """Queues that may have something for a consumer."""
        self.used_otherwise: dict[Queue, None] | None = None
        """Queues that have other consumers, or consumers with new credit, for who asks a group for them; None: nobody
        does."""
        self.timed = TimedQueues()
        """Queues that time will change."""
        self.bridged: dict[Queue, None] = {}
        """Queues that have a bridge, in the order of their declaration."""
        self.clock = MessageClock()
        """By which messages expire."""
        self.now_ms = 0
        """Its reading at the last command; 0: no time passes, for another broker writes."""
        self.deleted_queues: list[Queue] = []
        """Gone while somebody used them: for the driver to take, whose links have to be told."""
        self.displaced_queues: dict[Queue, None] = {}
        """Emptied while somebody read them, and what comes back may come behind the reader: for the driver to take."""
        self.garbage = WorkQueue()
        """The memory of what is no more: for the driver to go on with."""

    # --- objects

    def add_queue(self, queue: Queue) -> None:
        """Its name is free."""
        self.queues[queue.name] = self.queues_by_id[queue.id] = queue
        if queue.arguments.created_by:
            self.created_by[queue.arguments.created_by] += 1
        self.note_arguments(queue)

    def note_arguments(self, queue: Queue) -> None:
        """`queue` is new, or has other arguments."""
        if queue.arguments.bridge is not None:
            self.bridged[queue] = None
        else:
            self.bridged.pop(queue, None)
        queue.dispatcher.keep_groups(self.reader.group if queue.arguments.keeps_groups else None)

    def add_exchange(self, exchange: Exchange) -> None:
        """Its name is free."""
        exchange.reader = self.reader
        self.exchanges[exchange.name] = self.exchanges_by_id[exchange.id] = exchange

    def forget_queue(self, queue: Queue) -> None:
        """`queue` is no more, with its messages and bindings."""
        del self.queues_by_id[queue.id]
        del self.queues[queue.name]
        self.bridged.pop(queue, None)
        if queue.arguments.created_by:
            self.created_by[queue.arguments.created_by] -= 1
        if queue.held:
            self.holdings.drop_queue(queue)
        queue.mark_deleted()
        self.enqueued_gone += queue.messages.enqueued_total
        self.dequeued_gone += queue.messages.dequeued_total + queue.messages.count
        self.memory_bytes -= queue.messages.resident + MESSAGE_OVERHEAD * queue.messages.count
        self.unbind_everywhere(queue.id)
        self.deleted_queues.append(queue)
        if queue.messages.count:
            self.garbage.add(queue.messages.dismantle())

    def bindable(self, queue_id: int) -> Queue | PlacedQueue:
        """What a binding leads to that names this id. Raises KeyError."""
        queue = self.queues_by_id.get(queue_id)
        return self.map.queues_by_id[queue_id] if queue is None else queue

    def bindable_named(self, name: str) -> Queue | PlacedQueue:
        """The queue of that name, in whichever set. Raises NotFound."""
        queue = self.queues.get(name) or self.map.queues.get(name)
        if queue is None:
            raise NotFound(f"there is no queue {name}")
        return queue

    def unbind_everywhere(self, queue_id: int) -> None:
        """No binding leads to what had that id."""
        for exchange in self.exchanges.values():
            self.unbind_queue(exchange, queue_id)

    def unbind_queue(self, exchange: Exchange, queue_id: int) -> list[Binding]:
        """Remove and return the bindings of what is no queue, or under that id no longer one."""
        removed = exchange.unbind_queue(queue_id)
        if removed:
            self.garbage.add(exchange.unindex(removed))
        return removed

    def is_bound(self, queue: Queue) -> bool:
        """Whether an exchange may lead to `queue`."""
        return any(binding.queue == queue.id for exchange in self.exchanges.values() for binding in exchange.bindings())

    def forget_exchange(self, exchange: Exchange) -> None:
        """`exchange` is no more, with its bindings."""
        del self.exchanges_by_id[exchange.id]
        del self.exchanges[exchange.name]
        self.garbage.add(exchange.dismantle())

    def renumber_queue(self, queue: Queue, new_id: int) -> None:
        """`queue` counts as one that another event declared; what it holds stays."""
        self.queues_by_id[new_id] = self.queues_by_id.pop(queue.id)
        queue.change_id(new_id)

    def renumber_exchange(self, exchange: Exchange, new_id: int) -> None:
        """`exchange` counts as one that another event declared."""
        self.exchanges_by_id[new_id] = self.exchanges_by_id.pop(exchange.id)
        exchange.id = new_id

    # --- where messages go

    def alternate(self, name: str) -> Exchange | None:
        """The alternate exchange of that name; None: there is none, or it is the broker's own."""
        return None if is_for_notices(name) else self.exchanges.get(name)

    def takes_notices_alone(self, queue: Queue | PlacedQueue) -> bool:
        """Whether the queue is of a client that listens to the broker's notices: nothing else may come into it."""
        notices = self.exchanges.get(NOTICE_EXCHANGE)
        is_subscription = queue.name.startswith((TEMPORARY_SUBSCRIPTION, DURABLE_SUBSCRIPTION))
        return is_subscription and notices is not None and bool(notices.count_of(queue.id))

    def route(self, exchange: Exchange, key: str, payload: bytes, origin: Origin = NOBODY) -> tuple[Queue, ...]:
        """The queues for a message; those of the alternate exchange when the exchange itself has none.

        Raises NotFound for an exchange that was deleted after the caller had found it, and OtherSet for one that leads
        to queues of other sets, too: see `destinations`.
        """
        if exchange.id not in self.exchanges_by_id:
            raise NotFound(f"exchange {exchange.name} was deleted")
        queues = self._there(exchange.route_message(key, payload, origin))
        if not queues:
            alternate = self.alternate(str(exchange.arguments.get("qpid.alternate_exchange", "")))
            if alternate is not None:
                queues = self._there(alternate.route_message(key, payload, origin))
        return queues

    def _there(self, ids: tuple[int, ...]) -> tuple[Queue, ...]:
        """The queues of a route, without those that are gone and have not left all routes yet."""
        by_id = self.queues_by_id
        try:
            return tuple([by_id[queue_id] for queue_id in ids])
        except KeyError:
            placed = self._placed(ids)
            if placed:
                raise OtherSet(
                    f"the message would go to queue {placed[0].name} of resource set {placed[0].set}, too, and what was"
                    " asked stays within one set"
                ) from None
            return tuple([by_id[queue_id] for queue_id in ids if queue_id in by_id])

    def destinations(self, exchange: Exchange, key: str, payload: bytes, origin: Origin = NOBODY) -> Destinations:
        """As `route`, with the queues of other sets. Raises NotFound."""
        if exchange.id not in self.exchanges_by_id:
            raise NotFound(f"exchange {exchange.name} was deleted")
        routed = self._destinations(exchange.route_message(key, payload, origin))
        if not any(routed):
            alternate = self.alternate(str(exchange.arguments.get("qpid.alternate_exchange", "")))
            if alternate is not None:
                routed = self._destinations(alternate.route_message(key, payload, origin))
        return routed

    def _destinations(self, ids: tuple[int, ...]) -> Destinations:
        by_id = self.queues_by_id
        return Destinations(tuple([by_id[queue_id] for queue_id in ids if queue_id in by_id]), self._placed(ids))

    def _placed(self, ids: tuple[int, ...]) -> tuple[PlacedQueue, ...]:
        placed = self.map.queues_by_id
        return tuple([placed[queue_id] for queue_id in ids if queue_id in placed])

    # --- messages of a queue, and the memory that they take

    def removed(self, queue: Queue, entries: list[Entry]) -> None:
        """What applying Dequeued comes to once the messages are found."""
        if queue.held:
            self.holdings.drop(queue, [entry.id for entry in entries])
        messages = queue.messages
        before = messages.resident
        if messages.annotations:
            messages.annotations.forget([entry.id for entry in entries])
        messages.remove(entries)
        self.memory_bytes -= before - messages.resident + MESSAGE_OVERHEAD * len(entries)
        if queue.dispatcher.awaits_answers:
            self.awake[queue] = None

    def prepended(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """Take older messages into `queue`: see `QueuedMessages.prepend`."""
        messages = queue.messages
        before = messages.resident
        messages.prepend(entries)
        self.timed.note_scheduled(queue)
        self.memory_bytes += messages.resident - before + MESSAGE_OVERHEAD * len(entries)

    def replace_body(self, queue: Queue, entry: Entry, body: Body) -> None:
        """Let a message be paged out, or back: see `QueuedMessages.replace_body`."""
        messages = queue.messages
        before = messages.paged
        messages.replace_body(entry, body)
        self.memory_bytes -= messages.paged - before

    def released(self, queue: Queue, entries: Sequence[Entry], failed: bool) -> None:
        """What applying Released comes to once the messages are found."""
        if queue.held:
            self.holdings.drop(queue, [entry.id for entry in entries])
        messages = queue.messages
        for entry in entries:
            messages.give_back(entry, failed)
        if failed and self.now_ms and queue.arguments.redelivery.first_ms:
            for entry in entries:
                until_ms = self.now_ms + queue.arguments.redelivery.delay_ms(entry.delivery_count)
                messages.schedule.wait(entry, until_ms, messages.count)
            self.timed.note_scheduled(queue)

    def session_acquired(self, queue: Queue, entries: Sequence[Entry], event: SessionAcquired) -> None:
        """What applying SessionAcquired comes to once the messages are found."""
        link = self.holdings.acquire(queue, event)
        for entry in entries:
            queue.messages.hold(entry, link)

    def emptied(self, queue: Queue) -> list[Entry]:
        """Take all messages out of `queue`, as if they had not come: see `QueuedMessages.take_all`."""
        if queue.dispatcher.consumers:
            self.displaced_queues[queue] = None
        if queue.held:
            for entry in queue.messages.find_all(sorted(queue.held)):
                entry.holder = None
            self.holdings.drop_queue(queue)
        self.memory_bytes -= queue.messages.resident + MESSAGE_OVERHEAD * queue.messages.count
        return queue.messages.take_all()

    def wake_consumers(self) -> None:
        """Have all queues looked at that somebody consumes from."""
        self.awake |= {queue: None for queue in self.queues.values() if queue.dispatcher.consumers}

    def wake(self, queue: Queue) -> None:
        """A consumer of `queue` has new credit or room."""
        self.awake[queue] = None
        self.note_use(queue)

    def note_use(self, queue: Queue) -> None:
        """A consumer of `queue` has come, gone, or got credit."""
        if self.used_otherwise is not None:
            self.used_otherwise[queue] = None

    def note_arrival(self, queue: Queue) -> None:
        """A message came to `queue`, or went back there."""
        if queue.dispatcher.consumers:
            self.awake[queue] = None
        if queue.displaces or has_times(queue):
            self.timed[queue] = None
            self.timed.note_scheduled(queue)
