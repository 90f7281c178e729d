"""Whoever is primary: found among the brokers of a cluster, and found again after a failover."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self, TypeVar

from qpid_ha_config.addresses import Address
from qpid_ha_pipeline.amqp.brokers import Cluster
from qpid_ha_pipeline.amqp.connection import BrokerConnection, BrokerLost
from qpid_ha_pipeline.errors import PipelineError

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0

Result = TypeVar("Result")


class PrimaryConnection:
    """A connection that is made when it is needed, and made anew when it broke."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._connection: BrokerConnection | None = None
        self._last: Address | None = None
        self._reason = BrokerLost("nobody was asked")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

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
        self.close()

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
        """Whether it is the one that `connection` gives."""
        return connection is self._connection

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
