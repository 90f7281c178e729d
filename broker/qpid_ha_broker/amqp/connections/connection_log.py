"""What there is to log of one connection."""

from __future__ import annotations

from qpid_ha_broker.access.rules import Subject
from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.connections.nodes import Target

NOTES_LIMIT = 100
"""Lines that one connection may cause in the log."""


class ConnectionLog:
    """The promise: whatever a client does on one connection, it causes a bounded number of lines.

    `peer`: who is at the other end; each line begins with it.
    """

    def __init__(self, container: Container, peer: str) -> None:
        self._container = container
        self._peer = peer
        self._noted = 0
        self.is_let_in = False
        """The connection is open and served: its lines come from somebody who was let in."""

    def write(self, level: str, text: str) -> None:
        """A line that comes once in a connection's life."""
        source = "connection" if self.is_let_in else "handshake"
        self._container.notices.add(level, source, f"{self._peer} {text}")

    def write_elsewhere(self, level: str, text: str) -> None:
        """A link belongs where another broker leads, or nobody: it may be tried as often as it likes, which is counted
        with all others of the kind."""
        self._container.notices.add(level, "elsewhere", f"{self._peer} {text}")

    def note(self, level: str, text: str) -> None:
        """A line that the client can cause as often as it likes."""
        self._noted += 1
        if self._noted <= NOTES_LIMIT:
            self.write(level, text)
        elif self._noted == NOTES_LIMIT + 1:
            self.write("warning", "there is more like this; it is not logged for this connection")

    def note_made(self, target: Target, subject: Subject) -> None:
        """Whether a queue was made because `subject` has named it: it may be a typing error."""
        if target.is_new:
            user = f" for {subject.user}" if subject.user else ""
            self.note("info", f"names queue {target.node.name}, which was not there: it is made{user} (auto-create)")
