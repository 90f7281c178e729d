"""What ten thousand consumers of one shared subscription cost beside one consumer of a plain queue."""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import proton
from cproton_ffi import ffi, lib

from bench.figures import Measurement
from bench.load_client import MESSAGE_BYTES_MAX, LoadConnection, Publisher
from bench.scenario import Scenario, fresh_broker
from bench.throughput import WINDOW, check_depth, fill, message, publish, rate, send_and_take, take_all
from bench.usage import Usage, Work, processor_s, resident_bytes

LINKS_OF_A_CONNECTION = 1000
TOPIC = "amq.topic/bench"
SETTINGS: Mapping[str, object] = {"idle-timeout": "1h"}
"""Subscribers say nothing while their queue is filled."""
KINDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "shared": (("shared",), "subscription:bench:many"),
    "global": (("shared", "global"), "subscription::many"),
}
"""Capabilities of the source, and the queue. Both are durable: the others have limits, which a full one would reach."""


def measure_shared_subscribers(scenario: Scenario) -> Iterator[Measurement]:
    """The same messages out of a plain queue, and out of that of each kind of subscription: a full one, and at once."""
    messages, count = scenario.messages, scenario.shared_subscribers
    with fresh_broker() as broker:
        fill(broker.port, messages)
        plain_out = take_all(scenario, broker.port, Usage(broker.pid), "shared-plain")
        plain_both = send_and_take(broker, message(100), messages)
    yield rate("shared_out_plain", "out: plain, 1 consumer", messages, plain_out)
    yield rate("shared_both_plain", "both at once: plain, 1 consumer", messages, plain_both)
    for kind, (capabilities, queue) in KINDS.items():
        label = f"{kind}, {count} subscribers"
        with fresh_broker(SETTINGS) as broker:
            before = resident_bytes(broker.pid)
            with Work(partial(processor_s, broker.pid)) as attaching:
                subscribers = _attached(broker.port, count, capabilities)
            each = (resident_bytes(broker.pid) - before) / count
            note = f"{attaching.processor_s / count * 1e6:.0f} µs of the broker's processor for each"
            yield Measurement(f"shared_attach_{kind}", f"{label}: all attached", attaching.elapsed_s, "s", note)
            yield Measurement(f"shared_memory_{kind}", f"{label}: memory for each", each, "B")
            with LoadConnection(broker.port) as connection:
                publisher, payload = Publisher(connection, TOPIC), message(100)
                publish(publisher, payload, messages)
                with scenario.profile(broker.pid, f"shared-{kind}-out"), Usage(broker.pid) as out:
                    _start(subscribers)
                    _take(subscribers, messages)
                with scenario.profile(broker.pid, f"shared-{kind}-both"), Usage(broker.pid) as both:
                    _publish_and_take(publisher, payload, subscribers, messages)
                    _finish(subscribers)
            check_depth(broker, 0, queue)
            for subscriber in subscribers:
                subscriber.connection.close()
        yield rate(f"shared_out_{kind}", f"out: {label}", messages, out)
        yield rate(f"shared_both_{kind}", f"both at once: {label}", messages, both)
        for way, usage, plain in (("out", out, plain_out), ("both", both, plain_both)):
            share = 100 * plain.brokers_s[0] / usage.brokers_s[0]
            text = f"{way}: {label}, of plain, by processor time"
            yield Measurement(f"shared_{way}_share_{kind}", text, share, "%")


class _ManySubscribers:
    """Consumers on one connection, each with a credit of `WINDOW`; a message is accepted at once."""

    def __init__(self, connection: LoadConnection, names: Sequence[str], capabilities: Sequence[str]) -> None:
        self.connection = connection
        self._buffer = ffi.new("char[]", MESSAGE_BYTES_MAX)
        self._links = [self._attach(name, capabilities) for name in names]
        self._used = dict.fromkeys((int(ffi.cast("uintptr_t", link._impl)) for link in self._links), 0)
        active = proton.Endpoint.REMOTE_ACTIVE
        connection.wait_for(lambda: all(link.state & active for link in reversed(self._links)))

    def _attach(self, name: str, capabilities: Sequence[str]) -> Any:
        link: Any = self.connection.session.receiver(name)
        link.source.address = TOPIC
        link.source.durability, link.source.expiry_policy = proton.Terminus.DELIVERIES, proton.Terminus.EXPIRE_NEVER
        link.source.capabilities.put_object([proton.symbol(each) for each in capabilities])
        link.open()
        return link

    def start(self) -> None:
        """From now on messages come."""
        for link in self._links:
            link.flow(WINDOW)
        self.connection.flush()

    def take(self) -> int:
        """How many came. The caller flushes the answers."""
        collector, count = self.connection.collector, 0
        while event := lib.pn_collector_peek(collector):
            kind = lib.pn_event_type(event)
            if kind == lib.PN_DELIVERY:
                delivery = lib.pn_event_delivery(event)
                if not lib.pn_delivery_partial(delivery):
                    link = lib.pn_delivery_link(delivery)
                    lib.pn_link_recv(link, self._buffer, MESSAGE_BYTES_MAX)
                    lib.pn_link_advance(link)
                    lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
                    lib.pn_delivery_settle(delivery)
                    self._replenish(link)
                    count += 1
            else:
                self.connection.check(kind)
            lib.pn_collector_pop(collector)
        return count

    def _replenish(self, link: Any) -> None:
        place = int(ffi.cast("uintptr_t", link))
        self._used[place] += 1
        if self._used[place] * 4 >= WINDOW:
            lib.pn_link_flow(link, self._used[place])
            self._used[place] = 0

    def finish(self) -> None:
        """Until the broker has carried out all that was answered: it answers the end of a link behind that."""
        link = self._links[-1]
        link.close()
        self.connection.flush()
        while not link.state & proton.Endpoint.REMOTE_CLOSED:
            self.connection.read()


def _attached(port: int, count: int, capabilities: Sequence[str]) -> list[_ManySubscribers]:
    names = [f"many|{number}" for number in range(count)]
    parts = [names[at : at + LINKS_OF_A_CONNECTION] for at in range(0, count, LINKS_OF_A_CONNECTION)]
    return [_ManySubscribers(LoadConnection(port), part, capabilities) for part in parts]


def _start(subscribers: Sequence[_ManySubscribers]) -> None:
    for each in subscribers:
        each.start()


def _take(subscribers: Sequence[_ManySubscribers], count: int, timeout_ms: int | None = None) -> int:
    """Until `count` messages have come, or nothing is there for that long: how many came."""
    by_descriptor, readable, received = {each.connection.fileno(): each for each in subscribers}, select.poll(), 0
    for descriptor in by_descriptor:
        readable.register(descriptor, select.POLLIN)
    while received < count:
        ready = readable.poll(timeout_ms)
        if not ready:
            break
        for descriptor, _ in ready:
            each = by_descriptor[descriptor]
            each.connection.read()
            received += each.take()
            each.connection.flush()
    return received


def _publish_and_take(
    publisher: Publisher, payload: bytes, subscribers: Sequence[_ManySubscribers], count: int
) -> None:
    sent = confirmed = received = 0
    while confirmed < count or received < count:
        room = min(WINDOW - (sent - confirmed), count - sent, publisher.credit)
        publisher.send(payload, room)
        sent += room
        publisher.connection.flush()
        if confirmed < sent:
            publisher.connection.read()
            confirmed += publisher.confirmed()
        received += _take(subscribers, count - received, 0 if confirmed < count else None)


def _finish(subscribers: Sequence[_ManySubscribers]) -> None:
    for each in subscribers:
        each.finish()
