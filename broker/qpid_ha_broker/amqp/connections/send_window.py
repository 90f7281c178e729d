"""How much the consumers of one connection may be sent: what its socket takes, and what its client leaves unsettled."""

from __future__ import annotations

from typing import Any

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.connections.link_table import LinkTable
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.engine import Sender

CONNECTION_WINDOW_BYTES = 2 * 1024 * 1024
"""What all links of a connection may send together in one turn; each gets a share, and at least one message."""
REPLY_BYTES = 1024 * 1024
"""Replies of `$management` that may wait for the client's credit: beyond it, its requests wait."""
LINK_WINDOW_BYTES = 256 * 1024
"""What may wait in Proton for one session: enough for a full socket, little enough for ten thousand consumers."""


class SendWindow:
    """The promise: a link that waits here is asked for its window again as soon as what it waits for has come."""

    def __init__(self, container: Container, links: LinkTable) -> None:
        self._container = container
        self._links = links
        self.is_writable = True
        """The socket takes more; the driver says."""
        self.congested: dict[LinkEndpoint, None] = {}
        """Consumers that wait for room in the peer's window or in the socket."""
        self.is_limited = True
        """False: it is another broker's connection, which keeps that limit for each of its clients."""
        self.unsettled = 0
        """Deliveries that the client has not answered; what a turn changes counts at its end."""
        self.waiting_for_answers: dict[LinkEndpoint, None] = {}
        """Consumers that get nothing before the client has answered some of what it has."""
        self._reply_bytes = 0
        """Of replies of `$management` that wait for credit."""
        self._awaiting_replies: dict[LinkEndpoint, None] = {}
        """Requesters whose requests wait until some of those have gone."""
        self._never_sent: dict[Any, int] = {}
        """By AMQP session: bytes of links that ended before these were sent, which Proton counts as unsent for ever."""
        self._to_count: dict[Any, None] = {}
        """Sessions in which a link has ended so, and others have something unsent: not counted yet."""

    @property
    def share_bytes(self) -> int:
        """What one link may have waiting in Proton. One that asks while it is attached counts, too."""
        return min(LINK_WINDOW_BYTES, CONNECTION_WINDOW_BYTES // (len(self._links) or 1))

    def room_bytes(self, sender: Sender) -> int:
        """How much more may wait in Proton for the session of `sender`; 0 or less: nothing."""
        unsent = sender.unsent_bytes
        if self._never_sent:
            unsent -= self._never_sent.get(sender.session, 0)
        return self.share_bytes - unsent

    def note_never_sent(self, session: Any) -> None:
        """A link of that session has ended before all of its messages were sent: they take no room from others."""
        self._to_count[session] = None
        self._count_never_sent()

    def _count_never_sent(self) -> None:
        """Where no link has anything unsent, all that Proton counts is of those that have ended."""
        for session in [session for session in self._to_count if not self._links.have_unsent(session)]:
            del self._to_count[session]
            self._never_sent[session] = engine.counted_as_unsent(session)

    def session_ended(self, session: Any) -> None:
        """Another one may get its key."""
        self._to_count.pop(session, None)
        self._never_sent.pop(session, None)

    def count_replies(self, change: int) -> None:
        """So many bytes of replies more, or less, wait for credit."""
        self._reply_bytes += change
        self._container.unsettled_bytes += change
        if change < 0 and self._awaiting_replies and self._reply_bytes < REPLY_BYTES:
            waiting, self._awaiting_replies = self._awaiting_replies, {}
            for link in waiting:
                link.update_window()

    def takes_requests(self, link: LinkEndpoint) -> bool:
        """Whether what `link` asks is to be carried out now; if not, it is asked for its window when it is."""
        if self._reply_bytes < REPLY_BYTES:
            return True
        self._awaiting_replies[link] = None
        return False

    @property
    def has_enough_unsettled(self) -> bool:
        """Whether the client has to answer some of its messages before it gets more."""
        return self.is_limited and self.unsettled >= self._container.settings.max_unsettled_per_connection

    def count_unsettled(self, change: int) -> None:
        """A consumer has so many unanswered deliveries more, or less."""
        self.unsettled += change
        if change < 0 and self.waiting_for_answers and not self.has_enough_unsettled:
            waiting, self.waiting_for_answers = self.waiting_for_answers, {}
            for link in waiting:
                link.update_window()

    def pause(self) -> None:
        """The socket is full."""
        self.is_writable = False
        for link in self._links:
            link.update_window()

    def resume(self) -> None:
        """The socket takes more again."""
        self.is_writable = True
        self.relieve()

    def relieve(self) -> None:
        """There may be room again: let those go on that wait for it."""
        if self._to_count:
            self._count_never_sent()
        congested, self.congested = self.congested, {}
        for link in congested:
            link.update_window()

    def forget(self, link: LinkEndpoint) -> None:
        """It waits no more."""
        self.congested.pop(link, None)
        self.waiting_for_answers.pop(link, None)
        self._awaiting_replies.pop(link, None)
