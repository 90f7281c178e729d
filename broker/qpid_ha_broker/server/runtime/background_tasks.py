"""Coroutines that run beside their owner, which are kept while they run, and what is done again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager


class BackgroundTasks:
    """The promise: what was started runs to its end, or to `cancel`. The loop alone would let go of it any time."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Have `work` done, beginning in a later round of the loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def cancel(self) -> None:
        """Wait for nothing any more."""
        for task in self._tasks:
            task.cancel()


class TicksWhileUsed:
    """The promise: from `start` on, and as long as `is_used`, `tick` is called again and again, also when a bug has
    ended one of the calls: what waits for the next one would wait for ever.

    `pause_s`: before each call. `bugs_noted`: what a call is done in, so that a bug is written down.
    """

    def __init__(
        self,
        pause_s: float,
        is_used: Callable[[], bool],
        tick: Callable[[], None],
        bugs_noted: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._pause_s = pause_s
        self._is_used = is_used
        self._tick = tick
        self._bugs_noted = bugs_noted
        self._tasks = BackgroundTasks()
        self._is_ticking = False

    def start(self) -> None:
        """There is something to tick for."""
        if not self._is_ticking:
            self._is_ticking = True
            self._tasks.start(self._go_on())

    async def _go_on(self) -> None:
        while self._is_used():
            await asyncio.sleep(self._pause_s)
            with self._bugs_noted():
                self._tick()
        self._is_ticking = False

    def cancel(self) -> None:
        """Tick no more."""
        self._tasks.cancel()
