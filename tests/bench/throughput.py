"""How many messages a second: in, out, and both at once."""

from __future__ import annotations

import select
from collections.abc import Iterator

import proton

from bench.figures import Measurement
from bench.load_client import BenchError, LoadConnection, Publisher, Subscriber
from bench.scenario import Scenario, ask, fresh_broker
from bench.usage import Usage
from running_broker import RunningBroker

QUEUE = "bench"
WINDOW = 1000
"""Messages of a publisher that are not confirmed yet, and a consumer's credit."""
BURST = 125
"""Written at a time, so that client and broker work at the same time and do not take turns."""
SIZES = (100, 1024)


def message(body_bytes: int, *, durable: bool = False) -> bytes:
    """A message with a binary body, transient unless `durable`, encoded as Proton's client would."""
    return bytes(proton.Message(body=b"x" * body_bytes, durable=durable).encode())


def publish(publisher: Publisher, payload: bytes, count: int) -> None:
    """Have `count` messages accepted."""
    connection, sent, confirmed = publisher.connection, 0, 0
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    while confirmed < count:
        room = min(WINDOW - (sent - confirmed), count - sent, publisher.credit)
        burst = min(room, BURST)
        publisher.send(payload, burst)
        sent += burst
        connection.flush()
        if burst == room or readable.poll(0):
            connection.read()
            confirmed += publisher.confirmed()


def fill(port: int, count: int, size: int = 100, *, durable: bool = False) -> None:
    """Have that many messages accepted over a connection of one's own."""
    with LoadConnection(port) as connection:
        publish(Publisher(connection, QUEUE), message(size, durable=durable), count)


def consume(subscriber: Subscriber, count: int) -> None:
    """Have `count` messages accepted, and the broker have carried it out."""
    connection, received = subscriber.connection, 0
    subscriber.start()
    while received < count:
        connection.read()
        received += subscriber.take()
        connection.flush()
    subscriber.finish()


class Flow:
    """Messages on their way from a publisher to a subscriber."""

    def __init__(self, publisher: Publisher, subscriber: Subscriber, payload: bytes, count: int) -> None:
        self._publisher, self._subscriber = publisher, subscriber
        self._payload, self._count = payload, count
        self._sent = self._confirmed = self._received = 0
        self.readers = {
            publisher.connection.fileno(): self._read_outcomes,
            subscriber.connection.fileno(): self._read_messages,
        }
        """What to do when there is something to read, by descriptor."""
        subscriber.start()

    @property
    def is_over(self) -> bool:
        """All are confirmed, and have arrived."""
        return self._received >= self._count and self._confirmed >= self._count

    def push(self) -> bool:
        """Write a burst; whether that was all that may go now."""
        room = min(WINDOW - (self._sent - self._confirmed), self._count - self._sent, self._publisher.credit)
        burst = min(room, BURST)
        self._publisher.send(self._payload, burst)
        self._sent += burst
        self._publisher.connection.flush()
        return burst == room

    def finish(self) -> None:
        """Until the broker has carried out what the subscriber answered."""
        self._subscriber.finish()

    def _read_outcomes(self) -> None:
        self._publisher.connection.read()
        self._confirmed += self._publisher.confirmed()

    def _read_messages(self) -> None:
        self._subscriber.connection.read()
        self._received += self._subscriber.take()
        self._subscriber.connection.flush()


def publish_and_consume(*flows: Flow) -> None:
    """All at once, in one thread: the brokers have the other cores."""
    readers = {descriptor: read for flow in flows for descriptor, read in flow.readers.items()}
    readable = select.poll()
    for descriptor in readers:
        readable.register(descriptor, select.POLLIN)
    running = list(flows)
    while running:
        pushed = [flow.push() for flow in running]
        for descriptor, _ in readable.poll(None if all(pushed) else 0):
            readers[descriptor]()
        running = [flow for flow in running if not flow.is_over]
    for flow in flows:
        flow.finish()


def check_depth(broker: RunningBroker, expected: int, queue: str = QUEUE) -> None:
    """Raises BenchError when the queue holds another number of messages than the broker's answers made us believe."""
    found = ask(broker, "queues", action="read", name=queue)["messages"]
    if found != expected:
        raise BenchError(f"the queue holds {found} messages, and should hold {expected}")


def send_all(scenario: Scenario, port: int, usage: Usage, name: str, size: int, *, durable: bool = False) -> Usage:
    """Have all messages accepted over a connection of one's own; what that took."""
    with LoadConnection(port) as connection:
        publisher, payload = Publisher(connection, QUEUE), message(size, durable=durable)
        with scenario.profile(usage.profiled, name), usage:
            publish(publisher, payload, scenario.messages)
    return usage


def take_all(scenario: Scenario, port: int, usage: Usage, name: str) -> Usage:
    """Have all messages consumed over a connection of one's own; what that took."""
    with LoadConnection(port) as connection:
        subscriber = Subscriber(connection, QUEUE, WINDOW)
        with scenario.profile(usage.profiled, name), usage:
            consume(subscriber, scenario.messages)
    return usage


def measure_enqueue(scenario: Scenario) -> Iterator[Measurement]:
    """An empty queue, one publisher, nobody who consumes."""
    for size in SIZES:
        with fresh_broker() as broker:
            usage = send_all(scenario, broker.port, Usage(broker.pid), f"enqueue-{size}", size)
            check_depth(broker, scenario.messages)
        yield rate(f"enqueue_{size}", f"enqueue, {size} B", scenario.messages, usage)


def measure_dequeue(scenario: Scenario) -> Iterator[Measurement]:
    """A full queue, one consumer, nobody who publishes."""
    for size in SIZES:
        with fresh_broker() as broker:
            fill(broker.port, scenario.messages, size)
            usage = take_all(scenario, broker.port, Usage(broker.pid), f"dequeue-{size}")
            check_depth(broker, 0)
        yield rate(f"dequeue_{size}", f"dequeue, {size} B", scenario.messages, usage)


def measure_both(scenario: Scenario) -> Iterator[Measurement]:
    """One publisher and one consumer at once: messages that went all the way."""
    for size in SIZES:
        with fresh_broker() as broker, scenario.profile(broker.pid, f"both-{size}"):
            usage = send_and_take(broker, message(size), scenario.messages)
        yield rate(f"both_{size}", f"both at once, {size} B", scenario.messages, usage)


def send_and_take(broker: RunningBroker, payload: bytes, count: int) -> Usage:
    """Have messages published and consumed at once, over two connections; what that took."""
    with LoadConnection(broker.port) as outgoing, LoadConnection(broker.port) as incoming:
        publisher, subscriber = Publisher(outgoing, QUEUE), Subscriber(incoming, QUEUE, WINDOW)
        with Usage(broker.pid) as usage:
            publish_and_consume(Flow(publisher, subscriber, payload, count))
        check_depth(broker, 0)
    return usage


def rate(key: str, label: str, count: int, usage: Usage) -> Measurement:
    """Messages a second, with who was busy meanwhile."""
    return Measurement(key, label, count / usage.elapsed_s, "/s", usage.note_for(count))
