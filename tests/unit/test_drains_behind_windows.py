"""A drain of a client that does not read, so that its window closes: answered behind what waits, and for it alone."""

from __future__ import annotations

from random import Random
from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient


class SlowReader:
    """A consumer whose client takes few frames at a time, and reads when it is told to."""

    def __init__(self, broker: PairedBroker, frames: int) -> None:
        self.broker = broker
        filler = broker.connect()
        self._filler, self._out = filler, filler.sender("q")
        self._client = PairedClient(broker)
        self._client.transport.max_frame_size = 1024
        self._client.session.incoming_capacity = frames * 1024
        self.link: Any = self._client.session.receiver("in")
        self.link.source.address = "q"
        self.link.open()
        broker.settle_down()
        self.queued = self.came = 0
        """Messages that are in the queue or were; and those that were read."""

    def fill(self, *sizes: int) -> None:
        """Messages come into the queue."""
        for size in sizes:
            self._filler.send(self._out, proton.Message("x" * size))
        self.broker.settle_down()
        self.queued += len(sizes)

    def read(self) -> bool:
        """One message, if one has come; it is accepted."""
        delivery = self.link.current
        if delivery is None or not delivery.readable or delivery.partial:
            return False
        self.link.recv(delivery.pending)
        self.link.advance()
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
        self.came += 1
        self.broker.settle_down()
        return True

    def flow(self, credit: int, *, drain: bool) -> None:
        """More credit, and whether all of it is to be drained."""
        if drain:
            self.link.drain(credit)
        else:
            self.link.drain_mode = False
            self.link.flow(credit)
        self.broker.settle_down()

    @property
    def arrived(self) -> int:
        """Messages that have come, read or not."""
        return self.came + int(self.link.queued)

    @property
    def left(self) -> int:
        """Credit for what has not come. Below 0: more came than there was credit for."""
        return int(self.link.credit) - int(self.link.queued)


def test_a_drain_that_is_taken_back_before_it_was_answered_costs_no_credit(broker: PairedBroker) -> None:
    reader = SlowReader(broker, frames=1)
    reader.fill(700, 700, 700)
    reader.flow(5, drain=True)
    assert (reader.arrived, reader.left) == (1, 4), "the others wait for the window"
    reader.flow(0, drain=False)
    while reader.read():
        pass
    assert (reader.came, reader.left) == (3, 2), "credit was given up for a drain that the client had taken back"
    reader.fill(10)
    assert (reader.arrived, reader.left) == (4, 1)


def test_a_drain_is_answered_behind_the_messages_that_wait_for_the_window(broker: PairedBroker) -> None:
    reader = SlowReader(broker, frames=1)
    reader.fill(700, 700, 700)
    reader.flow(5, drain=True)
    lefts = [reader.left]
    while reader.read():
        lefts.append(reader.left)
    assert lefts[:2] == [4, 3]
    assert (reader.came, reader.left) == (3, 0)
    reader.flow(2, drain=True)
    assert reader.left == 0
    reader.fill(10)
    assert reader.arrived == 3
    reader.flow(1, drain=False)
    assert (reader.arrived, reader.left) == (4, 0)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_client_drains_and_takes_back_it_gets_what_is_there_and_no_more_than_it_may(
    broker: PairedBroker, seed: int
) -> None:
    """2 is one that showed that a drain was answered when it had been taken back."""
    draw = Random(seed)
    reader = SlowReader(broker, frames=draw.choice((1, 2, 4)))
    due = 0
    for _ in range(60):
        chance = draw.random()
        if chance < 0.25:
            reader.fill(*[draw.choice((10, 300, 700)) for _ in range(draw.randint(1, 6))])
        elif chance < 0.4:
            reader.flow(draw.randint(1, 8), drain=False)
        elif chance < 0.6:
            if not reader.link.drain_mode:
                due = reader.queued
            reader.flow(draw.randint(0, 8), drain=True)
        elif chance < 0.7:
            reader.flow(0, drain=False)
        else:
            reader.read()
        assert reader.left >= 0
        if reader.link.drained():
            assert reader.arrived >= due, "the drain was answered before all had come that was there"
    while reader.came < reader.queued:
        reader.flow(0 if reader.left else 3, drain=True)
        while reader.read():
            assert reader.left >= 0
        assert reader.left == 0, "it is stuck"
