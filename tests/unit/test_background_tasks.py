"""What is done again and again as long as somebody has need of it."""

from __future__ import annotations

import asyncio

from event_loops import in_event_loop
from qpid_ha_broker.server.runtime.background_tasks import TicksWhileUsed
from qpid_ha_broker.server.runtime.logs import NoticeLog


class Ticked:
    """Counts its ticks, and needs `needs` of them. `fails_at`: the tick in which there is a bug."""

    def __init__(self, needs: int, fails_at: int = 0) -> None:
        self.needs = needs
        self.count = 0
        self.notices = NoticeLog()
        self._fails_at = fails_at
        self.ticks = TicksWhileUsed(0.0, lambda: self.count < self.needs, self._tick, self.notices.bugs_noted)

    def _tick(self) -> None:
        self.count += 1
        if self.count == self._fails_at:
            raise AssertionError("a bug")


async def rounds(number: int) -> None:
    """So many of the loop, or some more."""
    for _ in range(4 * number):
        await asyncio.sleep(0)


@in_event_loop
async def test_it_ends_when_nobody_has_need_of_it_and_begins_again() -> None:
    ticked = Ticked(needs=3)
    for _ in range(2):
        ticked.ticks.start()
    await rounds(10)
    assert ticked.count == 3

    ticked.needs = 5
    await rounds(10)
    assert ticked.count == 3
    ticked.ticks.start()
    await rounds(10)
    assert ticked.count == 5


@in_event_loop
async def test_a_bug_in_a_tick_is_noted_and_the_next_ticks_come() -> None:
    ticked = Ticked(needs=5, fails_at=2)
    ticked.ticks.start()
    await rounds(10)
    assert (ticked.count, ticked.notices.bugs_total) == (5, 1)


@in_event_loop
async def test_who_has_ended_is_ticked_no_more() -> None:
    ticked = Ticked(needs=100)
    ticked.ticks.start()
    await rounds(2)
    ticked.ticks.cancel()
    before = ticked.count
    await rounds(5)
    assert ticked.count <= before + 1
