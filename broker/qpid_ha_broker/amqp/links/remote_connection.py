"""A connection to a broker outside of the cluster, of whatever make, as one of its clients, without a socket.

Each link has a session of its own: there are brokers that end a whole session for what is wrong with one link.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

import proton

from qpid_ha_broker.amqp.wire.conditions import (
    BUG,
    CONNECTION_FORCED,
    DETACH_FORCED,
    FRAME_TOO_SMALL,
    INTERNAL_ERROR,
    AmqpError,
    as_told,
)
from qpid_ha_broker.amqp.wire.engine import Consuming, Engine, Sending, answer_bytes, clear_answer
from qpid_ha_broker.amqp.wire.opened_connection import OpenedConnection
from qpid_ha_broker.amqp.wire.peer_frames import OUR_PRODUCT

MOST_LINKS: Final = 4000
"""On one connection, if the other broker takes so many sessions."""

LIMITED_PRODUCTS: Final = ("RabbitMQ",)
"""As they call themselves in their open. Debian's RabbitMQ, 3.10.8, ends the session with an internal error when a
queue has been drained, settles no answer that was not settled, and refuses links whose receiver settles second."""


class RemoteEnd(Protocol):
    """What is attached at the other broker."""

    far_name: str
    """Of its link there, where the other broker may keep something under it; empty: one that no other link has."""

    def open_far(self, connection: RemoteConnection, session: Any, name: str) -> proton.Link:
        """Make and open the link there, under that name."""

    def attached(self, connection: RemoteConnection, far: proton.Link) -> Consuming | Sending:
        """The other broker has answered; who is told what comes. Raises AmqpError for an answer that makes no sense."""

    def detached(self, error: AmqpError) -> None:
        """The other broker has refused or ended it. Nothing may be done with the far link any more."""

    def lost(self, reason: str) -> None:
        """The connection is gone, and the far link with it."""


class RemoteConnection(OpenedConnection):
    """The promise: each end that was given to `attach` is told `detached` or `lost`, once, unless it was `detach`ed.

    `on_touched`: there is something to write. `on_ended`: the connection is of no use any more; called once, last.
    """

    def __init__(
        self,
        engine: Engine,
        container: str,
        hostname: str,
        on_touched: Callable[[], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self.engine = engine
        engine.end_failed = self._end_failed
        self.touch = on_touched
        self.is_open = False
        self.is_limited = False
        """The other broker neither ends drains nor settles what is answered unsettled: see LIMITED_PRODUCTS."""
        self.is_ours = False
        """The other broker is one of these."""
        self.error: AmqpError | None = None
        """What the other broker said when it ended the connection."""
        self._on_ended = on_ended
        self._pending: dict[RemoteEnd, None] = {}
        """To be attached once the connection is open."""
        self._far: dict[RemoteEnd, tuple[proton.Link, Any]] = {}
        """Links and their sessions."""
        self._by_link: dict[Any, RemoteEnd] = {}
        self._by_session: dict[Any, RemoteEnd] = {}
        self._sessions = 0
        """That are not ended on both sides."""
        self._names = count(1)
        self._container = container
        connection = engine.connection
        connection.container = container
        connection.hostname = hostname
        connection.properties = {proton.symbol("product"): OUR_PRODUCT}
        connection.open()

    def __len__(self) -> int:
        """Links."""
        return len(self._pending) + len(self._far)

    @property
    def has_room(self) -> bool:
        """Whether another link may be attached: each takes a session, and the other broker says how many it has."""
        most = MOST_LINKS
        if self.is_open:
            most = min(most, self.engine.transport.remote_channel_max + 1)
        return len(self._pending) + self._sessions < most

    # --- the driver's calls

    def receive(self, data: bytes) -> None:
        super().receive(data)
        self.touch()

    def close(self, reason: str) -> None:
        """Say goodbye; `on_ended` is not called, and links that are left are lost."""
        if not self._has_ended:
            self._on_ended = _nobody
            self._say_goodbye(None)
            self._end(reason)

    # --- links

    def attach(self, end: RemoteEnd) -> None:
        """Have `end` attached at the other broker."""
        if self._has_ended:
            end.lost("the connection has ended")
        elif self.is_open:
            self._open_link(end)
        else:
            self._pending[end] = None

    def _open_link(self, end: RemoteEnd) -> None:
        session: Any = self.engine.connection.session()
        session.open()
        self._sessions += 1
        far = end.open_far(self, session, end.far_name or f"{self._container}-{next(self._names)}")
        self._far[end] = far, session
        self._by_link[far._impl] = self._by_session[session._impl] = end
        size, most = answer_bytes(far), self.engine.peer_frame_bytes
        if size > most:
            clear_answer(far)
            text = f"to attach there takes a frame of {size} bytes, and that broker's max-frame-size is {most}"
            self.fail_link(end, AmqpError(FRAME_TOO_SMALL, text))
        self.touch()

    def detach(self, end: RemoteEnd, *, closed: bool = True) -> None:
        """It is not wanted here any more; it is told nothing. Not `closed`: what is kept for it there stays."""
        self._pending.pop(end, None)
        if end in self._far:
            far, session = self._forget(end)
            if closed:
                far.close()
            else:
                far.detach()
            session.close()
            self.touch()

    def fail_link(self, end: RemoteEnd, error: AmqpError) -> None:
        """The other broker did on this link what it must not: end it there, saying so, and tell `end`."""
        if end in self._far:
            far, session = self._forget(end)
            far.condition = error.as_condition(self.engine.peer_frame_bytes)
            far.close()
            session.close()
            self.touch()
            end.detached(error)

    def _end_failed(self, link: Any) -> bool:
        """A bug came up on one link: it ends, and whose it is, attaches it again."""
        end = self._by_link.get(link)
        if end is not None:
            self.fail_link(end, AmqpError(INTERNAL_ERROR, BUG))
        return end is not None

    def _forget(self, end: RemoteEnd) -> tuple[proton.Link, Any]:
        far, session = self._far.pop(end)
        self._by_link.pop(far._impl, None)
        self._by_session.pop(session._impl, None)
        self.engine.detach(far)
        return far, session

    # --- what the peer did: see engine.Handler

    def opened(self) -> None:
        """The peer has answered our open; a close may follow at once."""
        self.is_open = True
        self.is_limited = self._is_of(LIMITED_PRODUCTS)
        self.is_ours = self._is_of((OUR_PRODUCT,))
        pending, self._pending = self._pending, {}
        for end in pending:
            self._open_link(end)

    def closed(self) -> None:
        self.error = as_told(self.engine.connection.remote_condition, CONNECTION_FORCED, "the connection was closed")
        self.engine.connection.close()
        self._end(str(self.error))

    def failed(self, name: str, description: str) -> None:
        self.error = self.error or AmqpError(name, description)
        self._end(f"{name}: {description}")

    def malformed(self, name: str, description: str) -> None:
        self.error = AmqpError(name, description)
        self._say_goodbye(self.error)
        self._end(str(self.error))

    def session_opened(self, session: proton.Session) -> None:
        """The answer to ours."""

    def session_closed(self, session: proton.Session) -> None:
        self._sessions -= 1
        end = self._by_session.get(session._impl)
        error = as_told(session.remote_condition, CONNECTION_FORCED, "the broker there has ended the session")
        if end is not None:
            far, _ = self._forget(end)
            far.free()
        session.close()
        session.free()
        if end is not None:
            end.detached(error)

    def link_attached(self, link: proton.Link) -> None:
        end = self._by_link.get(link._impl)
        # A link that is refused is opened too, without a terminus, and then closed with the reason.
        terminus = link.remote_target if link.is_sender else link.remote_source
        if end is None or terminus.type == proton.Terminus.UNSPECIFIED:
            return
        try:
            handler = end.attached(self, link)
        except AmqpError as error:
            self.fail_link(end, error)
            return
        if link._impl not in self._by_link:  # it ended while it was told
            return
        if link.is_sender:
            self.engine.attach_sending(link, handler)  # type: ignore[arg-type]
        else:
            self.engine.attach_consuming(link, handler)  # type: ignore[arg-type]

    def link_detached(self, link: proton.Link, closed: bool) -> None:
        end = self._by_link.get(link._impl)
        error = as_told(link.remote_condition, DETACH_FORCED, "the broker there has ended the link")
        session = None if end is None else self._forget(end)[1]
        link.close()
        link.free()
        if session is not None and end is not None:
            session.close()
            end.detached(error)

    def _is_of(self, products: tuple[str, ...]) -> bool:
        try:
            properties = self.engine.remote_properties
        except AmqpError:
            return False
        return isinstance(properties, dict) and str(properties.get("product")) in products

    # --- the end

    def _say_goodbye(self, error: AmqpError | None) -> None:
        if error is not None:
            self.engine.connection.condition = error.as_condition(self.engine.peer_frame_bytes)
        self.engine.connection.close()
        self.touch()

    def _end(self, reason: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self.is_open = False
        ends = [*self._far, *self._pending]
        for far, _ in self._far.values():
            self.engine.detach(far)
        self._far.clear()
        self._pending.clear()
        self._by_link.clear()
        self._by_session.clear()
        for end in ends:
            self.engine.guard(partial(end.lost, reason))
        self._on_ended(reason)


def _nobody(_reason: str) -> None:
    """There is nobody to tell."""
