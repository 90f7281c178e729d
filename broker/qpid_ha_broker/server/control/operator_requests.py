"""What operators ask of the core over the control socket, and who waits for the outcome."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.logs.log import DEFAULT_SET

log = logging.getLogger("cluster")


class OperatorRequests:
    """The promise: each request reaches the core under a number of its own, and hears of its own outcome only."""

    def __init__(self, member: Member, feed: Callable[[fx.Input], None]) -> None:
        self._member = member
        self._feed = feed
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[fx.Answered]] = {}
        self._told: dict[int, Callable[[fx.Answered], None]] = {}

    def begin(self, make: Callable[[int], fx.Input], done: Callable[[fx.Answered], None]) -> None:
        """Feed the input that `make` gives for a number; `done` is called with what came of it, if anything does."""
        number = next(self._numbers)
        self._told[number] = done
        self._feed(make(number))

    async def carry_out(self, make: Callable[[int], fx.Input]) -> fx.Answered:
        """Feed the input that `make` gives for a number; what came of it. May be cancelled: the request stands."""
        number = next(self._numbers)
        waiter: asyncio.Future[fx.Answered] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiter
        try:
            self._feed(make(number))
            return await waiter
        finally:
            self._waiting.pop(number, None)

    def answered(self, effect: fx.Answered) -> None:
        """The member says what came of a request."""
        if effect.text != self._member.status.problem:  # that is in the log already, perhaps for the hundredth attempt
            of_set = "" if self._member.set == DEFAULT_SET else f"set {self._member.set}: "
            log.log(logging.INFO if effect.done else logging.WARNING, "%s%s", of_set, effect.text)
        done = self._told.pop(effect.request, None)
        if done is not None:
            done(effect)
        waiter = self._waiting.get(effect.request)
        if waiter is not None and not waiter.done():
            waiter.set_result(effect)

    def cancel(self) -> None:
        """Nothing will come of them any more."""
        self._told.clear()
        for waiter in self._waiting.values():
            waiter.cancel()
