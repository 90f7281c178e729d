"""A turn comes at the earliest time that was asked for, and then no more."""

from __future__ import annotations

import asyncio
import time
from math import inf

from event_loops import in_event_loop
from qpid_ha_broker.server.sets.turn_timer import TurnTimer


@in_event_loop
async def test_an_earlier_time_replaces_a_later_one_and_a_later_one_changes_nothing() -> None:
    turned, turns = asyncio.Event(), list[float]()

    def turn() -> None:
        turns.append(time.monotonic())
        turned.set()

    timer = TurnTimer(turn)
    far_s = time.monotonic() + 600.0
    for due_s in (inf, far_s, time.monotonic(), far_s):
        timer.set(due_s)
    async with asyncio.timeout(60.0):
        await turned.wait()
    assert len(turns) == 1
    timer.set(time.monotonic())
    timer.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(turns) == 1
