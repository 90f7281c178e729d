"""What consumers may be sent: see `SendWindow`. The limit of unsettled deliveries is in test_budgets."""

from __future__ import annotations

import proton

from paired_engines import PairedBroker
from qpid_ha_broker.model.transactions.transaction import Message


def test_a_consumer_gets_nothing_while_the_socket_is_full_and_all_of_it_afterwards() -> None:
    broker = PairedBroker()
    queue = broker.container.default.configuration.declare_queue("q", {})
    client = broker.connect()
    link = client.receiver("q", credit=10)
    client.peer.window.pause()
    for number in range(3):
        broker.container.default.resources.publish(queue, Message(bytes(proton.Message(body=number).encode())), 0)
    broker.settle_down()
    assert client.received(link) == []
    client.peer.window.resume()
    broker.settle_down()
    assert [message.body for _, message in client.received(link)] == [0, 1, 2]


def test_a_consumer_that_attaches_while_the_socket_is_full_waits_too() -> None:
    broker = PairedBroker()
    queue = broker.container.default.configuration.declare_queue("q", {})
    broker.container.default.resources.publish(queue, Message(bytes(proton.Message(body="m").encode())), 0)
    client = broker.connect()
    client.peer.window.pause()
    link = client.receiver("q", credit=1)
    assert client.received(link) == []
    client.peer.window.resume()
    broker.settle_down()
    assert [message.body for _, message in client.received(link)] == ["m"]
