"""A transport with total order and views, as Totem and Corosync give it, on a virtual clock.

A *ring* is a view and the order of what is multicast in it. It is broken as soon as a process of it ends or cannot be
reached, and later its members find themselves in other rings. Those that go on together have got the same of the
broken one: all that any of them has got, perhaps more, without a gap; and then, beyond a gap, what they sent
themselves. So two parts may have got different things at the same place. What was not sent any more goes out in the
next ring.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from simulation.virtual_time import Schedule


class Sent(NamedTuple):
    sender: str
    data: bytes
    was_broken: bool
    """The ring was broken when it was put in order: only who can reach the sender may have got it."""


class View(NamedTuple):
    members: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    ended: tuple[str, ...]


Event = Sent | View


class Port:
    """One process's end: what comes for it is handed to `take`, in order."""

    def __init__(self, name: str, take: Callable[[Event], None]) -> None:
        self.name = name
        self.take = take
        self.ring: Ring | None = None
        self.unsent: deque[bytes] = deque()
        """Not in an order yet."""
        self.is_congested = False
        self.is_open = True


class Ring:
    def __init__(self, ports: Iterable[Port]) -> None:
        self.ports = {port.name: port for port in ports}
        self.order: list[Sent] = []
        self.handed = dict.fromkeys(self.ports, 0)
        self.is_broken = False


class SimulatedTransport:
    """The promise: as the docstring of the module says."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self._schedule = schedule
        self._draw = random.Random(f"{seed}/transport")
        self._ports: dict[str, Port] = {}
        self._parts: dict[str, int] = {}
        """Which part of the network each node is in; 0 if it is not said."""
        self._ended: set[str] = set()
        self._is_reform_due = False
        self.late_s: dict[str, float] = {}
        """By node: how much later it is delivered something than others, at most."""
        self.views = 0

    # --- processes

    def open(self, name: str, take: Callable[[Event], None]) -> Port:
        port = self._ports[name] = Port(name, take)
        self._reform_after(self._draw.uniform(0.001, 0.02))
        return port

    def close(self, port: Port, has_power: bool) -> None:
        """The process ends; others notice at once, or after the token's time if the whole node is gone."""
        port.is_open = False
        if port.ring is not None:
            port.ring.is_broken = True
        if self._ports.get(port.name) is port:
            del self._ports[port.name]
            if has_power:
                self._ended.add(port.name)
        self._reform_after(self._draw.uniform(0.001, 0.005) if has_power else self._draw.uniform(0.1, 0.3))

    def lose(self, port: Port, for_s: float) -> None:
        """Its daemon ends, and comes back: nothing is delivered to the process meanwhile, and it knows that at once.

        The others notice after the token's time, which may be longer than they wait for each other; until then nothing
        is delivered to them either. What had not come back to the process is sent once more.
        """
        ring = port.ring
        if self._ports.get(port.name) is not port or ring is None:
            return
        del self._ports[port.name]
        ring.is_broken = True
        port.ring = None
        mine = [sent.data for sent in ring.order[ring.handed[port.name] :] if sent.sender == port.name]
        port.unsent.extendleft(reversed(mine))
        port.take(View((), (), tuple(name for name in ring.ports if name != port.name), ()))
        self._reform_after(self._draw.choice((self._draw.uniform(0.1, 0.3), self._draw.uniform(1.1, 2.5))))

        def come_back() -> None:
            if port.is_open and port.name not in self._ports:
                self._ports[port.name] = port
                self._reform_after(self._draw.uniform(0.001, 0.02))

        self._schedule.after(for_s, come_back)

    def split(self, parts: dict[str, int]) -> None:
        """From now on nodes reach those of their own part alone."""
        self._parts = parts
        for port in self._ports.values():
            ring = port.ring
            if ring is not None and len({parts.get(name, 0) for name in ring.ports}) > 1:
                ring.is_broken = True
        self._reform_after(self._draw.uniform(0.05, 0.3))

    # --- multicasting

    def multicast(self, port: Port, data: bytes) -> None:
        port.unsent.append(data)
        self._schedule.after(self._draw.uniform(0.0001, 0.0008), lambda: self._order(port))

    def congest(self, port: Port, for_s: float) -> None:
        port.is_congested = True

        def end() -> None:
            port.is_congested = False
            while port.unsent and port.ring is not None:
                before = len(port.unsent)
                self._order(port)
                if len(port.unsent) == before:
                    break

        self._schedule.after(for_s, end)

    def _order(self, port: Port) -> None:
        ring = port.ring
        if not port.is_open or port.is_congested or ring is None or not port.unsent:
            return
        if ring.is_broken and self._draw.random() < 0.5:
            return
        ring.order.append(Sent(port.name, port.unsent.popleft(), ring.is_broken))
        if not ring.is_broken:
            for receiver in ring.ports.values():
                delay_s = self._draw.uniform(0.0002, 0.003 + self.late_s.get(receiver.name, 0.0))
                self._schedule.after(delay_s, lambda to=receiver: self._hand(ring, to))  # type: ignore[misc]

    def _hand(self, ring: Ring, port: Port) -> None:
        """The next of the order, if it may be got any more."""
        at = ring.handed[port.name]
        if ring.is_broken or port.ring is not ring or at >= len(ring.order):
            return
        ring.handed[port.name] = at + 1
        port.take(ring.order[at])

    # --- views

    def _reform_after(self, delay_s: float) -> None:
        def reform() -> None:
            self._is_reform_due = False
            self._reform()

        if not self._is_reform_due:
            self._is_reform_due = True
            self._schedule.after(delay_s, reform)

    def _reform(self) -> None:
        components: dict[int, list[Port]] = {}
        for name in sorted(self._ports):
            components.setdefault(self._parts.get(name, 0), []).append(self._ports[name])
        for ports in components.values():
            rings = {id(port.ring) for port in ports}
            ring = ports[0].ring
            if ring is None or len(rings) > 1 or set(ring.ports) != {port.name for port in ports} or ring.is_broken:
                self._make_ring(ports)

    def _make_ring(self, ports: list[Port]) -> None:
        for old in {id(port.ring): port.ring for port in ports if port.ring is not None}.values():
            old.is_broken = True
            self._end_ring(old, [port for port in ports if port.ring is old])
        self.views += 1
        members = tuple(port.name for port in ports)
        ring = Ring(ports)
        before = {port.name: port.ring for port in ports}
        views = {}
        for port in ports:
            old_ring = before[port.name]
            together = {name for name in members if old_ring is not None and before[name] is old_ring}
            joined = tuple(name for name in members if name not in together)
            was = () if old_ring is None else tuple(old_ring.ports)
            left = tuple(name for name in was if name not in together and name != port.name)
            ended = tuple(name for name in left if name in self._ended)
            views[port.name] = View(members, joined if old_ring is not None else members, left, ended)
        self._ended.difference_update(members)
        for port in ports:
            port.ring = ring
            port.take(views[port.name])
        for port in ports:
            for _ in tuple(port.unsent):
                self._schedule.after(self._draw.uniform(0.0001, 0.001), lambda of=port: self._order(of))  # type: ignore[misc]

    def _end_ring(self, ring: Ring, part: list[Port]) -> None:
        """What the members of `part`, which go on together, still get of the old ring."""
        names = {port.name for port in part}
        least = max(ring.handed[name] for name in names)
        reachable = next(
            (at for at, sent in enumerate(ring.order) if sent.was_broken and sent.sender not in names), len(ring.order)
        )
        prefix = self._draw.randint(least, max(reachable, least))
        rest = [sent for sent in ring.order[prefix:] if sent.sender in names]
        got = ring.order[:prefix]
        again: list[Sent] = []
        cut = {name: self._draw.random() < 0.5 for name in sorted(names)}
        for sent in rest:
            (got if cut[sent.sender] else again).append(sent)
        for port in part:
            for sent in got[ring.handed[port.name] :]:
                port.take(sent)
            mine = [sent.data for sent in again if sent.sender == port.name]
            port.unsent.extendleft(reversed(mine))
