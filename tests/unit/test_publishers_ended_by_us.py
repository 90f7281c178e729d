"""Publishers' links that the broker ends while more of their messages are in the same read: those are dropped."""

from __future__ import annotations

from typing import cast

import proton
import pytest

from paired_engines import PairedBroker
from paired_proxy import PairedProxiedBroker
from qpid_ha_broker.amqp.connections.container import ContainerSettings

LIMIT_BYTES = 1000
TOO_LARGE, FINE = b"x" * 2 * LIMIT_BYTES, proton.Message("m").encode()


@pytest.fixture(params=["direct", "proxied"])
def broker(request: pytest.FixtureRequest) -> PairedBroker:
    """Where clients connect."""
    settings = ContainerSettings("test", "0", max_message_bytes=LIMIT_BYTES)
    if request.param == "direct":
        return PairedBroker(settings)
    return cast(PairedBroker, PairedProxiedBroker(settings))


@pytest.mark.parametrize("last", [b"", b"y" * 500], ids=["", "and a part of another one"])
def test_what_is_behind_a_message_that_ends_its_link_is_dropped_and_takes_no_memory(
    broker: PairedBroker, last: bytes
) -> None:
    client = broker.connect()
    link = client.sender("q")
    container = client.peer.container
    client.send(link, TOO_LARGE)
    dropped = client.send(link, FINE)
    if last:
        link.delivery("part")
        link.stream(last)
    broker.settle_down()
    assert link.remote_condition.name == "amqp:link:message-size-exceeded"
    assert dropped.remote_state != proton.Delivery.ACCEPTED
    assert broker.queue("q").messages.count == 0
    assert (container.partial_bytes, container.unsettled_bytes) == (0, 0)
    again = client.send(client.sender("q"), FINE)
    broker.settle_down()
    assert again.remote_state == proton.Delivery.ACCEPTED
