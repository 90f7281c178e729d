"""Which brokers have failed, as far as the controller can know: gone, or silent.

Nothing that is confirmed rests on this: a broker that is taken for lost and lives finds its generation outdated, and
who is taken for alive and is gone costs time. So it is quick where there is proof, and patient where there is none.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

FIRST_REPORTS_S: Final = 0.2
"""So long a new controller waits for the first reports of those that should lead some of what the one before it led: if
whoever is heard of first led all of it, one broker would have twice as much to do as another from then on."""


class BrokerLife(StrEnum):
    """What is known of a broker."""

    AWAITED = "awaited"
    """The controller is new, and has not heard of it yet."""
    ALIVE = "alive"
    LOST = "lost"


class Loss(NamedTuple):
    """A broker has failed."""

    name: str
    why: str
    since_s: float
    """When it was last known to be there."""


class Liveness:
    """The promise: each loss is told once, and what this table says is all that changes what a broker is.

    | it was | and since then | it is | why |
    | --- | --- | --- | --- |
    | alive, awaited | a reset connection, and another one is refused where it listened | lost | nobody is there |
    | awaited | looked for when the controller began: it is refused where it listens | lost | nobody is there |
    | alive, awaited | a reset or refused connection, and nothing for `gone_after_s` | lost | who lives is back |
    | alive, awaited | the same as the controller woke, and nothing for `failure_timeout_s` | lost | who lives is back |
    | alive | nothing for `failure_timeout_s` | lost | it hangs, or nobody can reach it |
    | awaited | nothing for `failure_timeout_s` since the controller began | lost | it was lost before |
    | alive, awaited | somebody said so | lost | it was fenced |
    | any | a report | alive | |

    A controller that slept itself has heard of nobody meanwhile: all are given their time anew. That others have ended
    their connections to it is what it would have done in their place; they are about to come again.
    """

    def __init__(self) -> None:
        self.own = ""
        self._life: dict[str, BrokerLife] = {}
        self._since_s: dict[str, float] = {}
        """When it was heard of last; of one that is awaited: since when; of one that is lost: since when."""
        self._reset_s: dict[str, float] = {}
        self._refusing: set[str] = set()
        """Those of the ones with a reset connection, or of which nothing was heard yet, that take no other one."""
        self._looked_s = 0.0
        self._woke_s = -inf
        """When the controller did, after it had slept."""

    def began(self, own: str, names: tuple[str, ...], now_s: float) -> None:
        """A new controller, on the broker `own`, knows these."""
        self.own = own
        self._life = dict.fromkeys(names, BrokerLife.AWAITED)
        self._since_s = dict.fromkeys(names, now_s)
        self._reset_s, self._looked_s, self._woke_s = {}, now_s, -inf
        self._refusing.clear()
        self._life[own] = BrokerLife.ALIVE

    def heard(self, name: str, now_s: float) -> bool:
        """Something came from it; whether it was not known to be alive."""
        before = self._life.get(name)
        self._life[name], self._since_s[name] = BrokerLife.ALIVE, now_s
        self._forget_reset(name)
        return before is not BrokerLife.ALIVE

    def disconnected(self, name: str, now_s: float) -> None:
        """Its connection was reset or refused."""
        if name in self._life and self._life[name] is not BrokerLife.LOST:
            self._reset_s.setdefault(name, now_s)

    def refuses(self, name: str, now_s: float) -> None:
        """Nobody listens where it did: it counts if its connection was reset, and nothing came from it since, or if
        nothing was heard of it yet."""
        if self.life(name) is BrokerLife.AWAITED:
            self._reset_s.setdefault(name, now_s)
        if name in self._reset_s:
            self._refusing.add(name)

    def fail(self, name: str, now_s: float) -> None:
        """Somebody knows that it is gone; `losses` does not tell it again."""
        self._life[name], self._since_s[name] = BrokerLife.LOST, now_s
        self._forget_reset(name)

    def forget(self, name: str) -> None:
        """It is of the cluster no more."""
        self._forget_reset(name)
        for table in (self._life, self._since_s):
            table.pop(name, None)

    def _forget_reset(self, name: str) -> None:
        self._reset_s.pop(name, None)
        self._refusing.discard(name)

    def life(self, name: str) -> BrokerLife:
        """Of one that nobody knows: lost."""
        return self._life.get(name, BrokerLife.LOST)

    def is_alive(self, name: str) -> bool:
        """Whether it was heard of, and is not lost since."""
        return self.life(name) is BrokerLife.ALIVE

    def is_expected(self, name: str, now_s: float) -> bool:
        """Whether a new controller hears of it in a moment, if it lives."""
        return self.life(name) is BrokerLife.AWAITED and now_s - self._since_s[name] < FIRST_REPORTS_S

    def is_in_doubt(self, name: str) -> bool:
        """Whether it is about to be known if it lives: it was not heard of yet, or its connection was reset."""
        return self.life(name) is BrokerLife.AWAITED or name in self._reset_s

    def lost_since_s(self, name: str) -> float | None:
        """When that was; None if this controller has not seen it, or it is not lost."""
        return self._since_s.get(name) if self.life(name) is BrokerLife.LOST else None

    def losses(self, now_s: float, gone_after_s: float, failure_timeout_s: float) -> list[Loss]:
        """Who has failed since the last call."""
        slept = now_s - self._looked_s > failure_timeout_s / 2
        self._looked_s = now_s
        if slept:
            self._reset_s = dict.fromkeys(self._reset_s, now_s)
            self._refusing.clear()
            self._woke_s = now_s
            self._since_s |= {name: now_s for name, life in self._life.items() if life is not BrokerLife.LOST}
            return []
        found = []
        for name, life in self._life.items():
            if life is BrokerLife.LOST or name == self.own:
                continue
            reset_s = self._reset_s.get(name, now_s)
            back_after_s = failure_timeout_s if reset_s - self._woke_s <= gone_after_s else gone_after_s
            if name in self._refusing or now_s - reset_s >= back_after_s:
                found.append(Loss(name, "its process is gone", self._reset_s[name]))
            elif now_s - self._since_s[name] >= failure_timeout_s:
                why = f"nothing was heard of it for {failure_timeout_s:g} s"
                found.append(Loss(name, why, self._since_s[name]))
        for loss in found:
            self.fail(loss.name, now_s)
        return found
