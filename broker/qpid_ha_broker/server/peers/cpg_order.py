"""What comes from a process group, as a group's member wants it: views by brokers' names and whole batches, in order.

A process says its name and version as soon as somebody joins (`Hello`). A view waits until all in it have said theirs,
and what comes after it waits behind it: the order stays. Who speaks another version is not of the view, and is named.

A batch that is larger than one message comes in pieces. Where a view begins between them, nobody has all of them who
joins there: so then all forget what is not whole, and its sender sends it once more.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from qpid_ha_broker.events.fields import SHORT_TEXT, UNREADABLE
from qpid_ha_broker.events.layout import Layout
from qpid_ha_broker.server.peers.libcpg import CpgAddress, CpgConfiguration, CpgMessage, CpgReason

TRANSPORT_VERSION: Final = 1
_HELLO, _PIECE = 1, 2
_START: Final = Layout({"kind": "B", "version": "B"})
_PLACE: Final = Layout({"batch": "Q", "index": "I", "count": "I"})
PIECE_OVERHEAD: Final = _START.size + _PLACE.size


class OrderedView(NamedTuple):
    """Who is there from here on, by names: as `group.effects.ViewChanged`."""

    members: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    ended: tuple[str, ...]


class OrderedBatch(NamedTuple):
    """A batch, whole. `number`: its sender's."""

    sender: str
    number: int
    data: bytes


def hello(name: str) -> bytes:
    """The message by which a process says who it is."""
    return _START.pack(_HELLO, TRANSPORT_VERSION) + SHORT_TEXT.write(name)


def pieces_of(number: int, data: bytes, most: int) -> list[bytes]:
    """A batch as messages of at most `most` bytes. Raises ValueError when none fits."""
    room = most - PIECE_OVERHEAD
    if room < 1:
        raise ValueError(f"a message of {most} bytes has no room for a piece")
    parts = [data[at : at + room] for at in range(0, len(data), room)] or [b""]
    start = _START.pack(_PIECE, TRANSPORT_VERSION)
    return [start + _PLACE.pack(number, index, len(parts)) + part for index, part in enumerate(parts)]


class _Incomplete(NamedTuple):
    number: int
    pieces: int
    parts: list[bytes]


class CpgOrder:
    """The promise: events come out in the order in which they came in, and a batch only whole."""

    def __init__(self, own: CpgAddress, name: str) -> None:
        self._own = own
        self._names = {own: name}
        self.refused: dict[CpgAddress, str] = {}
        """Processes that are of no view, and why."""
        self._incomplete: dict[CpgAddress, _Incomplete] = {}
        self._latest: dict[CpgAddress, int] = {}
        """The number of the last whole batch: one that was sent again may come twice."""
        self._waiting: deque[CpgConfiguration | tuple[CpgAddress, int, bytes]] = deque()
        self._is_first_view = True
        self.members: tuple[str, ...] = ()
        """Of the last view that came out."""

    def came(self, events: Iterable[CpgMessage | CpgConfiguration]) -> list[OrderedView | OrderedBatch]:
        """What can come out now."""
        for event in events:
            if isinstance(event, CpgConfiguration):
                self._incomplete.clear()
                for address, _ in event.left:
                    self._latest.pop(address, None)
                self._waiting.append(event)
            else:
                self._message(event)
        ordered: list[OrderedView | OrderedBatch] = []
        while self._waiting and (event_out := self._next()) is not None:
            self._waiting.popleft()
            ordered += event_out
        return ordered

    def waits_for(self) -> tuple[CpgAddress, ...]:
        """Processes that have not said who they are, and without whom nothing comes out."""
        first = self._waiting[0] if self._waiting else None
        return self._unnamed(first) if isinstance(first, CpgConfiguration) else ()

    # --- messages

    def _message(self, message: CpgMessage) -> None:
        sender, data = message
        try:
            kind, version = _START.unpack_from(data)
            if version != TRANSPORT_VERSION:
                self.refused[sender] = f"speaks version {version}, and this broker version {TRANSPORT_VERSION}"
            elif kind == _HELLO:
                name, _ = SHORT_TEXT.read(memoryview(data), _START.size)
                self._name(sender, name)
            elif kind == _PIECE:
                self._piece(sender, data)
        except (*UNREADABLE, struct.error) as error:
            self.refused[sender] = f"has sent what is no message of a group's member: {error}"

    def _name(self, sender: CpgAddress, name: str) -> None:
        if name == self._names[self._own] and sender != self._own:
            self.refused[sender] = f"has the name of this broker, {name}"
        else:
            self._names[sender] = name

    def _piece(self, sender: CpgAddress, data: bytes) -> None:
        number, index, count = _PLACE.unpack_from(data, _START.size)
        part = data[PIECE_OVERHEAD:]
        if index == 0:
            self._incomplete[sender] = _Incomplete(number, count, [])
        begun = self._incomplete.get(sender)
        if begun is None or (begun.number, begun.pieces, len(begun.parts)) != (number, count, index):
            self._incomplete.pop(sender, None)  # its beginning was before a view
            return
        begun.parts.append(part)
        if len(begun.parts) == count:
            del self._incomplete[sender]
            if number > self._latest.get(sender, 0):
                self._latest[sender] = number
                self._waiting.append((sender, number, b"".join(begun.parts)))

    # --- what comes out

    def _unnamed(self, configuration: CpgConfiguration) -> tuple[CpgAddress, ...]:
        known = self._names.keys() | self.refused.keys()
        return tuple(address for address in configuration.members if address not in known)

    def _next(self) -> list[OrderedView | OrderedBatch] | None:
        event = self._waiting[0]
        if isinstance(event, CpgConfiguration):
            return None if self._unnamed(event) else [self._view(event)]
        sender, number, data = event
        name = "" if sender in self.refused else self._names.get(sender, "")
        return [OrderedBatch(name, number, data)] if name else []

    def _view(self, configuration: CpgConfiguration) -> OrderedView:
        ended = [address for address, reason in configuration.left if reason in (CpgReason.LEAVE, CpgReason.PROCDOWN)]
        joined = configuration.members if self._is_first_view else configuration.joined
        left = [address for address, _ in configuration.left]
        view = OrderedView(
            self._named(configuration.members), self._named(joined), self._named(left), self._named(ended)
        )
        self._is_first_view = False
        self.members = view.members
        if len(self._waiting) == 1:
            self._forget_others(configuration.members)
        return view

    def _forget_others(self, present: Iterable[CpgAddress]) -> None:
        """Nothing is waiting, so nobody else can be asked for."""
        kept = {self._own, *present}
        self._names = {address: name for address, name in self._names.items() if address in kept}
        self.refused = {address: why for address, why in self.refused.items() if address in kept}

    def _named(self, addresses: Iterable[CpgAddress]) -> tuple[str, ...]:
        known = self._names.keys() - self.refused.keys()
        return tuple(sorted(self._names[address] for address in addresses if address in known))
