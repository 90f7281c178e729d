"""A broker's channel to the controller: who it is comes first, and a broker finds that out soon."""

from __future__ import annotations

import asyncio

import pytest

from event_loops import in_event_loop
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster.messages import BrokerIdentity, BrokerReport, OrderDeletion
from qpid_ha_broker.server.controller.controller_client import NOT_INTRODUCED, ControllerClient, ControllerGone
from qpid_ha_broker.server.peers.peer_questions import GREETING_S, greeting_pause_s


class HeardChannel:
    """Keeps what is sent on it."""

    peer, is_open, unsent_bytes = "the controller", True, 0

    def __init__(self) -> None:
        self.frames: list[cf.ControlFrame] = []

    def send(self, data: bytes) -> None:
        self.frames.append(cf.decode(data))

    def close(self, reason: str) -> None:
        """Nobody is there."""


class Shy:
    """A broker that can say who it is once it knows that itself."""

    def __init__(self) -> None:
        self.knows_itself = False
        self.asked_full: list[bool] = []

    def report(self, *, full: bool) -> BrokerReport | None:
        if not self.knows_itself:
            return None
        self.asked_full.append(full)
        return BrokerReport(BrokerIdentity("n1", "uuid", "n1/1", "amqp://n1", "", "", "1"), 1, full, 0)

    def carry_out(self, order: cf.Ordered | OrderDeletion, answer: object) -> None:
        """There are none."""


class Opened:
    """The client of a shy broker, whose channel is open."""

    def __init__(self) -> None:
        self.broker, self.channel = Shy(), HeardChannel()
        self.client = ControllerClient(self.broker, self.broker, self._dial, 2.0)
        self.client.follow("amqp://n2")
        self.client.opened(self.channel)

    def _dial(self, address: str, listener: PeerListener) -> Channel:
        return self.channel


@in_event_loop
async def test_nothing_is_asked_before_a_report_has_said_who_asks() -> None:
    opened = Opened()
    answers: list[cf.RecordTold] = []
    opened.client.read_record("orders", answers.append)
    with pytest.raises(ControllerGone, match="cannot say yet who it is"):
        await opened.client.ask("set-list", {})
    await asyncio.sleep(0)
    assert [answer.problem for answer in answers] == [NOT_INTRODUCED]
    assert (opened.channel.frames, opened.client.problem) == ([], NOT_INTRODUCED)


@in_event_loop
async def test_once_it_knows_itself_the_first_frame_is_a_full_report() -> None:
    opened = Opened()
    opened.broker.knows_itself = True
    opened.client.tick(1e9)
    opened.client.read_record("orders", lambda answer: None)
    assert [type(frame) for frame in opened.channel.frames] == [cf.Reported, cf.RecordAsked]
    assert (opened.broker.asked_full, opened.client.problem) == ([True], "")


def test_an_address_of_its_own_is_looked_for_soon_and_then_more_rarely() -> None:
    pauses_s = [greeting_pause_s(greeted, knows_itself=False) for greeted in range(1, 10)]
    assert pauses_s == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, GREETING_S, GREETING_S]
    assert greeting_pause_s(1, knows_itself=True) == GREETING_S
