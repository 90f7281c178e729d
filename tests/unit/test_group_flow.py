"""What bounds the memory of a member of a group when its transport takes nothing, or others are slow; and what a link
that comes from another member may have."""

from __future__ import annotations

from typing import Any

import proton

from lone_group_member import LoneGroupMember
from paired_engines import BROKER, PairedClient
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.wire.relay import RELAY_CAPABILITY, RelayRequest, read_answer
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.model.sets.grouped import GATHERED_BYTES
from qpid_ha_broker.model.sets.resources import release_unseen

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


def reclaimed(broker: LoneGroupMember, held: tuple[int, ...]) -> tuple[int, ...]:
    """What a broker may have again whose client has had `held` at another member."""
    relayer = PairedClient(broker, BROKER, (RELAY_CAPABILITY,))
    link = relayer.session.receiver(f"far {held}")
    link.source.address = "q"
    _, begun = broker.hosted.resources.replicated.state.generations[0]
    link.properties = RelayRequest(("relayer",), "client", generation=begun.generation, held=held).properties()
    relayer.attach(link)
    broker.go_on()
    return read_answer(link.remote_properties).held


def test_what_a_client_had_at_another_member_stays_its_own_only_where_the_member_hands_out_from_the_queue() -> None:
    """Seed 0 of clusters with a group that parts: its member gave the message to somebody else, and what the client
    accepted here, and was told to count, did not."""
    broker = LoneGroupMember()
    client = broker.connect()
    sender = client.sender("q")
    broker.go_on()
    client.send_all(sender, proton.Message("one"), proton.Message("two"))
    broker.go_on()
    ids = tuple([entry.id for entry in broker.hosted.resources.catalog.queues["q"].messages])

    assert reclaimed(broker, ids) == ()
    assert [entry.holder for entry in broker.hosted.resources.catalog.queues["q"].messages] == [None, None]

    receiver = client.receiver("q", credit=1)
    broker.go_on()
    assert [message.body for _, message in client.received(receiver)] == ["one"]
    assert reclaimed(broker, ids) == ids[1:]


def test_what_a_client_had_at_another_member_stays_its_own_when_another_one_has_left_meanwhile() -> None:
    broker = LoneGroupMember()
    client = broker.connect()
    sender = client.sender("q")
    client.receiver("q", credit=1)
    broker.go_on()
    generations = broker.hosted.resources.replicated.state.generations
    _, begun = generations[-1]
    last_lsn = broker.hosted.resources.replicated.log.last_lsn
    generations.append((last_lsn, begun._replace(generation=begun.generation + 1)))
    client.send_all(sender, proton.Message("one"), proton.Message("two"))
    broker.go_on()
    ids = tuple([entry.id for entry in broker.hosted.resources.catalog.queues["q"].messages])

    assert reclaimed(broker, ids) == ids[1:]


def test_what_a_member_has_named_as_its_own_and_nobody_has_seen_is_told_when_it_comes_back() -> None:
    """Seed 32 of clusters with a group: where the member had the queue again by then, it was nobody else's ever."""
    broker = LoneGroupMember()
    client = broker.connect()
    sender = client.sender("q")
    client.receiver("q", credit=1)
    broker.go_on()
    client.send(sender, proton.Message("one"))
    broker.go_on()
    queue = broker.hosted.resources.catalog.queues["q"]
    (entry,) = queue.messages
    broker.feed(fx.YieldAsked(queue.id, ((entry.id, entry.id),)))
    broker.feed(fx.WantAsked(queue.id))
    broker.go_on()
    assert broker.serving.member.queues.held(queue.id) == {entry.id: "a"}

    release_unseen(broker.hosted.resources, queue, [entry])
    broker.go_on()

    assert broker.serving.member.queues.held(queue.id) == {}
