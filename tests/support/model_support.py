"""The bare core in a test's hands: a resource set with a clock that the test sets, and messages that can be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from qpid_ha_broker.amqp.selectors.selector import parse_selector
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.types import Enqueued, Event, Scalar
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.exchanges.exchange import Binding, Exchange
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.message_reader import CompiledSelector, Death, GroupProperty, Lookup
from qpid_ha_broker.model.queues.dispatcher import Accepts, Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.queues.sequence import Entry, load_bodies
from qpid_ha_broker.model.replication import is_local_binding
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message, Publish, Transaction

AnyConsumer = TypeVar("AnyConsumer", bound=Consumer)
NOW_MS = 1_700_000_000_000
WITNESS = "the test"
PLENTY = 1 << 40


def message(
    body: str,
    subject: str = "",
    *,
    priority: int = 4,
    ttl_ms: int = 0,
    delay_ms: int = 0,
    durable: bool = False,
    **properties: str,
) -> Message:
    """As `TextReader` can read it: `subject;name=value,...;body`. `ttl_ms` and `delay_ms` count from NOW_MS."""
    pairs = ",".join(f"{name}={value}" for name, value in properties.items())
    payload = f"{subject};{pairs};{body}".encode()
    expires_at_ms, due_at_ms = (NOW_MS + after_ms if after_ms else 0 for after_ms in (ttl_ms, delay_ms))
    return Message(payload, durable, priority, expires_at_ms, due_at_ms=due_at_ms)


class TextReader:
    """Reads what `message` wrote."""

    def routing_key(self, payload: bytes) -> str:
        return payload.decode().split(";")[0]

    def properties(self, payload: bytes) -> Mapping[str, object]:
        pairs = payload.decode().split(";")[1]
        return dict(pair.split("=", 1) for pair in pairs.split(",") if pair)

    def lookup(self, payload: bytes) -> Lookup:
        return self.properties(payload).get

    def selector(self, text: str) -> CompiledSelector:
        return parse_selector(text)

    def is_tombstone(self, payload: bytes) -> bool:
        return "tombstone" in self.properties(payload)

    def has_group(self, payload: bytes) -> bool:
        return self.group(payload) is not None

    def group(self, payload: bytes) -> GroupProperty | None:
        """By the properties `group` and `last`."""
        if payload.count(b";") < 2 or b"group=" not in payload:
            return None
        properties = self.properties(payload)
        group = str(properties.get("group", ""))
        return GroupProperty(group.encode(), "last" in properties) if group else None

    def dead_letter(self, payload: bytes, death: Death) -> bytes:
        """With another property, `death`."""
        subject, pairs, text = payload.decode().split(";", 2)
        told = f"death={death.queue}/{death.reason}/{death.time_ms - NOW_MS}"
        return ";".join((subject, f"{pairs},{told}" if pairs else told, text)).encode()

    def died_in(self, payload: bytes) -> str:
        """As `dead_letter` has written it, the last time."""
        deaths = [pair for pair in payload.decode().split(";", 2)[1].split(",") if pair.startswith("death=")]
        return deaths[-1].removeprefix("death=").split("/")[0] if deaths else ""

    def annotated(self, payload: bytes, annotations: bytes) -> bytes:
        """With one property more, which they are."""
        subject, pairs, text = payload.decode().split(";", 2)
        told = annotations.decode()
        return ";".join((subject, f"{pairs},{told}" if pairs else told, text)).encode()


def body(payload: bytes) -> str:
    return payload.decode().split(";", 2)[2]


def bodies(entries: Iterable[Entry]) -> list[str]:
    """What the messages say, in order."""
    return [body(each) for each in load_bodies(list(entries))]


def event_of(entry: Entry) -> Enqueued:
    """The event that brought the message, wherever its body is."""
    return entry.enqueued(*load_bodies([entry]))


def wants(text: str) -> Accepts:
    """The selector of a consumer that takes only messages with `text` in their body."""
    return lambda encoded: text in body(encoded)


def read_batch(log: Log) -> list[LogRecord]:
    """What a witness reads from the next batch; empty when there is none."""
    batch = log.take_batch()
    if batch is None:
        return []
    decoded = decode(batch.data)
    assert decoded.problem is None
    assert (decoded.records[0].lsn, decoded.records[-1].lsn) == (batch.first_lsn, batch.last_lsn)
    return decoded.records


class Core:
    """A resource set, its configuration, and a witness that reads along and acknowledges nothing by itself."""

    def __init__(
        self, resources: Resources | None = None, *, log_acquisitions: bool = False, witness: bool = True
    ) -> None:
        self.resources = resources or Resources(TextReader(), log_acquisitions=log_acquisitions)
        self.configuration = Configuration(self.resources)
        self.log = self.resources.replicated.log
        self.sets, self.catalog = self.resources.sets, self.resources.catalog
        self.state = self.resources.replicated.state
        self.now_ms = NOW_MS
        self.records: list[LogRecord] = []
        self._inboxes: dict[Consumer, list[Entry]] = {}
        if witness:
            self.log.add_witness(WITNESS)

    # --- what is there

    def queue(self, name: str, **arguments: Scalar) -> Queue:
        return self.configuration.declare_queue(name, qpid(arguments))

    def exchange(self, name: str, kind: str = "fanout", *queues: Queue, **arguments: Scalar) -> Exchange:
        exchange = self.configuration.declare_exchange(name, kind, qpid(arguments))
        for queue in queues:
            self.configuration.bind(name, queue.name, "", {})
        return exchange

    def dead_letter_queue(self, **arguments: Scalar) -> Queue:
        """A queue behind the exchange `dlx`."""
        queue = self.queue("dead", **arguments)
        self.exchange("dlx", "fanout", queue)
        return queue

    def publish(self, target: Queue | Exchange, *messages: str | Message) -> int:
        """Publish each of `messages`; returns the LSN of the last."""
        lsn = 0
        for each in messages:
            whole = message(each) if isinstance(each, str) else each
            if isinstance(target, Queue):
                lsn = self.resources.publish(target, whole, self.now_ms).lsn
            else:
                key = TextReader().routing_key(whole.payload)
                lsn = self.resources.publish_to_exchange(target, whole, key, self.now_ms).lsn
        return lsn

    # --- who takes

    def consumer(
        self,
        queue: Queue,
        *,
        browsing: bool = False,
        accepts: Accepts | None = None,
        owner_name: str = "",
        after: int | None = None,
    ) -> Consumer:
        """A consumer with no credit yet, which also owns itself."""
        return self.add_consumer(queue, Consumer(browsing=browsing, accepts=accepts, after=after), owner_name)

    def add_consumer(
        self, queue: Queue, consumer: AnyConsumer, owner_name: str = "", owner: object | None = None
    ) -> AnyConsumer:
        """Subscribe one that the test has made. `owner`: whose it is, None: its own."""
        self._inboxes[consumer] = []
        self.resources.subscribe(queue, consumer, consumer if owner is None else owner, owner_name)
        return consumer

    def browser(self, queue: Queue) -> Consumer:
        return self.consumer(queue, browsing=True)

    def give_credit(self, queue: Queue, consumer: Consumer, credit: int = 1000, window_bytes: int = PLENTY) -> None:
        consumer.credit, consumer.window_bytes = credit, window_bytes
        self.resources.catalog.wake(queue)

    def commit(self) -> None:
        """All that was written."""
        if self.log.is_witnessed:
            self.log.acknowledge(WITNESS, self.log.last_lsn)

    def hand_out(self, limit: int = 100) -> None:
        """Let messages go to whoever has credit; `inbox` says who got what. For browsers all is committed first."""
        if any(consumer.browsing for consumer in self._inboxes):
            self.commit()
        while self.resources.has_work:
            for handout in self.resources.hand_out(self.now_ms, limit):
                self._inboxes[handout.consumer] += handout.entries

    def inbox(self, consumer: Consumer) -> list[Entry]:
        """What `consumer` got since the last call."""
        entries, self._inboxes[consumer] = self._inboxes[consumer], []
        return entries

    def take(self, queue: Queue, consumer: Consumer, credit: int = 1000) -> list[Entry]:
        """What `consumer` gets for `credit`; what it did not need is taken from it again."""
        self.give_credit(queue, consumer, credit)
        self.hand_out()
        consumer.credit = 0
        return self.inbox(consumer)

    def consume(self, queue: Queue, credit: int = 1000) -> list[str]:
        """What a passing consumer takes and accepts."""
        consumer = self.consumer(queue)
        entries = self.take(queue, consumer, credit)
        found = bodies(entries)
        if entries:
            self.resources.accept(queue, entries)
        self.leave(queue, consumer)
        return found

    def purge(self, queue: Queue) -> int:
        """How many messages a purge has dropped, from its first portion to its last."""
        purge = self.resources.purges.begin(queue)
        self.resources.work.run()
        assert purge.written is not None
        return purge.count

    def leave(self, queue: Queue, consumer: Consumer) -> None:
        self.resources.unsubscribe(queue, consumer, self.now_ms)

    def tick(self, after_ms: int = 0) -> list[Queue]:
        """Let `after_ms` pass, and then the resource set notice."""
        self.now_ms += after_ms
        return self.resources.timers.tick(self.now_ms)

    # --- what the log tells

    def read(self) -> list[Event]:
        """The events that were written since the last call."""
        records = read_batch(self.log)
        self.records += records
        return [record.event for record in records]

    def replayed(self) -> ResourceSets:
        """What follows from everything written so far."""
        return self.followed().sets

    def followed(self) -> Resources:
        """A backup that has followed everything written so far."""
        self.read()
        backup = Resources(TextReader())
        backup.replicated.follow(self.records)
        return backup

    def check(self) -> None:
        """What must hold at any time: counters, and that the log alone gives the same state."""
        for queue in self.catalog.queues.values():
            queue.messages.check_invariants()
        self.state.producers.check_invariants(self.log.last_lsn)
        self.state.sessions.check_invariants()
        self.catalog.holdings.check_invariants(self.catalog.queues.values())
        backup = self.followed()
        assert backup.replicated.log.last_lsn == self.log.last_lsn
        assert picture(backup.sets) == replicated_picture(self.sets)


def qpid(arguments: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {f"qpid.{name}": value for name, value in arguments.items()}


def transaction_of(*publishes: tuple[Queue | Exchange, str | Message]) -> Transaction:
    """A transaction that has published these."""
    transaction = Transaction()
    for target, each in publishes:
        whole = message(each) if isinstance(each, str) else each
        transaction.publish(Publish(target, whole, TextReader().routing_key(whole.payload)))
    return transaction


def picture(sets: ResourceSets) -> dict[str, object]:
    """All that two brokers must agree on, in a form that shows the difference."""
    catalog = sets.catalog
    return _picture(sets, list(catalog.queues.values()), list(catalog.exchanges.values()), catalog.memory_bytes)


def replicated_picture(sets: ResourceSets, *, any_restarted: bool = False) -> dict[str, object]:
    """What of a primary's state its backups must hold.

    `any_restarted`: some of them may have read it from their stores. A snapshot says of a message only the queues that
    still had it when it was made, so who has come back does not know to which others it came.
    """
    queues, exchanges = sets.replicated.state.queues(), sets.replicated.state.exchanges()
    held = [queue for queue in queues if queue.replication is Replicate.MESSAGES]
    memory = sum(queue.messages.resident + MESSAGE_OVERHEAD * queue.messages.count for queue in held)
    return _picture(sets, queues, exchanges, memory, any_restarted)


def _picture(
    sets: ResourceSets, queues: list[Queue], exchanges: list[Exchange], memory: int, any_restarted: bool = False
) -> dict[str, object]:
    catalog, state = sets.catalog, sets.replicated.state

    def shared(exchange: Exchange) -> list[Binding]:
        ends = [(binding, catalog.bindable(binding.queue)) for binding in exchange.bindings()]
        return [binding for binding, queue in ends if not is_local_binding(exchange, queue, binding.arguments)]

    return {
        "queues": {queue.name: _queue_picture(queue, any_restarted) for queue in queues},
        "exchanges": {each.name: (each.id, each.kind, dict(each.arguments), shared(each)) for each in exchanges},
        "ids": (
            sorted(queue.id for queue in queues if catalog.queues_by_id[queue.id] is queue),
            sorted(exchange.id for exchange in exchanges if catalog.exchanges_by_id[exchange.id] is exchange),
        ),
        "memory": memory,
        "generations": state.generations,
        "in sync": state.in_sync,
        "producers": state.producers.items(),
        "sessions": sorted(state.sessions.by_id.values()),
        "held": held_picture(sets),
        "map": list(state.map.events(0)),
    }


def held_picture(sets: ResourceSets) -> list[tuple[int, str, str, str, list[int]]]:
    """What is held for sessions, by link, of queues whose messages are replicated."""
    links = [link for link in sets.catalog.holdings if link.queue.replication is Replicate.MESSAGES]
    return sorted((link.session, link.name, link.link, link.queue.name, list(link.ids)) for link in links)


def _queue_picture(queue: Queue, any_restarted: bool) -> tuple[object, ...]:
    kept = queue.messages if queue.replication is Replicate.MESSAGES else ()
    messages = [(entry.id, event_of(entry), entry.delivery_count) for entry in kept]
    if any_restarted:
        messages = [(lsn, event._replace(queues=(queue.id,)), failures) for lsn, event, failures in messages]
    size = sum(len(event.payload) for _, event, _ in messages)
    facts = queue.id, dict(queue.arguments.given), queue.replication, queue.used, queue.owner
    return *facts, len(messages), size, messages, dict(queue.messages.annotations) if messages else {}
