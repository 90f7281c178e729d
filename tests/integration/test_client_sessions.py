"""`qpid_ha_client` and sessions of real brokers: exactly-once over kill -9, also for what nobody has confirmed.

What the client makes of whatever a broker says is in `tests/unit/test_client_core.py`, what a broker makes of sessions
in `tests/unit/test_client_sessions.py`, and proxies between them in `tests/unit/test_relayed_sessions.py`.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from proton import Message, ProtonException, symbol
from proton.reactor import Container

from bench.session_kills import BROKERS, SessionKills, session_settings
from blocking_client import BlockingClient, bodies
from cluster_in_process import free_ports
from exact_load import ExactLoad
from limits import LIMIT_S
from proxied_broker import Served
from qpid_ha_agent.control import ControlClient
from qpid_ha_broker.model.sessions import session_label
from qpid_ha_client import (
    ConnectOptions,
    Guarantee,
    LinkUnusable,
    MessageRefused,
    ReceivedMessage,
    SessionClient,
    SessionHandler,
    SessionReceiver,
    SessionSender,
)
from qpid_ha_client.core.errors import ClientError
from running_broker import RunningBroker
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

SETTINGS = {"ha": {"failure-timeout": "1s", "clients": "proxy"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers that relay, the first of which leads."""
    with RunningCluster(tmp_path, settings=SETTINGS) as cluster:
        cluster.form()
        yield cluster


def test_killed_brokers_cost_no_message_and_make_none_twice(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True, settings=SETTINGS) as cluster:
        cluster.wait_whole()
        with ExactLoad(cluster.urls, "q", require_session=True) as load:
            load.wait_more(1000)
            cluster.kill(cluster.the_primary())
            cluster.wait_whole()
            load.wait_more(500)
            cluster.kill(cluster.urls.index(load.consumers_broker()))
            cluster.wait_until(lambda: load.consumer.reconnects > 0, "the consumer notices")
            load.wait_more(500)
            load.finish()
        assert load.consumer.reconnects >= 1
        assert load.consumer.guarantee is Guarantee.EXACTLY_ONCE


def test_a_standalone_broker_that_was_killed_has_the_sessions_and_what_they_hold(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {"listen": f"amqp://127.0.0.1:{port}", "data-dir": str(tmp_path)}
    with RunningBroker(settings) as broker, ExactLoad([broker.url], "q", unanswered=5, require_session=True) as load:
        load.wait_more(300)
        os.kill(broker.pid, signal.SIGKILL)
        broker.stop()
        with RunningBroker(settings):
            load.wait_more(300)
            load.finish()
        assert load.consumer.reconnects >= 1


def test_a_session_at_a_broker_that_leads_nothing_has_links_to_queues_of_several_sets(cluster: RunningCluster) -> None:
    create_set(cluster, "orders", preferred=cluster.broker(1).name)
    wait_whole(cluster, 0, "orders")
    create_queue(cluster, 0, "of-orders", "orders")
    queues = ("of-orders", "of-default")
    with SessionClient(cluster.urls[2], require_session=True) as first:
        for queue in queues:
            first.sender(queue).send(Message(queue), timeout_s=LIMIT_S)
        keys = {queue: first.receiver(queue).receive(20.0).key for queue in queues}
        (row,) = cluster.broker(0).ask("sessions", action="list")["answer"]
        assert (row["session"], row["broker"], row["state"]) == (session_label(first.session_id), "broker3", "attached")
        first.close(keep_session=True)
    with SessionClient(cluster.urls[1], session=first.session_id) as second:
        for queue in queues:
            received = second.receiver(queue).receive(20.0)
            assert (received.body, received.key) == (queue, keys[queue])
            received.accept(wait=True, timeout_s=LIMIT_S)


def test_primaries_and_proxies_are_killed_and_no_client_with_a_session_notices(tmp_path: Path) -> None:
    """The short form of `./dev soak --sessions`."""
    with RunningCluster(tmp_path, BROKERS, agents=True, settings=session_settings()) as cluster:
        soak = SessionKills(cluster, seed=1)
        try:
            soak.start()
            soak.run(5)
            soak.settle()
        finally:
            soak.stop()
        assert soak.problems() == []
        assert soak.total().is_flawless


def test_an_operator_sees_a_session_and_ends_it(
    served_by: str, broker: Served, client: BlockingClient, address: str
) -> None:
    client.send(address, Message("a"))
    name = str(uuid.uuid4())
    first = BlockingClient(broker.url, properties={symbol("qpid.session"): name, symbol("qpid.session-timeout"): 60})
    receiver = first.receiver(address, 1, name="in")
    first.wait(lambda: receiver.fetcher.has_message)
    with ControlClient(broker.control_socket) as control:
        rows: Any = control.call("sessions")
        (row,) = [row for row in rows if row["session"] == session_label(name)]
        assert row["client"].startswith("127.0.0.1:")
        assert row["broker"] == ("proxy" if served_by == "proxy" else "test")
        shown = {key: row[key] for key in ("user", "state", "timeout_s", "connections", "held")}
        assert shown == {"user": "anonymous", "state": "attached", "timeout_s": 60.0, "connections": 1, "held": 1}
        facts: Any = control.call("query")
        assert facts["sessions"] == len(rows)
        assert control.call("sessions", action="end", name=name) == {"session": session_label(name), "ended": True}
        rows = control.call("sessions")
        assert not [row for row in rows if row["session"] == session_label(name)]
    assert bodies(client.fetch(client.receiver(address, 1), 1)) == ["a"]
    with suppress(ProtonException):
        first.wait(lambda: first.connection.disconnected)


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


def test_what_is_refused_is_told_with_the_reason_and_nothing_else_is(cluster: RunningCluster) -> None:
    arguments = {"qpid.max_count": 1, "qpid.policy_type": "reject"}
    cluster.broker(0).ask("queues", action="create", name="small", arguments=arguments)
    with SessionClient(cluster.urls) as client:
        sender = client.sender("small")
        sender.send(Message("a"))
        with pytest.raises(MessageRefused, match="resource-limit-exceeded"):
            sender.send(Message("b"))
        receiver = client.receiver("small")
        receiver.receive(10.0).accept(wait=True)
        sender.send(Message("c"))
        receiver.receive(10.0).accept(wait=True)
        cluster.broker(0).ask("queues", action="delete", name="small")
        with pytest.raises(LinkUnusable, match="resource-deleted"):
            receiver.receive(10.0)
        client.sender("q").send(Message("d"), timeout_s=LIMIT_S)


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


def test_a_client_that_is_redirected_follows_to_the_primary_and_to_the_next_one(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        with ExactLoad(cluster.urls, "q") as load:
            load.wait_more(1000)
            cluster.kill(cluster.the_primary())
            cluster.wait_until(lambda: load.consumer.reconnects > 0, "the consumer notices")
            load.wait_more(500)
            load.finish()
        assert (
            load.publisher.broker == load.consumer.broker == cluster.urls[cluster.brokers.index(cluster.the_primary())]
        )


def test_a_client_finds_a_broker_that_joined_after_it_had_begun(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, settings=SETTINGS) as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred=cluster.broker(0).name)
        wait_whole(cluster, 0, "orders")
        with SessionClient(cluster.urls[0]) as client:
            sender, receiver = client.sender("q"), client.receiver("q")
            sender.send(Message("before"))
            assert receiver.receive(10.0).body == "before"
            known = client._handler.core.brokers
            joined = cluster.add_broker()
            cluster.wait_until(lambda: cluster.urls[3] in map(str, known.known), "a notice has come")
            assert joined.name == "broker4"
            cluster.wait_whole()


def test_a_login_that_is_refused_ends_the_client_with_the_reason(cluster: RunningCluster) -> None:
    options = ConnectOptions("nobody", "secret", more={"allowed_mechs": "PLAIN", "allow_insecure_mechs": True})
    client = SessionClient(cluster.urls, options=options)
    with pytest.raises(ClientError) as refused:
        client.wait_connected(10.0)
    assert "secret" not in f"{refused.value!r} {options!r}"
    client.close()


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
