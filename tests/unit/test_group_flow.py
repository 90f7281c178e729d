"""What bounds the memory of a member of a group when its transport takes nothing, or others are slow."""

from __future__ import annotations

from typing import Any

import proton

from lone_group_member import LoneGroupMember
from paired_engines import PairedClient
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.model.sets.grouped import GATHERED_BYTES

BODY = "x" * 1000
CREDIT = 300
WINDOW_BYTES = 100_000


def send_all(client: PairedClient, sender: Any) -> None:
    """As much as there is credit for."""
    for _ in range(sender.credit):
        client.send(sender, proton.Message(BODY))


def test_a_publisher_at_full_speed_is_stopped_by_credit_while_the_transport_takes_nothing() -> None:
    broker = LoneGroupMember(ContainerSettings("alpha", "0", publisher_credit=CREDIT), window_bytes=WINDOW_BYTES)
    client = broker.connect()
    sender = client.sender("q")
    broker.go_on()
    broker.is_stalled = True
    for _ in range(10):
        send_all(client, sender)
        broker.go_on()
    most = CREDIT * (len(BODY) + 100)
    assert (sender.credit, broker.replication.unplaced_bytes <= most) == (0, True)
    assert WINDOW_BYTES <= sum(len(data) for _, data in broker.waiting) <= WINDOW_BYTES + GATHERED_BYTES + 2 * len(BODY)
    assert broker.container.memory_bytes >= CREDIT * len(BODY), "it is in memory, and counts"

    late = client.sender("q", "late")
    broker.go_on()
    assert late.credit == 0, "more than the window waits already"

    broker.is_stalled = False
    broker.go_on()
    assert late.credit == CREDIT
    assert sender.credit * 2 >= CREDIT
    assert broker.replication.unplaced_bytes == 0
    assert broker.hosted.resources.catalog.queues["q"].messages.count == CREDIT


def test_a_drain_is_over_once_the_broker_hands_out_from_the_queue_and_its_messages_have_come() -> None:
    broker = LoneGroupMember()
    client = broker.connect()
    sender = client.sender("q")
    broker.go_on()
    client.send(sender, proton.Message("there"))
    broker.go_on()
    broker.is_stalled = True
    receiver = client.receiver("q", credit=0)
    receiver.drain(10)
    broker.go_on()
    assert (receiver.credit, client.received(receiver)) == (10, []), "it does not own the queue yet"

    broker.is_stalled = False
    broker.go_on()

    assert [message.body for _, message in client.received(receiver)] == ["there"]
    assert receiver.credit == 0
