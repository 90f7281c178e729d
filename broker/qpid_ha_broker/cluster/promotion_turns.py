"""In which order a broker is told to lead many sets: some at a time, so that the first are led while others wait."""

from __future__ import annotations

from collections import Counter

from qpid_ha_broker.cluster.context import ControllerContext

PROMOTED_AT_ONCE = 96
"""So many sets at most a broker is told to lead before it has answered. Each goes through the same steps, one turn
after the other: if hundreds began together, the first would be led when the last is. With far fewer, the last are led
so late on a machine that is busy that the failed broker is back by then, with all that it has to catch up with."""


class PromotionTurns:
    """The promise: no set has to wait for one of which the broker has not said for ORDER_LIMIT_S what came of it."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._beginning: Counter[str] | None = None
        """How many sets each broker was told to lead and has not answered. None: not counted in this pass."""
        self._held: dict[str, dict[str, None]] = {}
        """By broker: sets that it is to lead after others."""

    def began(self) -> None:
        """A new controller knows of none that wait."""
        self._held.clear()

    def begin_pass(self) -> None:
        """What is counted is counted once for many sets."""
        self._beginning = None

    def has_turn(self, broker: str, name: str) -> bool:
        """Whether a broker is to be told to lead that set now; if not, `went_on` has it looked at again.

        One that has not answered is told again in any case, and others do not wait for that.
        """
        ctx = self._ctx
        if ctx.orders.was_told_to_lead(broker, name):
            return True
        if self._beginning is None:
            self._beginning = ctx.orders.beginning(ctx.now_s)
        if self._beginning[broker] < PROMOTED_AT_ONCE:
            self._beginning[broker] += 1
            return True
        self._held.setdefault(broker, {})[name] = None
        return False

    def went_on(self, broker: str) -> None:
        """It has answered: have the next ones looked at, several at once."""
        held = self._held.get(broker)
        if not held:
            return
        room = PROMOTED_AT_ONCE - self._ctx.orders.beginning(self._ctx.now_s)[broker]
        if room >= PROMOTED_AT_ONCE // 2:
            for name in list(held)[:room]:
                del held[name]
                self._ctx.dirty.add(name)
