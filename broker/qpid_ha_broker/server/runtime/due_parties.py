"""Who has something to do at the end of a turn: parties put themselves on a list, and nobody else is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum, auto
from functools import partial
from typing import Final, Generic, TypeVar

Party = Callable[[], object]
"""Does what it has; true: it waits for something more, so it is to be asked in the next turn, too, whenever that is."""


Item = TypeVar("Item")


def nobody_asks() -> None:
    """For who has nobody to be asked by."""


class DueItems(Generic[Item]):
    """What a party has to do something with, once each and in the order in which it was put there."""

    __slots__ = ("due", "items")

    def __init__(self) -> None:
        self.items: dict[Item, None] = {}
        self.due: Callable[[], None] = nobody_asks
        """Called when there is one more."""

    def put(self, item: Item) -> None:
        """One more, if it is not there yet."""
        self.items[item] = None
        self.due()

    def take(self) -> Iterable[Item]:
        """All of them."""
        items, self.items = self.items, {}
        return items


class TurnPlace(IntEnum):
    """The parties, in the order in which they are asked; what those before CONNECTIONS have goes out in that turn."""

    CLUSTER = 0
    """Who leads `default` has changed, or what its member is."""
    FORWARDING = auto()
    """Something came to an exchange for a queue of another set."""
    MEMBERS = auto()
    """Sets other than `default` had a turn."""
    CONTROLLER = auto()
    """It waits until the cluster map is committed."""
    HOSTING = auto()
    """A set is to be hosted here, or not any more."""
    DIRECTORY = auto()
    """A set may have other queues than the cluster map says."""
    REPORT = auto()
    """The controller is to hear of something."""
    SHARED = auto()
    """There is something for the connections that carry sub-channels."""
    CONNECTIONS = auto()
    """Links may have touched theirs."""
    RELAYS = auto()
    """There is something for the brokers that links of clients are relayed to."""
    REMOTES = auto()
    """The same, for brokers outside of the cluster."""
    WAITERS = auto()
    """Commands wait until what they wrote is committed."""
    METRICS = auto()
    """Commits are timed."""
    NOTICES = auto()
    """There is something for the operator's log."""


_ALL: Final = (1 << len(TurnPlace)) - 1
_WRITTEN: Final = (1 << TurnPlace.CONNECTIONS) - 1


class DueParties:
    """The promise: who is on the list is asked once, in the order of places, and nobody else is.

    Who is put on it while others are asked has its turn yet if its place is still to come; else in the next one, for
    which `are_due` says that there is a reason.
    """

    __slots__ = ("_due", "_parties", "_waiting")

    def __init__(self) -> None:
        self._parties: dict[int, Party] = {}
        """By the bit of its place."""
        self._due = 0
        """The bits of those that are to be asked."""
        self._waiting = 0
        """The bits of those that are to be asked in the next turn, but are no reason for one."""

    def join(self, place: TurnPlace, party: Party) -> Callable[[], None]:
        """Have `party` at that place; what is returned puts it on the list."""
        self._parties[1 << place] = party
        return partial(self.put, place)

    def leave(self, place: TurnPlace) -> None:
        """There is nobody at that place any more."""
        bit = 1 << place
        self._parties.pop(bit, None)
        self._due &= ~bit
        self._waiting &= ~bit

    def put(self, place: TurnPlace) -> None:
        """The party there, if there is one, has something."""
        bit = 1 << place
        if bit in self._parties:
            self._due |= bit

    @property
    def are_due(self) -> bool:
        """Whether a party has something that is still to be done."""
        return self._due != 0

    def ask_writers(self) -> None:
        """Those before CONNECTIONS."""
        self._ask(_WRITTEN)

    def ask(self) -> None:
        """All that have not been asked in this turn yet."""
        self._ask(_ALL)

    def _ask(self, places: int) -> None:
        waiting, self._waiting = self._waiting & places, self._waiting & ~places
        self._due |= waiting
        while due := self._due & places:
            bit = due & -due
            places &= -(bit << 1)  # those behind it
            self._due &= ~bit
            if self._parties[bit]():
                self._waiting |= bit
