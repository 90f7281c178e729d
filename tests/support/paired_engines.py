"""Two real ends joined in memory: the broker's container on one side, Proton's client engine on the other.

There is no socket and no clock: `PairedBroker.settle_down` carries bytes to and fro and lets the broker have its turns
until nothing moves any more. What happens in between is the test's to decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import proton

from qpid_ha_broker.amqp.connections.connection import Connection, Connections
from qpid_ha_broker.amqp.connections.container import Container, ContainerSettings
from qpid_ha_broker.amqp.links.attach import attach
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.model.log import LogBatch
from qpid_ha_broker.model.queue import Queue

START_MS = 1_000_000
_ROUNDS = 10_000
_INPUT_BUFFER = 4096


class PairedBroker:
    """A container without a process.

    `batches` is what witnesses of `default` would have been shown, `visits` how many turns each other set has had.
    """

    def __init__(self, settings: ContainerSettings | None = None, *, log_acquisitions: bool = False) -> None:
        numbers = count(1)
        self.container = Container(
            settings or ContainerSettings("test", "0"), lambda: str(next(numbers)), log_acquisitions=log_acquisitions
        )
        self.container.default.resources.default.declare_standard_exchanges()
        self.container.now_ms = START_MS
        self.connections = Connections(self.container, attach)
        self.batches: list[LogBatch] = []
        self.visits: Counter[str] = Counter()
        self.clients: list[PairedClient] = []

    def connect(self, desired_capabilities: Sequence[str] = ()) -> PairedClient:
        """A client whose open has been answered, if it is answered."""
        client = PairedClient(self, desired_capabilities=desired_capabilities)
        self.settle_down()
        return client

    def accept(self) -> Connection:
        """The broker's end of a connection whose bytes the caller carries."""
        transport = proton.Transport(proton.Transport.SERVER)
        transport.max_frame_size = 64 * 1024
        return Connection(self.connections, Engine(transport, proton.Connection()), "127.0.0.1:1")

    def turn(self) -> None:
        """The broker's move; what it wrote to the replicated log is kept in `batches`."""
        (_, batch), *others = self.container.turn()
        self.visits.update(hosted.name for hosted, _ in others)
        self.container.default.resources.sets.local_log.take_parts()
        if batch is not None:
            self.batches.append(batch)
        self.connections.take_touched()

    def settle_down(self) -> None:
        """Carry bytes and have turns until nothing moves. Raises RuntimeError when it never ends."""
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
        self.peer = broker.accept()
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
        pending = self.transport.pending()
        outgoing = self.transport.peek(pending) if pending > 0 else b""
        if outgoing:
            self.transport.pop(len(outgoing))
            self.sent += outgoing
            self.peer.receive(bytes(outgoing))
        incoming = self.peer.take_output()
        for offset in range(0, len(incoming), _INPUT_BUFFER):  # Proton takes no more than its buffer holds
            self.transport.push(incoming[offset : offset + _INPUT_BUFFER])
        return bool(outgoing or incoming)

    def vanish(self) -> None:
        """The socket breaks; the broker notices."""
        self._is_lost = True
        self.peer.lost()
        self.broker.turn()

    def sender(self, address: str | None) -> Any:
        """An attached publisher's link."""
        link = self.session.sender(f"to-{next(self._names)}")
        link.target.address = address
        link.open()
        self.broker.settle_down()
        return link

    def receiver(self, address: str, credit: int = 0, *, answers_first: bool = False) -> Any:
        """An attached consumer's link. `answers_first`: the broker settles, and only then do we (mode `second`)."""
        link = self.session.receiver(f"from-{next(self._names)}")
        link.source.address = address
        link.target.address = address
        if answers_first:
            link.rcv_settle_mode = proton.Link.RCV_SECOND
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

    def received(self, link: Any) -> list[tuple[Any, Any]]:
        """The messages that have come, in order."""
        found = []
        while (delivery := link.current) is not None and delivery.readable and not delivery.partial:
            message = proton.Message()
            message.decode(link.recv(delivery.pending))
            link.advance()
            found.append((delivery, message))
        return found
