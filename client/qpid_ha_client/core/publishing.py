"""A publishing link: what was sent and is not confirmed, and what is sent again after a break, under which number.

Numbers are given when a message is published first. After a break all that is unconfirmed is sent again, in order,
before anything new (docs/protocol.md, "Numbered messages"):

1. The broker's attach names the highest number that it has accepted (a session): up to that all is confirmed, but for
   the numbers that it names as refused.
2. It does not, but drops duplicates: all of it is sent again, and what is there already is accepted once more.
3. It does neither: all of it is sent again, and may be there twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from qpid_ha_client.core.errors import LinkDoubt
from qpid_ha_client.core.events import (
    Effect,
    EndReason,
    PublishAbandoned,
    PublishConfirmed,
    PublishOutcome,
    PublishRefused,
    SendMessage,
)

_REFUSED_BEFORE: Final = EndReason(
    "amqp:precondition-failed", "the broker refused it before the connection broke, and nobody knows any more why"
)


@dataclass(slots=True)
class UnconfirmedMessage:
    """Sent or to be sent, under the same name and number each time."""

    ticket: int
    producer: str
    number: int
    message: object


@dataclass
class PublisherCore:
    """The promise: messages go out in the order of their numbers, and none after one that has to be sent again."""

    name: str
    address: str
    producer: str
    """Under which new messages are numbered."""
    next_number: int = 1
    unconfirmed: dict[int, UnconfirmedMessage] = field(default_factory=dict)
    """By ticket, in the order in which they go out: all that was published, and neither confirmed nor refused."""
    numbers_count: bool = False
    """The broker that we are attached at looks at numbers."""
    _due: deque[int] = field(default_factory=deque)
    """Tickets that have yet to go out over the link as it is attached now: the end of `unconfirmed`."""
    _credit: int = 0
    _is_attached: bool = False

    @property
    def is_attached(self) -> bool:
        """What is published goes out, as far as there is credit."""
        return self._is_attached

    def publish(self, ticket: int, message: object) -> list[Effect]:
        """A new message."""
        self.unconfirmed[ticket] = UnconfirmedMessage(ticket, self.producer, self.next_number, message)
        self.next_number += 1
        self._due.append(ticket)
        return self._send()

    def attached(self, confirmed: int, refused: Collection[int] = (), *, numbers_count: bool) -> list[Effect]:
        """The broker has accepted all up to the number `confirmed` of this session, but for what it has `refused`."""
        effects: list[Effect] = []
        for ticket, sent in list(self.unconfirmed.items()):
            if sent.producer == self.producer and sent.number <= confirmed:
                del self.unconfirmed[ticket]
                is_refused = sent.number in refused
                effects.append(
                    PublishRefused(self.name, ticket, _REFUSED_BEFORE)
                    if is_refused
                    else PublishConfirmed(self.name, ticket)
                )
        # Another process of the same session may have sent more than this one knows of.
        self.next_number = max(self.next_number, confirmed + 1)
        self._is_attached, self._credit, self.numbers_count = True, 0, numbers_count
        self._due = deque(self.unconfirmed)
        return effects

    def detached(self) -> None:
        """The link is gone, and with it all answers that were under way."""
        self._is_attached, self._credit = False, 0
        self._due = deque(self.unconfirmed)

    def credited(self, credit: int) -> list[Effect]:
        """So many may be sent."""
        self._credit = credit
        return self._send()

    def told(self, ticket: int, outcome: PublishOutcome, reason: EndReason) -> list[Effect]:
        """The broker has answered."""
        sent = self.unconfirmed.pop(ticket, None)
        if sent is None:
            return []
        if outcome is PublishOutcome.ACCEPTED:
            return [PublishConfirmed(self.name, ticket)]
        if outcome is PublishOutcome.REJECTED:
            return [PublishRefused(self.name, ticket, reason)]
        # It was not taken, and by now a later number may have been: it needs a new one, behind all others.
        return self.publish(ticket, sent.message)

    def begin_anew(self, producer: str, *, resend: bool) -> list[Effect]:
        """In another session. What is in doubt keeps the name and the number that a broker may know it by."""
        self.producer, self.next_number = producer, 1
        self.detached()
        if resend:
            return []
        abandoned = list(self.unconfirmed)
        self.unconfirmed.clear()
        self._due.clear()
        return [PublishAbandoned(self.name, ticket) for ticket in abandoned]

    def doubt(self) -> LinkDoubt:
        """What is not certain, if the session is gone."""
        return LinkDoubt(unconfirmed=tuple(self.unconfirmed))

    def check_invariants(self) -> None:
        """Raise AssertionError where order or numbers are wrong."""
        numbers = [(sent.producer, sent.number) for sent in self.unconfirmed.values()]
        own = [number for producer, number in numbers if producer == self.producer]
        if own != sorted(own) or len(set(numbers)) < len(numbers) or any(number >= self.next_number for number in own):
            raise AssertionError(f"numbers are not ascending: {numbers}")
        if list(self._due) != list(self.unconfirmed)[len(self.unconfirmed) - len(self._due) :]:
            raise AssertionError(f"{list(self._due)} is not the end of {list(self.unconfirmed)}")

    def _send(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._is_attached and self._credit and self._due:
            sent = self.unconfirmed[self._due.popleft()]
            self._credit -= 1
            producer = sent.producer if self.numbers_count else None
            effects.append(SendMessage(self.name, sent.ticket, producer, sent.number, sent.message))
        return effects
