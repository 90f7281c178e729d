"""A connection to another broker of the cluster on which links of this broker's clients are relayed, without a socket.

It is shared by all clients here, and opened as brokers open theirs to each other. What a relayed link says and hears is
`relayed_links`' business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import proton

from qpid_ha_broker.amqp.relaying.far_connection import FarConnection, FarEnd
from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, NOT_IMPLEMENTED, AmqpError
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.peer_frames import broker_properties
from qpid_ha_broker.amqp.wire.relay import (
    OWN_NODES_CAPABILITY,
    RELAY_CAPABILITY,
    RELAY_MANAGEMENT_CAPABILITY,
    RELAY_RESERVATIONS_CAPABILITY,
    RELAY_SESSIONS_CAPABILITY,
    RELAY_SETS_CAPABILITY,
)
from qpid_ha_broker.amqp.wire.values import listed

_WITHOUT: Final = {
    OWN_NODES_CAPABILITY: "which is relayed for nothing but queues, and publishers to exchanges: upgrade it",
    RELAY_MANAGEMENT_CAPABILITY: "which takes no requests to $management for one set: upgrade it",
    RELAY_RESERVATIONS_CAPABILITY: "which reserves no container ids: upgrade it",
}
"""What a broker without that capability does not do."""


class UpstreamLink(FarEnd, Protocol):
    """What is relayed, as its far end sees it."""

    needed_capability: str
    """Only who offers it knows what to do with the link; empty: whoever takes relayed links does."""

    @property
    def needs_sessions(self) -> bool:
        """Only who offers RELAY_SESSIONS_CAPABILITY does."""


class Upstream(FarConnection[UpstreamLink]):
    """The promise: nothing is passed on of a broker that was silent for longer than `silence` allows: it is given up.

    All links are in one session: an end of it, and an answer that makes no sense, end the connection.
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
        self.silence = silence
        self.relays_sets = False
        """The other broker takes relayed links to a resource set, too."""
        self.has_answers = False
        """Messages were answered that are to be answered before any more are sent: see `answer_first`."""
        self._offered: frozenset[str] = frozenset()
        """The peer's capabilities."""
        own_limit_s = engine.transport.idle_timeout or silence.limit_s
        engine.transport.idle_timeout = min(own_limit_s, silence.limit_s)  # so the other one says that it is there
        desired = (*_WITHOUT, RELAY_CAPABILITY, RELAY_SETS_CAPABILITY, RELAY_SESSIONS_CAPABILITY)
        super().__init__(engine, name, hostname, on_touched, on_ended, broker_properties(engine.proof), desired)
        self._session: Any = engine.connection.session()
        self._session.open()

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

    # --- see FarConnection

    def _check_peer(self) -> None:
        self._offered = frozenset(map(str, listed(self.engine.remote_offered_capabilities)))
        if RELAY_CAPABILITY not in self._offered:
            text = f"the broker there does not offer {RELAY_CAPABILITY}: it is of an older version, upgrade it"
            raise AmqpError(NOT_IMPLEMENTED, text)
        self.relays_sets = RELAY_SETS_CAPABILITY in self._offered

    def _session_for(self, end: UpstreamLink) -> Any:
        return self._session

    def _open_link(self, end: UpstreamLink) -> None:
        needed = end.needed_capability
        if needed and needed not in self._offered:
            text = f"the broker that leads its set is of an older version, {_WITHOUT[needed]}"
            end.detached(AmqpError(NOT_IMPLEMENTED, text))
        elif end.needs_sessions and RELAY_SESSIONS_CAPABILITY not in self._offered:
            text = "the broker there is of an older version, which takes no sessions of clients at other brokers"
            end.detached(AmqpError(NOT_IMPLEMENTED, f"{text}: upgrade it, or connect without a session"))
        else:
            super()._open_link(end)

    def session_closed(self, session: proton.Session) -> None:
        self._fail(AmqpError(CONNECTION_FORCED, "the session of relayed links has ended"))
