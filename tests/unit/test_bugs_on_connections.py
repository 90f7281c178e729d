"""A bug that comes up on what one peer sent: its link ends, or its connection, in order; nobody else hears of it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import proton
import pytest
from pytest_mock import MockerFixture

from event_loops import in_event_loop
from paired_engines import PairedBroker, PairedClient
from paired_peers import Cluster
from paired_proxy import PairedProxy
from paired_remote import TARGET, PairedRemote
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.bridges import InboundBridge, OutboundBridge
from qpid_ha_broker.amqp.links.incoming import IncomingLink
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.amqp.links.peer_link import PeerReceiver
from qpid_ha_broker.amqp.links.relayed_links import RelayedPublisher
from qpid_ha_broker.amqp.relaying.peer_client import PeerClient
from qpid_ha_broker.amqp.wire.conditions import INTERNAL_ERROR, AmqpError
from qpid_ha_broker.amqp.wire.engine import Engine, Sender
from qpid_ha_broker.server.proxies.remote_nodes import RemoteNodes
from qpid_ha_broker.server.runtime.logs import NoticeLog
from qpid_ha_config.settings import RemoteSettings


class PlannedBug(Exception):
    """What a test has put in."""


def fail(*_: Any, **__: Any) -> None:
    """In the place of something that works."""
    raise PlannedBug("planned")


def name_of(connection: proton.Connection) -> str:
    """Of the condition with which the other end has closed it."""
    condition = connection.remote_condition
    return "" if condition is None else str(condition.name)


def name_of_end(link: Any) -> str:
    """Of the condition with which the broker has ended a link."""
    return "" if link.remote_condition is None else str(link.remote_condition.name)


class Story:
    """A client that publishes and consumes on one connection, of which bugs are caught as a running broker does."""

    def __init__(self) -> None:
        self.broker = PairedBroker()
        self.broker.container.default.configuration.declare_queue("q", {})
        self.client: PairedClient = self.broker.connect()
        self.bugs: list[Exception] = []
        self.client.peer.engine.on_fault = self.bugs.append

    def other_can_consume(self) -> list[Any]:
        """What another client gets."""
        other = self.broker.connect()
        return other.bodies(other.receiver("q", 10))


def test_a_bug_on_one_link_ends_that_link(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    client, broker = story.client, story.broker
    receiver, sender = client.receiver("q", 10), client.sender("q")
    with monkeypatch.context() as broken:
        broken.setattr(IncomingLink, "transfers", fail)
        client.send_all(sender, "lost")
    assert sender.remote_condition.name == INTERNAL_ERROR
    assert [type(bug) for bug in story.bugs] == [PlannedBug]
    client.publish("q", "next")
    assert client.bodies(receiver) == ["next"]
    assert not client.peer.has_ended
    broker.check_invariants()


@pytest.mark.parametrize("method", ["flow", "dispositions"])
def test_a_bug_on_a_consumers_link_gives_its_messages_back(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    story = Story()
    client = story.client
    client.publish("q", "a", "b")
    receiver = client.receiver("q", 2)
    got = client.received(receiver)
    with monkeypatch.context() as broken:
        broken.setattr(OutgoingLink, method, fail)
        got[0][0].update(proton.Delivery.ACCEPTED)
        receiver.flow(1)
        story.broker.settle_down()
    assert receiver.remote_condition.name == INTERNAL_ERROR
    assert len(story.bugs) == 1
    assert story.other_can_consume() == ["a", "b"]


def test_a_bug_elsewhere_closes_the_connection_with_a_close_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    client = story.client
    client.publish("q", "a")
    assert client.bodies(client.receiver("q", 1)) == ["a"]
    with monkeypatch.context() as broken:
        broken.setattr(Connection, "session_opened", fail)
        client.connection.session().open()
        story.broker.settle_down()
    assert name_of(client.connection) == INTERNAL_ERROR
    assert client.connection.state & proton.Endpoint.REMOTE_CLOSED
    client.connection.close()
    story.broker.settle_down()
    assert client.peer.engine.finished
    client.vanish()
    assert len(story.bugs) == 1
    assert story.other_can_consume() == ["a"]


def test_what_comes_behind_a_bug_that_ends_the_connection_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    client = story.client
    receiver, sender = client.receiver("q", 10), client.sender("q")
    with monkeypatch.context() as broken:
        broken.setattr(Connection, "session_opened", fail)
        client.connection.session().open()
        lost = client.send(sender, proton.Message("lost"))  # in the same read
        story.broker.settle_down()
    assert name_of(client.connection) == INTERNAL_ERROR
    assert (lost.remote_state, lost.settled) == (0, False), "clients take what is settled for queued"
    assert client.bodies(receiver) == story.other_can_consume() == []


def test_links_that_cannot_even_be_ended_keep_no_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    client = story.client
    client.publish("q", "a")
    client.sender("q")
    client.receiver("q", 1)
    with monkeypatch.context() as broken:
        broken.setattr(IncomingLink, "closed", fail)
        broken.setattr(Connection, "link_attached", fail)
        client.sender("q")
    assert name_of(client.connection) == INTERNAL_ERROR
    assert {type(bug) for bug in story.bugs} == {PlannedBug}
    client.vanish()
    assert list(client.peer.links) == []
    assert story.other_can_consume() == ["a"]


def test_where_the_end_of_the_connection_fails_too_it_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    with monkeypatch.context() as broken:
        broken.setattr(Connection, "link_attached", fail)
        broken.setattr(Connection, "end", fail)
        story.client.sender("q")
    assert name_of(story.client.connection) == INTERNAL_ERROR
    assert len(story.bugs) == 2


def test_what_cannot_even_be_discarded_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    client = story.client
    sender = client.sender("q")
    (link,) = client.peer.links
    client.peer.end_link(link, AmqpError(INTERNAL_ERROR, "planned"))
    for body in ("a", "b"):
        client.send(sender, proton.Message(body))
    with monkeypatch.context() as broken:
        broken.setattr(Engine, "_discard", fail)
        story.broker.settle_down()
    assert name_of(client.connection) == INTERNAL_ERROR
    assert story.other_can_consume() == []


def test_a_bridge_on_which_a_bug_comes_up_is_attached_again(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = PairedRemote()
    container = remote.here.container
    queue = container.default.configuration.declare_queue("orders", {})
    bridge = InboundBridge(container.default, queue, TARGET, remote, container)
    remote.begin(bridge)
    far = remote.answer()
    bugs: list[Exception] = []
    assert remote.upstream is not None
    remote.upstream.engine.on_fault = bugs.append
    with monkeypatch.context() as broken:
        broken.setattr(InboundBridge, "transfer", fail)
        far.delivery("a")
        far.stream(proton.Message("a").encode())
        far.advance()
        remote.settle_down()
    assert remote.again == [bridge]
    assert len(bugs) == 1
    assert far.remote_condition.name == INTERNAL_ERROR


def test_a_bug_on_the_connection_to_another_broker_ends_it_and_all_ends_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = PairedRemote()
    container = remote.here.container
    queue = container.default.configuration.declare_queue("orders", {})
    bridge = InboundBridge(container.default, queue, TARGET, remote, container)
    remote.begin(bridge)
    bugs: list[Exception] = []
    assert remote.upstream is not None
    remote.upstream.engine.on_fault = bugs.append
    with monkeypatch.context() as broken:
        broken.setattr(InboundBridge, "attached", fail)
        remote.answer()
    assert remote.again == [bridge]
    assert len(remote.ended) == 1
    assert name_of(remote.far) == INTERNAL_ERROR


def test_a_bug_on_the_connection_of_relayed_links_ends_it_and_they_are_attached_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = PairedProxy()
    proxy.container.default.configuration.declare_queue("q", {})
    client = proxy.client()
    sender = client.sender("q")
    bugs: list[Exception] = []
    assert proxy.upstream is not None
    proxy.upstream.engine.on_fault = bugs.append
    with monkeypatch.context() as broken:
        broken.setattr(RelayedPublisher, "dispositions", fail)
        client.send_all(sender, "a")
    assert len(bugs) == 1
    assert len(proxy.ended) == 1
    assert len(proxy.again) == 1
    proxy.connect_upstream()
    proxy.settle_down()
    assert proxy.queue("q").messages.count == 1


@pytest.mark.parametrize("end", ["opens it", "is opened"])
def test_a_bug_on_a_channel_between_brokers_ends_it_and_both_are_told(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    broker = Cluster(there=False)
    broker.peers.answers = True
    backup = broker.backup()
    bugs: list[Exception] = []
    backup.client.engine.on_fault = backup.peer.engine.on_fault = bugs.append
    with monkeypatch.context() as broken:
        broken.setattr(PeerClient if end == "opens it" else PeerReceiver, "transfer", fail)
        backup.client.send(b"frame")
        backup.settle_down()
    assert len(bugs) == 1
    assert len(backup.reasons) == len(broker.peers.reasons) == 1


@pytest.mark.parametrize("end", ["opens it", "is opened"])
def test_a_bug_at_a_frame_of_the_stream_ends_the_channel_and_both_are_told(end: str) -> None:
    broker = Cluster()
    broker.peers.answers = True
    backup = broker.backup()
    bugs: list[Exception] = []
    backup.client.engine.on_fault = backup.peer.engine.on_fault = bugs.append
    stream = (backup.client if end == "opens it" else backup.peer).engine.input.stream
    assert stream is not None
    stream._receive = fail
    backup.client.send(b"frame")
    backup.client.send(b"another")
    backup.settle_down()
    assert len(bugs) == 1
    assert len(backup.reasons) == len(broker.peers.reasons) == 1


def test_a_bug_is_logged_once_with_its_traceback_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    notices = NoticeLog()
    for _ in range(3):
        try:
            fail()
        except PlannedBug as error:
            notices.fault(error)
    with_traceback = [record for record in caplog.records if record.exc_info]
    assert [(record.levelno, record.name) for record in with_traceback] == [(logging.ERROR, "connection")]
    assert notices.bugs_total == 3


def test_a_bug_while_messages_are_sent_ends_the_link_and_gives_all_of_them_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    client = story.client
    client.publish("q", "a", "b", "c")
    send_all = Sender.send_all

    def fails_later(sender: Sender, payloads: list[bytes]) -> Any:
        send_all(sender, payloads[:1])
        fail()

    with monkeypatch.context() as broken:
        broken.setattr(Sender, "send_all", fails_later)
        receiver = client.receiver("q", 3)
    assert name_of_end(receiver) == INTERNAL_ERROR
    assert len(story.bugs) == 1
    client.publish("q", "d")
    assert story.other_can_consume() == ["a", "b", "c", "d"]
    story.broker.check_invariants()


@pytest.mark.parametrize("method", ["confirm", "finish_drain"])
def test_a_bug_at_the_end_of_a_turn_ends_one_link_and_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    story = Story()
    client = story.client
    receiver = client.receiver("q", 0, answers_first=True)
    with monkeypatch.context() as broken:
        broken.setattr(OutgoingLink, method, fail)
        if method == "finish_drain":
            receiver.drain(1)
        else:
            client.publish("q", "a")
            receiver.flow(1)
            story.broker.settle_down()
            for delivery, _ in client.received(receiver):
                delivery.update(proton.Delivery.ACCEPTED)
        story.broker.settle_down()
    assert name_of_end(receiver) == INTERNAL_ERROR
    assert len(story.bugs) == 1
    (published,) = client.publish("q", "b")
    assert published.remote_state == proton.Delivery.ACCEPTED
    assert story.other_can_consume() == ["b"]


def test_a_bridge_on_which_a_bug_comes_up_while_it_sends_is_attached_again(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = PairedRemote()
    container = remote.here.container
    queue = container.default.configuration.declare_queue("orders", {})
    bridge = OutboundBridge(container.default, queue, TARGET, remote, container)
    remote.begin(bridge)
    remote.answer(credit=5)
    bugs: list[Exception] = []
    assert remote.upstream is not None
    remote.upstream.engine.on_fault = bugs.append
    client = remote.client()
    with monkeypatch.context() as broken:
        broken.setattr(OutboundBridge, "_payload", fail)
        sender = client.sender("amq.fanout")
        container.default.configuration.bind("amq.fanout", "orders", "", {})
        client.send_all(sender, "a", "b")
    assert remote.again == [bridge]
    assert len(bugs) == 1
    assert (queue.messages.count, queue.messages.acquired) == (2, 0)


@in_event_loop
async def test_a_bug_on_one_remote_link_keeps_no_other_from_being_attached_again(mocker: MockerFixture) -> None:
    notices = NoticeLog()
    container = PairedBroker().container
    current = SimpleNamespace(name="here", remote=RemoteSettings())
    host: Any = SimpleNamespace(
        container=container, notices=notices, schedule_turn=lambda: None, current=lambda: current
    )
    nodes = RemoteNodes(host, cast(Any, fail))
    expired: list[str] = []
    broken, sound = mocker.Mock(), mocker.Mock()
    broken.expire, sound.expire = fail, lambda now_s: expired.append("sound")
    broken.is_attached = sound.is_attached = False
    place: Any = SimpleNamespace(definition=None, route=None, home=None, retry_s=0.0, since_s=0.0)
    nodes.directory = cast(Any, SimpleNamespace(is_there=lambda definition: True))
    nodes._places = {broken: place, sound: place}
    nodes._tick_links(1.0)
    assert expired == ["sound"]
    assert notices.bugs_total == 1
