"""A broker in memory: its container on one side, Proton's client engine on the other, and other brokers joined to it.

There is no socket and no clock: `PairedBroker.settle_down` carries bytes to and fro and lets the broker have its turns
until nothing moves any more. What happens in between is the test's to decide. `paired_proxy` joins one that relays to
the one that leads, `paired_remote` one to a broker outside of the cluster, `paired_peers` one to those of its cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import proton

from qpid_ha_broker.amqp.connections.connection import Connection, Connections
from qpid_ha_broker.amqp.connections.container import Container, ContainerSettings
from qpid_ha_broker.amqp.links.attach import attach
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.peer_frames import broker_properties
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.queue import Queue

START_MS = 1_000_000
_ROUNDS = 10_000
_INPUT_BUFFER = 4096


def take_from(transport: proton.Transport) -> bytes:
    """All that Proton's end has to say now."""
    pending = transport.pending()
    data = transport.peek(pending) if pending > 0 else b""
    if data:
        transport.pop(len(data))
    return bytes(data or b"")


def push_into(transport: proton.Transport, data: bytes) -> None:
    """Proton's end hears all of that, no more at once than its buffer holds."""
    offset = 0
    while offset < len(data):
        size = min(_INPUT_BUFFER, transport.capacity())
        if size <= 0:  # it hears nothing any more
            return
        transport.push(data[offset : offset + size])
        offset += size


class _LoggedIn(proton.Transport):
    """A server's end, as after a login with SASL."""

    def __init__(self, user: str) -> None:
        super().__init__(proton.Transport.SERVER)
        self._user = user

    @property
    def user(self) -> str:
        return self._user

    @property
    def authenticated(self) -> bool:
        return True


PROOF = "of the cluster"
"""By which the brokers of these tests know each other, where they have no login."""


BROKER: dict[str, object] = {str(name): value for name, value in broker_properties(PROOF).items()}
"""Properties of the open of another broker."""


def broker_engine() -> Engine:
    """Of a broker that connects to another one of its cluster."""
    engine = Engine(proton.Transport(), proton.Connection())
    engine.proof = PROOF
    return engine


class PairedBroker:
    """A container without a process.

    `batches` is what witnesses of `default` would have been shown, `visits` how many turns each other set has had.
    """

    def __init__(self, settings: ContainerSettings | None = None, *, log_acquisitions: bool = False) -> None:
        numbers = count(1)
        self.container = Container(
            settings or ContainerSettings("test", "0"), lambda: str(next(numbers)), log_acquisitions=log_acquisitions
        )
        self.container.default.resources.replicated.declare_standard_exchanges()
        self.container.now_ms = START_MS
        self.connections = Connections(self.container, attach)
        self.connections.is_proof = lambda proof: proof == PROOF
        self.batches: list[LogBatch] = []
        self.visits: Counter[str] = Counter()
        self.clients: list[PairedClient] = []
        self.carriers: list[Callable[[], bool]] = []
        """Each carries what is under way between this broker and another one, and says whether that was anything."""

    def connect(self, desired_capabilities: Sequence[str] = ()) -> PairedClient:
        """A client whose open has been answered, if it is answered."""
        client = PairedClient(self, desired_capabilities=desired_capabilities)
        self.settle_down()
        return client

    def accept(self, user: str = "") -> Connection:
        """The broker's end of a connection whose bytes the caller carries. `user`: who has logged in; empty: nobody."""
        transport = _LoggedIn(user) if user else proton.Transport(proton.Transport.SERVER)
        transport.max_frame_size = 64 * 1024
        return Connection(self.connections, Engine(transport, proton.Connection()), "127.0.0.1:1")

    def turn(self) -> None:
        """The broker's move; what it wrote to the replicated log is kept in `batches`."""
        (_, batch), *others = self.container.turn()
        self.visits.update(hosted.name for hosted, _ in others)
        self.container.default.resources.sets.take_local_parts()
        if batch is not None:
            self.batches.append(batch)
        self.connections.take_touched()

    def settle_down(self) -> None:
        """Carry bytes and have turns, here and where this broker is joined to others, until nothing moves.

        Raises RuntimeError when it never ends.
        """
        for _ in range(_ROUNDS):
            self.settle_alone()
            moved = [carry() for carry in self.carriers]
            if not any(moved):
                return
        raise RuntimeError("the conversation does not come to an end")

    def settle_alone(self) -> None:
        """The same between this broker and its clients; others hear nothing."""
        for _ in range(_ROUNDS):
            moved = [client.exchange() for client in self.clients]
            self.turn()
            moved += [client.exchange() for client in self.clients]
            if not any(moved) and not self.container.has_work:
                return
        raise RuntimeError("the conversation does not come to an end")

    def queue(self, name: str) -> Queue:
        """A queue, by name."""
        return self.container.default.resources.catalog.queues[name]

    def check_invariants(self) -> None:
        """Raise AssertionError where a queue's counters and its messages disagree."""
        for queue in self.container.default.resources.catalog.queues.values():
            queue.messages.check_invariants()


class PairedClient:
    """Proton's engine as a client. Nothing is carried before the broker's `settle_down`.

    Links and deliveries are Proton's; they are typed `Any`, because its own types promise less than it does.
    """

    def __init__(
        self,
        broker: PairedBroker,
        properties: dict[str, Any] | None = None,
        desired_capabilities: Sequence[str] = (),
        *,
        container: str | None = None,
        user: str = "",
    ) -> None:
        self.broker = broker
        self.transport = proton.Transport()
        self.connection = proton.Connection()
        self.connection.properties = properties
        self.connection.desired_capabilities = [proton.symbol(name) for name in desired_capabilities]
        self.connection.container = f"client-{len(broker.clients)}" if container is None else container
        self.transport.bind(self.connection)
        self.connection.open()
        self.session: Any = self.connection.session()
        self.session.open()
        self.peer = broker.accept(user)
        self.sent = bytearray()
        """Every byte that went to the broker."""
        self._names = count(1)
        self._tags = count(1)
        self._is_lost = False
        broker.clients.append(self)

    def exchange(self) -> bool:
        """Carry what both ends have to say now; whether that was anything."""
        if self._is_lost:
            return False
        outgoing = take_from(self.transport)
        if outgoing:
            self.sent += outgoing
            self.peer.receive(outgoing)
        incoming = self.peer.take_output()
        push_into(self.transport, incoming)
        return bool(outgoing or incoming)

    def vanish(self) -> None:
        """The socket breaks; the broker notices."""
        self._is_lost = True
        self.peer.lost()
        self.broker.turn()

    def sender(self, address: str | None, name: str = "") -> Any:
        """A publisher's link, attached as far as that goes without the test. `name`: empty, one of its own."""
        link = self.session.sender(name or f"to-{next(self._names)}")
        link.target.address = address
        return self.attach(link)

    def receiver(self, address: str, credit: int = 0, name: str = "", *, answers_first: bool = False) -> Any:
        """A consumer's link. `answers_first`: the broker settles, and only then do we (mode `second`)."""
        link = self.session.receiver(name or f"from-{next(self._names)}")
        link.source.address = address
        link.target.address = address
        if answers_first:
            link.rcv_settle_mode = proton.Link.RCV_SECOND
        return self.attach(link, credit)

    def attach(self, link: Any, credit: int = 0) -> Any:
        """Open a link that the test has made."""
        link.open()
        if credit:
            link.flow(credit)
        self.broker.settle_down()
        return link

    def send(self, link: Any, payload: bytes | proton.Message) -> Any:
        """Send a message, unsettled; it is on its way after the next `settle_down`."""
        delivery = link.delivery(str(next(self._tags)))
        link.stream(payload.encode() if isinstance(payload, proton.Message) else payload)
        link.advance()
        return delivery

    def send_all(self, link: Any, *messages: Any) -> list[Any]:
        """Send messages, or bodies of messages, and let them arrive; their deliveries."""
        wholes = [each if isinstance(each, proton.Message) else proton.Message(each) for each in messages]
        deliveries = [self.send(link, message) for message in wholes]
        self.broker.settle_down()
        return deliveries

    def publish(self, address: str, *messages: Any) -> list[Any]:
        """The same on a link of their own."""
        return self.send_all(self.sender(address), *messages)

    def bodies(self, link: Any) -> list[Any]:
        """What the messages say that have come, in order."""
        return [message.body for _, message in self.received(link)]

    def received(self, link: Any) -> list[tuple[Any, Any]]:
        """The messages that have come, in order."""
        return take_messages(link)


def queued_bodies(queue: Queue) -> list[Any]:
    """What the messages of a queue say, in order."""
    bodies = []
    for entry in queue.messages:
        message = proton.Message()
        message.decode(bytes(entry.resident_body()))
        bodies.append(message.body)
    return bodies


def take_messages(link: Any) -> list[tuple[Any, Any]]:
    """What has come whole on a link of Proton's engine: the deliveries, and their messages."""
    arrived = []
    while (delivery := link.current) is not None and delivery.readable and not delivery.partial:
        message = proton.Message()
        message.decode(link.recv(delivery.pending))
        link.advance()
        arrived.append((delivery, message))
    return arrived


def client_of(broker: PairedBroker, container: str = "shop", user: str = "") -> PairedClient:
    """A client of that name whose open has been answered. `user`: as whom it has logged in; empty: nobody."""
    client = PairedClient(broker, container=container, user=user)
    broker.settle_down()
    return client
