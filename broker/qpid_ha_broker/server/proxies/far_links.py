"""Drives far links, whichever: the sockets of a pool of connections, on asyncio's loop.

What it is to be carried out, `far_pool` decides. Where links belong, and what becomes of those that are lost, says who
has them: `proxying` for links relayed in the cluster, `remote_nodes` for those to brokers outside of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from qpid_ha_broker.amqp.relaying.far_connection import AnyFar, FarEnd
from qpid_ha_broker.server.proxies.far_pool import AnyWay, FarPool
from qpid_ha_broker.server.proxies.upstream_socket import Made, UpstreamSocket
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks, TicksWhileUsed
from qpid_ha_broker.server.runtime.due_parties import DueItems
from qpid_ha_broker.server.runtime.host import Host

TICK_S: Final = 0.05
"""Between two looks at all links and connections."""


class ProxyHost(Host, Protocol):
    """What is needed of the broker."""

    def set_time(self) -> None:
        """Let the container know what time it is."""


AnyFarEnd = TypeVar("AnyFarEnd", bound=FarEnd)


class FarLinks(Generic[AnyFarEnd, AnyFar, AnyWay]):
    """The promise: each connection has its heartbeats, whatever goes wrong at the links or at another connection."""

    def __init__(self, host: ProxyHost) -> None:
        self.pool: FarPool[AnyFarEnd, UpstreamSocket[AnyFar], AnyWay] = FarPool(self._make_socket)
        self._host = host
        self.unflushed = DueItems[UpstreamSocket[AnyFar]]()
        self._tasks = BackgroundTasks()
        self._ticks = TicksWhileUsed(
            TICK_S, lambda: bool(self.pool.links or self.pool.connections), self._tick, host.notices.bugs_noted
        )
        self._is_stopped = False

    def _make_socket(self, address: str) -> UpstreamSocket[AnyFar]:
        return UpstreamSocket(self, address)

    # --- what differs

    def _find_ways(self) -> Callable[[AnyFarEnd], AnyWay | None]:
        """Says where links belong; None: that is not known now. It is asked at once, and then another one is found."""
        raise NotImplementedError(f"{type(self).__name__} does not say where links belong")

    def _maker(self, way: AnyWay) -> Made[AnyFar]:
        """What makes its connections."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to connect")

    def _placed(self, link: AnyFarEnd, socket: UpstreamSocket[AnyFar]) -> None:
        """It is attached over that connection now, or about to be."""

    def _tick_links(self, now_s: float) -> None:
        """Assign the links that are due."""

    def _socket_open(self, way: AnyWay) -> None:
        """At a tick: one of its connections is open."""

    def _socket_lost(self, socket: UpstreamSocket[AnyFar], way: AnyWay, reason: str) -> None:
        """It is gone. Links that it has told so are nowhere already; the others are still over it."""
        raise NotImplementedError(f"{type(self).__name__} does not say what becomes of links without a connection")

    # --- links

    def _assign(self, links: Iterable[AnyFarEnd]) -> None:
        """Attach each of them where it belongs."""
        if self._is_stopped:
            return
        assigned = self.pool.assign(links, self._find_ways(), asyncio.get_running_loop().time())
        for link, socket in assigned.left:
            with self._host.notices.bugs_noted():
                if socket.upstream is not None:
                    socket.upstream.detach(link, closed=False)
                link.lost("its node is at another broker now")  # the one that it was attached to may be silent
        for socket in assigned.opened:
            self._tasks.start(socket.open(self._maker(self.pool.connections[socket])))
        for link, socket in assigned.placed:
            self._attach(link, socket)
        if assigned.left:
            self._assign([link for link, _ in assigned.left])

    def _attach(self, link: AnyFarEnd, socket: UpstreamSocket[AnyFar]) -> None:
        """If it is still placed there: what was done before for another link may have ended it."""
        if self.pool.links.get(link) is socket:
            with self._host.notices.bugs_noted():  # others are placed, too, and nobody would attach them
                self._placed(link, socket)
                if socket.upstream is not None:
                    socket.upstream.attach(link)

    def _assign_soon(self, link: AnyFarEnd) -> None:
        """At the end of this round of the loop; from then on ticks see to it."""
        self._ticks.start()
        asyncio.get_running_loop().call_soon(self._assign, (link,))

    def _take_back(self, link: AnyFarEnd, *, closed: bool) -> None:
        """It has ended: nothing more is known of it."""
        socket = self.pool.links.pop(link, None)
        if socket is not None and socket.upstream is not None:
            socket.upstream.detach(link, closed=closed)

    # --- as time goes by

    def _tick(self) -> None:
        now_s = asyncio.get_running_loop().time()
        with self._host.notices.bugs_noted():
            self._tick_links(now_s)
        used = set(self.pool.links.values())
        for socket in list(self.pool.connections):
            with self._host.notices.bugs_noted():
                self._tend(socket, now_s, is_used=socket in used)
        self._host.schedule_turn()

    def _tend(self, socket: UpstreamSocket[AnyFar], now_s: float, *, is_used: bool) -> None:
        """Its heartbeat, and its end when nobody has used it for some time."""
        socket.heartbeat(int(now_s * 1000))
        way = self.pool.connections.get(socket)
        if way is None:  # it was silent for too long
            return
        if socket.upstream is not None and socket.upstream.is_open:
            way.was_open()
            self._socket_open(way)
        if is_used:
            socket.used_s = now_s
        elif now_s - socket.used_s > self._host.current().remote.proxy_idle_s:
            self.pool.drop(socket)
            socket.close("not needed any more")

    # --- the sockets' and the broker's calls

    def connecting(self, socket: UpstreamSocket[AnyFar]) -> None:
        """Its connection is made: give it the links that wait for that."""
        for link in self.pool.links_of(socket):
            self._attach(link, socket)

    def ended(self, socket: UpstreamSocket[AnyFar], reason: str) -> None:
        """It is gone."""
        way = self.pool.drop(socket)
        if way is not None:
            self._socket_lost(socket, way, reason)
            self._host.schedule_turn()

    def set_time(self) -> None:
        """Let the container know what time it is."""
        self._host.set_time()

    def want_flush(self, socket: UpstreamSocket[AnyFar]) -> None:
        """It has something to send, or to tell clients, at the end of the turn."""
        self.unflushed.put(socket)
        self._host.schedule_turn()

    @property
    def awaits_flush(self) -> bool:
        """Something was relayed in this round of the loop, or is to be."""
        return bool(self.unflushed.items)

    def flush(self) -> None:
        """Write what there is to the other brokers, at the beginning and at the end of a turn."""
        for socket in self.unflushed.take():
            socket.flush()

    def stop(self) -> None:
        """The process will end; the clients' links are ended by others."""
        self._is_stopped = True
        self._ticks.cancel()
        self._tasks.cancel()
        for socket in list(self.pool.connections):
            self.pool.drop(socket)
            socket.close("the broker is stopping")
