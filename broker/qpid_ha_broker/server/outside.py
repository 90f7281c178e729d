"""What this broker has to do with brokers outside of its cluster: copies of their queues, and their nodes by name."""

from __future__ import annotations

from typing import Protocol

from qpid_ha_broker.amqp.connection import Connections
from qpid_ha_broker.server.control import Method
from qpid_ha_broker.server.engines import RemoteEngines
from qpid_ha_broker.server.proxying import ProxyHost
from qpid_ha_broker.server.queue_copies import CopyHost, QueueCopies
from qpid_ha_broker.server.remote_nodes import RemoteNodes


class OutsideHost(CopyHost, ProxyHost, Protocol):
    """What is needed of the broker."""

    connections: Connections


class OutsideBrokers:
    """Both, as the broker sees them."""

    def __init__(self, broker: OutsideHost) -> None:
        self.copies = QueueCopies(broker)
        self.remotes = RemoteNodes(broker, RemoteEngines(broker.current))
        broker.connections.remotes = self.remotes
        broker.container.default.configuration.remote = self.remotes.directory.configured

    def methods(self) -> dict[str, Method]:
        """Of the control socket."""
        return {"replicate": self.copies.replicate, "remote-nodes": self.remotes.listed}

    def facts(self) -> dict[str, object]:
        """What `query` tells; nothing where there is nothing."""
        return {**self.copies.facts(), **self.remotes.facts()}
