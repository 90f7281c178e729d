"""A broker's channel to the controller: who it is comes first; and what is asked of records while controllers go."""

from __future__ import annotations

import time

import pytest

from event_loops import in_event_loop
from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster.messages import BrokerIdentity, BrokerReport, OrderDeletion
from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.server.controller.controller_client import (
    NOT_INTRODUCED,
    RECORD_LIMIT_S,
    ControllerClient,
    ControllerGone,
)
from qpid_ha_broker.server.peers.peer_questions import GREETING_S, greeting_pause_s

BEFORE = SetRecorded("orders", "u", 1, "b1", 1, ("b1", "b2"), False)
AFTER = BEFORE._replace(generation=2, epoch=2, members=("b2",))


class HeardChannel:
    """Keeps what is sent on it."""

    peer, is_open, unsent_bytes = "the controller", True, 0

    def __init__(self) -> None:
        self.frames: list[cf.ControlFrame] = []

    @property
    def asked(self) -> list[cf.RecordAsked]:
        return [frame for frame in self.frames if isinstance(frame, cf.RecordAsked)]

    def send(self, data: bytes) -> None:
        self.frames.append(cf.decode(data))

    def close(self, reason: str) -> None:
        """Nobody is there."""


class Shy:
    """A broker that can say who it is once it knows that itself, and its client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.knows_itself = True
        self.asked_full: list[bool] = []
        self.channels: list[HeardChannel] = []
        self.told: list[cf.RecordTold] = []
        self.client = ControllerClient(self, self, self.dial, 2.0)

    def report(self, *, full: bool) -> BrokerReport | None:
        if not self.knows_itself:
            return None
        self.asked_full.append(full)
        return BrokerReport(BrokerIdentity("n1", "uuid", "n1/1", "amqp://n1", "", "", "1"), 1, full, 0)

    def carry_out(self, order: cf.Ordered | OrderDeletion, answer: object) -> None:
        """There are none."""

    def dial(self, address: str, listener: PeerListener) -> HeardChannel:
        self.channels.append(HeardChannel())
        return self.channels[-1]

    def find_controller(self, address: str) -> HeardChannel:
        self.client.follow(address)
        self.client.opened(self.channels[-1])
        return self.channels[-1]

    def answer(self, channel: HeardChannel, record: SetRecorded, *, written: bool) -> None:
        self.client.received(channel, cf.encode(cf.RecordTold(channel.asked[-1].number, written, record, "")))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Shy:
    return Shy(monkeypatch)


@in_event_loop
async def test_nothing_is_asked_before_a_report_has_said_who_asks() -> None:
    with pytest.MonkeyPatch.context() as patch:
        broker = Shy(patch)
        broker.knows_itself = False
        channel = broker.find_controller("first")
        broker.client.read_record("orders", broker.told.append)
        with pytest.raises(ControllerGone, match="cannot say yet who it is"):
            await broker.client.ask("set-list", {})
        assert (channel.frames, broker.client.problem, broker.told) == ([], NOT_INTRODUCED, [])


def test_once_it_knows_itself_the_first_frame_is_a_full_report(broker: Shy) -> None:
    broker.knows_itself = False
    channel = broker.find_controller("first")
    broker.client.read_record("orders", broker.told.append)
    broker.knows_itself = True
    broker.now_s = 3.0
    broker.client.tick(broker.now_s)
    assert [type(frame) for frame in channel.frames] == [cf.Reported, cf.RecordAsked]
    assert (broker.asked_full, broker.client.problem) == ([True], "")


def test_what_is_asked_before_there_is_a_controller_is_put_to_the_first_one(broker: Shy) -> None:
    broker.client.write_record("orders", BEFORE, AFTER, broker.told.append)
    assert broker.told == []

    channel = broker.find_controller("first")
    assert [(asked.expected, asked.wanted) for asked in channel.asked] == [(BEFORE, AFTER)]
    broker.answer(channel, AFTER, written=True)

    assert [(told.written, told.record) for told in broker.told] == [(True, AFTER)]


def test_what_a_controller_did_not_answer_before_it_went_is_put_to_the_next_one_once(broker: Shy) -> None:
    first = broker.find_controller("first")
    broker.client.write_record("orders", BEFORE, AFTER, broker.told.append)
    broker.client.closed(first, "the connection was lost")
    second = broker.find_controller("second")

    assert second.asked == first.asked
    broker.answer(second, AFTER, written=False)
    broker.client.received(first, cf.encode(cf.RecordTold(first.asked[0].number, True, AFTER, "")))

    assert [(told.written, told.record) for told in broker.told] == [(False, AFTER)], "the first one had written it"


def test_who_is_answered_by_nobody_hears_that_after_a_while(broker: Shy) -> None:
    broker.client.read_record("orders", broker.told.append)
    broker.now_s = RECORD_LIMIT_S - 0.1
    broker.client.tick(broker.now_s)
    assert broker.told == []

    broker.now_s = RECORD_LIMIT_S
    broker.client.tick(broker.now_s)

    assert [told.record for told in broker.told] == [None]
    assert "no controller" in broker.told[0].problem
    assert broker.find_controller("late").asked == []


def test_a_broker_that_ends_leaves_nobody_waiting(broker: Shy) -> None:
    broker.client.read_record("orders", broker.told.append)
    broker.client.close()
    assert [told.problem for told in broker.told] == ["this broker ends"]


def test_an_address_of_its_own_is_looked_for_soon_and_then_more_rarely() -> None:
    pauses_s = [greeting_pause_s(greeted, is_well=False) for greeted in range(1, 10)]
    assert pauses_s == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, GREETING_S, GREETING_S]
    assert greeting_pause_s(1, is_well=True) == GREETING_S
