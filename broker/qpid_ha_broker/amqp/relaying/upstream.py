"""A connection to another broker of the cluster on which links of this broker's clients are relayed, without a socket.

It is shared by all clients here, and opened as brokers open theirs to each other. What a relayed link says and hears is
`relayed_links`' business.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

import proton

from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, NOT_IMPLEMENTED, RESOURCE_DELETED, AmqpError, as_told
from qpid_ha_broker.amqp.wire.engine import Consuming, Engine, Sending
from qpid_ha_broker.amqp.wire.opened_connection import OpenedConnection
from qpid_ha_broker.amqp.wire.peer_frames import broker_properties
from qpid_ha_broker.amqp.wire.relay import (
    OWN_NODES_CAPABILITY,
    RELAY_CAPABILITY,
    RELAY_MANAGEMENT_CAPABILITY,
    RELAY_SESSIONS_CAPABILITY,
    RELAY_SETS_CAPABILITY,
)
from qpid_ha_broker.amqp.wire.values import listed

_WITHOUT: Final = {
    OWN_NODES_CAPABILITY: "which is relayed for nothing but queues, and publishers to exchanges: upgrade it",
    RELAY_MANAGEMENT_CAPABILITY: "which takes no requests to $management for one set: upgrade it",
}
"""What a broker without that capability does not do."""


class UpstreamLink(Protocol):
    """What is relayed, as its far end sees it."""

    needed_capability: str
    """Only who offers it knows what to do with the link; empty: whoever takes relayed links does."""

    @property
    def needs_sessions(self) -> bool:
        """Only who offers RELAY_SESSIONS_CAPABILITY does."""

    def open_far(self, session: Any, name: str) -> proton.Link:
        """Make and open a link at the primary."""

    def attached(self, upstream: Upstream, far: proton.Link) -> Consuming | Sending:
        """The primary has answered; who is told what comes."""

    def detached(self, error: AmqpError) -> None:
        """The primary has refused or ended it. Nothing may be done with the far link any more."""

    def lost(self) -> None:
        """The connection is gone, and the far link with it."""


class Upstream(OpenedConnection):
    """The promise: each link that was given to `attach` is told `detached` or `lost`, once, unless it was `detach`ed.

    `on_touched`: there is something to write. `on_ended`: the connection is of no use any more; called once, last.
    `silence`: after which it is given up.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        hostname: str,
        on_touched: Callable[[], None],
        on_ended: Callable[[str], None],
        silence: Silence,
    ) -> None:
        self.engine = engine
        self.silence = silence
        self.touch = on_touched
        self.is_open = False
        self.relays_sets = False
        """The other broker takes relayed links to a resource set, too."""
        self.has_answers = False
        """Messages were answered that are to be answered before any more are sent: see `answer_first`."""
        self._offered: frozenset[str] = frozenset()
        """The peer's capabilities."""
        self._on_ended = on_ended
        self._pending: dict[UpstreamLink, None] = {}
        """To be attached once the connection is open."""
        self._far: dict[UpstreamLink, proton.Link] = {}
        self._near: dict[Any, UpstreamLink] = {}
        """By far link."""
        self._names = count(1)
        self._name = name
        own_limit_s = engine.transport.idle_timeout or silence.limit_s
        engine.transport.idle_timeout = min(own_limit_s, silence.limit_s)  # so the other one says that it is there
        connection = engine.connection
        connection.container = name
        connection.hostname = hostname
        connection.properties = broker_properties(engine.proof)
        desired = (*_WITHOUT, RELAY_CAPABILITY, RELAY_SETS_CAPABILITY, RELAY_SESSIONS_CAPABILITY)
        connection.desired_capabilities = [proton.symbol(name) for name in desired]
        connection.open()
        self._session: Any = connection.session()
        self._session.open()

    def __len__(self) -> int:
        """Links."""
        return len(self._pending) + len(self._far)

    # --- the driver's calls

    def answer_first(self) -> None:
        """A client that answers a message and sends another one may count on that order: the answer makes room."""
        if self.has_answers:
            self.has_answers = False
            self.engine.encode()

    def receive(self, data: bytes) -> None:
        if self.silence.heard() or not self.is_open:
            super().receive(data)
        else:
            text = f"nothing was heard for {self.silence.limit_s:g} s, in which another broker may have begun to lead"
            self._fail(AmqpError(CONNECTION_FORCED, text))
        self.touch()

    def close(self, reason: str) -> None:
        """Say goodbye; `on_ended` is not called, and links that are left are lost."""
        if not self._has_ended:
            self._say_goodbye(AmqpError(CONNECTION_FORCED, reason))
            self._on_ended = _nobody
            self._end(reason)

    # --- links

    def attach(self, link: UpstreamLink) -> None:
        """Have `link` attached at the other broker."""
        if self._has_ended:
            link.lost()
        elif self.is_open:
            self._open_link(link)
        else:
            self._pending[link] = None

    def _open_link(self, link: UpstreamLink) -> None:
        needed = link.needed_capability
        if needed and needed not in self._offered:
            text = f"the broker that leads its set is of an older version, {_WITHOUT[needed]}"
            link.detached(AmqpError(NOT_IMPLEMENTED, text))
            return
        if link.needs_sessions and RELAY_SESSIONS_CAPABILITY not in self._offered:
            text = "the broker there is of an older version, which takes no sessions of clients at other brokers"
            link.detached(AmqpError(NOT_IMPLEMENTED, f"{text}: upgrade it, or connect without a session"))
            return
        far = link.open_far(self._session, f"{self._name}-{next(self._names)}")
        self._far[link] = far
        self._near[far._impl] = link
        self.touch()

    def detach(self, link: UpstreamLink, *, closed: bool = True) -> None:
        """It is not wanted here any more; it is told nothing. Not `closed`: a durable subscription stays."""
        self._pending.pop(link, None)
        far = self._far.pop(link, None)
        if far is not None:
            del self._near[far._impl]
            self.engine.detach(far)
            if closed:
                far.close()
            else:
                far.detach()
            self.touch()

    # --- what the peer did: see engine.Handler

    def opened(self) -> None:
        """The peer has answered our open."""
        try:
            offered = listed(self.engine.remote_offered_capabilities)
        except AmqpError as error:
            self._fail(error)
            return
        if RELAY_CAPABILITY not in offered:
            text = f"the broker there does not offer {RELAY_CAPABILITY}: it is of an older version, upgrade it"
            self._fail(AmqpError(NOT_IMPLEMENTED, text))
            return
        self._offered = frozenset(map(str, offered))
        self.is_open = True
        self.relays_sets = RELAY_SETS_CAPABILITY in offered
        pending, self._pending = self._pending, {}
        for link in pending:
            self._open_link(link)

    def closed(self) -> None:
        reason = as_told(
            self.engine.connection.remote_condition, RESOURCE_DELETED, "the connection was closed"
        ).description
        self.engine.connection.close()
        self._end(reason)

    def failed(self, name: str, description: str) -> None:
        self._end(f"{name}: {description}")

    def malformed(self, name: str, description: str) -> None:
        self._fail(AmqpError(name, description))

    def session_opened(self, session: proton.Session) -> None:
        """The answer to ours."""

    def session_closed(self, session: proton.Session) -> None:
        self._fail(AmqpError(CONNECTION_FORCED, "the session of relayed links has ended"))

    def link_attached(self, link: proton.Link) -> None:
        relayed = self._near.get(link._impl)
        # A link that is refused is opened too, without a terminus, and then closed with the reason.
        terminus = link.remote_target if link.is_sender else link.remote_source
        if relayed is None or terminus.type == proton.Terminus.UNSPECIFIED:
            return
        try:
            handler = relayed.attached(self, link)
        except AmqpError as error:  # the answer makes no sense
            self._fail(error)
            return
        if link._impl not in self._near:  # it ended while it was told
            return
        if link.is_sender:
            self.engine.attach_sending(link, handler)  # type: ignore[arg-type]
        else:
            self.engine.attach_consuming(link, handler)  # type: ignore[arg-type]

    def link_detached(self, link: proton.Link, closed: bool) -> None:
        relayed = self._near.pop(link._impl, None)
        error = as_told(link.remote_condition, RESOURCE_DELETED, "the broker there has ended the link")
        self.engine.detach(link)
        if relayed is not None:
            link.close()
            del self._far[relayed]
            relayed.detached(error)
        # Else we have ended it before. Proton never lets go of a link that is closed after a detach: see `docs`.
        link.free()  # and with it what is unsettled, of which the one above may want to read the numbers

    # --- the end

    def _fail(self, error: AmqpError) -> None:
        self._say_goodbye(error)
        self._end(str(error))

    def _say_goodbye(self, error: AmqpError) -> None:
        self.engine.connection.condition = error.as_condition(self.engine.peer_frame_bytes)
        self.engine.connection.close()
        self.touch()

    def _end(self, reason: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self.is_open = False
        links = [*self._far, *self._pending]
        for far in self._far.values():
            self.engine.detach(far)
        self._far.clear()
        self._near.clear()
        self._pending.clear()
        for link in links:
            self.engine.guard(link.lost)
        self._on_ended(reason)


def _nobody(_reason: str) -> None:
    """There is nobody to tell."""
