"""`qpid_ha_client` against real brokers that die: what it sends is queued once, and what it is handed comes once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message
from proton.reactor import Container

from blocking_client import BlockingClient, bodies
from exact_load import ExactLoad
from limits import LIMIT_S
from qpid_ha_client import (
    Guarantee,
    ReceivedMessage,
    SessionClient,
    SessionHandler,
    SessionReceiver,
    SessionSender,
)
from running_cluster import RunningCluster

SETTINGS = {"ha": {"failure-timeout": "1s", "clients": "proxy"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers that relay, the first of which leads."""
    with RunningCluster(tmp_path, settings=SETTINGS) as cluster:
        cluster.form()
        yield cluster


def test_messages_go_and_come_and_answers_count(cluster: RunningCluster) -> None:
    with SessionClient(cluster.urls) as client:
        sender = client.sender("q")
        for number in range(3):
            sender.send(Message(number))
        receiver = client.receiver("q")
        first, second, third = (receiver.receive(10.0) for _ in range(3))
        assert [first.body, second.body, third.body] == [0, 1, 2]
        first.accept(wait=True, timeout_s=LIMIT_S)
        second.release(wait=True, timeout_s=LIMIT_S)
        third.reject(wait=True, timeout_s=LIMIT_S)
        assert receiver.receive(10.0).body == 1
        assert client.guarantee is not Guarantee.AT_LEAST_ONCE
    with BlockingClient(cluster.urls[0]) as reader:
        assert bodies(reader.consume("q")) == [1]


def test_a_message_is_sent_as_it_was_when_it_was_given_and_keeps_its_annotations(cluster: RunningCluster) -> None:
    with SessionClient(cluster.urls) as client, BlockingClient(cluster.urls[1]) as reader:
        sender = client.sender("q")
        message = Message("before", annotations={"x-opt-colour": "red"}, durable=True, priority=7)
        sent = sender.send_soon(message)
        message.body = "after"
        sent.wait(10.0)
        (found,) = reader.consume("q")
        assert (found.body, found.durable, found.priority) == ("before", True, 7)
        assert found.annotations["x-opt-colour"] == "red"
        assert message.annotations == {"x-opt-colour": "red"}


def test_a_killed_primary_and_a_killed_proxy_cost_no_message_and_make_none_twice(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True, settings=SETTINGS) as cluster:
        cluster.wait_whole()
        with ExactLoad(cluster.urls, "q") as load:
            load.wait_more(1000)
            cluster.kill(cluster.the_primary())
            cluster.wait_whole()
            load.wait_more(500)
            cluster.kill(cluster.urls.index(load.consumers_broker()))
            cluster.wait_until(lambda: load.consumer.reconnects > 0, "the consumer notices")
            load.wait_more(500)
            load.finish()
        assert load.consumer.reconnects >= 1


class Echo(SessionHandler):
    """Sends three messages, and takes them."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(urls)
        self.confirmed: list[int] = []
        self.bodies: list[object] = []
        self.answered = 0

    def on_start(self, event: object) -> None:
        sender = self.create_sender("q")
        self.tickets_sent = [sender.send(Message(number)) for number in range(3)]
        self.create_receiver("q", prefetch=1)

    def on_confirmed(self, sender: SessionSender, ticket: int) -> None:
        self.confirmed.append(ticket)

    def on_message(self, received: ReceivedMessage) -> None:
        self.bodies.append(received.body)
        received.accept()

    def on_answered(self, receiver: SessionReceiver, ticket: int) -> None:
        self.answered += 1
        if self.answered == 3:
            self.close()


def test_the_handler_for_protons_reactor_tells_what_becomes_of_messages(cluster: RunningCluster) -> None:
    echo = Echo(cluster.urls)
    Container(echo).run()
    assert echo.bodies == [0, 1, 2]
    assert echo.confirmed == echo.tickets_sent
