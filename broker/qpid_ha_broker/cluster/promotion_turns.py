"""In which order a broker is told to lead many sets: some at a time, so that the first are led while others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from qpid_ha_broker.cluster.context import ControllerContext

PROMOTED_AT_ONCE = 96
"""So many sets at most a broker is told to lead before it has answered. Each goes through the same steps, one turn
after the other: if hundreds began together, the first would be led when the last is. With far fewer, the last are led
so late on a machine that is busy that the failed broker is back by then, with all that it has to catch up with."""
FIRST_AT_ONCE = 16
"""The same while it has answered none of those, for FIRST_S: the first of its clients wait for these alone."""
FIRST_S = 0.1


class PromotionTurns:
    """The promise: no set has to wait for one of which the broker has not said for ORDER_LIMIT_S what came of it."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._beginning: Counter[str] | None = None
        """How many sets each broker was told to lead and has not answered. None: not counted in this pass."""
        self._first_until_s: dict[str, float] = {}
        """So long a broker is told to lead FIRST_AT_ONCE and no more."""
        self._held: dict[str, str] = {}
        """Sets that are led after others, with the broker that is to lead them."""
        self._answered: set[str] = set()
        """Brokers that have answered since the last look."""

    def began(self) -> None:
        """A new controller knows of none that wait."""
        self._held.clear()
        self._answered.clear()
        self._first_until_s.clear()

    def begin_pass(self) -> None:
        """What is counted is counted once for many sets."""
        self._beginning = None

    @property
    def held(self) -> Collection[str]:
        """The sets that wait for others: `go_on` has them looked at when it is their turn."""
        return self._held.keys()

    def forget_set(self, name: str) -> None:
        """It is led, or was deleted."""
        self._held.pop(name, None)

    def has_turn(self, broker: str, name: str) -> bool:
        """Whether a broker is to be told to lead that set now; if not, `go_on` has it looked at again.

        One that has not answered is told again in any case, and others do not wait for that.
        """
        self._held.pop(name, None)
        if self._ctx.orders.was_told_to_lead(broker, name):
            return True
        beginning = self._counted()
        if not beginning[broker]:
            self._first_until_s[broker] = self._ctx.now_s + FIRST_S
        if beginning[broker] < self._most(broker):
            beginning[broker] += 1
            return True
        self._held[name] = broker
        return False

    def _most(self, broker: str) -> int:
        return FIRST_AT_ONCE if self._ctx.now_s < self._first_until_s.get(broker, 0.0) else PROMOTED_AT_ONCE

    def _counted(self) -> Counter[str]:
        if self._beginning is None:
            self._beginning = self._ctx.orders.beginning(self._ctx.now_s)
        return self._beginning

    def went_on(self, broker: str) -> None:
        """It has answered."""
        self._first_until_s.pop(broker, None)
        self._answered.add(broker)

    def time_passed(self) -> None:
        """The first may have had their time, and what was never answered counts no more."""
        self._answered.update(self._held.values())

    def go_on(self) -> None:
        """Before sets are looked at: have the next ones looked at, too, several at once."""
        answered, self._answered = self._answered, set()
        for broker in answered if self._held else ():
            room = self._most(broker) - self._counted()[broker]
            if room >= self._most(broker) // 2:
                for name in [name for name, leader in self._held.items() if leader == broker][:room]:
                    del self._held[name]
                    self._ctx.dirty.add(name)
