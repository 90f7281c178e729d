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
from typing import Final

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.relayed_links import RelayedLink, relayed_kind
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.relaying.relayer import PlacedLink, Producer
from qpid_ha_broker.amqp.relaying.set_contact import SetContact
from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire.relay import ITSELF
from qpid_ha_broker.server.peers.peer_channels import MakeEngine
from qpid_ha_broker.server.proxies.far_links import TICK_S, FarLinks, ProxyHost
from qpid_ha_broker.server.proxies.far_pool import Way
from qpid_ha_broker.server.proxies.upstream_socket import Made, UpstreamSocket
from qpid_ha_broker.server.runtime.broker_addresses import BrokerAddresses
from qpid_ha_broker.server.runtime.member_settings import relay_silence_s
from qpid_ha_config.addresses import Address

log = logging.getLogger("proxy")

AGAIN_S: Final = 0.005
"""After there may be another primary, until links that it refused are attached again; then after twice that, and so on
up to TICK_S: a broker that is recorded as primary refuses links until it leads, some milliseconds later."""
AGAIN_LINKS: Final = 100
"""So many are attached again without waiting for the tick: a new primary has enough to do."""
RETRY_MOST_S: Final = 1.0
"""Between two attempts to reach a broker, at most."""
GATE_S: Final = 0.3
"""So long a new primary gives nothing to consumers but what they have had: proxies look for it every TICK_S."""
PRODUCERS_KEPT: Final = 1000


Socket = UpstreamSocket[Upstream]


class Proxying(FarLinks[PlacedLink, Upstream, Way[Socket]]):
    """The promise: a relayed link is attached at the broker that leads its set, as soon as one is known to, or ended.

    For `try_again` and what follows it see `amqp.links.relayed_links.Relayer`.
    """

    def __init__(
        self,
        broker: ProxyHost,
        make_engine: MakeEngine,
        addresses: BrokerAddresses,
    ) -> None:
        super().__init__(broker)
        self.name = broker.current().name
        self._make_engine = make_engine
        self._addresses = addresses
        self._trying: dict[PlacedLink, None] = {}
        """Whose client's attach is about to be looked at again: until then they are attached nowhere."""
        self._ways: dict[str, Way[Socket]] = {}
        """By address."""
        self._producers: list[Producer] = []
        self._process = uuid.uuid4().hex
        self._made = 0
        self._is_looking = False
        """There will be a look at who leads in the next round of the loop."""
        self._lost: dict[PlacedLink, None] = {}
        """Those that are attached again before the next tick."""
        self._again_s = AGAIN_S
        """The pause before they are."""
        self._contact = SetContact()

    # --- clients

    def relay(self, connection: Connection, link: proton.Link, set_name: str) -> RelayedLink:
        """Have `link` attached where the set is led: see `amqp.connections.connection.Relays`."""
        relayed = relayed_kind(link)(connection, link, set_name, self)
        self.place(relayed)
        return relayed

    def place(self, link: PlacedLink) -> None:
        """Attach it where its set is led."""
        self.pool.links[link] = None
        self._assign_soon(link)

    def gate(self, hosted: HostedSet) -> None:
        """A set begins to be led here: other proxies find that out, and come for what their clients have."""
        asyncio.get_running_loop().call_later(GATE_S, self._open_gate, hosted)

    def _open_gate(self, hosted: HostedSet) -> None:
        hosted.open_gate()
        self._host.schedule_turn()

    def try_again(self, link: PlacedLink) -> None:
        """The client's attach is to be looked at again, in a moment."""
        self.pool.links.pop(link, None)
        self._trying[link] = None
        asyncio.get_running_loop().call_later(TICK_S, self._look_again, link)

    def _look_again(self, link: PlacedLink) -> None:
        if self._trying.pop(link, self) is None:
            link.look_again()
            self._host.schedule_turn()

    def attach_again(self, link: PlacedLink) -> None:
        """Its far end is gone: in a moment it is attached where the set is led."""
        self.pool.links[link] = None
        if self._again_s < TICK_S and len(self._lost) < AGAIN_LINKS and not self._is_stopped:
            if not self._lost:
                asyncio.get_running_loop().call_later(self._again_s, self._place_again)
                self._again_s *= 2
            self._lost[link] = None

    def _place_again(self) -> None:
        lost, self._lost = self._lost, {}
        self._assign(lost)
        self._host.schedule_turn()

    def look_soon(self) -> None:
        """Another broker may lead a set now."""
        self._again_s = AGAIN_S
        if self.pool.links and not (self._is_looking or self._is_stopped):
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def forget(self, link: PlacedLink, *, closed: bool = True) -> None:
        """It has ended."""
        self._trying.pop(link, None)
        self._take_back(link, closed=closed)

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

    # --- where they are attached: see FarLinks

    def _find_ways(self) -> Callable[[PlacedLink], Way[Socket] | None]:
        ways: dict[str, Way[Socket] | None] = {}

        def way_of(link: PlacedLink) -> Way[Socket] | None:
            name = link.set_name
            if name not in ways:
                ways[name] = self._way_to(self._addresses.of_primary(name))
            return ways[name]

        return way_of

    def _way_to(self, address: str | None) -> Way[Socket] | None:
        if address is not None and address not in self._ways:
            self._ways[address] = Way((address,), RETRY_MOST_S)
        return None if address is None else self._ways[address]

    def _maker(self, way: Way[Socket]) -> Made[Upstream]:
        return self._connect

    def _connect(self, address: Address, touched: Callable[[], None], ended: Callable[[str], None]) -> Upstream:
        silence = Silence(self._host.container.clock, relay_silence_s(self._host.current()))
        return Upstream(self._make_engine(address), self.name, address.host, touched, ended, silence)

    def _placed(self, link: PlacedLink, socket: Socket) -> None:
        # Whether this broker leads as it is recorded, it says when it is asked: that is no way back to where it began.
        link.path = (ITSELF,) if socket.address == self._addresses.own() else (self.name,)

    def _socket_lost(self, socket: Socket, way: Way[Socket], reason: str) -> None:
        self._again_s = AGAIN_S
        for link in self.pool.links_of(socket):
            self.pool.links[link] = None
        if not self._is_stopped:
            log.info("the connection to %s for relayed links has ended: %s", socket.address, reason)

    def _look(self) -> None:
        """Attach each link where its set is led."""
        self._is_looking = False
        self._assign(list(self.pool.links))
        self._host.schedule_turn()

    def _tick_links(self, now_s: float) -> None:
        self._look()
        self._look_who_is_out_of_reach(now_s)

    def _look_who_is_out_of_reach(self, now_s: float) -> None:
        """Links of sets that are led by nobody who is reached from here have their clients go elsewhere."""
        out_of_reach = self._contact.look(chain(self.pool.links, self._trying), now_s)
        for link in [link for link in chain(self.pool.links, self._trying) if link.set_name in out_of_reach]:
            if link in self.pool.links or link in self._trying:  # else its client is gone by now
                link.out_of_reach()

    @property
    def count(self) -> int:
        """Links that are relayed now."""
        return len(self.pool.links) + len(self._trying)
