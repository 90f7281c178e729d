"""Who is told to go to another broker, because this one reaches nobody who leads what is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.relaying.set_contact import APART_S, TRIES_S, SetContact
from qpid_ha_broker.server.proxies.proxying import Proxying
from qpid_ha_broker.server.runtime.logs import NoticeLog
from session_clients import consume, numbered, open_session, session_properties, status
from session_support import FIRST

LOOK_S = 0.05
TOO_LONG_S = APART_S + TRIES_S + 1


class Link:
    def __init__(self, set_name: str, *, is_attached: bool = False) -> None:
        self.set_name, self.is_attached = set_name, is_attached


class Clock:
    """Looks as often as a proxy does."""

    def __init__(self) -> None:
        self.contact = SetContact()
        self.now_s = 100.0

    def look(self, links: list[Link], for_s: float = 0.0) -> frozenset[str]:
        until_s = self.now_s + for_s
        found = self.contact.look(links, self.now_s)
        while self.now_s < until_s:
            self.now_s += LOOK_S
            found = self.contact.look(links, self.now_s)
        return found


# --- the bare core


def test_a_set_of_which_nothing_is_attached_for_long_is_out_of_reach_and_others_are_not() -> None:
    clock = Clock()
    links = [Link("a"), Link("b", is_attached=True), Link("b")]
    assert clock.look(links, APART_S - 1) == set()
    assert clock.look(links, 2) == {"a"}


def test_a_link_that_is_attached_brings_its_set_into_reach() -> None:
    clock = Clock()
    link = Link("a")
    assert clock.look([link], TOO_LONG_S) == {"a"}
    link.is_attached = True
    assert clock.look([link]) == set()
    link.is_attached = False
    assert clock.look([link], APART_S - 1) == set()


def test_who_comes_later_is_told_soon_but_not_before_it_was_tried() -> None:
    clock = Clock()
    assert clock.look([Link("a")], TOO_LONG_S) == {"a"}
    assert clock.look([], 5) == set()
    assert clock.look([Link("a")], TRIES_S - 2 * LOOK_S) == set()
    assert clock.look([Link("a")], 3 * LOOK_S) == {"a"}


def test_a_broker_that_slept_has_tried_nothing_meanwhile() -> None:
    clock = Clock()
    links = [Link("a")]
    assert clock.look(links, APART_S / 2) == set()
    clock.now_s += 60
    assert clock.look(links, APART_S / 2 - 1) == set()
    assert clock.look(links, TRIES_S + 2) == {"a"}


# --- its clients


class Lonely(PairedProxy):
    """It has lost its primary, and looks as `Proxying` does."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.now_s = 100.0
        host: Any = SimpleNamespace(
            current=lambda: SimpleNamespace(name="proxy"), schedule_turn=lambda: None, notices=NoticeLog()
        )
        self.proxying = Proxying(host, cast(Any, None), cast(Any, None))
        self.proxying.pool.links = cast(Any, self.links)

    def pass_time(self, seconds: float) -> None:
        """What is in reach is found out several times a second."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += LOOK_S
            self.proxying._look_who_is_out_of_reach(self.now_s)
        self.settle_down()


def went_away(client: PairedClient) -> bool:
    """The broker has ended the connection, so that its client goes to the next one."""
    return client.peer.is_hung_up or client.connection.remote_condition is not None


@pytest.mark.parametrize("kind", ["consumer", "publisher", "of a session"])
def test_a_client_whose_broker_reaches_nobody_is_sent_to_the_next_one(kind: str) -> None:
    proxied = Lonely()
    broker = cast(PairedBroker, proxied)
    client = open_session(broker) if kind == "of a session" else proxied.client()
    link = client.sender("q") if kind == "publisher" else consume(client, "q", 5)
    assert link.state & proton.Endpoint.REMOTE_ACTIVE
    proxied.cut()
    proxied.pass_time(APART_S - 1)
    assert not went_away(client), "another broker is about to lead"
    proxied.pass_time(3)
    assert went_away(client)
    late = proxied.client()
    consume(late, "q", 5)
    proxied.pass_time(TRIES_S + 1)
    assert went_away(late), "and who comes now is told soon"


def test_an_open_with_a_session_that_nobody_can_answer_is_refused_soon_where_that_is_known() -> None:
    proxied = Lonely()
    proxied.cut()
    first = PairedClient(proxied.proxy, session_properties(FIRST))
    proxied.settle_down()
    proxied.pass_time(TOO_LONG_S)
    assert went_away(first)
    proxied.connect_upstream()
    assert status(open_session(cast(PairedBroker, proxied))) == "new"


@pytest.mark.parametrize("has_session", [False, True], ids=["plain", "with a session"])
def test_who_has_published_what_is_not_answered_stays_unless_its_session_knows_it_anywhere(has_session: bool) -> None:
    proxied = Lonely()
    client = open_session(cast(PairedBroker, proxied)) if has_session else proxied.client()
    link = client.sender("q", "out")
    proxied.cut()
    sent = client.send(link, numbered(1) if has_session else proton.Message("m1"))
    proxied.settle_down()
    proxied.pass_time(TOO_LONG_S)
    assert went_away(client) is has_session
    proxied.connect_upstream()
    if not has_session:
        assert sent.remote_state == proton.Delivery.ACCEPTED


def test_a_client_that_has_something_here_stays() -> None:
    proxied = Lonely()
    client = proxied.client()
    consume(client, "q", 5)
    (relayed,) = client.peer.relay.links
    proxied.cut()
    client.peer.relay.links[Elsewhere()] = None  # type: ignore[index]
    proxied.pass_time(TOO_LONG_S)
    assert not went_away(client)
    assert not relayed.is_attached
    client.peer.relay.links.popitem()
    proxied.pass_time(LOOK_S)
    assert went_away(client)


class Elsewhere(Link):
    """Of a set that is in reach."""

    def __init__(self) -> None:
        super().__init__("another", is_attached=True)
        self.is_in_doubt = False
        self.link: Any = None
