"""Commands whose answer waits until what they have written is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from qpid_ha_broker.model.commands.administration import Done, Outcome, Result
from qpid_ha_broker.model.errors import ModelError, fresh
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.control.control import REFUSED, ControlError
from qpid_ha_broker.server.runtime.due_parties import nobody_asks


class CommitWaiters:
    """The promise: whoever waits hears once, that all is done and committed, or why nobody here can say so."""

    def __init__(self, schedule_turn: Callable[[], None]) -> None:
        self._schedule_turn = schedule_turn
        self._waiting: list[tuple[Outcome[Any], asyncio.Future[Any]]] = []
        self.due: Callable[[], None] = nobody_asks
        """Called when somebody begins to wait: see `turn_ended`."""

    async def wait_committed(self, written: CommitToken) -> None:
        """Come back once `written` is committed. Raises ControlError when that is for others to decide."""
        await self.wait_done(Done(None, written))

    async def wait_done(self, outcome: Outcome[Result]) -> Result:
        """The result of a command, once all of it is done and committed.

        Raises the ModelError for which it was given up, or ControlError when that is for others to decide.
        """
        waiter: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((outcome, waiter))
        self.due()
        self._schedule_turn()
        return await waiter

    def turn_ended(self) -> bool:
        """Tell those of whose outcome all is committed; whether others go on waiting."""
        for outcome, waiter in self._waiting:
            if waiter.done():
                continue
            try:
                done = outcome.done()
            except ModelError as error:
                waiter.set_exception(fresh(error))
                continue
            if done is not None and done.written.is_committed:
                waiter.set_result(done.result)
        self._waiting = [item for item in self._waiting if not item[1].done()]
        return bool(self._waiting)

    def refuse(self, resources: Resources) -> None:
        """This broker is primary of that set no more: what becomes of the last events there, others decide."""
        waiting = [item for item in self._waiting if any(item[0].is_of(log) for log in resources.sets.logs)]
        self._waiting = [item for item in self._waiting if item not in waiting]
        text = "this broker stopped being primary before the change was committed: ask the next one whether it was kept"
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(ControlError(REFUSED, text, {"reason": "not-primary"}))
