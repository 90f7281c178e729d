"""Publishers that number their messages, and may therefore send again what they were not told of: it is queued once."""

from __future__ import annotations

import random
from typing import Any, Final

import proton

from simulation.brokers.amqp_client import Shop, Talk
from simulation.brokers.clients import LinkClient
from simulation.brokers.ledger import Ledger, Sent

PRODUCER: Final = "x-opt-qpid-producer"
SEQUENCE: Final = "x-opt-qpid-sequence"
MOST_UNANSWERED: Final = 60


def numbered(sent: Sent, producer: str) -> proton.Message:
    """Durable, as all that is numbered."""
    message = proton.Message(sent.text(), durable=True)
    message.annotations = {proton.symbol(PRODUCER): producer, proton.symbol(SEQUENCE): proton.ulong(sent.number)}
    return message


class NumberingPublisher(LinkClient):
    """Numbers its messages, and sends again what it has no answer for, in order, before anything new."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        """`queue`: or an exchange."""
        super().__init__(shop, name, draw, ledger, queue)
        self._number = 0
        self._unanswered: dict[int, Sent] = {}
        self._due: list[int] = []
        """Of these, what has to be sent on the link as it is attached now."""
        self._burst = draw.choice((1, 3, 8))
        self._is_released = False
        """Something was given back: the link is to end, or has, and the next one begins with it."""

    def make_link(self, talk: Talk, name: str) -> Any:
        link = talk.session.sender(name)
        link.target.address = self.queue
        self._due, self._is_released = list(self._unanswered), False
        return link

    def act(self, talk: Talk) -> None:
        if not self.is_attached:
            return
        if self._is_released:
            self.end_link(talk)
            return
        while self._due and self.link.credit > 0:
            self._send(self._unanswered[self._due.pop(0)])
        for _ in range(0 if self.is_quiet or self._due else self.draw.randint(0, self._burst)):
            if self.link.credit > 0 and len(self._unanswered) < MOST_UNANSWERED:
                self._number += 1
                sent = self._unanswered[self._number] = Sent(f"{self.name}-0", self._number, self.queue)
                self.ledger.sends(sent, is_durable=True)
                self._send(sent)

    def _send(self, sent: Sent) -> None:
        self.note(f"sends {sent.number}")
        self.link.delivery(str(sent.number))
        self.link.send(numbered(sent, self.name).encode())
        self.link.advance()

    def on_delivery(self, talk: Talk, delivery: Any) -> None:
        state = delivery.remote_state
        if not self._is_mine(delivery.link) or not delivery.updated or not (state or delivery.settled):
            return
        sent = self._unanswered.get(int(delivery.tag))
        delivery.settle()
        if sent is None:
            return
        self.note(f"hears of {sent.number}: {state}")
        if state == proton.Delivery.RELEASED:
            self._is_released = True
            return
        del self._unanswered[sent.number]
        if state == proton.Delivery.ACCEPTED:
            self.ledger.is_accepted(sent)
        else:
            self.ledger.is_refused(sent)

    def why_not_at_rest(self) -> str:
        waits = f"{self.name} was not told of {len(self._unanswered)}" if self._unanswered else ""
        return super().why_not_at_rest() or waits
