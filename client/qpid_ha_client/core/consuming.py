"""A consuming link: what this client holds, what it has answered, and what it is not to be handed twice.

The broker confirms an answer by settling. Until then nobody knows whether it counts. When the link is attached again:

1. The broker keeps a session. Its attach says how many held messages come first.
   a. One that was answered before is answered again, the same, and not handed out.
   b. One that the application has and did not answer is its own as before, and not handed out again.
   c. One that never reached us is handed out.
   When all held ones have come, what was answered and is not among them was confirmed; what was not answered and is not
   among them was taken from us.
2. It keeps none. What was not answered may go to anybody. A message that can be told from others by its key, and comes
   again marked as a redelivery, is treated as in 1a and 1b; one that cannot is handed out again, with its mark.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from qpid_ha_client.core.errors import LinkDoubt
from qpid_ha_client.core.events import (
    AnswerConfirmed,
    AnswerDelivery,
    AnswerInDoubt,
    ConsumerVerdict,
    DeliveryWithdrawn,
    Effect,
    GiveCredit,
    MessageArrived,
    MessageHandedOut,
    SettleDelivery,
)

ANSWERED_KEPT: Final = 10_000
"""Without a session: so many answers whose confirmation was not heard are remembered, the last ones."""


@dataclass(slots=True, eq=False)
class HandedOutMessage:
    """A message that was handed out. `verdict` None: it is not answered; `handle` None: not on this connection."""

    ticket: int
    key: Hashable
    handle: int | None
    verdict: ConsumerVerdict | None = None


@dataclass
class ConsumerCore:
    """The promise: the application is handed no message twice that a key or a session lets us recognise."""

    name: str
    address: str
    prefetch: int
    held: dict[int, HandedOutMessage] = field(default_factory=dict)
    """By ticket: all that was handed out, and whose answer is not confirmed."""
    _by_key: dict[Hashable, HandedOutMessage] = field(default_factory=dict)
    """Of those, and of what was answered and given up without a session, what has a key."""
    _by_handle: dict[int, HandedOutMessage] = field(default_factory=dict)
    _doubtful: dict[Hashable, HandedOutMessage] = field(default_factory=dict)
    """By key: answered before a break that no session outlived. If one comes again, it is answered again."""
    _unanswered: int = 0
    """Of `held`."""
    _credit: int = 0
    _held_to_come: int = 0
    """So many of the messages to come are those that the broker has held for us."""
    _is_resumed: bool = False
    """In a session: what is not among the held ones is not ours any more."""
    _is_attached: bool = False

    @property
    def is_attached(self) -> bool:
        """Messages come."""
        return self._is_attached

    def attached(self, held: int | None) -> list[Effect]:
        """`held`: so many held messages come first; None: the broker keeps no session."""
        self._is_attached = True
        self._is_resumed, self._held_to_come = held is not None, held or 0
        self._credit = max(self.prefetch, self._held_to_come)
        effects: list[Effect] = [GiveCredit(self.name, self._credit)]
        return effects + self._held_have_come()

    def detached(self) -> None:
        """The link is gone. Whoever comes next says what is still ours."""
        self._is_attached = False
        self._credit = self._held_to_come = 0
        for message in self.held.values():
            message.handle = None
        self._by_handle.clear()

    def forget_session(self) -> list[Effect]:
        """There is no session that holds anything for us: what has no key cannot be known when it comes again."""
        effects: list[Effect] = []
        for message in list(self.held.values()):
            if message.verdict is not None:
                effects += self._doubt_answer(message)
            elif message.key is None:
                self._forget(message)
                effects.append(DeliveryWithdrawn(self.name, message.ticket))
        return effects

    def _doubt_answer(self, message: HandedOutMessage) -> list[Effect]:
        """Nobody will say whether it counts; if the message comes again, it is answered again."""
        self._forget(message)
        if message.key is not None:
            self._doubtful[message.key] = message
            if len(self._doubtful) > ANSWERED_KEPT:
                del self._doubtful[next(iter(self._doubtful))]
        return [AnswerInDoubt(self.name, message.ticket)]

    def begin_anew(self) -> list[Effect]:
        """The session is lost: all that was not answered is back in its queue, and comes as new."""
        self.detached()
        effects = self.forget_session()
        for message in list(self.held.values()):
            self._forget(message)
            effects.append(DeliveryWithdrawn(self.name, message.ticket))
        return effects

    def arrived(self, event: MessageArrived, ticket: int) -> list[Effect]:
        """A message came; `ticket`: for it, if it is new."""
        self._credit -= 1
        key = event.key if isinstance(event.key, Hashable) else None
        message = self._known(key, is_marked=event.redelivered)
        effects: list[Effect] = []
        if message is None:
            is_taken = key in self._by_key  # two messages with one key are not told from each other by it
            message = HandedOutMessage(ticket, None if is_taken else key, None)
            self._unanswered += 1
            effects.append(MessageHandedOut(self.name, ticket, event.message, key, event.redelivered))
        elif message.verdict is not None:
            effects.append(AnswerDelivery(self.name, event.handle, message.verdict))
        message.handle = event.handle
        self.held[message.ticket] = self._by_handle[event.handle] = message
        if message.key is not None:
            self._by_key[message.key] = message
        if self._held_to_come:
            self._held_to_come -= 1
            effects += self._held_have_come()
        return effects + self._top_up()

    def _known(self, key: Hashable, *, is_marked: bool) -> HandedOutMessage | None:
        """The message that has been handed out before, and comes again."""
        if key is None or not (is_marked or self._held_to_come):
            return None
        held = self._by_key.get(key)
        if held is not None:
            return held if held.handle is None else None
        return self._doubtful.pop(key, None)

    def answered(self, ticket: int, verdict: ConsumerVerdict) -> list[Effect]:
        """By the application. One that it does not hold any more changes nothing."""
        message = self.held.get(ticket)
        if message is None or message.verdict is not None:
            return []
        message.verdict = verdict
        self._unanswered -= 1
        if message.handle is not None:
            return [AnswerDelivery(self.name, message.handle, verdict), *self._top_up()]
        # While the link is not attached, and while held ones are to come, the broker may yet say that it is ours.
        if self._is_attached and not self._is_resumed:
            return [*self._doubt_answer(message), *self._top_up()]
        return []

    def settled(self, handle: int) -> list[Effect]:
        """By the broker. Unasked, it takes the message back."""
        message = self._by_handle.get(handle)
        if message is None:
            return []
        self._forget(message)
        effect_type = AnswerConfirmed if message.verdict is not None else DeliveryWithdrawn
        return [SettleDelivery(self.name, handle), effect_type(self.name, message.ticket), *self._top_up()]

    def doubt(self) -> LinkDoubt:
        """What is not certain, if the session is gone."""
        answered = tuple(ticket for ticket, message in self.held.items() if message.verdict is not None)
        return LinkDoubt(accepted=answered, unanswered=tuple(ticket for ticket in self.held if ticket not in answered))

    def check_invariants(self) -> None:
        """Raise AssertionError where the tables disagree."""
        if any(message.handle is None or self.held.get(message.ticket) is not message
               for message in self._by_handle.values()):  # fmt: skip
            raise AssertionError("a delivery is not held")
        if any(self.held.get(message.ticket) is not message for message in self._by_key.values()):
            raise AssertionError("a key is not held")
        if self._unanswered != sum(message.verdict is None for message in self.held.values()):
            raise AssertionError("what is not answered is not counted")
        if self._credit < 0:
            raise AssertionError("more came than there was credit for")

    def _held_have_come(self) -> list[Effect]:
        """If they all have: what is not among them is not ours."""
        if self._held_to_come or not self._is_resumed:
            return []
        effects: list[Effect] = []
        for message in [held for held in self.held.values() if held.handle is None]:
            self._forget(message)
            effect_type = AnswerConfirmed if message.verdict is not None else DeliveryWithdrawn
            effects.append(effect_type(self.name, message.ticket))
        self._is_resumed = False
        return effects

    def _forget(self, message: HandedOutMessage) -> None:
        del self.held[message.ticket]
        self._unanswered -= message.verdict is None
        if message.key is not None:
            self._by_key.pop(message.key, None)
        if message.handle is not None:
            self._by_handle.pop(message.handle, None)

    def _top_up(self) -> list[Effect]:
        """As much credit as the application has room for, in portions: each is a frame."""
        room = self.prefetch - self._unanswered - self._credit
        if not self._is_attached or room <= 0 or (room < self.prefetch // 2 and self._credit > 0):
            return []
        self._credit += room
        return [GiveCredit(self.name, room)]
