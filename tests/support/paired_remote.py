"""A broker and one outside of its cluster, joined in memory: the latter is a test's to speak for, in truth and in lies.

What `server.proxies.remote_nodes` does with sockets and clocks, `PairedRemote` does when the test says so.
"""

from __future__ import annotations

from typing import Any

import proton

from paired_engines import PairedBroker, PairedClient, push_into, take_from
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection
from qpid_ha_broker.amqp.links.remote_links import RemoteLink, RemoteTarget, remote_link
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.engine import Engine

TARGET = RemoteTarget("orders", "their-orders", "amqp://there:5672")
_NEW = proton.Endpoint.LOCAL_UNINIT | proton.Endpoint.REMOTE_ACTIVE


class PairedRemote:
    """`here` knows `orders` as a node of another broker. For the rest see `remote_links.RemoteDriver`."""

    def __init__(self, *, product: str = "other") -> None:
        self.broker, self.name = "here's-uuid", "here"
        self.here = PairedBroker(ContainerSettings("here", "0", max_message_bytes=100_000))
        self.here.connections.remotes = self
        self.here.carriers.append(self._exchange)
        self.now_s = 0.0
        self.here.container.clock = lambda: self.now_s
        self.links: dict[Any, None] = {}
        self.again: list[Any] = []
        """To be attached when the test says so."""
        self.refusals: list[AmqpError] = []
        """What the other broker refused, or ended for good."""
        self.redirects: list[AmqpError] = []
        self.follows_redirects = False
        self.found_there: list[Any] = []
        """Probes whose node is there."""
        self.warnings: list[str] = []
        """What operators are told about messages of bridges."""
        self.ended: list[str] = []
        """Why connections were given up."""
        self._product = product
        self.connect_far()

    # --- what a test does

    def client(self) -> PairedClient:
        """A client here."""
        client = PairedClient(self.here)
        self.settle_down()
        return client

    def connect_far(self, max_frame_bytes: int = 0) -> None:
        """Open a connection to the other broker, and attach there what has no far end.

        `max_frame_bytes`: that it takes; 0: any.
        """
        self.transport = proton.Transport(proton.Transport.SERVER)
        if max_frame_bytes:
            self.transport.max_frame_size = max_frame_bytes
        self.far = proton.Connection()
        self.far.container = "there"
        self.far.properties = {proton.symbol("product"): self._product}
        self.transport.bind(self.far)
        engine = Engine(proton.Transport(), proton.Connection())
        self.upstream: RemoteConnection | None = RemoteConnection(
            engine, "here/1", "there", lambda: None, self.ended.append
        )
        again, self.again = self.again, []
        for link in again:
            self.upstream.attach(link)
        self.settle_down()

    def far_link(self) -> Any:
        """The newest link at the other broker that is not answered yet."""
        found, link = None, self.far.link_head(_NEW)
        while link is not None:
            found, link = link, link.next(_NEW)
        assert found is not None
        return found

    def answer(self, credit: int = 0) -> Any:
        """Let it attach, with so much credit for a publisher; it is what the other broker has of the link."""
        link = self.far_link()
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.open()
        if credit:
            link.flow(credit)
        self.settle_down()
        return link

    def refuse(self, name: str, description: str, info: dict[Any, Any] | None = None) -> None:
        """Refuse it."""
        link = self.far_link()
        link.open()
        link.condition = proton.Condition(name, description, info)
        link.close()
        self.settle_down()

    def cut(self) -> None:
        """The connection breaks."""
        upstream, self.upstream = self.upstream, None
        assert upstream is not None
        upstream.lost("cut")
        upstream.engine.close()
        self.settle_down()

    def say(self, data: bytes) -> None:
        """The other broker sends these bytes, whatever they mean."""
        assert self.upstream is not None
        self.settle_down()
        self.upstream.receive(data)
        self.here.settle_alone()

    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.now_s += seconds
        for link in list(self.links):
            link.expire(self.now_s)
        self.settle_down()

    def settle_down(self) -> None:
        """Carry bytes on both ways until nothing moves."""
        self.here.settle_down()

    def _exchange(self) -> bool:
        upstream = self.upstream
        if upstream is None:
            return False
        outgoing = upstream.take_output()
        push_into(self.transport, outgoing)
        self._open_all()
        incoming = take_from(self.transport)
        if incoming:
            upstream.receive(incoming)
        return bool(outgoing or incoming)

    def _open_all(self) -> None:
        if self.far.state & proton.Endpoint.LOCAL_UNINIT and self.far.state & proton.Endpoint.REMOTE_ACTIVE:
            self.far.open()
        session: Any = self.far.session_head(_NEW)
        while session is not None:
            session.open()
            session = session.next(_NEW)

    # --- what links ask for

    def relay(self, connection: Connection, link: proton.Link, address: str) -> RemoteLink | None:
        if address != TARGET.name:
            return None
        relayed = remote_link(connection, link, TARGET, self)
        self.links[relayed] = None
        if self.upstream is None:
            self.again.append(relayed)
        else:
            self.upstream.attach(relayed)
        return relayed

    def begin(self, bridge: Any) -> None:
        """Have a bridge attached at the other broker."""
        self.links[bridge] = None
        if self.upstream is not None:
            self.upstream.attach(bridge)
        self.settle_down()

    def attach_again(self, link: Any, reason: str) -> None:
        self.again.append(link)

    def redirect(self, link: Any, error: AmqpError) -> bool:
        self.redirects.append(error)
        if self.follows_redirects:
            self.again.append(link)
        return self.follows_redirects

    def gone(self, link: Any, error: AmqpError) -> None:
        self.refusals.append(error)

    def found(self, link: Any) -> None:
        self.found_there.append(link)

    def warn(self, link: Any, text: str) -> None:
        self.warnings.append(text)

    def forget(self, link: Any, *, closed: bool = True) -> None:
        self.links.pop(link, None)
        if link in self.again:
            self.again.remove(link)
        if self.upstream is not None:
            self.upstream.detach(link, closed=closed)
