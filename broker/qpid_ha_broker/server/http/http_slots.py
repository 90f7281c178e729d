"""How many requests with a token are under way: of one token, and of all together."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

PER_TOKEN: Final = 8
IN_ALL: Final = 16
"""Each may have an answer of some megabytes, and shares the event loop with all messages."""
RETRY_AFTER_S: Final = 1


class SlotRefusal(NamedTuple):
    """Why there is none, with the status of HTTP that says so."""

    status: int
    problem: str


class RequestSlots:
    """The promise: no token has more than PER_TOKEN requests under way, and all together no more than IN_ALL.

    A request is under way from its head until its answer is written, or its work has ended, whichever is later.
    """

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self.refused_total = 0

    def take(self, token: str) -> SlotRefusal | None:
        """One for a request with the token of that name, to be given back; or why there is none."""
        if self._taken[token] >= PER_TOKEN:
            refusal = SlotRefusal(429, f"{PER_TOKEN} requests with this token are under way: await their answers")
        elif self._taken.total() >= IN_ALL:
            refusal = SlotRefusal(503, f"{IN_ALL} requests are under way: try again")
        else:
            self._taken[token] += 1
            return None
        self.refused_total += 1
        return refusal

    def give_back(self, token: str) -> None:
        """One that was taken."""
        self._taken[token] -= 1
        if not self._taken[token]:
            del self._taken[token]

    @property
    def count(self) -> int:
        """Requests that are under way."""
        return self._taken.total()
