"""Work that is about all queues, or all of anything, done between the turns of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Final, TypeVar

from qpid_ha_broker.model.budget import Budget

SLICE_S: Final = 0.001
"""So long at once; then it is everybody else's turn first."""

Result = TypeVar("Result")


async def in_slices(steps: Generator[None, None, Result]) -> Result:
    """Carry out what pauses now and then: at most SLICE_S and one step at a time. What it returns."""
    budget = Budget(time.perf_counter, SLICE_S)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        if budget.is_spent:
            await asyncio.sleep(0)
            budget = Budget(time.perf_counter, SLICE_S)
