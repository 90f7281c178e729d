"""What the log says of a broker's `ha.brokers-url`: who does not answer there, and whether this broker is in it. Pure.

A broker that can reach nobody waits for a primary, and nothing else is to be seen of that. So it says so, by what comes
of asking all addresses now and then; the first of these cases that applies:

1. All is well: nothing, or that it is, after something was said.
2. What is wrong was not so for `SAY_AFTER_S` yet: nothing. Brokers that are started together come one by one.
3. It was said less than `SAY_AGAIN_S` ago, of the same addresses: nothing.
4. Else a line for those that do not answer, and one if none of the addresses is this broker's own.

Who has answered before is not spoken of by a broker that has a primary or is it: it was stopped, or has failed, which
is in the log otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SAY_AFTER_S: Final = 3.0
SAY_AGAIN_S: Final = 600.0


class Reachability:
    """Of all addresses but this broker's own, once that is known."""

    def __init__(self) -> None:
        self._have_answered: set[str] = set()
        self._since_s: float | None = None
        """Something is wrong since then; None: nothing is."""
        self._said: frozenset[str] | None = None
        """Of which addresses something was said last; None: nothing was said, or that all is well."""
        self._said_s = 0.0

    @property
    def is_well(self) -> bool:
        """Nothing was wrong at the last look."""
        return self._since_s is None

    def look(
        self, silent: Mapping[str, str], asked: frozenset[str], now_s: float, *, knows_itself: bool, is_served: bool
    ) -> list[str]:
        """Lines for the log. `silent`: of `asked`, who did not answer, and why. `knows_itself`: one of the addresses is
        this broker's own. `is_served`: it leads, or has a primary."""
        self._have_answered |= asked - silent.keys()
        missed = {address: why for address, why in silent.items() if not (is_served and address in self._have_answered)}
        if not missed and knows_itself:
            said, self._since_s, self._said = self._said, None, None
            return [] if said is None else ["all brokers of ha.brokers-url answer"]
        if self._since_s is None:
            self._since_s = now_s
        about = frozenset(missed) | (frozenset() if knows_itself else frozenset({""}))
        is_news = self._said is None or not about <= self._said
        if now_s - self._since_s < SAY_AFTER_S or not (is_news or now_s - self._said_s >= SAY_AGAIN_S):
            return []
        self._said, self._said_s = about, now_s
        lines = []
        if missed:
            each = ", ".join(f"{address} ({why})" for address, why in missed.items())
            lines.append(f"no broker answers at {each}: does it run, and is ha.brokers-url right?")
        if not knows_itself:
            addresses = ", ".join(sorted(asked))
            lines.append(
                f"this broker is at none of the addresses of ha.brokers-url ({addresses}), so others do not find it:"
                " add the one at which it listens, on all brokers"
            )
        return lines
