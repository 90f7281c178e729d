"""What of a queue's messages is on disk alone since a start, and of which nobody asked: taken in, found, and brought.

It is counted with the queue's other messages; where it lies among them knows their order (`sequence` has the table).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from qpid_ha_broker.model.queues.cold import ColdMessages
from qpid_ha_broker.model.queues.orders import Order
from qpid_ha_broker.model.queues.sequence import Entry


class CountedMessages(Protocol):
    """Those of the queue."""

    count: int
    size: int
    paged: int
    enqueued_total: int

    def restart(self) -> None:
        """Positions begin anew."""


class ColdShare:
    """Of one queue, as long as somebody asks for it: it keeps nothing itself."""

    __slots__ = ("_messages", "_order")

    def __init__(self, messages: CountedMessages, order: Order) -> None:
        self._messages = messages
        self._order = order

    @property
    def can_be(self) -> bool:
        """Whether `prepend` may be called: the queue gives its messages in the order of their ids, those of a level."""
        return self._order.takes_cold

    def prepend(self, stretches: Sequence[ColdMessages]) -> int:
        """Take in messages that are older than all that are here, never expire, and of which none has failed or is
        held; returns how many."""
        messages, count = self._messages, sum([stretch.count for stretch in stretches])
        size = sum([stretch.body_bytes for stretch in stretches])
        messages.count += count
        messages.enqueued_total += count
        messages.size += size
        messages.paged += size
        self._order.prepend_cold(stretches)
        messages.restart()
        return count

    def within(self, first_id: int, last_id: int) -> list[ColdMessages]:
        """What is cold of the messages from one id to another, none of it with messages outside of that."""
        return self._order.cold_within(first_id, last_id)

    def find_others(self, ids: Sequence[int], outdated: Container[str]) -> list[Entry]:
        """The messages with `ids` without what is cold, unless it is in an `outdated` file."""
        return self._order.find_others(ids, outdated)

    def replace(self, old: ColdMessages, new: ColdMessages) -> bool:
        """The messages of `old` are in another file now. Whether they are still cold: else nothing is done."""
        return self._order.replace_cold(old, new)

    def bring(self, cold: ColdMessages, bodies: Sequence[bytes]) -> int:
        """The bodies of messages that are cold, or were when somebody looked; returns how many bytes came."""
        size = self._order.bring_cold(cold, bodies)
        self._messages.paged -= size
        return size

    def give_up(self, cold: ColdMessages) -> None:
        """Messages that are cold, or were when somebody looked, are not to be read together."""
        self._order.give_up_cold(cold)
