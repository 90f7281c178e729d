"""What far links have in common, whatever they do with messages: where they are attached, and a client's link there.

What becomes of messages when the far end is lost is the policy of each kind: docs/architecture.md has all of them.
"""

from __future__ import annotations

from typing import Any, Generic
from weakref import ref

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.incoming import ReceivingLink
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait, Told
from qpid_ha_broker.amqp.relaying.far_connection import AnyFar
from qpid_ha_broker.amqp.wire.conditions import AmqpError


class FarWait(NodeWait):
    """What one client's attach waits for; `link`, whose it is, is abandoned when the client waits no more."""

    def __init__(self, reason: str, link: ClientFarLink[Any]) -> None:
        super().__init__(reason)
        self._link = ref(link)

    def forget(self, told: Told) -> None:
        """Nobody wants the answer any more, unless it has just been given."""
        waits = len(self)
        super().forget(told)
        link = self._link()
        if len(self) < waits and link is not None:
            link.abandon()


class FarLink(LinkEndpoint, Generic[AnyFar]):
    """A link whose far end comes and goes.

    | it is | `upstream` and `far` | the connection is lost | the other broker detaches it |
    | --- | --- | --- | --- |
    | pending, or lost before | None | `lost`: it stays so | `detached`: refused, or attached again |
    | attached | are there | `lost`: nothing more is heard of what is under way | `detached`: the same, or it is over |
    | over | None | it has been forgotten by its driver, and is told nothing | |
    """

    upstream: AnyFar | None = None
    far: proton.Link | None = None
    """Attached there; None: not now."""

    @property
    def is_attached(self) -> bool:
        """The other broker has answered."""
        return self.far is not None

    def lost(self, reason: str) -> None:
        """The connection there is gone."""
        self._left()
        self._paused(reason)

    def _left(self) -> None:
        """There is no far end any more."""
        self.upstream = self.far = None

    def _paused(self, reason: str) -> None:
        """Have it attached again, if it is worth that."""
        raise NotImplementedError(f"{type(self).__name__} does not say who attaches it again")

    def _touch_far(self) -> None:
        if self.upstream is not None:
            self.upstream.touch()


class ClientFarLink(FarLink[AnyFar]):
    """The far end of a link of a client here (*near*), whose attach is answered as the other broker has answered it."""

    connection: Connection
    is_open = False
    """The client's attach is answered, and its link has not ended."""

    def begin_far(self, connection: Connection, link: proton.Link, reason: str) -> None:
        """The client has attached; `reason`: what it waits for."""
        self.connection = connection
        self.link = link
        self.wait = FarWait(reason, self)

    def _far_as_near(self, session: Any, name: str) -> proton.Link:
        """A link for the far end, which is not opened, as the client has asked for it."""
        near = self.link
        far: proton.Link = session.sender(name) if near.is_receiver else session.receiver(name)
        far.source.copy(near.remote_source)
        far.target.copy(near.remote_target)
        far.snd_settle_mode = near.remote_snd_settle_mode
        far.rcv_settle_mode = near.remote_rcv_settle_mode
        return far

    def _near_as_far(self, far: proton.Link) -> None:
        """The client is to get this answer."""
        near = self.link
        near.source.copy(far.remote_source)
        near.target.copy(far.remote_target)
        near.snd_settle_mode = far.remote_snd_settle_mode
        near.rcv_settle_mode = far.remote_rcv_settle_mode
        self.is_open = True

    def abandon(self) -> None:
        """The client does not wait for the answer any more."""
        raise NotImplementedError(f"{type(self).__name__} does not say who has to forget it")

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, error)


class FarPublisher(ReceivingLink):
    """A client's publisher: its credit, and the size of its messages, are what the other broker gives."""

    far: proton.Link | None
    _most_bytes = 0
    """Of one message, as the other broker says; 0: as here."""

    @property
    def must_end_at_once(self) -> bool:
        return False

    @property
    def max_message_bytes(self) -> int:
        own = super().max_message_bytes
        return min(own, self._most_bytes) if self._most_bytes else own

    def _open_near(self) -> None:
        """Let the client publish."""
        self.link.rcv_settle_mode = proton.Link.RCV_FIRST
        if self.far is not None:
            self._most_bytes = self.far.remote_max_message_size
        self.link.max_message_size = self.max_message_bytes
        self.link.open()
        self.connection.engine.attach_receiving(self.link, self)
        self.replenish()
