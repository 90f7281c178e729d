"""A broker that relays and the one that leads, joined in memory: clients of both, and a connection that can be cut.

What `server.proxies.proxying` does with sockets and clocks, `PairedProxy` does when the test says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import cast

import proton

from paired_engines import PairedBroker, PairedClient, broker_engine
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.links.relayed_links import RelayedLink, relayed_kind
from qpid_ha_broker.amqp.relaying.relayer import PlacedLink, Producer
from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.model.budget import Clock

SILENCE_S = 1.5
"""After so long without a sign of the primary the proxy gives the connection to it up."""


class PairedProxy:
    """`proxy` relays to `primary` what it does not lead: its replica of `default` is empty.

    To a test that has clients of any broker (see `paired_broker`) it is the primary, and clients connect to the proxy.
    For what links ask of it see `relayer.Relayer`.
    """

    def __init__(
        self,
        settings: ContainerSettings | None = None,
        *,
        primary: PairedBroker | None = None,
        proxy: PairedBroker | None = None,
        user: str = "",
    ) -> None:
        """`primary` and `proxy`: with more sets than `default`. `user`: as whom the proxy logs in at the primary."""
        self.name = "proxy"
        self.primary = primary or PairedBroker(settings or ContainerSettings("primary", "0"))
        self.proxy = proxy or PairedBroker(ContainerSettings("proxy", "0"))
        self.proxy.container.default.read_only = True
        self.proxy.connections.relays = self
        self.proxy.carriers.append(self._carry)
        self.links: dict[PlacedLink, None] = {}
        self.again: list[PlacedLink] = []
        """To be attached when there is a connection."""
        self._begun: list[RelayedLink] = []
        """The same, of those that wait for nothing else."""
        self.upstream: Upstream | None = None
        self.ended: list[str] = []
        """Why connections to the primary were given up."""
        self.accepted: Connection | None = None
        """The primary's end of the connection."""
        self.silence_clock: Clock = lambda: 0.0
        """By that the primary is silent; it stands still, unless a test is about that: heartbeats come then."""
        self.is_held_back = False
        """New far links wait for `attach_those_left`."""
        self._producers: list[Producer] = []
        self._made = count(1)
        self.container, self.queue = self.primary.container, self.primary.queue
        self.check_invariants = self.primary.check_invariants
        self.clients, self.accept = self.proxy.clients, self.proxy.accept
        self.user = user
        self._under_way: bytearray | None = None
        """What the primary has said and the proxy has not heard; None: nothing is held up."""
        self.connect_upstream()

    # --- what a test does

    def client(self, *, container: str = "client", user: str = "") -> PairedClient:
        """A client of the proxy, whose links' attaches are answered after `settle_down`."""
        client = PairedClient(self.proxy, container=container, user=user)
        self.settle_down()
        return client

    def connect_upstream(self) -> None:
        """Open a connection to the primary, and attach there what has no far end."""
        self.accepted = self.primary.accept(self.user)
        silence = Silence(lambda: self.silence_clock(), SILENCE_S)
        self.upstream = Upstream(broker_engine(), self.name, "primary", lambda: None, self.ended.append, silence)
        self.attach_those_left()

    def attach_those_left(self) -> None:
        """What has no far end gets one."""
        again, self.again, self.is_held_back = self.again, [], False
        for link in again:
            if link in self.links and self.upstream is not None:
                self.upstream.attach(link)
        self.settle_down()

    def cut(self, *, deliver: bool = False) -> None:
        """The connection to the primary breaks; `deliver`: what was under way to the primary gets there before."""
        upstream, accepted, self.upstream, self.accepted = self.upstream, self.accepted, None, None
        assert upstream is not None
        assert accepted is not None
        if deliver:
            accepted.receive(upstream.take_output())
            self.primary.turn()
        accepted.lost()
        self.primary.turn()
        upstream.lost("cut")
        upstream.engine.close()
        self.settle_down()

    def give_up_upstream(self) -> tuple[Connection, bytes]:
        """Take another connection to the primary, which has not noticed that this one is given up. Returns its end of
        it, and what is on the way there."""
        upstream, accepted = self.upstream, self.accepted
        assert upstream is not None
        assert accepted is not None
        late = upstream.take_output()
        self.upstream = None
        upstream.lost("it hears nothing")
        upstream.engine.close()
        self.connect_upstream()
        return accepted, late

    def settle_down(self) -> None:
        """Carry bytes on all three ways until nothing moves."""
        self.proxy.settle_down()

    def _carry(self) -> bool:
        self._place()
        return self._exchange()

    def _place(self) -> None:
        begun, self._begun = self._begun, []
        for link in begun:
            if self.upstream is None or self.is_held_back:
                self.again.append(link)
            elif link in self.links:
                self.upstream.attach(link)
        if begun:
            self.proxy.settle_alone()

    def _exchange(self) -> bool:
        upstream, accepted = self.upstream, self.accepted
        if upstream is None or accepted is None:
            return False
        outgoing = upstream.take_output()
        if outgoing:
            accepted.receive(outgoing)
        self.primary.settle_down()
        incoming = accepted.take_output()
        if self._under_way is not None:
            self._under_way += incoming
        elif incoming:
            upstream.receive(incoming)
        return bool(outgoing or incoming)

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """What the primary says meanwhile reaches the proxy when this is over."""
        self._under_way = bytearray()
        yield
        late, self._under_way = bytes(self._under_way), None
        if self.upstream is not None:
            self.upstream.receive(late)
        self.settle_down()

    def let_through(self, frames: int) -> None:
        """So many frames of what is held up reach the proxy now."""
        assert self.upstream is not None
        assert self._under_way is not None
        for _ in range(frames):
            size = int.from_bytes(self._under_way[:4], "big")
            frame = bytes(self._under_way[:size])
            del self._under_way[:size]
            self.upstream.receive(frame)
        self.settle_down()

    # --- what links ask for

    def relay(self, connection: Connection, link: proton.Link, set_name: str) -> RelayedLink:
        relayed = relayed_kind(link)(connection, link, set_name, self)
        self.links[relayed] = None
        self._begun.append(relayed)
        return relayed

    def place(self, link: PlacedLink) -> None:
        self.links[link] = None
        if self.upstream is None or self.is_held_back:
            self.again.append(link)
        else:
            self.upstream.attach(link)

    def try_again(self, link: PlacedLink) -> None:
        self.again.append(link)

    attach_again = try_again

    def forget(self, link: PlacedLink, *, closed: bool = True) -> None:
        self.links.pop(link, None)
        if self.upstream is not None:
            self.upstream.detach(link, closed=closed)

    def take_producer(self) -> Producer:
        return self._producers.pop() if self._producers else Producer(b"proxy/%d" % next(self._made))

    def give_producer_back(self, producer: Producer) -> None:
        self._producers.append(producer)

    # --- as `PairedBroker`

    def connect(self, desired_capabilities: Sequence[str] = ()) -> PairedClient:
        """See `PairedBroker.connect`."""
        client = PairedClient(cast(PairedBroker, self), desired_capabilities=desired_capabilities)
        self.settle_down()
        return client

    def turn(self) -> None:
        """Both brokers' moves, and what comes of them."""
        self.settle_down()


def paired_broker(way: str, settings: ContainerSettings | None = None) -> PairedBroker:
    """One whose clients are its own (`direct`), or those of a proxy (`proxied`)."""
    return PairedBroker(settings) if way == "direct" else cast(PairedBroker, PairedProxy(settings))
