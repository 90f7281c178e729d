"""Coroutines that run beside their owner: kept while they run, cancelled when the owner ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class BackgroundTasks:
    """The promise: what was started runs to its end, or to `cancel`. The loop alone would let go of it any time."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Have `work` done, beginning in a later round of the loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Wait for nothing any more."""
        for task in self._tasks:
            task.cancel()
