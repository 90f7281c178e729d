"""What groups of messages cost beside a plain queue, and levels of priority: a full queue, and a hundred consumers."""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping

import proton

from bench.figures import Measurement
from bench.load_client import LoadConnection, Publisher, Subscriber
from bench.scenario import Scenario, create_queues, fresh_broker
from bench.throughput import QUEUE, WINDOW, check_depth, rate
from bench.usage import Usage

GROUPS = 100_000
CONSUMERS = 100
CREDIT = 100
BODY_BYTES = 100
KINDS: Mapping[str, Mapping[str, object]] = {  # the plain one first: the others are compared with it
    "plain": {"qpid.message_groups": False},
    "groups": {},
    "priorities": {"qpid.message_groups": False, "qpid.priorities": 10},
}


def measure_message_groups(scenario: Scenario) -> Iterator[Measurement]:
    """The same messages, all of a group, into each kind of queue, and then out of it."""
    of_plain_s = 0.0
    for kind, arguments in KINDS.items():
        with fresh_broker() as broker:
            create_queues(broker.control_socket, [QUEUE], arguments=dict(arguments))
            with Usage(broker.pid) as filling:
                _fill(broker.port, scenario.messages)
            usage = _drain(broker.port, broker.pid, scenario.messages)
            check_depth(broker, 0)
        label = f"{kind}, {GROUPS} groups, {CONSUMERS} consumers"
        yield rate(f"message_groups_in_{kind}", f"in: {label}", scenario.messages, filling)
        yield rate(f"message_groups_out_{kind}", f"out: {label}", scenario.messages, usage)
        (spent_s,) = usage.brokers_s
        of_plain_s = of_plain_s or spent_s
        if kind != "plain":
            share, label = 100 * of_plain_s / spent_s, f"out: {kind}, of a plain queue, by processor time"
            yield Measurement(f"message_groups_share_{kind}", label, share, "%")


def _fill(port: int, count: int) -> None:
    """One after the other of the groups."""
    message = proton.Message(body=b"x" * BODY_BYTES, id="m", group_id="group-00000000")
    head, _, tail = bytes(message.encode()).partition(b"00000000")
    with LoadConnection(port) as connection:
        publisher, sent, confirmed = Publisher(connection, QUEUE), 0, 0
        while confirmed < count:
            room = min(WINDOW - (sent - confirmed), count - sent, publisher.credit)
            for number in range(sent, sent + room):
                publisher.send(head + b"%08d" % (number % GROUPS) + tail, 1)
            sent += room
            connection.flush()
            connection.read()
            confirmed += publisher.confirmed()


def _drain(port: int, pid: int, count: int) -> Usage:
    connections = [LoadConnection(port, 1 << 16) for _ in range(CONSUMERS)]
    subscribers = {each.fileno(): Subscriber(each, QUEUE, CREDIT) for each in connections}
    readable = select.poll()
    for descriptor in subscribers:
        readable.register(descriptor, select.POLLIN)
    received = 0
    with Usage(pid) as usage:
        for subscriber in subscribers.values():
            subscriber.start()
        while received < count:
            for descriptor, _ in readable.poll():
                subscriber = subscribers[descriptor]
                subscriber.connection.read()
                received += subscriber.take()
                subscriber.connection.flush()
        for subscriber in subscribers.values():
            subscriber.finish()
    for connection in connections:
        connection.__exit__(None, None, None)
    return usage
