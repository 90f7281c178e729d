"""Links that the broker ends while their client still says something on them: it is dropped, and never confirmed."""

from __future__ import annotations

import proton
import pytest

from paired_engines import PairedBroker
from paired_proxy import paired_broker
from paired_transactions import PairedCoordinator, publish
from qpid_ha_broker.amqp.connections import link_table
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from session_clients import open_session

LIMIT_BYTES = 1000
TOO_LARGE, FINE = b"x" * 2 * LIMIT_BYTES, proton.Message("m").encode()


@pytest.fixture(params=["direct", "proxied"])
def broker(request: pytest.FixtureRequest) -> PairedBroker:
    """Where clients connect."""
    settings = ContainerSettings("test", "0", max_message_bytes=LIMIT_BYTES)
    return paired_broker(request.param, settings)


@pytest.mark.parametrize("last", [b"", b"y" * 500], ids=["", "and a part of another one"])
@pytest.mark.parametrize("has_session", [False, True], ids=["", "in a session"])
def test_what_is_behind_a_message_that_ends_its_link_is_dropped_and_takes_no_memory(
    broker: PairedBroker, last: bytes, has_session: bool
) -> None:
    client = open_session(broker) if has_session else broker.connect()
    link = client.sender("q")
    container = client.peer.container
    client.send(link, TOO_LARGE)
    dropped = client.send(link, FINE)
    if last:
        link.delivery("part")
        link.stream(last)
    broker.settle_down()
    assert link.remote_condition.name == "amqp:link:message-size-exceeded"
    assert dropped.remote_state == (0 if has_session else proton.Delivery.RELEASED)
    assert broker.queue("q").messages.count == 0
    assert (container.held.partial_bytes, container.held.unsettled_bytes) == (0, 0)
    again = client.send(client.sender("q"), FINE)
    broker.settle_down()
    assert again.remote_state == proton.Delivery.ACCEPTED


@pytest.mark.parametrize("settles", [False, True])
def test_an_answer_that_comes_when_the_link_has_ended_is_not_confirmed(broker: PairedBroker, settles: bool) -> None:
    client = broker.connect()
    client.send(client.sender("q"), FINE)
    link = client.receiver("q", 1, answers_first=True)
    ((delivery, _),) = client.received(link)
    delivery.update(proton.Delivery.ACCEPTED)
    if settles:
        delivery.settle()
    for endpoint in client.peer.links:
        endpoint.end(AmqpError(CONNECTION_FORCED, "try again"))
    broker.settle_down()
    assert link.remote_condition.name == CONNECTION_FORCED
    assert settles or not delivery.settled
    assert broker.queue("q").messages.count == 1


@pytest.mark.parametrize("what", ["a message", "a commit", "an answer"])
def test_what_is_not_decided_when_its_link_ends_is_not_settled_when_the_client_hears_of_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proton settles what is left on a link that is freed, and its own client takes a commit that is settled without a
    word for one that counts."""
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("q", {})
    client = broker.connect()
    coordinator, sender = PairedCoordinator(client), client.sender("q")
    client.send_all(sender, FINE)
    receiver = client.receiver("q", 1, answers_first=True)
    ((delivery, _),) = client.received(receiver)
    transaction = coordinator.declare()
    broker.container.default.resources.replicated.log.add_witness("backup")  # which acknowledges nothing
    if what == "an answer":
        link = receiver
        delivery.update(proton.Delivery.ACCEPTED)
    elif what == "a message":
        link = sender
        delivery = client.send(sender, FINE)
    else:
        link = coordinator.link
        publish(client, sender, transaction, "a")
        broker.settle_down()
        body = proton.Described(proton.symbol("amqp:discharge:list"), [transaction, False])
        delivery = client.send(link, proton.Message(body=body))
    broker.settle_down()
    for endpoint in client.peer.links:
        if endpoint.link.name == link.name:
            endpoint.end(AmqpError(CONNECTION_FORCED, "try again"))
    broker.settle_down()
    link.close()
    broker.settle_down()
    assert (delivery.settled, delivery.remote_state) == (False, 0)

    monkeypatch.setattr(link_table, "MOST_UNDECIDED", 0)  # a client that makes the broker keep ever more of them
    other = client.sender("q")
    for endpoint in client.peer.links:
        if endpoint.link.name == other.name:
            endpoint.end(AmqpError(CONNECTION_FORCED, "try again"))
    broker.settle_down()
    condition = client.connection.remote_condition
    assert condition is not None
    assert condition.name == "amqp:resource-limit-exceeded"
