"""What messages take that are on their way through this broker, and how much of it each link may have.

Who relays keeps a message until both ends have answered it: its bytes, and Proton's buffers of the link that it came on
and of the one that it goes out on, which keep their size until the delivery is settled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakSet

from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint

COPIES: Final = 3
"""Of the bytes of a message that is under way."""
LINK_BYTES: Final = 4 * 1024 * 1024
"""Of messages that one link may have under way, where there are few: what a fast network has on its way."""
FIRST_MESSAGES: Final = 10
"""That a link may have under way at most before any has shown how large they are."""
FIRST_BYTES: Final = 64 * 1024
"""What each of those is taken for."""
ALL_LINKS: Final = 8
"""Links together may have under way this part of `memory-limit`; for what is there from before there is as much again,
and beyond that nobody asks for anything."""


class Holding(Protocol):
    """A consumer's link for which messages are held."""

    def look_at_held(self) -> None:
        """Time went by, while messages are held for which its client has no credit."""


class RelayedMemory:
    """The promise: what is relayed is counted in the one limit, and takes at most a part of it, but for one message of
    each link. `limit_bytes`: of memory, now."""

    def __init__(self, limit_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self.bytes = 0
        """Under way, all copies of it."""
        self.links: WeakSet[LinkEndpoint] = WeakSet()
        """Those that are relayed."""
        self._starved: dict[LinkEndpoint, None] = {}
        self.holding: dict[Holding, None] = {}
        """Those that look at what they hold in each turn."""

    def hold(self, size: int) -> None:
        """A message of that size is under way."""
        self.bytes += size * COPIES

    def let_go(self, size: int) -> None:
        """It is not any more."""
        self.bytes -= size * COPIES

    @property
    def link_bytes(self) -> int:
        """Of messages that one link may have under way."""
        share = self._limit_bytes() // (ALL_LINKS * COPIES * (len(self.links) or 1))
        return min(LINK_BYTES, max(1, share))

    @property
    def is_full(self) -> bool:
        """Nobody may ask for more."""
        return self.bytes >= self._limit_bytes() * 2 // ALL_LINKS

    @property
    def is_exceeded(self) -> bool:
        """What is under way is twice of what anybody may ask for: somebody sends without having been asked."""
        return self.bytes >= self._limit_bytes() * 4 // ALL_LINKS

    def has_room(self, link: LinkEndpoint) -> bool:
        """Whether `link` may ask for more; if not, it is told to `replenish` when there is room again."""
        if not self.is_full:
            return True
        self._starved[link] = None
        return False

    def forget(self, link: LinkEndpoint) -> None:
        """It asks for nothing more."""
        self._starved.pop(link, None)

    def tell_waiting(self) -> None:
        """Once in each turn: let those go on that wait, if there is room, and those that hold messages look at them."""
        for holding in list(self.holding) if self.holding else ():
            holding.look_at_held()
        if self._starved and self.bytes * 10 < self._limit_bytes() * 18 // ALL_LINKS:
            starved, self._starved = self._starved, {}
            for link in starved:
                link.replenish()
