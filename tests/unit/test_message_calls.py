"""How many functions are called for each message that comes, is handed out, and accepted: no machine matters to that.

Each is 50 to 100 ns of the few microseconds that a message costs a queue. Whoever makes it fewer lowers the figure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import proton
import pytest

from model_support import PLENTY, Core, TextReader
from paired_engines import PairedBroker
from qpid_ha_broker.amqp.wire import group_ids
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.message_reader import GroupProperty
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message

MESSAGES = 10_000
CONSUMERS, CREDIT = 100, 20
BURST = 500
KINDS: dict[str, tuple[dict[str, Scalar], float]] = {
    "plain": ({"message_groups": False}, 7.6),
    "groups": ({}, 9.4),
    "priorities": ({"message_groups": False, "priorities": 10}, 7.7),
}
"""By kind: the arguments of the queue, and how many calls a message may cost."""


class GroupsOfAmqp(TextReader):
    """Reads groups as the broker does."""

    def group(self, payload: bytes) -> GroupProperty | None:
        return group_ids.group_of(payload)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_costs_no_more_calls_than_it_did(kind: str) -> None:
    arguments, most = KINDS[kind]
    core = Core(Resources(GroupsOfAmqp()), witness=False)
    queue = core.queue("q", **arguments)
    head, _, tail = bytes(proton.Message(body=b"x", id="m", group_id="0000").encode()).partition(b"0000")
    for number in range(MESSAGES):
        payload = head + b"%04d" % (number % (MESSAGES // 2)) + tail
        core.resources.publish(queue, Message(payload), core.now_ms)
    consumers = [core.consumer(queue) for _ in range(CONSUMERS)]

    def all_of_it() -> None:
        for turn in range(MESSAGES):
            if not queue.messages.count:
                return
            for consumer in consumers[turn % 3 :: 3]:  # a third answers at a time
                core.resources.accept(queue, core.inbox(consumer))
                core.give_credit(queue, consumer, CREDIT, PLENTY)
            core.hand_out()

    assert calls_of(all_of_it) / MESSAGES <= most
    assert queue.messages.count == 0


@pytest.mark.parametrize(("is_of_jms", "in_most"), [(False, 2.1), (True, 4.2)])
def test_a_message_that_comes_and_goes_with_others_costs_next_to_no_calls_of_its_own(
    is_of_jms: bool, in_most: float
) -> None:
    """One publisher and one consumer, of what nearly all messages are: headers and properties as clients write them.

    Each of JMS has annotations, and says when it was made, behind where it would say when it expires.
    """
    broker = PairedBroker()
    client = broker.connect()
    sender = client.sender("q")
    messages = [proton.Message(f"body {number}", id=number, durable=number % 100 == 0) for number in range(BURST)]
    for message in messages if is_of_jms else ():
        message.annotations = {proton.symbol("x-opt-jms-msg-type"): proton.byte(5)}
        message.creation_time = 1_790_000_000
    deliveries = [client.send(sender, message) for message in messages]
    assert calls_of(broker.settle_down) / BURST <= in_most
    assert [delivery.remote_state for delivery in deliveries] == [proton.Delivery.ACCEPTED] * BURST
    receiver = client.receiver("q")
    receiver.flow(BURST)
    assert calls_of(broker.settle_down) / BURST <= 2.8
    received = client.received(receiver)
    assert [message.body for _, message in received] == [message.body for message in messages]
    for delivery, _ in received:
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
    assert calls_of(broker.settle_down) / BURST <= 0.6
    assert broker.queue("q").messages.count == 0


@pytest.mark.parametrize(("subscribers", "most"), [(1, 2.1), (3, 2.5)])
@pytest.mark.parametrize("address", ["amq.topic/news", "amq.topic"])
def test_a_message_to_a_topic_costs_no_more_calls_than_one_to_a_queue(
    address: str, subscribers: int, most: float
) -> None:
    """And next to none for each further subscriber. Where the link does not say which topic, its subject is looked for
    in each message."""
    broker = PairedBroker()
    client = broker.connect()
    receivers = [client.receiver("amq.topic/news") for _ in range(subscribers)]
    sender = client.sender(address)
    messages = [proton.Message(f"body {number}", id=number, subject="news") for number in range(BURST)]
    deliveries = [client.send(sender, message) for message in messages]
    per_subject = 5 if address == "amq.topic" else 0
    assert calls_of(broker.settle_down) / BURST <= most + per_subject
    assert [delivery.remote_state for delivery in deliveries] == [proton.Delivery.ACCEPTED] * BURST
    for receiver in receivers:
        receiver.flow(BURST)
    broker.settle_down()
    for receiver in receivers:
        assert [message.body for _, message in client.received(receiver)] == [message.body for message in messages]


def calls_of(act: Callable[[], None]) -> int:
    """How many functions of the broker `act` calls."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_globals["__name__"].startswith("qpid_ha_broker")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls
