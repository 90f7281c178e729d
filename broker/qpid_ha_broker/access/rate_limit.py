"""How many messages a user's publishers may send: a token bucket whose tokens are credit on links.

Credit costs a token when it is given, and comes back when its link ends without having used it. So nothing is counted
for each message, and over any longer time no more come than the rate says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

BURST_S: Final = 1.0
"""What a bucket holds: the tokens of so long a time, at least one."""
WINDOW_S: Final = 0.25
"""Credit that all links of a user together have at most: that of so long a time, at least 1 for each link. Beyond that
the sum of the two is what may come at once from who has sent nothing for a while."""
WAKE_S: Final = 0.05
"""Links that wait are told when there are the tokens of so long a time, or one: not once for each message."""


LATE_S: Final = 0.001
"""Added to what is waited for, so that it is there however clocks are rounded."""

NO_SHARE: Final = 1 << 31


class TokenBucket:
    """The promise: in `s` seconds it gives at most `rate * (s + BURST_S)` tokens, but one at least after 1 / rate."""

    def __init__(self, rate: float, now_s: float) -> None:
        """`rate`: tokens a second, above 0. It is full at first. `now_s` comes from a clock that never goes back."""
        self.rate = rate
        self._tokens = self.burst
        self._at_s = now_s

    @property
    def burst(self) -> float:
        """Tokens that it holds at most."""
        return max(self.rate * BURST_S, 1.0)

    def change(self, rate: float, now_s: float) -> None:
        """From now on it fills at another rate; what it holds stays, up to the burst."""
        self._fill(now_s)
        self.rate = rate
        self._tokens = min(self._tokens, self.burst)

    def take(self, most: int, now_s: float) -> int:
        """As many tokens as there are, up to `most`."""
        self._fill(now_s)
        taken = max(min(most, int(self._tokens)), 0)
        self._tokens -= taken
        return taken

    def give_back(self, count: int) -> None:
        """Tokens that were taken and not used."""
        self._tokens = min(self._tokens + count, self.burst)

    def wait_s(self, count: float, now_s: float) -> float:
        """How long until there are `count`, which is no more than the burst."""
        self._fill(now_s)
        return max(count - self._tokens, 0.0) / self.rate

    def count(self, now_s: float) -> float:
        """The tokens that there are."""
        self._fill(now_s)
        return self._tokens

    def _fill(self, now_s: float) -> None:
        self._tokens = min(self._tokens + (now_s - self._at_s) * self.rate, self.burst)
        self._at_s = now_s


class PacedLink(Protocol):
    """A publisher's link."""

    def replenish(self) -> None:
        """Ask for credit again, if some is due."""


class RateLimit:
    """The credit that the links of one user get.

    The promise: a link that has asked for credit and got none is told when there is some, in the order of asking.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float],
        held: dict[RateLimit, None],
        turn_after: Callable[[float], None],
    ) -> None:
        """`held`: where this is while links wait. `turn_after`: has `wake` called after so many seconds."""
        self._clock = clock
        self._bucket = TokenBucket(rate, clock())
        self._held = held
        self._turn_after = turn_after
        self._links: dict[PacedLink, int] = {}
        """What credit each has been given."""
        self._waiting: dict[PacedLink, None] = {}
        self._share = NO_SHARE
        """Of the credit that there is for those who have waited, while they are told."""

    def change(self, rate: float) -> None:
        """Another rate is in force."""
        self._bucket.change(rate, self._clock())

    def take(self, link: PacedLink, due: int, left: int) -> int:
        """How much of the credit that is due `link` gets now, which has `left`; 0: it has enough, or it waits."""
        given = self._links.setdefault(link, 0)
        window = max(int(self._bucket.rate * WINDOW_S / len(self._links)), 1)
        wanted = min(due, window - left, self._share)
        if wanted <= 0 or left * 2 > window:
            return 0
        taken = 0 if self._waiting else self._bucket.take(wanted, self._clock())  # others have asked before
        if taken:
            self._links[link] = given + taken
        else:
            self._waiting[link] = None
            if self not in self._held:
                self._held[self] = None
                self._turn_after(self.wait_s() + LATE_S)
        return taken

    def left(self, link: PacedLink, left: int) -> None:
        """`link` has ended, with so much credit that it has not used."""
        given = self._links.pop(link, 0)
        self._waiting.pop(link, None)
        self._bucket.give_back(max(min(left, given), 0))

    def is_waiting(self, link: PacedLink) -> bool:
        """Whether `link` has asked for credit, and there was none."""
        return link in self._waiting

    def wake(self, *, all_of_them: bool = False) -> None:
        """Tell those that wait, if there is credit again; `all_of_them`: in any case."""
        if all_of_them or self.wait_s() <= 0:
            del self._held[self]
            waiting, self._waiting = self._waiting, {}
            self._share = max(int(self._bucket.count(self._clock())) // max(len(waiting), 1), 1)
            for link in waiting:
                link.replenish()
            self._share = NO_SHARE

    def wait_s(self) -> float:
        """How long until there is something to tell."""
        return self._bucket.wait_s(max(self._bucket.rate * WAKE_S, 1.0), self._clock()) if self._waiting else 0.0

    @property
    def is_idle(self) -> bool:
        """There is nothing to be remembered of it."""
        return not self._links and self._bucket.count(self._clock()) >= self._bucket.burst
