"""How much the consumers of one connection may be sent: what its socket takes, and what its client leaves unsettled."""

from __future__ import annotations

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.connections.link_table import LinkTable
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint

CONNECTION_WINDOW_BYTES = 2 * 1024 * 1024
"""What all links of a connection may send together in one turn; each gets a share, and at least one message."""
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

    @property
    def share_bytes(self) -> int:
        """What one link may have waiting in Proton. One that asks while it is attached counts, too."""
        return min(LINK_WINDOW_BYTES, CONNECTION_WINDOW_BYTES // (len(self._links) or 1))

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
        congested, self.congested = self.congested, {}
        for link in congested:
            link.update_window()

    def forget(self, link: LinkEndpoint) -> None:
        """It waits no more."""
        self.congested.pop(link, None)
        self.waiting_for_answers.pop(link, None)
