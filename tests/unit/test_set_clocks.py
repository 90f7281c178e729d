"""One broker, several resource sets, each with a clock of its own: a message lives as long as it was given, in each."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from proton import Delivery

from model_support import NOW_MS, Core, TextReader, message
from paired_engines import PairedClient
from paired_transactions import PairedCoordinator, publish_message
from qpid_ha_broker.amqp.connections.container import TurnTime
from qpid_ha_broker.ha.forward_frames import ForwardBegin, ForwardFrame, ForwardMessage
from qpid_ha_broker.ha.forwarding import ForwardReceiver
from qpid_ha_broker.model.sets.message_clock import MessageClock
from qpid_ha_broker.model.sets.resources import Resources
from several_sets import SeveralSets, fan_out

DAY_MS = 86_400_000
QUEUES = {"plain": "default", "red": "red", "blue": "blue"}
"""And the set of each."""


@pytest.fixture
def broker() -> SeveralSets:
    broker = SeveralSets()
    broker.container.now_ms = NOW_MS
    for name, ahead_ms in (("default", 2 * DAY_MS), ("red", -DAY_MS), ("blue", DAY_MS)):
        broker.set(name).resources.catalog.clock.go_on(NOW_MS + ahead_ms, NOW_MS)
    return broker


def counts(broker: SeveralSets) -> list[int]:
    return [broker.set(name).resources.catalog.queues[queue].messages.count for queue, name in QUEUES.items()]


def pass_ms(broker: SeveralSets, passed_ms: int) -> None:
    broker.container.now_ms += passed_ms
    broker.container.tick()
    broker.settle_down()


def check_lives_for_five_seconds(broker: SeveralSets, expected: list[int]) -> None:
    assert counts(broker) == expected
    pass_ms(broker, 4999)
    assert counts(broker) == expected
    pass_ms(broker, 1)
    assert counts(broker) == [0, 0, 0]


def short_lived(**properties: Any) -> proton.Message:
    return proton.Message(body="x", ttl=5.0, **properties)


@pytest.mark.parametrize(("queue", "expected"), [("plain", [1, 0, 0]), ("red", [0, 1, 0]), ("blue", [0, 0, 1])])
def test_a_message_for_a_queue_lives_as_long_as_it_was_given(
    broker: SeveralSets, client: PairedClient, queue: str, expected: list[int]
) -> None:
    client.send(client.sender(queue), short_lived())
    broker.settle_down()
    check_lives_for_five_seconds(broker, expected)


def test_so_does_one_for_an_anonymous_relay_wherever_its_queue_is(broker: SeveralSets, client: PairedClient) -> None:
    relay = client.sender(None)
    for queue in QUEUES:
        client.send(relay, short_lived(address=queue))
    broker.settle_down()
    check_lives_for_five_seconds(broker, [1, 1, 1])


def test_so_does_one_that_an_exchange_brings_to_queues_of_several_sets(
    broker: SeveralSets, client: PairedClient
) -> None:
    fan_out(broker)
    client.send(client.sender("fan"), short_lived())
    broker.settle_down()
    check_lives_for_five_seconds(broker, [1, 1, 1])


@pytest.mark.parametrize(("queue", "expected"), [("plain", [1, 0, 0]), ("red", [0, 1, 0])])
def test_so_does_one_that_is_sent_in_a_transaction_through_an_anonymous_relay(
    broker: SeveralSets, client: PairedClient, queue: str, expected: list[int]
) -> None:
    coordinator = PairedCoordinator(client)
    transaction = coordinator.declare()
    publish_message(client, client.sender(None), transaction, short_lived(address=queue))
    broker.settle_down()
    assert coordinator.discharge(transaction).remote_state == Delivery.ACCEPTED
    check_lives_for_five_seconds(broker, expected)


@pytest.mark.parametrize(("queue", "expected"), [("plain", [1, 0, 0]), ("red", [0, 1, 0]), ("blue", [0, 0, 1])])
def test_a_queue_that_limits_how_long_messages_live_counts_by_its_set_too(
    broker: SeveralSets, client: PairedClient, queue: str, expected: list[int]
) -> None:
    broker.set(QUEUES[queue]).configuration.update_queue(queue, {"qpid.message_ttl_ms": 5000})
    client.publish(queue, "x")
    check_lives_for_five_seconds(broker, expected)


def test_a_consumer_is_not_handed_what_has_expired_and_is_what_has_not(
    broker: SeveralSets, client: PairedClient
) -> None:
    client.send(client.sender("red"), short_lived())
    broker.settle_down()
    broker.container.now_ms += 4999
    receiver = client.receiver("red", 1)
    assert len(client.received(receiver)) == 1


@pytest.mark.parametrize(("queue", "name"), QUEUES.items())
def test_a_queue_deletes_itself_when_nobody_has_used_it_for_as_long_as_it_says(
    broker: SeveralSets, client: PairedClient, queue: str, name: str
) -> None:
    configuration = broker.set(name).configuration
    configuration.update_queue(queue, {"qpid.auto_delete": True, "qpid.auto_delete_delay_s": 5})
    receiver = client.receiver(queue, 1)
    receiver.close()
    broker.settle_down()
    pass_ms(broker, 4999)
    assert queue in broker.set(name).resources.catalog.queues
    pass_ms(broker, 1)
    assert queue not in broker.set(name).resources.catalog.queues


def test_what_another_broker_hands_on_lives_as_long_as_it_was_given_by_the_clock_of_the_exchanges() -> None:
    core, exchanges = Core(Resources(TextReader(), "red")), MessageClock()
    queue = core.queue("q")
    core.resources.catalog.clock.go_on(NOW_MS - DAY_MS, NOW_MS)
    exchanges.go_on(NOW_MS + DAY_MS, NOW_MS)
    receiver = ForwardReceiver(core.resources, exchanges, lambda: None)
    whole = message("m")
    frames: list[ForwardFrame] = [
        ForwardBegin(b"p"),
        ForwardMessage(1, ("q",), True, 4, NOW_MS + DAY_MS + 5000, b"", 0, whole.payload),
        ForwardMessage(2, ("q",), True, 4, 0, b"", 0, whole.payload),
    ]
    for frame in frames:
        assert receiver.received(frame, NOW_MS - DAY_MS) == []
    assert receiver.write(NOW_MS - DAY_MS) == []
    assert [entry.header.expires_at_ms for entry in queue.messages] == [NOW_MS - DAY_MS + 5000, 0]


@pytest.mark.parametrize("annotation", ["x-opt-delivery-time", "x-opt-delivery-delay"])
@pytest.mark.parametrize(("queue", "name"), QUEUES.items())
def test_a_message_is_due_by_the_time_of_day_which_is_what_its_sender_means(
    broker: SeveralSets, client: PairedClient, queue: str, name: str, annotation: str
) -> None:
    steady = broker.container.steady
    assert isinstance(steady, TurnTime)
    steady.wall_ahead_ms = 3 * DAY_MS
    due = proton.timestamp(NOW_MS + 3 * DAY_MS + 5000) if annotation == "x-opt-delivery-time" else 5000
    receiver = client.receiver(queue, 10)
    client.send_all(client.sender(queue), proton.Message("later", annotations={annotation: due}), "now")
    assert client.bodies(receiver) == ["now"]
    pass_ms(broker, 4999)
    assert client.bodies(receiver) == []
    pass_ms(broker, 1)
    assert client.bodies(receiver) == ["later"]


def test_so_is_one_that_an_exchange_brings_to_queues_of_several_sets(broker: SeveralSets, client: PairedClient) -> None:
    fan_out(broker)
    receivers = [client.receiver(queue, 10) for queue in QUEUES]
    client.send_all(client.sender("fan"), proton.Message("later", annotations={"x-opt-delivery-delay": 5000}))
    pass_ms(broker, 4999)
    assert [client.bodies(receiver) for receiver in receivers] == [[], [], []]
    pass_ms(broker, 1)
    assert [client.bodies(receiver) for receiver in receivers] == [["later"]] * 3


def test_what_another_broker_hands_on_is_due_by_the_clock_of_the_exchanges() -> None:
    core, exchanges = Core(Resources(TextReader(), "red")), MessageClock()
    queue = core.queue("q")
    core.resources.catalog.clock.go_on(NOW_MS - DAY_MS, NOW_MS)
    exchanges.go_on(NOW_MS + DAY_MS, NOW_MS)
    receiver = ForwardReceiver(core.resources, exchanges, lambda: None)
    frame = ForwardMessage(1, ("q",), True, 4, 0, b"", 0, message("m").payload, NOW_MS + DAY_MS + 5000)
    for each in (ForwardBegin(b"p"), frame):
        assert receiver.received(each, NOW_MS - DAY_MS) == []
    assert receiver.write(NOW_MS - DAY_MS) == []
    assert [entry.header.due_at_ms for entry in queue.messages] == [NOW_MS - DAY_MS + 5000]
