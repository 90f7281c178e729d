"""What messages cost as common clients write them: beside a bare one, which has a header and a body alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import proton

from bench.figures import Measurement
from bench.load_client import LoadConnection, Publisher, Subscriber
from bench.scenario import Scenario, ask, create_queues, fresh_broker
from bench.throughput import QUEUE, WINDOW, check_depth, consume, publish, rate
from bench.usage import Usage

BODY = "x" * 100
_OF_JMS: Mapping[str, int] = {"x-opt-jms-msg-type": proton.byte(5), "x-opt-jms-dest": proton.byte(0)}


def _message(*, ttl_s: float = 0, of_jms: bool = False) -> bytes:
    message = proton.Message(
        BODY, id="ID:AMQP_NO_PREFIX:0123456789-1:1:1-1", address=QUEUE, creation_time=1_790_000_000, ttl=ttl_s
    )
    if of_jms:
        message.annotations = {proton.symbol(name): value for name, value in _OF_JMS.items()}
        message.properties = {"a": 1, "b": "two"}  # type: ignore[assignment]
    return bytes(message.encode())


KINDS: Mapping[str, bytes] = {
    "bare": bytes(proton.Message(BODY).encode()),
    "properties": _message(),
    "jms": _message(of_jms=True),
    "ttl": _message(ttl_s=3600, of_jms=True),
}


EXCHANGE = "amq.topic"
SUBJECT = "orders.new"
BINDINGS: Mapping[str, Sequence[str]] = {"one": (QUEUE,), "three": (QUEUE, "second", "third")}
"""Queues that an exchange brings each message to."""


def measure_client_messages(scenario: Scenario) -> Iterator[Measurement]:
    """Into a queue and out of it, of each kind: the broker's processor time is what to compare."""
    for kind, payload in KINDS.items():
        with fresh_broker() as broker:
            create_queues(broker.control_socket, [QUEUE])
            with LoadConnection(broker.port) as connection, Usage(broker.pid) as filling:
                publish(Publisher(connection, QUEUE), payload, scenario.messages)
            with LoadConnection(broker.port) as connection, Usage(broker.pid) as draining:
                consume(Subscriber(connection, QUEUE, WINDOW), scenario.messages)
            check_depth(broker, 0)
        label = f"{kind}, {len(payload)} B with all sections"
        yield rate(f"client_messages_in_{kind}", f"in: {label}", scenario.messages, filling)
        yield rate(f"client_messages_out_{kind}", f"out: {label}", scenario.messages, draining)
    yield from _measure_an_exchange(scenario)


def _measure_an_exchange(scenario: Scenario) -> Iterator[Measurement]:
    payload = bytes(proton.Message(BODY, subject=SUBJECT).encode())
    for name, queues in BINDINGS.items():
        with fresh_broker() as broker:
            create_queues(broker.control_socket, queues)
            for queue in queues:
                ask(broker, "exchanges", action="bind", name=EXCHANGE, queue=queue, key="orders.*")
            with LoadConnection(broker.port) as connection, Usage(broker.pid) as filling:
                publish(Publisher(connection, EXCHANGE), payload, scenario.messages)
            check_depth(broker, scenario.messages)
        label = f"in: through a topic exchange to {name}"
        yield rate(f"client_messages_in_exchange_{name}", label, scenario.messages, filling)
