"""A client's session at a broker that relays: what the primary of `default` decides about it, and what becomes of it.

The session is a link (`relayed_session_request`) from this broker to the one that leads `default`, which may be itself.
When that is lost, or leads no more, the link is attached at whoever leads then, and says which session it has; the
client does not notice. When it is ended there, another connection has the session, or nobody.
"""

from __future__ import annotations

from typing import Any

import proton

from qpid_ha_broker.amqp.nodes.session_attachment import SessionAttachment
from qpid_ha_broker.amqp.relaying.relayer import PrimaryEnd, Relayer, is_elsewhere, unreachable
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, LINK_STOLEN, AmqpError
from qpid_ha_broker.amqp.wire.engine import EachDisposition, remote_properties_of
from qpid_ha_broker.amqp.wire.relay import RelayRequest
from qpid_ha_broker.amqp.wire.relayed_session_request import SESSION_NODE, SessionAsked, read_granted


class RelayedSession(PrimaryEnd, EachDisposition):
    """The promise: the client's open is answered once the session is its own, and its connection ends when it is not.

    For the methods that are called from its far end see `upstream.UpstreamLink` and `relayer.PlacedLink`.
    """

    needs_sessions = True

    def __init__(self, attachment: SessionAttachment, relayer: Relayer, container: str) -> None:
        """`container`: the client's container id."""
        super().__init__(RelayRequest((relayer.name,), f"{id(attachment):x}", container, attachment.user))
        self._attachment = attachment
        self._relayer = relayer
        self._asks = 0
        self._has_left = False
        self._ends = False
        """The client has closed its connection, and the session with it."""

    def begin(self) -> None:
        """The client has opened."""
        self._relayer.place(self)

    # --- the far end

    def open_far(self, upstream: Upstream, session: Any, name: str) -> proton.Link:
        attachment = self._attachment
        request = attachment.request
        self._asks += 1
        asked = SessionAsked(
            request.name, request.timeout_ms, request.must_resume, attachment.id, attachment.epoch,
            attachment.peer, request.attempt, self._asks,
        )  # fmt: skip
        far: proton.Link = session.sender(name)
        far.target.address = SESSION_NODE
        return self._opened(far, asked.properties())

    def attached(self, upstream: Upstream, far: proton.Link) -> RelayedSession:
        """It is the client's. Raises AmqpError for an answer that makes no sense."""
        granted = read_granted(remote_properties_of(far))
        self.upstream = upstream
        attachment = self._attachment
        if self._has_left:
            self._relayer.forget(self, closed=self._ends)
        elif attachment.is_granted:
            attachment.timeout_ms = granted.timeout_ms
        else:
            attachment.id, attachment.epoch, attachment.timeout_ms, attachment.status = granted
            attachment.grant()
        return self

    def flow(self) -> None:
        """There is nothing to send."""

    def detached(self, error: AmqpError) -> None:
        """The session is not the client's, or is not any more; or somebody else leads `default`."""
        self.upstream = None
        if is_elsewhere(error) and not (self._has_left and not self._ends):
            self._relayer.attach_again(self)
            return
        self._relayer.forget(self)
        attachment = self._attachment
        if not self._has_left:
            self._has_left = attachment.has_left = True
            is_forced = attachment.is_granted or error.name == LINK_STOLEN
            attachment.end(AmqpError(CONNECTION_FORCED, error.description) if is_forced else error)

    def lost(self, reason: str) -> None:
        """The connection to the broker that leads `default` is gone: the session waits there, or is told again."""
        self.upstream = None
        if self._has_left and not self._ends:
            self._relayer.forget(self)
        else:
            self._relayer.attach_again(self)

    def out_of_reach(self) -> None:
        """Who has its session goes by what becomes of its links: it keeps the session while another set has any."""
        attachment = self._attachment
        if not (attachment.is_granted or self._has_left):
            attachment.end(unreachable(self._relayer.name, self.set_name))

    # --- the near end

    def left(self, *, ends: bool) -> None:
        """The client's connection has ended. `ends`: and the session with it, which is told whoever leads `default`."""
        if self._has_left:
            return
        self._has_left, self._ends = True, ends
        if self.is_attached or not (ends and self._attachment.is_granted):
            self._relayer.forget(self, closed=ends)
