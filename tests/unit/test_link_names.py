"""A link's name in its session: the same one twice is the end of the older link, and of nothing else."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, queued_bodies
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.connection_facts import connection_rows
from raw_peer import (
    AMQP_HEADER,
    ATTACH,
    CLOSE,
    DETACH,
    FLOW,
    OPEN,
    RECEIVER,
    SENDER,
    TRANSFER,
    Frame,
    attach,
    begin,
    credit,
    frame,
    frames_in,
    transfer,
)


class Peer:
    """Frames put together by hand, for the broker's end of a connection."""

    def __init__(self, broker: PairedBroker) -> None:
        self.broker = broker
        self.connection: Connection = broker.accept()
        self.say(AMQP_HEADER, frame(OPEN, ["raw"]), begin())

    def say(self, *frames: bytes) -> list[Frame]:
        """What is answered to them, which come together."""
        self.connection.receive(b"".join(frames))
        self.broker.turn()
        output = self.connection.take_output()
        return frames_in(output.removeprefix(AMQP_HEADER))


@pytest.fixture
def peer() -> Peer:
    return Peer(PairedBroker())


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", ["x", "a name", "é", "日本", "\x7f"])
def test_a_name_that_is_attached_twice_in_a_session_ends_the_older_link(peer: Peer, name: str, together: bool) -> None:
    frames = attach("o", 2, SENDER, "q"), attach(name, 0, RECEIVER, "q"), attach(name, 1, RECEIVER, "q")
    found = peer.say(*frames) if together else [each for said in frames for each in peer.say(said)]
    assert [each.fields[0] for each in found if each.code == ATTACH] == ["o", name, name]
    (detach,) = [each for each in found if each.code == DETACH]
    assert detach.error == ("amqp:link:stolen", f"the link {name} was attached again")
    assert [each.code for each in found if each.code in (ATTACH, DETACH, CLOSE)] == [ATTACH, ATTACH, DETACH, ATTACH]
    assert {row["name"] for row in links_of(peer)} == {name, "o"}
    sent = peer.say(transfer(2, 0, b"\x00Sw\xa1\x01m"), credit(1, 1))
    assert [each.payload[-1:] for each in sent if each.code == TRANSFER] == [b"m"]


def links_of(peer: Peer) -> list[Any]:
    (row,) = list(connection_rows(peer.broker.connections))
    links: Any = row["links"]
    return list(links)


def test_one_name_in_each_direction_and_in_each_session_are_different_links(peer: Peer) -> None:
    peer.say(begin(1))
    found = peer.say(
        attach("x", 0, RECEIVER, "q"), attach("x", 1, SENDER, "q"), attach("x", 0, RECEIVER, "q", channel=1)
    )
    assert [each.code for each in found if each.code in (ATTACH, DETACH, CLOSE)] == [ATTACH] * 3


def test_what_still_comes_on_the_older_link_changes_nothing_and_its_detach_is_no_news(peer: Peer) -> None:
    peer.say(attach("x", 0, SENDER, "q"))
    peer.say(attach("x", 1, SENDER, "q"))
    found = peer.say(
        transfer(0, 0, b"\x00Sw\xa1\x01a"), transfer(1, 1, b"\x00Sw\xa1\x01b"), frame(DETACH, [proton.uint(0), True])
    )
    assert CLOSE not in [each.code for each in found]
    assert queued_bodies(peer.broker.queue("q")) == ["b"]


def test_a_link_that_was_detached_is_attached_again_under_its_name(peer: Peer) -> None:
    for _ in range(3):
        found = peer.say(attach("x", 0, RECEIVER, "q"), frame(DETACH, [proton.uint(0), True]))
        assert [each.code for each in found if each.code != FLOW] == [ATTACH, DETACH]
    assert links_of(peer) == []
