"""What a broker asks of its controller about records, while controllers come and go."""

from __future__ import annotations

import time

import pytest

from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster.messages import BrokerReport
from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.server.controller.controller_client import RECORD_LIMIT_S, ControllerClient

BEFORE = SetRecorded("orders", "u", 1, "b1", 1, ("b1", "b2"), False)
AFTER = BEFORE._replace(generation=2, epoch=2, members=("b2",))


class OneWay:
    """A channel, as the controller at its other end sees it."""

    peer, is_open, unsent_bytes = "the controller", True, 0

    def __init__(self) -> None:
        self.asked: list[cf.RecordAsked] = []

    def send(self, data: bytes) -> None:
        frame = cf.decode(data)
        assert isinstance(frame, cf.RecordAsked)
        self.asked.append(frame)

    def close(self, reason: str) -> None:
        pass


class Broker:
    """Has nothing to report, and gets no orders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.channels: list[OneWay] = []
        self.told: list[cf.RecordTold] = []
        self.client = ControllerClient(self, self, self.dial, 10.0)

    def report(self, *, full: bool) -> BrokerReport | None:
        return None

    def carry_out(self, order: object, answer: object) -> None:
        raise AssertionError("nobody orders anything")

    def dial(self, address: str, listener: PeerListener) -> OneWay:
        self.channels.append(OneWay())
        return self.channels[-1]

    def find_controller(self, address: str) -> OneWay:
        self.client.follow(address)
        self.client.opened(self.channels[-1])
        return self.channels[-1]

    def answer(self, channel: OneWay, record: SetRecorded, *, written: bool) -> None:
        self.client.received(channel, cf.encode(cf.RecordTold(channel.asked[-1].number, written, record, "")))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


def test_what_is_asked_before_there_is_a_controller_is_put_to_the_first_one(broker: Broker) -> None:
    broker.client.write_record("orders", BEFORE, AFTER, broker.told.append)
    assert broker.told == []

    channel = broker.find_controller("first")
    assert [(asked.expected, asked.wanted) for asked in channel.asked] == [(BEFORE, AFTER)]
    broker.answer(channel, AFTER, written=True)

    assert [(told.written, told.record) for told in broker.told] == [(True, AFTER)]


def test_what_a_controller_did_not_answer_before_it_went_is_put_to_the_next_one_once(broker: Broker) -> None:
    first = broker.find_controller("first")
    broker.client.write_record("orders", BEFORE, AFTER, broker.told.append)
    broker.client.closed(first, "the connection was lost")
    second = broker.find_controller("second")

    assert second.asked == first.asked
    broker.answer(second, AFTER, written=False)
    broker.client.received(first, cf.encode(cf.RecordTold(first.asked[0].number, True, AFTER, "")))

    assert [(told.written, told.record) for told in broker.told] == [(False, AFTER)], "the first one had written it"


def test_who_is_answered_by_nobody_hears_that_after_a_while(broker: Broker) -> None:
    broker.client.read_record("orders", broker.told.append)
    broker.now_s = RECORD_LIMIT_S - 0.1
    broker.client.tick(broker.now_s)
    assert broker.told == []

    broker.now_s = RECORD_LIMIT_S
    broker.client.tick(broker.now_s)

    assert [told.record for told in broker.told] == [None]
    assert "no controller" in broker.told[0].problem
    assert broker.find_controller("late").asked == []


def test_a_broker_that_ends_leaves_nobody_waiting(broker: Broker) -> None:
    broker.client.read_record("orders", broker.told.append)
    broker.client.close()
    assert [told.problem for told in broker.told] == ["this broker ends"]
