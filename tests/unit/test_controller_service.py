"""The controller's driver: what brokers say within a round of the loop reaches the core as one input, in its order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.server.controller.controller_service import ControllerService


class Core:
    """Notes its inputs, and wants nothing done."""

    def __init__(self) -> None:
        self.heard: list[ms.ControllerInput] = []
        self.facts: dict[str, object] = {}

    def handle(self, happened: ms.ControllerInput, now_s: float) -> list[ms.ControllerEffect]:
        self.heard.append(happened)
        return []

    def change_settings(self, *_: object) -> None:
        """Nothing counts here."""


class End:
    """Of a channel."""

    peer = "b"

    def close(self, reason: str) -> None:
        """It is not looked at."""


class Bench:
    """A service on a broker that leads `default`, and the channel of the broker `b`, which has reported."""

    def __init__(self) -> None:
        self.turns = 0
        self.core = Core()
        self.default = SimpleNamespace(replication=SimpleNamespace(read_only=""), catalog=None, log=None)
        broker = SimpleNamespace(schedule_turn=self._schedule_turn)
        made: Any = ControllerService
        self.service: ControllerService = made(broker, "a", lambda: self.core, self.default, SimpleNamespace(ask=None))
        self.service.is_active = True
        self.channel = cast(Channel, End())
        self.service._brokers[self.channel] = ms.BrokerIdentity("b", "uuid-b", "b/1", "amqp://b", "", "", "1")

    def _schedule_turn(self) -> None:
        self.turns += 1

    def says(self, *frames: cf.ControlFrame) -> None:
        """What comes from that broker."""
        for frame in frames:
            self.service.received(self.channel, cf.encode(frame))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def read(number: int) -> cf.RecordAsked:
    """A broker reads the record of a set."""
    return cf.RecordAsked(number, f"set{number}", None, None)


def test_what_brokers_say_in_a_round_of_the_loop_is_one_input_at_the_beginning_of_its_turn(bench: Bench) -> None:
    bench.says(read(1), cf.OrderDone(5, True, "done"), read(2))
    assert bench.core.heard == []
    assert bench.turns

    bench.service.turn_begins()
    bench.service.turn_begins()

    asked = [ms.RecordRequested("b", number, f"set{number}") for number in (1, 2)]
    assert bench.core.heard == [ms.HeardTogether((asked[0], ms.OrderAnswered("b", 5, True, "done"), asked[1]))]


def test_what_was_said_before_something_else_happened_reaches_the_core_before_it(bench: Bench) -> None:
    bench.says(read(1), read(2))
    bench.service.tick()
    assert [type(each) for each in bench.core.heard] == [ms.HeardTogether, ms.TimePassed]


def test_what_is_said_alone_is_an_input_by_itself(bench: Bench) -> None:
    bench.says(read(1))
    bench.service.turn_begins()
    assert bench.core.heard == [ms.RecordRequested("b", 1, "set1")]


def test_a_broker_that_leads_no_more_decides_nothing_that_was_said_before_it_knew(bench: Bench) -> None:
    bench.says(read(1), read(2))
    bench.default.replication.read_only = "this broker is connecting, not primary"
    bench.service.end("it leads no more")
    bench.service.turn_begins()
    assert bench.core.heard == [ms.ControllerEnded()]
