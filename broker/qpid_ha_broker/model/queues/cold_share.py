"""What of a queue's messages is on disk alone since a start, and of which nobody asked: taken in, found, and brought.

It is counted with the queue's other messages, and lies among them in the sequences of their order (`sequence` has the
table).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from qpid_ha_broker.model.queues.cold import ColdMessages
from qpid_ha_broker.model.queues.orders import Order
from qpid_ha_broker.model.queues.sequence import Entry, MessageSequence


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
        held; returns how many. Raises TypeError unless they `can_be`."""
        if not self.can_be:
            raise TypeError(f"{self._order} takes entries")
        messages, count = self._messages, sum([stretch.count for stretch in stretches])
        size = sum([stretch.body_bytes for stretch in stretches])
        messages.count += count
        messages.enqueued_total += count
        messages.size += size
        messages.paged += size
        parts: dict[MessageSequence, list[ColdMessages]] = {}
        for stretch in stretches:
            parts.setdefault(self._sequence_of(stretch), []).append(stretch)
        for sequence, part in parts.items():
            sequence.prepend_cold(part)
        messages.restart()
        return count

    def within(self, first_id: int, last_id: int) -> list[ColdMessages]:
        """What is cold of the messages from one id to another, none of it with messages outside of that."""
        return [cold for sequence in self._order.sequences() for cold in sequence.cold_within(first_id, last_id)]

    def find_others(self, ids: Sequence[int], outdated: Container[str]) -> list[Entry]:
        """The messages with `ids` without what is cold, unless it is in an `outdated` file."""
        # Each sequence leaves out what is among its own cold messages: there may be some of another one.
        return [entry for sequence in self._order.sequences() for entry in sequence.find_all(ids, outdated)]

    def replace(self, old: ColdMessages, new: ColdMessages) -> bool:
        """The messages of `old` are in another file now. Whether they are still cold: else nothing is done."""
        return self._sequence_of(old).replace_cold(old, new)

    def bring(self, cold: ColdMessages, bodies: Sequence[bytes]) -> int:
        """The bodies of messages that are cold, or were when somebody looked; returns how many bytes came."""
        size = self._sequence_of(cold).bring_cold(cold, bodies)
        self._messages.paged -= size
        return size

    def give_up(self, cold: ColdMessages) -> None:
        """Messages that are cold, or were when somebody looked, are not to be read together."""
        self._sequence_of(cold).bring_cold(cold, None)

    def _sequence_of(self, cold: ColdMessages) -> MessageSequence:
        """Where they lie, or are to: they have one header."""
        return self._order.sequence_of(cold.header.priority)
