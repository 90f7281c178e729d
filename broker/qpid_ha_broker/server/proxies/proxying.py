"""Relays links of this broker's clients to the brokers that lead their sets: where those are, and the sockets to them.

The link itself is `amqp.links.relayed_links`'. Here is decided where its far end is attached, and that it is attached
again when that broker is lost, or leads no more.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from itertools import chain
from typing import Final, Protocol

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.relayed_links import RelayedConsumer, RelayedLink, RelayedPublisher
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.relaying.relayer import PlacedLink, Producer
from qpid_ha_broker.amqp.relaying.set_contact import SetContact
from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.server.peers.peer_channels import MakeEngine
from qpid_ha_broker.server.proxies.upstream_socket import UpstreamSocket
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks, TicksWhileUsed
from qpid_ha_broker.server.runtime.broker_addresses import BrokerAddresses
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.runtime.member_settings import relay_silence_s
from qpid_ha_config.addresses import Address

log = logging.getLogger("proxy")

TICK_S: Final = 0.05
"""Between two looks at who leads."""
AGAIN_S: Final = 0.005
"""After there may be another primary, until links that it refused are attached again; then after twice that, and so on
up to TICK_S: a broker that is recorded as primary refuses links until it leads, some milliseconds later."""
AGAIN_LINKS: Final = 100
"""So many are attached again without waiting for the tick: a new primary has enough to do."""
RETRY_MOST_S: Final = 1.0
"""Between two attempts to reach a broker; they begin at TICK_S."""
GATE_S: Final = 0.3
"""So long a new primary gives nothing to consumers but what they have had: proxies look for it every TICK_S."""
PRODUCERS_KEPT: Final = 1000
ITSELF: Final = "the broker itself"
"""In the path of a link that a broker relays to itself. No broker has such a name."""


class ProxyHost(Host, Protocol):
    """What is needed of the broker."""

    def set_time(self) -> None:
        """Let the container know what time it is."""


class Proxying:
    """The promise: a relayed link is attached at the broker that leads its set, as soon as one is known to, or ended.

    For `try_again` and what follows it see `amqp.links.relayed_links.Relayer`.
    """

    def __init__(
        self,
        broker: ProxyHost,
        make_engine: MakeEngine,
        addresses: BrokerAddresses,
    ) -> None:
        self.name = broker.current().name
        self._broker = broker
        self._make_engine = make_engine
        self._addresses = addresses
        self._links: dict[PlacedLink, UpstreamSocket[Upstream] | None] = {}
        """All that are relayed, and where; None: nowhere now."""
        self._trying: dict[PlacedLink, None] = {}
        """Whose client's attach is about to be looked at again: until then they are attached nowhere."""
        self._sockets: dict[str, UpstreamSocket[Upstream]] = {}
        """By address."""
        self._retry: dict[str, tuple[float, float]] = {}
        """By address: when it may be tried again, and how long after that."""
        self._unflushed: dict[UpstreamSocket[Upstream], None] = {}
        self._producers: list[Producer] = []
        self._process = uuid.uuid4().hex
        self._made = 0
        self._tasks = BackgroundTasks()
        self._ticks = TicksWhileUsed(
            TICK_S, lambda: bool(self._links or self._sockets), self._tick, broker.notices.bugs_noted
        )
        self._is_looking = False
        """There will be a look at who leads in the next round of the loop."""
        self._lost: dict[PlacedLink, None] = {}
        """Those that are attached again before the next tick."""
        self._again_s = AGAIN_S
        """The pause before they are."""
        self._contact = SetContact()
        self._is_stopped = False

    # --- clients

    def relay(self, connection: Connection, link: proton.Link, set_name: str) -> RelayedLink:
        """Have `link` attached where the set is led: see `amqp.connections.connection.Relays`."""
        kind = RelayedConsumer if link.is_sender else RelayedPublisher
        relayed: RelayedLink = kind(connection, link, set_name, self)
        self.place(relayed)
        return relayed

    def place(self, link: PlacedLink) -> None:
        """Attach it where its set is led."""
        self._links[link] = None
        self._ticks.start()
        asyncio.get_running_loop().call_soon(self._place, link)

    def gate(self, hosted: HostedSet) -> None:
        """A set begins to be led here: other proxies find that out, and come for what their clients have."""
        asyncio.get_running_loop().call_later(GATE_S, self._open_gate, hosted)

    def _open_gate(self, hosted: HostedSet) -> None:
        hosted.open_gate()
        self._broker.schedule_turn()

    def try_again(self, link: PlacedLink) -> None:
        """The client's attach is to be looked at again, in a moment."""
        self._links.pop(link, None)
        self._trying[link] = None
        asyncio.get_running_loop().call_later(TICK_S, self._look_again, link)

    def _look_again(self, link: PlacedLink) -> None:
        if self._trying.pop(link, self) is None:
            link.look_again()
            self._broker.schedule_turn()

    def attach_again(self, link: PlacedLink) -> None:
        """Its far end is gone: in a moment it is attached where the set is led."""
        self._links[link] = None
        if self._again_s < TICK_S and len(self._lost) < AGAIN_LINKS and not self._is_stopped:
            if not self._lost:
                asyncio.get_running_loop().call_later(self._again_s, self._place_again)
                self._again_s *= 2
            self._lost[link] = None

    def _place_again(self) -> None:
        lost, self._lost = self._lost, {}
        for link in lost:
            self._place(link)
        self._broker.schedule_turn()

    def look_soon(self) -> None:
        """Another broker may lead a set now."""
        self._again_s = AGAIN_S
        if self._links and not (self._is_looking or self._is_stopped):
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def forget(self, link: PlacedLink, *, closed: bool = True) -> None:
        """It has ended."""
        self._trying.pop(link, None)
        socket = self._links.pop(link, None)
        if socket is not None and socket.upstream is not None:
            socket.upstream.detach(link, closed=closed)

    def take_producer(self) -> Producer:
        """A name that no other publisher has now; few of them, because the primaries remember each for long."""
        if self._producers:
            return self._producers.pop()
        self._made += 1
        return Producer(f"{self._process}/{self._made}".encode())

    def give_producer_back(self, producer: Producer) -> None:
        """All that was sent under it is answered."""
        if len(self._producers) < PRODUCERS_KEPT:
            self._producers.append(producer)

    # --- where they are attached

    def _place(self, link: PlacedLink) -> None:
        if self._is_stopped or self._links.get(link, self) is not None:
            return
        address = self._addresses.of_primary(link.set_name)
        if address is None:
            return
        socket = self._sockets.get(address)
        if socket is None:
            now_s = asyncio.get_running_loop().time()
            retry_s, pause_s = self._retry.get(address, (0.0, TICK_S))
            if now_s < retry_s:
                return
            self._retry[address] = now_s + pause_s, min(2 * pause_s, RETRY_MOST_S)
            socket = self._sockets[address] = UpstreamSocket(self, address)
            self._links[link] = socket
            self._tasks.start(socket.open(self._connect))
        elif socket.upstream is not None:
            self._attach(socket, socket.upstream, link)
        else:  # it is about to be opened
            self._links[link] = socket

    def _connect(self, address: Address, touched: Callable[[], None], ended: Callable[[str], None]) -> Upstream:
        silence = Silence(self._broker.container.clock, relay_silence_s(self._broker.current()))
        return Upstream(self._make_engine(address), self.name, address.host, touched, ended, silence)

    def _attach(self, socket: UpstreamSocket[Upstream], upstream: Upstream, link: PlacedLink) -> None:
        self._links[link] = socket
        # Whether this broker leads as it is recorded, it says when it is asked: that is no way back to where it began.
        link.path = (ITSELF,) if socket.address == self._addresses.own() else (self.name,)
        upstream.attach(link)

    def connecting(self, socket: UpstreamSocket[Upstream]) -> None:
        """Its upstream is there: give it the links that wait for that."""
        if socket.upstream is not None:
            for link in [link for link, at in self._links.items() if at is socket]:
                self._attach(socket, socket.upstream, link)

    def ended(self, socket: UpstreamSocket[Upstream], reason: str) -> None:
        """It is gone. Links that it has told so are without a place already."""
        self._again_s = AGAIN_S
        if self._sockets.get(socket.address) is socket:
            del self._sockets[socket.address]
        links = [link for link, at in self._links.items() if at is socket]
        for link in links:
            self._links[link] = None
        if not self._is_stopped:
            log.info("the connection to %s for relayed links has ended: %s", socket.address, reason)
        self._broker.schedule_turn()

    def _look(self) -> None:
        """Attach each link where its set is led."""
        self._is_looking = False
        primaries: dict[str, str | None] = {}
        for link, socket in list(self._links.items()):
            if link not in self._links:
                continue
            if socket is None:
                self._place(link)
                continue
            if link.set_name not in primaries:
                primaries[link.set_name] = self._addresses.of_primary(link.set_name)
            address = primaries[link.set_name]
            if address is not None and address != socket.address:  # the one it is attached to may be silent
                if socket.upstream is not None:
                    socket.upstream.detach(link, closed=False)
                link.lost("another broker leads the set")
                self._place(link)
        self._broker.schedule_turn()

    def _look_who_is_out_of_reach(self, now_s: float) -> None:
        """Links of sets that are led by nobody who is reached from here have their clients go elsewhere."""
        out_of_reach = self._contact.look(chain(self._links, self._trying), now_s)
        for link in [link for link in chain(self._links, self._trying) if link.set_name in out_of_reach]:
            if link in self._links or link in self._trying:  # else its client is gone by now
                link.out_of_reach()

    def _tick(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._look()
        self._look_who_is_out_of_reach(now_s)
        used = {socket for socket in self._links.values() if socket is not None}
        for socket in list(self._sockets.values()):
            socket.heartbeat(int(now_s * 1000))  # one that was silent for too long is gone by this
        for socket in list(self._sockets.values()):
            if socket.upstream is not None and socket.upstream.is_open:
                self._retry.pop(socket.address, None)
            if socket in used:
                socket.used_s = now_s
            elif now_s - socket.used_s > self._broker.current().remote.proxy_idle_s:
                del self._sockets[socket.address]
                socket.close("not needed any more")
        self._broker.schedule_turn()

    # --- the broker's and the sockets' calls

    def set_time(self) -> None:
        """Let the container know what time it is."""
        self._broker.set_time()

    def want_flush(self, socket: UpstreamSocket[Upstream]) -> None:
        """It has something to send, or to tell clients, at the end of the turn."""
        self._unflushed[socket] = None
        self._broker.schedule_turn()

    @property
    def awaits_flush(self) -> bool:
        """Something was relayed in this round of the loop, or is to be."""
        return bool(self._unflushed)

    def flush(self) -> None:
        """Write what there is to the other brokers, at the beginning and at the end of a turn."""
        if self._unflushed:
            unflushed, self._unflushed = self._unflushed, {}
            for socket in unflushed:
                socket.flush()

    @property
    def count(self) -> int:
        """Links that are relayed now."""
        return len(self._links) + len(self._trying)

    def stop(self) -> None:
        """The process will end; the clients' links are ended by others."""
        self._is_stopped = True
        self._ticks.cancel()
        self._tasks.cancel()
        for socket in list(self._sockets.values()):
            socket.close("the broker is stopping")
        self._sockets.clear()
