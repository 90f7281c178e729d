"""What a queue's consumer is handed out, and what of it has not begun to leave when the consumer takes no more.

A message that was sent counts as one that the client may have seen. So nothing is given to Proton that would wait
there, for a window of the client's session, for credit or for a socket: it stays in the queue, where others find it.
What was handed out, and the client takes no more by then, goes back. It counts as no delivery, and carries no mark of
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.connections.send_window import NewestSent, SendWindow
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.engine import Delivery, Sender
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, resident_bodies
from qpid_ha_broker.model.sets.resources import release_unseen


class PacedConsumer(Consumer, LinkEndpoint):
    """The promise: what was given to Proton begins to leave with the next output; all else can be had by others."""

    connection: Connection
    hosted: HostedSet
    queue: Queue
    _container: Container
    _window: SendWindow
    _sender: Sender
    _unsettled: dict[Delivery, tuple[Entry, Any, int]]
    """By delivery, in the order in which they were sent: the message, the tag, and the bytes that Proton keeps."""
    _presettled: bool
    _ended = False
    _is_drained = False
    """What the client drains is over, but for messages that wait for its window: the flow that says so goes behind."""

    _there_at_drain: CommitToken | None = None
    """What was written when the client began to drain. None: it does not, or began when this was a replica."""

    def begin_pace(self) -> None:
        """Once it knows its window and its sender."""
        self._newest = NewestSent(self._window, self._sender)
        self._granted = self._in_hand = 0
        """What `credit` was when it was set last; and what was handed out before that and is still to be delivered."""
        self._backlog: deque[tuple[Entry, bytes]] = deque()
        """Of one who only looks: handed out, and not sent, because the peer's window is closed."""

    def _send(self, entries: list[Entry], bodies: list[bytes]) -> None:
        """Give `entries` to Proton; `bodies` begins with theirs."""
        raise NotImplementedError

    def _count_unsettled(self) -> None:
        """What is unsettled has changed."""
        raise NotImplementedError

    # --- credit

    def flow(self) -> None:
        """The peer changed its credit."""
        if self._ended:
            return
        self._is_drained = False
        self._set_credit(min(self.credit, self._sender.credit - self._to_come))
        if self._sender.draining:
            self._there_at_drain = None if self.hosted.resources.replication.read_only else self.queue.log.written
            self.hosted.draining[self] = None
            self.hosted.touch()
        self.update_window()

    @property
    def _has_older(self) -> bool:
        """Something waits here that comes before what is handed out now."""
        return bool(self._backlog)

    @property
    def _to_come(self) -> int:
        """Messages that were handed out and are still to be delivered, or wait here."""
        return self._in_hand + self._granted - self.credit + len(self._backlog)

    def _set_credit(self, credit: int) -> None:
        self._in_hand += self._granted - self.credit
        self.credit = self._granted = max(credit, 0)

    def update_window(self) -> None:
        """Let the queue send, as far as the connection takes more."""
        if self._ended:
            return
        if self._is_drained:
            if self._sender.has_unsent:
                self._window.congested[self] = None
                return
            self._is_drained = False
            self.hosted.touch()
        if not self._window.is_writable:
            self.window_bytes = 0
            self._window.congested[self] = None
            return
        if self._window.has_enough_unsettled:
            self._wait_for_answers()
            return
        if self._backlog and not self._send_backlog():
            return
        before = self.credit if self.window_bytes > 0 else 0
        self.window_bytes = self._window.room_bytes(self._sender)
        credit, most = self._sender.credit - self._to_come, self._window.most_messages(self._sender)
        self._set_credit(min(credit, most))
        if self.window_bytes <= 0 or most < credit:
            self._window.congested[self] = None
        if self.window_bytes > 0 and self.credit > before:
            self.hosted.resources.catalog.wake(self.queue)
            self.hosted.touch()

    def _wait_for_answers(self) -> None:
        self.window_bytes = 0
        self._window.waiting_for_answers[self] = None

    def finish_drain(self) -> bool:
        """Give up credit that the queue has no messages for; False while it waits for room, a disk, or what comes back.

        A client that must answer first has all that it can get. Others are given what is committed: they have all that
        was there when they began to drain once that is committed, or has gone. In a group nobody has before this broker
        hands out from the queue.
        """
        if not self._sender.draining:
            return True  # the client has changed its mind, and keeps its credit
        proof = LeadProof.PROVEN if self.browsing else self.hosted.resources.proof_for(self.queue)
        waits = (
            proof is LeadProof.MISSING
            or not (self.browsing or self.hosted.resources.sets.hands_out(self.queue))
            or (proof is LeadProof.PROVEN and self._hides_what_was_there)
            or self.window_bytes <= 0
            or self.credit <= 0
            or self.queue.dispatcher.awaits_bodies
            or bool(self.queue.dispatcher.awaits_mark)
            or bool(self.queue.dispatcher.returning)
        )
        if self._sender.credit > 0 and waits and self not in self._window.waiting_for_answers:
            return False
        if not self._sender.drained():
            self._is_drained = True
            self._window.congested[self] = None
            return False
        self._set_credit(0)
        self.connection.touch()
        return True

    @property
    def _hides_what_was_there(self) -> bool:
        """Whether some of what was in the queue when it began to drain may not be shown yet. A replica shows all that
        it has."""
        if self.hosted.resources.replication.read_only:
            return False
        if self._there_at_drain is None:
            self._there_at_drain = self.queue.log.written
        return not self._there_at_drain.is_committed

    # --- messages out

    def deliver(self, entries: list[Entry]) -> None:
        """Send `entries`, which the queue has handed to us; back they go if the link has ended since, or the queue was
        deleted, or as far as the client takes no more by now."""
        self._in_hand += self._granted - self.credit - len(entries)
        self._granted = self.credit
        if self._ended or self.queue.deleted:
            self._take_back(entries)
            return
        bodies = resident_bodies(entries)
        ready = 0 if self._has_older else self._window.admit(self._sender, len(entries), map(len, bodies))
        if ready < len(entries):
            self._hold_back(entries[ready:], bodies[ready:])
            entries = entries[:ready]
        self._send(entries, bodies)
        self.connection.touch()
        self._count_unsettled()
        if self._window.has_enough_unsettled:
            self._wait_for_answers()
        elif self.window_bytes <= 0:
            self._window.congested[self] = None

    def bug(self, error: Exception, handed_out: Sequence[Entry] = ()) -> None:
        self.connection.engine.link_failed(self.link._impl, error)
        self.connection.touch()
        mine = [entry for entry in handed_out if entry.holder is self]
        if mine:
            self.hosted.resources.release(self.queue, mine, failed=False)

    def _hold_back(self, entries: list[Entry], bodies: list[bytes]) -> None:
        """The client takes no more than what was handed out before: a queue gives these to somebody else."""
        if self.browsing:
            self._backlog += zip(entries, bodies, strict=True)
        else:
            self._take_back(entries)
        self._set_credit(0)
        self._window.congested[self] = None

    def _take_back(self, entries: list[Entry]) -> None:
        """Give back what has not begun to leave: nobody has seen it, and it counts as no delivery. What somebody else
        has by now, as where another broker led meanwhile, is not ours."""
        if not self.browsing:
            release_unseen(self.hosted.resources, self.queue, [entry for entry in entries if entry.holder is self])

    def _send_backlog(self) -> bool:
        """As far as the client takes it; whether that was all."""
        backlog = self._backlog
        ready = self._window.admit(self._sender, len(backlog), (len(body) for _, body in backlog))
        if ready:
            sent = [backlog.popleft() for _ in range(ready)]
            self._send([entry for entry, _ in sent], [body for _, body in sent])
            self._count_unsettled()
            self.connection.touch()
        if backlog:
            self.window_bytes = 0
            self._window.congested[self] = None
        return not backlog

    def _take_unsent_back(self, *, lost: bool) -> None:
        """Give back what was sent in this turn, and has not begun to leave.

        Not what was sent without its content, for a client of another broker that has it.
        """
        count = min(self._newest.count_unsent(), len(self._unsettled))
        if not count or self._presettled:
            return
        deliveries = [delivery for delivery in list(self._unsettled)[-count:] if self._unsettled[delivery][2]]
        if not deliveries:
            return
        if lost or self._sender.take_back(deliveries):
            unsent = [self._unsettled.pop(delivery) for delivery in deliveries]
            self._container.held.unsettled_bytes -= sum([size for _, _, size in unsent])
            self._take_unseen([entry for entry, _, _ in unsent if self._still_holds(entry)])

    def _still_holds(self, entry: Entry) -> bool:
        """What this link got: nobody has taken it away."""
        return entry.holder is self

    def _take_unseen(self, entries: list[Entry]) -> None:
        """They never left; a session's are its own still."""
        self._take_back(entries)
