"""Brokers of a cluster joined in memory: the end that a channel comes to, and the end that opens it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paired_engines import BROKER, PairedBroker, PairedClient, broker_engine
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.relaying.peer_client import PeerClient
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.peer_frames import Channel

SETTINGS = ContainerSettings("primary", "0")


class Peers:
    """The other side of `container.peers.single`: writes down what it is told. `answers`: sends each frame back."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.frames: list[bytes] = []
        self.reasons: list[str] = []
        self.answers = False

    def opened(self, channel: Channel) -> None:
        self.channels.append(channel)

    def received(self, channel: Channel, data: bytes) -> None:
        self.frames.append(data)
        if self.answers:
            channel.send(data)

    def closed(self, channel: Channel, reason: str) -> None:
        self.reasons.append(reason)


class Backup:
    """A `PeerClient`, and what it was told. `capability`: what it demands of the broker. Without an `engine` it has the
    one that `broker.there` says."""

    def __init__(self, broker: Cluster, peer: Connection, engine: Engine | None = None, capability: str = "") -> None:
        self._broker = broker
        self.peer = peer
        self.openings = 0
        self.frames: list[bytes] = []
        self.reasons: list[str] = []
        if engine is None:
            engine = broker_engine()
            engine.input.may_stream = broker.there
        self._receive: Callable[[bytes], None] = self.frames.append
        told = self._opened, self._received, self.reasons.append
        self.client = PeerClient(engine, "backup", "host", *told, capability)

    def _opened(self) -> None:
        self.openings += 1

    def _received(self, frame: bytes) -> None:
        self._receive(frame)

    def listen(self, receive: Callable[[bytes], None]) -> None:
        """From now on `receive` gets the frames."""
        self._receive = receive

    def exchange(self) -> bool:
        outgoing = self.client.take_output()
        self.peer.receive(outgoing)
        self._broker.turn()
        incoming = self.peer.take_output()
        self.client.receive(incoming)
        return bool(outgoing or incoming)

    def settle_down(self) -> None:
        while self.exchange():
            pass

    def vanish(self) -> None:
        """The socket breaks; both ends notice."""
        self.peer.lost()
        self.client.lost("reset by peer")


class Cluster(PairedBroker):
    """A broker that takes peers. `here`: it can leave AMQP for a stream; `there`: so can those that connect."""

    def __init__(self, settings: ContainerSettings = SETTINGS, *, here: bool = True, there: bool = True) -> None:
        super().__init__(settings)
        self.here, self.there = here, there
        self.peers = Peers()
        self.container.peers.single = self.peers

    def accept(self, user: str = "") -> Connection:
        connection = super().accept(user)
        connection.engine.input.may_stream = self.here
        return connection

    def backup(self) -> Backup:
        backup = Backup(self, self.accept())
        backup.settle_down()
        return backup

    def admin(self) -> PairedClient:
        """A client whose connection is that of another broker."""
        client = PairedClient(self, BROKER)
        self.settle_down()
        return client

    def warnings(self) -> list[str]:
        return [notice.text for notice in self.container.take_notices() if notice.level == "warning"]


def condition_of(client: PairedClient) -> Any:
    """Why the broker has ended the connection."""
    return client.connection.remote_condition
