"""A connection of this broker to another one, and the links that are attached over it, without a socket.

Whose links those are, and when there is another connection, is the business of whoever has it. What differs between
the brokers of the cluster (`upstream`) and those outside of it (`amqp.links.remote_connection`) is which sessions links
have, what the other broker has to offer, and how much ends with an answer that makes no sense.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

import proton

from qpid_ha_broker.amqp.wire.conditions import RESOURCE_DELETED, AmqpError, as_told
from qpid_ha_broker.amqp.wire.engine import Consuming, Engine, Sending
from qpid_ha_broker.amqp.wire.opened_connection import OpenedConnection

MOST_LINKS: Final = 1_000_000
"""On one connection, where nothing says that there may be fewer."""


class FarEnd(Protocol):
    """What is attached at another broker. `connection` is a FarConnection, of the kind that this end is made for."""

    def open_far(self, connection: Any, session: Any, name: str) -> proton.Link:
        """Make and open the link there, under that name."""

    def attached(self, connection: Any, far: proton.Link) -> Consuming | Sending:
        """The other broker has answered; who is told what comes. Raises AmqpError for an answer that makes no sense."""

    def detached(self, error: AmqpError) -> None:
        """The other broker has refused or ended it. Nothing may be done with the far link any more."""

    def lost(self, reason: str) -> None:
        """The connection is gone, and the far link with it."""


AnyEnd = TypeVar("AnyEnd", bound=FarEnd)


class FarConnection(OpenedConnection, Generic[AnyEnd]):
    """The promise: each end that was given to `attach` is told `detached` or `lost`, once, unless it was `detach`ed.

    | an end is | and then |
    | --- | --- |
    | not known | `attach`: pending; attached at once if the connection is open, and lost at once if it has ended |
    | pending | the peer opens: `open_far`; the connection ends: `lost` |
    | attached | the peer answers: `attached`; it refuses or detaches: `detached`; the connection ends: `lost` |
    | pending or attached | `detach`: not known, and told nothing, even while others are told something |

    `touch`: there is something to write.
    """

    unexplained = RESOURCE_DELETED
    """The reason of a link's end for which the other broker gave none."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        hostname: str,
        on_touched: Callable[[], None],
        on_ended: Callable[[str], None],
        properties: dict[Any, Any],
        desired: tuple[str, ...] = (),
    ) -> None:
        self.touch = on_touched
        self._pending: dict[AnyEnd, None] = {}
        """To be attached once the connection is open, or to be told that it has ended."""
        self._far: dict[AnyEnd, proton.Link] = {}
        self._near: dict[Any, AnyEnd] = {}
        """By far link."""
        self._names = count(1)
        self._container = container
        super().__init__(engine, container, hostname, on_ended, properties, desired)

    def __len__(self) -> int:
        """Links."""
        return len(self._pending) + len(self._far)

    @property
    def room(self) -> int:
        """So many links more may be attached."""
        return MOST_LINKS

    def receive(self, data: bytes) -> None:
        super().receive(data)
        self.touch()

    # --- links

    def attach(self, end: AnyEnd) -> None:
        """Have `end` attached at the other broker."""
        if self._has_ended:
            end.lost("the connection has ended")
        elif self.is_open:
            self._open_link(end)
        else:
            self._pending[end] = None

    def detach(self, end: AnyEnd, *, closed: bool = True) -> None:
        """It is not wanted here any more; it is told nothing. Not `closed`: what is kept for it there stays."""
        self._pending.pop(end, None)
        if end in self._far:
            far = self._forget(end)
            if closed:
                far.close()
            else:
                far.detach()
            self._leave_session(far)
            self.touch()

    def _open_link(self, end: AnyEnd) -> None:
        far = end.open_far(self, self._session_for(end), self._name_for(end))
        self._far[end] = far
        self._near[far._impl] = end
        self.touch()

    def _forget(self, end: AnyEnd) -> proton.Link:
        far = self._far.pop(end)
        del self._near[far._impl]
        self.engine.detach(far)
        return far

    # --- what differs

    def _check_peer(self) -> None:
        """The peer has answered our open. Raises AmqpError if it is of no use."""

    def _session_for(self, end: AnyEnd) -> Any:
        """An open session for its link."""
        raise NotImplementedError(f"{type(self).__name__} does not say in which session links are")

    def _leave_session(self, far: proton.Link) -> None:
        """That link has ended."""

    def _name_for(self, _end: AnyEnd) -> str:
        return f"{self._container}-{next(self._names)}"

    def _answered_wrong(self, end: AnyEnd, error: AmqpError) -> None:
        """What the other broker says to the attach makes no sense."""
        self._fail(error)

    # --- what the peer did: see engine.Handler

    def opened(self) -> None:
        """A close may follow at once."""
        try:
            self._check_peer()
        except AmqpError as error:
            self._fail(error)
            return
        self.is_open = True
        while self._pending and not self._has_ended:
            self._open_link(self._take_pending())

    def session_opened(self, session: proton.Session) -> None:
        """The answer to ours."""

    def link_attached(self, link: proton.Link) -> None:
        end = self._near.get(link._impl)
        # A link that is refused is opened too, without a terminus, and then closed with the reason.
        terminus = link.remote_target if link.is_sender else link.remote_source
        if end is None or terminus.type == proton.Terminus.UNSPECIFIED:
            return
        try:
            handler = end.attached(self, link)
        except AmqpError as error:
            self._answered_wrong(end, error)
            return
        if link._impl not in self._near:  # it ended while it was told
            return
        if link.is_sender:
            self.engine.attach_sending(link, handler)  # type: ignore[arg-type]
        else:
            self.engine.attach_consuming(link, handler)  # type: ignore[arg-type]

    def link_detached(self, link: proton.Link, closed: bool) -> None:
        end = self._near.get(link._impl)
        error = as_told(link.remote_condition, self.unexplained, "the broker there has ended the link")
        if end is None:  # we have ended it before, and Proton never lets go of a link that is closed after a detach
            self.engine.detach(link)
        else:
            self._forget(end)
            link.close()
            self._leave_session(link)
            end.detached(error)
        link.free()  # and with it what is unsettled, of which the one above may want to read the numbers

    # --- the end

    def _say_goodbye(self, error: AmqpError | None) -> None:
        super()._say_goodbye(error)
        self.touch()

    def _let_go(self, reason: str) -> None:
        """Whoever is given up while others are told, hears nothing."""
        self._pending = {**dict.fromkeys(self._far), **self._pending}
        for end in list(self._far):
            self._forget(end)
        while self._pending:
            self.engine.guard(partial(self._take_pending().lost, reason))

    def _take_pending(self) -> AnyEnd:
        end = next(iter(self._pending))
        del self._pending[end]
        return end


AnyFar = TypeVar("AnyFar", bound=FarConnection[Any])
