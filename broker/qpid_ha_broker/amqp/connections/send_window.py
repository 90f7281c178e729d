"""How much the consumers of one connection may be sent: what its socket takes, and what its client leaves unsettled."""

from __future__ import annotations

from collections.abc import Iterable
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
WIDE_FRAMES = 1 << 20
"""A session that takes so many frames takes whatever may be sent in one turn."""
HEADER_BYTES = 64
"""By which a message may grow or shrink on its way out."""


class NewestSent:
    """How many of the messages that were sent on a link, last, have not begun to leave."""

    __slots__ = ("_at", "_count", "_sender", "_window")

    def __init__(self, window: SendWindow, sender: Sender) -> None:
        self._window = window
        self._sender = sender
        self._count = 0
        self._at = -1
        """After which output: see `SendWindow.outputs`."""

    def note(self, count: int) -> None:
        """So many more were sent."""
        outputs = self._window.outputs
        if self._at != outputs:
            self._at, self._count = outputs, 0
        self._count += count

    def count_unsent(self) -> int:
        """Of those that were sent last."""
        return self._sender.count_unsent(self._count if self._at == self._window.outputs else 0)


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
        self._taken: dict[Any, tuple[int, int]] = {}
        """By AMQP session: frames of its window that messages take which were given to Proton since the last output, at
        most; and their bytes, at least."""
        self.outputs = 0
        """How often output was taken: all that could leave by then has begun to."""
        self._to_count: dict[Any, None] = {}
        """Sessions in which a link has ended so, and others have something unsent: not counted yet."""

    @property
    def share_bytes(self) -> int:
        """What one link may have waiting in Proton. One that asks while it is attached counts, too."""
        return min(LINK_WINDOW_BYTES, CONNECTION_WINDOW_BYTES // (len(self._links) or 1))

    def room_bytes(self, sender: Sender) -> int:
        """How much more may wait in Proton for the session of `sender`; 0 or less: nothing."""
        room = self.share_bytes - self._unsent_bytes(sender)
        frames = self._frames_left(sender)
        return room if frames >= WIDE_FRAMES else min(room, (frames + 1) // 2 * sender.frame_bytes)

    def most_messages(self, sender: Sender) -> int:
        """How many messages of a link may begin to leave now, as many bytes as `room_bytes` in them."""
        frames = self._frames_left(sender)
        return frames if frames >= WIDE_FRAMES else max((frames + 1) // 2, 0)

    def is_wide(self, sender: Sender) -> bool:
        """Whether all that may come for a link in a turn can begin to leave."""
        return self.is_writable and self._frames_left(sender) >= WIDE_FRAMES

    def _frames_left(self, sender: Sender) -> int:
        """What was given to Proton before takes its frames first: of a message that has begun, the rest."""
        frames = sender.window_frames
        if frames >= WIDE_FRAMES:
            return frames
        taken, taken_bytes = self._taken.get(sender.session, (0, 0))
        rest_bytes = self._unsent_bytes(sender) - taken_bytes
        return frames - taken - (rest_bytes // sender.frame_bytes + 1 if rest_bytes > 0 else 0)

    def _unsent_bytes(self, sender: Sender) -> int:
        unsent = sender.unsent_bytes
        return unsent - self._never_sent.get(sender.session, 0) if self._never_sent else unsent

    def admit(self, sender: Sender, count: int, sizes: Iterable[int]) -> int:
        """How many of `count` messages, of these sizes, begin to leave with the next output: the first so many.

        The others would wait in Proton, which gives nothing back: for a window, for credit, or for a socket.
        """
        if not self.is_writable:
            return 0
        count, frames = min(count, max(sender.credit, 0)), self._frames_left(sender)
        if frames >= WIDE_FRAMES:
            return count
        taken, taken_bytes, admitted, frame_bytes = 0, 0, 0, sender.frame_bytes
        for size in sizes:
            if admitted == count or taken >= frames:
                break
            taken += 1 + (size + HEADER_BYTES) // frame_bytes
            taken_bytes += max(size - HEADER_BYTES, 0)
            admitted += 1
        before, before_bytes = self._taken.get(sender.session, (0, 0))
        self._taken[sender.session] = before + taken, before_bytes + taken_bytes
        return admitted

    def left(self) -> None:
        """Output was taken."""
        self.outputs += 1
        self._taken.clear()

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
        self._container.held.unsettled_bytes += change
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
