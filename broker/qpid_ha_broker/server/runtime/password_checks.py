"""Passwords that clients say (PLAIN), computed beside the loop: each takes a processor some milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from qpid_ha_broker.amqp.wire.sasl_server import PasswordAsked
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.daemon_threads import DAEMON_THREADS


class PasswordChecks:
    """The promise: however many say passwords, one is computed at a time, and no turn of the loop waits for it.

    Who guesses can so make others wait who say theirs, and nobody who proves it, or has logged in.
    """

    def __init__(self) -> None:
        self._tasks = BackgroundTasks()
        self._one_at_a_time = asyncio.Lock()

    def start(self, asked: PasswordAsked, is_wanted: Callable[[], bool], tell: Callable[[bool], None]) -> None:
        """`tell` whether it is the password, unless it is not wanted any more when its turn comes."""
        self._tasks.start(self._check(asked, is_wanted, tell))

    async def _check(self, asked: PasswordAsked, is_wanted: Callable[[], bool], tell: Callable[[bool], None]) -> None:
        async with self._one_at_a_time:
            if not is_wanted():
                return
            is_right = await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, asked.is_right)
        if is_wanted():
            tell(is_right)

    def cancel(self) -> None:
        """Wait for nothing any more."""
        self._tasks.cancel()
