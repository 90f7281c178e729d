"""What this broker has to do with brokers outside of its cluster: copies of their queues, their nodes, and bridges."""

from __future__ import annotations

import random
from typing import Protocol

from qpid_ha_broker.amqp.connections.connection import Connections
from qpid_ha_broker.server.control.administration import Params, check_parameters
from qpid_ha_broker.server.control.control import Method
from qpid_ha_broker.server.proxies.remote_nodes import RemoteNodes
from qpid_ha_broker.server.proxies.unused_nodes import UnusedNodes
from qpid_ha_broker.server.runtime.engines import RemoteEngines
from qpid_ha_broker.server.sets.bridges import BridgeHost, Bridges
from qpid_ha_broker.server.sets.queue_copies import CopyHost, QueueCopies


class OutsideHost(CopyHost, BridgeHost, Protocol):
    """What is needed of the broker."""

    connections: Connections


class OutsideBrokers:
    """All of it, as the broker sees it."""

    def __init__(self, broker: OutsideHost) -> None:
        engines = RemoteEngines(broker.current, broker.notices.fault)
        self.remotes = RemoteNodes(broker, engines)
        self.copies = QueueCopies(broker, self.remotes.directory.configured, engines)
        self.bridges = Bridges(broker, self.remotes)
        self.unused = UnusedNodes(broker, self.remotes, random.random)
        broker.connections.remotes = self.remotes
        broker.container.default.configuration.remote = self.remotes.directory.configured

    def methods(self) -> dict[str, Method]:
        """Of the control socket."""
        return {"replicate": self.copies.replicate, "remote-nodes": self.listed}

    def listed(self, params: Params) -> object:
        """The control socket's method `remote-nodes`: one row for each node, and for each queue that is filled."""
        check_parameters("remote-nodes", params)
        nodes = [self.remotes.row(name, found) for name, found in self.remotes.directory.all()]
        return [*nodes, *self.bridges.rows()]

    def tick(self) -> None:
        """Time goes by."""
        self.bridges.tick()
        if self.bridges.leads_default:
            self.unused.tick()

    def stop(self) -> None:
        """The process will end; the clients' links are ended by others."""
        self.bridges.stop()
        self.remotes.stop()

    def facts(self) -> dict[str, object]:
        """What `query` tells; nothing where there is nothing."""
        return {**self.copies.facts(), **self.remotes.facts()}
