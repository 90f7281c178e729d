"""Requests and their answers: dynamic reply queues, and the anonymous relay that answers need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
from proton import Delivery, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import LinkDetached, SyncRequestResponse

from blocking_client import BlockingClient, Management
from limits import LIMIT_S
from proxied_broker import Served
from running_broker import RunningBroker

Connect = Callable[..., BlockingClient]


class UpperCaseService(MessagingHandler):
    """Answers each request in upper case, through the anonymous relay; ends when it is told to stop."""

    def __init__(self, url: str, address: str) -> None:
        super().__init__()
        self._url, self._address = url, address

    def on_start(self, event: Any) -> None:
        """Connect."""
        connection = event.container.connect(self._url)
        event.container.create_receiver(connection, self._address)
        self._relay = event.container.create_sender(connection, None)

    def on_message(self, event: Any) -> None:
        """Answer."""
        request = event.message
        if request.body == "stop":
            event.connection.close()
            return
        answer = Message(request.body.upper(), address=request.reply_to, correlation_id=request.correlation_id)
        self._relay.send(answer)


@pytest.fixture
def service(broker: Served, client: BlockingClient, address: str) -> Iterator[str]:
    """The address of a running service."""
    thread = Thread(target=Container(UpperCaseService(broker.url, address)).run)
    thread.start()
    yield address
    client.send(address, "stop")
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_each_caller_gets_its_own_answers(connect: Connect, service: str) -> None:
    callers = [SyncRequestResponse(connect().connection, service) for _ in range(3)]
    assert len({caller.reply_to for caller in callers}) == 3
    for n in range(10):
        assert [caller.call(Message(f"{n}a{which}")).body for which, caller in enumerate(callers)] == [
            f"{n}A0",
            f"{n}A1",
            f"{n}A2",
        ]


def test_a_dynamic_node_lives_as_long_as_its_link(client: BlockingClient, management: Management) -> None:
    receiver = client.receiver(None, 1, dynamic=True)
    name = receiver.link.remote_source.address
    assert name
    assert management.messages(name) == 0
    client.send(name, "a")
    assert receiver.receive().body == "a"
    receiver.close()
    assert management.messages(name) is None


def test_a_dynamic_node_goes_with_a_link_that_the_broker_ends() -> None:
    with RunningBroker({"max-message-size": "100KiB"}) as small, BlockingClient(small.url) as client:
        sender = client.connection.container.create_sender(client.connection.conn, None, name="dynamic")
        sender.target.dynamic = True
        client.wait(lambda: sender.credit)
        sender.send(Message(b"x" * 200_000))
        with pytest.raises(LinkDetached, match="message-size-exceeded"):
            client.wait(lambda: False)
        assert Management(client).messages(sender.remote_target.address) is None


def test_the_anonymous_relay_refuses_a_message_that_says_nothing(client: BlockingClient) -> None:
    relay = client.sender(None)
    outcome = client.offer(relay, Message("where?"))
    assert (outcome.state, outcome.condition) == (Delivery.REJECTED, "amqp:not-found")
    assert client.offer(relay, Message("there", address="amq.fanout")).state == Delivery.ACCEPTED
