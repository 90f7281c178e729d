"""The bare core in a test's hands: a resource set with a clock that the test sets, and messages that can be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qpid_ha_broker.events.codec import Record, decode
from qpid_ha_broker.events.types import Event, Scalar
from qpid_ha_broker.model.configuration import Configuration
from qpid_ha_broker.model.exchanges import Exchange
from qpid_ha_broker.model.log import Log
from qpid_ha_broker.model.queue import Accepts, Consumer, Queue
from qpid_ha_broker.model.resource_set import ResourceSet
from qpid_ha_broker.model.sequence import Entry
from qpid_ha_broker.model.state import State
from qpid_ha_broker.model.transaction import Message, Publish, Transaction

NOW_MS = 1_700_000_000_000
WITNESS = "the test"
PLENTY = 1 << 40


def message(
    body: str, subject: str = "", *, priority: int = 4, ttl_ms: int = 0, durable: bool = False, **properties: str
) -> Message:
    """A message that `TextReader` can read: `subject;name=value,...;body`. `ttl_ms` counts from NOW_MS."""
    pairs = ",".join(f"{name}={value}" for name, value in properties.items())
    payload = f"{subject};{pairs};{body}".encode()
    return Message(payload, durable, priority, NOW_MS + ttl_ms if ttl_ms else 0)


class TextReader:
    """Reads what `message` wrote."""

    def routing_key(self, payload: bytes) -> str:
        return payload.decode().split(";")[0]

    def properties(self, payload: bytes) -> Mapping[str, object]:
        pairs = payload.decode().split(";")[1]
        return dict(pair.split("=", 1) for pair in pairs.split(",") if pair)


def body(payload: bytes) -> str:
    return payload.decode().split(";", 2)[2]


def bodies(entries: Iterable[Entry]) -> list[str]:
    """What the messages say, in order."""
    return [body(entry.content().payload) for entry in entries]


def wants(text: str) -> Accepts:
    """The selector of a consumer that takes only messages with `text` in their body."""
    return lambda event: text in body(event.payload)


def read_batch(log: Log) -> list[Record]:
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

    def __init__(self, *, log_acquisitions: bool = False, witness: bool = True) -> None:
        self.resources = ResourceSet("default", TextReader(), log_acquisitions=log_acquisitions)
        self.configuration = Configuration(self.resources)
        self.log = self.resources.log
        self.state = self.resources.state
        self.now_ms = NOW_MS
        self.records: list[Record] = []
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
        """Publish each of `messages`; returns the last LSN to wait for."""
        lsn = 0
        for each in messages:
            whole = message(each) if isinstance(each, str) else each
            if isinstance(target, Queue):
                lsn = self.resources.publish(target, whole, self.now_ms)
            else:
                key = TextReader().routing_key(whole.payload)
                lsn = self.resources.publish_to_exchange(target, whole, key, self.now_ms)
        return lsn

    # --- who takes

    def consumer(self, queue: Queue, *, browsing: bool = False, accepts: Accepts | None = None) -> Consumer:
        """A consumer with no credit yet, which also owns itself."""
        consumer = Consumer(browsing=browsing, accepts=accepts)
        self._inboxes[consumer] = []
        self.resources.subscribe(queue, consumer, consumer)
        return consumer

    def browser(self, queue: Queue) -> Consumer:
        return self.consumer(queue, browsing=True)

    def give_credit(self, queue: Queue, consumer: Consumer, credit: int = 1000, window_bytes: int = PLENTY) -> None:
        consumer.credit, consumer.window_bytes = credit, window_bytes
        self.resources.wake(queue)

    def hand_out(self, limit: int = 100) -> None:
        """Let messages go to whoever has credit; `inbox` says who got what."""
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

    def leave(self, queue: Queue, consumer: Consumer) -> None:
        self.resources.unsubscribe(queue, consumer, self.now_ms)

    def tick(self, after_ms: int = 0) -> list[Queue]:
        """Let `after_ms` pass, and then the resource set notice."""
        self.now_ms += after_ms
        return self.resources.tick(self.now_ms)

    # --- what the log tells

    def read(self) -> list[Event]:
        """The events that were written since the last call."""
        records = read_batch(self.log)
        self.records += records
        return [record.event for record in records]

    def replayed(self) -> State:
        """The state that follows from everything written so far."""
        self.read()
        state = State()
        for record in self.records:
            state.replay(record)
        return state

    def check(self) -> None:
        """What must hold at any time: counters, and that the log alone gives the same state."""
        for queue in self.state.queues.values():
            queue.check_invariants()
        assert picture(self.replayed()) == picture(self.state)


def qpid(arguments: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {f"qpid.{name}": value for name, value in arguments.items()}


def transaction_of(*publishes: tuple[Queue | Exchange, str | Message]) -> Transaction:
    """A transaction that has published these."""
    transaction = Transaction()
    for target, each in publishes:
        whole = message(each) if isinstance(each, str) else each
        transaction.publish(Publish(target, whole, TextReader().routing_key(whole.payload)))
    return transaction


def picture(state: State) -> dict[str, object]:
    """All that two states must agree on, in a form that shows the difference."""
    return {
        "queues": {name: _queue_picture(queue) for name, queue in state.queues.items()},
        "exchanges": {
            name: (exchange.id, exchange.kind, dict(exchange.arguments), exchange.bindings())
            for name, exchange in state.exchanges.items()
        },
        "ids": (sorted(state.queues_by_id), sorted(state.exchanges_by_id)),
        "memory": state.memory_bytes,
    }


def _queue_picture(queue: Queue) -> tuple[object, ...]:
    messages = [(entry.id, entry.content(), entry.delivery_count) for entry in queue.entries()]
    return queue.id, dict(queue.arguments.given), queue.count, queue.size, messages
