"""A consumer's link of a client's session: what went out and is not answered is held for the session.

1. What the queue hands out is written as held by the session's link, and goes out when that is committed: after a
   failover the next primary knows whose it is.
2. A link that ends, but is not closed by its client, leaves what it holds to the session. When it is attached again
   that comes first, in its order, under the same ids, and marked as perhaps delivered before.
3. In a group the link may be attached at another member by then. What the client accepted here before that is settled
   if it counts, and else the link ends: the session holds the message still, and is given it there.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink, abandon
from qpid_ha_broker.amqp.links.sent_payload import sent_payload
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.session_links import TAKEN
from qpid_ha_broker.amqp.nodes.terminus import Filters
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, Outcome
from qpid_ha_broker.amqp.wire.relay import RelayAnswer, RelayRequest
from qpid_ha_broker.amqp.wire.sections import with_message_id
from qpid_ha_broker.amqp.wire.session_request import HELD
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sessions import SessionPart
from qpid_ha_broker.model.sets.session_messages import bodies_of, give_back_held, held_for, release_held
from qpid_ha_broker.model.work import Task

AGAIN_LENGTH: Final = 100
"""Messages that are sent again in one portion."""


class SessionConsumer(OutgoingLink):
    """The promise: nothing goes out that is not held for the session, and what is held for it goes to nobody else."""

    def __init__(
        self,
        connection: Connection,
        link: proton.Link,
        hosted: HostedSet,
        queue: Queue,
        *,
        filters: Filters,
        part: SessionPart,
        relay: RelayRequest | None = None,
    ) -> None:
        self.session_owner = self._owner_of_held = part.owner
        self._part = part
        self._again: deque[Entry] = deque()
        """Held since before, and not sent on this link yet."""
        self._is_sending_again = False
        self._marked: set[Entry] = set()
        """Of what is not answered, and of little more: what was marked before it was sent here."""
        super().__init__(connection, link, hosted, queue, browsing=False, filters=filters, relay=relay)
        if relay is None:
            held = self._take_over()
            self._again += held
            link.properties = {proton.symbol(HELD): proton.ulong(len(held))}

    def _take_over(self) -> list[Entry]:
        """A link of that name before is no more; returns what the session holds on it."""
        self._container.sessions.links.attached(self._part, self.hosted, self, self.connection, consumes=True)
        held = held_for(self.hosted.resources, self.queue, self._owner_of_held)
        if self.hosted.resources.replication.counts_later:
            for entry in held:
                entry.acquired_before = True  # the broker from which it went out may be another one
        self.beyond = held[-1] if held else None
        return held

    def _reclaim(self, relay: RelayRequest) -> RelayAnswer:
        """Of what the session holds, another broker's client may have some: of that a delivery without content comes
        first, about which the client's answer can come. The rest is sent again."""
        held = self._take_over()
        newest, ids = self._known(relay, relay.held)
        known = set(ids)
        there = [entry for entry in held if entry.id in known]
        self._again += [entry for entry in held if entry.id not in known]
        self._send_without_content(there)
        return RelayAnswer(newest, tuple(sorted(entry.id for entry in there)), self.queue.name, len(held))

    # --- what was held before

    def update_window(self) -> None:
        if not self._again:
            super().update_window()
            return
        self._set_credit(0)  # what is new waits behind it
        if self._window.has_enough_unsettled:
            self._window.waiting_for_answers[self] = None
        elif not self._has_room:
            self._window.congested[self] = None
        elif not self._is_sending_again and self._may_send_again:
            self._is_sending_again = True
            self.hosted.resources.work.add(self._sending_again())
            self.hosted.touch()

    def _sending_again(self) -> Task:
        """As much as the client has credit and room for, in portions."""
        while self._may_send_again:
            count = min(AGAIN_LENGTH, self._sender.credit, len(self._again))
            entries = [self._again.popleft() for _ in range(count)]
            there = [entry for entry in entries if self._is_held(entry)]
            bodies = bodies_of(there)
            ready = self._window.admit(self._sender, len(there), map(len, bodies))
            self._again.extendleft(reversed(there[ready:]))
            self._send(there[:ready], bodies)
            self._count_unsettled()
            self.connection.touch()
            yield
        self._is_sending_again = False
        if not self._ended:
            self.update_window()

    @property
    def _has_room(self) -> bool:
        """Whether the connection takes more of this link."""
        window = self._window
        return window.is_writable and window.room_bytes(self._sender) > 0

    @property
    def _may_send_again(self) -> bool:
        if self._ended or not self._again or self._window.has_enough_unsettled:
            return False
        return self._has_room and self._sender.credit > 0

    def _is_held(self, entry: Entry) -> bool:
        """Whether it still is: its queue may have been deleted, an operator may have ended the session, or it went back
        and another session has it."""
        link = self.queue.held.get(entry.id)
        return entry.body is not None and link is not None and link.owner == self._owner_of_held

    def finish_drain(self) -> bool:
        if self._again and self._sender.credit > 0 and self not in self._window.waiting_for_answers:
            return False
        return super().finish_drain()

    # --- messages out

    @property
    def _has_older(self) -> bool:
        return bool(self._again)

    def _hold_back(self, entries: list[Entry], bodies: list[bytes]) -> None:
        """They are the session's, and are sent when its client takes more."""
        self._again += entries
        self._set_credit(0)
        self._window.congested[self] = None

    def _take_back(self, entries: list[Entry]) -> None:
        """They stay the session's, on its next link. Where its client has closed this one, what counted went back with
        that, and what the session holds on a link of that name by now is a later one's. In a group they may count only
        since then: they go back now, unless there is a later one here, or will be soon, which is given them first."""
        resources = self.hosted.resources
        held = resources.catalog.holdings.find(*self._owner_of_held, self.queue)
        if self.was_closed and held is not None and resources.replication.counts_later:
            ids, links = {entry.id for entry in entries}, self._container.sessions.links
            has_later = partial(links.has_consumer, self._owner_of_held, self.hosted.name)
            if not has_later():
                give_back_held(resources, held, self._part.epoch, failed=False, ids=ids, is_kept=has_later)

    def _send(self, entries: list[Entry], bodies: list[bytes]) -> None:
        sections, is_relayed, now_ms = self._container.sections, self._relay is not None, self.hosted.now_ms
        for entry, body in zip(entries, bodies, strict=False):
            payload = with_message_id(sent_payload(sections, self.queue, entry, body, now_ms), entry.id)
            delivery, tag = self._sender.send(payload, entry.id if is_relayed else None)
            self._unsettled[delivery] = (entry, tag, len(payload))
            self._container.held.unsettled_bytes += len(payload)
            if entry.acquired_before:
                self._marked.add(entry)
            entry.acquired_before = True
        self._newest.note(len(entries))
        if len(self._marked) > 2 * len(self._unsettled) + AGAIN_LENGTH:
            self._marked.intersection_update([entry for entry, _, _ in self._unsettled.values()])

    def _still_holds(self, entry: Entry) -> bool:
        return self._is_held(entry)

    def _take_unseen(self, entries: list[Entry]) -> None:
        """Their mark is what it was before they were sent: others may have seen them."""
        for entry in entries:
            entry.acquired_before = entry in self._marked
        self._again.extendleft(reversed(entries))  # they come before what waits

    def flush_accepted(self) -> None:
        is_here = self.hosted.resources.replication.has_link(self.queue, self._owner_of_held)
        if (self._accepted or self._answered) and not is_here:  # its client is not told so, and asks anew what it has
            self._accepted, self._answered = [], []
            self.end(AmqpError(CONNECTION_FORCED, TAKEN))
        super().flush_accepted()

    def _return(self, entry: Entry, outcome: Outcome) -> None:
        if self.hosted.resources.replication.has_link(self.queue, self._owner_of_held):
            super()._return(entry, outcome)

    def confirm(self) -> bool:
        is_waiting = super().confirm()
        if is_waiting and self._unconfirmed[0][0].failure is not None:
            self._unconfirmed.clear()
            self.end(AmqpError(CONNECTION_FORCED, TAKEN))
            return False
        return is_waiting

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """The client answered; what comes after the session went to another connection counts no more."""
        if not self._ended:
            super().disposition(delivery, state, settled)

    # --- the end

    def stop(self) -> None:
        """What it has accepted has gone before anybody asks what the session holds."""
        if not self._ended:
            self.flush_accepted()
        super().stop()

    def closed(self, *, lost: bool) -> None:
        super().closed(lost=lost)
        if self._container.sessions.links.forget(self):
            self.hosted.resources.replication.leave_link(self.queue, self._owner_of_held)

    def _give_back(self, entries: list[Entry], *, lost: bool) -> None:
        """Only a client that closes the link gives up what it holds."""
        if not self.was_closed:
            return
        abandon(entries)
        held = self.hosted.resources.catalog.holdings.find(*self._owner_of_held, self.queue)
        if held is not None:
            release_held(self.hosted.resources, held, failed=False)
