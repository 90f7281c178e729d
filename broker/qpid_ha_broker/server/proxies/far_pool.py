"""Which far links go over which connections: decided here, without a socket or a clock, and carried out by `far_links`.

Pools of connections of HTTP clients decide so about requests (`_assign_requests_to_connections` in httpcore). A link
stays longer than a request, and its node may be at another broker meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

PAUSE_S: Final = 0.05
"""Between two rounds over the brokers of a way, at first."""


class Pooled(Protocol):
    """A connection of the pool, open or about to be."""

    @property
    def room(self) -> int:
        """So many links more may be attached over it."""


AnyPooled = TypeVar("AnyPooled", bound=Pooled)
AnyLink = TypeVar("AnyLink")


class AddressRounds:
    """Some brokers that are tried in turn: who is next, and when."""

    def __init__(self, addresses: tuple[str, ...], pause_most_s: float) -> None:
        self._addresses = addresses
        self._next = 0
        self._pause_s = PAUSE_S
        self._pause_most_s = pause_most_s
        self._retry_s = 0.0

    def take_address(self, now_s: float) -> str | None:
        """Of the broker that is tried now; None: not yet. After the last one there is a pause, which doubles."""
        if now_s < self._retry_s:
            return None
        address = self._addresses[self._next]
        self._next = (self._next + 1) % len(self._addresses)
        if self._next == 0:
            self._retry_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._pause_most_s)
        return address

    @property
    def is_round_over(self) -> bool:
        """Whether the address that was taken last is the last of a round."""
        return self._next == 0

    def was_reached(self) -> None:
        """One of its brokers was, which may not have the nodes yet, or any more: the next pauses are short again."""
        self._pause_s = PAUSE_S

    def was_open(self) -> None:
        """One of its connections is: when that is lost, another one may be had at once."""
        self._pause_s, self._retry_s = PAUSE_S, 0.0


class Way(AddressRounds, Generic[AnyPooled]):
    """The way to some brokers that have the same nodes: who is tried next, when, and the connections there are."""

    def __init__(self, addresses: tuple[str, ...], pause_most_s: float) -> None:
        super().__init__(addresses, pause_most_s)
        self.connections: list[AnyPooled] = []


AnyWay = TypeVar("AnyWay", bound=Way[Any])


class Assigned(NamedTuple, Generic[AnyLink, AnyPooled]):
    """What has to be done, in this order."""

    left: list[tuple[AnyLink, AnyPooled]]
    """These are attached where they do not belong any more. Then assign them again."""
    opened: list[AnyPooled]
    """These connections are new."""
    placed: list[tuple[AnyLink, AnyPooled]]
    """These are to be attached there, now or when it is made: if they are not forgotten, or lost, meanwhile."""


class FarPool(Generic[AnyLink, AnyPooled, AnyWay]):
    """The promise: a link is over one connection at most, and none is left that leads where it belongs and has room.

    | a link is | its way is | it has | then |
    | --- | --- | --- | --- |
    | not known | any | | nothing is done |
    | nowhere | not known | | it stays nowhere |
    | nowhere | known | a connection with room | it is placed there |
    | nowhere | known | none, and one may be tried now | one is opened, and it is placed there |
    | nowhere | known | none, and it is too soon | it stays nowhere |
    | somewhere | not known, or the one of its connection | | it stays: nobody else is known to have its node |
    | somewhere | another one | | it leaves, and is nowhere |

    `make` makes a connection to an address. A link that is lost, or refused, is put nowhere by who hears of it; who
    sees to pauses between its attempts does not have it assigned before.
    """

    def __init__(self, make: Callable[[str], AnyPooled]) -> None:
        self.links: dict[AnyLink, AnyPooled | None] = {}
        """All that are known, and where; None: nowhere now."""
        self.connections: dict[AnyPooled, AnyWay] = {}
        self._make = make

    def assign(
        self, links: Iterable[AnyLink], way_of: Callable[[AnyLink], AnyWay | None], now_s: float
    ) -> Assigned[AnyLink, AnyPooled]:
        """Decide for each of `links`, in order: the one place where that is done. The others stay where they are."""
        assigned = Assigned[AnyLink, AnyPooled]([], [], [])
        rooms: dict[AnyPooled, int] = {}
        known, connections = self.links, self.connections
        for link in links:
            if link not in known or (way := way_of(link)) is None:
                continue
            at = known[link]
            if at is not None:
                if connections.get(at) is not way:
                    known[link] = None
                    assigned.left.append((link, at))
                continue
            connection = next((one for one in way.connections if rooms.setdefault(one, one.room) > 0), None)
            if connection is None:
                connection = self._open(way, now_s)
                if connection is None:
                    continue
                rooms[connection] = connection.room
                assigned.opened.append(connection)
            rooms[connection] -= 1
            known[link] = connection
            assigned.placed.append((link, connection))
        return assigned

    def _open(self, way: AnyWay, now_s: float) -> AnyPooled | None:
        address = way.take_address(now_s)
        if address is None:
            return None
        connection = self._make(address)
        way.connections.append(connection)
        self.connections[connection] = way
        return connection

    def drop(self, connection: AnyPooled) -> AnyWay | None:
        """It is of no use any more; its way, if it was one of these. Its links are told by `links_of`."""
        way = self.connections.pop(connection, None)
        if way is not None:
            way.connections.remove(connection)
        return way

    def links_of(self, connection: AnyPooled) -> list[AnyLink]:
        """That are attached over it, or are to be."""
        return [link for link, at in self.links.items() if at is connection]

    def check_invariants(self) -> None:
        """Raises ValueError for a state that must not be."""
        for connection, way in self.connections.items():
            if connection not in way.connections:
                raise ValueError(f"{connection} is not among the connections of its way")
        for link, at in self.links.items():
            if at is not None and at not in self.connections:
                raise ValueError(f"{link} is over {at}, which is gone")
