"""Stories about the turn: what was written in it reaches the witnesses in it, not when something else happens."""

from __future__ import annotations

import itertools

import proton

from paired_engines import PairedBroker
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Dequeued, Enqueued


def test_what_is_sent_at_most_once_is_dequeued_before_the_witnesses_in_the_same_turn() -> None:
    broker = PairedBroker()
    client = broker.connect()
    receiver = client.session.receiver("at-most-once")
    receiver.source.address = "q"
    receiver.snd_settle_mode = proton.Link.SND_SETTLED
    receiver.open()
    receiver.flow(10)
    sender = client.sender("q")
    broker.container.default.resources.replicated.log.add_witness("store")
    client.send(sender, proton.Message(body="only once"))
    client.exchange()
    broker.turn()
    events = [record.event for batch in broker.batches for record in decode(batch.data).records]
    assert [type(event) for event in events] == [Enqueued, Dequeued]


def test_what_is_written_when_the_turn_ends_asks_for_another_turn() -> None:
    broker = PairedBroker()
    log = broker.container.default.resources.replicated.log
    log.add_witness("store")
    broker.container.default.configuration.declare_queue("q", {})
    due = [broker.container.has_work]
    broker.turn()
    due.append(broker.container.has_work)
    assert due == [True, False]
    assert broker.batches[-1].last_lsn == log.last_lsn


def test_memory_of_what_is_sent_and_not_settled_is_counted_until_it_is_answered_or_its_link_has_gone() -> None:
    broker = PairedBroker()
    client = broker.connect()
    sender = client.sender("q")
    for _ in range(3):
        client.send(sender, proton.Message(body=b"x" * 10_000))
    receiver = client.receiver("q", 3)
    held = [broker.container.held.unsettled_bytes]
    deliveries = [delivery for delivery, _ in client.received(receiver)]
    deliveries[0].update(proton.Delivery.ACCEPTED)
    deliveries[0].settle()
    broker.settle_down()
    held.append(broker.container.held.unsettled_bytes)
    receiver.close()
    broker.settle_down()
    held.append(broker.container.held.unsettled_bytes)
    assert 30_000 < held[0] < 31_000
    assert 20_000 < held[1] < 21_000
    assert held[2] == 0


def test_a_silent_connection_gets_a_sign_of_life_before_its_peer_gives_up_and_costs_nothing_between() -> None:
    broker = PairedBroker()
    impatient = proton.Transport()
    impatient.idle_timeout = 2
    connection = proton.Connection()
    connection.container = "impatient"
    impatient.bind(connection)
    connection.open()
    peer = broker.accept()
    peer.receive(impatient.peek(impatient.pending()) or b"")
    broker.turn()
    peer.take_output()
    said_at_ms = []
    for now_ms in range(1000, 5001, 250):
        peer.heartbeat(now_ms)
        was_touched = peer in set(broker.connections.take_touched())
        if was_touched and peer.take_output():
            said_at_ms.append(now_ms)
    silences = [later - earlier for earlier, later in itertools.pairwise([1000, *said_at_ms])]
    assert said_at_ms
    assert max(silences) < 2000
    assert len(said_at_ms) <= 8
