"""Whoever is primary: found among the brokers of a cluster, and found again after a failover.

Of a cluster with many resource sets whoever is primary of the set of a queue: each broker that serves us says where.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from qpid_ha_config.addresses import Address
from qpid_ha_config.closing import Closing
from qpid_ha_pipeline.amqp.brokers import Cluster
from qpid_ha_pipeline.amqp.connection import BrokerConnection, BrokerLost, LedElsewhere
from qpid_ha_pipeline.errors import PipelineError

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0

Result = TypeVar("Result")


class PrimaryConnection(Closing):
    """A connection that is made when it is needed, and made anew when it broke."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._connection: BrokerConnection | None = None
        self._last: Address | None = None
        self._reason = BrokerLost("nobody was asked")
        self._others: dict[Address, BrokerConnection] = {}
        """To brokers that lead sets of nodes, beside the one that serves us."""
        self._nodes: dict[str, NodeConnection] = {}

    def close(self) -> None:
        """Drop the connections, if there are any."""
        self._drop()
        others, self._others = self._others, {}
        for connection in others.values():
            connection.close()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def of(self, node: str) -> NodeConnection:
        """To whoever leads the resource set of that queue, or has that exchange."""
        return self._nodes.setdefault(node, NodeConnection(self, node))

    def at(self, broker: Address) -> BrokerConnection:
        """To that broker. Raises BrokerLost."""
        if self._connection is not None and self._connection.broker == broker:
            return self._connection
        if broker not in self._others:
            self._others[broker] = BrokerConnection(broker, self.cluster)
        return self._others[broker]

    def lost_at(self, broker: Address, reason: BrokerLost) -> None:
        """The connection to that broker is of no use any more."""
        if broker in self._others:
            self._others.pop(broker).close()
        elif self._connection is not None and self._connection.broker == broker:
            self.lost(reason)

    def run(self, step: Callable[[BrokerConnection], Result]) -> Result:
        """`step`, again from its beginning at the next primary when the broker is lost meanwhile.

        A step that gets on is never given up; one that does not, `failover_timeout_s` after the last success. Raises
        PipelineError then.
        """
        for attempt in self.attempts():
            try:
                return step(attempt())
            except BrokerLost as error:
                self.lost(error)
        raise self.unreachable()

    def attempts(self) -> Iterator[Callable[[], BrokerConnection]]:
        """Ways to get a connection, until the time is over; the pauses between them grow."""
        deadline, pause_s = time.monotonic() + self.cluster.failover_timeout_s, _FIRST_PAUSE_S
        yield self.connection
        while time.monotonic() < deadline:
            time.sleep(random.uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            yield self.connection

    def lost(self, reason: BrokerLost) -> None:
        """The connection is of no use any more."""
        self._reason = reason
        self._drop()

    def unreachable(self) -> PipelineError:
        """What to tell when the time is over."""
        waited = f"{self.cluster.failover_timeout_s:g} s"
        return PipelineError(
            f"no broker of {self.cluster} serves us within {waited}; the last one said: {self._reason}"
        )

    def connection(self) -> BrokerConnection:
        """The open one, or a new one to the first broker that takes us. Raises BrokerLost when there is none."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def is_open(self, connection: BrokerConnection) -> bool:
        """Whether the connection is one of those that there are."""
        return connection is self._connection or connection in self._others.values()

    def _connect(self) -> BrokerConnection:
        candidates = [*([self._last] if self._last else []), *self.cluster.brokers]
        reason = BrokerLost("there is no broker")
        for broker in dict.fromkeys(candidates):
            try:
                return self._connect_to(broker)
            except BrokerLost as error:
                reason = error
            if reason.instead is not None and reason.instead in self.cluster.brokers:
                try:
                    return self._connect_to(reason.instead)
                except BrokerLost as error:
                    reason = error
        self._last = None
        raise reason

    def _connect_to(self, broker: Address) -> BrokerConnection:
        connection = BrokerConnection(broker, self.cluster)  # a backup does not let this come to its end
        self._last = broker
        return connection


class NodeConnection(PrimaryConnection):
    """The connection for one queue or exchange: the one that serves us, until its broker says who else leads the set.

    Nodes share the connection to a broker. Whoever made the `whole` closes them.
    """

    def __init__(self, whole: PrimaryConnection, node: str) -> None:
        super().__init__(whole.cluster)
        self.node = node
        self._whole = whole
        self._at: Address | None = None

    def of(self, node: str) -> NodeConnection:
        """As of the whole."""
        return self._whole.of(node)

    def close(self) -> None:
        """Others may use it."""

    def lost(self, reason: BrokerLost) -> None:
        """Go where it is led, or begin again with any broker."""
        self._reason = reason
        if isinstance(reason, LedElsewhere):
            self._at = reason.instead
        elif self._at is None:
            self._whole.lost(reason)
        else:
            self._whole.lost_at(self._at, reason)
            self._at = None

    def connection(self) -> BrokerConnection:
        """The open one, or a new one. Raises BrokerLost when there is none."""
        return self._whole.connection() if self._at is None else self._whole.at(self._at)

    def is_open(self, connection: BrokerConnection) -> bool:
        """Whether the connection is one of those that there are."""
        return self._whole.is_open(connection)
