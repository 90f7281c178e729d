"""A connection to a broker outside of the cluster, of whatever make, as one of its clients, without a socket.

Each link has a session of its own: there are brokers that end a whole session for what is wrong with one link.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import proton

from qpid_ha_broker.amqp.relaying.far_connection import FarConnection, FarEnd
from qpid_ha_broker.amqp.wire.conditions import (
    BUG,
    CONNECTION_FORCED,
    DETACH_FORCED,
    FRAME_TOO_SMALL,
    INTERNAL_ERROR,
    AmqpError,
    as_told,
)
from qpid_ha_broker.amqp.wire.engine import Engine, answer_bytes, clear_answer
from qpid_ha_broker.amqp.wire.peer_frames import OUR_PRODUCT

MOST_SESSIONS: Final = 4000
"""On one connection, if the other broker takes so many sessions."""

LIMITED_PRODUCTS: Final = ("RabbitMQ",)
"""As they call themselves in their open. Debian's RabbitMQ, 3.10.8, ends the session with an internal error when a
queue has been drained, settles no answer that was not settled, and refuses links whose receiver settles second."""


class RemoteEnd(FarEnd, Protocol):
    """What is attached at a broker outside of the cluster."""

    far_name: str
    """Of its link there, where the other broker may keep something under it; empty: one that no other link has."""


class RemoteConnection(FarConnection[RemoteEnd]):
    """The promise: what is wrong with one link, there or here, ends that link and no other."""

    unexplained = DETACH_FORCED

    def __init__(
        self,
        engine: Engine,
        container: str,
        hostname: str,
        on_touched: Callable[[], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self.is_limited = False
        """The other broker neither ends drains nor settles what is answered unsettled: see LIMITED_PRODUCTS."""
        self.is_ours = False
        """The other broker is one of these."""
        self._by_session: dict[Any, RemoteEnd] = {}
        self._sessions = 0
        """That are not ended on both sides."""
        engine.end_failed = self._end_failed
        properties = {proton.symbol("product"): OUR_PRODUCT}
        super().__init__(engine, container, hostname, on_touched, on_ended, properties)

    @property
    def room(self) -> int:
        """Each link takes a session, and the other broker says how many it has."""
        most = MOST_SESSIONS
        if self.is_open:
            most = min(most, self.engine.transport.remote_channel_max + 1)
        return most - len(self._pending) - self._sessions

    def fail_link(self, end: RemoteEnd, error: AmqpError) -> None:
        """The other broker did on this link what it must not: end it there, saying so, and tell `end`."""
        if end in self._far:
            far = self._forget(end)
            far.condition = error.as_condition(self.engine.peer_frame_bytes)
            far.close()
            self._leave_session(far)
            self.touch()
            end.detached(error)

    def _end_failed(self, link: Any) -> bool:
        """A bug came up on one link: it ends, and whose it is, attaches it again."""
        end = self._near.get(link)
        if end is not None:
            self.fail_link(end, AmqpError(INTERNAL_ERROR, BUG))
        return end is not None

    # --- see FarConnection

    def _farewell(self, reason: str) -> None:
        """To a broker of any make, a client that has nothing to do there any more is no error."""

    def _check_peer(self) -> None:
        self.is_limited = self._is_of(LIMITED_PRODUCTS)
        self.is_ours = self._is_of((OUR_PRODUCT,))

    def _is_of(self, products: tuple[str, ...]) -> bool:
        try:
            properties = self.engine.remote_properties
        except AmqpError:
            return False
        return isinstance(properties, dict) and str(properties.get("product")) in products

    def _session_for(self, end: RemoteEnd) -> Any:
        session: Any = self.engine.connection.session()
        session.open()
        self._sessions += 1
        self._by_session[session._impl] = end
        return session

    def _name_for(self, end: RemoteEnd) -> str:
        return end.far_name or super()._name_for(end)

    def _open_link(self, end: RemoteEnd) -> None:
        super()._open_link(end)
        far = self._far.get(end)
        size, most = (0 if far is None else answer_bytes(far)), self.engine.peer_frame_bytes
        if far is not None and size > most:
            clear_answer(far)
            text = f"to attach there takes a frame of {size} bytes, and that broker's max-frame-size is {most}"
            self.fail_link(end, AmqpError(FRAME_TOO_SMALL, text))

    def _forget(self, end: RemoteEnd) -> proton.Link:
        far = super()._forget(end)
        self._by_session.pop(far.session._impl, None)
        return far

    def _leave_session(self, far: proton.Link) -> None:
        far.session.close()

    def _answered_wrong(self, end: RemoteEnd, error: AmqpError) -> None:
        self.fail_link(end, error)

    def session_closed(self, session: proton.Session) -> None:
        self._sessions -= 1
        end = self._by_session.get(session._impl)
        error = as_told(session.remote_condition, CONNECTION_FORCED, "the broker there has ended the session")
        if end is not None:
            self._forget(end).free()
        session.close()
        session.free()
        if end is not None:
            end.detached(error)
