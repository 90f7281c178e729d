"""What connections to elsewhere promise those that are attached over them: each is told its end once, or left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection
from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.relay import RELAY_CAPABILITY

Ended = Callable[[str], None]


def to_a_primary(ended: Ended) -> Upstream:
    engine = Engine(proton.Transport(), proton.Connection())
    return Upstream(engine, "here", "there", lambda: None, ended, Silence(lambda: 0.0, 1.0))


def to_a_broker_outside(ended: Ended) -> RemoteConnection:
    return RemoteConnection(Engine(proton.Transport(), proton.Connection()), "here", "there", lambda: None, ended)


class FarBroker:
    """The other end: it opens, and takes what comes."""

    def __init__(self, upstream: Any) -> None:
        self.upstream = upstream
        self.transport = proton.Transport(proton.Transport.SERVER)
        self.connection = proton.Connection()
        self.connection.container = "there"
        self.connection.offered_capabilities = [proton.symbol(RELAY_CAPABILITY)]
        self.transport.bind(self.connection)

    def open(self) -> None:
        self.connection.open()
        self.talk()

    def talk(self) -> None:
        for _ in range(4):
            if outgoing := self.upstream.take_output():
                self.transport.push(outgoing)
            if (pending := self.transport.pending()) > 0:
                self.upstream.receive(self.transport.peek(pending) or b"")
                self.transport.pop(pending)

    def links(self) -> list[str]:
        """Their names, of those that are open at the other end."""
        names, link = [], self.connection.link_head(proton.Endpoint.REMOTE_ACTIVE)
        while link is not None:
            names.append(link.name)
            link = link.next(proton.Endpoint.REMOTE_ACTIVE)
        return names


class End:
    """Something that is attached, which does `then` when it is opened there, and `at_the_end` when it is lost."""

    far_name = ""
    needed_capability = ""
    needs_sessions = False

    def __init__(self, then: Callable[[], None] = lambda: None, at_the_end: Callable[[], None] = lambda: None) -> None:
        self.then = then
        self.at_the_end = at_the_end
        self.heard: list[str] = []

    def open_far(self, *asked: Any) -> proton.Link:
        *_, session, name = asked
        far: proton.Link = session.sender(name)
        far.target.address = "q"
        far.open()
        self.then()
        return far

    def attached(self, connection: Any, far: proton.Link) -> Any:
        raise NotImplementedError("the other end answers no attach here")

    def detached(self, error: Exception) -> None:
        self.heard.append(f"detached: {error}")

    def lost(self, *reason: str) -> None:
        self.heard.append("lost")
        self.at_the_end()


BOTH = pytest.mark.parametrize("make", [to_a_primary, to_a_broker_outside])


@BOTH
def test_what_is_given_up_while_others_are_attached_is_not_attached_any_more(make: Callable[[Ended], Any]) -> None:
    """A client is refused the first of its links, and goes, with the second one."""
    upstream = make(lambda reason: None)
    second = End()
    first = End(then=lambda: upstream.detach(second))
    upstream.attach(first)
    upstream.attach(second)
    there = FarBroker(upstream)
    there.open()
    assert len(there.links()) == 1
    assert len(upstream) == 1
    upstream.lost("cut")
    assert (first.heard, second.heard) == (["lost"], [])


@BOTH
@pytest.mark.parametrize("opens", [True, False], ids=["open", "not open"])
def test_what_is_given_up_while_others_are_told_of_the_end_is_told_nothing(
    make: Callable[[Ended], Any], opens: bool
) -> None:
    ended: list[str] = []
    upstream = make(ended.append)
    second = End()
    first = End(at_the_end=lambda: upstream.detach(second))
    upstream.attach(first)
    upstream.attach(second)
    there = FarBroker(upstream)
    if opens:
        there.open()
    upstream.lost("cut")
    assert (first.heard, second.heard) == (["lost"], [])
    assert ended == ["cut"]


@BOTH
def test_what_is_attached_after_the_end_is_lost_at_once(make: Callable[[Ended], Any]) -> None:
    upstream = make(lambda reason: None)
    upstream.lost("cut")
    late = End()
    upstream.attach(late)
    assert late.heard == ["lost"]
