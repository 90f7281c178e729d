"""How connections, AMQP sessions and links come to their end, and what becomes of what their clients had.

Each row of the tables in docs/protocol.md is one here. Whoever says goodbye in order gives up what outlives the
connection; every other end, however it came about, leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import proton
import pytest

from paired_engines import PairedClient, queued_bodies
from paired_links import condition, subscribe
from paired_proxy import PairedProxy, paired_broker
from paired_transactions import PairedCoordinator, publish
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.connection_facts import close_connection
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from session_clients import consume, held, open_session, refusal, status
from session_support import FIRST, SECOND

ERROR = "amqp:resource-limit-exceeded"
WITNESS = "a backup"
CLOSE = b"\0\0\0\x0c\x02\0\0\0\0\x53\x18\x45"
"""A frame with a close that has no error."""


class Outcome(NamedTuple):
    """What becomes of what a client had on a connection. Its AMQP sessions and links end with it in every case, its
    transactions are rolled back, and queues that exist for a link alone are deleted."""

    session: str
    """`waits` for its client, is `over`, or the client still has it (`attached`)."""
    subscription: str
    """A durable one: `stays`, or is `deleted`."""
    failed: int
    """As how many failed deliveries what went out and was not answered counts."""


LEAVES = Outcome("waits", "stays", 1)
"""Nobody wished it."""
SENT_AWAY = Outcome("waits", "stays", 0)
"""The broker wished it, and the client has done nothing wrong."""


def _own_timeout(client: PairedClient) -> None:
    """Nothing is heard of the broker for longer than the client waits."""
    client.transport.idle_timeout = 2.0
    client.transport.tick(1.0)
    client.transport.tick(4.0)
    client.broker.settle_down()
    assert "local-idle-timeout expired" in str(client.transport.condition)


def _brokers_timeout(client: PairedClient) -> None:
    transport = client.peer.engine.transport
    transport.idle_timeout = 2.0
    for now_ms in (1_000, 2_000, 4_000):
        client.peer.heartbeat(now_ms)
    client.broker.settle_down()


def _close(client: PairedClient, error: str = "") -> None:
    _end(client, client.connection, error)


def _end(client: PairedClient, endpoint: Any, error: str = "") -> None:
    if error:
        endpoint.condition = proton.Condition(error, "somebody has stumbled")
    endpoint.close()
    client.broker.settle_down()


def _end_and_vanish(client: PairedClient) -> None:
    """The close is read together with the end of the stream."""
    client.connection.condition = proton.Condition(ERROR, "")
    client.connection.close()
    client.exchange()
    client.vanish()
    client.broker.settle_down()


def _vanish(client: PairedClient) -> None:
    client.vanish()
    client.broker.settle_down()


def _send_garbage(client: PairedClient) -> None:
    client.peer.receive(b"\0\0\0\x0c\x02\0\0\0\xff\xff\xff\xff")
    client.broker.settle_down()


def _send_no_frame(client: PairedClient) -> None:
    client.peer.receive(b"GET / HTTP/1.1\r\n\r\n")
    client.broker.settle_down()


def _have_bug(client: PairedClient) -> None:
    client.peer.engine.on_fault = lambda error: None
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(Connection, "session_opened", lambda self, session: 1 / 0)
        client.connection.session().open()
        client.broker.settle_down()


def _brokers_close(client: PairedClient) -> None:
    """As for an operator, and for whose login is not allowed any more."""
    connections = client.peer._connections
    close_connection(connections, connections.open[client.peer].number, "asked for")
    client.broker.settle_down()


def _brokers_end(client: PairedClient) -> None:
    """As at a shutdown, and where another broker leads."""
    client.peer.send_away(AmqpError(CONNECTION_FORCED, "broker n1 is stopping"))
    client.broker.settle_down()
    client.vanish()
    client.broker.settle_down()


def _links(client: PairedClient) -> Iterator[Any]:
    link: Any = client.connection.link_head(0)
    while link is not None:
        yield link
        link = link.next(0)


def _end_links(client: PairedClient, how: str, error: str = "") -> None:
    for link in list(_links(client)):
        if error:
            link.condition = proton.Condition(error, "somebody has stumbled")
            link._update_cond()  # Proton's Python leaves it out of a detach that does not close
        getattr(link, how)()
    client.broker.settle_down()


class Row(NamedTuple):
    end: Callable[[PairedClient], None]
    outcome: Outcome


ROWS = {
    "close": Row(_close, Outcome("over", "stays", 0)),
    "close with an error": Row(lambda client: _close(client, ERROR), LEAVES),
    "close with an error, and end of the stream": Row(_end_and_vanish, LEAVES),
    "the client's own idle time-out": Row(_own_timeout, LEAVES),
    "end of the AMQP session": Row(lambda client: _end(client, client.session), Outcome("attached", "stays", 0)),
    "end of the AMQP session with an error": Row(
        lambda client: _end(client, client.session, ERROR), Outcome("attached", "stays", 1)
    ),
    "detach": Row(lambda client: _end_links(client, "detach"), Outcome("attached", "stays", 0)),
    "detach with an error": Row(lambda client: _end_links(client, "detach", ERROR), Outcome("attached", "stays", 1)),
    "close of links": Row(lambda client: _end_links(client, "close"), Outcome("attached", "deleted", 0)),
    "close of links with an error": Row(
        lambda client: _end_links(client, "close", ERROR), Outcome("attached", "stays", 1)
    ),
    "socket lost": Row(_vanish, LEAVES),
    "the broker's idle time-out": Row(_brokers_timeout, LEAVES),
    "a frame that makes no sense": Row(_send_garbage, LEAVES),
    "no frame at all": Row(_send_no_frame, LEAVES),
    "a bug of the broker": Row(_have_bug, SENT_AWAY),
    "the broker's close": Row(_brokers_close, SENT_AWAY),
    "the broker's end of the stream": Row(_brokers_end, SENT_AWAY),
}


class Story:
    """A client with a session, and one without, on one broker; each has whatever a client may have."""

    def __init__(self, way: str) -> None:
        self.broker = broker = paired_broker(way)
        configuration = broker.container.default.configuration
        for queue in ("held", "plain", "worked"):
            configuration.declare_queue(queue, {})
        configuration.declare_queue("own", {"qpid.exclusive": True})
        self.publish("held", "m1", "m2")
        self.publish("plain", "m1", "m2")
        self.with_session = open_session(broker, FIRST)
        assert self.with_session.bodies(consume(self.with_session, "held", 1)) == ["m1"]
        self.client = client = self.connect("shop")
        assert client.bodies(client.receiver("plain", 1)) == ["m1"]
        client.receiver("own", 1)
        subscribe(client, "amq.topic", "durable", durable=True)
        subscribe(client, "amq.topic", "passing")
        self.temporary = subscribe(client, None, "temporary", dynamic=True).remote_source.address
        transaction = PairedCoordinator(client).declare()
        publish(client, client.sender("worked"), transaction, "m1")
        broker.settle_down()
        assert {self.temporary, "subscription:shop:durable"} < self.queues

    def connect(self, container: str) -> PairedClient:
        client = PairedClient(self.broker, container=container)
        self.broker.settle_down()
        return client

    def publish(self, address: str, *bodies: str) -> None:
        other = self.broker.connect()
        other.publish(address, *bodies)
        other.vanish()
        self.broker.settle_down()

    @property
    def queues(self) -> set[str]:
        return set(self.broker.container.default.resources.catalog.queues)

    def failed(self, queue: str) -> int:
        """Deliveries of its first message."""
        entries = list(self.broker.queue(queue).messages)
        assert queued_bodies(self.broker.queue(queue)) == ["m1", "m2"]
        return entries[0].delivery_count

    def outcome(self) -> Outcome:
        registry = self.broker.container.default.resources.replicated.state.sessions
        session = registry.by_name.get(FIRST)
        state = "over" if session is None else "attached" if session.is_attached else "waits"
        subscription = "stays" if "subscription:shop:durable" in self.queues else "deleted"
        return Outcome(state, subscription, self.failed("plain"))


@pytest.mark.parametrize("way", ["direct", "proxied"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_a_client_had_is_given_up_by_a_farewell_alone(row: Row, way: str) -> None:
    story = Story(way)
    row.end(story.with_session)
    row.end(story.client)
    assert story.outcome() == row.outcome
    story.broker.check_invariants()


@pytest.mark.parametrize("way", ["direct", "proxied"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_a_client_had_alone_ends_with_its_links_however_they_end(row: Row, way: str) -> None:
    story = Story(way)
    row.end(story.client)
    assert story.queues == {"held", "plain", "worked", "own"} | (
        {"subscription:shop:durable"} if row.outcome.subscription == "stays" else set()
    )
    assert queued_bodies(story.broker.queue("worked")) == [], "its transaction is rolled back"
    other = story.connect("other")
    assert condition(subscribe(other, "own", "exclusive")) is None
    assert [(message.body, message.first_acquirer) for _, message in other.received(other.receiver("plain", 9))] == [
        ("m1", False),
        ("m2", True),
    ]


@pytest.mark.parametrize("way", ["direct", "proxied"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_a_session_holds_comes_again_where_the_session_stays(row: Row, way: str) -> None:
    story = Story(way)
    row.end(story.with_session)
    again = open_session(story.broker, FIRST, resume=True)
    if row.outcome.session == "over":
        assert refusal(again) == "amqp:not-found"
        again = open_session(story.broker, SECOND)
    else:
        assert status(again) == "resumed"
    link = consume(again, "held", 9)
    is_held = row.outcome.session != "over" and row.outcome.subscription == "stays"
    assert held(link) == (1 if is_held else 0)
    assert again.bodies(link) == ["m1", "m2"]


@pytest.mark.parametrize("way", ["direct", "proxied"])
def test_who_gives_up_waiting_for_its_session_has_not_ended_it(way: str) -> None:
    """As while brokers are frozen. Proton keeps a close to itself until it has the broker's open; others do not."""
    story = Story(way)
    story.with_session.vanish()
    log = story.broker.container.default.resources.replicated.log
    log.add_witness(WITNESS)
    waiting = open_session(story.broker, FIRST, resume=True)
    assert waiting.connection.state & proton.Endpoint.REMOTE_UNINIT
    waiting.peer.receive(CLOSE)
    story.broker.settle_down()
    log.acknowledge(WITNESS, log.last_lsn)
    story.broker.settle_down()
    assert story.outcome().session == "waits"
    log.remove_witness(WITNESS)
    again = open_session(story.broker, FIRST, resume=True)
    assert (status(again), held(consume(again, "held"))) == ("resumed", 1)


# --- between a proxy and the primary


def _cut(proxied: PairedProxy) -> None:
    proxied.cut()


def _close_upstream(proxied: PairedProxy) -> None:
    assert proxied.upstream is not None
    proxied.upstream.close("not needed any more")
    proxied.settle_down()


def _close_upstream_in_order(proxied: PairedProxy) -> None:
    assert proxied.upstream is not None
    proxied.upstream.engine.connection.close()
    proxied.settle_down()


def _end_upstream_session(proxied: PairedProxy, error: str = "") -> None:
    assert proxied.upstream is not None
    session: Any = proxied.upstream.engine.connection.session_head(0)
    if error:
        session.condition = proton.Condition(error, "")
    session.close()
    proxied.settle_down()


UPSTREAM_ROWS: dict[str, Callable[[PairedProxy], None]] = {
    "connection lost": _cut,
    "close with an error": _close_upstream,
    "close": _close_upstream_in_order,
    "end of the AMQP session": _end_upstream_session,
    "end of the AMQP session with an error": lambda proxied: _end_upstream_session(proxied, ERROR),
}


@pytest.mark.parametrize("end", UPSTREAM_ROWS.values(), ids=UPSTREAM_ROWS)
def test_what_clients_of_a_proxy_had_is_theirs_however_its_connection_ends(end: Callable[[PairedProxy], None]) -> None:
    """Whether they are still there, nobody has said: everything waits for the proxy to come for it."""
    story = Story("proxied")
    proxied = cast(PairedProxy, story.broker)
    end(proxied)
    assert story.outcome()._replace(session="") == Outcome("", "stays", 0)
    assert story.temporary in story.queues
    other = PairedClient(proxied.primary, container="other")
    proxied.settle_down()
    assert condition(subscribe(other, "own", "exclusive")) == "amqp:resource-locked"
    assert queued_bodies(proxied.queue("worked")) == []
