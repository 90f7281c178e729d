"""Links that the broker ends while their client still says something on them: it is dropped, and never confirmed."""

from __future__ import annotations

import proton
import pytest

from paired_engines import PairedBroker
from paired_proxy import paired_broker
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
