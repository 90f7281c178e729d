"""Whether a node of another broker is there: asked by attaching a link that nothing is sent on."""

from __future__ import annotations

from typing import Any, Final

import proton

from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection
from qpid_ha_broker.amqp.links.remote_links import RemoteDriver, RemoteTarget
from qpid_ha_broker.amqp.nodes.terminus import NO_CREATE
from qpid_ha_broker.amqp.wire.conditions import LINK_REDIRECT, AmqpError
from qpid_ha_broker.amqp.wire.engine import Disposition
from qpid_ha_broker.amqp.wire.remote_path import Step, properties_of

PATIENCE_S: Final = 10.0


class RemoteProbe:
    """The promise: it ends with an answer, or after PATIENCE_S without one; and brokers of ours make no node for it.

    See `server.proxies.remote_nodes.DrivenEnd`.
    """

    passed = 0
    is_open = False
    is_attached = False
    far_container = ""
    far_name = ""

    def __init__(self, target: RemoteTarget, driver: RemoteDriver, now_s: float) -> None:
        self.target = target
        self._driver = driver
        self._until_s = now_s + PATIENCE_S
        self.has_ended = False

    def open_far(self, connection: RemoteConnection, session: Any, name: str) -> proton.Link:
        """Make and open the link there."""
        far: proton.Link = session.sender(name)
        far.target.address = self.target.node
        far.target.capabilities.put_object(proton.symbol(NO_CREATE))
        far.properties = properties_of((Step(self._driver.broker, self._driver.name, self.target.name),))
        far.open()
        return far

    def attached(self, connection: RemoteConnection, far: proton.Link) -> RemoteProbe:
        """It is there."""
        self._driver.found(self)
        self._end()
        return self

    def detached(self, error: AmqpError) -> None:
        """It is not, or cannot be had."""
        if not (error.name == LINK_REDIRECT and self._driver.redirect(self, error)):
            self.refuse(error)

    def refuse(self, error: AmqpError) -> None:
        """It cannot be had there."""
        self._driver.gone(self, error)
        self._end()

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self._driver.attach_again(self, reason)

    def note(self, reason: str) -> None:
        """Why it is not attached: nobody waits for that."""

    def expire(self, now_s: float) -> None:
        """Time goes by, by the container's clock."""
        if now_s >= self._until_s:
            self._end()

    def _end(self) -> None:
        self.has_ended = True
        self._driver.forget(self)

    def dispositions(self, batch: list[Disposition]) -> None:
        """Nothing is sent."""

    def flow(self) -> None:
        """Credit is not used."""
